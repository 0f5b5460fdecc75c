//! Named secrets: put, listed, deleted, and encrypted anew when the key changes.

use comeback_core::transition::Actor;
use comeback_core::{AuditAction, Invalid, Quota};
use comeback_store::{SealedSecret, StoreError};
use serde_json::json;

use crate::secrets::{SecretView, check_value, name_fault};
use crate::{CommandError, Engine};

/// Read at a time.
const PAGE: u32 = 500;

/// Result of encrypting everything with the first key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reencrypted {
    /// The key that everything is encrypted with now.
    pub key_id: String,
    /// Secrets that were encrypted anew.
    pub reencrypted: u64,
    /// Secrets that were encrypted with it already.
    pub unchanged: u64,
    /// Secrets that no key of this process can read, as namespace and name.
    pub unreadable: Vec<(String, String)>,
}

impl Engine {
    /// Makes or replaces a secret; whether it is new.
    pub async fn put_secret(
        &self,
        namespace: &str,
        name: &str,
        value: &str,
        act: &Actor,
    ) -> Result<(SecretView, bool), CommandError> {
        let core = &self.core;
        if let Some(fault) = name_fault(name) {
            return Err(Invalid::one("name", fault).into());
        }
        check_value(value)?;
        core.config.limits.check_act(act)?;
        let Some((key_id, sealed)) = core.config.secret_keys.seal(namespace, name, value) else {
            return Err(no_key().into());
        };
        let now = core.clock.now();
        let secret = SealedSecret {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            version: 0,
            key_id: key_id.clone(),
            sealed,
            created_at: now,
            updated_at: now,
            updated_by: act.by.clone(),
        };
        let entry = self.entry(AuditAction::SecretPut, name, act).within(namespace);
        let entry = entry.changed(None, Some(json!({"key_id": key_id})));
        let most = core.config.quotas.get(Quota::Secrets);
        let stored = core.store.put_secret(&secret, most, Some(&entry), now).await;
        let (stored, new) = stored.map_err(|error| match error {
            StoreError::QuotaExceeded(exceeded) => CommandError::QuotaExceeded(exceeded),
            error => error.into(),
        })?;
        Ok((stored.into(), new))
    }

    /// A secret without its value.
    pub async fn secret(&self, namespace: &str, name: &str) -> Result<SecretView, CommandError> {
        if name_fault(name).is_some() {
            return Err(CommandError::NotFound("secret"));
        }
        let found = self.core.store.secret(namespace, name).await?;
        found.map(SecretView::from).ok_or(CommandError::NotFound("secret"))
    }

    /// Behind `after`, by their names.
    pub async fn secrets(&self, namespace: &str, after: &str, limit: u32) -> Result<Vec<SecretView>, CommandError> {
        let found = self.core.store.secrets(namespace, after, limit).await?;
        Ok(found.into_iter().map(SecretView::from).collect())
    }

    /// Whatever names it fails until there is one of that name again.
    pub async fn delete_secret(&self, namespace: &str, name: &str, act: &Actor) -> Result<(), CommandError> {
        if name_fault(name).is_some() {
            return Err(CommandError::NotFound("secret"));
        }
        let entry = self.entry(AuditAction::SecretDelete, name, act).within(namespace);
        match self.core.store.delete_secret(namespace, name, Some(&entry)).await? {
            true => Ok(()),
            false => Err(CommandError::NotFound("secret")),
        }
    }

    /// Encrypts the secrets of all namespaces with the first key, so that the others can be given up.
    pub async fn reencrypt_secrets(&self, act: &Actor) -> Result<Reencrypted, CommandError> {
        let (store, keys) = (&self.core.store, &self.core.config.secret_keys);
        let current = keys.current().ok_or_else(no_key)?;
        let mut done = Reencrypted { key_id: current.to_owned(), ..Reencrypted::default() };
        let mut after = (String::new(), String::new());
        loop {
            let page = store.all_secrets((&after.0, &after.1), PAGE).await?;
            let Some(last) = page.last() else { break };
            after = (last.namespace.clone(), last.name.clone());
            for secret in page {
                if secret.key_id == current {
                    done.unchanged += 1;
                    continue;
                }
                let sealed = keys.open(&secret).ok();
                let sealed = sealed.and_then(|value| keys.seal(&secret.namespace, &secret.name, &value));
                let Some((key_id, sealed)) = sealed else {
                    done.unreadable.push((secret.namespace, secret.name));
                    continue;
                };
                // A value that was put in the meantime has the first key.
                if store.reseal_secret(&SealedSecret { key_id, sealed, ..secret }).await? {
                    done.reencrypted += 1;
                } else {
                    done.unchanged += 1;
                }
            }
        }
        let told = json!({"key_id": done.key_id, "reencrypted": done.reencrypted, "unreadable": done.unreadable.len()});
        self.note(&self.entry(AuditAction::SecretReencrypt, "secrets", act).changed(None, Some(told))).await?;
        Ok(done)
    }
}

fn no_key() -> Invalid {
    Invalid::one(
        "value",
        "this server has no key to encrypt secrets with; start it with 32 bytes in hexadecimal or base64 in COMEBACK_SECRET_KEY, or in \
         a file named by --secret-key-file (make one: openssl rand -hex 32)",
    )
}
