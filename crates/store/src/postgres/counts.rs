//! How many tasks there are, by state.

use async_trait::async_trait;
use comeback_core::Timestamp;

use super::{PostgresStore, list};
use crate::query::held_now;
use crate::{CountQueries, Counts, OpenWork, OpenWorkRow, StoreError};

pub async fn counts(store: &PostgresStore, namespace: &str, of: &str, held: &str) -> Result<Counts, StoreError> {
    let lanes = store.dictionary.lanes_in(namespace, |_| true);
    let mut counts = Counts::default();
    let sql = format!(
        "select lane, state, count(*), count(*) filter (where {held})
           from task_open o where lane = any($1) and {of} group by 1, 2
         union all select lane, state, count(*), 0 from task_done where lane = any($1) and {of} group by 1, 2"
    );
    for row in store.counted(&sql, &[&lanes]).await? {
        counts.add(store.dictionary.lane(row.get(0)).as_deref(), row.get(1), row.get(2), row.get(3))?;
    }
    Ok(counts)
}

#[async_trait]
impl CountQueries for PostgresStore {
    async fn counts(&self, namespace: &str, now: Timestamp) -> Result<Counts, StoreError> {
        let count = async {
            let closed = list::closed(self, namespace, now).await?;
            let held = held_now(&self.dictionary, namespace, &closed, now);
            counts(self, namespace, Counts::ALL, &held).await
        };
        self.search(count).await
    }

    async fn retried(&self, namespace: &str) -> Result<Counts, StoreError> {
        self.search(counts(self, namespace, Counts::RETRIED, "false")).await
    }

    async fn open_work(&self, now: Timestamp) -> Result<OpenWork, StoreError> {
        self.read(async {
            let mut work = OpenWork::default();
            for row in self.counted(OpenWork::QUERY, &[&now.0]).await? {
                let row = OpenWorkRow {
                    state: row.get(0),
                    hold: row.get(1),
                    all: row.get(2),
                    to_come: row.get(3),
                    come: row.get(4),
                    next: row.get(5),
                    first: row.get(6),
                };
                work.add(row, now);
            }
            Ok(work)
        })
        .await
    }
}
