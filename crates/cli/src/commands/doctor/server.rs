//! The server: there, of this version, ready, on time, and with somebody to do the work.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use comeback_client::{Client, Error};
use comeback_core::{Millis, Timestamp};
use serde_json::Value;

use super::Chart;
use crate::commands::keys::ends;
use crate::commands::status::{PATIENCE, next_due};
use crate::config::Settings;
use crate::failure::{Failure, without_number};
use crate::output::{self, instant, plural, span};

const OURS: &str = env!("CARGO_PKG_VERSION");
/// Clocks that are further apart than this make times hard to read.
const SKEW: Millis = Millis::from_secs(2);
/// Workers ask at least this often when there is nothing to do.
pub const SILENCE: Millis = Millis::from_secs(60);

pub async fn look(settings: &Settings, chart: &mut Chart) {
    let client = match Client::new(settings.server()) {
        Ok(client) => client.with_key(settings.key.value.clone()).in_namespace(settings.namespace.value.clone()),
        Err(error) => {
            chart.ill("server", error.to_string(), "--server http://host:7330");
            return;
        }
    };
    let begun = Instant::now();
    match client.get("/livez").await {
        Ok(_) => chart.well("server", format!("{} answers", settings.server())),
        Err(Error::Unreachable { url, why }) => {
            let words = format!("cannot reach {url}: {}", without_number(&why).to_lowercase());
            chart.ill("server", words, "comeback serve, or name another one: --server URL or --profile NAME");
            return;
        }
        Err(error) => {
            let words = format!("{} answers, and not as comeback does: {error}", settings.server());
            chart.ill("server", words, "name the right one: --server URL or --profile NAME");
            return;
        }
    }
    if begun.elapsed() > Duration::from_secs(1) {
        let took = Millis(u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX));
        chart.look(
            "latency",
            format!("it took {} to answer", span(took)),
            "look at the network and at the load of the server",
        );
    }
    match client.get("/readyz").await {
        Ok(_) => chart.well("ready", "it takes work and can keep it"),
        Err(error) => {
            chart.ill("ready", format!("it is not ready: {error}"), "look at the database and at the log of the server")
        }
    }
    let Some(stats) = asked(&client, "/api/v1/stats", settings, chart).await else { return };
    clock(&client, chart).await;
    versions(&client, chart).await;
    keys(&client, chart).await;
    work(&client, &stats, chart).await;
}

/// Keys that end soon, for those who may see them.
async fn keys(client: &Client, chart: &mut Chart) {
    let Ok(keys) = client.get("/api/v1/keys").await else { return };
    let is_ending = |it: &&Value| it["expires_soon"] == true && it["replaced_by"].is_null();
    let ending: Vec<&Value> = output::items(&keys).filter(is_ending).collect();
    let Some(first) = ending.iter().min_by_key(|it| output::text(it, "expires_at")) else { return };
    let words = format!("{} within 14 days", ends(ending.len() as u64));
    chart.look("keys", words, format!("comeback key rotate {}", output::text(first, "id")));
}

/// The first question that needs a key.
async fn asked(client: &Client, path: &str, settings: &Settings, chart: &mut Chart) -> Option<Value> {
    let origin = &settings.key.origin;
    match client.get(path).await {
        Ok(answer) => {
            match &settings.key.value {
                Some(_) => chart.well("key", format!("the key from {origin} is good")),
                None => chart.well("key", "none is needed"),
            }
            Some(answer)
        }
        Err(error) if error.problem().is_some_and(|problem| problem.status == 401) => {
            let (words, remedy) = match &settings.key.value {
                Some(_) => (
                    format!("the key from {origin} is unknown, expired or revoked"),
                    "make another one: comeback key create",
                ),
                None => (
                    "the server asks for a key, and there is none".to_owned(),
                    "set COMEBACK_KEY, or put one into a profile",
                ),
            };
            chart.ill("key", words, remedy);
            None
        }
        Err(error) if error.problem().is_some_and(|problem| problem.status == 403) => {
            chart.look(
                "key",
                format!("the key from {origin} may not look: {error}"),
                "use the key of a viewer or operator for this",
            );
            None
        }
        Err(error) => {
            chart.ill("key", Failure::from(error).what().to_owned(), "look at the log of the server");
            None
        }
    }
}

