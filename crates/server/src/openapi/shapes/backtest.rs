//! Results of a policy backtest.

use serde_json::Value;

use crate::openapi::schema::*;

/// Schemas of this module, by name.
pub fn all() -> Vec<(&'static str, Value)> {
    let arm = object([
        ("recovered", count()),
        ("given_up", about(count(), "Ended without success, or parked for a person.")),
        ("open", count()),
        ("retries", count()),
        ("wasted", about(count(), "Failed retries; rate-limited ones do not count.")),
        ("cost", about(count(), "Cost of the retries, if any.")),
        ("recovery_p50_ms", about(nullable(count()), "Median time to recovery, from the first failure.")),
        ("recovery_p95_ms", nullable(count())),
        ("peak_per_minute", about(count(), "Maximum number of retries due within one minute.")),
    ]);
    let both = |of: Value| [("recorded", of.clone()), ("candidate", of)];
    let arms = || both(named("BacktestArm"));
    let some = || object([("count", count()), ("first", about(list(id()), "At most 20 of them."))]);
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
            (
                "complete",
                about(flag(), "Whether all failed tasks were simulated; if not, the most recently changed ones were."),
            ),
            ("tasks", about(count(), "Tasks that failed at least once.")),
            ("by_hand", about(count(), "Tasks that recovered only after a manual retry.")),
            (
                "unknown",
                about(
                    count(),
                    "Tasks that the candidate would retry at times without recorded data: up to this many more may \
                     recover.",
                ),
            ),
            (
                "lost",
                about(
                    some(),
                    "Tasks that recovered by automatic retries, and that the candidate would have given up before.",
                ),
            ),
            ("won", about(some(), "Tasks that did not recover by automatic retries, and would have.")),
            ("attempts", list(object([("number", count())].into_iter().chain(both(tried))))),
            ("bucket_ms", count()),
            (
                "load",
                about(
                    list(object([("at", instant())].into_iter().chain(both(count())))),
                    "Retries of this time, by due time.",
                ),
            ),
            ("errors", about(list(error), "By first error, most frequent first.")),
        ]
        .into_iter()
        .chain(arms()),
    );
    vec![("BacktestArm", arm), ("PolicyBacktest", answer)]
}
