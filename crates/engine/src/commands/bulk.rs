//! Bulk operations: one act on many tasks, chosen once, tried out beforehand, and stopped or taken back afterwards.

use std::collections::{HashMap, HashSet};

use comeback_core::account::Move;
use comeback_core::filter::Filter;
use comeback_core::operation::{Action, Excluded, Exclusion, MOST_TASKS, OperationState, Plan, Standing, exclude};
use comeback_core::transition::Actor;
use comeback_core::{AuditAction, Invalid, State, TaskId, Timestamp};
use comeback_store::{Applied, Idempotency, Loop, Operation, Started, Stored, interactive};
use serde_json::json;
use uuid::Uuid;

use crate::budgets::Budgets;
use crate::operations::{refused, task_change, text, understood};
use crate::{CommandError, Engine};

/// Tasks that are looked at in one go before anything is done.
const LOOK: usize = 1_000;
/// Attempts if another instance changes the operation at the same time.
const ROUNDS: u32 = 50;

/// Which tasks.
#[derive(Clone, Debug)]
pub enum Selection {
    /// All that it finds at this moment.
    Filter(String),
    /// These tasks.
    Ids(Vec<TaskId>),
}

/// A bulk operation as a caller asks for it.
#[derive(Clone, Debug)]
pub struct Bulk {
    /// Action and its options.
    pub plan: Plan,
    /// Selected tasks.
    pub which: Selection,
    /// Idempotency key.
    pub once: Option<Idempotency>,
}

/// Preview of an operation.
#[derive(Clone, Debug)]
pub struct Preview {
    /// Action and its options.
    pub plan: Plan,
    /// Time of the preview.
    pub at: Timestamp,
    /// Selected tasks.
    pub total: u32,
    /// Tasks that would be changed.
    pub eligible: u32,
    /// The first of those.
    pub sample: Vec<TaskId>,
    /// Tasks that would not be changed, by reason.
    pub excluded: Vec<Excluded>,
    /// Credits that it would reserve.
    pub cost: u64,
}

/// A bulk operation with its state.
#[derive(Clone, Debug)]
pub struct OperationView {
    /// The stored row.
    pub row: Operation,
    /// Action and its options.
    pub plan: Plan,
    /// Its state.
    pub standing: Standing,
}

impl OperationView {
    fn of(row: Operation) -> Result<OperationView, CommandError> {
        let (plan, standing) = understood(&row)?;
        Ok(OperationView { row, plan, standing })
    }
}

impl Engine {
    /// Looks at every task that an operation would be about, and changes none.
    pub async fn preview(&self, namespace: &str, bulk: &Bulk) -> Result<Preview, CommandError> {
        let (row, ids) = self.gather(namespace, bulk).await?;
        let plan = &bulk.plan;
        let mut preview = Preview {
            plan: understood(&row)?.0,
            at: row.created_at,
            total: row.total,
            eligible: 0,
            sample: Vec::new(),
            excluded: Vec::new(),
            cost: 0,
        };
        let mut funds = Funds::default();
        let mut place = 0;
        for some in ids.chunks(LOOK) {
            for (id, stored) in some.iter().zip(self.core.store.load(some).await?) {
                let stored = stored.filter(|stored| stored.task.lane.namespace == namespace);
                let why = match &stored {
                    None => Some((Exclusion::NotFound, None)),
                    Some(stored) => self.why_not(plan, &row, place, stored, &mut funds).await?,
                };
                match why {
                    Some((why, state)) => exclude(&mut preview.excluded, why, state, *id),
                    None => {
                        preview.eligible += 1;
                        if preview.sample.len() < 5 {
                            preview.sample.push(*id);
                        }
                    }
                }
                place += 1;
            }
        }
        preview.cost = funds.cost;
        Ok(preview)
    }

    /// The same questions that the act itself is asked.
    async fn why_not(
        &self,
        plan: &Plan,
        row: &Operation,
        place: u32,
        stored: &Stored,
        funds: &mut Funds,
    ) -> Result<Option<(Exclusion, Option<State>)>, CommandError> {
        let (task, now) = (&stored.task, row.created_at);
        if plan.is_too_late(task, plan.due(place, row.total, now), now) {
            return Ok(Some((Exclusion::DeadlinePassed, None)));
        }
        let change = match self.core.decide(&task_change(plan, row, place), stored, &Budgets::default(), now) {
            Err(rejection) => return Ok(Some(refused(&rejection, task))),
            Ok(change) => change,
        };
        let reserves = Move::of(Some(task.state), change.after().state) == Some(Move::Reserve);
        if task.metered && reserves && !self.is_funded(&row.namespace, task.id, funds).await? {
            return Ok(Some((Exclusion::NoCredits, None)));
        }
        Ok(None)
    }

    async fn is_funded(&self, namespace: &str, id: TaskId, funds: &mut Funds) -> Result<bool, CommandError> {
        let body = self.core.store.task(namespace, id).await?.map(|view| view.body);
        let Some((account, cost)) = body.and_then(|body| body.account.zip(body.cost)) else { return Ok(true) };
        if !funds.available.contains_key(&account) {
            let found = self.core.store.account(namespace, &account).await?;
            funds.available.insert(account.clone(), found.map_or(0, |found| found.credits.available()));
        }
        let Some(available) = funds.available.get_mut(&account) else { return Ok(false) };
        if *available < i64::from(cost) {
            return Ok(false);
        }
        *available -= i64::from(cost);
        funds.cost += u64::from(cost);
        Ok(true)
    }

