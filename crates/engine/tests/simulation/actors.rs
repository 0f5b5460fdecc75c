//! Who does what: a client, workers that are slow, silent or late, an operator, the loops of each instance, and time.

use std::collections::HashSet;

use comeback_core::filter::{Filter, Sort};
use comeback_core::transition::Actor;
use comeback_core::{
    Class, Dialect, Failure, Millis, OnUnmet, PolicyLimits, RetryAfter, State, TaskId, Timestamp, Trigger, When,
    dialect,
};
use comeback_engine::store::{BeatAnswer, Idempotency, ListQuery, Loop};
use comeback_engine::{
    CommandError, ExecutionSpec, Heartbeat, LeaseRef, LeaseRequest, ManualRetry, Moment, Need, Report, ReportEnd,
    Submit, TaskSpec,
};
use serde_json::json;

use crate::Sim;
use crate::ledger::{GivenLease, PausedLoop};
use crate::rng::Rng;

const LEASE: Millis = Millis(30_000);

type Outcome = Result<(), String>;

fn policy(rng: &mut Rng) -> Option<comeback_core::Policy> {
    let value = match rng.below(8) {
        0 => return None,
        1 => json!({"strategy": "immediate", "max_retries": 2}),
        2 => json!({"strategy": "fixed", "delay_ms": 500 + rng.below(20_000), "max_retries": 3, "on_lost": "count"}),
        3 => json!({"max_retries": 4, "initial_delay": "1s", "jitter": "full", "max_lost": 1}),
        4 => {
            json!({"max_retries": 3, "initial_delay": "2s", "jitter": "decorrelated", "max_delay": "1m", "max_throttles": 2})
        }
        5 => json!({"schedule": ["5s", "1m", "10m"], "jitter": "equal", "max_snoozes": 1}),
        6 => json!({"max_retries": 2, "initial_delay": "3s", "max_elapsed": "40s", "last_try": true}),
        _ => json!({"max_retries": 1, "on_exhausted": "park", "rules": [
            {"match": {"status": 503}, "then": "retry", "delay": "4s", "max": 1},
            {"match": {"code": "quota"}, "then": "snooze", "delay": "30s"}]}),
    };
    dialect::parse(&value, Dialect::Native, &PolicyLimits::default()).expect("a policy")
}

fn task(rng: &mut Rng) -> TaskSpec {
    let mut spec = TaskSpec::new(["a", "b", "c"][rng.below(3) as usize]);
    spec.retry = policy(rng).map(Into::into);
    spec.priority = rng.below(3) as i32 - 1;
    if rng.percent(20) {
        spec.start = Some(Moment::After(Millis(rng.below(60_000))));
    }
    if rng.percent(20) {
        spec.timeout = Some(Millis(5_000 + rng.below(20_000)));
    }
    if rng.percent(15) {
        spec.deadline = Some(Moment::After(Millis(20_000 + rng.below(200_000))));
    }
    spec
}

fn execution(rng: &mut Rng) -> Submit {
    let size = 2 + rng.below(5) as usize;
    let mut tasks: Vec<TaskSpec> =
        (0..size).map(|n| TaskSpec { key: Some(format!("t{n}")), deadline: None, ..task(rng) }).collect();
    for (to, task) in tasks.iter_mut().enumerate() {
        for from in 0..to {
            if rng.percent(40) {
                let when = [When::Success, When::Success, When::Failure, When::Always][rng.below(4) as usize];
                let on_unmet = if rng.percent(30) { OnUnmet::Fail } else { OnUnmet::Skip };
                task.needs.push(Need { task: format!("t{from}"), when, on_unmet });
            }
        }
    }
    let spec =
        ExecutionSpec { fail_fast: rng.percent(20), dead_end_cancel: rng.percent(30), ..ExecutionSpec::default() };
    Submit { namespace: "default".into(), tasks, execution: Some(spec), ..Submit::default() }
}

