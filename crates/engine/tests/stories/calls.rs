//! Calls that the engine makes: the one that starts a hook, and those that tell how it went. Somebody real answers them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use comeback_core::transition::Actor;
use comeback_core::{Millis, OnUnmet, Reporter, State, TaskId, When};
use comeback_engine::executors::{EgressPolicy, ExecutorOptions, Executors};
use comeback_engine::{CompleteCallback, Engine, ExecutionSpec, ExecutorSpec, Need, Submit, TaskSpec};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

use crate::stories;
use crate::world::{Place, failed, spec, state, submit, succeeded};

#[derive(Clone, Debug)]
pub struct Heard {
    /// With what stands behind the question mark.
    pub address: String,
    pub headers: BTreeMap<String, String>,
    pub body: Value,
}

/// Somebody who is called: what they heard, and what they answer to addresses that begin so.
#[derive(Clone)]
pub struct Callee {
    pub base: String,
    heard: Arc<Mutex<Vec<Heard>>>,
    answers: Arc<Mutex<BTreeMap<String, u16>>>,
    /// Calls that are being answered, and the most that ever were.
    busy: Arc<Mutex<(usize, usize)>>,
    /// The bodies of answers, by what addresses begin with.
    bodies: Arc<Mutex<BTreeMap<String, Value>>>,
}

