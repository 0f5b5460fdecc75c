//! Checks of the server: reachable, ready, version, clock, keys, loops and workers.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use comeback_client::{Client, Error};
use comeback_core::{Millis, Timestamp};
use serde_json::Value;

use super::Diagnosis;
use crate::commands::keys;
use crate::commands::status::{TOLERANCE, next_due};
use crate::config::ClientSettings;
use crate::error::{CliError, without_number};
use crate::output::{self, instant, plural, span};

const OURS: &str = env!("CARGO_PKG_VERSION");
/// Clock skew that leads to a warning.
const SKEW: Millis = Millis::from_secs(2);
/// Idle workers poll at least this often.
pub const SILENCE: Millis = Millis::from_secs(60);

/// Checks the server of the settings.
pub async fn check(settings: &ClientSettings, diagnosis: &mut Diagnosis) {
    let client = match Client::new(settings.server()) {
        Ok(client) => client.with_key(settings.key.value.clone()).in_namespace(settings.namespace.value.clone()),
        Err(error) => {
            diagnosis.error("server", error.to_string(), "--server http://host:7330");
            return;
        }
    };
    let started = Instant::now();
    match client.get("/livez").await {
        Ok(_) => diagnosis.ok("server", format!("{} answers", settings.server())),
        Err(Error::Unreachable { url, why }) => {
            let words = format!("cannot reach {url}: {}", without_number(&why).to_lowercase());
            diagnosis.error("server", words, "comeback serve, or use another server: --server URL or --profile NAME");
            return;
        }
        Err(error) => {
            let words = format!("{} is not a comeback server: {error}", settings.server());
            diagnosis.error("server", words, "--server URL or --profile NAME");
            return;
        }
    }
    if started.elapsed() > Duration::from_secs(1) {
        let took = Millis(u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX));
        diagnosis.warn(
            "latency",
            format!("it took {} to answer", span(took)),
            "check the network and the load of the server",
        );
    }
    match client.get("/readyz").await {
        Ok(_) => diagnosis.ok("ready", "accepts tasks and can store them"),
        Err(error) => {
            diagnosis.error("ready", format!("not ready: {error}"), "check the database and the log of the server")
        }
    }
    let Some(stats) = first_answer(&client, "/api/v1/stats", settings, diagnosis).await else { return };
    clock(&client, diagnosis).await;
    versions(&client, diagnosis).await;
    expiring_keys(&client, diagnosis).await;
    work(&client, &stats, diagnosis).await;
}

/// Keys that expire soon, if this key may list them.
async fn expiring_keys(client: &Client, diagnosis: &mut Diagnosis) {
    let Ok(listed) = client.get("/api/v1/keys").await else { return };
    let is_ending = |it: &&Value| it["expires_soon"] == true && it["replaced_by"].is_null();
    let ending: Vec<&Value> = output::items(&listed).filter(is_ending).collect();
    let Some(first) = ending.iter().min_by_key(|it| output::text(it, "expires_at")) else { return };
    let words = format!("{} within 14 days", keys::expire(ending.len() as u64));
    diagnosis.warn("keys", words, format!("comeback key rotate {}", output::text(first, "id")));
}

/// The first request that needs a key.
async fn first_answer(
    client: &Client,
    path: &str,
    settings: &ClientSettings,
    diagnosis: &mut Diagnosis,
) -> Option<Value> {
    let origin = &settings.key.origin;
    match client.get(path).await {
        Ok(answer) => {
            match &settings.key.value {
                Some(_) => diagnosis.ok("key", format!("the key from {origin} is valid")),
                None => diagnosis.ok("key", "not required"),
            }
            Some(answer)
        }
        Err(error) if error.problem().is_some_and(|problem| problem.status == 401) => {
            let (words, remedy) = match &settings.key.value {
                Some(_) => (
                    format!("the key from {origin} is unknown, expired or revoked"),
                    "create another one: comeback key create",
                ),
                None => (
                    "the server requires a key, and none is set".to_owned(),
                    "set COMEBACK_KEY, or put one into a profile",
                ),
            };
            diagnosis.error("key", words, remedy);
            None
        }
        Err(error) if error.problem().is_some_and(|problem| problem.status == 403) => {
            diagnosis.warn(
                "key",
                format!("the key from {origin} may not read statistics: {error}"),
                "use a viewer or operator key",
            );
            None
        }
        Err(error) => {
            diagnosis.error("key", CliError::from(error).what().to_owned(), "check the log of the server");
            None
        }
    }
}

