//! Reports: sent in batches, again and again until the server has answered each of them.

use std::collections::VecDeque;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::client::{Client, Error};
use crate::worker::Held;

/// Seconds between the tries of one request.
const WAITS: [u64; 5] = [1, 2, 5, 10, 30];
/// Reports in one request at most.
const BATCH: usize = 500;

/// Sends what has gathered in one request. A lease is let go of when its report was answered, and not before.
pub(crate) async fn tell_all(client: Client, mut pending: mpsc::Receiver<Value>, held: Held) {
    let mut batch = Vec::new();
    while pending.recv_many(&mut batch, BATCH).await > 0 {
        let leases: Vec<String> = batch.iter().map(|report| lease(report).to_owned()).collect();
        tell(&client, std::mem::take(&mut batch)).await;
        for token in leases {
            held.drop(&token);
        }
    }
}

fn lease(report: &Value) -> &str {
    report["lease"].as_str().unwrap_or_default()
}

/// Until each of them was taken or refused for good. What is too much for one request is sent in two.
async fn tell(client: &Client, reports: Vec<Value>) {
    let mut parts = VecDeque::from([reports]);
    let mut waits = WAITS.into_iter();
    while let Some(mut part) = parts.pop_front() {
        let again = match send(client, &part).await {
            Ok(answer) => sort(part, &answer),
            Err(error) if is_about_the_body(&error) && part.len() > 1 => {
                let rest = part.split_off(part.len() / 2);
                parts.push_front(rest);
                parts.push_front(part);
                continue;
            }
            Err(error) if is_about_the_body(&error) => {
                let told = part.pop().and_then(|report| instead(&report, &error.to_string()));
                Again { at_once: told.into_iter().collect(), later: Vec::new() }
            }
            Err(error) => {
                tracing::error!(%error, reports = part.len(), "reports were given up; their leases run out and the runs are repeated");
                continue;
            }
        };
        if !again.at_once.is_empty() {
            parts.push_front(again.at_once);
        }
        if !again.later.is_empty() {
            let Some(wait) = waits.next() else {
                tracing::error!(
                    reports = again.later.len(),
                    "reports were given up; their leases run out and the runs are repeated"
                );
                continue;
            };
            tokio::time::sleep(Duration::from_secs(wait)).await;
            parts.push_back(again.later);
        }
    }
}

/// One request, as often as it takes while nobody is there to hear it. After the last wait there is one more try.
async fn send(client: &Client, reports: &[Value]) -> Result<Value, Error> {
    let mut waits = WAITS.into_iter();
    loop {
        let error = match client.report(reports).await {
            Ok(answer) => return Ok(answer),
            Err(error) => error,
        };
        let Some(wait) = waits.next().filter(|_| error.is_retryable()) else { return Err(error) };
        let wait = Duration::from_secs(wait).max(error.retry_after().unwrap_or_default());
        tracing::warn!(%error, "a report was not heard; sending it again");
        tokio::time::sleep(wait).await;
    }
}

/// The request itself was refused, for its size or for what is in it.
fn is_about_the_body(error: &Error) -> bool {
    error.problem().is_some_and(|problem| matches!(problem.status, 400 | 413))
}

/// A report that was not accepted and may be sent again.
struct Again {
    at_once: Vec<Value>,
    later: Vec<Value>,
}

/// Each report was answered for itself.
fn sort(reports: Vec<Value>, answer: &Value) -> Again {
    let mut again = Again { at_once: Vec::new(), later: Vec::new() };
    for (i, report) in reports.into_iter().enumerate() {
        let Some(problem) = answer["reports"][i].get("problem") else { continue };
        let (code, detail) =
            (problem["error"].as_str().unwrap_or_default(), problem["detail"].as_str().unwrap_or_default());
        match (code, problem["status"].as_u64()) {
            ("LEASE_LOST" | "TASK_CANCELED", _) => {
                tracing::warn!(lease = lease(&report), detail, "a run ended after it was given up");
            }
            ("CONCURRENT_MODIFICATION", _) | (_, Some(408 | 429 | 500..)) => again.later.push(report),
            _ => match instead(&report, detail) {
                Some(told) => again.at_once.push(told),
                None => tracing::error!(lease = lease(&report), code, detail, "a report was refused"),
            },
        }
    }
    again
}

/// The fallback report of a run whose own report is refused: it would be refused again. Sent once, so that it ends.
fn instead(report: &Value, why: &str) -> Option<Value> {
    const TYPE: &str = "report";
    if report["error"]["type"] == TYPE {
        return None;
    }
    tracing::error!(lease = lease(report), why, "a report was refused; the run is reported as failed");
    let message = format!("the run ended, and the server refused its report: {why}");
    Some(json!({"lease": report["lease"], "outcome": "failed",
        "error": {"type": TYPE, "class": "final", "message": message}}))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_report_is_answered_for_itself() {
        let reports: Vec<Value> = ["taken", "lost", "beaten", "wrong"]
            .iter()
            .map(|it| json!({"lease": it, "outcome": "succeeded"}))
            .collect();
        let problem =
            |error: &str, status: u16| json!({"problem": {"error": error, "status": status, "detail": "why"}});
        let answer = json!({"reports": [
            {"state": "succeeded"},
            problem("LEASE_LOST", 409),
            problem("CONCURRENT_MODIFICATION", 409),
            problem("VALIDATION_ERROR", 400),
        ]});
        let again = sort(reports, &answer);
        assert_eq!(again.later.iter().map(lease).collect::<Vec<_>>(), ["beaten"]);
        assert_eq!(again.at_once.iter().map(lease).collect::<Vec<_>>(), ["wrong"]);
        assert_eq!(again.at_once[0]["error"]["class"], "final");
        let refused_again = sort(again.at_once, &json!({"reports": [problem("VALIDATION_ERROR", 400)]}));
        assert!(refused_again.at_once.is_empty() && refused_again.later.is_empty(), "it has an end");
    }

    #[test]
    fn what_passes_is_told_from_what_does_not() {
        let refused = |status: u16| {
            let problem = serde_json::from_value(json!({"status": status})).expect("a problem");
            Error::Refused(Box::new(problem))
        };
        for status in [408, 429, 500, 503] {
            assert!(refused(status).is_retryable(), "{status}");
        }
        for status in [400, 401, 403, 404, 409, 413] {
            assert!(!refused(status).is_retryable(), "{status}");
        }
        assert!(
            is_about_the_body(&refused(413)) && is_about_the_body(&refused(400)) && !is_about_the_body(&refused(401))
        );
    }
}
