//! Errors in three parts (error, why, do), and the exit codes that scripts rely on.

use std::fmt;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use comeback_client::{Error, Problem};

/// Exit codes; `comeback help exit-codes` lists them.
pub mod code {
    pub const OK: u8 = 0;
    pub const FAILED: u8 = 1;
    pub const USAGE: u8 = 2;
    pub const NOT_FOUND: u8 = 3;
    pub const AUTH: u8 = 4;
    pub const CONFLICT: u8 = 5;
    pub const REFUSED: u8 = 6;
    pub const UNREACHABLE: u8 = 7;
    pub const ATTENTION: u8 = 8;
    pub const PARTIAL: u8 = 9;
    pub const DEAD: u8 = 10;
    pub const CANCELED: u8 = 11;
    pub const TIMEOUT: u8 = 124;
    pub const INTERRUPTED: u8 = 130;
}

/// An error with its exit code, cause and remedies.
#[derive(Debug)]
pub struct CliError {
    pub code: u8,
    what: String,
    why: Option<String>,
    remedies: Vec<String>,
}

impl CliError {
    pub fn new(code: u8, what: impl Into<String>) -> CliError {
        CliError { code, what: what.into(), why: None, remedies: Vec::new() }
    }

    pub fn why(mut self, why: impl Into<String>) -> CliError {
        self.why = Some(why.into());
        self
    }

    pub fn remedy(mut self, remedy: impl Into<String>) -> CliError {
        self.remedies.push(remedy.into());
        self
    }

    pub fn what(&self) -> &str {
        &self.what
    }

    /// Error and cause in one line, for use in another error.
    pub fn in_a_line(&self) -> String {
        match &self.why {
            Some(why) => format!("{}: {why}", self.what),
            None => self.what.clone(),
        }
    }
}

impl fmt::Display for CliError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "error: {}", without_number(&self.what))?;
        if let Some(why) = &self.why {
            writeln!(f, "  why: {}", without_number(why))?;
        }
        for (i, remedy) in self.remedies.iter().enumerate() {
            writeln!(f, "  {} {remedy}", if i == 0 { "do: " } else { "    " })?;
        }
        Ok(())
    }
}

/// Removes `(os error N)` from an error text.
pub fn without_number(text: &str) -> String {
    match text.split_once(" (os error ").and_then(|(before, rest)| Some((before, rest.split_once(')')?.1))) {
        Some((before, after)) => format!("{before}{after}"),
        None => text.to_owned(),
    }
}

