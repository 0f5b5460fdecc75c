//! The one thread that writes: it takes what has gathered, puts it into one transaction, and answers after the commit.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use comeback_core::Record;
use parking_lot::{Mutex, RwLock};
use rusqlite::Connection;
use rusqlite::ffi::ErrorCode;
use tokio::sync::{mpsc, oneshot};
use uuid::Uuid;

use super::{setup, statements};
use crate::background::panic_message;
use crate::dictionary::Dictionary;
use crate::{Background, Heartbeat, StoreError, panic_point};

/// Commands in one transaction at most.
const MAX_BATCH: usize = 256;
/// Commands that may wait; callers beyond that wait themselves.
const MAX_WAITING: usize = 1_024;
/// A transaction that takes ten times as long holds up everybody.
const PERIOD: Duration = Duration::from_secs(3);
/// A transaction that takes longer is logged: everybody who writes has waited for it.
const SLOW_MS: u128 = 1_000;
/// How long the last checkpoint waits for readers.
const LAST_CHECKPOINT: Duration = Duration::from_secs(2);

/// The context of a command: the connection inside the transaction, and what it adds to the feed.
pub struct Tx<'a> {
    pub connection: &'a Connection,
    pub dictionary: &'a Dictionary,
    pub feed: &'a mut FeedBuffer,
}

/// The events of one transaction, by namespace: each becomes one row.
#[derive(Default)]
pub struct FeedBuffer {
    /// When, by the latest command that said so.
    pub at: i64,
    items: Vec<(i32, [u8; 24])>,
}

impl FeedBuffer {
    pub fn push(&mut self, namespace: i32, subject: Uuid, first: u32, last: u32) {
        let mut item = [0; 24];
        item[..16].copy_from_slice(subject.as_bytes());
        item[16..20].copy_from_slice(&first.to_be_bytes());
        item[20..].copy_from_slice(&last.to_be_bytes());
        self.items.push((namespace, item));
    }

    /// Adds the events of a record that the feed does not have yet.
    pub fn push_record(&mut self, namespace: i32, record: &Record, first: u32) {
        let count = u32::try_from(record.events.len()).unwrap_or(0);
        if count > record.carried {
            self.push(namespace, record.subject, first + record.carried, first + count - 1);
        }
    }

    fn flush(&mut self, connection: &Connection) -> rusqlite::Result<()> {
        if self.items.is_empty() {
            return Ok(());
        }
        let mut namespaces: Vec<i32> = self.items.iter().map(|(namespace, _)| *namespace).collect();
        namespaces.sort_unstable();
        namespaces.dedup();
        for namespace in namespaces {
            let bytes: Vec<u8> =
                self.items.iter().filter(|(of, _)| *of == namespace).flat_map(|(_, item)| *item).collect();
            connection.prepare_cached(statements::INSERT_FEED)?.execute((self.at, namespace, bytes))?;
        }
        self.items.clear();
        Ok(())
    }
}

