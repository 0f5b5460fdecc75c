//! Compiles workflow documents to task specs. Task fields are parsed as in requests; faults carry their line.

use std::collections::BTreeSet;
use std::sync::Arc;

use async_trait::async_trait;
use comeback_core::workflow::{self, Items, Mode, Origin, Problems, Source};
use comeback_core::{Dialect, Invalid, Lane, PolicyLimits, Priority};
use comeback_engine::executors::Kinds;
use comeback_engine::flow::{self, Each, Plan, Workflows};
use comeback_engine::store::{Store, StoreError};
use comeback_engine::{CommandError, Engine, ExecutionSpec, Need, TaskSpec};
use serde_json::{Map, Value, json};

use crate::kind_policies::KindPolicies;
use crate::problem::Problem;
use crate::wire::read_part;
use crate::wire::task::{PolicyCache, SubmitContext, TaskIn, read_dialect};

/// Compiler of workflow documents, with the policies of the server.
pub struct Catalog {
    limits: PolicyLimits,
    kinds: Kinds,
    policies: Arc<PolicyCache>,
    kind_policies: Arc<KindPolicies>,
    store: Arc<dyn Store>,
}

#[async_trait]
impl Workflows for Catalog {
    async fn plan(&self, namespace: &str, text: &str) -> Result<Plan, CommandError> {
        let source = workflow::read(text).map_err(without_places)?;
        let context = self.context(namespace, kinds_of(&source.workflow)).await?;
        Ok(self.planned(&context, &source.workflow)?)
    }

    async fn task(&self, namespace: &str, body: &Value) -> Result<TaskSpec, CommandError> {
        let mut faults = Invalid::default();
        let task = read_part::<TaskIn>(body.clone())?;
        let context = self.context(namespace, task.kind_of_policy()).await?;
        let spec = task.spec("", &context, &mut faults);
        Ok(faults.or(spec)?)
    }
}

/// Kind of a step.
fn kind_of(step: &workflow::Step) -> &str {
    step.task.get("kind").and_then(Value::as_str).unwrap_or(&step.name)
}

fn kinds_of(workflow: &workflow::Workflow) -> impl Iterator<Item = &str> {
    workflow.steps.iter().map(kind_of)
}

fn without_places(problems: Problems) -> Invalid {
    let mut faults = Invalid::default();
    for problem in problems.0 {
        faults.push(problem.path, problem.message);
    }
    faults
}

impl Catalog {
    /// A catalog for an engine.
    pub fn new(engine: &Engine, policies: Arc<PolicyCache>, kind_policies: Arc<KindPolicies>) -> Catalog {
        let (config, store) = (engine.config(), engine.store().clone());
        Catalog { limits: config.policy_limits, kinds: config.kinds.clone(), policies, kind_policies, store }
    }

    /// Validates a workflow. Each fault carries its position.
    pub async fn read(&self, engine: &Engine, namespace: &str, text: &str) -> Result<(Source, Plan), Problem> {
        let source = workflow::read(text)?;
        let context = self.context(namespace, kinds_of(&source.workflow)).await?;
        let plan = self.planned(&context, &source.workflow);
        let checked = plan.and_then(|plan| engine.check_plan(namespace, &plan).map(|()| plan));
        match checked {
            Ok(plan) => Ok((source, plan)),
            Err(invalid) => {
                let place = |fault: comeback_core::Fault| source.problem(&fault.path, &fault.message);
                Err(Problems(invalid.faults.into_iter().map(place).collect()).into())
            }
        }
    }

