//! The plans of the statements that carry the load: each must go through its index, in an empty store and in a full one.
//! The same schema is ten times slower by plan alone, so a plan that changes is a test that fails.

use comeback_core::filter::{Filter, Sort};
use tokio_postgres::{Client, NoTls};

use super::setup::{HOT, PostgresOptions};
use crate::ListQuery;
use crate::conformance::postgres::Database;
use crate::query::TaskTable;

fn options(database: &Database) -> PostgresOptions {
    PostgresOptions { require_durability: false, warm_up: false, ..PostgresOptions::new(database.url()) }
}

/// A connection with the hot settings, on a database with this many open tasks. The planner has counted them when it was told to.
async fn filled(database: &Database, rows: i32, counted: bool) -> Client {
    let options = options(database);
    super::PostgresStore::open(&options).await.expect("the store opens");
    let (client, connection) =
        options.config(HOT).expect("a configuration").connect(NoTls).await.expect("the cluster answers");
    tokio::spawn(connection);
    client
        .batch_execute(&format!(
            "insert into namespace (name) values ('default');
             insert into lane (namespace, queue, kind, executor, dependency, shared)
               select 1, 'default', 'k' || n, 0, '', 0 from generate_series(1, 20) n;
             insert into task (id, namespace, lane, priority, hard_deadline, dead_end_barrier, submitted_at)
               select gen_random_uuid(), 1, 1 + n % 20, 0, 0, 0, n from generate_series(1, {rows}) n;
             insert into task_open (id, lane, state, prio, hold, submitted_at, version, seq, unwritten, attempt, lost,
                 throttled, snoozed, cycle, run, lease_no, due, lease_expires, timeout_at, expires_at, next_retry_at,
                 hard_deadline, updated_at, parked, success, failures, needs_left, children_left, dead_end_barrier, dedupe)
               select id, lane, case submitted_at % 4 when 0 then 1 when 1 then 4 when 2 then 3 else 0 end, 0, 0,
                 submitted_at, 1, 2, 0, 0, 0, 0, 0, 0, 0, 0,
                 case when submitted_at % 4 in (1, 3) then submitted_at end,
                 case when submitted_at % 4 = 2 then submitted_at end,
                 case when submitted_at % 40 = 2 then submitted_at end,
                 case when submitted_at % 40 = 0 then submitted_at end,
                 case when submitted_at % 4 = 1 then submitted_at end,
                 0, 0, 0, 0, 0, 0, 0, 0, 0 from task;
             insert into task_done (id, lane, state, version, seq, attempt, lost, throttled, snoozed, cycle, run, lease_no,
                 ended_at, updated_at, success, failures)
               select gen_random_uuid(), 1, case n % 50 when 0 then 7 else 6 end, 1, 1, 0, 0, 0, 0, 0, 1, 1, n, n, 0, 0
                 from generate_series(1, {rows}) n;
             insert into task (id, namespace, lane, priority, hard_deadline, dead_end_barrier, submitted_at)
               select id, 1, lane, 0, 0, 0, ended_at from task_done;
             insert into history (subject, seq, events, at, cycle, run, attempt, lease_no)
               select id, 1, '', 0, 0, 0, 0, 0 from task;
             insert into feed (at, namespace, ids, firsts, lasts)
               select 0, 1, array[id], array[1], array[1] from task;
             {}",
            if counted { "analyze" } else { "" }
        ))
        .await
        .expect("the rows go in");
    client
}

