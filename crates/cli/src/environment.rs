//! Environment variables without a command-line option, and the warning about unknown ones.

use std::collections::BTreeSet;

use comeback_core::PolicyLimits;

use crate::error::{CliError, code};

/// Variables of policy limits, each with its name in `--limit`.
const LIMITS: [(&str, &str); 3] = [
    ("RETRY_MAX_RETRIES_LIMIT", "max_retries"),
    ("RETRY_MAX_DELAY_LIMIT", "max_delay"),
    ("RETRY_MAX_SCHEDULE_LIMIT", "max_schedule"),
];
/// Polling interval of the loop `retries`, in milliseconds.
const INTERVAL: &str = "RETRY_LOOP_INTERVAL_MS";

/// Known variables without an option; `*` matches any suffix.
const OTHERS: [&str; 31] = [
    // Read by this program without an option.
    "COMEBACK_COMPLETE",
    "COMEBACK_CONFIG",
    "COMEBACK_SECRET_KEY",
    // Set for the processes of tasks, which may start a server.
    "COMEBACK_ATTEMPT",
    "COMEBACK_CATEGORY",
    "COMEBACK_KIND",
    "COMEBACK_PAYLOAD",
    "COMEBACK_PAYLOAD_*",
    "COMEBACK_RUN",
    "COMEBACK_TASK",
    "COMEBACK_TASK_KEY",
    // Of examples, generated clients, scripts and tests.
    "COMEBACK_API_KEY",
    "COMEBACK_BINARY",
    "COMEBACK_CHAOS_*",
    "COMEBACK_CHILD_*",
    "COMEBACK_EVERY_COMMIT",
    "COMEBACK_EXPRESSIONS",
    "COMEBACK_FLOW_SEEDS",
    "COMEBACK_FULL_SIZE",
    "COMEBACK_KILLS",
    "COMEBACK_PANICS",
    "COMEBACK_PANIC_AT",
    "COMEBACK_REPAIR_SEED*",
    "COMEBACK_SEED",
    "COMEBACK_SEEDS",
    "COMEBACK_TEST_*",
    "COMEBACK_TRANSCRIPTS",
    "COMEBACK_UPDATE",
    // Set by Kubernetes for a service with this name.
    "COMEBACK_PORT_*",
    "COMEBACK_SERVICE_HOST",
    "COMEBACK_SERVICE_PORT*",
];

fn given(name: &str) -> Option<String> {
    std::env::var(name).ok().map(|value| value.trim().to_owned()).filter(|value| !value.is_empty())
}

fn invalid(name: &str, value: &str, why: String, remedy: &str) -> CliError {
    CliError::new(code::USAGE, format!("invalid {name} `{value}`")).why(why).remedy(format!("{name}={remedy}"))
}

/// The `RETRY_` variables that are set, with their values.
pub fn retry_variables() -> Vec<(&'static str, String)> {
    let names = LIMITS.iter().map(|(variable, _)| *variable).chain([INTERVAL]);
    names.filter_map(|name| Some((name, given(name)?))).collect()
}

/// The tighter of these limits and those of the environment.
pub fn tightened(limits: PolicyLimits) -> Result<PolicyLimits, CliError> {
    let mut own = PolicyLimits::default();
    for (variable, name) in LIMITS {
        if let Some(value) = given(variable) {
            let remedy = if name == "max_retries" { "10" } else { "3600" };
            own.set(name, &value).map_err(|why| invalid(variable, &value, why, remedy))?;
        }
    }
    Ok(limits.tighter(own))
}

/// The polling interval of the loop `retries`, in the form of `--look-every`.
pub fn look_every() -> Result<Option<String>, CliError> {
    let read = |value: String| match value.parse::<u64>() {
        Ok(millis @ 100..=86_400_000) => Ok(format!("retries={millis}ms")),
        _ => Err(invalid(INTERVAL, &value, "expected milliseconds, from 100 to 86400000".into(), "1000")),
    };
    given(INTERVAL).map(read).transpose()
}

