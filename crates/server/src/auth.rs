//! Who may do what: keys, roles, and the namespace a request is about. Keys are kept as hashes; the secret is shown once.

use axum::http::{HeaderMap, header};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use comeback_core::transition::Act;
use comeback_core::{Audit, Did, Invalid, Millis, Timestamp};
use comeback_engine::store::{Store, StoreError};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use uuid::Builder;

use crate::App;
use crate::problem::Problem;
use crate::shared::Shared;

/// What a key may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    Viewer,
    Worker,
    Submitter,
    Operator,
    Admin,
}

impl Role {
    pub const ALL: &[Role] = &[Role::Viewer, Role::Worker, Role::Submitter, Role::Operator, Role::Admin];

    pub fn word(self) -> &'static str {
        match self {
            Role::Viewer => "viewer",
            Role::Worker => "worker",
            Role::Submitter => "submitter",
            Role::Operator => "operator",
            Role::Admin => "admin",
        }
    }

    pub fn from_word(word: &str) -> Option<Role> {
        Role::ALL.iter().copied().find(|role| role.word() == word)
    }

    pub fn may(self, need: Need) -> bool {
        match need {
            Need::Nothing => true,
            Need::Read => !matches!(self, Role::Worker),
            Need::Work => matches!(self, Role::Worker | Role::Admin),
            Need::Submit => matches!(self, Role::Submitter | Role::Operator | Role::Admin),
            Need::Operate => matches!(self, Role::Operator | Role::Admin),
            Need::Administer | Need::AdministerAll => self == Role::Admin,
        }
    }
}

/// What a route asks of its caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Need {
    /// Open to everybody: health, documents.
    Nothing,
    Read,
    Work,
    Submit,
    Operate,
    Administer,
    /// An admin of all namespaces: what is asked for concerns everybody.
    AdministerAll,
}

/// A key as it is kept.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Key {
    pub id: String,
    pub name: Option<String>,
    pub role: Role,
    /// `*` stands for all of them.
    pub namespace: String,
    hash: String,
    pub created_at: i64,
    pub expires_at: Option<i64>,
    pub revoked_at: Option<i64>,
}

impl Key {
    pub fn is_live(&self, now: Timestamp) -> bool {
        self.revoked_at.is_none() && self.expires_at.is_none_or(|at| at > now.0)
    }

    pub fn shown(&self) -> Value {
        let at = |at: Option<i64>| at.map(|at| Timestamp(at).to_rfc3339());
        json!({
            "id": self.id,
            "name": self.name,
            "role": self.role.word(),
            "namespace": self.namespace,
            "created_at": at(Some(self.created_at)),
            "expires_at": at(self.expires_at),
            "revoked_at": at(self.revoked_at),
        })
    }
}

/// A key as somebody asks for it.
pub struct NewKey {
    pub name: Option<String>,
    pub role: Role,
    pub namespace: String,
    pub valid_for: Option<Millis>,
}

/// Which namespace a key is for when nobody says: an admin looks after the house, everybody else works in a room of it.
pub fn default_namespace(role: Role) -> &'static str {
    if role == Role::Admin { EVERYWHERE } else { "default" }
}

