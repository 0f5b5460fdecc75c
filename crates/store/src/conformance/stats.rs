//! Statistics: whatever happened is counted once, and error groups stand as people said until they come again.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use comeback_core::audit::Audit;
use comeback_core::error_group::{Group, GroupStatus, TriageAction};
use comeback_core::filter::fingerprint_to_hex;
use comeback_core::stats::{Cell, Dimension, Fact, Fold, Measure, QUARTER, Sums};
use comeback_core::transition::Actor;
use comeback_core::*;
use serde_json::{Value, json};

use super::world::T0;
use super::{World, cases};
use crate::stats::{Owner, fact, trouble};
use crate::*;
use crate::{AuditQuery, GroupQuery, SumsQuery};

impl World {
    /// Folds what can be read now.
    pub async fn fold(&self, limit: u32) {
        loop {
            let stretch = self.store.pending_stats(limit).await.unwrap();
            if stretch.is_empty() {
                return;
            }
            self.store.fold(&stretch, &Fold::of(&stretch.facts), self.now()).await.unwrap();
        }
    }

    /// What the histories of all tasks come to, counted anew.
    pub async fn recount(&self) -> Fold {
        let mut fold = Fold::default();
        for namespace in ["default", "other"] {
            let query = crate::ListQuery { limit: 10_000, ..self.query("") };
            for listed in self.store.list(namespace, &query).await.unwrap().items {
                let Stored { task, policy, .. } = listed.stored;
                let view = self.store.task(namespace, task.id).await.unwrap().unwrap();
                let cost = view.body.cost.map(i64::from);
                let owner = Owner { namespace: namespace.into(), lane: task.lane.clone(), policy, cost };
                let records = self.records(task.id).await;
                for (at, record) in records.iter().enumerate() {
                    if !Fact::counts(&record.events, record.outcome) {
                        continue;
                    }
                    let bad = |it: &&Record| matches!(it.outcome.map(AttemptOutcome::code), Some(1..=3));
                    let before: Vec<&Record> = records[..at].iter().filter(bad).collect();
                    let looks_back = Fact::looks_back(record.run, &record.events, record.outcome);
                    let past = before.first().zip(before.last()).filter(|_| looks_back);
                    let past = past.and_then(|(first, last)| trouble(first.at.0, (*last).clone()));
                    fold.add(&fact(record.clone(), &owner, past));
                }
            }
        }
        fold
    }

    /// Everything that is kept, as if it had been one stretch.
    async fn kept(&self, by: Dimension, bucket: Option<Millis>) -> BTreeMap<(String, i64), Sums> {
        self.told("default", SumsQuery { bucket, ..query(by) }).await
    }

    async fn told(&self, namespace: &str, query: SumsQuery) -> BTreeMap<(String, i64), Sums> {
        let mut told: BTreeMap<(String, i64), Sums> = BTreeMap::new();
        for line in self.store.sums(namespace, &query).await.unwrap() {
            told.entry((line.value, line.at.0)).or_default().add_code(line.code, line.sum);
        }
        told
    }

