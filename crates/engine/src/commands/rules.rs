//! Rules: how many of one sort may run at once. They are heeded by the store with every claim; here they are made and looked at.

use comeback_core::admission::{self, Admission, Rule};
use comeback_core::transition::Actor;
use comeback_core::{Audit, AuditAction, Invalid, Lane, Quota, QuotaExceeded, State, Task, Timestamp, dependency};
use serde_json::json;

use crate::dependencies;
use crate::{CommandError, Core, Engine};

/// The first letter of opt-in rules. Callers may not use it.
pub const CARRIED: char = '~';

/// A rule, its limits and their use, per value of its key.
#[derive(Clone, Debug)]
pub struct RuleView {
    /// The rule.
    pub rule: Rule,
    /// Use of its limits, per value of its key.
    pub used: Vec<(admission::Key, admission::Used)>,
}

impl Engine {
    /// The rules of a namespace by name, without those that tasks brought along.
    pub async fn rules(&self, namespace: &str) -> Result<Vec<RuleView>, CommandError> {
        let store = &self.core.store;
        let rules = store.rules(namespace).await?;
        let used = store.in_use(namespace).await?;
        let own = rules.into_iter().filter(|rule| !rule.carried && !rule.is_guard());
        let view = |rule: Rule| {
            let used = used.iter().filter(|(key, _)| key.rule == rule.name).cloned().collect();
            RuleView { rule, used }
        };
        Ok(own.map(view).collect())
    }

    /// One rule with its use.
    pub async fn rule(&self, namespace: &str, name: &str) -> Result<RuleView, CommandError> {
        let found = self.rules(namespace).await?.into_iter().find(|view| view.rule.name == name);
        found.ok_or(CommandError::NotFound("rule"))
    }

    /// Makes a rule or changes it. When this returns, every open task is under it.
    pub async fn put_rule(&self, namespace: &str, rule: Rule, act: &Actor) -> Result<(), CommandError> {
        let limits = &self.core.config.limits;
        let mut faults = rule.check();
        limits.check_namespace(namespace, &mut faults);
        limits.check_name("name", &rule.name, &mut faults);
        if rule.name.starts_with([CARRIED, admission::GUARD]) || rule.carried {
            faults.push("name", format!("may not begin with {CARRIED} or {}", admission::GUARD));
        }
        limits.check_labels("match.", &rule.matcher.labels, &mut faults);
        let named = [("match.queue", &rule.matcher.queue), ("match.kind", &rule.matcher.kind)];
        for (path, name) in named.into_iter().filter_map(|(path, name)| Some((path, name.as_ref()?))) {
            limits.check_name(path, name, &mut faults);
        }
        faults.or(())?;
        limits.check_act(act)?;
        let entry = self.entry(AuditAction::RulePut, &rule.name, act).within(namespace);
        let entry = entry.changed(None, serde_json::to_value(&rule).ok());
        self.put_rules(namespace, vec![rule], Some(&entry)).await
    }

    /// Rules that tasks bring along: they are there before the tasks are. Answers their names.
    pub async fn carried_rules(&self, namespace: &str, rules: Vec<Rule>) -> Result<Vec<String>, CommandError> {
        let names = rules.iter().map(|rule| rule.name.clone()).collect();
        let known = self.core.store.rules(namespace).await?;
        let new: Vec<Rule> = rules.into_iter().filter(|rule| !known.contains(rule)).collect();
        if !new.is_empty() {
            self.put_rules(namespace, new, None).await?;
        }
        Ok(names)
    }

    async fn put_rules(&self, namespace: &str, rules: Vec<Rule>, audit: Option<&Audit>) -> Result<(), CommandError> {
        if !self.has_room_for(namespace, &rules).await? {
            self.forget_carried_rules(namespace).await?;
            if !self.has_room_for(namespace, &rules).await? {
                let most = self.config().quotas.get(Quota::Rules);
                return Err(QuotaExceeded { quota: Quota::Rules, namespace: namespace.to_owned(), most }.into());
            }
        }
        for rule in &rules {
            self.core.store.put_rule(namespace, rule, audit, self.now()).await?;
        }
        self.core.settle_rules().await?;
        Ok(())
    }

    async fn has_room_for(&self, namespace: &str, rules: &[Rule]) -> Result<bool, CommandError> {
        let known = self.core.store.rules(namespace).await?;
        let most = usize::try_from(self.config().quotas.get(Quota::Rules)).unwrap_or(usize::MAX);
        let has_room = |carried: bool| {
            let sort = |rule: &&Rule| rule.carried == carried && !rule.is_guard();
            let is_new = |rule: &&Rule| known.iter().all(|other| other.name != rule.name);
            known.iter().filter(sort).count() + rules.iter().filter(sort).filter(is_new).count() <= most
        };
        Ok(has_room(false) && has_room(true))
    }

    /// Deletes opt-in rules without open tasks. A task that is reopened later is not under them.
    async fn forget_carried_rules(&self, namespace: &str) -> Result<(), CommandError> {
        self.core.settle_rules().await?;
        let known = self.core.store.rules(namespace).await?;
        let carried: Vec<String> = known.into_iter().filter(|rule| rule.carried).map(|rule| rule.name).collect();
        if self.core.store.delete_unused_rules(namespace, &carried).await?.is_some() {
            self.core.settle_rules().await?;
        }
        Ok(())
    }

