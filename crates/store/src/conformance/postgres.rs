//! Databases for tests, made in the cluster that `scripts/with-postgres` started.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use tokio_postgres::{Client, NoTls};

use crate::PostgresOptions;
use crate::postgres::setup::migrate;

/// The newest schema and nothing in it, once for each cluster: to copy it is quicker than to go through all migrations again.
const TEMPLATE: &str = "comeback_template";
/// Number of the lock under which it is made.
const LOCK: i64 = 7_330;

/// A database of its own, to be dropped at the end.
pub struct Database {
    name: String,
}

impl Database {
    /// With nothing in it at all.
    pub async fn create() -> Database {
        let name = format!("t{}", uuid::Uuid::now_v7().simple());
        let client = connect(&cluster()).await;
        client.batch_execute(&format!("create database {name}")).await.expect("a database can be made");
        Database { name }
    }

    /// With the newest schema in it.
    pub async fn migrated() -> Database {
        let client = connect(&cluster()).await;
        make_template(&client).await;
        let name = format!("t{}", uuid::Uuid::now_v7().simple());
        let made = client.batch_execute(&format!("create database {name} template {TEMPLATE}")).await;
        made.expect("a database can be copied");
        Database { name }
    }

    pub fn url(&self) -> String {
        url_of(&self.name)
    }

    /// Another one with the same in it. Nobody may be connected to this one.
    pub async fn copy(&self) -> Database {
        let name = format!("t{}", uuid::Uuid::now_v7().simple());
        let client = connect(&cluster()).await;
        let end = "select pg_terminate_backend(pid) from pg_stat_activity where datname = $1";
        client.query(end, &[&self.name]).await.expect("others can be sent away");
        let made = client.batch_execute(&format!("create database {name} template {}", self.name)).await;
        made.expect("a database can be copied");
        Database { name }
    }

    pub async fn connect(&self) -> Client {
        connect(&self.url()).await
    }

    pub async fn drop(self) {
        let client = connect(&cluster()).await;
        let _ = client.batch_execute(&format!("drop database {} with (force)", self.name)).await;
    }
}

/// Every test is a process of its own, and the first of them makes it.
async fn make_template(client: &Client) {
    let is_made = async || {
        let sql = "select 1 from pg_database where datname = $1 and datistemplate";
        client.query_opt(sql, &[&TEMPLATE]).await.expect("the cluster answers").is_some()
    };
    if is_made().await {
        return;
    }
    client.execute("select pg_advisory_lock($1)", &[&LOCK]).await.expect("a lock");
    if !is_made().await {
        // Whoever began before may have been killed.
        for sql in [format!("drop database if exists {TEMPLATE}"), format!("create database {TEMPLATE}")] {
            client.batch_execute(&sql).await.expect("a database can be made");
        }
        let options = PostgresOptions { require_durability: false, ..PostgresOptions::new(url_of(TEMPLATE)) };
        migrate(&options).await.expect("it is migrated");
        let sql = format!("alter database {TEMPLATE} is_template true");
        client.batch_execute(&sql).await.expect("it is a template");
    }
    client.execute("select pg_advisory_unlock($1)", &[&LOCK]).await.expect("unlocked");
}

/// A session of another program, in another database of the cluster, in the midst of a transaction that writes.
pub struct ForeignTransaction {
    _client: Client,
}

impl ForeignTransaction {
    pub async fn begin() -> ForeignTransaction {
        let client = connect(&cluster()).await;
        client.batch_execute("begin; select pg_current_xact_id()").await.expect("it begins to write");
        ForeignTransaction { _client: client }
    }
}

fn url_of(database: &str) -> String {
    let cluster = cluster();
    let (server, _) = cluster.rsplit_once('/').expect("the URL names a database");
    format!("{server}/{database}")
}

pub fn cluster() -> String {
    std::env::var("COMEBACK_TEST_POSTGRES").unwrap_or_else(|_| {
        panic!("COMEBACK_TEST_POSTGRES is not set: run `make test`, or this command behind `scripts/with-postgres`")
    })
}

async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("the test cluster answers");
    tokio::spawn(connection);
    client
}
