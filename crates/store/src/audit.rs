//! Reading back what was done: the question, and how it is asked of either database.

use async_trait::async_trait;
use comeback_core::{Audit, AuditAction, Timestamp};
use serde_json::Value;
use uuid::Uuid;

use crate::StoreError;
use crate::row::corrupt;

/// The audit log.
#[async_trait]
pub trait AuditStore: Send + Sync {
    /// Writes down an act that is no write of this store, or more than one.
    async fn put_audit(&self, audit: &Audit) -> Result<(), StoreError>;

    /// Entries of the audit log, newest first.
    async fn audit(&self, query: &AuditQuery) -> Result<Vec<Audit>, StoreError>;
}

/// Which acts, newest first.
#[derive(Clone, Debug, Default)]
pub struct AuditQuery {
    /// None means all namespaces, and what concerns none of them.
    pub namespace: Option<String>,
    /// With a namespace: also what concerns all of them.
    pub house: bool,
    /// None means any.
    pub did: Vec<AuditAction>,
    /// By their name, or by the name or id of their key.
    pub actor: Option<String>,
    /// Only about this subject.
    pub subject: Option<String>,
    /// From this instant on.
    pub since: Option<Timestamp>,
    /// Up to here, and not at it.
    pub until: Option<Timestamp>,
    /// Older than this one.
    pub after: Option<Uuid>,
    /// At most this many.
    pub limit: u32,
}

/// A value in a question.
#[derive(Debug)]
pub enum Given {
    Text(String),
    Number(i64),
    Id(Uuid),
}

pub const COLUMNS: &str = "id, at, namespace, did, subject, actor, key, note, request, before, after, key_id";

impl AuditQuery {
    /// The statement and its values; `mark` stands before their numbers.
    pub(crate) fn statement(&self, mark: char) -> (String, Vec<Given>) {
        let (mut tests, mut values): (Vec<String>, Vec<Given>) = (Vec::new(), Vec::new());
        let mut add = |test: &str, value: Given| {
            values.push(value);
            tests.push(test.replace('@', &format!("{mark}{}", values.len())));
        };
        if let Some(name) = &self.namespace {
            let test = if self.house { "(namespace = @ or namespace is null)" } else { "namespace = @" };
            add(test, Given::Text(name.clone()));
        }
        if let Some(actor) = &self.actor {
            add("(actor = @ or key = @ or key_id = @)", Given::Text(actor.clone()));
        }
        if let Some(subject) = &self.subject {
            add("subject = @", Given::Text(subject.clone()));
        }
        if let Some(since) = self.since {
            add("at >= @", Given::Number(since.0));
        }
        if let Some(until) = self.until {
            add("at < @", Given::Number(until.0));
        }
        if let Some(after) = self.after {
            add("id < @", Given::Id(after));
        }
        if !self.did.is_empty() {
            let codes: Vec<String> = self.did.iter().map(|did| did.code().to_string()).collect();
            tests.push(format!("did in ({})", codes.join(", ")));
        }
        let tests = if tests.is_empty() { "true".to_owned() } else { tests.join(" and ") };
        values.push(Given::Number(self.limit.into()));
        let limit = format!("{mark}{}", values.len());
        (format!("select {COLUMNS} from audit where {tests} order by id desc limit {limit}"), values)
    }
}

/// A row as the database holds it.
pub struct AuditRow {
    /// Its id.
    pub id: Uuid,
    /// The instant.
    pub at: i64,
    /// The namespace it belongs to.
    pub namespace: Option<String>,
    pub did: i16,
    /// Only about this subject.
    pub subject: String,
    pub actor: Option<String>,
    /// Its key within the execution.
    pub key: Option<String>,
    /// A note for the audit log.
    pub note: Option<String>,
    pub request: Option<String>,
    pub before: Option<String>,
    /// The last line of the page before.
    pub after: Option<String>,
    pub key_id: Option<String>,
}

impl AuditRow {
    pub fn read(self) -> Result<Audit, StoreError> {
        let value = |text: Option<String>| -> Result<Option<Value>, StoreError> {
            text.map(|text| serde_json::from_str(&text).map_err(|error| corrupt(format!("an act: {error}"))))
                .transpose()
        };
        Ok(Audit {
            id: self.id,
            at: Timestamp(self.at),
            namespace: self.namespace,
            did: AuditAction::from_code(self.did).ok_or_else(|| corrupt(format!("act {}", self.did)))?,
            subject: self.subject,
            actor: self.actor,
            key: self.key,
            key_id: self.key_id,
            note: self.note,
            request: self.request,
            before: value(self.before)?,
            after: value(self.after)?,
            once: None,
            answer: None,
        })
    }
}

/// JSON as text, for a row.
pub fn text(value: Option<&Value>) -> Option<String> {
    value.map(Value::to_string)
}

/// The member of a kept answer that holds what an act answers with.
const ACT: &str = "act";

/// The answer of an act as it is kept with its key.
pub fn answer_text(audit: &Audit) -> String {
    audit.answer.as_ref().map_or_else(String::new, |answer| serde_json::json!({ACT: answer}).to_string())
}

/// The answer of an act, if that is what is kept.
pub fn act_answer(text: &str) -> Option<Value> {
    serde_json::from_str::<Value>(text).ok()?.as_object_mut()?.remove(ACT)
}

/// The value before, where the caller could not know it.
pub fn found(audit: &Audit, before: Option<Value>) -> Audit {
    let before = audit.before.clone().or(before);
    Audit { before, ..audit.clone() }
}

/// A stored text that is JSON.
pub fn as_json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|_| text.into())
}

/// A pause of a loop.
pub fn pause_facts(until: i64, note: Option<&str>, by: Option<&str>) -> Value {
    let until = Some(Timestamp(until)).filter(|at| *at != Timestamp::MAX).map(Timestamp::to_rfc3339);
    serde_json::json!({"until": until, "note": note, "by": by})
}
