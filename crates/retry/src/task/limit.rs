//! Concurrency limits that a lane falls under: the rule, the values it is kept per, and whether a task counts or waits.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The first letter of rules that stand for dependencies. Nobody else may use it.
pub const GUARD: char = '@';

/// One thing that is counted: a rule, and the values that it is kept per.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Key {
    /// The name of the rule.
    pub rule: String,
    /// The values of the labels; `None` where a task that is bound lacks one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub per: Vec<Option<String>>,
}

impl Key {
    /// The dependency that it stands for.
    pub fn dependency(&self) -> Option<&str> {
        self.rule.strip_prefix(GUARD)
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.rule)?;
        if self.per.is_empty() {
            return Ok(());
        }
        let values: Vec<&str> = self.per.iter().map(|value| value.as_deref().unwrap_or("?")).collect();
        write!(f, " ({})", values.join(", "))
    }
}

/// How a task relates to a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// It is counted while it runs, and waits while there is no room.
    Full,
    /// It is counted and never waits.
    Counted,
    /// It waits and is not counted: its rule is about others.
    Bound,
}

/// A limit that a task falls under.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Limit {
    /// The counter.
    #[serde(flatten)]
    pub key: Key,
    /// Whether the task counts, waits, or both.
    #[serde(default = "Limit::full", skip_serializing_if = "Limit::is_full")]
    pub part: Part,
}

impl Limit {
    fn full() -> Part {
        Part::Full
    }

    fn is_full(part: &Part) -> bool {
        *part == Part::Full
    }

    /// Whether the task is counted.
    pub fn counts(&self) -> bool {
        self.part != Part::Bound
    }

    /// Whether the task waits while there is no room.
    pub fn binds(&self) -> bool {
        self.part != Part::Counted
    }
}
