//! Creating tasks: one statement for plain ones; a transaction where keys or executions are involved.
//!
//! Over 500 lines: a submit is one pipeline of statements in one transaction.

use std::collections::HashMap;
use std::sync::LazyLock;

use comeback_core::filter::Sort;
use comeback_core::{EventKind, Record, State, TaskId, Timestamp};
use deadpool_postgres::{GenericClient, Transaction};
use sha2::{Digest, Sha256};
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use super::apply::{append, write_feed};
use super::columns::{BodyRow, CreateColumns, Params, PlainColumns};
use super::{PostgresStore, accounts, learn, rules};
use crate::accounts::Unfunded;
use crate::events::{Answer, SharedLog};
use crate::row::{Fixed, OpenRow, corrupt, labels_to_json};
use crate::rules::names_to_json;
use crate::{ListQuery, StoreError, sql, *};

/// Everything about a new open row that is the same for every new task.
const NEW_COLUMNS: &str =
    "hold, version, unwritten, attempt, lost, throttled, snoozed, cycle, run, lease_no, updated_at, parked,
    success, failures";
const NEW_VALUES: &str = "0, 1, 0, 0, 0, 0, 0, 0, 0, 0, submitted_at, 0, 0, 0";

/// The lane of a body: that with limits is for the open row alone.
pub const BASE: &str =
    "case when lane < 1073741824 then lane else (select r.lane from ruled_lane r where r.id = i.lane) end";

/// Bodies and open rows from one set of arrays; lone tasks are told to the feed at once.
pub static CREATE: LazyLock<String> = LazyLock::new(|| {
    format!(
        "with i as materialized (select * from unnest({arrays}) as i({names})
           where (select generation from rule_state) = ${generation}),
         t as (insert into task (id, namespace, lane, execution_id, key, name, priority, policy, payload, labels,
             executor, hooks, timeout_ms, attempt_deadline_ms, start_at, expires_at, hard_deadline, dead_end_barrier,
             account, cost, dedupe_key, external_id, traceparent, submitted_at, step, gated, hooked, rules)
           select id, namespace, {BASE}, execution_id, key, name, -prio, policy, payload, labels::jsonb, executor, hooks,
             timeout_ms, attempt_deadline_ms, start_at, expires_at, hard_deadline, dead_end_barrier, account, cost,
             dedupe_key, external_id, traceparent, submitted_at, step, gated, hooked, rules from i),
         o as (insert into task_open (id, lane, execution_id, policy, state, prio, submitted_at, seq, due, start_at,
             timeout_ms, attempt_deadline_ms, expires_at, hard_deadline, needs_left, children_left, dead_end_barrier,
             gated, hooked, expected, dedupe, {NEW_COLUMNS})
           select id, lane, execution_id, policy, state, prio, submitted_at, seq, due, start_at, timeout_ms,
             attempt_deadline_ms, expires_at, hard_deadline, needs_left, children_left, dead_end_barrier, gated,
             hooked, expected, case when dedupe_key is null then 0 else 1 end, {NEW_VALUES} from i)
         insert into feed (at, namespace, ids, firsts, lasts)
           select ${now}, namespace, array_agg(id), array_agg(1), array_agg(seq)
           from i where execution_id is null group by namespace",
        arrays = CreateColumns::arrays(1),
        names = CreateColumns::names(""),
        now = 1 + CreateColumns::WIDTH,
        generation = 2 + CreateColumns::WIDTH,
    )
});

/// The same for tasks that are ready at once and have nothing special, which most are.
pub static CREATE_PLAIN: LazyLock<String> = LazyLock::new(|| {
    format!(
        "with i as materialized (select * from unnest({arrays}) as i({names})
           where (select generation from rule_state) = ${generation}),
         t as (insert into task (id, namespace, lane, priority, policy, payload, labels, hard_deadline, dead_end_barrier,
             submitted_at)
           select id, namespace, {BASE}, -prio, policy, payload, labels::jsonb, 0, 0, submitted_at from i),
         o as (insert into task_open (id, lane, policy, state, prio, submitted_at, seq, hard_deadline, needs_left,
             children_left, dead_end_barrier, dedupe, {NEW_COLUMNS})
           select id, lane, policy, {pending}, prio, submitted_at, 2, 0, 0, 0, 0, 0, {NEW_VALUES} from i)
         insert into feed (at, namespace, ids, firsts, lasts)
           select ${now}, namespace, array_agg(id), array_agg(1), array_agg(2) from i group by namespace",
        arrays = PlainColumns::arrays(1),
        names = PlainColumns::names(""),
        pending = State::Pending.code(),
        now = 1 + PlainColumns::WIDTH,
        generation = 2 + PlainColumns::WIDTH,
    )
});

