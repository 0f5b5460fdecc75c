//! The JSON Schema that editors complete and check by. It is kept by hand beside the reader; tests hold the two together.

use std::sync::LazyLock;

use serde_json::Value;

static SCHEMA: LazyLock<Value> =
    LazyLock::new(|| serde_json::from_str(include_str!("schema.json")).unwrap_or_default());

/// JSON Schema 2020-12.
pub fn schema() -> Value {
    SCHEMA.clone()
}
