//! Kinds with commands of their own: runs that are classified, retried, judged, discovered, filtered and stopped.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use comeback_client::{Client, Error};
use serde_json::{Value, json};

use crate::harness::{Server, file, submit_one, text, until, until_over};
use crate::postgres::Database;

/// A configuration on a port of its own, with a database beside it where none is named.
fn write(folder: &Path, db: &str, more: &str) -> PathBuf {
    let path = folder.join("runs.toml");
    std::fs::write(&path, format!("listen = '127.0.0.1:0'\ndb = '{db}'\n{more}")).expect("written");
    path
}

const FILE: &str = "comeback.db";

/// The payload holds the script to run.
const PROBE: &str = r#"
[kinds.probe]
command = ['sh', '-c', 'eval "$COMEBACK_PAYLOAD_SCRIPT"']
concurrency = 4
[kinds.probe.classify.exit_codes]
2 = 'final'
10-19 = 'retryable'
75 = { class = 'rate_limited', retry_after = '10m' }
[[kinds.probe.classify.stderr]]
pattern = '(?i)quota exceeded'
class = 'rate_limited'
retry_after = '1h'
code = 'quota'
"#;

async fn probe(client: &Client, script: &str) -> String {
    submit_one(client, json!({"kind": "probe", "payload": {"script": script}})).await
}

async fn advance(client: &Client, by: &str) {
    client.post("/api/v1/clock/advance", &json!({"by": by})).await.expect("advanced");
}

async fn found(client: &Client, filter: &str) -> Vec<Value> {
    let listed = client.get_with("/api/v1/tasks", &[("q", filter.to_owned())]).await.expect("listed");
    listed["items"].as_array().cloned().unwrap_or_default()
}

fn waits(task: &Value) -> bool {
    task["state"] == "retry_pending"
}