fn wall() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

async fn clock(client: &Client, chart: &mut Chart) {
    let before = wall();
    let Ok(clock) = client.get("/api/v1/clock").await else { return };
    let ours = Timestamp(before + (wall() - before) / 2);
    let Some(theirs) = instant(&clock["now"]) else { return };
    if clock["clock"] == "virtual" {
        chart.well("clock", "its time is moved by hand");
        return;
    }
    let apart = theirs.since(ours).max(ours.since(theirs));
    if apart > SKEW {
        let side = if theirs > ours { "ahead of" } else { "behind" };
        let words = format!("its clock is {} {side} ours", span(apart));
        chart.look("clock", words, "let NTP set both, unless the server was started with --clock x60 or the like");
    } else {
        chart.well("clock", format!("within {} of ours", span(SKEW)));
    }
}

async fn versions(client: &Client, chart: &mut Chart) {
    let Ok(instances) = client.get("/api/v1/admin/instances").await else { return };
    let mut versions: Vec<&str> = output::items(&instances).map(|it| output::text(it, "version")).collect();
    let count = versions.len() as u64;
    versions.sort_unstable();
    versions.dedup();
    match versions.as_slice() {
        [] => {}
        [one] if *one == OURS => chart.well("version", format!("{one} here and at {}", plural(count, "instance"))),
        [one] => {
            let words = format!("the server is {one}, this is {OURS}");
            chart.look("version", words, "use the same version on both sides");
        }
        many => {
            let words = format!("instances of versions {} share the database", many.join(" and "));
            chart.look("version", words, "finish the upgrade: restart the older ones");
        }
    }
}

async fn work(client: &Client, stats: &Value, chart: &mut Chart) {
    let now = instant(&stats["now"]).unwrap_or(Timestamp(0));
    if let Ok(loops) = client.get("/api/v1/admin/loops").await {
        let paused: Vec<&str> =
            output::items(&loops).filter(|it| it["paused"] == true).map(|it| output::text(it, "name")).collect();
        match paused.as_slice() {
            [] => chart.well("loops", "all of them run"),
            names => {
                let words = format!("paused: {}", names.join(", "));
                chart.look("loops", words, format!("comeback loop resume {}", names[0]));
            }
        }
    }
    match next_due(stats).map(|next| now.since(next)).filter(|late| *late > PATIENCE) {
        None => chart.well("due", "nothing is overdue"),
        Some(late) => {
            let words = format!("work is overdue by up to {}", span(late));
            chart.look("due", words, "see that the loops run, and look at the load of the database");
        }
    }
    if let Ok(stuck) = client.get("/api/v1/admin/tasks/stuck").await {
        let expired = output::items(&stuck).filter_map(|it| instant(&it["expired_at"]));
        let late: Vec<Millis> = expired.map(|at| now.since(at)).filter(|late| *late > PATIENCE).collect();
        if let Some(longest) = late.iter().max() {
            let words = format!("{} lost their lease up to {} ago", plural(late.len() as u64, "run"), span(*longest));
            chart.look("leases", words, "see that the loop reap runs: comeback loop list");
        }
    }
    let pending = stats["by_state"]["pending"].as_u64().unwrap_or(0);
    let Ok(workers) = client.get("/api/v1/admin/workers").await else { return };
    let is_lively = |it: &&Value| instant(&it["last_seen_at"]).is_some_and(|at| now.since(at) <= SILENCE);
    let lively = output::items(&workers).filter(is_lively).count() as u64;
    let drained = output::items(&workers).filter(is_lively).filter(|it| it["draining"] == true).count() as u64;
    let wait = if pending == 1 { "waits" } else { "wait" };
    if pending > 0 && lively > 0 && lively == drained {
        let words = format!("{} {wait}, and whoever asks for work is drained", plural(pending, "task"));
        chart.look("workers", words, "comeback worker list, comeback worker undrain NAME");
    } else if pending > 0 && lively == 0 {
        let words = format!("{} {wait}, and nobody asked for work in the last minute", plural(pending, "task"));
        chart.look("workers", words, "start a worker, or look at its log");
    } else if lively == 0 {
        chart.well("workers", "nobody asks for work, and nothing waits");
    } else {
        chart.well("workers", format!("{} in the last minute", plural(lively, "worker")));
    }
}
