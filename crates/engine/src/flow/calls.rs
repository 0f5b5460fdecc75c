//! Steps that stand for others: loops whose rounds are over, and executions that are started, watched and heard.

use comeback_core::transition::Act;
use comeback_core::{
    Class, End, ExecutionState, Executor, Failure, Millis, Outcome, Speaker, State, TaskId, Trigger, expression,
};
use comeback_store::{CallEnd, ClaimRequest, Claimed, Loop, Shelf, StepView, StepsOf, StoreError};
use serde_json::{Value, json};

use super::context::parsed;
use super::start::Begin;
use super::{Call, Step, WORKFLOWS, steps_named};
use crate::commands::execution::cancel_execution;
use crate::loops::{BATCH, Progress};
use crate::road::{Behind, Met, Verb, Wish};
use crate::{CommandError, Core};

/// Long enough to start an execution of ten thousand tasks.
const LEASE: Millis = Millis::from_secs(60);

/// Takes up what is ready: a loop whose rounds are over ends, a call begins.
pub(crate) async fn take_up(core: &Core) -> Result<Progress, StoreError> {
    if core.store.lane_namespaces(Some(Executor::Flow)).await?.is_empty() {
        return Ok(Progress::default());
    }
    let request = ClaimRequest {
        namespace: ClaimRequest::ANY_NAMESPACE.into(),
        queues: Vec::new(),
        any_queue: true,
        kinds: Vec::new(),
        executor: Executor::Flow,
        worker: core.config.instance.as_str().into(),
        limit: BATCH,
        lease: LEASE,
        due: false,
        without_calls: false,
    };
    let claimed = core.claim_batch(std::slice::from_ref(&request)).await.pop().unwrap_or(Ok(Vec::new()))?;
    let mut progress = Progress { moved: 0, more: claimed.len() >= BATCH as usize };
    for claimed in claimed {
        progress.moved += 1;
        let verb = begin(core, &claimed).await?;
        let wish = Wish { task: claimed.stored.task.id, verb, seen: Some(claimed.stored), remembered: true };
        core.fulfil(vec![wish], Behind::Caller).await?;
    }
    Ok(progress)
}

/// What a lease of such a step leads to.
async fn begin(core: &Core, claimed: &Claimed) -> Result<Verb, StoreError> {
    let lease_number = claimed.stored.task.lease_number;
    let end = |end: End| Verb::End(Outcome { speaker: Speaker::Lease(lease_number), end });
    let Some(step) = claimed.step.as_deref().and_then(Step::read) else {
        return Ok(end(End::Failed(finally("step", "it is a step, and nothing says of what".into()))));
    };
    if let Some(call) = &step.call {
        return match begin_call(core, claimed, &step, call).await {
            Ok(()) => Ok(Verb::HookStarted { lease_number }),
            Err(CommandError::Store(error)) => Err(error),
            Err(error) => Ok(end(End::Failed(finally("workflow", error.to_string())))),
        };
    }
    let rounds = rounds_of(core, claimed).await?;
    Ok(end(gathered(&rounds)))
}

async fn begin_call(core: &Core, claimed: &Claimed, step: &Step, call: &Call) -> Result<(), CommandError> {
    let task = &claimed.stored.task;
    let namespace = task.lane.namespace.clone();
    let input = match (&call.input, task.execution) {
        (Some(input), Some(execution)) => {
            let scene = core.scene(&namespace, execution, &step.sees).await?;
            let scene = scene.ok_or(CommandError::NotFound("execution"))?;
            let rendered = expression::render(input, &scene.context(step)?);
            Some(rendered.map_err(|faults| faults.under("input"))?)
        }
        (input, _) => input.clone(),
    };
    let run = task.run + 1;
    let begin = Begin {
        id: call.first.filter(|_| run == 1),
        parent: Some((task.id, run)),
        name: call.name.clone(),
        labels: call.labels.clone(),
        external_id: call.external_id.clone(),
        firing: call.firing.clone(),
        ..Begin::new(namespace, call.workflow.clone(), call.version, input)
    };
    core.begin_execution(begin).await.map(|_| ())
}

/// The rounds of a loop, in their order.
async fn rounds_of(core: &Core, claimed: &Claimed) -> Result<Vec<StepView>, StoreError> {
    let task = &claimed.stored.task;
    let Some(execution) = task.execution else { return Ok(Vec::new()) };
    let Some(view) = core.store.task(&task.lane.namespace, task.id).await? else { return Ok(Vec::new()) };
    let needs: Vec<TaskId> = view.needs.iter().map(|edge| edge.from).collect();
    let mut rounds: Vec<(u32, StepView)> = Vec::new();
    for found in core.store.steps(execution, StepsOf::Tasks(&needs)).await? {
        let round = found.step.as_deref().and_then(Step::read).and_then(|step| step.round);
        let round = round.filter(|round| Some(&round.of) == view.body.key.as_ref());
        rounds.extend(round.map(|round| (round.index, found)));
    }
    rounds.sort_unstable_by_key(|(index, _)| *index);
    Ok(rounds.into_iter().map(|(_, found)| found).collect())
}

