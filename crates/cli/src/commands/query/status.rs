//! The status of a run: states and verdicts as a daemon calls them.

use clap::ValueEnum;
use serde_json::Value;

use crate::args::Status;
use crate::output::{self, Cell, Output, Paint};

/// Status words and filters.
pub trait StatusExt: Sized {
    fn of(task: &Value) -> Self;
    fn word(&self) -> String;
    /// Filter for the tasks with this status.
    fn terms(self) -> &'static str;
}

impl StatusExt for Status {
    /// A run that succeeded without a verdict has passed.
    fn of(task: &Value) -> Status {
        match (output::text(task, "state"), output::text(task, "verdict")) {
            ("claimed" | "running", _) => Status::Processing,
            ("retry_pending" | "failed" | "dead", _) => Status::Error,
            ("succeeded", "needs_review") => Status::NeedsReview,
            ("succeeded", "failed" | "rejected") => Status::Failed,
            ("succeeded", _) => Status::Passed,
            ("paused", _) => Status::Paused,
            ("canceled", _) => Status::Canceled,
            ("skipped", _) => Status::Skipped,
            _ => Status::Discovered,
        }
    }

    fn word(&self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }

    fn terms(self) -> &'static str {
        match self {
            Status::Discovered => "state:waiting,pending",
            Status::Processing => "state:active",
            Status::Passed => "state:succeeded -verdict:needs_review,failed,rejected",
            Status::NeedsReview => "state:succeeded verdict:needs_review",
            Status::Failed => "state:succeeded verdict:failed,rejected",
            Status::Error => "state:error",
            Status::Paused => "state:paused",
            Status::Canceled => "state:canceled",
            Status::Skipped => "state:skipped",
        }
    }
}

/// Adds the status to the data, beside the state.
pub fn add(task: &mut Value) {
    let word = Status::of(task).word();
    task["status"] = word.into();
}

/// Glyph and word on a terminal, where an error to be retried looks different from a final one; the word alone on a pipe.
pub fn cell(task: &Value, out: &Output) -> Cell {
    let status = Status::of(task);
    if !out.terminal {
        return status.word().into();
    }
    let (glyph, paint) = match status {
        Status::Discovered => ("○", Paint::Dim),
        Status::Processing => ("▶", Paint::Blue),
        Status::Passed => ("✓", Paint::Green),
        Status::NeedsReview => ("?", Paint::Yellow),
        Status::Failed => ("✗", Paint::Magenta),
        Status::Error if output::text(task, "state") == "retry_pending" => ("↻", Paint::Yellow),
        Status::Error => ("✕", Paint::Red),
        Status::Paused => ("⏸", Paint::Magenta),
        Status::Canceled | Status::Skipped => ("–", Paint::Dim),
    };
    Cell::painted(format!("{glyph} {}", status.word()), paint)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Model §2.2, and X3-8: what is waiting for its retry and what was given up are both errors.
    #[test]
    fn states_and_verdicts_have_a_word() {
        for (state, verdict, word) in [
            ("waiting", None, "discovered"),
            ("pending", None, "discovered"),
            ("claimed", None, "processing"),
            ("running", None, "processing"),
            ("retry_pending", None, "error"),
            ("failed", None, "error"),
            ("dead", None, "error"),
            ("succeeded", None, "passed"),
            ("succeeded", Some("passed"), "passed"),
            ("succeeded", Some("needs_review"), "needs_review"),
            ("succeeded", Some("failed"), "failed"),
            ("succeeded", Some("rejected"), "failed"),
            ("paused", None, "paused"),
            ("canceled", None, "canceled"),
            ("skipped", None, "skipped"),
        ] {
            assert_eq!(Status::of(&json!({"state": state, "verdict": verdict})).word(), word);
        }
        for status in Status::value_variants() {
            let read = comeback_core::filter::Filter::parse(status.terms(), comeback_core::Timestamp(0));
            assert!(read.is_ok(), "{status:?}: {read:?}");
        }
    }
}
