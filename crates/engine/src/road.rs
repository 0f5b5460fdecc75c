//! The one road that every change of a task takes: look, decide, follow the graph, store, and look again if the facts moved.
//!
//! A worker's report, a timeout, a lost lease, a passed deadline and a person's hand differ only in the verb they come with.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use comeback_core::graph::Halt;
use comeback_core::guard::GuardView;
use comeback_core::operation::{Action, Mark, Was};
use comeback_core::payload::NewPayload;
use comeback_core::transition::{self, Act, Again};
use comeback_core::{
    Audit, Commit, Did, Edge, ExecutionId, Executor, Lane, Millis, Outcome, Reason, Rejection, Snapshot, State, Task,
    TaskId, Timestamp, Transition, Working, decide,
};
use comeback_core::{admission, audit};
use comeback_store::{
    Applied, Behalf, Following, Graph, Idempotency, Loop, NewTask, Running, StoreError, Stored, Submission, Unfunded,
    Used, panic_point,
};

use crate::budgets::Budgets;
use crate::commands::audit::log_retries;
use crate::flow::above::{Above, Over};
use crate::{Core, Query};

/// How often a verdict is taken again at once on facts that moved, and for how long it is with pauses in between. In a wide
/// execution many write at the same moment, and a report that is given up is work that was done for nothing.
const ROUNDS: u32 = 4;
const PATIENCE: Duration = Duration::from_secs(5);
/// The same where time is not real and nobody can wait for it.
const MOST_ROUNDS: u32 = 64;

/// What is to happen to a task.
#[derive(Clone, Debug)]
pub(crate) enum Verb {
    End(Outcome),
    Expire,
    Cancel(Act),
    Pause(Act),
    Resume(Act),
    Reschedule {
        to: Timestamp,
        act: Act,
    },
    Snooze {
        by: Millis,
        act: Act,
    },
    /// What held it lets it go. That was done to something else, and is written down there.
    LetGo(Act),
    Retry {
        keep_counters: bool,
        at: Option<Timestamp>,
        edit: Option<Edit>,
        act: Act,
    },
    /// Takes back what a bulk operation did, if nothing has come of it yet.
    Undo {
        action: Action,
        was: Box<Was>,
        act: Act,
    },
    HookStarted {
        lease_number: u32,
    },
    Gate(Gate),
}

/// A payload in place of the version that was looked at.
#[derive(Clone, Debug)]
pub(crate) struct Edit {
    pub edited: u32,
    pub payload: Arc<str>,
}

/// What was found at a task's gate.
#[derive(Clone, Debug)]
pub(crate) enum Gate {
    Open,
    Skip,
    Fail(String),
    /// These first, and then itself.
    Spawn {
        tasks: Vec<NewTask>,
        edges: Vec<Edge>,
    },
}

impl Verb {
    /// Who is behind it, where a person or a program acts from outside.
    pub(crate) fn act(&self) -> Option<&Act> {
        match self {
            Verb::Cancel(act) | Verb::Pause(act) | Verb::Resume(act) | Verb::LetGo(act) => Some(act),
            Verb::Reschedule { act, .. } | Verb::Snooze { act, .. } | Verb::Retry { act, .. } => Some(act),
            Verb::Undo { act, .. } => Some(act),
            Verb::End(_) | Verb::Expire | Verb::HookStarted { .. } | Verb::Gate(_) => None,
        }
    }

    /// The payload that comes with it.
    fn edited(&self, after: &Task, now: Timestamp) -> Option<NewPayload> {
        let Verb::Retry { edit: Some(Edit { edited, payload }), act, .. } = self else { return None };
        let (edited, last_run, payload, by) = (*edited, after.run, payload.clone(), act.by.clone());
        Some(NewPayload { task: after.id, edited, last_run, payload, at: now, by })
    }

    /// The step of a bulk operation that it is.
    fn mark(&self, before: &Task) -> Option<Mark> {
        let operation = self.act()?.operation?;
        let was = (!matches!(self, Verb::Undo { .. })).then(|| Was::of(before));
        Some(Mark { operation, task: before.id, was })
    }

