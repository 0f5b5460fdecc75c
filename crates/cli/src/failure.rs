//! Errors in three lines: what happened, why, and what to do. And the exit codes, which scripts rely on.

use std::fmt;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use comeback_client::Error;

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
                match problem.error.as_str() {
                    "UNAUTHORIZED" => Failure::new(code, "this server asks for a key")
                        .why(if detail.starts_with("send a key") { "none was sent" } else { detail })
                        .remedy("set COMEBACK_KEY, or put the key into a profile (comeback help environment)")
                        .remedy("or make one: comeback key create --role admin --db FILE"),
                    "FORBIDDEN" => failure
                        .why("the role of this key, or its namespace, does not allow it")
                        .remedy("use another key: comeback config view shows which one is used"),
                    "WRONG_STATE" => failure.why(problem.title.to_lowercase()),
                    "UNAVAILABLE" => failure.why("the server is there and cannot work").remedy("comeback doctor"),
                    "INTERNAL" => failure.remedy(format!("look for {} in the log of the server", problem.instance)),
                    _ => failure,
                }
            }
            Error::Nonsense(_) => Failure::new(code::FAILED, error.to_string())
                .why("whoever answers there is no comeback server, or one of another version")
                .remedy("comeback doctor"),
            Error::Usage(_) => Failure::new(code::USAGE, error.to_string()),
        }
    }
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
                    Some(why) => failure.why(why.to_string()),
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
