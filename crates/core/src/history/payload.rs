//! Payloads that were edited by hand: what an edit makes of one, and which runs used which version.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::value::{RawValue, to_raw_value};

use crate::id::TaskId;
use crate::time::Timestamp;

/// A payload in place of the one there is. Stored with the change that it comes with, if nobody has edited it meanwhile.
#[derive(Clone, Debug, PartialEq)]
pub struct NewPayload {
    /// The task.
    pub task: TaskId,
    /// The version that was edited.
    pub edited: u32,
    /// The last run that used that one.
    pub last_run: u32,
    /// JSON text.
    pub payload: Arc<str>,
    /// When it was edited.
    pub at: Timestamp,
    /// The actor.
    pub by: Option<String>,
}

/// A payload as it was before an edit.
#[derive(Clone, Debug, PartialEq)]
pub struct OldPayload {
    /// From 1.
    pub version: u32,
    /// JSON text; `None` if it is no longer stored.
    pub payload: Option<Arc<str>>,
    /// The last run that used it.
    pub last_run: u32,
    /// When it was replaced.
    pub replaced_at: Timestamp,
    /// The actor who replaced it.
    pub replaced_by: Option<String>,
}

/// The version that a run used: the first that was not replaced before it.
pub fn version_of_run(old: &[OldPayload], run: u32) -> u32 {
    let later = old.iter().find(|it| run <= it.last_run).map(|it| it.version);
    later.unwrap_or_else(|| old.last().map_or(1, |last| last.version + 1))
}

/// The key under which a callee may remember what it did for a task: one for all tries of a cycle with the same payload. Somebody who
/// retries by hand, or edits the payload, wants it done and not the answer of the last time.
pub fn idempotency_key(task: TaskId, cycle: u32, version: u32) -> String {
    let mut key = task.to_string();
    if cycle > 0 {
        key.push_str(&format!(":c{cycle}"));
    }
    if version > 1 {
        key.push_str(&format!(":p{version}"));
    }
    key
}

/// Fields by name, each as it was written: what is not touched is not even read, so that no number loses a digit.
type Fields = BTreeMap<String, Box<RawValue>>;

/// Applies a patch to a JSON text (RFC 7396): objects are merged field by field, `null` takes a field away, and everything
/// else takes the place of what was there.
pub fn patched(text: Option<&str>, patch: &str) -> serde_json::Result<String> {
    let value: Option<&RawValue> = text.map(serde_json::from_str).transpose()?;
    Ok(merged(value, serde_json::from_str(patch)?)?.get().to_owned())
}

fn merged(value: Option<&RawValue>, patch: &RawValue) -> serde_json::Result<Box<RawValue>> {
    let fields_of = |value: &RawValue| serde_json::from_str::<Fields>(value.get()).ok();
    let Some(changes) = fields_of(patch) else { return Ok(patch.to_owned()) };
    let mut fields = value.and_then(fields_of).unwrap_or_default();
    for (name, change) in changes {
        let old = fields.remove(&name);
        if change.get() != "null" {
            fields.insert(name, merged(old.as_deref(), &change)?);
        }
    }
    to_raw_value(&fields)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// Tries of one cycle share a key; a retry by hand and an edited payload have another, and no two of them the same.
    #[test]
    fn a_key_says_the_cycle_and_the_version_of_the_payload() {
        let task = TaskId(uuid::Uuid::nil());
        let table = [(0, 1, ""), (1, 1, ":c1"), (1, 2, ":c1:p2"), (2, 2, ":c2:p2"), (0, 2, ":p2"), (12, 1, ":c12")];
        for (cycle, version, end) in table {
            assert_eq!(idempotency_key(task, cycle, version), format!("{task}{end}"));
        }
    }

    /// The table of RFC 7396, appendix A.
    #[test]
    fn a_patch_does_what_the_standard_says() {
        let table = [
            (json!({"a": "b"}), json!({"a": "c"}), json!({"a": "c"})),
            (json!({"a": "b"}), json!({"b": "c"}), json!({"a": "b", "b": "c"})),
            (json!({"a": "b"}), json!({"a": null}), json!({})),
            (json!({"a": "b", "b": "c"}), json!({"a": null}), json!({"b": "c"})),
            (json!({"a": ["b"]}), json!({"a": "c"}), json!({"a": "c"})),
            (json!({"a": "c"}), json!({"a": ["b"]}), json!({"a": ["b"]})),
            (json!({"a": {"b": "c"}}), json!({"a": {"b": "d", "c": null}}), json!({"a": {"b": "d"}})),
            (json!({"a": [{"b": "c"}]}), json!({"a": [1]}), json!({"a": [1]})),
            (json!(["a", "b"]), json!(["c", "d"]), json!(["c", "d"])),
            (json!({"a": "b"}), json!(["c"]), json!(["c"])),
            (json!({"a": "foo"}), json!(null), json!(null)),
            (json!({"a": "foo"}), json!("bar"), json!("bar")),
            (json!({"e": null}), json!({"a": 1}), json!({"e": null, "a": 1})),
            (json!([1, 2]), json!({"a": "b", "c": null}), json!({"a": "b"})),
            (json!({}), json!({"a": {"bb": {"ccc": null}}}), json!({"a": {"bb": {}}})),
        ];
        for (value, patch, expected) in table {
            let made = patched(Some(&value.to_string()), &patch.to_string()).expect("JSON");
            assert_eq!(serde_json::from_str::<Value>(&made).expect("JSON"), expected, "{value} {patch}");
        }
        assert_eq!(patched(None, r#"{"a": 1}"#).expect("JSON"), r#"{"a":1}"#);
    }

    #[test]
    fn what_a_patch_does_not_name_stays_as_it_was_written() {
        let text = r#"{"sum": 123456789012345678901234567890.10, "to": {"name": "b", "iban": 1e2}}"#;
        let made = patched(Some(text), r#"{"to": {"name": "c"}}"#).expect("JSON");
        assert_eq!(made, r#"{"sum":123456789012345678901234567890.10,"to":{"iban":1e2,"name":"c"}}"#);
    }

    #[test]
    fn a_run_used_the_version_of_its_time() {
        let old = |version, last_run| OldPayload {
            version,
            payload: None,
            last_run,
            replaced_at: Timestamp(0),
            replaced_by: None,
        };
        let edited = [old(1, 2), old(2, 2), old(3, 5)];
        assert_eq!([1, 2, 3, 5, 6, 9].map(|run| version_of_run(&edited, run)), [1, 1, 3, 3, 4, 4]);
        assert_eq!(version_of_run(&[], 7), 1);
    }
}
