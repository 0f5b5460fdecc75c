//! Many workers, two instances, a clock that is moved by hand and a store that fails: the promises of the engine, searched for
//! contradictions by seed.
//!
//! Everything runs on one thread and draws its chance from the seed, so a seed that fails once fails always; the message names it.
//! `COMEBACK_SEED=n` runs one seed, `COMEBACK_SEEDS=n` that many.

mod actors;
#[path = "../common/between.rs"]
mod between;
mod checks;
mod faults;
mod flows;
mod ledger;
#[path = "../common/plain.rs"]
mod plain;
mod repairs;
mod rng;
mod schedule;

use std::sync::Arc;

use comeback_core::Timestamp;
use comeback_engine::store::{SqliteOptions, SqliteStore, Store};
use comeback_engine::{Engine, EngineConfig, VirtualClock};
use parking_lot::Mutex;

use between::Between;
use faults::{Faults, Faulty, Mutant};
use ledger::Ledger;
use rng::Rng;

const START: Timestamp = Timestamp(1_800_000_000_000);

/// One simulated world.
#[derive(Clone)]
pub struct Sim {
    pub truth: Arc<dyn Store>,
    pub clock: Arc<VirtualClock>,
    pub engines: Arc<Mutex<Vec<Engine>>>,
    pub ledger: Arc<Mutex<Ledger>>,
    pub faults: Arc<Faults>,
    pub mutant: Option<Mutant>,
}

impl Sim {
    async fn new(seed: u64, mutant: Option<Mutant>) -> Sim {
        let truth: Arc<dyn Store> = Arc::new(SqliteStore::open(&SqliteOptions::in_memory()).expect("a store"));
        let sim = Sim {
            truth,
            clock: VirtualClock::new(START),
            engines: Arc::default(),
            ledger: Arc::default(),
            faults: Arc::new(Faults::new(seed)),
            mutant,
        };
        for n in 0..2 {
            let engine = sim.instance(seed.wrapping_mul(31) + n).await;
            sim.engines.lock().push(engine);
        }
        schedule::make(&sim).await;
        sim
    }

    /// A new instance, with nothing in its memory.
    pub async fn instance(&self, id_seed: u64) -> Engine {
        let hand = Arc::new(Faulty { faults: self.faults.clone(), mutant: self.mutant });
        let store = Between { truth: self.truth.clone(), hand };
        let config = EngineConfig { id_seed: Some(id_seed), report_lanes: 1, ..EngineConfig::default() };
        let store: Arc<dyn Store> = Arc::new(store);
        loop {
            // A store that is away at the start is tried again, as a server would.
            if let Ok(engine) = Engine::without_loops(store.clone(), self.clock.clone(), config.clone()).await {
                engine.read_workflows_with(Arc::new(schedule::Kinds));
                return engine;
            }
        }
    }

    pub fn engine(&self, rng: &mut Rng) -> Engine {
        let engines = self.engines.lock();
        engines[rng.below(engines.len() as u64) as usize].clone()
    }
}

/// Runs one seed to its end. The answer says what was contradicted, if anything was.
fn run(seed: u64, mutant: Option<Mutant>) -> Result<checks::Summary, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    runtime.block_on(async {
        let sim = Sim::new(seed, mutant).await;
        let mut rng = Rng::new(seed);
        let mut actors = tokio::task::JoinSet::new();
        let steps = 8 + rng.below(10);
        for n in 0..3 {
            actors.spawn(actors::worker(sim.clone(), rng.fork(), n, steps * 2));
        }
        actors.spawn(actors::client(sim.clone(), rng.fork(), steps));
        actors.spawn(actors::operator(sim.clone(), rng.fork(), steps));
        for n in 0..2 {
            actors.spawn(actors::loops(sim.clone(), rng.fork(), n, steps * 2));
        }
        actors.spawn(actors::time(sim.clone(), rng.fork(), steps * 2));
        while let Some(joined) = actors.join_next().await {
            joined.map_err(|error| format!("an actor panicked: {error}"))??;
        }
        sim.faults.heal();
        checks::check_all(&sim).await?;
        actors::settle_everything(&sim).await?;
        checks::check_all(&sim).await?;
        schedule::check(&sim).await?;
        checks::check_over(&sim).await
    })
}

fn seeds() -> std::ops::Range<u64> {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    match number("COMEBACK_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("COMEBACK_SEEDS").unwrap_or(2_000),
    }
}

fn check_seeds(part: u64, of: u64) {
    let mut total = checks::Summary::default();
    for seed in seeds().filter(|seed| seed % of == part) {
        match run(seed, None) {
            Ok(summary) => total.add(&summary),
            Err(fault) => panic!("seed {seed}: {fault}\nrun it again with COMEBACK_SEED={seed}"),
        }
    }
    if std::env::var_os("COMEBACK_SEED").is_none() {
        total.must_be_worth_something();
    }
    println!("{total:?}");
}

#[test]
fn the_promises_hold_part_1() {
    check_seeds(0, 4);
}

#[test]
fn the_promises_hold_part_2() {
    check_seeds(1, 4);
}

#[test]
fn the_promises_hold_part_3() {
    check_seeds(2, 4);
}

#[test]
fn the_promises_hold_part_4() {
    check_seeds(3, 4);
}

/// Two runs of a seed tell the same story to the last event.
#[test]
fn a_seed_is_repeatable() {
    for seed in 0..20 {
        let (first, second) = (run(seed, None), run(seed, None));
        assert_eq!(first.expect("holds").digest, second.expect("holds").digest, "seed {seed}");
    }
}

/// Checks need teeth: each of these breaks one promise on purpose, and must be found.
#[test]
fn every_deliberate_break_is_found() {
    for mutant in Mutant::ALL {
        let found = (0..400).find_map(|seed| run(seed, Some(*mutant)).err().map(|fault| (seed, fault)));
        let Some((seed, fault)) = found else { panic!("{mutant:?} was not found in 400 seeds") };
        println!("{mutant:?}: seed {seed}: {}", fault.lines().next().unwrap_or_default());
    }
}
