//! Start: an execution of a workflow, for a caller or for a step that stands for it.

use std::collections::BTreeMap;
use std::sync::Arc;

use comeback_core::{ExecutionId, Invalid, Policy, Quota, QuotaExceeded, TaskId};
use comeback_store::{Below, Collection, Firing, Idempotency, Origin, StoreError, Submission, Submitted};
use serde_json::Value;

use super::{Call, Plan, Step, WORKFLOWS, Workflows};
use crate::{CommandError, Core, Engine, Json, Submit, TaskSpec};

/// A start of a workflow as a caller asks for it.
#[derive(Clone, Debug, Default)]
pub struct Start {
    /// The namespace.
    pub namespace: String,
    /// The workflow.
    pub workflow: String,
    /// The newest where nothing is said.
    pub version: Option<u32>,
    /// Input of the execution.
    pub input: Option<Value>,
    /// Name of the execution.
    pub name: Option<String>,
    /// Labels of the execution.
    pub labels: BTreeMap<String, String>,
    /// External id of the execution.
    pub external_id: Option<String>,
    /// Of the execution as a whole; the workflow's own where nothing is said.
    pub retry: Option<Option<Arc<Policy>>>,
    /// The execution that it repeats.
    pub retry_of: Option<ExecutionId>,
    /// The instant of a schedule.
    pub firing: Option<Firing>,
    /// Idempotency key.
    pub idempotency: Option<Idempotency>,
}

/// Answer to a start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Started {
    /// The execution.
    pub execution: ExecutionId,
    /// The workflow.
    pub workflow: String,
    /// Version of the workflow.
    pub version: u32,
    /// The task that stands for it and starts it again, where it has a policy of its own.
    pub task: Option<TaskId>,
    /// Whether the start was repeated under its key.
    pub repeated: bool,
}

/// One execution that begins now.
pub(crate) struct Begin {
    /// The namespace.
    pub namespace: String,
    /// The workflow.
    pub workflow: String,
    /// Version of the workflow.
    pub version: Option<u32>,
    /// Input of the execution.
    pub input: Option<Value>,
    pub id: Option<ExecutionId>,
    pub parent: Option<(TaskId, u32)>,
    /// Its place, where a step of another execution begins it.
    pub below: Option<Below>,
    /// The execution that it repeats.
    pub retry_of: Option<ExecutionId>,
    /// Name of the execution.
    pub name: Option<String>,
    /// Labels of the execution.
    pub labels: BTreeMap<String, String>,
    /// External id of the execution.
    pub external_id: Option<String>,
    pub firing: Option<Firing>,
    /// Idempotency key.
    pub idempotency: Option<Idempotency>,
}

/// A start that was thought through.
pub(crate) struct Planned {
    /// Version of the workflow.
    pub version: u32,
    pub begin: Begin,
    /// Where the execution has a policy of its own: the task that stands for it, and the first execution that it will begin.
    pub call: Option<(Submit, ExecutionId)>,
}

impl Begin {
    pub fn new(namespace: String, workflow: String, version: Option<u32>, input: Option<Value>) -> Begin {
        Begin {
            namespace,
            workflow,
            version,
            input,
            id: None,
            parent: None,
            below: None,
            retry_of: None,
            name: None,
            labels: BTreeMap::new(),
            external_id: None,
            firing: None,
            idempotency: None,
        }
    }
}

impl Engine {
    /// From now on workflows are read by this. The first one stays.
    pub fn read_workflows_with(&self, reader: Arc<dyn Workflows>) {
        let _ = self.core.workflows.set(reader);
    }

    /// Whether a workflow could be executed here, without executing it. Faults are named by its steps.
    pub fn check_plan(&self, namespace: &str, plan: &Plan) -> Result<(), Invalid> {
        let core = &self.core;
        let names: Vec<String> = plan.tasks.iter().map(|task| task.key.clone().unwrap_or_default()).collect();
        let submit = Submit {
            namespace: namespace.to_owned(),
            tasks: plan.tasks.clone(),
            execution: Some(plan.execution.clone()),
            ..Submit::default()
        };
        let planned = submit.plan(&core.config, &crate::ids::Ids::new(Some(0)), core.clock.now());
        planned.map(drop).map_err(|invalid| invalid.renamed(|path| by_step(path, &names)))
    }

