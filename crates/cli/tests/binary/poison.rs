//! Inputs that once crashed a server: they no longer do, and a blocking task can be removed without a server.

use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::harness::{Server, file, lease_one, submit_one, text, until, until_over};
use crate::postgres::Database;

fn comeback(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_comeback")).args(args).output().expect("the binary runs")
}

/// One word of SQL on either database.
async fn sql(db: &str, words: &str) {
    if db.starts_with("postgres") {
        let (client, connection) = tokio_postgres::connect(db, tokio_postgres::NoTls).await.expect("a connection");
        tokio::spawn(connection);
        client.batch_execute(&format!("set search_path to comeback, public; {words}")).await.expect("done");
    } else {
        rusqlite::Connection::open(db).expect("a file").execute_batch(words).expect("done");
    }
}

/// A policy of an earlier version, which took what is refused today, and a run of its task that times out.
async fn a_stored_bomb_is_an_error(db: &str) {
    let server = Server::start(db, &[]);
    let client = server.client();
    let mut ids = Vec::new();
    for n in 0..4 {
        let task = json!({"kind": "bomb", "timeout": "1s", "retry": {"retry_when": format!("status >= 50{n}"), "max_retries": 3}});
        ids.push(submit_one(&client, task).await);
        lease_one(&client).await;
    }
    let rules: Vec<Value> =
        (0..60).map(|n| json!({"match": {"message": format!("(?:\\w{{5}})x{n}")}, "then": "final"})).collect();
    let bombs = [
        "'x'|indent(200000000000000)",
        "'x'|indent(9223372036854775808)",
        "'%99999999999999d'|format(1)",
        "('x' * 100000000)|replace('x', 'x' * 1000)",
    ];
    server.kill();
    for (n, bomb) in bombs.iter().enumerate() {
        let (from, to) = (format!("status >= 50{n}"), bomb.replace('\'', "''"));
        sql(db, &format!("update policy set body = replace(body, '{from}', '{to}')")).await;
    }
    // And more patterns than a policy may have today.
    let many = json!(rules).to_string().replace('\'', "''");
    sql(
        db,
        &format!("update policy set body = '{{\"rules\":{many},' || substr(body, 2) where body like '%format(1)%'"),
    )
    .await;
    let server = Server::start(db, &[]);
    let client = server.client();
    for id in &ids {
        let over = until_over(&client, id).await;
        assert!(["dead", "failed"].contains(&over["state"].as_str().unwrap_or_default()), "{over}");
        let why = text(&server.cli(&["task", "why", id, "-o", "json"]).stdout);
        assert!(why.contains("could not be evaluated"), "{why}");
    }
    // A viewer cannot end it either.
    for bomb in bombs {
        let asked = client.post("/api/v1/policies/simulate", &json!({"policy": {"retry_when": bomb}})).await;
        let refused = asked.expect_err("refused").to_string();
        assert!(refused.contains("retry_when"), "{refused}");
    }
    let rules: Vec<Value> =
        (0..15_000).map(|n| json!({"match": {"message": format!("(?:\\w{{5}})x{n}")}, "then": "final"})).collect();
    let begun = std::time::Instant::now();
    let refused =
        client.post("/api/v1/policies/simulate", &json!({"policy": {"rules": rules}})).await.expect_err("refused");
    assert!(refused.to_string().contains("at most 100 rules"), "{refused}");
    assert!(begun.elapsed() < std::time::Duration::from_secs(5), "{:?}", begun.elapsed());
    let task = json!({"kind": "many", "retry": {"rules": &rules[..100]}});
    let refused = client.submit(&json!({"tasks": vec![task; 20]})).await.expect_err("refused");
    assert!(refused.to_string().contains("at most 16 patterns"), "{refused}");
    assert_eq!(server.http().get(format!("{}/readyz", server.url)).send().await.expect("asked").status(), 200);
}

#[tokio::test]
async fn a_stored_bomb_is_an_error_on_sqlite() {
    let folder = tempfile::tempdir().expect("a folder");
    a_stored_bomb_is_an_error(&file(folder.path())).await;
}

#[tokio::test]
async fn a_stored_bomb_is_an_error_on_postgresql() {
    let database = Database::create().await;
    a_stored_bomb_is_an_error(&database.url).await;
    database.drop().await;
}

