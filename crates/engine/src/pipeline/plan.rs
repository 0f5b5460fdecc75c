//! Decides requests and plans one commit for a lone task, or one for all requests about an execution.

use std::collections::{BTreeSet, HashMap};

use comeback_core::execution::Execution;
use comeback_core::graph::Halt;
use comeback_core::guard::GuardView;
use comeback_core::operation::{Action, UndoSnapshot};
use comeback_core::transition::{self, Actor, RetryOptions};
use comeback_core::{
    Audit, Commit, ExecutionId, Reason, Rejection, Snapshot, State, Task, TaskId, Timestamp, Transition, Working,
    audit, decide,
};
use comeback_store::{Graph, NewTask, Running, StoreError, Stored, Submission, panic_point};

use super::{ChangeOutcome, ChangeRequest, Changed, Gate, Indexed, TaskChange};
use crate::Core;
use crate::budgets::Budgets;
use crate::flow::above::{Above, Over};

/// Tasks of an execution that are loaded one neighbourhood after the other; beyond that the whole graph is loaded.
const MOST_SEEDS: usize = 64;

/// One commit and the requests that it answers.
pub(super) struct Plan {
    pub commit: Commit,
    /// Tasks that it adds.
    pub spawn: Option<Submission>,
    pub items: Vec<(usize, ChangeRequest, Changed)>,
}

impl Plan {
    pub fn into_requests(self) -> impl Iterator<Item = Indexed> {
        self.items.into_iter().map(|(index, request, _)| (index, request))
    }
}

impl Core {
    /// The input of a decision, without guards.
    pub(crate) fn snapshot(&self, stored: &Stored) -> Snapshot {
        Snapshot {
            task: stored.task.clone(),
            policy: stored.policy.clone(),
            policy_id: stored.policy_id,
            limits: self.config.policy_limits,
            guard: GuardView::default(),
        }
    }

    /// As [`Core::decide`]; a panic is the outcome of this request and leaves the others alone.
    fn decide_caught(
        &self,
        change: &TaskChange,
        stored: &Stored,
        budgets: &Budgets,
        now: Timestamp,
    ) -> Result<Transition, ChangeOutcome> {
        let subject = stored.task.id.0;
        match Running::about(subject, || self.decide(change, stored, budgets, now)) {
            Ok(decided) => decided.map_err(ChangeOutcome::Rejected),
            Err(panic) => Err(ChangeOutcome::Corrupt(format!("the decision on task {subject} panicked: {panic}"))),
        }
    }

    /// The transition that a change means for a task as it is stored.
    pub(crate) fn decide(
        &self,
        change: &TaskChange,
        stored: &Stored,
        budgets: &Budgets,
        now: Timestamp,
    ) -> Result<Transition, Rejection> {
        let task = &stored.task;
        panic_point!("decide");
        #[cfg(test)]
        assert!(task.lane.kind != super::tests::PANICS, "on purpose");
        match change {
            TaskChange::End(outcome) => {
                let mut snapshot = self.snapshot(stored);
                snapshot.guard.budgets = budgets.of(task);
                snapshot.guard.dependency = budgets.guarded.of(task);
                snapshot.guard.reclassified = self.classes.of(&task.lane);
                decide::decide(&snapshot, outcome, now)
            }
            TaskChange::Expire => transition::expire(task, stored.hard_deadline, now),
            TaskChange::Cancel(act) => transition::cancel(task, Reason::Canceled, act, now),
            TaskChange::Pause(act) => transition::pause(task, act, now),
            TaskChange::Resume(act) => transition::resume(task, act, now),
            TaskChange::Reschedule { to, act } => transition::reschedule(task, *to, act, now),
            TaskChange::Snooze { by, act } => transition::reschedule(task, now + *by, act, now),
            TaskChange::ClearHold(act) => transition::let_go(task, act, now),
            TaskChange::Retry { keep_counters, at, edit, act } => {
                let payload_version = edit.as_ref().map(|edit| edit.edited + 1);
                let again = RetryOptions { keep_counters: *keep_counters, payload_version, at: *at };
                transition::manual_retry_with(task, again, act, now)
            }
            TaskChange::Undo { action, was, act } => undo(task, *action, was, act, now),
            TaskChange::HookStarted { lease_number } if *lease_number != task.lease_number => Err(Rejection::LeaseLost),
            TaskChange::HookStarted { .. } => transition::hook_started(task, self.config.stuck_after, now),
            TaskChange::Gate(_) if !task.is_at_its_gate() => Err(Rejection::NotDue),
            TaskChange::Gate(Gate::Skip) => transition::skip_by_condition(task, now),
            TaskChange::Gate(Gate::Fail(message)) => transition::fail_at_gate(task, message, now),
            TaskChange::Gate(Gate::Open | Gate::Spawn { .. }) => transition::ready(task, now),
        }
    }

