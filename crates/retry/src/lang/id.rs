//! The two identities: a task and an execution, both UUIDv7 made by the caller of the core, never here.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

macro_rules! identity {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub Uuid);

        impl $name {
            /// The last eight hex digits, for people: they differ between neighbours; the first ones are the clock.
            pub fn short(self) -> String {
                let text = self.0.simple().to_string();
                text[text.len() - 8..].to_owned()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.hyphenated().fmt(f)
            }
        }

        impl FromStr for $name {
            type Err = uuid::Error;
            fn from_str(text: &str) -> Result<Self, uuid::Error> {
                text.trim().parse().map($name)
            }
        }
    };
}

identity!(
    /// One thing to do, however often it is tried.
    TaskId
);
identity!(
    /// A set of tasks that belong together; a lone task is its own implicit execution.
    ExecutionId
);

impl TaskId {
    /// The execution a lone task is (model A17).
    pub fn implicit_execution(self) -> ExecutionId {
        ExecutionId(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_short_form_is_the_end_of_the_id() {
        let id = TaskId(Uuid::from_u128(0x019a_0000_0000_7000_8000_0000_dead_beef));
        assert_eq!(id.short(), "deadbeef");
        assert_eq!(id.to_string().parse::<TaskId>().ok(), Some(id));
        assert!("tsk_1".parse::<TaskId>().is_err());
    }
}
