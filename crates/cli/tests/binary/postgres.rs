//! Databases of their own, in the cluster that scripts/test started.

use tokio_postgres::{Client, NoTls};

pub struct Database {
    name: String,
    pub url: String,
}

pub fn cluster() -> String {
    std::env::var("COMEBACK_TEST_POSTGRES_DURABLE")
        .unwrap_or_else(|_| panic!("this test needs a PostgreSQL that flushes: run it by scripts/test"))
}

async fn admin() -> Client {
    let (client, connection) = tokio_postgres::connect(&cluster(), NoTls).await.expect("a connection");
    tokio::spawn(connection);
    client
}

impl Database {
    pub async fn create() -> Database {
        let name = format!("t{}", uuid::Uuid::now_v7().simple());
        admin().await.batch_execute(&format!("create database {name}")).await.expect("a database");
        let url = cluster().rsplit_once('/').map(|(server, _)| format!("{server}/{name}")).expect("a URL");
        Database { name, url }
    }

    /// A copy of the other database. No connection to either may be open.
    pub async fn become_a_copy_of(&self, other: &Database) {
        let client = admin().await;
        let sql = format!("drop database {} with (force)", self.name);
        client.batch_execute(&sql).await.expect("dropped");
        let end = "select pg_terminate_backend(pid) from pg_stat_activity where datname = $1";
        client.query(end, &[&other.name]).await.expect("others are sent away");
        let sql = format!("create database {} template {}", self.name, other.name);
        client.batch_execute(&sql).await.expect("copied");
    }

    pub async fn connect(&self) -> Client {
        let (client, connection) = tokio_postgres::connect(&self.url, NoTls).await.expect("a connection");
        tokio::spawn(connection);
        client
    }

    pub async fn drop(self) {
        let dropped = admin().await.batch_execute(&format!("drop database {} with (force)", self.name)).await;
        dropped.expect("dropped");
    }
}
