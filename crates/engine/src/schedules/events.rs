//! Events from outside fire the schedules that select them.
//!
//! The run that an event starts is stored under the event's id, together with the fact that it started: an event sent twice starts one run.

use std::collections::BTreeSet;

use comeback_core::schedule::{Overlap, check_event};
use comeback_core::{Invalid, Timestamp, expression};
use comeback_store::{Applied, FiredBy, Firing, Idempotency, Resource, ResourceKind, StoreError, Submitted};
use serde_json::{Value, json};

use super::{Miss, Run, ScheduleSpec, ScheduleState, Starts, read, text};
use crate::flow::collect_names;
use crate::limits::Limits;
use crate::{CommandError, Core, Engine};

/// Attempts if another caller sends the event at the same time.
const ROUNDS: u32 = 50;
const PAGE: u32 = 500;

/// An event from outside.
#[derive(Clone, Debug, PartialEq)]
pub struct OutsideEvent {
    /// The same event has the same id.
    pub id: Option<String>,
    /// Kind of the event.
    pub kind: String,
    /// Data of the event.
    pub data: Value,
    /// Time of the event as the sender says; informative only.
    pub happened_at: Option<Timestamp>,
}

/// Result of an event for one schedule.
#[derive(Clone, Debug, PartialEq)]
pub enum Came {
    /// It started a run.
    Started(Run),
    /// The same event was told before, and this is what it started then.
    Repeated(Run),
    /// The run that the previous event started is still open.
    Skipped,
    /// Its run could not be prepared.
    Failed(String),
}

impl OutsideEvent {
    /// As the texts of a schedule see it.
    pub(crate) fn told(&self, at: Timestamp) -> Value {
        let at = self.happened_at.unwrap_or(at);
        json!({"id": self.id, "type": self.kind, "data": self.data, "at": at.to_rfc3339()})
    }

    /// Input of the workflow if the schedule gives none.
    pub(crate) fn as_input(&self) -> Option<Value> {
        self.data.is_object().then(|| self.data.clone())
    }

    fn check(&self, limits: &Limits) -> Result<(), Invalid> {
        let mut faults = Invalid::default();
        if let Err(message) = check_event(&self.kind) {
            faults.push("type", message);
        }
        if let Some(id) = &self.id {
            limits.check_name("id", id, &mut faults);
        }
        let most = limits.payload_bytes;
        if self.data.to_string().len() > most {
            faults.push("data", format!("may have {most} bytes at most"));
        }
        faults.or(())
    }
}

impl Engine {
    /// Every schedule that waits for such an event fires; those that are paused, or whose workflow is switched off, do not.
    pub async fn tell_event(&self, namespace: &str, event: &OutsideEvent) -> Result<Vec<(String, Came)>, CommandError> {
        let core = &self.core;
        event.check(&core.config.limits)?;
        let mut came = Vec::new();
        let mut after = String::new();
        loop {
            let rows = core.store.followers(ResourceKind::Schedules, namespace, &after, PAGE).await?;
            for row in &rows {
                if let Some(what) = core.hear(row, event).await? {
                    came.push((row.name.clone(), what));
                }
            }
            match rows.last().filter(|_| rows.len() >= PAGE as usize) {
                Some(last) => after.clone_from(&last.name),
                None => return Ok(came),
            }
        }
    }
}

impl Core {
    /// Result of an event for one schedule; `None` if the schedule does not select it.
    async fn hear(&self, row: &Resource, event: &OutsideEvent) -> Result<Option<Came>, CommandError> {
        let mut row = row.clone();
        for _ in 0..ROUNDS {
            let now = self.clock.now();
            let Ok((spec, standing)) = read(&row) else { return Ok(None) };
            if !self.waits_for(&row.namespace, &spec, event, now).await? {
                return Ok(None);
            }
            let key = event.id.as_ref().map(|id| Idempotency {
                scope: "event".into(),
                key: format!("{}:{id}", row.name),
                digest: [0; 32],
            });
            if let Some(key) = &key
                && self.store.used(&row.namespace, key).await?.is_some()
            {
                return self.started_before(&row, &spec, event, key.clone(), now).await.map(Some);
            }
            let (came, applied) = self.fire_by(&row, &spec, standing, event, key, now).await?;
            if applied == Applied::Done {
                return Ok(Some(came));
            }
            let again = self.store.follower(ResourceKind::Schedules, &row.namespace, &row.name).await?;
            let Some(again) = again else { return Ok(None) };
            row = again;
        }
        Err(CommandError::Conflict)
    }

    async fn waits_for(
        &self,
        namespace: &str,
        spec: &ScheduleSpec,
        event: &OutsideEvent,
        now: Timestamp,
    ) -> Result<bool, StoreError> {
        let listens = || spec.times.read().is_ok_and(|calendar| calendar.listens_to(&event.kind, now));
        if spec.paused || spec.times.event.is_none() || !listens() {
            return Ok(false);
        }
        match spec.starts.workflow() {
            Some(path) => Ok(self.standing_of(namespace, path).await?.is_active()),
            None => Ok(true),
        }
    }

