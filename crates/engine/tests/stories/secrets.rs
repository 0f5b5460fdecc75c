//! Named secrets: sent by calls, commands and subscriptions, and written down nowhere but encrypted.

use std::collections::BTreeMap;
use std::sync::Arc;

use comeback_core::subscription::{Format, Types};
use comeback_core::transition::Actor;
use comeback_core::{AuditAction, State, TaskId};
use comeback_engine::executors::{ExecutorOptions, Executors};
use comeback_engine::secrets::{Keyring, SecretText};
use comeback_engine::store::{AuditQuery, Store, Subject};
use comeback_engine::subscriptions::{Secret, Signing, SubscriptionSpec, signature};
use comeback_engine::{Available, CommandError, Engine, EngineConfig, ExecutorSpec, TaskSpec};
use serde_json::{Value, json};

use crate::calls::{Callee, options, until};
use crate::stories;
use crate::world::{Place, spec, state, submit};

const VALUE: &str = "sk_live_CANARY_1";

fn keys(text: &str) -> Keyring {
    Keyring::read(text).expect("a key")
}

fn one() -> String {
    "11".repeat(32)
}

async fn engine_with(place: &Place, secret_keys: Keyring) -> Engine {
    let executors = Available { http: true, command: true, timer: true };
    let config = EngineConfig { instance: "test".into(), executors, secret_keys, ..EngineConfig::default() };
    Engine::without_loops(place.store().await, place.clock.clone(), config).await.expect("an engine")
}

async fn begin(place: &Place) -> (Engine, Executors, Callee) {
    let engine = engine_with(place, keys(&one())).await;
    let executors = engine.start_executors(ExecutorOptions { commands: true, ..options() }).expect("executors");
    (engine, executors, Callee::listen().await)
}

async fn put(engine: &Engine, name: &str, value: &str) {
    engine.put_secret("default", name, value, &Actor::default()).await.expect("it is put");
}

/// Everything that is written down about a task.
async fn written(store: &Arc<dyn Store>, id: TaskId) -> String {
    let view = store.task("default", id).await.expect("the store").expect("a task");
    let history = store.history(Subject::Task(id), 0, 500).await.expect("the store");
    format!("{view:?} {history:?}")
}

fn bearer() -> Value {
    json!({"secret": "stripe", "prefix": "Bearer "})
}

fn http(callee: &Callee, path: &str, headers: Value) -> TaskSpec {
    let call = json!({"type": "http", "method": "POST", "url": format!("{}{path}", callee.base), "headers": headers});
    let retry = json!({"strategy": "fixed", "delay": "10s", "max_retries": 3});
    TaskSpec { executor: ExecutorSpec::Http(call.into()), ..spec("call", retry) }
}

