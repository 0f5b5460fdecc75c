//! Creating tasks: the body, the open row, the edges, and the keys that keep anything from being created twice.

use std::collections::{BTreeMap, HashSet};

use comeback_core::filter::Sort;
use comeback_core::{Edge, EventKind, ExecutionId, Lane, Record, State, TaskId, Timestamp};
use rusqlite::{Connection, OptionalExtension};
use uuid::Uuid;

use super::statements::{insert_history, insert_open};
use super::writer::Tx;
use super::{SqliteStore, accounts};
use crate::accounts::Moves;
use crate::dictionary::{Learning, LimitsText, NewEntries, PolicyText};
use crate::events::{Answer, SharedLog};
use crate::row::{Fixed, HistoryRow, OpenRow, corrupt, labels_to_json};
use crate::rules::{RULED_FROM, names_to_json};
use crate::{ListQuery, StoreError, sql, *};

/// Lanes that get their numbers in one command, so that others have their turn in between.
const LANES_AT_ONCE: usize = 500;

/// Gives numbers to namespaces, lanes and policies that are new, if the quotas of those who bring them allow it: all of them or
/// none. They are remembered once the commit is certain.
pub async fn learn(store: &SqliteStore, news: Option<NewEntries>) -> Result<(), StoreError> {
    let Some(news) = news else { return Ok(()) };
    // One after the other: what is counted here is not counted by somebody else at the same time.
    let _turn = store.learning.lock().await;
    store.dictionary.check_lanes(&news)?;
    give_numbers(store, news, true).await
}

/// The same without quotas, for what tasks need that are there already.
pub async fn learn_anyway(store: &SqliteStore, news: Option<NewEntries>) -> Result<(), StoreError> {
    let Some(news) = news else { return Ok(()) };
    let _turn = store.learning.lock().await;
    give_numbers(store, news, false).await
}

async fn give_numbers(store: &SqliteStore, news: NewEntries, checked: bool) -> Result<(), StoreError> {
    let NewEntries { namespaces, lanes, policies } = news;
    let dictionary = &store.dictionary;
    if !namespaces.is_empty() || !policies.is_empty() {
        let give = move |tx: &mut Tx<'_>| {
            let numbers: rusqlite::Result<Vec<(i32, String)>> =
                namespaces.iter().map(|name| Ok((namespace_id(tx.connection, name)?, name.clone()))).collect();
            let policies = number_policies(tx, &policies, checked)?;
            Ok((tx.dictionary.rules().generation, numbers?, policies))
        };
        let (generation, numbers, policies) = store.writer.run(give).await?;
        dictionary.learn(generation, |into| {
            numbers.iter().for_each(|(id, name)| into.namespace(*id, name));
            policies.into_iter().for_each(|(id, digest)| dictionary.policies.learn_number(id, digest));
        });
    }
    for lanes in lanes.chunks(LANES_AT_ONCE) {
        let lanes = lanes.to_vec();
        let give = move |tx: &mut Tx<'_>| {
            let numbered: rusqlite::Result<Vec<Numbered>> =
                lanes.iter().map(|lane| number_lane(tx.connection, lane)).collect();
            Ok((tx.dictionary.rules().generation, numbered?))
        };
        let (generation, numbered) = store.writer.run(give).await?;
        dictionary.learn(generation, |into| numbered.into_iter().for_each(|lane| lane.remember(into)));
    }
    Ok(())
}