    async fn fire_by(
        &self,
        row: &Resource,
        spec: &ScheduleSpec,
        standing: ScheduleState,
        event: &OutsideEvent,
        key: Option<Idempotency>,
        now: Timestamp,
    ) -> Result<(Came, Applied), CommandError> {
        let mut after = standing;
        if spec.overlap == Overlap::Skip
            && let Some(run) = &after.last_run
            && self.is_open(&row.namespace, run).await?
        {
            after.skipped += 1;
            return Ok((Came::Skipped, self.move_on(row, &after, now).await?));
        }
        let firing = Firing { schedule: row.name.clone(), at: now, by: FiredBy::Event };
        let message = match self.prepare_run(&row.namespace, spec, &firing, Some(event), now).await {
            Err(CommandError::Store(error)) => return Err(error.into()),
            Err(error) => error.to_string(),
            Ok(mut prepared) => {
                prepared.start.idempotency = key.or(prepared.start.idempotency);
                let fired =
                    ScheduleState { fired: after.fired + 1, last_run: Some(prepared.run.clone()), ..after.clone() };
                let moved = Resource { standing: text(&fired), ..row.clone() };
                match self.store.put_follower(&moved, Some(&prepared.start), None, None, now).await {
                    Ok(applied) => {
                        if applied == Applied::Done {
                            self.tell_fired(&prepared.start);
                        }
                        return Ok((Came::Started(prepared.run), applied));
                    }
                    // It can be stored neither now nor later.
                    Err(StoreError::Refused(what) | StoreError::Corrupt(what)) => what,
                    Err(error) => return Err(error.into()),
                }
            }
        };
        after.failed += 1;
        after.last_error = Some(Miss { scheduled_at: now, at: now, message: message.clone() });
        Ok((Came::Failed(message), self.move_on(row, &after, now).await?))
    }

    /// The run that an earlier copy of the event started: the store knows it by its key.
    async fn started_before(
        &self,
        row: &Resource,
        spec: &ScheduleSpec,
        event: &OutsideEvent,
        key: Idempotency,
        now: Timestamp,
    ) -> Result<Came, CommandError> {
        let firing = Firing { schedule: row.name.clone(), at: now, by: FiredBy::Event };
        let mut prepared = match self.prepare_run(&row.namespace, spec, &firing, Some(event), now).await {
            Ok(prepared) => prepared,
            Err(CommandError::Store(error)) => return Err(error.into()),
            Err(error) => return Ok(Came::Failed(error.to_string())),
        };
        prepared.start.idempotency = Some(key);
        let answer = self.submit_batch(std::slice::from_ref(&prepared.start)).await.pop();
        let Submitted::Repeated { execution, tasks } = answer.ok_or(CommandError::ShuttingDown)?? else {
            return Ok(Came::Started(prepared.run));
        };
        let task = tasks.first().map(|task| task.id).filter(|_| prepared.run.task.is_some());
        Ok(Came::Repeated(Run { execution: execution.filter(|_| task.is_none()), task, ..prepared.run }))
    }

    async fn move_on(&self, row: &Resource, standing: &ScheduleState, now: Timestamp) -> Result<Applied, StoreError> {
        let moved = Resource { standing: text(standing), ..row.clone() };
        self.store.put_follower(&moved, None, None, None, now).await
    }

    /// Checks a schedule before its first event: its target exists and its templates parse. Only if
    /// they do not use the event can the run be prepared completely.
    pub(crate) async fn could_start(&self, namespace: &str, spec: &ScheduleSpec) -> Result<(), CommandError> {
        let (texts, field) = match &spec.starts {
            Starts::Workflow { path, version, input, .. } => {
                self.planned(namespace, path, *version).await?;
                (input.clone().unwrap_or_default(), "input")
            }
            Starts::Task(body) => (body.clone(), "task"),
        };
        check_texts(&texts).map_err(|message| Invalid::one(field, message))?;
        let mut names = BTreeSet::new();
        collect_names(&texts, &mut names);
        if names.iter().any(|name| name == "event" || name.starts_with("event.")) {
            return Ok(());
        }
        let now = self.clock.now();
        let nothing = OutsideEvent { id: None, kind: "test".into(), data: Value::Null, happened_at: None };
        let firing = Firing { schedule: "test".into(), at: now, by: FiredBy::Event };
        self.prepare_run(namespace, spec, &firing, Some(&nothing), now).await.map(drop)
    }
}

/// Whether every text of a value can be read as one.
fn check_texts(value: &Value) -> Result<(), String> {
    match value {
        Value::String(text) => expression::check_template(text).map(drop).map_err(|error| error.to_string()),
        Value::Array(items) => items.iter().try_for_each(check_texts),
        Value::Object(fields) => fields.values().try_for_each(check_texts),
        _ => Ok(()),
    }
}