    /// Folds until the sums are what the past says. Elsewhere in a cluster somebody may keep the feed from being told to its end.
    pub async fn check_sums(&self, limit: u32) {
        let patience = Instant::now() + Duration::from_secs(20);
        loop {
            self.fold(limit).await;
            let recount = self.recount().await;
            let mut same = true;
            for by in Dimension::ALL {
                let expected = told_apart(&recount, *by);
                let kept = self.kept(*by, Some(QUARTER)).await;
                same &= expected == kept;
                assert!(same || Instant::now() < patience, "by {by}: {kept:#?}\nthe past says {expected:#?}");
            }
            for ((namespace, fingerprint), news) in &recount.groups {
                let group = self.store.group(namespace, *fingerprint).await.unwrap();
                let (count, recovered) = group.map_or((0, 0), |group| (group.count, group.recovered));
                same &= (count, recovered) == (news.count, news.recovered);
                assert!(same || Instant::now() < patience, "{count} {recovered} are kept, and it is {news:#?}");
            }
            if same {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Runs a task to its end: each word is how one of its runs ends.
    pub async fn lives(&self, new: NewTask, ends: &[&str]) -> TaskId {
        let id = self.submit(vec![new]).await[0];
        for end in ends {
            if self.state(id).await == State::RetryPending {
                self.go_to(self.load(id).await.task.due().unwrap());
                self.promote().await;
            }
            let claimed = self.claim(1).await.remove(0);
            assert_eq!(claimed.stored.task.id, id);
            self.pass(7);
            match *end {
                "ok" => self.succeed(&claimed.stored).await,
                "released" => self.end(&claimed.stored, End::Released).await,
                "snoozed" => self.end(&claimed.stored, End::Snoozed { delay: Millis(500) }).await,
                "canceled" => self.cancel(id).await,
                message => self.end(&claimed.stored, End::Failed(refused(message))).await,
            };
        }
        id
    }

    async fn deed(&self, fingerprint: i64, deed: TriageAction, note: &str) -> Option<Group> {
        let act = Actor { by: Some("ann".into()), note: Some(note.into()), ..Actor::default() };
        let audit = Audit::new(self.id().0, self.now(), AuditAction::ErrorResolve, "x", &act).within("default");
        self.store.put_group("default", fingerprint, &deed, &audit, self.now()).await.unwrap()
    }
}

fn query(by: Dimension) -> SumsQuery {
    SumsQuery { by, since: Timestamp(0), until: Timestamp::MAX, bucket: None, only: Vec::new() }
}

fn refused(message: &str) -> Failure {
    Failure { status: Some(503), ..Failure::new(Trigger::Error, message) }
}

fn told_apart(fold: &Fold, by: Dimension) -> BTreeMap<(String, i64), Sums> {
    let value = |cell: &Cell| match by {
        Dimension::Attempt => cell.attempt.to_string(),
        Dimension::Class => cell.class.map_or("", Class::word).to_owned(),
        Dimension::Strategy => cell.strategy.clone(),
        Dimension::Dependency => cell.dependency.clone(),
        Dimension::Kind => cell.kind.clone(),
        Dimension::Queue => cell.queue.clone(),
        Dimension::Fingerprint => cell.fingerprint.map(fingerprint_to_hex).unwrap_or_default(),
        Dimension::Origin => cell.origin.word().to_owned(),
    };
    let mut told: BTreeMap<(String, i64), Sums> = BTreeMap::new();
    for ((namespace, at, cell), sums) in &fold.sums {
        if **namespace == *"default" {
            told.entry((value(cell), at.0)).or_default().merge(sums);
        }
    }
    told
}

fn policy() -> Value {
    json!({"strategy": "exponential", "initial_delay": "1s", "max_retries": 2})
}

async fn a_day(w: &World) {
    w.lives(w.new_task("plain"), &["ok"]).await;
    w.lives(w.new_task("plain"), &["order 1 refused"]).await;
    w.lives(w.retrying_task("pay", policy()), &["order 1 refused", "ok"]).await;
    w.lives(w.retrying_task("pay", policy()), &["order 2 refused", "other", "ok"]).await;
    w.lives(w.retrying_task("pay", policy()), &["order 3 refused", "order 3 refused", "order 3 refused"]).await;
    w.lives(w.retrying_task("pay", policy()), &["released", "snoozed", "order 4 refused", "canceled"]).await;
    let mut metered = w.metered("video", "acme", 3);
    w.fund("acme", 10).await;
    metered.task.priority = 1;
    w.lives(metered, &["order 5 refused", "ok"]).await;
    let (id, tasks) = w.execution(&["a", "b"], &["a!b"]).await;
    w.claim(1).await;
    w.settle_in(id, tasks["a"], End::Failed(refused("step 1"))).await;
    w.claim(1).await;
    w.settle_in(id, tasks["b"], End::Succeeded { result: None }).await;
}

cases! { "stats";
    /// Whatever the stretches: every attempt is counted once, under what it was.
    fn what_was_folded_is_what_the_past_says(w) {
        a_day(&w).await;
        w.check_sums(1).await;
        w.pass(3_600_000);
        a_day(&w).await;
        w.check_sums(1_000).await;
    }

    /// Whoever comes second with the same stretch changes nothing.
    fn a_stretch_is_added_once(w) {
        w.lives(w.retrying_task("pay", policy()), &["order 1 refused", "ok"]).await;
        w.fold(1).await;
        w.lives(w.new_task("plain"), &["ok"]).await;
        let patience = Instant::now() + Duration::from_secs(20);
        let stretch = loop {
            let stretch = w.store.pending_stats(1_000).await.unwrap();
            if !stretch.facts.is_empty() {
                break stretch;
            }
            assert!(Instant::now() < patience);
            tokio::time::sleep(Duration::from_millis(20)).await;
        };
        let fold = Fold::of(&stretch.facts);
        assert!(w.store.fold(&stretch, &fold, w.now()).await.unwrap());
        assert!(!w.store.fold(&stretch, &fold, w.now()).await.unwrap(), "it was added before");
        w.check_sums(1_000).await;
    }

    /// Many who fold at once, while more happens, add everything once.
    fn those_who_fold_at_once_add_everything_once(w) {
        let folders: Vec<_> = (0..4_u32)
            .map(|n| {
                let w = w.clone();
                tokio::spawn(async move {
                    for _ in 0..40 {
                        w.fold(1 + n * 3).await;
                        tokio::task::yield_now().await;
                    }
                })
            })
            .collect();
        for _ in 0..6 {
            a_day(&w).await;
        }
        for folder in folders {
            folder.await.unwrap();
        }
        w.check_sums(1_000).await;
    }

    fn sums_are_told_apart_and_chosen(w) {
        // First, so that it is added by the time that all of the day is.
        let mut elsewhere = w.new_task("plain");
        elsewhere.task.lane = std::sync::Arc::new(Lane { namespace: "other".into(), ..(*elsewhere.task.lane).clone() });
        w.submit(vec![elsewhere]).await;
        let request = ClaimRequest { namespace: "other".into(), ..w.request(1) };
        let claimed = w.claim_with(request).await.remove(0);
        w.succeed(&claimed.stored).await;
        a_day(&w).await;
        w.check_sums(1_000).await;
        let by_attempt = w.kept(Dimension::Attempt, None).await;
        let at = |number: &str| &by_attempt[&(number.to_owned(), 0)];
        assert_eq!((at("2").get(Measure::Recovered), at("2").get(Measure::Wasted)), (2, 2), "{by_attempt:#?}");
        assert_eq!((at("3").get(Measure::Recovered), at("3").get(Measure::GaveUp)), (1, 1));
        assert_eq!(at("3").success().of, 2);
        let only = |dimension, value: &str| SumsQuery { only: vec![(dimension, value.to_owned())], ..query(Dimension::Kind) };
        let chosen = async |query: SumsQuery| -> Vec<String> {
            w.told("default", query).await.into_keys().map(|(value, _)| value).collect()
        };
        assert_eq!(chosen(only(Dimension::Strategy, "exponential")).await, ["pay"]);
        assert_eq!(chosen(only(Dimension::Class, "retryable")).await, ["pay", "plain", "step", "video"]);
        assert_eq!(chosen(only(Dimension::Class, "no such")).await, Vec::<String>::new());
        assert_eq!(chosen(only(Dimension::Attempt, "3")).await, ["pay"]);
        let fingerprint = fingerprint::fingerprint("video", &refused("order 9 refused"));
        assert_eq!(chosen(only(Dimension::Fingerprint, &fingerprint_to_hex(fingerprint))).await, ["video"]);
        assert_eq!(chosen(SumsQuery { until: T0, ..query(Dimension::Kind) }).await, Vec::<String>::new());
        let other = w.told("other", query(Dimension::Kind)).await;
        assert_eq!(other[&("plain".into(), 0)].get(Measure::Succeeded), 1);
        assert_eq!(by_attempt[&("1".into(), 0)].get(Measure::Cost), 0, "a first run is no retry");
        assert_eq!(w.kept(Dimension::Kind, None).await[&("video".into(), 0)].get(Measure::Cost), 3);
    }

    /// What is old is kept by the hour, then by the day, and in the end not at all; until then nothing is lost of it.
    fn old_sums_are_kept_less_fine_and_then_forgotten(w) {
        for _ in 0..5 {
            a_day(&w).await;
            w.pass(900_000);
        }
        w.check_sums(1_000).await;
        let whole = w.kept(Dimension::Attempt, None).await;
        let parts = async || -> usize {
            let kept = w.kept(Dimension::Attempt, Some(QUARTER)).await;
            kept.into_keys().map(|(_, at)| at).collect::<std::collections::BTreeSet<_>>().len()
        };
        let tidy = async || while w.store.compact_stats(w.now(), 100, 1_000).await.unwrap() {};
        let first = parts().await;
        assert!(first > 4, "{first}");
        tidy().await;
        assert_eq!(parts().await, first, "nothing is old yet");
        w.pass(86_400_000 * 4);
        tidy().await;
        let by_hour = parts().await;
        assert!(by_hour < first, "{by_hour} of {first}");
        w.pass(86_400_000 * 40);
        tidy().await;
        assert!(parts().await <= 2);
        assert_eq!(w.kept(Dimension::Attempt, None).await, whole, "nothing was lost");
        w.pass(86_400_000 * 400);
        tidy().await;
        assert_eq!(parts().await, 0);
        assert!(w.store.groups("default", &GroupQuery { limit: 10, after: None }).await.unwrap().is_empty());
    }

    /// Whoever says something else each time fills nothing up: those that were not seen for longest go. What was reclassified stays.
    fn only_so_many_groups_are_kept(w) {
        a_day(&w).await;
        w.check_sums(1_000).await;
        let groups = async || -> Vec<i64> {
            let query = GroupQuery { limit: 10, after: None };
            w.store.groups("default", &query).await.unwrap().iter().map(|it| it.fingerprint).collect()
        };
        let all = groups().await;
        assert!(all.len() > 2, "{all:?}");
        let (first, last) = (all[0], all[all.len() - 1]);
        let entry = Audit::new(w.id().0, w.now(), AuditAction::ErrorClassify, fingerprint_to_hex(last), &Actor::default());
        w.store.put_group("default", last, &TriageAction::Reclassify(Some(Class::Final)), &entry, w.now()).await.unwrap();
        while w.store.compact_stats(w.now(), 100, 1).await.unwrap() {}
        assert_eq!(groups().await, [first, last]);
    }

    fn errors_that_look_the_same_are_a_group(w) {
        a_day(&w).await;
        w.check_sums(1_000).await;
        let pay = fingerprint::fingerprint("pay", &refused("order 1 refused"));
        let group = w.store.group("default", pay).await.unwrap().unwrap();
        assert_eq!((group.count, group.recovered, group.class), (6, 1, Some(Class::Retryable)), "{group:#?}");
        assert_eq!((group.face.kind.as_str(), group.face.title.as_str()), ("pay", "order # refused"));
        assert_eq!((group.face.status, group.sample.message.as_str()), (Some(503), "order 4 refused"));
        assert!(group.first_seen < group.last_seen);
        let mut listed: Vec<Group> = Vec::new();
        loop {
            let after = listed.last().map(|group| (group.last_seen, group.fingerprint));
            let page = w.store.groups("default", &GroupQuery { after, limit: 2 }).await.unwrap();
            if page.is_empty() {
                break;
            }
            listed.extend(page);
        }
        assert_eq!(listed.len(), 5, "{listed:#?}");
        assert!(listed.is_sorted_by_key(|group| std::cmp::Reverse((group.last_seen, group.fingerprint))));
        assert!(listed.contains(&group));
        assert_eq!(w.store.group("other", pay).await.unwrap(), None);
        let open = w.lives(w.retrying_task("pay", policy()), &["order 7 refused"]).await;
        assert_eq!(w.load(open).await.task.fingerprint, Some(pay));
        let counts = w.store.open_with("default", &[pay, 5]).await.unwrap();
        assert_eq!((counts[&pay], counts[&5]), (1, 0));
    }

    fn a_group_stands_as_people_said_until_it_comes_again(w) {
        let known = fingerprint::fingerprint("pay", &refused("order 1 refused"));
        assert_eq!(w.deed(known, TriageAction::Resolve, "too early").await, None);
        w.lives(w.retrying_task("pay", policy()), &["order 1 refused", "ok"]).await;
        w.check_sums(1_000).await;
        w.pass(10);
        let resolved = w.deed(known, TriageAction::Resolve, "deployed").await.unwrap();
        assert_eq!((resolved.word.standing, resolved.word.by.as_deref()), (GroupStatus::Resolved, Some("ann")));
        assert_eq!(w.store.group("default", known).await.unwrap(), Some(resolved));
        w.pass(10);
        w.lives(w.retrying_task("pay", policy()), &["order 2 refused", "ok"]).await;
        w.check_sums(1_000).await;
        let again = w.store.group("default", known).await.unwrap().unwrap();
        assert_eq!((again.word.standing, again.word.note.as_deref()), (GroupStatus::Regressed, Some("deployed")));
        let lines = w.store.audit(&AuditQuery { limit: 10, ..AuditQuery::default() }).await.unwrap();
        assert_eq!(lines.len(), 1);
        assert_eq!(lines[0].before.as_ref().unwrap()["standing"], "open");
        assert_eq!(lines[0].after.as_ref().unwrap()["standing"], "resolved");
    }

    fn what_people_said_of_classes_is_found_without_looking_for_it(w) {
        assert!(w.store.reclassified().await.unwrap().is_empty());
        let known = fingerprint::fingerprint("plain", &refused("order 1 refused"));
        w.lives(w.new_task("plain"), &["order 1 refused"]).await;
        w.check_sums(1_000).await;
        w.deed(known, TriageAction::Reclassify(Some(Class::Final)), "never helps").await.unwrap();
        assert_eq!(w.store.reclassified().await.unwrap()["default"], [(known, Class::Final)].into());
        w.deed(known, TriageAction::Reclassify(None), "it does").await.unwrap();
        assert!(w.store.reclassified().await.unwrap().is_empty());
    }
}
