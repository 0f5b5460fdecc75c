//! Reading: tasks, graphs and histories. What takes several statements sees one moment.

use std::collections::{BTreeSet, HashMap};
use std::sync::LazyLock;

use comeback_core::{Edge, Execution, ExecutionId, OnUnmet, Record, State, TaskId, Timestamp, When};
use deadpool_postgres::{Object, Transaction};
use tokio_postgres::IsolationLevel;
use uuid::Uuid;

use super::PostgresStore;
use super::apply::{find_key, read_execution};
use super::learn;
use super::rows::{Reader, read_done, read_fixed, read_history, read_open};
use crate::StoreError;
use crate::audit::act_answer;
use crate::events::MOST_EVENTS;
use crate::row::{
    DONE_COLUMNS, FIXED_COLUMNS, HISTORY_COLUMNS, OPEN_COLUMNS, columns, corrupt, created_record, labels_from_json,
};
use crate::rules::names_from_json;
use crate::types::*;

/// All statements inside see the same moment.
pub async fn snapshot(client: &mut Object) -> Result<Transaction<'_>, StoreError> {
    Ok(client.build_transaction().isolation_level(IsolationLevel::RepeatableRead).read_only(true).start().await?)
}

pub async fn load(store: &PostgresStore, ids: &[TaskId]) -> Result<Vec<Option<Stored>>, StoreError> {
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    let mut client = store.reader().await?;
    let tx = snapshot(&mut client).await?;
    let found = load_in(store, &tx, &ids.iter().map(|id| id.0).collect::<Vec<_>>()).await?;
    Ok(ids.iter().map(|id| found.get(&id.0).cloned()).collect())
}

pub static OPEN: LazyLock<String> =
    LazyLock::new(|| format!("select {} from task_open o where o.id = any($1)", columns("o", &OPEN_COLUMNS)));

static DONE: LazyLock<String> = LazyLock::new(|| {
    format!(
        "select {}, {} from task_done d join task t on t.id = d.id where d.id = any($1)",
        columns("d", &DONE_COLUMNS),
        columns("t", &FIXED_COLUMNS)
    )
});

pub async fn load_in(
    store: &PostgresStore,
    tx: &Transaction<'_>,
    ids: &[Uuid],
) -> Result<HashMap<Uuid, Stored>, StoreError> {
    let statement = tx.prepare_cached(&OPEN).await?;
    let rows = tx.query(&statement, &[&ids]).await?;
    let open = rows.iter().map(|row| read_open(&mut Reader::new(row))).collect::<Result<Vec<_>, _>>()?;
    let mut found: HashMap<Uuid, Stored> =
        learn::stored_open(store, open).await?.into_iter().map(|stored| (stored.task.id.0, stored)).collect();
    if found.len() < ids.len() {
        let statement = tx.prepare_cached(&DONE).await?;
        let mut done = Vec::new();
        for row in tx.query(&statement, &[&ids]).await? {
            let mut from = Reader::new(&row);
            done.push((read_done(&mut from)?, read_fixed(&mut from)?));
        }
        let done = learn::stored_done(store, done).await?;
        found.extend(done.into_iter().map(|stored| (stored.task.id.0, stored)));
    }
    Ok(found)
}

pub async fn due(store: &PostgresStore, what: Due, now: Timestamp, limit: u32) -> Result<Vec<Stored>, StoreError> {
    let condition = match what {
        Due::Leases => "o.lease_expires is not null and o.lease_expires <= $1 order by o.lease_expires, o.id",
        Due::Timeouts => "o.timeout_at is not null and o.timeout_at <= $1 order by o.timeout_at, o.id",
        Due::Deadlines => {
            "o.expires_at is not null and (o.state in (0, 1, 4) or (o.hard_deadline = 1 and o.state in (2, 3)))
             and o.expires_at <= $1 order by o.expires_at, o.id"
        }
        Due::Gates => {
            "o.gated = 1 and o.state = 0 and o.needs_left = 0 and o.hold = 0 and $1::int8 is not null order by o.id"
        }
    };
    let sql = format!("select {} from task_open o where {condition} limit $2", columns("o", &OPEN_COLUMNS));
    let client = store.reader().await?;
    let statement = client.prepare_cached(&sql).await?;
    let rows = client.query(&statement, &[&now.0, &i64::from(limit)]).await?;
    let open = rows.iter().map(|row| read_open(&mut Reader::new(row))).collect::<Result<Vec<_>, _>>()?;
    drop(client);
    Ok(learn::readable_open(store, open).await?.into_iter().flatten().collect())
}

