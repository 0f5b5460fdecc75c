//! What holds for every policy and every history, searched for by chance.

use comeback_core::filter::Filter;
use comeback_core::replay::{Replayed, replay};
use comeback_core::transition::{self, Actor};
use comeback_core::*;
use comeback_core::{backoff, decide, dialect, expression, graph};
use proptest::prelude::*;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::common::*;

pub fn any_policy() -> impl Strategy<Value = Value> {
    let strategy = prop_oneof![
        Just(json!({"strategy": "immediate"})),
        (0..100_000_u64).prop_map(|ms| json!({"strategy": "fixed", "delay_ms": ms})),
        (0..100_000_u64, 0..9_000_u64)
            .prop_map(|(a, b)| json!({"strategy": "linear", "initial_delay_ms": a, "delay_ms": b})),
        (0..100_000_u64, 1.0..9.0_f64)
            .prop_map(|(a, m)| json!({"strategy": "exponential", "initial_delay_ms": a, "multiplier": m})),
        (1..9_000_u64, Just(1e300))
            .prop_map(|(a, m)| json!({"strategy": "exponential", "initial_delay_ms": a, "multiplier": m})),
        prop::collection::vec(0..900_000_u64, 1..5)
            .prop_map(|list| json!({"schedule": list.iter().map(|ms| json!({"delay_ms": ms})).collect::<Vec<_>>()})),
    ];
    let jitter = prop::sample::select(Jitter::ALL);
    let on_lost = prop::sample::select(vec!["retry", "count", "park", "fail"]);
    let counts = (0..6_u32, 0..3_u32, 0..3_u32, 0..3_u32);
    let extras = (prop::option::of(1..900_000_u64), prop::option::of(1..2_000_000_u64), any::<bool>(), any::<bool>());
    (strategy, jitter, on_lost, counts, extras).prop_map(|(mut policy, jitter, on_lost, counts, extras)| {
        let fields = policy.as_object_mut().expect("an object");
        fields.insert("jitter".into(), jitter.word().into());
        fields.insert("on_lost".into(), on_lost.into());
        fields.insert("max_retries".into(), counts.0.into());
        fields.insert("max_lost".into(), counts.1.into());
        fields.insert("max_throttles".into(), counts.2.into());
        fields.insert("max_snoozes".into(), counts.3.into());
        if let Some(cap) = extras.0 {
            fields.insert("max_delay_ms".into(), cap.into());
        }
        if let Some(span) = extras.1 {
            fields.insert("max_elapsed_ms".into(), span.into());
        }
        fields.insert("last_try".into(), extras.2.into());
        if extras.3 {
            fields.insert("on_exhausted".into(), "park".into());
        }
        policy
    })
}

/// Something that happens to a task; most of it is not possible at most times, and must then change nothing.
#[allow(clippy::large_enum_variant, reason = "one at a time")]
#[derive(Clone, Debug)]
enum Happening {
    Lease,
    Succeed,
    Fail(Failure),
    Lose,
    Snooze(u64),
    Release,
    StaleReport(u32),
    Due,
    Pause,
    Resume,
    Cancel,
    ManualRetry(bool),
    Reschedule(u64),
    Expire,
    Pass(u64),
}

fn any_failure() -> impl Strategy<Value = Failure> {
    let class = prop::option::of(prop::sample::select(Class::ALL));
    let status = prop::option::of(prop::sample::select(vec![400_u16, 404, 408, 429, 500, 503]));
    let retry_after = prop::option::of((0..100_000_u64).prop_map(|ms| RetryAfter::Span(Millis(ms))));
    let trigger = prop::sample::select(vec![Trigger::Error, Trigger::Timeout, Trigger::Explicit, Trigger::StartFailed]);
    (class, status, retry_after, trigger).prop_map(|(class, status, retry_after, trigger)| Failure {
        class,
        status,
        retry_after,
        ..Failure::new(trigger, "boom")
    })
}

fn any_happening() -> impl Strategy<Value = Happening> {
    prop_oneof![
        6 => Just(Happening::Lease),
        2 => Just(Happening::Succeed),
        8 => any_failure().prop_map(Happening::Fail),
        3 => Just(Happening::Lose),
        2 => (0..90_000_u64).prop_map(Happening::Snooze),
        1 => Just(Happening::Release),
        2 => (0..9_u32).prop_map(Happening::StaleReport),
        6 => Just(Happening::Due),
        1 => Just(Happening::Pause),
        2 => Just(Happening::Resume),
        1 => Just(Happening::Cancel),
        1 => any::<bool>().prop_map(Happening::ManualRetry),
        1 => (0..900_000_u64).prop_map(Happening::Reschedule),
        1 => Just(Happening::Expire),
        3 => (0..50_000_u64).prop_map(Happening::Pass),
    ]
}

