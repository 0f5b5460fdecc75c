//! Admission rules, as far as both databases do the same: which lane a task belongs to, and how those that are there already are
//! moved when a rule changes. What a rule means is said in `comeback_core::admission`.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use async_trait::async_trait;
use comeback_core::admission::{Admission, Key, Limit, Part, Rule, Used, Used as InUse};
use comeback_core::{Audit, Commit, ExecutionId, Executor, Lane, Timestamp, admission};
use uuid::Uuid;

use crate::dictionary::Dictionary;
use crate::row::{corrupt, labels_from_json};
use crate::{StoreError, Submission};

/// Admission rules: limits on what runs at the same time.
#[async_trait]
pub trait RuleStore: Send + Sync {
    /// The admission rules of a namespace, by name.
    async fn rules(&self, namespace: &str) -> Result<Vec<Rule>, StoreError>;

    /// Makes or changes a rule. From now on tasks are put under it, and claims heed its limit; those that are there already are
    /// moved by `settle_rules`. Answers the generation that is settled then; nothing where the rule stood there as it is.
    async fn put_rule(
        &self,
        namespace: &str,
        rule: &Rule,
        audit: Option<&Audit>,
        now: Timestamp,
    ) -> Result<Option<i64>, StoreError>;

    /// Deletes a rule; answers the generation that is settled then. None if it does not exist.
    async fn delete_rule(&self, namespace: &str, name: &str, audit: Option<&Audit>) -> Result<Option<i64>, StoreError>;

    /// Removes those of these rules that no open task is under; nothing while tasks are still on their way to where they belong.
    async fn delete_unused_rules(&self, namespace: &str, names: &[String]) -> Result<Option<i64>, StoreError>;

    /// Moves some of the tasks that were there before the rules last changed to where they belong now.
    async fn settle_rules(&self) -> Result<Settled, StoreError>;

    /// The rules that the open tasks of a kind in an execution carry from now on; answers how many those are.
    async fn attach_rules(&self, id: ExecutionId, kind: &str, rules: &[String]) -> Result<u64, StoreError>;

    /// Usage of the rules of a namespace.
    async fn in_use(&self, namespace: &str) -> Result<Vec<(Key, InUse)>, StoreError>;

    /// The number of open tasks that count under a key of a rule, running or not; `limit` at most.
    async fn open_under(&self, namespace: &str, key: &Key, limit: u32) -> Result<u64, StoreError>;

    /// How often claims of this process left a lane alone because a rule had no room.
    fn held_by_rules(&self) -> u64;

    /// The lanes in which somebody may start when one of this lane no longer runs; none where no rule is.
    fn freed_by(&self, lane: &Lane) -> Vec<Arc<Lane>>;
}

/// A stretch of the way that follows a change of rules.
#[derive(Clone, Debug, PartialEq)]
pub struct Settled {
    /// The generation of the rules.
    pub generation: i64,
    /// Where there may be work now.
    pub lanes: Vec<Arc<Lane>>,
    /// Whether every task is in its place.
    pub is_done: bool,
}

/// Lanes with limits have numbers from here on.
pub const RULED_FROM: i32 = 1 << 30;

/// The active tasks of a lane: their number, and what they weigh (`admission::weight`).
pub fn in_use(lanes: &str, widest: &str) -> String {
    format!(
        "select lane, count(*), cast(coalesce(sum(case when expected is null then 1
             else {widest}(cast(expected as bigint) - success - failures, 0) end), 0) as bigint)
         from task_open {lanes} group by lane"
    )
}

/// All rules of all namespaces, as they were at one moment.
#[derive(Clone, Debug, Default)]
pub struct RuleBook {
    pub generation: i64,
    by_namespace: HashMap<String, Vec<Rule>>,
}

impl RuleBook {
    pub fn read(generation: i64, rows: impl IntoIterator<Item = (String, String)>) -> Result<RuleBook, StoreError> {
        let mut by_namespace: HashMap<String, Vec<Rule>> = HashMap::new();
        for (namespace, body) in rows {
            let rule = serde_json::from_str(&body).map_err(|error| corrupt(format!("a rule: {error}")))?;
            by_namespace.entry(namespace).or_default().push(rule);
        }
        Ok(RuleBook { generation, by_namespace })
    }

