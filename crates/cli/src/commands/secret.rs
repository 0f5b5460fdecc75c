//! Secrets. A value is read from standard input or a file, never from the command line, and is never shown.

use std::io::{IsTerminal, Read};
use std::path::Path;

use serde_json::json;

use super::Context;
use super::resource::Resource;
use crate::args::SecretCommand;
use crate::error::{CliError, code};
use crate::output::{self, Table, View};
use crate::watch;

const SECRETS: Resource = Resource { noun: "secret", collection: "/api/v1/secrets" };

pub async fn run(context: &Context, command: SecretCommand) -> Result<u8, CliError> {
    match command {
        SecretCommand::Put { name, file } => {
            let value = value(file.as_deref())?;
            let put = SECRETS.put(context, &name, &json!({"value": value})).await?;
            let words = format!("secret {name} saved; refer to it as {{\"secret\": \"{name}\"}}");
            View::message(put, words).print(&context.out)
        }
        SecretCommand::List { watch } => watch::show(&context.out, &watch, || list(context)).await,
        SecretCommand::Get { name } => {
            let it = SECRETS.get(context, &name).await?;
            let now = context.now().await?;
            let put = output::instant(&it["updated_at"]).map(|at| context.out.at(at, now)).unwrap_or_default();
            let by = it["updated_by"].as_str().map(|by| format!(" by {by}")).unwrap_or_default();
            let words = format!("{name}  saved {put}{by}, encrypted with key {}", output::text(&it, "key_id"));
            View::message(it, words).print(&context.out)
        }
        SecretCommand::Delete { name } => {
            let deleted = SECRETS.delete(context, &name).await?;
            View::message(deleted, format!("secret {name} deleted")).print(&context.out)
        }
        SecretCommand::RotateKey => {
            let done = context.client.post(&format!("{}/reencrypt", SECRETS.collection), &json!({})).await?;
            let unreadable = done["unreadable"].as_array().map_or(0, Vec::len);
            let mut words = format!(
                "{} re-encrypted with key {}, {} unchanged",
                done["reencrypted"],
                output::text(&done, "key_id"),
                done["unchanged"]
            );
            if unreadable > 0 {
                words.push_str(&format!("; {unreadable} cannot be decrypted with any key of this server"));
            }
            let printed = View::message(done, words).print(&context.out)?;
            Ok(if unreadable > 0 { code::FAILED } else { printed })
        }
    }
}

/// Reads the value, without the line end that a terminal or an editor adds.
fn value(file: Option<&Path>) -> Result<String, CliError> {
    let unreadable = |what: String, error: std::io::Error| CliError::new(code::USAGE, what).why(error.to_string());
    let mut value = match file {
        Some(path) => std::fs::read_to_string(path)
            .map_err(|error| unreadable(format!("cannot read {}", path.display()), error))?,
        None => {
            if std::io::stdin().is_terminal() {
                crate::output::errln!("type the value, then Enter and Ctrl-D:");
            }
            let mut text = String::new();
            std::io::stdin()
                .read_to_string(&mut text)
                .map_err(|error| unreadable("cannot read standard input".into(), error))?;
            text
        }
    };
    if value.ends_with('\n') {
        value.pop();
        if value.ends_with('\r') {
            value.pop();
        }
    }
    if value.is_empty() {
        return Err(CliError::new(code::USAGE, "the value is empty")
            .why("the value is read from standard input, or from --file")
            .remedy("comeback secret put stripe < stripe.key"));
    }
    Ok(value)
}

async fn list(context: &Context) -> Result<View, CliError> {
    let found = SECRETS.list(context).await?;
    let now = context.now().await?;
    let mut table = Table::new(&["NAME", "PUT", "BY", "CREATED", "KEY"]);
    for it in output::items(&found) {
        table.rows.push(vec![
            output::text(it, "name").into(),
            context.out.time_cell(&it["updated_at"], now),
            output::text(it, "updated_by").into(),
            context.out.time_cell(&it["created_at"], now),
            output::text(it, "key_id").into(),
        ]);
    }
    Ok(View::table(found, table).hint_if_empty("no secrets; create one: comeback secret put NAME < FILE"))
}