/// Submits, and asks again with the same key when it is not sure.
pub async fn client(sim: Sim, mut rng: Rng, steps: u64) -> Outcome {
    for _ in 0..steps {
        let mut submit = if rng.percent(25) {
            execution(&mut rng)
        } else {
            let tasks = (0..1 + rng.below(3)).map(|_| task(&mut rng)).collect();
            Submit { namespace: "default".into(), tasks, ..Submit::default() }
        };
        let key = rng.percent(60).then(|| rng.next());
        submit.idempotency =
            key.map(|key| Idempotency { scope: "tasks".into(), key: key.to_string(), digest: [1; 32] });
        let tries = if key.is_some() { 1 + rng.below(3) } else { 1 };
        for _ in 0..tries {
            let answer = sim.engine(&mut rng).submit(submit.clone()).await;
            let mut ledger = sim.ledger.lock();
            match answer {
                Ok(answer) => {
                    ledger.counts.accepted += 1;
                    ledger.submitted.extend(answer.tasks.iter().map(|task| task.id));
                    if let Some(key) = key {
                        ledger.keys.entry(key).or_default().extend(answer.tasks.first().map(|task| task.id));
                    }
                }
                Err(CommandError::Store(_)) => ledger.counts.failed_calls += 1,
                Err(error) => return Err(format!("a good submission was refused: {error}")),
            }
        }
        tokio::task::yield_now().await;
    }
    Ok(())
}

fn end(rng: &mut Rng) -> (ReportEnd, &'static str) {
    let failure = Failure::new(Trigger::Error, format!("boom {}", rng.below(5)));
    match rng.below(12) {
        0..4 => (ReportEnd::Succeeded { result: Some(json!({"n": rng.below(9)}).into()) }, "succeeded"),
        4..8 => (ReportEnd::Failed(failure), "failed"),
        8 => (ReportEnd::Failed(Failure { class: Some(Class::Final), ..failure }), "failed"),
        9 => {
            let retry_after = Some(RetryAfter::Span(Millis(rng.below(30_000))));
            (ReportEnd::Failed(Failure { class: Some(Class::RateLimited), retry_after, ..failure }), "failed")
        }
        10 => (ReportEnd::Snoozed { delay: Millis(rng.below(20_000)) }, "snoozed"),
        _ => (ReportEnd::Released, "released"),
    }
}

/// Leases, works, and reports: in time, late, twice, or never.
pub async fn worker(sim: Sim, mut rng: Rng, name: u64, steps: u64) -> Outcome {
    let mut held: Vec<LeaseRef> = Vec::new();
    let mut past: Vec<(LeaseRef, ReportEnd)> = Vec::new();
    for _ in 0..steps {
        match rng.below(10) {
            0..4 => lease(&sim, &mut rng, name, &mut held).await?,
            4..8 if !held.is_empty() => {
                let lease = held.remove(rng.below(held.len() as u64) as usize);
                let (end, word) = end(&mut rng);
                report(&sim, &mut rng, lease, end.clone(), word).await?;
                past.push((lease, end));
            }
            8 if !held.is_empty() => heartbeat(&sim, &mut rng, &held).await?,
            9 if !past.is_empty() => {
                // Again the same, or another word about the same run.
                let (lease, same) = past[rng.below(past.len() as u64) as usize].clone();
                let (other, word) = end(&mut rng);
                if rng.percent(50) {
                    let word = word_of(&same);
                    report(&sim, &mut rng, lease, same, word).await?;
                } else {
                    report(&sim, &mut rng, lease, other, word).await?;
                }
            }
            _ => {
                // Goes silent and forgets what it held: its leases run out.
                if rng.percent(20) {
                    held.clear();
                }
            }
        }
        tokio::task::yield_now().await;
    }
    Ok(())
}

fn word_of(end: &ReportEnd) -> &'static str {
    match end {
        ReportEnd::Succeeded { .. } => "succeeded",
        ReportEnd::Failed(_) => "failed",
        ReportEnd::Snoozed { .. } => "snoozed",
        ReportEnd::Released => "released",
    }
}

