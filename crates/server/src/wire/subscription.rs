//! Webhook subscriptions on the wire: input and JSON.

use std::collections::BTreeMap;

use comeback_core::Invalid;
use comeback_core::subscription::{Format, Types};
use comeback_engine::secrets::{SecretRef, SecretText};
use comeback_engine::store::Listed;
use comeback_engine::subscriptions::{Secret, Signing, SubscriptionSpec, SubscriptionView};
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::{DurationIn, Instant};
use crate::openapi::schema_types;

/// A webhook subscription: URL and event types.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = NewSubscription)]
pub struct SubscriptionIn {
    /// Id; default: generated.
    #[serde(default)]
    #[schema(value_type = Option<schema_types::NameSchema>)]
    pub id: Option<String>,
    /// URL that deliveries are posted to.
    #[schema(max_length = 2000)]
    url: String,
    /// Event types; a `*` at the end matches a prefix; default: all. Besides the types of `/events` there are
    /// `alert.fired`, `alert.resolved`, `RetryScheduled`, `RetryStarted`, `RetrySucceeded` and `RetryFailed`.
    #[serde(default)]
    #[schema(max_items = 100)]
    types: Vec<String>,
    /// Only events of tasks that match this filter (language of `?q=`).
    #[serde(default)]
    #[schema(max_length = 4096)]
    filter: Option<String>,
    /// `webhook` for type, timestamp and data; `cloudevents` for CloudEvents 1.0, structured.
    #[serde(default)]
    #[schema(value_type = Option<schema_types::DeliveryFormatSchema>)]
    format: Option<String>,
    /// Signing secret: `whsec_` and 24 to 64 bytes in base64; default: generated and shown once. After a change both
    /// secrets sign for a day. A named secret may be given instead.
    #[serde(default)]
    #[schema(value_type = Option<schema_types::SigningSecretSchema>)]
    secret: Option<SecretText>,
    /// Headers of every delivery; a value may be a named secret; default: unchanged.
    #[serde(default)]
    #[schema(value_type = Option<schema_types::HeadersSchema>)]
    headers: Option<BTreeMap<String, SecretText>>,
    /// Retry policy of deliveries; default: ten attempts over three days.
    #[serde(default)]
    #[schema(value_type = schema_types::RetryPolicySchema, required = false)]
    retry: Option<Value>,
    /// Pauses deliveries; they continue from the same position after resuming.
    #[serde(default)]
    paused: bool,
    #[serde(default)]
    #[schema(value_type = Option<schema_types::NoteSchema>)]
    note: Option<String>,
}

impl SubscriptionIn {
    /// Whether the request sets headers.
    pub fn has_headers(&self) -> bool {
        self.headers.is_some()
    }

    /// The spec and the signing secret.
    pub fn read(self) -> Result<(SubscriptionSpec, Option<Signing>), Invalid> {
        let mut faults = Invalid::default();
        let format = self.format.as_deref().map_or(Some(Format::Webhook), Format::from_word);
        if format.is_none() {
            faults.push("format", format!("must be one of {}", Format::list()));
        }
        let types = Types::read(self.types).map_err(|part| faults.absorb("", part)).unwrap_or_default();
        let secret = secret(self.secret).map_err(|part| faults.absorb("", part)).unwrap_or_default();
        let spec = SubscriptionSpec {
            url: self.url,
            types,
            filter: self.filter.filter(|text| !text.trim().is_empty()),
            format: format.unwrap_or(Format::Webhook),
            headers: self.headers.unwrap_or_default(),
            retry: self.retry.filter(|it| !it.is_null()),
            paused: self.paused,
            note: self.note,
        };
        faults.or((spec, secret))
    }
}

/// Parses a signing secret.
pub fn secret(given: Option<SecretText>) -> Result<Option<Signing>, Invalid> {
    let read = |given: SecretText| match given {
        SecretText::Plain(text) => Secret::read(&text).map(Signing::Own),
        SecretText::Named(SecretRef { secret, prefix: None }) => Signing::named(&secret),
        SecretText::Named(_) => Err("a secret that signs has no prefix".to_owned()),
    };
    given.map(|given| read(given).map_err(|why| Invalid::one("secret", why))).transpose()
}

/// Deliveries to repeat. Give one of the fields.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Redelivery)]
pub struct RedeliverIn {
    /// Id of an event, or the `webhook-id` of its delivery. It is delivered again under the same id.
    #[serde(default)]
    #[schema(max_length = 200)]
    pub event: Option<String>,
    /// Repeats deliveries that failed for good since this instant, at most a thousand.
    #[serde(default)]
    pub since: Option<Instant>,
    /// The same as `since`, as a duration before now.
    #[serde(default)]
    pub within: Option<DurationIn>,
}

/// JSON of a subscription.
pub fn shown(view: &SubscriptionView, secret: Option<&Signing>) -> Value {
    let SubscriptionView { spec, disabled, .. } = view;
    let mut shown = json!({
        "id": view.id,
        "state": view.state(),
        "url": spec.url,
        "types": spec.types.words(),
        "filter": spec.filter,
        "format": spec.format.word(),
        "headers": spec.headers,
        "retry": spec.retry,
        "paused": spec.paused,
        "note": spec.note,
        "disabled_at": disabled.as_ref().map(|it| it.at.to_rfc3339()),
        "disabled_reason": disabled.as_ref().map(|it| it.reason.as_str()),
        "deliveries": view.made,
        "secrets": view.secrets,
        "created_at": view.created_at.to_rfc3339(),
        "updated_at": view.updated_at.to_rfc3339(),
    });
    if let Some(secret) = secret {
        shown["secret"] = secret.reveal();
    }
    shown
}

/// JSON of a delivery in a list; its task has the details.
pub fn delivery(it: &Listed) -> Value {
    let task = &it.stored.task;
    let label = |name: &str| it.labels.get(name);
    json!({
        "task_id": task.id.to_string(),
        "event": label("event"),
        "type": label("type"),
        "state": task.state.word(),
        "attempt": task.counters.attempt,
        "tries": task.run,
        "next_retry_at": super::instant(task.next_retry_at),
        "last_error": it.last_error,
        "created_at": task.submitted_at.to_rfc3339(),
        "ended_at": super::instant(task.ended_at),
    })
}
