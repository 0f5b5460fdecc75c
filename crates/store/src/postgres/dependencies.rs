//! Dependencies. A claim locks the rows that it takes from, after the locks of rules and before all others; so what it counts is so
//! until its commit.

use async_trait::async_trait;
use comeback_core::{Audit, Millis, Timestamp};
use deadpool_postgres::{GenericClient, Transaction};
use tokio_postgres::Row;

use super::claim::next_ready;
use super::{PostgresStore, audit, learn, rules};
use crate::dependencies::{Dependency, DependencyRow};
use crate::ready::ReadyWalk;
use crate::{DependencyStore, StoreError, sql};

const WHAT: &str = sql::resources::DEPENDENCIES.postgres;

fn read(row: &Row) -> Result<Dependency, StoreError> {
    let row = DependencyRow {
        namespace: row.get(0),
        name: row.get(1),
        version: row.get::<_, i32>(2).cast_unsigned(),
        settings: row.get(3),
        standing: row.get(4),
        created_at: row.get(5),
        updated_at: row.get(6),
    };
    row.read()
}

/// For a claim, in one order; locked where it is about to take.
pub async fn some(
    tx: &Transaction<'_>,
    namespace: &str,
    names: &[String],
    locked: bool,
) -> Result<Vec<Dependency>, StoreError> {
    if names.is_empty() {
        return Ok(Vec::new());
    }
    let lock = if locked { "for update of d" } else { "" };
    let sql = format!("{WHAT} where n.name = $1 and d.name = any($2) order by d.name {lock}");
    let statement = tx.prepare_cached(&sql).await?;
    tx.query(&statement, &[&namespace, &names]).await?.iter().map(read).collect()
}

pub async fn page(
    store: &PostgresStore,
    namespace: &str,
    after: &str,
    limit: u32,
) -> Result<Vec<Dependency>, StoreError> {
    let sql = format!("{WHAT} where n.name = $1 and d.name collate \"C\" > $2 order by d.name collate \"C\" limit $3");
    store.rows(&sql, &[&namespace, &after, &i64::from(limit)]).await?.iter().map(read).collect()
}

/// Whether the version that it names is still the one there is. Only then deadlines behind an instant are moved by a span.
pub async fn put(
    store: &PostgresStore,
    it: &Dependency,
    stopped: Option<(Timestamp, Millis)>,
    audit: Option<&Audit>,
    now: Timestamp,
) -> Result<bool, StoreError> {
    let mut client = store.writer().await?;
    if it.version == 0 {
        client.execute(sql::control::ADD_NAMESPACE.postgres, &[&it.namespace]).await?;
    }
    let tx = client.transaction().await?;
    let old = match audit {
        Some(_) => some(&tx, &it.namespace, std::slice::from_ref(&it.name), false).await?.pop(),
        None => None,
    };
    let written = write(&tx, it, now).await?;
    if let (true, Some((from, by))) = (written, stopped) {
        extend_deadlines(store, &tx, it, from, by).await?;
    }
    audit::note(&tx, audit.filter(|_| written), old.as_ref().map(Dependency::facts)).await?;
    tx.commit().await?;
    Ok(written)
}

pub async fn write(client: &impl GenericClient, it: &Dependency, now: Timestamp) -> Result<bool, StoreError> {
    let sql = match it.version {
        0 => {
            "insert into dependency (namespace, name, version, settings, standing, due, created_at, updated_at)
             select id, $2, $3 + 1, $4, $5, $6, $7, $7 from namespace where name = $1 on conflict do nothing"
        }
        _ => {
            "update dependency set version = version + 1, settings = $4, standing = $5, due = $6, updated_at = $7
             where namespace = (select id from namespace where name = $1) and name = $2 and version = $3"
        }
    };
    let statement = client.prepare_cached(sql).await?;
    let (version, due) = (it.version.cast_signed(), it.due(now));
    let (settings, standing) = (it.settings_text(), it.standing_text());
    let written =
        client.execute(&statement, &[&it.namespace, &it.name, &version, &settings, &standing, &due, &now.0]).await?;
    Ok(written > 0)
}

