//! API keys: one row each, cached by every instance. Secrets are stored as hashes and shown once.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use comeback_core::transition::Actor;
use comeback_core::{Audit, AuditAction, Millis, NamePatterns, Timestamp};
use comeback_engine::store::{ApiKey, ChangeNumber, KeyPut, Store, StoreError};
use ipnet::IpNet;
use parking_lot::RwLock;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use uuid::Builder;

use crate::auth::Role;

/// Namespace of a key for all namespaces.
pub const EVERYWHERE: &str = "*";

/// Keys that expire within this time cause a warning.
pub const ENDS_SOON: Millis = Millis::from_days(14);

/// Limits of a key below its role.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct KeyLimits {
    /// The queues it may lease from or submit to; empty means all.
    pub queues: NamePatterns,
    /// The kinds it may lease or submit; empty means all.
    pub kinds: NamePatterns,
    /// The networks it may be used from; empty means all.
    #[serde(with = "networks")]
    pub allowed_addresses: Vec<IpNet>,
    /// Id of the key that this one replaces.
    pub replaces: Option<String>,
}

impl KeyLimits {
    /// Whether the key is limited to queues or kinds.
    pub fn is_scoped(&self) -> bool {
        !self.queues.is_empty() || !self.kinds.is_empty()
    }

    /// Whether the key may be used from an address. An unknown address is refused if the key is limited to networks.
    pub fn allows_address(&self, address: Option<IpAddr>) -> bool {
        let allowed = &self.allowed_addresses;
        allowed.is_empty() || address.is_some_and(|address| allowed.iter().any(|network| network.contains(&address)))
    }
}

/// Serializes networks as strings.
mod networks {
    use ipnet::IpNet;
    use serde::{Deserialize, Deserializer, Serializer};

    /// Writes networks as strings.
    pub fn serialize<S: Serializer>(networks: &[IpNet], to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(networks.iter().map(ToString::to_string))
    }

    /// Parses networks from strings.
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<IpNet>, D::Error> {
        let texts = Vec::<String>::deserialize(from)?;
        texts.iter().map(|text| text.parse().map_err(serde::de::Error::custom)).collect()
    }
}

/// An API key, as cached by this instance.
#[derive(Clone, Debug, PartialEq)]
pub struct Key {
    pub id: String,
    pub name: Option<String>,
    pub role: Role,
    /// `*` means all namespaces.
    pub namespace: String,
    hash: String,
    pub created_at: i64,
    pub expires_at: Option<i64>,
    pub revoked_at: Option<i64>,
    /// Id of the key that replaced this one by a rotation.
    pub replaced_by: Option<String>,
    pub terms: Arc<KeyLimits>,
}

impl Key {
    /// Whether the key is neither revoked nor expired.
    pub fn is_live(&self, now: Timestamp) -> bool {
        self.revoked_at.is_none() && self.expires_at.is_none_or(|at| at > now.0)
    }

    /// Whether the key is valid and expires within two weeks.
    pub fn ends_soon(&self, now: Timestamp) -> bool {
        self.is_live(now) && self.expires_at.is_some_and(|at| at <= (now + ENDS_SOON).0)
    }

    /// The key as JSON, without its secret.
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
            "queues": self.terms.queues,
            "kinds": self.terms.kinds,
            "allowed_addresses": self.terms.allowed_addresses.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "replaces": self.terms.replaces,
            "replaced_by": self.replaced_by,
        })
    }

    /// The key as JSON, with `expires_soon`.
    pub fn shown_at(&self, now: Timestamp) -> Value {
        let mut shown = self.shown();
        shown["expires_soon"] = self.ends_soon(now).into();
        shown
    }

    fn read(row: ApiKey) -> Result<Key, StoreError> {
        let broken = |what: String| StoreError::Corrupt(format!("api_key {}: {what}", row.id));
        let role = Role::from_word(&row.role).ok_or_else(|| broken(format!("the role {}", row.role)))?;
        let terms = serde_json::from_str(&row.terms).map_err(|error| broken(error.to_string()))?;
        Ok(Key {
            role,
            terms: Arc::new(terms),
            created_at: row.created_at.0,
            expires_at: row.expires_at.map(|at| at.0),
            revoked_at: row.revoked_at.map(|at| at.0),
            id: row.id,
            name: row.name,
            namespace: row.namespace,
            hash: row.hash,
            replaced_by: row.replaced_by,
        })
    }

    fn row(&self) -> Result<ApiKey, StoreError> {
        Ok(ApiKey {
            id: self.id.clone(),
            namespace: self.namespace.clone(),
            name: self.name.clone(),
            role: self.role.word().into(),
            hash: self.hash.clone(),
            terms: serde_json::to_string(&*self.terms).map_err(|error| StoreError::Refused(error.to_string()))?,
            created_at: Timestamp(self.created_at),
            expires_at: self.expires_at.map(Timestamp),
            revoked_at: self.revoked_at.map(Timestamp),
            replaced_by: self.replaced_by.clone(),
        })
    }
}

