//! Connections to a PostgreSQL that speaks TLS, with a certificate that only this test's authority vouches for.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use comeback_store::conformance::postgres::{Database, cluster};
use comeback_store::{DueQueries, PostgresOptions, PostgresStore};
use tokio_postgres::NoTls;

fn own(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tls").join(name)
}

/// Puts the certificate where the cluster can read it.
fn lend(data: &Path, name: &str) -> String {
    let (to, owner) = (data.join(name), data.metadata().unwrap());
    std::fs::copy(own(name), &to).unwrap();
    std::fs::set_permissions(&to, std::fs::Permissions::from_mode(0o600)).unwrap();
    let _ = std::os::unix::fs::chown(&to, Some(owner.uid()), Some(owner.gid()));
    to.display().to_string()
}

#[tokio::test]
async fn connections_are_encrypted_and_certificates_checked() {
    let data = PathBuf::from(std::env::var("COMEBACK_TEST_POSTGRES_DATA").expect("run behind scripts/with-postgres"));
    let (admin, connection) = tokio_postgres::connect(&cluster(), NoTls).await.unwrap();
    tokio::spawn(connection);
    for (name, value) in [
        ("ssl_cert_file", lend(&data, "server.crt")),
        ("ssl_key_file", lend(&data, "server.key")),
        ("ssl", "on".into()),
    ] {
        admin.batch_execute(&format!("alter system set {name} = '{value}'")).await.unwrap();
    }
    admin.batch_execute("select pg_reload_conf()").await.unwrap();
    let database = Database::create().await;
    let open = async |query: String| {
        let url = format!("{}{query}", database.url());
        let options = PostgresOptions { require_durability: false, warm_up: false, ..PostgresOptions::new(url) };
        let store = PostgresStore::open(&options).await?;
        store.next_due().await?;
        let sql =
            "select count(*) filter (where s.ssl), count(*) from pg_stat_activity a join pg_stat_ssl s using (pid)
                   where a.datname = current_database() and a.application_name = 'comeback'";
        let url = database.url();
        let (client, connection) = tokio_postgres::connect(&url, NoTls).await.unwrap();
        tokio::spawn(connection);
        let row = client.query_one(sql, &[]).await.unwrap();
        Ok::<(i64, i64), comeback_store::StoreError>((row.get(0), row.get(1)))
    };
    let is_encrypted = |counted: (i64, i64)| counted.0 > 0 && counted.0 == counted.1;
    // The server takes its new settings a moment after it was told to.
    let mut answer = open("?sslmode=require".into()).await;
    for _ in 0..100 {
        if answer.is_ok() {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        answer = open("?sslmode=require".into()).await;
    }
    assert!(is_encrypted(answer.expect("require")));
    assert!(is_encrypted(open(String::new()).await.expect("prefer takes what is offered")));
    assert_eq!(open("?sslmode=disable".into()).await.expect("plain").0, 0);
    // The certificate is made out to `localhost`; the URL of the cluster names an address.
    let ca = own("ca.crt").display().to_string();
    let by_address = open(format!("?sslmode=verify-full&sslrootcert={ca}")).await;
    assert!(by_address.is_err(), "made out to another name: {by_address:?}");
    let by_name = PostgresOptions {
        require_durability: false,
        warm_up: false,
        ..PostgresOptions::new(format!(
            "{}?sslmode=verify-full&sslrootcert={ca}",
            database.url().replace("127.0.0.1", "localhost")
        ))
    };
    drop(PostgresStore::open(&by_name).await.expect("the right name, the right authority"));
    let stranger = PostgresOptions { url: by_name.url.split("&sslrootcert").next().unwrap().to_owned(), ..by_name };
    assert!(PostgresStore::open(&stranger).await.is_err(), "an authority that nobody trusts");
    admin.batch_execute("alter system reset ssl").await.unwrap();
    admin.batch_execute("select pg_reload_conf()").await.unwrap();
    database.drop().await;
}
