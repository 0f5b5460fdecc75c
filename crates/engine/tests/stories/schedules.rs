//! Schedules: every instant once, whoever looks, whoever dies, and whatever was missed.

use std::collections::BTreeMap;

use comeback_core::filter::{Filter, Sort};
use comeback_core::schedule::{CatchUp, Overlap, Times};
use comeback_core::{Millis, Timestamp};
use comeback_engine::flow::WORKFLOWS;
use comeback_engine::schedules::{ScheduleSpec, ScheduleView, Starts};
use comeback_engine::store::{Collection, ExecutionQuery, ListQuery, Loop};
use comeback_engine::{CommandError, Engine, LeaseRequest};
use serde_json::{Value, json};

use crate::flow::{engine, payload};
use crate::plain::{Plain, put};
use crate::stories;
use crate::world::{failed, lease, lease_one, nobody, on_to_the_next, report, succeeded};

const MINUTE: u64 = 60_000;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;

fn cron(text: &str) -> Times {
    Times { cron: Some(text.into()), ..Times::default() }
}

fn task(times: Times) -> ScheduleSpec {
    ScheduleSpec::new(times, Starts::Task(json!({"kind": "tick", "payload": {"day": "{{ scheduled_at }}"}})))
}

fn workflow(times: Times, path: &str, input: Value) -> ScheduleSpec {
    let starts = Starts::Workflow { path: path.into(), version: None, input: Some(input), labels: BTreeMap::new() };
    ScheduleSpec::new(times, starts)
}

async fn create(engine: &Engine, name: &str, spec: ScheduleSpec) -> ScheduleView {
    engine.create_schedule("default", name, spec, &nobody()).await.expect("it is taken")
}

async fn look(engine: &Engine, name: &str) -> ScheduleView {
    engine.schedule("default", name).await.expect("it is there")
}

/// For which instants a schedule has made tasks, oldest first.
async fn instants(engine: &Engine, name: &str) -> Vec<String> {
    let query = ListQuery {
        filter: Filter::parse(&format!("label.schedule:{name}"), engine.now()).expect("a filter"),
        sort: Sort::Submitted,
        limit: 500,
        after: None,
        now: engine.now(),
    };
    let found = engine.store().list("default", &query).await.expect("reads").items;
    let mut instants: Vec<String> = found.into_iter().map(|it| it.labels["scheduled_at"].clone()).collect();
    instants.sort();
    instants
}

/// The instants of the start of the story's hour and so many minutes, as they are written.
fn minutes(place_start: Timestamp, all: impl IntoIterator<Item = u64>) -> Vec<String> {
    all.into_iter().map(|it| (place_start + Millis(it * MINUTE)).to_rfc3339()).collect()
}

