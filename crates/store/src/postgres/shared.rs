//! The rows that instances share. A change of a followed list first locks the row with its number, so that numbers are committed in
//! their order and what a change was decided by stays true until its commit.

use async_trait::async_trait;
use comeback_core::{Audit, Quota, Timestamp};
use deadpool_postgres::{GenericClient, Transaction};
use tokio_postgres::Row;

use super::{PostgresStore, audit};
use crate::shared::*;
use crate::{StoreError, sql};

/// Locks a list until the end of the transaction.
async fn lock(tx: &Transaction<'_>, list: SharedList) -> Result<(), StoreError> {
    let statement = tx.prepare_cached("select number from shared_change where name = $1 for update").await?;
    tx.query_one(&statement, &[&list.name()]).await?;
    Ok(())
}

/// The next number of a list.
async fn next_change(tx: &Transaction<'_>, list: SharedList, removes: bool) -> Result<i64, StoreError> {
    let sql = match removes {
        true => sql::shared::NEXT_REMOVAL.postgres,
        false => sql::shared::NEXT_CHANGE.postgres,
    };
    let statement = tx.prepare_cached(sql).await?;
    Ok(tx.query_one(&statement, &[&list.name()]).await?.get(0))
}

const KEY: &str = sql::shared::KEYS.postgres;

fn key(row: &Row) -> ApiKey {
    ApiKey {
        id: row.get(0),
        namespace: row.get(1),
        name: row.get(2),
        role: row.get(3),
        hash: row.get(4),
        terms: row.get(5),
        created_at: Timestamp(row.get(6)),
        expires_at: row.get::<_, Option<i64>>(7).map(Timestamp),
        revoked_at: row.get::<_, Option<i64>>(8).map(Timestamp),
        replaced_by: row.get(9),
    }
}

/// Makes room for a new key and stores it.
async fn insert_key(
    tx: &Transaction<'_>,
    key: &ApiKey,
    most_active: u64,
    most: u64,
    now: Timestamp,
) -> Result<(), StoreError> {
    let sql = sql::shared::COUNT_KEYS.postgres;
    let counts = tx.query_one(sql, &[&key.namespace, &now.0]).await?;
    let (all, active) = (counts.get::<_, i64>(0).cast_unsigned(), counts.get::<_, i64>(1).cast_unsigned());
    if active >= most_active {
        return Err(exceeded(Quota::Keys, &key.namespace, most));
    }
    let surplus = (all + 1).saturating_sub(most_active);
    if surplus > 0 {
        let sql = sql::shared::DELETE_OLD_KEYS.postgres;
        tx.execute(sql, &[&key.namespace, &now.0, &i64::try_from(surplus).unwrap_or(i64::MAX)]).await?;
    }
    let change = next_change(tx, SharedList::Keys, surplus > 0).await?;
    let sql = sql::shared::ADD_KEY.postgres;
    let (expires_at, revoked_at) = (key.expires_at.map(|at| at.0), key.revoked_at.map(|at| at.0));
    tx.execute(
        sql,
        &[
            &key.id,
            &key.namespace,
            &key.name,
            &key.role,
            &key.hash,
            &key.terms,
            &key.created_at.0,
            &expires_at,
            &revoked_at,
            &key.replaced_by,
            &change,
        ],
    )
    .await?;
    Ok(())
}

async fn has_key(tx: &Transaction<'_>, id: &str) -> Result<bool, StoreError> {
    Ok(tx.query_one(sql::shared::HAS_KEY.postgres, &[&id]).await?.get(0))
}

async fn policies(
    client: &impl GenericClient,
    namespace: &str,
    kinds: &[String],
) -> Result<Vec<KindPolicy>, StoreError> {
    let sql = "select namespace, kind, body, dialect from kind_policy where namespace = $1 and kind = any($2)";
    let statement = client.prepare_cached(sql).await?;
    let read =
        |row: &Row| KindPolicy { namespace: row.get(0), kind: row.get(1), body: row.get(2), dialect: row.get(3) };
    Ok(client.query(&statement, &[&namespace, &kinds]).await?.iter().map(read).collect())
}

const DRAINED: &str = sql::shared::DRAINED.postgres;

fn drained(row: &Row) -> DrainedWorker {
    DrainedWorker {
        namespace: row.get(0),
        name: row.get(1),
        at: Timestamp(row.get(2)),
        by: row.get(3),
        note: row.get(4),
    }
}