    pub fn of(&self, namespace: &str) -> &[Rule] {
        self.by_namespace.get(namespace).map_or(&[], Vec::as_slice)
    }

    /// The lane as it should be for such a task; nothing where it is that already.
    fn lane(
        &self,
        lane: &Lane,
        labels: &BTreeMap<String, String>,
        carries: &[String],
        executor: Option<&str>,
    ) -> Option<Arc<Lane>> {
        let rules = self.of(&lane.namespace);
        if rules.is_empty() && lane.limits.is_empty() {
            return None;
        }
        let is_asked = lane.executor == Executor::Http && lane.dependency.is_none() && rules.iter().any(Rule::is_guard);
        let url = executor.filter(|_| is_asked).and_then(url_of).unwrap_or_default();
        let limits = admission::limits(rules, lane, labels, carries, &admission::hosts(&url));
        (limits != lane.limits).then(|| Arc::new(Lane { limits, ..lane.clone() }))
    }

    /// The same tasks, each in the lane where it belongs.
    pub fn place<'a>(&self, submissions: &'a [Submission]) -> Cow<'a, [Submission]> {
        let mut placed = Cow::Borrowed(submissions);
        for (i, submission) in submissions.iter().enumerate() {
            for (j, new) in submission.tasks.iter().enumerate() {
                if let Some(lane) =
                    self.lane(&new.task.lane, &new.body.labels, &new.body.rules, new.body.executor.as_deref())
                {
                    placed.to_mut()[i].tasks[j].task.lane = lane;
                }
            }
        }
        placed
    }

    /// Limits on lanes in use.
    pub fn admission(&self, namespace: &str) -> Admission {
        Admission::new(self.of(namespace))
    }
}

/// Where a call goes, as its settings say.
fn url_of(executor: &str) -> Option<String> {
    #[derive(serde::Deserialize)]
    struct Settings {
        url: String,
    }
    serde_json::from_str::<Settings>(executor).ok().map(|settings| settings.url)
}

pub const SETTLED: &str = "select generation = settled from rule_state";

/// The lanes with limits in which anybody is, whatever their state.
pub fn open_lanes_with_limits() -> String {
    format!("select distinct lane from task_open where lane >= {RULED_FROM}")
}

/// Rules that no task of these lanes is under.
pub fn unused<'a>(dictionary: &Dictionary, namespace: &str, names: &'a [String], lanes: &[i32]) -> Vec<&'a str> {
    let lanes: Vec<Arc<Lane>> = lanes.iter().filter_map(|id| dictionary.lane(*id)).collect();
    let limits = lanes.iter().filter(|lane| lane.namespace == namespace).flat_map(|lane| &lane.limits);
    // Who is only counted is not held up by it.
    let used: BTreeSet<&str> =
        limits.filter(|limit| limit.part != Part::Counted).map(|limit| limit.key.rule.as_str()).collect();
    names.iter().map(String::as_str).filter(|name| !used.contains(name)).collect()
}

/// Leaves out the lanes in which nobody may start.
pub fn only_with_room(lanes: &mut Vec<(i32, Arc<Lane>)>, admission: &Admission, dictionary: &Dictionary) {
    let (mut held, mut held_back) = (0, 0);
    lanes.retain(|(_, lane)| {
        if admission.room(&lane.limits) > 0 {
            return true;
        }
        match admission.may_start(&lane.limits, 0) {
            Err(refusal) if refusal.key.dependency().is_some() => held_back += 1,
            _ => held += 1,
        }
        false
    });
    dictionary.held.fetch_add(held, Ordering::Relaxed);
    dictionary.held_back.fetch_add(held_back, Ordering::Relaxed);
}

/// A claim's view of the lanes that it may serve.
pub struct Open {
    pub lane: i32,
    pub limits: Arc<Lane>,
    /// Tasks that are worth looking at.
    pub most: u32,
    /// Whether more than those could be taken.
    pub is_short: bool,
}