    /// What is written down of it, and who is behind it.
    fn done(&self) -> Option<(Did, &Act)> {
        let did = match self {
            Verb::Cancel(_) => Did::TaskCancel,
            Verb::Pause(_) => Did::TaskPause,
            Verb::Resume(_) => Did::TaskResume,
            Verb::Reschedule { .. } => Did::TaskReschedule,
            Verb::Snooze { .. } => Did::TaskSnooze,
            Verb::Retry { .. } => Did::TaskRetry,
            Verb::Undo { action, .. } => match action {
                Action::Retry => Did::TaskRetryUndo,
                Action::Cancel => return None,
                Action::Pause => Did::TaskResume,
                Action::Resume => Did::TaskPause,
                Action::Reschedule => Did::TaskReschedule,
            },
            Verb::LetGo(_) | Verb::End(_) | Verb::Expire | Verb::HookStarted { .. } | Verb::Gate(_) => return None,
        };
        Some((did, self.act()?))
    }
}

/// A verb, its task, and the task as it was seen last, if it was.
pub(crate) struct Wish {
    pub task: TaskId,
    pub verb: Verb,
    pub seen: Option<Stored>,
    /// What was seen was only remembered: it is good enough to act on, because the version guards the act, but not to refuse on.
    pub remembered: bool,
}

impl Wish {
    /// To be looked up afresh.
    fn forgotten(self) -> Wish {
        Wish { seen: None, remembered: false, ..self }
    }
}

/// What became of a wish.
#[derive(Debug)]
pub(crate) enum Met {
    Changed(Changed),
    Rejected(Rejection),
    NotFound,
    /// The facts moved faster than we could look.
    Stale,
    KeyTaken,
    /// The loop on whose behalf this was is paused.
    Paused,
    /// The key it came under was used before.
    Used(Used),
    /// An account has too little for it.
    Unfunded(Unfunded),
    /// What the database holds about it contradicts itself. Only this wish is concerned.
    Damaged(String),
}

/// What stands behind a change: a caller, a loop, or a caller who wants it done once.
#[derive(Clone, Copy)]
pub(crate) enum Behind<'a> {
    Caller,
    Loop(Loop),
    /// A caller who wants the work of a loop done now, whether it is paused or not.
    Asked,
    /// In a namespace, under a key, and for one wish only.
    Key(&'a str, &'a Idempotency),
}

impl<'a> From<Behind<'a>> for Behalf<'a> {
    fn from(behind: Behind<'a>) -> Behalf<'a> {
        match behind {
            Behind::Caller | Behind::Asked => Behalf::Caller,
            Behind::Loop(name) => Behalf::Loop(name),
            Behind::Key(namespace, key) => Behalf::Key(namespace, key),
        }
    }
}

impl Behind<'_> {
    /// On what was seen or not at all: what moved meanwhile may not be due any more.
    fn acts_on_what_it_saw(self) -> bool {
        matches!(self, Behind::Loop(_) | Behind::Asked)
    }
}

/// A change that was stored.
#[derive(Clone, Debug, PartialEq)]
pub struct Changed {
    pub task: TaskId,
    pub lane: Arc<Lane>,
    pub state: State,
    pub attempt: u32,
    pub run: u32,
    pub next_retry_at: Option<Timestamp>,
    pub reason: Option<Reason>,
}

impl Changed {
    pub(crate) fn of(task: &Task, reason: Option<Reason>) -> Changed {
        Changed {
            task: task.id,
            lane: task.lane.clone(),
            state: task.state,
            attempt: task.counters.attempt,
            run: task.run,
            next_retry_at: task.next_retry_at,
            reason: reason.or(task.reason),
        }
    }
}

impl Core {
    pub(crate) fn snapshot(&self, stored: &Stored) -> Snapshot {
        Snapshot {
            task: stored.task.clone(),
            policy: stored.policy.clone(),
            policy_id: stored.policy_id,
            limits: self.config.policy_limits,
            guard: GuardView::default(),
        }
    }

    /// Like `decide`; a panic is this task's trouble and nobody else's.
    fn judge(
        &self,
        verb: &Verb,
        stored: &Stored,
        budgets: &Budgets,
        now: Timestamp,
    ) -> Result<Result<Transition, Rejection>, Met> {
        let subject = stored.task.id.0;
        let judged = Running::about(subject, || self.decide(verb, stored, budgets, now));
        judged.map_err(|panic| Met::Damaged(format!("the verdict on task {subject} panicked: {panic}")))
    }