#[async_trait]
impl SharedStore for PostgresStore {
    async fn change_numbers(&self) -> Result<ChangeNumbers, StoreError> {
        let mut numbers = ChangeNumbers::default();
        for row in self.rows(sql::shared::CHANGES.postgres, &[]).await? {
            numbers.set(row.get(0), ChangeNumber { last: row.get(1), removed: row.get(2) });
        }
        Ok(numbers)
    }

    async fn api_keys(&self, after: i64) -> Result<Vec<ApiKey>, StoreError> {
        let sql = format!("{KEY} where change > $1 order by created_at, place");
        Ok(self.rows(&sql, &[&after]).await?.iter().map(key).collect())
    }

    async fn list_keys(&self, namespace: Option<&str>) -> Result<Vec<ApiKey>, StoreError> {
        let sql = format!("{KEY} where $1::text is null or namespace = $1 order by created_at, place");
        Ok(self.rows(&sql, &[&namespace]).await?.iter().map(key).collect())
    }

    async fn create_key(
        &self,
        key: &ApiKey,
        most: u64,
        audit: Option<&Audit>,
        now: Timestamp,
    ) -> Result<KeyPut, StoreError> {
        let mut client = self.writer().await?;
        let tx = client.transaction().await?;
        lock(&tx, SharedList::Keys).await?;
        if has_key(&tx, &key.id).await? {
            return Ok(KeyPut::Exists);
        }
        if let Some(name) = &key.name {
            let sql = sql::shared::IS_NAME_TAKEN.postgres;
            if tx.query_one(sql, &[name, &key.namespace, &now.0, &ALL_NAMESPACES]).await?.get(0) {
                return Ok(KeyPut::NameTaken);
            }
        }
        insert_key(&tx, key, most, most, now).await?;
        audit::note(&tx, audit, None).await?;
        tx.commit().await?;
        Ok(KeyPut::Done)
    }

    async fn rotate_key(
        &self,
        old: &str,
        ends_at: Timestamp,
        key: &ApiKey,
        most: u64,
        audit: Option<&Audit>,
        now: Timestamp,
    ) -> Result<KeyPut, StoreError> {
        let mut client = self.writer().await?;
        let tx = client.transaction().await?;
        lock(&tx, SharedList::Keys).await?;
        if has_key(&tx, &key.id).await? {
            return Ok(KeyPut::Exists);
        }
        let change = next_change(&tx, SharedList::Keys, false).await?;
        let sql = "update api_key set expires_at = least(coalesce(expires_at, $2), $2), replaced_by = $3, change = $4
                   where id = $1 and revoked_at is null and (expires_at is null or expires_at > $5) and replaced_by is null";
        if tx.execute(sql, &[&old, &ends_at.0, &key.id, &change, &now.0]).await? == 0 {
            return Ok(KeyPut::NotActive);
        }
        // The one that ends soon has a place of its own.
        insert_key(&tx, key, most.saturating_mul(2), most, now).await?;
        audit::note(&tx, audit, None).await?;
        tx.commit().await?;
        Ok(KeyPut::Done)
    }

    async fn revoke_key(&self, id: &str, audit: Option<&Audit>, now: Timestamp) -> Result<bool, StoreError> {
        let mut client = self.writer().await?;
        let tx = client.transaction().await?;
        let change = next_change(&tx, SharedList::Keys, false).await?;
        let sql = sql::shared::REVOKE_KEY.postgres;
        let revoked = tx.execute(sql, &[&id, &now.0, &change]).await? > 0;
        if revoked {
            audit::note(&tx, audit, None).await?;
            tx.commit().await?;
        }
        Ok(revoked)
    }

    async fn kind_policy_names(&self, after: i64) -> Result<Vec<KindPolicyName>, StoreError> {
        let sql = sql::shared::POLICY_NAMES.postgres;
        let read = |row: &Row| KindPolicyName { namespace: row.get(0), kind: row.get(1), change: row.get(2) };
        Ok(self.rows(sql, &[&after]).await?.iter().map(read).collect())
    }

    async fn kind_policies(&self, namespace: &str, kinds: &[String]) -> Result<Vec<KindPolicy>, StoreError> {
        let client = self.reader().await?;
        self.read(policies(&*client, namespace, kinds)).await
    }

