//! Bodies of requests about batches: tasks with names of their own, webhooks and retries.

use std::collections::BTreeSet;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use bytes::Bytes;
use comeback_core::admission::{Bound, Rule};
use comeback_core::filter::Filter;
use comeback_core::{Dialect, Invalid, Millis, OnUnmet, Policy, PolicyLimits, When, dialect};
use comeback_engine::{ExecutorSpec, Limits, Need, TaskSpec};
use comeback_server::Problem;
use comeback_server::route::{Object, read_body_at, schema_types};
use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use super::actions::ActionIn;
use super::dedupe::{self, MatcherIn};
use super::rules::{self, RuleIn};
use crate::dialect_schemas;

/// One task of a batch.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = BatchTask)]
pub struct TaskIn {
    /// The caller's own name for it in this batch, by which others depend on it.
    #[schema(value_type = schema_types::NameSchema)]
    pub id: String,
    #[schema(value_type = schema_types::NameSchema)]
    name: String,
    #[schema(value_type = dialect_schemas::BatchKind)]
    kind: String,
    /// Seconds without a sign of life after which a run has failed; 60 where nothing is said.
    #[serde(default)]
    #[schema(minimum = 1, maximum = 86400)]
    timeout: Option<u32>,
    /// Its plain values are also labels.
    #[serde(default)]
    #[schema(value_type = Option<dialect_schemas::Metadata>)]
    metadata: Option<Map<String, Value>>,
    /// Nothing is made where a task like one of these is there already.
    #[serde(default)]
    dedupe_strategy: Option<Vec<MatcherIn>>,
    /// It starts when all of them allow it.
    #[serde(default)]
    #[schema(max_items = 16)]
    rules: Option<Vec<RuleIn>>,
    /// What is called when it starts. Without it the task is started, and somebody settles it.
    #[serde(default)]
    on_start: Option<ActionIn>,
    #[serde(default)]
    on_success: Option<Vec<ActionIn>>,
    #[serde(default)]
    on_failure: Option<Vec<ActionIn>>,
    #[serde(default)]
    dependencies: Option<Vec<DependencyIn>>,
    #[serde(default)]
    #[schema(minimum = 0, maximum = 2147483647)]
    expected_count: Option<u32>,
    #[serde(default)]
    #[schema(minimum = -1000, maximum = 1000)]
    priority: Option<i32>,
    #[serde(default)]
    dead_end_barrier: Option<bool>,
    /// Where nothing is said, a failure is the end.
    #[serde(default)]
    retry: Option<RetryIn>,
}

/// An earlier task of the same batch. Give `requires_success` or `condition`; what is said nothing of requires success.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = BatchDependency)]
pub struct DependencyIn {
    #[schema(value_type = schema_types::NameSchema)]
    id: String,
    /// The task fails where that one does not succeed; or, when this is false, waits for its end only.
    #[serde(default)]
    requires_success: Option<bool>,
    /// The task is skipped where this can no longer come true.
    #[serde(default)]
    #[schema(value_type = Option<dialect_schemas::BatchCondition>)]
    condition: Option<String>,
}

/// How often and when a task is tried again.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = BatchRetry)]
pub struct RetryIn {
    /// Without the first run.
    #[schema(minimum = 1, maximum = 10)]
    max_retries: u32,
    /// 5 where nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 3600)]
    initial_delay_secs: Option<u32>,
    /// 2 where nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1.0)]
    backoff_multiplier: Option<f64>,
    /// 300 where nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 3600)]
    max_delay_secs: Option<u32>,
    /// All of them where nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<dialect_schemas::BatchTrigger>>, min_items = 1)]
    retry_on: Option<Vec<String>>,
}

/// As `Limits::check_name` has it, in characters.
pub const NAME: &str = r"^[^\u0000-\u001f\u007f-\u009f]+$";

/// Words of `retry_on`.
pub const TRIGGERS: [&str; 3] = ["timeout", "webhook_failure", "explicit"];

