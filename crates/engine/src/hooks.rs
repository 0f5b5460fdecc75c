//! Hooks: who wants to be called when a task ends, is retried or is canceled. Each call is a lone task of its own, made in the
//! same transaction as the change it tells of, so it is made once, tried again by the same rules as everything else, and seen.

mod registered;

use std::sync::{Arc, LazyLock};

use comeback_core::{
    Commit, Dialect, HOOK_QUEUE, Invalid, Policy, PolicyLimits, State, Task, TaskId, Timestamp, Write, dialect,
};
use comeback_store::{NewTask, StoreError, Submission};
use serde_json::{Map, Value, json};

use crate::executors::HttpCall;
use crate::{Core, ExecutorSpec, Json, TaskSpec};
pub(crate) use registered::in_answer;

/// When a hook is called.
const NAMES: [&str; 4] = ["success", "failure", "retry", "cancel"];
const MOST_CALLS: usize = 20;

/// Tried for about a day.
static POLICY: LazyLock<Option<Arc<Policy>>> = LazyLock::new(|| {
    let written = json!({"strategy": "exponential", "initial_delay": "5s", "max_delay": "1h", "max_retries": 30});
    dialect::parse(&written, Dialect::Native, &PolicyLimits::default()).ok().flatten().map(Arc::new)
});

/// Id of a call: the same for every try of it, another for every attempt (model A12).
pub fn key(task: &Task, trigger: &str, condition: &str) -> String {
    let (attempt, run) = (task.counters.attempt, task.run);
    // Who waits for a retry has counted it already and not run it yet.
    let together = if task.state == State::RetryPending { run == attempt } else { run == attempt + 1 };
    let parted = if together { String::new() } else { format!(":r{run}") };
    format!("{}:{trigger}:{condition}:{attempt}{parted}", task.id)
}

/// Everything that can be known to be wrong before anybody is called.
pub(crate) fn check(hooks: &Json) -> Result<(), Invalid> {
    let value: Value = serde_json::from_str(hooks.text()).map_err(|error| Invalid::one("", error))?;
    let Value::Object(fields) = value else { return Err(Invalid::one("", "must be an object of lists")) };
    let mut faults = Invalid::default();
    for (name, calls) in fields {
        let Some(calls) = calls.as_array().filter(|_| NAMES.contains(&name.as_str())) else {
            let what = if NAMES.contains(&name.as_str()) {
                "must be a list of calls".into()
            } else {
                format!("is none of {}", NAMES.join(", "))
            };
            faults.push(name, what);
            continue;
        };
        if calls.len() > MOST_CALLS {
            faults.push(name.clone(), format!("at most {MOST_CALLS} calls are allowed"));
        }
        for (n, call) in calls.iter().enumerate() {
            if let Err(part) = HttpCall::checked(&as_executor(call).to_string()) {
                faults.absorb(&format!("{name}[{n}]"), part);
            }
        }
    }
    faults.or(())
}

/// The settings of a hook: the calls that start it, if there are any, and the sort of its handle.
pub(crate) fn check_start(settings: &Json) -> Result<(), Invalid> {
    let value: Value = serde_json::from_str(settings.text()).map_err(|error| Invalid::one("", error))?;
    let Value::Object(fields) = value else { return Err(Invalid::one("", "must be an object")) };
    let mut faults = Invalid::default();
    for (name, value) in fields {
        match (name.as_str(), &value) {
            ("type", _) | ("start" | "handle", Value::Null) => {}
            ("start", Value::Object(_)) => {
                if let Err(part) = HttpCall::checked(&as_executor(&value).to_string()) {
                    faults.absorb("start", part);
                }
            }
            ("start", Value::Array(calls)) if (1..=MOST_CALLS).contains(&calls.len()) => {
                for (n, call) in calls.iter().enumerate() {
                    if let Err(part) = HttpCall::checked(&as_executor(call).to_string()) {
                        faults.absorb(&format!("start[{n}]"), part);
                    }
                }
            }
            ("start", _) => faults.push("start", format!("must be a call, or a list of {MOST_CALLS} calls at most")),
            ("handle", Value::String(word)) if word == "task" => {}
            ("handle", _) => faults.push("handle", "must be `task` where it is given"),
            _ => faults.push(name, "is no setting of a hook"),
        }
    }
    faults.or(())
}

