//! Subscriptions: which events somebody outside wants to hear of, by which names, and what each delivery says.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::dependency::{Change, Told};
use crate::event::{Event, EventKind};
use crate::invalid::Invalid;
use crate::time::Timestamp;
use crate::words::words;

words! {
    /// The events of a retry, by their names in the dialect `job`.
    pub enum RetryEvent {
        Scheduled = 0 "RetryScheduled",
        Started = 1 "RetryStarted",
        Succeeded = 2 "RetrySucceeded",
        Failed = 3 "RetryFailed",
    }
}

words! {
    /// The stages of an alert.
    pub enum AlertEvent {
        Fired = 0 "alert.fired",
        Resolved = 1 "alert.resolved",
    }
}

words! {
    /// How a delivery is written.
    pub enum Format {
        /// `type`, `timestamp` and `data`, as Standard Webhooks has it.
        Webhook = 0 "webhook",
        /// CloudEvents 1.0, structured.
        CloudEvents = 1 "cloudevents",
    }
}

/// The name under which somebody tries whether deliveries arrive.
pub const TEST: &str = "subscription.test";

/// Types that one subscription may name.
pub const MOST_TYPES: usize = 100;

impl RetryEvent {
    /// A first run is nobody's retry.
    pub fn of(event: &Event) -> Option<RetryEvent> {
        match event.kind {
            EventKind::TaskRetryScheduled => Some(RetryEvent::Scheduled),
            EventKind::AttemptStarted if event.run > 1 => Some(RetryEvent::Started),
            EventKind::AttemptSucceeded if event.run > 1 => Some(RetryEvent::Succeeded),
            EventKind::AttemptFailed if event.run > 1 => Some(RetryEvent::Failed),
            _ => None,
        }
    }

    /// The data of its delivery.
    fn data(self, event: &Event) -> Value {
        let mut told = json!({"jobId": event.task.map(|id| id.to_string()), "attempt": event.attempt});
        let (name, from) = match self {
            RetryEvent::Scheduled => ("delayMs", "delay_ms"),
            RetryEvent::Started => return told,
            RetryEvent::Succeeded => ("durationMs", "duration_ms"),
            RetryEvent::Failed => ("error", "error"),
        };
        told[name] = event.data[from].clone();
        told
    }
}

/// The events that somebody wants, by name; `task.*` stands for all that begin so. Nothing named is everything of our own names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Types(Vec<String>);

fn fits(pattern: &str, word: &str) -> bool {
    pattern.strip_suffix('*').map_or(pattern == word, |start| word.starts_with(start))
}

impl Types {
    /// Reads event names and patterns.
    pub fn read(words: Vec<String>) -> Result<Types, Invalid> {
        let mut faults = Invalid::default();
        if words.len() > MOST_TYPES {
            faults.push("types", format!("at most {MOST_TYPES} are allowed"));
        }
        for (n, word) in words.iter().enumerate() {
            if !known().any(|name| fits(word, name)) {
                faults.push(format!("types[{n}]"), format!("`{word}` is no type of event, and none begins so"));
            }
        }
        faults.or(Types(words))
    }

    /// The names as they were given.
    pub fn words(&self) -> &[String] {
        &self.0
    }

    /// Whether an event of this name is wanted.
    pub fn want(&self, word: &str) -> bool {
        self.0.is_empty() || self.0.iter().any(|pattern| fits(pattern, word))
    }

    /// The first that names nothing that happens to a task or an execution: nobody can count those.
    pub fn uncounted(&self) -> Option<(usize, &str)> {
        let counted = |word: &str| of_work().any(|name| fits(word, name));
        self.0.iter().enumerate().map(|(n, word)| (n, word.as_str())).find(|(_, word)| !counted(word))
    }

    /// The names by which an event is told: its own, that of the retry it belongs to, or both where both are wanted.
    pub fn names(&self, event: &Event) -> Vec<&'static str> {
        let own = Some(event.kind.word()).filter(|word| self.want(word));
        // Who names nothing, or everything, hears of nothing twice.
        let asked = |it: &RetryEvent| self.0.iter().any(|pattern| pattern != "*" && fits(pattern, it.word()));
        own.into_iter().chain(RetryEvent::of(event).filter(asked).map(RetryEvent::word)).collect()
    }
}

