//! Steps that stand for others: loops whose rounds are over, and executions that are started, watched and heard.

use comeback_core::filter::{Filter, Sort, StateTest, Test};
use comeback_core::transition::Actor;
use comeback_core::{
    Class, End, ExecutionId, ExecutionState, Executor, Failure, Millis, Outcome, Quota, Reporter, State, TaskId,
    Trigger, expression,
};
use comeback_store::{
    Behalf, Below, CallEnd, ClaimRequest, Claimed, Collection, ListQuery, Loop, StepView, StepsOf, StoreError,
};
use futures_util::future::join_all;
use serde_json::{Value, json};

use super::context::parsed;
use super::start::Begin;
use super::turns::{TURN, by_namespace, in_turns};
use super::{Call, Step, WORKFLOWS, steps_named};
use crate::commands::execution::cancel_execution;
use crate::loops::{BATCH, Progress};
use crate::pipeline::{ChangeRequest, TaskChange, count_changed, open_graph};
use crate::{CommandError, Core};

/// Executions that are canceled side by side, so that they share a commit.
const CANCELED_TOGETHER: usize = 32;

/// Long enough to start an execution of ten thousand tasks.
pub(crate) const LEASE: Millis = Millis::from_secs(60);

/// Takes up what is ready: a loop whose rounds are over ends, a call begins.
pub(crate) async fn take_up(core: &Core) -> Result<Progress, StoreError> {
    let namespaces = core.store.lane_namespaces(Some(Executor::Flow)).await?;
    if namespaces.is_empty() {
        return Ok(Progress::default());
    }
    let request = |namespace: String| ClaimRequest {
        namespace,
        queues: Vec::new(),
        any_queue: true,
        kinds: Vec::new(),
        executor: Executor::Flow,
        worker: core.config.instance.as_str().into(),
        limit: TURN,
        lease: LEASE,
        due: false,
        without_calls: false,
        only_kinds: None,
    };
    let requests: Vec<ClaimRequest> = namespaces.into_iter().map(request).collect();
    let claimed = core.claim_batch(&requests).await.into_iter().collect::<Result<Vec<_>, _>>()?;
    in_turns(claimed.into_iter().filter(|claimed| !claimed.is_empty()), |claimed| async move {
        let moved = claimed.len();
        for claimed in claimed {
            comeback_store::Running::turn();
            comeback_store::panic_point!("flow-call");
            let Some(change) = begin(core, &claimed).await? else { continue };
            core.apply_changes(vec![ChangeRequest::cached(claimed.stored, change)], Behalf::Caller).await?;
        }
        Ok(moved)
    })
    .await
}

/// Starts a leased call; `None` if it was canceled with its execution.
async fn begin(core: &Core, claimed: &Claimed) -> Result<Option<TaskChange>, StoreError> {
    let lease_number = claimed.stored.task.lease_number;
    let end = |end: End| Some(TaskChange::End(Outcome { reporter: Reporter::Lease(lease_number), end }));
    let Some(step) = claimed.step.as_deref().and_then(Step::read) else {
        return Ok(end(End::Failed(finally("step", "it is a step, and nothing says of what".into()))));
    };
    if let Some(call) = &step.call {
        let task = &claimed.stored.task;
        let last = if task.run > 0 { core.last_of(task).await? } else { None };
        // The step was given up for another reason, and comes back before anybody has looked after what it stood for.
        if let Some(it) = last.as_ref().map(|last| &last.execution).filter(|it| it.parent == Some((task.id, task.run)))
        {
            if it.state == ExecutionState::Succeeded {
                let done = CallEnd { task: claimed.stored.clone(), execution: it.id, state: it.state };
                return Ok(end(heard(core, &done).await?));
            }
            if !it.state.is_terminal() {
                cancel_below_ended(core, &task.lane.namespace, it.id).await?;
            }
        }
        return match begin_call(core, claimed, &step, call, last.map(|last| last.execution.id)).await {
            Ok(()) => Ok(Some(TaskChange::HookStarted { lease_number })),
            Err(CommandError::Store(error)) => Err(error),
            Err(CommandError::RootEnded(_)) => {
                if let Some(execution) = claimed.stored.task.execution {
                    cancel_below_ended(core, &claimed.stored.task.lane.namespace, execution).await?;
                }
                Ok(None)
            }
            Err(CommandError::QuotaExceeded(refused)) => Ok(end(End::Failed(finally(QUOTA, refused.to_string())))),
            Err(error) => Ok(end(End::Failed(finally("workflow", error.to_string())))),
        };
    }
    let most = core.config.limits.result_bytes;
    let rounds = rounds_of(core, claimed, most as u64).await?;
    let left = match (gathered(&rounds, most), step.output_of_each()) {
        (Ok(results), Some(output)) => shaped(core, claimed, &step, output, &rounds, results).await?,
        (gathered, _) => gathered,
    };
    Ok(end(match left {
        Ok(results) => End::Succeeded { result: Some(Value::Array(results).to_string().into()) },
        Err(failure) => End::Failed(*failure),
    }))
}

