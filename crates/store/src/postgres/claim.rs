//! Leasing. Lone tasks that workers lease take one statement; where each step is a row of history it is a transaction.
//!
//! Claims skip rows that somebody else has locked, so they never wait for one another. Under that rule the order is kept
//! within a claim, not across claims made at the same moment.
//!
//! Over 500 lines: one statement claims for many requests, and its parts are only used together.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, LazyLock};

use comeback_core::{EventKind, ExecutionState, Lane, Record, State, Timestamp, transition};
use deadpool_postgres::{GenericClient, Transaction};
use uuid::Uuid;

use super::apply::{append, lock_executions, lock_log_order, update_open, write_executions, write_feed};
use super::control::{is_paused, unless_paused};
use super::rows::Reader;
use super::{PostgresStore, learn, rules};
use crate::dictionary::Walk;
use crate::ready::{MANY, ReadyWalk};
use crate::row::{Fixed, OpenRow, RETRY_DUE, STARTED, columns, corrupt, labels_from_json};
use crate::{ClaimRequest, Claimed, Loop, StoreError};

/// Tasks looked at in one claim over many lanes, at most.
const MOST_CANDIDATES: u32 = 4_000;

/// How often a claim looks when others are faster.
pub const LOOKS: usize = 8;

const BODY: &str = "t.key, t.name, t.payload, t.labels::text, t.executor, t.step, t.traceparent";

/// The columns that are not known before a task is leased: the rest is the same for every lone task that is ready.
const LEASED: &str =
    "o.id, o.lane, o.policy, o.prio, o.submitted_at, o.version, o.seq, o.unwritten, o.ready_at, o.attempt,
    o.lost, o.throttled, o.snoozed, o.rule_counts, o.cycle, o.run, o.lease_no, o.timeout_ms, o.attempt_deadline_ms,
    o.timeout_at, o.expires_at, o.hard_deadline, o.first_failed_at, o.updated_at, o.class, o.fingerprint, o.expected,
    o.success, o.failures, o.dead_end_barrier, o.hooked";

fn read_leased(from: &mut Reader<'_>, request: &ClaimRequest) -> Result<OpenRow, tokio_postgres::Error> {
    let mut row = OpenRow {
        id: from.get()?,
        lane: from.get()?,
        policy: from.get()?,
        prio: from.get()?,
        submitted_at: from.get()?,
        version: from.get()?,
        seq: from.get()?,
        unwritten: from.get()?,
        ready_at: from.get()?,
        attempt: from.get()?,
        lost: from.get()?,
        throttled: from.get()?,
        snoozed: from.get()?,
        rule_counts: from.get()?,
        cycle: from.get()?,
        run: from.get()?,
        lease_no: from.get()?,
        timeout_ms: from.get()?,
        attempt_deadline_ms: from.get()?,
        timeout_at: from.get()?,
        expires_at: from.get()?,
        hard_deadline: from.get()?,
        first_failed_at: from.get()?,
        updated_at: from.get()?,
        class: from.get()?,
        fingerprint: from.get()?,
        expected: from.get()?,
        success: from.get()?,
        failures: from.get()?,
        dead_end_barrier: from.get()?,
        hooked: from.get()?,
        state: State::Running.code(),
        worker: Some(request.worker.clone()),
        ..OpenRow::default()
    };
    row.lease_at = Some(row.updated_at);
    row.started_at = Some(row.updated_at);
    row.lease_expires = Some(row.updated_at + request.lease.0.cast_signed());
    Ok(row)
}

/// Writes a lease and its feed row. `picked` says where the rows are: it has locked them, so they stay
/// there, and none need be looked up again by its id. One that changed just before is left for the next claim. A task's own time never goes back, even when
/// the caller asked its clock before somebody else changed the task.
fn lease_statement(picked: &str, more: &str, promotes: bool) -> String {
    let (steps, events) = if promotes { (2, RETRY_DUE | STARTED) } else { (1, STARTED) };
    let promotion = ", ready_at = greatest($4, o.updated_at), due = null, next_retry_at = null, start_at = null,
             held_until = null, held_by = null";
    let promotion = if promotes { promotion } else { "" };
    format!(
        "with {more} u as (
           update task_open o set state = 3, version = o.version + {steps}, seq = o.seq + {steps}, run = o.run + 1,
             lease_no = o.lease_no + 1, worker = $3, lease_at = {time}, lease_expires = {time} + $5,
             started_at = {time}, updated_at = {time}, unwritten = (o.unwritten | {events})::int2,
             timeout_at = least({time} + o.timeout_ms, {time} + o.attempt_deadline_ms){promotion}
           where o.ctid = any(array({picked})) returning {LEASED}),
         f as (insert into feed (at, namespace, ids, firsts, lasts)
           select $4, $6, array_agg(id), array_agg(seq + 1 - {steps}), array_agg(seq) from u having count(*) > 0)
         select u.*, {BODY} from u join task t on t.id = u.id",
        time = "greatest($4, o.updated_at)",
    )
}

