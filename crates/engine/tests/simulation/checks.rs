//! The promises, checked against the store itself (model R-I1 to R-I21 as far as they apply to one store).

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};

use comeback_core::backoff::{self, Draw, Stream};
use comeback_core::replay::{Replayed, replay};
use comeback_core::{
    AttemptOutcome, Event, EventKind, ExecutionId, ExecutionState, PolicyLimits, Record, State, TaskId, Timestamp,
    Verdict,
};
use comeback_engine::store::{Loop, Stored, Subject};

use crate::Sim;

#[derive(Clone, Debug, Default)]
pub struct Summary {
    pub tasks: u64,
    pub events: u64,
    pub retries: u64,
    pub losses: u64,
    pub executions: u64,
    pub accepted: u64,
    pub refused: u64,
    pub failed_calls: u64,
    pub stale_reports_refused: u64,
    pub digest: u64,
}

impl Summary {
    pub fn add(&mut self, other: &Summary) {
        self.tasks += other.tasks;
        self.events += other.events;
        self.retries += other.retries;
        self.losses += other.losses;
        self.executions += other.executions;
        self.accepted += other.accepted;
        self.refused += other.refused;
        self.failed_calls += other.failed_calls;
        self.stale_reports_refused += other.stale_reports_refused;
        self.digest ^= other.digest;
    }

    /// A run in which nothing was done, retried, lost or refused would hold every promise and prove none.
    pub fn must_be_worth_something(&self) {
        assert!(self.tasks > 1_000, "{self:?}");
        assert!(self.retries > 500 && self.losses > 50 && self.executions > 100, "{self:?}");
        assert!(self.failed_calls > 200 && self.stale_reports_refused > 200, "{self:?}");
        assert!(self.accepted > self.failed_calls, "{self:?}");
    }
}

fn ensure(holds: bool, otherwise: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(otherwise()) }
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// Everything that must be true at any moment.
pub async fn check_all(sim: &Sim) -> Result<(), String> {
    let known: Vec<TaskId> = sim.ledger.lock().submitted.iter().copied().collect();
    let stored = sim.truth.load(&known).await.map_err(text)?;
    let mut executions: BTreeMap<ExecutionId, Vec<Stored>> = BTreeMap::new();
    for (id, stored) in known.iter().zip(stored) {
        let Some(stored) = stored else {
            return Err(format!("{id} was acknowledged and is not there (R-I1)"));
        };
        check_task(sim, &stored).await?;
        if let Some(execution) = stored.task.execution {
            executions.entry(execution).or_default().push(stored);
        }
    }
    for (id, tasks) in &executions {
        check_execution(sim, *id, tasks).await?;
    }
    check_keys(sim)?;
    check_leases(sim).await?;
    check_feed(sim, &known).await
}

async fn events_of(sim: &Sim, id: TaskId) -> Result<(Vec<Record>, Vec<Event>), String> {
    let records = sim.truth.history(Subject::Task(id), 0, 100_000).await.map_err(text)?;
    let events = records.iter().flat_map(Record::expand).collect();
    Ok((records, events))
}

async fn check_task(sim: &Sim, stored: &Stored) -> Result<(), String> {
    let task = &stored.task;
    let id = task.id;
    ensure(task.broken_invariant().is_none(), || format!("{id}: {:?}", task.broken_invariant()))?;
    let (records, events) = events_of(sim, id).await?;
    let dense = task.execution.is_none();
    let told = replay(&events, dense).map_err(|fault| format!("{id}: {fault} (R-I9, R-I18)\n{events:#?}"))?;
    let mut now = Replayed::of(task);
    if !dense {
        now.last_seq = told.last_seq;
    }
    ensure(told == now, || format!("{id}: the log says {told:?}, the row says {now:?} (R-I19)\n{events:#?}"))?;
    check_counters(stored, &events)?;
    check_starts(sim, stored, &events)?;
    check_delays(stored, &records)?;
    check_terminal(sim, task.state, id, &events)
}

