//! Schedules: put, look at, pause, resume, trigger and delete.

use std::collections::BTreeMap;

use comeback_core::schedule::Calendar;
use comeback_core::transition::Actor;
use comeback_core::workflow::WorkflowState;
use comeback_core::{Audit, AuditAction, Invalid, Timestamp};
use comeback_store::{Applied, FiredBy, Firing, Loop, Resource, ResourceKind, StoreError};
use serde_json::Value;

use crate::schedules::{Run, ScheduleSpec, ScheduleState, ScheduleView, Starts, read, text};
use crate::{CommandError, Core, Engine};

/// Attempts if others change the same schedule at the same time; its loop does so at every instant.
const ROUNDS: u32 = 20;

const PAGE: u32 = 500;

impl Engine {
    /// A new schedule. Instants before now are none of its business.
    pub async fn create_schedule(
        &self,
        namespace: &str,
        name: &str,
        spec: ScheduleSpec,
        act: &Actor,
    ) -> Result<ScheduleView, CommandError> {
        let core = &self.core;
        core.config.limits.check_act(act)?;
        let now = core.clock.now();
        let (spec, calendar) = core.checked(namespace, name, spec, now).await?;
        let standing = ScheduleState { settled: now, ..ScheduleState::default() };
        let row = Resource {
            sort: ResourceKind::Schedules,
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            version: 0,
            due: due(&spec, &standing, &calendar),
            body: text(&spec),
            standing: text(&standing),
            created_at: now,
            updated_at: now,
        };
        let entry = self.entry(AuditAction::SchedulePut, name, act).within(namespace);
        let entry = entry.changed(None, Some(facts(&row)));
        match core.put_row(&row, &entry, now).await? {
            true => core.shown(&row, now).await,
            false => Err(CommandError::NameTaken("schedule")),
        }
    }

    /// In place of the one there is, or new. What the old one has dealt with stays so as long as both name the same instants;
    /// otherwise the new one begins now. The answer says whether it is new.
    pub async fn replace_schedule(
        &self,
        namespace: &str,
        name: &str,
        spec: ScheduleSpec,
        act: &Actor,
    ) -> Result<(ScheduleView, bool), CommandError> {
        self.core.config.limits.check_act(act)?;
        for _ in 0..ROUNDS {
            match self.change_schedule(namespace, name, (AuditAction::SchedulePut, act), |_| Some(spec.clone())).await {
                Ok(view) => return Ok((view, false)),
                Err(CommandError::NotFound(_)) => {}
                Err(error) => return Err(error),
            }
            match self.create_schedule(namespace, name, spec.clone(), act).await {
                Err(CommandError::NameTaken(_)) => {}
                answer => return answer.map(|view| (view, true)),
            }
        }
        Err(CommandError::Conflict)
    }

    /// Pauses a schedule: its instants pass until it is resumed.
    pub async fn pause_schedule(&self, namespace: &str, name: &str, act: Actor) -> Result<ScheduleView, CommandError> {
        self.core.config.limits.check_act(&act)?;
        let paused = |old: Option<_>| old.map(|spec| ScheduleSpec { paused: true, note: act.note.clone(), ..spec });
        self.change_schedule(namespace, name, (AuditAction::SchedulePause, &act), paused).await
    }

    /// Resumes a schedule; missed instants are not caught up.
    pub async fn resume_schedule(&self, namespace: &str, name: &str, act: Actor) -> Result<ScheduleView, CommandError> {
        self.core.config.limits.check_act(&act)?;
        let resumed = |old: Option<_>| old.map(|spec| ScheduleSpec { paused: false, note: act.note.clone(), ..spec });
        self.change_schedule(namespace, name, (AuditAction::ScheduleResume, &act), resumed).await
    }

    /// Starts now what its instants start, whether it is paused or not. Its instants stay as they are.
    pub async fn trigger_schedule(&self, namespace: &str, name: &str, act: &Actor) -> Result<Run, CommandError> {
        let core = &self.core;
        core.config.limits.check_act(act)?;
        for _ in 0..ROUNDS {
            let row = core.row(namespace, name).await?;
            let (spec, standing) = understood(&row)?;
            if let Some(path) = spec.starts.workflow() {
                core.must_be_active(namespace, path).await?;
            }
            let now = core.clock.now();
            let firing = Firing { schedule: name.to_owned(), at: now, by: FiredBy::Manual };
            let prepared = core.prepare_run(namespace, &spec, &firing, None, now).await?;
            let standing = ScheduleState { last_manual_run: Some(prepared.run.clone()), ..standing };
            let row = Resource { standing: text(&standing), ..row };
            let entry = self.entry(AuditAction::ScheduleTrigger, name, act).within(namespace);
            let run = serde_json::to_value(&prepared.run).unwrap_or_default();
            let entry = entry.changed(None, Some(run.clone())).answered(run);
            if core.store.put_follower(&row, Some(&prepared.start), None, Some(&entry), now).await? == Applied::Done {
                core.tell_fired(&prepared.start);
                return Ok(prepared.run);
            }
        }
        Err(CommandError::Conflict)
    }

