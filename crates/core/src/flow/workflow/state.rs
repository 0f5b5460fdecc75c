//! Whether a workflow is started by what starts it: people switch it on and off, and its schedules follow (F0-8).

use crate::words::words;

words! {
    /// One that nobody ever switched off is active.
    pub enum WorkflowState {
        Active = 0 "active",
        /// For a while: nothing starts it until it is resumed.
        Paused = 1 "paused",
        /// Taken out of use: nothing starts it until it is activated.
        Inactive = 2 "inactive",
    }
}

words! {
    /// The actions on a workflow.
    pub enum WorkflowAct {
        Activate = 0 "activate",
        Deactivate = 1 "deactivate",
        Pause = 2 "pause",
        Resume = 3 "resume",
    }
}

impl WorkflowState {
    /// The state afterwards; `None` where the action is not possible. Done twice is done once.
    pub fn after(self, act: WorkflowAct) -> Option<WorkflowState> {
        match (act, self) {
            (WorkflowAct::Activate, _) => Some(WorkflowState::Active),
            (WorkflowAct::Deactivate, _) => Some(WorkflowState::Inactive),
            // What is out of use is not used again by the way.
            (_, WorkflowState::Inactive) => None,
            (WorkflowAct::Pause, _) => Some(WorkflowState::Paused),
            (WorkflowAct::Resume, _) => Some(WorkflowState::Active),
        }
    }
}

impl WorkflowAct {
    /// As in "cannot be paused".
    pub const fn done(self) -> &'static str {
        match self {
            WorkflowAct::Activate => "activated",
            WorkflowAct::Deactivate => "deactivated",
            WorkflowAct::Pause => "paused",
            WorkflowAct::Resume => "resumed",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_out_of_use_is_only_activated() {
        use WorkflowAct::{Activate, Deactivate, Pause, Resume};
        let table = [
            (WorkflowState::Active, [Some("active"), Some("inactive"), Some("paused"), Some("active")]),
            (WorkflowState::Paused, [Some("active"), Some("inactive"), Some("paused"), Some("active")]),
            (WorkflowState::Inactive, [Some("active"), Some("inactive"), None, None]),
        ];
        for (from, expected) in table {
            let found = [Activate, Deactivate, Pause, Resume].map(|act| from.after(act).map(WorkflowState::word));
            assert_eq!(found, expected, "{from}");
        }
    }
}