    async fn put_kind_policy(&self, policy: &KindPolicy, most: u64, audit: Option<&Audit>) -> Result<(), StoreError> {
        let KindPolicy { namespace, kind, body, dialect } = policy;
        let mut client = self.writer().await?;
        let tx = client.transaction().await?;
        lock(&tx, SharedList::Policies).await?;
        let old = policies(&tx, namespace, std::slice::from_ref(kind)).await?.pop();
        if old.is_none() {
            let count = tx.query_one(sql::shared::COUNT_POLICIES.postgres, &[namespace]).await?;
            if count.get::<_, i64>(0).cast_unsigned() >= most {
                return Err(exceeded(Quota::NamedPolicies, namespace, most));
            }
        }
        let change = next_change(&tx, SharedList::Policies, false).await?;
        let sql = "insert into kind_policy (namespace, kind, body, dialect, change) values ($1, $2, $3, $4, $5)
                   on conflict (namespace, kind) do update set body = $3, dialect = $4, change = $5";
        tx.execute(sql, &[namespace, kind, body, dialect, &change]).await?;
        audit::note(&tx, audit, old.as_ref().map(policy_facts)).await?;
        tx.commit().await?;
        Ok(())
    }

    async fn delete_kind_policy(&self, namespace: &str, kind: &str, audit: Option<&Audit>) -> Result<bool, StoreError> {
        let mut client = self.writer().await?;
        let tx = client.transaction().await?;
        lock(&tx, SharedList::Policies).await?;
        let Some(old) = policies(&tx, namespace, &[kind.to_owned()]).await?.pop() else { return Ok(false) };
        tx.execute(sql::shared::DELETE_POLICY.postgres, &[&namespace, &kind]).await?;
        next_change(&tx, SharedList::Policies, true).await?;
        audit::note(&tx, audit, Some(policy_facts(&old))).await?;
        tx.commit().await?;
        Ok(true)
    }

    async fn drained_workers(&self) -> Result<Vec<DrainedWorker>, StoreError> {
        Ok(self.rows(DRAINED, &[]).await?.iter().map(drained).collect())
    }

    async fn drain_worker(
        &self,
        worker: &DrainedWorker,
        most: u64,
        old: Timestamp,
        audit: Option<&Audit>,
    ) -> Result<Drained, StoreError> {
        let DrainedWorker { namespace, name, at, by, note } = worker;
        let mut client = self.writer().await?;
        let tx = client.transaction().await?;
        lock(&tx, SharedList::DrainedWorkers).await?;
        let sql = format!("{DRAINED} where namespace = $1 and name = $2");
        if let Some(known) = tx.query_opt(&sql, &[namespace, name]).await? {
            return Ok(Drained::Already(drained(&known)));
        }
        let count = tx.query_one(sql::shared::COUNT_DRAINED.postgres, &[namespace]).await?;
        let mut removes = false;
        if count.get::<_, i64>(0).cast_unsigned() >= most {
            let sql = "delete from drained_worker d where namespace = $1 and at <= $2
                         and not exists (select 1 from worker w where w.namespace = $1 and w.name = d.name)";
            if tx.execute(sql, &[namespace, &old.0]).await? == 0 {
                return Ok(Drained::TooMany);
            }
            removes = true;
        }
        let change = next_change(&tx, SharedList::DrainedWorkers, removes).await?;
        let sql = sql::shared::ADD_DRAINED.postgres;
        tx.execute(sql, &[namespace, name, &at.0, by, note, &change]).await?;
        audit::note(&tx, audit, None).await?;
        tx.commit().await?;
        Ok(Drained::Done)
    }

    async fn undrain_worker(&self, namespace: &str, name: &str, audit: Option<&Audit>) -> Result<bool, StoreError> {
        let mut client = self.writer().await?;
        let tx = client.transaction().await?;
        lock(&tx, SharedList::DrainedWorkers).await?;
        let sql = sql::shared::DELETE_DRAINED.postgres;
        if tx.execute(sql, &[&namespace, &name]).await? == 0 {
            return Ok(false);
        }
        next_change(&tx, SharedList::DrainedWorkers, true).await?;
        audit::note(&tx, audit, None).await?;
        tx.commit().await?;
        Ok(true)
    }

