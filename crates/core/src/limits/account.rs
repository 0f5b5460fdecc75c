//! Accounts: credits that tasks cost. What a task costs is reserved while it is open, spent when it succeeds and given back when
//! it ends otherwise. Retries that a policy decides are paid by what was reserved; a new cycle of a task that was over reserves
//! anew (model I-19).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::budget::Budget;
use crate::id::TaskId;
use crate::invalid::Invalid;
use crate::task::State;
use crate::words::words;

/// The cost of a task that states none.
pub const USUAL_COST: u32 = 1;
/// The highest cost of a task.
pub const MOST_COST: u32 = 1_000_000_000;
/// As much as an account may hold.
pub const MOST_CREDITS: i64 = 1_000_000_000_000;

words! {
    /// How a change of a task moves credits of its account.
    pub enum Move {
        Reserve = 0 "reserve",
        Spend = 1 "spend",
        Release = 2 "release",
    }
}

impl Move {
    /// Of a change from one state to another. A task that was just made has come from nowhere.
    pub fn of(from: Option<State>, to: State) -> Option<Move> {
        let was_open = from.is_some_and(State::is_open);
        match (was_open, to.is_open()) {
            (false, true) => Some(Move::Reserve),
            (true, false) if to == State::Succeeded => Some(Move::Spend),
            (true, false) => Some(Move::Release),
            _ => None,
        }
    }
}

/// A move of the account that a task names, by what the task costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Charge {
    /// The task.
    pub task: TaskId,
    /// The move.
    pub what: Move,
}

/// The credits of an account.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Credits {
    /// Reserved ones included.
    pub held: i64,
    /// Credits reserved for open tasks.
    pub reserved: i64,
    /// So far.
    pub spent: i64,
}

impl Credits {
    /// Credits that are not reserved.
    pub fn available(self) -> i64 {
        self.held - self.reserved
    }

    /// After a move; nothing where there is too little.
    pub fn after(self, what: Move, cost: u32) -> Option<Credits> {
        let cost = i64::from(cost);
        match what {
            Move::Reserve if self.available() < cost => None,
            Move::Reserve => Some(Credits { reserved: self.reserved + cost, ..self }),
            Move::Release => Some(Credits { reserved: self.reserved - cost, ..self }),
            Move::Spend => {
                let Credits { held, reserved, spent } = self;
                Some(Credits { held: held - cost, reserved: reserved - cost, spent: spent + cost })
            }
        }
    }
}

/// The terms of an account.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Terms {
    /// The cost of a task, by its kind.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub costs: BTreeMap<String, u32>,
    /// How many retries it pays for.
    #[serde(default, skip_serializing_if = "Budget::is_none")]
    pub budget: Budget,
    /// Another account, in whose budget its retries are booked as well: both must have room.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub organisation: Option<String>,
}

impl Terms {
    /// The cost of a task: its own, else that of its kind, else the usual.
    pub fn cost(&self, kind: &str, own: Option<u32>) -> u32 {
        own.or_else(|| self.costs.get(kind).copied()).unwrap_or(USUAL_COST)
    }

    /// Faults of the terms, by field.
    pub fn check(&self) -> Invalid {
        let mut faults = self.budget.check();
        for (kind, cost) in &self.costs {
            if *cost > MOST_COST {
                faults.push(format!("costs.{kind}"), format!("may be {MOST_COST} at most"));
            }
        }
        faults
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_end_has_its_move() {
        use State::*;
        assert_eq!(Move::of(None, Pending), Some(Move::Reserve));
        assert_eq!(Move::of(None, Waiting), Some(Move::Reserve));
        assert_eq!(Move::of(Some(Running), Succeeded), Some(Move::Spend));
        for end in [Failed, Dead, Canceled, Skipped] {
            assert_eq!(Move::of(Some(Running), end), Some(Move::Release), "{end}");
            assert_eq!(Move::of(Some(end), Pending), Some(Move::Reserve), "{end}");
            assert_eq!(Move::of(Some(end), end), None, "{end}");
        }
        for (from, to) in [(Running, RetryPending), (RetryPending, Pending), (Pending, Paused), (Running, Pending)] {
            assert_eq!(Move::of(Some(from), to), None, "automatic retries are paid by what was reserved");
        }
    }

    /// In any order of moves: no credit is made, none is lost, and never is more reserved than there is.
    #[test]
    fn credits_are_neither_made_nor_lost() {
        let mut credits = Credits { held: 10, ..Credits::default() };
        let mut open: Vec<u32> = Vec::new();
        let mut dice = 7_u64;
        for _ in 0..10_000 {
            dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let cost = (dice >> 60) as u32;
            let next = match (dice >> 40) % 3 {
                0 => credits.after(Move::Reserve, cost).inspect(|_| open.push(cost)),
                n if !open.is_empty() => {
                    let cost = open.swap_remove((dice >> 20) as usize % open.len());
                    credits.after(if n == 1 { Move::Spend } else { Move::Release }, cost)
                }
                _ => None,
            };
            credits = next.unwrap_or(credits);
            if credits.held < 5 {
                credits.held += 10;
                credits.spent -= 10;
            }
            assert_eq!(credits.held + credits.spent, 10);
            assert_eq!(credits.reserved, open.iter().map(|cost| i64::from(*cost)).sum::<i64>());
            assert!(credits.available() >= 0 && credits.reserved >= 0);
        }
    }

    #[test]
    fn a_cost_is_the_tasks_own_or_that_of_its_kind() {
        let terms = Terms { costs: [("video".to_owned(), 5)].into(), ..Terms::default() };
        assert_eq!([terms.cost("video", None), terms.cost("video", Some(2)), terms.cost("mail", None)], [5, 2, 1]);
    }
}
