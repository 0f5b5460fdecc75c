//! What is true of several instances on one PostgreSQL, some of them of another version.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use comeback_core::dependency::How;
use comeback_core::filter::Filter;
use comeback_core::transition::{self, Actor};
use comeback_core::{Class, End, Failure, Millis, TaskId, Trigger};
use comeback_store::conformance::{World, migration, postgres::Database};
use comeback_store::{
    Applied, ClaimRequest, Due, Idempotency, Place, PostgresOptions, PostgresStore, Promote, SCHEMA_VERSION, Store,
    Submission, Submitted,
};
use serde_json::json;

fn options(database: &Database) -> PostgresOptions {
    PostgresOptions { require_durability: false, warm_up: false, ..PostgresOptions::new(database.url()) }
}

async fn instance(database: &Database) -> Arc<dyn Store> {
    Arc::new(PostgresStore::open(&options(database)).await.expect("opens"))
}

fn run<F: Future<Output = ()>>(story: impl FnOnce(Database) -> F) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime").block_on(async { story(Database::create().await).await });
}

/// R-I20: an instance of an older version reads the feed in the order of transactions' numbers, so an act under a key has none before
/// it is its turn to write into the log of its execution.
#[test]
fn an_act_under_a_key_waits_for_its_turn_without_a_number() {
    run(|database| async move {
        let w = World::new(instance(&database).await);
        let (id, tasks) = w.execution(&["a"], &[]).await;
        let mut other = database.connect().await;
        let others = other.transaction().await.expect("begins");
        let turn = (id.0.as_u64_pair().1 & u64::from(u32::MAX)) as u32;
        others
            .execute("select pg_advisory_xact_lock(x'6362'::int4, $1)", &[&turn.cast_signed()])
            .await
            .expect("a turn");
        others.execute("select 1 from comeback.execution where id = $1 for update", &[&id.0]).await.expect("a lock");
        let mut working = w.working(id).await;
        let paused = transition::pause(&w.load(tasks["a"]).await.task, &Actor::default(), w.now()).expect("pauses");
        working.apply(paused, w.now()).expect("loaded");
        let (commit, store, now) = (working.into_commit(), w.store.clone(), w.now());
        let act = tokio::spawn(async move {
            let key = Idempotency { scope: "pause".into(), key: "k".into(), digest: [1; 32] };
            store.apply_once("default", &key, Some(&commit), now).await
        });
        let look = database.connect().await;
        let waits = "select backend_xid is null from pg_stat_activity
                     where datname = current_database() and wait_event_type = 'Lock'";
        let has_no_number: bool = loop {
            if let Some(row) = look.query_opt(waits, &[]).await.expect("reads") {
                break row.get(0);
            }
            assert!(!act.is_finished(), "it did not wait at all");
            tokio::task::yield_now().await;
        };
        assert!(has_no_number, "who comes later could be told first");
        others.rollback().await.expect("lets it go");
        assert_eq!(act.await.expect("no panic").expect("stored"), Applied::Done);
        database.drop().await;
    });
}