    /// One schedule.
    pub async fn schedule(&self, namespace: &str, name: &str) -> Result<ScheduleView, CommandError> {
        let row = self.core.row(namespace, name).await?;
        self.core.shown(&row, self.now()).await
    }

    /// Behind `after`, by name.
    pub async fn schedules(&self, namespace: &str, after: &str, limit: u32) -> Result<Vec<ScheduleView>, CommandError> {
        let rows = self.core.store.followers(ResourceKind::Schedules, namespace, after, limit).await?;
        let (mut views, mut workflows) = (Vec::with_capacity(rows.len()), Workflows::default());
        for row in &rows {
            match ScheduleView::of(row, self.now()) {
                Ok(view) => {
                    let state = workflows.state(&self.core, namespace, &view.spec.starts).await?;
                    views.push(view.following(state));
                }
                Err(error) => tracing::error!(schedule = row.name, %error, "cannot decode schedule"),
            }
        }
        Ok(views)
    }

    /// Instants of schedules until then, up to a limit, in order per schedule. The flag tells whether these are all.
    pub async fn firings_until(
        &self,
        namespace: &str,
        until: Timestamp,
        most: usize,
    ) -> Result<(Vec<(String, Timestamp)>, bool), CommandError> {
        let now = self.now();
        let (mut firings, mut workflows) = (Vec::new(), Workflows::default());
        let mut after = String::new();
        loop {
            let rows = self.core.store.followers(ResourceKind::Schedules, namespace, &after, PAGE).await?;
            for row in &rows {
                let Ok((spec, standing)) = read(row) else { continue };
                let Ok(calendar) = spec.times.read() else { continue };
                let workflow = workflows.state(&self.core, namespace, &spec.starts).await?;
                if spec.paused || workflow != WorkflowState::Active {
                    continue;
                }
                let coming = calendar.coming(standing.settled.max(now)).take_while(|at| *at <= until);
                for at in coming {
                    if firings.len() >= most {
                        return Ok((firings, false));
                    }
                    firings.push((row.name.clone(), at));
                }
            }
            match rows.last().filter(|_| rows.len() >= PAGE as usize) {
                Some(last) => after.clone_from(&last.name),
                None => return Ok((firings, true)),
            }
        }
    }

    /// Deletes a schedule.
    pub async fn delete_schedule(&self, namespace: &str, name: &str, act: &Actor) -> Result<(), CommandError> {
        let entry = self.entry(AuditAction::ScheduleDelete, name, act).within(namespace);
        match self.core.store.delete_follower(ResourceKind::Schedules, namespace, name, Some(&entry)).await? {
            true => Ok(()),
            false => Err(CommandError::NotFound("schedule")),
        }
    }

    async fn change_schedule(
        &self,
        namespace: &str,
        name: &str,
        (did, act): (AuditAction, &Actor),
        change: impl Fn(Option<ScheduleSpec>) -> Option<ScheduleSpec>,
    ) -> Result<ScheduleView, CommandError> {
        let core = &self.core;
        for _ in 0..ROUNDS {
            let row = core.row(namespace, name).await?;
            let now = core.clock.now();
            let before = facts(&row);
            // A schedule that cannot be decoded can be replaced.
            let (old, mut standing) = read(&row).ok().unzip();
            let wanted = change(old.clone()).ok_or_else(|| unreadable(format!("`{name}` cannot be read")))?;
            let (spec, calendar) = match &old {
                // A pause must be possible whatever has become of what it starts.
                Some(old) if wanted.starts == old.starts && wanted.times == old.times => {
                    let calendar = wanted.check()?;
                    (wanted, calendar)
                }
                _ => {
                    let same_span = old.as_ref().filter(|old| wanted.times.every == old.times.every);
                    let anchor = same_span.map_or(now, |old| old.times.anchor);
                    core.checked(namespace, name, wanted, anchor).await?
                }
            };
            let standing = standing.get_or_insert_default();
            if old.is_none_or(|old| old.paused || !spec.times.same_instants(&old.times)) {
                standing.settled = standing.settled.max(now);
            }
            let due = due(&spec, standing, &calendar);
            let row = Resource { due, body: text(&spec), standing: text(standing), ..row };
            let entry = self.entry(did, name, act).within(namespace).changed(Some(before), Some(facts(&row)));
            if core.put_row(&row, &entry, now).await? {
                return core.shown(&Resource { updated_at: now, ..row }, now).await;
            }
        }
        Err(CommandError::Conflict)
    }
}

