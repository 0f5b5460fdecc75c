//! Heartbeats, progress and leases that outlast a jump of the clock.

use std::collections::{BTreeSet, HashMap};

use comeback_core::{State, Timestamp};
use uuid::Uuid;

use super::PostgresStore;
use crate::{Beat, BeatAnswer, Count, StoreError};

/// Extends what is still held by the number it names. The expiry is compared in a way that no index offers itself for:
/// the rows must be found by their ids.
pub const BEAT: &str = "update task_open o set lease_expires = i.expires, version = o.version + 1, updated_at = greatest($6, o.updated_at),
               timeout_at = case when o.timeout_at is null then null
                 when o.state = 5 then o.started_at + o.attempt_deadline_ms
                 else least($6 + o.timeout_ms, o.started_at + o.attempt_deadline_ms) end,
               progress = coalesce(i.progress, o.progress), started_at = coalesce(o.started_at, greatest($6, o.updated_at))
             from unnest($1::int4[], $2::uuid[], $3::int4[], $4::int8[], $5::text[])
               as i(index, id, number, expires, progress)
             where o.id = i.id and o.lease_no = i.number and coalesce(o.lease_expires, 0) > $6
             returning i.index, o.lease_expires";

pub async fn heartbeat(store: &PostgresStore, beats: &[Beat], now: Timestamp) -> Result<Vec<BeatAnswer>, StoreError> {
    if beats.is_empty() {
        return Ok(Vec::new());
    }
    let mut order: Vec<usize> = (0..beats.len()).collect();
    order.sort_unstable_by_key(|index| beats[*index].task);
    let index: Vec<i32> = order.iter().map(|index| i32::try_from(*index).unwrap_or(i32::MAX)).collect();
    let ids: Vec<Uuid> = order.iter().map(|index| beats[*index].task.0).collect();
    let numbers: Vec<i32> = order.iter().map(|index| beats[*index].lease_number.cast_signed()).collect();
    let expires: Vec<i64> = order.iter().map(|index| (now + beats[*index].extend).0).collect();
    let progress: Vec<Option<&str>> = order.iter().map(|index| beats[*index].progress.as_deref()).collect();
    let client = store.writer().await?;
    let statement = client.prepare_cached(BEAT).await?;
    let mut answers = vec![BeatAnswer::Lost; beats.len()];
    for row in client.query(&statement, &[&index, &ids, &numbers, &expires, &progress, &now.0]).await? {
        answers[row.get::<_, i32>(0).cast_unsigned() as usize] = BeatAnswer::Extended(Timestamp(row.get(1)));
    }
    let lost: Vec<Uuid> =
        beats.iter().zip(&answers).filter(|(_, it)| **it == BeatAnswer::Lost).map(|(beat, _)| beat.task.0).collect();
    if !lost.is_empty() {
        let statement =
            client.prepare_cached("select id, lease_no from task_done where id = any($1) and state = $2").await?;
        let canceled: HashMap<Uuid, i32> = client
            .query(&statement, &[&lost, &State::Canceled.code()])
            .await?
            .iter()
            .map(|row| (row.get(0), row.get(1)))
            .collect();
        for (beat, answer) in beats.iter().zip(&mut answers) {
            let last = canceled.get(&beat.task.0);
            if *answer == BeatAnswer::Lost && last.is_some_and(|last| beat.lease_number.cast_signed() <= *last) {
                *answer = BeatAnswer::Canceled;
            }
        }
    }
    Ok(answers)
}

/// Locked in one order, as everybody does.
const OUTLAST: &str =
    "with l as (select id from task_open where lease_expires > $1 and lease_expires <= $2 order by id for update)
     update task_open o set lease_expires = o.lease_expires + ($2 - $1), version = o.version + 1,
       timeout_at = case when o.timeout_at > $1 then o.timeout_at + ($2 - $1) else o.timeout_at end
     from l where o.id = l.id and o.lease_expires > $1 and o.lease_expires <= $2";

pub async fn extend_leases(store: &PostgresStore, from: Timestamp, to: Timestamp) -> Result<u64, StoreError> {
    let client = store.writer().await?;
    let statement = client.prepare_cached(OUTLAST).await?;
    Ok(client.execute(&statement, &[&from.0, &to.0]).await?)
}

/// All of them or none; in one order, as everybody locks.
const COUNT: &str = "with l as (select id from task_open where id = any($1) and state in (2, 3) order by id for update)
     update task_open o set success = least(o.success + i.success, 2147483647)::int4,
       failures = least(o.failures + i.failures, 2147483647)::int4, expected = coalesce(i.expected, o.expected),
       version = o.version + 1, updated_at = greatest($5, o.updated_at),
       timeout_at = case when o.timeout_at is null then null
         else least($5 + o.timeout_ms, o.started_at + o.attempt_deadline_ms) end
     from l join unnest($1::uuid[], $2::int8[], $3::int8[], $4::int4[]) as i(id, success, failures, expected) on i.id = l.id
     where o.id = l.id returning o.id";

pub async fn count(store: &PostgresStore, counts: &[Count], now: Timestamp) -> Result<Vec<bool>, StoreError> {
    let ids: Vec<Uuid> = counts.iter().map(|it| it.task.0).collect();
    let success: Vec<i64> = counts.iter().map(|it| it.success.into()).collect();
    let failures: Vec<i64> = counts.iter().map(|it| it.failures.into()).collect();
    let expected = |it: &Count| it.expected.map(|expected| i32::try_from(expected).unwrap_or(i32::MAX));
    let expected: Vec<Option<i32>> = counts.iter().map(expected).collect();
    let client = store.writer().await?;
    let statement = client.prepare_cached(COUNT).await?;
    let rows = client.query(&statement, &[&ids, &success, &failures, &expected, &now.0]).await?;
    let counted: BTreeSet<Uuid> = rows.iter().map(|row| row.get(0)).collect();
    Ok(ids.iter().map(|id| counted.contains(id)).collect())
}
