//! The number of the newest schema, the same for both databases.

/// The newest schema this build knows.
pub const SCHEMA_VERSION: i32 = 1;

/// What to say when a database was used by a newer build.
pub fn newer_schema(found: i32) -> String {
    format!(
        "this database has schema {found}, and this comeback knows {SCHEMA_VERSION}; it was used by a newer version: \
         upgrade comeback, or restore a backup from before"
    )
}