/// R-I7, I-5: no counter beyond its limit. Whoever retries by hand and keeps the counters asks for one run more, and a loss of it is
/// counted like any other.
fn check_counters(stored: &Stored, events: &[Event]) -> Result<(), String> {
    let (task, Some(policy)) = (&stored.task, &stored.policy) else { return Ok(()) };
    let counters = task.counters;
    ensure(counters.attempt <= policy.max_retries, || format!("{}: {counters:?} (R-I7)", task.id))?;
    ensure(counters.throttled <= policy.max_throttles, || format!("{}: {counters:?} (R-I7)", task.id))?;
    ensure(counters.snoozed <= policy.max_snoozes, || format!("{}: {counters:?} (R-I7)", task.id))?;
    let by_hand = events.iter().filter(|event| event.kind == EventKind::TaskManualRetry).count();
    let lost_limit = policy.max_lost.max(policy.max_retries) + 1 + u32::try_from(by_hand).unwrap_or(u32::MAX);
    ensure(counters.lost <= lost_limit, || format!("{}: {counters:?} (R-I7)", task.id))
}

/// R-I10, R-I14, R-I16: nothing starts early, after its deadline, or is promoted while its loop is paused.
fn check_starts(sim: &Sim, stored: &Stored, events: &[Event]) -> Result<(), String> {
    let id = stored.task.id;
    let mut not_before: Option<Timestamp> = None;
    for event in events {
        let due = event.data.get("next_retry_at").and_then(|at| at.as_str());
        let due = due.and_then(|at| Timestamp::parse_rfc3339(at).ok());
        match event.kind {
            EventKind::TaskRetryScheduled
            | EventKind::TaskThrottled
            | EventKind::TaskSnoozed
            | EventKind::TaskRescheduled => not_before = due,
            EventKind::TaskManualRetry | EventKind::TaskReopened => not_before = None,
            EventKind::TaskRetryDue | EventKind::AttemptStarted => {
                let early = not_before.is_some_and(|at| event.at < at);
                let story = || {
                    events
                        .iter()
                        .map(|it| format!("\n{} {} {} {}", it.seq, it.at.0, it.kind, it.data))
                        .collect::<String>()
                };
                ensure(!early, || format!("{id}: {event:?} came before {not_before:?} (R-I10){}", story()))?;
            }
            _ => {}
        }
        let promoted_by = match event.kind {
            EventKind::TaskRetryDue => Some(Loop::Retries),
            EventKind::TaskStuckRecovered => Some(Loop::Reap),
            _ => None,
        };
        if let Some(name) = promoted_by {
            for pause in sim.ledger.lock().pauses.iter().filter(|pause| pause.name == name) {
                let inside = pause.from < event.at && event.at < pause.until;
                ensure(!inside, || format!("{id}: {event:?} while paused: {pause:?} (R-I16)"))?;
            }
        }
        if event.kind == EventKind::AttemptStarted {
            let late = stored.task.expires_at.is_some_and(|deadline| event.at >= deadline);
            ensure(!late, || format!("{id}: {event:?} after its deadline (R-I14)"))?;
        }
    }
    Ok(())
}

/// R-I12: every delay is the one that policy, ordinal and hash define.
fn check_delays(stored: &Stored, records: &[Record]) -> Result<(), String> {
    let Some(policy) = &stored.policy else { return Ok(()) };
    for record in records {
        let Some(decision) = &record.decision else { continue };
        let Some(delay) = &decision.delay else { continue };
        if decision.verdict != Verdict::Retry || decision.matched.as_deref().is_some_and(|it| it.starts_with("rules")) {
            continue;
        }
        let stream = if decision.reason == comeback_core::Reason::LostRetry { Stream::Loss } else { Stream::Retry };
        let draw = Draw { task: stored.task.id, cycle: record.cycle, stream };
        let defined = backoff::delay(&policy.backoff, delay.n, draw, &PolicyLimits::default());
        ensure(defined.base_ms == delay.base_ms && defined.jitter_ms == delay.jitter_ms, || {
            format!("{}: {delay:?} is not {defined:?} (R-I12)", stored.task.id)
        })?;
        let asked = delay.retry_after_ms.unwrap_or(0);
        let at_least = defined.total_ms.max(asked);
        let moved = !decision.notes.is_empty();
        ensure(moved || delay.total_ms >= at_least, || format!("{}: {delay:?} (R-I12)", stored.task.id))?;
    }
    Ok(())
}

