//! Propagates the end of one task to its neighbours and to its execution.
//!
//! The graph is worked on in memory and comes out as one `Commit` that is stored whole or not at all. Entering
//! `retry_pending` is not an end: it moves no neighbour (model I-3). Each end looks at its own edges only.
//!
//! Over 500 lines: every rule of an execution's graph works on the same `Working` state, and most are read together.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use crate::account::{Charge, Move};
use crate::audit::Audit;
use crate::budget::Booking;
use crate::event::{EventKind, Record};
use crate::execution::{Execution, ExecutionState};
use crate::failure::{Class, Failure, Trigger};
use crate::id::TaskId;
use crate::operation::Mark;
use crate::payload::NewPayload;
use crate::reason::Reason;
use crate::task::{Executor, State, Task};
use crate::time::Timestamp;
use crate::transition::{self, Actor, Rejection, Transition};
use crate::words::words;

words! {
    /// Which end of the parent meets an edge.
    pub enum When {
        Success = 0 "success",
        Failure = 1 "failure",
        Always = 2 "always",
    }
}

words! {
    /// The effect on the child when an edge can no longer be met.
    pub enum OnUnmet {
        Skip = 0 "skip",
        Fail = 1 "fail",
    }
}

/// An edge between two tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Edge {
    /// The parent.
    pub from: TaskId,
    /// The child.
    pub to: TaskId,
    /// Which end of the parent meets it.
    pub when: When,
    /// The effect on the child when it cannot be met.
    pub on_unmet: OnUnmet,
}

impl Edge {
    /// Whether a parent that ended so meets this edge. A skipped parent meets `always` and nothing else (F1-22).
    pub fn is_met_by(&self, end: State) -> bool {
        match self.when {
            When::Always => end.is_terminal(),
            When::Success => end == State::Succeeded,
            When::Failure => matches!(end, State::Failed | State::Dead | State::Canceled),
        }
    }
}

/// One change of one row, guarded by the version it expects.
#[derive(Clone, Debug, PartialEq)]
pub struct Write {
    /// The version the task must still have.
    pub expected_version: u32,
    /// The state before.
    pub from: State,
    /// The task afterwards.
    pub after: Task,
}

/// A change of an execution.
#[derive(Clone, Debug, PartialEq)]
pub struct ExecutionWrite {
    /// The version the execution must still have.
    pub expected_version: u32,
    /// The execution afterwards.
    pub after: Execution,
}

/// Everything that is true together: stored whole, or not at all.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Commit {
    /// Changes of tasks.
    pub writes: Vec<Write>,
    /// Mostly one, or none where it is about a lone task; a repair by hand may reach through several.
    pub executions: Vec<ExecutionWrite>,
    /// In the order in which it happened.
    pub records: Vec<Record>,
    /// The audit entry, where a person or a program acted.
    pub audit: Vec<Audit>,
    /// Payloads that were edited with it.
    pub payloads: Vec<NewPayload>,
    /// Moves in accounts.
    pub charges: Vec<Charge>,
    /// Retries that are booked in the budget of an account, if there is still room.
    pub bookings: Vec<Booking>,
    /// Steps of bulk operations that it takes; each is taken once.
    pub marks: Vec<Mark>,
}

impl Commit {
    /// Both, or neither.
    pub fn join(&mut self, other: Commit) {
        self.writes.extend(other.writes);
        self.executions.extend(other.executions);
        self.records.extend(other.records);
        self.audit.extend(other.audit);
        self.payloads.extend(other.payloads);
        self.charges.extend(other.charges);
        self.bookings.extend(other.bookings);
        self.marks.extend(other.marks);
    }
}

impl From<Transition> for Commit {
    fn from(transition: Transition) -> Commit {
        let (expected_version, from) = (transition.expected_version(), transition.from());
        let (after, record) = transition.into_parts();
        let writes = vec![Write { expected_version, from, after }];
        let charges = charges(&writes);
        Commit { writes, records: vec![record], charges, ..Commit::default() }
    }
}

fn charges(writes: &[Write]) -> Vec<Charge> {
    let metered = writes.iter().filter(|write| write.after.metered);
    let charge = |write: &Write| {
        let what = Move::of(Some(write.from), write.after.state)?;
        Some(Charge { task: write.after.id, what })
    };
    metered.filter_map(charge).collect()
}

