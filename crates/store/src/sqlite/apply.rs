//! Storing verdicts: every commit whole or not at all, each row guarded by its version.

use std::collections::HashSet;
use std::sync::LazyLock;

use comeback_core::account::Charge;
use comeback_core::budget::Booking;
use comeback_core::operation::Mark;
use comeback_core::payload::NewPayload;
use comeback_core::{Audit, Commit, Execution, ExecutionId, Record, Timestamp, Write};
use rusqlite::{CachedStatement, Connection, OptionalExtension, Statement};
use uuid::Uuid;

use super::control::is_paused;
use super::rules::lane_of_reopened;
use super::statements::{
    BatchStatement, INSERT_DONE, INSERT_HISTORY, UPDATE_OPEN, insert_done, insert_done_with, insert_history,
    insert_history_with, insert_open, update_open, update_open_with,
};
use super::submit::{keep_key, namespace_id, take_key};
use super::writer::Tx;
use super::{accounts, audit, operations, payloads, submit};
use crate::accounts::Moves;
use crate::audit::act_answer;
use crate::dictionary::Dictionary;
use crate::events::SharedLog;
use crate::row::{DoneRow, Fixed, HistoryRow, OpenRow, corrupt};
use crate::{Applied, Idempotency, Loop, StoreError, Submission, Used, sql};

/// Verdicts with everything worked out that does not need the writer: it is the one thread that all wait for.
pub enum Prepared {
    /// About one lone task.
    Lone(Box<PreparedLone>),
    /// About an execution, or about a task that was over.
    Whole(Box<Commit>),
}

pub struct PreparedLone {
    id: Uuid,
    expected_version: u32,
    namespace: i32,
    after: After,
    records: Vec<(HistoryRow, u32)>,
    audit: Vec<Audit>,
    payloads: Vec<NewPayload>,
    charges: Vec<Charge>,
    bookings: Vec<Booking>,
    marks: Vec<Mark>,
}

enum After {
    Open(Box<OpenRow>),
    Done(DoneRow),
}

pub fn prepare(dictionary: &Dictionary, commits: &[Commit]) -> Result<Vec<Prepared>, StoreError> {
    commits.iter().map(|commit| prepare_one(dictionary, commit)).collect()
}

fn prepare_one(dictionary: &Dictionary, commit: &Commit) -> Result<Prepared, StoreError> {
    let ([], [write]) = (commit.executions.as_slice(), commit.writes.as_slice()) else {
        return Ok(Prepared::Whole(Box::new(commit.clone())));
    };
    if !write.from.is_open() {
        return Ok(Prepared::Whole(Box::new(commit.clone())));
    }
    let task = &write.after;
    // The lane of an open row stays as it is; one that is over is in the lane without limits.
    let Some(lane) = dictionary.base_id(&task.lane) else {
        return Ok(Prepared::Whole(Box::new(commit.clone())));
    };
    let namespace = dictionary.lane_namespace(lane).ok_or_else(|| corrupt("a lane's namespace"))?;
    let after = if task.state.is_open() {
        After::Open(Box::new(OpenRow::new(task, lane, None, Fixed::default())))
    } else {
        After::Done(DoneRow::new(task, lane, None))
    };
    let records = commit.records.iter().map(|record| (HistoryRow::new(record, record.seq), record.carried)).collect();
    let expected_version = write.expected_version;
    Ok(Prepared::Lone(Box::new(PreparedLone {
        id: task.id.0,
        expected_version,
        namespace,
        after,
        records,
        audit: commit.audit.clone(),
        payloads: commit.payloads.clone(),
        charges: commit.charges.clone(),
        bookings: commit.bookings.clone(),
        marks: commit.marks.clone(),
    })))
}

