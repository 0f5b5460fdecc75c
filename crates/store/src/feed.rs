//! The feed: every event of the database in one order.

use async_trait::async_trait;
use comeback_core::Event;

use crate::StoreError;
use crate::page::FeedCursor;

/// The log of all events, in an order in which nothing is ever inserted behind a reader.
#[async_trait]
pub trait EventLog: Send + Sync {
    /// Events after a cursor, in an order in which nothing is ever inserted behind a reader.
    async fn feed(&self, after: Option<FeedCursor>, limit: u32) -> Result<Feed, StoreError>;

    /// The cursor behind everything that can be read now: what happens later comes after it.
    async fn feed_end(&self) -> Result<FeedCursor, StoreError>;

    /// A cursor as this version writes it: one that an older version gave out may name the same place in other words.
    async fn feed_cursor(&self, cursor: FeedCursor) -> Result<FeedCursor, StoreError>;

    /// The epoch of the database, which is another one after every restore; empty in the first.
    async fn epoch(&self) -> Result<String, StoreError>;
}

/// A stretch of the feed.
#[derive(Clone, Debug, PartialEq)]
pub struct Feed {
    /// The events, oldest first.
    pub events: Vec<FeedEvent>,
    /// Where to go on; the same as before when there is nothing new.
    pub next: Option<FeedCursor>,
}

/// One event of the feed.
#[derive(Clone, Debug, PartialEq)]
pub struct FeedEvent {
    /// The cursor behind it.
    pub cursor: FeedCursor,
    /// The namespace it belongs to.
    pub namespace: String,
    /// The event.
    pub event: Event,
}
