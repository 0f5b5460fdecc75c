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
