//! Hand-written schemas: inputs that are parsed field by field, and responses. A test checks all of them against a
//! running server.

mod alert;
mod answers;
mod backtest;
mod dependency;
mod flow;
mod input;
mod numbers;
mod operation;
mod policy;
mod schedule;
mod subscription;

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::schema::{about, like, named, text};

/// All hand-written schemas, by name.
pub fn all() -> Vec<(&'static str, Value)> {
    [
        input::all(),
        policy::all(),
        answers::all(),
        flow::all(),
        schedule::all(),
        dependency::all(),
        numbers::all(),
        operation::all(),
        subscription::all(),
        alert::all(),
        backtest::all(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Schemas built from derived ones.
pub fn made_of(derived: &BTreeMap<String, Value>) -> Vec<(&'static str, Value)> {
    let mut assumed = derived.get("ErrorFields").cloned().unwrap_or_default();
    assumed["properties"]["after"] = about(named("Duration"), "Duration of the attempt before it fails.");
    vec![("AssumedFailure", assumed)]
}

/// Schema of all words of an enum.
macro_rules! words {
    ($type:ty) => {
        word(&<$type>::ALL.iter().map(|it| it.word()).collect::<Vec<_>>())
    };
}
use words;

/// Description and schema of a path parameter.
pub fn path_parameter(path: &str, name: &str) -> (&'static str, Value) {
    match name {
        "id" if path.contains("/executions/") => ("The id of an execution.", named("Id")),
        "path" => {
            ("The path of a workflow in the catalog; a slash in it is written `%2F`.", like(text(), json!(["nightly"])))
        }
        "version" => ("A version of it.", like(super::schema::between(1, 2_147_483_647), json!([1]))),
        "id" if path.contains("/operations/") => ("The id of a bulk operation.", named("Id")),
        "id" if path.contains("/subscriptions/") => ("The id of a subscription.", like(named("Name"), json!(["ops"]))),
        "id" if path.contains("/keys/") => ("The id of a key: the part of it between the underscores.", text()),
        "id" => ("The id of a task.", named("Id")),
        "fingerprint" => ("The fingerprint of a group of errors.", like(text(), json!(["00000000000000ff"]))),
        "kind" => ("A kind of tasks.", like(named("Name"), json!(["email.send"]))),
        "name" if path.contains("/rules/") => ("The name of a rule.", like(named("Name"), json!(["payments"]))),
        "name" if path.contains("/alerts/") => ("The name of an alert.", like(named("Name"), json!(["payments-fail"]))),
        "name" if path.contains("/accounts/") => ("The name of an account.", like(named("Name"), json!(["acme"]))),
        "name" if path.contains("/dependencies/") => ("The name of a dependency.", like(named("Name"), json!(["psp"]))),
        "name" if path.contains("/schedules/") => {
            ("The name of a schedule; a slash in it is written `%2F`.", like(text(), json!(["nightly"])))
        }
        "name" if path.contains("/secrets/") => ("The name of a secret.", like(text(), json!(["stripe"]))),
        "name" if path.contains("/workers/") => ("The name of a worker.", like(named("Name"), json!(["worker-1"]))),
        "name" => ("The name of a loop; `promote` means both `retries` and `starts`.", named("LoopName")),
        _ => ("", text()),
    }
}

/// Implements `ToSchema` for types whose schema is written by hand under the given name, optionally registering a derived part.
#[macro_export]
macro_rules! by_hand {
    ($($type:ty => $name:literal $(of $part:ty)?),+ $(,)?) => {$(
        impl utoipa::PartialSchema for $type {
            fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::Schema> {
                utoipa::openapi::RefOr::default()
            }
        }

        impl utoipa::ToSchema for $type {
            fn name() -> std::borrow::Cow<'static, str> {
                $name.into()
            }

            $(fn schemas(parts: &mut $crate::openapi::doc::Parts) {
                use utoipa::PartialSchema;
                parts.push((<$part>::name().into_owned(), <$part>::schema()));
                <$part>::schemas(parts);
            })?
        }
    )+};
}

/// Marker types for fields whose schema is written by hand.
pub mod schema_types {
    /// Marker of the schema `Name`.
    pub struct NameSchema;
    /// Marker of the schema `Note`.
    pub struct NoteSchema;
    /// Marker of the schema `Labels`.
    pub struct LabelsSchema;
    /// Marker of the schema `RetryPolicy`.
    pub struct RetryPolicySchema;
    /// Marker of the schema `Executor`.
    pub struct ExecutorSchema;
    /// Marker of the schema `Json`.
    pub struct JsonSchema;
    /// Marker of the schema `RetryAfter`.
    pub struct RetryAfterSchema;
    /// Marker of the schema `Dialect`.
    pub struct DialectSchema;
    /// Marker of the schema `Class`.
    pub struct ClassSchema;
    /// Marker of the schema `Outcome`.
    pub struct OutcomeSchema;
    /// Marker of the schema `When`.
    pub struct WhenSchema;
    /// Marker of the schema `OnUnmet`.
    pub struct OnUnmetSchema;
    /// Marker of the schema `Role`.
    pub struct RoleSchema;
    /// Marker of the schema `SettleStatus`.
    pub struct SettleStatusSchema;
    /// Marker of the schema `WorkType`.
    pub struct WorkTypeSchema;
    /// Marker of the schema `AssumedFailure`.
    pub struct AssumedFailureSchema;
    /// Marker of the schema `WorkflowDocument`.
    pub struct WorkflowDocumentSchema;
    /// Marker of the schema `RetryFrom`.
    pub struct RetryFromSchema;
    /// Marker of the schema `CatchUp`.
    pub struct CatchUpSchema;
    /// Marker of the schema `DeliveryFormat`.
    pub struct DeliveryFormatSchema;
    /// Marker of the schema `Overlap`.
    pub struct OverlapSchema;
    /// Marker of the schema `Hooks`.
    pub struct HooksSchema;
    /// Marker of the schema `Priority`.
    pub struct PrioritySchema;
    /// Marker of the schema `Id`.
    pub struct IdSchema;
    /// Marker of the schema `ErrorAction`.
    pub struct ErrorActionSchema;
    /// Marker of the schema `ErrorClass`.
    pub struct ErrorClassSchema;
    /// Marker of the schema `BulkAction`.
    pub struct BulkActionSchema;
    /// Marker of the schema `DependencySettings`.
    pub struct DependencySettingsSchema;
    /// Marker of the schema `Headers`.
    pub struct HeadersSchema;
    /// Marker of the schema `SigningSecret`.
    pub struct SigningSecretSchema;
}

by_hand! {
    crate::wire::DurationIn => "Duration",
    crate::wire::Instant => "Instant",
    crate::wire::MomentIn => "Moment",
    crate::wire::task::NeedIn => "Need" of crate::wire::task::WholeNeed,
    crate::wire::lease::ErrorIn => "Error" of crate::wire::lease::WholeError,
    schema_types::NameSchema => "Name",
    schema_types::NoteSchema => "Note",
    schema_types::LabelsSchema => "Labels",
    schema_types::RetryPolicySchema => "RetryPolicy",
    schema_types::ExecutorSchema => "Executor",
    schema_types::JsonSchema => "Json",
    schema_types::RetryAfterSchema => "RetryAfter",
    schema_types::DialectSchema => "Dialect",
    schema_types::ClassSchema => "Class",
    schema_types::OutcomeSchema => "Outcome",
    schema_types::WhenSchema => "When",
    schema_types::OnUnmetSchema => "OnUnmet",
    schema_types::RoleSchema => "Role",
    schema_types::SettleStatusSchema => "SettleStatus",
    schema_types::WorkTypeSchema => "WorkType",
    schema_types::AssumedFailureSchema => "AssumedFailure",
    schema_types::WorkflowDocumentSchema => "WorkflowDocument",
    schema_types::RetryFromSchema => "RetryFrom",
    schema_types::CatchUpSchema => "CatchUp",
    schema_types::DeliveryFormatSchema => "DeliveryFormat",
    schema_types::OverlapSchema => "Overlap",
    schema_types::HooksSchema => "Hooks",
    schema_types::PrioritySchema => "Priority",
    schema_types::IdSchema => "Id",
    schema_types::ErrorActionSchema => "ErrorAction",
    schema_types::ErrorClassSchema => "ErrorClass",
    schema_types::BulkActionSchema => "BulkAction",
    schema_types::DependencySettingsSchema => "DependencySettings",
    schema_types::HeadersSchema => "Headers",
    schema_types::SigningSecretSchema => "SigningSecret",
}
