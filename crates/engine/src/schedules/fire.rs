//! Fire: what an instant of a schedule starts, stored together with the fact that it did.

use comeback_core::schedule::{Calendar, Overlap};
use comeback_core::{EventKind, Invalid, State, Timestamp, expression};
use comeback_store::{Applied, FiredBy, Firing, Loop, Resource, StoreError, Submission};
use serde_json::{Value, json};

use super::{Miss, OutsideEvent, Run, ScheduleSpec, ScheduleState, Starts, read, text};
use crate::flow::{Start, WorkflowStanding};
use crate::{CommandError, Core, Submit};

/// Instants of one schedule that are fired before the others have their turn.
const IN_A_ROW: usize = 50;

/// A run that is ready to be stored.
pub struct PreparedRun {
    /// Tasks to store.
    pub start: Submission,
    /// Entry for the schedule.
    pub run: Run,
}

impl Core {
    /// Deals with what has come for one schedule. Answers how many instants that were.
    pub(crate) async fn fire_due(&self, row: Resource, now: Timestamp) -> Result<u32, StoreError> {
        let understood = read(&row).and_then(|(spec, standing)| {
            let calendar = spec.times.read().map_err(|faults| faults.to_string())?;
            Ok((spec, standing, calendar))
        });
        let (spec, standing, calendar) = match understood {
            Ok(understood) => understood,
            Err(error) => {
                // It may be from another build. It is skipped until it is put again.
                tracing::error!(schedule = row.name, %error, "cannot decode schedule; skipping");
                return self.set_aside(row, now).await;
            }
        };
        let workflow = match spec.starts.workflow() {
            Some(path) => self.standing_of(&row.namespace, path).await?,
            None => WorkflowStanding::default(),
        };
        // What passed while its workflow was switched off is not made up for.
        let settled = if workflow.is_active() { workflow.since.unwrap_or_default() } else { now };
        let standing = ScheduleState { settled: standing.settled.max(settled), ..standing };
        let due = calendar.due(standing.settled, now, spec.catch_up, spec.catch_up_limit);
        let standing = ScheduleState { missed: standing.missed.saturating_add(due.missed), ..standing };
        let mut at = Moving { core: self, row, spec, standing, calendar, now };
        let Some(newest) = due.newest else {
            return Ok(u32::from(at.settle(None).await? == Applied::Done));
        };
        if due.fire.is_empty() {
            return Ok(u32::from(at.settle(Some(newest)).await? == Applied::Done));
        }
        let mut moved = 0;
        for instant in due.fire.into_iter().take(IN_A_ROW) {
            comeback_store::panic_point!("schedule-fire");
            match at.fire(instant).await? {
                Applied::Done => moved += 1,
                // Another instance works on it, or the loop is paused.
                _ => break,
            }
        }
        Ok(moved)
    }

    async fn set_aside(&self, row: Resource, now: Timestamp) -> Result<u32, StoreError> {
        let row = Resource { due: None, ..row };
        Ok(u32::from(self.store.put_follower(&row, None, Some(Loop::Schedule), None, now).await? == Applied::Done))
    }

    /// Prepares and checks the run of an instant or an event.
    pub(crate) async fn prepare_run(
        &self,
        namespace: &str,
        spec: &ScheduleSpec,
        firing: &Firing,
        event: Option<&OutsideEvent>,
        now: Timestamp,
    ) -> Result<PreparedRun, CommandError> {
        let mut names = json!({
            "schedule": {"name": firing.schedule, "time_zone": spec.times.time_zone.as_deref().unwrap_or("UTC")},
            "scheduled_at": firing.at.to_rfc3339(),
            "trigger": firing.by.word(),
        });
        if let Some(event) = event {
            names["event"] = event.told(firing.at);
        }
        let mut run = Run { scheduled_at: firing.at, started_at: now, trigger: firing.by, execution: None, task: None };
        let start = match &spec.starts {
            Starts::Workflow { path, version, input, labels } => {
                let rendered = input.as_ref().map(|input| expression::render(input, &names)).transpose();
                let rendered = rendered.map_err(|faults| faults.under("input"))?;
                let start = Start {
                    namespace: namespace.to_owned(),
                    workflow: path.clone(),
                    version: *version,
                    input: rendered.or_else(|| event.and_then(OutsideEvent::as_input)),
                    labels: labels.clone(),
                    firing: Some(firing.clone()),
                    ..Start::default()
                };
                let planned = self.plan_start(&start).await?;
                match planned.call {
                    None => self.execution_of(planned.begin).await?,
                    Some((submit, first)) => {
                        run.execution = Some(first);
                        submit.plan(&self.config, &self.ids, now)?
                    }
                }
            }
            Starts::Task(body) => match self.lone_task(namespace, body, &names, firing).await {
                Err(CommandError::Invalid(faults)) => return Err(faults.under("task").into()),
                other => other?,
            },
        };
        if let Some(new) = &start.execution {
            run.execution = Some(new.execution.id);
        } else {
            run.task = start.tasks.first().map(|new| new.task.id);
        }
        Ok(PreparedRun { start, run })
    }

