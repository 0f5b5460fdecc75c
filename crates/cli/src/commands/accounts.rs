//! Accounts: credits and retry budgets.

use serde_json::{Map, Value, json};

use super::Context;
use super::resource::{Resource, object};
use crate::args::AccountCommand;
use crate::error::{CliError, code};
use crate::output::{self, Table, View, outln};

const ACCOUNTS: Resource = Resource { noun: "account", collection: "/api/v1/accounts" };

pub async fn run(context: &Context, command: AccountCommand) -> Result<u8, CliError> {
    match command {
        AccountCommand::Put {
            name,
            credits,
            add,
            costs,
            retries_per_day,
            retries_per_month,
            retry_cost_per_month,
            organisation,
        } => {
            let costs = Some(read_costs(&costs)?).filter(|costs| !costs.is_empty());
            let budget = object([
                ("retries_per_day", retries_per_day.map(Value::from)),
                ("retries_per_month", retries_per_month.map(Value::from)),
                ("retry_cost_per_month", retry_cost_per_month.map(Value::from)),
            ]);
            let body = object([
                ("credits", credits.map(Value::from)),
                ("add", add.map(Value::from)),
                ("costs", costs.map(Value::Object)),
                ("budget", Some(budget).filter(|budget| *budget != json!({}))),
                ("organisation", organisation.map(|name| Some(name).filter(|name| !name.is_empty()).into())),
            ]);
            detail(ACCOUNTS.put(context, &name, &body).await?).print(&context.out)
        }
        AccountCommand::List => list(context).await,
        AccountCommand::Get { name } => detail(ACCOUNTS.get(context, &name).await?).print(&context.out),
        AccountCommand::Delete { name } => {
            ACCOUNTS.delete(context, &name).await?;
            outln!("account {name} deleted");
            Ok(code::OK)
        }
    }
}

fn read_costs(costs: &[String]) -> Result<Map<String, Value>, CliError> {
    let read = |text: &String| {
        let (kind, cost) = text.split_once('=')?;
        Some((kind.to_owned(), Value::from(cost.parse::<u32>().ok()?)))
    };
    let invalid = |text: &String| {
        CliError::new(code::USAGE, format!("invalid cost `{text}`"))
            .why("a cost is a kind, `=` and a number of credits")
            .remedy("--cost screenshot=2")
    };
    costs.iter().map(|text| read(text).ok_or_else(|| invalid(text))).collect()
}

fn detail(account: Value) -> View {
    let mut lines = vec![
        format!("account {}: {} credits available", output::text(&account, "name"), account["available"]),
        format!(
            "  balance {}, {} of it reserved; {} spent so far",
            account["credits"], account["reserved"], account["spent"]
        ),
    ];
    let budget = [
        ("retries_per_day", "retries per day"),
        ("retries_per_month", "retries per month"),
        ("retry_cost_per_month", "credits for retries per month"),
    ];
    for (name, unit) in budget {
        if let Some(most) = account["budget"][name].as_u64() {
            lines.push(format!("  budget: {most} {unit}"));
        }
    }
    if let Some(organisation) = account["organisation"].as_str() {
        lines.push(format!("  retries are charged to {organisation} too"));
    }
    for (kind, cost) in account["costs"].as_object().into_iter().flatten() {
        lines.push(format!("  {kind} costs {cost}"));
    }
    View::lines_of(account, lines)
}

async fn list(context: &Context) -> Result<u8, CliError> {
    let accounts = ACCOUNTS.list(context).await?;
    let mut table = Table::new(&["NAME", "AVAILABLE", "RESERVED", "SPENT"]);
    for it in output::items(&accounts) {
        let number = |name: &str| it[name].to_string().into();
        table.rows.push(vec![
            output::text(it, "name").into(),
            number("available"),
            number("reserved"),
            number("spent"),
        ]);
    }
    let hint = "no accounts, so tasks cost nothing; create one: comeback account put NAME --credits 100";
    View::table(accounts, table).hint_if_empty(hint).print(&context.out)
}
