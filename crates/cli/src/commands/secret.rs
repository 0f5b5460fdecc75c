//! Named secrets. A value comes from standard input or a file, never from the command line, and is never shown.

use std::io::{IsTerminal, Read};
use std::path::Path;

use serde_json::json;

use super::{Context, escaped, unknown};
use crate::args::SecretCommand;
use crate::failure::{Failure, code};
use crate::output::{self, Table, View};
use crate::watch;

const ALL: &str = "/api/v1/secrets";

fn at(name: &str) -> String {
    format!("{ALL}/{}", escaped(name))
}

pub async fn run(context: &Context, command: SecretCommand) -> Result<u8, Failure> {
    let client = &context.client;
    match command {
        SecretCommand::Put { name, file } => {
            let value = value(file.as_deref())?;
            let put = client.put(&at(&name), &json!({"value": value})).await?;
            let words = format!("{name} is put; use it as {{\"secret\": \"{name}\"}}");
            View::said(put, words).print(&context.out)
        }
        SecretCommand::List { watch } => watch::show(&context.out, &watch, || list(context)).await,
        SecretCommand::Get { name } => {
            let it = client.get(&at(&name)).await.map_err(|error| unknown("secret", &name, error))?;
            let now = context.now().await?;
            let put = output::instant(&it["updated_at"]).map(|at| context.out.at(at, now)).unwrap_or_default();
            let by = it["updated_by"].as_str().map(|by| format!(" by {by}")).unwrap_or_default();
            let words = format!("{name}  put {put}{by}, encrypted with the key {}", output::text(&it, "key_id"));
            View::said(it, words).print(&context.out)
        }
        SecretCommand::Delete { name } => {
            let gone = client.delete(&at(&name)).await.map_err(|error| unknown("secret", &name, error))?;
            View::said(gone, format!("{name} is deleted")).print(&context.out)
        }
        SecretCommand::RotateKey => {
            let done = client.post(&format!("{ALL}/reencrypt"), &json!({})).await?;
            let unreadable = done["unreadable"].as_array().map_or(0, Vec::len);
            let mut words = format!(
                "{} encrypted anew with the key {}, {} were already",
                done["reencrypted"],
                output::text(&done, "key_id"),
                done["unchanged"]
            );
            if unreadable > 0 {
                words.push_str(&format!("; {unreadable} cannot be read with any key of this server"));
            }
            let said = View::said(done, words).print(&context.out)?;
            Ok(if unreadable > 0 { code::FAILED } else { said })
        }
    }
}

/// One line end at the end is the terminal's or the editor's, and no part of the value.
fn value(file: Option<&Path>) -> Result<String, Failure> {
    let wrong = |what: String, error: std::io::Error| Failure::new(code::USAGE, what).why(error.to_string());
    let mut value = match file {
        Some(path) => {
            std::fs::read_to_string(path).map_err(|error| wrong(format!("{} cannot be read", path.display()), error))?
        }
        None => {
            if std::io::stdin().is_terminal() {
                crate::output::aside!("type the value, then Enter and Ctrl-D:");
            }
            let mut text = String::new();
            std::io::stdin()
                .read_to_string(&mut text)
                .map_err(|error| wrong("standard input cannot be read".into(), error))?;
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
        return Err(Failure::new(code::USAGE, "the value is empty")
            .why("a value is read from standard input, or from --file")
            .remedy("comeback secret put stripe < stripe.key"));
    }
    Ok(value)
}

async fn list(context: &Context) -> Result<View, Failure> {
    let found = context.client.get_with(ALL, &[("limit", "500".into())]).await?;
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
    let empty = table.rows.is_empty();
    let view = View::table(found, table);
    Ok(if empty { view.with_hint("there are no secrets: comeback secret put NAME < FILE") } else { view })
}
