//! Ends a run from outside: its time limits, a cancel, a lost lease.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use comeback_core::{Failure, State, Timestamp, Trigger};
use comeback_store::{Finished, Heartbeat, Store, panic_point};
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::{Clock, LeaseRef, Leased};

/// How soon a run hears that it was canceled or given up.
const LOOK: Duration = Duration::from_millis(500);

/// State of a run at the last poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    Running,
    Paused,
    Gone,
}

/// The runs under way; one look at the database serves all of them.
#[derive(Default)]
pub struct Runs {
    held: Mutex<HashMap<LeaseRef, watch::Sender<Seen>>>,
}

/// A run under way, until this is gone.
pub struct Held {
    runs: Arc<Runs>,
    lease: LeaseRef,
    seen: watch::Receiver<Seen>,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.runs.held.lock().remove(&self.lease);
    }
}

impl Runs {
    pub fn hold(self: &Arc<Runs>, lease: LeaseRef) -> Held {
        let (tell, seen) = watch::channel(Seen::Running);
        self.held.lock().insert(lease, tell);
        Held { runs: self.clone(), lease, seen }
    }

    /// Polls until aborted.
    pub async fn watch(self: Arc<Runs>, store: Arc<dyn Store>, beat: Arc<Heartbeat>) -> Finished {
        loop {
            tokio::time::sleep(LOOK).await;
            let leases: Vec<LeaseRef> = self.held.lock().keys().copied().collect();
            if leases.is_empty() {
                beat.turn();
                continue;
            }
            panic_point!("executor-watch");
            let tasks: Vec<_> = leases.iter().map(|lease| lease.task).collect();
            // Who cannot look knows nothing new.
            let Ok(found) = store.load(&tasks).await else { continue };
            beat.turn();
            let held = self.held.lock();
            for (lease, stored) in leases.iter().zip(found) {
                let task = stored.map(|stored| stored.task);
                let own = task.filter(|task| task.lease.as_ref().is_some_and(|it| it.number == lease.number));
                let seen = own.map_or(Seen::Gone, |task| match task.state {
                    State::Paused => Seen::Paused,
                    _ => Seen::Running,
                });
                if let Some(tell) = held.get(lease) {
                    tell.send_if_modified(|before| std::mem::replace(before, seen) != seen);
                }
            }
        }
    }
}

impl Held {
    /// Canceled, or given up.
    pub async fn gone(&self) {
        let mut seen = self.seen.clone();
        if seen.wait_for(|seen| *seen == Seen::Gone).await.is_err() {
            std::future::pending().await
        }
    }

    /// The failure of a run that takes longer than it may, when it does. A call and a process say nothing while they work, so
    /// that `timeout` bounds the whole of them: the executor's own sign of life is none of theirs. A pause stops it.
    pub async fn too_long(&self, task: &Leased, clock: &dyn Clock) -> Failure {
        let mut seen = self.seen.clone();
        let mut since = super::began(task, clock);
        loop {
            let is_paused = *seen.borrow_and_update() == Seen::Paused;
            let idle = task.timeout.filter(|_| !is_paused).map(|span| since + span);
            let limit = idle.into_iter().chain(task.ends_by).min();
            tokio::select! {
                () = until(clock, limit) => {
                    let span = limit.map(|limit| limit.since(since)).unwrap_or_default();
                    return Failure::new(Trigger::Timeout, format!("the run took longer than {span}"));
                }
                Ok(()) = seen.changed() => since = clock.now(),
            }
        }
    }
}

async fn until(clock: &dyn Clock, limit: Option<Timestamp>) {
    let Some(limit) = limit else { return std::future::pending().await };
    // A clock may wake before its time when that is far away.
    while clock.now() < limit {
        clock.sleep_until(limit).await;
    }
}