/// From end to end on a clock that is moved by hand: throttled once, uncounted; failed once, counted; then judged.
async fn a_run_from_end_to_end(db: &str) {
    let folder = tempfile::tempdir().expect("a folder");
    let server = Server::daemon(&write(folder.path(), db, PROBE), &["--clock", "virtual"]);
    let client = server.client();
    let script = r#"case $COMEBACK_RUN in 1) exit 75;; 2) echo "no disk" >&2; exit 1;; esac; cat >/dev/null; echo '{"verdict": "needs_review", "note": "odd"}'"#;
    let id = probe(&client, script).await;
    let now = client.get("/api/v1/clock").await.expect("a clock")["now"].clone();
    let throttled = until(&client, &id, waits).await;
    assert_eq!((&throttled["throttle_count"], &throttled["attempt"]), (&json!(1), &json!(0)), "{throttled}");
    assert_eq!((&throttled["error_class"], &throttled["max_retries"]), (&json!("rate_limited"), &json!(7)));
    assert_ne!(throttled["next_retry_at"], now);
    advance(&client, "9m").await;
    assert_eq!(client.task(&id).await.expect("shown")["total_attempts"], 1, "not before it was asked back");
    advance(&client, "1m").await;
    let failed = until(&client, &id, |task| task["total_attempts"] == 2 && waits(task)).await;
    assert_eq!((&failed["attempt"], &failed["error_class"]), (&json!(1), &json!("retryable")), "{failed}");
    assert_eq!(failed["last_error"]["message"], "exit 1: no disk");
    advance(&client, "1m").await;
    let judged = until_over(&client, &id).await;
    assert_eq!((&judged["state"], &judged["verdict"]), (&json!("succeeded"), &json!("needs_review")), "{judged}");
    assert_eq!((&judged["next_retry_at"], &judged["error_class"]), (&Value::Null, &Value::Null), "nothing is pending");
    assert_eq!((&judged["attempt"], &judged["total_attempts"]), (&json!(1), &json!(3)), "the history is kept");
    let list = found(&client, "verdict:needs_review").await;
    assert_eq!((list.len(), &list[0]["verdict"]), (1, &json!("needs_review")));
    let verdict = probe(&client, r#"echo '{"verdict": "failed"}'"#).await;
    until_over(&client, &verdict).await;
    advance(&client, "30d").await;
    for id in [&id, &verdict] {
        let task = client.task(id).await.expect("shown");
        let runs = if *id == verdict { 1 } else { 3 };
        assert_eq!(
            (&task["state"], &task["total_attempts"]),
            (&json!("succeeded"), &json!(runs)),
            "a verdict is an end"
        );
    }
    assert_eq!(found(&client, "verdict:failed").await.len(), 1);
}

#[tokio::test]
async fn a_run_is_throttled_fails_and_is_judged() {
    a_run_from_end_to_end(FILE).await;
}

#[tokio::test]
async fn a_run_is_throttled_fails_and_is_judged_on_postgres() {
    let database = Database::create().await;
    a_run_from_end_to_end(&database.url).await;
    database.drop().await;
}

#[tokio::test]
async fn the_most_specific_word_about_a_failure_counts() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = Server::daemon(&write(folder.path(), FILE, PROBE), &["--clock", "virtual"]);
    let client = server.client();
    for (script, state, class, code) in [
        ("exit 2", "failed", "final", "2"),
        ("exit 12", "retry_pending", "retryable", "12"),
        ("exit 64", "failed", "final", "64"),
        ("exit 3", "retry_pending", "retryable", "3"),
        ("echo 'Quota exceeded' >&2; exit 2", "retry_pending", "rate_limited", "quota"),
        (
            r#"echo '{"error": {"class": "final", "code": "E7", "message": "bad save"}}'; exit 12"#,
            "failed",
            "final",
            "E7",
        ),
        (
            r#"echo 'quota exceeded' >&2; echo '{"error": {"class": "retryable", "code": 9}}' >&2; exit 2"#,
            "retry_pending",
            "retryable",
            "9",
        ),
        (r#"echo '{"error": {"status": 404}}'; exit 12"#, "failed", "final", "12"),
        ("kill -9 $$", "retry_pending", "retryable", ""),
    ] {
        let id = probe(&client, script).await;
        let task = until(&client, &id, |task| waits(task) || !task["ended_at"].is_null()).await;
        assert_eq!((&task["state"], &task["error_class"]), (&json!(state), &json!(class)), "{script}: {task}");
        assert_eq!(task["last_error"]["code"].as_str().unwrap_or_default(), code, "{script}");
    }
    let large = probe(&client, r#"printf '{"x": "%0300000d"}\n' 0"#).await;
    let task = until_over(&client, &large).await;
    assert_eq!((&task["state"], &task["last_error"]["type"]), (&json!("failed"), &json!("result")), "{task}");
}

#[tokio::test]
async fn a_policy_that_is_used_up_is_the_end() {
    let folder = tempfile::tempdir().expect("a folder");
    let config = format!("[retry]\nmax_attempts = 3\ninitial_backoff_secs = 5\n{PROBE}");
    let server = Server::daemon(&write(folder.path(), FILE, &config), &["--clock", "virtual"]);
    let client = server.client();
    let id = probe(&client, "exit 1").await;
    for runs in 1..3 {
        until(&client, &id, |task| task["total_attempts"] == runs && waits(task)).await;
        advance(&client, if runs == 1 { "5s" } else { "10s" }).await;
    }
    let dead = until_over(&client, &id).await;
    assert_eq!(
        (&dead["state"], &dead["total_attempts"], &dead["next_retry_at"]),
        (&json!("dead"), &json!(3), &Value::Null)
    );
    let bound = client.get("/api/v1/policies/probe").await.expect("shown");
    assert_eq!(bound["policy"]["max_retries"], 2, "{bound}");
    let reset = server.cli(&["admin", "reset", &id, "--clear-error"]);
    assert!(reset.status.success(), "{}", text(&reset.stderr));
    let again = until(&client, &id, |task| task["total_attempts"] == 4 && waits(task)).await;
    assert_eq!((&again["cycle"], &again["attempt"]), (&json!(1), &json!(1)), "{again}");
}

/// S3-50 to S3-53.
#[tokio::test]
async fn the_log_tells_of_every_run() {
    let folder = tempfile::tempdir().expect("a folder");
    let config = format!("[retry]\nmax_attempts = 2\ninitial_backoff_secs = 0.05\n{PROBE}");
    let path = write(folder.path(), FILE, &config);
    let log = folder.path().join("log");
    let mut command = Command::new(env!("CARGO_BIN_EXE_comeback"));
    command.args(["daemon", "--log-format", "json", "--config"]).arg(&path).stdout(Stdio::piped());
    command.env("RUST_LOG", "comeback::attempt=debug").stderr(std::fs::File::create(&log).expect("a file"));
    let server = Server::from(command).expect("the binary serves");
    let client = server.client();
    for (script, expected) in [
        (
            "exit 1",
            [
                "initial attempt started",
                "initial attempt failed: retry scheduled",
                "retry 1 started",
                "retry 1 failed: gave up",
            ],
        ),
        (
            "test $COMEBACK_RUN = 2",
            [
                "initial attempt started",
                "initial attempt failed: retry scheduled",
                "retry 1 started",
                "retry 1 succeeded",
            ],
        ),
    ] {
        let id = probe(&client, script).await;
        let begun = Instant::now();
        let own = loop {
            let said = std::fs::read_to_string(&log).expect("a log");
            let lines = said.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
            let fields = lines.map(|line| line["fields"].clone()).filter(|it| it["task"] == id.as_str());
            let own: Vec<Value> = fields.collect();
            if own.len() >= expected.len() {
                break own;
            }
            assert!(begun.elapsed() < Duration::from_secs(20), "{said}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        };
        let said: Vec<&str> = own.iter().filter_map(|it| it["message"].as_str()).collect();
        assert_eq!(said, expected);
        assert_eq!((&own[1]["attempt"], &own[3]["attempt"]), (&json!(1), &json!(2)));
        assert!(own[1]["next_retry_at"].is_string(), "when it is tried again: {}", own[1]);
    }
}

#[tokio::test]
async fn bad_settings_are_refused_by_their_path() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = Server::start(&file(folder.path()), &["--allow-commands"]);
    let client = server.client();
    for (classify, path) in [
        (json!({"exit_codes": {"0": "final"}}), "executor.classify.exit_codes.0"),
        (json!({"exit_codes": {"2": "sometimes"}}), "executor.classify.exit_codes.2"),
        (json!({"stderr": [{"pattern": "(", "class": "final"}]}), "executor.classify.stderr[0].pattern"),
        (
            json!({"stderr": [{"pattern": "(\\w{1000}){1000}", "class": "final"}]}),
            "executor.classify.stderr[0].pattern",
        ),
        (json!({"colour": 1}), "executor.classify"),
    ] {
        let task = json!({"kind": "c", "executor": {"type": "command", "run": ["true"], "classify": classify}});
        let Err(Error::Refused(problem)) = client.submit(&task).await else { panic!("{task} was taken") };
        assert!(problem.status == 400 && problem.detail.contains(path), "{path}: {}", problem.detail);
    }
    let task = json!({"kind": "c", "executor": {"type": "command", "run": ["sh", "-c", "exit 9"],
        "classify": {"exit_codes": {"9": {"class": "final", "code": "nine"}}}}, "retry": 5});
    let failed = until_over(&client, &submit_one(&client, task).await).await;
    assert_eq!((&failed["state"], &failed["last_error"]["code"]), (&json!("failed"), &json!("nine")), "{failed}");
}

fn limited(categories: &str) -> String {
    format!(
        "[kinds.replay]\ncategories = {categories}\nretry.initial_backoff_secs = 1\ncommand = ['sh', '-c', 'test $COMEBACK_RUN -ge 2']\n"
    )
}

/// New and retried runs alike: what is not allowed waits, and goes on when it is allowed again.
#[tokio::test]
async fn only_allowed_categories_are_processed() {
    let folder = tempfile::tempdir().expect("a folder");
    let run = |category: &str| json!({"kind": "replay", "labels": {"category": category}});
    let server = Server::daemon(&write(folder.path(), FILE, &limited("['any%', '100%']")), &["--clock", "virtual"]);
    let client = server.client();
    let wrong = json!({"kind": "replay", "queue": "default", "labels": {"category": "any%"}});
    let Err(Error::Refused(problem)) = client.submit(&wrong).await else { panic!("it was taken") };
    assert!(problem.detail.contains("queue"), "{}", problem.detail);
    let retried = submit_one(&client, run("100%")).await;
    until(&client, &retried, waits).await;
    drop(server);

    let server = Server::daemon(&write(folder.path(), FILE, &limited("['any%']")), &["--clock", "virtual"]);
    let client = server.client();
    let (new, allowed) = (submit_one(&client, run("100%")).await, submit_one(&client, run("any%")).await);
    until(&client, &allowed, waits).await;
    advance(&client, "1h").await;
    assert_eq!(until_over(&client, &allowed).await["state"], "succeeded");
    for (id, runs) in [(&new, 0), (&retried, 1)] {
        let task = client.task(id).await.expect("shown");
        assert_eq!((&task["state"], &task["total_attempts"]), (&json!("pending"), &json!(runs)), "{task}");
    }
    drop(server);

    // Without a limit all of them are.
    let all = limited("X").replace("categories = X\n", "");
    let server = Server::daemon(&write(folder.path(), FILE, &all), &["--clock", "virtual"]);
    let client = server.client();
    assert_eq!(until_over(&client, &retried).await["state"], "succeeded");
    until(&client, &new, waits).await;
    advance(&client, "1h").await;
    assert_eq!(until_over(&client, &new).await["state"], "succeeded");
}

/// S3-37: an old retry that is due, two new runs, and not the one that is not due; the catalogue says how old they are.
async fn the_oldest_submission_first(db: &str) {
    let folder = tempfile::tempdir().expect("a folder");
    let (catalogue, order, gate) =
        (folder.path().join("catalogue"), folder.path().join("order"), folder.path().join("gate"));
    let config = r#"
[kinds.replay]
command = ['sh', 'replay']
classify.exit_codes.75 = { class = 'rate_limited', retry_after = '1s' }
classify.exit_codes.76 = { class = 'rate_limited', retry_after = '1h' }
discover = { command = ['cat', 'catalogue'], every = '1s' }
"#;
    let script = r#"
case "$COMEBACK_TASK_KEY $COMEBACK_RUN" in
  'old 1') exit 75;;
  'late 1') exit 76;;
  'gate 1') while ! test -e gate; do sleep 0.02; done;;
esac
echo "$COMEBACK_TASK_KEY" >> order
"#;
    std::fs::write(folder.path().join("replay"), script).expect("written");
    let print = |lines: &[(&str, &str)]| {
        let line = |(id, day): &(&str, &str)| json!({"id": id, "submitted_at": format!("{day}T00:00:00Z")}).to_string();
        let text: Vec<String> = lines.iter().map(line).collect();
        std::fs::write(folder.path().join("catalogue.new"), text.join("\n") + "\nnonsense\n").expect("written");
        std::fs::rename(folder.path().join("catalogue.new"), &catalogue).expect("there");
    };
    let first = [("old", "2024-01-01"), ("late", "2024-01-04")];
    print(&first);
    let server = Server::daemon(&write(folder.path(), db, config), &[]);
    let client = server.client();
    let id_of = async |run: &str| {
        let begun = Instant::now();
        loop {
            if let [task] = found(&client, &format!("external_id:{run}")).await.as_slice() {
                return task["id"].as_str().expect("an id").to_owned();
            }
            assert!(begun.elapsed() < Duration::from_secs(20), "{run} is not discovered");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let (old, late) = (id_of("old").await, id_of("late").await);
    let gate_run = submit_one(&client, json!({"kind": "replay", "key": "gate"})).await;
    until(&client, &late, waits).await;
    until(&client, &gate_run, |task| task["state"] == "running").await;
    print(&[("newer", "2024-01-04"), ("new", "2024-01-03"), first[0], first[1]]);
    id_of("new").await;
    until(&client, &old, |task| task["state"] == "pending" || task["total_attempts"] == 2).await;
    std::fs::write(&gate, "").expect("opened");
    for run in ["old", "new", "newer"] {
        let task = until_over(&client, &id_of(run).await).await;
        assert!(task["submitted_at"].as_str().is_some_and(|at| at.starts_with("2024-01-0")), "{task}");
    }
    let told = std::fs::read_to_string(&order).expect("an order");
    let told: Vec<&str> = told.lines().filter(|run| *run != "gate").collect();
    assert_eq!(told, ["old", "new", "newer"]);
    assert!(waits(&client.task(&late).await.expect("shown")));
    assert_eq!(found(&client, "kind:replay").await.len(), 5, "each is discovered once");
    drop(server);
    let checked = Command::new(env!("CARGO_BIN_EXE_comeback"))
        .args(["db", "check", "--db", &if db == FILE { file(folder.path()) } else { db.to_owned() }])
        .output()
        .expect("it runs");
    assert!(checked.status.success(), "{}{}", text(&checked.stdout), text(&checked.stderr));
}

#[tokio::test]
async fn old_retries_and_new_runs_compete_by_their_submission() {
    the_oldest_submission_first(FILE).await;
}

#[tokio::test]
async fn old_retries_and_new_runs_compete_by_their_submission_on_postgres() {
    let database = Database::create().await;
    the_oldest_submission_first(&database.url).await;
    database.drop().await;
}

#[tokio::test]
async fn what_was_discovered_once_is_not_made_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let config = r#"
[kinds.replay]
command = ['true']
discover = { command = ['sh', '-c', 'cat catalogue; exit 1'], every = '1h' }
"#;
    let lines = "{\"id\": 7, \"category\": \"any%\"}\n{\"id\": \"\"}\n{\"id\": 7}\n{\"id\": \"x\", \"colour\": 1}\n";
    std::fs::write(folder.path().join("catalogue"), lines).expect("written");
    let path = write(folder.path(), FILE, config);
    for round in 0..2 {
        let server = Server::daemon(&path, &["--clock", "virtual"]);
        let client = server.client();
        let id = loop {
            match found(&client, "external_id:7").await.as_slice() {
                [] => tokio::time::sleep(Duration::from_millis(20)).await,
                [task] => break task["id"].as_str().expect("an id").to_owned(),
                many => panic!("{many:?}"),
            }
        };
        let task = until_over(&client, &id).await;
        assert_eq!((&task["payload"]["id"], &task["labels"]["category"]), (&json!("7"), &json!("any%")));
        // Another round, now and after more than a day.
        advance(&client, "1h").await;
        advance(&client, "3d").await;
        let more = format!("{{\"id\": \"more{round}\"}}\n");
        std::fs::write(folder.path().join("catalogue"), format!("{lines}{more}")).expect("written");
        advance(&client, "1h").await;
        let begun = Instant::now();
        while found(&client, &format!("external_id:more{round}")).await.is_empty() {
            assert!(begun.elapsed() < Duration::from_secs(20), "the next round does not come");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(found(&client, "external_id:7").await.len(), 1, "once is enough");
    }
}

#[tokio::test]
async fn two_daemons_make_what_both_discover_once() {
    const THINGS: usize = 150;
    let database = Database::create().await;
    let folder = tempfile::tempdir().expect("a folder");
    let config = "[kinds.replay]\ncommand = ['true']\nconcurrency = 8\n\
        discover = { command = ['sh', '-c', 'while ! test -e gate; do sleep 0.01; done; cat catalogue'], every = '1h' }\n";
    let lines: Vec<String> = (0..THINGS).map(|n| json!({"id": n}).to_string()).collect();
    std::fs::write(folder.path().join("catalogue"), lines.join("\n")).expect("written");
    let path = write(folder.path(), &database.url, config);
    let daemons = [Server::daemon(&path, &["--instance", "a"]), Server::daemon(&path, &["--instance", "b"])];
    std::fs::write(folder.path().join("gate"), "").expect("opened");
    let client = daemons[0].client();
    let begun = Instant::now();
    let query = [("q", "state:succeeded".to_owned()), ("limit", "500".into())];
    while client.get_with("/api/v1/tasks", &query).await.expect("listed")["items"].as_array().map_or(0, Vec::len)
        < THINGS
    {
        assert!(begun.elapsed() < Duration::from_secs(30), "not all of them are done");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let stats = client.get("/api/v1/stats").await.expect("counted");
    assert_eq!((&stats["total"], &stats["by_state"]["succeeded"]), (&json!(THINGS), &json!(THINGS)), "{stats}");
    drop(daemons);
    database.drop().await;
}

fn terminate(server: &Server) {
    let id = server.child.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &id]).status().expect("kill").success());
}

