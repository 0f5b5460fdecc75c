//! Named secrets, encrypted before they come here.

use async_trait::async_trait;
use comeback_core::{Audit, Timestamp};

use crate::StoreError;

/// Named secrets.
#[async_trait]
pub trait SecretStore: Send + Sync {
    /// A named secret as it is kept: encrypted.
    async fn secret(&self, namespace: &str, name: &str) -> Result<Option<SealedSecret>, StoreError>;

    /// Named secrets behind `after`, in the order of their names.
    async fn secrets(&self, namespace: &str, after: &str, limit: u32) -> Result<Vec<SealedSecret>, StoreError>;

    /// Secrets of all namespaces behind a namespace and a name, for a change of the key that encrypts them.
    async fn all_secrets(&self, after: (&str, &str), limit: u32) -> Result<Vec<SealedSecret>, StoreError>;

    /// Makes or replaces a secret; a namespace has `most` at most. Answers it as it then stands, and whether it is new.
    async fn put_secret(
        &self,
        secret: &SealedSecret,
        most: u64,
        audit: Option<&Audit>,
        now: Timestamp,
    ) -> Result<(SealedSecret, bool), StoreError>;

    /// The same value under another key, if the version that it names is still the one there is.
    async fn reseal_secret(&self, secret: &SealedSecret) -> Result<bool, StoreError>;

    /// Deletes a secret; whether it was there.
    async fn delete_secret(&self, namespace: &str, name: &str, audit: Option<&Audit>) -> Result<bool, StoreError>;
}

/// A named secret as it is kept. Its value is encrypted; only a process that has the key `key_id` can read it.
#[derive(Clone, PartialEq, Eq)]
pub struct SealedSecret {
    /// The namespace it belongs to.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Counts changes of the row.
    pub version: u32,
    /// Names the key that it was encrypted with.
    pub key_id: String,
    /// Nonce, ciphertext and tag.
    pub sealed: Vec<u8>,
    /// When it was created.
    pub created_at: Timestamp,
    /// When it last changed.
    pub updated_at: Timestamp,
    /// The last person who changed it.
    pub updated_by: Option<String>,
}

impl std::fmt::Debug for SealedSecret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SealedSecret({}/{} version {} key {})", self.namespace, self.name, self.version, self.key_id)
    }
}
