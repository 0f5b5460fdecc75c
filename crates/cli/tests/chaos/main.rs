//! Three servers and twelve workers on one PostgreSQL, all of which are killed, again and again, while clients go on asking. What
//! everybody was told is held against what the database says in the end.
//!
//! `COMEBACK_CHAOS_SECONDS` says for how long, `COMEBACK_CHAOS_SEED` repeats a schedule, and `COMEBACK_CHAOS_AGAIN` names the folder
//! of a run that failed, to check it once more.

mod api;
mod checker;
mod clients;
mod cluster;
mod controls;
mod dump;
mod faults;
mod figures;
mod history;
mod plan;
mod ports;
mod processes;
mod proxy;
#[path = "../../../engine/tests/simulation/rng.rs"]
mod rng;
mod run;
#[path = "../common/server.rs"]
mod server;
mod worker;

use std::path::{Path, PathBuf};
use std::time::Duration;

use libtest_mimic::{Arguments, Failed, Trial};

use checker::Violation;
use controls::{Control, Sabotage};
use figures::Figures;
use plan::Mix;
use run::{Outcome, Setup, run};

fn main() {
    // The same program is every worker, too.
    if let Ok(role) = std::env::var(processes::ROLE) {
        let orders = std::env::args().nth(1).expect("orders");
        match role.as_str() {
            "worker" => worker::main(serde_json::from_str(&orders).expect("orders")),
            _ => processes::Guard::main(&orders),
        }
        return;
    }
    let mut trials = vec![Trial::test("the_promises_hold_through_kills", promises_hold).with_ignored_flag(true)];
    // A few in every run of the tests, all of them where time does not matter.
    let all = std::env::var("COMEBACK_CHAOS_CONTROLS").is_ok_and(|which| which == "all");
    let chosen = controls::all().into_iter().filter(|control| all || controls::FEW.contains(&control.name));
    trials.extend(chosen.map(|control| {
        Trial::test(format!("control::{}", control.name), move || must_be_found(&control)).with_ignored_flag(true)
    }));
    trials.extend(checker::tests::all().into_iter().map(|(name, test)| {
        Trial::test(format!("checker::{name}"), move || {
            test();
            Ok(())
        })
    }));
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime")
}

/// Where a run leaves what it wrote. It is removed when nobody needs to look at it.
fn folder(name: &str) -> PathBuf {
    let whole = Path::new(env!("CARGO_TARGET_TMPDIR"));
    std::fs::create_dir_all(whole).expect("a folder");
    tempfile::Builder::new().prefix(&format!("chaos-{name}-")).tempdir_in(whole).expect("a folder").keep()
}

fn promises_hold() -> Result<(), Failed> {
    if let Some(kept) = std::env::var_os("COMEBACK_CHAOS_AGAIN") {
        return check_again(Path::new(&kept));
    }
    let seed = number("COMEBACK_CHAOS_SEED").unwrap_or_else(|| history::now_ns() % 1_000_000);
    let length = Duration::from_secs(number("COMEBACK_CHAOS_SECONDS").unwrap_or(120));
    eprintln!("chaos: COMEBACK_CHAOS_SEED={seed} COMEBACK_CHAOS_SECONDS={}", length.as_secs());
    let (servers, workers) = (3, 12);
    let schedule = faults::schedule(seed, length, servers, workers);
    let folder = folder(&format!("seed-{seed}"));
    let kept = format!("seed {seed}; everything is kept in {}", folder.display());
    let setup = Setup {
        seed,
        length,
        servers,
        workers,
        submitters: 6,
        operators: 2,
        mix: Mix::Everything,
        schedule: schedule.clone(),
        sabotage: Sabotage::Nothing,
        drain: Duration::from_secs(120),
    };
    let outcome = runtime().block_on(run(setup, &folder)).map_err(|why| format!("{why}\n{kept}"))?;
    let figures = Figures::of(&outcome, &schedule);
    println!("chaos: seed {seed}, {} s\n{figures}", length.as_secs());
    let violations = check(&outcome, &folder);
    if !violations.is_empty() {
        return Err(format!("{}\n{kept}", listed(&violations)).into());
    }
    if let Some(why) = figures.void() {
        return Err(format!("the run is void: {why}\n{kept}").into());
    }
    std::fs::remove_dir_all(&folder)?;
    Ok(())
}

/// What the rows said is kept beside the history, for a second look.
fn check(outcome: &Outcome, folder: &Path) -> Vec<Violation> {
    let violations = checker::check(&outcome.entries, &outcome.dump);
    if !violations.is_empty() {
        let rows = serde_json::to_vec(&outcome.dump).expect("JSON");
        std::fs::write(folder.join("dump.json"), rows).expect("written");
    }
    violations
}

fn check_again(folder: &Path) -> Result<(), Failed> {
    let dump = serde_json::from_slice(&std::fs::read(folder.join("dump.json"))?)?;
    let violations = checker::check(&history::read_all(folder), &dump);
    if violations.is_empty() { Ok(()) } else { Err(listed(&violations).into()) }
}

/// A few of each sort.
fn listed(violations: &[Violation]) -> String {
    let mut text = format!("{} violations", violations.len());
    for sort in violations.chunk_by(|one, other| one.promise == other.promise) {
        for violation in sort.iter().take(5) {
            text.push_str(&format!("\n{violation}"));
        }
        if sort.len() > 5 {
            text.push_str(&format!("\n{}: and {} more", sort[0].promise, sort.len() - 5));
        }
    }
    text
}

/// So often a control may be tried: whether the break meets a task is a matter of moments.
const TRIES: u64 = 3;

/// A short run in which one thing is broken on purpose, and nothing else.
fn must_be_found(control: &Control) -> Result<(), Failed> {
    let mut missed = String::new();
    for seed in 1..=TRIES {
        let folder = folder(control.name);
        let outcome = runtime().block_on(run(short(control, seed), &folder))?;
        let violations = check(&outcome, &folder);
        let kept = folder.display();
        match control.breaks {
            None if !violations.is_empty() => {
                return Err(format!("nothing was broken, and this was found: {}\n{kept}", listed(&violations)).into());
            }
            None => return Ok(std::fs::remove_dir_all(&folder)?),
            Some(promise) => match violations.iter().find(|violation| violation.promise == promise) {
                Some(violation) => {
                    println!("{}: {violation}", control.name);
                    return Ok(std::fs::remove_dir_all(&folder)?);
                }
                None => missed = format!("{promise} was not found, but {}\n{kept}", listed(&violations)),
            },
        }
    }
    Err(missed.into())
}

fn short(control: &Control, seed: u64) -> Setup {
    let late = control.mix == Mix::LateWorkers;
    Setup {
        seed,
        length: Duration::from_secs(if late { 6 } else { 4 }),
        servers: 2,
        workers: 4,
        submitters: if late { 1 } else { 4 },
        operators: 2,
        mix: control.mix,
        schedule: Default::default(),
        sabotage: control.sabotage.clone(),
        drain: Duration::from_secs(if control.breaks.is_some() { 3 } else { 30 }),
    }
}
