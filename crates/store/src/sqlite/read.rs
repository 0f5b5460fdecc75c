//! Reading: tasks, graphs, histories and the feed. Every method sees one moment.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use comeback_core::{Edge, Execution, ExecutionId, ExecutionState, OnUnmet, Record, State, TaskId, Timestamp, When};
use rusqlite::{Connection, OptionalExtension};
use uuid::Uuid;

use super::statements::{Reader, load_one, read_history, read_open, stored_open};
use crate::StoreError;
use crate::dictionary::Dictionary;
use crate::events::{MOST_EVENTS, Sources};
use crate::page::FeedCursor;
use crate::row::{HISTORY_COLUMNS, OPEN_COLUMNS, columns, corrupt, created_record, labels_from_json};
use crate::rules::names_from_json;
use crate::types::*;

pub fn load(
    connection: &Connection,
    dictionary: &Dictionary,
    ids: &[TaskId],
) -> Result<Vec<Option<Stored>>, StoreError> {
    ids.iter().map(|id| load_one(connection, dictionary, id.0)).collect()
}

/// Which rows a time has come for, in the order of their indexes.
const fn due_condition(what: Due) -> &'static str {
    match what {
        Due::Leases => "o.lease_expires is not null and o.lease_expires <= ?1 order by o.lease_expires, o.id",
        Due::Timeouts => "o.timeout_at is not null and o.timeout_at <= ?1 order by o.timeout_at, o.id",
        Due::Deadlines => {
            "o.expires_at is not null and (o.state in (0, 1, 4) or (o.hard_deadline = 1 and o.state in (2, 3)))
             and o.expires_at <= ?1 order by o.expires_at, o.id"
        }
        Due::Gates => "o.gated = 1 and o.state = 0 and o.needs_left = 0 and o.hold = 0 and ?1 = ?1 order by o.id",
    }
}

pub fn due(
    connection: &Connection,
    dictionary: &Dictionary,
    what: Due,
    now: Timestamp,
    limit: u32,
) -> Result<Vec<Stored>, StoreError> {
    let condition = due_condition(what);
    let sql = format!("select {} from task_open o where {condition} limit ?2", columns("o", &OPEN_COLUMNS));
    let rows: Vec<_> = connection
        .prepare_cached(&sql)?
        .query_map((now.0, limit), |row| read_open(&mut Reader { row, next: 0 }))?
        .collect::<rusqlite::Result<_>>()?;
    rows.into_iter().map(|row| stored_open(connection, row, dictionary)).collect()
}

/// What comes next of each sort, in the order of `NextDue`.
const NEXT: [&str; 9] = [
    "select due from task_open where state = 4 and hold = 0 order by due limit 1",
    "select due from task_open where state = 0 and hold = 0 and due is not null order by due limit 1",
    "select lease_expires from task_open where lease_expires is not null order by lease_expires limit 1",
    "select timeout_at from task_open where timeout_at is not null order by timeout_at limit 1",
    "select expires_at from task_open where expires_at is not null
       and (state in (0, 1, 4) or (hard_deadline = 1 and state in (2, 3))) order by expires_at limit 1",
    "select updated_at from task_open where gated = 1 and state = 0 and needs_left = 0 and hold = 0 limit 1",
    "select due from schedule where due is not null order by due limit 1",
    "select due from operation where due is not null order by due limit 1",
    "select due from alert where due > 0 order by due limit 1",
];

pub fn next_due(connection: &Connection) -> Result<NextDue, StoreError> {
    let mut found = [None; NEXT.len()];
    for (at, sql) in found.iter_mut().zip(NEXT) {
        let due: Option<i64> = connection.prepare_cached(sql)?.query_row((), |row| row.get(0)).optional()?;
        *at = due.map(Timestamp);
    }
    let [retry, start, lease, timeout, deadline, gate, schedule, operation, alert] = found;
    Ok(NextDue { retry, start, lease, timeout, deadline, gate, schedule, operation, alert })
}

