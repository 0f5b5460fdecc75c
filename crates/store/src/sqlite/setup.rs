//! Opening a file: the lock, the pragmas, the migrations, the readers, and the checkpoints that keep the log short.

use std::collections::HashMap;
use std::fs::{File, TryLockError};
use std::os::unix::fs::OpenOptionsExt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use comeback_core::{Executor, Lane};
use parking_lot::Mutex;
use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};
use tokio::sync::Semaphore;

use crate::check::created_by;
use crate::dictionary::Dictionary;
use crate::interactive::Scope;
use crate::row::corrupt;
use crate::schema::SchemaState;
use crate::{Background, Running, StoreError, panic_point, sql};

mod embedded {
    refinery::embed_migrations!("migrations/sqlite");
}

/// Below this a bug of SQLite could damage the log when two connections reset it.
const OLDEST_SQLITE: i32 = 3_051_003;

/// A log longer than this is begun anew by the writer once all but a little of it is in the file.
const LONGEST_LOG: u64 = 64 << 20;
/// Pages that the writer copies itself before that, while others wait.
const LITTLE: u64 = 1 << 20;
/// A log longer than this is folded back by the writer, however long that takes.
const LOG_TOO_LONG: u64 = 256 << 20;
/// A log longer than this is worth folding back in passing.
const LOG_WORTH_FOLDING: u64 = 8 << 20;

/// How long reads that are under way may take when the store is closed.
const LAST_READS: Duration = Duration::from_secs(2);
/// A checkpoint that takes ten times as long is stuck.
const CHECKPOINT_PERIOD: Duration = Duration::from_secs(6);

/// How long a lock of another connection is waited for.
const BUSY: Duration = Duration::from_secs(5);

/// Says that a database is ours: a lock on a file beside it, and one on the database itself, which nobody removes to "clean up".
///
/// Both are `flock` locks, which do not meet the `fcntl` locks that SQLite takes on the database. But to close any descriptor of a
/// file gives up all `fcntl` locks of the process on it: drop this after the last connection.
#[derive(Debug)]
pub struct Lock {
    /// The file beside it, which also says when it was opened last (`fence`).
    pub beside: File,
    _database: File,
}

/// Takes the locks of a database. They are gone with the process, however that ends.
pub fn lock(path: &Path) -> Result<Lock, StoreError> {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    let name = PathBuf::from(name);
    let opened = |name: &Path, file: std::io::Result<File>| {
        file.map_err(|error| StoreError::Unavailable(format!("{}: {error}", name.display())))
    };
    let beside = File::options().create(true).truncate(false).read(true).write(true).open(&name);
    let beside = opened(&name, beside)?;
    take(&beside, &name, path)?;
    create(path);
    let database = opened(path, File::options().read(true).open(path))?;
    take(&database, path, path)?;
    Ok(Lock { beside, _database: database })
}

fn take(file: &File, name: &Path, path: &Path) -> Result<(), StoreError> {
    match file.try_lock() {
        Ok(()) => Ok(()),
        Err(TryLockError::WouldBlock) => Err(StoreError::Locked(format!(
            "{} is in use by another comeback process; stop it, or use PostgreSQL to run several",
            path.display()
        ))),
        Err(TryLockError::Error(error)) => Err(StoreError::Unavailable(format!("{}: {error}", name.display()))),
    }
}

/// For its owner alone, and so is the log beside it: tasks carry what their callers know.
fn create(path: &Path) {
    let _ = File::options().write(true).create_new(true).mode(0o600).open(path);
}

pub fn connect(path: Option<&Path>) -> Result<Connection, StoreError> {
    if rusqlite::version_number() < OLDEST_SQLITE {
        return Err(StoreError::Schema(format!("SQLite {} is too old", rusqlite::version())));
    }
    let connection = match path {
        Some(path) => {
            create(path);
            Connection::open(path)?
        }
        None => Connection::open_in_memory()?,
    };
    connection.execute_batch(
        "pragma page_size = 8192;
         pragma auto_vacuum = incremental;
         pragma journal_mode = wal;
         pragma synchronous = full;
         pragma foreign_keys = on;
         pragma temp_store = memory;
         pragma mmap_size = 0;
         pragma cache_size = -32768;
         pragma wal_autocheckpoint = 0;
         pragma journal_size_limit = 67108864;
         pragma cell_size_check = on;",
    )?;
    connection.busy_timeout(BUSY)?;
    keep_plans(&connection)?;
    connection.set_prepared_statement_cache_capacity(128);
    Ok(connection)
}

/// Without this SQLite makes a plan again whenever a bound value could have led to another one.
fn keep_plans(connection: &Connection) -> rusqlite::Result<()> {
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true).map(|_| ())
}

/// Beside whoever writes, and changing nothing.
pub fn connect_to_read(path: &Path) -> Result<Connection, StoreError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(BUSY)?;
    connection.execute_batch("pragma cache_size = -2048; pragma temp_store = memory;")?;
    Ok(connection)
}

pub fn schema(connection: &Connection) -> Result<SchemaState, StoreError> {
    SchemaState::new(schema_version(connection)?, embedded::migrations::runner().get_migrations())
}