/// Without a server: a task is canceled, and a loop paused and resumed.
async fn a_database_is_helped_without_a_server(db: &str) {
    let is_file = !db.starts_with("postgres");
    let server = Server::start(db, &[]);
    let client = server.client();
    let whole = submit_one(&client, json!({"kind": "poison"})).await;
    let short = submit_one(&client, json!({"kind": "poison"})).await;
    let elsewhere = client.clone().in_namespace(Some("red".into()));
    let other = submit_one(&elsewhere, json!({"kind": "poison"})).await;
    let beside = comeback(&["task", "cancel", &whole, "--db", db]);
    if is_file {
        assert_eq!(beside.status.code(), Some(5), "{}", text(&beside.stderr));
        assert!(text(&beside.stderr).contains("without --db"), "{}", text(&beside.stderr));
    } else {
        assert!(beside.status.success(), "beside a server: {}", text(&beside.stderr));
    }
    server.kill();
    if is_file {
        let done = comeback(&["task", "cancel", &whole, "--db", db, "--note", "it ends the server"]);
        assert!(done.status.success(), "{}", text(&done.stderr));
        assert!(text(&done.stdout).contains("is canceled"), "{}", text(&done.stdout));
    }
    let end = &short[short.len() - 8..];
    for (id, code) in
        [(end, 0), (other.as_str(), 0), (end, 5), ("ffffffff", 3), ("00000000-0000-0000-0000-000000000000", 3)]
    {
        let done = comeback(&["task", "cancel", id, "--db", db]);
        assert_eq!(done.status.code(), Some(code), "{id}: {}", text(&done.stderr));
    }
    for (args, code) in [
        (vec!["pause", "timeout"], 0),
        (vec!["pause", "nothing"], 3),
        (vec!["pause", "starts", "--for", "1h"], 0),
        (vec!["resume", "starts"], 0),
    ] {
        let done = comeback(&[&["loop"], &args[..], &["--db", db]].concat());
        assert_eq!(done.status.code(), Some(code), "{args:?}: {}", text(&done.stderr));
    }
    if is_file {
        let missing = comeback(&["task", "cancel", &whole, "--db", &format!("{db}.not-there")]);
        assert_eq!(missing.status.code(), Some(3), "{}", text(&missing.stderr));
    }
    let server = Server::start(db, &[]);
    let client = server.client();
    for id in [&whole, &short] {
        assert_eq!(until(&client, id, |_| true).await["state"], "canceled");
    }
    let elsewhere = client.clone().in_namespace(Some("red".into()));
    assert_eq!(elsewhere.task(&other).await.expect("shown")["state"], "canceled");
    let loops = client.get("/api/v1/admin/loops").await.expect("shown");
    let paused = |name: &str| {
        let it = loops["items"].as_array().into_iter().flatten().find(|it| it["name"] == name).expect("a loop");
        it["paused"] == true
    };
    assert!(paused("timeout") && !paused("starts"), "{loops}");
    let audit = client.get("/api/v1/admin/audit").await.expect("shown").to_string();
    assert!(audit.contains("comeback task cancel --db") && audit.contains("comeback loop pause --db"), "{audit}");
}

#[tokio::test]
async fn a_file_is_helped_without_a_server() {
    let folder = tempfile::tempdir().expect("a folder");
    a_database_is_helped_without_a_server(&file(folder.path())).await;
}

#[tokio::test]
async fn a_postgresql_database_is_helped_without_a_server() {
    let database = Database::create().await;
    a_database_is_helped_without_a_server(&database.url).await;
    database.drop().await;
}

