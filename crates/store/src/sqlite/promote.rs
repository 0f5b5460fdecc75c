//! Making due tasks pending.

use comeback_core::{Timestamp, transition};
use rusqlite::Connection;

use super::apply::{append, load_execution, write_execution};
use super::control::is_paused;
use super::statements::{Reader, stored_open, update_open};
use super::writer::Tx;
use crate::row::{Fixed, OpenRow, READY, RETRY_DUE, columns, corrupt};
use crate::{Loop, Promote, Promoted, StoreError};

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

/// Tasks past their deadline belong to the expire loop and are left alone here.
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
        columns("o", OpenRow::COLUMNS)
    );
    connection
        .prepare_cached(&sql)?
        .query_map((now.0, limit, slow_lanes), |row| OpenRow::read(&mut Reader { row, next: 0 }))?
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
