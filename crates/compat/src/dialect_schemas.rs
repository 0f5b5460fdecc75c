//! Types that stand in derived schemas for those that the dialects write by hand.

pub struct BatchActionKind;
pub struct BatchCondition;
pub struct BatchEnd;
pub struct BatchKind;
pub struct BatchRunning;
pub struct BatchStatus;
pub struct BatchTrigger;
pub struct BatchVerb;
pub struct EmittedType;
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
