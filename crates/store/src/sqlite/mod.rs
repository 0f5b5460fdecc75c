//! SQLite: one file, one writer, and readers that never wait for it.
//!
//! Every write of a moment goes into one transaction of one thread, so nobody pays for a flush alone. An answer is given
//! after the commit and never before. There is one process per file.

mod accounts;
mod apply;
mod audit;
mod backup;
mod check;
mod claim;
mod control;
mod counts;
mod dependencies;
mod describe;
mod documents;
mod due;
mod error_groups;
mod errors;
mod executions;
mod feed;
mod fence;
mod heartbeat;
mod instances;
mod lanes;
mod list;
mod operations;
mod payloads;
mod promote;
mod queries;
mod resources;
mod retention;
mod rules;
mod secrets;
mod setup;
mod shared;
mod statements;
mod stats;
mod submit;
mod tasks;
mod writer;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rusqlite::Connection;
use writer::Writer;

use crate::dictionary::Dictionary;
use crate::forget::UnusedCandidates;
use crate::interactive::{Scope, Searches};
use crate::schema::SchemaState;
use crate::{Background, StoreError};

pub use backup::{BackupProgress, backup};
pub use check::check;

/// How a SQLite store is opened.
#[derive(Clone, Debug)]
pub struct SqliteOptions {
    /// The file; none for a store in memory.
    pub path: Option<PathBuf>,
    /// Connections that the engine reads with.
    pub readers: usize,
    /// Connections that interactive reads have for themselves. All but one of them may search.
    pub interactive_readers: usize,
    /// Runs every command on the caller's own thread, for simulations that must be repeatable.
    pub inline: bool,
}

impl SqliteOptions {
    /// A file, with the usual number of readers.
    pub fn file(path: impl AsRef<Path>) -> SqliteOptions {
        SqliteOptions { path: Some(path.as_ref().to_owned()), readers: 3, interactive_readers: 3, inline: false }
    }

    /// A store that lives in memory and works on the caller's thread.
    pub fn in_memory() -> SqliteOptions {
        SqliteOptions { path: None, readers: 0, interactive_readers: 0, inline: true }
    }
}

/// A store in one SQLite file.
pub struct SqliteStore {
    // The readers first: the last connection that is closed folds the log back, and a reader cannot.
    readers: Option<setup::Readers>,
    interactive_readers: Option<setup::Readers>,
    writer: Writer,
    background: Background,
    searches: Arc<Searches>,
    dictionary: Arc<Dictionary>,
    /// Held while new lanes and policies are counted and given their numbers.
    learning: tokio::sync::Mutex<()>,
    suspects: UnusedCandidates,
    wakes: tokio::sync::watch::Sender<u64>,
    /// Present where there is a file.
    fence: Option<fence::Fence>,
    /// Locked while somebody looks what earlier processes have left; and how many names are held.
    naming: tokio::sync::Mutex<()>,
    named: Arc<std::sync::atomic::AtomicUsize>,
}

impl SqliteStore {
    /// Locks the file, migrates it and starts the writer.
    pub fn open(options: &SqliteOptions) -> Result<SqliteStore, StoreError> {
        let lock = options.path.as_deref().map(setup::lock).transpose()?;
        let mut connection = setup::connect(options.path.as_deref())?;
        setup::migrate(&mut connection)?;
        let fence = lock.as_ref().map(|lock| fence::Fence::open(&lock.beside, &mut connection)).transpose()?;
        let dictionary = Arc::new(Dictionary::default());
        setup::load_dictionary(&connection, &dictionary)?;
        let readers = |count: usize| match &options.path {
            Some(path) if !options.inline => setup::Readers::open(path, count).map(Some),
            _ => Ok(None),
        };
        let (readers, interactive_readers) = (readers(options.readers)?, readers(options.interactive_readers)?);
        let searches = Searches::new(options.interactive_readers.saturating_sub(1));
        let background = Background::default();
        let writer = if options.inline {
            Writer::inline(connection, dictionary.clone(), lock)
        } else {
            Writer::spawn(connection, dictionary.clone(), options.path.clone(), lock, &background)?
        };
        let (wakes, _) = tokio::sync::watch::channel(0);
        let (learning, suspects) = (tokio::sync::Mutex::new(()), UnusedCandidates::default());
        Ok(SqliteStore {
            readers,
            interactive_readers,
            writer,
            background,
            searches,
            dictionary,
            learning,
            suspects,
            wakes,
            fence,
            naming: tokio::sync::Mutex::new(()),
            named: Arc::default(),
        })
    }

    /// How far a file is behind this build; one that is not there has nothing yet.
    pub fn schema(path: &Path) -> Result<SchemaState, StoreError> {
        if !path.exists() {
            return setup::schema(&Connection::open_in_memory()?);
        }
        setup::schema(&setup::connect_to_read(path)?)
    }

    /// Runs a read on a reader connection, or on the writer's where there is none. Interactive reads have their own.
    async fn read<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection, &Dictionary) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let dictionary = self.dictionary.clone();
        let scope = Scope::current();
        let readers = if scope.is_some() { &self.interactive_readers } else { &self.readers };
        match readers {
            Some(readers) => readers.run(scope, move |connection| work(connection, &dictionary)).await,
            None => {
                let mut work = Some(work);
                let again = || StoreError::Unavailable("a read runs once".into());
                self.writer
                    .run(move |tx| work.take().ok_or_else(again).and_then(|work| work(tx.connection, &dictionary)))
                    .await
            }
        }
    }
}

impl SqliteStore {
    /// A read that may have to look at many rows.
    async fn search<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection, &Dictionary) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.searches.run(self.read(work)).await
    }
}