/// R-I27: beside a newer version, what it has written and this one cannot read is left alone, and all else goes on.
#[test]
fn what_a_newer_version_has_written_is_left_alone() {
    run(|database| async move {
        let newer = World::new(instance(&database).await);
        let strange_policy = json!({"strategy": "fixed", "delay": "1s", "max_retries": 7});
        let policy = json!({"strategy": "fixed", "delay": "1s", "max_retries": 3});
        let lost = newer.running(newer.retrying_task("a", policy.clone())).await.stored.task.id;
        let strange_lost = newer.running(newer.retrying_task("a", strange_policy.clone())).await.stored.task.id;
        let due = newer.running(newer.retrying_task("b", policy.clone())).await;
        newer.fail(&due.stored).await;
        let elsewhere = newer.running(newer.retrying_task("strange", policy.clone())).await;
        newer.fail(&elsewhere.stored).await;
        let ready = newer.submit(vec![newer.retrying_task("c", policy)]).await[0];
        newer.submit(vec![newer.retrying_task("c", strange_policy)]).await;
        let client = database.connect().await;
        let written = "update comeback.policy set body = 'of the future' where body like '%7%';
                       update comeback.lane set executor = 99 where kind = 'strange'";
        client.batch_execute(written).await.expect("as a newer version would");

        let w = World::new(instance(&database).await);
        w.go_to(newer.now());
        w.pass(120_000);
        let leases: Vec<TaskId> =
            w.store.due(Due::Leases, w.now(), 10).await.expect("reads").iter().map(|it| it.task.id).collect();
        assert_eq!(leases, [lost], "and not {strange_lost}");
        let promoted = w.store.promote(Promote::Retries, w.now(), 10).await.expect("promotes");
        assert_eq!(promoted.count, 1, "its own, and not what is in a strange lane");
        let request = ClaimRequest { kinds: vec!["c".into()], lease: Millis(1_000), ..w.request(10) };
        let claimed: Vec<TaskId> = w.claim_with(request).await.iter().map(|it| it.stored.task.id).collect();
        assert_eq!(claimed, [ready]);
        let more = w.submission(vec![w.retrying_task("new", json!({"max_retries": 2}))]);
        assert!(matches!(w.submit_one(more).await, Submitted::Created(_)), "new work is taken");
        assert!(w.store.load(&[strange_lost]).await.is_err(), "who asks for it is told");
        database.drop().await;
    });
}

/// Numbers are given in one order and committed in another: a policy may be known later than one with a higher number.
#[test]
fn a_policy_is_known_whenever_its_number_was_committed() {
    run(|database| async move {
        let (one, two) = (World::new(instance(&database).await), World::new(instance(&database).await));
        let policy = |retries: u32| json!({"strategy": "fixed", "delay": "1s", "max_retries": retries});
        one.submit(vec![one.retrying_task("a", policy(1))]).await;
        let mut late = database.connect().await;
        let tx = late.transaction().await.expect("begins");
        tx.execute("select nextval(pg_get_serial_sequence('comeback.policy', 'id'))", &[]).await.expect("a number");
        one.submit(vec![one.retrying_task("a", policy(2))]).await;
        assert_eq!(two.claim(2).await.len(), 2, "two knows a higher number now");
        tx.execute(
            "insert into comeback.policy (id, digest, body) overriding system value
             select currval(pg_get_serial_sequence('comeback.policy', 'id')), sha256(convert_to(body, 'utf8')), body
             from (select replace(body, '\"max_retries\":2', '\"max_retries\":3') as body from comeback.policy order by id desc limit 1) p",
            &[],
        )
        .await
        .expect("a policy");
        tx.commit().await.expect("late");
        for w in [&one, &two] {
            w.pass(1);
            let new = w.retrying_task("late", policy(3));
            let expected = new.policy.clone();
            assert_eq!(w.running(new).await.stored.policy, expected);
        }
        let count = late.query_one("select count(*) from comeback.policy", &[]).await.expect("reads");
        assert_eq!(count.get::<_, i64>(0), 3, "the late one is the one");
        assert!(Place::Server(options(&database)).check(&mut |_| ()).await.expect("checks").is_clean());
        database.drop().await;
    });
}

