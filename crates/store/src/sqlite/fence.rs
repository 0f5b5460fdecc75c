//! Detects that the file was restored. The lock file beside the database remembers how often the database was opened and how far its
//! feed had come. A copy that is put in its place is behind that, or finds no lock file of its own.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::UNIX_EPOCH;

use parking_lot::Mutex;
use rusqlite::{Connection, OptionalExtension};

use crate::epoch::{COPIED, EPOCH, HOME, fresh};
use crate::{StoreError, sql};

/// The contents of the lock file.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Mark {
    /// Named anew whenever an epoch begins; the database has the same.
    home: String,
    /// How often the database was opened.
    opened: u64,
    /// The last row of the feed.
    fed: u64,
    /// When the lock file was made, as the file system knows it: a copy of the whole folder has another time.
    born: u128,
}

const MAGIC: &str = "comeback-fence-1";
/// Every mark is as long, so that a shorter one leaves nothing of a longer one behind it.
const LENGTH: usize = 160;

impl Mark {
    fn read(file: &File) -> Option<Mark> {
        let mut bytes = [0; LENGTH];
        file.read_exact_at(&mut bytes, 0).ok()?;
        let text = std::str::from_utf8(&bytes).ok()?;
        let mut words = text.split_whitespace();
        (words.next()? == MAGIC).then_some(())?;
        Some(Mark {
            home: words.next()?.to_owned(),
            opened: words.next()?.parse().ok()?,
            fed: words.next()?.parse().ok()?,
            born: words.next()?.parse().ok()?,
        })
    }

    fn write(&self, file: &File) -> std::io::Result<()> {
        let Mark { home, opened, fed, born } = self;
        let text = format!("{MAGIC} {home} {opened} {fed} {born}");
        file.write_all_at(format!("{text:<width$}\n", width = LENGTH - 1).as_bytes(), 0)
    }
}

/// When a file was made; 0 where the file system does not know.
fn born(file: &File) -> u128 {
    let made = file.metadata().and_then(|about| about.created()).ok();
    made.and_then(|at| at.duration_since(UNIX_EPOCH).ok()).map_or(0, |since| since.as_nanos())
}

/// Keeps the mark of an open database.
pub struct Fence {
    file: File,
    mark: Mutex<Mark>,
}

impl Fence {
    /// Compares the database with its lock file, and begins a new epoch where it was restored.
    pub fn open(lock: &File, connection: &mut Connection) -> Result<Fence, StoreError> {
        let wrong = |error: std::io::Error| StoreError::Unavailable(format!("the lock file: {error}"));
        let file = lock.try_clone().map_err(wrong)?;
        let (found, born) = (Mark::read(&file), born(&file));
        let tx = connection.transaction()?;
        let stored = meta(&tx, HOME)?;
        let known = stored.as_deref().and_then(|text| {
            let (home, opened) = text.split_once(' ')?;
            Some((home.to_owned(), opened.parse::<u64>().ok()?))
        });
        let fed = fed(&tx)?;
        let is_restored = meta(&tx, COPIED)?.is_some()
            || match (&known, &found) {
                // It was never opened by a version that knows of this, so nothing can be said.
                (None, _) => false,
                (Some(_), None) => true,
                (Some((home, opened)), Some(mark)) => {
                    *home != mark.home || *opened < mark.opened || fed < mark.fed || mark.born != born
                }
            };
        let (home, opened) = match known {
            Some((home, opened)) if !is_restored => (home, opened + 1),
            _ => (fresh(), 1),
        };
        if is_restored {
            put_meta(&tx, EPOCH, &fresh())?;
            tx.execute("delete from meta where key = ?1", [COPIED])?;
            tracing::warn!("the database was restored or copied: lease tokens from before are refused");
        }
        put_meta(&tx, HOME, &format!("{home} {opened}"))?;
        tx.commit()?;
        // After the commit: a database that is ahead of its mark is none that was restored.
        let mark = Mark { home, opened, fed, born };
        mark.write(&file).map_err(wrong)?;
        Ok(Fence { file, mark: Mutex::new(mark) })
    }

    /// Remembers how far the feed has come.
    pub fn note(&self, fed: u64) {
        let mut mark = self.mark.lock();
        if mark.fed < fed {
            mark.fed = fed;
            if let Err(error) = mark.write(&self.file) {
                tracing::warn!(%error, "the lock file cannot be written: a restore may go unnoticed");
            }
        }
    }
}

/// The epoch, and the number of the last row that the feed ever had.
pub fn epoch(connection: &Connection) -> Result<(String, u64), StoreError> {
    Ok((meta(connection, EPOCH)?.unwrap_or_default(), fed(connection)?))
}

