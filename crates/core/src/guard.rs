//! What a task's dependency says about running now. Guards hold back, they never refuse (model A5, §3.2 step 16).

use crate::task::Hold;
use crate::time::Timestamp;

/// The state of everything that may hold a task, as it was when its snapshot was taken.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GuardView {
    /// Each with its end and its name; the latest end holds.
    pub holds: Vec<Hold>,
}

impl GuardView {
    /// The hold that a retry due at `due` meets, never past the deadline.
    pub fn hold(&self, due: Timestamp, deadline: Option<Timestamp>) -> Option<Hold> {
        let latest = self.holds.iter().max_by_key(|hold| hold.until)?;
        let until = deadline.map_or(latest.until, |deadline| latest.until.min(deadline));
        (until > due).then(|| Hold { until, reason: latest.reason.clone() })
    }
}