/// In one order, as everybody locks.
async fn extend_deadlines(
    store: &PostgresStore,
    tx: &Transaction<'_>,
    it: &Dependency,
    from: Timestamp,
    by: Millis,
) -> Result<(), StoreError> {
    let generation = rules::now_in_force(store, tx).await?.generation;
    learn::learn_limited(tx, &store.dictionary, generation).await?;
    let lanes = store.dictionary.under(&it.namespace, &it.name);
    let sql = "update task_open set expires_at = expires_at + $3, version = version + 1 where id = any(array(
                 select id from task_open where expires_at > $2 and lane = any($1) order by id for update))";
    tx.execute(sql, &[&lanes, &from.0, &by.0.cast_signed()]).await?;
    Ok(())
}

#[async_trait]
impl DependencyStore for PostgresStore {
    async fn dependency(&self, namespace: &str, name: &str) -> Result<Option<Dependency>, StoreError> {
        self.row(&format!("{WHAT} where n.name = $1 and d.name = $2"), &[&namespace, &name])
            .await?
            .as_ref()
            .map(read)
            .transpose()
    }

    async fn dependencies(&self, namespace: &str, after: &str, limit: u32) -> Result<Vec<Dependency>, StoreError> {
        page(self, namespace, after, limit).await
    }

    async fn due_dependencies(&self, now: Timestamp, limit: u32) -> Result<Vec<Dependency>, StoreError> {
        let sql = format!("{WHAT} where d.due <= $1 order by d.due, d.namespace, d.name limit $2");
        self.rows(&sql, &[&now.0, &i64::from(limit)]).await?.iter().map(read).collect()
    }

    async fn put_dependency(&self, it: &Dependency, audit: Option<&Audit>, now: Timestamp) -> Result<bool, StoreError> {
        put(self, it, None, audit, now).await
    }

    async fn delete_dependency(&self, namespace: &str, name: &str, audit: Option<&Audit>) -> Result<bool, StoreError> {
        let mut client = self.writer().await?;
        let tx = client.transaction().await?;
        let old = some(&tx, namespace, &[name.to_owned()], true).await?.pop();
        let sql = "delete from dependency d using namespace n where n.id = d.namespace and n.name = $1 and d.name = $2";
        tx.execute(sql, &[&namespace, &name]).await?;
        audit::note(&tx, audit.filter(|_| old.is_some()), old.as_ref().map(Dependency::facts)).await?;
        tx.commit().await?;
        Ok(old.is_some())
    }

    async fn announce(
        &self,
        it: &Dependency,
        stopped: Option<(Timestamp, Millis)>,
        audit: Option<&Audit>,
        now: Timestamp,
    ) -> Result<bool, StoreError> {
        put(self, it, stopped, audit, now).await
    }

    async fn is_waited_for(&self, namespace: &str, dependency: &str) -> Result<bool, StoreError> {
        self.read(async {
            let client = self.reader().await?;
            let generation: i64 = client.query_one(rules::GENERATION, &[]).await?.get(0);
            learn::learn_limited(&*client, &self.dictionary, generation).await?;
            let lanes = self.dictionary.under(namespace, dependency);
            let mut walk = ReadyWalk::new(&lanes, 0);
            while !walk.is_over() {
                if !next_ready(&*client, &mut walk, 1).await?.is_empty() {
                    return Ok(true);
                }
            }
            Ok(false)
        })
        .await
    }

    fn is_guarded(&self, namespace: &str, dependency: &str) -> bool {
        self.dictionary.is_guarded(namespace, dependency)
    }

    fn held_by_dependencies(&self) -> u64 {
        self.dictionary.held_back.load(std::sync::atomic::Ordering::Relaxed)
    }
}
