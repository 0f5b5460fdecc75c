//! What a person types, and what is said to it.

use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::harness::{Server, file, text};

#[test]
fn the_command_line_says_what_happens() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = Server::start(&file(folder.path()), &[]);
    let enqueued = server.cli(&["enqueue", "hello", "--data", "{\"a\": 1}", "--retry", "exp(1s, x2, 3 retries)"]);
    assert!(enqueued.status.success(), "{}", text(&enqueued.stderr));
    let id = text(&enqueued.stdout).split_whitespace().next().expect("an id").to_owned();
    let short = &id[id.len() - 8..];
    let listed = server.cli(&["task", "list", "state:pending"]);
    assert!(
        text(&listed.stdout).contains(short) && text(&listed.stdout).contains("○ pending"),
        "{}",
        text(&listed.stdout)
    );
    let why = server.cli(&["task", "why", short]);
    assert!(text(&why.stdout).contains("nothing was decided"), "{}{}", text(&why.stdout), text(&why.stderr));
    assert!(server.cli(&["task", "cancel", short]).status.success());
    let again = server.cli(&["task", "cancel", short]);
    assert_eq!(again.status.code(), Some(2), "{}", text(&again.stderr));
    assert_eq!(server.cli(&["task", "get", "ffffffff"]).status.code(), Some(3));
    let stats: Value = serde_json::from_str(&text(&server.cli(&["stats", "--json"]).stdout)).expect("json");
    assert_eq!(stats["by_state"]["canceled"], 1);
    let explained = server.cli(&["policy", "explain", "exp(60s, x2, max 1h, 5 retries)"]);
    assert!(text(&explained.stdout).contains("6 executions"), "{}", text(&explained.stdout));
    let simulated = server.cli(&["policy", "simulate", "schedule(7d, 14d)"]);
    assert!(text(&simulated.stdout).contains("after 21d"), "{}", text(&simulated.stdout));
    assert_eq!(server.cli(&["policy", "explain", "often(1s)"]).status.code(), Some(2));
    let paused = server.cli(&["loop", "pause", "reap", "--for", "10m", "--note", "looking"]);
    assert!(text(&paused.stdout).contains("⏸ paused, resumes in"), "{}", text(&paused.stdout));
    assert_eq!(server.cli(&["status"]).status.code(), Some(8), "a paused loop wants attention");
    let nobody = Command::new(env!("CARGO_BIN_EXE_comeback"))
        .args(["task", "list", "--server", "http://127.0.0.1:1"])
        .output()
        .expect("it runs");
    assert_eq!(nobody.status.code(), Some(7));
    let said = text(&nobody.stderr);
    assert!(said.contains("error: cannot reach") && said.contains("do:  comeback serve"), "{said}");
}

#[test]
fn a_command_is_run_until_it_succeeds() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = Server::start(&file(folder.path()), &[]);
    let run =
        server.cli(&["run", "--retry", "fixed(200ms, 5 retries)", "--", "sh", "-c", "test $COMEBACK_ATTEMPT -ge 3"]);
    let said = text(&run.stderr);
    assert_eq!(run.status.code(), Some(0), "{said}");
    assert!(
        said.contains("attempt 1/6  exit 1") && said.contains("attempt 3/6  ok") && said.contains("recovered"),
        "{said}"
    );
    let run = server.cli(&["run", "--retry", "immediate(2 retries)", "--", "false"]);
    assert_eq!(run.status.code(), Some(10), "{}", text(&run.stderr));
    let run = server.cli(&["run", "--", "no-such-command-anywhere"]);
    assert_eq!(run.status.code(), Some(10), "{}", text(&run.stderr));
}

#[test]
fn the_demo_shows_tasks_that_come_back() {
    let begun = Instant::now();
    let output = Command::new(env!("CARGO_BIN_EXE_comeback"))
        .args(["demo", "--listen", "127.0.0.1:0", "--seconds", "12"])
        .output()
        .expect("it runs");
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(begun.elapsed() < Duration::from_secs(60));
    let (said, summary) = (text(&output.stdout), text(&output.stderr));
    for word in [
        "→ retry in",
        "503 Service Unavailable",
        "429 Too Many Requests",
        "(not counted)",
        "vat_id is missing → failed, no retry",
        "◎ payments.charge",
    ] {
        assert!(said.contains(word), "{word} is missing:\n{said}");
    }
    let recovered: u32 = summary
        .split("recovered ")
        .nth(1)
        .and_then(|rest| rest.split_whitespace().next())
        .and_then(|n| n.parse().ok())
        .unwrap_or(0);
    assert!(recovered >= 2, "{summary}");
}
