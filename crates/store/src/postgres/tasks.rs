//! The trait over the statements of a task's life, which are in the modules beside this one.

use async_trait::async_trait;
use comeback_core::{Audit, Commit, TaskId, Timestamp};

use super::{PostgresStore, apply, claim, describe, heartbeat, promote, submit};
use crate::rules::ensure_lanes;
use crate::{
    Applied, Beat, BeatAnswer, Behalf, ClaimRequest, Claimed, Count, Description, Idempotency, Loop, Promote, Promoted,
    StoreError, Submission, Submitted, TaskStore,
};

#[async_trait]
impl TaskStore for PostgresStore {
    async fn submit(&self, submissions: &[Submission], now: Timestamp) -> Result<Vec<Submitted>, StoreError> {
        submit::submit(self, submissions, now).await
    }

    async fn claim(&self, requests: &[ClaimRequest], now: Timestamp) -> Result<Vec<Vec<Claimed>>, StoreError> {
        claim::claim(self, requests, now).await
    }

    async fn apply(
        &self,
        commits: &[Commit],
        on_behalf_of: Option<Loop>,
        now: Timestamp,
    ) -> Result<Vec<Applied>, StoreError> {
        ensure_lanes(self, commits).await?;
        apply::apply(self, commits, on_behalf_of, now).await
    }

    async fn apply_once(
        &self,
        namespace: &str,
        key: &Idempotency,
        commit: Option<&Commit>,
        now: Timestamp,
    ) -> Result<Applied, StoreError> {
        ensure_lanes(self, commit.map(std::slice::from_ref).unwrap_or_default()).await?;
        apply::apply_once(self, namespace, key, commit, now).await
    }

    async fn apply_spawning(
        &self,
        commit: &Commit,
        spawn: &Submission,
        behalf: Behalf<'_>,
        now: Timestamp,
    ) -> Result<Applied, StoreError> {
        ensure_lanes(self, std::slice::from_ref(commit)).await?;
        apply::apply_spawning(self, commit, spawn, behalf, now).await
    }

    async fn heartbeat(&self, beats: &[Beat], now: Timestamp) -> Result<Vec<BeatAnswer>, StoreError> {
        heartbeat::heartbeat(self, beats, now).await
    }

    async fn extend_leases(&self, from: Timestamp, to: Timestamp) -> Result<u64, StoreError> {
        heartbeat::extend_leases(self, from, to).await
    }

    async fn count(&self, counts: &[Count], now: Timestamp) -> Result<Vec<bool>, StoreError> {
        heartbeat::count(self, counts, now).await
    }

    async fn promote(&self, what: Promote, now: Timestamp, limit: u32) -> Result<Promoted, StoreError> {
        promote::promote(self, what, now, limit).await
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
