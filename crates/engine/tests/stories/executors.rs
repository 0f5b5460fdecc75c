//! What the engine does itself, with real processes.

use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::stories;
use crate::world::*;
use comeback_core::{Class, Executor, Millis, State, TaskId};
use comeback_engine::executors::{EgressPolicy, ExecutorOptions, Executors};
use comeback_engine::{
    Available, CommandError, Engine, EngineConfig, ExecutorSpec, LeaseRequest, ManualRetry, Submit, TaskSpec,
};
use parking_lot::Mutex;
use serde_json::json;

async fn engine(place: &Place) -> Engine {
    let executors = Available { http: true, command: true, timer: true };
    let config = EngineConfig { instance: "test".into(), executors, ..EngineConfig::default() };
    Engine::without_loops(place.store().await, place.clock.clone(), config).await.expect("an engine")
}

fn start(engine: &Engine, concurrency: usize) -> Executors {
    let reach = EgressPolicy { everywhere: true, networks: Vec::new() };
    engine
        .start_executors(ExecutorOptions { reach, commands: true, concurrency, ..ExecutorOptions::default() })
        .expect("executors")
}

fn shell(script: &str) -> TaskSpec {
    let executor = ExecutorSpec::Command(json!({"type": "command", "run": ["sh", "-c", script]}).into());
    TaskSpec { executor, ..spec("c", json!({"max_retries": 0})) }
}