pub fn apply(
    tx: &mut Tx<'_>,
    commits: &[Prepared],
    on_behalf_of: Option<Loop>,
    now: Timestamp,
) -> Result<Vec<Applied>, StoreError> {
    tx.feed.at = now.0;
    if let Some(name) = on_behalf_of
        && is_paused(tx.connection, name, now)?
    {
        return Ok(vec![Applied::Paused; commits.len()]);
    }
    let connection = tx.connection;
    let mut lone = LoneStatements {
        find: connection.prepare_cached(FIND_OPEN)?,
        done: connection.prepare_cached(&INSERT_DONE)?,
        update: connection.prepare_cached(&UPDATE_OPEN)?,
        history: connection.prepare_cached(&INSERT_HISTORY)?,
        ended: HashSet::new(),
    };
    let mut answers = Vec::with_capacity(commits.len());
    for commit in commits {
        let (audit, edits, charges, bookings, marks) = match commit {
            Prepared::Lone(it) => (&it.audit, &it.payloads, &it.charges, &it.bookings, &it.marks),
            Prepared::Whole(it) => (&it.audit, &it.payloads, &it.charges, &it.bookings, &it.marks),
        };
        if let Some(refused) = operations::refused(connection, marks)? {
            answers.push(refused);
            continue;
        }
        if payloads::moved_on(connection, edits)? || accounts::is_full(connection, bookings)? {
            answers.push(Applied::Stale);
            continue;
        }
        let moves = if charges.is_empty() { Moves::default() } else { accounts::moves(connection, charges)? };
        if let Some(short) = accounts::short(connection, &moves)? {
            answers.push(Applied::Unfunded(short));
            continue;
        }
        let applied = match commit {
            Prepared::Lone(it) => lone.apply(tx, it)?,
            Prepared::Whole(commit) => {
                lone.sweep(connection)?;
                apply_whole(tx, commit)?
            }
        };
        if applied == Applied::Done {
            audit.iter().try_for_each(|audit| audit::write(connection, audit))?;
            edits.iter().try_for_each(|edit| payloads::write(connection, edit))?;
            accounts::write(connection, &moves)?;
            bookings.iter().try_for_each(|booking| accounts::book(connection, booking))?;
            marks.iter().try_for_each(|mark| operations::write(connection, mark))?;
        }
        answers.push(applied);
    }
    lone.sweep(connection)?;
    Ok(answers)
}

/// The key and what it stands for are one: the key is written if the verdict was, and nothing is if the key was used.
pub fn apply_once(
    tx: &mut Tx<'_>,
    namespace: &str,
    key: &Idempotency,
    commit: &[Prepared],
    now: Timestamp,
) -> Result<Applied, StoreError> {
    if let Some(used) = used(tx.connection, namespace, key)? {
        return Ok(Applied::Used(used));
    }
    let applied = apply(tx, commit, None, now)?.pop().unwrap_or(Applied::Done);
    if applied == Applied::Done {
        let namespace = namespace_id(tx.connection, namespace)?;
        keep_key(tx.connection, namespace, key, "", now)?;
    }
    Ok(applied)
}

/// Tasks that a verdict creates are written with it.
pub fn spawn_if_done(tx: &mut Tx<'_>, applied: Applied, spawn: &Submission) -> Result<Applied, StoreError> {
    if applied == Applied::Done {
        submit::spawn(tx, spawn)?;
    }
    Ok(applied)
}

pub fn used(connection: &Connection, namespace: &str, key: &Idempotency) -> Result<Option<Used>, StoreError> {
    let sql = sql::control::KEY_DIGEST.sqlite;
    let found: Option<Vec<u8>> =
        connection.prepare_cached(sql)?.query_row((namespace, &key.scope, &key.key), |row| row.get(0)).optional()?;
    Ok(found.map(|digest| Used::by(&digest, key)))
}

pub fn kept_answer(
    connection: &Connection,
    namespace: &str,
    key: &Idempotency,
) -> Result<Option<serde_json::Value>, StoreError> {
    let sql = "select answer from idempotency
               where namespace = (select id from namespace where name = ?1) and scope = ?2 and key = ?3";
    let found: Option<String> =
        connection.prepare_cached(sql)?.query_row((namespace, &key.scope, &key.key), |row| row.get(0)).optional()?;
    Ok(found.and_then(|text| act_answer(&text)))
}

/// Looked up once for all verdicts of a command.
struct LoneStatements<'a> {
    find: CachedStatement<'a>,
    done: CachedStatement<'a>,
    update: CachedStatement<'a>,
    history: CachedStatement<'a>,
    /// Over, but their open rows are still there: they go together.
    ended: HashSet<Uuid>,
}

impl LoneStatements<'_> {
    /// The guarded row is looked at first, so there is nothing to take back when it has moved on; that of an ended task goes with the
    /// others in `sweep`.
    fn apply(&mut self, tx: &mut Tx<'_>, it: &PreparedLone) -> Result<Applied, StoreError> {
        if self.ended.contains(&it.id) {
            return Ok(Applied::Stale);
        }
        match &it.after {
            After::Open(row) => {
                if !update_open_with(&mut self.update, row, it.expected_version)? {
                    return Ok(Applied::Stale);
                }
            }
            After::Done(row) => {
                let found = find_open(&mut self.find, it.id, it.expected_version)?;
                let Some((policy, dedupe)) = found else { return Ok(Applied::Stale) };
                self.ended.insert(it.id);
                insert_done_with(&mut self.done, row, policy)?;
                if dedupe != 0 {
                    free_key(tx.connection, it.id)?;
                }
            }
        }
        for (row, carried) in &it.records {
            insert_history_with(&mut self.history, row)?;
            let (first, count) = (row.seq.cast_unsigned(), u32::try_from(row.events.len()).unwrap_or(0));
            if count > *carried {
                tx.feed.push(it.namespace, row.subject, first + carried, first + count - 1);
            }
        }
        Ok(Applied::Done)
    }

    fn sweep(&mut self, connection: &Connection) -> rusqlite::Result<()> {
        let mut ids: Vec<Uuid> = self.ended.drain().collect();
        ids.sort_unstable();
        DELETE_OPEN.execute(connection, &[], &ids)
    }
}

