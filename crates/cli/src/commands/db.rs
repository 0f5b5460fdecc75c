//! The database itself, without a server: its schema, whether it holds together, and copies of it.

mod backup;
mod check;
pub mod progress;

use comeback_engine::store::{Place, SCHEMA_VERSION, begin_epoch};
use serde_json::json;

use super::broken;
use crate::args::DbCommand;
use crate::failure::{Failure, code};
use crate::output::{Output, View};

pub async fn run(out: &Output, command: DbCommand) -> Result<u8, Failure> {
    match command {
        DbCommand::Migrate { at, dry_run } => migrate(out, &Place::named(&at.db), dry_run).await,
        DbCommand::Check { at } => check::run(out, &existing(&at.db)?).await,
        DbCommand::Fence { at } => fence(out, &existing(&at.db)?).await,
        DbCommand::Backup { at, to } => backup::run(out, &existing(&at.db)?, &to).await,
    }
}

/// A file must be there; nobody means an empty one.
fn existing(db: &str) -> Result<Place, Failure> {
    let place = Place::named(db);
    match place.file() {
        Some(path) if !path.exists() => Err(Failure::new(code::NOT_FOUND, format!("there is no database {place}"))
            .why("no such file")
            .remedy("name it: --db FILE, or --db postgres://…")),
        _ => Ok(place),
    }
}

/// What runs now loses its lease and is retried as lost, as after a worker's crash.
async fn fence(out: &Output, place: &Place) -> Result<u8, Failure> {
    let wrong = |error| broken(place, &error);
    let store = place.open().await.map_err(wrong)?;
    let epoch = begin_epoch(&*store).await.map_err(wrong)?;
    let mut view = View::new(json!({"db": place.to_string(), "epoch": epoch}));
    view.line(format!("{place}: lease tokens from before are refused from now on"));
    view.print(out)
}

async fn migrate(out: &Output, place: &Place, dry_run: bool) -> Result<u8, Failure> {
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
        (true, _) => format!("{place}: schema {from} is the newest; nothing to do"),
        (false, true) => format!("{place}: would go from schema {from} to {SCHEMA_VERSION}"),
        (false, false) => format!("{place}: went from schema {from} to {SCHEMA_VERSION}"),
    });
    for name in &before.pending {
        view.line(format!("  {name}"));
    }
    view.print(out)
}
