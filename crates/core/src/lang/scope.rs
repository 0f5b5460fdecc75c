//! Scopes of API keys: the names of queues or kinds that a key is good for.

use serde::{Deserialize, Serialize};

/// Names, each either exact or a prefix followed by `*`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NamePatterns(Vec<String>);

impl NamePatterns {
    /// Patterns as they were given.
    pub fn new(patterns: Vec<String>) -> NamePatterns {
        NamePatterns(patterns)
    }

    /// Whether there are none, which means that every name is allowed.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a name is allowed.
    pub fn allows(&self, name: &str) -> bool {
        self.is_empty()
            || self.0.iter().any(|pattern| match pattern.strip_suffix('*') {
                Some(prefix) => name.starts_with(prefix),
                None => name == pattern,
            })
    }

    /// The names, where all of them are exact.
    pub fn exact(&self) -> Option<&[String]> {
        (!self.0.iter().any(|pattern| pattern.ends_with('*'))).then_some(&self.0)
    }

    /// The exact names among them.
    pub fn exact_names(&self) -> impl Iterator<Item = &String> {
        self.0.iter().filter(|pattern| !pattern.ends_with('*'))
    }

    /// All patterns as they were given.
    pub fn as_slice(&self) -> &[String] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_allows_its_name_or_all_names_with_its_prefix() {
        let patterns = NamePatterns::new(vec!["mail".into(), "billing.*".into()]);
        for (name, allowed) in [
            ("mail", true),
            ("mail2", false),
            ("billing.", true),
            ("billing.charge", true),
            ("billing", false),
            ("Mail", false),
            ("", false),
        ] {
            assert_eq!(patterns.allows(name), allowed, "{name}");
        }
        assert_eq!(patterns.exact(), None);
        assert!(NamePatterns::default().allows("anything"), "no patterns, no limit");
        assert!(NamePatterns::new(vec!["*".into()]).allows("anything"));
        assert!(!NamePatterns::new(vec![String::new()]).allows("anything"));
    }
}
