//! Tasks on the wire: input and JSON.
//!
//! Over 500 lines: the fields of a task, in and out.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use comeback_core::filter::fingerprint_to_hex;
use comeback_core::payload::{self, OldPayload};
use comeback_core::workflow::between;
use comeback_core::{
    AttemptOutcome, Dialect, Invalid, OnUnmet, Policy, PolicyLimits, Priority, Record, RetryKind, State, When, dialect,
    mask,
};
use comeback_engine::executors::Kinds;
use comeback_engine::store::{ListCursor, Listed, SubmittedTask, TaskView};
use comeback_engine::{ExecutionSpec, ExecutorSpec, HeldBy, Json, Moment, Need, TaskSpec};
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::{DurationIn, Instant, MomentIn, Object, Raw, TextOr, instant};
use crate::kind_policies::PoliciesOfKinds;
use crate::openapi::schema_types;

/// Cache of parsed policies by their text.
#[derive(Default)]
pub struct PolicyCache {
    known: Mutex<CachedPolicies>,
}

#[derive(Default)]
struct CachedPolicies {
    /// Total size of the texts, in bytes.
    bytes: usize,
    read: HashMap<(String, Dialect), ParsedPolicy>,
}

/// A parsed policy; `None` means no retry.
type ParsedPolicy = Option<Arc<Policy>>;

const MOST_POLICIES: usize = 1_000;
/// Maximum total size of the cached texts, in bytes; a text longer than an eighth of it is not cached.
const MOST_POLICY_BYTES: usize = 8 << 20;

impl PolicyCache {
    /// Parses a policy, or takes it from the cache.
    pub fn read(&self, text: &str, dialect: Dialect, limits: &PolicyLimits) -> Result<ParsedPolicy, Invalid> {
        let key = (text.to_owned(), dialect);
        if let Some(known) = self.known.lock().read.get(&key) {
            return Ok(known.clone());
        }
        let value: Value = serde_json::from_str(text).map_err(|error| Invalid::one("", error))?;
        let policy = dialect::parse(&value, dialect, limits)?.map(Arc::new);
        let size = key.0.len();
        if size > MOST_POLICY_BYTES / 8 {
            return Ok(policy);
        }
        let mut known = self.known.lock();
        if known.read.len() >= MOST_POLICIES || known.bytes + size > MOST_POLICY_BYTES {
            *known = CachedPolicies::default();
        }
        if known.read.insert(key, policy.clone()).is_none() {
            known.bytes += size;
        }
        Ok(policy)
    }
}

/// A batch of tasks: all are accepted or none.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = NewTasks)]
pub struct TasksIn {
    #[schema(value_type = Vec<TaskIn>, max_items = 10_000)]
    pub tasks: Vec<Object<TaskIn>>,
    /// Groups the tasks into one execution, as `needs` between them do.
    #[serde(default)]
    #[schema(value_type = Option<ExecutionIn>)]
    pub execution: Option<Object<ExecutionIn>>,
}

/// Fields of the execution of submitted tasks.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = NewExecution)]
pub struct ExecutionIn {
    #[serde(default)]
    #[schema(value_type = Option<schema_types::NameSchema>)]
    name: Option<String>,
    #[serde(default)]
    #[schema(value_type = schema_types::LabelsSchema)]
    labels: BTreeMap<String, String>,
    #[serde(default)]
    #[schema(value_type = Option<schema_types::NameSchema>)]
    external_id: Option<String>,
    /// The first failure that no other task handles cancels all other tasks.
    #[serde(default)]
    fail_fast: bool,
    /// Cancel tasks whose result can no longer be used.
    #[serde(default)]
    dead_end_cancel: bool,
}

impl From<ExecutionIn> for ExecutionSpec {
    fn from(it: ExecutionIn) -> Self {
        ExecutionSpec {
            name: it.name,
            labels: it.labels,
            external_id: it.external_id,
            fail_fast: it.fail_fast,
            dead_end_cancel: it.dead_end_cancel,
            ..ExecutionSpec::default()
        }
    }
}

