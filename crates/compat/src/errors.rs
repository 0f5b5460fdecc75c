//! Errors in the forms that clients of each dialect read. The type of the problem is in the header `comeback-problem`.

use comeback_server::route::schema::{self, list, named, nullable, partial, text};
use comeback_server::{ErrorFormat, Problem};
use serde_json::{Value, json};

/// Errors of the dialect `task`.
pub static TASK: ErrorFormat = ErrorFormat { schema: "BatchError", body: task };

/// Errors of the dialect `job`.
pub static JOB: ErrorFormat = ErrorFormat { schema: "JobError", body: job };

/// Errors of the dialect `workflow`.
pub static WORKFLOW: ErrorFormat = ErrorFormat { schema: "WorkflowError", body: workflow };

/// `{error, message}` with the credits of a job that costs too much.
fn job(problem: &Problem, _: &str) -> Value {
    let mut body = json!({"error": Problem::error_code(problem.code), "message": problem.detail});
    for (name, own) in [("requiredCredits", "required_credits"), ("availableCredits", "available_credits")] {
        if let Some(credits) = problem.member(own) {
            body[name] = credits.clone();
        }
    }
    body
}

/// `{error, batch_id, details}`: a line for each fault.
fn task(problem: &Problem, _: &str) -> Value {
    let line = |fault: &Value| match (fault["path"].as_str(), fault["message"].as_str()) {
        (Some(path), Some(message)) if !path.is_empty() => format!("{path}: {message}"),
        (_, message) => message.unwrap_or_default().to_owned(),
    };
    let details = match problem.member("errors").and_then(Value::as_array) {
        Some(faults) => faults.iter().map(line).collect(),
        None => vec![problem.detail.clone()],
    };
    let mut body = json!({"error": problem.code, "batch_id": null, "details": details});
    if let Some(status) = problem.member("current_status") {
        body["current_status"] = status.clone();
    }
    body
}

/// `{error: {code, message, details, request_id}}`.
fn workflow(problem: &Problem, request_id: &str) -> Value {
    json!({"error": {
        "code": Problem::error_code(problem.code),
        "message": problem.detail,
        "details": problem.member("errors").cloned().unwrap_or_else(|| json!([])),
        "request_id": request_id,
    }})
}

/// Schemas of the bodies.
pub fn schemas() -> Vec<(&'static str, Value)> {
    vec![
        (
            "BatchError",
            partial(
                &["error", "batch_id", "details"],
                [
                    ("error", schema::about(text(), "The code of the problem.")),
                    ("batch_id", nullable(named("Id"))),
                    (
                        "details",
                        schema::about(list(text()), "Each with its path, as in `tasks[0].name: may not be empty`."),
                    ),
                    ("current_status", named("BatchStatus")),
                ],
            ),
        ),
        (
            "JobError",
            partial(
                &["error", "message"],
                [
                    ("error", text()),
                    ("message", text()),
                    ("requiredCredits", json!({"type": "integer"})),
                    ("availableCredits", json!({"type": "integer"})),
                ],
            ),
        ),
        (
            "WorkflowError",
            schema::object([(
                "error",
                schema::object([
                    ("code", text()),
                    ("message", text()),
                    ("details", schema::about(list(json!({"type": "object"})), "What is wrong, each with its path.")),
                    ("request_id", text()),
                ]),
            )]),
        ),
    ]
}