/// That nobody has paused the handing out of work, looked at once per statement.
fn dispatching() -> String {
    format!("not exists (select 1 from loop_pause where name = '{}' and until > $4)", Loop::Dispatch)
}

pub static ONE_LANE: LazyLock<String> = LazyLock::new(|| {
    let dispatching = dispatching();
    lease_statement(
        &format!(
            "select ctid from task_open
         where lane = $1 and state = 1 and hold = 0 and (expires_at is null or expires_at > $4) and {dispatching}
         order by prio, submitted_at, id limit $2 for update skip locked"
        ),
        "",
        false,
    )
});

/// Each lane gives its best few. A lane that gave as many as it may could have more: nothing beyond its last is safe to take.
pub static MANY_LANES: LazyLock<String> = LazyLock::new(|| {
    let dispatching = dispatching();
    lease_statement(
        "select place from c where (prio, submitted_at, id) <= (select prio, submitted_at, id from cut)
           or not exists (select 1 from cut)
         order by prio, submitted_at, id limit $2",
        &format!(
            "c as materialized (
           select x.*, row_number() over (partition by x.lane order by x.prio, x.submitted_at, x.id) as n
           from unnest($1::int4[]) as l(lane) cross join lateral (
             select o.ctid as place, o.id, o.lane, o.prio, o.submitted_at from task_open o
             where o.lane = l.lane and o.state = 1 and o.hold = 0 and (o.expires_at is null or o.expires_at > $4)
             order by o.prio, o.submitted_at, o.id limit $7 for update skip locked) x where {dispatching}),
         cut as (select prio, submitted_at, id from c where n = $7 order by prio, submitted_at, id limit 1),"
        ),
        false,
    )
});