/// The most that ran at once, by what workers of four instances saw who all want everything at the same moments.
async fn storm(database: &Database, without_locks: bool) -> u64 {
    const ROUNDS: usize = 40;
    let mut stores: Vec<Arc<dyn Store>> = Vec::new();
    for _ in 0..4 {
        let options = PostgresOptions { count_without_locks: without_locks, ..options(database) };
        stores.push(Arc::new(PostgresStore::open(&options).await.expect("opens")));
    }
    let w = World::new(stores[0].clone());
    w.rule(json!({"name": "r", "match": {"labels": {"db": "main"}}, "max_running": 5})).await;
    let on_main = |kind: usize| {
        let mut new = w.new_task(&format!("k{kind}"));
        new.body.labels = [("db".to_owned(), "main".to_owned())].into();
        new
    };
    w.submit((0..ROUNDS * 32).map(|n| on_main(n % 3)).collect()).await;
    let (running, most) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let together = Arc::new(tokio::sync::Barrier::new(2 * stores.len()));
    let mut workers = Vec::new();
    for store in stores.iter().chain(&stores) {
        let (store, now) = (store.clone(), w.now());
        let (running, most, together) = (running.clone(), most.clone(), together.clone());
        let w = w.clone();
        workers.push(tokio::spawn(async move {
            // All claim at one moment and nobody ends anything before all have: what is counted then is what runs.
            for _ in 0..ROUNDS {
                together.wait().await;
                let claimed = store.claim(&[w.request(4)], now).await.expect("claims").remove(0);
                running.fetch_add(claimed.len() as u64, Ordering::SeqCst);
                together.wait().await;
                most.fetch_max(running.load(Ordering::SeqCst), Ordering::SeqCst);
                together.wait().await;
                running.fetch_sub(claimed.len() as u64, Ordering::SeqCst);
                let ends: Vec<_> =
                    claimed.iter().map(|it| w.decide(&it.stored, End::Succeeded { result: None }).into()).collect();
                let applied = store.apply(&ends, None, now).await.expect("ends");
                assert!(applied.iter().all(|it| *it == Applied::Done), "{applied:?}");
            }
        }));
    }
    for worker in workers {
        worker.await.expect("no panic");
    }
    most.load(Ordering::SeqCst)
}

/// R-I15: a limit holds over all instances. Without the locks that a claim takes before it counts, the same storm breaks it.
#[test]
fn a_rule_holds_over_all_instances() {
    run(|database| async move {
        let most = storm(&database, false).await;
        assert!((1..=5).contains(&most), "{most} ran at once");
        comeback_store::conformance::holds_together(&Place::Server(options(&database))).await;
        database.drop().await;
    });
}

#[test]
fn the_storm_breaks_a_store_that_counts_without_locks() {
    run(|database| async move {
        let most = storm(&database, true).await;
        assert!(most > 5, "{most} ran at once: the test above proves nothing");
        database.drop().await;
    });
}

/// What an account held, what was ever reserved and spent of it, and the most that was seen to be reserved, when tasks of four
/// instances want it all at the same moments: some succeed, some fail and are retried by hand, and some are canceled.
async fn spree(database: &Database, without_looking: bool) -> (i64, comeback_core::account::Credits, i64) {
    const HELD: i64 = 40;
    let mut stores: Vec<Arc<dyn Store>> = Vec::new();
    for _ in 0..4 {
        let options = PostgresOptions { count_without_locks: without_looking, ..options(database) };
        stores.push(Arc::new(PostgresStore::open(&options).await.expect("opens")));
    }
    let w = World::new(stores[0].clone());
    w.fund("acme", HELD).await;
    let most = Arc::new(AtomicI64::new(0));
    let mut callers = Vec::new();
    for (n, store) in stores.iter().cycle().take(12).enumerate() {
        let w = World { store: store.clone(), ..w.clone() };
        let most = most.clone();
        callers.push(tokio::spawn(async move {
            for round in 0..25 {
                let kind = format!("k{n}");
                let made = w.submit_one(w.submission(vec![w.metered(&kind, "acme", 1 + (n % 3) as u32)])).await;
                let account = w.store.account("default", "acme").await.expect("reads").expect("it is there");
                most.fetch_max(account.credits.reserved - account.credits.held, Ordering::SeqCst);
                let Submitted::Created(tasks) = made else { continue };
                let request = ClaimRequest { kinds: vec![kind], ..w.request(1) };
                let claimed = w.claim_with(request).await.remove(0);
                assert_eq!(claimed.stored.task.id, tasks[0].id);
                let end = match round % 4 {
                    0 => End::Succeeded { result: None },
                    _ => End::Failed(Failure { class: Some(Class::Final), ..Failure::new(Trigger::Error, "x") }),
                };
                assert_eq!(w.end(&claimed.stored, end).await, Applied::Done);
                if round % 4 == 1 {
                    let over = w.load(tasks[0].id).await.task;
                    let again = transition::manual_retry(&over, false, &Actor::default(), w.now()).expect("retryable");
                    if w.apply(again).await == Applied::Done {
                        w.cancel(tasks[0].id).await;
                    }
                }
            }
        }));
    }
    for caller in callers {
        caller.await.expect("no panic");
    }
    let account = w.store.account("default", "acme").await.expect("reads").expect("it is there");
    (HELD, account.credits, most.load(Ordering::SeqCst))
}

