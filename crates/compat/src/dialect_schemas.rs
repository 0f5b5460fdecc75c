//! Types that stand in derived schemas for those that the dialects write by hand.

/// Kind of an action.
pub struct BatchActionKind;
/// Condition of a dependency between tasks.
pub struct BatchCondition;
/// Final status that a callee reports.
pub struct BatchEnd;
/// Kind of a task.
pub struct BatchKind;
/// Status that a rule counts.
pub struct BatchRunning;
/// Status of a task.
pub struct BatchStatus;
/// Trigger of a retry.
pub struct BatchTrigger;
/// HTTP method of a webhook.
pub struct BatchVerb;
/// Type of an event that a worker sends.
pub struct EmittedType;
/// Metadata of a task.
pub struct Metadata;

comeback_server::by_hand! {
    BatchActionKind => "BatchActionKind",
    BatchCondition => "BatchCondition",
    BatchEnd => "BatchEnd",
    BatchKind => "BatchKind",
    BatchRunning => "BatchRunning",
    BatchStatus => "BatchStatus",
    BatchTrigger => "BatchTrigger",
    BatchVerb => "BatchVerb",
    EmittedType => "EmittedType",
    Metadata => "Metadata",
}