const FIND_OPEN: &str = "select policy, dedupe from task_open where id = ?1 and version = ?2";
static DELETE_OPEN: LazyLock<BatchStatement> =
    LazyLock::new(|| BatchStatement::new("delete from task_open where id in", 0));

/// Facts that only the open row has, if it is there in this version: its policy, and whether it holds a dedupe key.
fn find_open(find: &mut Statement<'_>, id: Uuid, version: u32) -> rusqlite::Result<Option<(Option<i32>, i16)>> {
    find.query_row((id.as_bytes().as_slice(), version), |row| Ok((row.get(0)?, row.get(1)?))).optional()
}

fn free_key(connection: &Connection, id: Uuid) -> rusqlite::Result<()> {
    connection
        .prepare_cached(
            "delete from dedupe where (namespace, key) = (select namespace, dedupe_key from task where id = ?1)",
        )?
        .execute([id.as_bytes().as_slice()])
        .map(|_| ())
}

fn apply_whole(tx: &mut Tx<'_>, commit: &Commit) -> Result<Applied, StoreError> {
    tx.connection.prepare_cached("savepoint whole")?.execute(())?;
    let outcome = write_all(tx, commit)?;
    if outcome.is_err() {
        tx.connection.prepare_cached("rollback to whole")?.execute(())?;
    }
    tx.connection.prepare_cached("release whole")?.execute(())?;
    Ok(outcome.err().unwrap_or(Applied::Done))
}

fn write_all(tx: &mut Tx<'_>, commit: &Commit) -> Result<Result<(), Applied>, StoreError> {
    let mut logs = Vec::with_capacity(commit.executions.len());
    for write in &commit.executions {
        let found = load_execution(tx, write.after.id)?.filter(|(found, _)| found.version == write.expected_version);
        let Some((found, log)) = found else { return Ok(Err(Applied::Stale)) };
        let namespace = tx.dictionary.namespace(&found.namespace).ok_or_else(|| corrupt("an execution's namespace"))?;
        logs.push((write, namespace, log));
        if found.parent != write.after.parent {
            write_parent(tx.connection, &write.after)?;
        }
    }
    if let Err(refused) = write_tasks(tx, commit)? {
        return Ok(Err(refused));
    }
    for record in &commit.records {
        match logs.iter_mut().find(|(write, ..)| Some(write.after.id) == record.execution) {
            Some((_, _, log)) => log.add(record.clone()),
            None => log_lone(tx, commit, record)?,
        }
    }
    for (write, namespace, log) in logs {
        write_execution(tx.connection, &write.after, log.last)?;
        append(tx, namespace, &log.records)?;
    }
    Ok(Ok(()))
}

fn write_tasks(tx: &mut Tx<'_>, commit: &Commit) -> Result<Result<(), Applied>, StoreError> {
    for write in &commit.writes {
        if let Err(refused) = write_task(tx, write)? {
            return Ok(Err(refused));
        }
    }
    Ok(Ok(()))
}

fn log_lone(tx: &mut Tx<'_>, commit: &Commit, record: &Record) -> Result<(), StoreError> {
    let Some(write) = commit.writes.iter().find(|write| write.after.id.0 == record.subject) else { return Ok(()) };
    let lane = tx.dictionary.base_id(&write.after.lane).ok_or_else(|| corrupt("a task's lane"))?;
    let namespace = tx.dictionary.lane_namespace(lane).ok_or_else(|| corrupt("a lane's namespace"))?;
    insert_history(tx.connection, &HistoryRow::new(record, record.seq))?;
    tx.feed.push_record(namespace, record, record.seq);
    Ok(())
}

pub fn append(tx: &mut Tx<'_>, namespace: i32, records: &[(Record, u32)]) -> Result<(), StoreError> {
    for (record, first) in records {
        insert_history(tx.connection, &HistoryRow::new(record, *first))?;
        tx.feed.push_record(namespace, record, *first);
    }
    Ok(())
}

fn write_task(tx: &mut Tx<'_>, write: &Write) -> Result<Result<(), Applied>, StoreError> {
    let task = &write.after;
    // Without a task in it a lane is forgotten: then this one is gone.
    let Some(lane) = tx.dictionary.base_id(&task.lane) else { return Ok(Err(Applied::Stale)) };
    match (write.from.is_open(), task.state.is_open()) {
        (true, false) => finish(tx, write, lane),
        (true, true) => {
            let row = OpenRow::new(task, lane, None, Fixed::default());
            Ok(if update_open(tx.connection, &row, write.expected_version)? { Ok(()) } else { Err(Applied::Stale) })
        }
        (false, true) => reopen(tx, write, lane),
        (false, false) => end_again(tx, write, lane),
    }
}

