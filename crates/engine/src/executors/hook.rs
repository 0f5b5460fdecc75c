//! Hook: the server makes the call that starts a run; a callback ends it later.

use std::time::Duration;

use comeback_core::{Class, Failure, Reporter, Trigger};
use reqwest::Url;
use serde_json::{Value, json};

use super::{LEASE, Runner};
use crate::hooks::{as_executor, headers_of, in_answer};
use crate::{CommandError, Heartbeat, Leased, ReportEnd};

/// A callee that has not answered by then has not been reached.
const LONGEST: Duration = Duration::from_secs(10);

impl Runner {
    /// From the claim to the answer of the start call. What follows is for the callee to say.
    pub(super) async fn start_hook(&self, task: &Leased) {
        comeback_store::panic_point!("executor-hook");
        let settings: Value =
            task.executor.as_deref().and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
        let starts: Vec<&Value> = match settings.get("start") {
            Some(Value::Array(calls)) => calls.iter().collect(),
            start => start.into_iter().filter(|start| start.is_object()).collect(),
        };
        if !starts.is_empty() {
            // From here on a loss may have had effects.
            let sign = Heartbeat { lease: task.lease, extend: LEASE, progress: None };
            if self.engine.heartbeat(&[sign]).await.is_err() {
                return;
            }
            let handle = settings["handle"].as_str();
            let calls = starts.iter().enumerate().map(|(n, start)| self.start_one(task, start, handle, n));
            let answers = futures_util::future::join_all(calls).await;
            // What was started is called off even where another start failed: it will be repeated too (X1-15).
            for call in answers.iter().flatten().filter_map(|answer| in_answer(&answer["body"])) {
                let (id, fence) = (task.lease.task, Reporter::Run(task.run + 1));
                self.tell(task, "keep what cancels", || {
                    self.engine.register_cancel(&task.namespace, id, fence, call.clone())
                })
                .await;
            }
            if let Some(failure) = answers.into_iter().find_map(Result::err) {
                self.tell(task, "fail", || self.engine.hook_failed(&task.namespace, task.lease, (*failure).clone()))
                    .await;
                return;
            }
        }
        self.tell(task, "start", || self.engine.hook_started(&task.namespace, task.lease)).await;
    }

    /// One of its start calls: what was answered, or why the run has failed.
    async fn start_one(
        &self,
        task: &Leased,
        start: &Value,
        handle: Option<&str>,
        n: usize,
    ) -> Result<Value, Box<Failure>> {
        let call = self.start_call(task, start, handle, n);
        let answer = async {
            match tokio::time::timeout(LONGEST, self.calls.run_open(&self.engine.core, &call)).await {
                Ok((ReportEnd::Failed(failure), _)) => Err(Box::new(failure)),
                Ok((ReportEnd::Succeeded { result: Some(answer) }, sent)) => {
                    let mut answer = serde_json::from_str(answer.text()).unwrap_or_default();
                    // A call that cancels may come with the header that the start call came with.
                    sent.name_secrets(&mut answer);
                    Ok(answer)
                }
                Ok(_) => Ok(Value::Null),
                Err(_) => Err(Box::new(Failure {
                    class: Some(Class::Retryable),
                    error_type: Some("network".into()),
                    ..Failure::new(Trigger::StartFailed, format!("no answer within {} s", LONGEST.as_secs()))
                })),
            }
        };
        self.engine.core.tallies.starting(&task.namespace, answer).await
    }

    /// The start call with its handle: where the callee says how it ended.
    fn start_call(&self, task: &Leased, start: &Value, handle: Option<&str>, n: usize) -> Leased {
        let base = self.handles.trim_end_matches('/');
        let handle = match handle {
            // The run it is for goes along, so that a late answer of an earlier one is told apart.
            Some("task") => format!("{base}/task/{}?run={}", task.lease.task, task.run + 1),
            _ => format!("{base}/api/v1/tasks/{}", task.lease.task),
        };
        let mut settings = as_executor(start);
        if let Some(Ok(mut url)) = settings["url"].as_str().map(Url::parse) {
            url.query_pairs_mut().append_pair("handle", &handle);
            settings["url"] = url.to_string().into();
        }
        // The claim is not the run yet: that is the one to come.
        let run = task.run + 1;
        let parted = if run == task.attempt + 1 { String::new() } else { format!(":r{run}") };
        let more = if n == 0 { String::new() } else { format!(":{n}") };
        let key = format!("{}:start:success:{}{parted}{more}", task.lease.task, task.attempt);
        let mut headers = settings["headers"].as_object().cloned().unwrap_or_default();
        headers.extend(headers_of(task.lease.task, "start", &key));
        headers.insert("comeback-handle".into(), handle.into());
        headers.insert("comeback-run".into(), run.to_string().into());
        settings["headers"] = headers.into();
        if settings.get("body").is_none_or(Value::is_null) && task.payload.is_none() {
            settings["body"] = json!({"task_id": task.lease.task.to_string(), "attempt": task.attempt, "run": run});
        }
        Leased { executor: Some(settings.to_string()), ..task.clone() }
    }

    async fn tell<T, F: Future<Output = Result<T, CommandError>>>(
        &self,
        task: &Leased,
        what: &str,
        act: impl Fn() -> F,
    ) {
        for wait in [100, 500, 2_000, 5_000, 10_000] {
            match act().await {
                Err(CommandError::Store(error)) => {
                    tracing::warn!(task = %task.lease.task, %error, what, "cannot store answer of hook; retrying");
                }
                // It was settled by the callee already, or canceled, or given up.
                _ => return,
            }
            tokio::time::sleep(Duration::from_millis(wait)).await;
        }
    }
}
