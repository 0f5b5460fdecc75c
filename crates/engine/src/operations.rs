//! Works off bulk operations. An instance holds one for a moment and does one batch after the other; each task goes through the pipeline and
//! its step is recorded in the same commit, so an interrupted batch is repeated without doing anything twice.

use std::collections::HashMap;

use comeback_core::operation::{
    Action, Exclusion, Judged, Next, OperationState, Plan, Seen, Standing, UndoSnapshot, Undoing, Wave, exclude, judge,
};
use comeback_core::{Millis, Rejection, State, Task, TaskId, Timestamp};
use comeback_store::{Applied, Behalf, Loop, Operation, OperationStep, StoreError};

use crate::Core;
use crate::pipeline::{ChangeOutcome, ChangeRequest, TaskChange};

/// Tasks of one batch: few enough not to delay other writers.
const BATCH: u32 = 100;
/// Batches before other operations have their turn.
const BATCHES: u32 = 20;
/// How long an instance holds an operation; renewed with each batch.
const HELD: Millis = Millis::from_secs(10);
/// Attempts on a task that others change at the same time.
const MOST_ATTEMPTS: u32 = 5;
/// Pause between two looks at the results of a wave.
const LOOK: Millis = Millis::from_secs(1);

/// The step after a batch.
enum NextStep {
    Another,
    At(Timestamp),
    Over(OperationState),
    /// The operation or this loop was stopped.
    Halted,
}

/// An operation that this instance holds.
struct HeldOperation {
    row: Operation,
    plan: Plan,
    standing: Standing,
}

/// Decodes the plan and the state of an operation.
pub(crate) fn understood(row: &Operation) -> Result<(Plan, Standing), StoreError> {
    let unread = |error: serde_json::Error| StoreError::Corrupt(format!("operation {}: {error}", row.id));
    Ok((serde_json::from_str(&row.body).map_err(unread)?, serde_json::from_str(&row.standing).map_err(unread)?))
}

pub(crate) fn text(it: &impl serde::Serialize) -> String {
    serde_json::to_string(it).unwrap_or_default()
}

/// The change of the task at this place of the operation.
pub(crate) fn task_change(plan: &Plan, row: &Operation, place: u32) -> TaskChange {
    let act = plan.act(row.id);
    let at = plan.due(place, row.total, row.created_at);
    match plan.action {
        Action::Retry => TaskChange::Retry { keep_counters: plan.keep_counters, at, edit: None, act },
        Action::Cancel => TaskChange::Cancel(act),
        Action::Pause => TaskChange::Pause(act),
        Action::Resume => TaskChange::Resume(act),
        Action::Reschedule => TaskChange::Reschedule { to: at.unwrap_or(row.created_at), act },
    }
}

pub(crate) type Left = (Exclusion, Option<State>);

/// The exclusion of a task whose change was rejected.
pub(crate) fn refused(rejection: &Rejection, task: &Task) -> Left {
    match rejection {
        Rejection::WrongState { state, .. } => (Exclusion::WrongState, Some(*state)),
        Rejection::TaskCanceled => (Exclusion::WrongState, Some(State::Canceled)),
        Rejection::LeaseLost | Rejection::NotDue => (Exclusion::WrongState, Some(task.state)),
    }
}

/// The exclusion of a task; `None` while it may still be changed.
fn left_by(outcome: &ChangeOutcome, task: &Task) -> Option<Left> {
    match outcome {
        ChangeOutcome::Rejected(rejection) => Some(refused(rejection, task)),
        ChangeOutcome::NotFound => Some((Exclusion::NotFound, None)),
        ChangeOutcome::Unfunded(_) => Some((Exclusion::NoCredits, None)),
        ChangeOutcome::KeyTaken => Some((Exclusion::KeyTaken, None)),
        ChangeOutcome::Corrupt(_) => Some((Exclusion::Damaged, None)),
        ChangeOutcome::Changed(_) | ChangeOutcome::Stale | ChangeOutcome::Paused | ChangeOutcome::Used(_) => None,
    }
}