/// A priority as a number or a word.
#[derive(Clone, Copy, Default)]
struct PriorityIn(i32);

impl<'de> Deserialize<'de> for PriorityIn {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct PriorityVisitor;
        impl serde::de::Visitor<'_> for PriorityVisitor {
            type Value = PriorityIn;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, "a whole number from -1000 to 1000, or one of {}", Priority::list())
            }

            fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<PriorityIn, E> {
                i32::try_from(number).map(PriorityIn).map_err(|_| E::custom("must be between -1000 and 1000"))
            }

            fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<PriorityIn, E> {
                i32::try_from(number).map(PriorityIn).map_err(|_| E::custom("must be between -1000 and 1000"))
            }

            fn visit_str<E: serde::de::Error>(self, word: &str) -> Result<PriorityIn, E> {
                let found = Priority::ALL.iter().find(|priority| priority.word() == word);
                let unknown = || E::custom(format!("`{word}` is not one of {}", Priority::list()));
                found.map(|priority| PriorityIn(priority.code().into())).ok_or_else(unknown)
            }
        }
        from.deserialize_any(PriorityVisitor)
    }
}

/// A new task. Only `kind` is required.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = NewTask)]
pub struct TaskIn {
    #[schema(value_type = schema_types::NameSchema)]
    kind: String,
    /// Key of the task within the request, for `needs` of other tasks.
    #[serde(default)]
    #[schema(value_type = Option<schema_types::NameSchema>)]
    key: Option<String>,
    #[serde(default)]
    #[schema(value_type = Option<schema_types::NameSchema>)]
    name: Option<String>,
    #[serde(default)]
    #[schema(value_type = Option<schema_types::NameSchema>)]
    queue: Option<String>,
    /// Priority, higher first: a number, or `high` (100), `normal` (0) or `low` (-100).
    #[serde(default)]
    #[schema(value_type = Option<schema_types::PrioritySchema>)]
    priority: PriorityIn,
    /// Payload for the worker: at most 256 KiB.
    #[serde(default)]
    #[schema(value_type = schema_types::JsonSchema, required = false)]
    payload: Option<Raw>,
    #[serde(default)]
    #[schema(value_type = Option<schema_types::ExecutorSchema>)]
    executor: Option<Value>,
    #[serde(default)]
    #[schema(max_items = 10_000)]
    needs: Vec<NeedIn>,
    #[serde(default)]
    #[schema(value_type = schema_types::RetryPolicySchema, required = false)]
    retry: Option<Box<RawValue>>,
    /// Dialect of `retry`.
    #[serde(default)]
    #[schema(value_type = Option<schema_types::DialectSchema>)]
    dialect: Option<String>,
    /// Timeout of a run since its last heartbeat.
    #[serde(default)]
    timeout: Option<DurationIn>,
    /// Total time limit of a run.
    #[serde(default)]
    attempt_deadline: Option<DurationIn>,
    /// Deadline of the whole task.
    #[serde(default)]
    deadline: Option<MomentIn>,
    /// Delay of the first run. Give either this or `at`.
    #[serde(default)]
    delay: Option<DurationIn>,
    /// Due time of the first run.
    #[serde(default)]
    at: Option<Instant>,
    /// Alias of `at`.
    #[serde(default)]
    run_at: Option<Instant>,
    /// Name of the dependency that the task calls: its runs are held while the dependency is down, in maintenance or
    /// over its retry budget.
    #[serde(default)]
    dependency: Option<String>,
    /// Name of the account that pays for the task.
    #[serde(default)]
    account: Option<String>,
    /// Cost of the task; default: the cost that the account sets for its kind, else 1.
    #[serde(default)]
    cost: Option<u32>,
    #[serde(default)]
    #[schema(value_type = schema_types::LabelsSchema)]
    labels: BTreeMap<String, String>,
    /// Unique among the open tasks of a namespace: a second submit returns the id of the first.
    #[serde(default)]
    #[schema(value_type = Option<schema_types::NameSchema>)]
    dedupe_key: Option<String>,
    /// Your own id, stored and usable in filters.
    #[serde(default)]
    #[schema(value_type = Option<schema_types::NameSchema>)]
    external_id: Option<String>,
    /// Calls made when the task has succeeded or failed for good, when it is retried, and when it is canceled while
    /// running.
    #[serde(default)]
    #[schema(value_type = Option<schema_types::HooksSchema>)]
    hooks: Option<Value>,
    /// Stops dead-end cancellation: a dead end after this task cancels nothing before it.
    #[serde(default)]
    dead_end_barrier: bool,
    /// Expected number of items: the weight of the task under a capacity rule.
    #[serde(default)]
    #[schema(maximum = 2147483647)]
    expected: Option<u32>,
}

