//! Backups: made beside a store that is at work, whole, private, and never in place of something else.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use comeback_core::TaskId;
use comeback_store::conformance::{World, holds_together};
use comeback_store::{Place, SqliteOptions, SqliteStore, StoreError, TaskQueries, sqlite};

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime")
}

fn open(path: &Path) -> Arc<SqliteStore> {
    Arc::new(SqliteStore::open(&SqliteOptions::file(path)).expect("opens"))
}

#[test]
fn a_backup_under_load_holds_what_was_acknowledged_before_it() {
    runtime().block_on(async {
        let folder = tempfile::tempdir().expect("a folder");
        let (path, copy) = (folder.path().join("a.db"), folder.path().join("copy.db"));
        let w = World::new(open(&path));
        let stop = Arc::new(AtomicBool::new(false));
        let mut workers = tokio::task::JoinSet::new();
        for _ in 0..4 {
            let (w, stop) = (w.clone(), stop.clone());
            workers.spawn(async move {
                while !stop.load(Ordering::SeqCst) {
                    w.submit_many("a", 5).await;
                    for claimed in w.claim(3).await {
                        w.succeed(&claimed.stored).await;
                    }
                }
            });
        }
        let before = w.submit_many("b", 2_000).await;
        let (from, to) = (path.clone(), copy.clone());
        let copied = tokio::task::spawn_blocking(move || {
            let mut told = Vec::new();
            let bytes = sqlite::backup(&from, &to, &mut |progress| told.push((progress.pages, progress.total)));
            (bytes.expect("copied"), told)
        });
        let (bytes, told) = copied.await.expect("it ends");
        stop.store(true, Ordering::SeqCst);
        workers.join_all().await;
        assert_eq!(bytes, copy.metadata().expect("a file").len());
        assert_eq!(told.last().map(|(pages, total)| (*pages == *total, *total * 8_192)), Some((true, bytes)));
        assert_eq!(copy.metadata().expect("a file").permissions().mode() & 0o777, 0o600);
        let left: Vec<_> =
            std::fs::read_dir(folder.path()).expect("the folder").flatten().map(|it| it.file_name()).collect();
        assert!(!left.iter().any(|name| name.to_string_lossy().contains("partial")), "{left:?}");
        holds_together(&Place::File(copy.clone())).await;
        let restored = open(&copy);
        let found: Vec<TaskId> =
            restored.load(&before).await.expect("loads").into_iter().flatten().map(|it| it.task.id).collect();
        assert_eq!(found, before);
        // And it goes on from there.
        let w = World::new(restored);
        w.pass(1_000_000);
        w.submit_many("c", 1).await;
        assert!(!w.claim(1).await.is_empty());
        holds_together(&Place::File(copy)).await;
    });
}

#[test]
fn a_backup_replaces_nothing_and_leaves_nothing_by_halves() {
    let folder = tempfile::tempdir().expect("a folder");
    let (path, copy) = (folder.path().join("a.db"), folder.path().join("copy.db"));
    drop(open(&path));
    std::fs::write(&copy, "precious").expect("written");
    let error = sqlite::backup(&path, &copy, &mut |_| ()).expect_err("refused");
    assert!(error.to_string().contains("exists already"), "{error}");
    assert_eq!(std::fs::read_to_string(&copy).expect("there"), "precious");
    let letter = folder.path().join("letter.db");
    std::fs::write(&letter, "this is a letter, not a database. ".repeat(500)).expect("written");
    let other = folder.path().join("other.db");
    assert!(matches!(sqlite::backup(&letter, &other, &mut |_| ()), Err(StoreError::Corrupt(_))));
    assert!(!other.exists() && !folder.path().join("other.db.partial").exists());
    std::fs::write(folder.path().join("other.db.partial"), "half").expect("written");
    let error = sqlite::backup(&path, &other, &mut |_| ()).expect_err("refused");
    assert!(error.to_string().contains("another backup runs"), "{error}");
}

/// Whoever reads for long, as a backup and a check do, holds no write up.
#[test]
fn a_long_reader_does_not_hold_the_writer_up() {
    runtime().block_on(async {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a.db");
        let w = World::new(open(&path));
        w.submit_many("a", 1).await;
        let reader = rusqlite::Connection::open(&path).expect("opens");
        reader.execute_batch("begin").expect("begins");
        let _: i64 = reader.query_row("select count(*) from task", (), |row| row.get(0)).expect("reads");
        let payload: Arc<str> = format!("\"{}\"", "x".repeat(250_000)).into();
        let mut slowest = Duration::ZERO;
        for _ in 0..600 {
            let mut new = w.new_task("large");
            new.body.payload = Some(payload.clone());
            let begun = Instant::now();
            w.submit(vec![new]).await;
            slowest = slowest.max(begun.elapsed());
        }
        let log = folder.path().join("a.db-wal").metadata().expect("the log").len();
        assert!(log > 100 << 20, "the log was not long enough to matter: {log}");
        assert!(slowest < Duration::from_secs(4), "a write took {slowest:?}");
    });
}