/// Whether a `COMEBACK_` or `RETRY_` variable is unknown. Service addresses of Kubernetes are known.
fn is_unknown(known: &BTreeSet<String>, name: &str, value: &str) -> bool {
    let listed = |entry: &str| entry.strip_suffix('*').map_or(name == entry, |start| name.starts_with(start));
    let ours = name.starts_with("COMEBACK_") || name.starts_with("RETRY_");
    let is_address = name == "COMEBACK_PORT" && value.contains("://");
    ours && !is_address && !known.contains(name) && !OTHERS.iter().any(|entry| listed(entry))
}

/// Every variable that an option reads, and the `RETRY_` variables.
fn known() -> BTreeSet<String> {
    fn collect(command: &clap::Command, known: &mut BTreeSet<String>) {
        known.extend(command.get_arguments().filter_map(|arg| Some(arg.get_env()?.to_str()?.to_owned())));
        command.get_subcommands().for_each(|inner| collect(inner, known));
    }
    let retry = LIMITS.iter().map(|(variable, _)| *variable).chain([INTERVAL]);
    let mut known: BTreeSet<String> = retry.map(str::to_owned).collect();
    collect(&crate::args::command(), &mut known);
    known
}

/// Warns of unknown variables: a misspelled setting has no effect.
pub fn warn_of_unknown() {
    let known = known();
    let all = std::env::vars_os();
    let all = all.map(|(name, value)| (name.to_string_lossy().into_owned(), value.to_string_lossy().into_owned()));
    let unknown: BTreeSet<String> =
        all.filter(|(name, value)| is_unknown(&known, name, value)).map(|(name, _)| name).collect();
    for name in unknown {
        tracing::warn!(variable = name, "unknown environment variable is ignored (comeback help environment)");
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn what_is_known_is_told_from_what_is_not() {
        let known = known();
        for (name, value, unknown) in [
            ("COMEBACK_LISTEN", "", false),
            ("COMEBACK_LISTN", "", true),
            ("COMEBACK_MAX_RETRIES", "", true),
            ("COMEBACK_KEY", "", false),
            ("COMEBACK_TEST_ANYTHING", "", false),
            ("COMEBACK_PAYLOAD_SAVE", "", false),
            ("COMEBACK_PAYLOADS", "", true),
            ("COMEBACK_PORT", "tcp://10.0.0.1:7330", false),
            ("COMEBACK_PORT", "7330", true),
            ("COMEBACK_PORT_7330_TCP_ADDR", "10.0.0.1", false),
            ("COMEBACK_SERVICE_PORT_HTTP", "7330", false),
            ("RETRY_MAX_RETRIES_LIMIT", "", false),
            ("RETRY_LOOP_INTERVAL_MS", "", false),
            ("RETRY_MAX_RETRIES", "", true),
            ("RETRYING", "", false),
            ("INSTANCE_ID", "", false),
        ] {
            assert_eq!(is_unknown(&known, name, value), unknown, "{name}={value}");
        }
    }

    /// A new variable must be listed above, or every start with it logs a warning.
    #[test]
    fn every_variable_that_is_named_anywhere_is_known() {
        fn walk(folder: &Path, named: &mut BTreeSet<String>) {
            for entry in std::fs::read_dir(folder).expect("a folder").flatten() {
                let (path, name) = (entry.path(), entry.file_name());
                let is_ours = !["node_modules", "target", "dist", "environment.rs"].iter().any(|it| name == *it);
                if is_ours && path.is_dir() {
                    walk(&path, named);
                } else if is_ours && let Ok(text) = std::fs::read_to_string(&path) {
                    let words = text.split(|c: char| !(c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_'));
                    let ours = words.filter(|word| word.starts_with("COMEBACK_") && !word.ends_with('_'));
                    named.extend(ours.map(str::to_owned));
                }
            }
        }
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let mut named = BTreeSet::new();
        for folder in ["crates", "scripts", "docs", "examples", "sdk", "bench"] {
            walk(&root.join(folder), &mut named);
        }
        let known = known();
        named.retain(|name| is_unknown(&known, name, ""));
        assert!(named.is_empty(), "{named:?}");
    }
}
