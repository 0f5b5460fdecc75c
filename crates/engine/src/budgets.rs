//! The budgets of accounts, as they are looked at before verdicts are taken. Tasks without an account have none, and nothing is
//! looked up for them.

use std::collections::HashMap;

use comeback_core::budget::{self, Booking, BudgetView};
use comeback_core::{Task, TaskId, Timestamp, Transition, Verdict};
use comeback_store::{Account, StoreError, Stored};

use crate::Core;
use crate::dependencies::LoadedDependencies;
use crate::pipeline::{ChangeRequest, TaskChange};

/// The accounts of the tasks of one batch of decisions.
#[derive(Clone, Default)]
pub(crate) struct Budgets {
    views: HashMap<(String, String), BudgetView>,
    tasks: HashMap<TaskId, Paid>,
    pub guarded: LoadedDependencies,
}

/// Payers of a task: its account, then the organisation of the account.
#[derive(Clone)]
struct Paid {
    by: Vec<(String, String)>,
    cost: u32,
}

impl Budgets {
    /// Budgets that limit the retries of a task.
    pub fn of(&self, task: &Task) -> Vec<BudgetView> {
        let Some(paid) = self.tasks.get(&task.id) else { return Vec::new() };
        let views = paid.by.iter().filter_map(|account| self.views.get(account));
        views.map(|view| BudgetView { cost: paid.cost, ..view.clone() }).collect()
    }

    /// Books a retry that was just decided, so that the next decision sees it.
    pub fn book(&mut self, change: &Transition) -> Vec<Booking> {
        self.guarded.book(change);
        let retries = change.record().decision.as_ref().is_some_and(|decision| decision.verdict == Verdict::Retry);
        let views = if retries { self.of(change.after()) } else { Vec::new() };
        let bookings = budget::bookings(&views, change.after());
        for booking in &bookings {
            if let Some(view) = self.views.get_mut(&(booking.namespace.clone(), booking.account.clone())) {
                view.book(booking);
            }
        }
        bookings
    }
}

impl Core {
    /// Loads the budgets and dependencies that the decisions on these requests need.
    pub(crate) async fn budgets(
        &self,
        requests: &[(usize, ChangeRequest)],
        now: Timestamp,
    ) -> Result<Budgets, StoreError> {
        let mut budgets = Budgets { guarded: self.guarded(requests).await?, ..Budgets::default() };
        for (_, request) in requests {
            if let (TaskChange::End(_), Some(stored)) = (&request.change, request.stored())
                && stored.task.metered
            {
                self.look_at_budget(stored, now, &mut budgets).await?;
            }
        }
        Ok(budgets)
    }

    async fn look_at_budget(&self, stored: &Stored, now: Timestamp, into: &mut Budgets) -> Result<(), StoreError> {
        let (namespace, id) = (stored.task.lane.namespace.clone(), stored.task.id);
        let body = self.store.task(&namespace, id).await?.map(|view| view.body);
        let Some((account, cost)) = body.and_then(|body| body.account.zip(body.cost)) else { return Ok(()) };
        let mut by = vec![(namespace.clone(), account.clone())];
        if let Some(found) = self.store.account(&namespace, &account).await? {
            by.extend(found.terms.organisation.clone().map(|organisation| (namespace.clone(), organisation)));
            self.look_at_account(&namespace, found, now, into).await?;
        }
        if let Some((_, organisation)) = by.get(1)
            && let Some(found) = self.store.account(&namespace, organisation).await?
        {
            self.look_at_account(&namespace, found, now, into).await?;
        }
        into.tasks.insert(id, Paid { by, cost });
        Ok(())
    }

    async fn look_at_account(
        &self,
        namespace: &str,
        it: Account,
        now: Timestamp,
        into: &mut Budgets,
    ) -> Result<(), StoreError> {
        let key = (namespace.to_owned(), it.name.clone());
        if it.terms.budget.is_none() || into.views.contains_key(&key) {
            return Ok(());
        }
        let booked = self.store.booked(namespace, &it.name, &budget::month(now)).await?;
        let (namespace, account) = key.clone();
        into.views.insert(key, BudgetView { namespace, account, budget: it.terms.budget, booked, cost: 0 });
        Ok(())
    }
}
