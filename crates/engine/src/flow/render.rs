//! Renders a step's templates when it is leased; upstream results are final by then.

use comeback_core::{Class, Failure, Invalid, Trigger, expression};
use comeback_store::{Claimed, StoreError};
use serde_json::Value;

use super::Step;
use super::context::parsed;
use crate::{CommandError, Engine, LeaseRef, Leased, Report, ReportEnd};

/// Whether a text contains a template.
fn has_template(text: Option<&str>) -> bool {
    text.is_some_and(|text| text.contains("{{") || text.contains("{%"))
}

/// Arguments of a command, variables and headers are strings, whatever type an expression has.
fn stringify_args(mut settings: Value) -> Value {
    for name in ["run", "env", "headers"] {
        let parts: Vec<&mut Value> = match settings.get_mut(name) {
            Some(Value::Array(items)) => items.iter_mut().collect(),
            Some(Value::Object(fields)) => fields.values_mut().collect(),
            _ => Vec::new(),
        };
        for part in parts.into_iter().filter(|part| part.is_number() || part.is_boolean()) {
            *part = Value::String(part.to_string());
        }
    }
    settings
}

impl Engine {
    /// Renders the templates of leased steps. Render errors fail the run as `final`.
    pub(crate) async fn render_steps(&self, claimed: Vec<Claimed>) -> Result<Vec<Leased>, CommandError> {
        let mut leased = Vec::with_capacity(claimed.len());
        let mut failed = Vec::new();
        for mut it in claimed {
            let has_templates =
                it.step.is_some() && (has_template(it.payload.as_deref()) || has_template(it.executor.as_deref()));
            if has_templates && let Err(message) = self.render_task(&mut it).await? {
                let lease = LeaseRef { task: it.stored.task.id, number: it.stored.task.lease_number };
                let failure = Failure::new(Trigger::Error, message);
                let failure = Failure { class: Some(Class::Final), error_type: Some("template".into()), ..failure };
                failed.push(Report { lease, end: ReportEnd::Failed(failure) });
                continue;
            }
            leased.push(Leased::of(it));
        }
        if !failed.is_empty() {
            self.report(failed).await?;
        }
        Ok(leased)
    }

    async fn render_task(&self, it: &mut Claimed) -> Result<Result<(), String>, StoreError> {
        let task = &it.stored.task;
        let step = it.step.as_deref().and_then(Step::read);
        let Some((execution, step)) = task.execution.zip(step) else { return Ok(Ok(())) };
        let scene = self.core.template_context(&task.lane.namespace, execution, &step.sees).await?;
        let Some(scene) = scene else { return Ok(Err("its execution is gone".into())) };
        let mut context = match scene.context(&step) {
            Ok(context) => context,
            Err(faults) => return Ok(Err(format!("what it speaks of could not be worked out: {faults}"))),
        };
        context["attempt"] = task.attempt_number().into();
        let render = |text: &str| -> Result<Value, Invalid> { expression::render(&parsed(Some(text)), &context) };
        if let Some(payload) = it.payload.clone().filter(|text| has_template(Some(text))) {
            match render(&payload) {
                Ok(value) => it.payload = Some(value.to_string().into()),
                Err(error) => return Ok(Err(format!("its payload could not be worked out: {error}"))),
            }
        }
        if let Some(settings) = it.executor.clone().filter(|text| has_template(Some(text))) {
            match render(&settings) {
                Ok(value) => it.executor = Some(stringify_args(value).to_string()),
                Err(error) => return Ok(Err(format!("its executor could not be worked out: {error}"))),
            }
        }
        Ok(Ok(()))
    }
}
