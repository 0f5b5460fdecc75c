//! The suite on SQLite: on a file with its writer thread, and in memory on the caller's own thread.

use std::sync::Arc;

use comeback_store::conformance::{self, Case, World};
use comeback_store::{Place, SqliteOptions, SqliteStore};
use libtest_mimic::{Arguments, Trial};

fn main() {
    let trials = conformance::all().into_iter().flat_map(|case| {
        [
            Trial::test(format!("file::{}::{}", case.room, case.name), move || on_file(case)),
            Trial::test(format!("memory::{}::{}", case.room, case.name), move || in_memory(case)),
        ]
    });
    libtest_mimic::run(&Arguments::from_args(), trials.collect()).exit();
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime")
}

fn on_file(case: Case) -> Result<(), libtest_mimic::Failed> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("test.db");
    let store = SqliteStore::open(&SqliteOptions::file(&path))?;
    runtime().block_on(async {
        (case.run)(World::new(Arc::new(store))).await;
        conformance::holds_together(&Place::File(path)).await;
    });
    Ok(())
}

fn in_memory(case: Case) -> Result<(), libtest_mimic::Failed> {
    let store = SqliteStore::open(&SqliteOptions::in_memory())?;
    runtime().block_on((case.run)(World::new(Arc::new(store))));
    Ok(())
}
