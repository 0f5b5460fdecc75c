//! Processes on one database: their names, clocks and wake-ups.

use async_trait::async_trait;
use comeback_core::TaskId;

use crate::{Background, StoreError};

/// Processes that share a database.
#[async_trait]
pub trait InstanceStore: Send + Sync {
    /// Holds the name of a process until what is answered is dropped or the process is no longer there, however it ended. Whoever is
    /// the only one of its name hears what earlier ones have left behind: tasks that are leased to `<name>/<anything>`, or to
    /// `<any name>/<anything>` where no other process can have the database open.
    async fn hold_name(&self, name: &str) -> Result<HeldName, StoreError>;

    /// How far this database's clock is ahead of the process's, in milliseconds; nothing when the process's clock counts.
    async fn clock_offset(&self) -> Result<Option<i64>, StoreError>;

    /// Tells other instances that there is work; a hint that may be lost.
    fn notify(&self);

    /// Wakes when another instance has given such a hint.
    fn wakes(&self) -> tokio::sync::watch::Receiver<u64>;

    /// Background work of the store, for health checks.
    fn background(&self) -> Option<&Background> {
        None
    }

    /// The last call: everything is written, every connection is closed, and a SQLite file is whole without its log. Calls that
    /// come later are refused as unavailable.
    async fn close(&self) {}
}

/// The name of a process, for as long as this is kept.
pub struct HeldName {
    /// Tasks leased to processes of this name that are gone, up to [`HeldName::MOST_LEFT`]. Empty where one of them lives.
    pub left: Vec<TaskId>,
    pub(crate) _kept: Box<dyn Send + Sync>,
}

impl HeldName {
    /// At most this many tasks are told.
    pub const MOST_LEFT: u32 = 10_000;
}
