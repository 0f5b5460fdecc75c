//! The budgets of accounts, as they are looked at before verdicts are taken. Tasks without an account have none, and nothing is
//! looked up for them.

use std::collections::HashMap;

use comeback_core::budget::{self, Booking, BudgetView};
use comeback_core::{Task, TaskId, Timestamp, Transition, Verdict};
use comeback_store::{StoreError, Stored};

use crate::Core;
use crate::guards::Guarded;
use crate::road::{Verb, Wish};

/// The accounts of the tasks that are decided about at one moment.
#[derive(Clone, Default)]
pub(crate) struct Budgets {
    views: HashMap<(String, String), BudgetView>,
    tasks: HashMap<TaskId, (String, String, u32)>,
    pub guarded: Guarded,
}

impl Budgets {
    /// What limits the retries of a task.
    pub fn of(&self, task: &Task) -> Option<BudgetView> {
        let (namespace, account, cost) = self.tasks.get(&task.id)?;
        let view = self.views.get(&(namespace.clone(), account.clone()))?;
        Some(BudgetView { cost: *cost, ..view.clone() })
    }

    /// A retry that was just decided; the next of the same account finds it booked.
    pub fn book(&mut self, change: &Transition) -> Option<Booking> {
        self.guarded.book(change);
        let retries = change.record().decision.as_ref().is_some_and(|decision| decision.verdict == Verdict::Retry);
        let view = self.of(change.after()).filter(|_| retries)?;
        let booking = view.booking(change.after())?;
        self.views.get_mut(&(view.namespace, view.account))?.book(&booking);
        Some(booking)
    }
}

impl Core {
    pub(crate) async fn budgets(&self, wishes: &[(usize, Wish)], now: Timestamp) -> Result<Budgets, StoreError> {
        let mut budgets = Budgets { guarded: self.guarded(wishes).await?, ..Budgets::default() };
        for (_, wish) in wishes {
            if let (Verb::End(_), Some(stored)) = (&wish.verb, &wish.seen)
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
        let key = (namespace.clone(), account.clone());
        if !into.views.contains_key(&key)
            && let Some(found) = self.store.account(&namespace, &account).await?
            && !found.terms.budget.is_none()
        {
            let booked = self.store.booked(&namespace, &account, &budget::month(now)).await?;
            let (namespace, account) = key.clone();
            let view = BudgetView { namespace, account, budget: found.terms.budget, booked, cost };
            into.views.insert(key, view);
        }
        into.tasks.insert(id, (namespace, account, cost));
        Ok(())
    }
}