    /// Output of an execution, as its workflow defines it.
    pub async fn execution_output(&self, namespace: &str, id: ExecutionId) -> Result<Value, CommandError> {
        Ok(self.core.output(namespace, id).await?)
    }

    /// Starts a workflow.
    pub async fn start_workflow(&self, start: Start) -> Result<Started, CommandError> {
        let core = &self.core;
        if !core.is_again(&start).await? {
            core.must_be_active(&start.namespace, &start.workflow).await?;
        }
        let Planned { version, begin, call } = core.plan_start(&start).await?;
        let Some((submit, first)) = call else {
            let (execution, repeated) = core.begin_execution(begin).await?;
            return Ok(Started { execution, workflow: start.workflow, version, task: None, repeated });
        };
        let answer = self.submit(submit).await?;
        let task = answer.tasks.first().map(|task| task.id).ok_or(CommandError::NotFound("task"))?;
        let first = if answer.repeated { core.first_of(&start.namespace, task).await?.unwrap_or(first) } else { first };
        let begin = Begin { id: Some(first), parent: Some((task, 1)), idempotency: None, ..begin };
        let (execution, _) = core.begin_execution(begin).await?;
        Ok(Started { execution, workflow: start.workflow, version, task: Some(task), repeated: answer.repeated })
    }
}

/// `tasks[2].kind` as `steps.NAME.kind`; the only task of a request is named by its fields.
fn by_step(path: &str, names: &[String]) -> String {
    let (name, rest) = match path.strip_prefix("tasks[").and_then(|rest| rest.split_once(']')) {
        Some((index, rest)) => (index.parse().ok().and_then(|index: usize| names.get(index)), rest),
        None if names.len() == 1 && !path.starts_with("execution") && path != "tasks" => (names.first(), path),
        None => (None, path),
    };
    match name {
        Some(name) => format!("steps.{name}.{}", rest.trim_start_matches('.')),
        None => path.strip_prefix("execution.").unwrap_or(path).to_owned(),
    }
}

impl Plan {
    /// The defaults, with what a start gives over them.
    pub(crate) fn input_for(&self, given: Option<&Value>) -> Result<Value, Invalid> {
        let mut input = self.input.clone();
        match given {
            None | Some(Value::Null) => {}
            Some(Value::Object(fields)) => input.extend(fields.clone()),
            Some(_) => return Err(Invalid::one("input", "must be an object")),
        }
        Ok(Value::Object(input))
    }
}

impl Core {
    /// Whether it was asked for before, under the same key.
    pub(crate) async fn is_again(&self, start: &Start) -> Result<bool, StoreError> {
        match &start.idempotency {
            Some(key) => Ok(self.store.used(&start.namespace, key).await?.is_some()),
            None => Ok(false),
        }
    }

    /// Dry run of a start.
    pub(crate) async fn plan_start(&self, start: &Start) -> Result<Planned, CommandError> {
        let (plan, version) = self.planned(&start.namespace, &start.workflow, start.version).await?;
        let retry = start.retry.clone().unwrap_or_else(|| plan.retry.clone());
        let begin = Begin {
            retry_of: start.retry_of,
            name: start.name.clone(),
            labels: start.labels.clone(),
            external_id: start.external_id.clone(),
            firing: start.firing.clone(),
            idempotency: start.idempotency.clone(),
            ..Begin::new(start.namespace.clone(), start.workflow.clone(), Some(version), start.input.clone())
        };
        let Some(retry) = retry else { return Ok(Planned { version, begin, call: None }) };
        // Its input is checked before anybody stands for it.
        plan.input_for(start.input.as_ref())?;
        let first = self.ids.execution(self.clock.now());
        let call = Call {
            workflow: start.workflow.clone(),
            version: Some(version),
            input: start.input.clone(),
            name: start.name.clone(),
            labels: start.labels.clone(),
            external_id: start.external_id.clone(),
            first: Some(first),
            firing: start.firing.clone(),
        };
        let spec = TaskSpec {
            name: Some(format!("execution of {}", start.workflow)),
            retry: Some(retry),
            labels: start.labels.clone(),
            step: Some(Step { call: Some(call), ..Step::default() }),
            ..TaskSpec::new(start.workflow.clone())
        };
        let submit = Submit { idempotency: start.idempotency.clone(), ..Submit::one(start.namespace.clone(), spec) };
        Ok(Planned { version, begin, call: Some((submit, first)) })
    }