/// A need: a key, or an object with a condition.
pub type NeedIn = TextOr<WholeNeed>;

/// A need with its condition.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = NeedFields)]
pub struct WholeNeed {
    /// The key of another task in this request.
    task: String,
    /// Condition; default: `success`.
    #[serde(default)]
    #[schema(value_type = Option<schema_types::WhenSchema>)]
    when: Option<String>,
    /// Action if the condition is not met; default: `skip`.
    #[serde(default)]
    #[schema(value_type = Option<schema_types::OnUnmetSchema>)]
    on_unmet: Option<String>,
}

/// Request-wide context for parsing tasks.
pub struct SubmitContext<'a> {
    pub policies: &'a PolicyCache,
    pub limits: &'a PolicyLimits,
    pub traceparent: Option<String>,
    /// Policies bound to kinds, for tasks without `retry`.
    pub bound: PoliciesOfKinds,
    /// Kinds that this server runs itself; their policies apply if none is bound to the kind.
    pub kinds: &'a Kinds,
    pub namespace: &'a str,
}

impl TaskIn {
    /// The kind whose policy applies, if the task has no `retry`.
    pub fn kind_of_policy(&self) -> Option<&str> {
        self.retry.is_none().then_some(&self.kind)
    }

    /// Converts to a spec. Faults of form are reported under `at`; the engine checks the rest.
    pub fn spec(self, at: &str, context: &SubmitContext<'_>, faults: &mut Invalid) -> TaskSpec {
        let mut part = Invalid::default();
        if let (None, Err(faults)) = (&self.retry, read_dialect(self.dialect.as_deref())) {
            part.absorb("", faults);
        }
        let retry = match (&self.retry, context.bound.get(&self.kind)) {
            (Some(raw), _) => read_retry(raw.get(), self.dialect.as_deref(), context, &mut part),
            (None, Some(given)) => read_retry(&given.body, Some(&given.dialect), context, &mut part),
            (None, None) => context.kinds.retry(context.namespace, &self.kind).cloned(),
        };
        let executor = read_executor(self.executor, &mut part);
        let needs = read_needs(self.needs, &mut part);
        if let (Some(Instant(at)), Some(Instant(run_at))) = (self.at, self.run_at)
            && at != run_at
        {
            part.push("run_at", "is an alias of `at` and must not differ from it");
        }
        let named = if self.at.is_some() { "at" } else { "run_at" };
        let start = match (self.delay, self.at.or(self.run_at)) {
            (Some(_), Some(_)) => {
                part.push(named, format!("give either `delay` or `{named}`"));
                None
            }
            (Some(DurationIn(span)), None) => Some(Moment::After(span)),
            (None, at) => at.map(|Instant(at)| Moment::At(at)),
        };
        faults.absorb(at, part);
        TaskSpec {
            key: self.key,
            name: self.name,
            kind: self.kind,
            queue: self.queue,
            priority: self.priority.0,
            payload: self.payload.map(|raw| Json::from(raw.0)),
            executor,
            needs,
            retry,
            timeout: self.timeout.map(|span| span.0),
            attempt_deadline: self.attempt_deadline.map(|span| span.0),
            deadline: self.deadline.map(|moment| moment.0),
            start,
            dependency: self.dependency,
            account: self.account,
            cost: self.cost,
            labels: self.labels,
            dedupe_key: self.dedupe_key,
            external_id: self.external_id,
            hooks: self.hooks.map(Json::from),
            traceparent: context.traceparent.clone(),
            dead_end_barrier: self.dead_end_barrier,
            step: None,
            submitted_at: None,
            expected: self.expected,
            rules: Vec::new(),
        }
    }
}