impl From<Error> for CliError {
    fn from(error: Error) -> Self {
        match &error {
            Error::Unreachable { url, why } => CliError::new(code::UNREACHABLE, format!("cannot reach {url}"))
                .why(why.to_lowercase())
                .remedy("comeback serve")
                .remedy("or use another server: --server URL, or --profile NAME"),
            Error::Refused(problem) => {
                let code = match problem.status {
                    401 | 403 => code::AUTH,
                    404 => code::NOT_FOUND,
                    409 => code::CONFLICT,
                    402 => code::REFUSED,
                    400 => code::USAGE,
                    503 => code::UNREACHABLE,
                    _ => code::FAILED,
                };
                let detail = problem.detail.strip_prefix("q: ").unwrap_or(&problem.detail);
                let failure = CliError::new(code, detail);
                let log = format!("search the log of the server for {}", problem.instance);
                match problem.kind.to_ascii_uppercase().replace('-', "_").as_str() {
                    "UNAUTHORIZED" => CliError::new(code, "the server requires an API key")
                        .why(if detail.starts_with("send a key") { "none was sent" } else { detail })
                        .remedy("set COMEBACK_KEY, or put the key into a profile (comeback help environment)")
                        .remedy("or create one: comeback key create --role admin --db FILE"),
                    "FORBIDDEN" => failure
                        .why("the role of this key, or its namespace, does not allow it")
                        .remedy("use another key; comeback config view shows the current one"),
                    "WRONG_STATE" => failure
                        .why("the current state does not allow it")
                        .remedy("check its state: resume it if it is paused, activate it if it is inactive"),
                    "NOT_FOUND" => failure
                        .why("it does not exist, is in another namespace, or was deleted after the retention time")
                        .remedy(format!("{}, or use another namespace: --namespace NAME", how_to_list(detail))),
                    "VALIDATION_FAILED" => invalid_request(failure, problem),
                    "BAD_REQUEST" | "METHOD_NOT_ALLOWED" | "UNSUPPORTED_MEDIA_TYPE" => failure
                        .why("the server does not understand this client: their versions differ")
                        .remedy("comeback doctor"),
                    "CONFLICT" => {
                        failure.why("it was changed concurrently").remedy("check the current state, then try again")
                    }
                    "DEDUPE_KEY_TAKEN" => failure
                        .why("only one open task may have a dedupe key")
                        .remedy("cancel the other task, or wait until it ends: comeback task list state:open"),
                    "IDEMPOTENCY_MISMATCH" => failure
                        .why("an idempotency key identifies one request, and this request differs")
                        .remedy("use a new key for a new request"),
                    "LEASE_LOST" => {
                        failure.why("it expired, or another worker has the task").remedy("stop working on the task")
                    }
                    "INSUFFICIENT_CREDITS" => failure
                        .why("the account has too few credits for another cycle; nothing was changed")
                        .remedy("add credits: comeback account put NAME --credits N"),
                    "ACCOUNT_IN_USE" => failure
                        .why("open tasks have reserved some of its credits")
                        .remedy("wait until they end, or cancel them: comeback task list account:NAME"),
                    "TASK_CANCELED" => failure.why("the task was canceled").remedy("stop working on it"),
                    "TOO_LARGE" => failure
                        .why("the request exceeds a limit of the server")
                        .remedy("send less at once, or raise the limit: comeback serve --limit large_body=BYTES"),
                    "TOO_SLOW" => failure
                        .why("the connection is too slow for this request, or was interrupted")
                        .remedy("try again, with less at once"),
                    "OVERLOADED" | "TOO_MANY_REQUESTS" => failure
                        .why("the server is overloaded and prefers reports and heartbeats; nothing was changed")
                        .remedy("try again in a moment, with less at once"),
                    "QUOTA_EXCEEDED" => failure
                        .why("the namespace has reached its quota")
                        .remedy("try again with less at once, or raise the quota: comeback serve --quota NAME=VALUE"),
                    "UNAVAILABLE" => failure.why("the server is running but unavailable").remedy("comeback doctor"),
                    "INTERNAL" => failure.why("internal error of the server").remedy(log),
                    other => failure.why(format!("unknown problem type {other}")).remedy("comeback doctor"),
                }
            }
            Error::Decode(_) => CliError::new(code::FAILED, error.to_string())
                .why("it is not a comeback server, or one of another version")
                .remedy("comeback doctor"),
            Error::Usage(_) => CliError::new(code::USAGE, error.to_string())
                .why("no request was sent")
                .remedy("--server http://127.0.0.1:7330 (comeback help environment)"),
        }
    }
}

/// The command that lists members of the noun that was not found.
fn how_to_list(detail: &str) -> String {
    let sort = detail.rsplit(' ').next().unwrap_or_default();
    let commands = crate::args::command();
    match commands.find_subcommand(sort).and_then(|command| command.find_subcommand("list")) {
        Some(_) => format!("comeback {sort} list"),
        None => "check the name".to_owned(),
    }
}

/// Names the invalid fields of a request, and the help topic about them.
fn invalid_request(failure: CliError, problem: &Problem) -> CliError {
    let faults = problem.more.get("errors").and_then(|errors| errors.as_array()).map_or(&[][..], Vec::as_slice);
    let text = |fault: &serde_json::Value, name: &str| fault[name].as_str().unwrap_or_default().to_owned();
    let [first, rest @ ..] = faults else {
        return failure.why("the server rejected it").remedy("correct it; nothing was changed");
    };
    let path = text(first, "path");
    let (what, remedy) = match path.split(['.', '[']).next().unwrap_or_default() {
        "" => ("invalid request".to_owned(), "correct it; nothing was changed"),
        "q" => ("invalid filter".to_owned(), "comeback help filters"),
        "retry" | "policy" => (format!("invalid `{path}`"), "comeback help policies"),
        _ => (format!("invalid `{path}`"), "correct it; nothing was changed"),
    };
    let others = rest.iter().map(|fault| format!("; {}: {}", text(fault, "path"), text(fault, "message")));
    let why = text(first, "message") + &others.collect::<String>();
    CliError::new(failure.code, what).why(why).remedy(remedy)
}