    pub(crate) fn decide(
        &self,
        verb: &Verb,
        stored: &Stored,
        budgets: &Budgets,
        now: Timestamp,
    ) -> Result<Transition, Rejection> {
        let task = &stored.task;
        panic_point!("decide");
        #[cfg(test)]
        assert!(task.lane.kind != tests::PANICS, "on purpose");
        match verb {
            Verb::End(outcome) => {
                let mut snapshot = self.snapshot(stored);
                snapshot.guard.budgets = budgets.of(task);
                snapshot.guard.dependency = budgets.guarded.of(task);
                snapshot.guard.reclassified = self.classes.of(&task.lane);
                decide::decide(&snapshot, outcome, now)
            }
            Verb::Expire => transition::expire(task, stored.hard_deadline, now),
            Verb::Cancel(act) => transition::cancel(task, Reason::Canceled, act, now),
            Verb::Pause(act) => transition::pause(task, act, now),
            Verb::Resume(act) => transition::resume(task, act, now),
            Verb::Reschedule { to, act } => transition::reschedule(task, *to, act, now),
            Verb::Snooze { by, act } => transition::reschedule(task, now + *by, act, now),
            Verb::LetGo(act) => transition::let_go(task, act, now),
            Verb::Retry { keep_counters, at, edit, act } => {
                let payload_version = edit.as_ref().map(|edit| edit.edited + 1);
                let again = Again { keep_counters: *keep_counters, payload_version, at: *at };
                transition::manual_retry_with(task, again, act, now)
            }
            Verb::Undo { action, was, act } => undo(task, *action, was, act, now),
            Verb::HookStarted { lease_number } if *lease_number != task.lease_number => Err(Rejection::LeaseLost),
            Verb::HookStarted { .. } => transition::hook_started(task, self.config.stuck_after, now),
            Verb::Gate(_) if !task.is_at_its_gate() => Err(Rejection::NotDue),
            Verb::Gate(Gate::Skip) => transition::skip_by_condition(task, now),
            Verb::Gate(Gate::Fail(message)) => transition::fail_at_gate(task, message, now),
            Verb::Gate(Gate::Open | Gate::Spawn { .. }) => transition::ready(task, now),
        }
    }

    /// What is written down beside a change that somebody made.
    fn noted(&self, verb: &Verb, before: &Task, after: &Task, now: Timestamp) -> Option<Audit> {
        let (did, act) = verb.done()?;
        let (mut was, mut is) = (audit::task_facts(before), audit::task_facts(after));
        if let Verb::Retry { edit: Some(edit), .. } = verb {
            (was["payload_version"], is["payload_version"]) = (edit.edited.into(), (edit.edited + 1).into());
        }
        if let Some(operation) = act.operation {
            is["operation"] = operation.to_string().into();
        }
        let entry = Audit::new(self.ids.act(now), now, did, after.id.to_string(), act);
        Some(entry.within(&before.lane.namespace).changed(Some(was), Some(is)))
    }

    /// Fulfils wishes, each for itself; the answers are in their order.
    pub(crate) async fn fulfil(&self, wishes: Vec<Wish>, behind: Behind<'_>) -> Result<Vec<Met>, StoreError> {
        let mut answers: Vec<Option<Met>> = (0..wishes.len()).map(|_| None).collect();
        let mut left: Vec<(usize, Wish)> = wishes.into_iter().enumerate().collect();
        let started = Instant::now();
        let mut rounds = 0;
        while !left.is_empty() && self.goes_on(rounds, started).await {
            left = self.round(left, behind, &mut answers).await?;
            rounds += 1;
        }
        self.tell_guards().await;
        Ok(answers.into_iter().map(|answer| answer.unwrap_or(Met::Stale)).collect())
    }

    /// Whether to look again after so many rounds; the first few at once, then after a pause that grows.
    pub(crate) async fn goes_on(&self, rounds: u32, started: Instant) -> bool {
        if rounds < ROUNDS {
            return true;
        }
        if !self.clock.is_real() {
            tokio::task::yield_now().await;
            return rounds < MOST_ROUNDS;
        }
        tokio::time::sleep(Duration::from_millis(1 << (rounds - ROUNDS).min(6))).await;
        started.elapsed() < PATIENCE
    }

