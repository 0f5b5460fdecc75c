//! A database that was damaged on purpose is found out, whichever way; one that was not is clean.

use std::path::Path;
use std::sync::Arc;

use comeback_core::{End, ExecutionId, Failure, Trigger};
use comeback_store::conformance::{World, postgres::Database};
use comeback_store::{
    Applied, CheckReport, Idempotency, Place, PostgresOptions, PostgresStore, SqliteOptions, SqliteStore, Store, sqlite,
};
use serde_json::json;

/// Tasks in every sort of state, an execution under way and one that is over, keys of both sorts, and something forgotten.
async fn live(store: Arc<dyn Store>) {
    let w = World::new(store);
    let old = w.running(w.new_task("old")).await;
    assert_eq!(w.succeed(&old.stored).await, Applied::Done);
    w.pass(3_600_000);
    assert_eq!(w.store.prune(w.now(), 1).await.expect("pruned").tasks, 1);
    w.pass(1_000);
    let done = w.running(w.retrying_task("done", json!({"max_retries": 3}))).await;
    assert_eq!(w.fail(&done.stored).await, Applied::Done);
    w.pass(60_000);
    assert_eq!(w.promote().await.count, 1);
    let again = w.claim(1).await.remove(0);
    assert_eq!(w.succeed(&again.stored).await, Applied::Done);
    let retrying = w.running(w.retrying_task("retrying", json!({"max_retries": 3}))).await;
    assert_eq!(w.fail(&retrying.stored).await, Applied::Done);
    w.running(w.new_task("running")).await;
    w.submit(vec![w.delayed_task("later", 60_000)]).await;
    let mut named = w.new_task("named");
    named.body.dedupe_key = Some("one at a time".into());
    let mut submission = w.submission(vec![named]);
    submission.idempotency = Some(Idempotency { scope: "submit".into(), key: "again".into(), digest: [7; 32] });
    w.submit_one(submission).await;
    let (open, tasks) = w.execution(&["a", "b", "c"], &["a>b", "b>c"]).await;
    finish(&w, open, tasks["a"], End::Succeeded { result: None }).await;
    let (_, tasks) = w.execution(&["a", "b"], &["a>b"]).await;
    let over = w.load(tasks["a"]).await.task.execution.expect("an execution");
    finish(&w, over, tasks["a"], End::Failed(Failure::new(Trigger::Error, "boom"))).await;
    // A child is over before one of its parents: only where dead ends are canceled does the parent count it.
    let (wide, tasks) = w.execution(&["a", "b", "child"], &["a>child", "b>child"]).await;
    finish(&w, wide, tasks["a"], End::Failed(Failure::new(Trigger::Error, "boom"))).await;
    let (half, tasks) = w.execution(&["a", "b", "child"], &["a>child", "b>child"]).await;
    finish(&w, half, tasks["a"], End::Succeeded { result: None }).await;
    let (mut submission, _, _) = w.new_execution(&["a", "b"], &["a>b"]);
    submission.execution.as_mut().expect("an execution").execution.dead_end_cancel = true;
    w.submit_one(submission).await;
    w.depend("psp", json!({"gate": {}})).await;
    w.fund("acme", 5).await;
    w.submit(vec![w.metered("paid", "acme", 2)]).await;
    // Two that have nothing to do with each other, one after the other: the last two rows of the feed.
    w.execution(&["a", "b"], &[]).await;
    let mut request = w.request(1);
    request.kinds = vec!["step".into()];
    for _ in 0..3 {
        w.claim_with(request.clone()).await;
    }
}

async fn finish(w: &World, execution: ExecutionId, task: comeback_core::TaskId, end: End) {
    let mut request = w.request(100);
    request.kinds = vec!["step".into()];
    w.claim_with(request).await;
    assert_eq!(w.settle_in(execution, task, end).await, Applied::Done);
}