pub const NEXT_DUE: &str = "select
               (select due from task_open where state = 4 and hold = 0 order by due, id limit 1),
               (select due from task_open where state = 0 and hold = 0 and due is not null order by due, id limit 1),
               (select lease_expires from task_open where lease_expires is not null order by lease_expires, id limit 1),
               (select timeout_at from task_open where timeout_at is not null order by timeout_at, id limit 1),
               (select expires_at from task_open where expires_at is not null
                 and (state in (0, 1, 4) or (hard_deadline = 1 and state in (2, 3))) order by expires_at, id limit 1),
               (select updated_at from task_open where gated = 1 and state = 0 and needs_left = 0 and hold = 0 limit 1),
               (select due from schedule where due is not null order by due limit 1),
               (select due from operation where due is not null order by due limit 1),
               (select due from alert where due > 0 order by due limit 1)";

pub async fn next_due(store: &PostgresStore) -> Result<NextDue, StoreError> {
    let client = store.reader().await?;
    let statement = client.prepare_cached(NEXT_DUE).await?;
    let row = client.query_one(&statement, &[]).await?;
    let at = |column: usize| row.get::<_, Option<i64>>(column).map(Timestamp);
    Ok(NextDue {
        retry: at(0),
        start: at(1),
        lease: at(2),
        timeout: at(3),
        deadline: at(4),
        gate: at(5),
        schedule: at(6),
        operation: at(7),
        alert: at(8),
    })
}

pub async fn due_before(store: &PostgresStore, until: Timestamp) -> Result<DueBefore, StoreError> {
    let client = store.reader().await?;
    let row = client.query_one(DueBefore::QUERY, &[&until.0]).await?;
    Ok(DueBefore::read(std::array::from_fn(|place| row.get(place))))
}

pub async fn retry_after(store: &PostgresStore, after: Timestamp) -> Result<Option<Timestamp>, StoreError> {
    let client = store.reader().await?;
    let sql = "select due from task_open where state = 4 and hold = 0 and due > $1 order by due, id limit 1";
    let statement = client.prepare_cached(sql).await?;
    Ok(client.query_opt(&statement, &[&after.0]).await?.map(|row| Timestamp(row.get(0))))
}

pub async fn open_work(store: &PostgresStore, now: Timestamp) -> Result<OpenWork, StoreError> {
    let mut work = OpenWork::default();
    for row in store.counted(OpenWork::QUERY, &[&now.0]).await? {
        let row = OpenWorkRow {
            state: row.get(0),
            hold: row.get(1),
            all: row.get(2),
            to_come: row.get(3),
            come: row.get(4),
            next: row.get(5),
            first: row.get(6),
        };
        work.add(row, now);
    }
    Ok(work)
}

pub async fn execution_in(
    store: &PostgresStore,
    tx: &Transaction<'_>,
    id: ExecutionId,
) -> Result<Option<Execution>, StoreError> {
    let statement = tx
        .prepare_cached(
            "select id, namespace, state, version, seq, total, open, unhandled, fail_fast, dead_end_cancel, created_at,
               started_at, ended_at, updated_at, parent_task, parent_run from execution where id = $1",
        )
        .await?;
    match tx.query_opt(&statement, &[&id.0]).await? {
        None => Ok(None),
        Some(row) => {
            if store.dictionary.namespace_name(row.get(1)).is_none() {
                learn::refresh(&store.pools.learn, &store.dictionary).await?;
            }
            read_execution(store, &row).map(|(execution, _)| Some(execution))
        }
    }
}

