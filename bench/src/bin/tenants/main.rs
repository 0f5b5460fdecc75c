//! `make tenants`: what one hostile tenant does to an honest one on the same server.
//!
//! RED does every attack that is known, one after another and all at once, from a process of its own. BLUE meanwhile submits, leases,
//! heartbeats and reports at a steady rate. The table says what BLUE felt, and how much memory the server took.

mod attacks;
mod blue;
mod server;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Parser;
use serde_json::json;

use blue::{Blue, Felt};
use server::{Keys, Server};

/// BLUE's p99 may grow by this factor under an attack.
const MOST_SLOWER: f64 = 3.0;
/// Limit of the resident memory of the server, in MB.
const MOST_MEMORY: f64 = 400.0;
/// By what part resident memory may have grown when everything is over.
const MOST_GROWN: f64 = 0.2;

#[derive(Parser)]
#[command(about = "Measures what one hostile tenant does to an honest one on the same server.")]
struct Arguments {
    /// The server's binary.
    #[arg(long, default_value = "target/release/comeback")]
    comeback: PathBuf,
    /// A PostgreSQL URL. Without one the server runs on a SQLite file in a temporary folder.
    #[arg(long)]
    postgres: Option<String>,
    /// Seconds per attack.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// BLUE's tasks per second: each is submitted, leased, kept alive and reported.
    #[arg(long, default_value_t = 200)]
    rate: u64,
    /// Only these attacks, by name.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// RED's tasks that are there before, for the searches.
    #[arg(long, default_value_t = 300_000)]
    tasks: usize,
    /// Runs attacks against a server; used by this program itself.
    #[arg(long, hide = true, value_delimiter = ',')]
    attack: Vec<String>,
    #[arg(long, hide = true)]
    target: Option<String>,
}

/// One line of the table.
struct Row {
    name: String,
    felt: Felt,
    peak_mb: f64,
    alive: bool,
}

#[tokio::main]
async fn main() -> Result<ExitCode> {
    // The client asks for one although nothing here is encrypted.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let arguments = Arguments::parse();
    match &arguments.target {
        Some(target) => {
            let keys: Keys = serde_json::from_str(target)?;
            attacks::run(&arguments.attack, keys, Duration::from_secs(arguments.seconds)).await;
            Ok(ExitCode::SUCCESS)
        }
        None => measure(&arguments).await,
    }
}

async fn measure(arguments: &Arguments) -> Result<ExitCode> {
    let names: Vec<&str> = attacks::NAMES
        .iter()
        .copied()
        .filter(|name| arguments.only.is_empty() || arguments.only.iter().any(|only| only == name))
        .collect();
    let mut server = Server::start(&arguments.comeback, arguments.postgres.as_deref()).await?;
    attacks::prepare(&server.keys, arguments.tasks).await.context("RED's backlog")?;
    let blue = Blue::start(&server.keys, arguments.rate).await?;
    say("warming up");
    // The disk is still writing what was just made.
    tokio::time::sleep(Duration::from_secs(30)).await;
    blue.take();
    let quiet_for = Duration::from_secs(arguments.seconds.clamp(20, 60));
    let (quiet, began_mb) = (blue.over(quiet_for).await, server.resident_mb());
    say(&format!("quiet: {quiet}, {began_mb:.0} MB"));
    let mut rows = Vec::new();
    for name in &names {
        rows.push(attack(arguments, &mut server, &blue, name, &[name]).await?);
    }
    if names.len() > 1 {
        rows.push(attack(arguments, &mut server, &blue, "all at once", &names).await?);
    }
    if names.contains(&"rule-keys") {
        say("canceling RED's tasks with the many keys");
        attacks::clean_up(&server.keys).await?;
        tokio::time::sleep(Duration::from_secs(90)).await;
    }
    say("waiting for the server to calm down");
    tokio::time::sleep(Duration::from_secs(30)).await;
    blue.take();
    let after = blue.over(Duration::from_secs(20)).await;
    let ended_mb = server.resident_mb();
    let database = if arguments.postgres.is_some() { "PostgreSQL" } else { "SQLite" };
    println!("\n{database}, {} tasks/s of BLUE, {} s per attack\n", arguments.rate, arguments.seconds);
    println!(
        "| attack | submit p99 | start p99 | heartbeat p99 | report p99 | all p99 | ratio | refused | late start | peak MB | |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|");
    let line = |name: &str, felt: &Felt, mb: f64, alive: bool| {
        let [submit, start, heartbeat, report] = felt.p99();
        let ratio = felt.ratio(&quiet);
        let kept = alive && ratio <= MOST_SLOWER && felt.refused == 0 && mb <= MOST_MEMORY;
        println!(
            "| {name} | {submit:.1} | {start:.1} | {heartbeat:.1} | {report:.1} | {:.1} | {ratio:.1}× | {} | {:.0} ms | {mb:.0} | {} |",
            felt.overall_p99(),
            felt.refused,
            felt.late_ms,
            if !alive {
                "SERVER DIED"
            } else if kept {
                "kept"
            } else {
                "NOT KEPT"
            }
        );
        kept
    };
    line("quiet", &quiet, began_mb, true);
    let mut kept = true;
    for row in &rows {
        kept &= line(&row.name, &row.felt, row.peak_mb, row.alive);
    }
    line("afterwards", &after, ended_mb, true);
    let grown = (ended_mb - began_mb) / began_mb;
    kept &= grown <= MOST_GROWN;
    println!("\nresident memory {began_mb:.0} MB before, {ended_mb:.0} MB afterwards ({:+.0} %)", grown * 100.0);
    println!("{}", json!({"database": database, "kept": kept, "attacks": rows.len()}));
    drop(blue);
    server.stop().await;
    Ok(if kept { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Lets RED attack for a while, from a process that yields to everybody else: an attacker brings processors of its own.
async fn attack(arguments: &Arguments, server: &mut Server, blue: &Blue, name: &str, attacks: &[&str]) -> Result<Row> {
    let itself = std::env::current_exe()?;
    let seconds = arguments.seconds.to_string();
    let mut red = tokio::process::Command::new("chrt")
        .args(["--idle", "0"])
        .arg(itself)
        .args([
            "--attack",
            &attacks.join(","),
            "--seconds",
            &seconds,
            "--target",
            &serde_json::to_string(&server.keys)?,
        ])
        .kill_on_drop(true)
        .spawn()
        .context("RED cannot be started")?;
    blue.take();
    let until = Instant::now() + Duration::from_secs(arguments.seconds);
    let mut peak_mb = server.resident_mb();
    while Instant::now() < until && server.is_alive() {
        tokio::time::sleep(Duration::from_millis(200)).await;
        peak_mb = peak_mb.max(server.resident_mb());
    }
    let felt = blue.take();
    let alive = server.is_alive();
    let _ = red.kill().await;
    let row = Row { name: name.to_owned(), felt, peak_mb, alive };
    say(&format!("{name}: {}, peak {peak_mb:.0} MB{}", row.felt, if alive { "" } else { ", THE SERVER DIED" }));
    if !alive {
        server.restart().await?;
    }
    tokio::time::sleep(Duration::from_secs(5)).await;
    Ok(row)
}

/// Progress, beside the table.
fn say(text: &str) {
    eprintln!("tenants: {text}");
}