/// I-19: never is more reserved than there is, whoever asks where. A store that looks first and reserves then breaks it.
#[test]
fn an_account_is_never_overspent_by_many_instances() {
    run(|database| async move {
        let (held, credits, most) = spree(&database, false).await;
        assert!(most <= 0, "{most} more were reserved than there were");
        assert_eq!((credits.held + credits.spent, credits.reserved), (held, 0), "nothing is made and nothing lost");
        assert!(credits.held >= 0 && credits.spent > held / 2, "{credits:?}: most of it was wanted");
        comeback_store::conformance::holds_together(&Place::Server(options(&database))).await;
        database.drop().await;
    });
}

#[test]
fn the_spree_overspends_where_a_store_does_not_compare() {
    run(|database| async move {
        let (_, credits, most) = spree(&database, true).await;
        assert!(most > 0 || credits.held < 0, "{credits:?}: the test above proves nothing");
        database.drop().await;
    });
}

/// Whoever submits by rules that another instance has just changed puts tasks where they belong all the same.
#[test]
fn a_new_rule_binds_what_other_instances_submit_at_the_same_moment() {
    run(|database| async move {
        let one = World::new(instance(&database).await);
        let two = World { store: instance(&database).await, ..one.clone() };
        for n in 0..20 {
            let (kind, name) = (format!("k{n}"), format!("r{n}"));
            let submits = async {
                for _ in 0..10 {
                    two.submit_many(&kind, 3).await;
                }
            };
            let puts = one.rule(json!({"name": name, "match": {"kind": kind}, "max_running": 2}));
            tokio::join!(submits, puts);
            two.submit_many(&kind, 3).await;
            let request = ClaimRequest { kinds: vec![kind.clone()], ..two.request(100) };
            assert_eq!(two.claim_with(request.clone()).await.len(), 2, "{kind}");
            assert_eq!(one.claim_with(request).await.len(), 0, "{kind}");
        }
        database.drop().await;
    });
}

/// F1-14: whoever looks whether a task like theirs is there sees what another instance is making at that moment.
#[test]
fn two_instances_make_what_was_absent_once() {
    run(|database| async move {
        let one = World::new(instance(&database).await);
        let two = World { store: instance(&database).await, ..one.clone() };
        for n in 0..50 {
            let kind = format!("k{n}");
            let unless = vec![Filter::parse(&format!("kind:{kind} state:open"), one.now()).expect("a filter")];
            let ask = |w: &World| {
                let (mut new, _, _) = w.new_execution(&["a"], &[]);
                new.tasks[0].task.lane =
                    Arc::new(comeback_core::Lane { kind: kind.clone(), ..(*new.tasks[0].task.lane).clone() });
                Submission { unless: unless.clone(), ..new }
            };
            let (a, b) = tokio::join!(one.submit_one(ask(&one)), two.submit_one(ask(&two)));
            let made = [&a, &b].iter().filter(|it| matches!(it, Submitted::Created(_))).count();
            assert_eq!(made, 1, "{a:?} {b:?}");
        }
        database.drop().await;
    });
}