pub async fn graph(
    store: &PostgresStore,
    id: ExecutionId,
    around: Option<&[TaskId]>,
) -> Result<Option<Graph>, StoreError> {
    let mut client = store.reader().await?;
    let tx = snapshot(&mut client).await?;
    let Some(execution) = execution_in(store, &tx, id).await? else { return Ok(None) };
    let mut ids: BTreeSet<Uuid> = BTreeSet::new();
    let mut touching: Option<Vec<Edge>> = None;
    match around {
        None => {
            let rows = tx.query("select id from task where execution_id = $1", &[&id.0]).await?;
            ids.extend(rows.iter().map(|row| row.get::<_, Uuid>(0)));
        }
        Some(around) => {
            let seeds: Vec<Uuid> = around.iter().map(|id| id.0).collect();
            let found = edges(&tx, &seeds).await?;
            ids.extend(found.iter().flat_map(|edge| [edge.from.0, edge.to.0]));
            touching = Some(found);
            ids.extend(seeds);
        }
    }
    let ids: Vec<Uuid> = ids.into_iter().collect();
    let mut found = load_in(store, &tx, &ids).await?;
    found.retain(|_, stored| stored.task.execution == Some(id));
    let mut out: HashMap<Uuid, Vec<Edge>> = HashMap::new();
    let mut into: HashMap<Uuid, Vec<Edge>> = HashMap::new();
    let touching = match touching {
        Some(found) => found,
        None => edges(&tx, &ids).await?,
    };
    for edge in touching {
        out.entry(edge.from.0).or_default().push(edge);
        into.entry(edge.to.0).or_default().push(edge);
    }
    let mut tasks: Vec<GraphTask> = found
        .into_iter()
        .map(|(id, stored)| {
            let asked = around.is_none_or(|around| around.contains(&TaskId(id)));
            let edges = asked.then(|| TaskEdges {
                out: out.remove(&id).unwrap_or_default(),
                into: into.remove(&id).unwrap_or_default(),
            });
            GraphTask { stored, edges }
        })
        .collect();
    tasks.sort_unstable_by_key(|task| task.stored.task.id);
    Ok(Some(Graph { execution, tasks }))
}

/// Every edge that touches one of these tasks, once.
async fn edges(tx: &Transaction<'_>, ids: &[Uuid]) -> Result<Vec<Edge>, StoreError> {
    let statement = tx
        .prepare_cached(
            "select from_id, to_id, met_when, on_unmet from edge where from_id = any($1)
             union select from_id, to_id, met_when, on_unmet from edge where to_id = any($1) order by 1, 2",
        )
        .await?;
    tx.query(&statement, &[&ids]).await?.iter().map(read_edge).collect()
}

fn read_edge(row: &tokio_postgres::Row) -> Result<Edge, StoreError> {
    Ok(Edge {
        from: TaskId(row.get(0)),
        to: TaskId(row.get(1)),
        when: When::from_code(row.get(2)).ok_or_else(|| corrupt("an edge's condition"))?,
        on_unmet: OnUnmet::from_code(row.get(3)).ok_or_else(|| corrupt("an edge's alternative"))?,
    })
}

pub async fn task(store: &PostgresStore, namespace: &str, id: TaskId) -> Result<Option<TaskView>, StoreError> {
    let mut client = store.reader().await?;
    let tx = snapshot(&mut client).await?;
    let found = load_in(store, &tx, &[id.0]).await?.remove(&id.0);
    let Some(stored) = found.filter(|stored| stored.task.lane.namespace == namespace) else { return Ok(None) };
    let row = tx
        .query_one(
            "select key, name, payload, labels::text, executor, hooks, account, cost, dedupe_key, external_id,
               traceparent, hard_deadline, step, rules, (select progress from task_open o where o.id = t.id),
               (select 1 + count(*)::int4 from task_payload p where p.task_id = t.id)
             from task t where id = $1",
            &[&id.0],
        )
        .await?;
    let mut from = Reader::new(&row);
    let body = Body {
        key: from.get()?,
        name: from.get()?,
        payload: from.text()?,
        labels: labels_from_json(from.get::<Option<&str>>()?),
        executor: from.get()?,
        hooks: from.get()?,
        account: from.get()?,
        cost: from.get::<Option<i32>>()?.map(i32::cast_unsigned),
        dedupe_key: from.get()?,
        external_id: from.get()?,
        traceparent: from.get()?,
        hard_deadline: from.get::<i16>()? != 0,
        step: from.get()?,
        rules: names_from_json(from.get::<Option<&str>>()?),
    };
    let progress = from.get()?;
    let payload_version = from.get::<i32>()?.cast_unsigned();
    let result = last_record(&tx, id.0, "outcome = 0").await?.and_then(|record| record.result);
    let needs = tx
        .query("select from_id, to_id, met_when, on_unmet from edge where to_id = $1 order by from_id", &[&id.0])
        .await?;
    Ok(Some(TaskView {
        result: result.filter(|_| stored.task.state == State::Succeeded),
        last_failure: last_record(&tx, id.0, "error is not null").await?,
        last_decision: last_record(&tx, id.0, "decision is not null").await?,
        needs: needs.iter().map(read_edge).collect::<Result<_, _>>()?,
        stored,
        body,
        progress,
        payload_version,
    }))
}

