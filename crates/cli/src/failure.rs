//! Errors in three lines: what happened, why, and what to do. And the exit codes, which scripts rely on.

use std::fmt;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use comeback_client::{Error, Problem};

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

#[derive(Debug)]
pub struct Failure {
    pub code: u8,
    what: String,
    why: Option<String>,
    remedies: Vec<String>,
}

impl Failure {
    pub fn new(code: u8, what: impl Into<String>) -> Failure {
        Failure { code, what: what.into(), why: None, remedies: Vec::new() }
    }

    pub fn why(mut self, why: impl Into<String>) -> Failure {
        self.why = Some(why.into());
        self
    }

    pub fn remedy(mut self, remedy: impl Into<String>) -> Failure {
        self.remedies.push(remedy.into());
        self
    }

    pub fn what(&self) -> &str {
        &self.what
    }

    /// What and why, where another failure tells of it.
    pub fn in_a_line(&self) -> String {
        match &self.why {
            Some(why) => format!("{}: {why}", self.what),
            None => self.what.clone(),
        }
    }
}

impl fmt::Display for Failure {
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

/// The system's words, without the number that it knows them by.
pub fn without_number(text: &str) -> String {
    match text.split_once(" (os error ").and_then(|(before, rest)| Some((before, rest.split_once(')')?.1))) {
        Some((before, after)) => format!("{before}{after}"),
        None => text.to_owned(),
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match &error {
            Error::Unreachable { url, why } => Failure::new(code::UNREACHABLE, format!("cannot reach {url}"))
                .why(why.to_lowercase())
                .remedy("comeback serve")
                .remedy("or name another one: --server URL, or --profile NAME"),
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
                let failure = Failure::new(code, detail);
                let log = format!("look for {} in the log of the server", problem.instance);
                match problem.kind.to_ascii_uppercase().replace('-', "_").as_str() {
                    "UNAUTHORIZED" => Failure::new(code, "this server asks for a key")
                        .why(if detail.starts_with("send a key") { "none was sent" } else { detail })
                        .remedy("set COMEBACK_KEY, or put the key into a profile (comeback help environment)")
                        .remedy("or make one: comeback key create --role admin --db FILE"),
                    "FORBIDDEN" => failure
                        .why("the role of this key, or its namespace, does not allow it")
                        .remedy("use another key: comeback config view shows which one is used"),
                    "WRONG_STATE" => {
                        failure.why("not possible in this state").remedy("look at it again: what it is in now may do")
                    }
                    "NOT_FOUND" => failure
                        .why("it never was there, it is in another namespace, or it was removed after its time")
                        .remedy(format!("{}, or name another namespace: --namespace NAME", how_to_list(detail))),
                    "VALIDATION_FAILED" => not_valid(failure, problem),
                    "BAD_REQUEST" | "METHOD_NOT_ALLOWED" | "UNSUPPORTED_MEDIA_TYPE" => failure
                        .why("the server cannot read what this program sends: they are of different versions")
                        .remedy("comeback doctor"),
                    "CONFLICT" => failure
                        .why("both changed the same thing, and one of them was first")
                        .remedy("look at it, then decide again"),
                    "DEDUPE_KEY_TAKEN" => failure
                        .why("of all open tasks with the same dedupe key there may be one")
                        .remedy("cancel the other one, or wait until it is over: comeback task list state:open"),
                    "IDEMPOTENCY_MISMATCH" => failure
                        .why("a key stands for one request, which can then be sent again without harm")
                        .remedy("use a new key for a new request"),
                    "LEASE_LOST" => failure
                        .why("it ran out, or somebody else has the task by now")
                        .remedy("leave the task to whoever has it"),
                    "INSUFFICIENT_CREDITS" => failure
                        .why("its account cannot pay for another cycle, and nothing was changed")
                        .remedy("add credits: comeback account put NAME --credits N"),
                    "ACCOUNT_IN_USE" => failure
                        .why("open tasks have reserved some of its credits")
                        .remedy("wait until they are over, or cancel them: comeback task list account:NAME"),
                    "TASK_CANCELED" => failure.why("somebody does not want it any more").remedy("stop working on it"),
                    "TOO_LARGE" => failure
                        .why("the server keeps room for others")
                        .remedy("send less at once, or raise the limit: comeback serve --limit large_body=BYTES"),
                    "TOO_SLOW" => failure
                        .why("the connection is too slow for so much, or it broke off")
                        .remedy("try again, with less at once"),
                    "OVERLOADED" | "TOO_MANY_REQUESTS" => failure
                        .why("reports and heartbeats go first, and nothing was changed")
                        .remedy("try again in a moment, with less at once"),
                    "QUOTA_EXCEEDED" => failure
                        .why("each namespace gets its share, so that all of them can work")
                        .remedy("try again with less at once, or raise it: comeback serve --quota NAME=VALUE"),
                    "UNAVAILABLE" => failure.why("the server is there and cannot work").remedy("comeback doctor"),
                    "INTERNAL" => failure.why("it is a mistake of the server, not yours").remedy(log),
                    other => failure.why(format!("the server calls it {other}")).remedy("comeback doctor"),
                }
            }
            Error::Decode(_) => Failure::new(code::FAILED, error.to_string())
                .why("whoever answers there is no comeback server, or one of another version")
                .remedy("comeback doctor"),
            Error::Usage(_) => Failure::new(code::USAGE, error.to_string())
                .why("nothing was sent")
                .remedy("--server http://127.0.0.1:7330 (comeback help environment)"),
        }
    }
}

