//! A worker from before a restore does not speak for a run from after it (M3): with the real binary, on both databases, by every way
//! in which a copy can come into place.

use std::path::Path;
use std::process::{Command, Output};

use comeback_client::Client;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::harness::{Server, file, lease_one, report, submit_one, text};
use crate::postgres::{Database, cluster};

fn comeback(args: &[&str]) -> Output {
    let output = Command::new(env!("CARGO_BIN_EXE_comeback")).args(args).output().expect("the binary runs");
    assert!(output.status.success(), "{args:?}: {}{}", text(&output.stdout), text(&output.stderr));
    output
}

fn stop(mut server: Server) {
    let pid = i32::try_from(server.child.id()).ok().and_then(Pid::from_raw).expect("a process");
    kill_process(pid, Signal::TERM).expect("told to stop");
    server.child.wait().expect("it stops");
}

/// The file and its log, if there is one, in the place of another; what belongs to the other is gone.
fn put_in_place(copy: &str, db: &str) {
    for end in ["-wal", "-shm"] {
        let _ = std::fs::remove_file(format!("{db}{end}"));
    }
    copy_files(copy, db);
}

fn copy_files(from: &str, to: &str) {
    std::fs::copy(from, to).expect("copied");
    let _ = std::fs::copy(format!("{from}-wal"), format!("{to}-wal"));
}

async fn submit(client: &Client) -> String {
    submit_one(client, json!({"kind": "k", "retry": "fixed(100ms, 5 retries)"})).await
}

fn is_lost(said: &Value) -> bool {
    said["problem"]["type"].as_str().is_some_and(|slug| slug.ends_with("lease-lost"))
}

/// The zombie is refused in every way, and the holder is heard.
async fn only_the_holder_speaks(client: &Client, zombie: &Value) {
    let holder = lease_one(client).await;
    assert_eq!(holder["task"]["id"], zombie["task"]["id"], "the same task");
    assert_eq!(holder["task"]["run"], zombie["task"]["run"], "and the same run of it");
    assert_ne!(holder["lease"], zombie["lease"]);
    let token = zombie["lease"].as_str().expect("a token").to_owned();
    let beat = client.heartbeat(&[token], 30).await.expect("answered");
    assert!(is_lost(&beat["leases"][0]), "{beat}");
    for end in [json!({"outcome": "succeeded"}), json!({"outcome": "failed", "error": {"message": "late"}})] {
        let said = report(client, zombie, end).await;
        assert!(is_lost(&said), "{said}");
    }
    let said = report(client, &holder, json!({"outcome": "succeeded"})).await;
    assert_eq!(said["state"], "succeeded", "{said}");
}

/// By `db backup`, by copying the file after a clean stop over the old one, without its lock file, with the whole folder, and by hand.
#[tokio::test]
async fn a_file_that_is_restored_begins_a_new_epoch() {
    for way in ["backup", "copy", "copy alone", "folder", "fence"] {
        let folder = tempfile::tempdir().expect("a folder");
        let data = folder.path().join("data");
        std::fs::create_dir(&data).expect("a folder");
        let (db, copy) = (file(&data), folder.path().join("copy.db").to_string_lossy().into_owned());
        let mut server = Server::start(&db, &[]);
        submit(&server.client()).await;
        if way == "backup" {
            comeback(&["db", "backup", "--db", &db, "--to", &copy]);
        } else {
            stop(server);
            match way {
                "folder" => copy_folder(&data, &folder.path().join("kept")),
                _ => copy_files(&db, &copy),
            }
            server = Server::start(&db, &[]);
        }
        let zombie = lease_one(&server.client()).await;
        server.kill();
        match way {
            "folder" => {
                std::fs::remove_dir_all(&data).expect("gone");
                copy_folder(&folder.path().join("kept"), &data);
            }
            "copy alone" => {
                std::fs::remove_file(format!("{db}.lock")).expect("gone");
                put_in_place(&copy, &db);
            }
            "fence" => {
                put_in_place(&copy, &db);
                comeback(&["db", "fence", "--db", &db]);
            }
            _ => put_in_place(&copy, &db),
        }
        let server = Server::start(&db, &[]);
        println!("{way}");
        only_the_holder_speaks(&server.client(), &zombie).await;
    }
}

fn copy_folder(from: &Path, to: &Path) {
    std::fs::create_dir(to).expect("a folder");
    for entry in std::fs::read_dir(from).expect("a folder").flatten() {
        std::fs::copy(entry.path(), to.join(entry.file_name())).expect("copied");
    }
}