/// What is done to the database, and what must be said about it.
const DAMAGES: &[(&str, &str)] = &[
    ("no-present", "delete from task_done"),
    (
        "two-presents",
        "insert into task_done (id, lane, state, version, seq, attempt, lost, throttled, snoozed, cycle, run, lease_no,
           ended_at, updated_at, success, failures)
         select id, lane, 6, version, seq, attempt, lost, throttled, snoozed, cycle, run, lease_no, updated_at, updated_at, 0, 0
         from task_open where state = 3 and execution_id is null",
    ),
    ("no-body", "delete from task where id in (select id from task_open where state = 3 and execution_id is null)"),
    ("body-disagrees", "update task_open set submitted_at = submitted_at - 1"),
    ("body-disagrees", "update task_done set policy = null where policy is not null"),
    ("unknown-number", "update task set lane = 99"),
    ("unknown-number", "update task set policy = 99 where policy is not null"),
    ("policy", "update policy set body = '{\"max_retries\": 1}'"),
    ("policy", "update policy set body = 'nonsense'"),
    ("no-execution", "delete from execution"),
    ("history-of-nobody", "delete from task where id in (select id from task_done where execution_id is null)"),
    ("history-elsewhere", "update history set execution_id = subject where execution_id is null"),
    ("edge", "update edge set to_id = (select id from task where execution_id is null limit 1) where to_id = (select max(to_id::text)::uuid from edge)"),
    ("account", "update account set reserved = 3"),
    ("account", "delete from account"),
    ("account", "update task_open set hooked = 2 where state = 4"),
    ("dependency", "delete from rule"),
    ("follower", "insert into subscription values (999, 'a', 1, null, '{}', '{}', 0, 0)"),
    ("follower", "insert into alert select min(id), 'a', 1, null, '{}', '', 0, 0 from namespace"),
    ("dedupe", "delete from dedupe"),
    ("dedupe", "update dedupe set key = 'another'"),
    ("dedupe", "update task_open set dedupe = 1"),
    ("row", "update task_open set due = due + 60000 where state = 4"),
    ("row", "update task_open set due = null where state = 0 and start_at is not null"),
    ("row", "update task_open set worker = null where state = 3"),
    ("row", "update task_open set lease_expires = null, lease_at = null where state = 3"),
    ("row", "update task_open set paused_from = 1 where state = 1"),
    ("lease", "update task_open set lease_no = 0 where state = 4"),
    ("log", "update task_open set state = 1, due = null, next_retry_at = null where state = 4"),
    ("log", "update task_open set seq = seq + 1 where state = 4"),
    ("log", "update task_done set attempt = attempt + 1 where execution_id is null"),
    ("log", "update task_done set state = 8 where state = 6"),
    ("log", "delete from history where execution_id is null and seq = 3"),
    ("log", "update history set seq = seq + 1 where execution_id is null and seq > 3"),
    ("history", "update history set decision = '{' where decision is not null"),
    ("counts", "update execution set open = open + 1"),
    ("counts", "update execution set total = total + 1"),
    ("counts", "update execution set state = 3 where state = 4"),
    ("counts", "update execution set state = 3 where state = 1"),
    ("needs", "update task_open set needs_left = needs_left + 1 where needs_left > 0"),
    ("needs", "update task_open set children_left = children_left + 1 where execution_id is not null"),
    (
        "needs",
        "update edge set met_when = 1 where from_id in (select id from task_done where state = 6)
           and to_id in (select id from task_open where needs_left = 1);
         update task_open set needs_left = 2 where needs_left = 1
           and id in (select to_id from edge where from_id in (select id from task_done where state = 6))",
    ),
    ("hold", "update task_open set hold = 1 where execution_id is not null and state = 0"),
    ("hold", "update execution set state = 2 where state = 1"),
    ("feed-order", LAST_BUT_ONE_LAST),
    ("log", "update execution set seq = seq + 1"),
    ("log", "delete from history where execution_id is not null and seq = 2"),
    ("feed", "delete from feed where id = (select max(id) from feed)"),
    ("feed", "update meta set value = '0' where key = 'pruned_before'"),
    ("answer", "update idempotency set answer = '?'"),
    ("answer", "update idempotency set namespace = 99"),
    ("answer", "update idempotency set answer = '{\"t\":[[\"ffffffff-ffff-7fff-bfff-ffffffffffff\",\"pending\",false]]}'"),
    ("missing-object", "drop index open_ready"),
    ("missing-object", "drop table loop_pause"),
    ("unreadable", "drop table feed"),
];

