//! Credits: reserved with a task, spent with its success, given back with every other end, and never more than there are.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use comeback_core::account::{Credits, Terms};
use comeback_core::budget::{Booked, Booking, Period};
use comeback_core::transition::{self, Actor};
use comeback_core::*;
use serde_json::json;
use uuid::Uuid;

use super::{World, cases};
use crate::*;
use crate::{Account, AccountChange, AuditQuery, Closed, Unfunded};

impl World {
    /// A task that an account pays for.
    pub fn metered(&self, kind: &str, account: &str, cost: u32) -> NewTask {
        let mut new = self.retrying_task(kind, json!({"strategy": "fixed", "delay": "1s", "max_retries": 1}));
        new.task.metered = true;
        new.body.account = Some(account.into());
        new.body.cost = Some(cost);
        new
    }

    pub async fn fund(&self, account: &str, credits: i64) -> Account {
        let change = AccountChange { set: Some(credits), ..AccountChange::default() };
        self.store.put_account("default", account, &change, None, self.now()).await.unwrap()
    }
}

async fn credits(w: &World, account: &str) -> [i64; 3] {
    let Credits { held, reserved, spent } = w.store.account("default", account).await.unwrap().unwrap().credits;
    [held, reserved, spent]
}

async fn run(w: &World, new: NewTask) -> Claimed {
    w.running(new).await
}

async fn retry(w: &World, id: TaskId) -> Applied {
    let task = w.load(id).await.task;
    w.apply(transition::manual_retry(&task, false, &Actor::default(), w.now()).unwrap()).await
}

