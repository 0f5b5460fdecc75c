//! Following everything by a cursor.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::cases;
use super::world::World;
use crate::page::FeedCursor;
use crate::*;
use comeback_core::*;
use serde_json::json;

/// Reads on until nothing more comes; that must be this many events.
async fn follow(
    w: &World,
    from: Option<FeedCursor>,
    limit: u32,
    expected: usize,
) -> (Vec<FeedEvent>, Option<FeedCursor>) {
    let mut events = Vec::new();
    let mut cursor = from;
    loop {
        let feed = w.store.feed(cursor, limit).await.unwrap();
        assert!(feed.events.len() <= limit as usize);
        let idle = feed.next == cursor;
        cursor = feed.next;
        events.extend(feed.events);
        if idle {
            assert_eq!(events.len(), expected);
            return (events, cursor);
        }
    }
}

/// Each execution's events once, in order, without a gap.
fn check_complete(events: &[FeedEvent]) -> BTreeMap<ExecutionId, u32> {
    let mut last: BTreeMap<ExecutionId, u32> = BTreeMap::new();
    for it in events {
        let seen = last.entry(it.event.execution).or_default();
        assert_eq!(it.event.seq, *seen + 1, "{:?}", it.event);
        *seen = it.event.seq;
    }
    last
}

cases! { "feed";
    fn an_empty_store_has_an_empty_feed(w) {
        assert_eq!(w.store.feed(None, 10).await.unwrap(), Feed { events: vec![], next: None });
    }

    fn the_feed_tells_what_the_logs_tell(w) {
        let claimed = w.running(w.retrying_task("a", json!({"initial_delay": "1s"}))).await;
        w.fail(&claimed.stored).await;
        w.pass(1_000);
        w.promote().await;
        let again = w.claim(1).await.remove(0);
        w.succeed(&again.stored).await;
        let (events, _) = follow(&w, None, 100, 9).await;
        let told: Vec<Event> = events.into_iter().map(|it| it.event).collect();
        assert_eq!(told, w.events(claimed.stored.task.id).await);
    }

    fn a_running_attempt_is_in_the_feed(w) {
        let id = w.submit_many("a", 1).await[0];
        let (_, cursor) = follow(&w, None, 100, 2).await;
        w.claim(1).await;
        let (events, _) = follow(&w, cursor, 100, 1).await;
        assert_eq!((events[0].event.kind, events[0].event.task), (EventKind::AttemptStarted, Some(id)));
    }

    fn small_pages_tell_the_same(w) {
        w.submit_many("a", 7).await;
        for it in w.claim(7).await {
            w.succeed(&it.stored).await;
        }
        let (all, _) = follow(&w, None, 1_000, 35).await;
        for limit in [1, 2, 3, 5] {
            let (paged, _) = follow(&w, None, limit, 35).await;
            assert_eq!(paged, all, "pages of {limit}");
        }
        check_complete(&all);
    }

    fn a_cursor_survives_its_text(w) {
        w.submit_many("a", 3).await;
        follow(&w, None, 100, 6).await;
        let feed = w.store.feed(None, 2).await.unwrap();
        let text = feed.next.unwrap().to_string();
        follow(&w, Some(text.parse().unwrap()), 100, 4).await;
    }

    fn a_reader_at_the_end_gets_only_what_is_new(w) {
        w.submit_many("a", 3).await;
        let (_, end) = follow(&w, None, 100, 6).await;
        let feed = w.store.feed(end, 100).await.unwrap();
        assert!(feed.events.is_empty());
        assert_eq!(feed.next, end);
        w.submit_many("b", 1).await;
        follow(&w, end, 100, 2).await;
    }

    fn who_begins_at_the_end_hears_only_what_comes(w) {
        assert_eq!(w.store.feed(Some(w.store.feed_end().await.unwrap()), 10).await.unwrap().events, []);
        w.submit_many("a", 3).await;
        follow(&w, None, 100, 6).await;
        let end = w.store.feed_end().await.unwrap();
        assert_eq!(end.to_string().parse(), Ok(end));
        w.submit_many("b", 1).await;
        let (events, _) = follow(&w, Some(end), 100, 2).await;
        assert_eq!(events[0].event.kind, EventKind::TaskCreated);
    }

    fn the_feed_names_the_namespace(w) {
        let mut other = w.new_task("a");
        other.task.lane = Arc::new(Lane { namespace: "other".into(), ..(*other.task.lane).clone() });
        let there = other.task.id;
        w.submit(vec![w.new_task("a"), other]).await;
        let (events, _) = follow(&w, None, 100, 4).await;
        let names: BTreeMap<Option<TaskId>, String> = events.into_iter().map(|it| (it.event.task, it.namespace)).collect();
        assert_eq!(names[&Some(there)], "other");
        assert_eq!(names.len(), 2);
    }

    fn executions_are_told_in_their_own_order(w) {
        let (id, tasks) = w.execution(&["a", "b"], &["a>b"]).await;
        w.claim(1).await;
        w.settle_in(id, tasks["a"], End::Succeeded { result: None }).await;
        w.claim(1).await;
        w.settle_in(id, tasks["b"], End::Succeeded { result: None }).await;
        let (events, _) = follow(&w, None, 3, 13).await;
        let told: Vec<Event> = events.iter().map(|it| it.event.clone()).collect();
        assert_eq!(told, w.execution_log(id).await);
        check_complete(&events);
    }

    fn a_stale_verdict_leaves_no_trace(w) {
        let claimed = w.running(w.new_task("a")).await;
        let change = w.decide(&claimed.stored, End::Succeeded { result: None });
        w.apply(change.clone()).await;
        w.apply(change).await;
        follow(&w, None, 100, 5).await;
    }

    /// R-I20: what commits late is never skipped. Writers commit in any order while a reader follows.
    fn a_reader_never_skips_a_late_commit(w) {
        let written = Arc::new(AtomicUsize::new(usize::MAX));
        let reader = {
            let (w, written) = (w.clone(), written.clone());
            tokio::spawn(async move {
                let mut cursor = None;
                let mut seen = Vec::new();
                let patience = std::time::Instant::now() + std::time::Duration::from_secs(60);
                while seen.len() < written.load(Ordering::SeqCst) && std::time::Instant::now() < patience {
                    let feed = w.store.feed(cursor, 97).await.unwrap();
                    cursor = feed.next;
                    seen.extend(feed.events);
                    tokio::task::yield_now().await;
                }
                seen
            })
        };
        let mut writers = tokio::task::JoinSet::new();
        for n in 0..6_usize {
            let w = w.clone();
            writers.spawn(async move {
                for round in 0..25 {
                    let tasks = (0..(1 + (n * 7 + round) % 40)).map(|_| w.new_task("a")).collect();
                    w.submit_one(w.submission(tasks)).await;
                    let claimed = w.claim(20).await;
                    let commits: Vec<Commit> =
                        claimed.iter().map(|it| w.decide(&it.stored, End::Succeeded { result: None }).into()).collect();
                    w.store.apply(&commits, None, w.now()).await.unwrap();
                }
            });
        }
        writers.join_all().await;
        let counts = w.store.counts("default", w.now()).await.unwrap().by_state;
        let (total, ended) = (counts.values().sum::<u64>(), counts[&State::Succeeded]);
        written.store(usize::try_from(total * 2 + ended * 3).unwrap(), Ordering::SeqCst);
        let seen = reader.await.unwrap();
        let last = check_complete(&seen);
        assert_eq!(last.len() as u64, total, "every task was told");
        assert_eq!(last.values().filter(|seq| **seq == 5).count() as u64, ended);
    }
}