    /// The audit entry of a change; `None` for changes by workers and loops.
    fn audit_entry(&self, change: &TaskChange, before: &Task, after: &Task, now: Timestamp) -> Option<Audit> {
        let (action, act) = change.audit_action()?;
        let (mut was, mut is) = (audit::task_facts(before), audit::task_facts(after));
        if let TaskChange::Retry { edit: Some(edit), .. } = change {
            (was["payload_version"], is["payload_version"]) = (edit.edited.into(), (edit.edited + 1).into());
        }
        if let Some(operation) = act.operation {
            is["operation"] = operation.to_string().into();
        }
        let entry = Audit::new(self.ids.act(now), now, action, after.id.to_string(), act);
        Some(entry.within(&before.lane.namespace).changed(Some(was), Some(is)))
    }

    /// The rows that are written beside a transition: audit entry, edited payload, bookings, step of a bulk operation.
    fn rows_beside(
        &self,
        change: &TaskChange,
        before: &Task,
        transition: &Transition,
        budgets: &mut Budgets,
        now: Timestamp,
    ) -> Commit {
        let after = transition.after();
        Commit {
            audit: self.audit_entry(change, before, after, now).into_iter().collect(),
            payloads: change.edited_payload(after, now).into_iter().collect(),
            bookings: budgets.book(transition),
            marks: change.operation_step(before).into_iter().collect(),
            ..Commit::default()
        }
    }

    /// The commit for a request about a task without an execution.
    pub(super) fn plan_lone(
        &self,
        request: &ChangeRequest,
        budgets: &mut Budgets,
        now: Timestamp,
    ) -> Result<(Commit, Changed), ChangeOutcome> {
        let stored = request.stored().ok_or(ChangeOutcome::NotFound)?;
        let transition = self.decide_caught(&request.change, stored, budgets, now)?;
        let beside = self.rows_beside(&request.change, &stored.task, &transition, budgets, now);
        let changed = Changed::of(transition.after(), reason_of(&transition));
        let mut commit: Commit = transition.into();
        commit.join(beside);
        Ok((commit, changed))
    }

    /// One commit for all requests about one execution, with what they mean for the neighbours.
    pub(super) async fn plan_execution(
        &self,
        execution: ExecutionId,
        mut requests: Vec<Indexed>,
        budgets: &mut Budgets,
        now: Timestamp,
        outcomes: &mut [Option<ChangeOutcome>],
    ) -> Result<Plan, StoreError> {
        let mut seeds: BTreeSet<TaskId> = requests.iter().map(|(_, request)| request.task).collect();
        let mut whole = requests.iter().any(|(_, request)| is_retry(request));
        loop {
            let around: Vec<TaskId> = seeds.iter().copied().collect();
            let Some(graph) = self.store.graph(execution, if whole { None } else { Some(&around) }).await? else {
                for (index, _) in requests {
                    outcomes[index] = Some(ChangeOutcome::NotFound);
                }
                return Ok(Plan { commit: Commit::default(), spawn: None, items: Vec::new() });
            };
            let was = graph.execution.clone();
            // On a clone: an incomplete draft books nothing.
            let mut draft = Draft::new(graph, budgets.clone());
            match requests.iter().try_for_each(|(index, request)| draft.add(self, *index, request, now)) {
                Ok(()) => {}
                // The first gap is filled with the neighbours it names; a second one means that the change goes far.
                Err(more) if !whole && seeds.len() < MOST_SEEDS && !more.is_subset(&seeds) => {
                    seeds.extend(more);
                    continue;
                }
                Err(_) if !whole => {
                    whole = true;
                    continue;
                }
                Err(more) => {
                    let named = more.first().map_or("tasks".to_owned(), |id| format!("task {id}"));
                    return Err(StoreError::Corrupt(format!("execution {execution} needs {named}, not to be found")));
                }
            }
            if let Some(verb) = self.reopen_parents(&was, &mut draft, &requests, now).await? {
                // The execution above refuses: plan again without the retries.
                for (index, request) in requests.extract_if(.., |(_, request)| is_retry(request)) {
                    outcomes[index] = Some(draft.refused(index, request.task, verb));
                }
                continue;
            }
            *budgets = std::mem::take(&mut draft.budgets);
            return Ok(draft.into_plan(requests, outcomes));
        }
    }

