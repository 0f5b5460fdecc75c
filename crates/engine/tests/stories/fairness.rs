//! Tenants that share workers: one with a great many tasks does not delay another with a few.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use comeback_core::TaskId;
use comeback_core::admission::Rule;
use comeback_engine::{Engine, LeaseRequest, Report, Submit, TaskSpec};
use serde_json::json;

use crate::stories;
use crate::world::*;

fn of(tenant: &str) -> TaskSpec {
    TaskSpec { labels: BTreeMap::from([("tenant".into(), tenant.into())]), ..TaskSpec::new("a") }
}

async fn submit_many(engine: &Engine, tenant: &str, count: usize) -> Vec<TaskId> {
    let mut ids = Vec::with_capacity(count);
    for part in (0..count).collect::<Vec<_>>().chunks(5_000) {
        let tasks = part.iter().map(|_| of(tenant)).collect();
        let answer = engine.submit(Submit { namespace: "default".into(), tasks, ..Submit::default() }).await.unwrap();
        ids.extend(answer.tasks.iter().map(|task| task.id));
    }
    ids
}

async fn share(engine: &Engine) {
    let rule: Rule = serde_json::from_value(
        json!({"name": "tenants", "per": ["tenant"], "max_running": 1_000_000_000, "fair": true}),
    )
    .unwrap();
    engine.put_rule("default", rule, &nobody()).await.unwrap();
}

const WORKERS: usize = 40;
const WORK: Duration = Duration::from_millis(400);

/// Workers who take one task after the other and need their time for each.
struct Crew {
    hands: Vec<tokio::task::JoinHandle<()>>,
}

impl Crew {
    fn hire(engine: &Engine) -> Crew {
        let hand = |number: usize| {
            let engine = engine.clone();
            async move {
                loop {
                    let lease = LeaseRequest::new("default", format!("w{number}"));
                    let request = LeaseRequest { limit: 1, wait: Duration::from_secs(1), ..lease };
                    for leased in engine.lease(request).await.unwrap_or_default() {
                        tokio::time::sleep(WORK).await;
                        let _ = engine.report(vec![Report { lease: leased.lease, end: succeeded() }]).await;
                    }
                }
            }
        };
        Crew { hands: (0..WORKERS).map(|number| tokio::spawn(hand(number))).collect() }
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        self.hands.iter().for_each(tokio::task::JoinHandle::abort);
    }
}

/// Ten tasks at once, a few times: how long each takes from its submission to its end.
async fn tens(engine: &Engine) -> Vec<Duration> {
    let mut times = Vec::new();
    for _ in 0..4 {
        let began = Instant::now();
        let mut open = submit_many(engine, "b", 10).await;
        while !open.is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
            let found = engine.store().load(&open).await.unwrap();
            let over: Vec<TaskId> = found
                .into_iter()
                .flatten()
                .map(|it| it.task)
                .filter(|it| it.state.is_terminal())
                .map(|it| it.id)
                .collect();
            times.extend(over.iter().map(|_| began.elapsed()));
            open.retain(|id| !over.contains(id));
        }
    }
    times
}

fn p99(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[(times.len() * 99 / 100).min(times.len() - 1)]
}

stories! {
    /// Turn by turn, however many wait behind one of them and whoever came first; those without a tenant as ever.
    fn tenants_take_turns(place) {
        let engine = place.engine().await;
        share(&engine).await;
        let a = submit_many(&engine, "a", 50).await;
        place.pass(1);
        let b = submit_many(&engine, "b", 3).await;
        let next = async |count: u32| -> BTreeSet<TaskId> {
            lease(&engine, count).await.iter().map(|it| it.lease.task).collect()
        };
        assert_eq!(next(4).await, BTreeSet::from([a[0], b[0], a[1], b[1]]), "two each");
        assert_eq!(next(3).await, BTreeSet::from([a[2], b[2], a[3]]), "nobody waits for nothing");
        let urgent = submit(&engine, TaskSpec { priority: 100, ..of("a") }).await;
        let c = submit_many(&engine, "c", 1).await;
        assert_eq!(next(2).await, BTreeSet::from([urgent, c[0]]), "priority comes first, then who runs least");
    }

    /// S2-134: a backlog of one tenant beside ten tasks of another. In a build for tests the backlog is smaller unless
    /// `COMEBACK_FULL_SIZE` is set. What is printed is to be compared with 1.25 times; what is asserted leaves a busy machine two
    /// seconds more, where the backlog alone would take minutes.
    fn one_tenants_backlog_does_not_delay_anothers_ten(place) {
        let backlog = if std::env::var_os("COMEBACK_FULL_SIZE").is_some() { 1_000_000 } else { 20_000 };
        let engine = place.live_engine().await;
        share(&engine).await;
        let _crew = Crew::hire(&engine);
        let alone = p99(tens(&engine).await);
        submit_many(&engine, "a", backlog).await;
        let beside = p99(tens(&engine).await);
        let ratio = beside.as_secs_f64() / alone.as_secs_f64();
        println!(
            "{}: ten tasks of {WORK:?} on {WORKERS} workers: p99 {alone:.1?} alone and {beside:.1?} beside {backlog} of another tenant: {ratio:.2} times",
            place.backend.word()
        );
        assert!(beside < alone.mul_f64(1.25) + Duration::from_secs(2), "{alone:?} alone, {beside:?} beside");
        let counts = engine.store().counts("default", engine.now()).await.unwrap();
        assert!(counts.by_state.get(&comeback_core::State::Pending).is_some_and(|left| *left > 1_000), "a backlog is left");
    }
}