/// Outputs of the rounds of a loop, if its output is defined per round.
async fn shaped(
    core: &Core,
    claimed: &Claimed,
    step: &Step,
    output: &Value,
    rounds: &[StepView],
    results: Vec<Value>,
) -> Result<Result<Vec<Value>, Box<Failure>>, StoreError> {
    let task = &claimed.stored.task;
    let scene = match task.execution {
        Some(execution) => core.template_context(&task.lane.namespace, execution, &step.sees).await?,
        None => None,
    };
    let Some(scene) = scene else { return Ok(Ok(results)) };
    let round = |it: &StepView| it.step.as_deref().and_then(Step::read).and_then(|step| step.round);
    let rounds = rounds.iter().zip(results).filter_map(|(it, result)| Some((round(it)?, result))).collect();
    let most = core.config.limits.result_bytes;
    Ok(match scene.shaped_rounds(step, output, rounds, most).await {
        Ok(Some(results)) => Ok(results),
        Ok(None) => {
            let message =
                format!("what its rounds leave is more than the {most} bytes of a result (--limit result_bytes)");
            Err(finally("result_bytes", message).into())
        }
        Err(faults) => Err(finally("template", format!("what it speaks of could not be worked out: {faults}")).into()),
    })
}

/// The type of a failure that a quota of the namespace is the reason for.
const QUOTA: &str = "quota";

/// The root has ended, so the execution that wanted to begin more below it ends too.
pub(crate) async fn cancel_below_ended(core: &Core, namespace: &str, execution: ExecutionId) -> Result<(), StoreError> {
    match cancel_execution(core, namespace, execution, left_alone().into(), None).await {
        Err(CommandError::Store(error)) => Err(error),
        // If it could not be canceled, another caller was quicker.
        _ => Ok(()),
    }
}

fn left_alone() -> Actor {
    Actor { note: Some("the task that stood for it has ended".into()), ..Actor::default() }
}

