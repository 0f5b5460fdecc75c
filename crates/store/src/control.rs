//! Pauses of loops, idempotency keys and small facts about the store itself.

use async_trait::async_trait;
use comeback_core::{Audit, Timestamp};

use crate::{Idempotency, StoreError, Used};

/// Pauses of loops, idempotency keys and small facts.
#[async_trait]
pub trait ControlStore: Send + Sync {
    /// Pauses a loop until an instant, or resumes it. Holds on every instance as soon as it is acknowledged.
    async fn set_pause(
        &self,
        name: Loop,
        pause: Option<Pause>,
        audit: Option<&Audit>,
        now: Timestamp,
    ) -> Result<(), StoreError>;

    /// Loops that are paused, or were until a time that has passed.
    async fn pauses(&self) -> Result<Vec<(Loop, Pause)>, StoreError>;

    /// Small facts about the store itself. `put_meta` answers the value that then stands.
    async fn meta(&self, key: &str) -> Result<Option<String>, StoreError>;

    /// Stores a fact. Answers the value that then stands.
    async fn put_meta(
        &self,
        key: &str,
        value: &str,
        when: PutIf<'_>,
        audit: Option<&Audit>,
    ) -> Result<String, StoreError>;

    /// Whether a key was used, and what for.
    async fn used(&self, namespace: &str, key: &Idempotency) -> Result<Option<Used>, StoreError>;

    /// The answer that was stored with a key by [`Audit::answered`](comeback_core::Audit::answered); `None` if the key is unknown or
    /// has no such answer.
    async fn kept_answer(&self, namespace: &str, key: &Idempotency) -> Result<Option<serde_json::Value>, StoreError>;
}

/// When a fact may be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PutIf<'a> {
    Always,
    Absent,
    /// Nobody has changed it since it was this.
    Is(&'a str),
}

macro_rules! loops {
    ($($(#[$doc:meta])* $name:ident $word:literal),+ $(,)?) => {
        /// The background loops, each of which can be paused by its name.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Loop { $($(#[$doc])* $name),+ }

        impl Loop {
            /// All loops.
            pub const ALL: &'static [Loop] = &[$(Loop::$name),+];

            /// Its name in the API.
            pub const fn word(self) -> &'static str {
                match self { $(Loop::$name => $word),+ }
            }

            /// The loop of a name.
            pub fn from_word(word: &str) -> Option<Loop> {
                Loop::ALL.iter().copied().find(|it| it.word() == word)
            }
        }
    };
}

loops! {
    /// Makes due retries pending.
    Retries "retries",
    /// Makes due first starts pending.
    Starts "starts",
    /// Gives up on runs whose lease has run out.
    Reap "reap",
    /// Ends runs that exceed their own limits.
    Timeout "timeout",
    /// Ends tasks whose deadline has passed.
    Expire "expire",
    /// Works out what stands at gates, and hears how called executions ended.
    Flow "flow",
    /// Deletes what is over and old.
    Prune "prune",
    /// Starts what is scheduled.
    Schedule "schedule",
    /// Makes deliveries of what subscriptions want to hear of.
    Tell "subscriptions",
    /// Fires and resolves alerts.
    Alerts "alerts",
    /// Hands out work, to workers and to the executors of the servers.
    Dispatch "dispatch",
    /// Hands out the calls of hooks.
    Hooks "hooks",
    /// Retries what failed and could be retried, when somebody asks for it.
    Repair "repair",
    /// Works off bulk operations.
    Operations "operations",
}

impl Loop {
    /// Whether it has no turns of its own: it happens whenever somebody asks for work.
    pub fn is_asked_for(self) -> bool {
        matches!(self, Loop::Dispatch | Loop::Hooks | Loop::Repair)
    }
}

impl std::fmt::Display for Loop {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.word())
    }
}

/// A loop that is paused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pause {
    /// When it ends.
    pub until: Timestamp,
    /// A note for the audit log.
    pub note: Option<String>,
    /// The person who paused it.
    pub by: Option<String>,
    /// When it was paused.
    pub at: Timestamp,
}