impl RetryIn {
    fn policy(&self, limits: &PolicyLimits, faults: &mut Invalid) -> Option<Arc<Policy>> {
        let mut part = Invalid::default();
        for (n, word) in self.retry_on.iter().flatten().enumerate() {
            if !TRIGGERS.contains(&word.as_str()) {
                part.push(format!("retry_on[{n}]"), format!("must be one of {}", TRIGGERS.join(", ")));
            }
        }
        if self.max_delay_secs == Some(0) {
            part.push("max_delay_secs", "must be 1 or more");
        }
        let read = dialect::parse(&json!(self), Dialect::Task, limits);
        let policy = read.unwrap_or_else(|faults| {
            part.absorb("", faults);
            None
        });
        for fault in &mut part.faults {
            // The field has another name in this dialect.
            if fault.path == "multiplier" {
                fault.path = "backoff_multiplier".into();
            }
        }
        faults.absorb("retry", part);
        policy.map(Arc::new)
    }
}

/// A list of tasks, or one alone.
struct Tasks(Vec<TaskIn>);

impl<'de> Deserialize<'de> for Tasks {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Reader(PhantomData<()>);

        impl<'de> Visitor<'de> for Reader {
            type Value = Tasks;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of tasks, or a task")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, items: A) -> Result<Tasks, A::Error> {
                let all = Vec::<Object<TaskIn>>::deserialize(SeqAccessDeserializer::new(items))?;
                Ok(Tasks(all.into_iter().map(|Object(task)| task).collect()))
            }

            fn visit_map<A: MapAccess<'de>>(self, entries: A) -> Result<Tasks, A::Error> {
                TaskIn::deserialize(MapAccessDeserializer::new(entries)).map(|task| Tasks(vec![task]))
            }
        }

        from.deserialize_any(Reader(PhantomData))
    }
}

/// All tasks of a body; a fault is named by the place of its task.
pub fn read(body: &Bytes) -> Result<Vec<TaskIn>, Problem> {
    let is_list = body.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'[');
    let Tasks(tasks) = read_body_at(body, if is_list { "tasks" } else { "tasks[0]" })?;
    if tasks.is_empty() {
        return Err(Invalid::one("tasks", "a batch needs at least one task").into());
    }
    Ok(tasks)
}

