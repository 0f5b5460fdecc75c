//! Verdicts about lone tasks that are open. The two that carry the load have statements of their own, as narrow as they can be: what
//! the open row already says is taken from there, and the version guards that it still says it.

use std::sync::LazyLock;

use comeback_core::{AttemptOutcome, Commit, EventKind, Record, State, Task, Timestamp, Write};
use deadpool_postgres::GenericClient;
use tokio_postgres::types::ToSql;

use crate::postgres::PostgresStore;
use crate::postgres::columns::{Params, RetryColumns, SuccessColumns};
use crate::row::{DoneColumns, DoneRow, Fixed, HistoryColumns, HistoryRow, OpenColumns, OpenRow, corrupt};
use crate::{Applied, StoreError};

/// One verdict with all that any of the statements needs of it.
pub struct Verdict<'a> {
    /// Its place in the call.
    pub index: i32,
    pub expected: i32,
    pub namespace: i32,
    /// For the feed: the first event that is new, and the last.
    pub first: i32,
    pub last: i32,
    pub events: Vec<u8>,
    pub task: &'a Task,
    pub open: OpenRow,
    pub history: HistoryRow,
}

/// Verdicts sorted by the statement that writes them.
#[derive(Default)]
pub struct Lone<'a> {
    successes: Vec<Verdict<'a>>,
    retries: Vec<Verdict<'a>>,
    ends: Vec<Verdict<'a>>,
    moves: Vec<Verdict<'a>>,
}

impl<'a> Lone<'a> {
    /// Commits about one open task outside of executions, and the numbers of all others.
    pub fn part(
        store: &PostgresStore,
        commits: &'a [Commit],
        round: &[usize],
    ) -> Result<(Lone<'a>, Vec<usize>), StoreError> {
        let is_lone = |commit: &Commit| {
            commit.executions.is_empty() && commit.writes.len() == 1 && commit.writes.iter().all(|w| w.from.is_open())
        };
        let (lone, whole): (Vec<usize>, Vec<usize>) = round.iter().partition(|index| is_lone(&commits[**index]));
        Ok((Lone::gather(store, commits, &lone)?, whole))
    }

    fn gather(store: &PostgresStore, commits: &'a [Commit], indexes: &[usize]) -> Result<Lone<'a>, StoreError> {
        let mut lone = Lone::default();
        for index in indexes {
            let commit = &commits[*index];
            let (Some(write), Some(record)) = (commit.writes.first(), commit.records.first()) else { continue };
            let sort = match sort_of(write, record) {
                Sort::Success => &mut lone.successes,
                Sort::Retry => &mut lone.retries,
                Sort::End => &mut lone.ends,
                Sort::Move => &mut lone.moves,
            };
            sort.push(Verdict::new(store, *index, write, record)?);
        }
        // In one order for everybody, so that two that report the same tasks never wait for each other.
        for list in [&mut lone.successes, &mut lone.retries, &mut lone.ends, &mut lone.moves] {
            list.sort_unstable_by_key(|verdict| verdict.task.id);
        }
        Ok(lone)
    }

    pub fn is_one_statement(&self) -> bool {
        let lists = [&self.successes, &self.retries, &self.ends, &self.moves];
        lists.iter().filter(|list| !list.is_empty()).count() <= 1
    }

    pub async fn write(
        &self,
        client: &impl GenericClient,
        now: Timestamp,
        answers: &mut [Applied],
    ) -> Result<(), StoreError> {
        if !self.successes.is_empty() {
            let mut columns = SuccessColumns::default();
            self.successes.iter().for_each(|verdict| columns.push(verdict));
            run(client, &SUCCESS, columns.params(), now, answers).await?;
        }
        if !self.retries.is_empty() {
            let mut columns = RetryColumns::default();
            self.retries.iter().for_each(|verdict| columns.push(verdict));
            run(client, &RETRY, columns.params(), now, answers).await?;
        }
        if !self.ends.is_empty() {
            let done: Vec<DoneRow> =
                self.ends.iter().map(|verdict| DoneRow::new(verdict.task, verdict.open.lane, None)).collect();
            let mut columns = DoneColumns::default();
            done.iter().for_each(|row| columns.push(row));
            run_wide(client, &END, columns.params(), &self.ends, now, answers).await?;
        }
        if !self.moves.is_empty() {
            let mut columns = OpenColumns::default();
            self.moves.iter().for_each(|verdict| columns.push(&verdict.open));
            run_wide(client, &MOVE, columns.params(), &self.moves, now, answers).await?;
        }
        Ok(())
    }
}

enum Sort {
    Success,
    Retry,
    End,
    Move,
}

/// A worker's run that succeeded, or that failed and will be tried again, and nothing beside it. A hook may have counted.
fn sort_of(write: &Write, record: &Record) -> Sort {
    let plain = write.from == State::Running
        && record.actor.is_none()
        && record.data.is_none()
        && !write.after.lane.writes_each_step();
    match (write.after.state, record.outcome) {
        (State::Succeeded, Some(AttemptOutcome::Succeeded)) if plain => Sort::Success,
        (State::RetryPending, Some(_)) if plain && record.failure.is_some() => Sort::Retry,
        (state, _) if state.is_terminal() => Sort::End,
        _ => Sort::Move,
    }
}

impl<'a> Verdict<'a> {
    fn new(
        store: &PostgresStore,
        index: usize,
        write: &'a Write,
        record: &'a Record,
    ) -> Result<Verdict<'a>, StoreError> {
        // The lane of an open row stays as it is; one that is over is in the lane without limits.
        let lane = store.dictionary.base_id(&write.after.lane).ok_or_else(|| corrupt("a task's lane"))?;
        let namespace = store.dictionary.lane_namespace(lane).ok_or_else(|| corrupt("a lane's namespace"))?;
        let first = record.seq + record.carried;
        Ok(Verdict {
            index: i32::try_from(index).unwrap_or(i32::MAX),
            expected: write.expected_version.cast_signed(),
            namespace,
            first: first.cast_signed(),
            last: record.last_seq().max(first).cast_signed(),
            events: EventKind::pack(&record.events),
            task: &write.after,
            open: OpenRow::new(&write.after, lane, None, Fixed::default()),
            history: HistoryRow::new(record, record.seq),
        })
    }
}