fn fed(connection: &Connection) -> Result<u64, StoreError> {
    let mut statement = connection.prepare_cached("select seq from sqlite_sequence where name = 'feed'")?;
    Ok(statement.query_row((), |row| row.get::<_, i64>(0)).optional()?.unwrap_or(0).cast_unsigned())
}

fn meta(connection: &Connection, key: &str) -> Result<Option<String>, StoreError> {
    let mut statement = connection.prepare_cached(sql::control::META.sqlite)?;
    Ok(statement.query_row([key], |row| row.get(0)).optional()?)
}

fn put_meta(connection: &Connection, key: &str, value: &str) -> Result<(), StoreError> {
    let sql = sql::control::PUT_META.sqlite;
    connection.execute(sql, (key, value))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::backup::backup;
    use super::super::{SqliteOptions, SqliteStore};
    use crate::conformance::World;
    use crate::{EventLog, begin_epoch};
    use std::sync::Arc;

    fn open(path: &Path) -> Arc<SqliteStore> {
        Arc::new(SqliteStore::open(&SqliteOptions::file(path)).expect("opens"))
    }

    async fn epoch(path: &Path) -> String {
        open(path).epoch().await.expect("an epoch")
    }

    /// The whole of it in one file, as it is now.
    fn copy(from: &Path, to: &Path) {
        let raw = rusqlite::Connection::open(from).expect("opens");
        raw.execute("vacuum into ?1", [to.to_string_lossy()]).expect("copied");
    }

    #[tokio::test]
    async fn an_epoch_lasts_until_the_file_goes_back_in_time() {
        let folder = tempfile::tempdir().expect("a folder");
        let (path, old) = (folder.path().join("a.db"), folder.path().join("old.db"));
        for _ in 0..3 {
            assert_eq!(epoch(&path).await, "", "it is opened again and again");
        }
        copy(&path, &old);
        let elsewhere = epoch(&old).await;
        assert_ne!(elsewhere, "", "a copy in another place");
        assert_eq!(epoch(&old).await, elsewhere, "which goes on there");
        let old = folder.path().join("older.db");
        copy(&path, &old);
        assert_eq!(epoch(&path).await, "");
        let restore = || {
            for end in ["-wal", "-shm"] {
                let _ = std::fs::remove_file(folder.path().join(format!("a.db{end}")));
            }
            std::fs::copy(&old, &path).expect("restored");
        };
        restore();
        let first = epoch(&path).await;
        assert_ne!(first, "", "a copy in its own place");
        restore();
        let second = epoch(&path).await;
        assert!(second != first && !second.is_empty(), "the same copy once more");
        assert_eq!(epoch(&path).await, second);
        let by_hand = begin_epoch(&*open(&path)).await.expect("an epoch");
        assert_eq!(epoch(&path).await, by_hand);
        assert_ne!(by_hand, second);
    }

    /// Also one that is as new as the file itself.
    #[tokio::test]
    async fn a_backup_begins_a_new_epoch() {
        let folder = tempfile::tempdir().expect("a folder");
        let (path, copy) = (folder.path().join("a.db"), folder.path().join("copy.db"));
        let store = open(&path);
        World::new(store.clone()).submit_many("a", 1).await;
        backup(&path, &copy, &mut |_| ()).expect("a backup");
        let before = store.epoch().await.expect("an epoch");
        drop(store);
        for end in ["-wal", "-shm"] {
            let _ = std::fs::remove_file(folder.path().join(format!("a.db{end}")));
        }
        std::fs::copy(&copy, &path).expect("restored");
        let restored = epoch(&path).await;
        assert_ne!(restored, before);
        assert_eq!(epoch(&path).await, restored);
    }

    /// Leases since it was opened are behind the mark as soon as the server has looked.
    #[tokio::test]
    async fn a_copy_that_was_made_while_it_was_open_is_detected() {
        let folder = tempfile::tempdir().expect("a folder");
        let (path, copy) = (folder.path().join("a.db"), folder.path().join("copy.db"));
        let store = open(&path);
        let w = World::new(store.clone());
        w.submit_many("a", 1).await;
        super::tests::copy(&path, &copy);
        w.claim(1).await;
        let before = store.epoch().await.expect("an epoch");
        drop((w, store));
        for end in ["-wal", "-shm"] {
            let _ = std::fs::remove_file(folder.path().join(format!("a.db{end}")));
        }
        std::fs::copy(&copy, &path).expect("restored");
        assert_ne!(epoch(&path).await, before);
    }
}