pub async fn submit(
    store: &PostgresStore,
    submissions: &[Submission],
    now: Timestamp,
) -> Result<Vec<Submitted>, StoreError> {
    if submissions.is_empty() {
        return Ok(Vec::new());
    }
    if submissions.len() > 1 && submissions.iter().any(|it| !it.unless.is_empty() || is_metered(it)) {
        return one_by_one(store, submissions, now).await;
    }
    for _ in 0..MOST_TRIES {
        let book = store.dictionary.rules();
        let placed = book.place(submissions);
        learn::learn(store, store.dictionary.news(&placed)).await?;
        if let Some(answers) = submit_placed(store, &placed, book.generation, now).await? {
            return Ok(answers);
        }
        // A rule has changed since we looked where they belong, or a lane was forgotten.
        rules::refresh(&store.pools.learn, &store.dictionary).await?;
    }
    Err(StoreError::Unavailable("the rules change faster than tasks are stored".into()))
}

/// How often a submit is tried while rules change.
const MOST_TRIES: usize = 100;

/// Each sees what the one before it has made.
async fn one_by_one(
    store: &PostgresStore,
    submissions: &[Submission],
    now: Timestamp,
) -> Result<Vec<Submitted>, StoreError> {
    let mut answers = Vec::with_capacity(submissions.len());
    // What one of them may not have is refused before any of them is made.
    let book = store.dictionary.rules();
    learn::learn(store, store.dictionary.news(&book.place(submissions))).await?;
    for submission in submissions {
        match Box::pin(submit(store, std::slice::from_ref(submission), now)).await {
            Ok(answer) => answers.extend(answer),
            // Some of them are made.
            Err(StoreError::Unavailable(what)) if !answers.is_empty() => return Err(StoreError::Unknown(what)),
            Err(StoreError::QuotaExceeded(quota)) if !answers.is_empty() => {
                return Err(StoreError::Unknown(quota.to_string()));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(answers)
}

/// Whether one of its questions finds a task. Whoever asks about the same kinds, or makes tasks of them and asks too, waits for
/// this transaction.
async fn is_overtaken(
    store: &PostgresStore,
    tx: &Transaction<'_>,
    submission: &Submission,
    now: Timestamp,
) -> Result<bool, StoreError> {
    if submission.unless.is_empty() {
        return Ok(false);
    }
    let number = |kind: &&str| {
        let digest: [u8; 32] = Sha256::digest(format!("{}\0{kind}", submission.namespace).as_bytes()).into();
        i32::from_be_bytes([digest[0], digest[1], digest[2], digest[3]])
    };
    let mut numbers: Vec<i32> = submission.kinds_asked_about().iter().map(number).collect();
    numbers.sort_unstable();
    numbers.dedup();
    let statement =
        tx.prepare_cached("select pg_advisory_xact_lock($1, number) from unnest($2::int4[]) number").await?;
    tx.execute(&statement, &[&ASKING, &numbers]).await?;
    for filter in &submission.unless {
        let query = ListQuery { filter: filter.clone(), sort: Sort::SubmittedDesc, limit: 1, after: None, now };
        if !super::list::list(store, &submission.namespace, &query).await?.items.is_empty() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The first of the two numbers of such locks.
const ASKING: i32 = 0x6364;

/// None if other rules are in force by now.
async fn submit_placed(
    store: &PostgresStore,
    submissions: &[Submission],
    generation: i64,
    now: Timestamp,
) -> Result<Option<Vec<Submitted>>, StoreError> {
    let plain = submissions.iter().all(is_plain);
    let mut client = store.writer().await?;
    if plain {
        let tasks: Vec<&NewTask> = submissions.iter().flat_map(|submission| &submission.tasks).collect();
        // A number that was learnt may have been forgotten since, and the rules have another generation then.
        let Some(rows) = body_rows(store, &tasks) else { return Ok(None) };
        // All of them are lone, so the feed tells whether they were made.
        if !rows.is_empty() && create(&client, &rows, generation, now).await? == 0 {
            return Ok(None);
        }
        let created = |submission: &Submission| {
            let told = |new: &NewTask| SubmittedTask { id: new.task.id, state: new.task.state, duplicate: false };
            Submitted::Created(submission.tasks.iter().map(told).collect())
        };
        return Ok(Some(submissions.iter().map(created).collect()));
    }
    let tx = client.transaction().await?;
    if rules::now_in_force(store, &tx).await?.generation != generation {
        return Ok(None);
    }
    if let [only] = submissions
        && is_overtaken(store, &tx, only, now).await?
    {
        return Ok(Some(vec![Submitted::Overtaken]));
    }
    let answers = submit_in(store, &tx, submissions, generation, now).await?;
    if let Some(short) = reserve(store, &tx, submissions, &answers).await? {
        return Ok(Some(vec![Submitted::Unfunded(short)]));
    }
    crate::panic_point!("postgres-submit-before-commit");
    tx.commit().await?;
    crate::panic_point!("postgres-submit-after-commit");
    Ok(Some(answers))
}

fn is_metered(submission: &Submission) -> bool {
    submission.tasks.iter().any(|new| new.task.metered)
}

/// Reserves the costs of new tasks. The submission is alone in its transaction: it may have to be rolled back.
async fn reserve(
    store: &PostgresStore,
    tx: &Transaction<'_>,
    submissions: &[Submission],
    answers: &[Submitted],
) -> Result<Option<Unfunded>, StoreError> {
    let ([only], [Submitted::Created(made)]) = (submissions, answers) else { return Ok(None) };
    let made = only.tasks.iter().zip(made).filter(|(_, made)| !made.duplicate).map(|(new, _)| new);
    accounts::write(store, tx, &accounts::of_new(store, made)).await
}

fn is_plain(submission: &Submission) -> bool {
    submission.execution.is_none()
        && submission.idempotency.is_none()
        && submission.unless.is_empty()
        && submission.tasks.iter().all(|new| new.body.dedupe_key.is_none() && !new.task.metered)
}

/// Within a transaction that holds the rules they were learnt under, all numbers are known.
fn held_body_rows<'a>(store: &PostgresStore, tasks: &[&'a NewTask]) -> Result<Vec<BodyRow<'a>>, StoreError> {
    body_rows(store, tasks).ok_or_else(|| corrupt("a lane or a policy that was just learnt"))
}

/// None if a lane or a policy has no number.
fn body_rows<'a>(store: &PostgresStore, tasks: &[&'a NewTask]) -> Option<Vec<BodyRow<'a>>> {
    let dictionary = &store.dictionary;
    let mut rows = Vec::with_capacity(tasks.len());
    for new in tasks {
        let lane = dictionary.lane_id(&new.task.lane)?;
        let namespace = dictionary.lane_namespace(lane)?;
        let policy = match &new.policy {
            Some(policy) => Some(dictionary.policy_id(policy)?),
            None => None,
        };
        let fixed = Fixed { hard_deadline: new.body.hard_deadline, dedupe: new.body.dedupe_key.is_some() };
        rows.push(BodyRow {
            new,
            namespace,
            labels: labels_to_json(&new.body.labels),
            rules: names_to_json(&new.body.rules),
            open: OpenRow::new(&new.task, lane, policy, fixed),
        });
    }
    Some(rows)
}