/// Parses the word of a dialect; default: native.
pub fn read_dialect(word: Option<&str>) -> Result<Dialect, Invalid> {
    let word = word.unwrap_or("native");
    Dialect::from_word(word).ok_or_else(|| Invalid::one("dialect", format!("unknown dialect `{word}`")))
}

fn read_retry(
    text: &str,
    dialect: Option<&str>,
    context: &SubmitContext<'_>,
    faults: &mut Invalid,
) -> Option<Arc<Policy>> {
    let read = read_dialect(dialect)
        .and_then(|dialect| context.policies.read(text, dialect, context.limits).map_err(|part| part.under("retry")));
    match read {
        Ok(policy) => policy,
        Err(part) => {
            faults.absorb("", part);
            None
        }
    }
}

fn read_executor(value: Option<Value>, faults: &mut Invalid) -> ExecutorSpec {
    let Some(value) = value else { return ExecutorSpec::Worker };
    let word = value.get("type").and_then(Value::as_str).unwrap_or_default().to_owned();
    match word.as_str() {
        "worker" if value.as_object().is_some_and(|fields| fields.len() == 1) => ExecutorSpec::Worker,
        "timer" if value.as_object().is_some_and(|fields| fields.len() == 1) => ExecutorSpec::Timer,
        "worker" | "timer" => {
            faults.push("executor", format!("the executor `{word}` has no settings"));
            ExecutorSpec::Worker
        }
        "http" => ExecutorSpec::Http(value.into()),
        "hook" => ExecutorSpec::Hook(value.into()),
        "command" => ExecutorSpec::Command(value.into()),
        _ => {
            faults.push("executor.type", "must be one of worker, http, hook, command, timer");
            ExecutorSpec::Worker
        }
    }
}

fn read_needs(needs: Vec<NeedIn>, faults: &mut Invalid) -> Vec<Need> {
    let mut read = Vec::with_capacity(needs.len());
    for (n, need) in needs.into_iter().enumerate() {
        let need = match need {
            TextOr::Text(task) => WholeNeed { task, when: None, on_unmet: None },
            TextOr::Whole(need) => *need,
        };
        let when = need.when.as_deref().map_or(Some(When::Success), When::from_word);
        let on_unmet = need.on_unmet.as_deref().map_or(Some(OnUnmet::Skip), OnUnmet::from_word);
        if when.is_none() {
            faults.push(format!("needs[{n}].when"), "must be one of success, failure, always");
        }
        if on_unmet.is_none() {
            faults.push(format!("needs[{n}].on_unmet"), "must be one of skip, fail");
        }
        if let (Some(when), Some(on_unmet)) = (when, on_unmet) {
            read.push(Need { task: need.task, when, on_unmet });
        }
    }
    read
}

/// Response of a submit for one task.
pub fn submitted(task: &SubmittedTask, key: Option<&str>, execution: Option<comeback_core::ExecutionId>) -> Value {
    let execution = execution.unwrap_or(task.id.implicit_execution());
    json!({
        "id": task.id.to_string(),
        "key": key,
        "state": task.state.word(),
        "execution_id": execution.to_string(),
        "duplicate": task.duplicate,
    })
}

