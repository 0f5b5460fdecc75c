//! How large things may be, and what is done about what is larger: refused by name, or cut with a mark.

use std::collections::BTreeMap;
use std::sync::Arc;

use comeback_core::transition::Actor;
use comeback_core::{End, Failure, Invalid, Millis};
use comeback_store::ClaimRequest;

use crate::ReportEnd;

/// Limits of requests.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Tasks of one submission.
    pub tasks_per_submit: usize,
    /// Bytes of a payload.
    pub payload_bytes: usize,
    /// Bytes of a result.
    pub result_bytes: usize,
    /// Bytes of an error message.
    pub error_bytes: usize,
    /// Labels of a task.
    pub labels: usize,
    /// Bytes of a label.
    pub label_bytes: usize,
    /// Bytes of a name.
    pub name_bytes: usize,
    /// Bytes of a note.
    pub note_bytes: usize,
    /// Leases of one request.
    pub leases_per_request: u32,
    /// Longest lease.
    pub longest_lease: Millis,
    /// Needs of a task.
    pub needs_per_task: usize,
    /// Of one subscription: beyond these no more are made until some have ended.
    pub waiting_deliveries: usize,
    /// Of one namespace; those that were not seen for longest are forgotten.
    pub error_groups: usize,
    /// How long one search of the API may take, in real time.
    pub search_timeout: Millis,
    /// How long one HTTP call of the server may take, in real time, whatever the task's own limit is.
    pub longest_call: Millis,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            tasks_per_submit: 10_000,
            payload_bytes: 256 * 1024,
            result_bytes: 256 * 1024,
            error_bytes: 64 * 1024,
            labels: 32,
            label_bytes: 256,
            name_bytes: 255,
            note_bytes: 4 * 1024,
            leases_per_request: 5_000,
            longest_lease: Millis::from_secs(3_600),
            needs_per_task: 10_000,
            waiting_deliveries: 10_000,
            error_groups: 10_000,
            search_timeout: Millis::from_secs(5),
            longest_call: Millis::from_secs(15 * 60),
        }
    }
}

impl Limits {
    /// Sets one by its name; the names there are when it is none.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        let number = || value.parse::<usize>().map_err(|_| format!("`{value}` is no number"));
        let place = match name {
            "tasks_per_submit" => &mut self.tasks_per_submit,
            "payload_bytes" => &mut self.payload_bytes,
            "result_bytes" => &mut self.result_bytes,
            "error_bytes" => &mut self.error_bytes,
            "labels" => &mut self.labels,
            "label_bytes" => &mut self.label_bytes,
            "name_bytes" => &mut self.name_bytes,
            "note_bytes" => &mut self.note_bytes,
            "needs_per_task" => &mut self.needs_per_task,
            "waiting_deliveries" => &mut self.waiting_deliveries,
            "error_groups" => &mut self.error_groups,
            "leases_per_request" => {
                self.leases_per_request = u32::try_from(number()?).map_err(|_| format!("{value} is too many"))?;
                return Ok(());
            }
            "longest_lease" | "search_timeout" | "longest_call" => {
                let span = Millis::parse(value).map_err(|error| error.to_string())?;
                match name {
                    "longest_lease" => self.longest_lease = span,
                    _ if span < Millis(100) => return Err("100ms is the least".into()),
                    "search_timeout" if span > Millis::from_secs(60) => return Err("60s is the most".into()),
                    "search_timeout" => self.search_timeout = span,
                    _ => self.longest_call = span,
                }
                return Ok(());
            }
            _ => return Err(format!("there are {}", Self::NAMES.join(", "))),
        };
        *place = number()?;
        Ok(())
    }

    /// Names of the limits that can be configured.
    pub const NAMES: &[&str] = &[
        "tasks_per_submit",
        "payload_bytes",
        "result_bytes",
        "error_bytes",
        "labels",
        "label_bytes",
        "name_bytes",
        "note_bytes",
        "needs_per_task",
        "waiting_deliveries",
        "error_groups",
        "leases_per_request",
        "longest_lease",
        "search_timeout",
        "longest_call",
    ];

    /// Whether a text can be a name of any sort.
    pub fn check_name(&self, path: &str, text: &str, faults: &mut Invalid) {
        if text.is_empty() {
            faults.push(path, "may not be empty");
        } else if text.len() > self.name_bytes {
            faults.push(path, format!("may have {} bytes at most", self.name_bytes));
        } else if text.contains(char::is_control) {
            faults.push(path, "may not contain control characters");
        }
    }

    /// A star stands for all namespaces and can be none itself.
    pub fn check_namespace(&self, text: &str, faults: &mut Invalid) {
        self.check_name("namespace", text, faults);
        if text == ClaimRequest::ANY_NAMESPACE {
            faults.push("namespace", "must be one, not all of them");
        }
    }

    pub(crate) fn check_labels(&self, at: &str, labels: &BTreeMap<String, String>, faults: &mut Invalid) {
        if labels.len() > self.labels {
            faults.push(format!("{at}labels"), format!("at most {} labels are allowed", self.labels));
        }
        for (key, value) in labels {
            if key.is_empty() || key.len() + value.len() > self.label_bytes {
                let message = format!("a label has a name, and {} bytes at most with its value", self.label_bytes);
                faults.push(format!("{at}labels.{key}"), message);
            }
            if key.contains('\0') || value.contains('\0') {
                faults.push(format!("{at}labels.{key}"), "may not contain a zero character");
            }
        }
    }

    /// Checks actor and note.
    pub fn check_act(&self, act: &Actor) -> Result<(), Invalid> {
        let mut faults = Invalid::default();
        if let Some(by) = &act.by {
            self.check_name("requested_by", by, &mut faults);
        }
        if let Some(note) = &act.note {
            if note.len() > self.note_bytes {
                faults.push("note", format!("may have {} bytes at most", self.note_bytes));
            }
            if note.contains('\0') {
                faults.push("note", "may not contain a zero character");
            }
        }
        faults.or(())
    }

    /// How a run ended, in the size that is kept. A result that is too large is refused, an error is cut.
    pub(crate) fn check_end(&self, end: &ReportEnd) -> Result<End, Invalid> {
        Ok(match end {
            ReportEnd::Succeeded { result } => {
                let result: Option<Arc<str>> = result.as_ref().map(|json| json.text().clone());
                if result.as_ref().is_some_and(|text| text.len() > self.result_bytes) {
                    return Err(Invalid::one("result", format!("may have {} bytes at most", self.result_bytes)));
                }
                End::Succeeded { result }
            }
            ReportEnd::Failed(failure) => End::Failed(self.checked(failure)),
            ReportEnd::Snoozed { delay } => End::Snoozed { delay: *delay },
            ReportEnd::Released => End::Released,
        })
    }

    /// A failure that is no larger than it may be and that any database can keep; what was cut is marked.
    pub(crate) fn checked(&self, failure: &Failure) -> Failure {
        let most = self.error_bytes;
        let size = |text: &Option<String>| text.as_ref().map_or(0, String::len);
        let whole = failure.message.len() + size(&failure.stack) + size(&failure.error_type) + size(&failure.code);
        let ignored = failure.retry_after_ignored.as_ref();
        let whole = whole + ignored.map_or(0, String::len);
        let (short, printed) = (whole <= most, failure.result.as_ref().map(serde_json::Value::to_string));
        let result_fits = printed.as_ref().is_none_or(|text| text.len() <= most);
        let clean = [
            Some(&failure.message),
            failure.stack.as_ref(),
            failure.error_type.as_ref(),
            failure.code.as_ref(),
            ignored,
        ]
        .into_iter()
        .flatten()
        .all(|text| !text.contains('\0'))
            && printed.as_ref().is_none_or(|text| !text.contains("\\u0000"));
        if short && result_fits && clean {
            return failure.clone();
        }
        let cut = |text: &str, part: usize| {
            let text = text.replace('\0', "\u{fffd}");
            if short || text.len() <= part {
                return text;
            }
            format!("{}{CUT_MARK}", &text[..text.floor_char_boundary(part.saturating_sub(CUT_MARK.len()))])
        };
        let result = failure.result.clone().filter(|_| result_fits);
        Failure {
            message: cut(&failure.message, most / 2),
            stack: failure.stack.as_deref().map(|text| cut(text, most / 4)),
            error_type: failure.error_type.as_deref().map(|text| cut(text, 255)),
            code: failure.code.as_deref().map(|text| cut(text, 255)),
            retry_after_ignored: ignored.map(|text| cut(text, 255)),
            result: if clean { result } else { result.map(without_zeros) },
            ..failure.clone()
        }
    }
}