    async fn round(
        &self,
        wishes: Vec<(usize, Wish)>,
        behind: Behind<'_>,
        answers: &mut [Option<Met>],
    ) -> Result<Vec<(usize, Wish)>, StoreError> {
        let wishes = self.look(wishes, answers).await?;
        let now = self.clock.now();
        let mut budgets = self.budgets(&wishes, now).await?;
        let mut again = Vec::new();
        let mut plans: Vec<Plan> = Vec::with_capacity(wishes.len());
        let mut shared: BTreeMap<ExecutionId, Vec<(usize, Wish)>> = BTreeMap::new();
        for (index, wish) in wishes {
            let Some(stored) = &wish.seen else {
                answers[index] = Some(Met::NotFound);
                continue;
            };
            match stored.task.execution {
                Some(execution) => shared.entry(execution).or_default().push((index, wish)),
                None => match self.judge(&wish.verb, stored, &budgets, now) {
                    Err(met) => answers[index] = Some(met),
                    Ok(Err(_)) if wish.remembered => again.push((index, wish.forgotten())),
                    Ok(Err(rejection)) => answers[index] = Some(Met::Rejected(rejection)),
                    Ok(Ok(change)) => {
                        let noted = self.noted(&wish.verb, &stored.task, change.after(), now);
                        let edited = wish.verb.edited(change.after(), now);
                        let bookings = budgets.book(&change);
                        let mark = wish.verb.mark(&stored.task);
                        let mut plan = Plan::lone(index, wish, change);
                        plan.commit.marks.extend(mark);
                        plan.commit.bookings.extend(bookings);
                        plan.commit.audit.extend(noted);
                        plan.commit.payloads.extend(edited);
                        plans.push(plan);
                    }
                },
            }
        }
        for (execution, wishes) in shared {
            let indexes: Vec<usize> = wishes.iter().map(|(index, _)| *index).collect();
            match self.plan_shared(execution, wishes, behind.acts_on_what_it_saw(), &mut budgets, now, answers).await {
                Ok(plan) => plans.push(plan),
                // The others go on: one execution that contradicts itself must not hold up everybody.
                Err(StoreError::Corrupt(what)) => {
                    tracing::error!(%execution, what, "an execution contradicts itself; `comeback db check` tells more");
                    for index in indexes {
                        answers[index] = Some(Met::Damaged(what.clone()));
                    }
                }
                Err(error) => return Err(error),
            }
        }
        plans.retain(|plan| !plan.items.is_empty());
        if plans.is_empty() {
            return Ok(again);
        }
        if !self.reserve(&budgets.guarded, now).await? {
            let items = plans.into_iter().flat_map(|plan| plan.items);
            again.extend(items.map(|(index, wish, _)| (index, wish)));
            return Ok(again);
        }
        for plan in &mut plans {
            if let Some(calls) = self.calls_of(&plan.commit, now).await? {
                let spawn = plan.spawn.get_or_insert_with(|| Submission::in_namespace(&calls.namespace));
                spawn.tasks.extend(calls.tasks);
            }
        }
        let (spawning, mut plain): (Vec<Plan>, Vec<Plan>) = plans.into_iter().partition(|plan| plan.spawn.is_some());
        panic_point!("road-before-store");
        let commits: Vec<Commit> = plain.iter_mut().map(|plan| std::mem::take(&mut plan.commit)).collect();
        if !commits.is_empty() {
            let applied = self.store_all(&commits, behind, now).await?;
            for ((plan, commit), outcome) in plain.into_iter().zip(&commits).zip(applied) {
                panic_point!("road-after-store");
                again.extend(self.conclude(plan, commit, outcome, behind, answers));
                if outcome == Applied::Done {
                    self.registered_meanwhile(commit).await;
                }
            }
        }
        for mut plan in spawning {
            let (commit, spawn) = (std::mem::take(&mut plan.commit), plan.spawn.take().unwrap_or_default());
            let applied = self.store.apply_spawning(&commit, &spawn, behind.into(), now);
            let outcome = self.tallies.asked(Query::Apply, applied).await?;
            again.extend(self.conclude(plan, &commit, outcome, behind, answers));
            if outcome == Applied::Done {
                self.tell_submitted(std::slice::from_ref(&spawn));
                self.registered_meanwhile(&commit).await;
            }
        }
        Ok(again)
    }

