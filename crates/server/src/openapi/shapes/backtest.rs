//! How a policy compares with what happened.

use serde_json::Value;

use crate::openapi::schema::*;

pub fn all() -> Vec<(&'static str, Value)> {
    let arm = object([
        ("recovered", count()),
        ("given_up", about(count(), "Over without success, or left to a person.")),
        ("open", count()),
        ("retries", count()),
        ("wasted", about(count(), "Retries that failed; one that was told to wait did not try.")),
        ("cost", about(count(), "What the retries cost, where they cost something.")),
        (
            "recovery_p50_ms",
            about(nullable(count()), "Half of those that recovered did within this, from their first failure."),
        ),
        ("recovery_p95_ms", nullable(count())),
        ("peak_per_minute", about(count(), "Retries that were due within one minute, at most.")),
    ]);
    let both = |of: Value| [("recorded", of.clone()), ("candidate", of)];
    let arms = || both(named("BacktestArm"));
    let some = || object([("count", count()), ("first", about(list(id()), "Up to 20 of them."))]);
    let tried = object([("tried", count()), ("succeeded", count())]);
    let error = object(
        [
            ("fingerprint", text()),
            ("kind", text()),
            ("title", text()),
            ("type", nullable(text())),
            ("code", nullable(text())),
            ("status", nullable(count())),
            ("tasks", count()),
            ("unknown", count()),
        ]
        .into_iter()
        .chain(arms()),
    );
    let answer = object(
        [
            ("policy", super::answers::policy_or_none()),
            ("words", list(text())),
            ("since", instant()),
            ("until", instant()),
            ("complete", about(flag(), "Whether all that failed was played; if not, those that changed last were.")),
            ("tasks", about(count(), "Those that failed at least once.")),
            ("by_hand", about(count(), "Those that recovered only because somebody retried them.")),
            (
                "unknown",
                about(
                    count(),
                    "Those that the candidate is not known to bring back, and that it would try at times of which the record says \
                     nothing: up to so many more may recover.",
                ),
            ),
            ("lost", about(some(), "Those that recovered by themselves, and that the candidate would have given up before.")),
            ("won", about(some(), "Those that did not come back by themselves, and would have.")),
            ("attempts", list(object([("number", count())].into_iter().chain(both(tried))))),
            ("bucket_ms", count()),
            (
                "load",
                about(
                    list(object([("at", instant())].into_iter().chain(both(count())))),
                    "Retries of this time, by when they were due.",
                ),
            ),
            ("errors", about(list(error), "By the error that each began with, the most frequent first.")),
        ]
        .into_iter()
        .chain(arms()),
    );
    vec![("BacktestArm", arm), ("PolicyBacktest", answer)]
}
