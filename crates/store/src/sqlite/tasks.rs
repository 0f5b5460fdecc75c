//! The trait over the statements of a task's life, which are in the modules beside this one.

use async_trait::async_trait;
use comeback_core::{Audit, Commit, TaskId, Timestamp};

use super::writer::Tx;
use super::{SqliteStore, apply, claim, describe, heartbeat, promote, submit};
use crate::rules::ensure_lanes;
use crate::{
    Applied, Beat, BeatAnswer, Behalf, ClaimRequest, Claimed, Count, Description, Idempotency, Loop, Promote, Promoted,
    StoreError, Submission, Submitted, TaskStore,
};

#[async_trait]
impl TaskStore for SqliteStore {
    async fn submit(&self, submissions: &[Submission], now: Timestamp) -> Result<Vec<Submitted>, StoreError> {
        loop {
            let book = self.dictionary.rules();
            let placed = book.place(submissions).into_owned();
            submit::learn(self, self.dictionary.news(&placed)).await?;
            let submitted = self.writer.run(move |tx| match tx.dictionary.rules().generation == book.generation {
                true => {
                    crate::panic_point!("sqlite-submit");
                    submit::submit(tx, &placed, now).map(Some)
                }
                // A rule has changed since we looked where they belong.
                false => Ok(None),
            });
            if let Some(answers) = submitted.await? {
                return Ok(answers);
            }
        }
    }

    async fn claim(&self, requests: &[ClaimRequest], now: Timestamp) -> Result<Vec<Vec<Claimed>>, StoreError> {
        let requests = requests.to_vec();
        let claim = move |tx: &mut Tx<'_>| {
            let claimed = claim::claim(tx, &requests, now);
            crate::panic_point!("sqlite-claim");
            claimed
        };
        self.writer.run(claim).await
    }

    async fn apply(
        &self,
        commits: &[Commit],
        on_behalf_of: Option<Loop>,
        now: Timestamp,
    ) -> Result<Vec<Applied>, StoreError> {
        ensure_lanes(self, commits).await?;
        let prepared = apply::prepare(&self.dictionary, commits)?;
        let apply = move |tx: &mut Tx<'_>| {
            let applied = apply::apply(tx, &prepared, on_behalf_of, now);
            crate::panic_point!("sqlite-apply");
            applied
        };
        self.writer.run(apply).await
    }

    async fn apply_once(
        &self,
        namespace: &str,
        key: &Idempotency,
        commit: Option<&Commit>,
        now: Timestamp,
    ) -> Result<Applied, StoreError> {
        let commit = commit.map(std::slice::from_ref).unwrap_or_default();
        ensure_lanes(self, commit).await?;
        let prepared = apply::prepare(&self.dictionary, commit)?;
        let (namespace, key) = (namespace.to_owned(), key.clone());
        self.writer.run(move |tx| apply::apply_once(tx, &namespace, &key, &prepared, now)).await
    }

    async fn apply_spawning(
        &self,
        commit: &Commit,
        spawn: &Submission,
        behalf: Behalf<'_>,
        now: Timestamp,
    ) -> Result<Applied, StoreError> {
        let book = self.dictionary.rules();
        let spawn = book.place(std::slice::from_ref(spawn)).into_owned();
        submit::learn_anyway(self, self.dictionary.news(&spawn)).await?;
        ensure_lanes(self, std::slice::from_ref(commit)).await?;
        let prepared = apply::prepare(&self.dictionary, std::slice::from_ref(commit))?;
        let moved_on = move |tx: &Tx<'_>| tx.dictionary.rules().generation != book.generation;
        match behalf {
            Behalf::Key(namespace, key) => {
                let (namespace, key) = (namespace.to_owned(), key.clone());
                let applied = move |tx: &mut Tx<'_>| {
                    if moved_on(tx) {
                        return Ok(Applied::Stale);
                    }
                    let applied = apply::apply_once(tx, &namespace, &key, &prepared, now)?;
                    apply::spawn_if_done(tx, applied, &spawn[0])
                };
                self.writer.run(applied).await
            }
            Behalf::Caller | Behalf::Loop(_) => {
                let on_behalf_of = if let Behalf::Loop(name) = behalf { Some(name) } else { None };
                let applied = move |tx: &mut Tx<'_>| {
                    if moved_on(tx) {
                        return Ok(Applied::Stale);
                    }
                    let applied = apply::apply(tx, &prepared, on_behalf_of, now)?.pop().unwrap_or(Applied::Done);
                    crate::panic_point!("sqlite-apply-spawning");
                    apply::spawn_if_done(tx, applied, &spawn[0])
                };
                self.writer.run(applied).await
            }
        }
    }

    async fn heartbeat(&self, beats: &[Beat], now: Timestamp) -> Result<Vec<BeatAnswer>, StoreError> {
        let beats = beats.to_vec();
        crate::panic_point!("sqlite-heartbeat");
        self.writer.run(move |tx| heartbeat::heartbeat(tx, &beats, now)).await
    }

    async fn extend_leases(&self, from: Timestamp, to: Timestamp) -> Result<u64, StoreError> {
        self.writer.run(move |tx| heartbeat::extend_leases(tx, from, to)).await
    }

    async fn count(&self, counts: &[Count], now: Timestamp) -> Result<Vec<bool>, StoreError> {
        let counts = counts.to_vec();
        self.writer.run(move |tx| heartbeat::count(tx, &counts, now)).await
    }

    async fn promote(&self, what: Promote, now: Timestamp, limit: u32) -> Result<Promoted, StoreError> {
        self.writer.run(move |tx| promote::promote(tx, what, now, limit)).await
    }

    async fn describe(
        &self,
        id: TaskId,
        change: &Description,
        audit: Option<&Audit>,
        now: Timestamp,
    ) -> Result<bool, StoreError> {
        describe::describe(self, id, change, audit, now).await
    }
}