    /// A workflow, and which version that is.
    pub(crate) async fn planned(
        &self,
        namespace: &str,
        path: &str,
        version: Option<u32>,
    ) -> Result<(Plan, u32), CommandError> {
        let shelf = Collection { namespace, shelf: WORKFLOWS };
        let document = self.store.document(shelf, path, version).await?.ok_or(CommandError::NotFound("workflow"))?;
        let Some(workflows) = self.workflows.get() else { return Err(CommandError::NotFound("workflow")) };
        Ok((workflows.plan(namespace, &document.body).await?, document.version))
    }

    /// Which execution a task was the first to stand for.
    async fn first_of(&self, namespace: &str, task: TaskId) -> Result<Option<ExecutionId>, CommandError> {
        let view = self.store.task(namespace, task).await?;
        let step = view.and_then(|view| view.body.step).as_deref().and_then(Step::read);
        Ok(step.and_then(|step| step.call).and_then(|call| call.first))
    }

    /// The rows of an execution that begins now.
    pub(crate) async fn execution_of(&self, begin: Begin) -> Result<Submission, CommandError> {
        let (mut plan, version) = self.planned(&begin.namespace, &begin.workflow, begin.version).await?;
        let input = plan.input_for(begin.input.as_ref())?;
        let input = Json::from(input).text().clone();
        if input.len() > self.config.limits.payload_bytes {
            let most = self.config.limits.payload_bytes;
            return Err(Invalid::one("input", format!("may have {most} bytes at most")).into());
        }
        let execution = &mut plan.execution;
        execution.name = begin.name.or(execution.name.take());
        execution.labels.extend(begin.labels);
        execution.external_id = begin.external_id;
        execution.id = begin.id;
        let before = match begin.retry_of {
            Some(id) => self.store.execution(&begin.namespace, id).await?,
            None => None,
        };
        execution.below = begin.below;
        execution.origin = Origin {
            workflow: Some((begin.workflow, version)),
            input: Some(input),
            parent: begin.parent,
            retry_of: begin.retry_of,
            retry_root: before.as_ref().map(|it| it.origin.retry_root.unwrap_or(it.execution.id)),
            retry_number: before.map_or(0, |it| it.origin.retry_number + 1),
            firing: begin.firing,
        };
        // A run of a task begins one execution, however often it is tried.
        let own = begin.parent.map(|(task, run)| Idempotency {
            scope: "flow".into(),
            key: format!("{task}:{run}"),
            digest: [0; 32],
        });
        let submit = Submit {
            namespace: begin.namespace,
            tasks: plan.tasks,
            execution: Some(plan.execution),
            idempotency: begin.idempotency.or(own),
            unless: Vec::new(),
        };
        Ok(submit.plan(&self.config, &self.ids, self.clock.now())?)
    }

    /// The answer says whether it was there before.
    pub(crate) async fn begin_execution(&self, begin: Begin) -> Result<(ExecutionId, bool), CommandError> {
        let (namespace, below) = (begin.namespace.clone(), begin.below);
        let submission = self.execution_of(begin).await?;
        let new = submission.execution.as_ref().map(|new| new.execution.id);
        let answer = self.submit_batch(std::slice::from_ref(&submission)).await.pop();
        match answer.ok_or(CommandError::ShuttingDown)?? {
            Submitted::Created(_) => Ok((new.ok_or(CommandError::NotFound("execution"))?, false)),
            Submitted::Repeated { execution, .. } => Ok((execution.ok_or(CommandError::NotFound("execution"))?, true)),
            Submitted::Mismatch => Err(CommandError::IdempotencyMismatch),
            Submitted::Overtaken => Err(CommandError::Conflict),
            Submitted::Unfunded(short) => Err(short.into()),
            Submitted::RootFull => {
                let most = below.map_or(0, |below| below.most_tasks);
                Err(QuotaExceeded { quota: Quota::TasksPerRoot, namespace, most }.into())
            }
            Submitted::RootEnded => {
                Err(below.map_or(CommandError::Conflict, |below| CommandError::RootEnded(below.root)))
            }
        }
    }
}
