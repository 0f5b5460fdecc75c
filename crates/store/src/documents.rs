//! Documents: texts under a name, with versions.

use async_trait::async_trait;
use comeback_core::{Audit, Timestamp};

use crate::StoreError;

/// Versioned documents, such as workflows.
#[async_trait]
pub trait DocumentStore: Send + Sync {
    /// A version of a document, or its newest.
    async fn document(
        &self,
        at: Collection<'_>,
        name: &str,
        version: Option<u32>,
    ) -> Result<Option<Document>, StoreError>;

    /// The newest of each name behind `after`, in the order of their names.
    async fn documents(&self, at: Collection<'_>, after: &str, limit: u32) -> Result<Vec<Document>, StoreError>;

    /// All versions of a name, newest first.
    async fn versions(&self, at: Collection<'_>, name: &str, limit: u32) -> Result<Vec<Document>, StoreError>;

    /// The next version, if `known` is the newest (0 where there is none yet).
    async fn put_document(
        &self,
        at: Collection<'_>,
        name: &str,
        known: u32,
        body: &str,
        audit: Option<&Audit>,
        now: Timestamp,
    ) -> Result<bool, StoreError>;

    /// Deletes a document with all its versions; whether it was there.
    async fn delete_document(&self, at: Collection<'_>, name: &str) -> Result<bool, StoreError>;
}

/// A text under a name, with versions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Document {
    /// The namespace it belongs to.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its version, from 1.
    pub version: u32,
    /// Its text.
    pub body: String,
    /// When this version was written.
    pub at: Timestamp,
}

/// Where documents stand: names on different shelves do not meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Collection<'a> {
    /// The namespace.
    pub namespace: &'a str,
    /// The collection.
    pub shelf: &'a str,
}