async fn lease(sim: &Sim, rng: &mut Rng, name: u64, held: &mut Vec<LeaseRef>) -> Outcome {
    let request = LeaseRequest {
        limit: 1 + rng.below(3) as u32,
        lease: LEASE,
        kinds: if rng.percent(30) { vec!["a".into(), "b".into()] } else { Vec::new() },
        ..LeaseRequest::new("default", format!("worker-{name}"))
    };
    let asked_at_step = sim.ledger.lock().step();
    let answer = sim.engine(rng).lease(request).await;
    let now = sim.clock_now();
    let mut ledger = sim.ledger.lock();
    let leased = match answer {
        Err(CommandError::Store(_)) => {
            ledger.counts.failed_calls += 1;
            return Ok(());
        }
        Err(error) => return Err(format!("a good lease request was refused: {error}")),
        Ok(leased) => leased,
    };
    for it in leased {
        let expires_at = it.expires_at.ok_or("a lease without an end")?;
        let given = GivenLease {
            worker: name,
            asked_at_step,
            granted_at: now,
            expires_at,
            promised_until: expires_at,
            accepted: None,
            unheard: false,
        };
        if ledger.leases.insert((it.lease.task, it.lease.number), given).is_some() {
            return Err(format!("lease {} of {} was given twice (R-I4)", it.lease.number, it.lease.task));
        }
        if let Some(canceled) = ledger.canceled.get(&it.lease.task)
            && *canceled < asked_at_step
        {
            return Err(format!("{} was leased after its cancel was acknowledged (R-I17)", it.lease.task));
        }
        held.push(it.lease);
    }
    Ok(())
}

async fn heartbeat(sim: &Sim, rng: &mut Rng, held: &[LeaseRef]) -> Outcome {
    let beats: Vec<Heartbeat> =
        held.iter().map(|lease| Heartbeat { lease: *lease, extend: LEASE, progress: None }).collect();
    let answers = sim.engine(rng).heartbeat(&beats).await;
    let now = sim.clock_now();
    let mut ledger = sim.ledger.lock();
    let Ok(answers) = answers else {
        // It may have been taken without our hearing of it.
        for lease in held {
            if let Some(given) = ledger.lease_of(*lease) {
                given.expires_at = given.expires_at.max(now + LEASE);
            }
        }
        return Ok(());
    };
    for (lease, answer) in held.iter().zip(answers) {
        let Some(given) = ledger.lease_of(*lease) else { continue };
        match answer {
            BeatAnswer::Extended(until) => {
                if given.expires_at <= given.granted_at.max(until - LEASE) {
                    return Err(format!("an expired lease of {} was extended (R-I5)", lease.task));
                }
                given.expires_at = given.expires_at.max(until);
                given.promised_until = given.promised_until.max(until);
            }
            BeatAnswer::Canceled | BeatAnswer::Lost => {}
        }
    }
    Ok(())
}

async fn report(sim: &Sim, rng: &mut Rng, lease: LeaseRef, end: ReportEnd, word: &'static str) -> Outcome {
    let before = sim.clock_now();
    let answer = sim.engine(rng).report(vec![Report { lease, end }]).await;
    let mut ledger = sim.ledger.lock();
    let answer = match answer {
        Err(CommandError::Store(_)) => {
            ledger.counts.failed_calls += 1;
            if let Some(given) = ledger.lease_of(lease) {
                given.unheard = true;
            }
            return Ok(());
        }
        Err(error) => return Err(format!("a report was refused as a whole: {error}")),
        Ok(mut answers) => answers.remove(0),
    };
    match answer {
        Ok(reported) => {
            ledger.counts.accepted += 1;
            let Some(given) = ledger.lease_of(lease) else { return Err("a report about no lease".into()) };
            if !reported.repeated {
                if given.expires_at <= before {
                    return Err(format!("a report on an expired lease of {} was taken (R-I5)", lease.task));
                }
                if let Some(first) = given.accepted.replace(word) {
                    return Err(format!("{} ended twice in run {}: {first}, {word} (R-I5)", lease.task, lease.number));
                }
            }
            if reported.state.is_terminal() && !reported.repeated {
                ledger.ended.insert(lease.task, reported.state);
            }
        }
        Err(CommandError::LeaseLost | CommandError::TaskCanceled) => {
            ledger.counts.refused += 1;
            ledger.counts.stale_reports_refused += 1;
        }
        Err(CommandError::Conflict) => ledger.counts.refused += 1,
        Err(CommandError::Invalid(fault)) => return Err(format!("a good report was refused: {fault}")),
        Err(error) => return Err(error.to_string()),
    }
    Ok(())
}