    /// Adds the policies of these kinds.
    async fn context<'a>(
        &'a self,
        namespace: &'a str,
        kinds: impl IntoIterator<Item = &str> + Send,
    ) -> Result<SubmitContext<'a>, StoreError> {
        let bound = self.kind_policies.of_kinds(&*self.store, namespace, kinds).await?;
        let (policies, limits) = (&*self.policies, &self.limits);
        Ok(SubmitContext { policies, limits, traceparent: None, bound, kinds: &self.kinds, namespace })
    }

    fn planned(&self, context: &SubmitContext<'_>, workflow: &workflow::Workflow) -> Result<Plan, Invalid> {
        let mut faults = Invalid::default();
        let names: BTreeSet<&str> = workflow.steps.iter().map(|step| step.name.as_str()).collect();
        let tasks = workflow.steps.iter().map(|step| task(step, workflow, &names, context, &mut faults)).collect();
        let retry = workflow.retry.as_ref().and_then(|retry| {
            let read = self.policies.read(&retry.to_string(), workflow.dialect, &self.limits);
            read.map_err(|part| faults.absorb("retry", part)).ok().flatten()
        });
        let execution = ExecutionSpec {
            name: workflow.name.clone(),
            labels: workflow.labels.clone(),
            fail_fast: workflow.fail_fast,
            dead_end_cancel: workflow.dead_end_cancel,
            ..ExecutionSpec::default()
        };
        faults.or(Plan {
            tasks,
            execution,
            input: workflow.input.clone(),
            retry,
            output: workflow.output.clone(),
            bare_names: workflow.is_playbook,
        })
    }
}

fn task(
    step: &workflow::Step,
    whole: &workflow::Workflow,
    names: &BTreeSet<&str>,
    context: &SubmitContext<'_>,
    faults: &mut Invalid,
) -> TaskSpec {
    let at = format!("steps.{}", step.name);
    let mut fields = step.task.clone();
    if fields.contains_key("retry") {
        fields.entry("dialect").or_insert_with(|| step.dialect.word().into());
    }
    let read = read_part::<TaskIn>(Value::Object(fields)).map_err(|part| faults.absorb(&at, part));
    let Ok(read) = read else { return TaskSpec::default() };
    let spec = read.spec(&at, context, faults);
    let call = step.call.as_ref().map(|call| flow::Call {
        workflow: call.workflow.clone(),
        version: call.version,
        input: call.input.clone(),
        ..flow::Call::default()
    });
    let foreach = step.foreach.as_ref().map(|foreach| flow::Foreach {
        items: match &foreach.items {
            Items::Expression(text) => Value::String(text.clone()),
            Items::List(items) => Value::Array(items.clone()),
        },
        name: foreach.name.clone(),
        sequential: foreach.mode == Mode::Sequential,
        limit: if let Mode::Parallel { limit } = foreach.mode { limit } else { None },
        each: Each {
            executor: if call.is_some() { "flow".into() } else { spec.executor.executor().word().into() },
            timeout_ms: spec.timeout.map(|span| span.0),
            attempt_deadline_ms: spec.attempt_deadline.map(|span| span.0),
            call: call.clone(),
        },
    });
    let needs = step.needs.iter();
    let step = flow::Step {
        condition: step.condition.clone(),
        output: step.output.clone(),
        vars: step.vars.clone(),
        locals: step.locals.clone(),
        call: call.filter(|_| foreach.is_none()),
        foreach,
        round: None,
        sees: sees(step, names, whole.is_playbook),
        bare_names: whole.is_playbook,
    };
    TaskSpec {
        needs: needs.map(|need| Need { task: need.step.clone(), when: need.when, on_unmet: need.on_unmet }).collect(),
        key: at.strip_prefix("steps.").map(str::to_owned),
        step: Some(step),
        ..spec
    }
}

/// Steps that the templates of a step refer to.
fn sees(step: &workflow::Step, names: &BTreeSet<&str>, bare_names: bool) -> Vec<String> {
    let in_braces = |text: &str| Value::String(format!("{{{{ {text} }}}}"));
    let items = step.foreach.as_ref().map(|foreach| match &foreach.items {
        Items::Expression(text) => in_braces(text),
        Items::List(items) => Value::Array(items.clone()),
    });
    let texts = json!([
        Value::Object(step.task.clone()),
        step.output,
        Value::Object(step.vars.clone()),
        Value::Object(step.locals.clone()),
        step.condition.as_deref().map(in_braces),
        items,
        step.call.as_ref().and_then(|call| call.input.clone()),
    ]);
    // Named by what is worked out (`steps[x]`): it may be any of them. So may a name that a step before has left.
    let mut asked = BTreeSet::new();
    flow::collect_names(&texts, &mut asked);
    if asked.contains("steps") || (bare_names && asked.iter().any(|name| name == "vars" || name.starts_with("vars."))) {
        return names.iter().filter(|name| **name != step.name).map(|name| (*name).to_owned()).collect();
    }
    let named = flow::steps_named(&texts, bare_names).into_iter();
    named.filter(|name| names.contains(name.as_str())).collect()
}