stories! {
    fn a_call_sends_it_and_what_the_other_side_repeats_is_masked(place) {
        let (engine, _executors, callee) = begin(&place).await;
        put(&engine, "stripe", VALUE).await;
        let echo = json!({"headers": {"Authorization": format!("Bearer {VALUE}")}, "said": format!("you sent {VALUE}, plain-CANARY-2")});
        callee.answers_with("/echo", echo);
        callee.says("/echo", 500);
        let id = submit(&engine, http(&callee, "/echo", json!({"authorization": bearer(), "x-token": "plain-CANARY-2"}))).await;
        until(&engine, id, State::RetryPending).await;
        callee.says("/echo", 200);
        place.pass(10_000);
        engine.tick().await.unwrap();
        until(&engine, id, State::Succeeded).await;
        for heard in callee.wait_for("/echo", 2).await {
            assert_eq!(heard.headers["authorization"], format!("Bearer {VALUE}"));
            assert_eq!(heard.headers["x-token"], "plain-CANARY-2");
        }
        let found = written(engine.store(), id).await;
        assert!(!found.contains(VALUE), "{found}");
        let view = engine.store().task("default", id).await.unwrap().unwrap();
        let result = view.result.as_deref().expect("a result");
        assert!(result.contains("you sent ***, ***") && !result.contains("CANARY"), "{result}");
        assert!(view.last_failure.is_some_and(|it| !format!("{it:?}").contains("CANARY")));
        assert!(view.body.executor.is_some_and(|it| it.contains("\"secret\":\"stripe\"")), "it is stored by its name");
    }

    fn hooks_send_it_and_a_cancel_call_keeps_its_name(place) {
        let (engine, _executors, callee) = begin(&place).await;
        put(&engine, "stripe", VALUE).await;
        let call = |path: &str| json!({"url": format!("{}{path}", callee.base), "headers": {"authorization": bearer()}});
        let cancel = json!({"url": format!("{}/stop", callee.base), "headers": {"authorization": format!("Bearer {VALUE}")}});
        callee.answers_with("/start", json!({"cancel": cancel}));
        let start = json!({"type": "hook", "start": [call("/start")]});
        let hooks = json!({"failure": [call("/told")]});
        let task = TaskSpec { executor: ExecutorSpec::Hook(start.into()), hooks: Some(hooks.into()), ..TaskSpec::new("k") };
        let id = submit(&engine, task).await;
        until(&engine, id, State::Running).await;
        engine.cancel("default", id, Actor::default()).await.unwrap();
        for path in ["/start", "/told", "/stop"] {
            assert_eq!(callee.wait_for(path, 1).await[0].headers["authorization"], format!("Bearer {VALUE}"), "{path}");
        }
        let all = comeback_core::filter::Filter::default();
        let tasks = engine.store().matching("default", &all, engine.now(), 100).await.unwrap();
        assert!(tasks.len() >= 3, "the calls are tasks");
        for task in tasks {
            let found = written(engine.store(), task).await;
            assert!(!found.contains(VALUE), "{found}");
        }
    }

    fn a_command_finds_it_in_its_environment(place) {
        let (engine, _executors, _callee) = begin(&place).await;
        put(&engine, "stripe", VALUE).await;
        let script = "test -z \"$COMEBACK_SECRET_KEY\" && echo \"{\\\"saw\\\": \\\"$API_KEY\\\"}\"; echo \"$API_KEY\" >&2; exit $CODE";
        for (code, expected) in [("0", State::Succeeded), ("3", State::Failed)] {
            let env = json!({"API_KEY": {"secret": "stripe"}, "CODE": code});
            let process = json!({"type": "command", "run": ["sh", "-c", script], "env": env});
            let id = submit(&engine, TaskSpec { executor: ExecutorSpec::Command(process.into()), ..TaskSpec::new("c") }).await;
            until(&engine, id, expected).await;
            let found = written(engine.store(), id).await;
            assert!(!found.contains(VALUE) && found.contains("***"), "{found}");
        }
    }

    fn a_subscription_sends_it_and_signs_with_it(place) {
        let (engine, _executors, callee) = begin(&place).await;
        put(&engine, "stripe", VALUE).await;
        let signing = Secret::new().unwrap();
        put(&engine, "signing", signing.reveal()).await;
        let named = |name: &str| serde_json::from_value::<SecretText>(json!({"secret": name})).unwrap();
        let spec = SubscriptionSpec {
            url: format!("{}/events", callee.base),
            types: Types::read(vec!["task.succeeded".into()]).unwrap(),
            filter: None,
            format: Format::Webhook,
            headers: BTreeMap::from([("x-api-key".to_owned(), named("stripe"))]),
            retry: None,
            paused: false,
            note: None,
        };
        let by = Actor::default();
        engine.create_subscription("default", "ops", spec, Some(Signing::named("signing").unwrap()), &by).await.unwrap();
        engine.test_subscription("default", "ops", &by).await.unwrap();
        let heard = callee.wait_for("/events", 1).await.remove(0);
        assert_eq!(heard.headers["x-api-key"], VALUE);
        let seconds = heard.headers["webhook-timestamp"].parse().unwrap();
        let expected = signature([&signing].into_iter(), &heard.headers["webhook-id"], seconds, &heard.body.to_string());
        assert_eq!(heard.headers["webhook-signature"], expected);
        let row = engine.store().follower(comeback_engine::store::ResourceKind::Subscriptions, "default", "ops").await.unwrap();
        assert!(!format!("{row:?}").contains(signing.reveal()));
    }

    fn an_attempt_without_its_secret_fails_and_is_tried_again(place) {
        let (engine, _executors, callee) = begin(&place).await;
        let id = submit(&engine, http(&callee, "/late", json!({"authorization": bearer()}))).await;
        until(&engine, id, State::RetryPending).await;
        let view = engine.store().task("default", id).await.unwrap().unwrap();
        let failure = format!("{:?}", view.last_failure);
        assert!(failure.contains("there is no secret `stripe`") && failure.contains("Retryable"), "{failure}");
        engine.put_secret("other", "stripe", "of another namespace", &Actor::default()).await.unwrap();
        place.pass(10_000);
        engine.tick().await.unwrap();
        until(&engine, id, State::RetryPending).await;
        assert!(callee.to("/late").is_empty(), "nothing was sent, and nothing of another namespace");
        put(&engine, "stripe", VALUE).await;
        place.pass(10_000);
        engine.tick().await.unwrap();
        until(&engine, id, State::Succeeded).await;
        assert_eq!(callee.wait_for("/late", 1).await[0].headers["authorization"], format!("Bearer {VALUE}"));
    }

    fn keys_are_changed_while_both_are_known(place) {
        let engine = engine_with(&place, keys(&one())).await;
        for n in 0..3 {
            put(&engine, &format!("s{n}"), &format!("{VALUE}{n}")).await;
        }
        let two = "22".repeat(32);
        let both = engine_with(&place, keys(&format!("{two},{}", one()))).await;
        put(&both, "s0", "put anew").await;
        let done = both.reencrypt_secrets(&Actor::default()).await.unwrap();
        assert_eq!((done.reencrypted, done.unchanged, done.unreadable.len()), (2, 1, 0));
        let only = engine_with(&place, keys(&two)).await;
        let stored = only.store().secret("default", "s1").await.unwrap().unwrap();
        assert_eq!(keys(&two).open(&stored).unwrap(), format!("{VALUE}1"));
        assert!(!format!("{:?}", stored.sealed).contains("CANARY") && !stored.sealed.windows(6).any(|it| it == b"CANARY"));
        let old = engine.reencrypt_secrets(&Actor::default()).await.unwrap();
        assert_eq!(old.unreadable.len(), 3, "a key that is not known reads nothing");
        assert_eq!(keys(&one()).open(&stored).unwrap_err().to_string().matches(&stored.key_id).count(), 1, "it is named");
    }

    fn without_a_key_nothing_is_put(place) {
        let engine = engine_with(&place, Keyring::default()).await;
        let refused = engine.put_secret("default", "stripe", VALUE, &Actor::default()).await.unwrap_err();
        assert!(matches!(&refused, CommandError::Invalid(_)) && refused.to_string().contains("COMEBACK_SECRET_KEY"), "{refused}");
        assert!(!refused.to_string().contains(VALUE));
    }

    fn what_was_done_is_written_down_without_the_value(place) {
        let engine = engine_with(&place, keys(&one())).await;
        let by = Actor { by: Some("ana".into()), ..Actor::default() };
        let (first, new) = engine.put_secret("default", "stripe", VALUE, &by).await.unwrap();
        assert!(new && first.updated_by.as_deref() == Some("ana"));
        engine.delete_secret("default", "stripe", &by).await.unwrap();
        assert!(matches!(engine.delete_secret("default", "stripe", &by).await, Err(CommandError::NotFound("secret"))));
        assert!(matches!(engine.secret("default", "no such/name").await, Err(CommandError::NotFound("secret"))));
        for bad in ["", "a b", "a/b", &"x".repeat(101)] {
            assert!(matches!(engine.put_secret("default", bad, VALUE, &by).await, Err(CommandError::Invalid(_))), "{bad}");
        }
        let query = AuditQuery { namespace: Some("default".into()), limit: 10, ..AuditQuery::default() };
        let found = engine.audit(&query).await.unwrap();
        let did: Vec<AuditAction> = found.iter().map(|it| it.did).collect();
        assert_eq!(did, [AuditAction::SecretDelete, AuditAction::SecretPut]);
        assert!(!format!("{found:?}").contains("CANARY"));
        assert_eq!(state(&engine, submit(&engine, TaskSpec::new("k")).await).await, State::Pending);
    }
}