pub trait Command: Send {
    /// Whether it worked; if not, what it did is rolled back and its neighbours go on. It may be asked again.
    fn run(&mut self, tx: &mut Tx<'_>) -> bool;
    fn answer(self: Box<Self>, commit: Result<(), &StoreError>);
}

struct Waiting<F, T> {
    work: F,
    result: Option<Result<T, StoreError>>,
    reply: oneshot::Sender<Result<T, StoreError>>,
}

impl<F, T> Command for Waiting<F, T>
where
    F: FnMut(&mut Tx<'_>) -> Result<T, StoreError> + Send,
    T: Send,
{
    fn run(&mut self, tx: &mut Tx<'_>) -> bool {
        let result = (self.work)(tx);
        let worked = result.is_ok();
        self.result = Some(result);
        worked
    }

    fn answer(self: Box<Self>, commit: Result<(), &StoreError>) {
        let answer = match (commit, self.result) {
            (Ok(()), Some(result)) => result,
            (Err(error), _) => Err(error.clone()),
            (Ok(()), None) => Err(StoreError::Unavailable("the command never ran".into())),
        };
        // A caller that went away no longer cares; what was committed stays.
        let _ = self.reply.send(answer);
    }
}

pub enum Writer {
    Thread { commands: RwLock<Option<mpsc::Sender<Box<dyn Command>>>>, thread: Mutex<Option<JoinHandle<()>>> },
    Inline { state: Box<Mutex<Inline>> },
}

pub struct Inline {
    connection: Connection,
    dictionary: Arc<Dictionary>,
    // After the connection: to close a file gives up the locks that SQLite has on it.
    _lock: Option<setup::Lock>,
}

impl Writer {
    pub fn inline(connection: Connection, dictionary: Arc<Dictionary>, lock: Option<setup::Lock>) -> Writer {
        Writer::Inline { state: Box::new(Mutex::new(Inline { connection, dictionary, _lock: lock })) }
    }

    pub fn spawn(
        connection: Connection,
        dictionary: Arc<Dictionary>,
        path: Option<PathBuf>,
        lock: Option<setup::Lock>,
        background: &Background,
    ) -> Result<Writer, StoreError> {
        let (commands, receiver) = mpsc::channel(MAX_WAITING);
        let registered = background.register("sqlite/writer", PERIOD);
        let checkpoints = setup::Checkpoints::new(path, background);
        let write = move || {
            let ended = write_until_closed(connection, &dictionary, receiver, checkpoints, registered.heartbeat());
            // Held until the last word is written: nobody else may open the file before.
            drop(lock);
            if ended == Ended::Broken {
                registered.dead();
            }
        };
        let thread = std::thread::Builder::new()
            .name("comeback-writer".into())
            .spawn(write)
            .map_err(|error| StoreError::Unavailable(error.to_string()))?;
        Ok(Writer::Thread { commands: RwLock::new(Some(commands)), thread: Mutex::new(Some(thread)) })
    }

    /// Takes no more commands. The thread ends when those that were taken are answered and the log is folded back.
    pub fn close(&self) -> Option<JoinHandle<()>> {
        match self {
            Writer::Inline { .. } => None,
            Writer::Thread { commands, thread } => {
                drop(commands.write().take());
                thread.lock().take()
            }
        }
    }

    pub async fn run<T, F>(&self, work: F) -> Result<T, StoreError>
    where
        F: FnMut(&mut Tx<'_>) -> Result<T, StoreError> + Send + 'static,
        T: Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        let command: Box<dyn Command> = Box::new(Waiting { work, result: None, reply });
        match self {
            Writer::Inline { state } => {
                let mut state = state.lock();
                let Inline { connection, dictionary, .. } = &mut *state;
                let mut commands = vec![command];
                let outcome = transact(connection, dictionary, &mut commands);
                finish(commands, outcome.as_ref());
            }
            Writer::Thread { commands, .. } => {
                let closed = || StoreError::Unavailable("the writer has stopped".into());
                let sender = commands.read().clone().ok_or_else(closed)?;
                sender.send(command).await.map_err(|_| closed())?;
            }
        }
        // Every command is answered, unless its transaction panicked: nobody knows how far it came.
        answer.await.unwrap_or_else(|_| Err(StoreError::Unknown("the transaction broke off".into())))
    }
}

impl Drop for Writer {
    /// Returns when the last word is written and the file is free for another.
    fn drop(&mut self) {
        if let Some(thread) = self.close() {
            let _ = thread.join();
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    InOrder,
    /// Nobody knows what is on disk.
    Broken,
}

fn write_until_closed(
    mut connection: Connection,
    dictionary: &Dictionary,
    mut receiver: mpsc::Receiver<Box<dyn Command>>,
    mut checkpoints: setup::Checkpoints,
    beat: &Heartbeat,
) -> Ended {
    let mut batch = Vec::with_capacity(MAX_BATCH);
    loop {
        beat.idle();
        if receiver.blocking_recv_many(&mut batch, MAX_BATCH) == 0 {
            break;
        }
        beat.turn();
        let (began, commands) = (Instant::now(), batch.len());
        let mut taken = std::mem::take(&mut batch);
        let transacted = catch_unwind(AssertUnwindSafe(|| {
            panic_point!("sqlite-writer-before-transaction");
            let outcome = transact(&mut connection, dictionary, &mut taken);
            panic_point!("sqlite-writer-after-commit");
            finish(taken, outcome.as_ref());
            outcome
        }));
        let outcome = match transacted {
            Ok(outcome) => outcome,
            Err(payload) => {
                let panic = panic_message(&*payload);
                tracing::error!(panic, "a transaction panicked; it is rolled back and the writer goes on");
                if !connection.is_autocommit() {
                    let _ = connection.execute_batch("rollback");
                }
                continue;
            }
        };
        if let Err(error @ StoreError::Unknown(_)) = &outcome {
            // Nobody knows what is on disk now. Going on could acknowledge what is not there (R-I26).
            tracing::error!(%error, "a commit failed with an unknown outcome; no more writes are accepted");
            receiver.close();
            while let Ok(command) = receiver.try_recv() {
                command.answer(Err(error));
            }
            return Ended::Broken;
        }
        let transaction_ms = began.elapsed().as_millis();
        checkpoints.after_commit(&connection);
        let total_ms = began.elapsed().as_millis();
        if total_ms >= SLOW_MS {
            tracing::warn!(commands, transaction_ms, checkpoint_ms = total_ms - transaction_ms, "slow transaction");
        }
    }
    // Whoever copies the file after a clean stop copies everything.
    drop(checkpoints);
    let _ = connection.busy_timeout(LAST_CHECKPOINT);
    let folded = connection.query_row("pragma wal_checkpoint(truncate)", (), |row| row.get::<_, i64>(0));
    if !matches!(folded, Ok(0)) {
        tracing::warn!(outcome = ?folded, "the last checkpoint is not complete; copy the -wal file together with the database");
    }
    Ended::InOrder
}

fn finish(commands: Vec<Box<dyn Command>>, outcome: Result<&(), &StoreError>) {
    for command in commands {
        command.answer(outcome.map(|_| ()));
    }
}

/// One transaction for all. A command that fails takes the others back with it, and they run again with marks between them, so
/// that it is taken back alone: marks cost a copy of every page that is touched, and hardly any command ever fails.
fn transact(
    connection: &mut Connection,
    dictionary: &Dictionary,
    commands: &mut [Box<dyn Command>],
) -> Result<(), StoreError> {
    let mut feed = FeedBuffer::default();
    connection.execute_batch("begin immediate")?;
    let all_worked =
        commands.iter_mut().all(|command| command.run(&mut Tx { connection, dictionary, feed: &mut feed }));
    if all_worked {
        return commit(connection, feed);
    }
    // What found no room may have taken the whole transaction back with it.
    if !connection.is_autocommit() {
        connection.execute_batch("rollback")?;
    }
    if commands.len() == 1 {
        return Ok(());
    }
    let mut feed = FeedBuffer::default();
    connection.execute_batch("begin immediate")?;
    match run_marked(connection, dictionary, commands, &mut feed) {
        Ok(()) => commit(connection, feed),
        Err(error) => {
            // A transaction that stays open would keep every later one from beginning.
            let _ = connection.execute_batch("rollback");
            Err(StoreError::Unavailable(error.to_string()))
        }
    }
}

fn run_marked(
    connection: &Connection,
    dictionary: &Dictionary,
    commands: &mut [Box<dyn Command>],
    feed: &mut FeedBuffer,
) -> rusqlite::Result<()> {
    for command in commands.iter_mut() {
        let mark = feed.items.len();
        connection.prepare_cached("savepoint command")?.execute(())?;
        if !command.run(&mut Tx { connection, dictionary, feed }) {
            feed.items.truncate(mark);
            connection.prepare_cached("rollback to command")?.execute(())?;
        }
        connection.prepare_cached("release command")?.execute(())?;
    }
    Ok(())
}

fn commit(connection: &Connection, mut feed: FeedBuffer) -> Result<(), StoreError> {
    panic_point!("sqlite-writer-before-commit");
    let committed = feed.flush(connection).and_then(|()| connection.execute_batch("commit"));
    if let Err(error) = committed {
        let unknown = connection.is_autocommit();
        let _ = connection.execute_batch("rollback");
        // There was no room or no turn for the commit, so it is not in the log: SQLite has taken it all back.
        let known = matches!(error.sqlite_error_code(), Some(ErrorCode::DiskFull | ErrorCode::DatabaseBusy));
        return Err(match StoreError::from(error) {
            // Still inside the transaction: it was taken back, and nothing of it happened.
            StoreError::Unavailable(what) if known || !unknown => StoreError::Unavailable(what),
            other => StoreError::Unknown(other.to_string()),
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panic_in_a_transaction_fails_its_caller_only() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("panic.db");
        let mut connection = setup::connect(Some(&path)).unwrap();
        setup::migrate(&mut connection).unwrap();
        let background = Background::default();
        let writer = Writer::spawn(connection, Arc::default(), Some(path), None, &background).unwrap();
        let write = "insert into meta (key, value) values ('half', 'done')";
        let broken = writer.run(move |tx| -> Result<(), StoreError> {
            tx.connection.execute(write, ())?;
            panic!("on purpose")
        });
        assert!(matches!(broken.await, Err(StoreError::Unknown(_))));
        let count = |row: &rusqlite::Row<'_>| row.get::<_, i64>(0);
        let half = "select count(*) from meta where key = 'half'";
        let rows = writer.run(move |tx| Ok(tx.connection.query_row(half, (), count)?)).await;
        assert_eq!(rows.unwrap(), 0, "rolled back, and the writer goes on");
        assert_eq!(background.stalled(), []);
    }

    /// F10: the copy of an error that was made by hand told of a database that is not available.
    #[tokio::test]
    async fn a_commit_that_failed_is_told_as_what_it_is() {
        for error in [StoreError::Corrupt("a page".into()), StoreError::Refused("a row".into())] {
            let (reply, answer) = oneshot::channel();
            let work = |_: &mut Tx<'_>| Ok(());
            Box::new(Waiting { work, result: Some(Ok(())), reply }).answer(Err(&error));
            let told = answer.await.unwrap().unwrap_err();
            assert_eq!(format!("{told:?}"), format!("{error:?}"));
        }
    }

    /// R-I26: only an outcome that nobody knows stops the writer.
    #[tokio::test]
    async fn a_full_disk_is_a_known_rollback_and_the_writer_goes_on() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("full.db");
        let mut connection = setup::connect(Some(&path)).unwrap();
        setup::migrate(&mut connection).unwrap();
        let pages: i64 = connection.query_row("pragma page_count", (), |row| row.get(0)).unwrap();
        connection.query_row(&format!("pragma max_page_count = {}", pages + 8), (), |_| Ok(())).unwrap();
        let writer = Writer::spawn(connection, Arc::default(), Some(path), None, &Background::default()).unwrap();
        // What a transaction tells is written last, as a part of its commit.
        let told = |events: u32| {
            writer.run(move |tx| {
                (0..events).for_each(|n| tx.feed.push(1, Uuid::nil(), n, n));
                Ok(())
            })
        };
        let full = told(100_000).await;
        assert!(matches!(full, Err(StoreError::Unavailable(_))), "{full:?}");
        told(1).await.expect("there is room for a little");
        let count = |row: &rusqlite::Row<'_>| row.get::<_, i64>(0);
        let rows = writer.run(move |tx| Ok(tx.connection.query_row("select count(*) from feed", (), count)?));
        assert_eq!(rows.await.unwrap(), 1, "and nothing of the other is there");
    }
}
