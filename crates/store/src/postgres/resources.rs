//! Followers: rows that are moved together with what they start.

use async_trait::async_trait;
use comeback_core::{Audit, Timestamp};
use tokio_postgres::Row;

use super::control::pause_lock;
use super::submit::submit_in;
use super::{PostgresStore, audit, learn, rules};
use crate::audit::as_json;
use crate::{Applied, Loop, Resource, ResourceKind, ResourceStore, StoreError, Submission, sql};

fn of(sort: ResourceKind) -> String {
    let table = sort.table();
    format!(
        "select n.name, s.name, s.version, s.due, s.body, s.standing, s.created_at, s.updated_at
         from {table} s join namespace n on n.id = s.namespace"
    )
}

fn read(sort: ResourceKind, row: &Row) -> Resource {
    Resource {
        sort,
        namespace: row.get(0),
        name: row.get(1),
        version: row.get::<_, i32>(2).cast_unsigned(),
        due: row.get::<_, Option<i64>>(3).map(Timestamp),
        body: row.get(4),
        standing: row.get(5),
        created_at: Timestamp(row.get(6)),
        updated_at: Timestamp(row.get(7)),
    }
}

/// None if other rules are in force by now.
async fn put_placed(
    store: &PostgresStore,
    follower: &Resource,
    start: &[Submission],
    generation: i64,
    on_behalf_of: Option<Loop>,
    audit: Option<&Audit>,
    now: Timestamp,
) -> Result<Option<Applied>, StoreError> {
    let mut client = store.writer().await?;
    client.execute(sql::control::ADD_NAMESPACE.postgres, &[&follower.namespace]).await?;
    let tx = client.transaction().await?;
    if !start.is_empty() && rules::now_in_force(store, &tx).await?.generation != generation {
        return Ok(None);
    }
    if let Some(name) = on_behalf_of
        && pause_lock(&tx, name, now).await?
    {
        return Ok(Some(Applied::Paused));
    }
    let table = follower.sort.table();
    let sql = match follower.version {
        0 => format!(
            "insert into {table} (namespace, name, version, due, body, standing, created_at, updated_at)
             select id, $2, $3 + 1, $4, $5, $6, $7, $7 from namespace where name = $1 on conflict do nothing"
        ),
        _ => format!(
            "update {table} set version = version + 1, due = $4, body = $5, standing = $6, updated_at = $7
             where namespace = (select id from namespace where name = $1) and name = $2 and version = $3"
        ),
    };
    let statement = tx.prepare_cached(&sql).await?;
    let (version, due) = (follower.version.cast_signed(), follower.due.map(|at| at.0));
    let written = tx
        .execute(
            &statement,
            &[&follower.namespace, &follower.name, &version, &due, &follower.body, &follower.standing, &now.0],
        )
        .await?;
    if written == 0 {
        return Ok(Some(Applied::Stale));
    }
    if !start.is_empty() {
        submit_in(store, &tx, start, generation, now).await?;
    }
    audit::note(&tx, audit, None).await?;
    tx.commit().await?;
    Ok(Some(Applied::Done))
}

#[async_trait]
impl ResourceStore for PostgresStore {
    async fn follower(&self, sort: ResourceKind, namespace: &str, name: &str) -> Result<Option<Resource>, StoreError> {
        let what = of(sort);
        Ok(self
            .row(&format!("{what} where n.name = $1 and s.name = $2"), &[&namespace, &name])
            .await?
            .map(|row| read(sort, &row)))
    }

    async fn followers(
        &self,
        sort: ResourceKind,
        namespace: &str,
        after: &str,
        limit: u32,
    ) -> Result<Vec<Resource>, StoreError> {
        let what = of(sort);
        let sql =
            format!("{what} where n.name = $1 and s.name collate \"C\" > $2 order by s.name collate \"C\" limit $3");
        let rows = self.rows(&sql, &[&namespace, &after, &i64::from(limit)]).await?;
        Ok(rows.iter().map(|row| read(sort, row)).collect())
    }

    async fn due_followers(&self, sort: ResourceKind, now: Timestamp, limit: u32) -> Result<Vec<Resource>, StoreError> {
        let what = of(sort);
        let sql = format!("{what} where s.due <= $1 order by s.due, s.namespace, s.name limit $2");
        let rows = self.rows(&sql, &[&now.0, &i64::from(limit)]).await?;
        Ok(rows.iter().map(|row| read(sort, row)).collect())
    }

    async fn active_followers(
        &self,
        sort: ResourceKind,
        after: Option<(&str, &str)>,
        limit: u32,
    ) -> Result<Vec<Resource>, StoreError> {
        let what = of(sort);
        let sql = format!(
            "{what} where s.due is not null and (n.name collate \"C\", s.name collate \"C\") > ($1, $2)
             order by n.name collate \"C\", s.name collate \"C\" limit $3"
        );
        let (namespace, name) = after.unwrap_or(("", ""));
        let rows = self.rows(&sql, &[&namespace, &name, &i64::from(limit)]).await?;
        Ok(rows.iter().map(|row| read(sort, row)).collect())
    }

    /// Two who fire the same instant: the version lets one of them through.
    async fn put_follower(
        &self,
        follower: &Resource,
        start: Option<&Submission>,
        on_behalf_of: Option<Loop>,
        audit: Option<&Audit>,
        now: Timestamp,
    ) -> Result<Applied, StoreError> {
        loop {
            let book = self.dictionary.rules();
            let placed = book.place(start.map(std::slice::from_ref).unwrap_or_default());
            learn::learn_anyway(self, self.dictionary.news(&placed)).await?;
            if let Some(applied) =
                put_placed(self, follower, &placed, book.generation, on_behalf_of, audit, now).await?
            {
                return Ok(applied);
            }
            // A rule has changed since we looked where its tasks belong.
            rules::refresh(&self.pools.learn, &self.dictionary).await?;
        }
    }

    async fn delete_follower(
        &self,
        sort: ResourceKind,
        namespace: &str,
        name: &str,
        audit: Option<&Audit>,
    ) -> Result<bool, StoreError> {
        let mut client = self.writer().await?;
        let tx = client.transaction().await?;
        let table = sort.table();
        let sql = format!(
            "delete from {table} s using namespace n where n.id = s.namespace and n.name = $1 and s.name = $2
             returning s.body"
        );
        let body: Option<String> = tx.query_opt(&sql, &[&namespace, &name]).await?.map(|row| row.get(0));
        audit::note(&tx, audit.filter(|_| body.is_some()), body.as_deref().map(as_json)).await?;
        tx.commit().await?;
        Ok(body.is_some())
    }
}