cases! { "accounts";
    fn an_account_is_made_changed_and_listed(w) {
        assert_eq!(w.store.account("default", "acme").await.unwrap(), None);
        let terms = Terms { costs: [("video".to_owned(), 5)].into(), ..Terms::default() };
        let change = AccountChange { set: Some(10), costs: Some(terms.costs.clone()), ..AccountChange::default() };
        let made = w.store.put_account("default", "acme", &change, None, w.now()).await.unwrap();
        assert_eq!(w.store.account("default", "acme").await.unwrap(), Some(made.clone()));
        assert_eq!((made.credits, made.terms), (Credits { held: 10, ..Credits::default() }, terms.clone()));
        w.pass(1_000);
        let change = AccountChange { add: -3, ..AccountChange::default() };
        let changed = w.store.put_account("default", "acme", &change, None, w.now()).await.unwrap();
        assert_eq!((changed.credits.held, &changed.terms), (7, &terms), "what is not said stays");
        assert_eq!((changed.created_at, changed.updated_at), (made.created_at, w.now()));
        w.fund("beta", 1).await;
        let names = async |after: &str, limit: u32| -> Vec<String> {
            w.store.accounts("default", after, limit).await.unwrap().into_iter().map(|it| it.name).collect()
        };
        assert_eq!(names("", 10).await, ["acme", "beta"]);
        assert_eq!(names("", 1).await, ["acme"]);
        assert_eq!(names("acme", 10).await, ["beta"]);
        assert!(w.store.accounts("other", "", 10).await.unwrap().is_empty());
        assert_eq!(w.store.account("other", "acme").await.unwrap(), None, "namespaces do not meet");
    }

    fn what_a_task_costs_is_reserved_and_spent_when_it_succeeds(w) {
        w.fund("acme", 10).await;
        let claimed = run(&w, w.metered("k", "acme", 3)).await;
        assert_eq!(credits(&w, "acme").await, [10, 3, 0]);
        w.succeed(&claimed.stored).await;
        assert_eq!(credits(&w, "acme").await, [7, 0, 3]);
    }

    /// S2-70, I-19: retries of a policy are paid by what was reserved; what did not succeed costs nothing.
    fn a_retry_reserves_nothing_and_a_dead_task_gives_it_back(w) {
        w.fund("acme", 3).await;
        let claimed = run(&w, w.metered("k", "acme", 3)).await;
        w.fail(&claimed.stored).await;
        assert_eq!(credits(&w, "acme").await, [3, 3, 0], "it will be tried again");
        w.pass(1_000);
        w.promote().await;
        let again = w.claim(1).await.remove(0);
        w.fail(&again.stored).await;
        assert_eq!(w.state(claimed.stored.task.id).await, State::Dead);
        assert_eq!(credits(&w, "acme").await, [3, 0, 0]);
    }

    fn a_canceled_task_gives_it_back(w) {
        w.fund("acme", 3).await;
        let id = w.submit(vec![w.metered("k", "acme", 2)]).await[0];
        w.cancel(id).await;
        assert_eq!(credits(&w, "acme").await, [3, 0, 0]);
    }

    fn nothing_is_made_that_cannot_be_paid_for(w) {
        w.fund("acme", 5).await;
        w.submit(vec![w.metered("k", "acme", 4)]).await;
        let short = w.submit_one(w.submission(vec![w.metered("k", "acme", 1), w.metered("k", "acme", 1)])).await;
        assert_eq!(short, Submitted::Unfunded(Unfunded { required: 2, available: 1 }));
        assert_eq!(credits(&w, "acme").await, [5, 4, 0]);
        assert_eq!(w.list("kind:k").await.len(), 1, "all or nothing");
        let unknown = w.submit_one(w.submission(vec![w.metered("k", "nobody", 1)])).await;
        assert_eq!(unknown, Submitted::Unfunded(Unfunded { required: 1, available: 0 }));
    }

    /// One that cannot be paid for does not fail its neighbours.
    fn others_in_the_same_call_are_made_all_the_same(w) {
        w.fund("acme", 1).await;
        let submissions = [
            w.submission(vec![w.metered("k", "acme", 1)]),
            w.submission(vec![w.metered("k", "acme", 1)]),
            w.submission(vec![w.new_task("k")]),
        ];
        let answers = w.store.submit(&submissions, w.now()).await.unwrap();
        assert!(matches!(answers[0], Submitted::Created(_)));
        assert_eq!(answers[1], Submitted::Unfunded(Unfunded { required: 1, available: 0 }));
        assert!(matches!(answers[2], Submitted::Created(_)));
        assert_eq!(w.list("kind:k").await.len(), 2);
    }

    fn who_is_a_duplicate_reserves_nothing(w) {
        w.fund("acme", 10).await;
        let keyed = || {
            let mut new = w.metered("k", "acme", 3);
            new.body.dedupe_key = Some("one".into());
            new
        };
        w.submit_one(w.submission(vec![keyed(), keyed()])).await;
        w.submit_one(w.submission(vec![keyed()])).await;
        assert_eq!(credits(&w, "acme").await, [10, 3, 0]);
    }

    fn the_same_request_again_reserves_nothing(w) {
        w.fund("acme", 10).await;
        let mut submission = w.submission(vec![w.metered("k", "acme", 3)]);
        submission.idempotency = Some(Idempotency { scope: "s".into(), key: "k".into(), digest: [1; 32] });
        w.submit_one(submission.clone()).await;
        assert!(matches!(w.submit_one(submission).await, Submitted::Repeated { .. }));
        assert_eq!(credits(&w, "acme").await, [10, 3, 0]);
    }

    /// S2-25, S2-68: a task that was over reserves anew when somebody retries it.
    fn a_manual_retry_needs_credits(w) {
        w.fund("acme", 2).await;
        let mut new = w.metered("k", "acme", 2);
        new.policy = None;
        let failing = run(&w, new).await;
        w.fail(&failing.stored).await;
        let dead = failing.stored.task.id;
        assert_eq!(credits(&w, "acme").await, [2, 0, 0]);
        let other = w.submit(vec![w.metered("other", "acme", 1)]).await[0];
        let before = w.load(dead).await.task;
        assert_eq!(retry(&w, dead).await, Applied::Unfunded(Unfunded { required: 2, available: 1 }));
        assert_eq!(w.load(dead).await.task, before, "nothing of it was written");
        assert_eq!(credits(&w, "acme").await, [2, 1, 0]);
        w.cancel(other).await;
        assert_eq!(retry(&w, dead).await, Applied::Done);
        assert_eq!(credits(&w, "acme").await, [2, 2, 0]);
    }

    /// A cycle that is begun while the one before still holds its reservation takes it over.
    fn a_manual_retry_of_an_open_task_reserves_nothing_more(w) {
        w.fund("acme", 2).await;
        let claimed = run(&w, w.metered("k", "acme", 2)).await;
        w.fail(&claimed.stored).await;
        assert_eq!(retry(&w, claimed.stored.task.id).await, Applied::Done);
        assert_eq!(credits(&w, "acme").await, [2, 2, 0]);
    }

    fn a_verdict_on_old_facts_moves_nothing(w) {
        w.fund("acme", 5).await;
        let claimed = run(&w, w.metered("k", "acme", 2)).await;
        let ended = w.decide(&claimed.stored, End::Succeeded { result: None });
        assert_eq!(w.apply(ended.clone()).await, Applied::Done);
        assert_eq!(w.apply(ended).await, Applied::Stale);
        assert_eq!(credits(&w, "acme").await, [3, 0, 2]);
    }

    fn tasks_of_an_execution_are_paid_for_too(w) {
        w.fund("acme", 5).await;
        let (mut submission, id, tasks) = w.new_execution(&["a", "b"], &["a>b"]);
        for new in &mut submission.tasks {
            new.task.metered = true;
            (new.body.account, new.body.cost) = (Some("acme".into()), Some(2));
        }
        w.submit_one(submission).await;
        assert_eq!(credits(&w, "acme").await, [5, 4, 0]);
        w.claim(1).await;
        w.settle_in(id, tasks["a"], End::Failed(Failure::new(Trigger::Error, "x"))).await;
        assert_eq!(credits(&w, "acme").await, [5, 0, 0], "what is given up because of it gives back too");
    }

    /// S2-129: booked with the verdict, if there is still room; whoever comes too late looks again.
    fn retries_are_booked_as_long_as_there_is_room(w) {
        w.fund("acme", 100).await;
        let period = |name: &str, most_retries: Option<u64>, most_cost: Option<u64>| Period { name: name.into(), most_retries, most_cost };
        let fail_booking = async |times: usize, periods: Vec<Period>| {
            let claimed = run(&w, w.metered("k", "acme", 2)).await;
            let mut commit: Commit =
                w.decide(&claimed.stored, End::Failed(Failure::new(Trigger::Error, "x"))).into();
            let (namespace, account) = ("default".into(), "acme".into());
            commit.bookings = vec![Booking { namespace, account, cost: 2, periods }; times];
            w.apply(commit).await
        };
        let fail = async |periods: Vec<Period>| fail_booking(1, periods).await;
        let day = |most| period("2027-01-15", Some(most), None);
        let month = |most| period("2027-01", None, Some(most));
        assert_eq!(fail_booking(2, vec![month(5), day(1)]).await, Applied::Stale, "there is room for one of the two");
        assert_eq!(fail(vec![month(5), day(2)]).await, Applied::Done);
        assert_eq!(fail(vec![month(5), day(1)]).await, Applied::Stale, "the day is full");
        assert_eq!(fail(vec![month(3), day(2)]).await, Applied::Stale, "it costs too much");
        assert_eq!(fail(vec![month(5), day(2)]).await, Applied::Done);
        assert_eq!(fail(vec![period("2027-02", None, Some(1))]).await, Applied::Stale, "even if it is the first");
        let booked = w.store.booked("default", "acme", "2027-01").await.unwrap();
        let expected = Booked { retries: 2, cost: 4 };
        assert_eq!(booked, [("2027-01".into(), expected), ("2027-01-15".into(), expected)].into());
        assert!(w.store.booked("default", "acme", "2027-02").await.unwrap().is_empty());
        assert!(w.store.booked("other", "acme", "2027-01").await.unwrap().is_empty());
        w.store.compact_stats(w.now(), 100, 100).await.unwrap();
        assert_eq!(w.store.booked("default", "acme", "2027-01").await.unwrap().len(), 2, "this month counts");
        w.store.compact_stats(w.now() + Millis::from_days(100), 100, 100).await.unwrap();
        assert!(w.store.booked("default", "acme", "2027-01").await.unwrap().is_empty(), "what is over does not");
    }

    fn an_account_that_is_in_use_is_not_deleted(w) {
        w.fund("acme", 5).await;
        let id = w.submit(vec![w.metered("k", "acme", 2)]).await[0];
        assert_eq!(w.store.delete_account("default", "acme", None).await.unwrap(), Closed::InUse(2));
        w.cancel(id).await;
        assert_eq!(w.store.delete_account("default", "acme", None).await.unwrap(), Closed::Gone);
        assert_eq!(w.store.delete_account("default", "acme", None).await.unwrap(), Closed::NotFound);
    }

    fn who_changes_an_account_is_written_down(w) {
        let act = Actor { by: Some("ana".into()), ..Actor::default() };
        let entry = |n: u128, did: AuditAction| Audit::new(Uuid::from_u128(n), w.now(), did, "acme", &act).within("default");
        let set = |credits: i64| AccountChange { set: Some(credits), ..AccountChange::default() };
        for (n, credits) in [(1, 5), (2, 9)] {
            let entry = entry(n, AuditAction::AccountPut);
            w.store.put_account("default", "acme", &set(credits), Some(&entry), w.now()).await.unwrap();
        }
        w.store.delete_account("default", "acme", Some(&entry(3, AuditAction::AccountDelete))).await.unwrap();
        w.store.delete_account("default", "acme", Some(&entry(4, AuditAction::AccountDelete))).await.unwrap();
        let acts = w.store.audit(&AuditQuery { limit: 10, ..AuditQuery::default() }).await.unwrap();
        let told = |value: &Option<serde_json::Value>| value.as_ref().map(|it| it["credits"].clone());
        let told: Vec<_> = acts.iter().map(|it| (told(&it.before), told(&it.after))).collect();
        let number = |n: i64| Some(json!(n));
        assert_eq!(told, [(number(9), None), (number(5), number(9)), (None, number(5))]);
    }
}