fn wall() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

async fn clock(client: &Client, diagnosis: &mut Diagnosis) {
    let before = wall();
    let Ok(clock) = client.get("/api/v1/clock").await else { return };
    let ours = Timestamp(before + (wall() - before) / 2);
    let Some(theirs) = instant(&clock["now"]) else { return };
    if clock["clock"] == "virtual" {
        diagnosis.ok("clock", "virtual clock, advanced manually");
        return;
    }
    let apart = theirs.since(ours).max(ours.since(theirs));
    if apart > SKEW {
        let side = if theirs > ours { "ahead of" } else { "behind" };
        let words = format!("the clock of the server is {} {side} the local clock", span(apart));
        diagnosis.warn(
            "clock",
            words,
            "synchronise both with NTP, unless the server was started with a --clock such as x60",
        );
    } else {
        diagnosis.ok("clock", format!("within {} of the local clock", span(SKEW)));
    }
}

async fn versions(client: &Client, diagnosis: &mut Diagnosis) {
    let Ok(instances) = client.get("/api/v1/admin/instances").await else { return };
    let mut versions: Vec<&str> = output::items(&instances).map(|it| output::text(it, "version")).collect();
    let count = versions.len() as u64;
    versions.sort_unstable();
    versions.dedup();
    match versions.as_slice() {
        [] => {}
        [one] if *one == OURS => diagnosis.ok("version", format!("{one} here and on {}", plural(count, "instance"))),
        [one] => {
            let words = format!("the server has {one}, this client {OURS}");
            diagnosis.warn("version", words, "use the same version on both sides");
        }
        many => {
            let words = format!("instances with versions {} share the database", many.join(" and "));
            diagnosis.warn("version", words, "finish the upgrade: restart the older ones");
        }
    }
}

async fn work(client: &Client, stats: &Value, diagnosis: &mut Diagnosis) {
    let now = instant(&stats["now"]).unwrap_or(Timestamp(0));
    if let Ok(loops) = client.get("/api/v1/admin/loops").await {
        let paused: Vec<&str> =
            output::items(&loops).filter(|it| it["paused"] == true).map(|it| output::text(it, "name")).collect();
        match paused.as_slice() {
            [] => diagnosis.ok("loops", "all running"),
            names => {
                let words = format!("paused: {}", names.join(", "));
                diagnosis.warn("loops", words, format!("comeback loop resume {}", names[0]));
            }
        }
    }
    match next_due(stats).map(|next| now.since(next)).filter(|late| *late > TOLERANCE) {
        None => diagnosis.ok("due", "no overdue work"),
        Some(late) => {
            let words = format!("work is overdue by up to {}", span(late));
            diagnosis.warn("due", words, "check that the loops run, and the load of the database");
        }
    }
    if let Ok(stuck) = client.get("/api/v1/admin/tasks/stuck").await {
        let expired = output::items(&stuck).filter_map(|it| instant(&it["expired_at"]));
        let late: Vec<Millis> = expired.map(|at| now.since(at)).filter(|late| *late > TOLERANCE).collect();
        if let Some(longest) = late.iter().max() {
            let words = format!("{} lost their lease up to {} ago", plural(late.len() as u64, "run"), span(*longest));
            diagnosis.warn("leases", words, "check that the loop reap runs: comeback loop list");
        }
    }
    let pending = stats["by_state"]["pending"].as_u64().unwrap_or(0);
    let Ok(workers) = client.get("/api/v1/admin/workers").await else { return };
    let is_active = |it: &&Value| instant(&it["last_seen_at"]).is_some_and(|at| now.since(at) <= SILENCE);
    let active = output::items(&workers).filter(is_active).count() as u64;
    let drained = output::items(&workers).filter(is_active).filter(|it| it["draining"] == true).count() as u64;
    let wait = if pending == 1 { "waits" } else { "wait" };
    if pending > 0 && active > 0 && active == drained {
        let words = format!("{} {wait}, and all active workers are draining", plural(pending, "task"));
        diagnosis.warn("workers", words, "comeback worker list, comeback worker undrain NAME");
    } else if pending > 0 && active == 0 {
        let words = format!("{} {wait}, and no worker was active in the last minute", plural(pending, "task"));
        diagnosis.warn("workers", words, "start a worker, or check its log");
    } else if active == 0 {
        diagnosis.ok("workers", "no active workers, and no waiting tasks");
    } else {
        diagnosis.ok("workers", format!("{} active in the last minute", plural(active, "worker")));
    }
}