/// T28: a finished task whose log grew; or one that was opened again and came to another end at once.
fn end_again(tx: &mut Tx<'_>, write: &Write, lane: i32) -> Result<Result<(), Applied>, StoreError> {
    let policy: Option<Option<i32>> = tx
        .connection
        .prepare_cached("delete from task_done where id = ?1 and version = ?2 returning policy")?
        .query_row((write.after.id.0.as_bytes().as_slice(), write.expected_version), |row| row.get(0))
        .optional()?;
    let Some(policy) = policy else { return Ok(Err(Applied::Stale)) };
    insert_done(tx.connection, &DoneRow::new(&write.after, lane, policy), policy)?;
    Ok(Ok(()))
}

/// The open row goes, the end is written, and with it goes the dedupe key.
fn finish(tx: &mut Tx<'_>, write: &Write, lane: i32) -> Result<Result<(), Applied>, StoreError> {
    let id = write.after.id.0;
    let found = find_open(&mut *tx.connection.prepare_cached(FIND_OPEN)?, id, write.expected_version)?;
    let Some((policy, dedupe)) = found else { return Ok(Err(Applied::Stale)) };
    DELETE_OPEN.execute(tx.connection, &[], &[id])?;
    insert_done(tx.connection, &DoneRow::new(&write.after, lane, policy), policy)?;
    if dedupe != 0 {
        free_key(tx.connection, id)?;
    }
    Ok(Ok(()))
}

/// A task that was over is open again; its dedupe key must still be free.
fn reopen(tx: &mut Tx<'_>, write: &Write, lane: i32) -> Result<Result<(), Applied>, StoreError> {
    let id = write.after.id;
    let (namespace, key, hard): (i32, Option<String>, i16) = tx
        .connection
        .prepare_cached("select namespace, dedupe_key, hard_deadline from task where id = ?1")?
        .query_row([id.0.as_bytes().as_slice()], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
    if let Some(key) = &key {
        let taken: bool = tx.connection.query_row(
            "select exists (select 1 from dedupe where namespace = ?1 and key = ?2)",
            (namespace, key),
            |row| row.get(0),
        )?;
        if taken {
            return Ok(Err(Applied::KeyTaken));
        }
    }
    // Rules may have come and gone while it was over.
    let Some(lane) = lane_of_reopened(tx, lane, id.0)? else { return Ok(Err(Applied::Stale)) };
    let deleted: Option<Option<i32>> = tx
        .connection
        .prepare_cached("delete from task_done where id = ?1 and version = ?2 returning policy")?
        .query_row((id.0.as_bytes().as_slice(), write.expected_version), |row| row.get(0))
        .optional()?;
    let Some(policy) = deleted else { return Ok(Err(Applied::Stale)) };
    if let Some(key) = &key {
        take_key(tx.connection, namespace, key, id)?;
    }
    let fixed = Fixed { hard_deadline: hard != 0, dedupe: key.is_some() };
    insert_open(tx.connection, &OpenRow::new(&write.after, lane, policy, fixed))?;
    Ok(Ok(()))
}

pub fn load_execution(tx: &Tx<'_>, id: ExecutionId) -> Result<Option<(Execution, SharedLog)>, StoreError> {
    super::executions::execution(tx.connection, tx.dictionary, id)
        .map(|found| found.map(|(execution, seq)| (execution, SharedLog::after(seq))))
}

/// The parent of an execution changes seldom and has an index, so it is written apart.
fn write_parent(connection: &Connection, after: &Execution) -> rusqlite::Result<()> {
    let (task, run) = after.parent.unzip();
    let task = task.map(|task| *task.0.as_bytes());
    connection
        .prepare_cached(sql::executions::SET_PARENT.sqlite)?
        .execute((after.id.0.as_bytes().as_slice(), task, run))
        .map(|_| ())
}

pub fn write_execution(connection: &Connection, after: &Execution, seq: u32) -> rusqlite::Result<()> {
    connection
        .prepare_cached(
            "update execution set state = ?2, version = ?3, seq = ?4, open = ?5, unhandled = ?6, started_at = ?7,
               ended_at = ?8, updated_at = ?9, total = ?10
             where id = ?1",
        )?
        .execute((
            after.id.0.as_bytes().as_slice(),
            after.state.code(),
            after.version,
            seq,
            after.open,
            after.unhandled,
            after.started_at.map(|at| at.0),
            after.ended_at.map(|at| at.0),
            after.updated_at.0,
            after.total,
        ))
        .map(|_| ())
}