/// PostgreSQL reads no JSON with a zero character in it.
fn without_zeros(value: serde_json::Value) -> serde_json::Value {
    use serde_json::Value;
    let plain = |text: String| text.replace('\0', "\u{fffd}");
    match value {
        Value::String(text) => Value::String(plain(text)),
        Value::Array(items) => items.into_iter().map(without_zeros).collect(),
        Value::Object(fields) => fields.into_iter().map(|(name, it)| (plain(name), without_zeros(it))).collect(),
        other => other,
    }
}

const CUT_MARK: &str = " … [cut]";

pub(crate) fn is_cut(text: &str) -> bool {
    text.ends_with(CUT_MARK)
}

#[cfg(test)]
mod tests {
    use super::*;
    use comeback_core::Trigger;

    #[test]
    fn every_limit_can_be_set_by_its_name() {
        let mut limits = Limits::default();
        for name in Limits::NAMES {
            limits.set(name, "7").expect(name);
        }
        assert_eq!(limits.longest_lease, Millis::from_secs(7));
        assert!(limits.set("labels", "many").is_err());
        assert!(limits.set("patience", "1").is_err_and(|names| names.contains("payload_bytes")));
    }

    #[test]
    fn a_long_error_is_cut_with_a_mark() {
        let long = Failure { stack: Some("é".repeat(90_000)), ..Failure::new(Trigger::Error, "ü".repeat(90_000)) };
        let short = Limits::default().checked(&long);
        assert!(short.message.len() <= 32 * 1024 && is_cut(&short.message));
        assert!(short.stack.is_some_and(|stack| stack.len() <= 16 * 1024 && is_cut(&stack)));
        let small = Failure::new(Trigger::Error, "x");
        assert_eq!(Limits::default().checked(&small), small);
    }

    #[test]
    fn zero_characters_are_replaced() {
        let result = Some(serde_json::json!({"a\0": ["b\0"]}));
        let failure = Failure { result, code: Some("c\0".into()), ..Failure::new(Trigger::Error, "x\0y") };
        let kept = Limits::default().checked(&failure);
        assert_eq!((kept.message.as_str(), kept.code.as_deref()), ("x\u{fffd}y", Some("c\u{fffd}")));
        assert_eq!(kept.result, Some(serde_json::json!({"a\u{fffd}": ["b\u{fffd}"]})));
    }
}
