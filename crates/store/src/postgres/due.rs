//! Times that come: retries, first starts, leases, limits and deadlines.

use async_trait::async_trait;
use comeback_core::Timestamp;

use super::rows::Reader;
use super::{PostgresStore, learn};
use crate::row::{OpenRow, columns};
use crate::{Due, DueBefore, DueQueries, NextDue, StoreError, Stored, sql};

pub const NEXT_DUE: &str = "select
               (select due from task_open where state = 4 and hold = 0 order by due, id limit 1),
               (select due from task_open where state = 0 and hold = 0 and due is not null order by due, id limit 1),
               (select lease_expires from task_open where lease_expires is not null order by lease_expires, id limit 1),
               (select timeout_at from task_open where timeout_at is not null order by timeout_at, id limit 1),
               (select expires_at from task_open where expires_at is not null
                 and (state in (0, 1, 4) or (hard_deadline = 1 and state in (2, 3))) order by expires_at, id limit 1),
               (select updated_at from task_open where gated = 1 and state = 0 and needs_left = 0 and hold = 0 limit 1),
               (select due from schedule where due is not null order by due limit 1),
               (select due from operation where due is not null order by due limit 1),
               (select due from alert where due > 0 order by due limit 1)";

#[async_trait]
impl DueQueries for PostgresStore {
    async fn due(&self, what: Due, now: Timestamp, limit: u32) -> Result<Vec<Stored>, StoreError> {
        self.read(async {
            let condition = what.condition().postgres;
            let sql = format!("select {} from task_open o where {condition} limit $2", columns("o", OpenRow::COLUMNS));
            let rows = self.rows(&sql, &[&now.0, &i64::from(limit)]).await?;
            let open = rows.iter().map(|row| OpenRow::read(&mut Reader::new(row))).collect::<Result<Vec<_>, _>>()?;
            Ok(learn::readable_open(self, open).await?.into_iter().flatten().collect())
        })
        .await
    }

    async fn next_due(&self) -> Result<NextDue, StoreError> {
        let client = self.reader().await?;
        let statement = client.prepare_cached(NEXT_DUE).await?;
        let row = client.query_one(&statement, &[]).await?;
        let at = |column: usize| row.get::<_, Option<i64>>(column).map(Timestamp);
        Ok(NextDue {
            retry: at(0),
            start: at(1),
            lease: at(2),
            timeout: at(3),
            deadline: at(4),
            gate: at(5),
            schedule: at(6),
            operation: at(7),
            alert: at(8),
        })
    }

    async fn due_before(&self, until: Timestamp) -> Result<DueBefore, StoreError> {
        self.search(async {
            let client = self.reader().await?;
            let row = client.query_one(DueBefore::QUERY, &[&until.0]).await?;
            Ok(DueBefore::read(std::array::from_fn(|place| row.get(place))))
        })
        .await
    }

    async fn retry_after(&self, after: Timestamp) -> Result<Option<Timestamp>, StoreError> {
        let sql = "select due from task_open where state = 4 and hold = 0 and due > $1 order by due, id limit 1";
        Ok(self.row(sql, &[&after.0]).await?.map(|row| Timestamp(row.get(0))))
    }

    async fn next_dependency(&self, after: Timestamp) -> Result<Option<Timestamp>, StoreError> {
        let rows = self.rows(sql::resources::NEXT_DEPENDENCY.postgres, &[&after.0]).await?;
        Ok(rows.first().and_then(|row| row.get::<_, Option<i64>>(0)).map(Timestamp))
    }
}
