//! Quotas: how much of each shared thing one namespace may have, so that no tenant takes it away from the others.
//!
//! Every quota has a name, a default and a flag (`--quota lanes=20000`). A request beyond one is refused by that name
//! ([`QuotaExceeded`], HTTP 429) and counted in `comeback_quota_refusals_total{quota}`.

use std::fmt;

use crate::words::words;

words! {
    /// One thing that namespaces share. The comment of each says what is counted.
    pub enum Quota {
        /// Submits and acts in progress at once.
        Writes = 0 "writes",
        /// Lists, searches and other reads in progress at once.
        Reads = 1 "reads",
        /// Reports and heartbeats in progress at once.
        Reports = 2 "reports",
        /// Requests for work (long polls) open at once.
        LongPolls = 3 "long_polls",
        /// Bytes of request bodies in memory at once, reports and heartbeats apart.
        BodyBytes = 4 "body_bytes",
        /// The same for reports and heartbeats.
        ReportBytes = 5 "report_bytes",
        /// Event streams open at once.
        Streams = 6 "streams",
        /// HTTP calls, commands and timers that the server runs at once.
        Calls = 7 "calls",
        /// Webhook deliveries in flight at once.
        Deliveries = 8 "deliveries",
        /// Searches that the database works on at once.
        Searches = 9 "searches",
        /// Acts under an `Idempotency-Key` in progress at once.
        KeyedActs = 10 "keyed_acts",
        /// Workflows inside workflows, counted from the root execution.
        WorkflowDepth = 11 "workflow_depth",
        /// Tasks of a root execution together with all executions below it.
        TasksPerRoot = 12 "tasks_per_root",
        /// Distinct combinations of queue, kind and executor that have tasks.
        Lanes = 13 "lanes",
        /// Distinct retry policies that tasks use.
        Policies = 14 "policies",
        /// Distinct values of labels that rules count by (`per`).
        RuleKeys = 15 "rule_keys",
        /// API keys.
        Keys = 16 "keys",
        /// Workers seen within the last hour.
        Workers = 17 "workers",
        /// Webhook subscriptions.
        Subscriptions = 18 "subscriptions",
        /// Alerts.
        Alerts = 19 "alerts",
        /// Named policies.
        NamedPolicies = 20 "named_policies",
        /// Named secrets.
        Secrets = 21 "secrets",
        /// Rules of admission; as many again that tasks bring along.
        Rules = 22 "rules",
        /// Bytes that unread event streams may hold in memory.
        StreamBytes = 23 "stream_bytes",
        /// Submits and acts with a body of more than 32 KiB that are worked on at once; others wait in turn.
        LargeRequests = 24 "large_requests",
        /// Webhook deliveries that have not ended, shared equally by the subscriptions. A subscription with its share makes no more.
        WaitingDeliveries = 25 "waiting_deliveries",
    }
}

impl Quota {
    /// The value unless another was configured.
    pub const fn default_value(self) -> u64 {
        match self {
            Quota::Writes => 256,
            Quota::Reads => 8,
            Quota::Reports => 1_024,
            Quota::LongPolls => 4_096,
            Quota::BodyBytes => 40 << 20,
            Quota::ReportBytes => 36 << 20,
            Quota::Streams => 250,
            Quota::Calls => 22,
            Quota::Deliveries => 22,
            Quota::Searches => 1,
            Quota::KeyedActs => 64,
            Quota::WorkflowDepth => 20,
            Quota::TasksPerRoot => 100_000,
            Quota::Lanes | Quota::Policies | Quota::Workers => 10_000,
            Quota::RuleKeys => 100_000,
            Quota::Keys | Quota::Subscriptions | Quota::NamedPolicies | Quota::Secrets | Quota::Rules => 1_000,
            Quota::Alerts => 500,
            Quota::StreamBytes => 16 << 20,
            Quota::LargeRequests => 2,
            Quota::WaitingDeliveries => 50_000,
        }
    }
}

/// The value of every quota.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quotas(Vec<u64>);

impl Default for Quotas {
    fn default() -> Self {
        Quotas(Quota::ALL.iter().map(|quota| quota.default_value()).collect())
    }
}

impl Quotas {
    /// The value of one.
    pub fn get(&self, quota: Quota) -> u64 {
        self.0.get(quota as usize).copied().unwrap_or_else(|| quota.default_value())
    }

    /// Sets one by its name; a wrong name lists them all.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        let quota = Quota::from_word(name).ok_or_else(|| format!("there are {}", Quota::list()))?;
        let number = value.parse::<u64>().map_err(|_| format!("`{value}` is no number"))?;
        if number == 0 {
            return Err("a quota is 1 at least".into());
        }
        self.0[quota as usize] = number;
        Ok(())
    }

    /// The refusal of a namespace that already has `used` of something, if that is all it may have.
    pub fn check(&self, quota: Quota, namespace: &str, used: u64) -> Result<(), QuotaExceeded> {
        let most = self.get(quota);
        if used < most { Ok(()) } else { Err(QuotaExceeded { quota, namespace: namespace.into(), most }) }
    }
}

/// A namespace asked for more of something than it may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuotaExceeded {
    /// Which one.
    pub quota: Quota,
    /// The namespace.
    pub namespace: String,
    /// The value that applies.
    pub most: u64,
}

impl fmt::Display for QuotaExceeded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let QuotaExceeded { quota, namespace, most } = self;
        write!(f, "the quota `{quota}` of the namespace `{namespace}` is used up: {most} at most")
    }
}

impl std::error::Error for QuotaExceeded {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_quota_can_be_set_by_its_name() {
        let mut quotas = Quotas::default();
        for (place, quota) in Quota::ALL.iter().enumerate() {
            assert_eq!(*quota as usize, place, "{quota}: the numbers have no gaps");
            assert!(quota.default_value() > 0);
            quotas.set(quota.word(), "7").expect("a number");
            assert_eq!(quotas.get(*quota), 7);
        }
        assert!(quotas.set("lanes", "0").is_err());
        assert!(quotas.set("lanes", "many").is_err());
        assert!(quotas.set("patience", "1").is_err_and(|names| names.contains("long_polls")));
    }

    #[test]
    fn a_refusal_names_the_quota_the_namespace_and_the_limit() {
        let mut quotas = Quotas::default();
        quotas.set("keys", "2").expect("a number");
        assert_eq!(quotas.check(Quota::Keys, "red", 1), Ok(()));
        let refused = quotas.check(Quota::Keys, "red", 2).expect_err("two are all it may have");
        assert_eq!(refused.to_string(), "the quota `keys` of the namespace `red` is used up: 2 at most");
    }
}
