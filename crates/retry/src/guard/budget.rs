//! Budgets: how many retries of a policy an account pays for, by the days and months on which they are due (UTC).
//!
//! Every such retry is booked on the day and in the month of its due time. Where one of them is full, the retry is held until the
//! next that is not: it costs no attempt and is never dropped.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::invalid::Invalid;
use crate::task::{Hold, Task};
use crate::time::Timestamp;

const DAY: i64 = 86_400_000;
/// Days and months that are looked through for a free one.
const FURTHEST: usize = 1_000;

/// Limits on the retries that an account pays for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Budget {
    /// Retries per day (UTC).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retries_per_day: Option<u32>,
    /// Retries per month (UTC).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retries_per_month: Option<u32>,
    /// Cost of the retried tasks per month.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_cost_per_month: Option<u64>,
}

impl Budget {
    /// Whether it limits nothing.
    pub fn is_none(&self) -> bool {
        *self == Budget::default()
    }

    /// Faults of the limits, by field.
    pub fn check(&self) -> Invalid {
        let mut faults = Invalid::default();
        let given = [
            ("retries_per_day", self.retries_per_day.map(u64::from)),
            ("retries_per_month", self.retries_per_month.map(u64::from)),
            ("retry_cost_per_month", self.retry_cost_per_month),
        ];
        for (name, most) in given {
            match most {
                Some(0) => {
                    faults.push(format!("budget.{name}"), "must be 1 at least; a task without retries has no policy")
                }
                Some(most) if most > MOST => faults.push(format!("budget.{name}"), format!("may be {MOST} at most")),
                _ => {}
            }
        }
        faults
    }
}

const MOST: u64 = 1_000_000_000;

/// Bookings of a day or a month.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Booked {
    /// Retries booked.
    pub retries: u64,
    /// Their cost.
    pub cost: u64,
}

/// A day or a month, and what may be booked in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Period {
    /// `2030-01-31`, or `2030-01`.
    pub name: String,
    /// Limit on retries.
    pub most_retries: Option<u64>,
    /// Limit on cost.
    pub most_cost: Option<u64>,
}

impl Period {
    /// Whether there is room for one more that costs so much.
    pub fn has_room(&self, booked: Booked, cost: u32) -> bool {
        self.most_retries.is_none_or(|most| booked.retries < most)
            && self.most_cost.is_none_or(|most| booked.cost + u64::from(cost) <= most)
    }
}

/// A retry in all periods that it falls into.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Booking {
    /// The namespace of the account.
    pub namespace: String,
    /// The account.
    pub account: String,
    /// The cost of the retry.
    pub cost: u32,
    /// The periods it falls into.
    pub periods: Vec<Period>,
}

/// A budget, and what was booked when it was looked at.
#[derive(Clone, Debug, PartialEq)]
pub struct BudgetView {
    /// The namespace of the account.
    pub namespace: String,
    /// The account.
    pub account: String,
    /// Its limits.
    pub budget: Budget,
    /// By the names of periods.
    pub booked: BTreeMap<String, Booked>,
    /// Of the task that is decided about.
    pub cost: u32,
}

/// The name of a month.
pub fn month(at: Timestamp) -> String {
    at.to_rfc3339().get(..7).unwrap_or_default().to_owned()
}

fn day(at: Timestamp) -> String {
    at.to_rfc3339().get(..10).unwrap_or_default().to_owned()
}

fn next_day(at: Timestamp) -> Timestamp {
    Timestamp(at.0.div_euclid(DAY).saturating_add(1).saturating_mul(DAY))
}

fn next_month(at: Timestamp) -> Timestamp {
    let this = month(at);
    let mut next = next_day(at);
    while month(next) == this && next < Timestamp::MAX {
        next = next_day(next);
    }
    next
}

/// The hold of a retry that is due then, where several accounts pay for it; `None` where all have room. The last full one holds it.
pub fn hold(views: &[BudgetView], due: Timestamp) -> Option<Hold> {
    let mut held: Option<Hold> = None;
    for _ in 0..FURTHEST {
        let from = held.as_ref().map_or(due, |hold| hold.until);
        match views.iter().find_map(|view| view.hold(from)) {
            Some(later) => held = Some(later),
            None => break,
        }
    }
    held
}

/// A retry in the budgets of all who pay for it, or in none where one of them has no room: its deadline comes first then.
pub fn bookings(views: &[BudgetView], task: &Task) -> Vec<Booking> {
    let all: Option<Vec<Booking>> = views.iter().map(|view| view.booking(task)).collect();
    all.unwrap_or_default()
}

impl BudgetView {
    fn periods(&self, at: Timestamp) -> Vec<Period> {
        let Budget { retries_per_day, retries_per_month, retry_cost_per_month } = self.budget;
        let mut periods = Vec::new();
        if retries_per_month.is_some() || retry_cost_per_month.is_some() {
            let most_retries = retries_per_month.map(u64::from);
            periods.push(Period { name: month(at), most_retries, most_cost: retry_cost_per_month });
        }
        if retries_per_day.is_some() {
            periods.push(Period { name: day(at), most_retries: retries_per_day.map(u64::from), most_cost: None });
        }
        periods
    }

