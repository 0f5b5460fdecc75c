//! Creating tasks.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use super::cases;
use super::world::{T0, World};
use crate::*;
use comeback_core::*;
use serde_json::json;

fn key(text: &str, digest: u8) -> Option<Idempotency> {
    Some(Idempotency { scope: "tasks".into(), key: text.into(), digest: [digest; 32] })
}

fn created(answer: &Submitted) -> &[SubmittedTask] {
    match answer {
        Submitted::Created(tasks) => tasks,
        other => panic!("{other:?}"),
    }
}

cases! { "submit";
    fn a_submitted_task_is_there_as_it_was_sent(w) {
        let mut new = w.retrying_task("mail", json!({"max_retries": 5, "jitter": "full"}));
        new.task.priority = 7;
        new.task.timeout = Some(Millis(30_000));
        new.task.attempt_deadline = Some(Millis(90_000));
        new.task.expires_at = Some(T0 + Millis::from_days(14));
        let stored = {
            w.submit(vec![new.clone()]).await;
            w.load(new.task.id).await
        };
        assert_eq!(stored.task, new.task);
        assert_eq!(stored.policy, new.policy);
    }

    fn a_body_is_kept_field_by_field(w) {
        w.fund("acme", 3).await;
        let mut new = w.new_task("mail");
        new.task.metered = true;
        new.body = Body {
            key: Some("k".into()),
            name: Some("Mail \u{1F600} \"quoted\"".into()),
            payload: Some("{\"a\":[1,2.50,\"\\u0000\"]}".into()),
            labels: [("tenant".to_owned(), "acme".to_owned()), ("x.y".to_owned(), "'; drop table task; --".to_owned())].into(),
            executor: Some("{\"type\":\"worker\"}".into()),
            hooks: Some("{}".into()),
            step: Some("{\"output\":1}".into()),
            account: Some("acme".into()),
            cost: Some(3),
            dedupe_key: Some("d".into()),
            external_id: Some("42".into()),
            traceparent: Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".into()),
            hard_deadline: true,
            rules: vec!["~one".into(), "~two".into()],
        };
        let id = w.submit(vec![new.clone()]).await[0];
        let view = w.store.task("default", id).await.unwrap().unwrap();
        assert_eq!(view.body, new.body);
        assert!(view.stored.hard_deadline);
    }

    /// F1-14: of two who make a task in the absence of one like it, at the same moment, one does.
    fn what_is_made_in_the_absence_of_another_is_made_once(w) {
        let unless = vec![comeback_core::filter::Filter::parse("kind:a state:open", w.now()).unwrap()];
        let ask = |w: &World| Submission { unless: unless.clone(), ..w.submission(vec![w.new_task("a")]) };
        let both = w.store.submit(&[ask(&w), ask(&w)], w.now()).await.unwrap();
        assert!(matches!(both[..], [Submitted::Created(_), Submitted::Overtaken]), "{both:?}");
        let first = w.claim(10).await.remove(0);
        assert_eq!(w.submit_one(ask(&w)).await, Submitted::Overtaken);
        w.succeed(&first.stored).await;
        for _ in 0..10 {
            let asks = (0..8).map(|_| {
                let w = w.clone();
                let ask = ask(&w);
                tokio::spawn(async move { w.submit_one(ask).await })
            });
            let mut made = 0;
            for answer in asks.collect::<Vec<_>>() {
                made += usize::from(matches!(answer.await.unwrap(), Submitted::Created(_)));
            }
            assert_eq!(made, 1);
            w.succeed(&w.claim(10).await.remove(0).stored).await;
        }
    }

    fn every_answer_is_in_the_order_of_its_question(w) {
        let tasks: Vec<NewTask> = (0..20).map(|_| w.new_task("a")).collect();
        let ids: Vec<TaskId> = tasks.iter().map(|new| new.task.id).collect();
        let submissions: Vec<Submission> = tasks.into_iter().map(|new| w.submission(vec![new])).collect();
        let answers = w.store.submit(&submissions, w.now()).await.unwrap();
        let answered: Vec<TaskId> = answers.iter().map(|answer| created(answer)[0].id).collect();
        assert_eq!(answered, ids);
    }

    fn one_submission_may_hold_many_lone_tasks(w) {
        let tasks: Vec<NewTask> = (0..50).map(|_| w.new_task("a")).collect();
        let answer = w.submit_one(w.submission(tasks)).await;
        assert_eq!(created(&answer).len(), 50);
        assert_eq!(w.claim(100).await.len(), 50);
    }

    fn an_empty_submission_is_nothing(w) {
        assert_eq!(w.submit_one(w.submission(vec![])).await, Submitted::Created(vec![]));
        assert!(w.store.submit(&[], w.now()).await.unwrap().is_empty());
    }

    fn the_same_key_and_request_give_the_first_answer_again(w) {
        let first = Submission { idempotency: key("k", 1), ..w.submission(vec![w.new_task("a"), w.new_task("b")]) };
        let answer = w.submit_one(first).await;
        let again = Submission { idempotency: key("k", 1), ..w.submission(vec![w.new_task("a"), w.new_task("b")]) };
        let repeated = w.submit_one(again).await;
        assert_eq!(repeated, Submitted::Repeated { execution: None, tasks: created(&answer).to_vec() });
        assert_eq!(w.claim(10).await.len(), 2, "nothing was created the second time");
    }

    fn the_same_key_with_another_request_is_a_mismatch_and_changes_nothing(w) {
        w.submit_one(Submission { idempotency: key("k", 1), ..w.submission(vec![w.new_task("a")]) }).await;
        let other = Submission { idempotency: key("k", 2), ..w.submission(vec![w.new_task("a")]) };
        assert_eq!(w.submit_one(other).await, Submitted::Mismatch);
        assert_eq!(w.claim(10).await.len(), 1);
    }

    fn keys_of_different_scopes_and_namespaces_do_not_meet(w) {
        let other_scope = Some(Idempotency { scope: "other".into(), ..key("k", 1).unwrap() });
        let mut elsewhere = w.new_task("a");
        elsewhere.task.lane = std::sync::Arc::new(Lane { namespace: "other".into(), ..(*elsewhere.task.lane).clone() });
        let questions = [
            Submission { idempotency: key("k", 1), ..w.submission(vec![w.new_task("a")]) },
            Submission { idempotency: other_scope, ..w.submission(vec![w.new_task("a")]) },
            Submission { idempotency: key("k", 1), ..w.submission(vec![elsewhere]) },
        ];
        for answer in w.store.submit(&questions, w.now()).await.unwrap() {
            assert_eq!(created(&answer).len(), 1);
        }
    }

    fn the_same_key_twice_in_one_call_creates_once(w) {
        let questions: Vec<Submission> = (0..3)
            .map(|_| Submission { idempotency: key("k", 1), ..w.submission(vec![w.new_task("a")]) })
            .collect();
        let answers = w.store.submit(&questions, w.now()).await.unwrap();
        assert!(matches!(answers[0], Submitted::Created(_)));
        assert!(answers[1..].iter().all(|answer| matches!(answer, Submitted::Repeated { .. })), "{answers:?}");
        assert_eq!(w.claim(10).await.len(), 1);
    }

    fn many_callers_with_one_key_create_one_task(w) {
        let mut callers = tokio::task::JoinSet::new();
        for _ in 0..16 {
            let w = w.clone();
            callers.spawn(async move {
                let ask = Submission { idempotency: key("k", 1), ..w.submission(vec![w.new_task("a")]) };
                match w.submit_one(ask).await {
                    Submitted::Created(tasks) | Submitted::Repeated { tasks, .. } => tasks[0].id,
                    other => panic!("{other:?}"),
                }
            });
        }
        let ids: std::collections::HashSet<TaskId> = callers.join_all().await.into_iter().collect();
        assert_eq!(ids.len(), 1, "everybody got the same id");
        assert_eq!(w.claim(100).await.len(), 1);
    }

    fn a_dedupe_key_is_unique_among_open_tasks(w) {
        let with_key = |key: &str| {
            let mut new = w.new_task("a");
            new.body.dedupe_key = Some(key.into());
            new
        };
        let first = w.submit(vec![with_key("d")]).await[0];
        let answer = w.submit_one(w.submission(vec![with_key("d")])).await;
        assert_eq!(created(&answer), [SubmittedTask { id: first, state: State::Pending, duplicate: true }]);
        let answer = w.submit_one(w.submission(vec![with_key("e")])).await;
        assert!(!created(&answer)[0].duplicate);
    }

    fn a_duplicate_answers_the_state_the_first_is_in(w) {
        let mut new = w.new_task("a");
        new.body.dedupe_key = Some("d".into());
        w.running(new.clone()).await;
        let mut again = w.new_task("a");
        again.body.dedupe_key = Some("d".into());
        let answer = w.submit_one(w.submission(vec![again])).await;
        assert_eq!(created(&answer)[0].state, State::Running);
    }

    fn a_dedupe_key_is_free_again_when_its_task_ends(w) {
        for round in 0..3 {
            let mut new = w.retrying_task("a", json!({"max_retries": 0}));
            new.body.dedupe_key = Some("d".into());
            let claimed = w.running(new).await;
            let done = match round {
                0 => w.succeed(&claimed.stored).await,
                1 => w.fail(&claimed.stored).await,
                _ => w.cancel(claimed.stored.task.id).await,
            };
            assert_eq!(done, Applied::Done);
        }
    }

    fn a_dedupe_key_is_held_while_its_task_waits_for_a_retry(w) {
        let mut new = w.retrying_task("a", json!({}));
        new.body.dedupe_key = Some("d".into());
        let claimed = w.running(new).await;
        w.fail(&claimed.stored).await;
        let mut again = w.new_task("a");
        again.body.dedupe_key = Some("d".into());
        let answer = w.submit_one(w.submission(vec![again])).await;
        assert_eq!(created(&answer), [SubmittedTask { id: claimed.stored.task.id, state: State::RetryPending, duplicate: true }]);
    }

    fn the_same_dedupe_key_twice_in_one_call_creates_once(w) {
        let make = || {
            let mut new = w.new_task("a");
            new.body.dedupe_key = Some("d".into());
            w.submission(vec![new])
        };
        let answers = w.store.submit(&[make(), make(), make()], w.now()).await.unwrap();
        let duplicates: Vec<bool> = answers.iter().map(|answer| created(answer)[0].duplicate).collect();
        assert_eq!(duplicates, [false, true, true]);
        let ids: std::collections::HashSet<TaskId> = answers.iter().map(|answer| created(answer)[0].id).collect();
        assert_eq!(ids.len(), 1);
    }

    fn many_callers_with_one_dedupe_key_create_one_task(w) {
        let mut callers = tokio::task::JoinSet::new();
        for _ in 0..16 {
            let w = w.clone();
            callers.spawn(async move {
                let mut new = w.new_task("a");
                new.body.dedupe_key = Some("d".into());
                created(&w.submit_one(w.submission(vec![new])).await)[0].id
            });
        }
        let ids: std::collections::HashSet<TaskId> = callers.join_all().await.into_iter().collect();
        assert_eq!(ids.len(), 1);
        assert_eq!(w.claim(100).await.len(), 1);
    }

    fn dedupe_keys_of_different_namespaces_do_not_meet(w) {
        let mut here = w.new_task("a");
        here.body.dedupe_key = Some("d".into());
        let mut there = here.clone();
        there.task.id = w.id();
        there.task.lane = std::sync::Arc::new(Lane { namespace: "other".into(), ..(*here.task.lane).clone() });
        w.submit(vec![here]).await;
        let answer = w.submit_one(w.submission(vec![there])).await;
        assert!(!created(&answer)[0].duplicate);
    }

    fn a_delayed_task_waits_for_its_time(w) {
        let id = w.submit(vec![w.delayed_task("a", 5_000)]).await[0];
        assert_eq!(w.state(id).await, State::Waiting);
        assert!(w.claim(10).await.is_empty());
        assert_eq!(w.kinds(id).await, ["task.created"]);
    }

    fn an_execution_is_created_whole(w) {
        let (id, tasks) = w.execution(&["a", "b", "c"], &["a>b", "b>c"]).await;
        assert_eq!(w.state(tasks["a"]).await, State::Pending);
        assert_eq!(w.state(tasks["b"]).await, State::Waiting);
        assert_eq!(w.load(tasks["c"]).await.task.needs_left, 1);
        let view = w.store.execution("default", id).await.unwrap().unwrap();
        assert_eq!((view.execution.state, view.execution.open, view.name.as_deref()), (ExecutionState::Pending, 3, Some("test")));
    }

    fn the_log_of_an_execution_begins_with_its_creation(w) {
        let (id, tasks) = w.execution(&["a", "b"], &["a>b"]).await;
        let log = w.execution_log(id).await;
        let told: Vec<(u32, &str, Option<TaskId>)> = log.iter().map(|event| (event.seq, event.kind.word(), event.task)).collect();
        assert_eq!(told, [
            (1, "execution.created", None),
            (2, "task.created", Some(tasks["a"])),
            (3, "task.ready", Some(tasks["a"])),
            (4, "task.created", Some(tasks["b"])),
        ]);
    }

    fn an_idempotent_execution_answers_its_id_again(w) {
        let (mut submission, id, _) = w.new_execution(&["a"], &[]);
        submission.idempotency = key("k", 1);
        w.submit_one(submission.clone()).await;
        let (mut again, _, _) = w.new_execution(&["a"], &[]);
        again.idempotency = key("k", 1);
        let Submitted::Repeated { execution, tasks } = w.submit_one(again).await else { panic!("created twice") };
        assert_eq!(execution, Some(id));
        assert_eq!(tasks[0].id, submission.tasks[0].task.id);
    }

    fn a_policy_is_stored_once_and_read_back_exactly(w) {
        let policy = json!({"max_retries": 40, "strategy": "exponential", "multiplier": 3.8933881995612882,
            "rules": [{"match": {"status": 503}, "then": "retry", "delay": "9s", "max": 4}], "retry_when": "attempt < 9"});
        let ids = w.submit((0..5).map(|_| w.retrying_task("a", policy.clone())).collect()).await;
        let stored: Vec<Stored> = w.store.load(&ids).await.unwrap().into_iter().flatten().collect();
        assert!(stored.iter().all(|it| it.policy_id == stored[0].policy_id));
        let given = w.retrying_task("a", policy).policy;
        assert_eq!(stored[0].policy, given);
    }

    fn a_large_payload_is_kept_to_the_byte(w) {
        let payload: String = format!("\"{}\"", "x".repeat(250_000));
        let mut new = w.new_task("a");
        new.body.payload = Some(payload.as_str().into());
        let claimed = w.running(new).await;
        assert_eq!(claimed.payload.as_deref(), Some(payload.as_str()));
    }

    fn ten_thousand_tasks_go_in_with_one_call(w) {
        let tasks: Vec<NewTask> = (0..10_000).map(|_| w.new_task("a")).collect();
        let answer = w.submit_one(w.submission(tasks)).await;
        assert_eq!(created(&answer).len(), 10_000);
        assert_eq!(w.store.counts("default", w.now()).await.unwrap().by_state[&State::Pending], 10_000);
    }
}