    /// What is to be looked at again.
    fn conclude(
        &self,
        plan: Plan,
        commit: &Commit,
        outcome: Applied,
        behind: Behind<'_>,
        answers: &mut [Option<Met>],
    ) -> Vec<(usize, Wish)> {
        match outcome {
            Applied::Done => {
                self.tell(commit);
                for (index, _, changed) in plan.items {
                    answers[index] = Some(Met::Changed(changed));
                }
            }
            Applied::Stale if behind.acts_on_what_it_saw() => plan.answer(answers, || Met::Stale),
            Applied::Stale => {
                return plan.items.into_iter().map(|(index, wish, _)| (index, wish.forgotten())).collect();
            }
            Applied::Paused => plan.answer(answers, || Met::Paused),
            Applied::KeyTaken => plan.answer(answers, || Met::KeyTaken),
            Applied::Used(used) => plan.answer(answers, || Met::Used(used)),
            Applied::Unfunded(short) => plan.answer(answers, || Met::Unfunded(short)),
        }
        Vec::new()
    }

    async fn store_all(
        &self,
        commits: &[Commit],
        behind: Behind<'_>,
        now: Timestamp,
    ) -> Result<Vec<Applied>, StoreError> {
        let applied = async {
            match behind {
                Behind::Caller | Behind::Asked => self.store.apply(commits, None, now).await,
                Behind::Loop(name) => self.store.apply(commits, Some(name), now).await,
                Behind::Key(namespace, key) => {
                    Ok(vec![self.store.apply_once(namespace, key, commits.first(), now).await?])
                }
            }
        };
        self.tallies.asked(Query::Apply, applied).await
    }

    /// Loads what has not been seen. What cannot be read is answered, and the others go on.
    async fn look(
        &self,
        wishes: Vec<(usize, Wish)>,
        answers: &mut [Option<Met>],
    ) -> Result<Vec<(usize, Wish)>, StoreError> {
        let unseen: Vec<TaskId> =
            wishes.iter().filter(|(_, wish)| wish.seen.is_none()).map(|(_, wish)| wish.task).collect();
        if unseen.is_empty() {
            return Ok(wishes);
        }
        let mut found = match self.tallies.asked(Query::Load, self.store.load(&unseen)).await {
            Ok(found) => found.into_iter().map(Ok).collect(),
            Err(StoreError::Corrupt(_)) => self.load_one_by_one(&unseen).await?,
            Err(error) => return Err(error),
        }
        .into_iter();
        let mut left = Vec::with_capacity(wishes.len());
        for (index, mut wish) in wishes {
            if wish.seen.is_none() {
                match found.next() {
                    Some(Err(what)) => {
                        answers[index] = Some(Met::Damaged(what));
                        continue;
                    }
                    stored => wish.seen = stored.and_then(Result::ok).flatten(),
                }
            }
            left.push((index, wish));
        }
        Ok(left)
    }

    pub(crate) async fn load_one_by_one(
        &self,
        ids: &[TaskId],
    ) -> Result<Vec<Result<Option<Stored>, String>>, StoreError> {
        let mut found = Vec::with_capacity(ids.len());
        for id in ids {
            found.push(match self.store.load(&[*id]).await {
                Ok(stored) => Ok(stored.into_iter().next().flatten()),
                Err(StoreError::Corrupt(what)) => Err(what),
                Err(error) => return Err(error),
            });
        }
        Ok(found)
    }