/// Tasks the graph needs to see before it can go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing(pub BTreeSet<TaskId>);

/// Why the graph could not take a change.
#[derive(Clone, Debug, PartialEq)]
pub enum Halt {
    /// A part of the graph is not loaded.
    Missing(Missing),
    /// The change is not possible.
    Rejected(Rejection),
}

impl From<Rejection> for Halt {
    fn from(rejection: Rejection) -> Self {
        Halt::Rejected(rejection)
    }
}

/// The type of the error of those who fail with a task that they need.
const UPSTREAM: &str = "upstream";

/// Whether nothing is left to wait for.
fn may_start(task: &Task, now: Timestamp) -> bool {
    let time_has_come = task.start_at.is_none_or(|at| at <= now);
    task.state == State::Waiting && task.needs_left == 0 && !task.gated && time_has_come
}

/// A part of an execution, loaded, and what was changed in it so far.
#[derive(Clone, Debug)]
pub struct Working {
    execution: Execution,
    execution_version: u32,
    /// Absent: not loaded. The versions the store has stand beside the tasks as they are now.
    tasks: HashMap<TaskId, (u32, State, Task)>,
    out: HashMap<TaskId, Vec<Edge>>,
    into: HashMap<TaskId, Vec<Edge>>,
    changed: BTreeSet<TaskId>,
    /// Made by this change: they have no version in the store yet.
    spawned: BTreeSet<TaskId>,
    records: Vec<Record>,
}

impl Working {
    /// An execution without any task loaded.
    pub fn new(execution: Execution) -> Working {
        Working {
            execution_version: execution.version,
            execution,
            tasks: HashMap::new(),
            out: HashMap::new(),
            into: HashMap::new(),
            changed: BTreeSet::new(),
            spawned: BTreeSet::new(),
            records: Vec::new(),
        }
    }

    /// Adds a task with all its edges, both ways. Adding again what is there changes nothing.
    pub fn add(&mut self, task: Task, out: Vec<Edge>, into: Vec<Edge>) {
        let id = task.id;
        self.add_neighbour(task);
        self.out.entry(id).or_insert(out);
        self.into.entry(id).or_insert(into);
    }

    /// Adds a task of whose edges nothing is known. They are asked for when they matter.
    pub fn add_neighbour(&mut self, task: Task) {
        self.tasks.entry(task.id).or_insert((task.version, task.state, task));
    }

    /// The execution as it is now.
    pub fn execution(&self) -> &Execution {
        &self.execution
    }

    /// A loaded task.
    pub fn task(&self, id: TaskId) -> Option<&Task> {
        self.tasks.get(&id).map(|(_, _, task)| task)
    }

    /// All loaded tasks.
    pub fn tasks(&self) -> impl Iterator<Item = &Task> {
        self.tasks.values().map(|(_, _, task)| task)
    }

    /// Edges from a task to its children.
    pub fn out_edges(&self, id: TaskId) -> &[Edge] {
        self.out.get(&id).map_or(&[], Vec::as_slice)
    }

    /// Edges to a task from its parents.
    pub fn in_edges(&self, id: TaskId) -> &[Edge] {
        self.into.get(&id).map_or(&[], Vec::as_slice)
    }

    /// Takes one task's change and everything that follows from it.
    pub fn apply(&mut self, change: Transition, now: Timestamp) -> Result<(), Halt> {
        let mut ends = VecDeque::new();
        self.take(change, &mut ends);
        while let Some((id, state)) = ends.pop_front() {
            self.spread(id, state, now, &mut ends)?;
        }
        self.settle_execution(now);
        Ok(())
    }

    /// Its gate says yes: it starts when its time has come.
    pub fn open_gate(&mut self, id: TaskId, now: Timestamp) -> Result<(), Halt> {
        self.touch(id, now, |task| std::mem::take(&mut task.gated));
        match self.task(id).filter(|task| may_start(task, now)) {
            Some(task) => self.apply(transition::ready(task, now)?, now),
            None => Ok(()),
        }
    }