/// Cancels, pauses, resumes, retries, moves, and pauses loops.
pub async fn operator(sim: Sim, mut rng: Rng, steps: u64) -> Outcome {
    for n in 0..steps {
        for _ in 0..rng.below(6) {
            tokio::task::yield_now().await;
        }
        if rng.percent(10) {
            restart_one(&sim, &mut rng, n).await;
            continue;
        }
        if rng.percent(15) {
            pause_a_loop(&sim, &mut rng).await?;
            continue;
        }
        let known: Vec<TaskId> = sim.ledger.lock().submitted.iter().copied().collect();
        let Some(id) = rng.pick(&known).copied() else { continue };
        act(&sim, &mut rng, id).await?;
    }
    Ok(())
}

async fn act(sim: &Sim, rng: &mut Rng, id: TaskId) -> Outcome {
    let engine = sim.engine(rng);
    let by = Actor { by: Some("operator".into()), ..Actor::default() };
    let answer = match rng.below(12) {
        0..2 => {
            let answer = engine.cancel("default", id, by).await;
            if answer.is_ok() {
                let mut ledger = sim.ledger.lock();
                let step = ledger.step();
                ledger.canceled.insert(id, step);
                ledger.ended.insert(id, State::Canceled);
            }
            answer.map(drop)
        }
        2..4 => engine.pause("default", id, by).await.map(drop),
        4..6 => engine.resume("default", id, by).await.map(drop),
        6..8 => {
            sim.ledger.lock().revived.insert(id);
            engine
                .retry(
                    "default",
                    id,
                    ManualRetry { keep_counters: rng.percent(30), payload_patch: None, request: by.into() },
                )
                .await
                .map(drop)
        }
        8 => engine.snooze("default", id, Millis(rng.below(30_000)), by).await.map(drop),
        9 => {
            let to = engine.now() + Millis(rng.below(60_000));
            engine.reschedule("default", id, to, by).await.map(drop)
        }
        choice => {
            let stored = sim.truth.load(&[id]).await.map_err(|error| error.to_string())?.remove(0);
            let Some(execution) = stored.and_then(|stored| stored.task.execution) else { return Ok(()) };
            match choice {
                10 if rng.percent(50) => engine.pause_execution("default", execution, by).await.map(drop),
                10 => engine.resume_execution("default", execution, by).await.map(drop),
                _ if rng.percent(30) => engine.cancel_execution("default", execution, by).await.map(drop),
                _ => {
                    let inside = sim.truth.graph(execution, None).await.map_err(|error| error.to_string())?;
                    for task in inside.into_iter().flat_map(|graph| graph.tasks) {
                        sim.ledger.lock().revived.insert(task.stored.task.id);
                    }
                    engine.retry_execution("default", execution, by).await.map(drop)
                }
            }
        }
    };
    let mut ledger = sim.ledger.lock();
    match answer {
        Ok(()) => ledger.counts.accepted += 1,
        Err(CommandError::Store(_)) => ledger.counts.failed_calls += 1,
        Err(CommandError::Invalid(fault)) => return Err(format!("a good command was refused: {fault}")),
        Err(_) => ledger.counts.refused += 1,
    }
    Ok(())
}

