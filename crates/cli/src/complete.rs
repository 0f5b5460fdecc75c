//! Shell completion. The shell calls the binary, so that ids complete too; it answers within 300 ms and prints no errors.

use std::ffi::OsStr;
use std::io::Write;
use std::time::Duration;

use clap::{CommandFactory, FromArgMatches};
use clap_complete::engine::CompletionCandidate;
use clap_complete::env::Shells;
use comeback_client::Client;

use crate::args::Arguments;
use crate::config::{ClientSettings, ConfigSources};
use crate::error::{CliError, code};
use crate::output;

/// Set by the script in the shell.
const VARIABLE: &str = "COMEBACK_COMPLETE";
const TIMEOUT: Duration = Duration::from_millis(300);

/// Answers and exits if a shell asks for completions; returns otherwise.
pub fn answer() {
    clap_complete::CompleteEnv::with_factory(crate::args::command).var(VARIABLE).complete();
}

/// Prints the script that makes a shell ask.
pub fn script(shell: clap_complete::Shell) -> Result<u8, CliError> {
    let name = shell.to_string();
    let shells = Shells::builtins();
    let known = shells.completer(&name).ok_or_else(|| CliError::new(code::USAGE, format!("unknown shell `{name}`")))?;
    let mut text = Vec::new();
    let written = known.write_registration(VARIABLE, "comeback", "comeback", "comeback", &mut text);
    written.map_err(|error| CliError::new(code::FAILED, "cannot write the script").why(error.to_string()))?;
    match std::io::stdout().write_all(&text) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(CliError::new(code::FAILED, "cannot write the script").why(error.to_string()))
        }
        _ => Ok(code::OK),
    }
}

/// The newest tasks whose short id starts with what was typed.
pub fn task_ids(typed: &OsStr) -> Vec<CompletionCandidate> {
    typed.to_str().and_then(matching_tasks).unwrap_or_default()
}

fn matching_tasks(typed: &str) -> Option<Vec<CompletionCandidate>> {
    // Server and key come from the environment and the configuration; the options on the line are not known here.
    let matches = Arguments::command().try_get_matches_from(["comeback", "stats"]).ok()?;
    let global = Arguments::from_arg_matches(&matches).ok()?.global;
    let settings = ClientSettings::find(&ConfigSources { global: &global, matches: &matches }).ok()?;
    let client = Client::new(settings.server()).ok()?;
    let client = client.with_key(settings.key.value.clone()).in_namespace(settings.namespace.value.clone());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
    let query = [("q", typed.to_owned()), ("limit", "100".to_owned())];
    let request = async { tokio::time::timeout(TIMEOUT, client.get_with("/api/v1/tasks", &query)).await };
    let listed = runtime.block_on(request).ok()?.ok()?;
    let found = output::items(&listed).filter_map(|task| {
        let (short, state) = (output::short(&task["id"]), output::state(task).text);
        let help = format!("{state} {}", output::text(task, "kind"));
        short.starts_with(typed).then(|| CompletionCandidate::new(short).help(Some(help.into())))
    });
    Some(found.collect())
}

/// Names of the loops, and `promote`.
pub fn loops(typed: &OsStr) -> Vec<CompletionCandidate> {
    let names = comeback_engine::store::Loop::ALL.iter().map(|it| it.word()).chain(["promote"]);
    let typed = typed.to_str().unwrap_or_default();
    names.filter(|name| name.starts_with(typed)).map(CompletionCandidate::new).collect()
}