/// Three instances ask at the same moment, again and again: no more canaries go than are allowed, no more of a wave, and no more run
/// at once.
#[test]
fn what_a_dependency_allows_holds_over_all_instances() {
    run(|database| async move {
        let worlds = [
            World::new(instance(&database).await),
            World::new(instance(&database).await),
            World::new(instance(&database).await),
        ];
        let w = &worlds[0];
        let breaker = json!({"failures": 1, "open": "1s", "canaries": 4, "first_wave": 8, "wave": "1s"});
        w.depend("psp", json!({"breaker": breaker, "concurrency": {"min": 10, "max": 10}})).await;
        w.submit((0..60).map(|_| w.depending("pay", "psp")).collect()).await;
        let ask = |n: usize, now| {
            let (store, request) = (worlds[n % 3].store.clone(), w.request(1 + (n % 4) as u32));
            tokio::spawn(async move { store.claim(&[request], now).await.expect("claims").remove(0).len() })
        };
        let all_ask = async |now| {
            let asked: Vec<_> = (0..24).map(|n| ask(n, now)).collect();
            let mut started = 0;
            for it in asked {
                started += it.await.expect("no panic");
            }
            started
        };
        w.seen("psp", How::Failed, 1).await;
        assert_eq!(all_ask(w.now()).await, 0, "open");
        w.pass(1_000);
        assert_eq!(all_ask(w.now()).await, 4, "so many canaries");
        w.seen("psp", How::Answered, 4).await;
        assert_eq!(all_ask(w.now()).await, 1, "the beginning of a wave");
        w.pass(999);
        assert_eq!(all_ask(w.now()).await, 5, "ten run at once, and no more");
        database.drop().await;
    });
}

/// S1-90: whatever a migration adds, tasks that were there before go on as if they had been written today.
#[test]
fn a_migration_changes_nothing_about_the_rows_that_exist() {
    run(|newest| async move {
        let w = World::new(instance(&newest).await);
        let (ids, began) = (migration::rows(&w).await, w.now());
        drop(w);
        let mut copies = Vec::new();
        for version in 1..=SCHEMA_VERSION {
            let copy = newest.copy().await;
            bring_back(&copy, version).await;
            copies.push((version, copy));
        }
        let expected = migration::told(&World::new(instance(&newest).await), &ids, began).await;
        for (version, copy) in copies {
            let w = World::new(instance(&copy).await);
            assert_eq!(migration::told(&w, &ids, began).await, expected, "from schema {version}");
            comeback_store::conformance::holds_together(&Place::Server(options(&copy))).await;
            copy.drop().await;
        }
        newest.drop().await;
    });
}

/// Keys, policies and drained workers of schema 11 are kept when they become rows.
#[test]
fn what_was_one_text_each_becomes_rows() {
    run(|database| async move {
        drop(instance(&database).await);
        let copy = database.copy().await;
        bring_back(&copy, 11).await;
        let client = copy.connect().await;
        for (key, value) in migration::DOCUMENTS {
            client
                .execute("insert into comeback.meta (key, value) values ($1, $2)", &[&key, &value])
                .await
                .expect("written");
        }
        migration::check_documents(&*instance(&copy).await).await;
        copy.drop().await;
        database.drop().await;
    });
}

/// A database as an older schema would hold it: the same rows, as far as that one has columns for them.
async fn bring_back(database: &Database, version: i32) {
    let client = database.connect().await;
    let run = async |sql: String| client.batch_execute(&sql).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    // Without what guards the rows: neither the order of the tables nor an audit that stays is what this is about.
    run("set session_replication_role = replica; alter schema comeback rename to newest; create schema comeback;
         set search_path = comeback"
        .into())
    .await;
    for number in 1..=version {
        run(migration::sql("postgres", number)).await;
    }
    let tables = "select c.table_name::text, string_agg(quote_ident(c.column_name::text), ', ')
                  from information_schema.columns c where c.table_schema = 'comeback' group by 1";
    let tables = client.query(tables, &[]).await.expect("reads");
    for (table, columns) in tables.iter().map(|row| (row.get::<_, String>(0), row.get::<_, String>(1))) {
        run(format!(
            "delete from {table}; insert into {table} ({columns}) overriding system value select {columns} from newest.{table}"
        ))
        .await;
    }
    let numbered = "select table_name::text, column_name::text from information_schema.columns
                    where table_schema = 'comeback' and pg_get_serial_sequence(table_name, column_name) is not null";
    for row in client.query(numbered, &[]).await.expect("reads") {
        let (table, column): (String, String) = (row.get(0), row.get(1));
        let newest = format!("select coalesce(max({column}), 0) + 1 from {table}");
        run(format!("select setval(pg_get_serial_sequence('{table}', '{column}'), ({newest}), false)")).await;
    }
    run(format!(
        "create table refinery_schema_history (like newest.refinery_schema_history including all);
         insert into refinery_schema_history select * from newest.refinery_schema_history where version <= {version};
         drop schema newest cascade"
    ))
    .await;
}

