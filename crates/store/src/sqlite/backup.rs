//! A copy of a file while it is in use: one snapshot, page by page, looked through before it gets its name.

use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rusqlite::Connection;
use rusqlite::backup::{Backup, StepResult};

use super::setup;
use crate::StoreError;
use crate::epoch::COPIED;

/// Pages copied between two looks at the progress.
const PAGES: i32 = 2_048;

#[derive(Clone, Copy, Debug)]
pub struct BackupProgress {
    pub pages: u64,
    pub total: u64,
}

/// Copies `from` to `to`, which must not exist. It works under another name until the copy is whole and on disk, so what has
/// the name is a backup. Returns its size in bytes.
pub fn backup(from: &Path, to: &Path, progress: &mut dyn FnMut(BackupProgress)) -> Result<u64, StoreError> {
    if to.exists() {
        return Err(StoreError::Refused(format!("{} exists already", to.display())));
    }
    let partial = partial(to);
    let unfinished = Unfinished::create(&partial)?;
    copy(from, &partial, progress)?;
    let file = File::open(&partial).map_err(|error| told(&partial, &error))?;
    file.sync_all().map_err(|error| told(&partial, &error))?;
    // Unlike a rename, a link never replaces what is there.
    std::fs::hard_link(&partial, to).map_err(|error| told(to, &error))?;
    drop(unfinished);
    let folder = to.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(|error| told(folder, &error))?;
    Ok(file.metadata().map_or(0, |it| it.len()))
}

fn partial(to: &Path) -> PathBuf {
    let mut name = to.as_os_str().to_owned();
    name.push(".partial");
    name.into()
}

fn told(path: &Path, error: &std::io::Error) -> StoreError {
    StoreError::Unavailable(format!("{}: {error}", path.display()))
}

/// A file that is gone with this, unless it has got another name meanwhile.
struct Unfinished(PathBuf);

impl Unfinished {
    /// For its owner alone: it holds what the database holds.
    fn create(path: &Path) -> Result<Unfinished, StoreError> {
        match OpenOptions::new().write(true).create_new(true).mode(0o600).open(path) {
            Ok(_) => Ok(Unfinished(path.to_owned())),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                let words = format!("{} exists: another backup runs, or was broken off", path.display());
                Err(StoreError::Refused(words))
            }
            Err(error) => Err(told(path, &error)),
        }
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A process that opens the copy begins a new epoch: its leases are those of another moment.
fn mark_as_copy(target: &Connection) -> Result<(), StoreError> {
    let has_meta = "select exists (select 1 from sqlite_master where type = 'table' and name = 'meta')";
    if target.query_row(has_meta, (), |row| row.get(0))? {
        target.execute("insert into meta (key, value) values (?1, '1') on conflict do nothing", [COPIED])?;
    }
    Ok(())
}

fn copy(from: &Path, to: &Path, progress: &mut dyn FnMut(BackupProgress)) -> Result<(), StoreError> {
    let source = setup::connect_to_read(from)?;
    // A snapshot that stays: without it the copy would begin again with every commit of a server beside it.
    source.execute_batch("begin; select count(*) from sqlite_master")?;
    let mut target = Connection::open(to)?;
    {
        let backup = Backup::new(&source, &mut target)?;
        loop {
            let step = backup.step(PAGES)?;
            let at = backup.progress();
            let (total, left) = (u64::try_from(at.pagecount).unwrap_or(0), u64::try_from(at.remaining).unwrap_or(0));
            progress(BackupProgress { pages: total - left, total });
            match step {
                StepResult::Done => break,
                StepResult::More => {}
                _ => return Err(StoreError::Unavailable(format!("{} is locked", from.display()))),
            }
        }
    }
    drop(source);
    // One file that can be carried away; whoever opens it next turns its log on again.
    target.query_row("pragma journal_mode = delete", (), |_| Ok(()))?;
    mark_as_copy(&target)?;
    let verdict: String = target.query_row("pragma integrity_check(1)", (), |row| row.get(0))?;
    if verdict != "ok" {
        return Err(StoreError::Corrupt(format!("the copy is not whole: {verdict}")));
    }
    target.close().map_err(|(_, error)| StoreError::from(error))
}