pub static HISTORY: LazyLock<String> = LazyLock::new(|| columns("h", &HISTORY_COLUMNS));

async fn last_record(tx: &Transaction<'_>, subject: Uuid, condition: &str) -> Result<Option<Record>, StoreError> {
    let sql = format!(
        "select {} from history h where subject = $1 and {condition} order by seq desc limit 1",
        HISTORY.as_str()
    );
    let statement = tx.prepare_cached(&sql).await?;
    let row = tx.query_opt(&statement, &[&subject]).await?;
    row.map(|row| read_history(&mut Reader::new(&row))?.into_record()).transpose()
}

pub async fn ended(store: &PostgresStore, leases: &[(TaskId, u32)]) -> Result<Vec<Option<Record>>, StoreError> {
    let client = store.reader().await?;
    let ids: Vec<Uuid> = leases.iter().map(|(id, _)| id.0).collect();
    let numbers: Vec<i32> = leases.iter().map(|(_, number)| number.cast_signed()).collect();
    let sql = format!(
        "select i.n::int4, h.* from unnest($1::uuid[], $2::int4[]) with ordinality as i(id, number, n)
         cross join lateral (select {} from history h where h.subject = i.id and h.lease_no = i.number
           and h.outcome is not null order by h.seq desc limit 1) h",
        HISTORY.as_str()
    );
    let statement = client.prepare_cached(&sql).await?;
    let mut found = vec![None; leases.len()];
    for row in client.query(&statement, &[&ids, &numbers]).await? {
        let mut from = Reader::new(&row);
        let place = from.get::<i32>()?.cast_unsigned() as usize;
        found[place - 1] = Some(read_history(&mut from)?.into_record()?);
    }
    Ok(found)
}

pub async fn history(
    store: &PostgresStore,
    subject: Subject,
    after: u32,
    limit: u32,
) -> Result<Vec<Record>, StoreError> {
    let mut client = store.reader().await?;
    let tx = snapshot(&mut client).await?;
    let id = match subject {
        Subject::Task(id) => id.0,
        Subject::Execution(id) => id.0,
    };
    let shared = matches!(subject, Subject::Execution(_)) && execution_in(store, &tx, ExecutionId(id)).await?.is_some();
    let condition = if shared { "h.execution_id = $1" } else { "h.subject = $1" };
    let sql = format!(
        "select {} from history h where {condition} and h.seq > $2 and h.seq + length(h.events) - 1 > $3
         order by h.seq limit $4",
        HISTORY.as_str()
    );
    let statement = tx.prepare_cached(&sql).await?;
    let low = after.saturating_sub(MOST_EVENTS).cast_signed();
    let rows = tx.query(&statement, &[&id, &low, &after.cast_signed(), &i64::from(limit)]).await?;
    let mut records = Vec::with_capacity(rows.len() + 2);
    if !shared {
        let first = tx
            .query_opt("select submitted_at, start_at from task where id = $1 and execution_id is null", &[&id])
            .await?;
        let first = first.map(|row| created_record(id, row.get(0), row.get(1)));
        records.extend(first.filter(|record| record.last_seq() > after));
    }
    for row in rows {
        records.push(read_history(&mut Reader::new(&row))?.into_record()?);
    }
    if !shared && records.len() < limit as usize {
        let task = load_in(store, &tx, &[id]).await?.remove(&id).map(|stored| stored.task);
        let carried = task.and_then(|task| task.unwritten_record(task.updated_at));
        records.extend(carried.filter(|record| record.last_seq() > after));
    }
    records.truncate(limit as usize);
    Ok(records)
}

