//! Acts on the database itself, for a server that does not start: cancel a task, pause or resume a loop. No loop runs here, and
//! no policy is evaluated.

use comeback_core::filter::{Filter, Sort};
use comeback_core::transition::Act;
use comeback_core::{Millis, TaskId};
use comeback_engine::store::{ListQuery, Loop, Place, StoreError};
use comeback_engine::{CommandError, Engine, EngineConfig, SystemClock};
use serde_json::json;

use super::{broken, db};
use crate::failure::{Failure, code};
use crate::output::{Output, View};

/// Where tasks are that no namespace was said for.
const USUAL_NAMESPACE: &str = "default";

pub async fn cancel(
    out: &Output,
    db: &str,
    id: &str,
    namespace: Option<&str>,
    note: Option<String>,
) -> Result<u8, Failure> {
    let place = db::existing(db)?;
    let engine = open(&place).await?;
    let done = async {
        let (namespace, task) = find(&engine, &place, id, namespace).await?;
        let act = Act { by: Some("comeback task cancel --db".into()), note, ..Act::default() };
        let changed = engine.cancel(&namespace, task, act).await.map_err(|error| refused(&place, &error))?;
        let state = changed.state.word();
        let data = json!({"db": place.to_string(), "task": task.to_string(), "namespace": namespace, "state": state});
        Ok::<_, Failure>(View::said(data, format!("{task} in {namespace} is {state}")))
    }
    .await;
    engine.close().await;
    done?.print(out)
}

pub async fn pause(
    out: &Output,
    db: &str,
    name: &str,
    span: Option<&str>,
    note: Option<String>,
) -> Result<u8, Failure> {
    let (place, loops) = (db::existing(db)?, named(name)?);
    let span = span.map(Millis::parse).transpose().map_err(|error| Failure::new(code::USAGE, error.to_string()))?;
    let engine = open(&place).await?;
    let done = async {
        for it in &loops {
            let act = Act { by: Some("comeback loop pause --db".into()), note: note.clone(), ..Act::default() };
            engine.pause_loop(*it, span, act).await.map_err(|error| refused(&place, &error))?;
        }
        Ok::<_, Failure>(())
    }
    .await;
    engine.close().await;
    done?;
    let until = span.map_or("until it is resumed".to_owned(), |span| format!("for {span}"));
    let data = json!({"db": place.to_string(), "loops": words(&loops), "paused": true});
    View::said(data, format!("{} is paused {until}", words(&loops).join(" and "))).print(out)
}

pub async fn resume(out: &Output, db: &str, name: &str) -> Result<u8, Failure> {
    let (place, loops) = (db::existing(db)?, named(name)?);
    let engine = open(&place).await?;
    let done = async {
        for it in &loops {
            let act = Act { by: Some("comeback loop resume --db".into()), ..Act::default() };
            engine.resume_loop(*it, act).await.map_err(|error| refused(&place, &error))?;
        }
        Ok::<_, Failure>(())
    }
    .await;
    engine.close().await;
    done?;
    let data = json!({"db": place.to_string(), "loops": words(&loops), "paused": false});
    View::said(data, format!("{} runs again", words(&loops).join(" and "))).print(out)
}

async fn open(place: &Place) -> Result<Engine, Failure> {
    let wrong = |error: StoreError| match error {
        StoreError::Locked(_) => Failure::new(code::CONFLICT, format!("{place} is in use"))
            .why("a server has it open")
            .remedy("ask that server: the same command without --db")
            .remedy("or stop it first"),
        other => broken(place, &other),
    };
    let store = place.open().await.map_err(wrong)?;
    let config = EngineConfig { instance: "offline".into(), ..EngineConfig::default() };
    Engine::without_loops(store, SystemClock::new(), config).await.map_err(wrong)
}

/// A loop by its name; `promote` stands for both of its halves.
fn named(name: &str) -> Result<Vec<Loop>, Failure> {
    if name == "promote" {
        return Ok(vec![Loop::Retries, Loop::Starts]);
    }
    Loop::from_word(name).map(|it| vec![it]).ok_or_else(|| {
        Failure::new(code::NOT_FOUND, format!("there is no loop `{name}`"))
            .remedy(format!("one of promote, {}", words(Loop::ALL).join(", ")))
    })
}

fn words(loops: &[Loop]) -> Vec<&'static str> {
    loops.iter().map(|it| it.word()).collect()
}

/// A task by its whole id in any namespace, or by either end of its id in one.
async fn find(
    engine: &Engine,
    place: &Place,
    text: &str,
    namespace: Option<&str>,
) -> Result<(String, TaskId), Failure> {
    let wrong = |error: StoreError| broken(place, &error);
    let unknown = || Failure::new(code::NOT_FOUND, format!("there is no task `{text}` in {place}"));
    if let Ok(id) = uuid::Uuid::try_parse(text.trim_start_matches("tsk_")) {
        let found = engine.store().load(&[TaskId(id)]).await.map_err(wrong)?;
        let task = found.into_iter().flatten().next().ok_or_else(unknown)?.task;
        let own = task.lane.namespace.to_string();
        return match namespace {
            Some(other) if other != own => Err(unknown().why(format!("it is in the namespace {own}"))),
            _ => Ok((own, task.id)),
        };
    }
    let namespace = namespace.unwrap_or(USUAL_NAMESPACE);
    let bare: String = text.trim_start_matches("tsk_").to_ascii_lowercase().chars().filter(|c| *c != '-').collect();
    if bare.is_empty() || !bare.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(unknown().why("an id is made of the digits 0 to 9 and a to f"));
    }
    let now = engine.now();
    let filter = Filter::parse(&bare, now).map_err(|error| Failure::new(code::USAGE, error.to_string()))?;
    let query = ListQuery { filter, sort: Sort::SubmittedDesc, limit: 500, after: None, now };
    let listed = engine.store().list(namespace, &query).await.map_err(wrong)?;
    let is_end = |id: &TaskId| {
        let id = id.0.simple().to_string();
        id.ends_with(&bare) || id.starts_with(&bare)
    };
    let ids: Vec<TaskId> = listed.items.iter().map(|it| it.stored.task.id).filter(is_end).collect();
    match ids.as_slice() {
        [one] => Ok((namespace.to_owned(), *one)),
        [] => Err(unknown()
            .why(format!("none in the namespace {namespace} begins or ends so"))
            .remedy("say the whole id")),
        many => {
            Err(Failure::new(code::USAGE, format!("`{text}` stands for {} tasks", many.len()))
                .remedy("say more of the id"))
        }
    }
}

fn refused(place: &Place, error: &CommandError) -> Failure {
    match error {
        CommandError::Store(error) => broken(place, error),
        other => Failure::new(code::CONFLICT, other.to_string()),
    }
}
