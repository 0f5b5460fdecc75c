//! `db check`: the integrity of a database, with all findings.

use comeback_engine::store::Place;
use serde_json::json;

use super::progress::ProgressLine;
use crate::commands::broken;
use crate::error::{CliError, code};
use crate::output::{Cell, Output, Paint, View, grouped, plural};

pub async fn run(out: &Output, place: &Place) -> Result<u8, CliError> {
    let mut progress = ProgressLine::new();
    let checked = place.check(&mut |at| progress.update(at.part, at.done, at.total)).await;
    drop(progress);
    let report = checked.map_err(|error| broken(place, &error))?;
    let mut view = View::new(json!({
        "db": place.to_string(),
        "clean": report.is_clean(),
        "parts": report.parts.iter().map(|part| json!({
            "name": part.name, "looked_at": part.looked_at, "wrong": part.wrong,
        })).collect::<Vec<_>>(),
        "findings": report.findings.iter().map(|it| json!({
            "code": it.code, "id": it.about.map(|id| id.to_string()), "what": it.words,
        })).collect::<Vec<_>>(),
    }));
    for part in &report.parts {
        let mark = if part.wrong == 0 { Cell::painted("✓", Paint::Green) } else { Cell::painted("✕", Paint::Red) };
        let wrong = if part.wrong == 0 { String::new() } else { format!("   {} wrong", grouped(part.wrong)) };
        view.line(format!(
            "{} {:<15} {:>9}  {}{wrong}",
            mark.show(out),
            part.name,
            grouped(part.looked_at),
            part.things
        ));
    }
    for finding in &report.findings {
        let about = finding.about.map(|id| format!("{id}: ")).unwrap_or_default();
        view.line(format!("  {}: {about}{}", finding.code, finding.words));
    }
    let unlisted = report.wrong().saturating_sub(report.findings.len() as u64);
    if unlisted > 0 {
        view.line(format!("  and {} more", grouped(unlisted)));
    }
    if report.is_clean() {
        return view.with_hint(format!("{place} is consistent")).print(out);
    }
    view.code = code::FAILED;
    let hint = format!(
        "{place} is inconsistent: {}; restore a backup, or report a bug with this output",
        plural(report.wrong(), "finding")
    );
    view.with_hint(hint).print(out)
}