pub async fn runs_before(
    store: &PostgresStore,
    id: TaskId,
    before: u32,
    limit: u32,
) -> Result<Vec<Record>, StoreError> {
    let client = store.reader().await?;
    let sql = format!(
        "select {} from history h where h.subject = $1 and h.seq < $2 and h.outcome is not null
         order by h.seq desc limit $3",
        HISTORY.as_str()
    );
    let statement = client.prepare_cached(&sql).await?;
    let before = i32::try_from(before).unwrap_or(i32::MAX);
    let rows = client.query(&statement, &[&id.0, &before, &i64::from(limit)]).await?;
    rows.iter().map(|row| read_history(&mut Reader::new(row))?.into_record()).collect()
}

pub async fn counts(store: &PostgresStore, namespace: &str, of: &str, held: &str) -> Result<Counts, StoreError> {
    let lanes = store.dictionary.lanes_in(namespace, |_| true);
    let mut counts = Counts::default();
    let sql = format!(
        "select lane, state, count(*), count(*) filter (where {held})
           from task_open o where lane = any($1) and {of} group by 1, 2
         union all select lane, state, count(*), 0 from task_done where lane = any($1) and {of} group by 1, 2"
    );
    for row in store.counted(&sql, &[&lanes]).await? {
        counts.add(store.dictionary.lane(row.get(0)).as_deref(), row.get(1), row.get(2), row.get(3))?;
    }
    Ok(counts)
}

pub async fn pauses(store: &PostgresStore) -> Result<Vec<(Loop, Pause)>, StoreError> {
    let client = store.reader().await?;
    let rows = client.query("select name, until, note, actor, at from loop_pause order by name", &[]).await?;
    Ok(rows
        .iter()
        .filter_map(|row| {
            let pause =
                Pause { until: Timestamp(row.get(1)), note: row.get(2), by: row.get(3), at: Timestamp(row.get(4)) };
            Loop::from_word(row.get(0)).map(|name| (name, pause))
        })
        .collect())
}

pub async fn used(store: &PostgresStore, namespace: &str, key: &Idempotency) -> Result<Option<Used>, StoreError> {
    find_key(&*store.reader().await?, namespace, key).await
}

pub async fn kept_answer(
    store: &PostgresStore,
    namespace: &str,
    key: &Idempotency,
) -> Result<Option<serde_json::Value>, StoreError> {
    let sql = "select answer from idempotency
               where namespace = (select id from namespace where name = $1) and scope = $2 and key = $3";
    let found = store.reader().await?.query_opt(sql, &[&namespace, &key.scope, &key.key]).await?;
    Ok(found.and_then(|row| act_answer(row.get(0))))
}

pub async fn meta(store: &PostgresStore, key: &str) -> Result<Option<String>, StoreError> {
    let client = store.reader().await?;
    Ok(client.query_opt("select value from meta where key = $1", &[&key]).await?.map(|row| row.get(0)))
}

/// The database's clock against ours, with half of the round trip taken off.
pub async fn clock_offset(store: &PostgresStore) -> Result<i64, StoreError> {
    let client = store.reader().await?;
    let statement = client.prepare_cached("select (extract(epoch from clock_timestamp()) * 1000)::int8").await?;
    let mut best: Option<(u128, i64)> = None;
    for _ in 0..3 {
        let started = std::time::Instant::now();
        let before = wall_millis();
        let theirs: i64 = client.query_one(&statement, &[]).await?.get(0);
        let trip = started.elapsed();
        let ours = before + i64::try_from(trip.as_millis() / 2).unwrap_or(0);
        if best.is_none_or(|(shortest, _)| trip.as_micros() < shortest) {
            best = Some((trip.as_micros(), theirs - ours));
        }
    }
    Ok(best.map_or(0, |(_, offset)| offset))
}

fn wall_millis() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}