/// Event names of tasks and executions.
fn of_work() -> impl Iterator<Item = &'static str> {
    EventKind::ALL.iter().map(|it| it.word()).chain(RetryEvent::ALL.iter().map(|it| it.word()))
}

/// Everything that can be named.
fn known() -> impl Iterator<Item = &'static str> {
    let alerts = AlertEvent::ALL.iter().map(|it| it.word());
    let changes = Change::ALL.iter().map(|it| it.event());
    of_work().chain(alerts).chain(changes)
}

/// One thing that is told: the same for every try.
#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    /// Without a full stop, which parts what is signed.
    pub id: String,
    /// The name of the event.
    pub name: String,
    /// When it happened.
    pub at: Timestamp,
    /// The namespace.
    pub namespace: String,
    /// The subject of the event.
    pub subject: Option<String>,
    /// Data by event.
    pub data: Value,
}

impl Message {
    /// An event as it is told by a name; `id` is its place in the feed and `kind` that of its task.
    pub fn of_event(id: &str, name: &'static str, namespace: &str, event: &Event, kind: Option<&str>) -> Message {
        let retry = RetryEvent::from_word(name).filter(|it| it.word() == name);
        let mut data = retry.map_or_else(|| event.told(), |retry| retry.data(event));
        if retry.is_none() {
            data["id"] = id.into();
            data["namespace"] = namespace.into();
        }
        data["kind"] = kind.into();
        let suffix = if retry.is_some() { "-retry" } else { "" };
        Message {
            id: format!("evt_{id}{suffix}"),
            name: name.to_owned(),
            at: event.at,
            namespace: namespace.to_owned(),
            subject: Some(event.task.map_or_else(|| event.execution.to_string(), |task| task.to_string())),
            data,
        }
    }

    /// The delivery about a change of a dependency.
    pub fn of_change(id: &str, namespace: &str, dependency: &str, told: &Told) -> Message {
        let at = told.at.to_rfc3339();
        let data = json!({"id": id, "namespace": namespace, "type": told.what.event(), "at": at, "dependency": dependency,
            "why": told.why});
        Message {
            id: id.to_owned(),
            name: told.what.event().to_owned(),
            at: told.at,
            namespace: namespace.to_owned(),
            subject: Some(dependency.to_owned()),
            data,
        }
    }

    /// The body in a format.
    pub fn written(&self, format: Format) -> Value {
        let at = self.at.to_rfc3339();
        match format {
            Format::Webhook => json!({"type": self.name, "timestamp": at, "data": self.data}),
            Format::CloudEvents => {
                let mut event = json!({
                    "specversion": "1.0",
                    "id": self.id,
                    "source": format!("/namespaces/{}", self.namespace),
                    "type": format!("comeback.{}", self.name),
                    "time": at,
                    "datacontenttype": "application/json",
                    "data": self.data,
                });
                if let Some(subject) = &self.subject {
                    event["subject"] = subject.as_str().into();
                }
                event
            }
        }
    }
}

impl Format {
    /// The media type of the body.
    pub const fn content_type(self) -> &'static str {
        match self {
            Format::Webhook => "application/json",
            Format::CloudEvents => "application/cloudevents+json",
        }
    }
}

/// Deliveries that may wait for each subscription, however many share the quota of their namespace.
const LEAST_WAITING: u64 = 10;

