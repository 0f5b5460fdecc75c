//! Bad input is answered with what is wrong, and nothing is written.

use std::time::Duration;

use crate::stories;
use crate::world::*;
use comeback_core::transition::Actor;
use comeback_core::{Failure, Millis, OnUnmet, Reporter, State, TaskId, Trigger, When};
use comeback_engine::store::{ListQuery, Loop};
use comeback_engine::{
    CommandError, CompleteCallback, ExecutionSpec, Heartbeat, LeaseRef, LeaseRequest, ManualRetry, Need, Report,
    ReportEnd, Submit, TaskSpec,
};
use serde_json::json;

fn faults(error: &CommandError) -> Vec<String> {
    match error {
        CommandError::Invalid(invalid) => invalid.faults.iter().map(|fault| fault.path.clone()).collect(),
        other => panic!("{other}"),
    }
}

stories! {
    fn one_bad_task_refuses_the_whole_request(place) {
        let engine = place.engine().await;
        let mut tasks: Vec<TaskSpec> = (0..20).map(|_| TaskSpec::new("good")).collect();
        tasks[7].priority = 5_000;
        tasks[11].kind = String::new();
        let error = engine.submit(Submit { namespace: "default".into(), tasks, ..Submit::default() }).await.unwrap_err();
        assert_eq!(faults(&error), ["tasks[7].priority", "tasks[11].kind"]);
        assert!(lease(&engine, 100).await.is_empty(), "nothing was written");
        assert!(engine.store().counts("default", engine.now()).await.unwrap().by_state.is_empty());
    }

    fn every_bad_task_is_a_typed_error(place) {
        let engine = place.engine().await;
        let long = "x".repeat(300);
        let needs = |task: &str| vec![Need { task: task.into(), when: When::Success, on_unmet: OnUnmet::Skip }];
        let cases: Vec<(TaskSpec, &str)> = vec![
            (TaskSpec::new(""), "kind"),
            (TaskSpec::new(long.clone()), "kind"),
            (TaskSpec::new("a\0b"), "kind"),
            (TaskSpec { queue: Some(long.clone()), ..TaskSpec::new("k") }, "queue"),
            (TaskSpec { name: Some("a\u{7}".into()), ..TaskSpec::new("k") }, "name"),
            (TaskSpec { key: Some(String::new()), ..TaskSpec::new("k") }, "key"),
            (TaskSpec { external_id: Some(long.clone()), ..TaskSpec::new("k") }, "external_id"),
            (TaskSpec { dedupe_key: Some(String::new()), ..TaskSpec::new("k") }, "dedupe_key"),
            (TaskSpec { priority: i32::MIN, ..TaskSpec::new("k") }, "priority"),
            (TaskSpec { timeout: Some(Millis::MAX), ..TaskSpec::new("k") }, "timeout"),
            (TaskSpec { attempt_deadline: Some(Millis(0)), ..TaskSpec::new("k") }, "attempt_deadline"),
            (TaskSpec { labels: [("".to_owned(), "v".to_owned())].into(), ..TaskSpec::new("k") }, "labels."),
            (TaskSpec { labels: [("k".to_owned(), "v".repeat(400))].into(), ..TaskSpec::new("k") }, "labels.k"),
            (TaskSpec { labels: [("k".to_owned(), "\0".to_owned())].into(), ..TaskSpec::new("k") }, "labels.k"),
            (TaskSpec::new("k").payload(json!("x".repeat(300_000))), "payload"),
            (TaskSpec { needs: needs("nobody"), ..TaskSpec::new("k") }, "needs[0].task"),
            (TaskSpec { key: Some("me".into()), needs: needs("me"), ..TaskSpec::new("k") }, "needs[0].task"),
            (TaskSpec { dependency: Some(long.clone()), ..TaskSpec::new("k") }, "dependency"),
            (TaskSpec { account: Some("acme".into()), ..TaskSpec::new("k") }, "account"),
            (TaskSpec { cost: Some(1), ..TaskSpec::new("k") }, "cost"),
            (TaskSpec { hooks: Some(json!({"end": []}).into()), ..TaskSpec::new("k") }, "hooks.end"),
        ];
        for (task, path) in cases {
            let error = engine.submit(Submit::one("default", task)).await.unwrap_err();
            assert_eq!(faults(&error), [path]);
        }
        assert!(engine.store().counts("default", engine.now()).await.unwrap().by_state.is_empty());
    }

    fn a_bad_namespace_is_refused(place) {
        let engine = place.engine().await;
        for name in ["", "a\nb", &"n".repeat(300)] {
            let error = engine.submit(Submit::one(name, TaskSpec::new("k"))).await.unwrap_err();
            assert_eq!(faults(&error), ["namespace"]);
        }
    }

    /// PostgreSQL reads no JSON with a zero character: it must never get one.
    fn an_error_with_a_zero_character_can_still_be_listed(place) {
        let engine = place.engine().await;
        submit(&engine, spec("k", json!({}))).await;
        let leased = lease_one(&engine).await;
        let result = Some(json!({"body": "a\0b"}));
        let failure = Failure { result, code: Some("\0".into()), ..Failure::new(Trigger::Error, "boom\0boom") };
        report(&engine, &leased, ReportEnd::Failed(failure)).await.unwrap();
        let query = ListQuery {
            filter: comeback_core::filter::Filter::parse("boom", engine.now()).unwrap(),
            sort: comeback_core::filter::Sort::Submitted,
            limit: 10,
            after: None,
            now: engine.now(),
        };
        let listed = engine.store().list("default", &query).await.unwrap();
        assert_eq!(listed.items[0].last_error.as_deref(), Some("boom\u{fffd}boom"));
    }

    fn a_bad_execution_is_refused(place) {
        let engine = place.engine().await;
        let long = "x".repeat(300);
        let cases = [
            (ExecutionSpec { name: Some(String::new()), ..ExecutionSpec::default() }, "execution.name"),
            (ExecutionSpec { external_id: Some(long.clone()), ..ExecutionSpec::default() }, "execution.external_id"),
            (ExecutionSpec { labels: [(long, String::new())].into(), ..ExecutionSpec::default() }, "execution.labels."),
        ];
        for (execution, path) in cases {
            let one = Submit { execution: Some(execution), ..Submit::one("default", TaskSpec::new("k")) };
            let error = engine.submit(one).await.unwrap_err();
            assert!(faults(&error)[0].starts_with(path), "{error}");
        }
        let empty = Submit { namespace: "default".into(), execution: Some(ExecutionSpec::default()), ..Submit::default() };
        assert_eq!(faults(&engine.submit(empty).await.unwrap_err()), ["tasks"]);
    }

    fn a_bad_act_is_refused(place) {
        let engine = place.engine().await;
        let id = submit(&engine, spec("k", json!({}))).await;
        for (act, path) in [
            (Actor { by: Some("a\0".into()), ..Actor::default() }, "requested_by"),
            (Actor { note: Some("n".repeat(5_000)), ..Actor::default() }, "note"),
            (Actor { note: Some("\0".into()), ..Actor::default() }, "note"),
        ] {
            assert_eq!(faults(&engine.cancel("default", id, act.clone()).await.unwrap_err()), [path]);
            let error = engine.pause_loop(Loop::Reap, None, act.clone()).await.unwrap_err();
            assert_eq!(faults(&error), [path]);
        }
        assert_eq!(state(&engine, id).await, State::Pending);
        let worker = LeaseRequest::new("default", "w\0");
        assert_eq!(faults(&engine.lease(worker).await.unwrap_err()), ["worker"]);
    }

    fn too_many_tasks_are_refused_before_anything_is_read(place) {
        let engine = place.engine().await;
        let tasks = vec![TaskSpec::new("k"); 10_001];
        let error = engine.submit(Submit { namespace: "default".into(), tasks, ..Submit::default() }).await.unwrap_err();
        assert_eq!(faults(&error), ["tasks"]);
    }

    fn a_circle_is_refused_and_named(place) {
        let engine = place.engine().await;
        let task = |key: &str, need: &str| TaskSpec {
            key: Some(key.into()),
            needs: vec![Need { task: need.into(), when: When::Always, on_unmet: OnUnmet::Skip }],
            ..TaskSpec::new("k")
        };
        let tasks = vec![task("a", "c"), task("b", "a"), task("c", "b")];
        let submit = Submit { namespace: "default".into(), tasks, execution: Some(ExecutionSpec::default()), ..Submit::default() };
        let error = engine.submit(submit).await.unwrap_err();
        assert!(error.to_string().contains("→"), "{error}");
        assert!(engine.store().counts("default", engine.now()).await.unwrap().by_state.is_empty());
    }

    fn a_bad_lease_request_is_refused(place) {
        let engine = place.engine().await;
        let good = || LeaseRequest::new("default", "w");
        let cases: Vec<(LeaseRequest, &str)> = vec![
            (LeaseRequest { worker: String::new(), ..good() }, "worker"),
            (LeaseRequest { queues: vec![], ..good() }, "queues"),
            (LeaseRequest { limit: 0, ..good() }, "limit"),
            (LeaseRequest { limit: 1_000_000, ..good() }, "limit"),
            (LeaseRequest { lease: Millis(0), ..good() }, "lease"),
            (LeaseRequest { lease: Millis::from_days(2), ..good() }, "lease"),
            (LeaseRequest { kinds: vec!["k".into(); 2_000], ..good() }, "kinds"),
        ];
        for (request, path) in cases {
            let error = engine.lease(LeaseRequest { wait: Duration::ZERO, ..request }).await.unwrap_err();
            assert_eq!(faults(&error), [path]);
        }
    }

    fn a_result_that_is_too_large_is_refused_for_its_report_alone(place) {
        let engine = place.engine().await;
        submit(&engine, TaskSpec::new("a")).await;
        submit(&engine, TaskSpec::new("a")).await;
        let leased = lease(&engine, 2).await;
        let large = ReportEnd::Succeeded { result: Some(json!("x".repeat(300_000)).into()) };
        let reports = vec![
            Report { lease: leased[0].lease, end: large },
            Report { lease: leased[1].lease, end: succeeded() },
        ];
        let answers = engine.report(reports).await.unwrap();
        assert!(matches!(answers[0], Err(CommandError::Invalid(_))));
        assert!(answers[1].is_ok());
        assert!(report(&engine, &leased[0], succeeded()).await.is_ok(), "the lease is still good");
    }

    fn an_error_that_is_too_large_is_cut_and_marked(place) {
        let engine = place.engine().await;
        let id = submit(&engine, spec("a", json!({}))).await;
        let leased = lease_one(&engine).await;
        report(&engine, &leased, failed(&"é".repeat(500_000))).await.unwrap();
        let kept = engine.task("default", id).await.unwrap().last_failure.unwrap().failure.unwrap().message;
        assert!(kept.len() < 70_000 && kept.ends_with("[cut]"));
    }

    fn what_does_not_exist_is_not_found(place) {
        let engine = place.engine().await;
        let nobody_knows: TaskId = "019a0000-0000-7000-8000-000000000000".parse().unwrap();
        let not_found = |error: CommandError| assert!(matches!(error, CommandError::NotFound(_)), "{error}");
        not_found(engine.task("default", nobody_knows).await.unwrap_err());
        not_found(engine.cancel("default", nobody_knows, nobody()).await.unwrap_err());
        not_found(engine.retry("default", nobody_knows, ManualRetry::default()).await.unwrap_err());
        not_found(engine.why("default", nobody_knows).await.unwrap_err());
        not_found(engine.forecast("default", nobody_knows, 5).await.unwrap_err());
        let settle = CompleteCallback { namespace: "default".into(), task: nobody_knows, fence: Reporter::Run(1), end: succeeded() };
        not_found(engine.complete_callback(settle).await.unwrap_err());
        let id = submit(&engine, TaskSpec::new("a")).await;
        not_found(engine.cancel("other", id, nobody()).await.unwrap_err());
    }

    fn a_bad_heartbeat_is_refused(place) {
        let engine = place.engine().await;
        let id = submit(&engine, TaskSpec::new("a")).await;
        for extend in [Millis(0), Millis::from_days(1)] {
            let beat = Heartbeat { lease: LeaseRef { task: id, number: 1 }, extend, progress: None };
            assert_eq!(faults(&engine.heartbeat(&[beat]).await.unwrap_err()), ["extend"]);
        }
        assert!(engine.snooze("default", id, Millis::MAX, nobody()).await.is_err());
    }
}
