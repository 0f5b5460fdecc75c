//! Followers, schedules first of all: rows that move together with what they start.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use comeback_core::{Millis, State, TaskId, Timestamp};

use super::{World, cases};
use crate::*;

fn named(w: &World, name: &str, due: Option<Timestamp>) -> Resource {
    Resource {
        sort: ResourceKind::Schedules,
        namespace: "default".into(),
        name: name.into(),
        version: 0,
        due,
        body: "{}".into(),
        standing: "{}".into(),
        created_at: w.now(),
        updated_at: w.now(),
    }
}

async fn put(w: &World, schedule: &Resource) -> Applied {
    w.store.put_follower(schedule, None, None, None, w.now()).await.unwrap()
}

async fn get(w: &World, name: &str) -> Option<Resource> {
    w.store.follower(ResourceKind::Schedules, "default", name).await.unwrap()
}

fn names(found: Vec<Resource>) -> Vec<String> {
    found.into_iter().map(|it| it.name).collect()
}

async fn is_there(w: &World, id: TaskId) -> bool {
    w.store.load(&[id]).await.unwrap()[0].is_some()
}

cases! { "followers";
    fn what_is_put_is_found(w) {
        let new = Resource { body: r#"{"a":1}"#.into(), standing: r#"{"b":2}"#.into(), ..named(&w, "a", Some(Timestamp(7))) };
        assert_eq!(get(&w, "a").await, None);
        assert_eq!(put(&w, &new).await, Applied::Done);
        let found = get(&w, "a").await.unwrap();
        assert_eq!(found, Resource { version: 1, ..new });
        w.pass(5);
        assert_eq!(put(&w, &Resource { due: None, standing: "{}".into(), ..found.clone() }).await, Applied::Done);
        let expected = Resource { version: 2, due: None, standing: "{}".into(), updated_at: w.now(), ..found };
        assert_eq!(get(&w, "a").await, Some(expected));
    }

    fn who_knows_an_older_version_of_a_schedule_writes_nothing(w) {
        let new = named(&w, "a", None);
        assert_eq!(put(&w, &new).await, Applied::Done);
        assert_eq!(put(&w, &new).await, Applied::Stale, "there is one already");
        assert_eq!(put(&w, &Resource { version: 2, ..new.clone() }).await, Applied::Stale);
        assert_eq!(put(&w, &Resource { version: 1, ..new.clone() }).await, Applied::Done);
        assert_eq!(put(&w, &Resource { version: 1, ..new }).await, Applied::Stale);
    }

    /// The promise that every instant fires once stands on this.
    fn a_schedule_moves_with_what_it_starts_or_not_at_all(w) {
        put(&w, &named(&w, "a", Some(w.now()))).await;
        let seen = get(&w, "a").await.unwrap();
        let (task, other) = (w.new_task("t"), w.new_task("t"));
        let (id, late) = (task.task.id, other.task.id);
        let fire = |task| w.submission(vec![task]);
        let on_behalf = Some(Loop::Schedule);
        assert_eq!(w.store.put_follower(&seen, Some(&fire(task)), on_behalf, None, w.now()).await.unwrap(), Applied::Done);
        assert_eq!(w.state(id).await, State::Pending);
        assert_eq!(w.store.put_follower(&seen, Some(&fire(other)), on_behalf, None, w.now()).await.unwrap(), Applied::Stale);
        assert!(!is_there(&w, late).await);
        // One that cannot be stored leaves the schedule where it was.
        let seen = get(&w, "a").await.unwrap();
        let mut twice = w.new_task("t");
        twice.task.id = id;
        assert!(w.store.put_follower(&seen, Some(&fire(twice)), on_behalf, None, w.now()).await.is_err());
        assert_eq!(get(&w, "a").await, Some(seen));
    }

    fn of_many_who_fire_the_same_instant_one_does(w) {
        put(&w, &named(&w, "a", Some(w.now()))).await;
        let seen = get(&w, "a").await.unwrap();
        let mut callers = tokio::task::JoinSet::new();
        for _ in 0..8 {
            let (w, seen) = (w.clone(), seen.clone());
            callers.spawn(async move {
                let task = w.new_task("t");
                let id = task.task.id;
                let start = w.submission(vec![task]);
                (w.store.put_follower(&seen, Some(&start), Some(Loop::Schedule), None, w.now()).await.unwrap(), id)
            });
        }
        let answers = callers.join_all().await;
        let done = |applied: &Applied| *applied == Applied::Done;
        assert_eq!(answers.iter().filter(|(applied, _)| done(applied)).count(), 1, "{answers:?}");
        for (applied, id) in answers {
            assert_eq!(is_there(&w, id).await, done(&applied));
        }
    }

    fn an_execution_is_started_with_its_instant(w) {
        put(&w, &named(&w, "a", Some(w.now()))).await;
        let seen = get(&w, "a").await.unwrap();
        let (mut start, id, tasks) = w.new_execution(&["x", "y"], &["x>y"]);
        let firing = Firing { schedule: "a".into(), at: w.now(), by: FiredBy::Manual };
        start.execution.as_mut().unwrap().origin.firing = Some(firing.clone());
        assert_eq!(w.store.put_follower(&seen, Some(&start), None, None, w.now()).await.unwrap(), Applied::Done);
        assert_eq!(w.store.execution("default", id).await.unwrap().unwrap().origin.firing, Some(firing));
        assert_eq!(w.state(tasks["x"]).await, State::Pending);
        let (other, _) = w.execution(&["z"], &[]).await;
        let query = |schedule: Option<&str>| ExecutionQuery {
            schedule: schedule.map(str::to_owned),
            limit: 9,
            ..ExecutionQuery::default()
        };
        let list = async |schedule| {
            let found = w.store.executions("default", &query(schedule)).await.unwrap();
            found.into_iter().map(|it| it.execution.id).collect::<Vec<_>>()
        };
        assert_eq!(list(None).await, [other, id]);
        assert_eq!(list(Some("a")).await, [id]);
        assert_eq!(list(Some("b")).await, []);
    }

    fn a_pause_of_the_loop_holds_what_it_fires_and_nobody_else(w) {
        put(&w, &named(&w, "a", Some(w.now()))).await;
        let seen = get(&w, "a").await.unwrap();
        let pause = Pause { until: w.now() + Millis(60_000), note: None, by: None, at: w.now() };
        w.store.set_pause(Loop::Schedule, Some(pause), None, w.now()).await.unwrap();
        let task = w.new_task("t");
        let id = task.task.id;
        let start = w.submission(vec![task]);
        let fire = async |behalf| w.store.put_follower(&seen, Some(&start), behalf, None, w.now()).await.unwrap();
        assert_eq!(fire(Some(Loop::Schedule)).await, Applied::Paused);
        assert!(!is_there(&w, id).await);
        assert_eq!(get(&w, "a").await.as_ref(), Some(&seen));
        assert_eq!(fire(None).await, Applied::Done, "somebody who asks is no loop");
    }

    fn the_longest_overdue_comes_first_from_every_namespace(w) {
        let now = w.now();
        put(&w, &named(&w, "b", Some(now))).await;
        put(&w, &named(&w, "a", Some(now - Millis(5)))).await;
        put(&w, &named(&w, "later", Some(now + Millis(1)))).await;
        put(&w, &named(&w, "never", None)).await;
        put(&w, &Resource { namespace: "other".into(), ..named(&w, "c", Some(now - Millis(9))) }).await;
        let due = async |at, limit| names(w.store.due_followers(ResourceKind::Schedules, at, limit).await.unwrap());
        assert_eq!(due(now, 9).await, ["c", "a", "b"]);
        assert_eq!(due(now, 1).await, ["c"]);
        assert_eq!(due(now - Millis(6), 9).await, ["c"]);
        assert_eq!(w.store.next_due().await.unwrap().schedule, Some(now - Millis(9)));
        assert_eq!(w.store.due_followers(ResourceKind::Schedules, now, 1).await.unwrap()[0].namespace, "other");
    }

    /// M7: whoever reads page by page comes by everybody, whatever their times are.
    fn the_active_are_read_page_by_page_in_every_namespace(w) {
        let now = w.now();
        for (namespace, name, due) in [("b", "2", 9), ("a", "2", 0), ("b", "1", 5), ("a", "Z", 7), ("c", "1", 0)] {
            let sort = ResourceKind::Subscriptions;
            put(&w, &Resource { sort, namespace: namespace.into(), ..named(&w, name, Some(now + Millis(due))) }).await;
        }
        put(&w, &Resource { sort: ResourceKind::Subscriptions, ..named(&w, "paused", None) }).await;
        put(&w, &named(&w, "another sort", Some(now))).await;
        let (mut told, mut last) = (Vec::new(), None::<(String, String)>);
        loop {
            let after = last.as_ref().map(|(namespace, name)| (namespace.as_str(), name.as_str()));
            let page = w.store.active_followers(ResourceKind::Subscriptions, after, 2).await.unwrap();
            let Some(end) = page.last() else { break };
            last = Some((end.namespace.clone(), end.name.clone()));
            told.extend(page.iter().map(|row| format!("{}/{}", row.namespace, row.name)));
        }
        assert_eq!(told, ["a/2", "a/Z", "b/1", "b/2", "c/1"]);
    }

    fn schedules_are_listed_by_name_in_their_namespace(w) {
        for name in ["b", "a/c", "a", "Z"] {
            put(&w, &named(&w, name, None)).await;
        }
        put(&w, &Resource { namespace: "other".into(), ..named(&w, "theirs", None) }).await;
        let page = async |after, limit| names(w.store.followers(ResourceKind::Schedules, "default", after, limit).await.unwrap());
        assert_eq!(page("", 9).await, ["Z", "a", "a/c", "b"]);
        assert_eq!(page("", 2).await, ["Z", "a"]);
        assert_eq!(page("a", 9).await, ["a/c", "b"]);
        assert!(w.store.followers(ResourceKind::Schedules, "nobody's", "", 9).await.unwrap().is_empty());
        assert_eq!(w.store.follower(ResourceKind::Schedules, "other", "a").await.unwrap(), None);
    }

    fn what_is_deleted_fires_no_more(w) {
        put(&w, &named(&w, "a", Some(w.now()))).await;
        let seen = get(&w, "a").await.unwrap();
        assert!(!w.store.delete_follower(ResourceKind::Schedules, "other", "a", None).await.unwrap());
        assert!(w.store.delete_follower(ResourceKind::Schedules, "default", "a", None).await.unwrap());
        assert!(!w.store.delete_follower(ResourceKind::Schedules, "default", "a", None).await.unwrap());
        assert_eq!(put(&w, &seen).await, Applied::Stale);
        assert_eq!(get(&w, "a").await, None);
        assert_eq!(w.store.next_due().await.unwrap().schedule, None);
    }

    /// Subscriptions and alerts stand on the same promise as schedules.
    fn every_sort_moves_with_what_it_starts_and_meets_no_other(w) {
        for sort in ResourceKind::ALL {
            let named = Resource { sort, ..named(&w, "same", Some(w.now())) };
            assert_eq!(put(&w, &named).await, Applied::Done, "{sort:?}: names of different sorts do not meet");
            let seen = w.store.follower(sort, "default", "same").await.unwrap().unwrap();
            assert_eq!(seen, Resource { version: 1, ..named });
            let task = w.new_task("t");
            let id = task.task.id;
            let moved = Resource { standing: r#"{"n":1}"#.into(), ..seen.clone() };
            let start = w.submission(vec![task]);
            assert_eq!(w.store.put_follower(&moved, Some(&start), None, None, w.now()).await.unwrap(), Applied::Done);
            assert!(is_there(&w, id).await);
            let late = w.submission(vec![w.new_task("t")]);
            assert_eq!(w.store.put_follower(&moved, Some(&late), None, None, w.now()).await.unwrap(), Applied::Stale);
            assert!(!is_there(&w, late.tasks[0].task.id).await);
            assert_eq!(names(w.store.followers(sort, "default", "", 9).await.unwrap()), ["same"]);
            assert_eq!(names(w.store.due_followers(sort, w.now(), 9).await.unwrap()), ["same"]);
        }
        assert_eq!(w.store.next_due().await.unwrap().alert, Some(w.now()));
        for sort in ResourceKind::ALL {
            assert!(w.store.delete_follower(sort, "default", "same", None).await.unwrap());
            assert_eq!(w.store.follower(sort, "default", "same").await.unwrap(), None);
        }
        assert_eq!(w.store.next_due().await.unwrap().alert, None);
    }
}
