//! Context of the templates of a step: the input, the results of other steps, and the round of a loop.

use std::collections::BTreeMap;

use comeback_core::{ExecutionId, Invalid, State, expression, workflow};
use comeback_store::{ExecutionView, StepView, StepsOf, StoreError};
use serde_json::{Map, Value, json};

use super::{Round, Step};
use crate::{CommandError, Core, Engine};

/// One execution, as its steps see it.
pub struct TemplateContext {
    /// The execution.
    pub view: ExecutionView,
    input: Value,
    steps: BTreeMap<String, StepView>,
    /// How large the results of its steps are together.
    bytes: u64,
}

/// How large the results that the texts of one step see may be together.
const MOST_SEEN: u64 = 16 << 20;

/// Steps that are shown at once.
const MOST_SHOWN: usize = 200;

impl Engine {
    /// Context that its steps see now, and the steps that have ended, in order.
    pub async fn execution_context(&self, namespace: &str, id: ExecutionId) -> Result<Value, CommandError> {
        let core = &self.core;
        let unknown = || CommandError::NotFound("execution");
        if core.store.execution(namespace, id).await?.is_none() {
            return Err(unknown());
        }
        let graph = core.store.graph(id, None).await?.ok_or_else(unknown)?;
        let mut tasks: Vec<_> = graph.tasks.iter().map(|it| &it.stored.task).collect();
        tasks.sort_unstable_by_key(|task| (task.ended_at.is_none(), task.ended_at, task.id));
        let more = tasks.len() > MOST_SHOWN;
        tasks.truncate(MOST_SHOWN);
        let ids: Vec<_> = tasks.iter().map(|task| task.id).collect();
        let steps = core.store.steps(id, StepsOf::Tasks(&ids), 0).await?;
        let keys: BTreeMap<_, _> = steps.iter().filter_map(|it| Some((it.task, it.key.clone()?))).collect();
        let ended = tasks.iter().filter(|task| task.ended_at.is_some());
        let path: Vec<_> = ended.filter_map(|task| keys.get(&task.id).cloned()).collect();
        let bare_names = steps.iter().filter_map(|it| Step::read(it.step.as_deref()?)).any(|step| step.bare_names);
        let sees: Vec<String> = keys.into_values().collect();
        let scene = core.template_context(namespace, id, &sees).await?.ok_or_else(unknown)?;
        let mut context = scene.context(&Step { bare_names, ..Step::default() })?;
        context["path"] = json!(path);
        context["more"] = json!(more);
        Ok(context)
    }
}

impl Core {
    /// An execution with these of its steps.
    pub async fn template_context(
        &self,
        namespace: &str,
        execution: ExecutionId,
        sees: &[String],
    ) -> Result<Option<TemplateContext>, StoreError> {
        let Some(view) = self.store.execution(namespace, execution).await? else { return Ok(None) };
        let mut scene =
            TemplateContext { input: parsed(view.origin.input.as_deref()), view, steps: BTreeMap::new(), bytes: 0 };
        // A step that shapes its result may speak of others in turn.
        let mut missing: Vec<String> = sees.to_vec();
        while !missing.is_empty() {
            missing.sort_unstable();
            missing.dedup();
            let room = MOST_SEEN.saturating_sub(scene.bytes);
            let found = self.store.steps(execution, StepsOf::Keys(&missing), room).await?;
            missing.clear();
            for step in found {
                scene.bytes += step.result_bytes;
                let more = step.step.as_deref().and_then(Step::read).filter(Step::shapes_its_result);
                missing.extend(more.into_iter().flat_map(|it| it.sees));
                scene.steps.extend(step.key.clone().map(|key| (key, step)));
            }
            missing.retain(|key| !scene.steps.contains_key(key));
        }
        Ok(Some(scene))
    }
}