impl Core {
    /// Takes the operation if it is free and does some batches. Returns how many.
    pub(crate) async fn go_on_with(&self, row: Operation) -> Result<u32, StoreError> {
        let (plan, standing) = match understood(&row) {
            Ok(read) => read,
            Err(error) => {
                tracing::error!(%error, "cannot decode bulk operation; skipping");
                let standing = row.standing.clone();
                let over = Operation {
                    state: OperationState::Aborted,
                    due: None,
                    ended_at: Some(self.clock.now()),
                    standing,
                    ..row
                };
                self.store.put_operation(&over, Some(Loop::Operations), None, self.clock.now()).await?;
                return Ok(0);
            }
        };
        let mut operation = HeldOperation { row, plan, standing };
        let held = self.clock.now() + HELD;
        if !self.note(&mut operation, Some(held)).await? {
            return Ok(0);
        }
        let mut steps = 0;
        for batch in 1..=BATCHES {
            let after = match operation.row.state {
                OperationState::Undoing => self.undo_batch(&mut operation).await?,
                _ => self.batch(&mut operation).await?,
            };
            let now = self.clock.now();
            let (due, goes_on) = match after {
                NextStep::Halted => return Ok(steps),
                NextStep::Another if batch < BATCHES => (Some(now + HELD), true),
                NextStep::Another => (Some(now), false),
                NextStep::At(at) => (Some(at), false),
                NextStep::Over(state) => {
                    (operation.row.state, operation.row.ended_at) = (state, Some(now));
                    (None, false)
                }
            };
            steps += u32::from(!matches!(after, NextStep::At(_)));
            if !self.note(&mut operation, due).await? || !goes_on {
                break;
            }
        }
        Ok(steps)
    }

    /// Stores the progress. `false` if another instance changed the operation.
    async fn note(&self, operation: &mut HeldOperation, due: Option<Timestamp>) -> Result<bool, StoreError> {
        operation.row.due = due;
        operation.row.standing = text(&operation.standing);
        let put = self.store.put_operation(&operation.row, Some(Loop::Operations), None, self.clock.now()).await?;
        operation.row.version += 1;
        Ok(put == Applied::Done)
    }

    async fn batch(&self, operation: &mut HeldOperation) -> Result<NextStep, StoreError> {
        let total = operation.row.total;
        match operation.standing.what_next(total) {
            Next::Over => Ok(NextStep::Over(OperationState::Done)),
            Next::Watch(wave) => self.watch(operation, wave).await,
            Next::Work { from, to } => {
                let to = to.min(from + BATCH);
                let ids = self.store.operation_ids(operation.row.id, from, to).await?;
                let places: HashMap<TaskId, u32> = ids.iter().copied().zip(from..).collect();
                let (row, plan) = (&operation.row, &operation.plan);
                let verb = |task: &Task, _: Option<&UndoSnapshot>| {
                    let place = places.get(&task.id).copied().unwrap_or(from);
                    let to = plan.due(place, row.total, row.created_at);
                    if plan.is_too_late(task, to, self.clock.now()) {
                        return Err((Exclusion::DeadlinePassed, None));
                    }
                    Ok(task_change(plan, row, place))
                };
                let Some((done, left)) = self.step_all(row, &ids, false, verb).await? else {
                    return Ok(NextStep::Halted);
                };
                operation.row.done += done;
                for (id, (why, state)) in left {
                    exclude(&mut operation.standing.excluded, why, state, id);
                }
                operation.standing.next = to;
                if let Some(wave) = operation.standing.wave.as_mut().filter(|wave| wave.to <= to) {
                    wave.sent_at = Some(self.clock.now());
                }
                Ok(NextStep::Another)
            }
        }
    }

    /// Whether the next wave may follow.
    async fn watch(&self, operation: &mut HeldOperation, wave: Wave) -> Result<NextStep, StoreError> {
        let Some(waves) = operation.plan.waves else { return Ok(NextStep::Over(OperationState::Done)) };
        let ids = self.store.operation_ids(operation.row.id, wave.from, wave.to).await?;
        let mut seen = Vec::with_capacity(ids.len());
        for ids in ids.chunks(1_000) {
            let marks = self.store.marks(operation.row.id, ids).await?;
            for stored in self.store.load(ids).await?.into_iter().flatten() {
                if let Some(mark) = marks.get(&stored.task.id) {
                    seen.push(Seen::of(&stored.task, &was(mark)?));
                }
            }
        }
        let now = self.clock.now();
        Ok(match judge(wave, waves.stop_if.as_ref(), &seen) {
            Judged::Stop(end) => {
                operation.standing.waves.push(end);
                NextStep::Over(OperationState::Stopped)
            }
            Judged::Wait => NextStep::At(now + LOOK),
            Judged::Go(end) => match wave.sent_at.map(|at| at + waves.pause).filter(|until| *until > now) {
                Some(until) => NextStep::At(until),
                None => {
                    operation.standing.next_wave(&waves, end, operation.row.total);
                    NextStep::Another
                }
            },
        })
    }

