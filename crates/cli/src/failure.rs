//! Errors in three lines: what happened, why, and what to do. And the exit codes, which scripts rely on.

use std::fmt;

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
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "error: {}", self.what)?;
        if let Some(why) = &self.why {
            writeln!(f, "  why: {why}")?;
        }
        for (i, remedy) in self.remedies.iter().enumerate() {
            writeln!(f, "  {} {remedy}", if i == 0 { "do: " } else { "    " })?;
        }
        Ok(())
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match &error {
            Error::Unreachable { url, why } => Failure::new(code::UNREACHABLE, format!("cannot reach {url} ({why})"))
                .why("no server is listening there")
                .remedy("comeback serve")
                .remedy("or name another one: --server http://host:7330"),
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
                let failure = Failure::new(code, problem.detail.clone());
                match problem.error.as_str() {
                    "UNAUTHORIZED" => failure
                        .why("this server asks for a key")
                        .remedy("set COMEBACK_KEY, or make a key: comeback key create --role admin"),
                    "WRONG_STATE" => failure.why(problem.title.to_lowercase()),
                    _ => failure,
                }
            }
            Error::Nonsense(_) => Failure::new(code::FAILED, error.to_string()),
            Error::Usage(_) => Failure::new(code::USAGE, error.to_string()),
        }
    }
}