impl TemplateContext {
    /// Everything that a step's texts can name.
    pub fn context(&self, step: &Step) -> Result<Value, Invalid> {
        if self.bytes > MOST_SEEN {
            let TemplateContext { bytes, .. } = self;
            let message =
                format!("the results that it names have {bytes} bytes together, and {MOST_SEEN} are the most");
            return Err(Invalid::one("steps", message));
        }
        let mut names = Map::new();
        let execution = &self.view.execution;
        let steps: Map<String, Value> = self.steps.iter().map(|(key, it)| (key.clone(), self.shown(it))).collect();
        names.insert("steps".into(), Value::Object(steps));
        names.insert("input".into(), self.input.clone());
        let (workflow, version) = self.view.origin.workflow.clone().unzip();
        let firing = self.view.origin.firing.as_ref();
        names.insert(
            "execution".into(),
            json!({
                "id": execution.id.to_string(), "name": self.view.name, "labels": self.view.labels,
                "workflow": workflow, "version": version, "namespace": &*execution.namespace,
                "trigger": firing.map(|firing| firing.by.word()),
                "schedule": firing.map(|firing| &firing.schedule),
                "scheduled_at": firing.map(|firing| firing.at.to_rfc3339()),
            }),
        );
        let mut names = Value::Object(names);
        if let Some(round) = &step.round {
            round.name_in(&mut names);
        }
        if !step.bare_names {
            return Ok(names);
        }
        let own = |it: &StepView| it.step.as_deref().and_then(Step::read).unwrap_or_default();
        let vars: Vec<(&String, Map<String, Value>)> = self
            .steps
            .iter()
            .filter(|(_, it)| it.state == State::Succeeded)
            .map(|(key, it)| (key, own(it).vars))
            .collect();
        workflow::playbook_names(&names, vars.iter().map(|(key, vars)| (key.as_str(), vars)), Some(&step.locals))
    }

    fn shown(&self, it: &StepView) -> Value {
        let raw = parsed(it.result.as_deref());
        let step = it.step.as_deref().and_then(Step::read).filter(|_| it.state == State::Succeeded);
        let shaped = step.as_ref().and_then(|step| self.shaped(step, step.output_of_all()?, raw.clone()));
        let result = shaped.unwrap_or(raw);
        if it.state == State::Succeeded {
            json!({"state": it.state.word(), "result": result})
        } else {
            json!({"state": it.state.word()})
        }
    }

    /// The result of a step as other steps see it.
    fn shaped(&self, step: &Step, template: &Value, result: Value) -> Option<Value> {
        let others =
            TemplateContext { view: self.view.clone(), input: self.input.clone(), steps: self.others(step), bytes: 0 };
        let mut context = others.context(&Step { locals: Map::new(), ..step.clone() }).ok()?;
        context["result"] = result;
        expression::render(template, &context).ok()
    }

    /// Outputs of the rounds of a loop in place of their results, each with its own item; `None` above this many
    /// bytes.
    pub async fn shaped_rounds(
        &self,
        step: &Step,
        template: &Value,
        rounds: Vec<(Round, Value)>,
        most_bytes: usize,
    ) -> Result<Option<Vec<Value>>, Invalid> {
        let mut context = self.context(&step.before_rounds())?;
        let (mut shaped, mut left) = (Vec::new(), most_bytes);
        for (round, result) in rounds {
            comeback_store::Running::turn();
            tokio::task::yield_now().await;
            round.name_in(&mut context);
            context["result"] = result.clone();
            let value = expression::render(template, &context).unwrap_or(result);
            let Some(room) = left.checked_sub(value.to_string().len() + 1) else { return Ok(None) };
            left = room;
            shaped.push(value);
        }
        Ok(Some(shaped))
    }

    /// The steps that this one speaks of; not itself, so that this ends.
    fn others(&self, step: &Step) -> BTreeMap<String, StepView> {
        let sees = |key: &&String| step.sees.contains(key);
        self.steps.iter().filter(|(key, _)| sees(key)).map(|(key, it)| (key.clone(), it.clone())).collect()
    }
}

impl Round {
    /// Variables of this round; its item wins.
    pub fn name_in(&self, names: &mut Value) {
        names["index"] = self.index.into();
        names["loop"] = json!({"index": self.index + 1, "index0": self.index});
        names[self.name.as_str()] = self.item.clone();
    }
}

pub fn parsed(text: Option<&str>) -> Value {
    text.and_then(|text| serde_json::from_str(text).ok()).unwrap_or(Value::Null)
}