    /// If the draft reopens an execution that had ended, the task that stands for it in the execution above goes on too (T30). Returns the
    /// verb that the execution above refuses.
    async fn reopen_parents(
        &self,
        was: &Execution,
        draft: &mut Draft,
        requests: &[Indexed],
        now: Timestamp,
    ) -> Result<Option<&'static str>, StoreError> {
        if !was.state.is_terminal() || draft.working.execution().state.is_terminal() {
            return Ok(None);
        }
        let retry = requests.iter().find(|(index, it)| is_retry(it) && !draft.refusals.contains_key(index));
        let act = retry.and_then(|(_, request)| request.change.act()).cloned().unwrap_or_default();
        let over = Over { id: was.id, state: was.state, parent: was.parent, to_begin: None };
        match self.above(over, &act, now).await? {
            Above::With(commit, parent) => {
                draft.working.set_parent(parent);
                draft.beside.join(commit);
                Ok(None)
            }
            Above::Refused(verb) => Ok(Some(verb)),
        }
    }
}

/// Requests about one execution, decided against one load of its graph; each sees the changes of those before it.
struct Draft {
    working: Working,
    stored: HashMap<TaskId, Stored>,
    budgets: Budgets,
    refusals: HashMap<usize, ChangeOutcome>,
    reasons: HashMap<usize, Option<Reason>>,
    beside: Commit,
    spawn: Option<Submission>,
}

impl Draft {
    fn new(graph: Graph, budgets: Budgets) -> Draft {
        let (working, stored) = open_graph(graph);
        Draft {
            working,
            stored,
            budgets,
            refusals: HashMap::new(),
            reasons: HashMap::new(),
            beside: Commit::default(),
            spawn: None,
        }
    }

    /// Decides one request and propagates it. `Err` has the tasks that must be loaded first.
    fn add(
        &mut self,
        core: &Core,
        index: usize,
        request: &ChangeRequest,
        now: Timestamp,
    ) -> Result<(), BTreeSet<TaskId>> {
        match self.try_add(core, index, request, now) {
            Ok(()) => Ok(()),
            Err(Stop::Refused(outcome)) => {
                self.refusals.insert(index, outcome);
                Ok(())
            }
            Err(Stop::Missing(more)) => Err(more),
        }
    }

