//! Watchers of attempts, for instance to log or draw them.

use std::fmt;
use std::sync::Arc;

use comeback_core::{Commit, Record, Task};
use comeback_store::Claimed;

/// Is told of attempts right after they were stored. It must not wait, and it decides nothing.
pub trait Watcher: Send + Sync {
    fn started(&self, claimed: &Claimed);

    /// The task as it is now, and the record of how its run ended.
    fn ended(&self, task: &Task, record: &Record);
}

/// The watcher, if there is one.
#[derive(Clone, Default)]
pub struct Watching(Option<Arc<dyn Watcher>>);

impl Watching {
    /// With this watcher.
    pub fn by(watcher: Arc<dyn Watcher>) -> Watching {
        Watching(Some(watcher))
    }

    pub(crate) fn started<'a>(&self, claimed: impl Iterator<Item = &'a Claimed>) {
        if let Some(watcher) = &self.0 {
            claimed.for_each(|it| watcher.started(it));
        }
    }

    pub(crate) fn stored(&self, commit: &Commit) {
        let Some(watcher) = &self.0 else { return };
        for record in commit.records.iter().filter(|record| record.outcome.is_some()) {
            if let Some(write) = commit.writes.iter().find(|write| write.after.id.0 == record.subject) {
                watcher.ended(&write.after, record);
            }
        }
    }
}

impl fmt::Debug for Watching {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Watching(somebody)" } else { "Watching(nobody)" })
    }
}