    /// Deletes a rule.
    pub async fn delete_rule(&self, namespace: &str, name: &str, act: &Actor) -> Result<(), CommandError> {
        // No database need be asked for what can be no name.
        let mut faults = Invalid::default();
        self.core.config.limits.check_name("name", name, &mut faults);
        let is_one = faults.is_empty() && !name.starts_with([CARRIED, admission::GUARD]);
        let entry = self.entry(AuditAction::RuleDelete, name, act).within(namespace);
        if !is_one || self.core.store.delete_rule(namespace, name, Some(&entry)).await?.is_none() {
            return Err(CommandError::NotFound("rule"));
        }
        self.core.settle_rules().await?;
        Ok(())
    }

    /// The rules that the open tasks of a kind in an execution carry from now on; answers how many those are.
    pub async fn attach_rules(
        &self,
        namespace: &str,
        id: comeback_core::ExecutionId,
        kind: &str,
        rules: Vec<Rule>,
        act: &Actor,
    ) -> Result<u64, CommandError> {
        if self.core.store.execution(namespace, id).await?.is_none() {
            return Err(CommandError::NotFound("execution"));
        }
        let names = self.carried_rules(namespace, rules).await?;
        let changed = self.core.store.attach_rules(id, kind, &names).await?;
        self.core.rules_changed();
        let entry = self.entry(AuditAction::RuleCarry, id.to_string(), act).within(namespace);
        let after = json!({"kind": kind, "rules": names, "tasks": changed});
        self.note(&entry.changed(None, Some(after))).await?;
        Ok(changed)
    }

    /// Running tasks under the rules of a namespace.
    pub async fn admission(&self, namespace: &str) -> Result<Admission, CommandError> {
        let rules = self.core.store.rules(namespace).await?;
        let mut admission = Admission::new(&rules);
        admission.set_used(self.core.store.in_use(namespace).await?);
        if rules.iter().any(Rule::is_guard) {
            let now = self.now();
            for it in self.core.store.dependencies(namespace, "", u32::MAX >> 1).await? {
                admission.guard(&it.name, it.standing.allowance(&it.settings, now));
            }
        }
        Ok(admission)
    }

    /// The rule or the dependency that keeps a task from starting now.
    pub async fn held_by_rule(&self, task: &Task) -> Result<Option<HeldBy>, CommandError> {
        Ok(self.held_by_rules(&task.lane.namespace, std::iter::once(task)).await?.pop().flatten())
    }

    /// The same for many of a namespace, in their order.
    pub async fn held_by_rules<'a>(
        &self,
        namespace: &str,
        tasks: impl Iterator<Item = &'a Task> + Send,
    ) -> Result<Vec<Option<HeldBy>>, CommandError> {
        let tasks: Vec<&Task> = tasks.collect();
        let admission = match tasks.iter().any(|task| may_be_held(task)) {
            true => Some(self.admission(namespace).await?),
            false => None,
        };
        let to_come = self.core.look_up(tasks.iter().copied().filter(|task| will_be_held(task))).await?;
        let now = self.now();
        let held = |task: &&Task| {
            let (words, until) = if will_be_held(task) {
                let (view, due) = (to_come.of(task)?, task.due()?);
                let (holder, until) = view.keeps(due.max(now))?;
                (dependency::held_words(holder, &view.name, Some(until)), Some(until))
            } else {
                let may_start = admission.as_ref()?.may_start(&task.lane.limits, admission::weight(&task.tally));
                let refusal = may_start.err().filter(|_| may_be_held(task))?;
                (refusal.to_string(), admission.as_ref()?.held_until(&refusal.key))
            };
            let until = until.map(|until| task.held_no_longer_than(until));
            Some(HeldBy { words, until: until.filter(|until| *until > now && *until < Timestamp::MAX) })
        };
        Ok(tasks.iter().map(held).collect())
    }
}

/// A rule or dependency that keeps a task from starting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldBy {
    /// The reason in words.
    pub words: String,
    /// Where it is known.
    pub until: Option<Timestamp>,
}

/// Whether it could start but for rules.
pub fn may_be_held(task: &Task) -> bool {
    !task.lane.limits.is_empty() && task.state == State::Pending && !task.execution_paused
}

/// Whether it waits for its own time, and its dependency may not let it start then.
fn will_be_held(task: &Task) -> bool {
    let waits = task.state == State::RetryPending && task.hold.is_none() && !task.execution_paused;
    waits && dependencies::names(&task.lane).next().is_some()
}

impl Core {
    /// Moves all tasks to where the rules want them.
    pub(crate) async fn settle_rules(&self) -> Result<(), comeback_store::StoreError> {
        while !self.store.settle_rules().await?.is_done {}
        self.rules_changed();
        Ok(())
    }

    /// Anybody may find something now.
    fn rules_changed(&self) {
        self.wake.everybody();
        self.store.notify();
    }

    /// A task of this lane has ended: wakes the workers that wait under the same rules.
    pub(crate) fn freed(&self, lane: &Lane) {
        let lanes = self.store.freed_by(lane);
        if lanes.is_empty() {
            return;
        }
        for lane in lanes {
            self.wake.work(&lane, 1);
        }
        self.store.notify();
    }
}
