//! Accounts: made, looked at, and asked what a task costs before it is stored.

use std::collections::BTreeMap;

use comeback_core::account::{MOST_COST, MOST_CREDITS, Terms};
use comeback_core::transition::Actor;
use comeback_core::{AuditAction, Invalid};
use comeback_store::{Account, AccountChange, Closed};

use crate::{CommandError, Core, Engine, Submit};

impl Engine {
    /// One account.
    pub async fn account(&self, namespace: &str, name: &str) -> Result<Account, CommandError> {
        self.core.store.account(namespace, name).await?.ok_or(CommandError::NotFound("account"))
    }

    /// Behind `after`, by name.
    pub async fn accounts(&self, namespace: &str, after: &str, limit: u32) -> Result<Vec<Account>, CommandError> {
        Ok(self.core.store.accounts(namespace, after, limit).await?)
    }

    /// Makes an account or changes it. What its open tasks have reserved stays so.
    pub async fn put_account(
        &self,
        namespace: &str,
        name: &str,
        change: AccountChange,
        act: &Actor,
    ) -> Result<Account, CommandError> {
        let limits = &self.core.config.limits;
        let costs = change.costs.clone().unwrap_or_default();
        let mut faults = Terms { costs, budget: change.budget.unwrap_or_default(), organisation: None }.check();
        limits.check_namespace(namespace, &mut faults);
        limits.check_name("name", name, &mut faults);
        for kind in change.costs.iter().flat_map(BTreeMap::keys) {
            limits.check_name("costs", kind, &mut faults);
        }
        for (path, credits) in [("credits", change.set.unwrap_or(0)), ("add", change.add)] {
            if credits.abs() > MOST_CREDITS {
                faults.push(path, format!("may be {MOST_CREDITS} at most"));
            }
        }
        if let Some(Some(organisation)) = &change.organisation {
            limits.check_name("organisation", organisation, &mut faults);
            if organisation == name {
                faults.push("organisation", "must be another account");
            }
        }
        faults.or(())?;
        limits.check_act(act)?;
        if let Some(Some(organisation)) = &change.organisation
            && self.core.store.account(namespace, organisation).await?.is_none()
        {
            return Err(Invalid::one("organisation", format!("there is no account `{organisation}`")).into());
        }
        let entry = self.entry(AuditAction::AccountPut, name, act).within(namespace);
        Ok(self.core.store.put_account(namespace, name, &change, Some(&entry), self.now()).await?)
    }

    /// Deletes an account without reserved credits.
    pub async fn delete_account(&self, namespace: &str, name: &str, act: &Actor) -> Result<(), CommandError> {
        let entry = self.entry(AuditAction::AccountDelete, name, act).within(namespace);
        match self.core.store.delete_account(namespace, name, Some(&entry)).await? {
            Closed::Gone => Ok(()),
            Closed::NotFound => Err(CommandError::NotFound("account")),
            Closed::InUse(reserved) => Err(CommandError::AccountInUse(reserved)),
        }
    }
}

impl Core {
    /// The same request with what each of its tasks costs. An account must be there; whether it holds enough is found out when
    /// the tasks are stored.
    pub(crate) async fn priced(&self, mut submit: Submit) -> Result<Submit, CommandError> {
        let mut faults = Invalid::default();
        let mut known: BTreeMap<String, Option<Account>> = BTreeMap::new();
        let count = submit.tasks.len();
        for (i, spec) in submit.tasks.iter_mut().enumerate() {
            let at = |field: &str| if count == 1 { field.to_owned() } else { format!("tasks[{i}].{field}") };
            let Some(name) = &spec.account else {
                if spec.cost.is_some() {
                    faults.push(at("cost"), "belongs to an `account`");
                }
                continue;
            };
            if spec.cost.is_some_and(|cost| cost > MOST_COST) {
                faults.push(at("cost"), format!("may be {MOST_COST} at most"));
            }
            let mut checked = Invalid::default();
            self.config.limits.check_name(&at("account"), name, &mut checked);
            if !checked.is_empty() {
                faults.absorb("", checked);
                continue;
            }
            if !known.contains_key(name) {
                known.insert(name.clone(), self.store.account(&submit.namespace, name).await?);
            }
            match known.get(name).and_then(Option::as_ref) {
                Some(account) => spec.cost = Some(account.terms.cost(&spec.kind, spec.cost)),
                None => faults.push(at("account"), format!("there is no account `{name}`")),
            }
        }
        faults.or(())?;
        Ok(submit)
    }
}