/// Tasks at the head of a lane that are passed over because each of them alone is too large.
const PASSED_OVER: u32 = 100;

/// How many tasks each of the lanes is asked for: as many as there is room for, and a fair share of what one claim looks at.
pub fn open_lanes(lanes: &[(i32, Arc<Lane>)], admission: &Admission, limit: u32, fair: u32) -> Vec<Open> {
    let open = |(id, lane): &(i32, Arc<Lane>)| {
        let room = admission.room(&lane.limits).min(limit);
        let wanted = room + if admission.weighs(&lane.limits) { PASSED_OVER } else { 0 };
        let most = wanted.min(fair);
        (room > 0).then(|| Open { lane: *id, limits: lane.clone(), most, is_short: most < wanted })
    };
    lanes.iter().filter_map(open).collect()
}

/// Lanes that gave all they were asked for and may have more.
pub fn cut(open: &[Open], given: impl Fn(i32) -> u32) -> BTreeSet<i32> {
    open.iter().filter(|it| it.is_short && given(it.lane) >= it.most).map(|it| it.lane).collect()
}

/// Counts what is in use in one namespace: keys of others may have the same names.
pub fn count(
    admission: &mut Admission,
    dictionary: &Dictionary,
    namespace: &str,
    rows: impl Iterator<Item = (i32, i64, i64)>,
) {
    for (lane, running, weight) in rows {
        let Some(lane) = dictionary.lane(lane).filter(|lane| lane.namespace == namespace) else { continue };
        let number = |it: i64| u64::try_from(it).unwrap_or(0);
        let used = Used { running: number(running), weight: number(weight) };
        admission.count(&lane.limits, used);
    }
}

/// At most this many lanes are named to count what runs in them; where more share a key, all that runs under limits is counted.
pub const MOST_NAMED: usize = 512;

/// Usage by key.
pub fn by_key(dictionary: &Dictionary, namespace: &str, rows: Vec<(i32, i64, i64)>) -> Vec<(Key, Used)> {
    let mut admission = Admission::default();
    count(&mut admission, dictionary, namespace, rows.into_iter());
    admission.into_used()
}

pub fn limits_to_json(limits: &[Limit]) -> String {
    serde_json::to_string(limits).unwrap_or_default()
}

pub fn limits_from_json(text: &str) -> Option<Vec<Limit>> {
    serde_json::from_str(text).ok()
}

pub fn rule_to_json(rule: &Rule) -> Result<String, StoreError> {
    serde_json::to_string(rule).map_err(|error| StoreError::Refused(error.to_string()))
}

pub fn names_to_json(names: &[String]) -> Option<String> {
    (!names.is_empty()).then(|| serde_json::to_string(names).unwrap_or_default())
}

pub fn names_from_json(text: Option<&str>) -> Vec<String> {
    text.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
}

/// Tasks whose lane is to be looked at.
pub enum Whose {
    /// Open tasks with a higher id, so many.
    After(Uuid, u32),
    /// Tasks that are over and are about to be opened again.
    Ended(Vec<Uuid>),
    /// The open tasks of an execution.
    Execution(Uuid),
    /// A task, if it is open.
    Task(Uuid),
}

/// The facts that say to which lane a task belongs.
pub struct LaneMembership {
    /// Its id.
    pub id: Uuid,
    pub lane: i32,
    labels: BTreeMap<String, String>,
    carries: Vec<String>,
    executor: Option<String>,
}

impl LaneMembership {
    pub fn new(
        id: Uuid,
        lane: i32,
        labels: Option<&str>,
        rules: Option<&str>,
        executor: Option<String>,
    ) -> LaneMembership {
        LaneMembership { id, lane, labels: labels_from_json(labels), carries: names_from_json(rules), executor }
    }

    /// The lane it should be in, and whether that is another one.
    pub fn lane(&self, dictionary: &Dictionary, book: &RuleBook) -> Result<(Arc<Lane>, bool), StoreError> {
        let lane = dictionary.lane(self.lane).ok_or_else(|| corrupt(format!("lane {}", self.lane)))?;
        Ok(match book.lane(&lane, &self.labels, &self.carries, self.executor.as_deref()) {
            Some(other) => (other, true),
            None => (lane, false),
        })
    }
}