/// The command that lists what somebody looked for in vain, where there is one.
fn how_to_list(detail: &str) -> String {
    let sort = detail.rsplit(' ').next().unwrap_or_default();
    let commands = crate::args::command();
    match commands.find_subcommand(sort).and_then(|command| command.find_subcommand("list")) {
        Some(_) => format!("comeback {sort} list"),
        None => "list what there is".to_owned(),
    }
}

/// Which part of a request was refused, why, and where to read how it is written.
fn not_valid(failure: Failure, problem: &Problem) -> Failure {
    let faults = problem.more.get("errors").and_then(|errors| errors.as_array()).map_or(&[][..], Vec::as_slice);
    let text = |fault: &serde_json::Value, name: &str| fault[name].as_str().unwrap_or_default().to_owned();
    let [first, rest @ ..] = faults else {
        return failure.why("the server cannot accept it").remedy("correct it; nothing was changed");
    };
    let path = text(first, "path");
    let (what, remedy) = match path.split(['.', '[']).next().unwrap_or_default() {
        "" => ("this request is not valid".to_owned(), "correct it; nothing was changed"),
        "q" => ("this filter is not valid".to_owned(), "comeback help filters"),
        "retry" | "policy" => (format!("`{path}` is not valid"), "comeback help policies"),
        _ => (format!("`{path}` is not valid"), "correct it; nothing was changed"),
    };
    let others = rest.iter().map(|fault| format!("; {}: {}", text(fault, "path"), text(fault, "message")));
    let why = text(first, "message") + &others.collect::<String>();
    Failure::new(failure.code, what).why(why).remedy(remedy)
}

/// What was typed wrong, in our own words where they are shorter.
impl From<&clap::Error> for Failure {
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
        let usage = |what: String| Failure::new(code::USAGE, what);
        let help = help_for(std::env::args().skip(1));
        let argument = text(ContextKind::InvalidArg).unwrap_or_default();
        match error.kind() {
            ErrorKind::InvalidSubcommand => {
                let name = text(ContextKind::InvalidSubcommand).unwrap_or_default();
                let failure = usage(format!("there is no command `{name}`"));
                match text(ContextKind::SuggestedSubcommand) {
                    Some(meant) => failure.remedy(format!("did you mean `{meant}`?   see: {help}")),
                    None => failure.remedy(help),
                }
            }
            ErrorKind::UnknownArgument => {
                let failure = usage(format!("there is no option `{argument}` here"));
                match text(ContextKind::SuggestedArg) {
                    Some(meant) => failure.remedy(format!("did you mean `{meant}`?   see: {help}")),
                    None => failure.remedy(help),
                }
            }
            ErrorKind::MissingSubcommand => {
                let name = text(ContextKind::InvalidSubcommand).unwrap_or_default();
                let failure = usage(format!("`{name}` needs one more word"));
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
                    format!("`{value}` cannot be used for {argument}")
                };
                let valid = list(ContextKind::ValidValue).replace(' ', ", ");
                let failure = usage(what);
                let failure = match std::error::Error::source(error) {
                    Some(why) => failure.why(about_value(why)),
                    None => failure,
                };
                if valid.is_empty() { failure.remedy(help) } else { failure.remedy(format!("one of {valid}")) }
            }
            ErrorKind::ArgumentConflict => {
                let other = list(ContextKind::PriorArg);
                usage(format!("{argument} and {other} cannot be said together")).remedy(help)
            }
            ErrorKind::NoEquals => {
                usage(format!("{argument} takes its value after an equals sign")).remedy("--watch=5s")
            }
            _ => {
                let rendered = error.to_string();
                let first = rendered.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned();
                usage(first).remedy(help)
            }
        }
    }
}

/// Why a value cannot be used. What the standard library says of numbers is not for people.
fn about_value(why: &dyn std::error::Error) -> String {
    let said = why.to_string();
    match said.as_str() {
        "invalid digit found in string" | "cannot parse integer from empty string" => "it is not a whole number".into(),
        "number too large to fit in target type" => "it is too large".into(),
        "number too small to fit in target type" => "it is too small".into(),
        _ => said,
    }
}

/// Which help explains what was typed: that of the last command that was understood.
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
