//! The database, where it can be reached from here.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use comeback_engine::store::postgres::{Health, Holder, HolderKind, health};
use comeback_engine::store::{Place, SCHEMA_VERSION};

use super::Chart;
use crate::output::{grouped, size, span};
use comeback_core::Millis;

/// Less than this is not enough for long, and less than that for the next minute.
const LITTLE_SPACE: u64 = 1 << 30;
const NO_SPACE: u64 = 64 << 20;
/// The log is folded back long before it is as long as this, unless something keeps it.
const LONG_LOG: u64 = 256 << 20;

pub async fn look(named: Option<&str>, chart: &mut Chart) {
    let usual = "./comeback.db";
    match named {
        Some(db) => match Place::named(db) {
            Place::File(path) if !path.exists() => {
                chart.ill("database", format!("there is no file {}", path.display()), "name it: --db FILE");
            }
            place => look_at(&place, chart).await,
        },
        None if Path::new(usual).exists() => look_at(&Place::named(usual), chart).await,
        None => {}
    }
}

async fn look_at(place: &Place, chart: &mut Chart) {
    match place.schema().await {
        Err(error) => {
            chart.ill("database", format!("{place}: {error}"), "check the address, the rights and the version");
            return;
        }
        Ok(schema) if schema.pending.is_empty() => {
            chart.well("database", format!("{place} has schema {SCHEMA_VERSION}, the newest"));
        }
        Ok(schema) => {
            let words = format!("{place} has schema {}, and the newest is {SCHEMA_VERSION}", schema.found);
            chart.look("database", words, "comeback db migrate, or just start the server");
        }
    }
    match place {
        Place::File(path) => file(path, chart),
        Place::Server(options) => match health(options).await {
            Ok(health) => server(&health, chart),
            Err(error) => chart.ill("postgres", error.to_string(), "check that PostgreSQL lets this user look"),
        },
    }
}

fn file(path: &Path, chart: &mut Chart) {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if let Ok(about) = path.metadata() {
        let mode = about.permissions().mode();
        if mode & 0o007 != 0 {
            chart.look(
                "rights",
                "everybody on this machine may read the database",
                format!("chmod 600 {}", path.display()),
            );
        } else if rustix::fs::access(path, rustix::fs::Access::WRITE_OK).is_err() {
            chart.ill(
                "rights",
                "the database cannot be written by you",
                format!("chown it, or run as its owner: {}", path.display()),
            );
        } else if rustix::fs::access(folder, rustix::fs::Access::WRITE_OK).is_err() {
            let words =
                format!("nothing can be made in {}, and the log of the database is beside it", folder.display());
            chart.ill("rights", words, "let the user of the server write there");
        } else {
            chart.well("rights", "the database is yours to write");
        }
    }
    if let Ok(space) = rustix::fs::statvfs(folder) {
        let free = space.f_bavail.saturating_mul(space.f_frsize);
        let words = format!("{} free where the database is", size(free));
        match free {
            0..NO_SPACE => chart.ill("disk", words, "make room now: soon nothing can be acknowledged any more"),
            NO_SPACE..LITTLE_SPACE => chart.look("disk", words, "make room, or keep finished tasks for less long"),
            _ => chart.well("disk", words),
        }
    }
    let mut log = path.as_os_str().to_owned();
    log.push("-wal");
    let log = Path::new(&log).metadata().map_or(0, |it| it.len());
    if log > LONG_LOG {
        let words = format!("the log beside the database has grown to {}", size(log));
        chart.look("log", words, "end what reads for long: a backup, a check, another program that has the file open");
    }
}

/// What keeps VACUUM from removing dead rows is told one by one, up to so many.
const MOST_HOLDERS: usize = 5;

/// Who holds back VACUUM, and how to end that.
fn held_by(holder: &Holder) -> (String, String) {
    let Holder { kind, database, pid, name, secs } = holder;
    let at = if database.is_empty() { "of the cluster".to_owned() } else { format!("in database {database}") };
    let age = match secs {
        Some(secs) => format!("has been open for {}", span(Millis::from_secs((*secs).max(0).cast_unsigned()))),
        None => "has been open for long".to_owned(),
    };
    let why = "it keeps VACUUM from removing dead rows in every database";
    match kind {
        HolderKind::Transaction => {
            let (pid, name) = (pid.unwrap_or_default(), if name.is_empty() { "without a name" } else { name });
            let words = format!("a transaction {at} {age} (pid {pid}, application {name})");
            (words, format!("end it: select pg_terminate_backend({pid}); {why}"))
        }
        HolderKind::Prepared => {
            let words = format!("the prepared transaction '{name}' {at} {age}");
            (words, format!("there: rollback prepared '{name}', or commit prepared '{name}'; {why}"))
        }
        HolderKind::Slot => {
            let words = format!("the replication slot {name} {at} holds back old rows");
            (words, format!("if nobody uses it: select pg_drop_replication_slot('{name}'); {why}"))
        }
    }
}

fn server(health: &Health, chart: &mut Chart) {
    let Health { version, version_number, .. } = health;
    if *version_number < Health::OLDEST {
        chart.ill("postgres", format!("version {version} is too old"), "PostgreSQL 13 or newer");
    } else {
        chart.well("postgres", format!("version {version}, {}", size(health.size.max(0).cast_unsigned())));
    }
    if health.is_standby {
        chart.ill("postgres", "this is a standby: nothing can be written", "name the primary");
    }
    let mut off = Vec::new();
    if !health.fsync {
        off.push("fsync");
    }
    if !health.full_page_writes {
        off.push("full_page_writes");
    }
    if off.is_empty() && health.synchronous_commit != "off" {
        chart.well("durability", format!("fsync on, synchronous_commit {}", health.synchronous_commit));
    } else if off.is_empty() {
        let words = "synchronous_commit is off: the last moments before a crash are lost";
        chart.ill("durability", words, "synchronous_commit = on");
    } else {
        let words = format!("{} off: a crash loses acknowledged work", off.join(" and "));
        chart.ill("durability", words, format!("{} = on", off.join(" = on, ")));
    }
    let used = health.connections * 100 / health.max_connections.max(1);
    let words = format!("{} of {} connections are used", health.connections, health.max_connections);
    if used >= 80 {
        chart.look("connections", words, "a larger max_connections; every instance uses up to 13");
    } else {
        chart.well("connections", words);
    }
    for holder in health.holders.iter().take(MOST_HOLDERS) {
        let (words, remedy) = held_by(holder);
        chart.look("vacuum", words, remedy);
    }
    if !health.holders.is_empty() {
        return;
    }
    if !health.autovacuum {
        chart.look("vacuum", "autovacuum is off", "autovacuum = on");
    } else if health.dead_rows > 100_000 && health.dead_rows > 4 * health.live_rows {
        let dead = grouped(health.dead_rows.cast_unsigned());
        chart.look(
            "vacuum",
            format!("{dead} dead rows among the open tasks"),
            "vacuum comeback.task_open, and see why autovacuum is late",
        );
    } else {
        chart.well("vacuum", "no long transactions");
    }
}