    fn try_add(&mut self, core: &Core, index: usize, request: &ChangeRequest, now: Timestamp) -> Result<(), Stop> {
        let found = self.stored.get(&request.task).zip(self.working.task(request.task));
        let stored = found.map(|(stored, task)| Stored { task: task.clone(), ..stored.clone() });
        let stored = stored.ok_or(Stop::Refused(ChangeOutcome::NotFound))?;
        if request.is_exact() && request.stored().is_some_and(|it| it.task.version != stored.task.version) {
            return Err(Stop::Refused(ChangeOutcome::Stale));
        }
        let transition = core.decide_caught(&request.change, &stored, &self.budgets, now).map_err(Stop::Refused)?;
        self.reasons.insert(index, reason_of(&transition));
        let beside = core.rows_beside(&request.change, &stored.task, &transition, &mut self.budgets, now);
        match &request.change {
            TaskChange::Retry { .. } => self.working.reopen(transition, now)?,
            TaskChange::Gate(Gate::Open) => self.working.open_gate(request.task, now)?,
            TaskChange::Gate(Gate::Spawn { tasks, edges }) => {
                let new = tasks.iter().map(|new| new.task.clone()).collect();
                let begun = self.working.spawn(request.task, new, edges, now)?;
                let spawn = self.spawn.get_or_insert_with(|| Submission::in_namespace(&stored.task.lane.namespace));
                let as_begun = |(new, task): (&NewTask, Task)| NewTask { task, ..new.clone() };
                spawn.tasks.extend(tasks.iter().zip(begun).map(as_begun));
                spawn.edges.extend(edges);
            }
            _ => self.working.apply(transition, now)?,
        }
        self.beside.join(beside);
        Ok(())
    }

    /// The outcome of a retry that the execution above refuses.
    fn refused(&mut self, index: usize, task: TaskId, verb: &'static str) -> ChangeOutcome {
        let state = self.stored.get(&task).map_or(State::Failed, |stored| stored.task.state);
        let refused = ChangeOutcome::Rejected(Rejection::WrongState { state, verb });
        self.refusals.remove(&index).unwrap_or(refused)
    }

    fn into_plan(mut self, requests: Vec<Indexed>, outcomes: &mut [Option<ChangeOutcome>]) -> Plan {
        let mut items = Vec::with_capacity(requests.len());
        for (index, request) in requests {
            if let Some(outcome) = self.refusals.remove(&index) {
                outcomes[index] = Some(outcome);
            } else if let Some(task) = self.working.task(request.task) {
                let changed = Changed::of(task, self.reasons.get(&index).copied().flatten());
                items.push((index, request, changed));
            }
        }
        let mut commit = self.working.into_commit();
        commit.join(self.beside);
        Plan { commit, spawn: self.spawn, items }
    }
}

/// Reason why a draft does not take a request.
enum Stop {
    Refused(ChangeOutcome),
    Missing(BTreeSet<TaskId>),
}

impl From<Halt> for Stop {
    fn from(halt: Halt) -> Stop {
        match halt {
            Halt::Rejected(rejection) => Stop::Refused(ChangeOutcome::Rejected(rejection)),
            Halt::Missing(more) => Stop::Missing(more.0),
        }
    }
}

fn is_retry(request: &ChangeRequest) -> bool {
    matches!(request.change, TaskChange::Retry { .. })
}

/// Undoes the step of a bulk operation. A retry is undone as long as no run has started, anything else only if it was the last change. A
/// cancel is final.
fn undo(task: &Task, action: Action, was: &UndoSnapshot, act: &Actor, now: Timestamp) -> Result<Transition, Rejection> {
    let is_last = was.is_one_behind(task) && !was.parked;
    match action {
        Action::Retry => transition::undo_retry(task, was, act, now),
        Action::Pause if is_last => transition::resume(task, act, now),
        Action::Resume if is_last => transition::pause(task, act, now),
        Action::Reschedule if is_last => {
            transition::reschedule(task, was.next_retry_at.or(was.start_at).unwrap_or(now), act, now)
        }
        _ => Err(Rejection::WrongState { state: task.state, verb: "put back" }),
    }
}

/// A graph as it was loaded, ready for changes.
pub(crate) fn open_graph(graph: Graph) -> (Working, HashMap<TaskId, Stored>) {
    let mut working = Working::new(graph.execution);
    let mut stored = HashMap::with_capacity(graph.tasks.len());
    for task in graph.tasks {
        stored.insert(task.stored.task.id, task.stored.clone());
        match task.edges {
            Some(edges) => working.add(task.stored.task, edges.out, edges.into),
            None => working.add_neighbour(task.stored.task),
        }
    }
    (working, stored)
}

fn reason_of(transition: &Transition) -> Option<Reason> {
    transition.record().decision.as_ref().map(|decision| decision.reason)
}
