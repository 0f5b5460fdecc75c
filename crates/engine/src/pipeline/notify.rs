//! After a commit: wakes workers, sets the alarms of loops, wakes the readers of the feed.

use std::collections::HashMap;

use comeback_core::{Commit, Executor, Lane, State, Task, admission};
use comeback_store::{Loop, ResourceKind};

use crate::Core;
use crate::commands::audit::log_retries;

impl Core {
    /// Everything that follows a stored commit: counters, logs, alarms, waiting workers.
    pub(crate) fn notify_committed(&self, commit: &Commit) {
        self.tallies.count(commit);
        self.dependencies.note(commit);
        log_retries(&commit.audit);
        self.config.watching.stored(commit);
        self.wake_feed_readers();
        if commit.executions.iter().any(|write| write.after.state.is_terminal()) {
            self.wake_loop(Loop::Flow);
        }
        for write in &commit.writes {
            if admission::is_counted(write.from) && !admission::is_counted(write.after.state) {
                self.freed(&write.after.lane);
            }
        }
        let tasks = commit.writes.iter().map(|write| &write.after).inspect(|task| self.set_alarms(task));
        self.wake_workers(tasks.filter(|task| task.state == State::Pending && !task.execution_paused));
    }

    /// Wakes the loops of subscriptions and alerts, if there are any.
    pub(crate) fn wake_feed_readers(&self) {
        for (sort, name) in [(ResourceKind::Subscriptions, Loop::Tell), (ResourceKind::Alerts, Loop::Alerts)] {
            if self.feed_positions.anybody(sort) {
                self.wake_loop(name);
            }
        }
    }

    /// Wakes the workers that wait for these tasks, here and on other instances.
    pub(crate) fn wake_workers<'a>(&self, ready: impl Iterator<Item = &'a Task>) {
        let mut by_lane: HashMap<&Lane, u32> = HashMap::new();
        for task in ready {
            *by_lane.entry(&task.lane).or_default() += 1;
        }
        if by_lane.is_empty() {
            return;
        }
        for (lane, count) in by_lane {
            self.wake.work(lane, count);
        }
        self.store.notify();
    }

    /// Sets the alarms of the loops that have to act on this task.
    pub(crate) fn set_alarms(&self, task: &Task) {
        if task.state.is_terminal() {
            return;
        }
        let stands_for_others = task.state == State::Pending && task.lane.executor == Executor::Flow;
        if task.is_at_its_gate() || stands_for_others {
            self.wake_loop(Loop::Flow);
        }
        let promotes = if task.state == State::RetryPending { Loop::Retries } else { Loop::Starts };
        let lease_ends = task.lease.as_ref().and_then(|lease| lease.expires_at);
        let alarms = [
            (promotes, task.due()),
            (Loop::Reap, lease_ends),
            (Loop::Timeout, task.timeout_at),
            (Loop::Expire, task.expires_at),
        ];
        for (name, at) in alarms {
            if let Some(at) = at {
                self.alarms.of(name).at(at);
            }
        }
    }
}
