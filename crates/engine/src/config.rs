//! Configuration of an engine. Everything has a limit.

use comeback_core::{Millis, PolicyLimits, Quotas};
use comeback_store::{Background, Loop};

use crate::executors::Kinds;
use crate::secrets::Keyring;
use crate::{Limits, Watching};

/// Configuration of an engine.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// Names this process in leases of its own and in the list of instances.
    pub instance: String,
    /// Limits of policies.
    pub policy_limits: PolicyLimits,
    /// Limits of requests.
    pub limits: Limits,
    /// How much of what namespaces share each of them may have.
    pub quotas: Quotas,
    /// The keys that named secrets are encrypted with.
    pub secret_keys: Keyring,
    /// Executors that this installation offers.
    pub executors: Available,
    /// Kinds whose tasks this installation runs by itself.
    pub kinds: Kinds,
    /// Leaseless work without any limit of its own counts as stuck after this (model A14).
    pub stuck_after: Millis,
    /// How long ended tasks are kept; `None` means forever.
    pub retention: Option<Millis>,
    /// How often loops look even when nothing told them to.
    pub safety_interval: Millis,
    /// Periods of single loops. `repair` ticks by itself only if it has one.
    pub periods: Vec<(Loop, Millis)>,
    /// Watcher of attempts.
    pub watching: Watching,
    /// Makes ids repeatable.
    pub id_seed: Option<u64>,
    /// Commits that may be under way side by side.
    pub report_lanes: usize,
    /// Where this engine's background tasks are registered.
    pub background: Background,
}

impl EngineConfig {
    /// Period of a loop; `None` if it only runs on request.
    pub fn period(&self, name: Loop) -> Option<Millis> {
        let given = self.periods.iter().rev().find(|(it, _)| *it == name).map(|(_, period)| *period);
        given.or(match name {
            Loop::Prune => Some(PRUNE_EVERY),
            _ if name.is_asked_for() => None,
            _ => Some(self.safety_interval),
        })
    }

    /// Whether a loop works by itself at all.
    pub fn is_driven(&self, name: Loop) -> bool {
        !name.is_asked_for() || name == Loop::Repair && self.period(name).is_some()
    }
}

const PRUNE_EVERY: Millis = Millis::from_secs(30);

/// Which executors there are. A task for another one is refused by name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Available {
    /// HTTP calls.
    pub http: bool,
    /// Commands.
    pub command: bool,
    /// Timers.
    pub timer: bool,
}

impl Default for EngineConfig {
    fn default() -> Self {
        EngineConfig {
            instance: "comeback".into(),
            policy_limits: PolicyLimits::default(),
            limits: Limits::default(),
            quotas: Quotas::default(),
            secret_keys: Keyring::default(),
            executors: Available::default(),
            kinds: Kinds::default(),
            stuck_after: Millis::from_secs(1_800),
            retention: None,
            safety_interval: Millis::from_secs(1),
            periods: Vec::new(),
            watching: Watching::default(),
            id_seed: None,
            report_lanes: 2,
            background: Background::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// S2-49 to S2-52, S2-102.
    #[test]
    fn each_loop_has_a_period_and_repair_only_where_one_was_given() {
        let usual = EngineConfig::default();
        assert_eq!(usual.stuck_after, Millis::from_secs(30 * 60), "S2-103");
        assert_eq!(usual.period(Loop::Reap), Some(Millis::from_secs(1)));
        assert_eq!((usual.period(Loop::Repair), usual.is_driven(Loop::Repair)), (None, false));
        let periods = vec![(Loop::Reap, Millis::from_secs(300)), (Loop::Repair, Millis::from_secs(30))];
        let given = EngineConfig { periods, ..usual };
        assert_eq!(given.period(Loop::Reap), Some(Millis::from_secs(300)));
        assert_eq!(given.period(Loop::Retries), Some(Millis::from_secs(1)));
        assert_eq!((given.period(Loop::Repair), given.is_driven(Loop::Repair)), (Some(Millis::from_secs(30)), true));
        assert!(!given.is_driven(Loop::Dispatch));
    }
}
