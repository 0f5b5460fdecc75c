//! `doctor`: checks configuration, server and database, with a remedy for each finding.

mod database;
mod server;

pub use server::SILENCE;

use serde_json::json;

use crate::args::DoctorArgs;
use crate::config::ClientSettings;
use crate::error::{CliError, code};
use crate::output::{Cell, Output, Paint, View};

#[derive(Clone, Copy, PartialEq, Eq)]
enum CheckStatus {
    Ok,
    Warning,
    Error,
}

impl CheckStatus {
    fn word(self) -> &'static str {
        match self {
            CheckStatus::Ok => "ok",
            CheckStatus::Warning => "warning",
            CheckStatus::Error => "error",
        }
    }

    fn mark(self) -> Cell {
        match self {
            CheckStatus::Ok => Cell::painted("✓", Paint::Green),
            CheckStatus::Warning => Cell::painted("!", Paint::Yellow),
            CheckStatus::Error => Cell::painted("✕", Paint::Red),
        }
    }
}

/// Result of one check.
struct CheckResult {
    name: &'static str,
    status: CheckStatus,
    words: String,
    remedy: Option<String>,
}

/// Results of all checks so far.
#[derive(Default)]
pub struct Diagnosis {
    items: Vec<CheckResult>,
}

impl Diagnosis {
    fn ok(&mut self, name: &'static str, words: impl Into<String>) {
        self.items.push(CheckResult { name, status: CheckStatus::Ok, words: words.into(), remedy: None });
    }

    fn warn(&mut self, name: &'static str, words: impl Into<String>, remedy: impl Into<String>) {
        self.items.push(CheckResult {
            name,
            status: CheckStatus::Warning,
            words: words.into(),
            remedy: Some(remedy.into()),
        });
    }

    fn error(&mut self, name: &'static str, words: impl Into<String>, remedy: impl Into<String>) {
        self.items.push(CheckResult {
            name,
            status: CheckStatus::Error,
            words: words.into(),
            remedy: Some(remedy.into()),
        });
    }

    fn view(&self, out: &Output) -> View {
        let worst = self.items.iter().any(|item| item.status != CheckStatus::Ok);
        let mut view = View::new(json!({
            "healthy": !worst,
            "items": self.items.iter().map(|item| json!({
                "name": item.name, "status": item.status.word(), "what": item.words, "do": item.remedy,
            })).collect::<Vec<_>>(),
        }));
        for item in &self.items {
            view.line(format!("{} {:<11} {}", item.status.mark().show(out), item.name, item.words));
            if let Some(remedy) = &item.remedy {
                view.line(format!("  {:<11} do: {remedy}", ""));
            }
        }
        view.code = if worst { code::ATTENTION } else { code::OK };
        view
    }
}

pub async fn run(out: &Output, settings: Result<ClientSettings, CliError>, args: DoctorArgs) -> Result<u8, CliError> {
    let settings = settings?;
    let mut diagnosis = Diagnosis::default();
    configuration(&settings, &mut diagnosis);
    server::check(&settings, &mut diagnosis).await;
    database::check(args.db.as_deref(), &mut diagnosis).await;
    descriptors(&mut diagnosis);
    diagnosis.view(out).print(out)
}

fn configuration(settings: &ClientSettings, diagnosis: &mut Diagnosis) {
    let profile = settings.profile.value.as_deref().map(|name| format!("profile {name}, ")).unwrap_or_default();
    let words = format!("{profile}server from {}", settings.server.origin);
    match settings.warnings.first().and_then(|warning| warning.trim_start_matches("warning: ").split_once("; do: ")) {
        None => diagnosis.ok("config", words),
        Some((what, remedy)) => diagnosis.warn("config", what, remedy),
    }
}

/// Limit below which many connections and waiting workers can exhaust the file descriptors.
const FEW_DESCRIPTORS: u64 = 4_096;

fn descriptors(diagnosis: &mut Diagnosis) {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    match limit.current {
        Some(few) if few < FEW_DESCRIPTORS => {
            let words = format!("limit of {few} open files; every connection needs one");
            diagnosis.warn("files", words, "ulimit -n 65536, before comeback serve");
        }
        Some(many) => diagnosis.ok("files", format!("limit of {} open files", crate::output::grouped(many))),
        None => diagnosis.ok("files", "no limit of open files"),
    }
}