/// What is leased to a part of a process.
pub fn leased_by_processes(connection: &Connection, limit: u32) -> Result<Vec<TaskId>, StoreError> {
    let sql = "select id from task_open indexed by open_lease
               where lease_expires is not null and instr(worker, '/') > 0 limit ?1";
    let mut statement = connection.prepare_cached(sql)?;
    let ids = statement.query_map([limit], |row| Ok(TaskId(Uuid::from_bytes(row.get(0)?))))?;
    Ok(ids.collect::<rusqlite::Result<_>>()?)
}

pub fn retry_after(connection: &Connection, after: Timestamp) -> Result<Option<Timestamp>, StoreError> {
    let sql = "select due from task_open where state = 4 and hold = 0 and due > ?1 order by due limit 1";
    let at: Option<i64> = connection.prepare_cached(sql)?.query_row((after.0,), |row| row.get(0)).optional()?;
    Ok(at.map(Timestamp))
}

pub fn open_work(connection: &Connection, now: Timestamp) -> Result<OpenWork, StoreError> {
    let mut work = OpenWork::default();
    let mut statement = connection.prepare_cached(OpenWork::QUERY)?;
    let mut rows = statement.query([now.0])?;
    while let Some(row) = rows.next()? {
        let mut from = Reader { row, next: 0 };
        let row = OpenWorkRow {
            state: from.get()?,
            hold: from.get()?,
            all: from.get()?,
            to_come: from.get()?,
            come: from.get()?,
            next: from.get()?,
            first: from.get()?,
        };
        work.add(row, now);
    }
    Ok(work)
}

pub fn execution(
    connection: &Connection,
    dictionary: &Dictionary,
    id: ExecutionId,
) -> Result<Option<(Execution, u32)>, StoreError> {
    let mut statement = connection.prepare_cached(
        "select namespace, state, version, seq, total, open, unhandled, fail_fast, dead_end_cancel, created_at,
           started_at, ended_at, updated_at, parent_task, parent_run from execution where id = ?1",
    )?;
    let mut rows = statement.query([id.0.as_bytes().as_slice()])?;
    let Some(row) = rows.next()? else { return Ok(None) };
    let state: i16 = row.get(1)?;
    let namespace = dictionary.namespace_name(row.get(0)?).ok_or_else(|| corrupt("an execution's namespace"))?;
    let parent = row.get::<_, Option<[u8; 16]>>(13)?.map(|task| TaskId(Uuid::from_bytes(task)));
    let execution = Execution {
        id,
        namespace,
        parent: parent.zip(row.get(14)?),
        state: ExecutionState::from_code(state).ok_or_else(|| corrupt(format!("execution state {state}")))?,
        version: row.get(2)?,
        total: row.get(4)?,
        open: row.get(5)?,
        unhandled: row.get(6)?,
        fail_fast: row.get(7)?,
        dead_end_cancel: row.get(8)?,
        created_at: Timestamp(row.get(9)?),
        started_at: row.get::<_, Option<i64>>(10)?.map(Timestamp),
        ended_at: row.get::<_, Option<i64>>(11)?.map(Timestamp),
        updated_at: Timestamp(row.get(12)?),
    };
    Ok(Some((execution, row.get(3)?)))
}

