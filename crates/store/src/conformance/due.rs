//! Retries that are due, promoted and leased in one step.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::HashSet;

use super::cases;
use super::world::World;
use crate::*;
use comeback_core::transition;
use comeback_core::*;
use serde_json::json;

async fn retrying(w: &World, kind: &str, delay_ms: u64) -> TaskId {
    let policy = json!({"strategy": "fixed", "delay_ms": delay_ms, "max_retries": 9});
    let claimed = w.running(w.retrying_task(kind, policy)).await;
    w.fail(&claimed.stored).await;
    claimed.stored.task.id
}

fn due(w: &World, limit: u32) -> ClaimRequest {
    ClaimRequest { due: true, ..w.request(limit) }
}

fn ids(claimed: &[Claimed]) -> Vec<TaskId> {
    claimed.iter().map(|it| it.stored.task.id).collect()
}

cases! { "due";
    /// What a pause would delay is known before it begins.
    fn how_much_is_due_before_an_instant_is_counted(w) {
        assert_eq!(w.store.due_before(Timestamp::MAX).await.unwrap(), DueBefore::default());
        retrying(&w, "a", 5_000).await;
        retrying(&w, "a", 50_000).await;
        let policy = json!({"strategy": "fixed", "delay": "1s", "max_retries": 9});
        let mut bounded = w.retrying_task("a", policy);
        bounded.task.expires_at = Some(w.now() + Millis(8_000));
        let claimed = w.running(bounded).await;
        w.fail(&claimed.stored).await;
        w.submit(vec![w.delayed_task("a", 7_000)]).await;
        w.running(w.new_task("b")).await;
        w.submit_many("b", 2).await;
        let soon = w.store.due_before(w.now() + Millis(10_000)).await.unwrap();
        assert_eq!((soon.retries, soon.late_retries, soon.starts, soon.late_starts), (2, 1, 1, 0), "{soon:?}");
        assert_eq!((soon.leases, soon.timeouts, soon.deadlines, soon.ready, soon.schedules), (0, 0, 1, 2, 0), "{soon:?}");
        let ever = w.store.due_before(Timestamp::MAX).await.unwrap();
        assert_eq!((ever.retries, ever.leases), (3, 1), "{ever:?}");
    }

    /// What comes out is what the core's two steps make of it, and the log tells both.
    fn both_steps_are_one(w) {
        let id = retrying(&w, "a", 5_000).await;
        let before = w.load(id).await.task;
        w.pass(6_000);
        let claimed = w.claim_with(due(&w, 10)).await.remove(0);
        let promoted = transition::promote(&before, w.now()).unwrap().after;
        let leased = transition::lease(&promoted, "w1", w.request(1).lease, w.now()).unwrap().after;
        assert_eq!(claimed.stored.task, leased);
        assert_eq!(w.load(id).await.task, leased);
        let kinds = w.kinds(id).await;
        assert_eq!(kinds[kinds.len() - 2..], ["task.retry_due", "attempt.started"]);
        w.check_log(id).await;
        assert_eq!(w.succeed(&claimed.stored).await, Applied::Done);
        w.check_log(id).await;
    }

    fn the_feed_tells_both_steps_once(w) {
        let id = retrying(&w, "a", 1_000).await;
        w.pass(1_000);
        w.claim_with(due(&w, 10)).await;
        let patience = std::time::Instant::now() + std::time::Duration::from_secs(20);
        loop {
            let seqs: Vec<u32> =
                w.store.feed(None, 1_000).await.unwrap().events.iter().map(|it| it.event.seq).collect();
            if seqs.len() >= w.events(id).await.len() {
                assert_eq!(seqs, (1..=u32::try_from(seqs.len()).unwrap()).collect::<Vec<_>>());
                break;
            }
            assert!(std::time::Instant::now() < patience, "{seqs:?}");
            tokio::task::yield_now().await;
        }
    }

    /// R-I10.
    fn never_early(w) {
        let id = retrying(&w, "a", 5_000).await;
        w.pass(4_999);
        assert!(w.claim_with(due(&w, 10)).await.is_empty());
        w.pass(1);
        assert_eq!(ids(&w.claim_with(due(&w, 10)).await), [id]);
    }

    /// R-I16.
    fn not_while_retries_are_paused(w) {
        let id = retrying(&w, "a", 1_000).await;
        w.pass(1_000);
        let pause = Pause { until: w.now() + Millis(10_000), note: None, by: None, at: w.now() };
        w.store.set_pause(Loop::Retries, Some(pause), None, w.now()).await.unwrap();
        assert!(w.claim_with(due(&w, 10)).await.is_empty());
        w.pass(10_000);
        assert_eq!(ids(&w.claim_with(due(&w, 10)).await), [id]);
    }

    fn what_is_ready_comes_first_and_the_limit_holds(w) {
        let mut waiting = HashSet::new();
        for _ in 0..3 {
            waiting.insert(retrying(&w, "a", 1_000).await);
        }
        w.pass(2_000);
        let ready = w.submit_many("a", 2).await;
        let first = ids(&w.claim_with(due(&w, 4)).await);
        assert_eq!(first.len(), 4);
        assert_eq!(first.iter().filter(|id| ready.contains(id)).count(), 2, "{first:?}");
        let rest = ids(&w.claim_with(due(&w, 4)).await);
        assert_eq!(first.iter().chain(&rest).filter(|id| waiting.contains(id)).count(), 3);
        assert!(w.claim_with(due(&w, 4)).await.is_empty());
    }

    fn only_what_was_asked_for(w) {
        let (own, other) = (retrying(&w, "a", 1_000).await, retrying(&w, "b", 1_000).await);
        w.pass(1_000);
        let request = |kind: &str| ClaimRequest { kinds: vec![kind.into()], ..due(&w, 10) };
        assert!(w.claim_with(ClaimRequest { namespace: "other".into(), ..due(&w, 10) }).await.is_empty());
        assert!(w.claim_with(ClaimRequest { queues: vec!["other".into()], ..due(&w, 10) }).await.is_empty());
        assert_eq!(ids(&w.claim_with(request("a")).await), [own]);
        assert_eq!(ids(&w.claim_with(request("b")).await), [other]);
    }

    /// R-I14.
    fn not_past_a_deadline(w) {
        let mut new = w.retrying_task("a", json!({"strategy": "fixed", "delay_ms": 1_000, "max_retries": 9}));
        new.task.expires_at = Some(w.now() + Millis(1_500));
        let claimed = w.running(new).await;
        w.fail(&claimed.stored).await;
        w.pass(1_500);
        assert!(w.claim_with(due(&w, 10)).await.is_empty());
    }

    /// Where each step is a row of history, the promotion comes first as ever.
    fn an_executions_retry_waits_for_its_promotion(w) {
        let (mut submission, execution, tasks) = w.new_execution(&["x"], &[]);
        let policy = json!({"strategy": "fixed", "delay_ms": 1_000, "max_retries": 9});
        submission.tasks[0].policy = w.retrying_task("x", policy).policy;
        w.submit_one(submission).await;
        w.claim(1).await;
        w.settle_in(execution, tasks["x"], End::Failed(Failure::new(Trigger::Error, "x"))).await;
        w.pass(2_000);
        assert_eq!(w.state(tasks["x"]).await, State::RetryPending);
        assert!(w.claim_with(due(&w, 10)).await.is_empty());
        w.promote().await;
        assert_eq!(ids(&w.claim_with(due(&w, 10)).await), [tasks["x"]]);
    }

    /// R-I4.
    fn many_at_once_never_share_one(w) {
        for _ in 0..60 {
            retrying(&w, "a", 1_000).await;
        }
        w.pass(1_000);
        let mut claimers = tokio::task::JoinSet::new();
        for n in 0..6 {
            let w = w.clone();
            claimers.spawn(async move {
                let mut mine = Vec::new();
                let mut empty = 0;
                while empty < 3 {
                    if n == 0 {
                        w.promote().await;
                    }
                    let claimed = w.claim_with(due(&w, 7)).await;
                    empty = if claimed.is_empty() { empty + 1 } else { 0 };
                    mine.extend(ids(&claimed));
                }
                mine
            });
        }
        let all: Vec<TaskId> = claimers.join_all().await.into_iter().flatten().collect();
        assert_eq!((all.len(), all.iter().collect::<HashSet<_>>().len()), (60, 60));
    }
}
