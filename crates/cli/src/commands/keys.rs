//! API keys, through the server or directly in the database.

use std::net::IpAddr;

use comeback_core::transition::Actor;
use comeback_core::{Millis, NamePatterns};
use comeback_engine::store::Place;
use comeback_engine::{Clock, SystemClock};
use comeback_server::auth::{KeyLimits, KeyResult, Keys, NewKey, Role, default_namespace, key_id};
use ipnet::IpNet;
use serde_json::{Value, json};

use super::resource::{Resource, object, pick};
use super::{Context, broken};
use crate::args::KeyCommand;
use crate::error::{CliError, code};
use crate::output::{self, Output, Table, View, outln};

const KEYS: Resource = Resource { noun: "key", collection: "/api/v1/keys" };

pub async fn run(context: impl Fn() -> Result<Context, CliError>, command: KeyCommand) -> Result<u8, CliError> {
    match command {
        KeyCommand::Create { role, name, expires_in, queues, kinds, addresses, for_namespace, db: Some(db) } => {
            let valid_for = expires_in.as_deref().map(Millis::parse).transpose();
            let valid_for = valid_for.map_err(|error| CliError::new(code::USAGE, error.to_string()))?;
            let terms = terms(queues, kinds, &addresses)?;
            create_offline(&Place::named(&db), &role, name, for_namespace, valid_for, terms).await
        }
        KeyCommand::Create { role, name, expires_in, queues, kinds, addresses, for_namespace, db: None } => {
            let context = context()?;
            let list = |values: Vec<String>| Some(values).filter(|values| !values.is_empty()).map(Value::from);
            let body = object([
                ("role", Some(role.into())),
                ("queues", list(queues)),
                ("kinds", list(kinds)),
                ("allowed_addresses", list(addresses)),
                ("name", name.map(Value::from)),
                ("expires_in", expires_in.map(Value::from)),
                ("namespace", for_namespace.map(Value::from)),
            ]);
            show_new(&context.out, &context.client.post(KEYS.collection, &body).await?);
            Ok(code::OK)
        }
        KeyCommand::List => list(&context()?).await,
        KeyCommand::Rotate { id, overlap, expires_in } => {
            let context = context()?;
            let id = resolve(&context, &id).await?;
            let body = object([("overlap", Some(json!(overlap))), ("expires_in", expires_in.map(Value::from))]);
            show_new(&context.out, &KEYS.act(&context, &id, "rotate", &body).await?);
            if !context.out.is_json() {
                output::errln!("{id} stays valid for {overlap}, or until it expires.");
            }
            Ok(code::OK)
        }
        KeyCommand::Revoke { id } => {
            let context = context()?;
            let id = resolve(&context, &id).await?;
            KEYS.delete(&context, &id).await?;
            outln!("key {id} revoked");
            Ok(code::OK)
        }
    }
}

/// The id that `text` is, or starts.
async fn resolve(context: &Context, text: &str) -> Result<String, CliError> {
    let keys = context.client.get(KEYS.collection).await?;
    let found = output::items(&keys).map(|key| output::text(key, "id")).filter(|id| id.starts_with(text));
    pick(KEYS.noun, text, if text.is_empty() { Vec::new() } else { found.collect() })
}

async fn list(context: &Context) -> Result<u8, CliError> {
    let keys = context.client.get(KEYS.collection).await?;
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
    let is_ending = |it: &&Value| it["expires_soon"] == true && it["replaced_by"].is_null();
    let ending = output::items(&keys).filter(is_ending).count() as u64;
    let view = View::table(keys, table);
    if ending > 0 {
        let hint = format!("{} within 14 days; replace them: comeback key rotate ID", expire(ending));
        return view.with_hint(hint).print(&context.out);
    }
    let hint = "no keys: anyone on this host is admin; create one: comeback key create --role admin";
    view.hint_if_empty(hint).print(&context.out)
}

/// `1 key expires`, `2 keys expire`.
pub fn expire(count: u64) -> String {
    format!("{} {}", output::plural(count, "key"), if count == 1 { "expires" } else { "expire" })
}

/// The restrictions of a new key.
fn terms(queues: Vec<String>, kinds: Vec<String>, addresses: &[String]) -> Result<KeyLimits, CliError> {
    let read = |text: &String| {
        let network = text.parse::<IpNet>().ok().or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from));
        network
            .ok_or_else(|| CliError::new(code::USAGE, format!("invalid network `{text}`")).remedy("--from 10.0.0.0/8"))
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
    outln!("{}", output::text(key, "key"));
    output::errln!(
        "role {}, namespace {}. This is the only time the key is shown.",
        output::text(key, "role"),
        output::text(key, "namespace")
    );
}

/// Creates a key without a server: the first one, before a server may listen on a public address.
async fn create_offline(
    place: &Place,
    role: &str,
    name: Option<String>,
    namespace: Option<String>,
    valid_for: Option<Millis>,
    terms: KeyLimits,
) -> Result<u8, CliError> {
    let role = Role::from_word(role).ok_or_else(|| {
        CliError::new(code::USAGE, format!("unknown role `{role}`"))
            .remedy("--role viewer, worker, submitter, operator or admin")
    })?;
    if terms.is_scoped() && !matches!(role, Role::Worker | Role::Submitter) {
        let why = "only worker and submitter keys can be restricted to queues or kinds";
        return Err(CliError::new(code::USAGE, why).remedy("--role worker, or --role submitter"));
    }
    let store = place.open().await.map_err(|error| broken(place, &error))?;
    let namespace = namespace.unwrap_or_else(|| default_namespace(role).into());
    let new = NewKey { name, role, namespace: namespace.clone(), valid_for };
    let by = Actor { by: Some("comeback key create".into()), ..Actor::default() };
    let (id, now) = (key_id(None).map_err(|error| broken(place, &error))?, SystemClock::new().now());
    let made = Keys::default().create_as(&*store, id, new, terms, u64::MAX, &by, now).await;
    let KeyResult::Key(_, secret) = made.map_err(|error| broken(place, &error))? else {
        let why = "an active key of this namespace, or of `*`, has this name already";
        return Err(CliError::new(code::USAGE, why).remedy("choose another --name"));
    };
    outln!("{secret}");
    crate::output::errln!("role {}, namespace {namespace}. This is the only time the key is shown.", role.word());
    Ok(code::OK)
}
