//! A fresh store, a clock that is moved by hand, and the few words the cases are written in.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use comeback_core::filter::{Filter, Sort};
use comeback_core::replay::{Replayed, replay};
use comeback_core::transition::{self, Actor};
use comeback_core::*;
use comeback_core::{decide, dialect, guard};
use serde_json::Value;

use crate::*;
use crate::{ListQuery, Store};

/// 2027-01-15T08:00:00Z.
pub const T0: Timestamp = Timestamp(1_800_000_000_000);

#[derive(Clone)]
pub struct World {
    pub store: Arc<dyn Store>,
    pub clock: Arc<AtomicI64>,
    pub ids: Arc<AtomicU64>,
}

impl World {
    pub fn new(store: Arc<dyn Store>) -> World {
        World { store, clock: Arc::new(AtomicI64::new(T0.0)), ids: Arc::new(AtomicU64::new(1)) }
    }

    pub fn now(&self) -> Timestamp {
        Timestamp(self.clock.load(Ordering::SeqCst))
    }

    pub fn pass(&self, ms: u64) {
        self.clock.fetch_add(ms.cast_signed(), Ordering::SeqCst);
    }

    pub fn go_to(&self, at: Timestamp) {
        self.clock.fetch_max(at.0, Ordering::SeqCst);
    }

    /// Ids grow with time and number, as the engine's do.
    pub fn id(&self) -> TaskId {
        let number = self.ids.fetch_add(1, Ordering::SeqCst);
        let mut random = [0; 10];
        random[2..].copy_from_slice(&number.to_be_bytes());
        let millis = u64::try_from(self.now().0).unwrap();
        TaskId(uuid::Builder::from_unix_timestamp_millis(millis, &random).into_uuid())
    }

    /// A lone task for workers of the default queue, without a policy.
    pub fn new_task(&self, kind: &str) -> NewTask {
        let lane = Lane { kind: kind.into(), ..Lane::default() };
        let mut task = Task::new(self.id(), Arc::new(lane), self.now());
        task.seq = 2;
        NewTask { task, policy: None, body: Body::default() }
    }

    pub fn retrying_task(&self, kind: &str, policy: Value) -> NewTask {
        let policy = dialect::parse(&policy, Dialect::Native, &PolicyLimits::default()).unwrap().map(Arc::new);
        NewTask { policy, ..self.new_task(kind) }
    }

    pub fn delayed_task(&self, kind: &str, delay: u64) -> NewTask {
        let mut new = self.new_task(kind);
        new.task.state = State::Waiting;
        new.task.start_at = Some(self.now() + Millis(delay));
        new.task.seq = 1;
        new
    }

    pub fn submission(&self, tasks: Vec<NewTask>) -> Submission {
        let namespace = tasks.first().map_or("default".into(), |new| new.task.lane.namespace.clone());
        Submission { namespace, tasks, ..Submission::default() }
    }

    pub async fn submit_one(&self, submission: Submission) -> Submitted {
        self.store.submit(&[submission], self.now()).await.unwrap().remove(0)
    }

    /// Submits lone tasks, each for itself.
    pub async fn submit(&self, tasks: Vec<NewTask>) -> Vec<TaskId> {
        let ids = tasks.iter().map(|new| new.task.id).collect();
        let submissions: Vec<Submission> = tasks.into_iter().map(|new| self.submission(vec![new])).collect();
        for answer in self.store.submit(&submissions, self.now()).await.unwrap() {
            assert!(matches!(answer, Submitted::Created(_)), "{answer:?}");
        }
        ids
    }

    pub async fn submit_many(&self, kind: &str, count: usize) -> Vec<TaskId> {
        let tasks = (0..count).map(|_| self.new_task(kind)).collect();
        self.submit(tasks).await
    }

    /// A lone task that is running, and its lease.
    pub async fn running(&self, new: NewTask) -> Claimed {
        let id = self.submit(vec![new]).await[0];
        let claimed = self.claim(1).await.remove(0);
        assert_eq!(claimed.stored.task.id, id, "the world was not empty");
        claimed
    }

