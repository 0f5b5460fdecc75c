//! Dependencies, as far as verdicts and loops are concerned: what is looked up before a verdict, and what is told of it after.
//!
//! Only tasks whose lane says that they fall under a dependency have anything to do with this. How their runs end is gathered and
//! written now and then, or at once where it changes what the dependency allows. Limits that must hold across instances are the
//! store's: it heeds them with the lease itself.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use comeback_core::dependency::{self, Change, Ended, How, Phase, Seen, Standing};
use comeback_core::{Commit, Lane, Task, Timestamp, Transition, admission, backoff};
use comeback_store::{Dependency, StoreError, Submission};
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::Core;
use crate::pipeline::{ChangeRequest, TaskChange};

/// How often a write is tried again that others were faster with.
const TRIES: u32 = 16;
/// Dependencies looked at in one go.
const MOST: u32 = 1_000;

/// A namespace and a name in it.
pub(crate) type Named = (String, String);

#[derive(Default)]
pub(crate) struct DependencyTracker {
    /// How runs have ended since it was last written.
    seen: Mutex<HashMap<Named, Seen>>,
    /// As they were when they were last looked at.
    known: Mutex<HashMap<Named, Dependency>>,
    changes: [AtomicU64; Change::ALL.len()],
    /// Rung when there is something to look at.
    pub bell: Arc<Notify>,
}

/// Dependencies of the tasks of a lane.
pub(crate) fn names(lane: &Lane) -> impl Iterator<Item = Named> {
    let named = lane.limits.iter().filter_map(|limit| limit.key.dependency());
    named.map(|name| (lane.namespace.clone(), name.to_owned()))
}

impl DependencyTracker {
    /// Notes how runs ended.
    pub fn note(&self, commit: &Commit) {
        for write in commit.writes.iter().filter(|write| admission::is_counted(write.from)) {
            for name in names(&write.after.lane) {
                let told = commit.records.iter().filter(|record| record.subject == write.after.id.0);
                let ended = told.filter_map(|record| Ended::of(&write.after, record));
                let mut seen = self.seen.lock();
                if seen.is_empty() {
                    self.bell.notify_one();
                }
                seen.entry(name).or_default().ended.extend(ended);
            }
        }
    }

    pub fn learn(&self, it: &Dependency) {
        self.known.lock().insert((it.namespace.clone(), it.name.clone()), it.clone());
    }

    /// Dependencies whose observations would change them.
    fn urgent(&self, now: Timestamp) -> Vec<Named> {
        let seen = self.seen.lock();
        if seen.is_empty() {
            return Vec::new();
        }
        let known = self.known.lock();
        let is_urgent = |name: &Named, seen: &Seen| {
            let Some(it) = known.get(name) else { return true };
            let is_quiet = it.standing.phase == Phase::Closed && seen.ended.iter().all(|end| end.how == How::Answered);
            if is_quiet || seen.ended.is_empty() {
                return false;
            }
            let mut then = it.standing.clone();
            then.observe(&it.settings, seen, now);
            then.phase != it.standing.phase || then.gate != it.standing.gate
        };
        seen.iter().filter(|(name, seen)| is_urgent(name, seen)).map(|(name, _)| name.clone()).collect()
    }

    fn all(&self) -> Vec<Named> {
        self.seen.lock().keys().cloned().collect()
    }

    fn take(&self, name: &Named) -> Option<Seen> {
        self.seen.lock().remove(name).filter(|seen| !seen.ended.is_empty())
    }

    /// Returns observations that could not be written.
    fn give_back(&self, name: &Named, seen: Seen) {
        let mut all = self.seen.lock();
        let later = std::mem::replace(all.entry(name.clone()).or_default(), seen);
        all.entry(name.clone()).or_default().ended.extend(later.ended);
    }