async fn run(
    client: &impl GenericClient,
    sql: &str,
    mut params: Params<'_>,
    now: Timestamp,
    answers: &mut [Applied],
) -> Result<(), StoreError> {
    params.push(&now.0);
    let statement = client.prepare_cached(sql).await?;
    for row in client.query(&statement, &params).await? {
        answers[row.get::<_, i32>(0).cast_unsigned() as usize] = Applied::Done;
    }
    Ok(())
}

/// For the statements that write whole rows: the row, its history, and what goes along.
async fn run_wide(
    client: &impl GenericClient,
    sql: &str,
    row_params: Params<'_>,
    verdicts: &[Verdict<'_>],
    now: Timestamp,
    answers: &mut [Applied],
) -> Result<(), StoreError> {
    let mut history = HistoryColumns::default();
    verdicts.iter().for_each(|verdict| history.push(&verdict.history));
    let number = |of: fn(&Verdict<'_>) -> i32| -> Vec<i32> { verdicts.iter().map(of).collect() };
    let extra = [
        number(|it| it.index),
        number(|it| it.expected),
        number(|it| it.namespace),
        number(|it| it.first),
        number(|it| it.last),
    ];
    let mut params = row_params;
    params.extend(history.params());
    params.extend(extra.iter().map(|column| column as &(dyn ToSql + Sync)));
    run(client, sql, params, now, answers).await
}

/// The feed rows that every one of these statements writes.
fn feed(from: &str, now: usize) -> String {
    format!(
        "f as (insert into feed (at, namespace, ids, firsts, lasts)
           select ${now}, x_namespace, array_agg(id), array_agg(x_first), array_agg(x_last)
           from {from} group by x_namespace)"
    )
}

/// A dedupe key goes with the task that held it.
const FREE_KEYS: &str = "k as (delete from dedupe k using d, task t
    where d.o_dedupe = 1 and t.id = d.id and k.namespace = t.namespace and k.key = t.dedupe_key)";

/// The lane of what is over.
const BASE: &str =
    "case when lane < 1073741824 then lane else (select r.lane from ruled_lane r where r.id = d.lane) end";

pub static SUCCESS: LazyLock<String> = LazyLock::new(|| {
    format!(
        "with i as materialized (select * from unnest({arrays}) as i({names})),
         d as (delete from task_open o using i where o.id = i.id and o.version = i.x_expected
           returning i.*, o.lane, o.policy, o.version, o.attempt, o.lost, o.throttled, o.snoozed, o.cycle, o.run,
             o.lease_no, o.worker, o.ready_at, o.started_at, o.first_failed_at, o.expires_at, o.fingerprint, o.expected,
             o.success, o.failures, o.dedupe as o_dedupe),
         n as (insert into task_done (id, lane, policy, state, version, seq, attempt, lost, throttled, snoozed, cycle, run,
             lease_no, started_at, ended_at, updated_at, first_failed_at, expires_at, reason, fingerprint, expected,
             success, failures)
           select id, {BASE}, policy, {succeeded}, version + 1, x_last, attempt, lost, throttled, snoozed, cycle, run,
             lease_no, started_at, at, at, first_failed_at, expires_at, {reason}, fingerprint, expected, success, failures
           from d),
         h as (insert into history (subject, seq, events, at, ready_at, started_at, cycle, run, attempt, lease_no, outcome,
             worker, result)
           select id, seq, events, at, ready_at, started_at, cycle, run, attempt, lease_no, {outcome}, worker, result
           from d),
         {FREE_KEYS},
         {feed}
         select x_index from d",
        arrays = SuccessColumns::arrays(1),
        names = SuccessColumns::names(""),
        succeeded = State::Succeeded.code(),
        reason = comeback_core::Reason::Succeeded.code(),
        outcome = AttemptOutcome::Succeeded.code(),
        feed = feed("d", 1 + SuccessColumns::WIDTH),
    )
});

