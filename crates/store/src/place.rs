//! Where a database is, as people name it: a file, or a URL of PostgreSQL.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::check::{CheckProgress, CheckReport};
use crate::schema::SchemaState;
use crate::{PostgresOptions, PostgresStore, SqliteOptions, SqliteStore, Store, StoreError, postgres, sqlite};

#[derive(Clone, Debug)]
pub enum Place {
    File(PathBuf),
    Server(PostgresOptions),
}

impl Place {
    pub fn named(text: &str) -> Place {
        let is_url = ["postgres://", "postgresql://"].iter().any(|scheme| text.starts_with(scheme));
        if is_url { Place::Server(PostgresOptions::new(text)) } else { Place::File(text.into()) }
    }

    pub fn file(&self) -> Option<&Path> {
        match self {
            Place::File(path) => Some(path),
            Place::Server(_) => None,
        }
    }

    pub async fn open(&self) -> Result<Arc<dyn Store>, StoreError> {
        Ok(match self {
            Place::File(path) => Arc::new(SqliteStore::open(&SqliteOptions::file(path))?),
            Place::Server(options) => Arc::new(PostgresStore::open(options).await?),
        })
    }

    pub async fn schema(&self) -> Result<SchemaState, StoreError> {
        match self {
            Place::File(path) => SqliteStore::schema(path),
            Place::Server(options) => PostgresStore::schema(options).await,
        }
    }

    /// Whether everything in it holds together. Reads only.
    pub async fn check(&self, progress: &mut (dyn FnMut(CheckProgress) + Send)) -> Result<CheckReport, StoreError> {
        match self {
            Place::File(path) => sqlite::check(path, progress).await,
            Place::Server(options) => postgres::check(options, progress).await,
        }
    }
}

/// Without the password.
impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::File(path) => write!(f, "{}", path.display()),
            Place::Server(options) => {
                let split = options.url.split_once("://").map(|(scheme, rest)| (scheme, rest.rsplit_once('@')));
                let place = match split {
                    Some((scheme, Some((_, place)))) => format!("{scheme}://…@{place}"),
                    _ => options.url.clone(),
                };
                // It may also stand among the parameters.
                let shown: Vec<&str> = place
                    .split_inclusive(['?', '&'])
                    .map(|part| if part.starts_with("password=") { "password=…" } else { part })
                    .collect();
                f.write_str(&shown.concat())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_shown_without_its_password() {
        for (text, shown) in [
            ("./comeback.db", "./comeback.db"),
            ("postgres://localhost/jobs", "postgres://localhost/jobs"),
            ("postgres://me:secret@host:5432/jobs", "postgres://…@host:5432/jobs"),
            ("postgresql://me:p@ss@host/jobs", "postgresql://…@host/jobs"),
            ("postgres://host/jobs?user=me&password=secret", "postgres://host/jobs?user=me&password=…"),
        ] {
            assert_eq!(Place::named(text).to_string(), shown);
        }
    }
}
