//! Dependencies: made, looked at, and turned by hand. What they hold back is decided in the core and heeded by the store.

use comeback_core::admission::Rule;
use comeback_core::dependency::{Change, Maintenance, Settings, stopped};
use comeback_core::filter::{Filter, Sort, StateTest, Term, Test};
use comeback_core::transition::Actor;
use comeback_core::{AuditAction, Invalid, Millis, Task, Timestamp};
use comeback_store::{Behalf, Dependency, ListQuery, Stored};

use crate::dependencies;
use crate::pipeline::{ChangeRequest, TaskChange};
use crate::{CommandError, Engine};

/// In one namespace.
const MOST_DEPENDENCIES: usize = 1_000;
const MOST_MAINTENANCE: usize = 100;
/// Tasks looked at in one go.
const PAGE: u32 = 500;
/// How often a change by hand is tried again that others were faster with.
const TRIES: usize = 32;

/// Operator override of a dependency.
#[derive(Clone, Debug, PartialEq)]
pub enum DependencyCommand {
    /// Opens the breaker for this long, or until it is closed: no task starts.
    Open { lasts: Option<Millis> },
    /// Everything may start; for so long whatever happens.
    Close { lasts: Option<Millis> },
    /// It is known to be well again: those who wait follow in waves.
    Healthy,
    /// No task starts between two instants.
    Maintenance { from: Timestamp, to: Timestamp },
}

/// A dependency, and what runs of it.
#[derive(Clone, Debug)]
pub struct DependencyView {
    /// The stored row.
    pub dependency: Dependency,
    /// Running tasks under it.
    pub running: u64,
}

impl Engine {
    /// One dependency.
    pub async fn dependency(&self, namespace: &str, name: &str) -> Result<DependencyView, CommandError> {
        let found = self.core.store.dependency(namespace, name).await?;
        let found = self.as_it_is_now(found.ok_or(CommandError::NotFound("dependency"))?);
        Ok(self.views(namespace, vec![found]).await?.remove(0))
    }

    /// Behind `after`, by name.
    pub async fn dependencies(
        &self,
        namespace: &str,
        after: &str,
        limit: u32,
    ) -> Result<Vec<DependencyView>, CommandError> {
        let found = self.core.store.dependencies(namespace, after, limit).await?;
        let found = found.into_iter().map(|it| self.as_it_is_now(it)).collect();
        self.views(namespace, found).await
    }

    fn as_it_is_now(&self, mut it: Dependency) -> Dependency {
        it.standing.advance(&it.settings, self.now());
        it
    }

    async fn views(&self, namespace: &str, found: Vec<Dependency>) -> Result<Vec<DependencyView>, CommandError> {
        let used = self.core.store.in_use(namespace).await?;
        let running = |name: &str| {
            let its = used.iter().filter(|(key, _)| key.dependency() == Some(name));
            its.map(|(_, used)| used.running).sum()
        };
        Ok(found.into_iter().map(|it| DependencyView { running: running(&it.name), dependency: it }).collect())
    }

    /// Makes a dependency or changes what is asked of it; how it stands stays. When this returns, every open task that needs it is
    /// under it.
    pub async fn put_dependency(
        &self,
        namespace: &str,
        name: &str,
        settings: Settings,
        act: &Actor,
    ) -> Result<DependencyView, CommandError> {
        let limits = &self.core.config.limits;
        let mut faults = settings.check();
        limits.check_namespace(namespace, &mut faults);
        limits.check_name("name", name, &mut faults);
        faults.or(())?;
        limits.check_act(act)?;
        // Its rule first: without the dependency it holds no task, and no dependency is ever without its rule.
        self.check_room(namespace, name).await?;
        self.core.store.put_rule(namespace, &Rule::guarding(name), None, self.now()).await?;
        self.core.settle_rules().await?;
        for _ in 0..TRIES {
            let now = self.now();
            let known = self.core.store.dependency(namespace, name).await?;
            let mut it = known.unwrap_or_else(|| Dependency::new(namespace, name, settings.clone(), now));
            let before = it.standing.clone();
            it.settings = settings.clone();
            it.standing.advance(&it.settings, now);
            let entry =
                self.entry(AuditAction::DependencyPut, name, act).within(namespace).changed(None, Some(it.facts()));
            if self.core.store.put_dependency(&it, Some(&entry), now).await? {
                self.core.told_of(&before, &it);
                return self.dependency(namespace, name).await;
            }
        }
        Err(CommandError::Conflict)
    }

    async fn check_room(&self, namespace: &str, name: &str) -> Result<(), CommandError> {
        let (rules, own) = (self.core.store.rules(namespace).await?, Rule::guarding(name).name);
        let others = rules.iter().filter(|rule| rule.is_guard() && rule.name != own).count();
        if others >= MOST_DEPENDENCIES {
            let words = format!("a namespace has {MOST_DEPENDENCIES} dependencies at most");
            return Err(Invalid::one("name", words).into());
        }
        Ok(())
    }

