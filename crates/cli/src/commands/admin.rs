//! Numbers, loops and keys.

use comeback_core::Timestamp;
use serde_json::{Value, json};

use super::Context;
use crate::args::{KeyCommand, LoopCommand};
use crate::failure::{Failure, code};
use crate::output::{self, say};

pub async fn stats(context: &Context) -> Result<u8, Failure> {
    let stats = context.client.get("/api/v1/stats").await?;
    if context.json {
        output::json(&stats);
        return Ok(code::OK);
    }
    let rows: Vec<Vec<String>> = stats["by_state"]
        .as_object()
        .into_iter()
        .flatten()
        .map(|(state, count)| vec![output::state(&json!({"state": state})), count.to_string()])
        .collect();
    output::table(&["STATE", "TASKS"], &rows);
    eprintln!("{} open, {} in all", stats["open"], stats["total"]);
    Ok(code::OK)
}

pub async fn upcoming(context: &Context, within: String, bucket: String) -> Result<u8, Failure> {
    let query = [("within", within), ("bucket", bucket)];
    let coming = context.client.get_with("/api/v1/upcoming", &query).await?;
    if context.json {
        output::json(&coming);
        return Ok(code::OK);
    }
    let now = coming["now"].as_str().and_then(|text| Timestamp::parse_rfc3339(text).ok()).unwrap_or(Timestamp(0));
    let most =
        coming["buckets"].as_array().into_iter().flatten().filter_map(|it| it["count"].as_u64()).max().unwrap_or(1);
    let rows: Vec<Vec<String>> = coming["buckets"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|it| {
            let count = it["count"].as_u64().unwrap_or(0);
            let bar = "█".repeat(usize::try_from((count * 40).div_ceil(most.max(1))).unwrap_or(0));
            vec![output::relative(&it["at"], now), count.to_string(), bar]
        })
        .collect();
    output::table(&["FROM", "DUE", ""], &rows);
    eprintln!("{} due, {} overdue", coming["total"], coming["overdue"]);
    Ok(code::OK)
}