/// Retries that are due and that nobody has promoted yet: promoted and leased in one step.
pub static DUE: LazyLock<String> = LazyLock::new(|| {
    let dispatching = dispatching();
    lease_statement(
        &format!("select ctid from task_open where state = 4 and hold = 0 and due <= $4 and (expires_at is null or expires_at > $4)
           and execution_id is null and lane = any($1::int4[])
           and not exists (select 1 from loop_pause where name = $7 and until > $4) and {dispatching}
         order by due, id limit $2 for update skip locked"),
        "",
        true,
    )
});

pub async fn claim(
    store: &PostgresStore,
    requests: &[ClaimRequest],
    now: Timestamp,
) -> Result<Vec<Vec<Claimed>>, StoreError> {
    let mut answers: Vec<Vec<Claimed>> = Vec::new();
    answers.resize_with(requests.len(), Vec::new);
    match claim_all(store, requests, &mut answers, now).await {
        // Leases that were given must reach their workers, whatever became of the requests after them.
        Err(error) if answers.iter().any(|given| !given.is_empty()) => {
            tracing::warn!(%error, "a claim failed after others of its batch were given; it finds nothing for now");
        }
        Err(error) => return Err(error),
        Ok(()) => {}
    }
    Ok(answers)
}

async fn claim_all(
    store: &PostgresStore,
    requests: &[ClaimRequest],
    answers: &mut [Vec<Claimed>],
    now: Timestamp,
) -> Result<(), StoreError> {
    let mut next = 0;
    while next < requests.len() {
        let end = next + alike(store, &requests[next..]);
        let (requests, answers) = (&requests[next..end], &mut answers[next..end]);
        if requests.len() > 1 {
            claim_together(store, requests, answers, now).await?;
        }
        for (request, answer) in requests.iter().zip(answers).filter(|(_, answer)| answer.is_empty()) {
            *answer = claim_one(store, request, now).await?;
            if answer.is_empty() {
                // The others ask for the same.
                break;
            }
        }
        next = end;
    }
    Ok(())
}

/// How many of these, from the first, are served together: those that ask for the same where rules have a say, because what is counted
/// before a lease is then counted once for all of them.
fn alike(store: &PostgresStore, requests: &[ClaimRequest]) -> usize {
    let Some(first) = requests.first().filter(|it| !it.may_call() && store.dictionary.is_ruled(&it.namespace)) else {
        return 1;
    };
    requests.iter().take_while(|it| it.is_like(first)).count()
}

/// The first of them get the best tasks.
async fn claim_together(
    store: &PostgresStore,
    requests: &[ClaimRequest],
    answers: &mut [Vec<Claimed>],
    now: Timestamp,
) -> Result<(), StoreError> {
    let wanted = Wanted::of(store, &requests[0]).await?;
    let claimed = rules::claim(store, requests, &wanted.lanes, &wanted.limited, now).await?;
    let mut claimed = claimed.unwrap_or_default().into_iter();
    for (request, answer) in requests.iter().zip(answers) {
        answer.extend(claimed.by_ref().take(request.limit as usize));
    }
    Ok(())
}

/// The request that gets the task at this place.
fn whose(requests: &[ClaimRequest], place: usize) -> &ClaimRequest {
    let mut before = 0;
    let is_it = |it: &&ClaimRequest| {
        before += it.limit as usize;
        place < before
    };
    requests.iter().find(is_it).unwrap_or(&requests[0])
}

/// A lane that another instance has just made may not be known here yet: who finds nothing makes sure before saying so.
async fn claim_one(store: &PostgresStore, request: &ClaimRequest, now: Timestamp) -> Result<Vec<Claimed>, StoreError> {
    let known = store.dictionary.version();
    let claimed = claim_known(store, request, now).await?;
    if !claimed.is_empty() || request.limit == 0 {
        return Ok(claimed);
    }
    // It may also have been learnt in the background, just after we looked.
    if learn::has_grown(store).await? || store.dictionary.version() != known {
        return claim_known(store, request, now).await;
    }
    Ok(claimed)
}

async fn claim_known(
    store: &PostgresStore,
    request: &ClaimRequest,
    now: Timestamp,
) -> Result<Vec<Claimed>, StoreError> {
    if request.may_call() && !request.without_calls && is_paused(&*store.reader().await?, Loop::Hooks, now).await? {
        let request = ClaimRequest { without_calls: true, ..request.clone() };
        return Box::pin(claim_known(store, &request, now)).await;
    }
    if request.limit == 0 {
        return Ok(Vec::new());
    }
    let Wanted { lanes, limited, are_many } = Wanted::of(store, request).await?;
    if lanes.is_empty() && limited.is_empty() {
        return Ok(Vec::new());
    }
    let numbers: Vec<i32> = lanes.iter().map(|(id, _)| *id).collect();
    let ruled = rules::claim(store, std::slice::from_ref(request), &lanes, &limited, now).await?;
    let mut claimed = if let Some(claimed) = ruled {
        claimed
    } else if lanes.is_empty() {
        Vec::new()
    } else if lanes.iter().any(|(_, lane)| lane.writes_each_step()) {
        claim_step_by_step(store, request, &numbers, now).await?
    } else {
        claim_ready(store, request, &numbers, now).await?
    };
    let room = i64::from(request.limit) - i64::try_from(claimed.len()).unwrap_or(i64::MAX);
    let plain: Vec<i32> = lanes.iter().filter(|(_, lane)| !lane.writes_each_step()).map(|(id, _)| *id).collect();
    // Of many lanes, retries that are due wait for their promotion.
    if request.due && room > 0 && !plain.is_empty() && !are_many {
        match claim_due(store, request, &plain, room, now).await {
            Ok(due) => claimed.extend(due),
            // Leases that were given must reach their worker.
            Err(error) if !claimed.is_empty() => tracing::warn!(%error, "retries that are due could not be leased"),
            Err(error) => return Err(error),
        }
    }
    Ok(claimed)
}

/// The lanes that a request may be served from: those without limits, and the numbers of those with.
struct Wanted {
    lanes: Vec<(i32, Arc<Lane>)>,
    limited: Vec<i32>,
    /// There are so many that only those with something ready are among them.
    are_many: bool,
}

impl Wanted {
    async fn of(store: &PostgresStore, request: &ClaimRequest) -> Result<Wanted, StoreError> {
        let dictionary = &store.dictionary;
        let mut lanes = dictionary.lanes_for(request);
        let is_ruled = dictionary.is_ruled(&request.namespace);
        let limited = if is_ruled { dictionary.limited_below(&lanes) } else { Vec::new() };
        let are_many = lanes.len() > MANY;
        if are_many {
            let numbers: Vec<i32> = lanes.iter().map(|(id, _)| *id).collect();
            let mut walk = ReadyWalk::new(&numbers, dictionary.turn(&request.namespace, Walk::Plain));
            let ready = next_ready(&store.writer().await?, &mut walk, MANY).await?;
            if !walk.is_over() {
                dictionary.set_turn(&request.namespace, Walk::Plain, walk.last());
            }
            lanes.retain(|(id, _)| ready.contains(id));
        }
        Ok(Wanted { lanes, limited, are_many })
    }
}

/// From one of these lanes (in order) to the next that has something ready, so many steps. A lane of others that lies in between is
/// a step too. `width_bucket` says how many of the lanes are not behind the one that was found.
pub const READY_LANES: &str = "with recursive walk (at, lane, n) as (
       select 1, null::int4, 0::int8
       union all
       select width_bucket(f.lane, $1::int4[]) + 1, f.lane, walk.n + 1 from walk cross join lateral (
         select o.lane from task_open o where o.state = 1 and o.hold = 0 and o.lane >= ($1::int4[])[walk.at]
           and o.lane <= $2 order by o.lane limit 1) f
       where walk.at <= cardinality($1::int4[]) and walk.n < $3)
     select lane from walk where n > 0 order by n";