    async fn put_workers(&self, instance: &str, workers: &[WorkerSeen]) -> Result<(), StoreError> {
        // In one order, so that two instances never wait for each other.
        let mut sorted: Vec<&WorkerSeen> = workers.iter().collect();
        sorted.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
        let namespaces: Vec<&str> = sorted.iter().map(|it| it.namespace.as_str()).collect();
        let names: Vec<&str> = sorted.iter().map(|it| it.name.as_str()).collect();
        let seen: Vec<i64> = sorted.iter().map(|it| it.seen_at.0).collect();
        let leased: Vec<i64> = sorted.iter().map(|it| i64::try_from(it.leased).unwrap_or(i64::MAX)).collect();
        let asks: Vec<Option<&str>> = sorted.iter().map(|it| it.asks.as_deref()).collect();
        // An empty text leaves what is stored.
        let sql = "insert into worker as w (namespace, name, instance, seen_at, leased, asks)
                   select t.namespace, t.name, $1, t.seen_at, t.leased, coalesce(t.asks, '')
                   from unnest($2::text[], $3::text[], $4::int8[], $5::int8[], $6::text[])
                     with ordinality as t(namespace, name, seen_at, leased, asks, n) order by t.n
                   on conflict (namespace, name) do update set instance = excluded.instance,
                     seen_at = greatest(w.seen_at, excluded.seen_at), leased = w.leased + excluded.leased,
                     asks = case excluded.asks when '' then w.asks else excluded.asks end";
        let client = self.writer().await?;
        let statement = client.prepare_cached(sql).await?;
        client.execute(&statement, &[&instance, &namespaces, &names, &seen, &leased, &asks]).await?;
        Ok(())
    }

    async fn workers(&self, namespace: &str, after: Timestamp, limit: u32) -> Result<Vec<WorkerRow>, StoreError> {
        let sql = "select name, instance, seen_at, leased, case asks when '' then '{}' else asks end from worker
                   where namespace = $1 and seen_at > $2
                   order by seen_at desc, name collate \"C\" limit $3";
        let read = |row: &Row| WorkerRow {
            name: row.get(0),
            instance: row.get(1),
            seen_at: Timestamp(row.get(2)),
            leased: row.get::<_, i64>(3).cast_unsigned(),
            asks: row.get(4),
        };
        Ok(self.rows(sql, &[&namespace, &after.0, &i64::from(limit)]).await?.iter().map(read).collect())
    }

    async fn has_worker(&self, namespace: &str, name: &str, after: Timestamp) -> Result<bool, StoreError> {
        let sql = "select 1 from worker where namespace = $1 and name = $2 and seen_at > $3";
        Ok(!self.rows(sql, &[&namespace, &name, &after.0]).await?.is_empty())
    }

    async fn worker_counts(&self, after: Timestamp) -> Result<Vec<(String, u64)>, StoreError> {
        let sql = sql::shared::COUNT_WORKERS.postgres;
        let read = |row: &Row| (row.get(0), row.get::<_, i64>(1).cast_unsigned());
        Ok(self.rows(sql, &[&after.0]).await?.iter().map(read).collect())
    }

    async fn forget_workers(&self, before: Timestamp) -> Result<u64, StoreError> {
        let client = self.writer().await?;
        // Whoever is being written at this moment is not old.
        let sql = "delete from worker where (namespace, name) in
                     (select namespace, name from worker where seen_at < $1 for update skip locked)";
        Ok(client.execute(sql, &[&before.0]).await?)
    }

    async fn put_instance(&self, instance: &InstanceRow, gone: Timestamp) -> Result<(), StoreError> {
        let InstanceRow { id, version, started_at, seen_at } = instance;
        let client = self.writer().await?;
        let sql = "insert into instance (id, version, started_at, seen_at) values ($1, $2, $3, $4)
                   on conflict (id) do update set version = $2, started_at = $3, seen_at = $4";
        let statement = client.prepare_cached(sql).await?;
        client.execute(&statement, &[id, version, &started_at.0, &seen_at.0]).await?;
        client.execute(sql::shared::DELETE_GONE_INSTANCES.postgres, &[&gone.0]).await?;
        Ok(())
    }

    async fn instances(&self) -> Result<Vec<InstanceRow>, StoreError> {
        let sql = "select id, version, started_at, seen_at from instance order by id collate \"C\"";
        let read = |row: &Row| InstanceRow {
            id: row.get(0),
            version: row.get(1),
            started_at: Timestamp(row.get(2)),
            seen_at: Timestamp(row.get(3)),
        };
        Ok(self.rows(sql, &[]).await?.iter().map(read).collect())
    }
}