    /// More tasks, and a task that waits for them: it is no longer at its gate, and starts when they are over. The answer is
    /// how the new tasks begin.
    pub fn spawn(&mut self, parent: TaskId, new: Vec<Task>, edges: &[Edge], now: Timestamp) -> Result<Vec<Task>, Halt> {
        let ids: Vec<TaskId> = new.iter().map(|task| task.id).collect();
        for task in new {
            self.spawned.insert(task.id);
            self.add(task, Vec::new(), Vec::new());
        }
        for edge in edges {
            self.out.entry(edge.from).or_default().push(*edge);
            self.into.entry(edge.to).or_default().push(*edge);
            self.touch(edge.from, now, |task| {
                task.children_left += 1;
                true
            });
            self.touch(edge.to, now, |task| {
                task.needs_left += 1;
                true
            });
        }
        let count = u32::try_from(ids.len()).unwrap_or(u32::MAX);
        self.execution.total += count;
        self.execution.open += count;
        self.execution.version = self.execution_version + 1;
        for id in &ids {
            let Some((_, _, task)) = self.tasks.get_mut(id) else { continue };
            task.state = State::Waiting;
            if may_start(task, now) {
                task.state = State::Pending;
            }
            let record = Record::of_creation(task, now);
            self.records.push(record);
        }
        self.open_gate(parent, now)?;
        Ok(ids.iter().filter_map(|id| self.task(*id).cloned()).collect())
    }

    /// E6: everything that is open is canceled, and the whole with it.
    pub fn cancel(&mut self, reason: Reason, act: &Actor, now: Timestamp) -> Result<(), Halt> {
        if self.execution.state.is_terminal() {
            return Ok(());
        }
        self.cancel_open(reason, act, now)?;
        self.record_act(EventKind::ExecutionCanceled, act, now);
        self.execution = self.execution.moved(ExecutionState::Canceled, now);
        Ok(())
    }

    /// E5. The tasks keep their states; they are not offered while their execution is paused.
    pub fn set_paused(&mut self, after: Execution, act: &Actor, now: Timestamp) {
        let paused = after.state == ExecutionState::Paused;
        let kind = if paused { EventKind::ExecutionPaused } else { EventKind::ExecutionResumed };
        for id in self.sorted_ids() {
            self.touch(id, now, |task| {
                let changes = task.state.is_open() && task.execution_paused != paused;
                task.execution_paused = paused;
                changes
            });
        }
        self.record_act(kind, act, now);
        self.execution = after;
    }

    /// E7: a task that failed is tried again; what was given up only because of it waits again. It waits itself where one of
    /// its needs is open again, and is refused where one can never be met. A loop is tried again by its rounds that failed.
    ///
    /// The whole execution must be loaded. `retried` is T19 on the task itself.
    pub fn reopen(&mut self, retried: Transition, now: Timestamp) -> Result<(), Halt> {
        let act = Actor { by: retried.record().actor.clone(), ..Actor::default() };
        let id = retried.after().id;
        let was_over = retried.from().is_terminal();
        if self.is_being_gathered(id) {
            return Err(Rejection::NotDue.into());
        }
        let rounds = self.failed_rounds(id);
        let roots: BTreeSet<TaskId> = rounds.iter().copied().chain([id]).collect();
        let revived = self.given_up_for(&roots);
        if was_over && roots.iter().any(|id| self.is_hopeless(*id, &roots, &revived)) {
            let verb = "retried: what it needs can never be met";
            return Err(Rejection::WrongState { state: retried.from(), verb }.into());
        }
        let waiting: BTreeSet<TaskId> =
            roots.iter().copied().filter(|id| was_over && self.waits_again(*id, &roots, &revived)).collect();
        self.reopen_execution(&act, retried.from(), now)?;
        let mut again = self.retried(rounds.difference(&waiting), &act, now)?;
        again.extend(Some(retried).filter(|_| !waiting.contains(&id)));
        self.bring_back(again, &waiting, &revived, &act, now)
    }

    /// E7 for what stands for an execution that a person mends: it goes on as it is, whatever it came after. `taken_up` is T30.
    ///
    /// The whole execution must be loaded.
    pub fn take_up(&mut self, taken_up: Transition, act: &Actor, now: Timestamp) -> Result<(), Halt> {
        let roots = BTreeSet::from([taken_up.after().id]);
        if self.is_being_gathered(taken_up.after().id) {
            return Err(Rejection::NotDue.into());
        }
        let revived = self.given_up_for(&roots);
        self.reopen_execution(act, taken_up.from(), now)?;
        self.bring_back(vec![taken_up], &BTreeSet::new(), &revived, act, now)
    }