/// A policy belongs to the namespace that brought it first.
fn number_policies(
    tx: &Tx<'_>,
    policies: &[(String, PolicyText)],
    checked: bool,
) -> Result<Vec<(i32, [u8; 32])>, StoreError> {
    let mut find = tx.connection.prepare_cached("select id from policy where digest = ?1")?;
    let mut revive =
        tx.connection.prepare_cached("update policy set retired = null where id = ?1 and retired is not null")?;
    let (mut numbers, mut new) = (Vec::with_capacity(policies.len()), Vec::new());
    for (namespace, text) in policies {
        let known: Option<i32> = find.query_row([text.digest.as_slice()], |row| row.get(0)).optional()?;
        match known {
            Some(id) => {
                revive.execute([id])?;
                numbers.push((id, text.digest));
            }
            None => new.push((namespace, text)),
        }
    }
    let mut counts: BTreeMap<&String, u64> = BTreeMap::new();
    new.iter().for_each(|(namespace, _)| *counts.entry(namespace).or_default() += 1);
    for (namespace, count) in counts.into_iter().filter(|_| checked) {
        let used: i64 = tx
            .connection
            .prepare_cached(sql::lanes::COUNT_LIVE_POLICIES.sqlite)?
            .query_row([namespace], |row| row.get(0))?;
        tx.dictionary.check_policies(namespace, used.cast_unsigned() + count)?;
    }
    let mut insert = tx.connection.prepare_cached(
        "insert into policy (digest, body, namespace) values (?1, ?2, (select id from namespace where name = ?3))
         returning id",
    )?;
    for (namespace, text) in new {
        let id = insert.query_row((text.digest.as_slice(), &text.body, namespace), |row| row.get(0))?;
        numbers.push((id, text.digest));
    }
    Ok(numbers)
}

/// A lane that has its numbers: of itself without limits, and with them.
struct Numbered {
    lane: Lane,
    namespace: i32,
    unruled: i32,
    ruled: Option<(i32, String)>,
}

impl Numbered {
    fn remember(self, into: &mut Learning<'_>) {
        into.namespace(self.namespace, &self.lane.namespace);
        into.lane(self.unruled, self.namespace, self.lane);
        if let Some((id, limits)) = self.ruled {
            into.limited_lane(id, self.unruled, &limits);
        }
    }
}

fn number_lane(connection: &Connection, lane: &Lane) -> rusqlite::Result<Numbered> {
    let namespace = namespace_id(connection, &lane.namespace)?;
    let unruled = lane_id(connection, namespace, lane)?;
    let ruled = if lane.limits.is_empty() { None } else { Some(ruled_lane_id(connection, unruled, lane)?) };
    Ok(Numbered { lane: lane.unruled(), namespace, unruled, ruled })
}

fn ruled_lane_id(connection: &Connection, unruled: i32, lane: &Lane) -> rusqlite::Result<(i32, String)> {
    let LimitsText { body, digest } = LimitsText::of(lane);
    connection
        .prepare_cached(
            "insert into ruled_lane (id, lane, digest, limits)
             select coalesce(max(id), ?4 - 1) + 1, ?1, ?2, ?3 from ruled_lane where true on conflict do nothing",
        )?
        .execute((unruled, digest.as_slice(), &body, RULED_FROM))?;
    let mut find = connection.prepare_cached("select id from ruled_lane where lane = ?1 and digest = ?2")?;
    Ok((find.query_row((unruled, digest.as_slice()), |row| row.get(0))?, body))
}

pub fn namespace_id(connection: &Connection, name: &str) -> rusqlite::Result<i32> {
    connection.prepare_cached(sql::control::ADD_NAMESPACE.sqlite)?.execute([name])?;
    connection.prepare_cached("select id from namespace where name = ?1")?.query_row([name], |row| row.get(0))
}

fn lane_id(connection: &Connection, namespace: i32, lane: &Lane) -> rusqlite::Result<i32> {
    let dependency = lane.dependency.as_deref().unwrap_or("");
    let key = (namespace, &lane.queue, &lane.kind, lane.executor.code(), dependency, lane.shared);
    connection
        .prepare_cached(
            "insert into lane (namespace, queue, kind, executor, dependency, shared) values (?1, ?2, ?3, ?4, ?5, ?6)
             on conflict do nothing",
        )?
        .execute(key)?;
    connection
        .prepare_cached(
            "select id from lane where namespace = ?1 and queue = ?2 and kind = ?3 and executor = ?4
             and dependency = ?5 and shared = ?6",
        )?
        .query_row(key, |row| row.get(0))
}

pub fn submit(tx: &mut Tx<'_>, submissions: &[Submission], now: Timestamp) -> Result<Vec<Submitted>, StoreError> {
    tx.feed.at = now.0;
    submissions.iter().map(|submission| submit_one(tx, submission, now)).collect()
}

