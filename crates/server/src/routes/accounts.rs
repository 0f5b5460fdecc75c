//! Accounts: the credits that tasks cost.

use std::collections::BTreeMap;

use axum::extract::{Extension, Path, RawQuery, State};
use axum::http::{Method, StatusCode};
use axum::response::Json;
use axum::routing::{delete, get, put};
use bytes::Bytes;
use comeback_core::Invalid;
use comeback_core::budget::Budget;
use comeback_engine::store::{Account, AccountChange};
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::{AppState, CURSOR, LIMIT, Line, Query, known_name, line};
use crate::auth::{Caller, Need};
use crate::openapi::{Doc, schema, schema_types};
use crate::problem::Problem;
use crate::wire::{self, Object, Page};

/// Routes of this module.
pub fn lines() -> Vec<Line> {
    let one = "/api/v1/accounts/{name}";
    let shape = || schema::named("Account");
    vec![
        line(Method::GET, "/api/v1/accounts", Need::Read, "List accounts", get(list))
            .doc(Doc::new("listAccounts").query(&[LIMIT, CURSOR]).answers(schema::page(shape()))),
        line(Method::GET, one, Need::Read, "Get an account", get(show))
            .doc(Doc::new("getAccount").answers(shape()).problems(&["not-found"])),
        line(Method::PUT, one, Need::Administer, "Create or update an account", put(make)).doc(
            Doc::new("putAccount")
                .about(
                    "Fields left out stay unchanged. The cost of a task is reserved when it is submitted, spent when \
                     it succeeds and released when it ends otherwise; automatic retries are covered by the \
                     reservation.",
                )
                .needs::<AccountIn>()
                .example(json!({"credits": 100, "costs": {"screenshot": 2}}))
                .example(json!({"add": 50}))
                .example(json!({"budget": {"retries_per_day": 100, "retries_per_month": 1000}}))
                .example(json!({"organisation": null}))
                .answers(shape()),
        ),
        line(Method::DELETE, one, Need::Administer, "Delete an account", delete(remove)).doc(
            Doc::new("deleteAccount")
                .about("Refused while open tasks hold reserved credits.")
                .answers_nothing()
                .problems(&["not-found", "account-in-use"]),
        ),
    ]
}

/// Give at most one of `credits` and `add`.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = AccountChange)]
struct AccountIn {
    /// New balance, reserved credits included.
    #[serde(default)]
    #[schema(minimum = 0, maximum = 1_000_000_000_000_i64)]
    credits: Option<u64>,
    /// Credits to add to the balance; negative to subtract.
    #[serde(default)]
    #[schema(minimum = -1_000_000_000_000_i64, maximum = 1_000_000_000_000_i64)]
    add: Option<i64>,
    /// Cost of a task by its kind; default: 1.
    #[serde(default)]
    #[schema(value_type = Option<BTreeMap<String, u32>>)]
    costs: Option<BTreeMap<String, u32>>,
    #[serde(default)]
    #[schema(value_type = Option<BudgetIn>)]
    budget: Option<Object<BudgetIn>>,
    /// Parent account, whose retry budget is charged as well; null for none.
    #[serde(default, deserialize_with = "wire::given")]
    #[schema(value_type = Option<schema_types::NameSchema>)]
    organisation: Option<Option<String>>,
}

/// Retry budget: automatic retries per day and month, by their due time. Fields left out are not limited.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = RetryBudget)]
struct BudgetIn {
    #[serde(default)]
    #[schema(minimum = 1, maximum = 1_000_000_000)]
    retries_per_day: Option<u32>,
    #[serde(default)]
    #[schema(minimum = 1, maximum = 1_000_000_000)]
    retries_per_month: Option<u32>,
    /// Maximum total cost of the retried tasks.
    #[serde(default)]
    #[schema(minimum = 1, maximum = 1_000_000_000)]
    retry_cost_per_month: Option<u64>,
}

impl AccountIn {
    fn change(self) -> Result<AccountChange, Invalid> {
        if self.credits.is_some() && self.add.is_some() {
            return Err(Invalid::one("add", "give either `credits` or `add`"));
        }
        let set = self.credits.map(|credits| i64::try_from(credits).unwrap_or(i64::MAX));
        let budget = self.budget.map(|Object(budget)| {
            let BudgetIn { retries_per_day, retries_per_month, retry_cost_per_month } = budget;
            Budget { retries_per_day, retries_per_month, retry_cost_per_month }
        });
        Ok(AccountChange {
            set,
            add: self.add.unwrap_or(0),
            costs: self.costs,
            budget,
            organisation: self.organisation,
        })
    }
}

fn shown(it: &Account) -> Value {
    json!({
        "name": it.name,
        "credits": it.credits.held,
        "reserved": it.credits.reserved,
        "available": it.credits.available(),
        "spent": it.credits.spent,
        "costs": it.terms.costs,
        "budget": {
            "retries_per_day": it.terms.budget.retries_per_day,
            "retries_per_month": it.terms.budget.retries_per_month,
            "retry_cost_per_month": it.terms.budget.retry_cost_per_month,
        },
        "organisation": it.terms.organisation,
        "created_at": it.created_at.to_rfc3339(),
        "updated_at": it.updated_at.to_rfc3339(),
    })
}

async fn list(
    State(app): AppState,
    Extension(caller): Extension<Caller>,
    RawQuery(query): RawQuery,
) -> Result<Json<Page<Value>>, Problem> {
    let query = Query::read(query.as_deref(), &[LIMIT, CURSOR])?;
    let limit = query.limit()?;
    let found = app.engine.accounts(&caller.namespace, query.text("cursor").unwrap_or_default(), limit).await?;
    Ok(Json(Page::of(&found, limit, |it| it.name.clone(), shown)))
}

async fn show(
    State(app): AppState,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
) -> Result<Json<Value>, Problem> {
    known_name(&app, "account", &name)?;
    Ok(Json(shown(&app.engine.account(&caller.namespace, &name).await?)))
}

async fn make(
    State(app): AppState,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
    body: Bytes,
) -> Result<Json<Value>, Problem> {
    let given: AccountIn = wire::read(&body)?;
    let change = given.change()?;
    let account = app.engine.put_account(&caller.namespace, &name, change, &caller.act(None, None)).await?;
    Ok(Json(shown(&account)))
}

async fn remove(
    State(app): AppState,
    Extension(caller): Extension<Caller>,
    Path(name): Path<String>,
) -> Result<StatusCode, Problem> {
    known_name(&app, "account", &name)?;
    app.engine.delete_account(&caller.namespace, &name, &caller.act(None, None)).await?;
    Ok(StatusCode::NO_CONTENT)
}