    fn count(&self, change: Change) {
        if let Some(index) = Change::ALL.iter().position(|it| *it == change) {
            self.changes[index].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// How often each change was brought about by this process.
    pub fn changes(&self) -> Vec<(Change, u64)> {
        Change::ALL.iter().zip(&self.changes).map(|(change, count)| (*change, count.load(Ordering::Relaxed))).collect()
    }
}

/// The dependencies of the tasks of one batch of decisions.
#[derive(Clone, Default)]
pub(crate) struct LoadedDependencies {
    rows: HashMap<Named, Dependency>,
    /// Dependencies in whose budget slots were taken.
    booked: BTreeSet<Named>,
}

impl LoadedDependencies {
    /// The dependency that may hold a retry of this task.
    pub fn of(&self, task: &Task) -> Option<dependency::View> {
        let it = names(&task.lane).find_map(|name| self.rows.get(&name))?;
        let (name, settings, standing) = (it.name.clone(), it.settings.clone(), it.standing.clone());
        let place = backoff::place(task.id, task.cycle, task.run);
        Some(dependency::View { name, settings, standing, place })
    }

    /// Takes the budget slot of a retry that was just decided.
    pub fn book(&mut self, change: &Transition) {
        let after = change.after();
        let Some(at) = after.due().filter(|_| after.next_retry_at.is_some()) else { return };
        for name in names(&after.lane) {
            if let Some(it) = self.rows.get_mut(&name).filter(|it| it.settings.budget.is_some()) {
                it.standing.slots.take(at);
                self.booked.insert(name);
            }
        }
    }
}

impl Core {
    /// Moves deadlines behind announced maintenance (model A14).
    pub(crate) async fn wait_for_maintenance(&self, submission: &mut Submission) -> Result<(), StoreError> {
        for new in &mut submission.tasks {
            let (lane, since) = (&new.task.lane, new.task.submitted_at);
            let (Some(name), Some(deadline)) = (&lane.dependency, new.task.expires_at) else { continue };
            if self.store.is_guarded(&lane.namespace, name)
                && let Some(it) = self.store.dependency(&lane.namespace, name).await?
            {
                new.task.expires_at = Some(dependency::extended(&it.standing.maintenance, since, deadline));
            }
        }
        Ok(())
    }

    /// The dependencies of tasks whose run ends.
    pub(crate) async fn guarded(&self, requests: &[(usize, ChangeRequest)]) -> Result<LoadedDependencies, StoreError> {
        let ends = requests.iter().filter(|(_, request)| matches!(request.change, TaskChange::End(_)));
        self.look_up(ends.filter_map(|(_, request)| Some(&request.stored()?.task))).await
    }

    pub(crate) async fn look_up<'a>(
        &self,
        tasks: impl Iterator<Item = &'a Task> + Send,
    ) -> Result<LoadedDependencies, StoreError> {
        let mut guarded = LoadedDependencies::default();
        for name in tasks.flat_map(|task| names(&task.lane)) {
            if !guarded.rows.contains_key(&name)
                && let Some(it) = self.store.dependency(&name.0, &name.1).await?
            {
                self.dependencies.learn(&it);
                guarded.rows.insert(name, it);
            }
        }
        Ok(guarded)
    }

    /// The dependency that may hold the retries of a task, loaded now.
    pub(crate) async fn guard_of(&self, task: &Task) -> Result<Option<dependency::View>, StoreError> {
        Ok(self.look_up(std::iter::once(task)).await?.of(task))
    }

    /// Writes the slots that were taken. `false` if another instance was faster: then all requests are tried again.
    pub(crate) async fn reserve(&self, guarded: &LoadedDependencies, now: Timestamp) -> Result<bool, StoreError> {
        for name in &guarded.booked {
            let Some(it) = guarded.rows.get(name) else { continue };
            if !self.store.put_dependency(it, None, now).await? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Writes the observations that change a dependency; the others wait for more.
    pub(crate) async fn flush_observations(&self) {
        for name in self.dependencies.urgent(self.clock.now()) {
            if let Err(error) = self.write_seen(&name).await {
                tracing::debug!(%error, dependency = name.1, "cannot write observations of dependency; retrying later");
            }
        }
    }

    /// Writes all that was seen.
    pub(crate) async fn tell_all_guards(&self) -> Result<(), StoreError> {
        for name in self.dependencies.all() {
            self.write_seen(&name).await?;
        }
        Ok(())
    }

    async fn write_seen(&self, name: &Named) -> Result<(), StoreError> {
        let Some(seen) = self.dependencies.take(name) else { return Ok(()) };
        let written = self.change_dependency(name, |it, now| it.standing.observe(&it.settings, &seen, now)).await;
        match written {
            Ok(_) => Ok(()),
            Err(error) => {
                self.dependencies.give_back(name, seen);
                Err(error)
            }
        }
    }

    /// Changes what is remembered of a dependency, as often as it takes. Nothing where there is none.
    async fn change_dependency(
        &self,
        name: &Named,
        change: impl Fn(&mut Dependency, Timestamp),
    ) -> Result<Option<Dependency>, StoreError> {
        for tried in 0..TRIES {
            let Some(before) = self.store.dependency(&name.0, &name.1).await? else { return Ok(None) };
            let now = self.clock.now();
            let mut after = before.clone();
            change(&mut after, now);
            if after == before || self.store.put_dependency(&after, None, now).await? {
                self.told_of(&before.standing, &after);
                return Ok(Some(after));
            }
            if tried >= 4 && self.clock.is_real() {
                tokio::time::sleep(std::time::Duration::from_millis(u64::from(tried))).await;
            }
        }
        Err(StoreError::Unavailable(format!("too many write what they saw of dependency {}", name.1)))
    }

    /// After a change: notifies watchers and wakes waiting workers.
    pub(crate) fn told_of(&self, before: &Standing, after: &Dependency) {
        self.dependencies.learn(after);
        let last = before.told.last();
        let new = after.standing.told.iter().rev().take_while(|told| Some(*told) != last);
        for told in new {
            self.dependencies.count(told.what);
            let (namespace, dependency) = (&after.namespace, &after.name);
            tracing::info!(%namespace, %dependency, change = %told.what, why = told.why, "dependency changed");
        }
        if before.phase != after.standing.phase || before.gate != after.standing.gate {
            self.wake.everybody();
            self.store.notify();
        }
        if before.changes_ever() != after.standing.changes_ever() {
            self.wake_feed_readers();
        }
        self.dependencies.bell.notify_one();
    }

    /// Writes observations and time-driven changes, and wakes workers. Returns how many dependencies changed.
    pub(crate) async fn look_at_dependencies(&self) -> Result<u32, StoreError> {
        self.tell_all_guards().await?;
        let now = self.clock.now();
        let due = self.store.due_dependencies(now, MOST).await?;
        let mut moved = 0;
        for it in &due {
            let mut after = it.clone();
            // Who waits is looked at, not who asks: a worker may ask seldom, or for something else.
            if matches!(it.standing.phase, Phase::Recovering { .. })
                && !self.store.is_waited_for(&it.namespace, &it.name).await?
            {
                after.standing.nobody_waits(&after.settings, now);
            }
            after.standing.advance(&after.settings, now);
            if after.standing != it.standing && self.store.put_dependency(&after, None, now).await? {
                self.told_of(&it.standing, &after);
                moved += 1;
            }
        }
        if !due.is_empty() {
            self.wake.everybody();
        }
        Ok(moved)
    }
}