/// Killed or stopped and started again, the same server hears its workers.
#[tokio::test]
async fn a_restart_keeps_the_leases_of_a_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let db = file(folder.path());
    let mut server = Server::start(&db, &[]);
    for round in 0..4 {
        submit(&server.client()).await;
        let leased = lease_one(&server.client()).await;
        if round % 2 == 0 {
            server.kill();
        } else {
            stop(server);
        }
        comeback(&["db", "migrate", "--db", &db]);
        server = Server::start(&db, &[]);
        let said = report(&server.client(), &leased, json!({"outcome": "succeeded"})).await;
        assert_eq!(said["state"], "succeeded", "round {round}: {said}");
    }
}

/// By `pg_restore` into another database, and by a copy inside the cluster.
#[tokio::test]
async fn postgres_that_is_restored_begins_a_new_epoch() {
    for way in ["dump", "template", "fence"] {
        let folder = tempfile::tempdir().expect("a folder");
        let (database, other) = (Database::create().await, Database::create().await);
        let dump = folder.path().join("backup.dump").to_string_lossy().into_owned();
        let server = Server::start(&database.url, &[]);
        submit(&server.client()).await;
        let copied = match way {
            "dump" => {
                comeback(&["db", "backup", "--db", &database.url, "--to", &dump]);
                let restore = Command::new("pg_restore").args(["--no-owner", "--dbname", &other.url, &dump]).output();
                let restore = restore.expect("pg_restore");
                assert!(restore.status.success(), "{}", text(&restore.stderr));
                server
            }
            "template" => {
                server.kill();
                other.become_a_copy_of(&database).await;
                Server::start(&database.url, &[])
            }
            _ => server,
        };
        let zombie = lease_one(&copied.client()).await;
        if way == "fence" {
            comeback(&["db", "fence", "--db", &database.url]);
            tokio::time::sleep(std::time::Duration::from_secs(2)).await;
            let said = report(&copied.client(), &zombie, json!({"outcome": "succeeded"})).await;
            assert!(is_lost(&said), "a running instance hears of it: {said}");
            drop(copied);
        } else {
            drop(copied);
            let server = Server::start(&other.url, &[]);
            only_the_holder_speaks(&server.client(), &zombie).await;
        }
        database.drop().await;
        other.drop().await;
    }
}

/// A restart, and a second instance, know the leases of the first.
#[tokio::test]
async fn a_restart_keeps_the_leases_of_postgres() {
    assert!(!cluster().is_empty());
    let database = Database::create().await;
    let (one, two) = (Server::start(&database.url, &[]), Server::start(&database.url, &[]));
    submit(&one.client()).await;
    submit(&one.client()).await;
    let (first, second) = (lease_one(&one.client()).await, lease_one(&one.client()).await);
    one.kill();
    let said = report(&two.client(), &first, json!({"outcome": "succeeded"})).await;
    assert_eq!(said["state"], "succeeded", "{said}");
    drop(two);
    let three = Server::start(&database.url, &[]);
    let said = report(&three.client(), &second, json!({"outcome": "succeeded"})).await;
    assert_eq!(said["state"], "succeeded", "{said}");
    drop(three);
    database.drop().await;
}

/// A write transaction of another program, in another database of the cluster, delays no stream, and `doctor` names it.
#[tokio::test]
async fn a_foreign_transaction_delays_no_stream() {
    let (database, elsewhere) = (Database::create().await, Database::create().await);
    let foreign = elsewhere.connect().await;
    foreign.batch_execute("begin; create table busy (n int)").await.expect("it writes");
    let server = Server::start(&database.url, &[]);
    let client = server.client();
    let mut stream =
        server.http().get(format!("{}/api/v1/events/stream?after=latest", server.url)).send().await.expect("a stream");
    for n in 0..3 {
        let begun = std::time::Instant::now();
        let id = submit(&client).await;
        let mut heard = String::new();
        while !heard.contains(&id) {
            let more = tokio::time::timeout(std::time::Duration::from_secs(10), stream.chunk()).await;
            heard.push_str(&text(&more.expect("in time").expect("open").expect("more")));
        }
        println!("event {n} after {:?}", begun.elapsed());
    }
    let page = client.get("/api/v1/events?limit=100").await.expect("a page");
    assert!(page["items"].as_array().is_some_and(|items| items.len() >= 6), "{page}");
    drop((server, foreign));
    database.drop().await;
    elsewhere.drop().await;
}
