//! Subscriptions.

use comeback_core::State;
use comeback_core::subscription::Format;
use serde_json::Value;

use super::words;
use crate::openapi::schema::*;

pub fn all() -> Vec<(&'static str, Value)> {
    let maybe = || nullable(instant());
    let fields = || {
        vec![
            ("id", text()),
            (
                "state",
                about(
                    word(&["active", "full", "paused", "disabled"]),
                    "`disabled` after an answer of 410; `full` while so many deliveries wait that no more are made.",
                ),
            ),
            ("url", text()),
            ("types", list(text())),
            ("filter", nullable(text())),
            ("format", named("DeliveryFormat")),
            ("headers", about(map(anything()), "Sent with every delivery; the values of secrets are masked.")),
            ("retry", about(anything(), "As it was given; nothing where ours is used.")),
            ("paused", flag()),
            ("note", nullable(text())),
            ("disabled_at", maybe()),
            ("disabled_reason", nullable(text())),
            ("deliveries", about(count(), "Deliveries that were made so far.")),
            ("secrets", about(count(), "How many secrets sign now: two for a day after a rotation.")),
            ("created_at", instant()),
            ("updated_at", instant()),
        ]
    };
    let required: Vec<&str> = fields().iter().map(|(name, _)| *name).collect();
    let secret = ("secret", about(named("SigningSecret"), "Shown where one was made."));
    let with_secret = partial(&required, fields().into_iter().chain([secret]));
    let delivery = object([
        ("task_id", id()),
        ("event", about(nullable(text()), "The `webhook-id`.")),
        ("type", nullable(text())),
        ("state", words!(State)),
        ("attempt", count()),
        ("tries", about(count(), "How often the call was made.")),
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