    /// Sets the task that stands for it.
    pub fn set_parent(&mut self, parent: Option<(TaskId, u32)>) {
        self.execution.parent = parent;
        self.execution.version = self.execution_version + 1;
    }

    /// Whether the loop that it is a round of is about to look at what its rounds left: what that comes to is to be known first.
    fn is_being_gathered(&self, id: TaskId) -> bool {
        let loops =
            self.out_edges(id).iter().filter(|edge| self.is_of_round(edge)).filter_map(|edge| self.task(edge.to));
        loops
            .filter(|task| task.lane.executor == Executor::Flow)
            .any(|task| matches!(task.paused_from.unwrap_or(task.state), State::Pending | State::Claimed))
    }

    /// The edge of a round to its loop: it is in the lane of the loop, but for who runs it.
    fn is_of_round(&self, edge: &Edge) -> bool {
        let lanes = self.task(edge.from).zip(self.task(edge.to)).map(|(round, it)| (&round.lane, &it.lane));
        edge.when == When::Always && lanes.is_some_and(|(a, b)| (&a.kind, &a.queue) == (&b.kind, &b.queue))
    }

    /// The rounds for which a loop failed; none where this is no such loop.
    fn failed_rounds(&self, id: TaskId) -> BTreeSet<TaskId> {
        if self.task(id).is_none_or(|task| task.reason != Some(Reason::Rounds)) {
            return BTreeSet::new();
        }
        let failed = |edge: &&Edge| self.task(edge.from).is_some_and(Task::failed_itself);
        let edges = self.in_edges(id).iter().filter(|edge| self.is_of_round(edge)).filter(failed);
        edges.map(|edge| edge.from).collect()
    }

