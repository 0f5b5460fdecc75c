//! What a task's dependency says about running now. Guards hold back, they never refuse (model A5, §3.2 step 16).

pub mod budget;
pub mod dependency;

use std::collections::HashMap;
use std::sync::Arc;

use crate::failure::Class;
use crate::task::Hold;
use crate::time::Timestamp;
use budget::BudgetView;

/// Error fingerprints to the class that a person gave them. One map per namespace that has any.
pub type Reclassified = Arc<HashMap<i64, Class>>;

/// The state of everything that may hold a task, as it was when its snapshot was taken.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GuardView {
    /// Each with its end and its name; the latest end holds.
    pub holds: Vec<Hold>,
    /// What its account and the organisation of that pay for, where they are limited.
    pub budgets: Vec<BudgetView>,
    /// What it needs outside, where that has a say.
    pub dependency: Option<dependency::View>,
    /// What people said that errors are; nothing where nobody did.
    pub reclassified: Option<Reclassified>,
}

impl GuardView {
    /// When one that could start at that time may, as far as is known; the end of time where a person has the say.
    pub fn starts_at(&self, at: Timestamp) -> Timestamp {
        self.dependency.as_ref().and_then(|it| it.keeps(at)).map_or(at, |(_, until)| until)
    }

    /// The hold that a retry due at `due` meets, never past the deadline.
    pub fn hold(&self, due: Timestamp, deadline: Option<Timestamp>) -> Option<Hold> {
        let mut held = self.holds.iter().max_by_key(|hold| hold.until).filter(|hold| hold.until > due).cloned();
        let from = |held: &Option<Hold>| held.as_ref().map_or(due, |hold| hold.until);
        held = self.dependency.as_ref().and_then(|it| it.hold(from(&held))).or(held);
        held = budget::hold(&self.budgets, from(&held)).or(held);
        let held = held?;
        let until = deadline.map_or(held.until, |deadline| held.until.min(deadline));
        (until > due).then_some(Hold { until, ..held })
    }
}