#[tokio::test]
async fn a_stop_lets_runs_end_and_gives_back_what_takes_too_long() {
    let folder = tempfile::tempdir().expect("a folder");
    let config = format!("grace = '2s'\n{PROBE}");
    let mut server = Server::daemon(&write(folder.path(), FILE, &config), &[]);
    let client = server.client();
    let short = probe(&client, "while ! test -e gate; do sleep 0.02; done").await;
    let long = probe(&client, "echo $$ > long; while true; do sleep 0.02; done").await;
    for id in [&short, &long] {
        until(&client, id, |task| task["state"] == "running").await;
    }
    terminate(&server);
    std::fs::write(folder.path().join("gate"), "").expect("opened");
    let begun = Instant::now();
    assert!(server.child.wait().expect("it ends").success());
    assert!(begun.elapsed() < Duration::from_secs(8), "it took {:?}", begun.elapsed());
    let server = Server::start(&file(folder.path()), &[]);
    let client = server.client();
    assert_eq!(client.task(&short).await.expect("shown")["state"], "succeeded");
    let given_back = client.task(&long).await.expect("shown");
    assert_eq!((&given_back["state"], &given_back["lost_count"]), (&json!("pending"), &json!(0)), "{given_back}");
    assert_eq!(given_back["attempt"], 0);
    let process = std::fs::read_to_string(folder.path().join("long")).expect("it ran");
    let alive = Command::new("kill").args(["-0", process.trim()]).stderr(Stdio::null()).status().expect("kill");
    assert!(!alive.success(), "the process goes on");
}