    async fn lone_task(
        &self,
        namespace: &str,
        body: &Value,
        names: &Value,
        firing: &Firing,
    ) -> Result<Submission, CommandError> {
        let mut body = body.clone();
        let fields = body.as_object_mut().ok_or_else(|| Invalid::one("", "must be an object"))?;
        // What is decided later has texts of its own.
        for (name, field) in fields.iter_mut().filter(|(name, _)| !matches!(name.as_str(), "retry" | "hooks")) {
            *field = expression::render(field, names).map_err(|faults| faults.under(name))?;
        }
        let workflows = self.workflows.get().ok_or_else(|| Invalid::one("", "nobody here reads tasks"))?;
        let mut task = workflows.task(namespace, &body).await?;
        if task.dedupe_key.is_some() {
            let why = "is not for schedules; `overlap: skip` waits for the run before";
            return Err(Invalid::one("dedupe_key", why).into());
        }
        task.labels.insert("schedule".into(), firing.schedule.clone());
        task.labels.insert("scheduled_at".into(), firing.at.to_rfc3339());
        Ok(Submit::one(namespace, task).plan(&self.config, &self.ids, self.clock.now())?)
    }

    /// After the commit: wakes workers and readers of the feed.
    pub(crate) fn tell_fired(&self, start: &Submission) {
        self.notify_submitted(std::slice::from_ref(start));
        self.tallies.add(&start.namespace, EventKind::TaskCreated, start.tasks.len() as u64);
    }

    /// Whether what was started is still at work.
    pub(super) async fn is_open(&self, namespace: &str, run: &Run) -> Result<bool, StoreError> {
        match (run.task, run.execution) {
            (Some(task), _) => {
                let found = self.store.load(&[task]).await?.into_iter().flatten().next();
                Ok(found.is_some_and(|stored| !State::is_terminal(stored.task.state)))
            }
            (None, Some(execution)) => {
                let found = self.store.execution(namespace, execution).await?;
                Ok(found.is_some_and(|view| !view.execution.state.is_terminal()))
            }
            (None, None) => Ok(false),
        }
    }
}

/// One schedule on its way from instant to instant.
struct Moving<'a> {
    core: &'a Core,
    row: Resource,
    spec: ScheduleSpec,
    standing: ScheduleState,
    calendar: Calendar,
    now: Timestamp,
}

impl Moving<'_> {
    async fn fire(&mut self, instant: Timestamp) -> Result<Applied, StoreError> {
        if self.spec.overlap == Overlap::Skip
            && let Some(run) = &self.standing.last_run
            && self.core.is_open(&self.row.namespace, run).await?
        {
            self.standing.skipped += 1;
            return self.settle(Some(instant)).await;
        }
        let firing = Firing { schedule: self.row.name.clone(), at: instant, by: FiredBy::Cron };
        let before = self.standing.clone();
        let failed = match self.core.prepare_run(&self.row.namespace, &self.spec, &firing, None, self.now).await {
            Err(CommandError::Store(error)) => return Err(error),
            Err(error) => error.to_string(),
            Ok(prepared) => {
                self.standing.fired += 1;
                self.standing.last_run = Some(prepared.run);
                match self.store(Some(instant), Some(&prepared.start)).await {
                    // It can be stored neither now nor later.
                    Err(StoreError::Refused(what) | StoreError::Corrupt(what)) => what,
                    answer => return answer,
                }
            }
        };
        tracing::warn!(
            schedule = self.row.name,
            at = instant.to_rfc3339(),
            error = failed,
            "a schedule could not fire"
        );
        let miss = Miss { scheduled_at: instant, at: self.now, message: failed };
        self.standing = ScheduleState { failed: before.failed + 1, last_error: Some(miss), ..before };
        self.settle(Some(instant)).await
    }

    /// Settles an instant without a run.
    async fn settle(&mut self, instant: Option<Timestamp>) -> Result<Applied, StoreError> {
        self.store(instant, None).await
    }

    async fn store(&mut self, instant: Option<Timestamp>, start: Option<&Submission>) -> Result<Applied, StoreError> {
        self.standing.settled = instant.map_or(self.standing.settled, |at| self.standing.settled.max(at));
        self.row.due = self.calendar.after(self.standing.settled);
        self.row.standing = text(&self.standing);
        let applied = self.core.store.put_follower(&self.row, start, Some(Loop::Schedule), None, self.now).await?;
        if applied == Applied::Done {
            self.row.version += 1;
            if let Some(start) = start {
                self.core.tell_fired(start);
            }
        }
        Ok(applied)
    }
}