pub fn graph(
    connection: &Connection,
    dictionary: &Dictionary,
    id: ExecutionId,
    around: Option<&[TaskId]>,
) -> Result<Option<Graph>, StoreError> {
    let Some((execution, _)) = execution(connection, dictionary, id)? else { return Ok(None) };
    let mut ids: BTreeSet<Uuid> = BTreeSet::new();
    let asked: Option<BTreeSet<Uuid>> = around.map(|around| around.iter().map(|task| task.0).collect());
    match around {
        None => {
            let mut statement = connection.prepare_cached("select id from task where execution_id = ?1")?;
            let mut rows = statement.query([id.0.as_bytes().as_slice()])?;
            while let Some(row) = rows.next()? {
                ids.insert(Uuid::from_bytes(row.get(0)?));
            }
        }
        Some(around) => {
            for task in around {
                ids.insert(task.0);
                let neighbours = edges(connection, task.0, true)?.into_iter().map(|edge| edge.to.0);
                ids.extend(neighbours);
                ids.extend(edges(connection, task.0, false)?.into_iter().map(|edge| edge.from.0));
            }
        }
    }
    let mut tasks = Vec::with_capacity(ids.len());
    for task in ids {
        if let Some(stored) = load_one(connection, dictionary, task)?.filter(|it| it.task.execution == Some(id)) {
            let edges = match asked.as_ref().is_none_or(|asked| asked.contains(&task)) {
                true => Some(TaskEdges { out: edges(connection, task, true)?, into: edges(connection, task, false)? }),
                false => None,
            };
            tasks.push(GraphTask { stored, edges });
        }
    }
    Ok(Some(Graph { execution, tasks }))
}

fn edges(connection: &Connection, task: Uuid, outgoing: bool) -> Result<Vec<Edge>, StoreError> {
    let sql = if outgoing {
        "select from_id, to_id, met_when, on_unmet from edge where from_id = ?1 order by to_id"
    } else {
        "select from_id, to_id, met_when, on_unmet from edge where to_id = ?1 order by from_id"
    };
    let rows: Vec<([u8; 16], [u8; 16], i16, i16)> = connection
        .prepare_cached(sql)?
        .query_map([task.as_bytes().as_slice()], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)))?
        .collect::<rusqlite::Result<_>>()?;
    rows.into_iter()
        .map(|(from, to, when, on_unmet)| {
            Ok(Edge {
                from: TaskId(Uuid::from_bytes(from)),
                to: TaskId(Uuid::from_bytes(to)),
                when: When::from_code(when).ok_or_else(|| corrupt("an edge's condition"))?,
                on_unmet: OnUnmet::from_code(on_unmet).ok_or_else(|| corrupt("an edge's alternative"))?,
            })
        })
        .collect()
}

pub fn task(
    connection: &Connection,
    dictionary: &Dictionary,
    namespace: &str,
    id: TaskId,
) -> Result<Option<TaskView>, StoreError> {
    let Some(stored) = load_one(connection, dictionary, id.0)?.filter(|stored| stored.task.lane.namespace == namespace)
    else {
        return Ok(None);
    };
    let (body, payload_version) = connection
        .prepare_cached(
            "select key, name, payload, labels, executor, hooks, account, cost, dedupe_key, external_id, traceparent,
               hard_deadline, step, rules, (select 1 + count(*) from task_payload p where p.task_id = task.id)
             from task where id = ?1",
        )?
        .query_row([id.0.as_bytes().as_slice()], |row| {
            let mut from = Reader { row, next: 0 };
            let body = Body {
                key: from.get()?,
                name: from.get()?,
                payload: from.text()?,
                labels: labels_from_json(from.text()?.as_deref()),
                executor: from.get()?,
                hooks: from.get()?,
                account: from.get()?,
                cost: from.get()?,
                dedupe_key: from.get()?,
                external_id: from.get()?,
                traceparent: from.get()?,
                hard_deadline: from.get::<i16>()? != 0,
                step: from.get()?,
                rules: names_from_json(from.get::<Option<String>>()?.as_deref()),
            };
            Ok((body, from.get()?))
        })?;
    let result = last_record(connection, id.0, "outcome = 0")?.and_then(|record| record.result);
    let progress = connection
        .prepare_cached("select progress from task_open where id = ?1")?
        .query_row([id.0.as_bytes().as_slice()], |row| row.get(0))
        .optional()?
        .flatten();
    Ok(Some(TaskView {
        result: result.filter(|_| stored.task.state == State::Succeeded),
        last_failure: last_record(connection, id.0, "error is not null")?,
        last_decision: last_record(connection, id.0, "decision is not null")?,
        needs: edges(connection, id.0, false)?,
        stored,
        body,
        progress,
        payload_version,
    }))
}

