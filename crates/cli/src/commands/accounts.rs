//! Accounts: the credits that tasks cost.

use serde_json::{Map, Value, json};

use super::Context;
use crate::args::AccountCommand;
use crate::failure::{Failure, code};
use crate::output::{self, Table, View, say};

pub async fn run(context: &Context, command: AccountCommand) -> Result<u8, Failure> {
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
            let mut body = Map::new();
            body.extend(credits.map(|credits| ("credits".to_owned(), credits.into())));
            body.extend(add.map(|add| ("add".to_owned(), add.into())));
            if !costs.is_empty() {
                body.insert("costs".into(), Value::Object(read_costs(&costs)?));
            }
            let budget = [
                ("retries_per_day", retries_per_day.map(u64::from)),
                ("retries_per_month", retries_per_month.map(u64::from)),
                ("retry_cost_per_month", retry_cost_per_month),
            ];
            let budget: Map<String, Value> =
                budget.into_iter().filter_map(|(name, most)| Some((name.to_owned(), most?.into()))).collect();
            if !budget.is_empty() {
                body.insert("budget".into(), budget.into());
            }
            if let Some(organisation) = organisation {
                body.insert("organisation".into(), Some(organisation).filter(|it| !it.is_empty()).into());
            }
            let account = context.client.put(&address(&name), &json!(body)).await?;
            shown(context, account)
        }
        AccountCommand::List => list(context).await,
        AccountCommand::Show { name } => shown(context, context.client.get(&address(&name)).await?),
        AccountCommand::Delete { name } => {
            context.client.delete(&address(&name)).await?;
            say!("account {name} is gone");
            Ok(code::OK)
        }
    }
}

fn address(name: &str) -> String {
    format!("/api/v1/accounts/{}", super::escaped(name))
}

fn read_costs(costs: &[String]) -> Result<Map<String, Value>, Failure> {
    let read = |text: &String| {
        let (kind, cost) = text.split_once('=')?;
        Some((kind.to_owned(), Value::from(cost.parse::<u32>().ok()?)))
    };
    let unread = |text: &String| {
        Failure::new(code::USAGE, format!("`{text}` is no cost"))
            .why("it is not a kind, an equals sign and a number of credits")
            .remedy("--cost screenshot=2")
    };
    costs.iter().map(|text| read(text).ok_or_else(|| unread(text))).collect()
}

fn shown(context: &Context, account: Value) -> Result<u8, Failure> {
    let mut view = View::new(account.clone());
    view.line(format!("account {}: {} credits available", output::text(&account, "name"), account["available"]));
    view.line(format!(
        "  holds {}, of which {} are reserved; {} spent so far",
        account["credits"], account["reserved"], account["spent"]
    ));
    for (name, words) in [("retries_per_day", "in a day"), ("retries_per_month", "in a month")] {
        if let Some(most) = account["budget"][name].as_u64() {
            view.line(format!("  pays for {most} retries {words}"));
        }
    }
    if let Some(most) = account["budget"]["retry_cost_per_month"].as_u64() {
        view.line(format!("  pays {most} credits for retries in a month"));
    }
    if let Some(organisation) = account["organisation"].as_str() {
        view.line(format!("  its retries are booked for {organisation}, too"));
    }
    for (kind, cost) in account["costs"].as_object().into_iter().flatten() {
        view.line(format!("  {kind} costs {cost}"));
    }
    view.print(&context.out)
}

async fn list(context: &Context) -> Result<u8, Failure> {
    let accounts = context.client.get_with("/api/v1/accounts", &[("limit", "500".to_owned())]).await?;
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
    let empty = table.rows.is_empty();
    let view = View::table(accounts, table);
    let hint = "no accounts: tasks cost nothing; comeback account put NAME --credits 100";
    if empty { view.with_hint(hint).print(&context.out) } else { view.print(&context.out) }
}