/// `retry_of`: which one this is another try of (E8).
async fn begin_call(
    core: &Core,
    claimed: &Claimed,
    step: &Step,
    call: &Call,
    retry_of: Option<ExecutionId>,
) -> Result<(), CommandError> {
    let task = &claimed.stored.task;
    let namespace = task.lane.namespace.clone();
    let input = match (&call.input, task.execution) {
        (Some(input), Some(execution)) => {
            let scene = core.template_context(&namespace, execution, &step.sees).await?;
            let scene = scene.ok_or(CommandError::NotFound("execution"))?;
            let mut context = scene.context(step)?;
            context["attempt"] = task.attempt_number().into();
            let rendered = expression::render(input, &context);
            Some(rendered.map_err(|faults| faults.under("input"))?)
        }
        (input, _) => input.clone(),
    };
    let below = match task.execution {
        Some(execution) => Some(core.below(&namespace, execution).await?),
        None => None,
    };
    let run = task.run + 1;
    let begin = Begin {
        below,
        retry_of,
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
async fn rounds_of(core: &Core, claimed: &Claimed, most_bytes: u64) -> Result<Vec<StepView>, StoreError> {
    let task = &claimed.stored.task;
    let Some(execution) = task.execution else { return Ok(Vec::new()) };
    let Some(view) = core.store.task(&task.lane.namespace, task.id).await? else { return Ok(Vec::new()) };
    let needs: Vec<TaskId> = view.needs.iter().map(|edge| edge.from).collect();
    let mut rounds: Vec<(u32, StepView)> = Vec::new();
    for found in core.store.steps(execution, StepsOf::Tasks(&needs), most_bytes).await? {
        let round = found.step.as_deref().and_then(Step::read).and_then(|step| step.round);
        let round = round.filter(|round| Some(&round.of) == view.body.key.as_ref());
        rounds.extend(round.map(|round| (round.index, found)));
    }
    rounds.sort_unstable_by_key(|(index, _)| *index);
    Ok(rounds.into_iter().map(|(_, found)| found).collect())
}

/// A loop succeeds with the list of what its rounds left; one that failed fails it for good, since it had its own retries.
fn gathered(rounds: &[StepView], most_bytes: usize) -> Result<Vec<Value>, Box<Failure>> {
    let bad: Vec<&StepView> = rounds.iter().filter(|it| it.state.is_failure()).collect();
    let skipped = rounds.iter().filter(|it| it.state == State::Skipped).count();
    if bad.is_empty() && skipped == 0 {
        let bytes: u64 = rounds.iter().map(|it| it.result_bytes.max(4) + 1).sum::<u64>() + 1;
        if bytes > most_bytes as u64 {
            let message = format!(
                "the results of its {} rounds have {bytes} bytes together, and a result may have {most_bytes} at most \
                 (--limit result_bytes); let the rounds keep what is large elsewhere",
                rounds.len()
            );
            return Err(finally("result_bytes", message).into());
        }
        return Ok(rounds.iter().map(|it| parsed(it.result.as_deref())).collect());
    }
    let names: Vec<&str> = bad.iter().take(5).filter_map(|it| it.key.as_deref()).collect();
    let more = if bad.len() > names.len() { " and more" } else { "" };
    let message = format!("{} of {} rounds failed: {}{more}", bad.len(), rounds.len(), names.join(", "));
    Err(Failure::of_rounds(message).into())
}

fn finally(error_type: &str, message: String) -> Failure {
    Failure {
        class: Some(Class::Final),
        error_type: Some(error_type.into()),
        ..Failure::new(Trigger::Upstream, message)
    }
}

/// The executions that steps wait for and that have ended.
pub(crate) async fn ends(core: &Core) -> Result<Vec<CallEnd>, StoreError> {
    core.store.call_ends(TURN).await
}

/// Executions without a waiting step.
pub(crate) async fn orphans(core: &Core) -> Result<Vec<(String, ExecutionId)>, StoreError> {
    core.store.orphans(BATCH).await
}

/// Ends the calls whose executions have ended.
pub(crate) async fn hear(core: &Core, ends: Vec<CallEnd>) -> Result<Progress, StoreError> {
    in_turns(by_namespace(ends, |end| &end.task.task.lane.namespace), |ends| async move {
        let mut requests = Vec::with_capacity(ends.len());
        for end in ends {
            comeback_store::Running::turn();
            comeback_store::panic_point!("flow-hear");
            let outcome = Outcome { reporter: Reporter::Server, end: heard(core, &end).await? };
            requests.push(ChangeRequest::exact(end.task, TaskChange::End(outcome)));
        }
        Ok(count_changed(&core.apply_changes(requests, Behalf::Loop(Loop::Flow)).await?) as usize)
    })
    .await
}

/// Ends a call at once, before an act that depends on it.
pub(crate) async fn hear_now(core: &Core, end: CallEnd) -> Result<(), StoreError> {
    let change = TaskChange::End(Outcome { reporter: Reporter::Server, end: heard(core, &end).await? });
    core.apply_changes(vec![ChangeRequest::cached(end.task, change)], Behalf::Caller).await.map(drop)
}

async fn heard(core: &Core, end: &CallEnd) -> Result<End, StoreError> {
    let id = end.execution;
    match end.state {
        ExecutionState::Succeeded => {
            let output = output_of(core, end).await?;
            let result = json!({"execution_id": id.to_string(), "output": output}).to_string();
            let most = core.config.limits.result_bytes;
            if result.len() > most {
                let message = format!(
                    "the output of execution {id} has {} bytes, and a result may have {most} at most (--limit result_bytes)",
                    result.len()
                );
                return Ok(End::Failed(finally("result_bytes", message)));
            }
            Ok(End::Succeeded { result: Some(result.into()) })
        }
        ExecutionState::Canceled => Ok(End::Failed(finally("execution", format!("execution {id} was canceled")))),
        _ => {
            // A quota that stopped something below stops all that wait for it: to begin again would only come to the same.
            if let Some(reason) = stopped_by_quota(core, end).await? {
                return Ok(End::Failed(finally(QUOTA, reason)));
            }
            let what = first_failure(core, end).await?.map(|what| format!(": {what}")).unwrap_or_default();
            let message = format!("execution {id} failed{what}");
            let failure = Failure::new(Trigger::Upstream, message);
            Ok(End::Failed(Failure { error_type: Some("execution".into()), ..failure }))
        }
    }
}

/// Which step an execution failed with, and what it said.
async fn first_failure(core: &Core, end: &CallEnd) -> Result<Option<String>, StoreError> {
    let Some(graph) = core.store.graph(end.execution, None).await? else { return Ok(None) };
    let (working, _) = open_graph(graph);
    let Some(task) = working.first_failure() else { return Ok(None) };
    let Some(view) = core.store.task(&task.lane.namespace, task.id).await? else { return Ok(None) };
    let said = view.last_failure.as_ref().and_then(|record| record.failure.as_ref()).map(|failure| &*failure.message);
    let name = view.body.key.as_deref().unwrap_or(&task.lane.kind);
    Ok(Some(match said {
        Some(said) => format!("`{name}`: {}", said.chars().take(MOST_SAID).collect::<String>()),
        None => format!("`{name}` is {}", task.state),
    }))
}

/// So much of what a step said is repeated by what stands for its execution.
const MOST_SAID: usize = 500;

/// The reason, where a step of a failed execution failed because of a quota.
async fn stopped_by_quota(core: &Core, end: &CallEnd) -> Result<Option<String>, StoreError> {
    let state = Test::State(vec![StateTest::Is(State::Failed), StateTest::Is(State::Dead)]);
    let filter =
        Filter::default().and(Test::Execution(vec![end.execution.0])).and(state).and(Test::Word("the quota `".into()));
    let query = ListQuery { filter, sort: Sort::Submitted, limit: 1, after: None, now: core.clock.now() };
    let found = core.store.list(&end.task.task.lane.namespace, &query).await?;
    Ok(found.items.into_iter().next().and_then(|item| item.last_error))
}

/// Output of an execution.
async fn output_of(core: &Core, end: &CallEnd) -> Result<Value, StoreError> {
    let namespace = &end.task.task.lane.namespace;
    core.output(namespace, end.execution).await
}

impl Core {
    /// The place of an execution that a step of this one begins; refused where it would be too deep.
    pub(super) async fn below(&self, namespace: &str, execution: ExecutionId) -> Result<Below, CommandError> {
        let tree = self.store.tree(execution).await?.ok_or(CommandError::RootEnded(execution))?;
        let quotas = &self.config.quotas;
        quotas.check(Quota::WorkflowDepth, namespace, u64::from(tree.depth))?;
        Ok(Below { root: tree.root, depth: tree.depth + 1, most_tasks: quotas.get(Quota::TasksPerRoot) })
    }

    /// The output of an execution that succeeded, as its workflow describes it.
    pub(crate) async fn output(&self, namespace: &str, execution: ExecutionId) -> Result<Value, StoreError> {
        let Some(view) = self.store.execution(namespace, execution).await? else { return Ok(Value::Null) };
        let (Some((path, version)), Some(workflows)) = (&view.origin.workflow, self.workflows.get()) else {
            return Ok(Value::Null);
        };
        let shelf = Collection { namespace, shelf: WORKFLOWS };
        let Some(document) = self.store.document(shelf, path, Some(*version)).await? else { return Ok(Value::Null) };
        let plan = match workflows.plan(namespace, &document.body).await {
            Ok(plan) => plan,
            Err(crate::CommandError::Store(error)) => return Err(error),
            Err(_) => return Ok(Value::Null),
        };
        let Some(output) = plan.output else { return Ok(Value::Null) };
        let sees = steps_named(&output, plan.bare_names);
        let Some(scene) = self.template_context(namespace, execution, &sees).await? else { return Ok(Value::Null) };
        let step = Step { bare_names: plan.bare_names, ..Step::default() };
        let rendered = scene.context(&step).and_then(|context| expression::render(&output, &context));
        Ok(rendered.unwrap_or(Value::Null))
    }
}

/// Cancels executions without a waiting step.
pub(crate) async fn leave_no_orphans(core: &Core, orphans: Vec<(String, ExecutionId)>) -> Result<Progress, StoreError> {
    in_turns(by_namespace(orphans, |(namespace, _)| namespace), |orphans| async move {
        let mut moved = 0;
        for some in orphans.chunks(CANCELED_TOGETHER) {
            let cancel =
                some.iter().map(|(namespace, id)| cancel_execution(core, namespace, *id, left_alone().into(), None));
            for canceled in join_all(cancel).await {
                match canceled {
                    Ok(_) => moved += 1,
                    Err(CommandError::Store(error)) => return Err(error),
                    // Another caller was quicker.
                    Err(_) => {}
                }
            }
        }
        Ok(moved)
    })
    .await
}
