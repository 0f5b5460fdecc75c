//! Checks of the database, if it can be reached from here.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use comeback_engine::store::postgres::{Health, Holder, HolderKind, health};
use comeback_engine::store::{Place, SCHEMA_VERSION};

use super::Diagnosis;
use crate::output::{grouped, size, span};
use comeback_core::Millis;

/// Free space that leads to a warning and to an error.
const LITTLE_SPACE: u64 = 1 << 30;
const NO_SPACE: u64 = 64 << 20;
/// Size of a write-ahead log that a long reader keeps from being checkpointed.
const LONG_LOG: u64 = 256 << 20;

/// Checks the given database, or `./comeback.db` if it exists.
pub async fn check(named: Option<&str>, diagnosis: &mut Diagnosis) {
    let default = "./comeback.db";
    match named {
        Some(db) => match Place::named(db) {
            Place::File(path) if !path.exists() => {
                diagnosis.error("database", format!("there is no file {}", path.display()), "--db FILE");
            }
            place => check_place(&place, diagnosis).await,
        },
        None if Path::new(default).exists() => check_place(&Place::named(default), diagnosis).await,
        None => {}
    }
}

async fn check_place(place: &Place, diagnosis: &mut Diagnosis) {
    match place.schema().await {
        Err(error) => {
            diagnosis.error(
                "database",
                format!("{place}: {error}"),
                "check the address, the permissions and the version",
            );
            return;
        }
        Ok(schema) if schema.pending.is_empty() => {
            diagnosis.ok("database", format!("{place} has schema {SCHEMA_VERSION}, the current one"));
        }
        Ok(schema) => {
            let words = format!("{place} has schema {}, the current one is {SCHEMA_VERSION}", schema.found);
            diagnosis.warn("database", words, "comeback db migrate, or start the server");
        }
    }
    match place {
        Place::File(path) => file(path, diagnosis),
        Place::Server(options) => match health(options).await {
            Ok(health) => server(&health, diagnosis),
            Err(error) => {
                diagnosis.error("postgres", error.to_string(), "check the permissions of the PostgreSQL user")
            }
        },
    }
}

fn file(path: &Path, diagnosis: &mut Diagnosis) {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if let Ok(about) = path.metadata() {
        let mode = about.permissions().mode();
        if mode & 0o007 != 0 {
            diagnosis.warn(
                "rights",
                "the database is readable by all users of this machine",
                format!("chmod 600 {}", path.display()),
            );
        } else if rustix::fs::access(path, rustix::fs::Access::WRITE_OK).is_err() {
            diagnosis.error(
                "rights",
                "you cannot write to the database",
                format!("chown it, or run as its owner: {}", path.display()),
            );
        } else if rustix::fs::access(folder, rustix::fs::Access::WRITE_OK).is_err() {
            let words = format!(
                "cannot create files in {}, where the write-ahead log of the database belongs",
                folder.display()
            );
            diagnosis.error("rights", words, "give the user of the server write permission there");
        } else {
            diagnosis.ok("rights", "the database is writable");
        }
    }
    if let Ok(space) = rustix::fs::statvfs(folder) {
        let free = space.f_bavail.saturating_mul(space.f_frsize);
        let words = format!("{} free on the disk of the database", size(free));
        match free {
            0..NO_SPACE => diagnosis.error("disk", words, "free space now: writes will fail soon"),
            NO_SPACE..LITTLE_SPACE => {
                diagnosis.warn("disk", words, "free space, or shorten the retention of ended tasks")
            }
            _ => diagnosis.ok("disk", words),
        }
    }
    let mut log = path.as_os_str().to_owned();
    log.push("-wal");
    let log = Path::new(&log).metadata().map_or(0, |it| it.len());
    if log > LONG_LOG {
        let words = format!("the write-ahead log has grown to {}", size(log));
        diagnosis.warn("log", words, "end long readers: a backup, a check, or another program that has the file open");
    }
}

/// Holders of old rows that are listed at most.
const MOST_HOLDERS: usize = 5;

/// Describes a holder of old rows, and how to end it.
fn describe_holder(holder: &Holder) -> (String, String) {
    let Holder { kind, database, pid, name, secs } = holder;
    let at = if database.is_empty() { "of the cluster".to_owned() } else { format!("in database {database}") };
    let age = match secs {
        Some(secs) => format!("has been open for {}", span(Millis::from_secs((*secs).max(0).cast_unsigned()))),
        None => "has been open for a long time".to_owned(),
    };
    let why = "it keeps VACUUM from removing dead rows in every database";
    match kind {
        HolderKind::Transaction => {
            let (pid, name) = (pid.unwrap_or_default(), if name.is_empty() { "unnamed" } else { name });
            let words = format!("a transaction {at} {age} (pid {pid}, application {name})");
            (words, format!("end it: select pg_terminate_backend({pid}); {why}"))
        }
        HolderKind::Prepared => {
            let words = format!("the prepared transaction '{name}' {at} {age}");
            (words, format!("there: rollback prepared '{name}', or commit prepared '{name}'; {why}"))
        }
        HolderKind::Slot => {
            let words = format!("the replication slot {name} {at} holds back old rows");
            (words, format!("if unused: select pg_drop_replication_slot('{name}'); {why}"))
        }
    }
}

fn server(health: &Health, diagnosis: &mut Diagnosis) {
    let Health { version, version_number, .. } = health;
    if *version_number < Health::OLDEST {
        diagnosis.error("postgres", format!("version {version} is too old"), "PostgreSQL 13 or newer");
    } else {
        diagnosis.ok("postgres", format!("version {version}, {}", size(health.size.max(0).cast_unsigned())));
    }
    if health.is_standby {
        diagnosis.error("postgres", "this is a standby, which is read-only", "connect to the primary");
    }
    let mut off = Vec::new();
    if !health.fsync {
        off.push("fsync");
    }
    if !health.full_page_writes {
        off.push("full_page_writes");
    }
    if off.is_empty() && health.synchronous_commit != "off" {
        diagnosis.ok("durability", format!("fsync on, synchronous_commit {}", health.synchronous_commit));
    } else if off.is_empty() {
        let words = "synchronous_commit is off: a crash loses the last transactions";
        diagnosis.error("durability", words, "synchronous_commit = on");
    } else {
        let words = format!("{} off: a crash loses acknowledged work", off.join(" and "));
        diagnosis.error("durability", words, format!("{} = on", off.join(" = on, ")));
    }
    let used = health.connections * 100 / health.max_connections.max(1);
    let words = format!("{} of {} connections in use", health.connections, health.max_connections);
    if used >= 80 {
        diagnosis.warn("connections", words, "raise max_connections; every instance uses up to 13");
    } else {
        diagnosis.ok("connections", words);
    }
    for holder in health.holders.iter().take(MOST_HOLDERS) {
        let (words, remedy) = describe_holder(holder);
        diagnosis.warn("vacuum", words, remedy);
    }
    if !health.holders.is_empty() {
        return;
    }
    if !health.autovacuum {
        diagnosis.warn("vacuum", "autovacuum is off", "autovacuum = on");
    } else if health.dead_rows > 100_000 && health.dead_rows > 4 * health.live_rows {
        let dead = grouped(health.dead_rows.cast_unsigned());
        diagnosis.warn(
            "vacuum",
            format!("{dead} dead rows among the open tasks"),
            "vacuum comeback.task_open, and see why autovacuum is late",
        );
    } else {
        diagnosis.ok("vacuum", "no long transactions");
    }
}