/// A parsed step, with the source of each field.
fn step_shown(step: &workflow::Step, given: &[(&'static str, Value, Origin)]) -> Value {
    let mut shown = step.task.clone();
    let mut put = |name: &str, value: Option<Value>| {
        if let Some(value) = value {
            shown.insert(name.into(), value);
        }
    };
    let needs: Vec<Value> = step
        .needs
        .iter()
        .map(|need| json!({"step": need.step, "when": need.when.word(), "on_unmet": need.on_unmet.word()}))
        .collect();
    put("needs", Some(needs.into()));
    put("if", step.condition.clone().map(Value::String));
    put("output", step.output.clone());
    put("foreach", step.foreach.as_ref().map(foreach_shown));
    put(
        "workflow",
        step.call.as_ref().map(|call| json!({"path": call.workflow, "version": call.version, "input": call.input})),
    );
    let mut origins: Map<String, Value> =
        step.origins.iter().map(|(field, origin)| (field.clone(), origin.word().into())).collect();
    origins.extend(given.iter().map(|(field, _, origin)| ((*field).to_owned(), origin.word().into())));
    let given: Map<String, Value> =
        given.iter().map(|(field, value, _)| ((*field).to_owned(), value.clone())).collect();
    shown.insert("name".into(), step.name.clone().into());
    shown.insert("origins".into(), Value::Object(origins));
    shown.insert("given".into(), Value::Object(given));
    Value::Object(shown)
}

impl Catalog {
    /// A parsed workflow, with the source of each field of its steps.
    pub async fn shown(&self, namespace: &str, workflow: &workflow::Workflow) -> Result<Value, StoreError> {
        let context = self.context(namespace, kinds_of(workflow)).await?;
        let step = |step: &workflow::Step| step_shown(step, &self.given(&context, step));
        Ok(json!({
            "name": workflow.name,
            "description": workflow.description,
            "input": workflow.input,
            "retry": workflow.retry,
            "labels": workflow.labels,
            "output": workflow.output,
            "fail_fast": workflow.fail_fast,
            "dead_end_cancel": workflow.dead_end_cancel,
            "is_playbook": workflow.is_playbook,
            "steps": workflow.steps.iter().map(step).collect::<Vec<_>>(),
        }))
    }

    /// Defaults of fields that neither the step nor its workflow sets: the policy of the kind, then the server's
    /// defaults.
    fn given(&self, context: &SubmitContext<'_>, step: &workflow::Step) -> Vec<(&'static str, Value, Origin)> {
        let kind = kind_of(step);
        let of_kind = match context.bound.get(kind) {
            Some(given) => {
                let dialect = read_dialect(Some(&given.dialect)).unwrap_or(Dialect::Native);
                self.policies.read(&given.body, dialect, &self.limits).ok().map(|policy| policy.map(|it| it.to_json()))
            }
            None => self.kinds.retry(context.namespace, kind).map(|policy| Some(policy.to_json())),
        };
        let retry = match of_kind {
            Some(policy) => (policy.unwrap_or(Value::Bool(false)), Origin::Kind),
            None => (Value::Bool(false), Origin::Server),
        };
        let lane = Lane::default();
        let all = [
            ("retry", retry.0, retry.1),
            ("queue", lane.queue.as_str().into(), Origin::Server),
            ("priority", Priority::Normal.code().into(), Origin::Server),
        ];
        all.into_iter().filter(|(field, ..)| !step.task.contains_key(*field)).collect()
    }
}

fn foreach_shown(foreach: &workflow::Foreach) -> Value {
    let items = match &foreach.items {
        Items::Expression(text) => Value::String(text.clone()),
        Items::List(items) => Value::Array(items.clone()),
    };
    let (mode, limit) = match foreach.mode {
        Mode::Sequential => ("sequential", None),
        Mode::Parallel { limit } => ("parallel", limit),
    };
    json!({"in": items, "as": foreach.name, "mode": mode, "limit": limit})
}