/// The next so many lanes of a walk that have something ready.
pub async fn next_ready(
    client: &impl GenericClient,
    walk: &mut ReadyWalk<'_>,
    most: usize,
) -> Result<BTreeSet<i32>, StoreError> {
    let mut ready = BTreeSet::new();
    let steps = i64::try_from(most).unwrap_or(i64::MAX);
    for _ in 0..4 {
        if walk.is_over() || ready.len() >= most {
            break;
        }
        let segment = walk.segment();
        let statement = client.prepare_cached(READY_LANES).await?;
        let rows = client.query(&statement, &[&segment, &segment.last(), &steps]).await?;
        for lane in rows.iter().map(|row| row.get(0)) {
            if walk.pass(Some(lane)) {
                ready.insert(lane);
            }
        }
        if rows.len() < most && !walk.is_over() && is_same(walk.segment(), segment) {
            walk.pass(None);
        }
    }
    Ok(ready)
}

/// Whether both end at the same lane: the walk has not come around in between.
fn is_same(one: &[i32], other: &[i32]) -> bool {
    one.last() == other.last()
}

async fn claim_due(
    store: &PostgresStore,
    request: &ClaimRequest,
    lanes: &[i32],
    room: i64,
    now: Timestamp,
) -> Result<Vec<Claimed>, StoreError> {
    let (namespace, span) = (namespace_of(store, lanes[0])?, request.lease.0.cast_signed());
    let client = store.writer().await?;
    let (worker, word) = (&*request.worker, Loop::Retries.word());
    let rows = unless_paused(&client, Loop::Retries, &DUE, &[&lanes, &room, &worker, &now.0, &span, &namespace, &word])
        .await?;
    drop(client);
    let mut claimed = read_claimed(store, &rows, |from| read_leased(from, request)).await?;
    claimed.iter_mut().for_each(|it| it.promoted = true);
    claimed.sort_by_key(Claimed::place);
    Ok(claimed)
}

async fn claim_ready(
    store: &PostgresStore,
    request: &ClaimRequest,
    numbers: &[i32],
    now: Timestamp,
) -> Result<Vec<Claimed>, StoreError> {
    let namespace = namespace_of(store, numbers[0])?;
    let limit = i64::from(request.limit);
    let span = request.lease.0.cast_signed();
    let client = store.writer().await?;
    let rows = if let [lane] = *numbers {
        let statement = client.prepare_cached(&ONE_LANE).await?;
        client.query(&statement, &[&lane, &limit, &&*request.worker, &now.0, &span, &namespace]).await?
    } else {
        let statement = client.prepare_cached(&MANY_LANES).await?;
        let each = i64::from(per_lane(request.limit, numbers.len()));
        client.query(&statement, &[&numbers, &limit, &&*request.worker, &now.0, &span, &namespace, &each]).await?
    };
    drop(client);
    let mut claimed = read_claimed(store, &rows, |from| read_leased(from, request)).await?;
    claimed.sort_by_key(Claimed::place);
    Ok(claimed)
}

