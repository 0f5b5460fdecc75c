//! The examples do what they say: each fails on purpose, comes back, and leaves nothing behind.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use crate::harness::text;

/// Runs one and answers what it said.
fn run(name: &str) -> String {
    let folder = tempfile::tempdir().expect("a folder");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples").join(name).join("run");
    let begun = Instant::now();
    let done = Command::new(script)
        .env("COMEBACK_BINARY", env!("CARGO_BIN_EXE_comeback"))
        .env("TMPDIR", folder.path())
        .output()
        .expect("it runs");
    let said = text(&done.stdout);
    assert!(done.status.success(), "{said}{}", text(&done.stderr));
    assert!(begun.elapsed().as_secs() < 30, "{:?}", begun.elapsed());
    assert_eq!(std::fs::read_dir(folder.path()).expect("the folder").count(), 0, "it cleans up");
    said
}

/// These come, in this order.
fn says(said: &str, lines: &[&str]) {
    let mut rest = said;
    for line in lines {
        let Some(at) = rest.find(line) else { panic!("`{line}` is missing in:\n{said}") };
        rest = &rest[at + line.len()..];
    }
}

#[test]
fn a_workflow_keeps_its_retries_in_a_table() {
    let said = run("workflow");
    says(&said, &["\"node_id\":\"price[1]\"", "exponential_backoff", "✓ succeeded", "\"success_rate\":100.0"]);
}

#[test]
fn a_batch_calls_its_service_until_it_succeeds() {
    let said = run("batch");
    let calls = [
        "/import                  key start:success:0      refused",
        "/import                  key start:success:1      will end in Failure",
        "/import                  key start:success:2      will end in Success",
        "/publish                 key start:success:0      will end in Success",
        "/told/publish-succeeded  key end:success:0        told",
    ];
    says(&said, &calls);
    assert!(said.contains("/told/import-succeeded   key end:success:2        told"), "{said}");
    assert_eq!(said.matches("/told/").count(), 2, "each end is told once: {said}");
}

#[test]
fn a_job_comes_back_by_itself_or_by_hand() {
    let said = run("jobs");
    says(&said, &["job_private  run 1  failed", "job_private  by hand", "job_private  run 2  succeeded"]);
    says(
        &said,
        &["job_slow     run 1  retry_pending", "job_slow     run 2  retry_pending", "job_slow     run 3  succeeded"],
    );
}

#[test]
fn runs_are_judged_or_tried_again() {
    let said = run("runs");
    for (name, verdict) in [("run-1", "needs_review"), ("run-2", "passed"), ("run-3", "failed"), ("run-4", "error")] {
        let line = said.lines().find(|line| line.contains(name)).unwrap_or_else(|| panic!("{name}: {said}"));
        assert!(line.contains(verdict), "{line}");
    }
}

#[test]
fn a_playbook_is_executed_as_it_is() {
    let said = run("playbook");
    says(&said, &["kept: ", "21"]);
    let fetched = [
        "action_started",
        "action_error",
        "step_retry",
        "action_started",
        "action_error",
        "step_retry",
        "action_started",
        "action_completed",
    ];
    says(&said, &fetched);
    says(&said, &["execution_completed"]);
}
