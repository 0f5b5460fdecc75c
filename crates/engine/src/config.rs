//! What an engine is told when it starts. Everything has a limit.

use comeback_core::{Millis, PolicyLimits};

use crate::executors::Kinds;
use crate::{Limits, Watching};

#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// Names this process in leases of its own and in the list of instances.
    pub instance: String,
    pub policy_limits: PolicyLimits,
    pub limits: Limits,
    /// What tasks may ask this installation to do by itself.
    pub executors: Available,
    /// Kinds whose tasks this installation runs by itself.
    pub kinds: Kinds,
    /// Leaseless work without any limit of its own counts as stuck after this (model A14).
    pub stuck_after: Millis,
    /// How long what is over is kept; nothing means for ever.
    pub retention: Option<Millis>,
    /// How often loops look even when nothing told them to.
    pub safety_interval: Millis,
    /// Who is told of attempts.
    pub watching: Watching,
    /// Makes ids repeatable.
    pub id_seed: Option<u64>,
    /// Commits that may be under way side by side.
    pub report_lanes: usize,
}

/// Which executors there are. A task for another one is refused by name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Available {
    pub http: bool,
    pub command: bool,
    pub timer: bool,
}

impl Default for EngineConfig {
    fn default() -> Self {
        EngineConfig {
            instance: "comeback".into(),
            policy_limits: PolicyLimits::default(),
            limits: Limits::default(),
            executors: Available::default(),
            kinds: Kinds::default(),
            stuck_after: Millis::from_secs(1_800),
            retention: None,
            safety_interval: Millis::from_secs(1),
            watching: Watching::default(),
            id_seed: None,
            report_lanes: 2,
        }
    }
}