    /// Stores an operation; it is worked off in the background, here or elsewhere.
    pub async fn start_bulk(&self, namespace: &str, bulk: Bulk) -> Result<OperationView, CommandError> {
        if let Some(key) = &bulk.once {
            self.check_key(key)?;
        }
        let (row, ids) = self.gather(namespace, &bulk).await?;
        let act = Actor { operation: None, ..bulk.plan.act(row.id) };
        let facts = json!({"action": bulk.plan.action, "filter": bulk.plan.filter, "tasks": row.total});
        let entry = self
            .entry(AuditAction::OperationStart, row.id.to_string(), &act)
            .within(namespace)
            .changed(None, Some(facts));
        let now = row.created_at;
        let started = self.core.store.start_operation(&row, &ids, bulk.once.as_ref(), Some(&entry), now).await?;
        self.core.alarms.of(Loop::Operations).at(now);
        match started {
            Started::New => OperationView::of(row),
            Started::Repeated(first) => self.operation(namespace, first).await,
            Started::Mismatch => Err(CommandError::IdempotencyMismatch),
        }
    }

    async fn gather(&self, namespace: &str, bulk: &Bulk) -> Result<(Operation, Vec<TaskId>), CommandError> {
        let mut plan = bulk.plan.clone();
        let mut faults = plan.check();
        self.core.config.limits.check_namespace(namespace, &mut faults);
        faults.or(())?;
        self.core.config.limits.check_act(&plan.act(Uuid::nil()))?;
        let now = self.now();
        let ids = match &bulk.which {
            Selection::Filter(text) => {
                let filter = Filter::parse(text, now).map_err(|fault| Invalid::one("filter", fault))?;
                plan.filter = Some(text.clone());
                let found = self.core.store.matching(namespace, &filter, now, MOST_TASKS + 1);
                interactive(self.interactive(namespace), found).await?
            }
            Selection::Ids(ids) => {
                let mut seen = HashSet::with_capacity(ids.len());
                ids.iter().copied().filter(|id| seen.insert(*id)).collect()
            }
        };
        if ids.len() > MOST_TASKS as usize {
            let path = if plan.filter.is_some() { "filter" } else { "ids" };
            return Err(Invalid::one(path, format!("an operation is about {MOST_TASKS} tasks at most")).into());
        }
        let total = u32::try_from(ids.len()).unwrap_or(MOST_TASKS);
        let row = Operation {
            id: self.core.ids.act(now),
            namespace: namespace.to_owned(),
            version: 1,
            state: OperationState::Running,
            total,
            done: 0,
            undone: 0,
            due: Some(now),
            body: text(&plan),
            standing: text(&Standing::new(&plan, total)),
            created_at: now,
            updated_at: now,
            ended_at: None,
        };
        Ok((row, ids))
    }

    /// One bulk operation.
    pub async fn operation(&self, namespace: &str, id: Uuid) -> Result<OperationView, CommandError> {
        let row = self.core.store.operation(namespace, id).await?.ok_or(CommandError::NotFound("operation"))?;
        OperationView::of(row)
    }

    /// Newest first, from before one of them.
    pub async fn operations(
        &self,
        namespace: &str,
        before: Option<Uuid>,
        limit: u32,
    ) -> Result<Vec<OperationView>, CommandError> {
        let rows = self.core.store.operations(namespace, before, limit).await?;
        rows.into_iter().map(OperationView::of).collect()
    }

    /// Aborts an operation: the rest is not done. Once this returns, no instance works on it.
    pub async fn abort_operation(&self, namespace: &str, id: Uuid, act: &Actor) -> Result<OperationView, CommandError> {
        let may = |state: OperationState| state == OperationState::Running;
        self.turn(namespace, id, (AuditAction::OperationAbort, "aborted", act), may, OperationState::Aborted).await
    }

    /// Takes back what has not started, in the background. One that is under way is aborted with it.
    pub async fn undo_operation(&self, namespace: &str, id: Uuid, act: &Actor) -> Result<OperationView, CommandError> {
        let may = |state: OperationState| !matches!(state, OperationState::Undoing | OperationState::Undone);
        self.turn(namespace, id, (AuditAction::OperationUndo, "undone", act), may, OperationState::Undoing).await
    }

    async fn turn(
        &self,
        namespace: &str,
        id: Uuid,
        (did, verb, act): (AuditAction, &'static str, &Actor),
        may: impl Fn(OperationState) -> bool,
        to: OperationState,
    ) -> Result<OperationView, CommandError> {
        self.core.config.limits.check_act(act)?;
        for _ in 0..ROUNDS {
            let view = self.operation(namespace, id).await?;
            let state = view.row.state;
            let definitive = to == OperationState::Undoing && view.plan.action == Action::Cancel;
            if !may(state) || definitive {
                return Err(CommandError::WrongOperationState { state, verb });
            }
            let now = self.now();
            let (due, ended_at) = if to.is_open() { (Some(now), None) } else { (None, Some(now)) };
            let row = Operation { state: to, due, ended_at, ..view.row };
            let entry = self.entry(did, id.to_string(), act).within(namespace);
            let entry = entry.changed(Some(json!({"state": state})), Some(json!({"state": to})));
            if self.core.store.put_operation(&row, None, Some(&entry), now).await? == Applied::Done {
                self.core.alarms.of(Loop::Operations).at(now);
                return self.operation(namespace, id).await;
            }
        }
        Err(CommandError::Conflict)
    }
}

/// Balances of accounts during a preview.
#[derive(Default)]
struct Funds {
    available: HashMap<String, i64>,
    cost: u64,
}