/// A list of tasks, for the document.
#[derive(ToSchema)]
#[schema(as = Batch, min_items = 1, max_items = 10_000)]
pub struct Batch(#[allow(dead_code)] Vec<TaskIn>);

/// A task for the engine, and filters for tasks that make it unnecessary.
pub struct Planned {
    pub spec: TaskSpec,
    pub dedupe: Vec<Filter>,
    /// Rules that the task is under.
    pub rules: Vec<Rule>,
}

const TIMEOUT: u32 = 60;
const MOST_METADATA: usize = 64 * 1024;

impl TaskIn {
    /// Checks the task. `earlier` are the names of the tasks before it.
    pub fn plan(self, earlier: &BTreeSet<String>, limits: (&Limits, &PolicyLimits), faults: &mut Invalid) -> Planned {
        let (limits, policy_limits) = limits;
        if self.kind.len() > 100 {
            faults.push("kind", "may have 100 bytes at most");
        }
        let timeout = self.timeout.unwrap_or(TIMEOUT);
        if !(1..=86_400).contains(&timeout) {
            faults.push("timeout", "must be between 1 and 86400 seconds");
        }
        let rules = rules::read(self.rules.unwrap_or_default(), limits, faults);
        if self.expected_count.is_none()
            && let Some(n) = rules.iter().position(|rule| matches!(rule.bound, Bound::Capacity(_)))
        {
            faults.push(format!("rules[{n}]"), "a capacity needs `expected_count`");
        }
        let metadata = self.metadata.map(Value::Object);
        if metadata.as_ref().is_some_and(|it| it.to_string().len() > MOST_METADATA) {
            faults.push("metadata", format!("may have {MOST_METADATA} bytes at most"));
        }
        let labels = dedupe::labels(metadata.as_ref(), limits);
        let mut executor = json!({"type": "hook", "handle": "task"});
        if let Some(action) = self.on_start {
            executor["start"] = action.call("on_start", faults);
        }
        let mut hooks = Map::new();
        for (field, name, actions) in
            [("on_success", "success", self.on_success), ("on_failure", "failure", self.on_failure)]
        {
            let calls = actions.unwrap_or_default().into_iter().enumerate();
            let calls: Vec<Value> = calls.map(|(n, action)| action.call(&format!("{field}[{n}]"), faults)).collect();
            if !calls.is_empty() {
                hooks.insert(name.into(), calls.into());
            }
        }
        let matchers = self.dedupe_strategy.unwrap_or_default();
        let dedupe = matchers.iter().enumerate();
        let dedupe =
            dedupe.map(|(n, it)| it.filter(&format!("dedupe_strategy[{n}]"), &labels, limits, faults)).collect();
        let needs = needs(self.dependencies.unwrap_or_default(), &self.id, earlier, faults);
        let retry = self.retry.and_then(|retry| retry.policy(policy_limits, faults));
        let spec = TaskSpec {
            key: Some(self.id),
            name: Some(self.name),
            priority: self.priority.unwrap_or_default(),
            payload: metadata.map(Into::into),
            executor: ExecutorSpec::Hook(executor.into()),
            needs,
            retry,
            timeout: Some(Millis::from_secs(timeout.into())),
            labels,
            hooks: (!hooks.is_empty()).then(|| Value::Object(hooks).into()),
            dead_end_barrier: self.dead_end_barrier.unwrap_or_default(),
            expected: self.expected_count,
            ..TaskSpec::new(self.kind)
        };
        Planned { spec, dedupe, rules }
    }
}

fn needs(all: Vec<DependencyIn>, own: &str, earlier: &BTreeSet<String>, faults: &mut Invalid) -> Vec<Need> {
    let mut needs = Vec::with_capacity(all.len());
    for (n, it) in all.into_iter().enumerate() {
        let at = format!("dependencies[{n}]");
        if it.id == own {
            faults.push(format!("{at}.id"), "a task cannot depend on itself");
        } else if !earlier.contains(&it.id) {
            faults.push(format!("{at}.id"), format!("`{}` is no earlier task of this batch", it.id));
        }
        let edge = match (it.requires_success, it.condition.as_deref()) {
            (Some(_), Some(_)) => {
                faults.push(format!("{at}.condition"), "give either `requires_success` or `condition`");
                None
            }
            (None | Some(true), None) => Some((When::Success, OnUnmet::Fail)),
            (Some(false), None) | (None, Some("always")) => Some((When::Always, OnUnmet::Skip)),
            (None, Some("on_success")) => Some((When::Success, OnUnmet::Skip)),
            (None, Some("on_failure")) => Some((When::Failure, OnUnmet::Skip)),
            (None, Some(_)) => {
                faults.push(format!("{at}.condition"), "must be one of always, on_success, on_failure");
                None
            }
        };
        needs.extend(edge.map(|(when, on_unmet)| Need { task: it.id, when, on_unmet }));
    }
    needs
}

/// Rules for the open tasks of one kind.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = BatchRules)]
pub struct RulesIn {
    #[schema(value_type = schema_types::NameSchema)]
    pub kind: String,
    /// In place of those they have.
    #[schema(max_items = 16)]
    pub rules: Vec<RuleIn>,
}

/// What somebody who was called says: how it ended, or how far it has come.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = BatchUpdate)]
pub struct UpdateIn {
    #[serde(default)]
    #[schema(value_type = Option<dialect_schemas::BatchEnd>)]
    pub status: Option<String>,
    /// Needed with `Failure`.
    #[serde(default)]
    pub failure_reason: Option<String>,
    /// Added to what was counted before.
    #[serde(default)]
    #[schema(maximum = 2147483647)]
    pub new_success: Option<u32>,
    #[serde(default)]
    #[schema(maximum = 2147483647)]
    pub new_failures: Option<u32>,
    #[serde(default)]
    #[schema(maximum = 2147483647)]
    pub expected_count: Option<u32>,
    /// What is called when this run is canceled or repeated.
    #[serde(default)]
    pub on_cancel: Option<ActionIn>,
}

/// What was counted since the last time; one of the two is more than nothing.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = BatchCounters)]
pub struct CountersIn {
    #[serde(default)]
    #[schema(maximum = 2147483647)]
    pub new_success: Option<u32>,
    #[serde(default)]
    #[schema(maximum = 2147483647)]
    pub new_failures: Option<u32>,
}
