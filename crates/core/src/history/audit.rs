//! Actions of people and programs from outside: one line per action, written with it and never changed.
//!
//! Submits, leases and reports are no acts: their history is the task's own.

use std::sync::Arc;

use serde_json::{Value, json};
use uuid::Uuid;

use crate::execution::Execution;
use crate::idempotency::ActKey;
use crate::task::Task;
use crate::time::Timestamp;
use crate::transition::Actor;
use crate::words::words;

words! {
    /// An audited action. The part before the point names the resource.
    pub enum AuditAction {
        TaskRetry = 0 "task.retry",
        TaskCancel = 1 "task.cancel",
        TaskPause = 2 "task.pause",
        TaskResume = 3 "task.resume",
        TaskSnooze = 4 "task.snooze",
        TaskReschedule = 5 "task.reschedule",
        /// A task that stands for a repaired execution waits for it again, and not for its retry.
        TaskTakeUp = 6 "task.take_up",
        TaskDescribe = 9 "task.describe",
        ExecutionCancel = 10 "execution.cancel",
        ExecutionPause = 11 "execution.pause",
        ExecutionResume = 12 "execution.resume",
        ExecutionRetry = 13 "execution.retry",
        ExecutionRestart = 14 "execution.restart",
        LoopPause = 20 "loop.pause",
        LoopResume = 21 "loop.resume",
        StuckProcess = 22 "stuck.process",
        FailedProcess = 24 "failed.process",
        ClockAdvance = 23 "clock.advance",
        ClockStep = 25 "clock.step",
        Cleanup = 26 "cleanup.run",
        RulePut = 30 "rule.put",
        RuleDelete = 31 "rule.delete",
        RuleCarry = 32 "rule.carry",
        SchedulePut = 40 "schedule.put",
        SchedulePause = 41 "schedule.pause",
        ScheduleResume = 42 "schedule.resume",
        ScheduleTrigger = 43 "schedule.trigger",
        ScheduleDelete = 44 "schedule.delete",
        WorkflowPut = 50 "workflow.put",
        WorkflowActivate = 51 "workflow.activate",
        WorkflowDeactivate = 52 "workflow.deactivate",
        WorkflowPause = 53 "workflow.pause",
        WorkflowResume = 54 "workflow.resume",
        WorkflowRollback = 55 "workflow.rollback",
        PolicyBind = 60 "policy.bind",
        PolicyUnbind = 61 "policy.unbind",
        KeyCreate = 70 "key.create",
        KeyRevoke = 71 "key.revoke",
        KeyRotate = 72 "key.rotate",
        AccountPut = 80 "account.put",
        AccountDelete = 81 "account.delete",
        DependencyPut = 100 "dependency.put",
        DependencyDelete = 101 "dependency.delete",
        DependencyOpen = 102 "dependency.open",
        DependencyClose = 103 "dependency.close",
        DependencyHealthy = 104 "dependency.healthy",
        DependencyMaintenance = 105 "dependency.maintenance",
        ErrorOpen = 120 "error.open",
        ErrorIgnore = 121 "error.ignore",
        ErrorResolve = 122 "error.resolve",
        ErrorClassify = 123 "error.classify",
        ErrorNote = 124 "error.note",
        OperationStart = 90 "operation.start",
        OperationAbort = 91 "operation.abort",
        OperationUndo = 92 "operation.undo",
        TaskRetryUndo = 93 "task.retry_undo",
        SubscriptionPut = 110 "subscription.put",
        SubscriptionDisable = 111 "subscription.disable",
        SubscriptionDelete = 112 "subscription.delete",
        SubscriptionTest = 113 "subscription.test",
        SubscriptionRedeliver = 114 "subscription.redeliver",
        AlertPut = 115 "alert.put",
        AlertDelete = 116 "alert.delete",
        SecretPut = 140 "secret.put",
        SecretDelete = 141 "secret.delete",
        SecretReencrypt = 142 "secret.reencrypt",
        WorkerDrain = 130 "worker.drain",
        WorkerUndrain = 131 "worker.undrain",
    }
}

