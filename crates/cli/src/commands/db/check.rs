//! Whether a database holds together: what was looked at, and everything that is wrong.

use comeback_engine::store::Place;
use serde_json::json;

use super::progress::Progress;
use crate::commands::broken;
use crate::failure::{Failure, code};
use crate::output::{Cell, Output, Paint, View, grouped, plural};

pub async fn run(out: &Output, place: &Place) -> Result<u8, Failure> {
    let mut progress = Progress::begin();
    let checked = place.check(&mut |at| progress.tell(at.part, at.done, at.total)).await;
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
    let untold = report.wrong().saturating_sub(report.findings.len() as u64);
    if untold > 0 {
        view.line(format!("  and {} more", grouped(untold)));
    }
    if report.is_clean() {
        return view.with_hint(format!("{place} holds together")).print(out);
    }
    view.code = code::FAILED;
    let hint = format!(
        "{place} does not hold together: {}; restore a backup, or ask with this report",
        plural(report.wrong(), "finding")
    );
    view.with_hint(hint).print(out)
}