fn due(spec: &ScheduleSpec, standing: &ScheduleState, calendar: &Calendar) -> Option<Timestamp> {
    if spec.paused { None } else { calendar.after(standing.settled) }
}

/// The specification as it is stored.
fn facts(row: &Resource) -> Value {
    serde_json::from_str(&row.body).unwrap_or_else(|_| row.body.as_str().into())
}

/// States of workflows, each looked up once for a list.
#[derive(Default)]
struct Workflows(BTreeMap<String, WorkflowState>);

impl Workflows {
    async fn state(&mut self, core: &Core, namespace: &str, starts: &Starts) -> Result<WorkflowState, StoreError> {
        let Some(path) = starts.workflow() else { return Ok(WorkflowState::Active) };
        if let Some(state) = self.0.get(path) {
            return Ok(*state);
        }
        let state = core.standing_of(namespace, path).await?.state;
        self.0.insert(path.to_owned(), state);
        Ok(state)
    }
}

fn understood(row: &Resource) -> Result<(ScheduleSpec, ScheduleState), CommandError> {
    read(row).map_err(unreadable)
}

fn unreadable(what: String) -> CommandError {
    StoreError::Corrupt(format!("a schedule: {what}")).into()
}

impl Core {
    async fn shown(&self, row: &Resource, now: Timestamp) -> Result<ScheduleView, CommandError> {
        let view = ScheduleView::of(row, now).map_err(unreadable)?;
        let state = Workflows::default().state(self, &row.namespace, &view.spec.starts).await?;
        Ok(view.following(state))
    }

    async fn row(&self, namespace: &str, name: &str) -> Result<Resource, CommandError> {
        self.store.follower(ResourceKind::Schedules, namespace, name).await?.ok_or(CommandError::NotFound("schedule"))
    }

    async fn put_row(&self, row: &Resource, entry: &Audit, now: Timestamp) -> Result<bool, CommandError> {
        let applied = self.store.put_follower(row, None, None, Some(entry), now).await?;
        if let Some(due) = row.due.filter(|_| applied == Applied::Done) {
            self.alarms.of(Loop::Schedule).at(due);
        }
        Ok(applied == Applied::Done)
    }

    /// Everything that can be found out before its first instant: what it starts is made up, and thrown away.
    async fn checked(
        &self,
        namespace: &str,
        name: &str,
        mut spec: ScheduleSpec,
        anchor: Timestamp,
    ) -> Result<(ScheduleSpec, Calendar), CommandError> {
        spec.times.anchor = anchor;
        let mut faults = Invalid::default();
        self.config.limits.check_name("name", name, &mut faults);
        if let Some(note) = &spec.note {
            let act = Actor { note: Some(note.clone()), ..Actor::default() };
            faults.absorb("", self.config.limits.check_act(&act).err().unwrap_or_default());
        }
        let calendar = spec.check().map_err(|part| faults.absorb("", part)).ok();
        let now = self.clock.now();
        let firing = Firing { schedule: name.to_owned(), at: now, by: FiredBy::Cron };
        let made_up = match &spec.times.event {
            Some(_) => self.could_start(namespace, &spec).await,
            None => self.prepare_run(namespace, &spec, &firing, None, now).await.map(drop),
        };
        match made_up {
            Ok(()) => {}
            Err(CommandError::Invalid(part)) => faults.absorb("", part),
            Err(CommandError::NotFound(_)) if let Starts::Workflow { path, version, .. } = &spec.starts => {
                let version = version.map(|version| format!(", version {version}")).unwrap_or_default();
                faults.push("workflow", format!("there is no workflow `{path}`{version}"));
            }
            Err(error) => return Err(error),
        }
        match calendar {
            Some(calendar) => Ok(faults.or((spec, calendar))?),
            None => Err(faults.into()),
        }
    }
}