/// A loop succeeds with the list of what its rounds left; one that failed fails it for good, since it had its own retries.
fn gathered(rounds: &[StepView]) -> End {
    let bad: Vec<&StepView> = rounds.iter().filter(|it| it.state.is_failure()).collect();
    let skipped = rounds.iter().filter(|it| it.state == State::Skipped).count();
    if bad.is_empty() && skipped == 0 {
        let results: Vec<Value> = rounds.iter().map(|it| parsed(it.result.as_deref())).collect();
        return End::Succeeded { result: Some(Value::Array(results).to_string().into()) };
    }
    let names: Vec<&str> = bad.iter().take(5).filter_map(|it| it.key.as_deref()).collect();
    let more = if bad.len() > names.len() { " and more" } else { "" };
    let message = format!("{} of {} rounds failed: {}{more}", bad.len(), rounds.len(), names.join(", "));
    End::Failed(finally("foreach", message))
}

fn finally(error_type: &str, message: String) -> Failure {
    Failure {
        class: Some(Class::Final),
        error_type: Some(error_type.into()),
        ..Failure::new(Trigger::Upstream, message)
    }
}

/// Tells steps how their executions ended.
pub(crate) async fn hear(core: &Core) -> Result<Progress, StoreError> {
    let ends = core.store.call_ends(BATCH).await?;
    let more = ends.len() >= BATCH as usize;
    let mut wishes = Vec::with_capacity(ends.len());
    for end in ends {
        let outcome = Outcome { speaker: Speaker::Server, end: heard(core, &end).await? };
        wishes.push(Wish { task: end.task.task.id, verb: Verb::End(outcome), seen: Some(end.task), remembered: false });
    }
    let met = core.fulfil(wishes, Behind::Loop(Loop::Flow)).await?;
    let moved = met.iter().filter(|met| matches!(met, Met::Changed(_))).count();
    Ok(Progress { moved: u32::try_from(moved).unwrap_or(u32::MAX), more })
}

async fn heard(core: &Core, end: &CallEnd) -> Result<End, StoreError> {
    let id = end.execution;
    match end.state {
        ExecutionState::Succeeded => {
            let output = output_of(core, end).await?;
            let result = json!({"execution_id": id.to_string(), "output": output});
            Ok(End::Succeeded { result: Some(result.to_string().into()) })
        }
        ExecutionState::Canceled => Ok(End::Failed(finally("execution", format!("execution {id} was canceled")))),
        _ => {
            let message = format!("execution {id} failed");
            let failure = Failure::new(Trigger::Upstream, message);
            Ok(End::Failed(Failure { error_type: Some("execution".into()), ..failure }))
        }
    }
}

/// What an execution says it came to.
async fn output_of(core: &Core, end: &CallEnd) -> Result<Value, StoreError> {
    let namespace = &end.task.task.lane.namespace;
    core.output(namespace, end.execution).await
}

impl Core {
    /// The output of an execution that succeeded, as its workflow describes it.
    pub(crate) async fn output(
        &self,
        namespace: &str,
        execution: comeback_core::ExecutionId,
    ) -> Result<Value, StoreError> {
        let Some(view) = self.store.execution(namespace, execution).await? else { return Ok(Value::Null) };
        let (Some((path, version)), Some(workflows)) = (&view.origin.workflow, self.workflows.get()) else {
            return Ok(Value::Null);
        };
        let shelf = Shelf { namespace, shelf: WORKFLOWS };
        let Some(document) = self.store.document(shelf, path, Some(*version)).await? else { return Ok(Value::Null) };
        let Ok(plan) = workflows.plan(namespace, &document.body) else { return Ok(Value::Null) };
        let Some(output) = plan.output else { return Ok(Value::Null) };
        let sees = steps_named(&output, plan.bare_names);
        let Some(scene) = self.scene(namespace, execution, &sees).await? else { return Ok(Value::Null) };
        let step = Step { bare_names: plan.bare_names, ..Step::default() };
        let rendered = scene.context(&step).and_then(|context| expression::render(&output, &context));
        Ok(rendered.unwrap_or(Value::Null))
    }
}

/// Executions that nobody waits for any more are canceled.
pub(crate) async fn leave_no_orphans(core: &Core) -> Result<Progress, StoreError> {
    let orphans = core.store.orphans(BATCH).await?;
    let more = orphans.len() >= BATCH as usize;
    let mut moved = 0;
    let act = Act { note: Some("the task that stood for it has ended".into()), ..Act::default() };
    for (namespace, id) in orphans {
        match cancel_execution(core, &namespace, id, act.clone().into(), None).await {
            Ok(_) => moved += 1,
            Err(CommandError::Store(error)) => return Err(error),
            // Somebody was quicker.
            Err(_) => {}
        }
    }
    Ok(Progress { moved, more })
}
