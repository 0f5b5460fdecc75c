//! Cancel hooks that a callee registers for the run it was started for: in its answer to the start call, or through its handle.
//!
//! They are kept beside the task under its run, so those of an earlier run are nobody's any more. They are called once: when the
//! task is canceled while that run lasts, or when the run is over and will be repeated, because what it started may still be at
//! work (X1-7).

use comeback_core::filter::{Filter, Pattern, Sort, Test, TextField};
use comeback_core::{Commit, Executor, Invalid, Record, Reporter, State, Task, TaskId, Timestamp};
use comeback_store::{Collection, Idempotency, ListQuery, StoreError, Submission, Submitted};
use serde_json::{Value, json};

use super::{MOST_CALLS, as_executor};
use crate::executors::HttpCall;
use crate::{CommandError, Core, Engine};

const SHELF: &str = "cancel-hooks";
/// Fields of a call; an answer with other fields is not one.
const PARTS: [&str; 5] = ["url", "method", "headers", "body", "timeout"];

fn name(task: TaskId, run: u32) -> String {
    format!("{task}:{run}")
}

/// A call in the answer to a start call: as it is written natively, under `cancel`, or as an action of a batch.
pub fn in_answer(answer: &Value) -> Option<Value> {
    let call = match answer.get("cancel") {
        Some(call) => call.clone(),
        None if answer.get("kind")? == "Webhook" => from_action(answer.get("params")?)?,
        None => return None,
    };
    let known = call.as_object()?.keys().all(|key| PARTS.contains(&key.as_str()));
    (known && HttpCall::checked(&as_executor(&call).to_string()).is_ok()).then_some(call)
}

/// The parameters of an action are those of a call, but for the name of the method.
fn from_action(params: &Value) -> Option<Value> {
    let mut call = params.as_object()?.clone();
    let verb = call.remove("verb")?;
    call.insert("method".into(), verb.as_str()?.to_ascii_uppercase().into());
    Some(call.into())
}

/// Whether a run that was ended by this change is called off: it was canceled, or it will be repeated.
fn is_called_off(task: &Task) -> bool {
    match task.state {
        State::Canceled | State::RetryPending | State::Pending => true,
        State::Paused => task.parked || task.paused_from == Some(State::RetryPending),
        _ => false,
    }
}

/// The hooks' tasks whose run a change calls off, each with the record of its end.
fn called_off(commit: &Commit) -> impl Iterator<Item = (&Task, &Record)> {
    ended(commit).filter(|(task, _)| is_called_off(task))
}

/// The hooks' tasks whose run a change ends. Without a record of it there was none: a claim that was given back was never sent.
fn ended(commit: &Commit) -> impl Iterator<Item = (&Task, &Record)> {
    let hooks = commit.writes.iter().map(|write| &write.after).filter(|task| task.lane.executor == Executor::Hook);
    hooks.filter_map(|task| {
        let ends = |record: &&Record| record.subject == task.id.0 && record.outcome.is_some();
        commit.records.iter().find(ends).map(|ended| (task, ended))
    })
}

impl Engine {
    /// A call to make when the run that is meant is canceled or repeated. Where that has happened already it is made at once.
    pub async fn register_cancel(
        &self,
        namespace: &str,
        task: TaskId,
        fence: Reporter,
        call: Value,
    ) -> Result<(), CommandError> {
        HttpCall::checked(&as_executor(&call).to_string())?;
        let seen = self.find(namespace, task).await?.task;
        if seen.lane.executor != Executor::Hook {
            return Err(Invalid::one("", "only who was called by a hook may register one").into());
        }
        let run = seen.run_meant_by(fence).ok_or(CommandError::LeaseLost)?;
        let at = Collection { namespace, shelf: SHELF };
        loop {
            let known = self.core.store.document(at, &name(task, run), None).await?;
            let mut calls = known.as_ref().map_or_else(Vec::new, |known| read(&known.body));
            if calls.contains(&call) {
                break;
            }
            if calls.len() >= MOST_CALLS {
                return Err(Invalid::one("on_cancel", format!("at most {MOST_CALLS} calls are allowed")).into());
            }
            calls.push(call.clone());
            let version = known.map_or(0, |known| known.version);
            let text = Value::Array(calls).to_string();
            if self.core.store.put_document(at, &name(task, run), version, &text, None, self.now()).await? {
                break;
            }
        }
        self.core.call_if_over(task, run, &call).await?;
        Ok(())
    }
}

fn read(text: &str) -> Vec<Value> {
    serde_json::from_str(text).unwrap_or_default()
}