fn submit_one(tx: &mut Tx<'_>, submission: &Submission, now: Timestamp) -> Result<Submitted, StoreError> {
    let namespace =
        tx.dictionary.namespace(&submission.namespace).ok_or_else(|| corrupt("a namespace that was just learnt"))?;
    if let Some(key) = &submission.idempotency
        && let Some(earlier) = earlier_answer(tx.connection, namespace, key)?
    {
        return Ok(earlier);
    }
    for filter in &submission.unless {
        let query = ListQuery { filter: filter.clone(), sort: Sort::SubmittedDesc, limit: 1, after: None, now };
        if !super::list::list(tx.connection, tx.dictionary, &submission.namespace, &query)?.items.is_empty() {
            return Ok(Submitted::Overtaken);
        }
    }
    let moves = reserved(tx.connection, namespace, submission)?;
    if let Some(short) = accounts::short(tx.connection, &moves)? {
        return Ok(Submitted::Unfunded(short));
    }
    if let Some(new) = &submission.execution
        && let Some(refused) = count_below(tx.connection, new)?
    {
        return Ok(refused);
    }
    accounts::write(tx.connection, &moves)?;
    let mut tasks = Vec::with_capacity(submission.tasks.len());
    let mut log = SharedLog::default();
    if let Some(new) = &submission.execution {
        log.add(Record::about_execution(new.execution.id, EventKind::ExecutionCreated, now));
    }
    for new in &submission.tasks {
        if let Some(key) = &new.body.dedupe_key
            && let Some((id, state)) = open_duplicate(tx.connection, namespace, key)?
        {
            tasks.push(SubmittedTask { id, state, duplicate: true });
            continue;
        }
        insert_task(tx, namespace, new)?;
        tasks.push(SubmittedTask { id: new.task.id, state: new.task.state, duplicate: false });
        if submission.execution.is_some() {
            log.add_created(new, now);
        } else {
            tx.feed.push(namespace, new.task.id.0, 1, new.task.seq);
        }
    }
    if let Some(new) = &submission.execution {
        insert_execution(tx.connection, namespace, new, log.last)?;
        insert_edges(tx.connection, &submission.edges)?;
        for (record, seq) in &log.records {
            insert_history(tx.connection, &HistoryRow::new(record, *seq))?;
            tx.feed.push_record(namespace, record, *seq);
        }
    }
    if let Some(key) = &submission.idempotency {
        let execution = submission.execution.as_ref().map(|new| new.execution.id);
        let answer = Answer { execution, tasks: tasks.clone() }.to_json();
        keep_key(tx.connection, namespace, key, &answer, now)?;
    }
    Ok(Submitted::Created(tasks))
}