    /// One commit for all that is wished for in one execution, with what follows for the neighbours.
    async fn plan_shared(
        &self,
        execution: ExecutionId,
        mut wishes: Vec<(usize, Wish)>,
        only_as_seen: bool,
        budgets: &mut Budgets,
        now: Timestamp,
        answers: &mut [Option<Met>],
    ) -> Result<Plan, StoreError> {
        let mut around: BTreeSet<TaskId> = wishes.iter().map(|(_, wish)| wish.task).collect();
        let mut whole = wishes.iter().any(|(_, wish)| matches!(wish.verb, Verb::Retry { .. }));
        loop {
            let seeds: Vec<TaskId> = around.iter().copied().collect();
            let graph = self.store.graph(execution, if whole { None } else { Some(&seeds) }).await?;
            let Some(graph) = graph else {
                return Ok(Plan::nothing(wishes, answers, || Met::NotFound));
            };
            let was = graph.execution.clone();
            let (mut working, stored) = open_graph(graph);
            let mut rejected: HashMap<usize, Met> = HashMap::new();
            let mut reasons: HashMap<usize, Option<Reason>> = HashMap::new();
            let mut missing = None;
            let mut spawn: Option<Submission> = None;
            let (mut noted, mut payloads): (Vec<Audit>, Vec<NewPayload>) = Default::default();
            // What is tried in vain books nothing.
            let (mut bookings, mut tried) = (Vec::new(), budgets.clone());
            let mut marks = Vec::new();
            for (index, wish) in &wishes {
                let seen = stored.get(&wish.task).zip(working.task(wish.task));
                let Some(stored) = seen.map(|(stored, task)| Stored { task: task.clone(), ..stored.clone() }) else {
                    rejected.insert(*index, Met::NotFound);
                    continue;
                };
                if only_as_seen && wish.seen.as_ref().is_some_and(|seen| seen.task.version != stored.task.version) {
                    rejected.insert(*index, Met::Stale);
                    continue;
                }
                let change = match self.judge(&wish.verb, &stored, &tried, now) {
                    Ok(Ok(change)) => change,
                    Err(met) => {
                        rejected.insert(*index, met);
                        continue;
                    }
                    Ok(Err(rejection)) => {
                        rejected.insert(*index, Met::Rejected(rejection));
                        continue;
                    }
                };
                reasons.insert(*index, reason_of(&change));
                let entry = self.noted(&wish.verb, &stored.task, change.after(), now);
                let edited = wish.verb.edited(change.after(), now);
                let booked = tried.book(&change);
                let mark = wish.verb.mark(&stored.task);
                let followed = match &wish.verb {
                    Verb::Retry { .. } => working.reopen(change, now),
                    Verb::Gate(Gate::Open) => working.open_gate(wish.task, now),
                    Verb::Gate(Gate::Spawn { tasks, edges }) => {
                        let new = tasks.iter().map(|new| new.task.clone()).collect();
                        working.spawn(wish.task, new, edges, now).map(|began| {
                            let spawn =
                                spawn.get_or_insert_with(|| Submission::in_namespace(&stored.task.lane.namespace));
                            let as_begun = |(new, task): (&NewTask, Task)| NewTask { task, ..new.clone() };
                            spawn.tasks.extend(tasks.iter().zip(began).map(as_begun));
                            spawn.edges.extend(edges);
                        })
                    }
                    _ => working.apply(change, now),
                };
                match followed {
                    Ok(()) => {
                        noted.extend(entry);
                        payloads.extend(edited);
                        bookings.extend(booked);
                        marks.extend(mark);
                    }
                    Err(Halt::Rejected(rejection)) => {
                        rejected.insert(*index, Met::Rejected(rejection));
                    }
                    Err(Halt::Missing(more)) => {
                        missing = Some(more.0);
                        break;
                    }
                }
            }
            match missing {
                // A first gap is filled with the neighbours it names; a second one means that the change goes far.
                Some(more) if !whole && around.len() < 64 && !more.is_subset(&around) => around.extend(more),
                Some(_) if !whole => whole = true,
                // All of it was there, and it still names what is not.
                Some(more) => {
                    let named = more.first().map_or("tasks".to_owned(), |id| format!("task {id}"));
                    return Err(StoreError::Corrupt(format!("execution {execution} needs {named}, not to be found")));
                }
                None => {
                    let mut above = Commit::default();
                    // What was over goes on by hand: so does what stands for it.
                    if was.state.is_terminal() && !working.execution().state.is_terminal() {
                        let is_retry = |wish: &Wish| matches!(wish.verb, Verb::Retry { .. });
                        let act = wishes.iter().find(|(index, wish)| is_retry(wish) && !rejected.contains_key(index));
                        let act = act.and_then(|(_, wish)| wish.verb.act()).cloned().unwrap_or_default();
                        let over = Over { id: was.id, state: was.state, parent: was.parent, to_begin: None };
                        match self.above(over, &act, now).await? {
                            Above::With(more, parent) => {
                                working.set_parent(parent);
                                above = more;
                            }
                            Above::Refused(verb) => {
                                for (index, wish) in wishes.extract_if(.., |(_, wish)| is_retry(wish)) {
                                    let state = stored.get(&wish.task).map_or(State::Failed, |it| it.task.state);
                                    let refused = Met::Rejected(Rejection::WrongState { state, verb });
                                    answers[index] = Some(rejected.remove(&index).unwrap_or(refused));
                                }
                                continue;
                            }
                        }
                    }
                    let mut plan = Plan::shared(working, wishes, rejected, &reasons, answers);
                    plan.commit.join(Commit { audit: noted, payloads, bookings, marks, ..above });
                    *budgets = tried;
                    return Ok(Plan { spawn, ..plan });
                }
            }
        }
    }