impl Core {
    /// Calls that were registered by the runs that a commit ends, each as a task.
    pub(super) async fn registered(
        &self,
        commit: &Commit,
        now: Timestamp,
        spawn: &mut Option<Submission>,
    ) -> Result<(), StoreError> {
        for (task, ended) in called_off(commit) {
            let namespace = &task.lane.namespace;
            let at = Collection { namespace, shelf: SHELF };
            let Some(kept) = self.store.document(at, &name(task.id, task.run), None).await? else { continue };
            let attempt = ended.decision.as_ref().map_or(ended.attempt, |decision| decision.before.attempt);
            let run = task.run;
            for (n, call) in read(&kept.body).iter().enumerate() {
                let spawn = spawn.get_or_insert_with(|| Submission::in_namespace(namespace));
                let key = key(task, attempt, run, n);
                spawn.tasks.push(self.delivery(task, "cancel", &key, call, told(task, attempt, run), now));
            }
        }
        Ok(())
    }

    /// Handles calls that were registered between the load and the commit of a change. The registration checks too, so one of the two
    /// sees the other, and each call is made once. Then the registration is deleted.
    pub(crate) async fn registered_meanwhile(&self, commit: &Commit) {
        for (task, _) in ended(commit) {
            let at = Collection { namespace: &task.lane.namespace, shelf: SHELF };
            let made = async {
                let name = name(task.id, task.run);
                let Some(kept) = self.store.document(at, &name, None).await? else { return Ok(()) };
                for call in read(&kept.body).iter().filter(|_| is_called_off(task)) {
                    self.call_late(task, task.run, call).await?;
                }
                self.store.delete_document(at, &name).await.map(drop)
            };
            if let Err(error) = made.await {
                tracing::warn!(task = %task.id, %error, "cannot load registered cancel calls of run");
            }
        }
    }

    async fn call_if_over(&self, id: TaskId, run: u32, call: &Value) -> Result<(), StoreError> {
        let Some(seen) = self.store.load(&[id]).await?.pop().flatten() else { return Ok(()) };
        let task = seen.task;
        let present = task.present_run();
        let lasts = present == run && (task.state.is_active() || task.state == State::Paused && task.lease.is_some());
        let unneeded = matches!(task.state, State::Succeeded | State::Failed | State::Dead) && task.run == run;
        if lasts || present < run {
            return Ok(());
        }
        if !unneeded {
            self.call_late(&task, run, call).await?;
        }
        let at = Collection { namespace: &task.lane.namespace, shelf: SHELF };
        self.store.delete_document(at, &name(id, run)).await.map(drop)
    }

    /// Makes a call about a run that is over, unless it was made with the end of the run.
    async fn call_late(&self, task: &Task, run: u32, call: &Value) -> Result<(), StoreError> {
        let (namespace, id, now) = (&task.lane.namespace, task.id, self.clock.now());
        let exactly = |text: String| vec![Pattern { text, prefix: false }];
        let filter = Filter::default()
            .and(Test::Text { field: TextField::Kind, any: exactly("hook.cancel".into()) })
            .and(Test::Text { field: TextField::Label("hook_of".into()), any: exactly(id.to_string()) });
        let query = ListQuery { filter, sort: Sort::SubmittedDesc, limit: 500, after: None, now };
        let json = |text: Option<&str>| text.and_then(|it| serde_json::from_str::<Value>(it).ok()).unwrap_or_default();
        for made in self.store.list(namespace, &query).await?.items {
            let Some(view) = self.store.task(namespace, made.stored.task.id).await? else { continue };
            let same_run = json(view.body.payload.as_deref())["run"] == run;
            if same_run && json(view.body.executor.as_deref())["url"] == call["url"] {
                self.tallies.spared(namespace, "cancel", false);
                return Ok(());
            }
        }
        let attempt = task.counters.attempt;
        let key = format!("{}:late", key(task, attempt, run, 0));
        let once = Idempotency { scope: "hook".into(), key: format!("{id}:{run}:{}", call["url"]), digest: [0; 32] };
        let mut late = Submission { idempotency: Some(once), ..Submission::in_namespace(namespace) };
        late.tasks.push(self.delivery(task, "cancel", &key, call, told(task, attempt, run), now));
        let late = std::slice::from_ref(&late);
        if let [Submitted::Created(_)] = &self.store.submit(late, now).await?[..] {
            self.notify_submitted(late);
        } else {
            self.tallies.spared(namespace, "cancel", true);
        }
        Ok(())
    }
}

/// Id of such a call: of the attempt that ended.
fn key(task: &Task, attempt: u32, run: u32, n: usize) -> String {
    let parted = if run == attempt + 1 { String::new() } else { format!(":r{run}") };
    let more = if n == 0 { String::new() } else { format!(":{n}") };
    format!("{}:cancel:success:{attempt}{parted}:registered{more}", task.id)
}

fn told(task: &Task, attempt: u32, run: u32) -> Value {
    json!({
        "task_id": task.id.to_string(), "kind": task.lane.kind, "state": task.state.word(), "attempt": attempt, "run": run,
        "reason": task.reason.map(|reason| reason.word()), "execution_id": task.execution.map(|id| id.to_string()),
        "next_retry_at": task.next_retry_at.map(|at| at.to_rfc3339()),
    })
}