/// Parse errors of clap, in the format of this program.
impl From<&clap::Error> for CliError {
    fn from(error: &clap::Error) -> Self {
        let text = |kind: ContextKind| match error.get(kind) {
            Some(ContextValue::String(text)) => Some(text.clone()),
            Some(ContextValue::Strings(texts)) => texts.first().cloned(),
            _ => None,
        };
        let list = |kind: ContextKind| match error.get(kind) {
            Some(ContextValue::Strings(texts)) => texts.join(" "),
            Some(ContextValue::String(text)) => text.clone(),
            _ => String::new(),
        };
        let usage = |what: String| CliError::new(code::USAGE, what);
        let help = help_for(std::env::args().skip(1));
        let argument = text(ContextKind::InvalidArg).unwrap_or_default();
        match error.kind() {
            ErrorKind::InvalidSubcommand => {
                let name = text(ContextKind::InvalidSubcommand).unwrap_or_default();
                let failure = usage(format!("unknown command `{name}`"));
                match text(ContextKind::SuggestedSubcommand) {
                    Some(meant) => failure.remedy(format!("did you mean `{meant}`?   see: {help}")),
                    None => failure.remedy(help),
                }
            }
            ErrorKind::UnknownArgument => {
                let failure = usage(format!("unknown option `{argument}`"));
                match text(ContextKind::SuggestedArg) {
                    Some(meant) => failure.remedy(format!("did you mean `{meant}`?   see: {help}")),
                    None => failure.remedy(help),
                }
            }
            ErrorKind::MissingSubcommand => {
                let name = text(ContextKind::InvalidSubcommand).unwrap_or_default();
                let failure = usage(format!("`{name}` needs a subcommand"));
                match list(ContextKind::ValidSubcommand).replace(' ', ", ") {
                    words if words.is_empty() => failure.remedy(help),
                    words => failure.remedy(format!("one of {words}")),
                }
            }
            ErrorKind::MissingRequiredArgument => {
                usage(format!("{} is missing", list(ContextKind::InvalidArg))).remedy(help)
            }
            ErrorKind::InvalidValue | ErrorKind::ValueValidation => {
                let value = text(ContextKind::InvalidValue).unwrap_or_default();
                let what = if value.is_empty() {
                    format!("{argument} needs a value")
                } else {
                    format!("invalid value `{value}` for {argument}")
                };
                let valid = list(ContextKind::ValidValue).replace(' ', ", ");
                let failure = usage(what);
                let failure = match std::error::Error::source(error) {
                    Some(why) => failure.why(explain_value(why)),
                    None => failure,
                };
                if valid.is_empty() { failure.remedy(help) } else { failure.remedy(format!("one of {valid}")) }
            }
            ErrorKind::ArgumentConflict => {
                let other = list(ContextKind::PriorArg);
                usage(format!("{argument} and {other} cannot be used together")).remedy(help)
            }
            ErrorKind::NoEquals => usage(format!("{argument} takes its value after `=`")).remedy("--watch=5s"),
            _ => {
                let rendered = error.to_string();
                let first = rendered.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned();
                usage(first).remedy(help)
            }
        }
    }
}

/// Explains an invalid value, in plainer words than the standard library has for numbers.
fn explain_value(why: &dyn std::error::Error) -> String {
    let text = why.to_string();
    match text.as_str() {
        "invalid digit found in string" | "cannot parse integer from empty string" => "it is not a whole number".into(),
        "number too large to fit in target type" => "it is too large".into(),
        "number too small to fit in target type" => "it is too small".into(),
        _ => text,
    }
}

/// The help command for the last subcommand that was recognised.
fn help_for(words: impl Iterator<Item = String>) -> String {
    let mut command = crate::args::command();
    let mut names = vec!["comeback".to_owned()];
    for word in words.filter(|word| !word.starts_with('-')) {
        let Some(found) = command.find_subcommand(&word).cloned() else { break };
        names.push(word);
        command = found;
    }
    if names.len() < 2 { "comeback help".into() } else { format!("{} --help", names.join(" ")) }
}
