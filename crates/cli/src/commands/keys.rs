//! API keys: by the server, or on the database itself while there is no server to ask.

use std::net::IpAddr;

use comeback_core::transition::Act;
use comeback_core::{Millis, NamePatterns};
use comeback_engine::store::Place;
use comeback_engine::{Clock, SystemClock};
use comeback_server::auth::{KeyLimits, KeyResult, Keys, NewKey, Role, default_namespace, key_id};
use ipnet::IpNet;
use serde_json::{Value, json};

use super::{Context, broken};
use crate::args::KeyCommand;
use crate::failure::{Failure, code};
use crate::output::{self, Output, Table, View, say};

pub async fn run(context: impl Fn() -> Result<Context, Failure>, command: KeyCommand) -> Result<u8, Failure> {
    match command {
        KeyCommand::Create { role, name, expires_in, queues, kinds, addresses, for_namespace, db: Some(db) } => {
            let valid_for = expires_in.as_deref().map(Millis::parse).transpose();
            let valid_for = valid_for.map_err(|error| Failure::new(code::USAGE, error.to_string()))?;
            let terms = terms(queues, kinds, &addresses)?;
            create_offline(&Place::named(&db), &role, name, for_namespace, valid_for, terms).await
        }
        KeyCommand::Create { role, name, expires_in, queues, kinds, addresses, for_namespace, db: None } => {
            let context = context()?;
            let fields = [("name", name), ("expires_in", expires_in), ("namespace", for_namespace)];
            let mut body = json!({"role": role});
            for (field, values) in [("queues", queues), ("kinds", kinds), ("allowed_addresses", addresses)] {
                if !values.is_empty() {
                    body[field] = values.into();
                }
            }
            for (field, value) in fields {
                if let Some(value) = value {
                    body[field] = value.into();
                }
            }
            show_new(&context.out, &context.client.post("/api/v1/keys", &body).await?);
            Ok(code::OK)
        }
        KeyCommand::List => list(&context()?).await,
        KeyCommand::Rotate { id, overlap, expires_in } => {
            let context = context()?;
            let id = resolve(&context, &id).await?;
            let mut body = json!({"overlap": overlap});
            if let Some(span) = expires_in {
                body["expires_in"] = span.into();
            }
            show_new(&context.out, &context.client.post(&format!("/api/v1/keys/{id}/rotate"), &body).await?);
            if !context.out.is_json() {
                output::aside!("{id} stays good for {overlap}, or until it expires.");
            }
            Ok(code::OK)
        }
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
    let is_ending = |it: &&Value| it["expires_soon"] == true && it["replaced_by"].is_null();
    let ending = output::items(&keys).filter(is_ending).count() as u64;
    let view = View::table(keys, table);
    if ending > 0 {
        let hint = format!("{} within 14 days: comeback key rotate ID", ends(ending));
        return view.with_hint(hint).print(&context.out);
    }
    let hint = "no keys: everybody on this machine may do everything; comeback key create --role admin";
    if empty { view.with_hint(hint).print(&context.out) } else { view.print(&context.out) }
}

/// How many keys end.
pub fn ends(count: u64) -> String {
    format!("{} {}", output::plural(count, "key"), if count == 1 { "ends" } else { "end" })
}

/// What a key is limited to.
fn terms(queues: Vec<String>, kinds: Vec<String>, addresses: &[String]) -> Result<KeyLimits, Failure> {
    let read = |text: &String| {
        let network = text.parse::<IpNet>().ok().or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from));
        network.ok_or_else(|| Failure::new(code::USAGE, format!("`{text}` is no network")).remedy("--from 10.0.0.0/8"))
    };
    let allowed_addresses = addresses.iter().map(read).collect::<Result<_, _>>()?;
    Ok(KeyLimits {
        queues: NamePatterns::new(queues),
        kinds: NamePatterns::new(kinds),
        allowed_addresses,
        replaces: None,
    })
}

fn show_new(out: &Output, key: &Value) {
    if out.is_json() {
        out.json(key);
        return;
    }
    say!("{}", output::text(key, "key"));
    output::aside!(
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
    terms: KeyLimits,
) -> Result<u8, Failure> {
    let role = Role::from_word(role).ok_or_else(|| {
        Failure::new(code::USAGE, format!("`{role}` is no role"))
            .remedy("--role viewer, worker, submitter, operator or admin")
    })?;
    if terms.is_scoped() && !matches!(role, Role::Worker | Role::Submitter) {
        let why = "only the keys of workers and submitters can be limited to queues or kinds";
        return Err(Failure::new(code::USAGE, why).remedy("--role worker, or --role submitter"));
    }
    let store = place.open().await.map_err(|error| broken(place, &error))?;
    let namespace = namespace.unwrap_or_else(|| default_namespace(role).into());
    let new = NewKey { name, role, namespace: namespace.clone(), valid_for };
    let by = Act { by: Some("comeback key create".into()), ..Act::default() };
    let (id, now) = (key_id(None).map_err(|error| broken(place, &error))?, SystemClock::new().now());
    let made = Keys::default().create_as(&*store, id, new, terms, u64::MAX, &by, now).await;
    let KeyResult::Key(_, secret) = made.map_err(|error| broken(place, &error))? else {
        let why = "an active key of this namespace has this name, or a key for `*` has it";
        return Err(Failure::new(code::USAGE, why).remedy("choose another --name"));
    };
    say!("{secret}");
    crate::output::aside!("role {}, namespace {namespace}. This is the only time the key is shown.", role.word());
    Ok(code::OK)
}
