//! Faults of an input, by path. Every parser reports all it finds and changes nothing.

use std::fmt;

use serde::Serialize;

/// One fault and where it is: `retry.max_retries`, `tasks[3].needs[0].task`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Fault {
    /// The path of the field; empty for the whole input.
    pub path: String,
    /// The fault, as a sentence.
    pub message: String,
}

/// All faults of one input, never empty when it is an error.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Invalid {
    /// The faults, in the order in which they were found.
    pub faults: Vec<Fault>,
}

impl Invalid {
    /// One fault.
    pub fn one(path: impl Into<String>, message: impl fmt::Display) -> Invalid {
        let mut invalid = Invalid::default();
        invalid.push(path, message);
        invalid
    }

    /// Adds a fault.
    pub fn push(&mut self, path: impl Into<String>, message: impl fmt::Display) {
        self.faults.push(Fault { path: path.into(), message: message.to_string() });
    }

    /// Takes over the faults of a part, each path put below `prefix`.
    pub fn absorb(&mut self, prefix: &str, part: Invalid) {
        for fault in part.faults {
            let path = join(prefix, &fault.path);
            self.faults.push(Fault { path, ..fault });
        }
    }

    /// The same faults with `prefix` before each path.
    pub fn under(self, prefix: &str) -> Invalid {
        let mut moved = Invalid::default();
        moved.absorb(prefix, self);
        moved
    }

    /// The same faults under other paths.
    pub fn renamed(mut self, rename: impl Fn(&str) -> String) -> Invalid {
        for fault in &mut self.faults {
            fault.path = rename(&fault.path);
        }
        self
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.faults.is_empty()
    }

    /// `value` if there are no faults, else the faults as an error.
    pub fn or<T>(self, value: T) -> Result<T, Invalid> {
        if self.is_empty() { Ok(value) } else { Err(self) }
    }
}

fn join(prefix: &str, path: &str) -> String {
    match (prefix.is_empty(), path.is_empty()) {
        (true, _) => path.to_owned(),
        (_, true) => prefix.to_owned(),
        _ if path.starts_with('[') => format!("{prefix}{path}"),
        _ => format!("{prefix}.{path}"),
    }
}

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, fault) in self.faults.iter().enumerate() {
            if i > 0 {
                f.write_str("; ")?;
            }
            if fault.path.is_empty() {
                f.write_str(&fault.message)?;
            } else {
                write!(f, "{}: {}", fault.path, fault.message)?;
            }
        }
        Ok(())
    }
}

impl std::error::Error for Invalid {}