async fn plan(client: &Client, sql: &str) -> String {
    client.batch_execute(&format!("prepare question as {sql}")).await.unwrap_or_else(|error| panic!("{error}: {sql}"));
    let count: i32 = client
        .query_one("select cardinality(parameter_types) from pg_prepared_statements where name = 'question'", &[])
        .await
        .expect("it was prepared")
        .get(0);
    let arguments = if count == 0 { String::new() } else { format!("({})", vec!["null"; count as usize].join(", ")) };
    let rows = client.simple_query(&format!("explain execute question{arguments}")).await.expect("it has a plan");
    client.batch_execute("deallocate question").await.expect("forgotten");
    let lines = rows.iter().filter_map(|row| match row {
        tokio_postgres::SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
        _ => None,
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// The plan must name these indexes and read no table of tasks from end to end.
fn check(plan: &str, indexes: &[&str]) {
    for index in indexes {
        assert!(plan.contains(&format!("using {index}")), "{index} is not used:\n{plan}");
    }
    for table in ["task", "task_open", "task_done", "history", "feed", "execution"] {
        assert!(!plan.contains(&format!("Seq Scan on {table} ")), "{table} is read whole:\n{plan}");
    }
    for join in ["Hash Join", "Merge Join"] {
        assert!(!plan.contains(join), "{join}:\n{plan}");
    }
}

/// The first page of a list, where those that match are many: in the order of an index, until it is full.
async fn check_pages(database: &Database) {
    let store = super::PostgresStore::open(&options(database)).await.expect("the store opens");
    for (filter, half, sort, indexes) in [
        ("", TaskTable::Open, Sort::SubmittedDesc, &["task_open_pkey"][..]),
        ("kind:k3,k4,k5 queue:default", TaskTable::Open, Sort::SubmittedDesc, &["task_open_pkey"][..]),
        ("", TaskTable::Open, Sort::Due, &["open_retry", "open_start", "open_held"][..]),
        ("", TaskTable::Done, Sort::SubmittedDesc, &["task_done_pkey"][..]),
        ("kind:k3,k4,k5 queue:default", TaskTable::Done, Sort::SubmittedDesc, &["task_done_pkey"][..]),
        ("state:failed", TaskTable::Done, Sort::SubmittedDesc, &["done_state"][..]),
        ("state:held,running", TaskTable::Open, Sort::SubmittedDesc, &["task_open_pkey"][..]),
    ] {
        let now = comeback_core::Timestamp(0);
        let filter = Filter::parse(filter, now).expect("a filter");
        let query = ListQuery { filter, sort, limit: 50, after: None, now };
        let found = super::list::question(&store, "default", &query, half, &[]).plan().expect("a plan");
        let pages: Vec<String> = found.rounds[0].iter().map(|it| format!("select * from {}", it.page(51))).collect();
        assert_eq!(pages.len(), indexes.len());
        for few in found.shortcuts.iter().flat_map(|it| &it.statements) {
            let page = format!("select * from {}", few.page(51));
            check(&plan(&store.reader().await.expect("a reader"), &page).await, &[]);
        }
        for (page, index) in pages.iter().zip(indexes) {
            let plan = plan(&store.reader().await.expect("a reader"), page).await;
            // Those of paused executions are sorted: they are few, and no index has them in this order.
            let is_in_order = *index == "open_held" || !plan.contains("Sort");
            let is_used = ["using", "Bitmap Index Scan on"].iter().any(|it| plan.contains(&format!("{it} {index}")));
            assert!(is_used && is_in_order, "{page}\n{plan}");
            check(&plan, &[]);
        }
    }
}

#[test]
fn every_hot_statement_goes_through_its_index() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        for rows in [10, 60_000] {
            let database = Database::create().await;
            let client = filled(&database, rows, true).await;
            for (claim, index) in [
                (&super::claim::ONE_LANE, "open_ready"),
                (&super::claim::MANY_LANES, "open_ready"),
                (&super::claim::DUE, "open_retry"),
            ] {
                let plan = plan(&client, claim).await;
                check(&plan, &[index, "task_pkey"]);
                assert!(plan.contains("Tid Scan on task_open o"), "rows are not found by their place:\n{plan}");
            }
            check(&plan(&client, &super::claim::CANDIDATES).await, &["open_ready"]);
            check(&plan(&client, &super::claim::LOCK).await, &["task_open_pkey", "task_pkey"]);
            check(&plan(&client, &super::apply::SUCCESS).await, &["task_open_pkey"]);
            check(&plan(&client, &super::apply::RETRY).await, &["task_open_pkey"]);
            check(&plan(&client, &super::apply::END).await, &["task_open_pkey"]);
            check(&plan(&client, &super::apply::MOVE).await, &["task_open_pkey"]);
            check(&plan(&client, &super::promote::RETRIES).await, &["open_retry", "task_open_pkey"]);
            check(&plan(&client, &super::promote::STARTS).await, &["open_start", "task_open_pkey"]);
            check(&plan(&client, super::heartbeat::BEAT).await, &["task_open_pkey"]);
            check(&plan(&client, &super::queries::OPEN).await, &["task_open_pkey"]);
            check(&plan(&client, super::claim::READY_LANES).await, &["open_ready"]);
            check(&plan(&client, super::rules::BEST).await, &["open_ready"]);
            for statement in super::rules::in_use_statements() {
                check(&plan(&client, &statement).await, &["open_ruled"]);
            }
            for limited in [false, true] {
                let statement = crate::forget::empty_lanes(limited, "$1::int4", "$2::int8");
                check(&plan(&client, &statement).await, &["task_lane"]);
            }
            check(&plan(&client, super::due::NEXT_DUE).await, &["open_retry", "open_start", "open_lease"]);
            check(&plan(&client, super::feed::ROWS_FROM).await, &["feed_position_pkey", "feed_pkey"]);
            check(&plan(&client, super::sequence::PASS).await, &["feed_position_pkey", "feed_order"]);
            check(&plan(&client, super::sequence::IS_NEEDED).await, &["feed_position_pkey", "feed_order"]);
            if rows > 10 {
                check_pages(&database).await;
            }
            drop(client);
            database.drop().await;
        }
    });
}

/// A million rows may come in within the minute before they are counted.
#[test]
fn a_page_goes_through_its_index_before_anything_was_counted() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let database = Database::create().await;
        drop(filled(&database, 60_000, false).await);
        check_pages(&database).await;
        database.drop().await;
    });
}
