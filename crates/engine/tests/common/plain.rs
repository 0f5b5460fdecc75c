//! Workflows as plain JSON, for tests that care for what a workflow does and not for how it is written.

use std::sync::Arc;

use comeback_core::{Dialect, Invalid, OnUnmet, Policy, PolicyLimits, When, dialect};
use comeback_engine::flow::{Call, Each, Foreach, Plan, Start, Started, Step, WORKFLOWS, Workflows, steps_named};
use comeback_engine::store::Collection;
use comeback_engine::{CommandError, Engine, ExecutionSpec, Need, TaskSpec};
use serde_json::{Value, json};

/// `{"input", "retry", "output", "fail_fast", "steps": {name: {"needs", "if", "foreach", "call", "hooks", …}}}`.
pub struct Plain;

fn text(value: &Value) -> Option<String> {
    value.as_str().map(str::to_owned)
}

fn policy(value: &Value) -> Arc<Policy> {
    let read = dialect::parse(value, Dialect::Native, &PolicyLimits::default());
    Arc::new(read.unwrap_or_else(|fault| panic!("{value}: {fault}")).expect("a policy"))
}

/// A name, or `{"step", "when", "on_unmet"}`.
fn need(it: &Value, when: When) -> Option<Need> {
    let Some(task) = text(it) else {
        let word = |name: &str| it[name].as_str().unwrap_or_default();
        let when = When::from_word(word("when")).unwrap_or(when);
        let on_unmet = OnUnmet::from_word(word("on_unmet")).unwrap_or(OnUnmet::Skip);
        return Some(Need { task: text(&it["step"])?, when, on_unmet });
    };
    Some(Need { task, when, on_unmet: OnUnmet::Skip })
}

fn step(name: &str, it: &Value) -> TaskSpec {
    let call = |it: &Value| Call {
        workflow: text(&it["call"]).unwrap_or_default(),
        input: it.get("with").cloned(),
        ..Call::default()
    };
    let is_call = it.get("call").is_some();
    let foreach = it.get("foreach").map(|items| Foreach {
        items: items.clone(),
        name: "item".into(),
        sequential: it["sequential"] == json!(true),
        limit: it["limit"].as_u64().map(|limit| limit as u32),
        each: Each {
            executor: if is_call { "flow".into() } else { "worker".into() },
            call: is_call.then(|| call(it)),
            ..Each::default()
        },
    });
    let condition = text(&it["if"]);
    let as_text = condition.as_ref().map(|text| Value::String(format!("{{{{ {text} }}}}")));
    let listed = it["foreach"].as_str().map(|text| Value::String(format!("{{{{ {text} }}}}")));
    let texts = json!([it["payload"], it["output"], it["with"], as_text, listed]);
    let when = if it["when"] == json!("failure") { When::Failure } else { When::Success };
    TaskSpec {
        key: Some(name.to_owned()),
        payload: it.get("payload").map(|payload| payload.clone().into()),
        retry: it.get("retry").map(policy),
        needs: it["needs"].as_array().into_iter().flatten().filter_map(|it| need(it, when)).collect(),
        hooks: it.get("hooks").map(|hooks| hooks.clone().into()),
        step: Some(Step {
            condition,
            call: (is_call && foreach.is_none()).then(|| call(it)),
            foreach,
            output: it.get("output").cloned(),
            sees: steps_named(&texts, false),
            ..Step::default()
        }),
        ..TaskSpec::new(name)
    }
}

#[async_trait::async_trait]
impl Workflows for Plain {
    async fn plan(&self, _: &str, document: &str) -> Result<Plan, CommandError> {
        let read: Value = serde_json::from_str(document).map_err(|error| Invalid::one("", error))?;
        let steps = read["steps"].as_object().cloned().unwrap_or_default();
        Ok(Plan {
            tasks: steps.iter().map(|(name, it)| step(name, it)).collect(),
            execution: ExecutionSpec {
                fail_fast: read["fail_fast"] == json!(true),
                dead_end_cancel: read["dead_end_cancel"] == json!(true),
                ..ExecutionSpec::default()
            },
            input: read["input"].as_object().cloned().unwrap_or_default(),
            retry: read.get("retry").map(policy),
            output: read.get("output").cloned(),
            ..Plan::default()
        })
    }

    async fn task(&self, _: &str, body: &Value) -> Result<TaskSpec, CommandError> {
        let kind = text(&body["kind"]).ok_or_else(|| Invalid::one("kind", "is missing"))?;
        Ok(TaskSpec { payload: body.get("payload").map(|payload| payload.clone().into()), ..TaskSpec::new(kind) })
    }
}

/// The next version of a workflow.
pub async fn put(engine: &Engine, name: &str, document: Value) {
    put_in(engine, "default", name, document).await;
}

pub async fn put_in(engine: &Engine, namespace: &str, name: &str, document: Value) {
    let shelf = Collection { namespace, shelf: WORKFLOWS };
    let known = engine.store().document(shelf, name, None).await.unwrap().map_or(0, |it| it.version);
    assert!(engine.store().put_document(shelf, name, known, &document.to_string(), None, engine.now()).await.unwrap());
}

pub async fn start(engine: &Engine, name: &str, input: Value) -> Result<Started, CommandError> {
    let start = Start { namespace: "default".into(), workflow: name.into(), input: Some(input), ..Start::default() };
    engine.start_workflow(start).await
}
