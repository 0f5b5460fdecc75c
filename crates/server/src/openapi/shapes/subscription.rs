//! Subscriptions.

use comeback_core::State;
use comeback_core::subscription::Format;
use serde_json::Value;

use super::words;
use crate::openapi::schema::*;

/// Schemas of this module, by name.
pub fn all() -> Vec<(&'static str, Value)> {
    let maybe = || nullable(instant());
    let fields = || {
        vec![
            ("id", text()),
            (
                "state",
                about(
                    word(&["active", "full", "paused", "disabled"]),
                    "`disabled` after a 410 response; `full` while too many deliveries are waiting.",
                ),
            ),
            ("url", text()),
            ("types", list(text())),
            ("filter", nullable(text())),
            ("format", named("DeliveryFormat")),
            ("headers", about(map(anything()), "Sent with every delivery; the values of secrets are masked.")),
            ("retry", about(anything(), "As given in the request; null for the default.")),
            ("paused", flag()),
            ("note", nullable(text())),
            ("disabled_at", maybe()),
            ("disabled_reason", nullable(text())),
            ("deliveries", about(count(), "Deliveries created so far.")),
            ("secrets", about(count(), "Number of active signing secrets: two for a day after a rotation.")),
            ("created_at", instant()),
            ("updated_at", instant()),
        ]
    };
    let required: Vec<&str> = fields().iter().map(|(name, _)| *name).collect();
    let secret = ("secret", about(named("SigningSecret"), "Only if it was generated."));
    let with_secret = partial(&required, fields().into_iter().chain([secret]));
    let delivery = object([
        ("task_id", id()),
        ("event", about(nullable(text()), "The `webhook-id`.")),
        ("type", nullable(text())),
        ("state", words!(State)),
        ("attempt", count()),
        ("tries", about(count(), "Number of attempts.")),
        ("next_retry_at", maybe()),
        ("last_error", nullable(text())),
        ("created_at", instant()),
        ("ended_at", maybe()),
    ]);
    vec![
        ("DeliveryFormat", words!(Format)),
        ("Subscription", object(fields())),
        ("NewSubscriptionSecret", with_secret),
        ("Delivery", delivery),
    ]
}
