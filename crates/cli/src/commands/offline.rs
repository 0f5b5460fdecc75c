//! Commands that work on the database directly, when the server does not start: cancel a task, pause or resume a loop. No loop
//! runs here, and no policy is evaluated.

use comeback_core::filter::{Filter, Sort};
use comeback_core::transition::Actor;
use comeback_core::{Millis, TaskId};
use comeback_engine::store::{ListQuery, Loop, Place, StoreError};
use comeback_engine::{CommandError, Engine, EngineConfig, SystemClock};
use serde_json::json;

use super::resource::{abbreviates, digits};
use super::{broken, db};
use crate::error::{CliError, code};
use crate::output::{Output, View};

/// Namespace of tasks submitted without one.
const DEFAULT_NAMESPACE: &str = "default";

/// Cancels a task.
pub async fn cancel(
    out: &Output,
    db: &str,
    id: &str,
    namespace: Option<&str>,
    note: Option<String>,
) -> Result<u8, CliError> {
    let place = db::existing(db)?;
    let engine = open(&place).await?;
    let done = async {
        let (namespace, task) = find(&engine, &place, id, namespace).await?;
        let act = Actor { by: Some("comeback task cancel --db".into()), note, ..Actor::default() };
        let changed = engine.cancel(&namespace, task, act).await.map_err(|error| refused(&place, &error))?;
        let state = changed.state.word();
        let data = json!({"db": place.to_string(), "task": task.to_string(), "namespace": namespace, "state": state});
        Ok::<_, CliError>(View::message(data, format!("task {task} in namespace {namespace} is {state}")))
    }
    .await;
    engine.close().await;
    done?.print(out)
}

/// Pauses one loop, or two for `promote`.
pub async fn pause(
    out: &Output,
    db: &str,
    name: &str,
    span: Option<&str>,
    note: Option<String>,
) -> Result<u8, CliError> {
    let (place, loops) = (db::existing(db)?, named(name)?);
    let span = span.map(Millis::parse).transpose().map_err(|error| CliError::new(code::USAGE, error.to_string()))?;
    let engine = open(&place).await?;
    let done = async {
        for it in &loops {
            let act = Actor { by: Some("comeback loop pause --db".into()), note: note.clone(), ..Actor::default() };
            engine.pause_loop(*it, span, act).await.map_err(|error| refused(&place, &error))?;
        }
        Ok::<_, CliError>(())
    }
    .await;
    engine.close().await;
    done?;
    let until = span.map_or("until resumed".to_owned(), |span| format!("for {span}"));
    let data = json!({"db": place.to_string(), "loops": words(&loops), "paused": true});
    View::message(data, format!("{} paused {until}", words(&loops).join(" and "))).print(out)
}

/// Resumes one loop, or two for `promote`.
pub async fn resume(out: &Output, db: &str, name: &str) -> Result<u8, CliError> {
    let (place, loops) = (db::existing(db)?, named(name)?);
    let engine = open(&place).await?;
    let done = async {
        for it in &loops {
            let act = Actor { by: Some("comeback loop resume --db".into()), ..Actor::default() };
            engine.resume_loop(*it, act).await.map_err(|error| refused(&place, &error))?;
        }
        Ok::<_, CliError>(())
    }
    .await;
    engine.close().await;
    done?;
    let data = json!({"db": place.to_string(), "loops": words(&loops), "paused": false});
    View::message(data, format!("{} resumed", words(&loops).join(" and "))).print(out)
}

async fn open(place: &Place) -> Result<Engine, CliError> {
    let wrong = |error: StoreError| match error {
        StoreError::Locked(_) => CliError::new(code::CONFLICT, format!("{place} is in use"))
            .why("a server has it open")
            .remedy("run the same command without --db")
            .remedy("or stop the server first"),
        other => broken(place, &other),
    };
    let store = place.open().await.map_err(wrong)?;
    let config = EngineConfig { instance: "offline".into(), ..EngineConfig::default() };
    Engine::without_loops(store, SystemClock::new(), config).await.map_err(wrong)
}

/// The loops of a name; `promote` means retries and starts.
fn named(name: &str) -> Result<Vec<Loop>, CliError> {
    if name == "promote" {
        return Ok(vec![Loop::Retries, Loop::Starts]);
    }
    Loop::from_word(name).map(|it| vec![it]).ok_or_else(|| {
        CliError::new(code::NOT_FOUND, format!("there is no loop `{name}`"))
            .remedy(format!("one of promote, {}", words(Loop::ALL).join(", ")))
    })
}

fn words(loops: &[Loop]) -> Vec<&'static str> {
    loops.iter().map(|it| it.word()).collect()
}

/// A task by its whole id in any namespace, or by a part of its id in one namespace.
async fn find(
    engine: &Engine,
    place: &Place,
    text: &str,
    namespace: Option<&str>,
) -> Result<(String, TaskId), CliError> {
    let wrong = |error: StoreError| broken(place, &error);
    let unknown = || CliError::new(code::NOT_FOUND, format!("there is no task `{text}` in {place}"));
    if let Ok(id) = uuid::Uuid::try_parse(text.trim_start_matches("tsk_")) {
        let found = engine.store().load(&[TaskId(id)]).await.map_err(wrong)?;
        let task = found.into_iter().flatten().next().ok_or_else(unknown)?.task;
        let own = task.lane.namespace.to_string();
        return match namespace {
            Some(other) if other != own => Err(unknown().why(format!("it is in namespace {own}"))),
            _ => Ok((own, task.id)),
        };
    }
    let namespace = namespace.unwrap_or(DEFAULT_NAMESPACE);
    let bare = digits(text);
    if bare.is_empty() || !bare.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(unknown().why("an id is made of the digits 0 to 9 and a to f"));
    }
    let now = engine.now();
    let filter = Filter::parse(&bare, now).map_err(|error| CliError::new(code::USAGE, error.to_string()))?;
    let query = ListQuery { filter, sort: Sort::SubmittedDesc, limit: 500, after: None, now };
    let listed = engine.store().list(namespace, &query).await.map_err(wrong)?;
    let is_match = |id: &TaskId| abbreviates(text, &id.to_string());
    let ids: Vec<TaskId> = listed.items.iter().map(|it| it.stored.task.id).filter(is_match).collect();
    match ids.as_slice() {
        [one] => Ok((namespace.to_owned(), *one)),
        [] => Err(unknown()
            .why(format!("no id in namespace {namespace} starts or ends like this"))
            .remedy("give the whole id")),
        many => Err(CliError::new(code::USAGE, format!("`{text}` is ambiguous ({} tasks)", many.len()))
            .remedy("give more digits")),
    }
}

fn refused(place: &Place, error: &CommandError) -> CliError {
    match error {
        CommandError::Store(error) => broken(place, error),
        other => CliError::new(code::CONFLICT, other.to_string()),
    }
}