    /// After a commit: whoever waits for this work is told, and the alarms are set.
    pub(crate) fn tell(&self, commit: &Commit) {
        self.tallies.count(commit);
        self.guards.note(commit);
        log_retries(&commit.audit);
        self.config.watching.stored(commit);
        self.tell_outside();
        if commit.executions.iter().any(|write| write.after.state.is_terminal()) {
            self.ring(Loop::Flow);
        }
        for write in &commit.writes {
            if admission::is_counted(write.from) && !admission::is_counted(write.after.state) {
                self.freed(&write.after.lane);
            }
        }
        let tasks = commit.writes.iter().map(|write| &write.after).inspect(|task| self.set_alarms(task));
        self.tell_of(tasks.filter(|task| task.state == State::Pending && !task.execution_paused));
    }

    /// Something happened: whoever follows the feed looks, where anybody does.
    pub(crate) fn tell_outside(&self) {
        for (sort, name) in [(Following::Subscriptions, Loop::Tell), (Following::Alerts, Loop::Alerts)] {
            if self.looked.anybody(sort) {
                self.ring(name);
            }
        }
    }

    /// Whoever waits for these is told, here and on other instances.
    pub(crate) fn tell_of<'a>(&self, ready: impl Iterator<Item = &'a Task>) {
        let mut by_lane: HashMap<&Lane, u32> = HashMap::new();
        for task in ready {
            *by_lane.entry(&task.lane).or_default() += 1;
        }
        if by_lane.is_empty() {
            return;
        }
        for (lane, count) in by_lane {
            self.wake.work(lane, count);
        }
        self.store.notify();
    }

    pub(crate) fn set_alarms(&self, task: &Task) {
        if task.state.is_terminal() {
            return;
        }
        let stands_for_others = task.state == State::Pending && task.lane.executor == Executor::Flow;
        if task.is_at_its_gate() || stands_for_others {
            self.ring(Loop::Flow);
        }
        if let Some(due) = task.due() {
            match task.state {
                State::RetryPending => self.alarms.retries.at(due),
                _ => self.alarms.starts.at(due),
            }
        }
        if let Some(at) = task.lease.as_ref().and_then(|lease| lease.expires_at) {
            self.alarms.leases.at(at);
        }
        if let Some(at) = task.timeout_at {
            self.alarms.timeouts.at(at);
        }
        if let Some(at) = task.expires_at {
            self.alarms.deadlines.at(at);
        }
    }
}

/// Back to what a task was before an operation came. A retry comes back as long as nobody has started it; anything else only if it
/// was the last that happened. A cancel is for good.
fn undo(task: &Task, action: Action, was: &Was, act: &Act, now: Timestamp) -> Result<Transition, Rejection> {
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

fn reason_of(change: &Transition) -> Option<Reason> {
    change.record().decision.as_ref().map(|decision| decision.reason)
}

/// One commit and the wishes it fulfils.
struct Plan {
    commit: Commit,
    /// Tasks that it makes.
    spawn: Option<Submission>,
    items: Vec<(usize, Wish, Changed)>,
}

impl Plan {
    fn lone(index: usize, wish: Wish, change: Transition) -> Plan {
        let changed = Changed::of(change.after(), reason_of(&change));
        Plan { items: vec![(index, wish, changed)], commit: change.into(), spawn: None }
    }

    fn shared(
        working: Working,
        wishes: Vec<(usize, Wish)>,
        mut rejected: HashMap<usize, Met>,
        reasons: &HashMap<usize, Option<Reason>>,
        answers: &mut [Option<Met>],
    ) -> Plan {
        let mut items = Vec::with_capacity(wishes.len());
        for (index, wish) in wishes {
            if let Some(met) = rejected.remove(&index) {
                answers[index] = Some(met);
            } else if let Some(task) = working.task(wish.task) {
                let changed = Changed::of(task, reasons.get(&index).copied().flatten());
                items.push((index, wish, changed));
            }
        }
        Plan { commit: working.into_commit(), items, spawn: None }
    }

    fn nothing(wishes: Vec<(usize, Wish)>, answers: &mut [Option<Met>], met: impl Fn() -> Met) -> Plan {
        for (index, _) in wishes {
            answers[index] = Some(met());
        }
        Plan { commit: Commit::default(), items: Vec::new(), spawn: None }
    }

    fn answer(self, answers: &mut [Option<Met>], met: impl Fn() -> Met) {
        for (index, _, _) in self.items {
            answers[index] = Some(met());
        }
    }
}
