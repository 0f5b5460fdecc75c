//! Alerts: too much of something is told once, and once that it is over.

use comeback_core::alert::Watch;
use comeback_core::filter::{Filter, Sort};
use comeback_core::subscription::{AlertEvent, Format, Types};
use comeback_core::transition::Actor;
use comeback_core::{Millis, Timestamp};
use comeback_engine::alerts::{AlertSpec, AlertView};
use comeback_engine::store::{ListQuery, Loop};
use comeback_engine::subscriptions::{DELIVERY, SubscriptionSpec};
use comeback_engine::{CommandError, Engine, TaskSpec};

use crate::stories;
use crate::world::{failed, lease_one, nobody, report, submit, succeeded};

const MINUTE: u64 = 60_000;

fn types(words: &[&str]) -> Types {
    Types::read(words.iter().map(|it| (*it).to_owned()).collect()).expect("types")
}

fn failures(threshold: u64) -> AlertSpec {
    AlertSpec {
        types: types(&["task.failed"]),
        filter: None,
        watch: Watch { window: Millis(5 * MINUTE), threshold, share: None },
        of: None,
        tell: Vec::new(),
        paused: false,
        note: None,
    }
}

async fn put(engine: &Engine, name: &str, spec: AlertSpec) -> AlertView {
    engine.put_alert("default", name, spec, &nobody()).await.expect("an alert").0
}

/// Whatever was done is seen.
pub async fn tick(engine: &Engine) {
    engine.tick().await.expect("a tick");
}

async fn look(engine: &Engine, name: &str) -> AlertView {
    engine.alert("default", name).await.expect("it is there")
}

pub async fn subscribe(engine: &Engine, id: &str, words: &[&str]) {
    let spec = SubscriptionSpec {
        url: "https://example.test/alerts".into(),
        types: types(words),
        filter: None,
        format: Format::Webhook,
        headers: Default::default(),
        retry: None,
        paused: false,
        note: None,
    };
    engine.create_subscription("default", id, spec, None, &Actor::default()).await.expect("a subscription");
}

async fn end(engine: &Engine, kind: &str, well: bool) {
    submit(engine, TaskSpec::new(kind)).await;
    let leased = lease_one(engine).await;
    report(engine, &leased, if well { succeeded() } else { failed("no") }).await.expect("a verdict");
}

/// What was told to one subscription, oldest first.
pub async fn told(engine: &Engine, id: &str) -> Vec<String> {
    let filter = Filter::parse(&format!("kind:{DELIVERY} label.subscription:{id}"), engine.now()).expect("a filter");
    let query = ListQuery { filter, sort: Sort::Submitted, limit: 500, after: None, now: engine.now() };
    let found = engine.store().list("default", &query).await.expect("a list").items;
    found.into_iter().map(|it| it.labels["type"].clone()).collect()
}

