//! `db`: migrate, check, fence and back up a database, without a server.

mod backup;
mod check;
pub mod progress;

use comeback_engine::store::{Place, SCHEMA_VERSION, begin_epoch};
use serde_json::json;

use super::broken;
use crate::args::DbCommand;
use crate::error::{CliError, code};
use crate::output::{Output, View};

pub async fn run(out: &Output, command: DbCommand) -> Result<u8, CliError> {
    match command {
        DbCommand::Migrate { at, dry_run } => migrate(out, &Place::named(&at.db), dry_run).await,
        DbCommand::Check { at } => check::run(out, &existing(&at.db)?).await,
        DbCommand::Fence { at } => fence(out, &existing(&at.db)?).await,
        DbCommand::Backup { at, to } => backup::run(out, &existing(&at.db)?, &to).await,
    }
}

/// A database that exists: a missing file is an error, not a new database.
pub fn existing(db: &str) -> Result<Place, CliError> {
    let place = Place::named(db);
    match place.file() {
        Some(path) if !path.exists() => Err(CliError::new(code::NOT_FOUND, format!("there is no database {place}"))
            .why("no such file")
            .remedy("--db FILE, or --db postgres://…")),
        _ => Ok(place),
    }
}

/// Invalidates all leases: running tasks are retried as lost, as after a crash of their worker.
async fn fence(out: &Output, place: &Place) -> Result<u8, CliError> {
    let wrong = |error| broken(place, &error);
    let store = place.open().await.map_err(wrong)?;
    let epoch = begin_epoch(&*store).await.map_err(wrong)?;
    let mut view = View::new(json!({"db": place.to_string(), "epoch": epoch}));
    view.line(format!("{place}: all lease tokens issued so far are invalid"));
    view.print(out)
}

async fn migrate(out: &Output, place: &Place, dry_run: bool) -> Result<u8, CliError> {
    let wrong = |error| broken(place, &error);
    let before = place.schema().await.map_err(wrong)?;
    if !dry_run {
        drop(place.open().await.map_err(wrong)?);
    }
    let mut view = View::new(json!({
        "db": place.to_string(), "from": before.found, "to": SCHEMA_VERSION, "migrations": before.pending,
        "done": !dry_run,
    }));
    let from = before.found;
    view.line(match (before.pending.is_empty(), dry_run) {
        (true, _) => format!("{place}: schema {from} is current; nothing to do"),
        (false, true) => format!("{place}: would migrate from schema {from} to {SCHEMA_VERSION}"),
        (false, false) => format!("{place}: migrated from schema {from} to {SCHEMA_VERSION}"),
    });
    for name in &before.pending {
        view.line(format!("  {name}"));
    }
    view.print(out)
}
