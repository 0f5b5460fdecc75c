//! Subscriptions, as they are asked for and as they are shown.

use std::collections::BTreeMap;

use comeback_core::Invalid;
use comeback_core::subscription::{Format, Types};
use comeback_engine::secrets::{SecretRef, SecretText};
use comeback_engine::store::Listed;
use comeback_engine::subscriptions::{Secret, Signing, SubscriptionSpec, SubscriptionView};
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::{Instant, Span};
use crate::openapi::stands_for;

/// Who is told, and of what.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = NewSubscription)]
pub struct SubscriptionIn {
    /// A name of your own; one is made up where nothing is said.
    #[serde(default)]
    #[schema(value_type = Option<stands_for::Name>)]
    pub id: Option<String>,
    /// Where deliveries go, by POST.
    #[schema(max_length = 2000)]
    url: String,
    /// Types of events, with `*` at the end for all that begin so; all of them where nothing is said. Beside the types of `/events`
    /// there are `alert.fired` and `alert.resolved`, and what a retry goes through by the names `RetryScheduled`, `RetryStarted`,
    /// `RetrySucceeded` and `RetryFailed`.
    #[serde(default)]
    #[schema(max_items = 100)]
    types: Vec<String>,
    /// Only events of tasks for which this holds, in the words of `?q=`.
    #[serde(default)]
    #[schema(max_length = 4096)]
    filter: Option<String>,
    /// `webhook` for type, timestamp and data; `cloudevents` for CloudEvents 1.0, structured.
    #[serde(default)]
    #[schema(value_type = Option<stands_for::DeliveryFormat>)]
    format: Option<String>,
    /// `whsec_` and 24 to 64 bytes in base64; one is made where nothing is said, and shown once. In place of another, both sign for
    /// a day. A named secret signs with what is put under its name.
    #[serde(default)]
    #[schema(value_type = Option<stands_for::SigningSecret>)]
    secret: Option<SecretText>,
    /// Sent with every delivery; a value may be a named secret. Those that are there stay where nothing is said.
    #[serde(default)]
    #[schema(value_type = Option<stands_for::Headers>)]
    headers: Option<BTreeMap<String, SecretText>>,
    /// A policy in place of ours, which tries ten times over three days.
    #[serde(default)]
    #[schema(value_type = stands_for::RetryPolicy, required = false)]
    retry: Option<Value>,
    /// Nothing is delivered while it is paused; then it goes on where it stopped.
    #[serde(default)]
    paused: bool,
    #[serde(default)]
    #[schema(value_type = Option<stands_for::Note>)]
    note: Option<String>,
}

impl SubscriptionIn {
    /// Whether it says which headers are sent.
    pub fn has_headers(&self) -> bool {
        self.headers.is_some()
    }

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

pub fn secret(given: Option<SecretText>) -> Result<Option<Signing>, Invalid> {
    let read = |given: SecretText| match given {
        SecretText::Plain(text) => Secret::read(&text).map(Signing::Own),
        SecretText::Named(SecretRef { secret, prefix: None }) => Signing::named(&secret),
        SecretText::Named(_) => Err("a secret that signs has no prefix".to_owned()),
    };
    given.map(|given| read(given).map_err(|why| Invalid::one("secret", why))).transpose()
}

/// What is to be delivered again: give one of both.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Redelivery)]
pub struct RedeliverIn {
    /// The id of an event, or the `webhook-id` that it was delivered under. It is delivered once more, under the same id.
    #[serde(default)]
    #[schema(max_length = 200)]
    pub event: Option<String>,
    /// Whatever was given up since this instant is tried again, a thousand deliveries at most.
    #[serde(default)]
    pub since: Option<Instant>,
    /// The same, as how long ago.
    #[serde(default)]
    pub within: Option<Span>,
}

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

/// A delivery in a list: the task behind it has the rest.
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
