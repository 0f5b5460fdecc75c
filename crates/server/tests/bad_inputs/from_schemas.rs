//! Bodies that the document forbids: every field of every body with values that its schema does not allow, with a field that
//! nobody knows, and without a field that is needed.

use std::collections::HashMap;

use jsonschema::Validator;
use serde_json::{Value, json};

use super::Bad;
use crate::place::document;

/// A good body, a place in it, the schema of that place, and how faults there are named.
struct Base {
    operation: &'static str,
    body: Value,
    pointer: &'static str,
    schema: &'static str,
    path: &'static str,
}

fn bases() -> Vec<Base> {
    let base = |operation, body, pointer, schema, path| Base { operation, body, pointer, schema, path };
    let with_error = |rest: Value| {
        let mut body = json!({"error": {"message": "m"}});
        body.as_object_mut().expect("fields").extend(rest.as_object().expect("fields").clone());
        body
    };
    let task = || json!({"id": "a", "name": "A", "kind": "k"});
    let with = |field: &str, value: Value| {
        let mut body = task();
        body[field] = value;
        body
    };
    let action = || json!({"kind": "Webhook", "params": {"url": "https://example.com", "verb": "Post"}});
    let depends = json!([task(), {"id": "b", "name": "B", "kind": "k", "dependencies": [{"id": "a"}]}]);
    let alike = json!([{"status": "Running", "kind": "k", "fields": []}]);
    let rule = || json!({"rules": [{"then": "retry", "match": {"code": "E"}}]});
    let window = || json!({"windows": [{"from": "22:00", "to": "06:00"}]});
    vec![
        base("submitTasks", json!({"kind": "k"}), "", "NewTask", ""),
        base("submitTasks", json!({"tasks": [{"kind": "k"}], "execution": {}}), "", "NewTasks", ""),
        base(
            "submitTasks",
            json!({"tasks": [{"kind": "k"}], "execution": {}}),
            "/execution",
            "NewExecution",
            "execution.",
        ),
        base(
            "submitTasks",
            json!({"tasks": [{"kind": "a", "key": "a"}, {"kind": "b", "needs": [{"task": "a"}]}]}),
            "/tasks/1/needs/0",
            "NeedFields",
            "tasks[1].needs[0].",
        ),
        base("submitTasks", json!({"kind": "k", "retry": {}}), "/retry", "RetryPolicyFields", "retry."),
        base("bindPolicy", json!({"policy": {}}), "/policy", "RetryPolicyFields", "policy."),
        base("simulatePolicy", json!({"policy": rule()}), "/policy/rules/0", "RetryRule", "policy.rules[0]."),
        base("simulatePolicy", json!({"policy": window()}), "/policy/windows/0", "RetryWindow", "policy.windows[0]."),
        base("leaseTasks", json!({"worker": "w"}), "", "LeaseRequest", ""),
        base("keepLeases", json!({"leases": []}), "", "HeartbeatRequest", ""),
        base("reportRuns", json!({"reports": []}), "", "ReportRequest", ""),
        base("settleTask", json!({"status": "failed"}), "", "Settle", ""),
        base("settleTask", with_error(json!({"status": "failed"})), "/error", "ErrorFields", "error."),
        base("simulatePolicy", with_error(json!({"policy": true})), "/error", "ErrorFields", "error."),
        base("simulatePolicy", json!({"policy": true}), "", "SimulationRequest", ""),
        base("backtestPolicy", json!({"policy": true}), "", "PolicyBacktestRequest", ""),
        base(
            "simulatePolicy",
            json!({"policy": true, "failures": [{"after": 1}]}),
            "/failures/0",
            "AssumedFailure",
            "failures[0].",
        ),
        base("createSchedule", json!({"name": "n", "cron": "* * * * *", "task": {"kind": "k"}}), "", "NewSchedule", ""),
        base("putSchedule", json!({"every": "1h", "task": {"kind": "k"}}), "", "NewSchedule", ""),
        base("putSchedule", json!({"every": "1h", "task": {"kind": "k"}}), "/task", "NewTask", "task."),
        base("pauseSchedule", json!({}), "", "Noted", ""),
        base("triggerSchedule", json!({}), "", "Nothing", ""),
        base("tellEvent", json!({"type": "t"}), "", "OutsideEvent", ""),
        base("pauseWorkflow", json!({}), "", "Noted", ""),
        base("rollbackWorkflow", json!({"version": 1}), "", "Rollback", ""),
        base("cleanUp", json!({"older_than": "1d", "dry_run": true}), "", "Cleanup", ""),
        base("createSubscription", json!({"url": "https://example.test/x"}), "", "NewSubscription", ""),
        base("putSubscription", json!({"url": "https://example.test/x"}), "", "NewSubscription", ""),
        base("rotateSubscription", json!({}), "", "SecretRotation", ""),
        base("testSubscription", json!({}), "", "Nothing", ""),
        base("redeliver", json!({"within": "1h"}), "", "Redelivery", ""),
        base("putAlert", json!({"types": ["task.failed"], "threshold": 1, "window": "1m"}), "", "NewAlert", ""),
        base("backtestAlert", json!({"name": "a"}), "", "AlertBacktest", ""),
        base("pauseWork", json!({}), "", "PauseTypes", ""),
        base("resumeWork", json!({}), "", "ResumeTypes", ""),
        base("bindPolicy", json!({"policy": true}), "", "PolicyBinding", ""),
        base("putRule", json!({"max_running": 1, "match": {}}), "", "NewRule", ""),
        base("putRule", json!({"max_running": 1, "match": {}}), "/match", "RuleMatch", "match."),
        base("putDependency", json!({}), "", "DependencySettings", ""),
        base("putDependency", json!({"gate": {}}), "/gate", "DependencyGate", "gate."),
        base("putDependency", json!({"breaker": {}}), "/breaker", "DependencyBreaker", "breaker."),
        base("putDependency", json!({"budget": {}}), "/budget", "DependencyBudget", "budget."),
        base("putDependency", json!({"concurrency": {}}), "/concurrency", "DependencyConcurrency", "concurrency."),
        base("putDependency", json!({"calendar": {}}), "/calendar", "DependencyCalendar", "calendar."),
        base("openDependency", json!({}), "", "DependencyTurn", ""),
        base("closeDependency", json!({}), "", "DependencyTurn", ""),
        base("dependencyIsHealthy", json!({}), "", "Noted", ""),
        base("announceMaintenance", json!({"to": "2100-01-01T00:00:00Z"}), "", "Maintenance", ""),
        base("cancelTask", json!({}), "", "Act", ""),
        base("pauseTask", json!({}), "", "Act", ""),
        base("resumeTask", json!({}), "", "Act", ""),
        base("retryTask", json!({}), "", "Retry", ""),
        base("snoozeTask", json!({"delay": 1}), "", "Move", ""),
        base("rescheduleTask", json!({"at": "2030-01-01T00:00:00Z"}), "", "Move", ""),
        base("pauseLoop", json!({}), "", "Pause", ""),
        base("resumeLoop", json!({}), "", "Nothing", ""),
        base("listStuckTasksByPost", json!({}), "", "Nothing", ""),
        base("listStuckJobsByPost", json!({}), "", "Nothing", ""),
        base("reapStuckTasks", json!({}), "", "Nothing", ""),
        base("reapStuckJobs", json!({}), "", "Nothing", ""),
        base("repairFailedTasks", json!({}), "", "Repair", ""),
        base("changeError", json!({"action": "open"}), "", "ErrorDeed", ""),
        base("advanceClock", json!({"by": 1}), "", "Advance", ""),
        base("createKey", json!({"role": "admin"}), "", "KeyRequest", ""),
        base("createBatch", task(), "", "BatchTask", "tasks[0]."),
        base("createBatch", json!([task()]), "/0", "BatchTask", "tasks[0]."),
        base("createBatch", with("retry", json!({"max_retries": 2})), "/retry", "BatchRetry", "tasks[0].retry."),
        base("createBatch", with("on_start", action()), "/on_start", "BatchAction", "tasks[0].on_start."),
        base(
            "createBatch",
            with("on_start", action()),
            "/on_start/params",
            "BatchActionParams",
            "tasks[0].on_start.params.",
        ),
        base("createBatch", depends, "/1/dependencies/0", "BatchDependency", "tasks[1].dependencies[0]."),
        base(
            "createBatch",
            with("dedupe_strategy", alike),
            "/dedupe_strategy/0",
            "BatchMatcher",
            "tasks[0].dedupe_strategy[0].",
        ),
        base("setBatchRules", json!({"kind": "k", "rules": []}), "", "BatchRules", ""),
        base("updateBatchTask", json!({"status": "Success"}), "", "BatchUpdate", ""),
        base("countBatchTask", json!({"new_success": 1}), "", "BatchCounters", ""),
        base("enqueueJob", json!({"node_id": "n"}), "", "NewJob", ""),
        base("enqueueJob", json!({"node_id": "n", "retry": {}}), "/retry", "RetryPolicyFields", "retry."),
        base("leaseJob", json!({"worker_id": "w"}), "", "JobLeaseRequest", ""),
        base("completeJob", json!({"worker_id": "w"}), "", "JobSuccess", ""),
        base("failJob", json!({"worker_id": "w"}), "", "JobFailure", ""),
        base("ackJob", json!({"queue_id": "00000000-0000-7000-8000-000000000000", "worker_id": "w"}), "", "JobAck", ""),
        base(
            "nackJob",
            json!({"queue_id": "00000000-0000-7000-8000-000000000000", "worker_id": "w"}),
            "",
            "JobNack",
            "",
        ),
        base("failJob", with_error(json!({"worker_id": "w"})), "/error", "ErrorFields", "error."),
        base("keepJob", json!({"worker_id": "w"}), "", "JobHeartbeat", ""),
        base("emitEvent", json!({"event_type": "action_error", "worker_id": "w"}), "", "EmittedEvent", ""),
        base("retryJob", json!({}), "", "JobRetry", ""),
        base("retryScreenshot", json!({}), "", "JobRetry", ""),
        base("pauseBatchTask", json!({}), "", "Nothing", ""),
        base("resumeBatchTask", json!({}), "", "Nothing", ""),
    ]
}

