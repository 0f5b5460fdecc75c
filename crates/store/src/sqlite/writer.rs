//! The one thread that writes: it takes what has gathered, puts it into one transaction, and answers after the commit.

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;

use comeback_core::Record;
use parking_lot::Mutex;
use rusqlite::Connection;
use rusqlite::ffi::ErrorCode;
use tokio::sync::{mpsc, oneshot};
use uuid::Uuid;

use super::{setup, statements};
use crate::StoreError;
use crate::dictionary::Dictionary;

/// Commands in one transaction at most.
const MAX_BATCH: usize = 256;
/// Commands that may wait; callers beyond that wait themselves.
const MAX_WAITING: usize = 1_024;

/// What a command sees while it runs: the connection inside the transaction, and what it adds to the feed.
pub struct Tx<'a> {
    pub connection: &'a Connection,
    pub dictionary: &'a Dictionary,
    pub feed: &'a mut FeedBuffer,
}

/// What happened in one transaction, by namespace: it becomes one row each.
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

    /// What a record tells that was not told before.
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
            (Err(error), _) => Err(copy_of(error)),
            (Ok(()), None) => Err(StoreError::Unavailable("the command never ran".into())),
        };
        // A caller that went away no longer cares; what was committed stays.
        let _ = self.reply.send(answer);
    }
}

fn copy_of(error: &StoreError) -> StoreError {
    match error {
        StoreError::Unknown(what) => StoreError::Unknown(what.clone()),
        other => StoreError::Unavailable(other.to_string()),
    }
}

pub enum Writer {
    Thread { commands: Option<mpsc::Sender<Box<dyn Command>>>, thread: Option<JoinHandle<()>> },
    Inline { state: Box<Mutex<Inline>> },
}

pub struct Inline {
    connection: Connection,
    dictionary: Arc<Dictionary>,
    _lock: Option<File>,
}

impl Writer {
    pub fn inline(connection: Connection, dictionary: Arc<Dictionary>, lock: Option<File>) -> Writer {
        Writer::Inline { state: Box::new(Mutex::new(Inline { connection, dictionary, _lock: lock })) }
    }

    pub fn spawn(
        connection: Connection,
        dictionary: Arc<Dictionary>,
        path: Option<PathBuf>,
        lock: Option<File>,
    ) -> Result<Writer, StoreError> {
        let (commands, receiver) = mpsc::channel(MAX_WAITING);
        let write = move || {
            write_until_closed(connection, &dictionary, receiver, path);
            // Held until the last word is written: nobody else may open the file before.
            drop(lock);
        };
        let thread = std::thread::Builder::new()
            .name("comeback-writer".into())
            .spawn(write)
            .map_err(|error| StoreError::Unavailable(error.to_string()))?;
        Ok(Writer::Thread { commands: Some(commands), thread: Some(thread) })
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
                let commands = commands.as_ref().ok_or_else(closed)?;
                commands.send(command).await.map_err(|_| closed())?;
            }
        }
        answer.await.unwrap_or_else(|_| Err(StoreError::Unavailable("the writer has stopped".into())))
    }
}

impl Drop for Writer {
    /// Returns when the last word is written and the file is free for another.
    fn drop(&mut self) {
        if let Writer::Thread { commands, thread } = self {
            drop(commands.take());
            if let Some(thread) = thread.take() {
                let _ = thread.join();
            }
        }
    }
}

fn write_until_closed(
    mut connection: Connection,
    dictionary: &Dictionary,
    mut receiver: mpsc::Receiver<Box<dyn Command>>,
    path: Option<PathBuf>,
) {
    let mut checkpoints = setup::Checkpoints::new(path);
    let mut batch = Vec::with_capacity(MAX_BATCH);
    while receiver.blocking_recv_many(&mut batch, MAX_BATCH) > 0 {
        let outcome = transact(&mut connection, dictionary, &mut batch);
        let broken = matches!(outcome, Err(StoreError::Unknown(_)));
        finish(std::mem::take(&mut batch), outcome.as_ref());
        if broken {
            // Nobody knows what is on disk now. Going on could acknowledge what is not there (R-I26).
            tracing::error!("a commit failed in a way that leaves its outcome unknown; no more writes are accepted");
            receiver.close();
            while let Ok(command) = receiver.try_recv() {
                command.answer(outcome.as_ref().map(|_| ()));
            }
            return;
        }
        checkpoints.after_commit(&connection);
    }
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

    /// R-I26: only an outcome that nobody knows stops the writer.
    #[tokio::test]
    async fn a_full_disk_is_a_known_rollback_and_the_writer_goes_on() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("full.db");
        let mut connection = setup::connect(Some(&path)).unwrap();
        setup::migrate(&mut connection).unwrap();
        let pages: i64 = connection.query_row("pragma page_count", (), |row| row.get(0)).unwrap();
        connection.query_row(&format!("pragma max_page_count = {}", pages + 8), (), |_| Ok(())).unwrap();
        let writer = Writer::spawn(connection, Arc::default(), Some(path), None).unwrap();
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
