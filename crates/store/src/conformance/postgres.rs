//! Databases for tests, made in the cluster that `scripts/with-postgres` started.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use tokio_postgres::{Client, NoTls};

/// A database of its own, to be dropped at the end.
pub struct Database {
    name: String,
}

impl Database {
    pub async fn create() -> Database {
        let name = format!("t{}", uuid::Uuid::now_v7().simple());
        let client = connect(&cluster()).await;
        client.batch_execute(&format!("create database {name}")).await.expect("a database can be made");
        Database { name }
    }

    pub fn url(&self) -> String {
        let cluster = cluster();
        let (server, _) = cluster.rsplit_once('/').expect("the URL names a database");
        format!("{server}/{}", self.name)
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
