//! Completion: the shell asks the binary itself, so that ids complete too. Whoever presses a key does not wait, and is not told
//! of errors.

use std::ffi::OsStr;
use std::io::Write;
use std::time::Duration;

use clap::{CommandFactory, FromArgMatches};
use clap_complete::engine::CompletionCandidate;
use clap_complete::env::Shells;
use comeback_client::Client;

use crate::args::Arguments;
use crate::config::{Said, Settings};
use crate::failure::{Failure, code};
use crate::output;

/// Set by the script in the shell.
const VARIABLE: &str = "COMEBACK_COMPLETE";
const PATIENCE: Duration = Duration::from_millis(300);

/// Answers and ends where a shell asks; else returns at once.
pub fn answer() {
    clap_complete::CompleteEnv::with_factory(crate::args::command).var(VARIABLE).complete();
}

/// What makes a shell ask.
pub fn script(shell: clap_complete::Shell) -> Result<u8, Failure> {
    let name = shell.to_string();
    let shells = Shells::builtins();
    let known = shells.completer(&name).ok_or_else(|| Failure::new(code::USAGE, format!("`{name}` is no shell")))?;
    let mut text = Vec::new();
    let written = known.write_registration(VARIABLE, "comeback", "comeback", "comeback", &mut text);
    written.map_err(|error| Failure::new(code::FAILED, "no script was written").why(error.to_string()))?;
    match std::io::stdout().write_all(&text) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Failure::new(code::FAILED, "no script was written").why(error.to_string()))
        }
        _ => Ok(code::OK),
    }
}

/// The newest tasks that begin with what was typed, by the end of their id.
pub fn task_ids(typed: &OsStr) -> Vec<CompletionCandidate> {
    typed.to_str().and_then(look).unwrap_or_default()
}

fn look(typed: &str) -> Option<Vec<CompletionCandidate>> {
    // The environment and the configuration say where the server is; what else is on the line is not known here.
    let matches = Arguments::command().try_get_matches_from(["comeback", "stats"]).ok()?;
    let global = Arguments::from_arg_matches(&matches).ok()?.global;
    let settings = Settings::find(&Said { global: &global, matches: &matches }).ok()?;
    let client = Client::new(settings.server()).ok()?;
    let client = client.with_key(settings.key.value.clone()).in_namespace(settings.namespace.value.clone());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().ok()?;
    let query = [("q", typed.to_owned()), ("limit", "100".to_owned())];
    let asked = async { tokio::time::timeout(PATIENCE, client.get_with("/api/v1/tasks", &query)).await };
    let listed = runtime.block_on(asked).ok()?.ok()?;
    let found = output::items(&listed).filter_map(|task| {
        let (short, state) = (output::short(&task["id"]), output::state(task).text);
        let help = format!("{state} {}", output::text(task, "kind"));
        short.starts_with(typed).then(|| CompletionCandidate::new(short).help(Some(help.into())))
    });
    Some(found.collect())
}

/// The loops there are, and the name for two of them.
pub fn loops(typed: &OsStr) -> Vec<CompletionCandidate> {
    let names = comeback_engine::store::Loop::ALL.iter().map(|it| it.word()).chain(["promote"]);
    let typed = typed.to_str().unwrap_or_default();
    names.filter(|name| name.starts_with(typed)).map(CompletionCandidate::new).collect()
}