/// The tables and indexes of the newest schema.
pub fn created_names() -> Vec<String> {
    created_by(embedded::migrations::runner().get_migrations().iter().filter_map(|it| it.sql()))
}

pub fn migrate(connection: &mut Connection) -> Result<(), StoreError> {
    schema(connection)?;
    embedded::migrations::runner()
        .run(connection)
        .map(|_| ())
        .map_err(|error| StoreError::Schema(format!("the migration failed: {error}")))
}

fn schema_version(connection: &Connection) -> Result<i32, StoreError> {
    let exists: bool = connection.query_row(
        "select exists (select 1 from sqlite_master where name = 'refinery_schema_history')",
        (),
        |row| row.get(0),
    )?;
    if !exists {
        return Ok(0);
    }
    Ok(connection.query_row("select coalesce(max(version), 0) from refinery_schema_history", (), |row| row.get(0))?)
}

/// The lanes, and the rules in force. Policies are read when the first task that uses one is.
pub fn load_dictionary(connection: &Connection, dictionary: &Dictionary) -> Result<(), StoreError> {
    let book = super::rules::load(connection)?;
    let mut namespaces: HashMap<i32, String> = HashMap::new();
    let mut statement = connection.prepare(sql::control::NAMESPACES.sqlite)?;
    let mut rows = statement.query(())?;
    while let Some(row) = rows.next()? {
        namespaces.insert(row.get(0)?, row.get(1)?);
    }
    let mut lanes: Vec<(i32, i32, Lane)> = Vec::new();
    let mut statement =
        connection.prepare("select id, namespace, queue, kind, executor, dependency, shared from lane")?;
    let mut rows = statement.query(())?;
    while let Some(row) = rows.next()? {
        let (namespace, executor): (i32, i16) = (row.get(1)?, row.get(4)?);
        let dependency: String = row.get(5)?;
        let lane = Lane {
            namespace: namespaces.get(&namespace).cloned().ok_or_else(|| corrupt(format!("namespace {namespace}")))?,
            queue: row.get(2)?,
            kind: row.get(3)?,
            executor: Executor::from_code(executor).ok_or_else(|| corrupt(format!("executor {executor}")))?,
            dependency: (!dependency.is_empty()).then_some(dependency),
            shared: row.get::<_, i16>(6)? != 0,
            limits: Vec::new(),
        };
        lanes.push((row.get(0)?, namespace, lane));
    }
    let mut statement = connection.prepare("select id, lane, limits from ruled_lane")?;
    let rows = statement.query_map((), |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
    let limited: Vec<(i32, i32, String)> = rows.collect::<rusqlite::Result<_>>()?;
    dictionary.replace(book.generation, |into| {
        namespaces.iter().for_each(|(id, name)| into.namespace(*id, name));
        lanes.into_iter().for_each(|(id, namespace, lane)| into.lane(id, namespace, lane));
        for (id, base, limits) in &limited {
            into.limited_lane(*id, *base, limits);
        }
    });
    dictionary.set_rules(book);
    Ok(())
}

/// Connections that only read, lent to blocking tasks.
pub struct Readers {
    idle: Arc<Mutex<Vec<Connection>>>,
    permits: Arc<Semaphore>,
    count: usize,
}

impl Readers {
    pub fn open(path: &Path, count: usize) -> Result<Readers, StoreError> {
        let count = count.max(1);
        let mut idle = Vec::with_capacity(count);
        for _ in 0..count {
            let connection = connect_to_read(path)?;
            keep_plans(&connection)?;
            connection.set_prepared_statement_cache_capacity(64);
            idle.push(connection);
        }
        Ok(Readers { idle: Arc::new(Mutex::new(idle)), permits: Arc::new(Semaphore::new(count)), count })
    }

    /// Runs a read on one of them. One that belongs to a scope is interrupted when the scope is over.
    pub async fn run<T: Send + 'static>(
        &self,
        scope: Option<Arc<Scope>>,
        work: impl FnOnce(&Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let gone = || StoreError::Unavailable("the readers have stopped".into());
        let permit = self.permits.clone().acquire_owned().await.map_err(|_| gone())?;
        let idle = self.idle.clone();
        let (running, permits) = (Running::here(), self.permits.clone());
        let task = tokio::task::spawn_blocking(move || {
            let mut connection = idle.lock().pop().ok_or_else(gone)?;
            let read = || {
                Running::on_thread(running, || match scope {
                    None => in_one_snapshot(&connection, work),
                    Some(scope) => interruptible(&mut connection, &scope.limited(), work),
                })
            };
            let result = catch_unwind(AssertUnwindSafe(read));
            if result.is_err() && !connection.is_autocommit() {
                let _ = connection.progress_handler(0, None::<fn() -> bool>);
                let _ = connection.execute_batch("rollback");
            }
            // A reader that panicked is not one reader less.
            if !permits.is_closed() {
                idle.lock().push(connection);
            }
            drop(permit);
            result.unwrap_or_else(|payload| resume_unwind(payload))
        });
        task.await.map_err(|error| StoreError::Unavailable(error.to_string()))?
    }

    /// Closes the connections. Reads that are under way have a moment to come to their end.
    pub async fn close(&self) {
        let all = u32::try_from(self.count).unwrap_or(u32::MAX);
        let _ = tokio::time::timeout(LAST_READS, self.permits.acquire_many(all)).await;
        self.permits.close();
        self.idle.lock().clear();
    }
}

/// Steps of SQLite's virtual machine between two looks at whether a read goes on.
const STEPS: i32 = 1_000;

/// A read that ends as soon as its scope is over.
fn interruptible<T>(
    connection: &mut Connection,
    scope: &Arc<Scope>,
    work: impl FnOnce(&Connection) -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    if scope.is_over() {
        return Err(scope.timed_out());
    }
    let watched = scope.clone();
    connection.progress_handler(STEPS, Some(move || watched.is_over()))?;
    connection.execute_batch("begin")?;
    let result = work(connection);
    connection.progress_handler(0, None::<fn() -> bool>)?;
    connection.execute_batch("rollback")?;
    result.map_err(|error| if scope.is_over() { scope.timed_out() } else { error })
}

/// All statements of one read see the same moment.
fn in_one_snapshot<T>(
    connection: &Connection,
    work: impl FnOnce(&Connection) -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    connection.execute_batch("begin")?;
    panic_point!("sqlite-read");
    let result = work(connection);
    connection.execute_batch("rollback")?;
    result
}

/// Folds the log back into the file, beside the writer while it can and by the writer when it must.
pub struct Checkpoints {
    log: Option<PathBuf>,
    commits: u32,
    passing: Option<std::sync::mpsc::SyncSender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
    found: Arc<LogState>,
}

/// The log as the last checkpoint found it.
#[derive(Default)]
struct LogState {
    bytes: AtomicU64,
    /// How much of it was not in the file yet.
    behind: AtomicU64,
}

impl LogState {
    /// Folds back what can be, in the words of SQLite, and takes note of what was found.
    fn checkpoint(&self, connection: &Connection, mode: &str) {
        let row = connection.query_row(&format!("pragma wal_checkpoint({mode})"), (), |row| {
            Ok((row.get::<_, i64>(1)?, row.get::<_, i64>(2)?))
        });
        if let Ok((frames, folded)) = row {
            let bytes = |frames: i64| u64::try_from(frames).unwrap_or(0) * FRAME;
            self.bytes.store(bytes(frames), Ordering::Relaxed);
            self.behind.store(bytes(frames - folded), Ordering::Relaxed);
        }
    }
}

/// Bytes of a page in the log, with its head.
const FRAME: u64 = 8_192 + 24;

impl Drop for Checkpoints {
    /// Returns when its connection is closed.
    fn drop(&mut self) {
        drop(self.passing.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Checkpoints {
    pub fn new(path: Option<PathBuf>, background: &Background) -> Checkpoints {
        let (mut passing, mut thread) = (None, None);
        let found = Arc::new(LogState::default());
        if let Some(path) = path.clone() {
            let found = found.clone();
            let (sender, receiver) = std::sync::mpsc::sync_channel(1);
            let registered = background.register("sqlite/checkpoint", CHECKPOINT_PERIOD);
            let fold = move || {
                let beat = registered.heartbeat();
                let connection = match Connection::open(&path) {
                    Ok(connection) => connection,
                    Err(error) => {
                        tracing::error!(%error, "the log cannot be folded back beside the writer");
                        return registered.dead();
                    }
                };
                beat.idle();
                while receiver.recv().is_ok() {
                    beat.turn();
                    panic_point!("sqlite-checkpoint");
                    found.checkpoint(&connection, "passive");
                    beat.idle();
                }
            };
            thread = std::thread::Builder::new().name("comeback-checkpoint".into()).spawn(fold).ok();
            passing = thread.as_ref().map(|_| sender);
        }
        let log = path.map(|path| {
            let mut name = path.into_os_string();
            name.push("-wal");
            PathBuf::from(name)
        });
        Checkpoints { log, commits: 0, passing, thread, found }
    }

    pub fn after_commit(&mut self, connection: &Connection) {
        self.commits += 1;
        if self.commits < 32 {
            return;
        }
        self.commits = 0;
        let Some(length) = self.log.as_ref().and_then(|log| log.metadata().ok()).map(|it| it.len()) else { return };
        let (bytes, behind) = (self.found.bytes.load(Ordering::Relaxed), self.found.behind.load(Ordering::Relaxed));
        if (bytes > LONGEST_LOG && behind < LITTLE) || bytes > LOG_TOO_LONG || self.passing.is_none() {
            // A reader that stays, such as a backup, is not waited for: the log grows until it is gone.
            let _ = connection.busy_timeout(Duration::ZERO);
            self.found.checkpoint(connection, "restart");
            let _ = connection.busy_timeout(BUSY);
            if self.found.behind.load(Ordering::Relaxed) == 0 {
                self.found.bytes.store(0, Ordering::Relaxed);
            }
        } else if length > LOG_WORTH_FOLDING
            && let Some(passing) = &self.passing
        {
            let _ = passing.try_send(());
        }
    }
}