static HISTORY: LazyLock<String> = LazyLock::new(|| columns("h", &HISTORY_COLUMNS));

fn last_record(connection: &Connection, subject: Uuid, condition: &str) -> Result<Option<Record>, StoreError> {
    let sql = format!(
        "select {} from history h where subject = ?1 and {condition} order by seq desc limit 1",
        HISTORY.as_str()
    );
    let row = connection
        .prepare_cached(&sql)?
        .query_row([subject.as_bytes().as_slice()], |row| read_history(&mut Reader { row, next: 0 }))
        .optional()?;
    row.map(|row| row.into_record()).transpose()
}

pub fn ended(connection: &Connection, leases: &[(TaskId, u32)]) -> Result<Vec<Option<Record>>, StoreError> {
    let sql = format!(
        "select {} from history h where h.subject = ?1 and h.lease_no = ?2 and h.outcome is not null
         order by h.seq desc limit 1",
        HISTORY.as_str()
    );
    let mut statement = connection.prepare_cached(&sql)?;
    let mut found = Vec::with_capacity(leases.len());
    for (id, number) in leases {
        let row = statement
            .query_row((id.0.as_bytes().as_slice(), number), |row| read_history(&mut Reader { row, next: 0 }))
            .optional()?;
        found.push(row.map(|row| row.into_record()).transpose()?);
    }
    Ok(found)
}

pub fn history(
    connection: &Connection,
    dictionary: &Dictionary,
    subject: Subject,
    after: u32,
    limit: u32,
) -> Result<Vec<Record>, StoreError> {
    let id = match subject {
        Subject::Task(id) => id.0,
        Subject::Execution(id) => id.0,
    };
    let shared =
        matches!(subject, Subject::Execution(_)) && execution(connection, dictionary, ExecutionId(id))?.is_some();
    let (condition, index) = if shared { ("h.execution_id = ?1", "history_execution") } else { ("h.subject = ?1", "") };
    let hint = if index.is_empty() { String::new() } else { format!("indexed by {index}") };
    let sql = format!(
        "select {} from history h {hint} where {condition} and h.seq > ?2 and h.seq + length(h.events) - 1 > ?3
         order by h.seq limit ?4",
        HISTORY.as_str()
    );
    let mut records = Vec::new();
    if !shared {
        records.extend(first_record(connection, id)?.filter(|record| record.last_seq() > after));
    }
    let low = i64::from(after) - i64::from(MOST_EVENTS);
    let rows: Vec<_> = connection
        .prepare_cached(&sql)?
        .query_map((id.as_bytes().as_slice(), low, after, limit), |row| read_history(&mut Reader { row, next: 0 }))?
        .collect::<rusqlite::Result<_>>()?;
    for row in rows {
        records.push(row.into_record()?);
    }
    if !shared && records.len() < limit as usize {
        let task = load_one(connection, dictionary, id)?.map(|stored| stored.task);
        let carried = task.and_then(|task| task.unwritten_record(task.updated_at));
        records.extend(carried.filter(|record| record.last_seq() > after));
    }
    records.truncate(limit as usize);
    Ok(records)
}

pub fn runs_before(connection: &Connection, id: TaskId, before: u32, limit: u32) -> Result<Vec<Record>, StoreError> {
    let sql = format!(
        "select {} from history h where h.subject = ?1 and h.seq < ?2 and h.outcome is not null
         order by h.seq desc limit ?3",
        HISTORY.as_str()
    );
    let rows: Vec<_> = connection
        .prepare_cached(&sql)?
        .query_map((id.0.as_bytes().as_slice(), before, limit), |row| read_history(&mut Reader { row, next: 0 }))?
        .collect::<rusqlite::Result<_>>()?;
    rows.into_iter().map(|row| row.into_record()).collect()
}