pub static RETRY: LazyLock<String> = LazyLock::new(|| {
    format!(
        "with i as materialized (select * from unnest({arrays}) as i({names})),
         u as (update task_open o set state = {state}, version = o.version + 1, seq = i.x_last, unwritten = 0,
             ready_at = null, attempt = i.attempt, lost = i.lost, throttled = i.throttled, snoozed = i.snoozed,
             rule_counts = i.rule_counts, worker = null, lease_at = null, lease_expires = null, due = i.due,
             next_retry_at = i.next_retry_at, held_until = i.held_until, held_by = i.held_by, timeout_at = null,
             first_failed_at = i.first_failed_at, updated_at = i.at, class = i.class,
             fingerprint = i.fingerprint
           from i where o.id = i.id and o.version = i.x_expected returning i.*),
         h as (insert into history (subject, seq, events, at, ready_at, started_at, cycle, run, attempt, lease_no, outcome,
             worker, error, decision)
           select id, seq, events, at, ready_at, started_at, cycle, run, attempt, lease_no, outcome, worker, error,
             decision from u),
         {feed}
         select x_index from u",
        arrays = RetryColumns::arrays(1),
        names = RetryColumns::names(""),
        state = State::RetryPending.code(),
        feed = feed("u", 1 + RetryColumns::WIDTH),
    )
});

const EXTRA: &str = "x_index, x_expected, x_namespace, x_first, x_last";

fn extra_arrays(first: usize) -> String {
    (first..first + 5).map(|n| format!("${n}::int4[]")).collect::<Vec<_>>().join(", ")
}

fn prefixed(prefix: &str, names: &[&str]) -> String {
    names.iter().map(|name| format!("{prefix}{name}")).collect::<Vec<_>>().join(", ")
}

/// Any end: the whole row is written.
pub static END: LazyLock<String> = LazyLock::new(|| {
    let done: Vec<&str> = DoneRow::COLUMNS.iter().copied().filter(|name| *name != "policy").collect();
    let (history_at, extra_at) = (1 + DoneColumns::WIDTH, 1 + DoneColumns::WIDTH + HistoryColumns::WIDTH);
    format!(
        "with i as materialized (
           select * from unnest({}, {}, {}) as i({}, {}, {EXTRA})),
         d as (delete from task_open o using i where o.id = i.id and o.version = i.x_expected
           returning i.*, o.policy as o_policy, o.dedupe as o_dedupe),
         n as (insert into task_done ({done}, policy) select {done}, o_policy from d),
         h as (insert into history ({history}) select {h_history} from d),
         {FREE_KEYS},
         {feed}
         select x_index from d",
        DoneColumns::arrays(1),
        HistoryColumns::arrays(history_at),
        extra_arrays(extra_at),
        DoneColumns::names(""),
        HistoryColumns::names("h_"),
        done = done.join(", "),
        history = HistoryRow::COLUMNS.join(", "),
        h_history = prefixed("h_", HistoryRow::COLUMNS),
        feed = feed("d", extra_at + 5),
    )
});

/// The columns of an open row that a verdict writes: all but what identifies it and what only the store knows.
pub static MOVED: LazyLock<String> = LazyLock::new(|| {
    let kept = ["id", "lane", "execution_id", "policy", "submitted_at", "hard_deadline", "dedupe"];
    let moved = OpenRow::COLUMNS.iter().filter(|name| !kept.contains(name));
    moved.map(|name| format!("{name} = i.{name}")).collect::<Vec<_>>().join(", ")
});

/// Any other change of an open row: the whole row is written.
pub static MOVE: LazyLock<String> = LazyLock::new(|| {
    let (history_at, extra_at) = (1 + OpenColumns::WIDTH, 1 + OpenColumns::WIDTH + HistoryColumns::WIDTH);
    format!(
        "with i as materialized (
           select * from unnest({}, {}, {}) as i({}, {}, {EXTRA})),
         u as (update task_open o set {} from i where o.id = i.id and o.version = i.x_expected returning i.*),
         h as (insert into history ({history}) select {h_history} from u),
         {feed}
         select x_index from u",
        OpenColumns::arrays(1),
        HistoryColumns::arrays(history_at),
        extra_arrays(extra_at),
        OpenColumns::names(""),
        HistoryColumns::names("h_"),
        *MOVED,
        history = HistoryRow::COLUMNS.join(", "),
        h_history = prefixed("h_", HistoryRow::COLUMNS),
        feed = feed("u", extra_at + 5),
    )
});