/// A task, its clock and the log it has written.
struct Life {
    snapshot: Snapshot,
    now: Timestamp,
    log: Vec<Record>,
    started_in_cycle: u32,
}

impl Life {
    fn new(policy: Option<Policy>, expires: Option<u64>) -> Life {
        let mut snapshot = pending(policy);
        snapshot.task.expires_at = expires.map(|ms| T0 + Millis(ms));
        let mut created = Record::about(&snapshot.task, T0);
        created.seq = 1;
        created.events = vec![EventKind::TaskCreated, EventKind::TaskReady];
        Life { snapshot, now: T0, log: vec![created], started_in_cycle: 0 }
    }

    fn change(&mut self, change: Result<Transition, Rejection>) -> Option<Transition> {
        let change = change.ok()?;
        let before = &self.snapshot.task;
        assert_eq!(change.expected_version(), before.version);
        assert_eq!(change.after().version, before.version + 1);
        assert_eq!(change.after().broken_invariant(), None, "{change:?}");
        self.log.push(change.record().clone());
        if change.after().cycle != before.cycle {
            self.started_in_cycle = 0;
        }
        self.snapshot.task = change.after().clone();
        Some(change)
    }

    fn end(&mut self, reporter: Reporter, end: End) -> Option<Transition> {
        let outcome = Outcome { reporter, end };
        let decided = decide::decide(&self.snapshot, &outcome, self.now);
        assert_eq!(decided, decide::decide(&self.snapshot, &outcome, self.now), "same question, same answer");
        self.change(decided)
    }

    fn happen(&mut self, what: &Happening) {
        let task = self.snapshot.task.clone();
        let (now, act) = (self.now, Actor::default());
        let mine = Reporter::Lease(task.lease_number);
        match what {
            Happening::Lease => {
                if let Ok(step) = transition::lease(&task, "w", Millis::from_secs(60), now) {
                    self.snapshot.task = step.after;
                    self.started_in_cycle += 1;
                }
            }
            Happening::Succeed => drop(self.end(mine, End::Succeeded { result: None })),
            Happening::Fail(failure) => self.fail(mine, failure),
            Happening::Lose => {
                let lost = End::Lost(Trigger::LeaseExpired);
                if let Some(until) = task.lease.as_ref().and_then(|lease| lease.expires_at).filter(|until| *until > now)
                {
                    assert!(self.end(Reporter::Server, lost.clone()).is_none(), "a live lease is not lost");
                    self.now = until;
                }
                drop(self.end(Reporter::Server, lost));
            }
            Happening::Snooze(ms) => drop(self.end(mine, End::Snoozed { delay: Millis(*ms) })),
            Happening::Release => {
                if self.end(mine, End::Released).is_some() {
                    self.started_in_cycle -= 1;
                }
            }
            Happening::StaleReport(number) if *number != task.lease_number => {
                assert!(self.end(Reporter::Lease(*number), End::Succeeded { result: None }).is_none());
            }
            Happening::StaleReport(_) => {}
            Happening::Due => {
                self.now = self.now.max(task.due().unwrap_or(now));
                if let Ok(step) = transition::promote(&task, self.now) {
                    assert!(task.due().is_some_and(|due| due <= self.now), "never early (R-I10)");
                    self.snapshot.task = step.after;
                }
            }
            Happening::Pause => drop(self.change(transition::pause(&task, &act, now))),
            Happening::Resume => drop(self.change(transition::resume(&task, &act, now))),
            Happening::Cancel => drop(self.change(transition::cancel(&task, Reason::Canceled, &act, now))),
            Happening::ManualRetry(keep) => drop(self.change(transition::manual_retry(&task, *keep, &act, now))),
            Happening::Reschedule(ms) => drop(self.change(transition::reschedule(&task, now + Millis(*ms), &act, now))),
            Happening::Expire => drop(self.change(transition::expire(&task, false, now))),
            Happening::Pass(ms) => self.now = now + Millis(*ms),
        }
        if task.state.is_terminal() && !matches!(what, Happening::ManualRetry(_)) {
            assert_eq!(self.snapshot.task, task, "terminal is final (I-10): {what:?}");
        }
    }

    fn fail(&mut self, reporter: Reporter, failure: &Failure) {
        let before = self.snapshot.task.clone();
        let Some(change) = self.end(reporter, End::Failed(failure.clone())) else { return };
        let Some(next) = change.after().next_retry_at else { return };
        let policy = self.snapshot.policy.clone().expect("only a policy retries");
        let delay = next.since(self.now);
        let last_try = change
            .record()
            .decision
            .as_ref()
            .is_some_and(|decision| decision.notes.iter().any(|note| note.contains("last try")));
        if change.after().counters.attempt > before.counters.attempt && !last_try {
            let (low, high) = backoff::band(&policy.backoff, before.counters.attempt, &self.snapshot.limits);
            let asked = failure.retry_after.map_or(Millis::ZERO, |after| after.from_now(self.now));
            assert!(low.max(asked) <= delay, "never early: {delay} under {low}");
            assert!(delay <= high.max(asked), "as stated (R-I12): {delay} over {high}");
        }
    }