#[tokio::test]
async fn a_run_that_takes_too_long_is_stopped_and_tried_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let config = "[kinds.slow]\ncommand = ['sh', '-c', 'test $COMEBACK_RUN = 1 || exit 0; echo $$ > first; sleep 60']\n\
        timeout = '1s'\nretry.initial_backoff_secs = 0.1\n";
    let server = Server::daemon(&write(folder.path(), FILE, config), &[]);
    let client = server.client();
    let done = until_over(&client, &submit_one(&client, json!({"kind": "slow"})).await).await;
    assert_eq!((&done["state"], &done["total_attempts"]), (&json!("succeeded"), &json!(2)), "{done}");
    assert_eq!((&done["attempt"], &done["last_error"]["trigger"]), (&json!(1), &json!("timeout")), "{done}");
    let process = std::fs::read_to_string(folder.path().join("first")).expect("it ran");
    let alive = Command::new("kill").args(["-0", process.trim()]).stderr(Stdio::null()).status().expect("kill");
    assert!(!alive.success(), "the process goes on");
}

#[tokio::test]
async fn a_bad_configuration_is_fatal() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = write(folder.path(), FILE, "colour = 'blue'\n");
    let refused = Command::new(env!("CARGO_BIN_EXE_comeback")).args(["daemon", "--config"]).arg(&path).output();
    let refused = refused.expect("it runs");
    let said = text(&refused.stderr);
    assert_eq!(refused.status.code(), Some(2), "{said}");
    assert!(said.contains("line 3") && said.contains("colour"), "{said}");
}