    fn is_full(&self, period: &Period) -> bool {
        !period.has_room(self.booked.get(&period.name).copied().unwrap_or_default(), self.cost)
    }

    /// The first instant from `due` on at which there is room.
    pub fn free_at(&self, due: Timestamp) -> Timestamp {
        let mut at = due;
        for _ in 0..FURTHEST {
            match self.periods(at).iter().find(|period| self.is_full(period)) {
                None => break,
                Some(full) if full.name == month(at) => at = next_month(at),
                Some(_) => at = next_day(at),
            }
        }
        at
    }

    /// The hold of a retry that is due then; `None` where there is room.
    fn hold(&self, due: Timestamp) -> Option<Hold> {
        let until = self.free_at(due);
        (until > due)
            .then(|| Hold { until, reason: format!("account {}: its budget of retries is used up", self.account) })
    }

    /// For a task that waits for its retry; nothing where there is no room.
    fn booking(&self, task: &Task) -> Option<Booking> {
        let periods = self.periods(task.due()?);
        if periods.iter().any(|period| self.is_full(period)) {
            return None;
        }
        let (namespace, account) = (self.namespace.clone(), self.account.clone());
        Some(Booking { namespace, account, cost: self.cost, periods })
    }

    /// The same, with one more booked.
    pub fn book(&mut self, booking: &Booking) {
        for period in &booking.periods {
            let booked = self.booked.entry(period.name.clone()).or_default();
            booked.retries += 1;
            booked.cost += u64::from(booking.cost);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::TaskId;
    use crate::task::{Lane, State};

    fn at(text: &str) -> Timestamp {
        Timestamp::parse_rfc3339(text).expect("an instant")
    }

    fn view(budget: Budget) -> BudgetView {
        let (namespace, account) = ("default".into(), "acme".into());
        BudgetView { namespace, account, budget, booked: BTreeMap::new(), cost: 3 }
    }

    fn due(when: Timestamp) -> Task {
        let mut task = Task::new(TaskId(uuid::Uuid::nil()), Lane::default().into(), when);
        task.state = State::RetryPending;
        task.next_retry_at = Some(when);
        task
    }

    #[test]
    fn a_full_day_moves_a_retry_to_the_next() {
        let mut view = view(Budget { retries_per_day: Some(2), ..Budget::default() });
        let noon = at("2030-01-31T12:00:00Z");
        for _ in 0..2 {
            assert_eq!(view.hold(noon), None);
            view.book(&view.booking(&due(noon)).expect("there is room"));
        }
        let hold = view.hold(noon).expect("it is full");
        assert_eq!(hold.until, at("2030-02-01T00:00:00Z"));
        assert_eq!(view.booking(&due(noon)), None);
        view.book(&view.booking(&due(hold.until)).expect("there is room tomorrow"));
        assert_eq!(view.free_at(noon), at("2030-02-01T00:00:00Z"), "one more there");
        view.book(&view.booking(&due(hold.until)).expect("there is room tomorrow"));
        assert_eq!(view.free_at(noon), at("2030-02-02T00:00:00Z"));
    }

    #[test]
    fn a_full_month_moves_it_to_the_next_by_number_and_by_cost() {
        let noon = at("2030-01-15T12:00:00Z");
        for budget in [
            Budget { retries_per_month: Some(1), ..Budget::default() },
            Budget { retry_cost_per_month: Some(5), ..Budget::default() },
        ] {
            let mut view = view(budget);
            view.book(&view.booking(&due(noon)).expect("there is room"));
            assert_eq!(view.free_at(noon), at("2030-02-01T00:00:00Z"), "{budget:?}");
            assert_eq!(view.free_at(at("2030-03-01T00:00:00Z")), at("2030-03-01T00:00:00Z"));
        }
    }

    #[test]
    fn an_organisation_and_its_account_must_both_have_room() {
        let noon = at("2030-01-30T12:00:00Z");
        let own = view(Budget { retries_per_day: Some(2), ..Budget::default() });
        let budget = Budget { retries_per_month: Some(3), ..Budget::default() };
        let mut views = [own, BudgetView { account: "all".into(), ..view(budget) }];
        let mut held = Vec::new();
        for _ in 0..4 {
            let hold = hold(&views, noon);
            let task = due(hold.as_ref().map_or(noon, |hold| hold.until));
            let bookings = bookings(&views, &task);
            assert_eq!(bookings.len(), 2, "there is room in both");
            for (view, booking) in views.iter_mut().zip(&bookings) {
                view.book(booking);
            }
            held.push(hold.map(|hold| (hold.until, hold.reason)));
        }
        let full = |who: &str| format!("account {who}: its budget of retries is used up");
        let expected = [
            None,
            None,
            Some((at("2030-01-31T00:00:00Z"), full("acme"))),
            Some((at("2030-02-01T00:00:00Z"), full("all"))),
        ];
        assert_eq!(held, expected);
        assert_eq!(bookings(&views, &due(noon)), [], "where one has no room, nobody books");
    }

    #[test]
    fn what_never_has_room_is_not_looked_for_for_ever() {
        let view = view(Budget { retry_cost_per_month: Some(1), ..Budget::default() });
        let noon = at("2030-01-15T12:00:00Z");
        assert!(view.free_at(noon) > noon);
        assert_eq!(view.booking(&due(noon)), None);
    }
}