    /// I-5, I-6 and the limits of the other counters, at every moment.
    fn check_limits(&self) {
        let Some(policy) = &self.snapshot.policy else { return };
        let counters = self.snapshot.task.counters;
        assert!(counters.attempt <= policy.max_retries, "never over the limit");
        assert!(counters.throttled <= policy.max_throttles);
        assert!(counters.snoozed <= policy.max_snoozes);
    }

    fn check_log(&self) {
        let mut events: Vec<Event> = self.log.iter().flat_map(Record::expand).collect();
        let carried = self.snapshot.task.unwritten_record(self.now);
        events.extend(carried.iter().flat_map(Record::expand));
        assert_eq!(replay(&events, true), Ok(Replayed::of(&self.snapshot.task)), "{events:#?}");
        let starts = events.iter().filter(|event| event.kind == EventKind::AttemptStarted).count();
        let ends = self.log.iter().filter(|record| record.outcome.is_some()).count();
        let open = usize::from(self.snapshot.task.lease.is_some());
        assert_eq!(starts, ends + open, "every start has one end (I-7)");
        assert_eq!(starts as u32, self.snapshot.task.run);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_500, ..ProptestConfig::default() })]

    #[test]
    fn every_history_keeps_the_invariants(
        policy in prop::option::weighted(0.9, any_policy()),
        expires in prop::option::weighted(0.3, 1_000..900_000_u64),
        story in prop::collection::vec(any_happening(), 1..60),
    ) {
        let policy = policy.map(native);
        let mut life = Life::new(policy, expires);
        for what in &story {
            life.happen(what);
            life.check_limits();
        }
        life.check_log();
    }

    /// With nothing but failures a task starts exactly as often as its policy allows.
    #[test]
    fn failures_alone_run_exactly_as_often_as_allowed(policy in any_policy()) {
        let mut policy = policy;
        let fields = policy.as_object_mut().expect("an object");
        fields.remove("max_elapsed_ms");
        fields.remove("on_exhausted");
        let max = fields["max_retries"].as_u64().expect("a number");
        let (delays, last) = delays(Some(native(policy)), &error("x"));
        prop_assert_eq!(delays.len() as u64, max);
        prop_assert_eq!(u64::from(last.task.run), max + 1);
        prop_assert_eq!(last.task.state, State::Dead);
    }

    #[test]
    fn what_is_read_is_written_and_read_again(policy in any_policy()) {
        let policy = native(policy);
        let again = dialect::parse_stored(&policy.to_json().to_string());
        prop_assert_eq!(again, Ok(policy));
    }

    #[test]
    fn no_text_makes_a_parser_panic(text in "\\PC{0,80}") {
        let _ = Filter::parse(&text, T0);
        let _ = Millis::parse(&text);
        let _ = Timestamp::parse_rfc3339(&text);
        let _ = RetryAfter::parse(&text);
        let _ = expression::Expression::parse(&text);
        let _ = failure::Matcher::parse(&text);
    }

    #[test]
    fn no_document_makes_the_policy_reader_panic(value in any_json(), dialect in prop::sample::select(Dialect::ALL)) {
        let _ = dialect::parse(&value, dialect, &PolicyLimits::default());
    }

    /// I-3 over graphs of any shape: a retry changes its own row and nothing else.
    #[test]
    fn a_retry_never_moves_a_neighbour(
        size in 2..12_usize,
        seeds in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>(), 0..3_u8, any::<bool>()), 0..30),
        chosen in any::<prop::sample::Index>(),
        fail_fast in any::<bool>(),
        dead_end_cancel in any::<bool>(),
    ) {
        let execution = ExecutionId(Uuid::from_u128(1));
        let edges = any_edges(size, &seeds);
        let mut work = graph::Working::new(Execution {
            fail_fast,
            dead_end_cancel,
            ..Execution::new(execution, "default".into(), size as u32, T0)
        });
        let chosen = chosen.index(size);
        for n in 0..size {
            let lane = std::sync::Arc::new(Lane { shared: true, ..Lane::default() });
            let mut task = Task::new(id(n as u128), lane, T0);
            task.execution = Some(execution);
            let into: Vec<Edge> = edges.iter().filter(|edge| edge.to == task.id).copied().collect();
            let out: Vec<Edge> = edges.iter().filter(|edge| edge.from == task.id).copied().collect();
            task.needs_left = into.len() as u32;
            task.children_left = out.len() as u32;
            task.state = if into.is_empty() || n == chosen { State::Pending } else { State::Waiting };
            if n == chosen {
                task = transition::lease(&task, "w", Millis(9), T0).expect("pending").after;
            }
            work.add(task, out, into);
        }
        let before = work.clone();
        let snapshot = Snapshot { task: work.task(id(chosen as u128)).expect("there").clone(), ..pending(Some(native(json!({})))) };
        work.apply(end(&snapshot, End::Failed(error("x")), T0), T0).expect("loaded");
        for task in work.tasks() {
            if task.id != id(chosen as u128) {
                prop_assert_eq!(Some(task), before.task(task.id));
            }
        }
        prop_assert_eq!(work.execution(), before.execution());
        let commit = work.into_commit();
        prop_assert_eq!(commit.writes.len(), 1);
    }

    /// The counts of an execution are a cache: after any order of ends they agree with the tasks themselves (I-16).
    #[test]
    fn an_execution_is_a_function_of_its_tasks(
        size in 1..10_usize,
        seeds in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>(), 0..3_u8, any::<bool>()), 0..20),
        ends in prop::collection::vec((any::<prop::sample::Index>(), 0..3_u8), 1..40),
        dead_end_cancel in any::<bool>(),
    ) {
        let execution = ExecutionId(Uuid::from_u128(1));
        let edges = any_edges(size, &seeds);
        let mut work = graph::Working::new(Execution {
            dead_end_cancel,
            ..Execution::new(execution, "default".into(), size as u32, T0)
        });
        for n in 0..size {
            let lane = std::sync::Arc::new(Lane { shared: true, ..Lane::default() });
            let mut task = Task::new(id(n as u128), lane, T0);
            task.execution = Some(execution);
            let into: Vec<Edge> = edges.iter().filter(|edge| edge.to == task.id).copied().collect();
            let out: Vec<Edge> = edges.iter().filter(|edge| edge.from == task.id).copied().collect();
            task.needs_left = into.len() as u32;
            task.children_left = out.len() as u32;
            task.state = if into.is_empty() { State::Pending } else { State::Waiting };
            work.add(task, out, into);
        }
        for (index, how) in &ends {
            let target = id(index.index(size) as u128);
            let task = work.task(target).expect("there").clone();
            if task.state != State::Pending {
                continue;
            }
            let change = if *how == 2 {
                transition::cancel(&task, Reason::Canceled, &Actor::default(), T0).expect("open")
            } else {
                let leased = transition::lease(&task, "w", Millis::from_secs(9), T0).expect("pending").after;
                let finish = if *how == 0 { End::Succeeded { result: None } } else { End::Failed(error("x")) };
                end(&Snapshot { task: leased, ..pending(None) }, finish, T0)
            };
            work.apply(change, T0).expect("loaded");
            let open = work.tasks().filter(|task| task.state.is_open()).count();
            prop_assert_eq!(work.execution().open as usize, open);
            prop_assert_eq!(work.execution().state.is_terminal(), open == 0);
            for task in work.tasks().filter(|task| task.state == State::Waiting) {
                prop_assert!(task.needs_left > 0, "nothing waits for needs that are met");
            }
        }
    }
}