/// JSON of a task with all its fields.
pub fn whole(view: &TaskView) -> Value {
    let mut shown = common(&view.stored);
    let task = &view.stored.task;
    let body = &view.body;
    let failure = view.last_failure.as_ref().and_then(|record| record.failure.as_ref());
    let text = |text: &Option<Arc<str>>| text.as_deref().and_then(|text| serde_json::from_str::<Value>(text).ok());
    let result = text(&view.result);
    let more = json!({
        "key": body.key,
        "name": body.name,
        "payload": text(&body.payload),
        "payload_version": view.payload_version,
        "account": body.account,
        "cost": body.cost,
        "verdict": result.as_ref().and_then(|result| result.get("verdict")).and_then(Value::as_str),
        "result": result,
        "progress": view.progress.as_deref().and_then(|text| serde_json::from_str::<Value>(text).ok()),
        "expected_count": task.tally.expected,
        "success": task.tally.success,
        "failures": task.tally.failures,
        "labels": body.labels,
        "executor": executor_shown(task.lane.executor, body.executor.as_deref()),
        "retry": view.stored.policy.as_ref().map(|policy| policy.to_json()),
        "timeout_ms": task.timeout.map(|span| span.0),
        "attempt_deadline_ms": task.attempt_deadline.map(|span| span.0),
        "dedupe_key": body.dedupe_key,
        "external_id": body.external_id,
        "traceparent": body.traceparent,
        "last_error": failure.map(super::failure),
        "needs": view.needs.iter().map(|edge| json!({
            "task": edge.from.to_string(), "when": edge.when.word(), "on_unmet": edge.on_unmet.word(),
        })).collect::<Vec<_>>(),
    });
    merge(&mut shown, more);
    shown
}

/// JSON of a task in a list, without payload and result.
pub fn line(listed: &Listed) -> Value {
    let mut shown = common(&listed.stored);
    merge(
        &mut shown,
        json!({
            "key": listed.key,
            "name": listed.name,
            "labels": listed.labels,
            "external_id": listed.external_id,
            "last_error": listed.last_error.as_ref().map(|message| json!({"message": message})),
            "verdict": listed.verdict,
        }),
    );
    shown
}

fn common(stored: &comeback_engine::store::Stored) -> Value {
    let task = &stored.task;
    json!({
        "id": task.id.to_string(),
        "kind": task.lane.kind,
        "queue": task.lane.queue,
        "state": task.state.word(),
        "priority": task.priority,
        "execution_id": task.execution.unwrap_or(task.id.implicit_execution()).to_string(),
        "attempt": task.counters.attempt,
        "attempt_number": task.attempt_number(),
        "max_retries": stored.policy.as_ref().map(|policy| policy.max_retries),
        "cycle": task.cycle,
        "retry_kind": RetryKind::of(task.cycle, task.attempt_number()),
        "total_attempts": task.run,
        "lost_count": task.counters.lost,
        "throttle_count": task.counters.throttled,
        "snooze_count": task.counters.snoozed,
        "start_at": instant(task.start_at.filter(|_| task.state.is_open())),
        "next_retry_at": instant(task.next_retry_at),
        "held_until": instant(task.hold.as_ref().map(|hold| hold.until)),
        "blocked": blocked(task),
        "reason": task.reason.map(|reason| reason.word()),
        "lease": task.lease.as_ref().map(|lease| json!({
            "worker": lease.worker, "expires_at": instant(lease.expires_at),
        })),
        "error_class": task.class.map(|class| class.word()),
        "retryable": task.may_be_retried(),
        "fingerprint": task.fingerprint.map(fingerprint_to_hex),
        "deadline_at": instant(task.expires_at),
        "submitted_at": task.submitted_at.to_rfc3339(),
        "started_at": instant(task.started_at),
        "ended_at": instant(task.ended_at),
        "updated_at": task.updated_at.to_rfc3339(),
    })
}

/// The reason that holds a task, besides its due time.
fn blocked(task: &comeback_core::Task) -> Option<String> {
    if task.execution_paused && task.state.is_open() {
        return Some("its execution is paused".into());
    }
    match task.state {
        State::Paused if task.parked => Some("parked by its policy until it is resumed".into()),
        State::Paused => Some("paused manually".into()),
        State::Waiting if task.needs_left > 0 => Some(format!("waits for {} other tasks", task.needs_left)),
        _ => task.hold.as_ref().map(|hold| hold.reason.clone()),
    }
}

