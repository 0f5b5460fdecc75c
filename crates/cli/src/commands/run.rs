//! `run`: a command that runs here, with its attempts recorded and its retries decided by the server.

use std::time::{Duration, Instant};

use comeback_client::Error;
use comeback_core::Millis;
use comeback_engine::ReportEnd;
use comeback_engine::executors::command::{self, Environment, Process};
use serde_json::{Value, json};

use super::Context;
use super::enqueue::own_task;
use super::task::end_code;
use crate::args::RunArgs;
use crate::error::{CliError, code};
use crate::output::{self, errln, instant, soon, span};
use crate::watch::Interrupted;

const LEASE_SECS: u64 = 60;
const FIRST_WAIT: Duration = Duration::from_millis(200);
const LONGEST_WAIT: Duration = Duration::from_secs(5);

pub async fn run(context: &Context, args: RunArgs) -> Result<u8, CliError> {
    // A queue of its own: no other worker can lease the task, and this one leases nothing else.
    let queue = format!("run-{}", uuid::Uuid::now_v7().simple());
    let client = &context.client;
    let submitted = client.submit(&own_task(args.name, &args.run, &queue, &args.retry)).await?;
    let id = submitted["tasks"][0]["id"].as_str().unwrap_or_default().to_owned();
    let name = output::short(&submitted["tasks"][0]["id"]);
    let shown = client.task(&id).await?;
    let most = shown["max_retries"].as_u64().map_or(1, |retries| retries + 1);
    let process = Process { environment: Environment::OfCaller, ..Process::new(args.run) };
    let mut interrupted = Interrupted::listen()?;
    let work = DurableRun { context, queue, id: id.clone(), name: name.clone(), most, process };
    tokio::select! {
        outcome = work.until_ended() => outcome,
        () = interrupted.wait() => {
            // No other worker serves this queue.
            client.act(&id, "cancel", &json!({"note": "interrupted"})).await?;
            errln!("{name}  canceled: interrupted");
            Ok(code::INTERRUPTED)
        }
    }
}

/// One command and its task.
struct DurableRun<'a> {
    context: &'a Context,
    queue: String,
    id: String,
    name: String,
    most: u64,
    process: Process,
}

impl DurableRun<'_> {
    async fn until_ended(&self) -> Result<u8, CliError> {
        let (client, first) = (&self.context.client, Instant::now());
        loop {
            let request = json!({"worker": format!("run-{}", std::process::id()), "queues": [self.queue], "limit": 1,
                "lease": LEASE_SECS, "wait": 30});
            let leased = with_retries(|| client.lease(&request)).await?;
            let Some(lease) = leased["leases"].as_array().and_then(|leases| leases.first()) else {
                let task = with_retries(|| client.task(&self.id)).await?;
                if let Some(end) = end_code(output::text(&task, "state")) {
                    errln!("{}  {}", self.name, output::text(&task, "state"));
                    return Ok(end);
                }
                continue;
            };
            if let Some(end) = self.attempt_once(lease, first).await? {
                return Ok(end);
            }
        }
    }

    async fn attempt_once(&self, lease: &Value, first: Instant) -> Result<Option<u8>, CliError> {
        let DurableRun { context, name, most, process, .. } = self;
        let token = output::text(lease, "lease").to_owned();
        let number = lease["task"]["attempt_number"].as_u64().unwrap_or(1);
        let started = Instant::now();
        let (report, words) = run_command(context, process, &token, number).await;
        let took = span(since(started));
        let reports = [report];
        let answer = with_retries(|| context.client.report(&reports)).await?;
        let answer = &answer["reports"][0];
        if let Some(problem) = answer.get("problem") {
            return Err(CliError::new(code::CONFLICT, format!("{name} lost its lease"))
                .why(output::text(problem, "detail"))
                .remedy(format!("comeback task why {name}")));
        }
        let what = match (output::text(answer, "state"), instant(&answer["next_retry_at"])) {
            ("succeeded", _) if number > 1 => format!("recovered after {}", span(since(first))),
            ("succeeded", _) => String::new(),
            (_, Some(at)) => {
                let clock = with_retries(|| context.client.get("/api/v1/clock")).await?;
                let now = instant(&clock["now"]).unwrap_or(at);
                format!("retry {}", soon(at.since(now)))
            }
            (state, None) => format!("{state}, no retry ({})", output::text(answer, "reason")),
        };
        errln!("{}", format!("{name}  attempt {number}/{most}  {words} in {took}   {what}").trim_end());
        Ok(end_code(output::text(answer, "state")))
    }
}

/// Repeats a request while the server is unreachable or overloaded: the result of the command is known only here.
async fn with_retries<F: Future<Output = Result<Value, Error>>>(request: impl Fn() -> F) -> Result<Value, Error> {
    let mut wait = FIRST_WAIT;
    loop {
        let error = match request().await {
            Err(error) if error.is_retryable() => error,
            answer => return answer,
        };
        if wait == FIRST_WAIT {
            errln!("{error}; retrying until it answers (Ctrl-C to stop)");
        }
        tokio::time::sleep(wait.max(error.retry_after().unwrap_or_default())).await;
        wait = (wait * 2).min(LONGEST_WAIT);
    }
}

fn since(start: Instant) -> Millis {
    Millis(u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX))
}

/// Runs the command once, with heartbeats while it runs.
async fn run_command(context: &Context, process: &Process, token: &str, number: u64) -> (Value, String) {
    let heartbeats = async {
        loop {
            tokio::time::sleep(Duration::from_secs(LEASE_SECS / 3)).await;
            let _ = context.client.heartbeat(&[token.to_owned()], LEASE_SECS).await;
        }
    };
    let end = tokio::select! {
        end = command::run(process, u32::try_from(number).unwrap_or(u32::MAX), output::raw_line) => end,
        () = heartbeats => unreachable!("heartbeats have no end"),
    };
    match end {
        ReportEnd::Succeeded { result } => {
            let result = result.and_then(|json| serde_json::from_str::<Value>(json.text()).ok());
            (json!({"lease": token, "outcome": "succeeded", "result": result}), "ok".into())
        }
        ReportEnd::Failed(failure) => {
            let error = json!({"message": failure.message, "type": failure.error_type, "code": failure.code,
                "class": failure.class.map(|class| class.word())});
            (json!({"lease": token, "outcome": "failed", "error": error}), failure.message)
        }
        _ => (json!({"lease": token, "outcome": "released"}), "released".into()),
    }
}