pub fn all() -> Vec<Bad> {
    let mut bad = Vec::new();
    let mut prepared: HashMap<String, Validator> = HashMap::new();
    for base in bases() {
        let schema = &document()["components"]["schemas"][base.schema];
        let with = |change: &dyn Fn(&mut Value)| {
            let mut body = base.body.clone();
            change(body.pointer_mut(base.pointer).expect("the place is there"));
            Bad::new(base.operation).json(body)
        };
        let unknown = with(&|place| place["nobody_knows_this"] = json!(1));
        bad.push(unknown.names(base.path.trim_end_matches('.')));
        for name in schema["required"].as_array().into_iter().flatten() {
            let name = name.as_str().expect("a name");
            let without = with(&|place| drop(place.as_object_mut().expect("fields").shift_remove(name)));
            bad.push(without.names(format!("{}{name}", base.path)));
        }
        for (name, field) in schema["properties"].as_object().into_iter().flatten() {
            let validator = prepared.entry(field.to_string()).or_insert_with(|| prepare(field));
            for value in candidates().into_iter().filter(|value| !validator.is_valid(value)) {
                let wrong = with(&|place| place[name] = value.clone());
                bad.push(wrong.names(format!("{}{name}", base.path).trim_end_matches('.')));
            }
        }
    }
    bad
}

fn prepare(schema: &Value) -> Validator {
    let whole = json!({"allOf": [schema], "components": document()["components"]});
    jsonschema::options().should_validate_formats(true).build(&whole).expect("a schema")
}

/// Something of every sort, and what is beyond every limit.
fn candidates() -> Vec<Value> {
    let mut all = vec![
        json!(null),
        json!(true),
        json!(-1),
        json!(0),
        json!(1.5),
        json!(5_000_000_000_000_000_000_u64),
        json!(1e300),
        json!(""),
        json!("no such thing"),
        json!("zero \u{0} inside"),
        json!("x".repeat(5_000)),
        json!([]),
        json!([[]]),
        json!({}),
        json!({"nobody_knows_this": 1}),
    ];
    all.push(json!((0..40).map(|n| (format!("label{n}"), json!("v"))).collect::<serde_json::Map<_, _>>()));
    all
}