async fn until<F: Future<Output = bool>>(what: &str, holds: impl Fn() -> F) {
    let give_up = Instant::now() + Duration::from_secs(30);
    while !holds().await {
        assert!(Instant::now() < give_up, "{what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn until_over(engine: &Engine, id: TaskId) {
    until("it comes to an end", || async { !state(engine, id).await.is_open() }).await;
}

stories! {
    /// The executor's sign of life keeps the lease; it is no sign of life of the process.
    fn a_process_that_says_nothing_ends_by_its_timeout(place) {
        let engine = engine(&place).await;
        let executors = start(&engine, 4);
        let id = submit(&engine, TaskSpec { timeout: Some(Millis::from_secs(60)), ..shell("exec sleep 1000") }).await;
        until("it runs", || async { state(&engine, id).await == State::Running }).await;
        for _ in 0..3 {
            place.pass(15_000);
            let kept = place.now() + Millis::from_secs(60);
            until("its lease is kept", || async {
                let task = engine.task("default", id).await.expect("the task").stored.task;
                task.lease.is_some_and(|lease| lease.expires_at == Some(kept))
            })
            .await;
            engine.tick().await.expect("the loops work");
            assert_eq!(state(&engine, id).await, State::Running);
        }
        place.pass(15_000);
        until_over(&engine, id).await;
        until("the process is gone", || async { executors.busy() == 0 }).await;
        assert!(state(&engine, id).await.is_failure());
        assert_eq!(engine.tally().timed_out, 1);
    }

    fn a_run_that_may_take_so_long_and_no_longer(place) {
        let engine = engine(&place).await;
        let executors = start(&engine, 4);
        let spec = TaskSpec { attempt_deadline: Some(Millis::from_secs(20)), ..shell("exec sleep 1000") };
        let id = submit(&engine, spec).await;
        until("it runs", || async { state(&engine, id).await == State::Running }).await;
        place.pass(20_000);
        until_over(&engine, id).await;
        until("the process is gone", || async { executors.busy() == 0 }).await;
        assert_eq!(engine.tally().timed_out, 1);
    }

    /// Without a step of the clock: nobody waits for the next sign of life.
    fn a_run_that_was_canceled_is_ended_soon(place) {
        let engine = engine(&place).await;
        let executors = start(&engine, 4);
        let id = submit(&engine, shell("exec sleep 1000")).await;
        until("it runs", || async { executors.busy() == 1 }).await;
        engine.cancel("default", id, nobody()).await.expect("it is canceled");
        until("the process is gone", || async { executors.busy() == 0 }).await;
    }

    /// A pause stops the limit of inactivity, which begins anew when the run goes on.
    fn a_paused_run_does_not_time_out(place) {
        let engine = engine(&place).await;
        let executors = start(&engine, 4);
        let id = submit(&engine, TaskSpec { timeout: Some(Millis::from_secs(10)), ..shell("exec sleep 1000") }).await;
        until("it runs", || async { executors.busy() == 1 }).await;
        engine.pause("default", id, nobody()).await.expect("it is paused");
        // Twice as long as it takes to be heard of.
        tokio::time::sleep(Duration::from_secs(1)).await;
        place.pass(12_000);
        engine.tick().await.expect("the loops work");
        engine.resume("default", id, nobody()).await.expect("it goes on");
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!((state(&engine, id).await, executors.busy()), (State::Running, 1));
        place.pass(10_000);
        until_over(&engine, id).await;
    }

    fn a_result_that_cannot_be_kept_is_told(place) {
        let engine = engine(&place).await;
        let _executors = start(&engine, 4);
        let long = "head -c 400000 /dev/zero | tr '\\0' x";
        let well = submit(&engine, shell(&format!("printf '[\"'; {long}; echo '\"]'"))).await;
        until_over(&engine, well).await;
        let task = engine.task("default", well).await.expect("the task").stored.task;
        assert_eq!((task.state, task.class), (State::Failed, Some(Class::Final)));
        // What failed is told without what it left behind.
        let badly = submit(&engine, shell(&format!("printf '[\"'; {long}; echo '\"]'; exit 3"))).await;
        until_over(&engine, badly).await;
        let task = engine.task("default", badly).await.expect("the task");
        let failure = task.last_failure.and_then(|record| record.failure).expect("a failure");
        assert_eq!(failure.message, "exit 3");
    }

    /// As soon as a place is free, not when somebody looks again.
    fn a_backlog_is_worked_off_at_once(place) {
        let engine = engine(&place).await;
        let tasks = (0..40).map(|_| shell("true")).collect();
        engine.submit(Submit { namespace: "default".into(), tasks, ..Submit::default() }).await.expect("taken");
        let begun = Instant::now();
        let _executors = start(&engine, 1);
        until("all of them are done", || async {
            let counts = engine.store().counts("default", engine.now()).await.expect("counts").by_state;
            counts.get(&State::Succeeded) == Some(&40)
        })
        .await;
        assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    }

    fn no_namespace_waits_for_all_of_another(place) {
        let engine = engine(&place).await;
        let log = tempfile::NamedTempFile::new().expect("a file");
        let write = |word: &str| shell(&format!("echo {word} >> {}", log.path().display()));
        for (namespace, count) in [("a", 20), ("b", 1)] {
            let tasks = (0..count).map(|_| write(namespace)).collect();
            engine.submit(Submit { namespace: namespace.into(), tasks, ..Submit::default() }).await.expect("taken");
        }
        let _executors = start(&engine, 1);
        let lines = || std::fs::read_to_string(log.path()).expect("the file");
        until("all have run", || async { lines().lines().count() == 21 }).await;
        let place = lines().lines().position(|line| line == "b");
        assert!(place.is_some_and(|place| place <= 2), "{place:?} of 21");
    }

    fn an_answer_that_is_cut_short_is_a_failure_of_the_network(place) {
        let engine = engine(&place).await;
        let _executors = start(&engine, 4);
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}/", listener.local_addr().expect("an address"));
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a call");
            let _ = std::io::Read::read(&mut stream, &mut [0; 4096]);
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\nhalf of it");
        });
        let executor = ExecutorSpec::Http(json!({"type": "http", "url": url}).into());
        let id = submit(&engine, TaskSpec { executor, ..spec("h", json!({"max_retries": 0})) }).await;
        until_over(&engine, id).await;
        let task = engine.task("default", id).await.expect("the task");
        let failure = task.last_failure.and_then(|record| record.failure).expect("a failure");
        assert!(task.stored.task.state.is_failure());
        assert_eq!(failure.error_type.as_deref(), Some("network"), "{}", failure.message);
    }

    /// F0-5: type, status, message, the call behind it with what was answered, the task and the time.
    fn a_failed_call_is_kept_with_what_was_asked_and_answered(place) {
        let engine = engine(&place).await;
        let _executors = start(&engine, 4);
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}/pay?order=7", listener.local_addr().expect("an address"));
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a call");
            let _ = std::io::Read::read(&mut stream, &mut [0; 4096]);
            let _ = stream.write_all(b"HTTP/1.1 502 Bad\r\ncontent-length: 14\r\n\r\n{\"why\":\"busy\"}");
        });
        let executor = ExecutorSpec::Http(json!({"type": "http", "method": "post", "url": url}).into());
        let id = submit(&engine, TaskSpec { executor, ..spec("h", json!({"max_retries": 0})) }).await;
        until_over(&engine, id).await;
        let record = engine.task("default", id).await.expect("the task").last_failure.expect("a record");
        let failure = record.failure.expect("a failure");
        assert_eq!((record.subject, record.at), (id.0, place.now()));
        assert_eq!((failure.error_type.as_deref(), failure.status), (Some("http"), Some(502)));
        assert!(failure.message.contains("502"), "{}", failure.message);
        let kept = failure.result.expect("the call");
        assert_eq!((&kept["method"], &kept["url"], &kept["status"]), (&json!("POST"), &json!(url), &json!(502)));
        assert_eq!(kept["body"], json!({"why": "busy"}));
    }

    /// A callee that remembers a failure by its key is asked anew by whoever retries by hand, and by nobody else.
    fn the_key_of_a_call_stays_for_the_tries_of_a_cycle(place) {
        let engine = engine(&place).await;
        let _executors = start(&engine, 4);
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}/", listener.local_addr().expect("an address"));
        let keys = Arc::new(Mutex::new(Vec::<String>::new()));
        let heard = keys.clone();
        std::thread::spawn(move || {
            while let Ok((mut stream, _)) = listener.accept() {
                let mut bytes = [0; 4096];
                let read = std::io::Read::read(&mut stream, &mut bytes).unwrap_or(0);
                let text = String::from_utf8_lossy(&bytes[..read]).to_lowercase();
                let key = text.lines().find_map(|line| line.strip_prefix("idempotency-key: ").map(str::to_owned));
                heard.lock().push(key.expect("a key"));
                let _ = stream.write_all(b"HTTP/1.1 503 Busy\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
            }
        });
        let executor = ExecutorSpec::Http(json!({"type": "http", "method": "post", "url": url}).into());
        let retry = json!({"strategy": "fixed", "delay": "1s", "max_retries": 1});
        let id = submit(&engine, TaskSpec { executor, payload: Some(json!({"a": 1}).into()), ..spec("h", retry) }).await;
        let give_up = async || {
            until("it was tried twice", || async {
                place.pass(1_000);
                engine.tick().await.expect("a tick");
                !state(&engine, id).await.is_open()
            })
            .await;
        };
        give_up().await;
        engine.retry("default", id, ManualRetry::default()).await.expect("again");
        give_up().await;
        let edited = ManualRetry { payload_patch: Some(json!({"a": 2}).into()), ..ManualRetry::default() };
        engine.retry("default", id, edited).await.expect("once more");
        give_up().await;
        let ends: Vec<String> = keys.lock().iter().map(|key| key.replacen(&id.to_string(), "", 1)).collect();
        assert_eq!(ends, ["", "", ":c1", ":c1", ":c2:p2", ":c2:p2"]);
    }

    /// A process that was killed held its work for as long as the lease lasts; the next of its name does not wait for that.
    fn what_an_earlier_process_left_is_taken_up_at_once(place) {
        let engine = engine(&place).await;
        let retry = json!({"strategy": "fixed", "delay": "1s", "max_retries": 3});
        let left = submit(&engine, TaskSpec { retry: spec("c", retry).retry, ..shell("true") }).await;
        let workers = submit(&engine, spec("w", json!({"max_retries": 0}))).await;
        let by = |worker: &str, executor| LeaseRequest { executor, any_queue: true, ..LeaseRequest::new("default", worker) };
        let one = engine.lease(by("test/command", Executor::Command)).await.expect("a lease");
        let other = engine.lease(by("test/w", Executor::Worker)).await.expect("a lease");
        assert_eq!((one[0].lease.task, other[0].lease.task), (left, workers));
        let _executors = start(&engine, 4);
        until("it is taken up", || async { state(&engine, left).await != State::Running }).await;
        let task = engine.task("default", left).await.expect("the task");
        assert_eq!(task.stored.task.counters.lost, 1);
        let failure = task.last_failure.and_then(|record| record.failure).expect("a failure");
        assert_eq!(failure.message, "test/command was started again and does not know of it");
        let late = report(&engine, &one[0], succeeded()).await;
        assert!(matches!(late, Err(CommandError::LeaseLost)), "the lease is void: {late:?}");
        until("it is done", || async {
            place.pass(1_000);
            engine.tick().await.expect("a tick");
            state(&engine, left).await == State::Succeeded
        })
        .await;
        assert_eq!(state(&engine, workers).await, State::Running, "a worker outside holds what it has");
    }

    fn one_that_lives_is_not_robbed_by_another_of_its_name(place) {
        let (one, two) = (engine(&place).await, engine(&place).await);
        let first = start(&one, 4);
        let id = submit(&one, shell("exec sleep 1000")).await;
        until("it runs", || async { first.busy() == 1 }).await;
        first.ending().close();
        let _second = start(&two, 4);
        let next = submit(&two, shell("true")).await;
        until_over(&two, next).await;
        let task = two.task("default", id).await.expect("the task").stored.task;
        assert_eq!((task.state, task.run, task.counters.lost), (State::Running, 1, 0));
        one.cancel("default", id, nobody()).await.expect("canceled");
        until("the process is gone", || async { first.busy() == 0 }).await;
    }
}