pub fn per_lane(limit: u32, lanes: usize) -> u32 {
    let fair = MOST_CANDIDATES / u32::try_from(lanes).unwrap_or(u32::MAX).max(1);
    limit.min(fair.max(8))
}

fn namespace_of(store: &PostgresStore, lane: i32) -> Result<i32, StoreError> {
    store.dictionary.lane_namespace(lane).ok_or_else(|| corrupt(format!("lane {lane}")))
}

async fn read_claimed<'r>(
    store: &PostgresStore,
    rows: &'r [tokio_postgres::Row],
    read: impl Fn(&mut Reader<'r>) -> Result<OpenRow, tokio_postgres::Error>,
) -> Result<Vec<Claimed>, StoreError> {
    let mut open = Vec::with_capacity(rows.len());
    let mut readers: Vec<Reader<'r>> = rows.iter().map(Reader::new).collect();
    for from in &mut readers {
        open.push(read(from)?);
    }
    let stored = learn::readable_open(store, open).await?;
    stored
        .into_iter()
        .zip(&mut readers)
        .filter_map(|(stored, from)| Some((stored?, from)))
        .map(|(stored, from)| {
            Ok(Claimed {
                stored,
                key: from.get()?,
                name: from.get()?,
                payload: from.text()?,
                labels: labels_from_json(from.get::<Option<&str>>()?),
                executor: from.get()?,
                step: from.get()?,
                traceparent: from.get()?,
                promoted: false,
            })
        })
        .collect()
}

pub static CANDIDATES: LazyLock<String> = LazyLock::new(|| {
    let dispatching = dispatching();
    format!(
        "with c as materialized (
       select x.*, row_number() over (partition by x.lane order by x.prio, x.submitted_at, x.id) as n
       from unnest($1::int4[]) as l(lane) cross join lateral (
         select o.id, o.lane, o.prio, o.submitted_at, o.execution_id, o.version from task_open o
         where o.lane = l.lane and o.state = 1 and o.hold = 0 and (o.expires_at is null or o.expires_at > $4)
         order by o.prio, o.submitted_at, o.id limit $3) x where {dispatching}),
     cut as (select prio, submitted_at, id from c where n = $3 order by prio, submitted_at, id limit 1)
     select id, execution_id, version from c
     where (prio, submitted_at, id) <= (select prio, submitted_at, id from cut) or not exists (select 1 from cut)
     order by prio, submitted_at, id limit $2"
    )
});

/// Only what has not moved since it was looked at: by now this transaction has its number, and what somebody else told of a task
/// meanwhile would come after what is told of it here (see `lock_log_order`). Said so that the index of all that are ready is no way to
/// them: on a guess the planner reads all of it for each.
pub static LOCK: LazyLock<String> = LazyLock::new(|| {
    format!(
        "select {}, {BODY} from unnest($1::uuid[], $2::int4[]) as i(id, version)
         join task_open o on o.id = i.id and o.version = i.version join task t on t.id = o.id
         where o.state + 0 = 1 and o.hold + 0 = 0 for update of o skip locked",
        columns("o", OpenRow::COLUMNS)
    )
});

/// Where each step is a row of history. While a claim waits for its turn, others may take all that it has looked at; then it looks
/// again.
async fn claim_step_by_step(
    store: &PostgresStore,
    request: &ClaimRequest,
    lanes: &[i32],
    now: Timestamp,
) -> Result<Vec<Claimed>, StoreError> {
    for _ in 0..LOOKS {
        if let Some(claimed) = claim_looked_at(store, request, lanes, now).await? {
            return Ok(claimed);
        }
    }
    Ok(Vec::new())
}

/// Executions are locked first and in order, then the tasks that are still free; nothing when there were some and none is.
async fn claim_looked_at(
    store: &PostgresStore,
    request: &ClaimRequest,
    lanes: &[i32],
    now: Timestamp,
) -> Result<Option<Vec<Claimed>>, StoreError> {
    let mut client = store.writer().await?;
    let tx = client.transaction().await?;
    let statement = tx.prepare_cached(&CANDIDATES).await?;
    let each = i64::from(per_lane(request.limit, lanes.len()));
    let candidates = tx.query(&statement, &[&lanes, &i64::from(request.limit), &each, &now.0]).await?;
    if candidates.is_empty() {
        return Ok(Some(Vec::new()));
    }
    let picked = |row: &tokio_postgres::Row| Picked { id: row.get(0), execution: row.get(1), version: row.get(2) };
    let picked: Vec<Picked> = candidates.iter().map(picked).collect();
    lease_picked(store, tx, std::slice::from_ref(request), &picked, now).await
}

