//! What starts workflows beside time: people who switch them on and off, and events from outside.

use std::collections::BTreeMap;

use comeback_core::schedule::{Overlap, Times};
use comeback_core::workflow::{WorkflowAct, WorkflowState};
use comeback_core::{ExecutionState, Millis};
use comeback_engine::schedules::{Came, OutsideEvent, Run, ScheduleSpec, ScheduleView, Starts};
use comeback_engine::store::{ExecutionQuery, FiredBy};
use comeback_engine::{CommandError, Engine};
use serde_json::{Value, json};

use crate::flow::{engine, payload};
use crate::plain::{put, start};
use crate::stories;
use crate::world::{lease, lease_one, nobody, report, succeeded};

const HOUR: u64 = 3_600_000;

fn starts(path: &str, input: Option<Value>) -> Starts {
    Starts::Workflow { path: path.into(), version: None, input, labels: BTreeMap::new() }
}

fn hourly(path: &str) -> ScheduleSpec {
    let times = Times { every: Some(Millis(HOUR)), ..Times::default() };
    ScheduleSpec::new(times, starts(path, None))
}

fn on(event: &str, starts: Starts) -> ScheduleSpec {
    ScheduleSpec::new(Times { event: Some(event.into()), ..Times::default() }, starts)
}

async fn create(engine: &Engine, name: &str, spec: ScheduleSpec) -> ScheduleView {
    engine.create_schedule("default", name, spec, &nobody()).await.expect("it is taken")
}

async fn switch(engine: &Engine, path: &str, act: WorkflowAct) -> WorkflowState {
    engine.change_workflow("default", path, act, &nobody()).await.expect("it is switched").state
}

async fn state(engine: &Engine, name: &str) -> &'static str {
    engine.schedule("default", name).await.expect("it is there").state()
}

async fn executions(engine: &Engine, schedule: &str) -> usize {
    let query = ExecutionQuery { schedule: Some(schedule.into()), limit: 99, ..ExecutionQuery::default() };
    engine.store().executions("default", &query).await.expect("reads").len()
}

fn event(kind: &str, id: Option<&str>, data: Value) -> OutsideEvent {
    OutsideEvent { id: id.map(str::to_owned), kind: kind.into(), data, happened_at: None }
}

async fn tell(engine: &Engine, event: &OutsideEvent) -> Vec<(String, Came)> {
    engine.tell_event("default", event).await.expect("it is heard")
}

fn run(came: &[(String, Came)]) -> &Run {
    match came {
        [(_, Came::Started(run) | Came::Repeated(run))] => run,
        other => panic!("{other:?}"),
    }
}

fn refused(answer: Result<impl std::fmt::Debug, CommandError>) -> WorkflowState {
    match answer {
        Err(CommandError::WrongWorkflowState { state, .. }) => state,
        other => panic!("{other:?}"),
    }
}

