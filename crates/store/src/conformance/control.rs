//! Pauses and small facts.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use super::cases;
use crate::*;
use comeback_core::*;
use serde_json::json;

cases! { "control";
    fn a_pause_is_remembered_with_who_and_why(w) {
        assert!(w.store.pauses().await.unwrap().is_empty());
        let pause = Pause { until: w.now() + Millis(60_000), note: Some("deploy".into()), by: Some("ana".into()), at: w.now() };
        w.store.set_pause(Loop::Reap, Some(pause.clone()), None, w.now()).await.unwrap();
        assert_eq!(w.store.pauses().await.unwrap(), [(Loop::Reap, pause)]);
    }

    fn a_second_pause_replaces_the_first(w) {
        for ms in [60_000, 5_000] {
            let pause = Pause { until: w.now() + Millis(ms), note: None, by: None, at: w.now() };
            w.store.set_pause(Loop::Prune, Some(pause), None, w.now()).await.unwrap();
        }
        assert_eq!(w.store.pauses().await.unwrap()[0].1.until, w.now() + Millis(5_000));
    }

    fn each_loop_is_paused_for_itself(w) {
        for name in Loop::ALL {
            let pause = Pause { until: Timestamp::MAX, note: None, by: None, at: w.now() };
            w.store.set_pause(*name, Some(pause), None, w.now()).await.unwrap();
        }
        assert_eq!(w.store.pauses().await.unwrap().len(), Loop::ALL.len());
        w.store.set_pause(Loop::Starts, None, None, w.now()).await.unwrap();
        assert_eq!(w.store.pauses().await.unwrap().len(), Loop::ALL.len() - 1);
        w.store.set_pause(Loop::Starts, None, None, w.now()).await.unwrap();
    }

    /// Nobody gets anything: not of one lane, not of many, not what is due, not a step of an execution.
    fn while_dispatch_is_paused_nobody_is_leased_anything(w) {
        let retried = w.running(w.retrying_task("r", json!({"strategy": "fixed", "delay": "1s", "max_retries": 9}))).await;
        w.fail(&retried.stored).await;
        w.submit_many("a", 1).await;
        w.submit_many("b", 1).await;
        w.execution(&["x"], &[]).await;
        w.pass(2_000);
        let pause = Pause { until: w.now() + Millis(60_000), note: None, by: None, at: w.now() };
        w.store.set_pause(Loop::Dispatch, Some(pause), None, w.now()).await.unwrap();
        let asked = |kinds: &[&str]| ClaimRequest {
            due: true,
            kinds: kinds.iter().map(|kind| (*kind).to_owned()).collect(),
            ..w.request(10)
        };
        for kinds in [&["a"][..], &["a", "b"], &["step"], &["r"], &[]] {
            assert_eq!(w.claim_with(asked(kinds)).await.len(), 0, "{kinds:?}");
        }
        w.rule(json!({"name": "r", "max_running": 9})).await;
        assert_eq!(w.claim(10).await.len(), 0, "nor under a rule");
        w.pass(60_000);
        assert_eq!(w.claim_with(asked(&[])).await.len(), 3, "it ends by itself; a retry under a rule is promoted first");
    }

    /// Calls of hooks alone are held back; other calls are made.
    fn while_hooks_are_paused_no_hook_is_called(w) {
        let of = |executor: Executor, queue: &str| {
            let mut new = w.new_task("a");
            new.task.lane = std::sync::Arc::new(Lane { executor, queue: queue.into(), ..(*new.task.lane).clone() });
            new
        };
        let tasks = w.submit(vec![of(Executor::Http, "default"), of(Executor::Http, HOOK_QUEUE), of(Executor::Hook, "default")]).await;
        let pause = Pause { until: Timestamp::MAX, note: None, by: None, at: w.now() };
        w.store.set_pause(Loop::Hooks, Some(pause), None, w.now()).await.unwrap();
        let asked = |executor: Executor| ClaimRequest {
            executor,
            queues: vec!["default".into(), HOOK_QUEUE.into()],
            ..w.request(10)
        };
        let claim = async |executor: Executor| -> Vec<TaskId> {
            w.claim_with(asked(executor)).await.iter().map(|it| it.stored.task.id).collect()
        };
        assert_eq!((claim(Executor::Http).await, claim(Executor::Hook).await), (vec![tasks[0]], Vec::new()));
        w.store.set_pause(Loop::Hooks, None, None, w.now()).await.unwrap();
        assert_eq!((claim(Executor::Http).await, claim(Executor::Hook).await), (vec![tasks[1]], vec![tasks[2]]));
    }

    fn facts_are_kept_and_replaced(w) {
        assert_eq!(w.store.meta("k").await.unwrap(), None);
        assert_eq!(w.store.put_meta("k", "1", PutIf::Always, None).await.unwrap(), "1");
        assert_eq!(w.store.put_meta("k", "2", PutIf::Always, None).await.unwrap(), "2");
        assert_eq!(w.store.meta("k").await.unwrap().as_deref(), Some("2"));
    }

    /// Everybody adds a letter to what stands; nobody's is lost.
    fn a_fact_is_changed_only_by_who_knows_it(w) {
        w.store.put_meta("k", "", PutIf::Always, None).await.unwrap();
        let mut callers = tokio::task::JoinSet::new();
        for letter in "abcdefgh".chars() {
            let w = w.clone();
            callers.spawn(async move {
                loop {
                    let known = w.store.meta("k").await.unwrap().unwrap();
                    let wanted = format!("{known}{letter}");
                    if w.store.put_meta("k", &wanted, PutIf::Is(&known), None).await.unwrap() == wanted {
                        return;
                    }
                }
            });
        }
        callers.join_all().await;
        let mut letters: Vec<char> = w.store.meta("k").await.unwrap().unwrap().chars().collect();
        letters.sort_unstable();
        assert_eq!(letters.into_iter().collect::<String>(), "abcdefgh");
    }

    fn a_first_fact_stands_for_everybody(w) {
        let mut callers = tokio::task::JoinSet::new();
        for n in 0..8 {
            let w = w.clone();
            callers.spawn(async move { w.store.put_meta("secret", &n.to_string(), PutIf::Absent, None).await.unwrap() });
        }
        let answers: std::collections::HashSet<String> = callers.join_all().await.into_iter().collect();
        assert_eq!(answers.len(), 1);
        assert_eq!(w.store.meta("secret").await.unwrap(), answers.into_iter().next());
    }
}