/// How many namespaces were told of lone tasks; none is made where other rules are in force.
async fn create(
    client: &impl GenericClient,
    rows: &[BodyRow<'_>],
    generation: i64,
    now: Timestamp,
) -> Result<u64, StoreError> {
    if rows.iter().all(BodyRow::is_plain) {
        let mut columns = PlainColumns::default();
        rows.iter().for_each(|row| columns.push(row));
        return run(client, &CREATE_PLAIN, columns.params(), generation, now).await;
    }
    let mut columns = CreateColumns::default();
    rows.iter().for_each(|row| columns.push(row));
    run(client, &CREATE, columns.params(), generation, now).await
}

async fn run(
    client: &impl GenericClient,
    sql: &str,
    mut params: Params<'_>,
    generation: i64,
    now: Timestamp,
) -> Result<u64, StoreError> {
    params.push(&now.0);
    params.push(&generation);
    let statement = client.prepare_cached(sql).await?;
    Ok(client.execute(&statement, &params).await?)
}

pub async fn submit_in(
    store: &PostgresStore,
    tx: &Transaction<'_>,
    submissions: &[Submission],
    generation: i64,
    now: Timestamp,
) -> Result<Vec<Submitted>, StoreError> {
    let mut answers: Vec<Option<Submitted>> = vec![None; submissions.len()];
    let repeats = take_idempotency_keys(store, tx, submissions, now, &mut answers).await?;
    count_below(store, tx, submissions, &mut answers, &repeats).await?;
    let duplicates = take_dedupe_keys(store, tx, submissions, &answers, &repeats).await?;

    let mut tasks: Vec<&NewTask> = Vec::new();
    let mut told: Vec<(i32, Record, u32)> = Vec::new();
    for (index, submission) in submissions.iter().enumerate() {
        if answers[index].is_some() || repeats.contains_key(&index) {
            continue;
        }
        let namespace = namespace_of(store, submission)?;
        let mut log = SharedLog::default();
        if let Some(new) = &submission.execution {
            log.add(Record::about_execution(new.execution.id, EventKind::ExecutionCreated, now));
        }
        let mut created = Vec::with_capacity(submission.tasks.len());
        for new in &submission.tasks {
            if let Some((id, state)) = duplicates.get(&new.task.id) {
                created.push(SubmittedTask { id: *id, state: *state, duplicate: true });
                continue;
            }
            tasks.push(new);
            created.push(SubmittedTask { id: new.task.id, state: new.task.state, duplicate: false });
            if submission.execution.is_some() {
                log.add_created(new, now);
            }
        }
        if let Some(new) = &submission.execution {
            insert_execution(tx, namespace, new, log.last).await?;
            insert_edges(tx, &submission.edges).await?;
            told.extend(log.records.into_iter().map(|(record, seq)| (namespace, record, seq)));
        }
        if let Some(key) = &submission.idempotency {
            let execution = submission.execution.as_ref().map(|new| new.execution.id);
            let answer = Answer { execution, tasks: created.clone() }.to_json();
            tx.execute(
                "update idempotency set answer = $4 where namespace = $1 and scope = $2 and key = $3",
                &[&namespace, &key.scope, &key.key, &answer],
            )
            .await?;
        }
        answers[index] = Some(Submitted::Created(created));
    }
    let rows = held_body_rows(store, &tasks)?;
    if !rows.is_empty() {
        create(tx, &rows, generation, now).await?;
    }
    append(tx, &told).await?;
    write_feed(tx, &told, now).await?;

    for (index, first) in repeats {
        let again = match &answers[first] {
            Some(Submitted::Created(tasks)) => Submitted::Repeated {
                execution: submissions[first].execution.as_ref().map(|new| new.execution.id),
                tasks: tasks.clone(),
            },
            Some(other) => other.clone(),
            None => Submitted::Mismatch,
        };
        let same = submissions[index].idempotency.as_ref().map(|key| key.digest)
            == submissions[first].idempotency.as_ref().map(|key| key.digest);
        answers[index] = Some(if same { again } else { Submitted::Mismatch });
    }
    answers.into_iter().map(|answer| answer.ok_or_else(|| corrupt("a submission without an answer"))).collect()
}

/// Tasks that a verdict makes: those of its execution are told by its own records.
pub async fn spawn(
    store: &PostgresStore,
    tx: &Transaction<'_>,
    spawn: &Submission,
    generation: i64,
    now: Timestamp,
) -> Result<(), StoreError> {
    let tasks: Vec<&NewTask> = spawn.tasks.iter().collect();
    let rows = held_body_rows(store, &tasks)?;
    if !rows.is_empty() {
        create(tx, &rows, generation, now).await?;
    }
    if let Some(execution) = spawn.tasks.iter().find_map(|new| new.task.execution) {
        let joined = spawn.tasks.iter().filter(|new| new.task.execution == Some(execution)).count();
        let statement = tx.prepare_cached(sql::executions::COUNT_BELOW.postgres).await?;
        tx.execute(&statement, &[&execution.0, &i64::try_from(joined).unwrap_or(0)]).await?;
    }
    insert_edges(tx, &spawn.edges).await
}

/// Counts the tasks of executions that begin below others at their roots. Where a root has ended or is full the submission is refused,
/// and its key is free again.
async fn count_below(
    store: &PostgresStore,
    tx: &Transaction<'_>,
    submissions: &[Submission],
    answers: &mut [Option<Submitted>],
    repeats: &HashMap<usize, usize>,
) -> Result<(), StoreError> {
    for (index, submission) in submissions.iter().enumerate() {
        let new = submission.execution.as_ref();
        let Some((new, below)) = new.and_then(|new| Some((new, new.below?))) else { continue };
        if answers[index].is_some() || repeats.contains_key(&index) {
            continue;
        }
        let statement = tx
            .prepare_cached(
                "update execution set tasks_below = tasks_below + $2
                 where id = $1 and state in (0, 1, 2) and total + tasks_below + $2 <= $3",
            )
            .await?;
        let most = i64::try_from(below.most_tasks).unwrap_or(i64::MAX);
        let params: [&(dyn ToSql + Sync); 3] = [&below.root.0, &i64::from(new.execution.total), &most];
        if tx.execute(&statement, &params).await? == 1 {
            continue;
        }
        let open = "select 1 from execution where id = $1 and state in (0, 1, 2)";
        let refused = match tx.query_opt(open, &[&below.root.0]).await? {
            Some(_) => Submitted::RootFull,
            None => Submitted::RootEnded,
        };
        if let Some(key) = &submission.idempotency {
            let namespace = namespace_of(store, submission)?;
            tx.execute(
                "delete from idempotency where namespace = $1 and scope = $2 and key = $3",
                &[&namespace, &key.scope, &key.key],
            )
            .await?;
        }
        answers[index] = Some(refused);
    }
    Ok(())
}

fn namespace_of(store: &PostgresStore, submission: &Submission) -> Result<i32, StoreError> {
    let known = store.dictionary.namespace(&submission.namespace);
    known.ok_or_else(|| corrupt("a namespace that was just learnt"))
}

/// Takes the keys that are free. Keys that were taken before are answered; a key that stands twice in this call makes the later
/// submission a repeat of the earlier one. Whoever takes a key at the same time waits for us, and we for them.
async fn take_idempotency_keys(
    store: &PostgresStore,
    tx: &Transaction<'_>,
    submissions: &[Submission],
    now: Timestamp,
    answers: &mut [Option<Submitted>],
) -> Result<HashMap<usize, usize>, StoreError> {
    let mut repeats = HashMap::new();
    let mut first_use: HashMap<(i32, &str, &str), usize> = HashMap::new();
    let mut keyed: Vec<(i32, &Idempotency, usize)> = Vec::new();
    for (index, submission) in submissions.iter().enumerate() {
        let Some(key) = &submission.idempotency else { continue };
        let namespace = namespace_of(store, submission)?;
        match first_use.get(&(namespace, &*key.scope, &*key.key)) {
            Some(first) => {
                repeats.insert(index, *first);
            }
            None => {
                first_use.insert((namespace, &key.scope, &key.key), index);
                keyed.push((namespace, key, index));
            }
        }
    }
    // In one order for everybody, so that two instances never wait for each other.
    keyed.sort_by(|a, b| (a.0, &a.1.scope, &a.1.key).cmp(&(b.0, &b.1.scope, &b.1.key)));
    for (namespace, key, index) in keyed {
        let taken = tx
            .execute(
                "insert into idempotency (namespace, scope, key, digest, answer, at) values ($1, $2, $3, $4, '', $5)
                 on conflict do nothing",
                &[&namespace, &key.scope, &key.key, &key.digest.as_slice(), &now.0],
            )
            .await?;
        if taken == 1 {
            continue;
        }
        let row = tx.query_one(sql::control::KEY_ANSWER.postgres, &[&namespace, &key.scope, &key.key]).await?;
        answers[index] = Some(if row.get::<_, &[u8]>(0) != key.digest {
            Submitted::Mismatch
        } else {
            let Answer { execution, tasks } = Answer::from_json(row.get(1))?;
            Submitted::Repeated { execution, tasks }
        });
    }
    Ok(repeats)
}

/// Takes the dedupe keys that are free; for the others, which open task has them.
async fn take_dedupe_keys(
    store: &PostgresStore,
    tx: &Transaction<'_>,
    submissions: &[Submission],
    answers: &[Option<Submitted>],
    repeats: &HashMap<usize, usize>,
) -> Result<HashMap<TaskId, (TaskId, State)>, StoreError> {
    let mut keyed: Vec<(i32, &str, &NewTask)> = Vec::new();
    for (index, submission) in submissions.iter().enumerate() {
        if answers[index].is_some() || repeats.contains_key(&index) {
            continue;
        }
        let namespace = namespace_of(store, submission)?;
        let with_key = |new: &'_ NewTask| new.body.dedupe_key.is_some();
        for new in submission.tasks.iter().filter(|new| with_key(new)) {
            keyed.push((namespace, new.body.dedupe_key.as_deref().unwrap_or_default(), new));
        }
    }
    keyed.sort_by(|a, b| (a.0, a.1).cmp(&(b.0, b.1)));
    let mut duplicates = HashMap::new();
    let mut mine: HashMap<(i32, &str), (TaskId, State)> = HashMap::new();
    for (namespace, key, new) in keyed {
        if let Some(first) = mine.get(&(namespace, key)) {
            duplicates.insert(new.task.id, *first);
            continue;
        }
        match take_key(tx, namespace, key, new.task.id).await? {
            None => {
                mine.insert((namespace, key), (new.task.id, new.task.state));
            }
            Some(holder) => {
                duplicates.insert(new.task.id, holder);
            }
        }
    }
    Ok(duplicates)
}

/// Takes a key, or tells which open task has it.
async fn take_key(
    tx: &Transaction<'_>,
    namespace: i32,
    key: &str,
    id: TaskId,
) -> Result<Option<(TaskId, State)>, StoreError> {
    loop {
        let taken = tx
            .execute(
                "insert into dedupe (namespace, key, task_id) values ($1, $2, $3) on conflict do nothing",
                &[&namespace, &key, &id.0],
            )
            .await?;
        if taken == 1 {
            return Ok(None);
        }
        let holder = tx.query_opt(sql::tasks::OPEN_WITH_KEY.postgres, &[&namespace, &key]).await?;
        // Gone in between: its task ended, so the key is free now.
        if let Some(row) = holder {
            let state: i16 = row.get(1);
            let state = State::from_code(state).ok_or_else(|| corrupt(format!("state {state}")))?;
            return Ok(Some((TaskId(row.get::<_, Uuid>(0)), state)));
        }
    }
}

async fn insert_execution(
    tx: &Transaction<'_>,
    namespace: i32,
    new: &NewExecution,
    seq: u32,
) -> Result<(), StoreError> {
    let it = &new.execution;
    let origin = &new.origin;
    let params: [&(dyn ToSql + Sync); 30] = [
        &it.id.0,
        &namespace,
        &it.state.code(),
        &it.version.cast_signed(),
        &seq.cast_signed(),
        &it.total.cast_signed(),
        &it.open.cast_signed(),
        &it.unhandled.cast_signed(),
        &i16::from(it.fail_fast),
        &i16::from(it.dead_end_cancel),
        &new.name,
        &labels_to_json(&new.labels),
        &new.external_id,
        &it.created_at.0,
        &it.started_at.map(|at| at.0),
        &it.ended_at.map(|at| at.0),
        &it.updated_at.0,
        &origin.workflow.as_ref().map(|(path, _)| path),
        &origin.workflow.as_ref().map(|(_, version)| version.cast_signed()),
        &origin.input.as_deref(),
        &origin.parent.map(|(task, _)| task.0),
        &origin.parent.map(|(_, run)| run.cast_signed()),
        &origin.retry_of.map(|id| id.0),
        &origin.firing.as_ref().map(|firing| firing.by.code()),
        &origin.firing.as_ref().map(|firing| &firing.schedule),
        &origin.firing.as_ref().map(|firing| firing.at.0),
        &new.below.map(|below| below.root.0),
        &new.below.map_or(0, |below| below.depth.cast_signed()),
        &origin.retry_root.map(|id| id.0),
        &origin.retry_number.cast_signed(),
    ];
    let statement = tx
        .prepare_cached(
            "insert into execution (id, namespace, state, version, seq, total, open, unhandled, fail_fast,
               dead_end_cancel, name, labels, external_id, created_at, started_at, ended_at, updated_at, workflow,
               workflow_version, input, parent_task, parent_run, retry_of, fired_by, schedule, scheduled_at, root, depth,
               retry_root, retry_number)
             values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12::text::jsonb, $13, $14, $15, $16, $17, $18, $19,
               $20, $21, $22, $23, $24, $25, $26, $27, $28, $29, $30)",
        )
        .await?;
    tx.execute(&statement, &params).await?;
    Ok(())
}

async fn insert_edges(tx: &Transaction<'_>, edges: &[comeback_core::Edge]) -> Result<(), StoreError> {
    if edges.is_empty() {
        return Ok(());
    }
    let from: Vec<Uuid> = edges.iter().map(|edge| edge.from.0).collect();
    let to: Vec<Uuid> = edges.iter().map(|edge| edge.to.0).collect();
    let when: Vec<i16> = edges.iter().map(|edge| edge.when.code()).collect();
    let unmet: Vec<i16> = edges.iter().map(|edge| edge.on_unmet.code()).collect();
    tx.execute(
        "insert into edge (from_id, to_id, met_when, on_unmet)
         select * from unnest($1::uuid[], $2::uuid[], $3::int2[], $4::int2[])",
        &[&from, &to, &when, &unmet],
    )
    .await?;
    Ok(())
}