impl AuditAction {
    /// The sort of resource it is done to.
    pub fn about(self) -> &'static str {
        self.word().split('.').next().unwrap_or_default()
    }

    /// The actions that a word names: one of them, or all about one sort of resource (`task`, `task.*`).
    pub fn named(word: &str) -> Vec<AuditAction> {
        let sort = word.strip_suffix(".*").unwrap_or(word);
        AuditAction::ALL.iter().copied().filter(|did| did.word() == word || did.about() == sort).collect()
    }
}

/// One act.
#[derive(Clone, Debug, PartialEq)]
pub struct Audit {
    /// Grows with time, so that the newest come last.
    pub id: Uuid,
    /// When.
    pub at: Timestamp,
    /// The namespace; `None` where it concerns all of them.
    pub namespace: Option<String>,
    /// The action.
    pub did: AuditAction,
    /// The id or the name of what it was done to.
    pub subject: String,
    /// The actor, as stated by the caller.
    pub actor: Option<String>,
    /// The name of the API key they came with, or its id where it has no name.
    pub key: Option<String>,
    /// The id of that key. Unlike names, ids are never given twice.
    pub key_id: Option<String>,
    /// The note.
    pub note: Option<String>,
    /// The name of the request that asked for it.
    pub request: Option<String>,
    /// As it was. Where nobody could say so without a race, the store says it.
    pub before: Option<Value>,
    /// The state afterwards.
    pub after: Option<Value>,
    /// The key that is used up by the write that this line comes with. It is no part of the line.
    pub once: Option<Arc<ActKey>>,
    /// Stored with the key, for who sends the same request again.
    pub answer: Option<Value>,
}

impl Audit {
    /// An entry without namespace, before and after.
    pub fn new(id: Uuid, at: Timestamp, did: AuditAction, subject: impl Into<String>, act: &Actor) -> Audit {
        Audit {
            id,
            at,
            namespace: None,
            did,
            subject: subject.into(),
            actor: act.by.clone(),
            key: act.key.clone(),
            key_id: act.key_id.clone(),
            note: act.note.clone(),
            request: act.request.clone(),
            before: None,
            after: None,
            once: act.once.clone(),
            answer: None,
        }
    }

    /// The same entry in a namespace.
    pub fn within(self, namespace: &str) -> Audit {
        Audit { namespace: Some(namespace.to_owned()), ..self }
    }

    /// Adds the answer that a repetition of the request gets.
    pub fn answered(self, answer: Value) -> Audit {
        Audit { answer: Some(answer), ..self }
    }

    /// The same entry with the state before and after.
    pub fn changed(self, before: Option<Value>, after: Option<Value>) -> Audit {
        Audit { before, after, ..self }
    }
}

/// As much of a task as an act can change.
pub fn task_facts(task: &Task) -> Value {
    let at = |at: Option<Timestamp>| at.map(Timestamp::to_rfc3339);
    json!({
        "state": task.state.word(),
        "attempt": task.counters.attempt,
        "cycle": task.cycle,
        "next_retry_at": at(task.next_retry_at),
        "start_at": at(task.start_at),
    })
}

/// The same of an execution.
pub fn execution_facts(execution: &Execution) -> Value {
    json!({"state": execution.state.word(), "open": execution.open, "total": execution.total})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_names_one_act_or_all_about_a_thing() {
        assert_eq!(AuditAction::named("task.retry"), [AuditAction::TaskRetry]);
        assert_eq!(AuditAction::named("loop"), [AuditAction::LoopPause, AuditAction::LoopResume]);
        assert_eq!(AuditAction::named("loop.*"), AuditAction::named("loop"));
        assert_eq!(AuditAction::named("loop.begin"), []);
        assert_eq!(AuditAction::named(""), []);
    }
}