async fn pause_a_loop(sim: &Sim, rng: &mut Rng) -> Outcome {
    let name = [Loop::Retries, Loop::Starts, Loop::Reap, Loop::Timeout, Loop::Expire][rng.below(5) as usize];
    let engine = sim.engine(rng);
    let turn = {
        let mut ledger = sim.ledger.lock();
        let (under_way, ever) = ledger.turning.entry(name).or_default();
        *under_way += 1;
        *ever += 1;
        (*under_way == 1).then_some(*ever)
    };
    // Of two that turn the same loop at the same time nobody can say who was last.
    let alone = |ledger: &mut crate::ledger::Ledger| {
        let (under_way, ever) = ledger.turning.entry(name).or_default();
        *under_way -= 1;
        turn == Some(*ever)
    };
    // Whatever comes of it, the pause before is over at some moment from now on. Verdicts that were under way carry the time at
    // which they were taken, so nothing more is claimed about that pause.
    let turned = if rng.percent(40) {
        engine.resume_loop(name, Actor::default()).await.map(|()| None)
    } else {
        let span = Millis(1_000 + rng.below(40_000));
        engine.pause_loop(name, Some(span), Actor::default()).await.map(Some)
    };
    let acknowledged = engine.now();
    let mut ledger = sim.ledger.lock();
    let alone = alone(&mut ledger);
    ledger.pauses.retain(|pause| pause.name != name);
    if let (Ok(Some(pause)), true) = (turned, alone) {
        ledger.pauses.push(PausedLoop { name, from: acknowledged, until: pause.until });
    }
    Ok(())
}

/// An instance dies, and another with an empty memory takes its place.
async fn restart_one(sim: &Sim, rng: &mut Rng, n: u64) {
    let fresh = sim.instance(rng.next() ^ n).await;
    let mut engines = sim.engines.lock();
    let place = rng.below(engines.len() as u64) as usize;
    engines[place] = fresh;
}

/// The loops of one instance, each tick by itself.
pub async fn loops(sim: Sim, mut rng: Rng, instance: usize, steps: u64) -> Outcome {
    for _ in 0..steps {
        let engine = sim.engines.lock()[instance].clone();
        let names = [Loop::Retries, Loop::Starts, Loop::Reap, Loop::Timeout, Loop::Expire, Loop::Schedule];
        let _ = engine.tick_loop(names[rng.below(6) as usize]).await;
        for _ in 0..rng.below(3) {
            tokio::task::yield_now().await;
        }
    }
    Ok(())
}

/// Time goes on: by little, by much, or just to where something is due. Now and then somebody sets the clock two weeks ahead, in the
/// middle of everything (R-I21).
pub async fn time(sim: Sim, mut rng: Rng, steps: u64) -> Outcome {
    for _ in 0..steps {
        if rng.below(300) == 0 {
            sim.clock.advance(Millis::from_days(14));
        }
        match rng.below(4) {
            0 => sim.clock.advance(Millis(rng.below(50))),
            1 => sim.clock.advance(Millis(rng.below(3_000))),
            2 => sim.clock.advance(Millis(rng.below(40_000))),
            _ => {
                let engine = sim.engine(&mut rng);
                if let Ok(Some(next)) = engine.next_instant().await {
                    sim.clock.set(next);
                }
            }
        }
        for _ in 0..rng.below(4) {
            tokio::task::yield_now().await;
        }
    }
    Ok(())
}

impl Sim {
    pub fn clock_now(&self) -> Timestamp {
        use comeback_engine::Clock;
        self.clock.now()
    }
}

