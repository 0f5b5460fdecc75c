//! Processes on one database: their names, clocks and wake-ups.

use std::sync::Arc;

use async_trait::async_trait;
use comeback_core::TaskId;
use rusqlite::Connection;
use uuid::Uuid;

use super::SqliteStore;
use crate::{Background, HeldName, InstanceStore, StoreError};

/// One name that is held.
struct Named(Arc<std::sync::atomic::AtomicUsize>);

impl Drop for Named {
    fn drop(&mut self) {
        self.0.fetch_sub(1, std::sync::atomic::Ordering::AcqRel);
    }
}

/// Tasks leased to a part of a process.
pub fn leased_by_processes(connection: &Connection, limit: u32) -> Result<Vec<TaskId>, StoreError> {
    let sql = "select id from task_open indexed by open_lease
               where lease_expires is not null and instr(worker, '/') > 0 limit ?1";
    let mut statement = connection.prepare_cached(sql)?;
    let ids = statement.query_map([limit], |row| Ok(TaskId(Uuid::from_bytes(row.get(0)?))))?;
    Ok(ids.collect::<rusqlite::Result<_>>()?)
}

#[async_trait]
impl InstanceStore for SqliteStore {
    async fn hold_name(&self, _name: &str) -> Result<HeldName, StoreError> {
        let _looking = self.naming.lock().await;
        // The file is locked: whoever is not in this process is not there at all, whatever its name was.
        let is_alone = self.named.fetch_add(1, std::sync::atomic::Ordering::AcqRel) == 0;
        let kept = Box::new(Named(self.named.clone()));
        let left = match is_alone {
            true => self.read(|connection, _| leased_by_processes(connection, HeldName::MOST_LEFT)).await?,
            false => Vec::new(),
        };
        Ok(HeldName { left, _kept: kept })
    }

    async fn clock_offset(&self) -> Result<Option<i64>, StoreError> {
        Ok(None)
    }

    /// One process per file: there is nobody else to tell.
    fn notify(&self) {}

    fn wakes(&self) -> tokio::sync::watch::Receiver<u64> {
        self.wakes.subscribe()
    }

    fn background(&self) -> Option<&Background> {
        Some(&self.background)
    }

    async fn close(&self) {
        for readers in [&self.readers, &self.interactive_readers].into_iter().flatten() {
            readers.close().await;
        }
        if let Some(thread) = self.writer.close() {
            let _ = tokio::task::spawn_blocking(move || thread.join()).await;
        }
    }
}