/// Parameters of a new key.
pub struct NewKey {
    pub name: Option<String>,
    pub role: Role,
    pub namespace: String,
    pub valid_for: Option<Millis>,
}

/// Default namespace of a new key: `*` for admins, `default` for other roles.
pub fn default_namespace(role: Role) -> &'static str {
    if role == Role::Admin { EVERYWHERE } else { "default" }
}

/// A random id of 128 bits, or one derived from the actor, the namespace and the idempotency key.
pub fn key_id(asked: Option<(&str, &str, &str)>) -> Result<String, StoreError> {
    let mut id = [0_u8; 16];
    match asked {
        None => getrandom::fill(&mut id).map_err(no_randomness)?,
        Some((by, namespace, key)) => {
            id.copy_from_slice(&Sha256::digest(format!("{by}\0{namespace}\0{key}"))[..16]);
        }
    }
    Ok(hex(&id))
}

/// Length of ids in older versions: a prefix of today's ids.
const OLD_ID: usize = 12;
const ID: usize = 32;

/// Whether a text has the form of a key id, current or old. Names must not: the audit log shows keys without a name by
/// their id.
pub fn looks_like_id(text: &str) -> bool {
    matches!(text.len(), OLD_ID | ID) && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Bytes as lower-case hex digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Audit entry about a key. The entry of a key for all namespaces belongs to no single one.
fn entry(did: AuditAction, key: &Key, act: &Actor, now: Timestamp) -> Result<Audit, StoreError> {
    let mut random = [0_u8; 10];
    getrandom::fill(&mut random).map_err(no_randomness)?;
    let id = Builder::from_unix_timestamp_millis(u64::try_from(now.0).unwrap_or(0), &random).into_uuid();
    let entry = Audit::new(id, now, did, &key.id, act);
    Ok(if key.namespace == EVERYWHERE { entry } else { entry.within(&key.namespace) })
}

fn no_randomness(error: getrandom::Error) -> StoreError {
    StoreError::Unavailable(format!("no randomness: {error}"))
}

fn hash(secret: &str) -> String {
    hex(&Sha256::digest(secret.as_bytes()))
}

/// A new secret and its hash.
fn secret() -> Result<(String, String), StoreError> {
    let mut secret = [0_u8; 32];
    getrandom::fill(&mut secret).map_err(no_randomness)?;
    let secret = URL_SAFE_NO_PAD.encode(secret).replace(['-', '_'], "x");
    let hash = hash(&secret);
    Ok((secret, hash))
}

/// Result of creating or rotating a key.
pub enum KeyResult {
    /// The key and its secret, which cannot be shown again.
    Key(Box<Key>, String),
    /// The same request created this key before; its secret was shown then.
    Exists(String),
    NameTaken,
    /// The key to rotate is expired, revoked or already rotated.
    NotActive,
}

/// This instance's cache of all keys, refreshed within a second.
#[derive(Default)]
pub struct Keys {
    known: RwLock<KeyCache>,
    /// Serializes refreshes: an older read must not replace a newer one.
    reading: tokio::sync::Mutex<()>,
    /// Requests refused because their key may not be used from their address.
    pub(crate) refused_addresses: AtomicU64,
}

#[derive(Default)]
struct KeyCache {
    /// Number of the last change that was read.
    number: i64,
    /// `None` if the row cannot be decoded: the key is not valid, but the server counts as having keys.
    keys: HashMap<String, Option<Arc<Key>>>,
}

impl Keys {
    /// Reads the keys changed since the last read.
    pub async fn refresh(&self, store: &dyn Store) -> Result<(), StoreError> {
        let number = store.change_numbers().await?.keys;
        self.follow(store, number).await
    }

    /// Reads the keys changed since the last read.
    pub async fn follow(&self, store: &dyn Store, number: ChangeNumber) -> Result<(), StoreError> {
        if self.known.read().number == number.last {
            return Ok(());
        }
        let _reading = self.reading.lock().await;
        let known = self.known.read().number;
        if known == number.last {
            return Ok(());
        }
        // A smaller number means that the database was restored.
        let whole = known < number.removed || known > number.last;
        let rows = store.api_keys(if whole { 0 } else { known }).await?;
        let mut known = self.known.write();
        if whole {
            known.keys.clear();
        }
        for row in rows {
            let id = row.id.clone();
            let key = Key::read(row).map_err(|error| tracing::error!(%error, "cannot decode API key")).ok();
            known.keys.insert(id, key.map(Arc::new));
        }
        known.number = number.last;
        Ok(())
    }

    /// All keys, oldest first.
    pub fn all(&self) -> Vec<Key> {
        let mut all: Vec<Key> = self.known.read().keys.values().flatten().map(|key| (**key).clone()).collect();
        all.sort_by(|a, b| (a.created_at, &a.id).cmp(&(b.created_at, &b.id)));
        all
    }

    /// Reads the keys from the store, oldest first; of one namespace, or all.
    pub async fn stored(&self, store: &dyn Store, namespace: Option<&str>) -> Result<Vec<Key>, StoreError> {
        store.list_keys(namespace).await?.into_iter().map(Key::read).collect()
    }

    /// Whether there is no key. With the first key, every request needs one.
    pub fn is_empty(&self) -> bool {
        self.known.read().keys.is_empty()
    }

    fn get(&self, id: &str) -> Option<Arc<Key>> {
        self.known.read().keys.get(id)?.clone()
    }

    /// Namespace of a key.
    pub fn namespace_of(&self, id: &str) -> Option<String> {
        self.get(id).map(|key| key.namespace.clone())
    }

    /// The key that the same request created before, by its id or the shorter id of older versions.
    pub fn made_before(&self, id: &str, namespace: &str) -> Option<Arc<Key>> {
        let found = self.get(id).or_else(|| self.get(id.get(..OLD_ID)?));
        found.filter(|key| key.namespace == namespace)
    }

    /// Creates a key without limits below its role.
    pub async fn create(
        &self,
        store: &dyn Store,
        new: NewKey,
        act: &Actor,
        now: Timestamp,
    ) -> Result<(Key, String), StoreError> {
        match self.create_as(store, key_id(None)?, new, KeyLimits::default(), u64::MAX, act, now).await? {
            KeyResult::Key(key, secret) => Ok((*key, secret)),
            KeyResult::NameTaken => Err(StoreError::Refused("an active key of this name exists".into())),
            KeyResult::Exists(_) | KeyResult::NotActive => Err(StoreError::Refused("the key exists".into())),
        }
    }

    /// Creates a key; never replaces one. A namespace has at most `most` active keys.
    #[allow(clippy::too_many_arguments)]
    pub async fn create_as(
        &self,
        store: &dyn Store,
        id: String,
        new: NewKey,
        terms: KeyLimits,
        most: u64,
        act: &Actor,
        now: Timestamp,
    ) -> Result<KeyResult, StoreError> {
        let (secret, hash) = secret()?;
        let key = Key {
            hash,
            name: new.name,
            role: new.role,
            namespace: new.namespace,
            created_at: now.0,
            expires_at: new.valid_for.map(|span| (now + span).0),
            revoked_at: None,
            replaced_by: None,
            terms: Arc::new(terms),
            id: id.clone(),
        };
        self.refresh(store).await?;
        if let Some(before) = self.made_before(&id, &key.namespace) {
            return Ok(KeyResult::Exists(before.id.clone()));
        }
        let noted = entry(AuditAction::KeyCreate, &key, act, now)?.changed(None, Some(key.shown()));
        let put = store.create_key(&key.row()?, most, Some(&noted), now).await?;
        self.made(store, put, key, secret).await
    }

    async fn made(&self, store: &dyn Store, put: KeyPut, key: Key, secret: String) -> Result<KeyResult, StoreError> {
        match put {
            KeyPut::Done => {
                self.refresh(store).await?;
                let secret = format!("cbk_{}_{secret}", key.id);
                Ok(KeyResult::Key(Box::new(key), secret))
            }
            KeyPut::Exists => Ok(KeyResult::Exists(key.id)),
            KeyPut::NameTaken => Ok(KeyResult::NameTaken),
            KeyPut::NotActive => Ok(KeyResult::NotActive),
        }
    }

    /// Creates a key that replaces another one, which stays valid during the overlap. `None` if the caller may not
    /// rotate such a key. The new key is valid for as long as the old one was, or for `valid_for`.
    #[allow(clippy::too_many_arguments)]
    pub async fn rotate(
        &self,
        store: &dyn Store,
        id: String,
        old: &str,
        overlap: Millis,
        valid_for: Option<Millis>,
        may: impl Fn(&Key) -> bool,
        most: u64,
        act: &Actor,
        now: Timestamp,
    ) -> Result<Option<KeyResult>, StoreError> {
        self.refresh(store).await?;
        let Some(old) = self.get(old).filter(|key| may(key)) else { return Ok(None) };
        if self.get(&id).is_some() {
            return Ok(Some(KeyResult::Exists(id)));
        }
        let (secret, hash) = secret()?;
        let lifetime = old.expires_at.map(|at| Millis(u64::try_from(at - old.created_at).unwrap_or(0)));
        let key = Key {
            hash,
            created_at: now.0,
            expires_at: valid_for.or(lifetime).map(|span| (now + span).0),
            revoked_at: None,
            replaced_by: None,
            terms: Arc::new(KeyLimits { replaces: Some(old.id.clone()), ..(*old.terms).clone() }),
            id,
            ..(*old).clone()
        };
        let ends_at = now + overlap;
        let after = Key {
            expires_at: Some(old.expires_at.map_or(ends_at.0, |at| at.min(ends_at.0))),
            replaced_by: Some(key.id.clone()),
            ..(*old).clone()
        };
        let mut told = after.shown();
        told["new_key"] = key.shown();
        let noted = entry(AuditAction::KeyRotate, &old, act, now)?.changed(Some(old.shown()), Some(told));
        let put = store.rotate_key(&old.id, ends_at, &key.row()?, most, Some(&noted), now).await?;
        Ok(Some(self.made(store, put, key, secret).await?))
    }

    /// Revokes a key. False if the caller may not revoke such a key.
    pub async fn revoke(
        &self,
        store: &dyn Store,
        id: &str,
        may: impl Fn(&Key) -> bool,
        act: &Actor,
        now: Timestamp,
    ) -> Result<bool, StoreError> {
        self.refresh(store).await?;
        let Some(key) = self.get(id).filter(|key| may(key)) else { return Ok(false) };
        let after = Key { revoked_at: Some(key.revoked_at.unwrap_or(now.0)), ..(*key).clone() };
        let noted = entry(AuditAction::KeyRevoke, &key, act, now)?.changed(Some(key.shown()), Some(after.shown()));
        store.revoke_key(id, Some(&noted), now).await?;
        self.refresh(store).await?;
        Ok(true)
    }

    pub(crate) fn is_live(&self, id: &str, now: Timestamp) -> bool {
        self.get(id).is_some_and(|key| key.is_live(now))
    }

    pub(crate) fn find(&self, token: &str, now: Timestamp) -> Option<Arc<Key>> {
        let (id, secret) = token.strip_prefix("cbk_")?.split_once('_')?;
        let key = self.get(id)?;
        let same = bool::from(hash(secret).as_bytes().ct_eq(key.hash.as_bytes()));
        (same && key.is_live(now)).then_some(key)
    }

    /// Keys that expire within two weeks and were not rotated; of one namespace, or all.
    pub fn ending(&self, namespace: Option<&str>, now: Timestamp) -> Vec<Arc<Key>> {
        let known = self.known.read();
        let is_it = |key: &&Arc<Key>| {
            key.replaced_by.is_none() && key.ends_soon(now) && namespace.is_none_or(|it| it == key.namespace)
        };
        known.keys.values().flatten().filter(is_it).cloned().collect()
    }

    pub(crate) fn count_refused_address(&self) {
        self.refused_addresses.fetch_add(1, Ordering::Relaxed);
    }
}