/// R-I8: what was acknowledged as over stays over, unless somebody asked for another try.
fn check_terminal(sim: &Sim, state: State, id: TaskId, events: &[Event]) -> Result<(), String> {
    let ledger = sim.ledger.lock();
    if let Some(ended) = ledger.ended.get(&id) {
        let revived = ledger.revived.contains(&id);
        let reopened = events.iter().any(|event| event.kind == EventKind::TaskReopened);
        ensure(state == *ended || revived || reopened, || {
            format!("{id} was acknowledged as {ended} and is {state} (R-I8)")
        })?;
    }
    Ok(())
}

/// I-16, R-I2, R-I18: the counts are what the tasks are, the log is whole, and no child was forgotten.
async fn check_execution(sim: &Sim, id: ExecutionId, tasks: &[Stored]) -> Result<(), String> {
    let graph = sim.truth.graph(id, None).await.map_err(text)?.ok_or_else(|| format!("{id} is not there (R-I1)"))?;
    let execution = &graph.execution;
    ensure(graph.tasks.len() == execution.total as usize, || format!("{id} is not whole (R-I2)"))?;
    ensure(tasks.len() == graph.tasks.len(), || format!("{id} was answered in part (R-I2)"))?;
    let open = graph.tasks.iter().filter(|task| task.stored.task.state.is_open()).count();
    ensure(open == execution.open as usize, || format!("{id}: {open} open, {execution:?} (I-16)"))?;
    ensure((open == 0) == execution.state.is_terminal(), || format!("{id}: {open} open, {execution:?} (I-16)"))?;
    let states: HashMap<TaskId, State> =
        graph.tasks.iter().map(|task| (task.stored.task.id, task.stored.task.state)).collect();
    let mut unhandled = 0;
    for task in &graph.tasks {
        let (state, it) = (task.stored.task.state, &task.stored.task);
        let edges = task.edges.clone().unwrap_or_default();
        if state.is_failure() && !edges.out.iter().any(|edge| edge.is_met_by(state)) {
            unhandled += 1;
        }
        if it.paused_from.unwrap_or(state) == State::Waiting {
            let left = edges
                .into
                .iter()
                .filter(|edge| !states.get(&edge.from).is_some_and(|end| end.is_terminal() && edge.is_met_by(*end)))
                .count();
            ensure(left == it.needs_left as usize, || {
                format!("{}: {left} needs are left, the row says {} (R-I13)", it.id, it.needs_left)
            })?;
            ensure(left > 0 || it.start_at.is_some() || state == State::Paused, || {
                format!("{} waits for nothing", it.id)
            })?;
        }
    }
    if execution.state == ExecutionState::Succeeded || execution.state == ExecutionState::Failed {
        let verdict = if unhandled == 0 { ExecutionState::Succeeded } else { ExecutionState::Failed };
        ensure(verdict == execution.state, || format!("{id}: {unhandled} unhandled, {execution:?} (E3, E4)"))?;
    }
    let records = sim.truth.history(Subject::Execution(id), 0, 100_000).await.map_err(text)?;
    let events: Vec<Event> = records.iter().flat_map(Record::expand).collect();
    let mut paused = false;
    for (event, expected) in events.iter().zip(1..) {
        ensure(event.seq == expected, || format!("{id}: event {} where {expected} belongs (R-I18)", event.seq))?;
        match event.kind {
            EventKind::ExecutionPaused => paused = true,
            EventKind::ExecutionResumed => paused = false,
            EventKind::AttemptStarted | EventKind::TaskRetryDue => {
                ensure(!paused, || format!("{id}: {event:?} while the execution was paused (E5)"))?;
            }
            _ => {}
        }
    }
    Ok(())
}

