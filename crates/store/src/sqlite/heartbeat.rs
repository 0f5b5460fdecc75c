//! Heartbeats, progress and leases that outlast a jump of the clock.

use comeback_core::{Timestamp, transition};

use super::statements::load_one;
use super::writer::Tx;
use crate::{Beat, BeatAnswer, Count, StoreError};

pub fn heartbeat(tx: &mut Tx<'_>, beats: &[Beat], now: Timestamp) -> Result<Vec<BeatAnswer>, StoreError> {
    beats.iter().map(|beat| beat_one(tx, beat, now)).collect()
}

fn beat_one(tx: &mut Tx<'_>, beat: &Beat, now: Timestamp) -> Result<BeatAnswer, StoreError> {
    let Some(stored) = load_one(tx.connection, tx.dictionary, beat.task.0)? else { return Ok(BeatAnswer::Lost) };
    let task = stored.task;
    if task.state == comeback_core::State::Canceled && beat.lease_number <= task.lease_number {
        return Ok(BeatAnswer::Canceled);
    }
    let held = task
        .lease
        .as_ref()
        .is_some_and(|lease| lease.number == beat.lease_number && lease.expires_at.is_some_and(|at| at > now));
    if !held {
        return Ok(BeatAnswer::Lost);
    }
    let expires_at = now + beat.extend;
    let timeout_at = task.timeout_at.and_then(|_| transition::run_limit(&task, now));
    tx.connection
        .prepare_cached(
            "update task_open set lease_expires = ?2, timeout_at = ?3, updated_at = max(?4, updated_at), version = version + 1,
               progress = coalesce(?5, progress), started_at = coalesce(started_at, max(?4, updated_at))
             where id = ?1",
        )?
        .execute((
            beat.task.0.as_bytes().as_slice(),
            expires_at.0,
            timeout_at.map(|at| at.0),
            now.0,
            beat.progress.as_deref(),
        ))?;
    Ok(BeatAnswer::Extended(expires_at))
}

pub fn extend_leases(tx: &mut Tx<'_>, from: Timestamp, to: Timestamp) -> Result<u64, StoreError> {
    let held = tx
        .connection
        .prepare_cached(
            "update task_open set lease_expires = lease_expires + (?2 - ?1), version = version + 1,
               timeout_at = case when timeout_at > ?1 then timeout_at + (?2 - ?1) else timeout_at end
             where lease_expires > ?1 and lease_expires <= ?2",
        )?
        .execute((from.0, to.0))?;
    Ok(held as u64)
}

pub fn count(tx: &mut Tx<'_>, counts: &[Count], now: Timestamp) -> Result<Vec<bool>, StoreError> {
    counts.iter().map(|count| count_one(tx, count, now)).collect()
}

fn count_one(tx: &mut Tx<'_>, count: &Count, now: Timestamp) -> Result<bool, StoreError> {
    let Some(stored) = load_one(tx.connection, tx.dictionary, count.task.0)? else { return Ok(false) };
    let task = stored.task;
    if !task.state.is_active() {
        return Ok(false);
    }
    let timeout_at = task.timeout_at.and_then(|_| transition::run_limit(&task, now));
    tx.connection
        .prepare_cached(
            "update task_open set success = min(success + ?2, 2147483647), failures = min(failures + ?3, 2147483647),
               expected = coalesce(?4, expected), timeout_at = ?5, updated_at = max(?6, updated_at), version = version + 1
             where id = ?1",
        )?
        .execute((
            count.task.0.as_bytes().as_slice(),
            count.success,
            count.failures,
            count.expected,
            timeout_at.map(|at| at.0),
            now.0,
        ))?;
    Ok(true)
}
