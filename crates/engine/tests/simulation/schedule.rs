//! A schedule beside everything else: each of its instants fires once, whoever looks, dies or hears nothing.

use std::collections::BTreeMap;

use comeback_core::filter::{Filter, Sort};
use comeback_core::schedule::{CatchUp, Times};
use comeback_core::{Millis, Timestamp};
use comeback_engine::flow::{Plan, Workflows};
use comeback_engine::schedules::{ScheduleSpec, ScheduleState, Starts};
use comeback_engine::store::{ListQuery, ResourceKind};
use comeback_engine::{CommandError, Engine, EngineConfig, TaskSpec};
use serde_json::{Value, json};

use crate::{START, Sim};

/// Nobody works here: what is started stays, to be counted.
const NAMESPACE: &str = "clockwork";
const SPAN: Millis = Millis(7_000);
const INSTANTS: u64 = 40;

/// Tasks that are a kind and nothing else.
pub struct Kinds;

#[async_trait::async_trait]
impl Workflows for Kinds {
    async fn plan(&self, _: &str, _: &str) -> Result<Plan, CommandError> {
        Ok(Plan::default())
    }

    async fn task(&self, _: &str, body: &Value) -> Result<TaskSpec, CommandError> {
        Ok(TaskSpec::new(body["kind"].as_str().unwrap_or_default()))
    }
}

pub async fn make(sim: &Sim) {
    let config = EngineConfig { id_seed: Some(7), ..EngineConfig::default() };
    let engine = Engine::without_loops(sim.truth.clone(), sim.clock.clone(), config).await.expect("an engine");
    engine.read_workflows_with(std::sync::Arc::new(Kinds));
    let times = Times { every: Some(SPAN), end_at: Some(START + Millis(SPAN.0 * INSTANTS)), ..Times::default() };
    let spec = ScheduleSpec {
        catch_up: CatchUp::All,
        catch_up_limit: 1_000,
        ..ScheduleSpec::new(times, Starts::Task(json!({"kind": "tick"})))
    };
    engine
        .create_schedule(NAMESPACE, "ticks", spec, &comeback_core::transition::Actor::default())
        .await
        .expect("a schedule");
}

/// As many tasks as instants have been dealt with, one for each, and none before its time.
pub async fn check(sim: &Sim) -> Result<(), String> {
    let text = |error: comeback_engine::store::StoreError| error.to_string();
    let row = sim
        .truth
        .follower(ResourceKind::Schedules, NAMESPACE, "ticks")
        .await
        .map_err(text)?
        .ok_or("the schedule is gone")?;
    let standing: ScheduleState = serde_json::from_str(&row.standing).map_err(|error| error.to_string())?;
    let query = ListQuery {
        filter: Filter::parse("kind:tick", sim.clock_now()).expect("a filter"),
        sort: Sort::Submitted,
        limit: 500,
        after: None,
        now: sim.clock_now(),
    };
    let mut made: BTreeMap<Timestamp, u64> = BTreeMap::new();
    for item in sim.truth.list(NAMESPACE, &query).await.map_err(text)?.items {
        let at = Timestamp::parse_rfc3339(&item.labels["scheduled_at"]).map_err(|error| error.to_string())?;
        let submitted = item.stored.task.submitted_at;
        if submitted < at {
            return Err(format!("{} was fired early, at {}", at.to_rfc3339(), submitted.to_rfc3339()));
        }
        *made.entry(at).or_default() += 1;
    }
    let dealt_with = standing.settled.since(START).0 / SPAN.0;
    for round in 1..=INSTANTS {
        let at = START + Millis(SPAN.0 * round);
        let (found, expected) = (made.remove(&at).unwrap_or(0), u64::from(round <= dealt_with));
        if found != expected {
            return Err(format!("instant {round} of {dealt_with} that were dealt with fired {found} times"));
        }
    }
    match made.is_empty() && standing.fired == dealt_with {
        true => Ok(()),
        false => Err(format!("{dealt_with} instants were dealt with, {} fired, and besides {made:?}", standing.fired)),
    }
}