/// The clipboard, colours by C1, and letters from right to left: workers can report anything.
#[tokio::test]
async fn no_control_character_of_others_reaches_the_terminal() {
    const EVIL: &str = "=cmd\u{1b}]52;c;ZXZpbA==\u{7}\u{9b}31m\u{202e}gnp\u{7f}";
    let folder = tempfile::tempdir().expect("a folder");
    let server = Server::start(&file(folder.path()), &[]);
    let client = server.client();
    let task = json!({"kind": "k", "retry": {"strategy": "fixed", "delay": "1h", "max_retries": 3}});
    let id = submit_one(&client, task).await;
    let lease = lease_one(&client).await;
    crate::harness::report(
        &client,
        &lease,
        json!({"outcome": "failed", "error": {"message": EVIL, "type": EVIL, "code": EVIL}}),
    )
    .await;
    client.act(&id, "pause", &json!({"note": EVIL})).await.expect("paused");
    let is_evil = |letter: char| (letter.is_control() && letter != '\n' && letter != '\t') || letter == '\u{202e}';
    for args in [
        vec!["task", "list"],
        vec!["task", "get", &id],
        vec!["task", "why", &id],
        vec!["task", "attempts", &id],
        vec!["error", "list"],
        vec!["audit"],
        vec!["tail", "--from-start", "--all", "--count", "3"],
        vec!["task", "get", "\u{1b}]52;c;x\u{7}"],
    ] {
        for format in ["table", "json", "jsonl", "name", "csv"] {
            if args[0] == "tail" && !["table", "json"].contains(&format) {
                continue;
            }
            let mut command = Command::new("timeout");
            let output = command
                .arg("10")
                .arg(env!("CARGO_BIN_EXE_comeback"))
                .args(&args)
                .args(["-o", format])
                .env("COMEBACK_SERVER", &server.url)
                .output()
                .expect("it runs");
            for shown in [text(&output.stdout), text(&output.stderr)] {
                assert!(!shown.contains(is_evil), "{args:?} as {format}: {shown:?}");
            }
        }
    }
    let listed = text(&server.cli(&["task", "list", "-o", "csv"]).stdout);
    assert!(listed.contains("'=cmd") && !listed.contains(",=cmd"), "{listed}");
    let audit = text(&server.cli(&["audit", "--export", "csv"]).stdout);
    assert!(audit.contains("'=cmd") && !audit.contains(",=cmd"), "{audit}");
    let mut screen = crate::terminal::Terminal::open();
    let mut command = Command::new(env!("CARGO_BIN_EXE_comeback"));
    command.args(["task", "get", &id]).env("COMEBACK_SERVER", &server.url);
    let mut child = screen.spawn(command);
    let before = screen.wait_for("\\x1b]52;c;");
    assert!(!before.contains("\u{1b}]"), "{before:?}");
    child.wait().expect("it ends");
}

/// A server's own variables hold its secrets; the processes of tasks do not see them.
#[tokio::test]
async fn processes_of_tasks_do_not_see_the_secrets_of_the_server() {
    let folder = tempfile::tempdir().expect("a folder");
    let db = file(folder.path());
    let start = |more: &[&str]| {
        let mut command = Server::command(&db, "127.0.0.1:0");
        command.args(["--allow-commands"]).args(more);
        for (name, value) in [
            ("COMEBACK_KEY", "secret-key"),
            ("DATABASE_URL", "postgres://u:secret-word@h/d"),
            ("AWS_SECRET_ACCESS_KEY", "secret-aws"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "authorization=secret-otel"),
            ("WANTED", "passed"),
        ] {
            command.env(name, value);
        }
        Server::from(command).expect("it serves")
    };
    let script = "env > \"$0.tmp\"; mv \"$0.tmp\" \"$0\"";
    for (more, passes) in [(vec![], false), (vec!["--pass-env", "WANTED"], true)] {
        let server = start(&more);
        let client = server.client();
        let seen = folder.path().join(format!("seen-{passes}"));
        let task = json!({"kind": "env", "payload": {"n": 1}, "executor": {"type": "command", "env": {"OWN": "yes"},
            "run": ["sh", "-c", script, seen.to_string_lossy()]}});
        let done = until_over(&client, &submit_one(&client, task).await).await;
        assert_eq!(done["state"], "succeeded", "{done}");
        let seen = std::fs::read_to_string(seen).expect("it wrote");
        for secret in ["secret-", "COMEBACK_KEY", "DATABASE_URL", "AWS_", "OTEL_"] {
            assert!(!seen.contains(secret), "{secret}: {seen}");
        }
        for own in ["PATH=", "OWN=yes", "COMEBACK_ATTEMPT=1", "COMEBACK_PAYLOAD_N=1", "COMEBACK_TASK="] {
            assert!(seen.contains(own), "{own}: {seen}");
        }
        assert_eq!(seen.contains("WANTED=passed"), passes, "{seen}");
    }
    // At one's own terminal everything is as one is used to, but the key.
    let server = Server::start(&db, &[]);
    let ran = Command::new(env!("CARGO_BIN_EXE_comeback"))
        .args(["run", "--", "sh", "-c", "echo \"key ${COMEBACK_KEY:-none} mine $MINE\""])
        .env("COMEBACK_SERVER", &server.url)
        .env("COMEBACK_KEY", "secret-key")
        .env("MINE", "kept")
        .output()
        .expect("it runs");
    assert_eq!(text(&ran.stdout).trim(), "key none mine kept", "{}", text(&ran.stderr));
}