/// Limit of waiting deliveries of one of `subscriptions` that share a quota equally; `limit` at most.
pub fn waiting_limit(quota: u64, subscriptions: u64, limit: u64) -> u64 {
    (quota / subscriptions.max(1)).max(LEAST_WAITING).min(limit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::{ExecutionId, TaskId};

    fn event(kind: EventKind, run: u32) -> Event {
        let id = uuid::Uuid::from_u128(7);
        let data = json!({"delay_ms": 5, "duration_ms": 9, "error": "no"});
        Event {
            kind,
            at: Timestamp(1_000),
            execution: ExecutionId(id),
            task: Some(TaskId(id)),
            seq: 3,
            run,
            attempt: 2,
            data,
        }
    }

    fn types(words: &[&str]) -> Types {
        Types::read(words.iter().map(|it| (*it).to_owned()).collect()).unwrap()
    }

    #[test]
    fn events_are_wanted_by_their_names_and_by_what_they_begin_with() {
        let failed = event(EventKind::TaskFailed, 1);
        for words in [&["task.failed"][..], &["task.*"], &["*"], &[], &["execution.*", "task.f*"]] {
            assert_eq!(types(words).names(&failed), ["task.failed"], "{words:?}");
        }
        for words in [&["task.succeeded"][..], &["execution.*"], &["alert.*"]] {
            assert!(types(words).names(&failed).is_empty(), "{words:?}");
        }
        for word in ["task.fail", "nothing.*", "", "task.failed "] {
            assert!(Types::read(vec![word.to_owned()]).is_err(), "{word:?}");
        }
    }

    #[test]
    fn what_happens_to_no_task_and_no_execution_cannot_be_counted() {
        let read = |words: &[&str]| Types::read(words.iter().map(|word| (*word).to_owned()).collect()).expect("known");
        for words in [&["task.failed"][..], &["task.*", "execution.failed"], &["Retry*"], &["*"], &[]] {
            assert_eq!(read(words).uncounted(), None, "{words:?}");
        }
        assert_eq!(read(&["task.failed", "dependency.opened"]).uncounted(), Some((1, "dependency.opened")));
        assert_eq!(read(&["alert.*"]).uncounted(), Some((0, "alert.*")));
    }

    #[test]
    fn the_four_events_of_a_retry_are_told_by_name_and_only_of_retries() {
        let all = types(&["RetryScheduled", "RetryStarted", "RetrySucceeded", "RetryFailed"]);
        let table = [
            (EventKind::TaskRetryScheduled, 1, Some(("RetryScheduled", "delayMs", json!(5)))),
            (EventKind::AttemptStarted, 1, None),
            (EventKind::AttemptStarted, 2, Some(("RetryStarted", "attempt", json!(2)))),
            (EventKind::AttemptSucceeded, 1, None),
            (EventKind::AttemptSucceeded, 2, Some(("RetrySucceeded", "durationMs", json!(9)))),
            (EventKind::AttemptFailed, 1, None),
            (EventKind::AttemptFailed, 3, Some(("RetryFailed", "error", json!("no")))),
            (EventKind::TaskSucceeded, 2, None),
        ];
        for (kind, run, expected) in table {
            let it = event(kind, run);
            let names = all.names(&it);
            assert_eq!(names, expected.iter().map(|it| it.0).collect::<Vec<_>>(), "{kind} of run {run}");
            let Some((name, field, value)) = expected else { continue };
            let told = Message::of_event("f1", name, "n", &it, Some("k"));
            assert_eq!((&told.data[field], &told.data["jobId"]), (&value, &json!(it.task.unwrap().to_string())));
        }
        let both = types(&["RetryFailed", "attempt.*"]);
        assert_eq!(both.names(&event(EventKind::AttemptFailed, 2)), ["attempt.failed", "RetryFailed"]);
        assert_eq!(types(&["*"]).names(&event(EventKind::AttemptFailed, 2)), ["attempt.failed"]);
    }

    #[test]
    fn a_message_is_written_as_either_standard_has_it() {
        let message = Message::of_event("f1-2", "task.failed", "n", &event(EventKind::TaskFailed, 1), Some("k"));
        assert!(!message.id.contains('.'));
        let plain = message.written(Format::Webhook);
        assert_eq!(
            (&plain["type"], &plain["data"]["id"], &plain["data"]["kind"]),
            (&json!("task.failed"), &json!("f1-2"), &json!("k"))
        );
        assert_eq!(plain["timestamp"], "1970-01-01T00:00:01.000Z");
        let cloud = message.written(Format::CloudEvents);
        for name in ["specversion", "id", "source", "type"] {
            assert!(cloud[name].as_str().is_some_and(|text| !text.is_empty()), "{name} is required");
        }
        assert_eq!((&cloud["data"], &cloud["id"]), (&plain["data"], &json!("evt_f1-2")));
        let retry = Message::of_event("f1-2", "RetryFailed", "n", &event(EventKind::AttemptFailed, 2), None);
        assert_ne!(retry.id, message.id, "two deliveries of one event are told apart");
    }

    #[test]
    fn subscriptions_share_the_quota_of_waiting_deliveries() {
        for (subscriptions, expected) in
            [(0, 10_000), (1, 10_000), (5, 10_000), (10, 5_000), (1_000, 50), (100_000, 10)]
        {
            assert_eq!(waiting_limit(50_000, subscriptions, 10_000), expected, "{subscriptions}");
        }
        assert_eq!(waiting_limit(50_000, 100_000, 3), 3, "the limit of one counts");
    }
}
