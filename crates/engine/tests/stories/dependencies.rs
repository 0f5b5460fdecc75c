//! Dependencies as callers meet them: two instances, one thing outside that is in trouble, and tasks that need it.

use comeback_core::dependency::Settings;
use comeback_core::{Failure, Millis, RetryAfter, State, TaskId, Timestamp, Trigger};
use comeback_engine::store::{AuditQuery, Dependency};
use comeback_engine::{
    CommandError, DependencyCommand, Engine, HeldBy, LeaseRequest, Leased, Moment, ReportEnd, TaskSpec,
};
use serde_json::{Value, json};

use crate::alerts::{subscribe, tick, told};
use crate::stories;
use crate::world::*;

pub async fn put(engine: &Engine, name: &str, settings: Value) -> Dependency {
    let settings = Settings::parse(&settings).expect("settings");
    engine.put_dependency("default", name, settings, &nobody()).await.expect("it is taken").dependency
}

async fn phase(engine: &Engine, name: &str) -> &'static str {
    engine.dependency("default", name).await.expect("it is there").dependency.standing.phase.word()
}

fn needing(on: &str, retry: Value) -> TaskSpec {
    TaskSpec { dependency: Some(on.into()), ..spec("pay", retry) }
}

fn unavailable() -> ReportEnd {
    ReportEnd::Failed(Failure { status: Some(503), ..Failure::new(Trigger::Error, "Service Unavailable") })
}

fn retry() -> Value {
    json!({"strategy": "fixed", "delay": "2s", "max_retries": 5})
}

async fn held(engine: &Engine, id: TaskId) -> Option<HeldBy> {
    let task = engine.task("default", id).await.expect("the task exists").stored.task;
    engine.held_by_rule(&task).await.expect("reads")
}

async fn end_all(engine: &Engine, leased: &[Leased], end: &ReportEnd) {
    for it in leased {
        report(engine, it, end.clone()).await.expect("reported");
    }
}

fn ids(leased: &[Leased]) -> Vec<TaskId> {
    leased.iter().map(|it| it.lease.task).collect()
}

