//! Times that come: retries, first starts, leases, limits and deadlines.

use async_trait::async_trait;
use comeback_core::Timestamp;

use super::rows::{Reader, read_open};
use super::{PostgresStore, dependencies, learn};
use crate::row::{OPEN_COLUMNS, columns};
use crate::{Due, DueBefore, DueQueries, NextDue, StoreError, Stored};

pub async fn due(store: &PostgresStore, what: Due, now: Timestamp, limit: u32) -> Result<Vec<Stored>, StoreError> {
    let condition = match what {
        Due::Leases => "o.lease_expires is not null and o.lease_expires <= $1 order by o.lease_expires, o.id",
        Due::Timeouts => "o.timeout_at is not null and o.timeout_at <= $1 order by o.timeout_at, o.id",
        Due::Deadlines => {
            "o.expires_at is not null and (o.state in (0, 1, 4) or (o.hard_deadline = 1 and o.state in (2, 3)))
             and o.expires_at <= $1 order by o.expires_at, o.id"
        }
        Due::Gates => {
            "o.gated = 1 and o.state = 0 and o.needs_left = 0 and o.hold = 0 and $1::int8 is not null order by o.id"
        }
    };
    let sql = format!("select {} from task_open o where {condition} limit $2", columns("o", &OPEN_COLUMNS));
    let client = store.reader().await?;
    let statement = client.prepare_cached(&sql).await?;
    let rows = client.query(&statement, &[&now.0, &i64::from(limit)]).await?;
    let open = rows.iter().map(|row| read_open(&mut Reader::new(row))).collect::<Result<Vec<_>, _>>()?;
    drop(client);
    Ok(learn::readable_open(store, open).await?.into_iter().flatten().collect())
}

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

pub async fn next_due(store: &PostgresStore) -> Result<NextDue, StoreError> {
    let client = store.reader().await?;
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

pub async fn due_before(store: &PostgresStore, until: Timestamp) -> Result<DueBefore, StoreError> {
    let client = store.reader().await?;
    let row = client.query_one(DueBefore::QUERY, &[&until.0]).await?;
    Ok(DueBefore::read(std::array::from_fn(|place| row.get(place))))
}

pub async fn retry_after(store: &PostgresStore, after: Timestamp) -> Result<Option<Timestamp>, StoreError> {
    let client = store.reader().await?;
    let sql = "select due from task_open where state = 4 and hold = 0 and due > $1 order by due, id limit 1";
    let statement = client.prepare_cached(sql).await?;
    Ok(client.query_opt(&statement, &[&after.0]).await?.map(|row| Timestamp(row.get(0))))
}

#[async_trait]
impl DueQueries for PostgresStore {
    async fn due(&self, what: Due, now: Timestamp, limit: u32) -> Result<Vec<Stored>, StoreError> {
        due(self, what, now, limit).await.map_err(StoreError::of_a_read)
    }

    async fn next_due(&self) -> Result<NextDue, StoreError> {
        next_due(self).await.map_err(StoreError::of_a_read)
    }

    async fn due_before(&self, until: Timestamp) -> Result<DueBefore, StoreError> {
        self.search(due_before(self, until)).await.map_err(StoreError::of_a_read)
    }

    async fn retry_after(&self, after: Timestamp) -> Result<Option<Timestamp>, StoreError> {
        retry_after(self, after).await.map_err(StoreError::of_a_read)
    }

    async fn next_dependency(&self, after: Timestamp) -> Result<Option<Timestamp>, StoreError> {
        dependencies::next(self, after).await.map_err(StoreError::of_a_read)
    }
}