/// An instance that knows the number of a lane or of a policy which another one has forgotten does not store it.
#[test]
fn a_number_that_another_instance_has_forgotten_is_not_used() {
    run(|database| async move {
        let one = World::new(instance(&database).await);
        let two = World { store: instance(&database).await, ..one.clone() };
        let with = |w: &World, kind: &str| {
            w.retrying_task(kind, json!({"strategy": "fixed", "delay": "10s", "max_retries": 9}))
        };
        one.rule(json!({"name": "u", "per": ["user"], "max_running": 5})).await;
        for round in 0..5 {
            let of = |w: &World, kind: &str| {
                let mut new = with(w, kind);
                new.body.labels.insert("user".into(), "u1".into());
                new
            };
            // The last lane and the last policy keep their numbers.
            two.submit(vec![of(&two, "a"), of(&two, "b"), two.new_task("last")]).await;
            for it in two.claim(10).await {
                assert_eq!(two.succeed(&it.stored).await, Applied::Done, "round {round}");
            }
            one.pass(1_000);
            one.store.prune(one.now(), 1_000).await.expect("prunes");
            let last = json!({"strategy": "fixed", "delay": format!("{round}m"), "max_retries": 1});
            let last = one.submit(vec![one.retrying_task(&format!("z{round}"), last)]).await[0];
            assert!(one.forget().await >= 2, "round {round}");
            assert!(one.store.forget_policies(0, one.now()).await.expect("forgets") >= 1, "round {round}");
            // It is not told before it submits: the database refuses what it would store.
            two.submit(vec![of(&two, "a")]).await;
            let mut claimed = two.claim(10).await;
            // What another instance has just named is heard of a moment later.
            for _ in 0..200 {
                if claimed.len() >= 2 {
                    break;
                }
                tokio::time::sleep(std::time::Duration::from_millis(25)).await;
                claimed.extend(two.claim(10).await);
            }
            assert_eq!(claimed.len(), 2, "round {round}");
            for it in claimed {
                assert!(it.stored.policy.is_some());
                assert_eq!(two.succeed(&it.stored).await, Applied::Done);
            }
            assert_eq!(one.state(last).await, comeback_core::State::Succeeded);
            assert!(one.claim(10).await.is_empty());
        }
        comeback_store::conformance::holds_together(&Place::Server(options(&database))).await;
        database.drop().await;
    });
}

/// What one instance gives numbers to is learnt by another one, also while both do so at once.
#[test]
fn lanes_are_learnt_by_other_instances_while_many_are_made() {
    run(|database| async move {
        let one = World::new(instance(&database).await);
        let two = World { store: instance(&database).await, ..one.clone() };
        let makes = |w: World, name: &'static str| async move {
            for round in 0..10 {
                let tasks = (0..50).map(|n| w.new_task(&format!("{name}{round}-{n}"))).collect();
                w.submit(tasks).await;
            }
        };
        tokio::join!(makes(one.clone(), "a"), makes(two.clone(), "b"));
        let mut given = 0;
        for _ in 0..10 {
            given += one.claim(50).await.len() + two.claim(50).await.len();
        }
        assert_eq!(given, 1_000);
        let client = database.connect().await;
        let row = client.query_one("select count(*), max(id) from comeback.lane", &[]).await.expect("reads");
        assert_eq!((row.get::<_, i64>(0), row.get::<_, i32>(1)), (1_000, 1_000), "no number is lost");
        database.drop().await;
    });
}