stories! {
    /// F4-15: by cron, in a time zone; the instant is told with the task.
    fn a_schedule_fires_at_its_instants_and_not_before(place) {
        let engine = engine(&place).await;
        let start = place.now();
        let view = create(&engine, "often", task(cron("*/10 * * * *"))).await;
        assert_eq!((view.state(), view.next.len()), ("initialized", 5));
        assert_eq!(view.next[0], start + Millis(10 * MINUTE));
        place.pass(10 * MINUTE - 1);
        engine.tick().await.unwrap();
        assert!(instants(&engine, "often").await.is_empty(), "not before its time");
        place.pass(1);
        engine.tick().await.unwrap();
        let leased = lease_one(&engine).await;
        let at = (start + Millis(10 * MINUTE)).to_rfc3339();
        assert_eq!(payload(&leased), json!({"day": at}));
        assert_eq!((leased.labels["schedule"].as_str(), &leased.labels["scheduled_at"]), ("often", &at));
        report(&engine, &leased, succeeded()).await.unwrap();
        engine.tick().await.unwrap();
        assert!(on_to_the_next(&place, &engine).await);
        assert_eq!(instants(&engine, "often").await, minutes(start, [10, 20]));
        let view = look(&engine, "often").await;
        assert_eq!((view.state(), view.standing.fired, view.standing.missed), ("active", 2, 0));
        assert_eq!(view.standing.last_run.unwrap().scheduled_at, start + Millis(20 * MINUTE));
    }

    fn a_time_of_day_is_that_of_its_zone(place) {
        let engine = engine(&place).await;
        // The story begins on 2027-01-15 at 08:00 in UTC, which is 09:00 in Berlin and 03:00 in New York.
        for (name, zone) in [("berlin", "Europe/Berlin"), ("york", "America/New_York")] {
            let times = Times { time_zone: Some(zone.into()), ..cron("30 9 * * *") };
            create(&engine, name, task(times)).await;
        }
        assert_eq!(look(&engine, "berlin").await.next[0].to_rfc3339(), "2027-01-15T08:30:00.000Z");
        assert_eq!(look(&engine, "york").await.next[0].to_rfc3339(), "2027-01-15T14:30:00.000Z");
        on_to_the_next(&place, &engine).await;
        assert_eq!(instants(&engine, "berlin").await, ["2027-01-15T08:30:00.000Z"]);
        assert!(instants(&engine, "york").await.is_empty());
    }

    /// F0-7: the workflow's texts see the instant, its input is made for it, and the execution tells where it came from.
    fn a_workflow_is_started_with_its_instant(place) {
        let engine = engine(&place).await;
        let steps = json!({"go": {"payload": {"at": "{{ execution.scheduled_at }}", "by": "{{ execution.schedule }}", "day": "{{ input.day }}"}}});
        put(&engine, "plain", json!({"steps": steps})).await;
        put(&engine, "again", json!({"retry": {"strategy": "immediate", "max_retries": 1}, "steps": steps})).await;
        for name in ["plain", "again"] {
            create(&engine, name, workflow(cron("0 * * * *"), name, json!({"day": "{{ scheduled_at[:10] }}"}))).await;
        }
        let at = place.now() + Millis(HOUR);
        on_to_the_next(&place, &engine).await;
        let leased = lease(&engine, 10).await;
        assert_eq!(leased.len(), 2);
        for it in &leased {
            let seen = payload(it);
            assert_eq!((&seen["at"], &seen["day"]), (&json!(at.to_rfc3339()), &json!("2027-01-15")));
        }
        // An execution with a policy begins anew, for the same instant.
        for it in leased {
            let by = payload(&it)["by"].clone();
            report(&engine, &it, if by == "again" { failed("no") } else { succeeded() }).await.unwrap();
        }
        engine.tick().await.unwrap();
        assert_eq!(payload(&lease_one(&engine).await)["at"], json!(at.to_rfc3339()));
        for (name, runs) in [("plain", 1), ("again", 2)] {
            let query = ExecutionQuery { schedule: Some(name.into()), limit: 9, ..ExecutionQuery::default() };
            let found = engine.store().executions("default", &query).await.unwrap();
            assert_eq!(found.len(), runs, "{name}");
            for it in &found {
                let firing = it.origin.firing.as_ref().unwrap();
                assert_eq!((firing.schedule.as_str(), firing.at, firing.by.word()), (name, at, "cron"));
            }
            let first = look(&engine, name).await.standing.last_run.unwrap().execution;
            assert_eq!(first, found.last().map(|it| it.execution.id), "the first is the one that was told");
        }
    }

    fn what_was_missed_is_made_up_for_as_was_asked(place) {
        let engine = engine(&place).await;
        for (name, catch_up, limit) in
            [("none", CatchUp::None, 100), ("last", CatchUp::Last, 100), ("all", CatchUp::All, 100), ("some", CatchUp::All, 2)]
        {
            let spec = ScheduleSpec { catch_up, catch_up_limit: limit, ..task(cron("0 9 * * *")) };
            create(&engine, name, spec).await;
        }
        // Three days and four hours nobody was there.
        drop(engine);
        place.pass(3 * DAY + 4 * HOUR);
        let engine = crate::flow::engine(&place).await;
        engine.tick().await.unwrap();
        let days = |days: &[u32]| days.iter().map(|day| format!("2027-01-{day}T09:00:00.000Z")).collect::<Vec<_>>();
        assert_eq!(instants(&engine, "none").await, days(&[]));
        assert_eq!(instants(&engine, "last").await, days(&[18]));
        assert_eq!(instants(&engine, "all").await, days(&[15, 16, 17, 18]));
        assert_eq!(instants(&engine, "some").await, days(&[17, 18]));
        let missed = async |name| look(&engine, name).await.standing.missed;
        assert_eq!([missed("none").await, missed("last").await, missed("all").await, missed("some").await], [4, 3, 0, 2]);
        // All four are on time the next day.
        assert!(on_to_the_next(&place, &engine).await);
        for name in ["none", "last", "all", "some"] {
            assert_eq!(instants(&engine, name).await.last().unwrap(), "2027-01-19T09:00:00.000Z", "{name}");
        }
    }

    fn an_instant_is_skipped_while_the_run_before_is_open(place) {
        let engine = engine(&place).await;
        put(&engine, "w", json!({"steps": {"go": {}}})).await;
        let skip = |spec| ScheduleSpec { overlap: Overlap::Skip, ..spec };
        create(&engine, "task", skip(task(cron("*/10 * * * *")))).await;
        create(&engine, "flow", skip(workflow(cron("*/10 * * * *"), "w", json!({})))).await;
        for _ in 0..3 {
            on_to_the_next(&place, &engine).await;
        }
        for name in ["task", "flow"] {
            let standing = look(&engine, name).await.standing;
            assert_eq!((standing.fired, standing.skipped), (1, 2), "{name}");
        }
        for it in lease(&engine, 10).await {
            report(&engine, &it, succeeded()).await.unwrap();
        }
        on_to_the_next(&place, &engine).await;
        for name in ["task", "flow"] {
            let standing = look(&engine, name).await.standing;
            assert_eq!((standing.fired, standing.skipped), (2, 2), "{name}");
        }
    }

    /// Both look at the same moment, at every instant.
    fn of_two_instances_one_fires(place) {
        let (one, two) = (engine(&place).await, engine(&place).await);
        let start = place.now();
        create(&one, "often", task(cron("* * * * *"))).await;
        create(&one, "span", task(Times { every: Some(Millis(MINUTE)), ..Times::default() })).await;
        for _ in 0..30 {
            place.pass(MINUTE);
            let (a, b) = tokio::join!(
                tokio::spawn({ let one = one.clone(); async move { one.tick_loop(Loop::Schedule).await.unwrap() } }),
                tokio::spawn({ let two = two.clone(); async move { two.tick_loop(Loop::Schedule).await.unwrap() } }),
            );
            assert_eq!(a.unwrap().moved + b.unwrap().moved, 2, "each schedule once");
        }
        for name in ["often", "span"] {
            assert_eq!(instants(&one, name).await, minutes(start, 1..=30), "{name}");
            assert_eq!(look(&two, name).await.standing.fired, 30);
        }
    }

    /// What it had dealt with is stored with what it started: nothing is between them.
    fn a_restart_fires_nothing_again(place) {
        let first = engine(&place).await;
        let start = place.now();
        create(&first, "often", ScheduleSpec { catch_up: CatchUp::All, ..task(cron("* * * * *")) }).await;
        for _ in 0..5 {
            place.pass(MINUTE);
            let engine = engine(&place).await;
            engine.tick().await.unwrap();
            engine.close().await;
            // One that was there before, and has seen nothing of this.
            first.tick().await.unwrap();
        }
        first.close().await;
        place.forget();
        let engine = engine(&place).await;
        engine.tick().await.unwrap();
        assert_eq!(instants(&engine, "often").await, minutes(start, 1..=5));
    }

    fn a_paused_loop_fires_nothing_and_makes_up_for_it_when_it_is_resumed(place) {
        let engine = engine(&place).await;
        let start = place.now();
        create(&engine, "often", ScheduleSpec { catch_up: CatchUp::All, ..task(cron("*/10 * * * *")) }).await;
        engine.pause_loop(Loop::Schedule, None, nobody()).await.unwrap();
        place.pass(35 * MINUTE);
        engine.tick().await.unwrap();
        assert!(instants(&engine, "often").await.is_empty());
        assert_eq!(engine.next_instant().await.unwrap(), None);
        engine.resume_loop(Loop::Schedule, nobody()).await.unwrap();
        engine.tick().await.unwrap();
        assert_eq!(instants(&engine, "often").await, minutes(start, [10, 20, 30]));
    }

    fn a_paused_schedule_lets_its_instants_pass(place) {
        let engine = engine(&place).await;
        let start = place.now();
        create(&engine, "often", ScheduleSpec { catch_up: CatchUp::All, ..task(cron("*/10 * * * *")) }).await;
        let act = comeback_core::transition::Actor { note: Some("holidays".into()), ..nobody() };
        let view = engine.pause_schedule("default", "often", act).await.unwrap();
        assert_eq!((view.state(), view.spec.note.as_deref(), view.next.len()), ("paused", Some("holidays"), 0));
        place.pass(35 * MINUTE);
        engine.tick().await.unwrap();
        // By hand it goes all the same, and its instants stay as they are.
        let run = engine.trigger_schedule("default", "often", &nobody()).await.unwrap();
        assert_eq!((run.scheduled_at, run.trigger.word()), (place.now(), "manual"));
        let view = engine.resume_schedule("default", "often", nobody()).await.unwrap();
        assert_eq!((view.standing.last_manual_run, view.standing.last_run), (Some(run), None));
        engine.tick().await.unwrap();
        on_to_the_next(&place, &engine).await;
        assert_eq!(instants(&engine, "often").await, minutes(start, [35, 40]));
    }

    /// A schedule that cannot fire keeps nobody waiting, says why, and goes on when it can.
    fn a_broken_schedule_keeps_nobody_waiting(place) {
        let engine = engine(&place).await;
        put(&engine, "w", json!({"steps": {"go": {}}})).await;
        let when = || cron("*/10 * * * *");
        create(&engine, "a-gone", workflow(when(), "w", json!({}))).await;
        let texts = json!({"n": "{{ 1 // (0 if scheduled_at > '2027-01-15T08:05' else 1) }}"});
        create(&engine, "b-texts", ScheduleSpec::new(when(), Starts::Task(json!({"kind": "t", "payload": texts})))).await;
        create(&engine, "c-good", task(when())).await;
        engine.store().delete_document(Collection { namespace: "default", shelf: WORKFLOWS }, "w").await.unwrap();
        // One whose row nobody can read.
        create(&engine, "a-torn", task(when())).await;
        place.damage("update schedule set body = '{' where name = 'a-torn'").await;
        on_to_the_next(&place, &engine).await;
        assert_eq!(instants(&engine, "c-good").await.len(), 1);
        for (name, words) in [("a-gone", "no such workflow"), ("b-texts", "task.payload.n")] {
            let view = look(&engine, name).await;
            assert_eq!((view.state(), view.standing.failed, view.standing.fired), ("error", 1, 0), "{name}");
            let error = view.standing.last_error.unwrap();
            assert!(error.message.contains(words), "{name}: {}", error.message);
            assert_eq!(error.scheduled_at, place.now());
        }
        assert_eq!(engine.schedules("default", "", 9).await.unwrap().len(), 3, "all the others");
        let unread = engine.pause_schedule("default", "a-torn", nobody()).await;
        assert!(matches!(unread, Err(CommandError::Store(_))), "{unread:?}");
        assert!(!engine.replace_schedule("default", "a-torn", task(when()), &nobody()).await.unwrap().1);
        put(&engine, "w", json!({"steps": {"go": {}}})).await;
        on_to_the_next(&place, &engine).await;
        let view = look(&engine, "a-gone").await;
        assert_eq!((view.state(), view.standing.failed, view.standing.fired), ("active", 1, 1));
        assert!(view.standing.last_error.is_some(), "it is still told");
        assert_eq!(instants(&engine, "a-torn").await.len(), 1, "from then on");
    }

    fn a_schedule_ends_when_it_is_over(place) {
        let engine = engine(&place).await;
        let start = place.now();
        let bounds = (Some(start + Millis(15 * MINUTE)), Some(start + Millis(30 * MINUTE)));
        create(&engine, "often", task(Times { start_at: bounds.0, end_at: bounds.1, ..cron("*/10 * * * *") })).await;
        while on_to_the_next(&place, &engine).await {}
        assert_eq!(instants(&engine, "often").await, minutes(start, [20, 30]));
        assert_eq!(look(&engine, "often").await.state(), "stopped");
        engine.delete_schedule("default", "often", &nobody()).await.unwrap();
        assert!(matches!(engine.schedule("default", "often").await, Err(CommandError::NotFound("schedule"))));
    }

    fn another_rhythm_begins_when_it_is_put_and_the_same_goes_on(place) {
        let engine = engine(&place).await;
        let start = place.now();
        let all = |spec| ScheduleSpec { catch_up: CatchUp::All, ..spec };
        for name in ["same", "other"] {
            create(&engine, name, all(task(cron("*/10 * * * *")))).await;
        }
        place.pass(25 * MINUTE);
        let note = ScheduleSpec { note: Some("quarterly".into()), ..all(task(cron("*/10 * * * *"))) };
        assert!(!engine.replace_schedule("default", "same", note, &nobody()).await.unwrap().1);
        engine.replace_schedule("default", "other", all(task(cron("*/15 * * * *"))), &nobody()).await.unwrap();
        engine.tick().await.unwrap();
        assert_eq!(instants(&engine, "same").await, minutes(start, [10, 20]));
        assert!(instants(&engine, "other").await.is_empty());
        on_to_the_next(&place, &engine).await;
        assert_eq!(instants(&engine, "other").await, minutes(start, [30]));
        assert!(engine.replace_schedule("default", "new", task(cron("0 0 * * *")), &nobody()).await.unwrap().1);
    }

    fn what_is_wrong_with_a_schedule_is_told_by_its_field(place) {
        let engine = engine(&place).await;
        let bad = async |name: &str, spec: ScheduleSpec| match engine.create_schedule("default", name, spec, &nobody()).await {
            Err(CommandError::Invalid(faults)) => faults.faults.into_iter().map(|it| it.path).collect::<Vec<_>>(),
            other => panic!("{name}: {other:?}"),
        };
        let good = || cron("0 9 * * *");
        assert_eq!(bad("a", task(cron("61 * * * *"))).await, ["cron"]);
        assert_eq!(bad("a", task(Times { time_zone: Some("Nowhere".into()), ..good() })).await, ["time_zone"]);
        assert_eq!(bad("", task(good())).await, ["name"]);
        assert_eq!(bad("a", ScheduleSpec { catch_up_limit: 0, ..task(good()) }).await, ["catch_up_limit"]);
        assert_eq!(bad("a", workflow(good(), "nothing", json!({}))).await, ["workflow"]);
        assert_eq!(bad("a", ScheduleSpec::new(good(), Starts::Task(json!({})))).await, ["task.kind"]);
        let texts = json!({"kind": "t", "payload": "{{ nobody.knows }}"});
        assert_eq!(bad("a", ScheduleSpec::new(good(), Starts::Task(texts))).await, ["task.payload"]);
        put(&engine, "w", json!({"steps": {"go": {}}})).await;
        assert_eq!(bad("a", workflow(cron("x"), "w", json!([]))).await, ["cron", "input"]);
        create(&engine, "a", task(good())).await;
        let twice = engine.create_schedule("default", "a", task(good()), &nobody()).await;
        assert!(matches!(twice, Err(CommandError::NameTaken("schedule"))));
        // Another namespace has names of its own.
        engine.create_schedule("other", "a", task(good()), &nobody()).await.unwrap();
        assert_eq!(engine.schedules("other", "", 9).await.unwrap().len(), 1);
    }

    /// On the real clock: a loop that sleeps towards the next instant is there when it comes, and a new schedule wakes it.
    fn the_loop_is_there_when_the_instant_comes(place) {
        let engine = place.live_engine().await;
        engine.read_workflows_with(std::sync::Arc::new(Plain));
        create(&engine, "often", task(Times { every: Some(Millis(1_000)), ..Times::default() })).await;
        for _ in 0..2 {
            let request = LeaseRequest { wait: std::time::Duration::from_secs(10), ..LeaseRequest::new("default", "w") };
            let leased = engine.lease(request).await.unwrap();
            let at = Timestamp::parse_rfc3339(&leased[0].labels["scheduled_at"]).unwrap();
            let late = engine.now().since(at);
            assert!(engine.now() >= at && late < Millis(900), "{late} late");
        }
    }

    fn what_fires_soon_is_known_beforehand(place) {
        let engine = engine(&place).await;
        let start = place.now();
        create(&engine, "often", task(cron("* * * * *"))).await;
        create(&engine, "paused", ScheduleSpec { paused: true, ..task(cron("* * * * *")) }).await;
        create(&engine, "later", task(cron("*/5 * * * *"))).await;
        let until = start + Millis(10 * MINUTE);
        let (firings, all) = engine.firings_until("default", until, 100).await.unwrap();
        let of = |name: &str| firings.iter().filter(|it| it.0 == name).map(|it| it.1.to_rfc3339()).collect::<Vec<_>>();
        assert_eq!(of("often"), minutes(start, 1..=10));
        assert_eq!((of("later").len(), of("paused").len(), all), (2, 0, true));
        let (some, all) = engine.firings_until("default", until, 3).await.unwrap();
        assert_eq!((some.len(), all), (3, false));
        assert_eq!(engine.firings_until("other", until, 9).await.unwrap(), (Vec::new(), true));
    }
}