stories! {
    /// S2-124, S2-126: one instance sees the failures, both stop; a canary goes at its time, and then all of them in waves, oldest first.
    fn an_outage_is_seen_by_all_and_ends_in_waves(place) {
        let (one, two) = (place.engine().await, place.engine().await);
        put(&one, "psp", json!({"breaker": {"failures": 10, "open": "5s", "first_wave": 4, "wave": "1s"}})).await;
        let mut tasks = Vec::new();
        for _ in 0..30 {
            tasks.push(submit(&one, needing("psp", retry())).await);
        }
        let other = submit(&one, TaskSpec::new("other")).await;
        let first = lease(&one, 10).await;
        assert_eq!(ids(&first), tasks[..10]);
        end_all(&one, &first, &unavailable()).await;
        assert_eq!(phase(&two, "psp").await, "open");
        assert_eq!(ids(&lease(&two, 50).await), [other], "the other instance holds them too");
        let by = held(&two, tasks[20]).await.expect("held");
        let until = START + Millis(5_000);
        assert_eq!((by.words, by.until), (format!("held by breaker psp until {}", until.to_rfc3339()), Some(until)));

        // The last of those that failed is held beside its own time, and no attempt more is counted.
        let task = one.task("default", tasks[9]).await.unwrap().stored.task;
        assert_eq!((task.state, task.counters.attempt), (State::RetryPending, 1));
        assert_eq!(task.next_retry_at, Some(START + Millis(2_000)));
        place.pass(5_000);
        one.tick().await.unwrap();
        let canary = lease(&two, 50).await;
        assert_eq!(ids(&canary), tasks[..1], "one, and the oldest");
        assert!(lease(&one, 50).await.is_empty());
        assert_eq!(phase(&one, "psp").await, "half_open");
        end_all(&two, &canary, &unavailable()).await;
        let task = two.task("default", tasks[0]).await.unwrap().stored.task;
        assert_eq!((task.counters.attempt, task.next_retry_at), (2, Some(START + Millis(7_000))));
        place.pass(6_249);
        assert!(lease(&one, 50).await.is_empty(), "a quarter longer this time");
        place.pass(1);
        one.tick().await.unwrap();
        let canary = lease(&one, 50).await;
        assert_eq!(ids(&canary), tasks[..1]);
        end_all(&one, &canary, &succeeded()).await;
        assert_eq!(phase(&two, "psp").await, "recovering");

        let mut order = Vec::new();
        let mut by_second = vec![0; 20];
        for step in 0..200 {
            for engine in [&one, &two] {
                engine.tick().await.unwrap();
                let leased = lease(engine, 50).await;
                by_second[step / 10] += leased.len();
                order.extend(ids(&leased));
                end_all(engine, &leased, &succeeded()).await;
            }
            place.pass(100);
        }
        assert_eq!(order, tasks[1..], "oldest first, each once");
        assert!(by_second[0] <= 5 && by_second[1] > by_second[0], "{by_second:?}");
        assert_eq!(phase(&one, "psp").await, "closed");
        for id in tasks {
            let task = one.task("default", id).await.unwrap().stored.task;
            assert_eq!(task.state, State::Succeeded);
            assert!(task.counters.attempt <= 2, "only real failures were counted");
        }
    }

    /// Whoever asks and however often: each second for many, a hundred who ask for one each, or many times a second, the waves are the
    /// same, and it closes when nobody waits.
    fn waves_are_counted_by_who_waits(place) {
        let (one, two) = (place.engine().await, place.engine().await);
        for (name, every, asks, limit) in [("each-second", 1_000, 1, 100), ("small-ones", 1_000, 60, 1), ("often", 250, 1, 100)] {
            put(&one, name, json!({"breaker": {"failures": 3}})).await;
            for _ in 0..63 {
                submit(&one, TaskSpec { queue: Some(name.into()), ..needing(name, json!({"max_retries": 0})) }).await;
            }
            let ask = |limit: u32| LeaseRequest { queues: vec![name.into()], limit, ..LeaseRequest::new("default", "w") };
            let failed = one.lease(ask(3)).await.unwrap();
            end_all(&one, &failed, &unavailable()).await;
            place.pass(2_000);
            let canary = two.lease(ask(100)).await.unwrap();
            assert_eq!(canary.len(), 1, "{name}");
            end_all(&two, &canary, &succeeded()).await;
            let mut by_second = Vec::new();
            let mut shown = Vec::new();
            for _ in 0..6 {
                let mut started = 0;
                for _ in 0..1_000 / every {
                    place.pass(every);
                    one.tick().await.unwrap();
                    for n in 0..asks {
                        let engine = if n % 2 == 0 { &one } else { &two };
                        let leased = engine.lease(ask(limit)).await.unwrap();
                        started += leased.len();
                        end_all(engine, &leased, &succeeded()).await;
                    }
                }
                by_second.push(started);
                shown.push(phase(&two, name).await);
            }
            assert_eq!(by_second, [5, 10, 20, 24, 0, 0], "{name}");
            assert_eq!(shown[..3], ["recovering"; 3], "{name}");
            assert_eq!(shown[5], "closed", "{name}");
        }
    }

    /// It is not over as long as somebody waits for whom nobody asks: another queue, another kind.
    fn who_waits_is_not_who_is_asked_for(place) {
        let engine = place.engine().await;
        put(&engine, "psp", json!({"breaker": {"failures": 3}})).await;
        for queue in ["asked", "waits"] {
            for _ in 0..8 {
                submit(&engine, TaskSpec { queue: Some(queue.into()), ..needing("psp", json!({"max_retries": 0})) }).await;
            }
        }
        let ask = |queue: &str| LeaseRequest { queues: vec![queue.into()], limit: 100, ..LeaseRequest::new("default", "w") };
        let failed = engine.lease(LeaseRequest { limit: 3, ..ask("asked") }).await.unwrap();
        end_all(&engine, &failed, &unavailable()).await;
        place.pass(2_000);
        let canary = engine.lease(ask("asked")).await.unwrap();
        end_all(&engine, &canary, &succeeded()).await;
        for _ in 0..10 {
            place.pass(1_000);
            engine.tick().await.unwrap();
            let leased = engine.lease(ask("asked")).await.unwrap();
            end_all(&engine, &leased, &succeeded()).await;
        }
        assert_eq!(phase(&engine, "psp").await, "recovering", "eight wait in another queue");
        for left in [1, 7] {
            let leased = engine.lease(ask("waits")).await.unwrap();
            assert_eq!(leased.len(), left, "the fifth of the first wave, and then the second");
            end_all(&engine, &leased, &succeeded()).await;
            place.pass(1_000);
            engine.tick().await.unwrap();
        }
        assert_eq!(phase(&engine, "psp").await, "closed");
    }

    /// A retry that is decided while the breaker is open keeps its own time, and is held beside it; `why` and the forecast name who holds.
    fn a_held_retry_keeps_its_own_time_and_names_its_holder(place) {
        let engine = place.engine().await;
        put(&engine, "psp", json!({"breaker": {"failures": 2, "open": "10s"}})).await;
        let within = TaskSpec { deadline: Some(Moment::After(Millis(6_000))), ..needing("psp", retry()) };
        let (a, b, c) = (
            submit(&engine, needing("psp", retry())).await,
            submit(&engine, needing("psp", retry())).await,
            submit(&engine, within).await,
        );
        let d = submit(&engine, needing("psp", retry())).await;
        let leased = lease(&engine, 4).await;
        end_all(&engine, &leased, &unavailable()).await;
        let at = |ms: u64| START + Millis(ms);
        for (id, until) in [(c, 6_000), (d, 10_000)] {
            let view = engine.why("default", id).await.unwrap();
            let task = &view.view.stored.task;
            let hold = task.hold.as_ref().expect("held");
            assert_eq!((task.next_retry_at, hold.until, hold.reason.as_str()), (Some(at(2_000)), at(until), "breaker psp"));
            assert!(view.text.contains("breaker psp"), "{}", view.text);
        }
        for id in [a, b] {
            assert_eq!(engine.task("default", id).await.unwrap().stored.task.hold, None, "decided before it opened");
        }
        let forecast = engine.forecast("default", d, 2).await.unwrap();
        assert_eq!(forecast.attempts[0].at, at(10_000));
        place.pass(3_000);
        engine.tick().await.unwrap();
        assert_eq!(state(&engine, a).await, State::Pending, "its time has come");
        assert!(held(&engine, a).await.is_some_and(|by| by.words.starts_with("held by breaker psp")));
        assert_eq!(state(&engine, d).await, State::RetryPending);
    }

    /// Who is held is shown until when, no later than its deadline, before its own time and after it; the forecast counts with it.
    fn what_is_held_is_shown_no_later_than_its_deadline(place) {
        let engine = place.engine().await;
        put(&engine, "psp", json!({"breaker": {}})).await;
        let at = |ms: u64| START + Millis(ms);
        let within = || TaskSpec { deadline: Some(Moment::After(Millis(1_800_000))), ..needing("psp", retry()) };
        let (first, first_within) = (submit(&engine, needing("psp", retry())).await, submit(&engine, within()).await);
        let leased = lease(&engine, 2).await;
        end_all(&engine, &leased, &unavailable()).await;
        let (ready, ready_within) = (submit(&engine, needing("psp", retry())).await, submit(&engine, within()).await);
        let lasts = Some(Millis(3_600_000));
        engine.override_dependency("default", "psp", &DependencyCommand::Open { lasts }, &nobody()).await.unwrap();
        let words = format!("held by breaker psp until {}", at(3_600_000).to_rfc3339());
        for (id, until, due) in [
            (first, 3_600_000, Some(2_000)),
            (first_within, 1_800_000, Some(2_000)),
            (ready, 3_600_000, None),
            (ready_within, 1_800_000, None),
        ] {
            assert_eq!(held(&engine, id).await, Some(HeldBy { words: words.clone(), until: Some(at(until)) }));
            let task = engine.task("default", id).await.unwrap().stored.task;
            assert_eq!(task.next_retry_at, due.map(at), "it keeps its own time");
            let forecast = engine.forecast("default", id, 3).await.unwrap();
            if until == 3_600_000 {
                assert_eq!(forecast.attempts[0].at, at(3_600_000));
            } else {
                assert_eq!((forecast.attempts.len(), forecast.gives_up_at), (0, Some(at(until))), "it dies in time");
            }
        }
        // Nobody knows how long a person keeps it open.
        engine.override_dependency("default", "psp", &DependencyCommand::Open { lasts: None }, &nobody()).await.unwrap();
        let by = held(&engine, ready).await;
        assert_eq!(by, Some(HeldBy { words: "held by breaker psp".into(), until: None }));
        assert!(engine.forecast("default", ready, 3).await.unwrap().attempts.is_empty());
        engine.override_dependency("default", "psp", &DependencyCommand::Close { lasts: None }, &nobody()).await.unwrap();
        assert_eq!(held(&engine, first).await, None);
        assert_eq!(engine.forecast("default", first, 1).await.unwrap().attempts[0].at, at(2_000));

        // A gate, for one that is ready and for one whose time comes before.
        put(&engine, "api", json!({"gate": {"spread": "0s"}})).await;
        let limited = submit(&engine, needing("api", retry())).await;
        let asked = Failure {
            status: Some(429),
            retry_after: Some(RetryAfter::Span(Millis(60_000))),
            ..Failure::new(Trigger::Error, "Too Many Requests")
        };
        let mut leased = lease(&engine, 10).await;
        leased.retain(|it| it.lease.task == limited);
        end_all(&engine, &leased, &ReportEnd::Failed(asked)).await;
        let ready = submit(&engine, needing("api", retry())).await;
        let by = held(&engine, ready).await.expect("held");
        assert_eq!(by.until, Some(at(60_000)));
        assert_eq!(engine.forecast("default", ready, 1).await.unwrap().attempts[0].at, at(60_000));
    }

    /// One answer with Retry-After holds every sibling, also on the other instance; they come back spread out.
    fn one_retry_after_holds_every_sibling(place) {
        let (one, two) = (place.engine().await, place.engine().await);
        put(&one, "api", json!({"gate": {"spread": "10s"}})).await;
        let mut tasks = Vec::new();
        for _ in 0..40 {
            tasks.push(submit(&one, needing("api", retry())).await);
        }
        let first = lease_one(&one).await;
        let limited = Failure {
            status: Some(429),
            retry_after: Some(RetryAfter::Span(Millis(30_000))),
            ..Failure::new(Trigger::Error, "Too Many Requests")
        };
        report(&one, &first, ReportEnd::Failed(limited)).await.unwrap();
        assert!(lease(&two, 50).await.is_empty());
        let by = held(&two, tasks[7]).await.expect("held");
        assert!(by.words.starts_with("held by gate api until"), "{}", by.words);
        let throttled = one.task("default", tasks[0]).await.unwrap().stored.task;
        assert_eq!((throttled.counters.attempt, throttled.counters.throttled), (0, 1));
        place.pass(29_999);
        assert!(lease(&two, 50).await.is_empty());
        let mut by_second: Vec<usize> = Vec::new();
        for _ in 0..110 {
            place.pass(100);
            let mut started = 0;
            for engine in [&one, &two] {
                engine.tick().await.unwrap();
                let leased = lease(engine, 50).await;
                started += leased.len();
                end_all(engine, &leased, &succeeded()).await;
            }
            by_second.push(started);
        }
        assert_eq!(by_second.iter().sum::<usize>(), 40, "all of them");
        assert!(by_second.iter().all(|started| *started <= 12), "never all at once: {by_second:?}");
    }

    /// Retries are at most so many beside first attempts, whoever decides them: the others come later and none is dropped.
    fn a_budget_spreads_retries_over_both_instances(place) {
        let (one, two) = (place.engine().await, place.engine().await);
        put(&one, "psp", json!({"budget": {"percent": 0, "floor": 0.5}})).await;
        let mut tasks = Vec::new();
        for _ in 0..20 {
            tasks.push(submit(&one, needing("psp", retry())).await);
        }
        for engine in [&one, &two] {
            let leased = lease(engine, 10).await;
            end_all(engine, &leased, &unavailable()).await;
        }
        let mut due: Vec<Timestamp> = Vec::new();
        let mut held = 0;
        for id in &tasks {
            let task = one.task("default", *id).await.unwrap().stored.task;
            assert_eq!((task.state, task.next_retry_at), (State::RetryPending, Some(START + Millis(2_000))));
            held += usize::from(task.hold.as_ref().is_some_and(|hold| hold.reason == "budget psp"));
            due.push(task.due().expect("it comes"));
        }
        due.sort_unstable();
        assert!(held >= 15, "{held}");
        for (i, at) in due.iter().enumerate() {
            let later = due[i..].iter().take_while(|it| **it < *at + Millis(10_000)).count();
            assert!(later <= 10, "five in ten seconds, and what falls together at the ends: {later}");
        }
        assert!(due[19] <= START + Millis(60_000), "none waits for ever");
    }

    /// The limit shrinks on errors and grows back.
    fn fewer_run_at_once_while_it_is_in_trouble(place) {
        let engine = place.engine().await;
        put(&engine, "psp", json!({"concurrency": {"min": 1, "max": 10, "target": "1s"}})).await;
        for _ in 0..400 {
            submit(&engine, needing("psp", retry())).await;
        }
        let at_once = |leased: &[Leased]| leased.len();
        let first = lease(&engine, 50).await;
        assert_eq!(at_once(&first), 10);
        assert!(lease(&engine, 50).await.is_empty());
        place.pass(500);
        end_all(&engine, &first, &unavailable()).await;
        engine.tick().await.unwrap();
        let fewer = lease(&engine, 50).await;
        assert!(at_once(&fewer) < 10, "{}", fewer.len());
        place.pass(100);
        end_all(&engine, &fewer, &succeeded()).await;
        for _ in 0..20 {
            engine.tick().await.unwrap();
            let leased = lease(&engine, 50).await;
            place.pass(100);
            end_all(&engine, &leased, &succeeded()).await;
        }
        engine.tick().await.unwrap();
        assert_eq!(at_once(&lease(&engine, 50).await), 10, "and back");
    }

    /// A person has the last word, and it is written down who and why.
    fn people_open_and_close_it(place) {
        let engine = place.engine().await;
        put(&engine, "psp", json!({"breaker": {}})).await;
        let id = submit(&engine, needing("psp", retry())).await;
        let act = comeback_core::transition::Actor { note: Some("they move".into()), ..nobody() };
        engine.override_dependency("default", "psp", &DependencyCommand::Open { lasts: None }, &act).await.unwrap();
        place.pass(86_400_000);
        assert!(lease(&engine, 10).await.is_empty());
        assert_eq!(held(&engine, id).await.map(|by| by.words).as_deref(), Some("held by breaker psp"));
        engine.override_dependency("default", "psp", &DependencyCommand::Close { lasts: None }, &act).await.unwrap();
        assert_eq!(lease_one(&engine).await.lease.task, id);
        place.pass(1_000);
        put(&engine, "psp", json!({"breaker": {"failures": 1, "open": "1h", "max_open": "1h"}})).await;
        for _ in 0..3 {
            submit(&engine, needing("psp", retry())).await;
        }
        let leased = lease(&engine, 3).await;
        end_all(&engine, &leased, &unavailable()).await;
        let last = leased[2].lease.task;
        let hold = |task: comeback_core::Task| (task.next_retry_at, task.hold.map(|hold| hold.until));
        let now = place.now();
        let task = engine.task("default", last).await.unwrap().stored.task;
        assert_eq!(hold(task), (Some(now + Millis(2_000)), Some(now + Millis(3_600_000))));
        place.pass(1);
        engine.override_dependency("default", "psp", &DependencyCommand::Close { lasts: None }, &act).await.unwrap();
        let task = engine.task("default", last).await.unwrap().stored.task;
        assert_eq!(hold(task), (Some(now + Millis(2_000)), None), "its own time again");
        place.pass(2_000);
        engine.tick().await.unwrap();
        assert_eq!(lease(&engine, 10).await.len(), 3);
        let turn = engine.override_dependency("default", "nobody", &DependencyCommand::Healthy, &act).await;
        assert!(matches!(turn, Err(CommandError::NotFound("dependency"))));
        let query = AuditQuery { namespace: Some("default".into()), limit: 9, ..AuditQuery::default() };
        let entries = engine.audit(&query).await.unwrap();
        let did: Vec<&str> = entries.iter().map(|it| it.did.word()).collect();
        let done = ["dependency.close", "dependency.put", "dependency.close", "dependency.open", "dependency.put"];
        assert_eq!(did, done);
        assert_eq!(entries[3].note.as_deref(), Some("they move"));
    }

    /// S2-125: somebody who knows that it is well says so, and nobody waits for a canary.
    fn what_becomes_of_it_is_told_outside_once(place) {
        let (one, two) = (place.engine().await, place.engine().await);
        put(&one, "psp", json!({"breaker": {"failures": 2}})).await;
        subscribe(&one, "ops", &["dependency.*"]).await;
        subscribe(&one, "closed", &["dependency.closed"]).await;
        subscribe(&one, "tasks", &["task.*"]).await;
        place.pass(1);
        submit(&one, needing("psp", retry())).await;
        submit(&one, needing("psp", retry())).await;
        end_all(&one, &lease(&one, 2).await, &unavailable()).await;
        for engine in [&two, &one, &two] {
            tick(engine).await;
        }
        assert_eq!(told(&two, "ops").await, ["dependency.opened"]);
        one.override_dependency("default", "psp", &DependencyCommand::Close { lasts: None }, &nobody()).await.unwrap();
        for engine in [&one, &two] {
            tick(engine).await;
        }
        assert_eq!(told(&two, "ops").await, ["dependency.opened", "dependency.closed"]);
        assert_eq!(told(&two, "closed").await, ["dependency.closed"]);
        assert!(told(&two, "tasks").await.iter().all(|it| it.starts_with("task.")));
    }

    fn a_health_check_lets_them_come_back(place) {
        let engine = place.engine().await;
        put(&engine, "psp", json!({"breaker": {"failures": 3, "open": "1h", "max_open": "1h", "first_wave": 2}})).await;
        for _ in 0..10 {
            submit(&engine, needing("psp", retry())).await;
        }
        let first = lease(&engine, 3).await;
        end_all(&engine, &first, &unavailable()).await;
        place.pass(60_000);
        assert!(lease(&engine, 50).await.is_empty());
        engine.override_dependency("default", "psp", &DependencyCommand::Healthy, &nobody()).await.unwrap();
        let mut back = lease(&engine, 50).await.len();
        assert_eq!(back, 1, "not all at once");
        place.pass(600);
        back += lease(&engine, 50).await.len();
        assert_eq!(back, 2, "the first wave");
    }

    /// Announced work: nothing starts meanwhile, and it is said until when.
    fn announced_maintenance_holds(place) {
        let engine = place.engine().await;
        put(&engine, "psp", json!({})).await;
        let id = submit(&engine, needing("psp", retry())).await;
        let (from, to) = (START + Millis(1_000), START + Millis(3_600_000));
        engine.override_dependency("default", "psp", &DependencyCommand::Maintenance { from, to }, &nobody()).await.unwrap();
        place.pass(1_000);
        assert!(lease(&engine, 10).await.is_empty());
        let by = held(&engine, id).await.expect("held");
        assert_eq!((by.until, by.words), (Some(to), format!("held by maintenance psp until {}", to.to_rfc3339())));
        place.clock.set(to);
        assert_eq!(lease_one(&engine).await.lease.task, id);
    }

    /// Model A14: announced maintenance stops the clock of deadlines, of tasks that are there and of those that come.
    fn announced_maintenance_moves_deadlines(place) {
        let engine = place.engine().await;
        put(&engine, "psp", json!({})).await;
        let until = |ms: u64| TaskSpec { deadline: Some(Moment::After(Millis(ms))), ..needing("psp", retry()) };
        let (soon, later) = (submit(&engine, until(5_000)).await, submit(&engine, until(60_000)).await);
        let other = submit(&engine, TaskSpec { dependency: None, ..until(60_000) }).await;
        let (from, to) = (START + Millis(10_000), START + Millis(3_610_000));
        for to in [to - Millis(60_000), to, to] {
            engine.override_dependency("default", "psp", &DependencyCommand::Maintenance { from, to }, &nobody()).await.unwrap();
        }
        let new = submit(&engine, until(60_000)).await;
        for (id, deadline) in [(soon, 5_000), (later, 3_660_000), (other, 60_000), (new, 3_660_000)] {
            let task = engine.task("default", id).await.unwrap().stored.task;
            assert_eq!(task.expires_at, Some(START + Millis(deadline)));
        }
        place.clock.set(to);
        engine.tick().await.unwrap();
        assert_eq!((state(&engine, soon).await, state(&engine, later).await), (State::Dead, State::Pending));
        assert_eq!(ids(&lease(&engine, 10).await), [later, new]);
    }

    /// Without settings of its own a dependency costs nothing: its tasks are in plain lanes.
    fn a_dependency_nobody_set_up_is_only_a_name(place) {
        let engine = place.engine().await;
        let id = submit(&engine, needing("psp", retry())).await;
        let leased = lease_one(&engine).await;
        assert_eq!(leased.lease.task, id);
        assert!(engine.task("default", id).await.unwrap().stored.task.lane.limits.is_empty());
        put(&engine, "psp", json!({"breaker": {"failures": 1}})).await;
        report(&engine, &leased, unavailable()).await.unwrap();
        engine.delete_dependency("default", "psp", &nobody()).await.unwrap();
        place.pass(2_000);
        engine.tick().await.unwrap();
        assert_eq!(lease_one(&engine).await.lease.task, id);
    }
}
