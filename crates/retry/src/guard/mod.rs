//! Holds from outside: dependencies, budgets, people. Guards hold back, they never refuse (model A5, step 16 of `decide`).

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
    /// The limited budgets of its account and of the account's organisation.
    pub budgets: Vec<BudgetView>,
    /// Its dependency, where that is guarded.
    pub dependency: Option<dependency::View>,
    /// Classes that people gave to errors; `None` where they gave none.
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