/// How far the move is that follows a change of rules.
#[derive(Clone, Copy, Debug)]
pub struct RuleState {
    pub generation: i64,
    pub settled: i64,
    pub swept: Option<Uuid>,
}

/// The part of moving tasks that each database does itself.
#[async_trait]
pub trait RuleTables: Send + Sync {
    fn dictionary(&self) -> &Dictionary;
    /// With the rules of that moment learnt.
    async fn rule_state(&self) -> Result<RuleState, StoreError>;
    async fn belongings(&self, whose: Whose) -> Result<Vec<LaneMembership>, StoreError>;
    async fn learn_lanes(&self, lanes: Vec<Arc<Lane>>) -> Result<(), StoreError>;
    /// Moves tasks that are still where they were.
    async fn move_tasks(&self, moves: Vec<(Uuid, i32, i32)>) -> Result<(), StoreError>;
    /// Unless the rules have changed again. Nothing more to move: settled.
    async fn note_swept(&self, generation: i64, swept: Option<Uuid>) -> Result<(), StoreError>;
}

/// Open tasks looked at in one go.
const PAGE: u32 = 2_000;

/// One stretch of the way through all open tasks.
pub async fn settle(tables: &dyn RuleTables) -> Result<Settled, StoreError> {
    let state = tables.rule_state().await?;
    if state.settled >= state.generation {
        return Ok(Settled { generation: state.generation, lanes: Vec::new(), is_done: true });
    }
    let page = tables.belongings(Whose::After(state.swept.unwrap_or_default(), PAGE)).await?;
    let last = page.last().map(|it| it.id);
    let lanes = put_where_they_belong(tables, page).await?;
    tables.note_swept(state.generation, last).await?;
    Ok(Settled { generation: state.generation, lanes, is_done: last.is_none() })
}

/// Answers the lanes into which something was moved.
pub async fn put_where_they_belong(
    tables: &dyn RuleTables,
    tasks: Vec<LaneMembership>,
) -> Result<Vec<Arc<Lane>>, StoreError> {
    let dictionary = tables.dictionary();
    let book = dictionary.rules();
    let mut moved = Vec::new();
    for task in &tasks {
        if let (lane, true) = task.lane(dictionary, &book)? {
            moved.push((task, lane));
        }
    }
    let lanes: BTreeSet<Arc<Lane>> = moved.iter().map(|(_, lane)| lane.clone()).collect();
    let lanes: Vec<Arc<Lane>> = lanes.into_iter().collect();
    tables.learn_lanes(lanes.clone()).await?;
    let number = |lane: &Arc<Lane>| dictionary.lane_id(lane).ok_or_else(|| corrupt("a lane that was just learnt"));
    let moves: Result<Vec<_>, StoreError> =
        moved.iter().map(|(task, lane)| Ok((task.id, task.lane, number(lane)?))).collect();
    let moves = moves?;
    if !moves.is_empty() {
        tables.move_tasks(moves).await?;
    }
    Ok(lanes)
}

/// Lanes for tasks that these commits open again get their numbers before, where there are rules.
pub async fn ensure_lanes(tables: &dyn RuleTables, commits: &[Commit]) -> Result<(), StoreError> {
    let dictionary = tables.dictionary();
    let reopened = commits.iter().flat_map(|commit| &commit.writes).filter(|write| {
        !write.from.is_open() && write.after.state.is_open() && dictionary.is_ruled(&write.after.lane.namespace)
    });
    let ids: Vec<Uuid> = reopened.map(|write| write.after.id.0).collect();
    if ids.is_empty() {
        return Ok(());
    }
    let book = dictionary.rules();
    let mut lanes = Vec::new();
    for task in tables.belongings(Whose::Ended(ids)).await? {
        lanes.push(task.lane(dictionary, &book)?.0);
    }
    tables.learn_lanes(lanes).await
}