    pub fn request(&self, limit: u32) -> ClaimRequest {
        ClaimRequest {
            namespace: "default".into(),
            queues: vec!["default".into()],
            any_queue: false,
            kinds: Vec::new(),
            executor: Executor::Worker,
            worker: "w1".into(),
            limit,
            due: false,
            without_calls: false,
            only_kinds: None,
            lease: Millis::from_secs(60),
        }
    }

    pub async fn claim(&self, limit: u32) -> Vec<Claimed> {
        self.claim_with(self.request(limit)).await
    }

    pub async fn claim_with(&self, request: ClaimRequest) -> Vec<Claimed> {
        self.store.claim(&[request], self.now()).await.unwrap().remove(0)
    }

    pub async fn load(&self, id: TaskId) -> Stored {
        self.store.load(&[id]).await.unwrap().remove(0).expect("the task exists")
    }

    pub async fn state(&self, id: TaskId) -> State {
        self.load(id).await.task.state
    }

    pub fn snapshot(&self, stored: &Stored) -> Snapshot {
        Snapshot {
            task: stored.task.clone(),
            policy: stored.policy.clone(),
            policy_id: stored.policy_id,
            limits: PolicyLimits::default(),
            guard: guard::GuardView::default(),
        }
    }

    pub fn decide(&self, stored: &Stored, end: End) -> Transition {
        let reporter = Reporter::Lease(stored.task.lease_number);
        decide::decide(&self.snapshot(stored), &Outcome { reporter, end }, self.now()).unwrap()
    }

    pub async fn apply(&self, commit: impl Into<Commit>) -> Applied {
        self.store.apply(&[commit.into()], None, self.now()).await.unwrap()[0]
    }

    pub async fn end(&self, stored: &Stored, end: End) -> Applied {
        self.apply(self.decide(stored, end)).await
    }

    pub async fn succeed(&self, stored: &Stored) -> Applied {
        self.end(stored, End::Succeeded { result: Some("{\"ok\":true}".into()) }).await
    }

    pub async fn fail(&self, stored: &Stored) -> Applied {
        self.end(stored, End::Failed(Failure::new(Trigger::Error, "boom"))).await
    }

    /// A gate is in the way of its retry for so long.
    pub async fn fail_held(&self, stored: &Stored, ms: u64) -> Applied {
        let mut snapshot = self.snapshot(stored);
        snapshot.guard.holds.push(Hold { until: self.now() + Millis(ms), reason: "gate psp".into() });
        let end = End::Failed(Failure::new(Trigger::Error, "held"));
        let outcome = Outcome { reporter: Reporter::Lease(stored.task.lease_number), end };
        self.apply(decide::decide(&snapshot, &outcome, self.now()).unwrap()).await
    }

    pub async fn cancel(&self, id: TaskId) -> Applied {
        let task = self.load(id).await.task;
        self.apply(transition::cancel(&task, Reason::Canceled, &Actor::default(), self.now()).unwrap()).await
    }

    pub async fn promote(&self) -> Promoted {
        self.store.promote(Promote::Retries, self.now(), 1_000).await.unwrap()
    }

    pub async fn records(&self, id: TaskId) -> Vec<Record> {
        self.store.history(Subject::Task(id), 0, 10_000).await.unwrap()
    }

    pub async fn events(&self, id: TaskId) -> Vec<Event> {
        self.records(id).await.iter().flat_map(Record::expand).collect()
    }

