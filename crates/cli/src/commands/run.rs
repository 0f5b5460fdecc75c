//! Run: a command whose every try is kept by the server, and repeated when the server says so. The command itself runs here.

use std::time::Instant;

use comeback_core::{Millis, Timestamp};
use comeback_engine::ReportEnd;
use comeback_engine::executors::command::{self, Process};
use serde_json::{Value, json};

use super::Context;
use super::enqueue::own_task;
use crate::args::RunArgs;
use crate::failure::{Failure, code};
use crate::output::{self, say};

const LEASE_SECS: u64 = 60;

pub async fn run(context: &Context, args: RunArgs) -> Result<u8, Failure> {
    // A queue of its own: nobody else can lease it, and it leases nothing else.
    let queue = format!("run-{}", uuid::Uuid::now_v7().simple());
    let client = &context.client;
    let submitted = client.submit(&own_task(args.name, &args.run, &queue, &args.retry)).await?;
    let id = submitted["tasks"][0]["id"].as_str().unwrap_or_default().to_owned();
    let name = output::short(&submitted["tasks"][0]["id"]);
    let shown = client.task(&id).await?;
    let most = shown["max_retries"].as_u64().map_or(1, |retries| retries + 1);
    let process = Process::new(args.run);
    let begun = Instant::now();
    loop {
        let ask = json!({"worker": format!("run-{}", std::process::id()), "queues": [queue], "limit": 1,
            "lease": LEASE_SECS, "wait": 30});
        let leased = client.lease(&ask).await?;
        let Some(lease) = leased["leases"].as_array().and_then(|leases| leases.first()) else {
            if let Some(end) = ended(&client.task(&id).await?) {
                return Ok(end);
            }
            continue;
        };
        let token = output::text(lease, "lease").to_owned();
        let number = lease["task"]["attempt_number"].as_u64().unwrap_or(1);
        let started = Instant::now();
        let (report, words) = attempt(context, &process, &token, number).await;
        let took = output::span(Millis(u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX)));
        let answer = client.report(&[report]).await?;
        let answer = &answer["reports"][0];
        if let Some(problem) = answer.get("problem") {
            return Err(Failure::new(
                code::CONFLICT,
                format!("{name} was taken away: {}", output::text(problem, "detail")),
            ));
        }
        let next = answer["next_retry_at"].as_str().and_then(|text| Timestamp::parse_rfc3339(text).ok());
        let what = match (output::text(answer, "state"), next) {
            ("succeeded", _) if number > 1 => {
                let whole = Millis(u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX));
                format!("recovered after {}", output::span(whole))
            }
            ("succeeded", _) => String::new(),
            (_, Some(at)) => format!("retry in {}", output::span(at.since(context.now().await?))),
            (state, None) => format!("{state}, no retry ({})", output::text(answer, "reason")),
        };
        eprintln!("{name}  attempt {number}/{most}  {words} in {took}   {what}");
        if let Some(end) = ended(&json!({"state": answer["state"]})) {
            return Ok(end);
        }
    }
}

fn ended(task: &Value) -> Option<u8> {
    match output::text(task, "state") {
        "succeeded" => Some(code::OK),
        "failed" | "dead" => Some(code::DEAD),
        "canceled" | "skipped" => Some(code::CANCELED),
        _ => None,
    }
}

/// One try, with signs of life as long as it takes.
async fn attempt(context: &Context, process: &Process, token: &str, number: u64) -> (Value, String) {
    let alive = async {
        loop {
            tokio::time::sleep(std::time::Duration::from_secs(LEASE_SECS / 3)).await;
            let _ = context.client.heartbeat(&[token.to_owned()], LEASE_SECS).await;
        }
    };
    let end = tokio::select! {
        end = command::run(process, u32::try_from(number).unwrap_or(u32::MAX), |line| say!("{line}")) => end,
        () = alive => unreachable!("signs of life have no end"),
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
        _ => (json!({"lease": token, "outcome": "released"}), "given back".into()),
    }
}
