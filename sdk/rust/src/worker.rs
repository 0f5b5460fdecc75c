//! A worker: leases in batches, keeps what it holds alive, reports in batches, and stops without dropping anything.

use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::{Semaphore, mpsc, watch};

use crate::client::{Client, Error};
use crate::reports;

/// A task as its worker gets it.
#[derive(Clone, Debug, Deserialize)]
pub struct Task {
    /// The task id.
    pub id: String,
    /// The kind.
    pub kind: String,
    /// The key within its execution.
    #[serde(default)]
    pub key: Option<String>,
    /// The name.
    #[serde(default)]
    pub name: Option<String>,
    /// The queue.
    #[serde(default)]
    pub queue: String,
    /// The payload.
    #[serde(default)]
    pub payload: Value,
    /// The labels.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// The failed attempts of this cycle that count against the policy.
    pub attempt: u32,
    /// The number of this attempt, from 1.
    pub attempt_number: u32,
    /// How often it was started in its life, this time included.
    #[serde(default)]
    pub run: u32,
    /// Whether an earlier attempt failed.
    pub is_retry: bool,
    /// The W3C trace context of the submit.
    #[serde(default)]
    pub traceparent: Option<String>,
}

/// A task, and the right to run it once.
#[derive(Clone, Debug, Deserialize)]
pub struct Lease {
    /// The token that heartbeats and reports carry.
    #[serde(rename = "lease")]
    pub token: String,
    /// The end of the lease.
    #[serde(default)]
    pub expires_at: Option<String>,
    /// The task.
    pub task: Task,
}

#[derive(Deserialize)]
pub(crate) struct Leases {
    /// The leases.
    pub leases: Vec<Lease>,
    /// The worker is drained: it is given nothing until somebody takes that back.
    #[serde(default)]
    pub draining: bool,
}

/// How a run ended, as the server wants to hear it.
#[derive(Clone, Debug)]
pub struct Outcome(Value);

impl Outcome {
    /// The run succeeded with this result.
    pub fn succeeded(result: Value) -> Outcome {
        Outcome(json!({"outcome": "succeeded", "result": result}))
    }

    /// The server decides what comes of it.
    pub fn failed(message: impl Into<String>) -> Outcome {
        Outcome(json!({"outcome": "failed", "error": {"message": message.into()}}))
    }

    /// With class, type, code, status, message, stack and retry_after, as far as they are known.
    pub fn failed_with(error: Value) -> Outcome {
        Outcome(json!({"outcome": "failed", "error": error}))
    }

    /// Not now; ask again after a while, which costs no attempt.
    pub fn snoozed(delay: Duration) -> Outcome {
        Outcome(json!({"outcome": "snoozed", "delay": delay.as_secs_f64()}))
    }
}

type Running = Pin<Box<dyn Future<Output = Outcome> + Send>>;
type Handler = Arc<dyn Fn(Task) -> Running + Send + Sync>;

/// A worker: it leases tasks, runs their handlers, sends heartbeats and reports.
pub struct Worker {
    client: Client,
    name: String,
    queues: Vec<String>,
    concurrency: usize,
    lease: Duration,
    signs_of_life: bool,
    stops_when_drained: bool,
    handlers: HashMap<String, Handler>,
}

impl Worker {
    /// Creates one.
    pub fn new(client: Client, name: impl Into<String>) -> Worker {
        Worker {
            client,
            name: name.into(),
            queues: vec!["default".into()],
            concurrency: 10,
            lease: Duration::from_secs(60),
            signs_of_life: true,
            stops_when_drained: false,
            handlers: HashMap::new(),
        }
    }

    /// Leases from these queues.
    pub fn queues(mut self, queues: impl IntoIterator<Item = impl Into<String>>) -> Worker {
        self.queues = queues.into_iter().map(Into::into).collect();
        self
    }

    /// Tasks that may run side by side.
    pub fn concurrency(mut self, concurrency: usize) -> Worker {
        self.concurrency = concurrency.max(1);
        self
    }

    /// How long a lease lasts without a sign of life; the worker gives one in time.
    pub fn lease(mut self, lease: Duration) -> Worker {
        self.lease = lease;
        self
    }

    /// Leases run out unless their tasks end in time: for those who want to see what happens then.
    pub fn without_heartbeats(mut self) -> Worker {
        self.signs_of_life = false;
        self
    }

    /// Stops when the server says that this worker is drained, as if `stop` had come. Otherwise it goes on asking, and works again
    /// when the drain is taken back.
    pub fn stop_when_drained(mut self) -> Worker {
        self.stops_when_drained = true;
        self
    }

    /// Registers a handler for a kind.
    pub fn handle<F, R>(mut self, kind: impl Into<String>, handler: F) -> Worker
    where
        F: Fn(Task) -> R + Send + Sync + 'static,
        R: Future<Output = Outcome> + Send + 'static,
    {
        self.handlers.insert(kind.into(), Arc::new(move |task| Box::pin(handler(task))));
        self
    }