    /// T19 on each of them.
    fn retried<'a>(
        &self,
        ids: impl Iterator<Item = &'a TaskId>,
        act: &Actor,
        now: Timestamp,
    ) -> Result<Vec<Transition>, Rejection> {
        ids.filter_map(|id| self.task(*id)).map(|task| transition::manual_retry(task, false, act, now)).collect()
    }

    /// E7 for the whole: every task that failed by itself is tried again. One that had come after a task that is not over
    /// any more, a failure's handler say, waits for that task first; one of whose needs can never be met stays as it is.
    /// Where none failed by itself nothing changes. Those in `taken_up` stand for executions that are mended with it (T30).
    ///
    /// The whole execution must be loaded.
    pub fn retry_failed(
        &mut self,
        mut taken_up: BTreeMap<TaskId, Transition>,
        act: &Actor,
        now: Timestamp,
    ) -> Result<(), Halt> {
        let (failed, revived, waiting) = self.to_retry();
        // Canceled by hand, it has nothing to try again.
        if failed.is_empty() {
            return Ok(());
        }
        self.reopen_execution(act, State::Failed, now)?;
        let mut again = Vec::with_capacity(failed.len());
        for id in failed.difference(&waiting) {
            again.extend(match (taken_up.remove(id), self.task(*id)) {
                (Some(taken_up), _) => Some(taken_up),
                (None, Some(task)) => Some(transition::manual_retry(task, false, act, now)?),
                (None, None) => None,
            });
        }
        self.bring_back(again, &waiting, &revived, act, now)
    }

    /// The tasks that stand for executions and would be tried again at once with the whole.
    pub fn calls_to_retry(&self) -> Vec<&Task> {
        let (failed, _, waiting) = self.to_retry();
        let tasks = failed.difference(&waiting).filter_map(|id| self.task(*id));
        tasks.filter(|task| task.lane.executor == Executor::Flow).collect()
    }

    /// Tasks that failed by themselves and may be tried again, those that come back with them, and which of the first wait for others.
    fn to_retry(&self) -> (BTreeSet<TaskId>, BTreeSet<TaskId>, BTreeSet<TaskId>) {
        let mut failed: BTreeSet<TaskId> =
            self.tasks().filter(|task| task.failed_itself()).map(|task| task.id).collect();
        let mut revived = self.given_up_for(&failed);
        while let Some(hopeless) = failed.iter().copied().find(|id| self.is_hopeless(*id, &failed, &revived)) {
            failed.remove(&hopeless);
            revived = self.given_up_for(&failed);
        }
        let waiting = failed.iter().copied().filter(|id| self.waits_again(*id, &failed, &revived)).collect();
        (failed, revived, waiting)
    }

    /// Of an execution that failed: the first task that did so by itself and for which nobody was waiting in case it did.
    pub fn first_failure(&self) -> Option<&Task> {
        let for_another =
            |task: &&Task| matches!(task.reason, Some(Reason::UpstreamFailed | Reason::FailFast | Reason::DeadEnd));
        let bad = self.tasks().filter(|task| task.state.is_failure() && !self.is_handled(task.id, task.state));
        bad.min_by_key(|task| (for_another(task), task.ended_at, task.id))
    }

    fn reopen_execution(&mut self, act: &Actor, from: State, now: Timestamp) -> Result<(), Halt> {
        if !self.execution.state.is_terminal() {
            return Ok(());
        }
        let over = |state: ExecutionState| match state {
            ExecutionState::Canceled => "retried: its execution was canceled",
            _ => "retried: its execution has succeeded, since its failure was dealt with",
        };
        self.execution = self
            .execution
            .reopen(now)
            .map_err(|rejected| Rejection::WrongState { state: from, verb: over(rejected.state) })?;
        let mut data = serde_json::json!({"reopened": true});
        if let Some(note) = &act.note {
            data["note"] = note.as_str().into();
        }
        let record = Record::about_execution(self.execution.id, EventKind::ExecutionResumed, now);
        self.record(Record { actor: act.by.clone(), data: Some(data), ..record });
        Ok(())
    }

    /// Some are tried again now, some when their needs are met once more: those in `waiting` with a new cycle, those in
    /// `revived` as they were.
    fn bring_back(
        &mut self,
        retried: Vec<Transition>,
        waiting: &BTreeSet<TaskId>,
        revived: &BTreeSet<TaskId>,
        act: &Actor,
        now: Timestamp,
    ) -> Result<(), Halt> {
        for id in waiting.union(revived) {
            let Some(task) = self.task(*id) else { continue };
            let step = transition::reopen(task, waiting.contains(id), act, now);
            self.records.extend(step.record);
            self.touch(*id, now, |task| {
                *task = step.after;
                true
            });
        }
        let back: Vec<TaskId> =
            waiting.union(revived).copied().chain(retried.iter().map(|change| change.after().id)).collect();
        for change in retried {
            self.take(change, &mut VecDeque::new());
        }
        let paused = self.execution.state == ExecutionState::Paused;
        for id in &back {
            self.touch(*id, now, |task| {
                task.execution_paused = paused;
                true
            });
        }
        self.recount();
        for id in back {
            let Some(task) = self.task(id) else { continue };
            if may_start(task, now) {
                let change = transition::ready(task, now)?;
                self.take(change, &mut VecDeque::new());
            }
        }
        Ok(())
    }

    /// Everything that changed, to be stored together.
    pub fn into_commit(self) -> Commit {
        let execution_changed = self.execution.version != self.execution_version;
        let mut tasks = self.tasks;
        let writes: Vec<Write> = self
            .changed
            .difference(&self.spawned)
            .filter_map(|id| tasks.remove(id))
            .map(|(expected_version, from, mut after)| {
                after.version = expected_version + 1;
                Write { expected_version, from, after }
            })
            .collect();
        let mut after = self.execution;
        after.version = self.execution_version + 1;
        Commit {
            charges: charges(&writes),
            writes,
            executions: Some(ExecutionWrite { expected_version: self.execution_version, after })
                .filter(|_| execution_changed || !self.changed.is_empty())
                .into_iter()
                .collect(),
            records: self.records,
            ..Commit::default()
        }
    }

    fn record(&mut self, record: Record) {
        self.records.push(record);
    }

    /// A record of an action on the whole execution, with its actor and note.
    fn record_act(&mut self, kind: EventKind, act: &Actor, now: Timestamp) {
        let data = act.said();
        let record = Record::about_execution(self.execution.id, kind, now);
        self.record(Record { actor: act.by.clone(), data, ..record });
    }

    fn take(&mut self, change: Transition, ends: &mut VecDeque<(TaskId, State)>) {
        let (from, is_end) = (change.from(), change.is_end());
        let (after, record) = change.into_parts();
        let (id, state) = (after.id, after.state);
        self.records.push(record);
        self.changed.insert(id);
        if let Some(entry) = self.tasks.get_mut(&id) {
            entry.2 = after;
        } else {
            self.tasks.insert(id, (after.version - 1, from, after));
        }
        if is_end && from.is_open() {
            self.execution.open = self.execution.open.saturating_sub(1);
            if state.is_failure() && !self.is_handled(id, state) {
                self.execution.unhandled += 1;
            }
            self.execution.version = self.execution_version + 1;
            ends.push_back((id, state));
        }
    }

    /// A failure is handled when an edge was waiting for it (E3).
    fn is_handled(&self, id: TaskId, end: State) -> bool {
        self.out
            .get(&id)
            .is_some_and(|edges| edges.iter().any(|edge| edge.when != When::Success && edge.is_met_by(end)))
    }

    /// One end, its children, and its parents where dead ends are canceled.
    fn spread(
        &mut self,
        id: TaskId,
        end: State,
        now: Timestamp,
        ends: &mut VecDeque<(TaskId, State)>,
    ) -> Result<(), Halt> {
        self.need_neighbours(id)?;
        for edge in self.out.get(&id).cloned().unwrap_or_default() {
            self.tell_child(edge, end, now, ends)?;
        }
        if self.execution.dead_end_cancel {
            for edge in self.into.get(&id).cloned().unwrap_or_default() {
                self.tell_parent(edge.from, now, ends)?;
            }
        }
        if self.execution.fail_fast && self.execution.unhandled > 0 && self.execution.open > 0 {
            self.cancel_open(Reason::FailFast, &Actor::default(), now)?;
        }
        Ok(())
    }

    fn need_neighbours(&self, id: TaskId) -> Result<(), Halt> {
        let mut missing = BTreeSet::new();
        match (self.out.get(&id), self.into.get(&id)) {
            (Some(out), Some(into)) => {
                let parents = into.iter().map(|edge| edge.from).filter(|_| self.execution.dead_end_cancel);
                missing.extend(out.iter().map(|edge| edge.to).chain(parents).filter(|id| !self.tasks.contains_key(id)));
            }
            _ => {
                missing.insert(id);
            }
        }
        if missing.is_empty() { Ok(()) } else { Err(Halt::Missing(Missing(missing))) }
    }

    /// Met: one need less, and ready when it was the last. Unmet for ever: skipped or failed, and so on down.
    fn tell_child(
        &mut self,
        edge: Edge,
        end: State,
        now: Timestamp,
        ends: &mut VecDeque<(TaskId, State)>,
    ) -> Result<(), Halt> {
        let Some(child) = self.task(edge.to) else { return Ok(()) };
        if child.paused_from.unwrap_or(child.state) != State::Waiting {
            return Ok(());
        }
        if !edge.is_met_by(end) {
            let change = match edge.on_unmet {
                OnUnmet::Skip => transition::skip(child, now)?,
                OnUnmet::Fail => transition::fail_upstream(child, self.why_unmet(edge.from, end), now)?,
            };
            self.take(change, ends);
            return Ok(());
        }
        self.touch(edge.to, now, |child| {
            child.needs_left = child.needs_left.saturating_sub(1);
            true
        });
        let Some(child) = self.task(edge.to) else { return Ok(()) };
        if may_start(child, now) {
            let change = transition::ready(child, now)?;
            self.take(change, ends);
        }
        Ok(())
    }

    /// The failure of tasks that fail with another: which one it was and its error. Further down it is said again.
    fn why_unmet(&self, parent: TaskId, end: State) -> Failure {
        let of_parent = self.records.iter().rev().find(|record| record.subject == parent.0);
        let failure = of_parent.and_then(|record| record.failure.as_ref());
        if let Some(above) = failure.filter(|failure| failure.error_type.as_deref() == Some(UPSTREAM)) {
            return above.clone();
        }
        let message = failure.and_then(|failure| failure.message.lines().next()).filter(|line| !line.is_empty());
        let message: String = message.map(|line| format!(": {line}")).unwrap_or_default().chars().take(200).collect();
        let failure = Failure::new(Trigger::Upstream, format!("task {parent}, which it needs, is {end}{message}"));
        Failure { class: Some(Class::Final), error_type: Some(UPSTREAM.into()), ..failure }
    }

    /// A parent all of whose children are over has nothing left to work for (F1-12). A barrier stops the climb above it:
    /// its parents count it as over, and only the end of another child can make dead ends of them.
    fn tell_parent(
        &mut self,
        parent: TaskId,
        now: Timestamp,
        ends: &mut VecDeque<(TaskId, State)>,
    ) -> Result<(), Halt> {
        self.count_child_over(parent, now);
        let Some(task) = self.task(parent) else { return Ok(()) };
        if task.state.is_terminal() || task.children_left > 0 {
            return Ok(());
        }
        let barrier = task.dead_end_barrier;
        let change = transition::cancel(task, Reason::DeadEnd, &Actor::default(), now)?;
        if !barrier {
            self.take(change, ends);
            return Ok(());
        }
        self.take(change, &mut VecDeque::new());
        self.need_neighbours(parent)?;
        for edge in self.into.get(&parent).cloned().unwrap_or_default() {
            self.count_child_over(edge.from, now);
        }
        Ok(())
    }

    fn count_child_over(&mut self, parent: TaskId, now: Timestamp) {
        self.touch(parent, now, |task| {
            task.children_left = task.children_left.saturating_sub(1);
            task.state.is_open()
        });
    }

    fn cancel_open(&mut self, reason: Reason, act: &Actor, now: Timestamp) -> Result<(), Halt> {
        let loaded_open = self.tasks.values().filter(|(_, _, task)| task.state.is_open()).count();
        if loaded_open < self.execution.open as usize {
            return Err(Halt::Missing(Missing(BTreeSet::new())));
        }
        for id in self.sorted_ids() {
            let Some(task) = self.task(id).filter(|task| task.state.is_open()) else { continue };
            let change = transition::cancel(task, reason, act, now)?;
            // Everything goes at once: nothing is left for the edges to tell.
            self.take(change, &mut VecDeque::new());
        }
        Ok(())
    }

    /// Changes a task without an event of its own; `change` says whether it did.
    fn touch(&mut self, id: TaskId, now: Timestamp, change: impl FnOnce(&mut Task) -> bool) {
        if let Some((_, _, task)) = self.tasks.get_mut(&id)
            && change(task)
        {
            task.updated_at = task.time(now);
            self.changed.insert(id);
        }
    }

    fn sorted_ids(&self) -> Vec<TaskId> {
        let mut ids: Vec<TaskId> = self.tasks.keys().copied().collect();
        ids.sort_unstable();
        ids
    }

    /// E3 and E4: over when the last task is over.
    fn settle_execution(&mut self, now: Timestamp) {
        if self.execution.state.is_terminal() {
            return;
        }
        if let Some(end) = self.execution.verdict() {
            let kind = match end {
                ExecutionState::Succeeded => EventKind::ExecutionSucceeded,
                _ => EventKind::ExecutionFailed,
            };
            self.records.push(Record::about_execution(self.execution.id, kind, now));
            self.execution = self.execution.moved(end, now);
        }
    }

    /// Tasks that ended only because of these: below them those that never had their chance, above them those that had nothing left to work
    /// for, and beside them what their failure took along. One that another end keeps from ever starting, or from ever
    /// leading anywhere, stays given up.
    fn given_up_for(&self, roots: &BTreeSet<TaskId>) -> BTreeSet<TaskId> {
        let ended_for = |id: TaskId, reasons: &[Reason]| {
            let task = self.task(id).filter(|task| task.state.is_terminal() && !roots.contains(&id));
            task.and_then(|task| task.reason).is_some_and(|reason| reasons.contains(&reason))
        };
        const NO_CHANCE: [Reason; 5] =
            [Reason::UpstreamFailed, Reason::UpstreamUnmet, Reason::FailFast, Reason::DeadEnd, Reason::Rounds];
        let mut found: BTreeSet<TaskId> = BTreeSet::new();
        let mut queue: VecDeque<TaskId> = roots.iter().copied().collect();
        if !self.another_failure_stays(roots) {
            found.extend(self.tasks.keys().copied().filter(|id| ended_for(*id, &[Reason::FailFast])));
            queue.extend(&found);
        }
        while let Some(id) = queue.pop_front() {
            let below = self.out_edges(id).iter().map(|edge| edge.to).filter(|id| ended_for(*id, &NO_CHANCE));
            let above = self.in_edges(id).iter().map(|edge| edge.from).filter(|id| ended_for(*id, &[Reason::DeadEnd]));
            for id in below.chain(above) {
                if found.insert(id) {
                    queue.push_back(id);
                }
            }
        }
        loop {
            let hopeless: Vec<TaskId> =
                found.iter().copied().filter(|id| self.is_hopeless(*id, roots, &found)).collect();
            if hopeless.is_empty() {
                return found;
            }
            for id in hopeless {
                found.remove(&id);
            }
        }
    }

    /// Whether a failure that nobody handled stands beside these: then failing fast would take everything along again.
    fn another_failure_stays(&self, roots: &BTreeSet<TaskId>) -> bool {
        self.tasks().any(|task| {
            let for_another = matches!(
                task.reason,
                Some(Reason::UpstreamFailed | Reason::FailFast | Reason::DeadEnd | Reason::Rounds)
            );
            task.state.is_failure()
                && !for_another
                && !roots.contains(&task.id)
                && !self.is_handled(task.id, task.state)
        })
    }

    /// Whether a need of this task was refused for good by an end that is not taken back, or it would be a dead end again.
    fn is_hopeless(&self, id: TaskId, roots: &BTreeSet<TaskId>, revived: &BTreeSet<TaskId>) -> bool {
        let over = |id: TaskId| {
            let stays = !roots.contains(&id) && !revived.contains(&id);
            self.task(id).map(|task| task.state).filter(|state| stays && state.is_terminal())
        };
        let dead_end = self.task(id).is_some_and(|task| task.reason == Some(Reason::DeadEnd));
        self.in_edges(id).iter().any(|edge| over(edge.from).is_some_and(|end| !edge.is_met_by(end)))
            || (dead_end && self.out_edges(id).iter().all(|edge| over(edge.to).is_some()))
    }

    /// Whether a need of this task is not over, or not any more once these are brought back.
    fn waits_again(&self, id: TaskId, roots: &BTreeSet<TaskId>, revived: &BTreeSet<TaskId>) -> bool {
        self.in_edges(id).iter().any(|edge| {
            let comes_back = roots.contains(&edge.from) || revived.contains(&edge.from);
            comes_back || self.task(edge.from).is_some_and(|task| task.state.is_open())
        })
    }

    /// After a reopening the counts are taken afresh from the tasks: they are a cache and nothing more. A child that had
    /// counted the failure of its parent as met waits for that parent again.
    fn recount(&mut self) {
        let state_of: BTreeMap<TaskId, State> = self.tasks.iter().map(|(id, (_, _, task))| (*id, task.state)).collect();
        let ended = |id: &TaskId| state_of.get(id).copied().filter(|state| state.is_terminal());
        for (id, (_, _, task)) in &mut self.tasks {
            let count = |edges: Option<&Vec<Edge>>, counts: &dyn Fn(&Edge) -> bool| {
                let left = edges.into_iter().flatten().filter(|edge| counts(edge)).count();
                u32::try_from(left).unwrap_or(u32::MAX)
            };
            let children = count(self.out.get(id), &|edge| ended(&edge.to).is_none());
            let needs = count(self.into.get(id), &|edge| ended(&edge.from).is_none_or(|end| !edge.is_met_by(end)));
            let waits = task.paused_from.unwrap_or(task.state) == State::Waiting;
            let needs = if waits { needs } else { task.needs_left };
            if (task.needs_left, task.children_left) != (needs, children) {
                (task.needs_left, task.children_left) = (needs, children);
                if task.state.is_open() {
                    self.changed.insert(*id);
                }
            }
        }
        let open = state_of.values().filter(|state| state.is_open()).count();
        let unhandled =
            state_of.iter().filter(|(id, state)| state.is_failure() && !self.is_handled(**id, **state)).count();
        self.execution.open = u32::try_from(open).unwrap_or(u32::MAX);
        self.execution.unhandled = u32::try_from(unhandled).unwrap_or(u32::MAX);
        self.execution.version = self.execution_version + 1;
    }
}
