//! Doctor: looks at everything that can be looked at from here, and says of each whether it is well and what to do if not.

mod database;
mod server;

pub use server::SILENCE;

use serde_json::json;

use crate::args::DoctorArgs;
use crate::config::Settings;
use crate::failure::{Failure, code};
use crate::output::{Cell, Output, Paint, View};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Well,
    Look,
    Ill,
}

impl Verdict {
    fn word(self) -> &'static str {
        match self {
            Verdict::Well => "ok",
            Verdict::Look => "warning",
            Verdict::Ill => "error",
        }
    }

    fn mark(self) -> Cell {
        match self {
            Verdict::Well => Cell::painted("✓", Paint::Green),
            Verdict::Look => Cell::painted("!", Paint::Yellow),
            Verdict::Ill => Cell::painted("✕", Paint::Red),
        }
    }
}

struct Item {
    name: &'static str,
    verdict: Verdict,
    words: String,
    remedy: Option<String>,
}

/// What was found so far.
#[derive(Default)]
pub struct Chart {
    items: Vec<Item>,
}

impl Chart {
    fn well(&mut self, name: &'static str, words: impl Into<String>) {
        self.items.push(Item { name, verdict: Verdict::Well, words: words.into(), remedy: None });
    }

    fn look(&mut self, name: &'static str, words: impl Into<String>, remedy: impl Into<String>) {
        self.items.push(Item { name, verdict: Verdict::Look, words: words.into(), remedy: Some(remedy.into()) });
    }

    fn ill(&mut self, name: &'static str, words: impl Into<String>, remedy: impl Into<String>) {
        self.items.push(Item { name, verdict: Verdict::Ill, words: words.into(), remedy: Some(remedy.into()) });
    }

    fn view(&self, out: &Output) -> View {
        let worst = self.items.iter().any(|item| item.verdict != Verdict::Well);
        let mut view = View::new(json!({
            "healthy": !worst,
            "items": self.items.iter().map(|item| json!({
                "name": item.name, "status": item.verdict.word(), "what": item.words, "do": item.remedy,
            })).collect::<Vec<_>>(),
        }));
        for item in &self.items {
            view.line(format!("{} {:<11} {}", item.verdict.mark().show(out), item.name, item.words));
            if let Some(remedy) = &item.remedy {
                view.line(format!("  {:<11} do: {remedy}", ""));
            }
        }
        view.code = if worst { code::ATTENTION } else { code::OK };
        view
    }
}

pub async fn run(out: &Output, settings: Result<Settings, Failure>, args: DoctorArgs) -> Result<u8, Failure> {
    let settings = settings?;
    let mut chart = Chart::default();
    configuration(&settings, &mut chart);
    server::look(&settings, &mut chart).await;
    database::look(args.db.as_deref(), &mut chart).await;
    descriptors(&mut chart);
    chart.view(out).print(out)
}

fn configuration(settings: &Settings, chart: &mut Chart) {
    let profile = settings.profile.value.as_deref().map(|name| format!("profile {name}, ")).unwrap_or_default();
    let words = format!("{profile}server from {}", settings.server.origin);
    match settings.warnings.first().and_then(|warning| warning.trim_start_matches("warning: ").split_once("; do: ")) {
        None => chart.well("config", words),
        Some((what, remedy)) => chart.look("config", what, remedy),
    }
}

/// A server that is started here gets the same limit: one per connection, one per worker that waits.
const FEW_DESCRIPTORS: u64 = 4_096;

fn descriptors(chart: &mut Chart) {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    match limit.current {
        Some(few) if few < FEW_DESCRIPTORS => {
            let words = format!("{few} open files at most; every connection is one");
            chart.look("files", words, "ulimit -n 65536, before comeback serve");
        }
        Some(many) => chart.well("files", format!("{} open files at most", crate::output::grouped(many))),
        None => chart.well("files", "as many open files as wanted"),
    }
}
