//! The number of the newest schema, the same for both databases.

use crate::StoreError;

/// The newest schema this build knows.
pub const SCHEMA_VERSION: i32 = 17;

/// How far a database is behind this build.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SchemaState {
    /// 0 where there is nothing yet.
    pub found: i32,
    /// Migrations that would be run, in order.
    pub pending: Vec<String>,
}

impl SchemaState {
    pub fn new(found: i32, migrations: &[refinery::Migration]) -> Result<SchemaState, StoreError> {
        if found > SCHEMA_VERSION {
            return Err(StoreError::Schema(newer_schema(found)));
        }
        let mut pending: Vec<&refinery::Migration> =
            migrations.iter().filter(|it| i64::from(it.version()) > i64::from(found)).collect();
        // They come in the order of their names, in which 12 is before 2.
        pending.sort_by_key(|it| it.version());
        Ok(SchemaState { found, pending: pending.iter().map(ToString::to_string).collect() })
    }

    /// A check reads what this build writes, and nothing older.
    pub fn must_be_newest(&self) -> Result<(), StoreError> {
        if self.found == SCHEMA_VERSION {
            return Ok(());
        }
        let words = match self.found {
            0 => "there is no schema of comeback in it yet".to_owned(),
            found => format!("it has schema {found}, and this comeback works with {SCHEMA_VERSION}"),
        };
        Err(StoreError::Schema(format!("{words}; `comeback db migrate` brings it up to date")))
    }
}

/// The message when a database was used by a newer build.
pub fn newer_schema(found: i32) -> String {
    format!(
        "this database has schema {found}, and this comeback knows {SCHEMA_VERSION}; it was used by a newer version: \
         upgrade comeback, or restore a backup from before"
    )
}