fn any_edges(size: usize, seeds: &[(prop::sample::Index, prop::sample::Index, u8, bool)]) -> Vec<Edge> {
    let mut edges: Vec<Edge> = Vec::new();
    for (a, b, when, fails) in seeds {
        let (a, b) = (a.index(size), b.index(size));
        if a == b {
            continue;
        }
        let (from, to) = (id(a.min(b) as u128), id(a.max(b) as u128));
        if edges.iter().any(|edge| edge.from == from && edge.to == to) {
            continue;
        }
        let when = When::from_code(i16::from(*when)).expect("a condition");
        edges.push(Edge { from, to, when, on_unmet: if *fails { OnUnmet::Fail } else { OnUnmet::Skip } });
    }
    edges
}

fn any_json() -> impl Strategy<Value = Value> {
    let names = prop::sample::select(vec![
        "max_retries",
        "maxAttempts",
        "strategy",
        "initial_delay",
        "delay_ms",
        "multiplier",
        "max_delay",
        "schedule",
        "custom_schedule",
        "attempts",
        "attempt",
        "jitter",
        "retry_on",
        "ignore",
        "retry_when",
        "rules",
        "match",
        "then",
        "windows",
        "from",
        "to",
        "tz",
        "days",
        "enabled",
        "preset",
        "dialect",
        "max_elapsed",
        "x",
    ]);
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(|number| json!(number)),
        prop::sample::select(vec![
            "", "fixed", "schedule", "7d", "5xx", "1e999", "retry", "snooze", "09:00", "true", "status >", "mon"
        ])
        .prop_map(Value::from),
        "\\PC{0,12}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 40, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            prop::collection::btree_map(names.clone().prop_map(str::to_owned), inner, 0..8)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}
