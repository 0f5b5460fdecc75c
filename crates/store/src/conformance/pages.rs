//! Pages of lists, by whichever way their rows are found.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use super::cases;
use super::world::World;
use crate::ListQuery;
use crate::query::FEW;
use crate::*;
use comeback_core::filter::{Sort, Subject};
use comeback_core::transition::{self, Actor};
use comeback_core::*;
use serde_json::json;
use std::sync::Arc;

/// Tasks in all states, due at all times and held for all reasons, among more of one kind than are looked at for a page.
async fn crowd(w: &World) {
    let policy = || json!({"strategy": "fixed", "delay": "10m", "max_retries": 3});
    for n in 0..4_i16 {
        let mut new = w.retrying_task("again", policy());
        new.task.priority = n;
        let claimed = w.running(new).await;
        w.pass(7);
        w.fail(&claimed.stored).await;
    }
    let claimed = w.running(w.retrying_task("again", policy())).await;
    w.fail_held(&claimed.stored, 3_600_000).await;
    for _ in 0..3 {
        let claimed = w.running(w.new_task("over")).await;
        w.fail(&claimed.stored).await;
        let claimed = w.running(w.new_task("over")).await;
        w.pass(1);
        w.succeed(&claimed.stored).await;
        w.running(w.new_task("busy")).await;
    }
    let (mut submission, id, tasks) = w.new_execution(&["ready", "late"], &[]);
    let late = submission.tasks.iter_mut().find(|new| new.task.id == tasks["late"]).unwrap();
    (late.task.state, late.task.start_at) = (State::Waiting, Some(w.now() + Millis(61_000)));
    w.submit_one(submission).await;
    let mut working = w.working(id).await;
    let paused = working.execution().pause(w.now()).unwrap();
    working.set_paused(paused, &Actor::default(), w.now());
    assert_eq!(w.apply(working.into_commit()).await, Applied::Done);
    let alone = w.submit_many("other", 2).await;
    w.cancel(alone[0]).await;
    let task = w.load(alone[1]).await.task;
    w.apply(transition::pause(&task, &Actor::default(), w.now()).unwrap()).await;
    w.submit((0..6).map(|n| w.delayed_task("late", 60_000 + n * 1_000)).collect()).await;
    for _ in 0..6 {
        let mut foreign = w.new_task("other");
        foreign.task.lane = Arc::new(Lane { namespace: "elsewhere".into(), ..(*foreign.task.lane).clone() });
        w.submit_one(w.submission(vec![foreign])).await;
    }
    w.pass(1);
    let many = (0..=FEW).map(|_| w.new_task("many")).collect();
    assert!(matches!(w.submit_one(w.submission(many)).await, Submitted::Created(_)));
    w.pass(1);
    w.submit_many("other", 2).await;
}

async fn everything(w: &World) -> Vec<Listed> {
    let mut query = ListQuery { sort: Sort::Submitted, limit: 1_000, ..w.query("") };
    let mut found = Vec::new();
    loop {
        let listing = w.store.list("default", &query).await.unwrap();
        found.extend(listing.items);
        query.after = listing.next;
        if query.after.is_none() {
            return found;
        }
    }
}

/// What core says is in the list, in its order.
fn expected(all: &[Listed], query: &ListQuery) -> Vec<TaskId> {
    let holds = |it: &&Listed| {
        let subject = Subject {
            task: &it.stored.task,
            key: it.key.as_deref(),
            name: it.name.as_deref(),
            labels: &it.labels,
            account: None,
            external_id: it.external_id.as_deref(),
            last_error: it.last_error.as_deref(),
            verdict: it.verdict.as_deref(),
            worker: None,
        };
        query.filter.holds(&subject, query.now)
    };
    let mut found: Vec<&Task> = all.iter().filter(holds).map(|it| &it.stored.task).collect();
    found.sort_unstable_by_key(|task| task.id);
    match query.sort {
        Sort::Submitted => {}
        Sort::SubmittedDesc => found.reverse(),
        Sort::Due => found.sort_by_key(|task| task.due().unwrap_or(Timestamp::MAX)),
        Sort::Priority => found.sort_by_key(|task| -task.priority),
        Sort::Updated => {
            found.reverse();
            found.sort_by_key(|task| std::cmp::Reverse(task.updated_at));
        }
    }
    found.iter().map(|task| task.id).collect()
}

cases! { "pages";
    /// Every number links to its rows, and is their number.
    fn what_is_counted_as_held_is_what_the_list_has(w) {
        crowd(&w).await;
        for later in [0, 3_600_000] {
            w.pass(later);
            let Counts { by_state, held, .. } = w.store.counts("default", w.now()).await.unwrap();
            let of = |state: State| held.get(&state).copied().unwrap_or(0);
            assert_eq!(w.list("state:held").await.len() as u64, held.values().sum::<u64>(), "after {later}");
            assert_eq!(w.list("state:held state:paused").await.len() as u64, of(State::Paused));
            let retrying = by_state[&State::RetryPending] - of(State::RetryPending);
            assert_eq!(w.list("state:retrying").await.len() as u64, retrying, "after {later}");
        }
    }

    /// The budget of the dashboard: a page is found through an index or among few, and is the same as if all had been looked at.
    fn a_page_is_the_same_whichever_way_it_is_found(w) {
        crowd(&w).await;
        assert_eq!(w.store.list("elsewhere", &w.query("")).await.unwrap().items.len(), 6, "few beside many");
        let all = everything(&w).await;
        let filters = [
            "", "state:queued", "state:active", "state:retrying", "state:held", "state:pending,paused", "state:retrying,held,failed,dead",
            "state:terminal", "due:<5m", "-due:<5m", "kind:many,other", "kind:again,late state:retrying,queued", "kind:m* queue:default state:pending",
        ];
        for filter in filters {
            for sort in [Sort::SubmittedDesc, Sort::Submitted, Sort::Due, Sort::Updated, Sort::Priority] {
                let mut query = ListQuery { sort, limit: 4, ..w.query(filter) };
                let expected = expected(&all, &query);
                for page in expected.chunks(4).take(5) {
                    let listing = w.store.list("default", &query).await.unwrap();
                    let found: Vec<TaskId> = listing.items.iter().map(|it| it.stored.task.id).collect();
                    assert_eq!(found, page, "{filter} {sort}");
                    query.after = listing.next;
                }
                if expected.len() <= 20 {
                    assert_eq!(query.after, None, "{filter} {sort}: that was all");
                }
            }
        }
    }
}
