//! Shapes that are written by hand: what is read from JSON field by field, and what is answered. A test asks a running server
//! for all of them, so none can tell a lie for long.

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

/// Shapes that are made of derived ones.
pub fn made_of(derived: &BTreeMap<String, Value>) -> Vec<(&'static str, Value)> {
    let mut assumed = derived.get("ErrorFields").cloned().unwrap_or_default();
    assumed["properties"]["after"] = about(named("Duration"), "How long the attempt runs before it fails.");
    vec![("AssumedFailure", assumed)]
}

/// All words of a type.
macro_rules! words {
    ($type:ty) => {
        word(&<$type>::ALL.iter().map(|it| it.word()).collect::<Vec<_>>())
    };
}
use words;

/// What a part of a path stands for.
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
        "name" => ("The name of a loop; `promote` stands for both `retries` and `starts`.", named("LoopName")),
        _ => ("", text()),
    }
}

/// Gives a type that stands in a derived schema the name of one that is written here, and names what that one is made of.
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

/// What a field holds where its own type does not say.
pub mod stands_for {
    pub struct Name;
    pub struct Note;
    pub struct Labels;
    pub struct RetryPolicy;
    pub struct Executor;
    pub struct Json;
    pub struct RetryAfter;
    pub struct Dialect;
    pub struct Class;
    pub struct Outcome;
    pub struct When;
    pub struct OnUnmet;
    pub struct Role;
    pub struct SettleStatus;
    pub struct WorkType;
    pub struct AssumedFailure;
    pub struct WorkflowDocument;
    pub struct RetryFrom;
    pub struct CatchUp;
    pub struct DeliveryFormat;
    pub struct Overlap;
    pub struct Hooks;
    pub struct Priority;
    pub struct Id;
    pub struct ErrorAction;
    pub struct ErrorClass;
    pub struct BulkAction;
    pub struct DependencySettings;
    pub struct Headers;
    pub struct SigningSecret;
}

by_hand! {
    crate::wire::Span => "Duration",
    crate::wire::Instant => "Instant",
    crate::wire::MomentIn => "Moment",
    crate::wire::task::NeedIn => "Need" of crate::wire::task::WholeNeed,
    crate::wire::lease::ErrorIn => "Error" of crate::wire::lease::WholeError,
    stands_for::Name => "Name",
    stands_for::Note => "Note",
    stands_for::Labels => "Labels",
    stands_for::RetryPolicy => "RetryPolicy",
    stands_for::Executor => "Executor",
    stands_for::Json => "Json",
    stands_for::RetryAfter => "RetryAfter",
    stands_for::Dialect => "Dialect",
    stands_for::Class => "Class",
    stands_for::Outcome => "Outcome",
    stands_for::When => "When",
    stands_for::OnUnmet => "OnUnmet",
    stands_for::Role => "Role",
    stands_for::SettleStatus => "SettleStatus",
    stands_for::WorkType => "WorkType",
    stands_for::AssumedFailure => "AssumedFailure",
    stands_for::WorkflowDocument => "WorkflowDocument",
    stands_for::RetryFrom => "RetryFrom",
    stands_for::CatchUp => "CatchUp",
    stands_for::DeliveryFormat => "DeliveryFormat",
    stands_for::Overlap => "Overlap",
    stands_for::Hooks => "Hooks",
    stands_for::Priority => "Priority",
    stands_for::Id => "Id",
    stands_for::ErrorAction => "ErrorAction",
    stands_for::ErrorClass => "ErrorClass",
    stands_for::BulkAction => "BulkAction",
    stands_for::DependencySettings => "DependencySettings",
    stands_for::Headers => "Headers",
    stands_for::SigningSecret => "SigningSecret",
}
