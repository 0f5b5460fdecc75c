//! Accounts as they go into a store and come out. What a move does to credits is said in `comeback_core::account`.

use std::collections::BTreeMap;

use async_trait::async_trait;
use comeback_core::account::{Credits, Move, Terms};
use comeback_core::budget::{Booked, Budget};
use comeback_core::{Audit, TaskId, Timestamp};
use serde_json::{Value, json};

use crate::StoreError;
use crate::row::corrupt;

/// Accounts whose credits tasks reserve and spend.
#[async_trait]
pub trait AccountStore: Send + Sync {
    /// An account by its name.
    async fn account(&self, namespace: &str, name: &str) -> Result<Option<Account>, StoreError>;

    /// Accounts behind `after`, in the order of their names.
    async fn accounts(&self, namespace: &str, after: &str, limit: u32) -> Result<Vec<Account>, StoreError>;

    /// Makes or changes an account; what its tasks have reserved stays so. The audit is told how it was and how it is.
    async fn put_account(
        &self,
        namespace: &str,
        name: &str,
        change: &AccountChange,
        audit: Option<&Audit>,
        now: Timestamp,
    ) -> Result<Account, StoreError>;

    /// Only where no open task has reserved any of it.
    async fn delete_account(&self, namespace: &str, name: &str, audit: Option<&Audit>) -> Result<Closed, StoreError>;

    /// Bookings in the budget of an account, from a period on.
    async fn booked(&self, namespace: &str, account: &str, since: &str)
    -> Result<BTreeMap<String, Booked>, StoreError>;
}

/// An account as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    /// Its name.
    pub name: String,
    /// Its credits.
    pub credits: Credits,
    /// Prices and budget.
    pub terms: Terms,
    /// When it was created.
    pub created_at: Timestamp,
    /// When it last changed.
    pub updated_at: Timestamp,
}

impl Account {
    /// As it is written down when somebody changes it.
    pub fn facts(&self) -> Value {
        let Credits { held, reserved, spent } = self.credits;
        json!({"credits": held, "reserved": reserved, "spent": spent, "costs": self.terms.costs,
            "budget": self.terms.budget, "organisation": self.terms.organisation})
    }
}

/// Changes of an account; everything else stays.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AccountChange {
    /// Held from now on, reserved ones included.
    pub set: Option<i64>,
    /// Added to what is held, or taken from it.
    pub add: i64,
    /// Prices by kind.
    pub costs: Option<BTreeMap<String, u32>>,
    /// The budget.
    pub budget: Option<Budget>,
    /// Of another one, or of none.
    pub organisation: Option<Option<String>>,
}

impl AccountChange {
    pub(crate) fn of(&self, name: &str, old: Option<&Account>, now: Timestamp) -> Account {
        let credits = old.map_or_else(Credits::default, |old| old.credits);
        let terms = old.map(|old| old.terms.clone()).unwrap_or_default();
        Account {
            name: name.to_owned(),
            credits: Credits { held: self.set.unwrap_or(credits.held).saturating_add(self.add), ..credits },
            terms: Terms {
                costs: self.costs.clone().unwrap_or(terms.costs),
                budget: self.budget.unwrap_or(terms.budget),
                organisation: self.organisation.clone().unwrap_or(terms.organisation),
            },
            created_at: old.map_or(now, |old| old.created_at),
            updated_at: now,
        }
    }
}

/// Why nothing was reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unfunded {
    /// Credits that were needed.
    pub required: i64,
    /// Credits that were left.
    pub available: i64,
}

/// The answer to the deletion of an account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closed {
    Gone,
    NotFound,
    /// Open tasks have reserved so much of it.
    InUse(i64),
}

/// Credits that tasks move in accounts, summed up: by namespace and name, in that order for everybody.
#[derive(Debug, Default)]
pub struct Moves(BTreeMap<(i32, String), Sum>);

#[derive(Clone, Copy, Debug, Default)]
pub struct Sum {
    pub reserve: i64,
    pub spend: i64,
    pub release: i64,
}

impl Moves {
    pub fn add(&mut self, namespace: i32, account: &str, what: Move, cost: i64) {
        let sum = self.0.entry((namespace, account.to_owned())).or_default();
        *match what {
            Move::Reserve => &mut sum.reserve,
            Move::Spend => &mut sum.spend,
            Move::Release => &mut sum.release,
        } += cost;
    }

    /// Whether nothing is new.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = (i32, &str, Sum)> {
        self.0.iter().map(|((namespace, name), sum)| (*namespace, name.as_str(), *sum))
    }
}

/// The account of a task, from its body.
pub fn cost_of(id: TaskId, account: Option<String>, cost: Option<i64>) -> Result<(String, i64), StoreError> {
    account.zip(cost).ok_or_else(|| corrupt(format!("task {id} has an account without a name or a cost")))
}

pub fn terms_to_json(terms: &Terms) -> String {
    serde_json::to_string(terms).unwrap_or_default()
}

pub fn terms_from_json(text: &str) -> Result<Terms, StoreError> {
    serde_json::from_str(text).map_err(|error| corrupt(format!("the terms of an account: {error}")))
}