/// R-I3: one key, one task.
fn check_keys(sim: &Sim) -> Result<(), String> {
    for (key, tasks) in &sim.ledger.lock().keys {
        ensure(tasks.len() <= 1, || format!("key {key} made {tasks:?} (R-I3)"))?;
    }
    Ok(())
}

/// R-I4: a run is taken from its worker only by its own word, by the end of its lease, or by an outside hand; so nobody else
/// gets the task while the lease is live.
async fn check_leases(sim: &Sim) -> Result<(), String> {
    let leases = sim.ledger.lock().leases.clone();
    let keys: Vec<(TaskId, u32)> = leases.keys().copied().collect();
    let ended = sim.truth.ended(&keys).await.map_err(text)?;
    for (((task, number), given), record) in leases.iter().zip(ended) {
        let Some(record) = record else {
            let next = leases.contains_key(&(*task, number + 1));
            ensure(!next, || format!("{task}: lease {} was given before lease {number} had ended (R-I4)", number + 1))?;
            continue;
        };
        let fair = match record.outcome {
            Some(AttemptOutcome::Lost) => record.at >= given.promised_until || sim.ledger.lock().revived.contains(task),
            Some(AttemptOutcome::Succeeded | AttemptOutcome::Snoozed | AttemptOutcome::Released) => {
                given.accepted.is_some() || given.unheard
            }
            _ => true,
        };
        ensure(fair, || format!("{task}: lease {number} was taken from its worker: {given:?} {record:?} (R-I4)"))?;
    }
    Ok(())
}

/// R-I20: the feed tells every event of every task once, in the order of its execution.
async fn check_feed(sim: &Sim, known: &[TaskId]) -> Result<(), String> {
    let mut told: BTreeMap<ExecutionId, Vec<u32>> = BTreeMap::new();
    let mut cursor = None;
    loop {
        let feed = sim.truth.feed(cursor, 500).await.map_err(text)?;
        for it in &feed.events {
            told.entry(it.event.execution).or_default().push(it.event.seq);
        }
        if feed.next == cursor {
            break;
        }
        cursor = feed.next;
    }
    let mut seen: BTreeSet<ExecutionId> = BTreeSet::new();
    for stored in sim.truth.load(known).await.map_err(text)?.into_iter().flatten() {
        let execution = stored.task.execution.unwrap_or(stored.task.id.implicit_execution());
        if !seen.insert(execution) {
            continue;
        }
        let records = sim.truth.history(Subject::Execution(execution), 0, 100_000).await.map_err(text)?;
        let written: Vec<u32> = records.iter().flat_map(Record::expand).map(|event| event.seq).collect();
        let told = told.remove(&execution).unwrap_or_default();
        ensure(told == written, || format!("{execution}: the feed told {told:?} of {written:?} (R-I20)"))?;
    }
    Ok(())
}

/// When all is settled: nothing is open, and the run was worth something.
pub async fn check_over(sim: &Sim) -> Result<Summary, String> {
    let known: Vec<TaskId> = sim.ledger.lock().submitted.iter().copied().collect();
    let mut summary = Summary { tasks: known.len() as u64, ..Summary::default() };
    let mut hasher = DefaultHasher::new();
    let mut executions = BTreeSet::new();
    for stored in sim.truth.load(&known).await.map_err(text)?.into_iter().flatten() {
        ensure(stored.task.state.is_terminal(), || format!("{:?} is still open", stored.task))?;
        executions.extend(stored.task.execution);
        let (_, events) = events_of(sim, stored.task.id).await?;
        for event in &events {
            format!("{event:?}").hash(&mut hasher);
            summary.events += 1;
            match event.kind {
                EventKind::TaskRetryScheduled => summary.retries += 1,
                EventKind::TaskStuckRecovered => summary.losses += 1,
                _ => {}
            }
        }
    }
    let counts = sim.ledger.lock().counts;
    summary.executions = executions.len() as u64;
    summary.accepted = counts.accepted;
    summary.refused = counts.refused;
    summary.failed_calls = counts.failed_calls;
    summary.stale_reports_refused = counts.stale_reports_refused;
    summary.digest = hasher.finish();
    Ok(summary)
}
