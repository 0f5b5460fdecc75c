//! Rules that tasks bring along: each counts all tasks that it matches and binds those that carry it. The same rule has the same
//! name wherever it comes from, so all who bring it share what it counts.

use comeback_core::Invalid;
use comeback_core::admission::{Bound, Matcher, Rule};
use comeback_engine::{CARRIED, Limits};
use comeback_server::route::schema_types;
use serde::Deserialize;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use utoipa::ToSchema;

use crate::dialect_schemas;

/// Rules that one task may carry.
const MOST: usize = 16;

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, tag = "type")]
#[schema(as = BatchRule)]
pub enum RuleIn {
    /// Spelt as its clients spell it.
    Concurency {
        /// How many may run at once.
        #[schema(maximum = 1_000_000_000)]
        max_concurency: u32,
        matcher: RuleMatcherIn,
    },
    Capacity {
        /// How much those that run may still have to do: what they expect and have not counted.
        #[schema(maximum = 1_000_000_000)]
        max_capacity: u32,
        matcher: RuleMatcherIn,
    },
}

/// Which tasks are counted: those that run, of a kind, with the same values as the task itself in some fields of their metadata.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = BatchRuleMatcher)]
pub struct RuleMatcherIn {
    /// `Running`, which `Claimed` is a part of.
    #[schema(value_type = dialect_schemas::BatchRunning)]
    status: String,
    #[schema(value_type = schema_types::NameSchema)]
    kind: String,
    /// A task that lacks one of them never starts.
    #[serde(default)]
    #[schema(value_type = Vec<schema_types::NameSchema>, max_items = 16)]
    fields: Vec<String>,
}

impl RuleIn {
    /// The rule, named by its digest.
    pub fn rule(self, at: &str, limits: &Limits, faults: &mut Invalid) -> Rule {
        let (bound, matcher) = match self {
            RuleIn::Concurency { max_concurency, matcher } => (Bound::Running(max_concurency), matcher),
            RuleIn::Capacity { max_capacity, matcher } => (Bound::Capacity(max_capacity), matcher),
        };
        if matcher.status != "Running" {
            faults.push(format!("{at}.matcher.status"), "must be Running");
        }
        limits.check_name(&format!("{at}.matcher.kind"), &matcher.kind, faults);
        for (n, field) in matcher.fields.iter().enumerate() {
            limits.check_name(&format!("{at}.matcher.fields[{n}]"), field, faults);
        }
        let mut rule = Rule {
            name: String::new(),
            matcher: Matcher { kind: Some(matcher.kind), ..Matcher::default() },
            per: matcher.fields,
            bound,
            fair: false,
            carried: true,
        };
        let part = rule.check().renamed(|path| match path {
            "per" => format!("{at}.matcher.fields"),
            "max_running" => format!("{at}.max_concurency"),
            _ => format!("{at}.max_capacity"),
        });
        faults.absorb("", part);
        let text = serde_json::to_string(&rule).unwrap_or_default();
        let digest: String =
            Sha256::digest(text.as_bytes()).iter().take(12).map(|byte| format!("{byte:02x}")).collect();
        rule.name = format!("{CARRIED}{digest}");
        rule
    }
}

/// Checks the rules of one task.
pub fn read(rules: Vec<RuleIn>, limits: &Limits, faults: &mut Invalid) -> Vec<Rule> {
    if rules.len() > MOST {
        faults.push("rules", format!("may hold {MOST} rules at most"));
    }
    rules.into_iter().enumerate().map(|(n, rule)| rule.rule(&format!("rules[{n}]"), limits, faults)).collect()
}

/// A rule as it was brought.
pub fn shown(rule: &Rule) -> Value {
    let matcher = json!({"status": "Running", "kind": rule.matcher.kind, "fields": rule.per});
    match rule.bound {
        Bound::Running(most) => json!({"type": "Concurency", "max_concurency": most, "matcher": matcher}),
        Bound::Capacity(most) => json!({"type": "Capacity", "max_capacity": most, "matcher": matcher}),
    }
}