/// Sets the hold reason if a rule holds the task and no other reason does.
pub fn say_held(shown: &mut Value, by: Option<HeldBy>) {
    if let Some(by) = by.filter(|_| shown["blocked"].is_null()) {
        shown["blocked"] = by.words.into();
        if let Some(until) = by.until {
            shown["held_until"] = until.to_rfc3339().into();
        }
    }
}

fn executor_shown(executor: comeback_core::Executor, settings: Option<&str>) -> Value {
    let mut shown: Value =
        settings.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_else(|| json!({"type": executor.word()}));
    mask::mask(&mut shown);
    shown
}

/// JSON of an attempt; `None` if the record is not the end of a run.
pub fn attempt(record: &Record, old: &[OldPayload]) -> Option<Value> {
    let outcome = record.outcome?;
    let before = record.decision.as_ref().map_or(record.attempt, |decision| decision.before.attempt);
    let counted = record.data.as_ref().and_then(|data| data.get("counted"));
    Some(json!({
        "number": before + 1,
        "run": record.run,
        "cycle": record.cycle,
        "retry_kind": RetryKind::of(record.cycle, before + 1),
        "payload_version": payload::version_of_run(old, record.run),
        "worker": record.worker,
        "started_at": instant(record.started_at),
        "ended_at": record.at.to_rfc3339(),
        "duration_ms": record.started_at.map(|start| record.at.since(start).0),
        "outcome": outcome.word(),
        "error": record.failure.as_ref().map(super::failure),
        "decision": record.decision.as_ref().map(super::decision),
        "counted": counted.map(|it| json!({
            "expected_count": it["expected"], "success": it["success"], "failures": it["failures"],
        })),
        "result": matches!(outcome, AttemptOutcome::Succeeded).then(|| {
            record.result.as_deref().and_then(|text| serde_json::from_str::<Value>(text).ok())
        }).flatten(),
    }))
}

/// All versions of a payload, oldest first, each with its diff to the previous one.
pub fn payloads(old: &[OldPayload], in_use: Option<&str>) -> Vec<Value> {
    let read = |text: Option<&str>| text.map_or(Value::Null, |text| serde_json::from_str(text).unwrap_or(Value::Null));
    let newest = old.last().map_or(1, |last| last.version + 1);
    let versions = old.iter().map(|it| (it.version, read(it.payload.as_deref())));
    let versions: Vec<(u32, Value)> = versions.chain([(newest, read(in_use))]).collect();
    let mut shown = Vec::with_capacity(versions.len());
    for (i, (version, payload)) in versions.iter().enumerate() {
        let edit = i.checked_sub(1).and_then(|i| old.get(i));
        let before = i.checked_sub(1).and_then(|i| versions.get(i)).map(|(_, payload)| payload);
        shown.push(json!({
            "version": version,
            "payload": payload,
            "in_use": *version == newest,
            "edited_at": edit.map(|it| it.replaced_at.to_rfc3339()),
            "edited_by": edit.and_then(|it| it.replaced_by.as_deref()),
            "last_run": old.get(i).map(|it| it.last_run),
            "diff": before.map(|before| between(before, payload)).unwrap_or_default(),
        }));
    }
    shown
}

fn merge(into: &mut Value, more: Value) {
    if let (Value::Object(into), Value::Object(more)) = (into, more) {
        into.extend(more);
    }
}

/// Text of a list cursor.
pub fn next_cursor(cursor: Option<ListCursor>) -> Option<String> {
    cursor.map(|cursor| cursor.to_string())
}

/// JSON of a forecast: the attempts to come if each one fails.
pub fn forecast(forecast: &comeback_core::forecast::Forecast) -> Value {
    let attempts: Vec<Value> = forecast
        .attempts
        .iter()
        .map(|it| {
            json!({
                "number": it.number,
                "at": it.at.to_rfc3339(),
                "earliest": it.earliest.to_rfc3339(),
                "latest": it.latest.to_rfc3339(),
            })
        })
        .collect();
    json!({
        "attempts": attempts,
        "gives_up_at": instant(forecast.gives_up_at),
        "then": forecast.then.map(|(state, reason)| json!({"state": state.word(), "reason": reason.word()})),
    })
}