stories! {
    /// S2-100.
    fn an_alert_fires_once_and_is_over_once(place) {
        let engine = place.engine().await;
        subscribe(&engine, "ops", &["alert.*"]).await;
        subscribe(&engine, "other", &["task.succeeded"]).await;
        put(&engine, "failing", failures(3)).await;
        for _ in 0..2 {
            end(&engine, "k", false).await;
        }
        tick(&engine).await;
        assert_eq!(look(&engine, "failing").await.state(), "quiet");
        for _ in 0..3 {
            end(&engine, "k", false).await;
            tick(&engine).await;
        }
        let view = look(&engine, "failing").await;
        assert_eq!((view.state(), view.standing.count.firing_since), ("firing", Some(place.now())));
        assert_eq!(told(&engine, "ops").await, ["alert.fired"]);
        // Time alone ends it: the engine knows when to look.
        let next = engine.next_instant().await.unwrap().expect("it is due");
        assert!(next > place.now() + Millis(5 * MINUTE - 1) && next <= place.now() + Millis(5 * MINUTE + 10_000), "{next:?}");
        place.clock.set(next);
        tick(&engine).await;
        assert_eq!(look(&engine, "failing").await.state(), "quiet");
        assert_eq!(told(&engine, "ops").await, ["alert.fired", "alert.resolved"]);
        assert!(told(&engine, "other").await.is_empty());
        assert_eq!(look(&engine, "failing").await.standing.count.fired, 1);
    }

    /// S2-99: too much work is stuck.
    fn stuck_work_raises_an_alert(place) {
        let engine = place.engine().await;
        let lost = types(&["task.lease_expired", "task.stuck_recovered"]);
        put(&engine, "stuck", AlertSpec { types: lost, ..failures(2) }).await;
        for _ in 0..2 {
            submit(&engine, TaskSpec::new("k")).await;
            lease_one(&engine).await;
        }
        tick(&engine).await;
        assert_eq!(look(&engine, "stuck").await.state(), "quiet");
        place.clock.advance(Millis(2 * MINUTE));
        tick(&engine).await;
        tick(&engine).await;
        assert_eq!(look(&engine, "stuck").await.state(), "firing");
    }

    fn a_filter_a_share_and_a_name_say_what_and_whom(place) {
        let engine = place.engine().await;
        for id in ["a", "b"] {
            subscribe(&engine, id, &["alert.fired"]).await;
        }
        put(&engine, "mail", AlertSpec { filter: Some("kind:mail.*".into()), tell: vec!["b".into()], ..failures(2) }).await;
        let watch = Watch { share: Some(0.5), ..failures(2).watch };
        put(&engine, "half", AlertSpec { watch, of: Some(types(&["task.succeeded"])), ..failures(2) }).await;
        put(&engine, "off", AlertSpec { paused: true, ..failures(1) }).await;
        for well in [true, true, true, false, false] {
            end(&engine, "report", well).await;
        }
        tick(&engine).await;
        for name in ["mail", "half"] {
            assert_eq!(look(&engine, name).await.state(), "quiet", "{name}");
        }
        end(&engine, "mail.send", false).await;
        tick(&engine).await;
        assert_eq!(look(&engine, "half").await.state(), "firing", "3 of 6");
        end(&engine, "mail.send", false).await;
        tick(&engine).await;
        assert_eq!(look(&engine, "mail").await.state(), "firing");
        assert_eq!(look(&engine, "off").await.state(), "paused");
        assert_eq!((told(&engine, "a").await.len(), told(&engine, "b").await.len()), (1, 2), "one was named");
    }

    fn instances_and_restarts_fire_nothing_twice(place) {
        let one = place.engine().await;
        subscribe(&one, "ops", &["alert.*"]).await;
        put(&one, "failing", failures(2)).await;
        let two = place.engine().await;
        for _ in 0..4 {
            for _ in 0..3 {
                end(&one, "k", false).await;
            }
            let looks = [&one, &two, &one, &two].map(|engine| {
                let engine = engine.clone();
                tokio::spawn(async move { engine.tick_loop(Loop::Alerts).await.unwrap() })
            });
            for look in looks {
                look.await.unwrap();
            }
            // Another one that has seen nothing of this.
            tick(&place.engine().await).await;
            place.pass(6 * MINUTE);
            for engine in [&two, &one] {
                tick(engine).await;
            }
        }
        one.close().await;
        two.close().await;
        place.forget();
        let engine = place.engine().await;
        tick(&engine).await;
        let expected: Vec<&str> = [AlertEvent::Fired.word(), AlertEvent::Resolved.word()].repeat(4);
        assert_eq!(told(&engine, "ops").await, expected);
        assert_eq!(look(&engine, "failing").await.standing.count.fired, 4);
    }

    fn a_back_test_says_what_would_have_been(place) {
        let engine = place.engine().await;
        let mut at: Vec<Timestamp> = Vec::new();
        // A week and a day of bad hours, one a day.
        for _ in 0..8 {
            for _ in 0..3 {
                end(&engine, "k", false).await;
            }
            at.push(place.now());
            place.pass(24 * 60 * MINUTE);
        }
        let test = engine.backtest_alert("default", &failures(3), Millis::from_days(7)).await.unwrap();
        assert!(test.complete);
        let fired: Vec<Timestamp> = test.changes.iter().filter(|it| it.what == AlertEvent::Fired).map(|it| it.at).collect();
        assert_eq!(fired, at[1..], "what is older than a week is not looked at");
        assert_eq!(test.changes.len(), 14, "and each is over");
        assert!(engine.backtest_alert("default", &failures(4), Millis::from_days(7)).await.unwrap().changes.is_empty());
        let none = AlertSpec { filter: Some("kind:other".into()), ..failures(1) };
        assert!(engine.backtest_alert("default", &none, Millis::from_days(7)).await.unwrap().changes.is_empty());
        // What it says is what it does: the same events, followed.
        put(&engine, "failing", failures(3)).await;
        subscribe(&engine, "ops", &["alert.fired"]).await;
        let began = place.now();
        for _ in 0..3 {
            end(&engine, "k", false).await;
            place.pass(1_000);
        }
        tick(&engine).await;
        let live = look(&engine, "failing").await.standing.count.firing_since;
        let test = engine.backtest_alert("default", &failures(3), place.now().since(began)).await.unwrap();
        assert_eq!(test.changes.iter().map(|it| Some(it.at)).collect::<Vec<_>>(), [live]);
    }

    fn a_bad_alert_is_refused_with_the_path_of_the_fault(place) {
        let engine = place.engine().await;
        let bad = async |name: &str, spec: AlertSpec| match engine.put_alert("default", name, spec, &nobody()).await {
            Err(CommandError::Invalid(invalid)) => invalid.faults.iter().map(|it| it.path.clone()).collect::<Vec<_>>(),
            other => panic!("{other:?}"),
        };
        assert_eq!(bad("", failures(1)).await, ["name"]);
        assert_eq!(bad("a", failures(0)).await, ["threshold"]);
        assert_eq!(bad("a", AlertSpec { types: types(&[]), ..failures(1) }).await, ["types"]);
        assert_eq!(bad("a", AlertSpec { filter: Some("colour:red".into()), ..failures(1) }).await, ["filter"]);
        assert_eq!(bad("a", AlertSpec { of: Some(types(&["task.*"])), ..failures(1) }).await, ["share"]);
        assert_eq!(bad("a", AlertSpec { tell: vec!["nobody".into()], ..failures(1) }).await, ["tell[0]"]);
        put(&engine, "a", failures(1)).await;
        engine.delete_alert("default", "a", &nobody()).await.unwrap();
        assert!(matches!(engine.delete_alert("default", "a", &nobody()).await, Err(CommandError::NotFound("alert"))));
    }
}