/// The creation of a lone task, which its body tells; a task of an execution has it in the shared log.
fn first_record(connection: &Connection, id: Uuid) -> Result<Option<Record>, StoreError> {
    let found: Option<(i64, Option<i64>)> = connection
        .prepare_cached("select submitted_at, start_at from task where id = ?1 and execution_id is null")?
        .query_row([id.as_bytes().as_slice()], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    Ok(found.map(|(submitted_at, start_at)| created_record(id, submitted_at, start_at)))
}

pub fn feed_end(connection: &Connection) -> Result<FeedCursor, StoreError> {
    let last: Option<i64> = connection.query_row("select max(id) from feed", (), |row| row.get(0))?;
    Ok(FeedCursor::end_of(0, last.unwrap_or_default().cast_unsigned()))
}

pub fn feed(
    connection: &Connection,
    dictionary: &Dictionary,
    after: Option<FeedCursor>,
    limit: u32,
) -> Result<Feed, StoreError> {
    let start = after.unwrap_or_default();
    let rows: Vec<(u64, i32, Vec<u8>)> = connection
        .prepare_cached("select id, namespace, items from feed where id >= ?1 order by id limit 256")?
        .query_map([start.row.cast_signed()], |row| {
            Ok((row.get::<_, i64>(0)?.cast_unsigned(), row.get(1)?, row.get(2)?))
        })?
        .collect::<rusqlite::Result<_>>()?;
    let mut feed = Feed { events: Vec::new(), next: after };
    for (id, namespace, items) in rows {
        let name = dictionary.namespace_name(namespace).ok_or_else(|| corrupt("a namespace in the feed"))?;
        for (item, bytes) in (0_u32..).zip(items.chunks_exact(24)) {
            let place = FeedCursor { transaction: 0, row: id, item, seq: 0 };
            if (FeedCursor { seq: u32::MAX, ..place }) <= start {
                continue;
            }
            let (subject, first, last) = unpack(bytes);
            for event in sources(connection, dictionary, subject, first, last)?.events(subject, first, last) {
                let cursor = FeedCursor { seq: event.seq, ..place };
                if cursor <= start {
                    continue;
                }
                if feed.events.len() >= limit as usize {
                    return Ok(feed);
                }
                feed.next = Some(cursor);
                feed.events.push(FeedEvent { cursor, namespace: name.to_string(), event });
            }
        }
        feed.next = Some(FeedCursor::end_of(0, id));
    }
    Ok(feed)
}

pub fn unpack(bytes: &[u8]) -> (Uuid, u32, u32) {
    let word = |at: usize| bytes[at..at + 4].iter().fold(0, |sum, byte| sum << 8 | u32::from(*byte));
    (Uuid::from_slice(&bytes[..16]).unwrap_or_default(), word(16), word(20))
}

fn sources(
    connection: &Connection,
    dictionary: &Dictionary,
    subject: Uuid,
    first: u32,
    last: u32,
) -> Result<Sources, StoreError> {
    let mut sources = Sources::default();
    if first == 1
        && let Some(record) = first_record(connection, subject)?
    {
        sources.add_record(record);
    }
    let sql = format!("select {} from history h where h.subject = ?1 and h.seq > ?2 and h.seq <= ?3", HISTORY.as_str());
    let low = i64::from(first) - i64::from(MOST_EVENTS);
    let rows: Vec<_> = connection
        .prepare_cached(&sql)?
        .query_map((subject.as_bytes().as_slice(), low, last), |row| read_history(&mut Reader { row, next: 0 }))?
        .collect::<rusqlite::Result<_>>()?;
    for row in rows {
        sources.add_record(row.into_record()?);
    }
    if let Some(stored) = load_one(connection, dictionary, subject)? {
        sources.open.insert(subject, stored.task);
    }
    Ok(sources)
}

pub fn counts(
    connection: &Connection,
    dictionary: &Dictionary,
    namespace: &str,
    of: &str,
    held: &str,
) -> Result<Counts, StoreError> {
    let mut counts = Counts::default();
    let lanes: Vec<String> = dictionary.lanes_in(namespace, |_| true).iter().map(ToString::to_string).collect();
    for (table, held) in [("task_open", held), ("task_done", "false")] {
        let sql = format!(
            "select lane, state, count(*), count(*) filter (where {held}) from {table} o where lane in ({}) and {of} group by 1, 2",
            lanes.join(", ")
        );
        let mut statement = connection.prepare(&sql)?;
        let mut rows = statement.query(())?;
        while let Some(row) = rows.next()? {
            counts.add(dictionary.lane(row.get(0)?).as_deref(), row.get(1)?, row.get(2)?, row.get(3)?)?;
        }
    }
    Ok(counts)
}

pub fn due_before(connection: &Connection, until: Timestamp) -> Result<DueBefore, StoreError> {
    let counts = connection.prepare_cached(DueBefore::QUERY)?.query_row([until.0], |row| {
        let mut counts = [0; 9];
        for (place, count) in counts.iter_mut().enumerate() {
            *count = row.get(place)?;
        }
        Ok(counts)
    })?;
    Ok(DueBefore::read(counts))
}

pub fn pauses(connection: &Connection) -> Result<Vec<(Loop, Pause)>, StoreError> {
    let mut pauses = Vec::new();
    let mut statement =
        connection.prepare_cached("select name, until, note, actor, at from loop_pause order by name")?;
    let mut rows = statement.query(())?;
    while let Some(row) = rows.next()? {
        let name: String = row.get(0)?;
        let pause =
            Pause { until: Timestamp(row.get(1)?), note: row.get(2)?, by: row.get(3)?, at: Timestamp(row.get(4)?) };
        pauses.extend(Loop::from_word(&name).map(|name| (name, pause)));
    }
    Ok(pauses)
}

pub fn meta(connection: &Connection, key: &str) -> Result<Option<String>, StoreError> {
    Ok(connection.query_row("select value from meta where key = ?1", [key], |row| row.get(0)).optional()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{SqliteOptions, SqliteStore};

    /// S0-30: what is due, leased, expiring, or of one execution is found through an index of just those rows.
    #[test]
    fn every_time_that_comes_has_its_partial_index() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("plans.db");
        drop(SqliteStore::open(&SqliteOptions::file(&path)).expect("the store opens"));
        let connection = Connection::open(&path).expect("opens");
        let plan = |sql: &str| -> String {
            let mut statement = connection.prepare(&format!("explain query plan {sql}")).expect(sql);
            let mut rows = statement.raw_query();
            let mut lines = Vec::new();
            while let Some(row) = rows.next().expect("a plan") {
                lines.push(row.get::<_, String>(3).expect("a line"));
            }
            lines.join("; ")
        };
        let due =
            |what: Due| format!("select id from task_open o where {} limit 9", due_condition(what).replace("?1", "7"));
        let of = |sql: &str| sql.to_owned();
        let table = [
            (of(NEXT[0]), "open_retry"),
            (of(NEXT[1]), "open_start"),
            (of(NEXT[2]), "open_lease"),
            (of(NEXT[3]), "open_timeout"),
            (of(NEXT[4]), "open_deadline"),
            (of(NEXT[6]), "schedule_due"),
            (of(NEXT[7]), "operation_due"),
            (of(NEXT[8]), "alert_due"),
            (due(Due::Leases), "open_lease"),
            (due(Due::Timeouts), "open_timeout"),
            (due(Due::Deadlines), "open_deadline"),
            (of("select id from task_open where execution_id = x'00'"), "open_execution"),
            (of("select id from task where execution_id = x'00'"), "task_execution"),
            (of("select id from task where namespace = 1 and external_id = 'x'"), "task_external"),
        ];
        for (sql, index) in table {
            let plan = plan(&sql);
            assert!(plan.contains(&format!("INDEX {index}")) && !plan.contains("TEMP B-TREE"), "{sql}: {plan}");
        }
        let partial: i64 = connection
            .query_row("select count(*) from sqlite_master where type = 'index' and sql like '%where%'", (), |row| {
                row.get(0)
            })
            .expect("a count");
        assert!(partial >= 12, "{partial} indexes hold only what is looked for");
    }
}