/// Only the log of the execution is out of order: the two rows tell of different tasks. On PostgreSQL the number of a transaction
/// comes first.
const LAST_BUT_ONE_LAST: &str = "update feed set id = default, xid = (select xid from feed order by xid desc limit 1)
     where id = (select max(id) from feed where id < (select max(id) from feed))";

fn must_find(report: &CheckReport, code: &str, damage: &str) {
    let found: Vec<&str> = report.findings.iter().map(|finding| finding.code).collect();
    assert!(found.contains(&code), "{damage}\nfound {:#?}", report.findings);
    let about_tasks = ["no-present", "row", "log", "lease", "needs", "dedupe", "feed", "feed-order", "hold", "counts"];
    if about_tasks.contains(&code) {
        let named = report.findings.iter().filter(|it| it.code == code).all(|it| it.about.is_some());
        assert!(named, "{damage}: a finding without an id");
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime")
}

async fn check(place: &Place) -> CheckReport {
    place.check(&mut |_| ()).await.expect("it can be checked")
}

async fn healthy_file(folder: &Path) -> std::path::PathBuf {
    let path = folder.join("healthy.db");
    live(Arc::new(SqliteStore::open(&SqliteOptions::file(&path)).expect("opens"))).await;
    let report = check(&Place::File(path.clone())).await;
    assert!(report.is_clean(), "{report:#?}");
    let looked_at = |name: &str| report.parts.iter().find(|part| part.name == name).map_or(0, |part| part.looked_at);
    assert_eq!(looked_at("open tasks"), 14);
    assert_eq!(looked_at("finished tasks"), 7);
    assert_eq!(looked_at("executions"), 6);
    assert_eq!(looked_at("idempotency"), 1);
    path
}

#[test]
fn every_damage_to_a_file_is_found() {
    runtime().block_on(async {
        let folder = tempfile::tempdir().expect("a folder");
        let healthy = healthy_file(folder.path()).await;
        for (i, (code, damage)) in DAMAGES.iter().enumerate() {
            let path = folder.path().join(format!("{i}.db"));
            sqlite::backup(&healthy, &path, &mut |_| ()).expect("a copy");
            let connection = rusqlite::Connection::open(&path).expect("opens");
            let damage = damage.replace("max(to_id::text)::uuid", "max(to_id)").replace(
                "id = default, xid = (select xid from feed order by xid desc limit 1)",
                "id = 1 + (select max(id) from feed)",
            );
            connection.execute_batch(&format!("pragma foreign_keys = off; {damage}")).expect("damaged");
            assert!(connection.changes() > 0 || damage.starts_with("drop"), "nothing was damaged: {damage}");
            drop(connection);
            must_find(&check(&Place::File(path)).await, code, &damage);
        }
    });
}

/// The file itself: a page of noise, and an index that leaves something out.
#[test]
fn a_file_with_a_broken_page_or_index_is_found() {
    runtime().block_on(async {
        let folder = tempfile::tempdir().expect("a folder");
        let healthy = healthy_file(folder.path()).await;
        let lied = folder.path().join("lied.db");
        sqlite::backup(&healthy, &lied, &mut |_| ()).expect("a copy");
        let connection = rusqlite::Connection::open(&lied).expect("opens");
        connection
            .execute_batch(
                "pragma writable_schema = on;
                 update sqlite_master set sql = replace(sql, 'state = 1', 'state = 4') where name = 'open_ready'",
            )
            .expect("damaged");
        drop(connection);
        must_find(&check(&Place::File(lied)).await, "database", "an index that leaves something out");
        let noisy = folder.path().join("noisy.db");
        sqlite::backup(&healthy, &noisy, &mut |_| ()).expect("a copy");
        let mut bytes = std::fs::read(&noisy).expect("the file");
        let middle = bytes.len() / 2 / 8_192 * 8_192;
        bytes[middle..middle + 8_192].fill(0x5a);
        std::fs::write(&noisy, bytes).expect("written");
        let report = check(&Place::File(noisy)).await;
        assert!(!report.is_clean(), "a page of noise");
    });
}

#[test]
fn a_file_that_is_older_or_empty_is_not_checked() {
    runtime().block_on(async {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("empty.db");
        drop(rusqlite::Connection::open(&path).expect("opens"));
        std::fs::write(&path, b"").expect("an empty file");
        let error = Place::File(path).check(&mut |_| ()).await.expect_err("nothing to check");
        assert!(error.to_string().contains("comeback db migrate"), "{error}");
    });
}

#[test]
fn every_damage_to_postgres_is_found() {
    runtime().block_on(async {
        let database = Database::create().await;
        let options =
            |url: String| PostgresOptions { require_durability: false, warm_up: false, ..PostgresOptions::new(url) };
        let store = PostgresStore::open(&options(database.url())).await.expect("opens");
        live(Arc::new(store)).await;
        let report = check(&Place::Server(options(database.url()))).await;
        assert!(report.is_clean(), "{report:#?}");
        for (code, damage) in DAMAGES {
            let copy = database.copy().await;
            let client = copy.connect().await;
            client.batch_execute(&format!("set search_path = comeback; {damage}")).await.expect("damaged");
            must_find(&check(&Place::Server(options(copy.url()))).await, code, damage);
            drop(client);
            copy.drop().await;
        }
        index_left_behind(&database, &options).await;
        feed_of_another_cluster(&database, &options).await;
        database.drop().await;
    });
}

async fn index_left_behind(database: &Database, options: &impl Fn(String) -> PostgresOptions) {
    let copy = database.copy().await;
    let client = copy.connect().await;
    let ready = |word: &str| {
        format!("update pg_index set indisready = {word} where indexrelid = 'comeback.open_retry'::regclass")
    };
    client.batch_execute(&ready("false")).await.expect("the index sleeps");
    drop(client);
    let client = copy.connect().await;
    let moved = "update comeback.task_open set due = due, state = 4, next_retry_at = 1 where state = 1";
    client.batch_execute(moved).await.expect("nobody tells the index");
    client.batch_execute(&ready("true")).await.expect("the index wakes");
    drop(client);
    let report = check(&Place::Server(options(copy.url()))).await;
    let said = report.findings.iter().any(|it| it.words.contains("the index open_retry finds"));
    assert!(said, "{:#?}", report.findings);
    copy.drop().await;
}

/// As after a restore into a younger cluster: it is found, put right by whoever opens it, and the feed goes on.
async fn feed_of_another_cluster(database: &Database, options: &impl Fn(String) -> PostgresOptions) {
    let copy = database.copy().await;
    let client = copy.connect().await;
    let elsewhere = "update comeback.feed set xid = (xid::text::int8 + 1000000000)::text::xid8";
    client.batch_execute(elsewhere).await.expect("as if restored");
    let place = Place::Server(options(copy.url()));
    let report = check(&place).await;
    assert!(report.findings.iter().any(|it| it.words.contains("another cluster")), "{:#?}", report.findings);
    let store = place.open().await.expect("opens");
    let first = store.feed(None, 500).await.expect("the feed");
    assert!(first.events.len() > 20, "the past is there");
    let mut end = first.next;
    loop {
        let page = store.feed(end, 500).await.expect("the feed");
        if page.next == end {
            break;
        }
        end = page.next;
    }
    let w = World::new(store.clone());
    w.pass(10 * 3_600_000);
    w.submit_many("new", 1).await;
    // Another test's transaction in the same cluster may hold it up for a moment.
    let mut events = Vec::new();
    for _ in 0..200 {
        events = store.feed(end, 500).await.expect("the feed").events;
        if !events.is_empty() {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    assert_eq!(events.len(), 2, "and goes on");
    assert!(check(&place).await.is_clean());
    copy.drop().await;
}