impl Callee {
    pub async fn listen() -> Callee {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let base = format!("http://{}", listener.local_addr().expect("an address"));
        let callee = Callee {
            base,
            heard: Arc::default(),
            answers: Arc::default(),
            bodies: Arc::default(),
            busy: Arc::default(),
        };
        let own = callee.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let callee = own.clone();
                tokio::spawn(async move { callee.answer(stream).await });
            }
        });
        callee
    }

    async fn answer(&self, stream: TcpStream) -> Option<()> {
        let mut stream = BufReader::new(stream);
        loop {
            let mut line = String::new();
            if stream.read_line(&mut line).await.ok()? == 0 {
                return None;
            }
            let address = line.split(' ').nth(1)?.to_owned();
            let mut headers = BTreeMap::new();
            loop {
                let mut line = String::new();
                stream.read_line(&mut line).await.ok()?;
                let Some((name, value)) = line.trim_end().split_once(": ") else { break };
                headers.insert(name.to_ascii_lowercase(), value.to_owned());
            }
            let length = headers.get("content-length").and_then(|text| text.parse().ok()).unwrap_or(0);
            let mut body = vec![0; length];
            stream.read_exact(&mut body).await.ok()?;
            let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
            let status = {
                let answers = self.answers.lock();
                let found = answers.iter().find(|(start, _)| address.starts_with(start.as_str()));
                found.map_or(200, |(_, status)| *status)
            };
            let said = {
                let bodies = self.bodies.lock();
                let found = bodies.iter().find(|(start, _)| address.starts_with(start.as_str()));
                found.map_or_else(|| "{}".to_owned(), |(_, body)| body.to_string())
            };
            let slow = address.starts_with("/slow");
            self.heard.lock().push(Heard { address, headers, body });
            {
                let mut busy = self.busy.lock();
                *busy = (busy.0 + 1, busy.1.max(busy.0 + 1));
            }
            if slow {
                tokio::time::sleep(Duration::from_millis(30)).await;
            }
            self.busy.lock().0 -= 1;
            let answer = format!("HTTP/1.1 {status} Answer\r\ncontent-length: {}\r\n\r\n{said}", said.len());
            stream.get_mut().write_all(answer.as_bytes()).await.ok()?;
        }
    }

    pub fn says(&self, start: &str, status: u16) {
        self.answers.lock().insert(start.to_owned(), status);
    }

    pub fn answers_with(&self, start: &str, body: Value) {
        self.bodies.lock().insert(start.to_owned(), body);
    }

    pub fn to(&self, start: &str) -> Vec<Heard> {
        self.heard.lock().iter().filter(|heard| heard.address.starts_with(start)).cloned().collect()
    }

    /// So many calls to this address, as soon as they have come.
    pub async fn wait_for(&self, start: &str, count: usize) -> Vec<Heard> {
        for _ in 0..1_000 {
            let found = self.to(start);
            if found.len() >= count {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("{count} calls to {start}, of all that came: {:#?}", self.heard.lock());
    }
}

async fn begin(place: &Place) -> (Engine, Executors, Callee) {
    let engine = place.engine().await;
    let executors = engine.start_executors(options()).expect("executors");
    (engine, executors, Callee::listen().await)
}

pub fn options() -> ExecutorOptions {
    let reach = EgressPolicy { everywhere: true, ..EgressPolicy::default() };
    ExecutorOptions { reach, handles: "http://comeback.test:7330/".into(), ..ExecutorOptions::default() }
}

fn hooked(callee: &Callee, retry: Value) -> TaskSpec {
    let at = |path: &str| json!([{"method": "POST", "url": format!("{}/{path}", callee.base)}]);
    let hooks =
        json!({"success": at("success"), "failure": at("failure"), "retry": at("retry"), "cancel": at("cancel")});
    let start = json!({"type": "hook", "start": {"method": "POST", "url": format!("{}/start?a=1", callee.base)}});
    TaskSpec { executor: ExecutorSpec::Hook(start.into()), hooks: Some(hooks.into()), ..spec("etl", retry) }
}

pub async fn until(engine: &Engine, id: TaskId, wanted: State) {
    for _ in 0..1_000 {
        if state(engine, id).await == wanted {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{} and not {wanted}", state(engine, id).await);
}

async fn settle(engine: &Engine, id: TaskId, run: u32, well: bool) {
    let end = if well { succeeded() } else { failed("no") };
    let fence = Reporter::Run(run);
    engine
        .complete_callback(CompleteCallback { namespace: "default".into(), task: id, fence, end })
        .await
        .expect("it is settled");
}

/// Tasks of one execution.
async fn together(engine: &Engine, tasks: Vec<TaskSpec>, dead_end_cancel: bool) -> Vec<TaskId> {
    let execution = Some(ExecutionSpec { dead_end_cancel, ..ExecutionSpec::default() });
    let submit = Submit { namespace: "default".into(), tasks, execution, ..Submit::default() };
    engine.submit(submit).await.expect("they are taken").tasks.iter().map(|it| it.id).collect()
}

async fn states(engine: &Engine, ids: &[TaskId]) -> Vec<State> {
    let mut states = Vec::with_capacity(ids.len());
    for id in ids {
        states.push(state(engine, *id).await);
    }
    states
}

stories! {
    /// F1-5, F1-6, S1-43, S1-44.
    fn a_start_call_carries_its_handle_and_a_key_of_its_own_for_each_attempt(place) {
        let (engine, _executors, callee) = begin(&place).await;
        callee.says("/start", 503);
        let id = submit(&engine, hooked(&callee, json!({"strategy": "fixed", "delay": "10s", "max_retries": 2}))).await;
        until(&engine, id, State::RetryPending).await;
        let first = callee.wait_for("/start", 1).await.remove(0);
        assert_eq!(first.address, format!("/start?a=1&handle=http%3A%2F%2Fcomeback.test%3A7330%2Fapi%2Fv1%2Ftasks%2F{id}"));
        assert_eq!(first.headers["idempotency-key"], format!("{id}:start:success:0"));
        assert_eq!((first.headers["x-task-id"].as_str(), first.headers["x-task-trigger"].as_str()), (id.to_string().as_str(), "Start"));
        let retry = callee.wait_for("/retry", 1).await.remove(0);
        assert_eq!(retry.body["state"], "retry_pending");
        callee.says("/start", 200);
        place.pass(10_000);
        engine.tick().await.unwrap();
        until(&engine, id, State::Running).await;
        let second = callee.wait_for("/start", 2).await.remove(1);
        assert_eq!((second.headers["idempotency-key"].as_str(), second.headers["comeback-run"].as_str()), (format!("{id}:start:success:1").as_str(), "2"));
        settle(&engine, id, 2, true).await;
        let told = callee.wait_for("/success", 1).await.remove(0);
        assert_eq!((told.body["task_id"].as_str(), told.body["state"].as_str()), (Some(id.to_string().as_str()), Some("succeeded")));
        assert_eq!(told.headers["idempotency-key"], format!("{id}:end:success:1"));
        assert!(callee.to("/failure").is_empty());
    }

    /// X1-8, F2-13: who waits for the failure is called once, when no retry is left.
    fn a_failure_is_told_once_and_only_when_it_is_one(place) {
        let (engine, _executors, callee) = begin(&place).await;
        let id = submit(&engine, hooked(&callee, json!({"strategy": "fixed", "delay": "10s", "max_retries": 1}))).await;
        for run in 1..=2 {
            until(&engine, id, State::Running).await;
            settle(&engine, id, run, false).await;
            place.pass(10_000);
            engine.tick().await.unwrap();
        }
        assert_eq!(state(&engine, id).await, State::Dead);
        let told = callee.wait_for("/failure", 1).await;
        assert_eq!((told.len(), told[0].body["state"].as_str()), (1, Some("dead")));
        assert_eq!(callee.wait_for("/retry", 1).await.len(), 1);
        assert!(callee.to("/success").is_empty());
    }

    /// S1-46, model I-3: while a step waits for its retry nobody behind it moves, and nobody hears of an end.
    fn a_step_that_waits_for_its_retry_tells_no_end_and_moves_no_neighbour(place) {
        let (engine, _executors, callee) = begin(&place).await;
        let retry = json!({"strategy": "fixed", "delay": "10s", "max_retries": 2});
        let need = |when| Need { task: "a".into(), when, on_unmet: OnUnmet::Skip };
        let hooks = hooked(&callee, retry.clone()).hooks;
        let behind = |name: &str, when| TaskSpec {
            key: Some(name.into()),
            needs: vec![need(when)],
            hooks: hooks.clone(),
            ..spec("behind", retry.clone())
        };
        let tasks = vec![
            TaskSpec { key: Some("a".into()), ..hooked(&callee, retry.clone()) },
            behind("well", When::Success),
            behind("badly", When::Failure),
            behind("anyway", When::Always),
        ];
        let ids = together(&engine, tasks, false).await;
        for run in 1..=2 {
            until(&engine, ids[0], State::Running).await;
            settle(&engine, ids[0], run, false).await;
            let told = callee.wait_for("/retry", run as usize).await;
            assert_eq!(told.last().unwrap().headers["idempotency-key"], format!("{}:retry:failure:{run}", ids[0]));
            engine.tick().await.unwrap();
            for id in &ids[1..] {
                assert_eq!(state(&engine, *id).await, State::Waiting);
            }
            assert!(callee.to("/success").is_empty() && callee.to("/failure").is_empty());
            place.pass(10_000);
            engine.tick().await.unwrap();
        }
        until(&engine, ids[0], State::Running).await;
        settle(&engine, ids[0], 3, true).await;
        let told = callee.wait_for("/success", 1).await;
        assert_eq!((told.len(), told[0].headers["idempotency-key"].as_str()), (1, format!("{}:end:success:2", ids[0]).as_str()));
        assert_eq!(states(&engine, &ids[1..]).await, [State::Pending, State::Skipped, State::Pending]);
        assert_eq!(callee.to("/retry").len(), 2);
        assert!(callee.to("/failure").is_empty(), "who was skipped has not failed");
    }

    /// F1-9, F1-11: a run that is idle for too long fails, with it all that needed its success, in one commit; each tells of it.
    fn an_idle_run_fails_with_all_that_needed_it_and_each_tells_of_it(place) {
        let (engine, _executors, callee) = begin(&place).await;
        let no_retry = json!({"max_retries": 0});
        let behind = |name: &str, needs: &str| TaskSpec {
            key: Some(name.into()),
            needs: vec![Need { task: needs.into(), when: When::Success, on_unmet: OnUnmet::Fail }],
            ..hooked(&callee, no_retry.clone())
        };
        let first = TaskSpec { key: Some("a".into()), timeout: Some(Millis(5_000)), ..hooked(&callee, no_retry.clone()) };
        let ids = together(&engine, vec![first, behind("b", "a"), behind("c", "b")], false).await;
        until(&engine, ids[0], State::Running).await;
        place.pass(5_000);
        engine.tick_loop(comeback_engine::store::Loop::Timeout).await.unwrap();
        assert_eq!(states(&engine, &ids).await, [State::Dead, State::Failed, State::Failed]);
        let told = callee.wait_for("/failure", 3).await;
        let mut named: Vec<&str> = told.iter().filter_map(|it| it.body["task_id"].as_str()).collect();
        named.sort_unstable();
        let mut expected: Vec<String> = ids.iter().map(TaskId::to_string).collect();
        expected.sort_unstable();
        assert_eq!(named, expected, "each once");
    }

    /// F1-12: who works for nobody any more is canceled; who was running hears of it, and so does who waits for its end.
    fn a_dead_end_is_canceled_and_told(place) {
        let (engine, _executors, callee) = begin(&place).await;
        let retry = json!({"max_retries": 1});
        let need = Need { task: "a".into(), when: When::Always, on_unmet: OnUnmet::Skip };
        let first = TaskSpec { key: Some("a".into()), ..hooked(&callee, retry.clone()) };
        let behind = TaskSpec { key: Some("b".into()), needs: vec![need], ..spec("behind", retry) };
        for switched_on in [false, true] {
            let ids = together(&engine, vec![first.clone(), behind.clone()], switched_on).await;
            until(&engine, ids[0], State::Running).await;
            engine.cancel("default", ids[1], Actor::default()).await.unwrap();
            let expected = if switched_on { State::Canceled } else { State::Running };
            assert_eq!(state(&engine, ids[0]).await, expected);
        }
        assert_eq!(callee.wait_for("/cancel", 1).await.len(), 1);
        assert_eq!(callee.wait_for("/failure", 1).await.len(), 1);
    }

    fn a_cancel_calls_whoever_was_started(place) {
        let (engine, _executors, callee) = begin(&place).await;
        let id = submit(&engine, hooked(&callee, json!({"max_retries": 1}))).await;
        until(&engine, id, State::Running).await;
        engine.cancel("default", id, Actor::default()).await.unwrap();
        assert_eq!(callee.wait_for("/cancel", 1).await[0].headers["idempotency-key"], format!("{id}:cancel:success:0"));
        callee.wait_for("/failure", 1).await;
    }

    /// F1-5, X1-7: an answer that is an action registers it for the run it was given to, and it is called before the run is repeated.
    fn an_action_in_the_answer_of_a_start_call_cancels_that_run(place) {
        let (engine, _executors, callee) = begin(&place).await;
        let stop = json!({"url": format!("{}/stop", callee.base), "verb": "Post"});
        callee.answers_with("/start", json!({"kind": "Webhook", "params": stop}));
        let retry = json!({"strategy": "fixed", "delay": "10s", "max_retries": 2});
        let task = TaskSpec { hooks: None, timeout: Some(Millis(30_000)), ..hooked(&callee, retry) };
        let id = submit(&engine, task).await;
        until(&engine, id, State::Running).await;
        place.pass(30_000);
        engine.tick().await.unwrap();
        let stopped = callee.wait_for("/stop", 1).await.remove(0);
        assert_eq!((stopped.body["run"].as_u64(), stopped.headers["x-task-trigger"].as_str()), (Some(1), "Cancel"));
        callee.answers_with("/start", json!({"cancel": {"url": format!("{}/halt", callee.base)}}));
        place.pass(10_000);
        engine.tick().await.unwrap();
        until(&engine, id, State::Running).await;
        engine.cancel("default", id, Actor::default()).await.unwrap();
        callee.wait_for("/halt", 1).await;
        assert_eq!(callee.to("/stop").len(), 1, "it was of the run before");
    }

    /// X1-15: one failed start call of several fails the attempt, and all are sent again with the new key.
    fn of_several_start_calls_one_that_fails_fails_the_attempt(place) {
        let (engine, _executors, callee) = begin(&place).await;
        callee.says("/start/two", 503);
        callee.answers_with("/start/one", json!({"cancel": {"url": format!("{}/stop", callee.base)}}));
        let to = |path: &str| json!({"method": "POST", "url": format!("{}/start/{path}", callee.base)});
        let executor = ExecutorSpec::Hook(json!({"type": "hook", "start": [to("one"), to("two")]}).into());
        let retry = json!({"strategy": "fixed", "delay": "10s", "max_retries": 2});
        let id = submit(&engine, TaskSpec { executor, ..hooked(&callee, retry) }).await;
        until(&engine, id, State::RetryPending).await;
        callee.wait_for("/stop", 1).await;
        callee.says("/start/two", 200);
        place.pass(10_000);
        engine.tick().await.unwrap();
        until(&engine, id, State::Running).await;
        for (path, more) in [("one", ""), ("two", ":1")] {
            let calls = callee.wait_for(&format!("/start/{path}"), 2).await;
            let keys: Vec<&str> = calls.iter().map(|call| call.headers["idempotency-key"].as_str()).collect();
            let expected = [0, 1].map(|attempt| format!("{id}:start:success:{attempt}{more}"));
            assert_eq!(keys, expected, "{path}");
        }
    }

    /// A call that fails is a task like any other.
    fn a_call_that_nobody_answers_is_tried_again(place) {
        let (engine, _executors, callee) = begin(&place).await;
        callee.says("/success", 500);
        let id = submit(&engine, hooked(&callee, json!({"max_retries": 1}))).await;
        until(&engine, id, State::Running).await;
        settle(&engine, id, 1, true).await;
        callee.wait_for("/success", 1).await;
        callee.says("/success", 200);
        for _ in 0..100 {
            place.pass(5_000);
            engine.tick().await.unwrap();
            if callee.to("/success").len() > 1 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let calls = callee.wait_for("/success", 2).await;
        assert_eq!(calls[0].headers["idempotency-key"], calls[1].headers["idempotency-key"]);
    }

    /// F1-8: by priority, then by age, and never more start calls at once than there may be.
    fn start_calls_go_out_by_priority_and_not_all_at_once(place) {
        let (engine, callee) = (place.engine().await, Callee::listen().await);
        let start = json!({"type": "hook", "start": {"url": format!("{}/slow", callee.base)}});
        let mut expected = Vec::new();
        for priority in [0, 5, 0, 9, 5] {
            let executor = ExecutorSpec::Hook(start.clone().into());
            let id = submit(&engine, TaskSpec { executor, priority, ..spec("etl", json!({})) }).await;
            expected.push((-priority, id));
            place.pass(1);
        }
        expected.sort_unstable();
        let _executors = engine.start_executors(ExecutorOptions { concurrency: 2, ..options() }).expect("executors");
        let heard = callee.wait_for("/slow", 5).await;
        assert_eq!(callee.busy.lock().1, 2);
        // Two are on their way at a time, in whichever order they arrive.
        let named = |pair: &[Heard]| pair.iter().map(|it| it.headers["x-task-id"].clone()).collect::<std::collections::BTreeSet<_>>();
        let wanted = |pair: &[(i32, TaskId)]| pair.iter().map(|(_, id)| id.to_string()).collect();
        assert_eq!(named(&heard[..2]), wanted(&expected[..2]));
        assert_eq!(heard[4].headers["x-task-id"], expected[4].1.to_string());
    }

    fn a_hook_without_a_start_call_is_started_at_once(place) {
        let (engine, _executors, callee) = begin(&place).await;
        let executor = ExecutorSpec::Hook(json!({"type": "hook"}).into());
        let id = submit(&engine, TaskSpec { executor, ..hooked(&callee, json!({"max_retries": 1})) }).await;
        until(&engine, id, State::Running).await;
        assert!(callee.to("/start").is_empty());
    }
}
