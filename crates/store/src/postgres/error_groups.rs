//! Error groups: failures with the same fingerprint.

use std::collections::HashMap;

use async_trait::async_trait;
use comeback_core::error_group::{Group, TriageAction};
use comeback_core::{Audit, Class, Timestamp};
use deadpool_postgres::{GenericClient, Transaction};
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::{PostgresStore, audit};
use crate::stats::{GroupQuery, GroupRow};
use crate::{ErrorGroupStore, StoreError, sql};

/// Deletes the groups beyond a number, by when they were last seen. Reclassified ones stay.
pub async fn forget_groups(tx: &Transaction<'_>, most: u32) -> Result<(), StoreError> {
    let namespaces = tx.query(sql::error_groups::NAMESPACES.postgres, &[]).await?;
    for namespace in namespaces.iter().map(|row| row.get::<_, i32>(0)) {
        let sql = sql::error_groups::NTH_NEWEST.postgres;
        if let Some(cut) = tx.query_opt(sql, &[&namespace, &i64::from(most)]).await? {
            let (last_seen, fingerprint): (i64, i64) = (cut.get(0), cut.get(1));
            let sql = sql::error_groups::DELETE_UP_TO.postgres;
            tx.execute(sql, &[&namespace, &last_seen, &fingerprint]).await?;
        }
    }
    Ok(())
}

fn read_group(row: &Row) -> Result<Group, StoreError> {
    GroupRow {
        fingerprint: row.get(0),
        face: row.get(1),
        count: row.get(2),
        recovered: row.get(3),
        first_seen: row.get(4),
        last_seen: row.get(5),
        class: row.get(6),
        sample: row.get(7),
        word: row.get(8),
        reclassified: row.get(9),
    }
    .into_group()
}

pub async fn find_group(
    client: &impl GenericClient,
    namespace: i32,
    fingerprint: i64,
    lock: &str,
) -> Result<Option<Group>, StoreError> {
    let sql = format!("select {} from error_group where namespace = $1 and fingerprint = $2 {lock}", GroupRow::COLUMNS);
    let statement = client.prepare_cached(&sql).await?;
    client.query_opt(&statement, &[&namespace, &fingerprint]).await?.as_ref().map(read_group).transpose()
}

pub async fn write_group(client: &impl GenericClient, namespace: i32, group: &Group) -> Result<(), StoreError> {
    let sql = format!(
        "insert into error_group (namespace, {}) values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)
         on conflict (namespace, fingerprint) do update set face = excluded.face, count = excluded.count,
           recovered = excluded.recovered, first_seen = excluded.first_seen, last_seen = excluded.last_seen,
           class = excluded.class, sample = excluded.sample, word = excluded.word,
           reclassified = excluded.reclassified",
        GroupRow::COLUMNS
    );
    let row = GroupRow::new(group);
    let statement = client.prepare_cached(&sql).await?;
    let given: [&(dyn ToSql + Sync); 11] = [
        &namespace,
        &row.fingerprint,
        &row.face,
        &row.count,
        &row.recovered,
        &row.first_seen,
        &row.last_seen,
        &row.class,
        &row.sample,
        &row.word,
        &row.reclassified,
    ];
    client.execute(&statement, &given).await?;
    Ok(())
}

#[async_trait]
impl ErrorGroupStore for PostgresStore {
    async fn groups(&self, namespace: &str, query: &GroupQuery) -> Result<Vec<Group>, StoreError> {
        let Some(namespace) = self.dictionary.namespace(namespace) else { return Ok(Vec::new()) };
        self.search(async {
            let sql = format!(
                "select {} from error_group where namespace = $1 and (last_seen, fingerprint) < ($2, $3)
         order by last_seen desc, fingerprint desc limit $4",
                GroupRow::COLUMNS
            );
            let (at, fingerprint) = query.after.unwrap_or((Timestamp::MAX, i64::MAX));
            let rows = self.rows(&sql, &[&namespace, &at.0, &fingerprint, &i64::from(query.limit)]).await?;
            rows.iter().map(read_group).collect()
        })
        .await
    }

    async fn group(&self, namespace: &str, fingerprint: i64) -> Result<Option<Group>, StoreError> {
        let Some(namespace) = self.dictionary.namespace(namespace) else { return Ok(None) };
        let client = self.reader().await?;
        self.read(find_group(&*client, namespace, fingerprint, "")).await
    }

    async fn put_group(
        &self,
        namespace: &str,
        fingerprint: i64,
        deed: &TriageAction,
        audit: &Audit,
        now: Timestamp,
    ) -> Result<Option<Group>, StoreError> {
        let Some(namespace) = self.dictionary.namespace(namespace) else { return Ok(None) };
        let mut client = self.writer().await?;
        let tx = client.transaction().await?;
        let Some(mut group) = find_group(&tx, namespace, fingerprint, "for update").await? else { return Ok(None) };
        let before = group.facts();
        group.word = group.word.after(deed, audit.note.as_deref(), audit.actor.as_deref(), now);
        write_group(&tx, namespace, &group).await?;
        let audit = audit.clone().changed(None, Some(group.facts()));
        audit::note(&tx, Some(&audit), Some(before)).await?;
        tx.commit().await?;
        Ok(Some(group))
    }

    async fn reclassified(&self) -> Result<HashMap<String, HashMap<i64, Class>>, StoreError> {
        let sql = sql::error_groups::RECLASSIFIED.postgres;
        let mut found: HashMap<String, HashMap<i64, Class>> = HashMap::new();
        for row in self.rows(sql, &[]).await? {
            if let Some(class) = Class::from_code(row.get(2)) {
                found.entry(row.get(0)).or_default().insert(row.get(1), class);
            }
        }
        Ok(found)
    }

    async fn open_with(&self, namespace: &str, fingerprints: &[i64]) -> Result<HashMap<i64, u64>, StoreError> {
        let lanes = self.dictionary.lanes_in(namespace, |_| true);
        self.search(async {
            let sql = "select i.f, (select count(*) from task_open o where o.fingerprint = i.f and o.lane = any($2))
               from unnest($1::int8[]) as i(f)";
            let rows = self.rows(sql, &[&fingerprints, &lanes]).await?;
            Ok(rows.iter().map(|row| (row.get(0), row.get::<_, i64>(1).cast_unsigned())).collect())
        })
        .await
    }
}
