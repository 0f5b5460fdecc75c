//! Why a verdict was what it was. The reason is stored with the verdict (model A6) and shown as it is.

use serde::{Deserialize, Serialize};

use crate::failure::{Class, Trigger};
use crate::task::Counters;
use crate::time::{Millis, Timestamp};
use crate::words::words;

words! {
    /// The one thing that decided.
    pub enum Reason {
        Succeeded = 0 "succeeded",
        /// A counted retry was due.
        Retry = 1 "retry",
        /// The other side asked to wait.
        RateLimited = 2 "rate_limited",
        /// The worker postponed it.
        Snoozed = 3 "snoozed",
        /// The worker gave it back.
        Released = 4 "released",
        /// The run was lost and is repeated.
        LostRetry = 5 "lost_retry",
        NoPolicy = 10 "no_policy",
        Final = 11 "final",
        StopWhen = 12 "stop_when",
        Ignored = 13 "ignored",
        NotListed = 14 "not_listed",
        RetryWhen = 15 "retry_when",
        /// A rule of the policy said so.
        Rule = 16 "rule",
        OnLostFail = 17 "on_lost_fail",
        UpstreamFailed = 18 "upstream_failed",
        UpstreamUnmet = 19 "upstream_unmet",
        /// Its own condition said no.
        Condition = 20 "condition",
        /// Something in it could not be worked out.
        Expression = 21 "expression",
        /// A person said of such errors what they are.
        Reclassified = 22 "reclassified",
        /// A loop of which a round failed.
        Rounds = 23 "rounds",
        Attempts = 30 "attempts",
        Expired = 31 "expired",
        Lost = 32 "lost",
        ThrottledOut = 33 "throttled_out",
        SnoozedOut = 34 "snoozed_out",
        Parked = 40 "parked",
        Canceled = 50 "canceled",
        DeadEnd = 51 "dead_end",
        ExecutionCanceled = 52 "execution_canceled",
        FailFast = 53 "fail_fast",
        ManualRetry = 60 "manual_retry",
    }
}

words! {
    /// The decision.
    pub enum Verdict {
        Succeed = 0 "succeed",
        Retry = 1 "retry",
        Throttle = 2 "throttle",
        Snooze = 3 "snooze",
        Release = 4 "release",
        Park = 5 "park",
        /// The task ends as `failed`: it was not to be retried.
        Refuse = 6 "refuse",
        /// The task ends as `dead`: something ran out.
        Exhaust = 7 "exhaust",
    }
}

/// How a delay came about, part by part.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DelayParts {
    /// The word for the strategy, `retry_after` or `snooze`.
    pub strategy: String,
    /// The exponent or ordinal: retries already scheduled.
    pub n: u32,
    /// The delay before cap and jitter.
    pub base_ms: u64,
    /// The base after the cap, where the cap was lower.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capped_ms: Option<u64>,
    /// Added or subtracted by jitter.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub jitter_ms: i64,
    /// The `Retry-After` of the other side, after clamping.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
    /// Added by a closed window.
    #[serde(default, skip_serializing_if = "is_nothing")]
    pub window_ms: u64,
    /// From the failure to the next attempt.
    pub total_ms: u64,
}

fn is_zero(value: &i64) -> bool {
    *value == 0
}

fn is_nothing(value: &u64) -> bool {
    *value == 0
}

impl DelayParts {
    /// From the failure to the next attempt.
    pub fn total(&self) -> Millis {
        Millis(self.total_ms)
    }
}

/// A verdict with everything that led to it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Decision {
    /// The verdict.
    pub verdict: Verdict,
    /// The reason.
    pub reason: Reason,
    /// When it was decided.
    pub at: Timestamp,
    /// The actor of a manual change; `None` when the server decided.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// The class of the failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<Class>,
    /// The trigger of the failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trigger: Option<Trigger>,
    /// The entry of the policy that matched: `retry_on[0] "5xx"`, `rules[2]`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub matched: Option<String>,
    /// Which stored policy was asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<i32>,
    /// The limit on retries that applied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_retries: Option<u32>,
    /// How often the rule that matched may be applied, where that was used up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule_max: Option<u32>,
    /// How the delay came about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay: Option<DelayParts>,
    /// The counters before.
    pub before: Counters,
    /// The counters after.
    pub after: Counters,
    /// When the next attempt is due.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_retry_at: Option<Timestamp>,
    /// Until when it is held beyond that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_until: Option<Timestamp>,
    /// The name of the hold.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_by: Option<String>,
    /// Notes for people: a clamped Retry-After, an expression that failed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

impl Decision {
    /// A verdict that no policy was asked for: nothing was counted.
    pub fn without_policy(verdict: Verdict, reason: Reason, counters: Counters, at: Timestamp) -> Decision {
        Decision {
            verdict,
            reason,
            at,
            by: None,
            class: None,
            trigger: None,
            matched: None,
            policy: None,
            max_retries: None,
            rule_max: None,
            delay: None,
            before: counters,
            after: counters,
            next_retry_at: None,
            held_until: None,
            held_by: None,
            notes: Vec::new(),
        }
    }
}
