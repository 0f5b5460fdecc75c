//! How a route tells what went wrong. Natively it is a problem (RFC 9457); other dialects have their own forms, and the word of the
//! problem in a header.

use axum::http::HeaderValue;
use axum::response::Response;
use serde_json::{Value, json};

use crate::openapi::schema::{self, list, named, nullable, partial, text};
use crate::problem::Problem;

const HEADER: &str = "comeback-problem";

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Shape {
    #[default]
    Problem,
    /// `{error, batch_id, details}`: what is wrong, line by line.
    Batch,
    /// `{error, message}`.
    Flat,
    /// `{error: {code, message, details, request_id}}`.
    Nested,
}

impl Shape {
    pub fn render(self, problem: &Problem, request_id: &str) -> Response {
        let body = match self {
            Shape::Problem => return problem.render(request_id),
            Shape::Batch => batch(problem),
            Shape::Flat => flat(problem),
            Shape::Nested => json!({"error": {
                "code": Problem::error_code(problem.code),
                "message": problem.detail,
                "details": problem.member("errors").cloned().unwrap_or_else(|| json!([])),
                "request_id": request_id,
            }}),
        };
        let mut response = problem.render_as(body, "application/json");
        if let Ok(word) = HeaderValue::from_str(&problem.slug()) {
            response.headers_mut().insert(HEADER, word);
        }
        response
    }

    /// Its name and its schema, where it has one for all problems.
    pub fn schema(self) -> Option<(&'static str, Value)> {
        match self {
            Shape::Problem => None,
            Shape::Batch => Some(("BatchError", named("BatchError"))),
            Shape::Flat => Some(("JobError", named("JobError"))),
            Shape::Nested => Some(("WorkflowError", named("WorkflowError"))),
        }
    }
}

fn flat(problem: &Problem) -> Value {
    let mut body = json!({"error": Problem::error_code(problem.code), "message": problem.detail});
    for (name, own) in [("requiredCredits", "required_credits"), ("availableCredits", "available_credits")] {
        if let Some(credits) = problem.member(own) {
            body[name] = credits.clone();
        }
    }
    body
}

fn batch(problem: &Problem) -> Value {
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

pub fn shapes() -> Vec<(&'static str, Value)> {
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
