//! API keys: by the server, or on the database itself while there is no server to ask.

use comeback_core::Millis;
use comeback_core::transition::Act;
use comeback_engine::store::Place;
use comeback_engine::{Clock, SystemClock};
use comeback_server::auth::{Keys, NewKey, Role, default_namespace};
use serde_json::{Value, json};

use super::{Context, broken};
use crate::args::KeyCommand;
use crate::failure::{Failure, code};
use crate::output::{self, Output, Table, View, say};

pub async fn run(context: impl Fn() -> Result<Context, Failure>, command: KeyCommand) -> Result<u8, Failure> {
    match command {
        KeyCommand::Create { role, name, expires_in, for_namespace, db: Some(db) } => {
            let valid_for = expires_in.as_deref().map(Millis::parse).transpose();
            let valid_for = valid_for.map_err(|error| Failure::new(code::USAGE, error.to_string()))?;
            create_offline(&Place::named(&db), &role, name, for_namespace, valid_for).await
        }
        KeyCommand::Create { role, name, expires_in, for_namespace, db: None } => {
            let context = context()?;
            let fields = [("name", name), ("expires_in", expires_in), ("namespace", for_namespace)];
            let mut body = json!({"role": role});
            for (field, value) in fields {
                if let Some(value) = value {
                    body[field] = value.into();
                }
            }
            show_new(&context.out, &context.client.post("/api/v1/keys", &body).await?);
            Ok(code::OK)
        }
        KeyCommand::List => list(&context()?).await,
        KeyCommand::Revoke { id } => {
            let context = context()?;
            let id = resolve(&context, &id).await?;
            context.client.delete(&format!("/api/v1/keys/{id}")).await?;
            say!("{id} is revoked");
            Ok(code::OK)
        }
    }
}

/// A whole id, or the beginning of one.
async fn resolve(context: &Context, text: &str) -> Result<String, Failure> {
    let keys = context.client.get("/api/v1/keys").await?;
    let ids: Vec<&str> = output::items(&keys).map(|key| output::text(key, "id")).collect();
    let found: Vec<&&str> = ids.iter().filter(|id| id.starts_with(text) && !text.is_empty()).collect();
    match found.as_slice() {
        [one] => Ok((**one).to_owned()),
        [] => Err(Failure::new(code::NOT_FOUND, format!("there is no key `{text}`")).remedy("comeback key list")),
        _ if ids.contains(&text) => Ok(text.to_owned()),
        many => {
            Err(Failure::new(code::USAGE, format!("`{text}` stands for {} keys", many.len()))
                .remedy("say more of the id"))
        }
    }
}

async fn list(context: &Context) -> Result<u8, Failure> {
    let keys = context.client.get("/api/v1/keys").await?;
    let now = context.now().await?;
    let mut table = Table::new(&["ID", "ROLE", "NAMESPACE", "STATE", "CREATED", "EXPIRES", "NAME"]);
    for it in output::items(&keys) {
        let expired = output::instant(&it["expires_at"]).is_some_and(|at| at <= now);
        let state = match (it["revoked_at"].is_null(), expired) {
            (false, _) => "revoked",
            (true, true) => "expired",
            (true, false) => "live",
        };
        let text = |name: &str| output::text(it, name).into();
        let (created, expires) =
            (context.out.time_cell(&it["created_at"], now), context.out.time_cell(&it["expires_at"], now));
        table.rows.push(vec![
            text("id"),
            text("role"),
            text("namespace"),
            state.into(),
            created,
            expires,
            text("name"),
        ]);
    }
    let empty = table.rows.is_empty();
    let view = View::table(keys, table);
    let hint = "no keys: everybody on this machine may do everything; comeback key create --role admin";
    if empty { view.with_hint(hint).print(&context.out) } else { view.print(&context.out) }
}

fn show_new(out: &Output, key: &Value) {
    if out.is_json() {
        out.json(key);
        return;
    }
    say!("{}", output::text(key, "key"));
    crate::output::note!(
        "role {}, namespace {}. This is the only time the key is shown.",
        output::text(key, "role"),
        output::text(key, "namespace")
    );
}

/// The first key, before a server may listen to others.
async fn create_offline(
    place: &Place,
    role: &str,
    name: Option<String>,
    namespace: Option<String>,
    valid_for: Option<Millis>,
) -> Result<u8, Failure> {
    let role = Role::from_word(role).ok_or_else(|| {
        Failure::new(code::USAGE, format!("`{role}` is no role"))
            .remedy("--role viewer, worker, submitter, operator or admin")
    })?;
    let store = place.open().await.map_err(|error| broken(place, &error))?;
    let namespace = namespace.unwrap_or_else(|| default_namespace(role).into());
    let new = NewKey { name, role, namespace: namespace.clone(), valid_for };
    let by = Act { by: Some("comeback key create".into()), ..Act::default() };
    let made = Keys::default().create(&*store, new, &by, SystemClock::new().now()).await;
    let (_, secret) = made.map_err(|error| broken(place, &error))?;
    say!("{secret}");
    crate::output::note!("role {}, namespace {namespace}. This is the only time the key is shown.", role.word());
    Ok(code::OK)
}
