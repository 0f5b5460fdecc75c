//! The log of one task.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use super::cases;
use crate::*;
use comeback_core::transition::{self, Actor};
use comeback_core::*;
use serde_json::json;

cases! { "history";
    fn a_new_task_has_its_creation(w) {
        let id = w.submit_many("a", 1).await[0];
        let events = w.events(id).await;
        assert_eq!(events.iter().map(|event| (event.seq, event.kind.word(), event.at)).collect::<Vec<_>>(), [
            (1, "task.created", w.now()),
            (2, "task.ready", w.now()),
        ]);
        w.check_log(id).await;
    }

    /// `attempt.started` is visible while the attempt runs.
    fn a_running_attempt_is_visible(w) {
        let id = w.submit_many("a", 1).await[0];
        w.pass(250);
        w.claim(1).await;
        let started = w.events(id).await.pop().unwrap();
        assert_eq!((started.kind, started.seq, started.at), (EventKind::AttemptStarted, 3, w.now()));
        assert_eq!(started.data, json!({"attempt_number": 1, "is_retry": false, "worker": "w1"}));
    }

    fn a_started_event_reads_the_same_before_and_after_the_end(w) {
        let id = w.submit_many("a", 1).await[0];
        w.pass(250);
        let claimed = w.claim(1).await.remove(0);
        let during = w.events(id).await[2].clone();
        w.pass(990);
        w.succeed(&claimed.stored).await;
        assert_eq!(w.events(id).await[2], during);
    }

    fn a_retry_due_event_reads_the_same_before_and_after_the_next_end(w) {
        let claimed = w.running(w.retrying_task("a", json!({"initial_delay": "1s"}))).await;
        let id = claimed.stored.task.id;
        w.fail(&claimed.stored).await;
        w.pass(1_234);
        w.promote().await;
        let waiting = w.events(id).await[5].clone();
        assert_eq!((waiting.kind, waiting.at), (EventKind::TaskRetryDue, w.now()));
        w.pass(5);
        let again = w.claim(1).await.remove(0);
        assert_eq!(w.events(id).await[5], waiting);
        let started = w.events(id).await[6].clone();
        assert_eq!((started.run, started.attempt, started.data["is_retry"].as_bool()), (2, 1, Some(true)));
        w.pass(5);
        w.fail(&again.stored).await;
        assert_eq!(w.events(id).await[5], waiting);
        assert_eq!(w.events(id).await[6], started);
        w.check_log(id).await;
    }

    /// S4-31 to S4-44 in native names: three attempts, each told once, without a gap.
    fn three_attempts_are_told_in_full(w) {
        let mut stored = w.running(w.retrying_task("a", json!({"max_attempts": 3, "initial_delay": 1}))).await.stored;
        let id = stored.task.id;
        for _ in 0..2 {
            w.fail(&stored).await;
            w.go_to(w.load(id).await.task.due().unwrap());
            w.promote().await;
            stored = w.claim(1).await.remove(0).stored;
        }
        w.fail(&stored).await;
        assert_eq!(w.kinds(id).await, [
            "task.created", "task.ready",
            "attempt.started", "attempt.failed", "task.retry_scheduled",
            "task.retry_due", "attempt.started", "attempt.failed", "task.retry_scheduled",
            "task.retry_due", "attempt.started", "attempt.failed", "task.retry_exhausted", "task.failed",
        ]);
        w.check_log(id).await;
        let records = w.records(id).await;
        let attempts: Vec<(u32, u32)> = records.iter().filter(|it| it.outcome.is_some()).map(|it| (it.run, it.attempt)).collect();
        assert_eq!(attempts, [(1, 1), (2, 2), (3, 2)]);
    }

    fn the_end_of_a_lease_is_found_by_its_number(w) {
        let first = w.running(w.retrying_task("a", json!({"strategy": "immediate"}))).await.stored;
        let id = first.task.id;
        w.fail(&first).await;
        w.promote().await;
        let second = w.claim(1).await.remove(0).stored;
        w.succeed(&second).await;
        let stranger = w.id();
        let asked = [(id, 2), (stranger, 1), (id, 1), (id, 3)];
        let outcomes: Vec<Option<AttemptOutcome>> =
            w.store.ended(&asked).await.unwrap().iter().map(|it| it.as_ref().and_then(|it| it.outcome)).collect();
        assert_eq!(outcomes, [Some(AttemptOutcome::Succeeded), None, Some(AttemptOutcome::Failed), None]);
        assert!(w.store.ended(&[]).await.unwrap().is_empty());
    }

    fn a_page_goes_on_behind_an_event(w) {
        let mut stored = w.running(w.retrying_task("a", json!({"strategy": "immediate", "max_retries": 20}))).await.stored;
        for _ in 0..10 {
            w.fail(&stored).await;
            w.promote().await;
            stored = w.claim(1).await.remove(0).stored;
        }
        let all = w.events(stored.task.id).await;
        for after in [0, 1, 2, 3, 5, 17, 40, 1_000] {
            let records = w.store.history(Subject::Task(stored.task.id), after, 1_000).await.unwrap();
            let rest: Vec<Event> = records.iter().flat_map(Record::expand).filter(|event| event.seq > after).collect();
            let expected: Vec<Event> = all.iter().filter(|event| event.seq > after).cloned().collect();
            assert_eq!(rest, expected, "after {after}");
        }
        let page = w.store.history(Subject::Task(stored.task.id), 0, 3).await.unwrap();
        assert_eq!(page.len(), 3);
    }

    fn an_act_tells_who_and_why(w) {
        let id = w.submit_many("a", 1).await[0];
        let task = w.load(id).await.task;
        let act = Actor { by: Some("ana".into()), note: Some("maintenance".into()), ..Actor::default() };
        w.apply(transition::pause(&task, &act, w.now()).unwrap()).await;
        let event = w.events(id).await.pop().unwrap();
        assert_eq!(event.data, json!({"from": "pending", "note": "maintenance", "by": "ana"}));
    }

    fn pausing_a_run_writes_its_start_first(w) {
        let claimed = w.running(w.new_task("a")).await;
        let id = claimed.stored.task.id;
        w.apply(transition::pause(&claimed.stored.task, &Actor::default(), w.now()).unwrap()).await;
        assert_eq!(w.kinds(id).await[2..], ["attempt.started", "task.paused"]);
        let paused = w.load(id).await;
        w.apply(transition::resume(&paused.task, &Actor::default(), w.now()).unwrap()).await;
        let resumed = w.load(id).await;
        w.succeed(&resumed).await;
        assert_eq!(w.kinds(id).await[4..], ["task.resumed", "attempt.succeeded", "task.succeeded"]);
        w.check_log(id).await;
    }

    fn an_unknown_subject_has_no_history(w) {
        assert!(w.records(w.id()).await.is_empty());
        assert!(w.execution_log(ExecutionId(w.id().0)).await.is_empty());
    }

    fn a_task_in_an_execution_has_its_own_part_of_the_log(w) {
        let (id, tasks) = w.execution(&["a", "b"], &["a>b"]).await;
        w.claim(1).await;
        w.settle_in(id, tasks["a"], End::Succeeded { result: None }).await;
        assert_eq!(w.kinds(tasks["a"]).await, ["task.created", "task.ready", "attempt.started", "attempt.succeeded", "task.succeeded"]);
        assert_eq!(w.kinds(tasks["b"]).await, ["task.created", "task.ready"]);
        let records = w.store.history(Subject::Execution(id), 6, 100).await.unwrap();
        assert!(records.iter().all(|record| record.last_seq() > 6));
    }

    fn a_thousand_attempts_are_kept_and_paged(w) {
        let mut stored = w.running(w.retrying_task("a", json!({"strategy": "immediate", "max_retries": 1000}))).await.stored;
        for _ in 0..300 {
            w.fail(&stored).await;
            w.promote().await;
            stored = w.claim(1).await.remove(0).stored;
        }
        w.check_log(stored.task.id).await;
        let mut after = 0;
        let mut count = 0;
        loop {
            let page = w.store.history(Subject::Task(stored.task.id), after, 50).await.unwrap();
            let Some(last) = page.last() else { break };
            count += page.iter().filter(|record| record.outcome.is_some()).count();
            after = last.last_seq();
        }
        assert_eq!(count, 300);
    }

    fn runs_are_paged_from_the_newest_back(w) {
        let mut stored = w.running(w.retrying_task("a", json!({"strategy": "immediate", "max_retries": 20}))).await.stored;
        for _ in 0..7 {
            w.fail(&stored).await;
            w.promote().await;
            stored = w.claim(1).await.remove(0).stored;
        }
        let id = stored.task.id;
        let ended: Vec<Record> = w.records(id).await.into_iter().filter(|record| record.outcome.is_some()).collect();
        let (mut before, mut back) = (u32::MAX, Vec::new());
        loop {
            let page = w.store.runs_before(id, before, 3).await.unwrap();
            let Some(last) = page.last() else { break };
            before = last.seq;
            back.extend(page);
        }
        back.reverse();
        assert_eq!(back, ended);
        assert!(w.store.runs_before(w.id(), u32::MAX, 3).await.unwrap().is_empty());
        let (execution, tasks) = w.execution(&["x", "y"], &["x>y"]).await;
        w.claim(1).await;
        w.settle_in(execution, tasks["x"], End::Succeeded { result: None }).await;
        assert_eq!(w.store.runs_before(tasks["x"], u32::MAX, 3).await.unwrap().len(), 1);
        assert!(w.store.runs_before(tasks["y"], u32::MAX, 3).await.unwrap().is_empty());
    }
}