    pub async fn kinds(&self, id: TaskId) -> Vec<&'static str> {
        self.events(id).await.iter().map(|event| event.kind.word()).collect()
    }

    /// The log gives the state, without a gap (model I-12, R-I18, R-I19).
    pub async fn check_log(&self, id: TaskId) {
        let task = self.load(id).await.task;
        assert_eq!(task.broken_invariant(), None);
        let events = self.events(id).await;
        let dense = task.execution.is_none();
        let told = replay(&events, dense).unwrap_or_else(|error| panic!("{error}: {events:#?}"));
        let mut stored = Replayed::of(&task);
        if !dense {
            stored.last_seq = told.last_seq;
        }
        assert_eq!(told, stored, "{events:#?}");
    }

    pub fn query(&self, filter: &str) -> ListQuery {
        let filter = Filter::parse(filter, self.now()).unwrap();
        ListQuery { filter, sort: Sort::SubmittedDesc, limit: 100, after: None, now: self.now() }
    }

    pub async fn list(&self, filter: &str) -> Vec<TaskId> {
        self.list_with(self.query(filter)).await
    }

    pub async fn list_with(&self, query: ListQuery) -> Vec<TaskId> {
        let listing = self.store.list("default", &query).await.unwrap();
        listing.items.iter().map(|item| item.stored.task.id).collect()
    }

    /// An execution written as names and edges: `a>b` on success, `a!b` on failure, `a*b` always.
    pub async fn execution(&self, names: &[&str], edges: &[&str]) -> (ExecutionId, BTreeMap<String, TaskId>) {
        let (submission, id, tasks) = self.new_execution(names, edges);
        assert!(matches!(self.submit_one(submission).await, Submitted::Created(_)));
        (id, tasks)
    }

    pub fn new_execution(&self, names: &[&str], edges: &[&str]) -> (Submission, ExecutionId, BTreeMap<String, TaskId>) {
        let id = ExecutionId(self.id().0);
        let tasks: BTreeMap<String, TaskId> = names.iter().map(|name| ((*name).to_owned(), self.id())).collect();
        let edges: Vec<Edge> = edges
            .iter()
            .map(|text| {
                let at = text.find(['>', '!', '*']).unwrap();
                let when = match &text[at..=at] {
                    ">" => When::Success,
                    "!" => When::Failure,
                    _ => When::Always,
                };
                Edge { from: tasks[&text[..at]], to: tasks[&text[at + 1..]], when, on_unmet: OnUnmet::Skip }
            })
            .collect();
        let new_tasks: Vec<NewTask> = names
            .iter()
            .map(|name| {
                let mut new = self.new_task("step");
                let lane = Lane { shared: true, ..(*new.task.lane).clone() };
                new.task.id = tasks[*name];
                new.task.lane = Arc::new(lane);
                new.task.execution = Some(id);
                new.task.seq = 0;
                new.task.needs_left = edges.iter().filter(|edge| edge.to == new.task.id).count() as u32;
                new.task.children_left = edges.iter().filter(|edge| edge.from == new.task.id).count() as u32;
                if new.task.needs_left > 0 {
                    new.task.state = State::Waiting;
                }
                new.body.key = Some((*name).to_owned());
                new
            })
            .collect();
        let execution = Execution::new(id, "default".into(), names.len() as u32, self.now());
        let submission = Submission {
            namespace: "default".into(),
            tasks: new_tasks,
            execution: Some(NewExecution {
                execution,
                name: Some("test".into()),
                labels: BTreeMap::new(),
                external_id: None,
                origin: Origin::default(),
                below: None,
            }),
            edges,
            ..Submission::default()
        };
        (submission, id, tasks)
    }

    pub async fn working(&self, id: ExecutionId) -> Working {
        let graph = self.store.graph(id, None).await.unwrap().expect("the execution exists");
        let mut working = Working::new(graph.execution);
        for task in graph.tasks {
            let edges = task.edges.expect("the whole was asked for");
            working.add(task.stored.task, edges.out, edges.into);
        }
        working
    }

    /// Leases the one task that is ready and settles it through the graph.
    pub async fn settle_in(&self, id: ExecutionId, task: TaskId, end: End) -> Applied {
        let mut working = self.working(id).await;
        let stored = self.load(task).await;
        working.apply(self.decide(&stored, end), self.now()).unwrap();
        self.apply(working.into_commit()).await
    }

    pub async fn cancel_in(&self, id: ExecutionId, task: TaskId) -> Applied {
        let mut working = self.working(id).await;
        let task = self.load(task).await.task;
        let change = transition::cancel(&task, Reason::Canceled, &transition::Actor::default(), self.now()).unwrap();
        working.apply(change, self.now()).unwrap();
        self.apply(working.into_commit()).await
    }

    pub async fn execution_log(&self, id: ExecutionId) -> Vec<Event> {
        let records = self.store.history(Subject::Execution(id), 0, 10_000).await.unwrap();
        records.iter().flat_map(Record::expand).collect()
    }
}