/// Healthy, or not: what scripts ask.
pub async fn status(context: &Context) -> Result<u8, Failure> {
    let stats = context.client.get("/api/v1/stats").await?;
    let loops = context.client.get("/api/v1/admin/loops").await?;
    let stuck = context.client.get("/api/v1/admin/tasks/stuck").await?;
    let count = |state: &str| stats["by_state"][state].as_u64().unwrap_or(0);
    let paused: Vec<&str> = loops["items"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(|it| it["paused"] == true)
        .map(|it| output::text(it, "name"))
        .collect();
    let stuck = stuck["items"].as_array().map_or(0, Vec::len);
    if context.json {
        output::json(&json!({"stats": stats, "paused_loops": paused, "stuck": stuck}));
    } else {
        say!(
            "{} running   {} pending   {} retrying   {} scheduled",
            count("running"),
            count("pending"),
            count("retry_pending"),
            count("waiting")
        );
        say!(
            "{} succeeded   {} dead   {} failed   {} paused",
            count("succeeded"),
            count("dead"),
            count("failed"),
            count("paused")
        );
        if !paused.is_empty() {
            say!("paused loops: {}", paused.join(", "));
        }
        if stuck > 0 {
            say!("{stuck} runs have lost their lease and wait to be reaped");
        }
    }
    let attention = count("dead") > 0 || !paused.is_empty() || stuck > 0;
    Ok(if attention { code::ATTENTION } else { code::OK })
}

pub async fn loops(context: &Context, command: LoopCommand) -> Result<u8, Failure> {
    let loops = match command {
        LoopCommand::List => context.client.get("/api/v1/admin/loops").await?,
        LoopCommand::Pause { name, duration, note } => {
            let mut body = json!({});
            if let Some(duration) = duration {
                body["duration"] = duration.into();
            }
            if let Some(note) = note {
                body["note"] = note.into();
            }
            context.client.post(&format!("/api/v1/admin/loops/{name}/pause"), &body).await?
        }
        LoopCommand::Resume { name } => {
            context.client.post(&format!("/api/v1/admin/loops/{name}/resume"), &json!({})).await?
        }
    };
    if context.json {
        output::json(&loops);
        return Ok(code::OK);
    }
    let now = context.now().await?;
    let rows: Vec<Vec<String>> = loops["items"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|it| {
            let paused = it["paused"] == true;
            let until = if it["resumes_at"].is_null() {
                "until resumed".into()
            } else {
                output::relative(&it["resumes_at"], now)
            };
            vec![
                output::text(it, "name").to_owned(),
                if paused { format!("⏸ paused, resumes {until}") } else { "▶ running".into() },
                output::text(it, "note").to_owned(),
            ]
        })
        .collect();
    output::table(&["LOOP", "STATE", "NOTE"], &rows);
    Ok(code::OK)
}

pub async fn keys(context: &Context, command: KeyCommand) -> Result<u8, Failure> {
    match command {
        KeyCommand::Create { role, name, expires_in, for_namespace, db } => {
            if let Some(db) = db {
                return create_offline(&db, &role, name, for_namespace).await;
            }
            let fields = [("name", name), ("expires_in", expires_in), ("namespace", for_namespace)];
            let mut body = json!({"role": role});
            for (field, value) in fields {
                if let Some(value) = value {
                    body[field] = value.into();
                }
            }
            show_new(context.json, &context.client.post("/api/v1/keys", &body).await?);
        }
        KeyCommand::List => {
            let keys = context.client.get("/api/v1/keys").await?;
            if context.json {
                output::json(&keys);
                return Ok(code::OK);
            }
            let rows: Vec<Vec<String>> = keys["items"]
                .as_array()
                .into_iter()
                .flatten()
                .map(|it| {
                    let state = if it["revoked_at"].is_null() { "live" } else { "revoked" };
                    let text = |name: &str| output::text(it, name).to_owned();
                    vec![text("id"), text("role"), text("namespace"), state.into(), text("name")]
                })
                .collect();
            output::table(&["ID", "ROLE", "NAMESPACE", "STATE", "NAME"], &rows);
        }
        KeyCommand::Revoke { id } => {
            context.client.delete(&format!("/api/v1/keys/{id}")).await?;
            say!("{id} is revoked");
        }
    }
    Ok(code::OK)
}

fn show_new(as_json: bool, key: &Value) {
    if as_json {
        output::json(key);
        return;
    }
    say!("{}", output::text(key, "key"));
    eprintln!(
        "role {}, namespace {}. This is the only time the key is shown.",
        output::text(key, "role"),
        output::text(key, "namespace")
    );
}

/// The first key, while no server has the file open.
async fn create_offline(
    db: &std::path::Path,
    role: &str,
    name: Option<String>,
    namespace: Option<String>,
) -> Result<u8, Failure> {
    use comeback_engine::store::{SqliteOptions, SqliteStore};
    use comeback_engine::{Clock, SystemClock};
    use comeback_server::auth::{Keys, NewKey, Role};
    let broken = |error: comeback_engine::store::StoreError| {
        Failure::new(code::FAILED, format!("{} cannot be used", db.display())).why(error.to_string())
    };
    let role = Role::from_word(role).ok_or_else(|| {
        Failure::new(code::USAGE, format!("`{role}` is no role"))
            .remedy("--role viewer, worker, submitter, operator or admin")
    })?;
    let store = SqliteStore::open(&SqliteOptions::file(db)).map_err(broken)?;
    let new = NewKey { name, role, namespace: namespace.unwrap_or_else(|| "*".into()), valid_for: None };
    let (_, secret) = Keys::default().create(&store, new, SystemClock::new().now()).await.map_err(broken)?;
    say!("{secret}");
    eprintln!("This is the only time the key is shown.");
    Ok(code::OK)
}