/// Counts the tasks of an execution that begins below another one at the root of both; a refusal where that has ended or is full.
fn count_below(connection: &Connection, new: &NewExecution) -> Result<Option<Submitted>, StoreError> {
    let Some(below) = &new.below else { return Ok(None) };
    let root = below.root.0.as_bytes().as_slice();
    let found: Option<(i16, i64)> = connection
        .prepare_cached("select state, total + tasks_below from execution where id = ?1")?
        .query_row([root], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    let tasks = i64::from(new.execution.total);
    let most = i64::try_from(below.most_tasks).unwrap_or(i64::MAX);
    match found {
        Some((0..=2, there)) if there.saturating_add(tasks) <= most => {
            connection
                .prepare_cached("update execution set tasks_below = tasks_below + ?2 where id = ?1")?
                .execute((root, tasks))?;
            Ok(None)
        }
        Some((0..=2, _)) => Ok(Some(Submitted::RootFull)),
        _ => Ok(Some(Submitted::RootEnded)),
    }
}

/// The credits of those of its tasks that will be created: a key that is taken, or comes again, makes none.
fn reserved(connection: &Connection, namespace: i32, submission: &Submission) -> Result<Moves, StoreError> {
    if !submission.tasks.iter().any(|new| new.task.metered) {
        return Ok(Moves::default());
    }
    let mut keys = HashSet::new();
    let mut made = Vec::with_capacity(submission.tasks.len());
    for new in &submission.tasks {
        let is_new = match &new.body.dedupe_key {
            None => true,
            Some(key) => keys.insert(key) && open_duplicate(connection, namespace, key)?.is_none(),
        };
        made.extend(is_new.then_some(new));
    }
    Ok(accounts::of_new(namespace, made.into_iter()))
}

/// Tasks that a verdict makes: those of its execution are told by its own records.
pub fn spawn(tx: &mut Tx<'_>, spawn: &Submission) -> Result<(), StoreError> {
    let namespace =
        tx.dictionary.namespace(&spawn.namespace).ok_or_else(|| corrupt("a namespace that was just learnt"))?;
    for new in &spawn.tasks {
        insert_task(tx, namespace, new)?;
        if new.task.execution.is_none() {
            tx.feed.push(namespace, new.task.id.0, 1, new.task.seq);
        }
    }
    if let Some(execution) = spawn.tasks.iter().find_map(|new| new.task.execution) {
        let joined = spawn.tasks.iter().filter(|new| new.task.execution == Some(execution)).count();
        tx.connection
            .prepare_cached(sql::executions::COUNT_BELOW.sqlite)?
            .execute((execution.0.as_bytes().as_slice(), i64::try_from(joined).unwrap_or(0)))?;
    }
    insert_edges(tx.connection, &spawn.edges)?;
    Ok(())
}

fn insert_edges(connection: &Connection, edges: &[Edge]) -> rusqlite::Result<()> {
    let mut statement =
        connection.prepare_cached("insert into edge (from_id, to_id, met_when, on_unmet) values (?1, ?2, ?3, ?4)")?;
    for edge in edges {
        let (from, to) = (edge.from.0.as_bytes().as_slice(), edge.to.0.as_bytes().as_slice());
        statement.execute((from, to, edge.when.code(), edge.on_unmet.code()))?;
    }
    Ok(())
}

pub fn keep_key(
    connection: &Connection,
    namespace: i32,
    key: &Idempotency,
    answer: &str,
    now: Timestamp,
) -> Result<(), StoreError> {
    connection
        .prepare_cached(
            "insert into idempotency (namespace, scope, key, digest, answer, at) values (?1, ?2, ?3, ?4, ?5, ?6)",
        )?
        .execute((namespace, &key.scope, &key.key, key.digest.as_slice(), answer, now.0))?;
    Ok(())
}

fn earlier_answer(connection: &Connection, namespace: i32, key: &Idempotency) -> Result<Option<Submitted>, StoreError> {
    let found: Option<(Vec<u8>, String)> = connection
        .prepare_cached(sql::control::KEY_ANSWER.sqlite)?
        .query_row((namespace, &key.scope, &key.key), |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    Ok(match found {
        None => None,
        Some((digest, _)) if digest != key.digest => Some(Submitted::Mismatch),
        Some((_, answer)) => {
            let Answer { execution, tasks } = Answer::from_json(&answer)?;
            Some(Submitted::Repeated { execution, tasks })
        }
    })
}

fn open_duplicate(connection: &Connection, namespace: i32, key: &str) -> Result<Option<(TaskId, State)>, StoreError> {
    let found: Option<([u8; 16], i16)> = connection
        .prepare_cached(sql::tasks::OPEN_WITH_KEY.sqlite)?
        .query_row((namespace, key), |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    match found {
        None => Ok(None),
        Some((id, state)) => {
            let state = State::from_code(state).ok_or_else(|| corrupt(format!("state {state}")))?;
            Ok(Some((TaskId(Uuid::from_bytes(id)), state)))
        }
    }
}

fn insert_task(tx: &Tx<'_>, namespace: i32, new: &NewTask) -> Result<(), StoreError> {
    let NewTask { task, policy, body } = new;
    let lane = tx.dictionary.lane_id(&task.lane).ok_or_else(|| corrupt("a lane that was just learnt"))?;
    let known = |policy| tx.dictionary.policy_id(policy).ok_or_else(|| corrupt("a policy that was just learnt"));
    let policy = policy.as_ref().map(known).transpose()?;
    let fixed = Fixed { hard_deadline: body.hard_deadline, dedupe: body.dedupe_key.is_some() };
    let row = OpenRow::new(task, lane, policy, fixed);
    let mut statement = tx.connection.prepare_cached(
        "insert into task (id, namespace, lane, execution_id, key, name, priority, policy, payload, labels, executor,
           hooks, timeout_ms, attempt_deadline_ms, start_at, expires_at, hard_deadline, dead_end_barrier, account, cost,
           dedupe_key, external_id, traceparent, submitted_at, step, gated, hooked, rules)
         values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22,
           ?23, ?24, ?25, ?26, ?27, ?28)",
    )?;
    statement.execute(rusqlite::params![
        row.id.as_bytes().as_slice(),
        namespace,
        // Lanes with limits are for open tasks only: they are forgotten with the last of these.
        tx.dictionary.base(lane),
        row.execution_id.as_ref().map(|id| id.as_bytes().as_slice()),
        body.key,
        body.name,
        task.priority,
        policy,
        body.payload.as_deref(),
        labels_to_json(&body.labels),
        body.executor,
        body.hooks,
        row.timeout_ms,
        row.attempt_deadline_ms,
        row.start_at,
        row.expires_at,
        row.hard_deadline,
        row.dead_end_barrier,
        body.account,
        body.cost,
        body.dedupe_key,
        body.external_id,
        body.traceparent,
        row.submitted_at,
        body.step,
        row.gated,
        row.hooked,
        names_to_json(&body.rules),
    ])?;
    insert_open(tx.connection, &row)?;
    if let Some(key) = &body.dedupe_key {
        take_key(tx.connection, namespace, key, task.id)?;
    }
    Ok(())
}

/// The key is free: an open task that held it would have been found.
pub fn take_key(connection: &Connection, namespace: i32, key: &str, id: TaskId) -> rusqlite::Result<()> {
    connection
        .prepare_cached("insert or replace into dedupe (namespace, key, task_id) values (?1, ?2, ?3)")?
        .execute((namespace, key, id.0.as_bytes().as_slice()))
        .map(|_| ())
}

fn insert_execution(connection: &Connection, namespace: i32, new: &NewExecution, seq: u32) -> Result<(), StoreError> {
    let it = &new.execution;
    let ExecutionId(id) = it.id;
    connection.execute(
        "insert into execution (id, namespace, state, version, seq, total, open, unhandled, fail_fast, dead_end_cancel,
           name, labels, external_id, created_at, started_at, ended_at, updated_at, workflow, workflow_version, input,
           parent_task, parent_run, retry_of, fired_by, schedule, scheduled_at, root, depth, retry_root,
           retry_number)
         values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, ?22,
           ?23, ?24, ?25, ?26, ?27, ?28, ?29, ?30)",
        rusqlite::params![
            id.as_bytes().as_slice(),
            namespace,
            it.state.code(),
            it.version,
            seq,
            it.total,
            it.open,
            it.unhandled,
            it.fail_fast,
            it.dead_end_cancel,
            new.name,
            labels_to_json(&new.labels),
            new.external_id,
            it.created_at.0,
            it.started_at.map(|at| at.0),
            it.ended_at.map(|at| at.0),
            it.updated_at.0,
            new.origin.workflow.as_ref().map(|(path, _)| path),
            new.origin.workflow.as_ref().map(|(_, version)| version),
            new.origin.input.as_deref(),
            new.origin.parent.as_ref().map(|(task, _)| task.0.as_bytes().as_slice()),
            new.origin.parent.map(|(_, run)| run),
            new.origin.retry_of.as_ref().map(|id| id.0.as_bytes().as_slice()),
            new.origin.firing.as_ref().map(|firing| firing.by.code()),
            new.origin.firing.as_ref().map(|firing| &firing.schedule),
            new.origin.firing.as_ref().map(|firing| firing.at.0),
            new.below.as_ref().map(|below| below.root.0.as_bytes().as_slice()),
            new.below.map_or(0, |below| below.depth),
            new.origin.retry_root.as_ref().map(|id| id.0.as_bytes().as_slice()),
            new.origin.retry_number,
        ],
    )?;
    Ok(())
}