    /// Deletes a dependency.
    pub async fn delete_dependency(&self, namespace: &str, name: &str, act: &Actor) -> Result<(), CommandError> {
        let entry = self.entry(AuditAction::DependencyDelete, name, act).within(namespace);
        if !self.core.store.delete_dependency(namespace, name, Some(&entry)).await? {
            return Err(CommandError::NotFound("dependency"));
        }
        self.core.store.delete_rule(namespace, &Rule::guarding(name).name, None).await?;
        self.core.settle_rules().await?;
        Ok(())
    }

    /// Turns it by hand. That always wins over what it would do by itself.
    pub async fn override_dependency(
        &self,
        namespace: &str,
        name: &str,
        command: &DependencyCommand,
        act: &Actor,
    ) -> Result<DependencyView, CommandError> {
        self.core.config.limits.check_act(act)?;
        for _ in 0..TRIES {
            let now = self.now();
            let known = self.core.store.dependency(namespace, name).await?;
            let before = known.ok_or(CommandError::NotFound("dependency"))?;
            let mut it = before.clone();
            let did = apply_command(&mut it, command, act, now)?;
            let entry = self.entry(did, name, act).within(namespace).changed(None, Some(it.facts()));
            let stopped = match command {
                DependencyCommand::Maintenance { from, to } => stopped(&before.standing.maintenance, *from, *to, now),
                _ => None,
            };
            if self.core.store.announce(&it, stopped, Some(&entry), now).await? {
                self.core.told_of(&before.standing, &it);
                if matches!(command, DependencyCommand::Close { .. } | DependencyCommand::Healthy) {
                    self.clear_holds(namespace, name, act).await?;
                }
                return self.dependency(namespace, name).await;
            }
        }
        Err(CommandError::Conflict)
    }

    /// Clears the holds of its retries: they come at their own time again.
    async fn clear_holds(&self, namespace: &str, name: &str, act: &Actor) -> Result<(), CommandError> {
        let filter = Filter { terms: vec![Term { negated: false, test: Test::State(vec![StateTest::Held]) }] };
        let mut query = ListQuery { filter, sort: Sort::Submitted, limit: PAGE, after: None, now: self.now() };
        loop {
            let page = self.core.store.list(namespace, &query).await?;
            let by_it = |task: &Task| {
                let held = task.hold.as_ref().is_some_and(|hold| hold.reason.ends_with(&format!(" {name}")));
                held && dependencies::names(&task.lane).any(|it| it.1 == name)
            };
            let held = page.items.into_iter().map(|it| it.stored).filter(|it| by_it(&it.task));
            let clear = |it: Stored| ChangeRequest::of(it.task.id, TaskChange::ClearHold(act.clone()));
            self.core.apply_changes(held.map(clear).collect(), Behalf::Caller).await?;
            let Some(next) = page.next else { return Ok(()) };
            query.after = Some(next);
        }
    }

    /// How often this process brought each change about.
    pub fn dependency_changes(&self) -> Vec<(Change, u64)> {
        self.core.dependencies.changes()
    }
}

fn apply_command(
    it: &mut Dependency,
    command: &DependencyCommand,
    act: &Actor,
    now: Timestamp,
) -> Result<AuditAction, CommandError> {
    let words = |usual: &str| match (&act.by, &act.note) {
        (_, Some(note)) => note.clone(),
        (Some(by), None) => format!("{usual} by {by}"),
        (None, None) => usual.to_owned(),
    };
    let (settings, standing) = (&it.settings, &mut it.standing);
    Ok(match command {
        DependencyCommand::Open { lasts } => {
            standing.open_by_hand(lasts.map(|span| now + span), &words("opened"), now);
            AuditAction::DependencyOpen
        }
        DependencyCommand::Close { lasts } => {
            standing.close_by_hand(lasts.map(|span| now + span), &words("closed"), now);
            AuditAction::DependencyClose
        }
        DependencyCommand::Healthy => {
            standing.healthy(settings, &words("said to be well"), now);
            AuditAction::DependencyHealthy
        }
        DependencyCommand::Maintenance { from, to } => {
            let mut faults = Invalid::default();
            if to <= from {
                faults.push("to", "must be after from");
            }
            if *to <= now {
                faults.push("to", "is over already");
            }
            if standing.maintenance.len() >= MOST_MAINTENANCE {
                faults.push("from", format!("at most {MOST_MAINTENANCE} are remembered"));
            }
            faults.or(())?;
            standing.announce(Maintenance { from: *from, to: *to, note: act.note.clone() }, now);
            AuditAction::DependencyMaintenance
        }
    })
}
