//! Describe: a task gets other labels, becomes more or less urgent, or is retried otherwise.

use std::collections::BTreeMap;
use std::sync::Arc;

use comeback_core::transition::Actor;
use comeback_core::{Audit, AuditAction, Invalid, Policy, Reporter, TaskId};
use comeback_store::Description;
use serde_json::json;

use crate::spec::priority_fault;
use crate::{CommandError, Engine};

/// New descriptive fields of a task.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Describe {
    /// Labels to set, or to remove if `None`; the others stay.
    pub labels: BTreeMap<String, Option<String>>,
    /// New priority.
    pub priority: Option<i16>,
    /// From its next failure on, or from its next retry where it is over. When it is due next stays as it is, and so do its timeout and
    /// its deadline.
    pub retry: Option<Option<Arc<Policy>>>,
}

impl Describe {
    /// Whether it changes no field.
    pub fn is_nothing(&self) -> bool {
        *self == Describe::default()
    }
}

/// Others may describe the same task at the same moment.
const TRIES: u32 = 20;

impl Engine {
    /// Labels may be given to any task, and how urgent one is matters as long as it is open. A fence of another run is refused.
    pub async fn describe(
        &self,
        namespace: &str,
        task: TaskId,
        fence: Reporter,
        wanted: &Describe,
        act: &Actor,
    ) -> Result<(), CommandError> {
        if let Some(fault) = wanted.priority.and_then(|priority| priority_fault(priority.into())) {
            return Err(Invalid::one("priority", fault).into());
        }
        for _ in 0..TRIES {
            let stored = self.find(namespace, task).await?;
            let (seen, policy, is_hard) = (stored.task, stored.policy, stored.hard_deadline);
            if let Some(name) = wanted.retry.iter().flatten().find_map(|policy| policy.unlike(&seen, is_hard)) {
                let fault = "is what a task was submitted with; leave it out here";
                return Err(Invalid::one(format!("retry.{name}"), fault).into());
            }
            if !seen.is_meant_by(fence) {
                return Err(CommandError::LeaseLost);
            }
            if wanted.priority.is_some() && seen.state.is_terminal() {
                return Err(CommandError::WrongState { state: seen.state, verb: "made more or less urgent" });
            }
            let view = self.core.store.task(namespace, task).await?.ok_or(CommandError::NotFound("task"))?;
            let before = view.body.labels;
            let after = self.relabelled(&before, &wanted.labels)?;
            let change = Description {
                labels: (before != after).then(|| (before.clone(), after.clone())),
                priority: wanted.priority.filter(|priority| *priority != seen.priority),
                retry: wanted.retry.clone().filter(|retry| *retry != policy),
            };
            if change == Description::default() {
                return Ok(());
            }
            let now = self.now();
            let told = |labels: &BTreeMap<String, String>, priority: i16, policy: &Option<Arc<Policy>>| {
                let mut facts = json!({"labels": labels, "priority": priority});
                if change.retry.is_some() {
                    facts["retry"] = policy.as_ref().map_or(json!(false), |policy| policy.to_json());
                }
                Some(facts)
            };
            let entry = Audit::new(self.core.ids.act(now), now, AuditAction::TaskDescribe, task.to_string(), act)
                .within(namespace)
                .changed(
                    told(&before, seen.priority, &policy),
                    told(&after, wanted.priority.unwrap_or(seen.priority), wanted.retry.as_ref().unwrap_or(&policy)),
                );
            if self.core.store.describe(task, &change, Some(&entry), now).await? {
                self.core.freed(&seen.lane);
                return Ok(());
            }
        }
        Err(CommandError::Conflict)
    }

    fn relabelled(
        &self,
        before: &BTreeMap<String, String>,
        wanted: &BTreeMap<String, Option<String>>,
    ) -> Result<BTreeMap<String, String>, Invalid> {
        let mut labels = before.clone();
        for (name, value) in wanted {
            match value {
                Some(value) => labels.insert(name.clone(), value.clone()),
                None => labels.remove(name),
            };
        }
        let mut faults = Invalid::default();
        self.core.config.limits.check_labels("", &labels, &mut faults);
        faults.or(labels)
    }
}