stories! {
    /// F0-8: managed through the workflow alone.
    fn a_schedule_follows_its_workflow(place) {
        let engine = engine(&place).await;
        put(&engine, "w", json!({"steps": {"go": {}}})).await;
        create(&engine, "hourly", hourly("w")).await;
        let begun = start(&engine, "w", json!({})).await.expect("it is active");
        assert_eq!(state(&engine, "hourly").await, "initialized");

        assert_eq!(switch(&engine, "w", WorkflowAct::Pause).await, WorkflowState::Paused);
        let view = engine.schedule("default", "hourly").await.unwrap();
        assert_eq!((view.state(), view.next.len(), view.spec.paused), ("paused", 0, false));
        assert_eq!(refused(start(&engine, "w", json!({})).await), WorkflowState::Paused);
        assert_eq!(refused(engine.trigger_schedule("default", "hourly", &nobody()).await), WorkflowState::Paused);
        let (coming, _) = engine.firings_until("default", place.now() + Millis(9 * HOUR), 99).await.unwrap();
        assert_eq!(coming, []);
        for _ in 0..3 {
            place.pass(HOUR);
            engine.tick().await.unwrap();
        }
        assert_eq!(executions(&engine, "hourly").await, 0, "its instants pass");
        // What was begun goes on.
        report(&engine, &lease_one(&engine).await, succeeded()).await.unwrap();
        let seen = engine.store().execution("default", begun.execution).await.unwrap().unwrap();
        assert_eq!(seen.execution.state, ExecutionState::Succeeded);

        assert_eq!(switch(&engine, "w", WorkflowAct::Resume).await, WorkflowState::Active);
        engine.tick().await.unwrap();
        assert_eq!(executions(&engine, "hourly").await, 0, "what passed is not made up for");
        place.pass(HOUR);
        engine.tick().await.unwrap();
        assert_eq!((executions(&engine, "hourly").await, state(&engine, "hourly").await), (1, "active"));

        assert_eq!(switch(&engine, "w", WorkflowAct::Deactivate).await, WorkflowState::Inactive);
        assert_eq!(state(&engine, "hourly").await, "stopped");
        let resumed = engine.change_workflow("default", "w", WorkflowAct::Resume, &nobody()).await;
        assert_eq!(refused(resumed), WorkflowState::Inactive);
        place.pass(5 * HOUR);
        // Another instance has seen none of this, and nobody looked meanwhile.
        engine.close().await;
        place.forget();
        let other = crate::flow::engine(&place).await;
        assert_eq!(switch(&other, "w", WorkflowAct::Activate).await, WorkflowState::Active);
        other.tick().await.unwrap();
        assert_eq!(executions(&other, "hourly").await, 1, "what passed while it was out of use is not made up for");
        place.pass(HOUR);
        other.tick().await.unwrap();
        assert_eq!(executions(&other, "hourly").await, 2);
    }

    fn a_workflow_that_is_not_there_cannot_be_switched(place) {
        let engine = engine(&place).await;
        let nothing = engine.change_workflow("default", "none", WorkflowAct::Pause, &nobody()).await;
        assert!(matches!(nothing, Err(CommandError::NotFound("workflow"))), "{nothing:?}");
        put(&engine, "w", json!({"steps": {"go": {}}})).await;
        assert!(engine.change_workflow("other", "w", WorkflowAct::Pause, &nobody()).await.is_err());
        let before = engine.workflow_standing("default", "w").await.unwrap();
        assert_eq!((before.state, before.since), (WorkflowState::Active, None));
        assert_eq!(switch(&engine, "w", WorkflowAct::Resume).await, WorkflowState::Active);
        assert_eq!(engine.workflow_standing("default", "w").await.unwrap(), before, "nothing has changed");
    }

    /// A step that stands for an execution is part of one that was begun.
    fn a_step_may_call_a_workflow_that_is_switched_off(place) {
        let engine = engine(&place).await;
        put(&engine, "inner", json!({"steps": {"a": {}}})).await;
        put(&engine, "outer", json!({"steps": {"call": {"call": "inner"}}})).await;
        switch(&engine, "inner", WorkflowAct::Deactivate).await;
        start(&engine, "outer", json!({})).await.expect("it is active itself");
        engine.tick().await.unwrap();
        assert_eq!(lease(&engine, 9).await.len(), 1);
    }

    /// F0-7: an event from outside starts what waits for it, once.
    fn an_event_starts_what_waits_for_it(place) {
        let engine = engine(&place).await;
        put(&engine, "ship", json!({"steps": {"go": {"payload": {"order": "{{ input.order }}", "by": "{{ execution.trigger }}"}}}})).await;
        create(&engine, "paid", on("order.paid", starts("ship", None))).await;
        assert_eq!(state(&engine, "paid").await, "initialized");
        assert_eq!(tell(&engine, &event("order.opened", None, json!({}))).await, []);

        let paid = event("order.paid", Some("o-42"), json!({"order": 42}));
        let came = tell(&engine, &paid).await;
        let first = run(&came).clone();
        assert_eq!((came[0].0.as_str(), first.trigger, first.task), ("paid", FiredBy::Event, None));
        let leased = lease_one(&engine).await;
        assert_eq!(payload(&leased), json!({"order": 42, "by": "event"}));
        report(&engine, &leased, succeeded()).await.unwrap();
        place.pass(1_000);
        let again = tell(&engine, &paid).await;
        assert!(matches!(again[..], [(_, Came::Repeated(_))]), "{again:?}");
        assert_eq!(run(&again).execution, first.execution);
        assert_eq!(executions(&engine, "paid").await, 1);
        assert_eq!((state(&engine, "paid").await, lease(&engine, 9).await.len()), ("active", 0));

        // Neither one that is paused nor one whose workflow is switched off hears anything.
        engine.pause_schedule("default", "paid", nobody()).await.unwrap();
        assert_eq!(tell(&engine, &event("order.paid", None, json!({}))).await, []);
        engine.resume_schedule("default", "paid", nobody()).await.unwrap();
        switch(&engine, "ship", WorkflowAct::Pause).await;
        assert_eq!(tell(&engine, &event("order.paid", None, json!({}))).await, []);
        assert_eq!(state(&engine, "paid").await, "paused");
        switch(&engine, "ship", WorkflowAct::Resume).await;
        assert_eq!(tell(&engine, &event("order.paid", None, json!({"order": 43}))).await.len(), 1);
        assert_eq!(engine.tell_event("other", &event("order.paid", None, json!({}))).await.unwrap(), []);
    }

    fn the_texts_of_a_schedule_speak_of_the_event(place) {
        let engine = engine(&place).await;
        let task = json!({"kind": "mail", "payload": {"to": "{{ event.data.to }}", "what": "{{ event.type }} {{ event.id }}"}});
        let spec = ScheduleSpec { overlap: Overlap::Skip, ..on("user.*", Starts::Task(task)) };
        create(&engine, "mails", spec).await;
        let made = run(&tell(&engine, &event("user.joined", Some("u1"), json!({"to": "a@b"}))).await).clone();
        let leased = lease_one(&engine).await;
        assert_eq!((payload(&leased), made.task), (json!({"to": "a@b", "what": "user.joined u1"}), Some(leased.lease.task)));
        let skipped = tell(&engine, &event("user.left", None, json!({"to": "a@b"}))).await;
        assert_eq!(skipped, [("mails".to_owned(), Came::Skipped)], "the run before is open");
        report(&engine, &leased, succeeded()).await.unwrap();
        place.pass(1_000);
        // One that cannot be filled is the schedule's own failure.
        let failed = tell(&engine, &event("user.left", None, json!({}))).await;
        assert!(matches!(&failed[..], [(_, Came::Failed(why))] if why.contains("task.payload.to")), "{failed:?}");
        let view = engine.schedule("default", "mails").await.unwrap();
        let counts = (view.standing.fired, view.standing.skipped, view.standing.failed);
        assert_eq!((view.state(), counts), ("error", (1, 1, 1)));
        let wrong = on("user.*", Starts::Task(json!({"kind": "mail", "payload": "{{ event.data."})));
        assert!(engine.create_schedule("default", "wrong", wrong, &nobody()).await.is_err(), "it is no text");
        let nowhere = on("user.*", starts("nowhere", Some(json!({"to": "{{ event.data.to }}"}))));
        assert!(engine.create_schedule("default", "nowhere", nowhere, &nobody()).await.is_err());
    }

    fn of_two_who_tell_the_same_event_one_starts_it(place) {
        let (one, two) = (engine(&place).await, engine(&place).await);
        put(&one, "ship", json!({"steps": {"go": {}}})).await;
        create(&one, "paid", on("order.paid", starts("ship", None))).await;
        let paid = event("order.paid", Some("o-42"), json!({}));
        let (a, b) = tokio::join!(tell(&one, &paid), tell(&two, &paid));
        assert_eq!(run(&a).execution, run(&b).execution);
        assert_eq!(executions(&one, "paid").await, 1);
        assert_eq!(one.schedule("default", "paid").await.unwrap().standing.fired, 1);
    }
}
