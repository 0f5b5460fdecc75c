//! Tasks that need not be made, because one like them is there: same status, same kind, and the same values in some fields of their
//! metadata. The fields are compared as labels, which every task of a batch has of its metadata.

use std::collections::{BTreeMap, BTreeSet};

use comeback_core::Invalid;
use comeback_core::filter::{Filter, Pattern, Sort, StateTest, Test, TextField};
use comeback_engine::Limits;
use comeback_engine::store::ListQuery;
use comeback_server::route::schema_types;
use comeback_server::{App, Problem};
use serde::Deserialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::output;
use crate::dialect_schemas;

/// Which tasks are like a new one.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = BatchMatcher)]
pub struct MatcherIn {
    #[schema(value_type = dialect_schemas::BatchStatus)]
    status: String,
    #[schema(value_type = schema_types::NameSchema)]
    kind: String,
    /// Fields of the metadata in which both have the same.
    #[serde(default)]
    fields: Vec<String>,
}

impl MatcherIn {
    /// The filter that finds such tasks.
    pub fn filter(&self, at: &str, labels: &BTreeMap<String, String>, limits: &Limits, faults: &mut Invalid) -> Filter {
        limits.check_name(&format!("{at}.kind"), &self.kind, faults);
        let states = output::states(&self.status).unwrap_or_else(|| {
            faults.push(format!("{at}.status"), format!("must be one of {}", output::statuses().join(", ")));
            &[]
        });
        let exactly = |text: &str| vec![Pattern { text: text.to_owned(), prefix: false }];
        let mut filter = Filter::default()
            .and(Test::State(states.iter().copied().map(StateTest::Is).collect()))
            .and(Test::Text { field: TextField::Kind, any: exactly(&self.kind) });
        for (n, name) in self.fields.iter().enumerate() {
            match labels.get(name) {
                None => faults.push(
                    format!("{at}.fields[{n}]"),
                    format!("`{name}` is no field of the metadata that holds a text, a number or a boolean of few characters"),
                ),
                Some(value) => {
                    filter = filter.and(Test::Text { field: TextField::Label(name.clone()), any: exactly(value) });
                }
            }
        }
        filter
    }
}

/// The plain values in a task's metadata: they are found by filters.
pub fn labels(metadata: Option<&Value>, limits: &Limits) -> BTreeMap<String, String> {
    let plain = |value: &Value| match value {
        Value::String(text) => Some(text.clone()),
        Value::Bool(_) | Value::Number(_) => Some(value.to_string()),
        _ => None,
    };
    let fields = metadata.and_then(Value::as_object).into_iter().flatten();
    fields
        .filter_map(|(name, value)| plain(value).map(|value| (name.clone(), value)))
        .filter(|(name, value)| !name.is_empty() && name.len() + value.len() <= limits.label_bytes)
        .filter(|(name, value)| !name.contains('\0') && !value.contains('\0'))
        .take(limits.labels)
        .collect()
}

/// Positions of new tasks for which a matching task exists.
pub async fn skipped(app: &App, namespace: &str, asked: &[Vec<Filter>]) -> Result<BTreeSet<usize>, Problem> {
    let mut skipped = BTreeSet::new();
    for (place, filters) in asked.iter().enumerate() {
        for filter in filters {
            let now = app.engine.now();
            let query = ListQuery { filter: filter.clone(), sort: Sort::SubmittedDesc, limit: 1, after: None, now };
            if !app.engine.store().list(namespace, &query).await?.items.is_empty() {
                skipped.insert(place);
                break;
            }
        }
    }
    Ok(skipped)
}