/// With everything healed, workers that succeed and a person who resumes what is paused, all that is open must come to an end.
pub async fn settle_everything(sim: &Sim) -> Outcome {
    let fail = |error: CommandError| error.to_string();
    let engine = sim.engines.lock()[0].clone();
    for name in Loop::ALL {
        engine.resume_loop(*name, Actor::default()).await.map_err(fail)?;
    }
    sim.ledger.lock().pauses.clear();
    for round in 0..400 {
        resume_all(sim).await?;
        engine.tick().await.map_err(|error| error.to_string())?;
        let request = LeaseRequest { limit: 100, ..LeaseRequest::new("default", "last") };
        let leased = engine.lease(request).await.map_err(fail)?;
        let reports =
            leased.iter().map(|it| Report { lease: it.lease, end: ReportEnd::Succeeded { result: None } }).collect();
        for answer in engine.report(reports).await.map_err(fail)? {
            match answer {
                // The success of another task of its execution may have made it pointless.
                Ok(_) | Err(CommandError::TaskCanceled) => {}
                Err(error) => return Err(format!("a report on a fresh lease was refused: {error}")),
            }
        }
        let counts = sim.truth.counts("default", engine.now()).await.map_err(|error| error.to_string())?.by_state;
        if counts.keys().all(|state| state.is_terminal()) {
            return Ok(());
        }
        if leased.is_empty() {
            let next = engine.next_instant().await.map_err(|error| error.to_string())?;
            match next {
                Some(next) => sim.clock.set(next),
                None if has_held(sim).await? => {}
                None => {
                    let open = sim
                        .truth
                        .list("default", &query(sim, "state:open"))
                        .await
                        .map_err(|error| error.to_string())?;
                    let mut story = String::new();
                    for task in open.items.into_iter().map(|item| item.stored.task) {
                        story.push_str(&format!(
                            "\n{} is {}, {} needs left",
                            task.id.short(),
                            task.state,
                            task.needs_left
                        ));
                        let Some(id) = task.execution else { continue };
                        let graph = sim.truth.graph(id, None).await.map_err(|error| error.to_string())?;
                        for it in graph.into_iter().flat_map(|graph| graph.tasks) {
                            let out = it.edges.unwrap_or_default().out;
                            let edges: Vec<String> =
                                out.iter().map(|edge| format!("{}>{}", edge.when, edge.to.short())).collect();
                            let task = it.stored.task;
                            story.push_str(&format!(
                                "\n  {} {} {:?} -> {edges:?}",
                                task.id.short(),
                                task.state,
                                task.reason
                            ));
                        }
                        let records = sim
                            .truth
                            .history(comeback_engine::store::Subject::Execution(id), 0, 10_000)
                            .await
                            .map_err(|error| error.to_string())?;
                        for event in records.iter().flat_map(comeback_core::Record::expand) {
                            story.push_str(&format!(
                                "\n    {} {} {:?} {}",
                                event.seq,
                                event.kind,
                                event.task.map(TaskId::short),
                                event.data
                            ));
                        }
                    }
                    return Err(format!("round {round}: nothing is due and this is open:{story}"));
                }
            }
        }
    }
    Err("what is open does not come to an end".into())
}

fn query(sim: &Sim, filter: &str) -> ListQuery {
    ListQuery {
        filter: Filter::parse(filter, sim.clock_now()).expect("a filter"),
        sort: Sort::Submitted,
        limit: 500,
        after: None,
        now: sim.clock_now(),
    }
}

async fn has_held(sim: &Sim) -> Result<bool, String> {
    let held = sim.truth.list("default", &query(sim, "state:held")).await.map_err(|error| error.to_string())?;
    Ok(!held.items.is_empty())
}

async fn resume_all(sim: &Sim) -> Outcome {
    let engine = sim.engines.lock()[0].clone();
    let held = sim.truth.list("default", &query(sim, "state:held")).await.map_err(|error| error.to_string())?;
    let mut executions = HashSet::new();
    for task in held.items.into_iter().map(|item| item.stored.task) {
        if task.state == State::Paused {
            let resumed = engine.resume("default", task.id, Actor::default()).await;
            resumed.map_err(|error| format!("{} cannot be resumed: {error}", task.id))?;
        }
        if task.execution_paused {
            executions.extend(task.execution);
        }
    }
    for execution in executions {
        let _ = engine.resume_execution("default", execution, Actor::default()).await;
    }
    Ok(())
}