/// The output that examples/runs promises.
#[tokio::test]
async fn the_example_does_what_it_says() {
    let folder = tempfile::tempdir().expect("a folder");
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/runs");
    for name in ["runs.toml", "discover", "replay"] {
        std::fs::copy(example.join(name), folder.path().join(name)).expect("copied");
    }
    let config = folder.path().join("runs.toml");
    let written = std::fs::read_to_string(&config).expect("read").replace("127.0.0.1:7330", "127.0.0.1:0");
    std::fs::write(&config, written).expect("written");
    let server = Server::daemon(&config, &["--clock", "virtual"]);
    let client = server.client();
    let begun = Instant::now();
    while found(&client, "kind:replay").await.len() < 5 {
        assert!(begun.elapsed() < Duration::from_secs(20), "they are not discovered");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let run = async |id: &str| found(&client, &format!("external_id:{id}")).await.remove(0);
    let id = run("run-1").await["id"].as_str().expect("an id").to_owned();
    until(&client, &id, waits).await;
    advance(&client, "2m").await;
    let failed = until(&client, &id, |task| task["total_attempts"] == 2 && waits(task)).await;
    assert_eq!((&failed["last_error"]["code"], &failed["throttle_count"]), (&json!("network"), &json!(1)), "{failed}");
    advance(&client, "30s").await;
    until_over(&client, &id).await;
    for (name, state, verdict) in [
        ("run-1", "succeeded", json!("needs_review")),
        ("run-2", "succeeded", json!("passed")),
        ("run-3", "succeeded", json!("failed")),
        ("run-4", "failed", Value::Null),
        ("run-5", "pending", Value::Null),
    ] {
        let task = run(name).await;
        assert_eq!((&task["state"], &task["verdict"]), (&json!(state), &verdict), "{task}");
    }
}