/// A task to be leased, if it has not moved since it was looked at.
pub struct Picked {
    pub id: Uuid,
    pub execution: Option<Uuid>,
    pub version: i32,
}

/// Leases them to those who ask, in their order, and commits; nothing when none of them is left.
pub async fn lease_picked(
    store: &PostgresStore,
    tx: Transaction<'_>,
    requests: &[ClaimRequest],
    picked: &[Picked],
    now: Timestamp,
) -> Result<Option<Vec<Claimed>>, StoreError> {
    let ids: Vec<Uuid> = picked.iter().map(|it| it.id).collect();
    let versions: Vec<i32> = picked.iter().map(|it| it.version).collect();
    let mut executions: Vec<Uuid> = picked.iter().filter_map(|it| it.execution).collect();
    executions.sort_unstable();
    executions.dedup();
    lock_log_order(&tx, &executions).await?;
    let mut locked = lock_executions(store, &tx, &executions).await?;
    let statement = tx.prepare_cached(&LOCK).await?;
    let rows = tx.query(&statement, &[&ids, &versions]).await?;
    if rows.is_empty() {
        return Ok(None);
    }
    let mut found = read_claimed(store, &rows, OpenRow::read).await?;
    found.sort_by_key(Claimed::place);

    let mut claimed = Vec::with_capacity(found.len());
    let mut writes: Vec<(OpenRow, u32)> = Vec::with_capacity(found.len());
    let mut told: Vec<(i32, Record, u32)> = Vec::new();
    let mut lone: BTreeMap<Uuid, (i32, u32)> = BTreeMap::new();
    let dedupe: BTreeMap<Uuid, i16> = rows.iter().map(|row| (row.get(0), row.get("dedupe"))).collect();
    for mut it in found {
        let (before, request) = (&it.stored.task, whose(requests, claimed.len()));
        // By the task's own time, which may be ahead of the caller's, its deadline may have passed.
        let Ok(step) = transition::lease(before, request.worker.clone(), request.lease, now) else { continue };
        let lane = store.dictionary.lane_id(&before.lane).ok_or_else(|| corrupt("a task's lane"))?;
        let namespace = namespace_of(store, lane)?;
        match step.record {
            None => {
                lone.insert(before.id.0, (namespace, step.after.seq));
            }
            Some(record) => match record.execution {
                None => {
                    let first = record.seq;
                    told.push((namespace, record, first));
                }
                Some(id) => {
                    let (execution, log) =
                        locked.get_mut(&id.0).ok_or_else(|| corrupt("a task without its execution"))?;
                    if execution.state == ExecutionState::Pending {
                        log.add(Record::about_execution(id, EventKind::ExecutionStarted, now));
                        execution.state = ExecutionState::Running;
                        execution.started_at = Some(now);
                        execution.updated_at = now;
                        execution.version += 1;
                    }
                    log.add(record);
                }
            },
        }
        let fixed = Fixed {
            hard_deadline: it.stored.hard_deadline,
            dedupe: dedupe.get(&before.id.0).is_some_and(|mark| *mark != 0),
        };
        writes.push((OpenRow::new(&step.after, lane, it.stored.policy_id, fixed), before.version));
        it.stored.task = step.after;
        claimed.push(it);
    }
    update_open(&tx, &writes).await?;
    write_executions(&tx, locked.values().map(|(execution, log)| (execution, log.last))).await?;
    for (execution, log) in locked.into_values() {
        let namespace =
            store.dictionary.namespace(&execution.namespace).ok_or_else(|| corrupt("an execution's namespace"))?;
        told.extend(log.records.into_iter().map(|(record, first)| (namespace, record, first)));
    }
    append(&tx, &told).await?;
    write_feed(&tx, &told, now).await?;
    super::apply::write_plain_feed(&tx, &lone, now).await?;
    crate::panic_point!("postgres-claim-before-commit");
    tx.commit().await?;
    Ok(Some(claimed))
}