/// A call as the executor of a task.
pub(crate) fn as_executor(call: &Value) -> Value {
    let mut settings = call.clone();
    if let Value::Object(fields) = &mut settings {
        fields.insert("type".into(), "http".into());
        fields.entry("method").or_insert_with(|| "POST".into());
    }
    settings
}

/// Which hooks a change calls, each with the words of its key.
fn called(write: &Write) -> Vec<(&'static str, &'static str, &'static str)> {
    let was_active = write.from.is_active();
    match write.after.state {
        State::Succeeded => vec![("success", "end", "success")],
        State::Failed | State::Dead => vec![("failure", "end", "failure")],
        State::Canceled if was_active => vec![("cancel", "cancel", "success"), ("failure", "end", "failure")],
        State::Canceled => vec![("failure", "end", "failure")],
        State::RetryPending if was_active => vec![("retry", "retry", "failure")],
        _ => Vec::new(),
    }
}

impl Core {
    /// The calls that a change makes.
    pub(crate) async fn calls_of(&self, commit: &Commit, now: Timestamp) -> Result<Option<Submission>, StoreError> {
        let mut spawn: Option<Submission> = None;
        self.registered(commit, now, &mut spawn).await?;
        let hooked = commit.writes.iter().filter(|write| write.after.hooked && write.from.is_open());
        for write in hooked.filter(|write| !called(write).is_empty()) {
            let task = &write.after;
            let namespace = &task.lane.namespace;
            let Some(view) = self.store.task(namespace, task.id).await? else { continue };
            let hooks: Map<String, Value> =
                view.body.hooks.as_deref().and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
            for (name, trigger, condition) in called(write) {
                let calls = hooks.get(name).and_then(Value::as_array).into_iter().flatten();
                for (n, call) in calls.enumerate() {
                    let told = json!({
                        "task_id": task.id.to_string(), "kind": task.lane.kind, "key": view.body.key, "state": task.state.word(),
                        "reason": task.reason.map(|reason| reason.word()), "attempt": task.counters.attempt, "run": task.run,
                        "labels": view.body.labels, "next_retry_at": task.next_retry_at.map(|at| at.to_rfc3339()),
                        "execution_id": task.execution.map(|id| id.to_string()),
                    });
                    let key = key(task, trigger, condition);
                    let key = if n == 0 { key } else { format!("{key}:{n}") };
                    let spawn = spawn.get_or_insert_with(|| Submission::in_namespace(namespace));
                    spawn.tasks.push(self.delivery(task, trigger, &key, call, told, now));
                }
            }
        }
        Ok(spawn)
    }

    fn delivery(&self, of: &Task, trigger: &str, key: &str, call: &Value, told: Value, now: Timestamp) -> NewTask {
        let mut settings = as_executor(call);
        let mut headers = settings["headers"].as_object().cloned().unwrap_or_default();
        headers.extend(headers_of(of.id, trigger, key));
        settings["headers"] = headers.into();
        let spec = TaskSpec {
            name: Some(key.to_owned()),
            queue: Some(HOOK_QUEUE.into()),
            payload: Some(told.into()),
            executor: ExecutorSpec::Http(settings.into()),
            retry: POLICY.clone(),
            labels: [("hook_of".to_owned(), of.id.to_string())].into(),
            ..TaskSpec::new(format!("hook.{trigger}"))
        };
        spec.lone(&of.lane.namespace, &self.config, self.ids.task(now), now)
    }
}

/// Headers of every call.
pub(crate) fn headers_of(task: TaskId, trigger: &str, key: &str) -> [(String, Value); 3] {
    let trigger = format!("{}{}", trigger[..1].to_ascii_uppercase(), &trigger[1..]);
    [
        ("idempotency-key".into(), key.into()),
        ("x-task-id".into(), task.to_string().into()),
        ("x-task-trigger".into(), trigger.into()),
    ]
}
