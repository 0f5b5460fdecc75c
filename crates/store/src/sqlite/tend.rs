//! What the loops and the workers' heartbeats write, and small facts about the store.

use comeback_core::{Audit, Timestamp, transition};
use rusqlite::{Connection, OptionalExtension};

use super::apply::{append, load_execution, write_execution};
use super::statements::{Reader, load_one, read_open, stored_open, update_open};
use super::writer::Tx;
use super::{audit, operations};
use crate::StoreError;
use crate::audit::pause_facts;
use crate::check::PRUNED_BEFORE;
use crate::row::{Fixed, OPEN_COLUMNS, OpenRow, READY, RETRY_DUE, columns, corrupt, oldest_id, whole_ones};
use crate::types::*;

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

pub fn outlast(tx: &mut Tx<'_>, from: Timestamp, to: Timestamp) -> Result<u64, StoreError> {
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

pub fn promote(tx: &mut Tx<'_>, what: Promote, now: Timestamp, limit: u32) -> Result<Promoted, StoreError> {
    tx.feed.at = now.0;
    let name = match what {
        Promote::Retries => Loop::Retries,
        Promote::Starts => Loop::Starts,
    };
    let mut promoted = Promoted::default();
    if is_paused(tx.connection, name, now)? {
        return Ok(promoted);
    }
    let slow = tx.dictionary.slow_lanes();
    let slow_lanes = serde_json::json!(slow).to_string();
    promote_lone(tx, what, &slow_lanes, now, limit, &mut promoted)?;
    if !slow.is_empty() {
        for row in due_rows(tx.connection, what, &slow_lanes, now, limit)? {
            promote_one(tx, row, now, &mut promoted)?;
        }
    }
    Ok(promoted)
}

/// Tasks whose small events are carried in the row: one statement moves them all.
fn promote_lone(
    tx: &mut Tx<'_>,
    what: Promote,
    slow_lanes: &str,
    now: Timestamp,
    limit: u32,
    promoted: &mut Promoted,
) -> Result<(), StoreError> {
    let (condition, event) = match what {
        Promote::Retries => ("indexed by open_retry where state = 4", RETRY_DUE),
        Promote::Starts => ("indexed by open_start where state = 0 and due is not null", READY),
    };
    let sql = format!(
        "update task_open set state = 1, version = version + 1, seq = seq + 1, unwritten = unwritten | {event},
           ready_at = max(?1, updated_at), updated_at = max(?1, updated_at),
           due = null, next_retry_at = null, start_at = null, started_at = null, held_until = null, held_by = null
         where id in (select id from task_open {condition} and hold = 0 and due <= ?1
           and (expires_at is null or expires_at > ?1) and lane not in (select value from json_each(?3))
           order by due, id limit ?2)
         returning id, seq, lane"
    );
    let mut statement = tx.connection.prepare_cached(&sql)?;
    let mut rows = statement.query((now.0, limit, slow_lanes))?;
    while let Some(row) = rows.next()? {
        let (id, seq, lane_id): ([u8; 16], u32, i32) = (row.get(0)?, row.get(1)?, row.get(2)?);
        let lane = tx.dictionary.lane(lane_id).zip(tx.dictionary.lane_namespace(lane_id));
        let (lane, namespace) = lane.ok_or_else(|| corrupt(format!("lane {lane_id}")))?;
        promoted.count += 1;
        if !promoted.lanes.contains(&lane) {
            promoted.lanes.push(lane);
        }
        tx.feed.push(namespace, uuid::Uuid::from_bytes(id), seq, seq);
    }
    Ok(())
}

/// What is past its deadline is the expire loop's and is left alone here.
fn due_rows(
    connection: &Connection,
    what: Promote,
    slow_lanes: &str,
    now: Timestamp,
    limit: u32,
) -> rusqlite::Result<Vec<OpenRow>> {
    let (index, state) = match what {
        Promote::Retries => ("open_retry", "o.state = 4"),
        Promote::Starts => ("open_start", "o.state = 0 and o.due is not null"),
    };
    let sql = format!(
        "select {} from task_open o indexed by {index} where {state} and o.hold = 0 and o.due <= ?1
           and (o.expires_at is null or o.expires_at > ?1) and o.lane in (select value from json_each(?3))
         order by o.due, o.id limit ?2",
        columns("o", &OPEN_COLUMNS)
    );
    connection
        .prepare_cached(&sql)?
        .query_map((now.0, limit, slow_lanes), |row| read_open(&mut Reader { row, next: 0 }))?
        .collect()
}

/// Where each step is a row of history.
fn promote_one(tx: &mut Tx<'_>, row: OpenRow, now: Timestamp, promoted: &mut Promoted) -> Result<(), StoreError> {
    let (lane_id, policy) = (row.lane, row.policy);
    let fixed = Fixed { hard_deadline: row.hard_deadline != 0, dedupe: row.dedupe != 0 };
    let task = stored_open(tx.connection, row, tx.dictionary)?.task;
    let Ok(step) = transition::promote(&task, now) else { return Ok(()) };
    let namespace = tx.dictionary.lane_namespace(lane_id).ok_or_else(|| corrupt(format!("lane {lane_id}")))?;
    promoted.count += 1;
    if !promoted.lanes.contains(&task.lane) {
        promoted.lanes.push(task.lane.clone());
    }
    let record = step.record.ok_or_else(|| corrupt("a lane that writes each step"))?;
    let after = OpenRow::new(&step.after, lane_id, policy, fixed);
    update_open(tx.connection, &after, task.version)?;
    match record.execution {
        None => {
            let first = record.seq;
            append(tx, namespace, &[(record, first)])
        }
        Some(id) => {
            let (execution, mut log) =
                load_execution(tx, id)?.ok_or_else(|| corrupt("a task without its execution"))?;
            log.add(record);
            write_execution(tx.connection, &execution, log.last)?;
            append(tx, namespace, &log.records)
        }
    }
}

/// Whole executions, and lone tasks, that ended long enough ago; with each go its body, its history and its edges.
pub fn prunable(connection: &Connection, before: Timestamp) -> Result<u64, StoreError> {
    let oldest = oldest_id(before);
    let count: i64 = connection
        .prepare_cached(
            "select (select count(*) from task_done where id < ?2 and execution_id is null and ended_at < ?1) +
               (select coalesce(sum(total), 0) from execution
                where id < ?2 and state in (3, 4, 5) and ended_at < ?1 and open = 0)",
        )?
        .query_row((before.0, oldest.as_bytes().as_slice()), |row| row.get(0))?;
    Ok(count.cast_unsigned())
}

pub fn prune(tx: &mut Tx<'_>, before: Timestamp, limit: u32) -> Result<Pruned, StoreError> {
    let lone: Vec<[u8; 16]> = tx
        .connection
        .prepare_cached(
            "select id from task_done where id < ?3 and execution_id is null and ended_at < ?1 order by id limit ?2",
        )?
        .query_map((before.0, limit, oldest_id(before).as_bytes().as_slice()), |row| row.get(0))?
        .collect::<rusqlite::Result<_>>()?;
    let at_limit = |count: usize| count >= limit as usize;
    let (mut pruned, mut more) = (0, at_limit(lone.len()));
    for id in &lone {
        forget_task(tx.connection, id)?;
        pruned += 1;
    }
    let found: Vec<([u8; 16], i32)> = tx
        .connection
        .prepare_cached(
            "select id, total from execution
             where id < ?3 and state in (3, 4, 5) and ended_at < ?1 and open = 0 order by id limit ?2",
        )?
        .query_map((before.0, limit, oldest_id(before).as_bytes().as_slice()), |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect::<rusqlite::Result<_>>()?;
    let (executions, more_of_them) = whole_ones(found, limit);
    more |= more_of_them;
    for execution in &executions {
        let tasks: Vec<[u8; 16]> = tx
            .connection
            .prepare_cached("select id from task where execution_id = ?1")?
            .query_map([execution.as_slice()], |row| row.get(0))?
            .collect::<rusqlite::Result<_>>()?;
        for id in &tasks {
            forget_task(tx.connection, id)?;
            tx.connection.prepare_cached("delete from edge where from_id = ?1")?.execute([id.as_slice()])?;
            pruned += 1;
        }
        tx.connection.prepare_cached("delete from history where subject = ?1")?.execute([execution.as_slice()])?;
        tx.connection.prepare_cached("delete from execution where id = ?1")?.execute([execution.as_slice()])?;
    }
    let told = tx
        .connection
        .prepare_cached(
            "delete from feed where id in
               (select id from (select id, at from feed order by id limit ?2) where at < ?1)",
        )?
        .execute((before.0, limit))?;
    let keys = tx
        .connection
        .prepare_cached(
            "delete from idempotency where (namespace, scope, key) in
               (select namespace, scope, key from idempotency where at < ?1 order by at limit ?2)",
        )?
        .execute((before.0, limit))?;
    more |= !operations::prune(tx.connection, before, limit)?;
    if pruned > 0 || told > 0 {
        tx.connection.execute(
            "insert into meta (key, value) values (?1, ?2) on conflict (key) do update set value = excluded.value
             where cast(excluded.value as integer) > cast(meta.value as integer)",
            (PRUNED_BEFORE, before.0.to_string()),
        )?;
    }
    Ok(Pruned { tasks: pruned, more: more || at_limit(told) || at_limit(keys) })
}

fn forget_task(connection: &Connection, id: &[u8; 16]) -> rusqlite::Result<()> {
    connection.prepare_cached("delete from task_done where id = ?1")?.execute([id.as_slice()])?;
    connection.prepare_cached("delete from history where subject = ?1")?.execute([id.as_slice()])?;
    connection.prepare_cached("delete from task where id = ?1")?.execute([id.as_slice()])?;
    connection.prepare_cached("delete from task_payload where task_id = ?1")?.execute([id.as_slice()])?;
    Ok(())
}

pub fn is_paused(connection: &Connection, name: Loop, now: Timestamp) -> rusqlite::Result<bool> {
    connection
        .prepare_cached("select exists (select 1 from loop_pause where name = ?1 and until > ?2)")?
        .query_row((name.word(), now.0), |row| row.get(0))
}

pub fn set_pause(tx: &mut Tx<'_>, name: Loop, pause: Option<&Pause>, audit: Option<&Audit>) -> Result<(), StoreError> {
    if audit.is_some() {
        let sql = "select until, note, actor from loop_pause where name = ?1";
        let facts = |row: &rusqlite::Row<'_>| {
            let (note, by): (Option<String>, Option<String>) = (row.get(1)?, row.get(2)?);
            Ok(pause_facts(row.get(0)?, note.as_deref(), by.as_deref()))
        };
        let old = tx.connection.query_row(sql, [name.word()], facts).optional()?;
        audit::note(tx.connection, audit, old)?;
    }
    match pause {
        None => tx.connection.execute("delete from loop_pause where name = ?1", [name.word()])?,
        Some(pause) => tx.connection.execute(
            "insert or replace into loop_pause (name, until, note, actor, at) values (?1, ?2, ?3, ?4, ?5)",
            (name.word(), pause.until.0, &pause.note, &pause.by, pause.at.0),
        )?,
    };
    Ok(())
}

pub fn put_meta(
    tx: &mut Tx<'_>,
    key: &str,
    value: &str,
    when: PutIf<'_>,
    audit: Option<&Audit>,
) -> Result<String, StoreError> {
    let written = match when {
        PutIf::Always => {
            tx.connection.execute("insert or replace into meta (key, value) values (?1, ?2)", (key, value))?
        }
        PutIf::Absent => {
            let sql = "insert into meta (key, value) values (?1, ?2) on conflict do nothing";
            tx.connection.execute(sql, (key, value))?
        }
        PutIf::Is(known) => {
            let sql = "update meta set value = ?2 where key = ?1 and value = ?3";
            tx.connection.execute(sql, (key, value, known))?
        }
    };
    audit::note(tx.connection, audit.filter(|_| written > 0), None)?;
    let stands =
        tx.connection.query_row("select value from meta where key = ?1", [key], |row| row.get(0)).optional()?;
    stands.ok_or_else(|| corrupt("a fact that was just written"))
}