    /// Works until `stop`; then leases no more, finishes what runs, reports it, and returns. A lease of a kind without a handler is
    /// given back.
    pub async fn run(self, stop: impl Future<Output = ()>) -> Result<(), Error> {
        if self.handlers.is_empty() {
            return Err(Error::Usage("a worker needs a handler for at least one kind".into()));
        }
        let worker = Arc::new(self);
        let room = Arc::new(Semaphore::new(worker.concurrency));
        let held = Held::default();
        let (reports, pending) = mpsc::channel::<Value>(worker.concurrency * 2);
        let (done, is_done) = watch::channel(false);
        let reporter = tokio::spawn(reports::tell_all(worker.client.clone(), pending, held.clone()));
        let keeper = tokio::spawn(keep_alive(worker.clone(), held.clone(), is_done));
        tokio::pin!(stop);
        let mut drained = false;
        loop {
            let permits = tokio::select! {
                () = &mut stop => break,
                permit = room.clone().acquire_owned() => permit.map_err(|_| Error::Usage("closed".into()))?,
            };
            drop(permits);
            let free = room.available_permits().max(1);
            let request = json!({
                "worker": worker.name, "queues": worker.queues, "kinds": worker.handlers.keys().collect::<Vec<_>>(),
                "limit": free, "lease": worker.lease.as_secs_f64(), "wait": 20,
            });
            let leased = tokio::select! {
                () = &mut stop => break,
                leased = worker.client.ask_for_leases(&request) => leased,
            };
            let Leases { leases, draining } = match leased {
                Ok(leased) => leased,
                Err(error) => {
                    tracing::warn!(%error, "no work could be asked for; asking again");
                    tokio::select! {
                        () = &mut stop => break,
                        () = tokio::time::sleep(Duration::from_secs(1)) => continue,
                    }
                }
            };
            if draining != drained {
                drained = draining;
                tracing::info!(worker = worker.name, draining, "drain of this worker changed");
            }
            if draining && leases.is_empty() && worker.stops_when_drained {
                break;
            }
            for Lease { token, task, .. } in leases {
                let Some(handler) = worker.handlers.get(&task.kind).cloned() else {
                    tracing::warn!(task = task.id, kind = task.kind, "no handler for this kind; releasing the lease");
                    let _ = reports.send(json!({"lease": token, "outcome": "released"})).await;
                    continue;
                };
                let permit = room.clone().acquire_owned().await.map_err(|_| Error::Usage("closed".into()))?;
                let (reports, held_by_task, name) = (reports.clone(), held.clone(), token.clone());
                let run = tokio::spawn(async move { handler(task).await });
                held.keep(token, run.abort_handle());
                tokio::spawn(async move {
                    let outcome = run.await;
                    let outcome = match outcome {
                        Ok(outcome) => Some(outcome),
                        Err(error) if error.is_cancelled() => None,
                        Err(_) => Some(Outcome::failed("the handler panicked")),
                    };
                    match outcome {
                        // It is kept alive until the server has heard how it ended.
                        Some(Outcome(mut report)) => {
                            report["lease"] = name.into();
                            let _ = reports.send(report).await;
                        }
                        None => held_by_task.drop(&name),
                    }
                    drop(permit);
                });
            }
        }
        // Everything that runs gives its permit back when it has said how it ended.
        let all = u32::try_from(worker.concurrency).unwrap_or(u32::MAX);
        let _ = room.acquire_many(all).await;
        drop(reports);
        let _ = reporter.await;
        let _ = done.send(true);
        let _ = keeper.await;
        Ok(())
    }
}

/// Leases that are kept alive, and how to stop their runs.
#[derive(Clone, Default)]
pub(crate) struct Held(Arc<Mutex<HashMap<String, tokio::task::AbortHandle>>>);

impl Held {
    fn keep(&self, token: String, run: tokio::task::AbortHandle) {
        self.0.lock().map(|mut held| held.insert(token, run)).ok();
    }

    pub(crate) fn drop(&self, token: &str) {
        self.0.lock().map(|mut held| held.remove(token)).ok();
    }

    fn tokens(&self) -> Vec<String> {
        self.0.lock().map(|held| held.keys().cloned().collect()).unwrap_or_default()
    }

    fn abort(&self, token: &str) {
        if let Some(run) = self.0.lock().ok().and_then(|held| held.get(token).cloned()) {
            run.abort();
        }
    }
}

/// Gives a sign of life three times per lease, and stops what was canceled or lost.
async fn keep_alive(worker: Arc<Worker>, held: Held, mut is_done: watch::Receiver<bool>) {
    loop {
        tokio::select! {
            _ = is_done.wait_for(|done| *done) => return,
            () = tokio::time::sleep(worker.lease / 3) => {}
        }
        let tokens = held.tokens();
        if tokens.is_empty() || !worker.signs_of_life {
            continue;
        }
        let Ok(answer) = worker.client.heartbeat(&tokens, worker.lease.as_secs().max(1)).await else { continue };
        for item in answer["leases"].as_array().into_iter().flatten() {
            let gone = item["cancel_requested"] == true || item.get("problem").is_some();
            if let (true, Some(token)) = (gone, item["lease"].as_str()) {
                held.abort(token);
            }
        }
    }
}
