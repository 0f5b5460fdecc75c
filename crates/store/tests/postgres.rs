//! The suite on PostgreSQL: every case in a database of its own.

use std::sync::Arc;

use comeback_store::conformance::{self, Case, World, postgres};
use comeback_store::{Place, PostgresOptions, PostgresStore};
use libtest_mimic::{Arguments, Trial};

fn main() {
    let trials = conformance::all()
        .into_iter()
        .map(|case| Trial::test(format!("{}::{}", case.room, case.name), move || run(case)));
    libtest_mimic::run(&Arguments::from_args(), trials.collect()).exit();
}

fn run(case: Case) -> Result<(), libtest_mimic::Failed> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let database = postgres::Database::migrated().await;
        let options =
            PostgresOptions { require_durability: false, warm_up: false, ..PostgresOptions::new(database.url()) };
        let store = PostgresStore::open(&options).await.expect("the store opens");
        (case.run)(World::new(Arc::new(store))).await;
        conformance::holds_together(&Place::Server(options)).await;
        database.drop().await;
    });
    Ok(())
}