    async fn undo_batch(&self, operation: &mut HeldOperation) -> Result<NextStep, StoreError> {
        let mut undoing = operation.standing.undo.clone().unwrap_or_default();
        let from = undoing.next;
        if from >= operation.row.total {
            return Ok(NextStep::Over(OperationState::Undone));
        }
        let to = operation.row.total.min(from + BATCH);
        let ids = self.store.operation_ids(operation.row.id, from, to).await?;
        let (row, action, act) = (&operation.row, operation.plan.action, operation.plan.act(operation.row.id));
        let verb = |task: &Task, was: Option<&UndoSnapshot>| {
            let Some(was) = was.filter(|_| action != Action::Cancel) else { return Err((Exclusion::Definitive, None)) };
            let change = TaskChange::Undo { action, was: Box::new(was.clone()), act: act.clone() };
            let may_be = if action == Action::Retry { was.may_come_back(task) } else { was.is_one_behind(task) };
            if may_be { Ok(change) } else { Err((Exclusion::of_undo(was, task), None)) }
        };
        let Some((undone, kept)) = self.step_all(row, &ids, true, verb).await? else { return Ok(NextStep::Halted) };
        operation.row.undone += undone;
        for (id, (why, state)) in kept {
            exclude(&mut undoing.kept, why, state, id);
        }
        operation.standing.undo = Some(Undoing { next: to, ..undoing });
        Ok(NextStep::Another)
    }

    /// Changes each of these tasks or finds out why not. Returns how many are done now, by any instance; `None` if the operation was
    /// halted.
    async fn step_all(
        &self,
        row: &Operation,
        ids: &[TaskId],
        back: bool,
        change: impl Fn(&Task, Option<&UndoSnapshot>) -> Result<TaskChange, Left>,
    ) -> Result<Option<(u32, Vec<(TaskId, Left)>)>, StoreError> {
        let mut left: HashMap<TaskId, Left> = HashMap::new();
        let mut is_done: Vec<bool> = vec![false; ids.len()];
        for round in 0.. {
            let marks = self.store.marks(row.id, ids).await?;
            for (done, id) in is_done.iter_mut().zip(ids) {
                *done = marks.get(id).is_some_and(|mark| mark.undone == back);
            }
            // What was never done needs no taking back.
            let to_do = |id: &TaskId| {
                if back { marks.get(id).is_some_and(|mark| !mark.undone) } else { !marks.contains_key(id) }
            };
            let open: Vec<TaskId> = ids.iter().filter(|id| to_do(id) && !left.contains_key(id)).copied().collect();
            if open.is_empty() {
                break;
            }
            if round == MOST_ATTEMPTS {
                left.extend(open.into_iter().map(|id| (id, (Exclusion::Conflict, None))));
                break;
            }
            if !self.step_some(row, &open, &marks, &change, &mut left).await? {
                return Ok(None);
            }
        }
        let done = u32::try_from(is_done.iter().filter(|done| **done).count()).unwrap_or(u32::MAX);
        let in_order = ids.iter().filter_map(|id| left.get(id).map(|why| (*id, *why))).collect();
        Ok(Some((done, in_order)))
    }

    async fn step_some(
        &self,
        row: &Operation,
        open: &[TaskId],
        marks: &HashMap<TaskId, OperationStep>,
        change: &impl Fn(&Task, Option<&UndoSnapshot>) -> Result<TaskChange, Left>,
        left: &mut HashMap<TaskId, Left>,
    ) -> Result<bool, StoreError> {
        let mut requests = Vec::with_capacity(open.len());
        let mut tasks = Vec::with_capacity(open.len());
        for (id, stored) in open.iter().zip(self.or_one_by_one(self.store.load(open).await, open).await?) {
            let stored = match stored {
                Err(_) => {
                    left.insert(*id, (Exclusion::Damaged, None));
                    continue;
                }
                Ok(stored) => stored.filter(|stored| stored.task.lane.namespace == row.namespace),
            };
            let Some(stored) = stored else {
                left.insert(*id, (Exclusion::NotFound, None));
                continue;
            };
            let was = marks.get(id).map(was).transpose()?;
            match change(&stored.task, was.as_ref()) {
                Err(why) => drop(left.insert(*id, why)),
                Ok(change) => {
                    tasks.push(stored.task.clone());
                    requests.push(ChangeRequest::exact(stored, change));
                }
            }
        }
        let outcomes = self.apply_changes(requests, Behalf::Loop(Loop::Operations)).await?;
        if outcomes.iter().any(|outcome| matches!(outcome, ChangeOutcome::Paused)) {
            return Ok(false);
        }
        for (outcome, task) in outcomes.iter().zip(&tasks) {
            left.extend(left_by(outcome, task).map(|why| (task.id, why)));
        }
        Ok(true)
    }
}

fn was(mark: &OperationStep) -> Result<UndoSnapshot, StoreError> {
    serde_json::from_str(&mark.was).map_err(|error| StoreError::Corrupt(format!("a mark: {error}")))
}