/// A random one, or one that follows from who asks, for which namespace, and under which idempotency key.
pub fn key_id(asked: Option<(&str, &str, &str)>) -> Result<String, StoreError> {
    let mut id = [0_u8; 6];
    match asked {
        None => getrandom::fill(&mut id).map_err(no_randomness)?,
        Some((by, namespace, key)) => {
            id.copy_from_slice(&Sha256::digest(format!("{by}\0{namespace}\0{key}"))[..6]);
        }
    }
    Ok(id.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// What is written down about a key. One that is good for all namespaces concerns all of them.
fn entry(did: Did, key: &Key, act: &Act, now: Timestamp) -> Result<Audit, StoreError> {
    let mut random = [0_u8; 10];
    getrandom::fill(&mut random).map_err(no_randomness)?;
    let id = Builder::from_unix_timestamp_millis(u64::try_from(now.0).unwrap_or(0), &random).into_uuid();
    let entry = Audit::new(id, now, did, &key.id, act);
    Ok(if key.namespace == EVERYWHERE { entry } else { entry.within(&key.namespace) })
}

fn no_randomness(error: getrandom::Error) -> StoreError {
    StoreError::Unavailable(format!("no randomness: {error}"))
}

/// The namespace of a key that is good for all of them.
pub const EVERYWHERE: &str = "*";

/// Where keys are kept.
const META: &str = "api_keys";

/// All keys, as this instance knows them. Others are heard of within a second.
pub struct Keys {
    all: Shared<Vec<Key>>,
}

impl Default for Keys {
    fn default() -> Self {
        Keys { all: Shared::new(META) }
    }
}

impl Keys {
    pub async fn refresh(&self, store: &dyn Store) -> Result<(), StoreError> {
        self.all.refresh(store).await
    }

    pub fn all(&self) -> Vec<Key> {
        self.all.get()
    }

    /// Once there is a key, every request needs one.
    pub fn is_empty(&self) -> bool {
        self.all.look(Vec::is_empty)
    }

    /// The key and its secret, which nobody can show again.
    pub async fn create(
        &self,
        store: &dyn Store,
        new: NewKey,
        act: &Act,
        now: Timestamp,
    ) -> Result<(Key, String), StoreError> {
        self.create_as(store, key_id(None)?, new, act, now).await
    }

    /// A key of the same id is replaced: its secret was lost on the way to whoever asks again.
    pub async fn create_as(
        &self,
        store: &dyn Store,
        id: String,
        new: NewKey,
        act: &Act,
        now: Timestamp,
    ) -> Result<(Key, String), StoreError> {
        let mut secret = [0_u8; 32];
        getrandom::fill(&mut secret).map_err(no_randomness)?;
        let secret = URL_SAFE_NO_PAD.encode(secret).replace(['-', '_'], "x");
        let key = Key {
            hash: hash(&secret),
            name: new.name,
            role: new.role,
            namespace: new.namespace,
            created_at: now.0,
            expires_at: new.valid_for.map(|span| (now + span).0),
            revoked_at: None,
            id: id.clone(),
        };
        let put = |keys: &mut Vec<Key>| {
            keys.retain(|it| it.id != key.id);
            keys.push(key.clone());
        };
        let noted = entry(Did::KeyCreate, &key, act, now)?.changed(None, Some(key.shown()));
        self.all.change_noted(store, put, |()| Some(noted.clone())).await?;
        Ok((key, format!("cbk_{id}_{secret}")))
    }

    /// Whether there was such a key, among those that one may revoke.
    pub async fn revoke(
        &self,
        store: &dyn Store,
        id: &str,
        may: impl Fn(&Key) -> bool,
        act: &Act,
        now: Timestamp,
    ) -> Result<bool, StoreError> {
        let revoke = |keys: &mut Vec<Key>| {
            let key = keys.iter_mut().find(|key| key.id == id && may(key))?;
            let before = key.clone();
            key.revoked_at.get_or_insert(now.0);
            Some((before, key.clone()))
        };
        let noted = |revoked: &Option<(Key, Key)>| {
            let (before, after) = revoked.as_ref()?;
            let entry = entry(Did::KeyRevoke, after, act, now).ok()?;
            Some(entry.changed(Some(before.shown()), Some(after.shown())))
        };
        Ok(self.all.change_noted(store, revoke, noted).await?.is_some())
    }

    fn is_live(&self, id: &str, now: Timestamp) -> bool {
        self.all.look(|keys| keys.iter().any(|key| key.id == id && key.is_live(now)))
    }

    fn find(&self, token: &str, now: Timestamp) -> Option<Key> {
        let (id, secret) = token.strip_prefix("cbk_")?.split_once('_')?;
        let key = self.all.look(|keys| keys.iter().find(|key| key.id == id).cloned())?;
        let same = bool::from(hash(secret).as_bytes().ct_eq(key.hash.as_bytes()));
        (same && key.is_live(now)).then_some(key)
    }
}

fn hash(secret: &str) -> String {
    Sha256::digest(secret.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Who asks, and about which namespace.
#[derive(Clone, Debug, PartialEq)]
pub struct Caller {
    pub namespace: String,
    pub role: Role,
    /// The key's id or name; nothing when the server is open.
    pub key: Option<String>,
    /// Whether all namespaces are open to this caller, not only the one it asks about.
    pub everywhere: bool,
    /// What its request is called.
    pub request: Option<String>,
    id: Option<String>,
}

impl Caller {
    /// Somebody without a key.
    fn nobody(namespace: String, role: Role, everywhere: bool) -> Caller {
        Caller { namespace, role, key: None, everywhere, request: None, id: None }
    }

    /// Whether this caller would still be let in: long answers ask again and again.
    pub fn still_may(&self, app: &App) -> bool {
        match &self.id {
            Some(id) => app.keys.is_live(id, app.engine.now()),
            None => app.keys.is_empty(),
        }
    }

    /// Whether a key is this caller's to show and to revoke.
    pub fn governs(&self, key: &Key) -> bool {
        self.everywhere || key.namespace == self.namespace
    }

    /// Who to write down for an act: what the caller says, else its key.
    pub fn act(&self, by: Option<String>, note: Option<String>) -> Act {
        let by = by.or_else(|| self.key.clone());
        Act { by, note, key: self.key.clone(), request: self.request.clone(), operation: None }
    }
}

pub const NAMESPACE: &str = "comeback-namespace";

/// Who asks; refused when their key does not reach so far.
pub fn check(app: &App, need: Need, headers: &HeaderMap) -> Result<Caller, Problem> {
    let caller = identify(app, need, headers)?;
    let mut faults = Invalid::default();
    app.engine.config().limits.check_namespace(&caller.namespace, &mut faults);
    if let Some(fault) = faults.faults.first() {
        return Err(Invalid::one(NAMESPACE, &fault.message).into());
    }
    if !caller.role.may(need) {
        let detail = format!("this needs more than the role {}", caller.role.word());
        return Err(Problem::forbidden(detail));
    }
    if need == Need::AdministerAll && !caller.everywhere {
        return Err(Problem::forbidden("this concerns all namespaces: it needs an admin's key for `*`"));
    }
    Ok(caller)
}

fn identify(app: &App, need: Need, headers: &HeaderMap) -> Result<Caller, Problem> {
    let wanted = headers.get(NAMESPACE).map(|value| value.to_str().unwrap_or("").to_owned());
    if need == Need::Nothing {
        return Ok(Caller::nobody("default".into(), Role::Viewer, false));
    }
    if app.keys.is_empty() {
        refuse_strangers(headers)?;
        refuse_proxied(headers)?;
        return Ok(Caller::nobody(wanted.unwrap_or_else(|| "default".into()), Role::Admin, true));
    }
    let text = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let Some(token) = text.strip_prefix("Bearer ") else {
        return Err(Problem::unauthorized("send a key: `Authorization: Bearer cbk_…`"));
    };
    let Some(key) = app.keys.find(token.trim(), app.engine.now()) else {
        return Err(Problem::unauthorized("the key is unknown, expired or revoked"));
    };
    let namespace = match (key.namespace.as_str(), wanted) {
        (EVERYWHERE, wanted) => wanted.unwrap_or_else(|| "default".into()),
        (own, Some(wanted)) if wanted != own => {
            return Err(Problem::forbidden(format!("the key is for the namespace `{own}` only")));
        }
        (own, _) => own.to_owned(),
    };
    let everywhere = key.namespace == EVERYWHERE;
    let name = key.name.unwrap_or_else(|| key.id.clone());
    Ok(Caller { namespace, role: key.role, key: Some(name), everywhere, request: None, id: Some(key.id) })
}

/// What browsers say of a page that asks: where it is from, or that it is not from here.
pub fn is_from_another_site(headers: &HeaderMap) -> bool {
    let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or("").to_ascii_lowercase());
    if matches!(text("sec-fetch-site").as_deref(), Some("cross-site" | "same-site")) {
        return true;
    }
    let Some(origin) = text("origin") else { return false };
    let (from, port) = match origin.split_once("://") {
        Some(("http", host)) => (host, ":80"),
        Some(("https", host)) => (host, ":443"),
        _ => return true,
    };
    let bare = |host: &str| host.strip_suffix(port).unwrap_or(host).to_owned();
    text("host").is_none_or(|host| bare(&host) != bare(from))
}

/// A server without keys is for this machine only: a page in a browser must not reach it under another name.
fn refuse_strangers(headers: &HeaderMap) -> Result<(), Problem> {
    let host = headers.get(header::HOST).and_then(|value| value.to_str().ok()).unwrap_or("localhost");
    let name = host
        .rsplit_once(':')
        .map_or(host, |(name, port)| if port.bytes().all(|byte| byte.is_ascii_digit()) { name } else { host });
    match name.to_ascii_lowercase().as_str() {
        "localhost" | "127.0.0.1" | "[::1]" => Ok(()),
        _ => Err(Problem::forbidden(format!("without keys this server answers to localhost, not to `{name}`"))),
    }
}

/// A server without keys answers nobody behind a proxy: the proxy may have come from anywhere, and rewritten the host.
fn refuse_proxied(headers: &HeaderMap) -> Result<(), Problem> {
    let is_proxys = |name: &str| name == "forwarded" || name == "via" || name.starts_with("x-forwarded-");
    match headers.keys().find(|name| is_proxys(name.as_str())) {
        None => Ok(()),
        Some(name) => Err(Problem::forbidden(format!(
            "without keys this server does not answer through a proxy (`{name}` was sent); make a key first: comeback key create --role admin"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_role_may_what_it_should() {
        let table = [
            (Role::Viewer, [true, true, false, false, false, false, false]),
            (Role::Worker, [true, false, true, false, false, false, false]),
            (Role::Submitter, [true, true, false, true, false, false, false]),
            (Role::Operator, [true, true, false, true, true, false, false]),
            (Role::Admin, [true, true, true, true, true, true, true]),
        ];
        let needs =
            [Need::Nothing, Need::Read, Need::Work, Need::Submit, Need::Operate, Need::Administer, Need::AdministerAll];
        for (role, expected) in table {
            assert_eq!(needs.map(|need| role.may(need)), expected, "{role:?}");
        }
    }

    #[test]
    fn a_page_of_another_site_is_told_apart() {
        let is_strange = |pairs: &[(&'static str, &str)]| {
            let of = |(name, value): &(&'static str, &str)| {
                (axum::http::HeaderName::from_static(name), value.parse().expect("a header"))
            };
            is_from_another_site(&pairs.iter().map(of).collect())
        };
        for own in [
            &[][..],
            &[("host", "localhost:7330")],
            &[("host", "localhost:7330"), ("origin", "http://localhost:7330")],
            &[("host", "Jobs.example"), ("origin", "https://jobs.example:443")],
            &[("host", "localhost:7330"), ("sec-fetch-site", "same-origin")],
            &[("host", "localhost:7330"), ("sec-fetch-site", "none")],
        ] {
            assert!(!is_strange(own), "{own:?}");
        }
        for strange in [
            &[("host", "localhost:7330"), ("origin", "https://evil.example")][..],
            &[("host", "localhost:7330"), ("origin", "http://localhost:3000")],
            &[("host", "localhost:7330"), ("origin", "null")],
            &[("host", "localhost:7330"), ("origin", "")],
            &[("host", "localhost:7330"), ("sec-fetch-site", "cross-site")],
            &[("host", "localhost:7330"), ("sec-fetch-site", "same-site")],
            &[("origin", "https://evil.example")],
        ] {
            assert!(is_strange(strange), "{strange:?}");
        }
    }

    #[test]
    fn only_this_machine_is_answered_without_keys() {
        let with = |host: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::HOST, host.parse().expect("a header"));
            refuse_strangers(&headers).is_ok()
        };
        for host in ["localhost:7330", "127.0.0.1:7330", "[::1]:7330", "LOCALHOST", "[::1]"] {
            assert!(with(host), "{host}");
        }
        for host in ["evil.example", "evil.example:7330", "localhost.evil.example", "10.0.0.1:7330"] {
            assert!(!with(host), "{host}");
        }
    }
}
