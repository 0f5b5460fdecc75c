//! The rows that instances share.

use async_trait::async_trait;
use comeback_core::{Audit, Quota, Timestamp};
use rusqlite::{Connection, OptionalExtension, Row};

use super::{SqliteStore, audit};
use crate::shared::*;
use crate::{StoreError, sql};

/// The next number of a list.
fn next_change(connection: &Connection, list: SharedList, removes: bool) -> rusqlite::Result<i64> {
    let sql = match removes {
        true => sql::shared::NEXT_REMOVAL.sqlite,
        false => sql::shared::NEXT_CHANGE.sqlite,
    };
    connection.prepare_cached(sql)?.query_row([list.name()], |row| row.get(0))
}

fn numbers(connection: &Connection) -> Result<ChangeNumbers, StoreError> {
    let mut numbers = ChangeNumbers::default();
    let mut statement = connection.prepare_cached(sql::shared::CHANGES.sqlite)?;
    let mut rows = statement.query(())?;
    while let Some(row) = rows.next()? {
        numbers.set(&row.get::<_, String>(0)?, ChangeNumber { last: row.get(1)?, removed: row.get(2)? });
    }
    Ok(numbers)
}

const KEY: &str = sql::shared::KEYS.sqlite;

fn key(row: &Row<'_>) -> rusqlite::Result<ApiKey> {
    let at = |column: usize| Ok::<_, rusqlite::Error>(row.get::<_, Option<i64>>(column)?.map(Timestamp));
    Ok(ApiKey {
        id: row.get(0)?,
        namespace: row.get(1)?,
        name: row.get(2)?,
        role: row.get(3)?,
        hash: row.get(4)?,
        terms: row.get(5)?,
        created_at: Timestamp(row.get(6)?),
        expires_at: at(7)?,
        revoked_at: at(8)?,
        replaced_by: row.get(9)?,
    })
}

/// Makes room for a new key and stores it.
fn insert_key(
    connection: &Connection,
    key: &ApiKey,
    most_active: u64,
    most: u64,
    now: Timestamp,
) -> Result<(), StoreError> {
    let sql = sql::shared::COUNT_KEYS.sqlite;
    let count = |row: &Row<'_>| Ok((row.get::<_, i64>(0)?.cast_unsigned(), row.get::<_, i64>(1)?.cast_unsigned()));
    let (all, active) = connection.prepare_cached(sql)?.query_row((&key.namespace, now.0), count)?;
    if active >= most_active {
        return Err(exceeded(Quota::Keys, &key.namespace, most));
    }
    let surplus = (all + 1).saturating_sub(most_active);
    if surplus > 0 {
        connection.prepare_cached(sql::shared::DELETE_OLD_KEYS.sqlite)?.execute((
            &key.namespace,
            now.0,
            i64::try_from(surplus).unwrap_or(i64::MAX),
        ))?;
    }
    let change = next_change(connection, SharedList::Keys, surplus > 0)?;
    connection.prepare_cached(sql::shared::ADD_KEY.sqlite)?.execute((
        &key.id,
        &key.namespace,
        &key.name,
        &key.role,
        &key.hash,
        &key.terms,
        key.created_at.0,
        key.expires_at.map(|at| at.0),
        key.revoked_at.map(|at| at.0),
        &key.replaced_by,
        change,
    ))?;
    Ok(())
}

fn has_key(connection: &Connection, id: &str) -> rusqlite::Result<bool> {
    connection.prepare_cached(sql::shared::HAS_KEY.sqlite)?.query_row([id], |row| row.get(0))
}

fn create_key(
    connection: &Connection,
    key: &ApiKey,
    most: u64,
    audit: Option<&Audit>,
    now: Timestamp,
) -> Result<KeyPut, StoreError> {
    if has_key(connection, &key.id)? {
        return Ok(KeyPut::Exists);
    }
    if let Some(name) = &key.name {
        let sql = sql::shared::IS_NAME_TAKEN.sqlite;
        let mut statement = connection.prepare_cached(sql)?;
        if statement.query_row((name, &key.namespace, now.0, ALL_NAMESPACES), |row| row.get(0))? {
            return Ok(KeyPut::NameTaken);
        }
    }
    insert_key(connection, key, most, most, now)?;
    audit::note(connection, audit, None)?;
    Ok(KeyPut::Done)
}

fn rotate_key(
    connection: &Connection,
    old: &str,
    ends_at: Timestamp,
    key: &ApiKey,
    most: u64,
    audit: Option<&Audit>,
    now: Timestamp,
) -> Result<KeyPut, StoreError> {
    if has_key(connection, &key.id)? {
        return Ok(KeyPut::Exists);
    }
    let change = next_change(connection, SharedList::Keys, false)?;
    let ended = connection
        .prepare_cached(
            "update api_key set expires_at = min(coalesce(expires_at, ?2), ?2), replaced_by = ?3, change = ?4
             where id = ?1 and revoked_at is null and (expires_at is null or expires_at > ?5) and replaced_by is null",
        )?
        .execute((old, ends_at.0, &key.id, change, now.0))?;
    if ended == 0 {
        return Ok(KeyPut::NotActive);
    }
    // The one that ends soon has a place of its own.
    insert_key(connection, key, most.saturating_mul(2), most, now)?;
    audit::note(connection, audit, None)?;
    Ok(KeyPut::Done)
}

fn policies(connection: &Connection, namespace: &str, kinds: &[String]) -> Result<Vec<KindPolicy>, StoreError> {
    let sql = "select namespace, kind, body, dialect from kind_policy where namespace = ?1 and kind = ?2";
    let mut statement = connection.prepare_cached(sql)?;
    let read = |row: &Row<'_>| {
        Ok(KindPolicy { namespace: row.get(0)?, kind: row.get(1)?, body: row.get(2)?, dialect: row.get(3)? })
    };
    let mut found = Vec::new();
    for kind in kinds {
        found.extend(statement.query_row((namespace, kind), read).optional()?);
    }
    Ok(found)
}

fn put_policy(
    connection: &Connection,
    policy: &KindPolicy,
    most: u64,
    audit: Option<&Audit>,
) -> Result<(), StoreError> {
    let KindPolicy { namespace, kind, body, dialect } = policy;
    let old = policies(connection, namespace, std::slice::from_ref(kind))?.pop();
    if old.is_none() {
        let sql = sql::shared::COUNT_POLICIES.sqlite;
        let count: i64 = connection.prepare_cached(sql)?.query_row([namespace], |row| row.get(0))?;
        if count.cast_unsigned() >= most {
            return Err(exceeded(Quota::NamedPolicies, namespace, most));
        }
    }
    let change = next_change(connection, SharedList::Policies, false)?;
    connection
        .prepare_cached(
            "insert or replace into kind_policy (namespace, kind, body, dialect, change) values (?1, ?2, ?3, ?4, ?5)",
        )?
        .execute((namespace, kind, body, dialect, change))?;
    audit::note(connection, audit, old.as_ref().map(policy_facts))
}

fn delete_policy(
    connection: &Connection,
    namespace: &str,
    kind: &str,
    audit: Option<&Audit>,
) -> Result<bool, StoreError> {
    let Some(old) = policies(connection, namespace, &[kind.to_owned()])?.pop() else { return Ok(false) };
    connection.execute(sql::shared::DELETE_POLICY.sqlite, (namespace, kind))?;
    next_change(connection, SharedList::Policies, true)?;
    audit::note(connection, audit, Some(policy_facts(&old)))?;
    Ok(true)
}

fn drained(row: &Row<'_>) -> rusqlite::Result<DrainedWorker> {
    Ok(DrainedWorker {
        namespace: row.get(0)?,
        name: row.get(1)?,
        at: Timestamp(row.get(2)?),
        by: row.get(3)?,
        note: row.get(4)?,
    })
}

const DRAINED: &str = sql::shared::DRAINED.sqlite;

fn drain(
    connection: &Connection,
    worker: &DrainedWorker,
    most: u64,
    old: Timestamp,
    audit: Option<&Audit>,
) -> Result<Drained, StoreError> {
    let DrainedWorker { namespace, name, at, by, note } = worker;
    let sql = format!("{DRAINED} where namespace = ?1 and name = ?2");
    if let Some(known) = connection.prepare_cached(&sql)?.query_row((namespace, name), drained).optional()? {
        return Ok(Drained::Already(known));
    }
    let count = || {
        let sql = sql::shared::COUNT_DRAINED.sqlite;
        connection.prepare_cached(sql)?.query_row([namespace], |row| row.get::<_, i64>(0))
    };
    let mut removes = false;
    if count()?.cast_unsigned() >= most {
        let gone = connection.execute(
            "delete from drained_worker where namespace = ?1 and at <= ?2
               and not exists (select 1 from worker w where w.namespace = ?1 and w.name = drained_worker.name)",
            (namespace, old.0),
        )?;
        if gone == 0 {
            return Ok(Drained::TooMany);
        }
        removes = true;
    }
    let change = next_change(connection, SharedList::DrainedWorkers, removes)?;
    connection.prepare_cached(sql::shared::ADD_DRAINED.sqlite)?.execute((namespace, name, at.0, by, note, change))?;
    audit::note(connection, audit, None)?;
    Ok(Drained::Done)
}

#[async_trait]
impl SharedStore for SqliteStore {
    async fn change_numbers(&self) -> Result<ChangeNumbers, StoreError> {
        self.read(|connection, _| numbers(connection)).await
    }

    async fn api_keys(&self, after: i64) -> Result<Vec<ApiKey>, StoreError> {
        self.read(move |connection, _| {
            let sql = format!("{KEY} where change > ?1 order by created_at, place");
            let mut statement = connection.prepare_cached(&sql)?;
            Ok(statement.query_map([after], key)?.collect::<Result<_, _>>()?)
        })
        .await
    }

    async fn list_keys(&self, namespace: Option<&str>) -> Result<Vec<ApiKey>, StoreError> {
        let namespace = namespace.map(str::to_owned);
        self.read(move |connection, _| {
            let sql = format!("{KEY} where ?1 is null or namespace = ?1 order by created_at, place");
            let mut statement = connection.prepare_cached(&sql)?;
            Ok(statement.query_map([namespace], key)?.collect::<Result<_, _>>()?)
        })
        .await
    }

    async fn create_key(
        &self,
        key: &ApiKey,
        most: u64,
        audit: Option<&Audit>,
        now: Timestamp,
    ) -> Result<KeyPut, StoreError> {
        let (key, audit) = (key.clone(), audit.cloned());
        self.writer.run(move |tx| create_key(tx.connection, &key, most, audit.as_ref(), now)).await
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
        let (old, key, audit) = (old.to_owned(), key.clone(), audit.cloned());
        self.writer.run(move |tx| rotate_key(tx.connection, &old, ends_at, &key, most, audit.as_ref(), now)).await
    }

    async fn revoke_key(&self, id: &str, audit: Option<&Audit>, now: Timestamp) -> Result<bool, StoreError> {
        let (id, audit) = (id.to_owned(), audit.cloned());
        self.writer
            .run(move |tx| {
                let change = next_change(tx.connection, SharedList::Keys, false)?;
                let sql = sql::shared::REVOKE_KEY.sqlite;
                let revoked = tx.connection.prepare_cached(sql)?.execute((&id, now.0, change))? > 0;
                audit::note(tx.connection, audit.as_ref().filter(|_| revoked), None)?;
                Ok(revoked)
            })
            .await
    }

    async fn kind_policy_names(&self, after: i64) -> Result<Vec<KindPolicyName>, StoreError> {
        self.read(move |connection, _| {
            let sql = sql::shared::POLICY_NAMES.sqlite;
            let mut statement = connection.prepare_cached(sql)?;
            let read =
                |row: &Row<'_>| Ok(KindPolicyName { namespace: row.get(0)?, kind: row.get(1)?, change: row.get(2)? });
            Ok(statement.query_map([after], read)?.collect::<Result<_, _>>()?)
        })
        .await
    }

    async fn kind_policies(&self, namespace: &str, kinds: &[String]) -> Result<Vec<KindPolicy>, StoreError> {
        let (namespace, kinds) = (namespace.to_owned(), kinds.to_vec());
        self.read(move |connection, _| policies(connection, &namespace, &kinds)).await
    }

    async fn put_kind_policy(&self, policy: &KindPolicy, most: u64, audit: Option<&Audit>) -> Result<(), StoreError> {
        let (policy, audit) = (policy.clone(), audit.cloned());
        self.writer.run(move |tx| put_policy(tx.connection, &policy, most, audit.as_ref())).await
    }

    async fn delete_kind_policy(&self, namespace: &str, kind: &str, audit: Option<&Audit>) -> Result<bool, StoreError> {
        let (namespace, kind, audit) = (namespace.to_owned(), kind.to_owned(), audit.cloned());
        self.writer.run(move |tx| delete_policy(tx.connection, &namespace, &kind, audit.as_ref())).await
    }

    async fn drained_workers(&self) -> Result<Vec<DrainedWorker>, StoreError> {
        self.read(|connection, _| {
            let mut statement = connection.prepare_cached(DRAINED)?;
            Ok(statement.query_map((), drained)?.collect::<Result<_, _>>()?)
        })
        .await
    }

    async fn drain_worker(
        &self,
        worker: &DrainedWorker,
        most: u64,
        old: Timestamp,
        audit: Option<&Audit>,
    ) -> Result<Drained, StoreError> {
        let (worker, audit) = (worker.clone(), audit.cloned());
        self.writer.run(move |tx| drain(tx.connection, &worker, most, old, audit.as_ref())).await
    }

    async fn undrain_worker(&self, namespace: &str, name: &str, audit: Option<&Audit>) -> Result<bool, StoreError> {
        let (namespace, name, audit) = (namespace.to_owned(), name.to_owned(), audit.cloned());
        self.writer
            .run(move |tx| {
                let sql = sql::shared::DELETE_DRAINED.sqlite;
                let removed = tx.connection.prepare_cached(sql)?.execute((&namespace, &name))? > 0;
                if removed {
                    next_change(tx.connection, SharedList::DrainedWorkers, true)?;
                    audit::note(tx.connection, audit.as_ref(), None)?;
                }
                Ok(removed)
            })
            .await
    }

    async fn put_workers(&self, instance: &str, workers: &[WorkerSeen]) -> Result<(), StoreError> {
        let (instance, workers) = (instance.to_owned(), workers.to_vec());
        self.writer
            .run(move |tx| {
                let mut statement = tx.connection.prepare_cached(
                    "insert into worker (namespace, name, instance, seen_at, leased, asks)
                     values (?1, ?2, ?3, ?4, ?5, coalesce(?6, '{}'))
                     on conflict do update set instance = ?3, seen_at = max(seen_at, ?4), leased = leased + ?5,
                       asks = coalesce(?6, asks)",
                )?;
                for it in &workers {
                    let leased = i64::try_from(it.leased).unwrap_or(i64::MAX);
                    statement.execute((&it.namespace, &it.name, &instance, it.seen_at.0, leased, &it.asks))?;
                }
                Ok(())
            })
            .await
    }

    async fn workers(&self, namespace: &str, after: Timestamp, limit: u32) -> Result<Vec<WorkerRow>, StoreError> {
        let namespace = namespace.to_owned();
        self.read(move |connection, _| {
            let sql = "select name, instance, seen_at, leased, asks from worker where namespace = ?1 and seen_at > ?2
                       order by seen_at desc, name limit ?3";
            let mut statement = connection.prepare_cached(sql)?;
            let read = |row: &Row<'_>| {
                Ok(WorkerRow {
                    name: row.get(0)?,
                    instance: row.get(1)?,
                    seen_at: Timestamp(row.get(2)?),
                    leased: row.get::<_, i64>(3)?.cast_unsigned(),
                    asks: row.get(4)?,
                })
            };
            Ok(statement.query_map((namespace, after.0, limit), read)?.collect::<Result<_, _>>()?)
        })
        .await
    }

    async fn has_worker(&self, namespace: &str, name: &str, after: Timestamp) -> Result<bool, StoreError> {
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        self.read(move |connection, _| {
            let sql = "select exists (select 1 from worker where namespace = ?1 and name = ?2 and seen_at > ?3)";
            Ok(connection.prepare_cached(sql)?.query_row((namespace, name, after.0), |row| row.get(0))?)
        })
        .await
    }

    async fn worker_counts(&self, after: Timestamp) -> Result<Vec<(String, u64)>, StoreError> {
        self.read(move |connection, _| {
            let sql = sql::shared::COUNT_WORKERS.sqlite;
            let mut statement = connection.prepare_cached(sql)?;
            let read = |row: &Row<'_>| Ok((row.get(0)?, row.get::<_, i64>(1)?.cast_unsigned()));
            Ok(statement.query_map([after.0], read)?.collect::<Result<_, _>>()?)
        })
        .await
    }

    async fn forget_workers(&self, before: Timestamp) -> Result<u64, StoreError> {
        self.writer
            .run(move |tx| Ok(tx.connection.execute("delete from worker where seen_at < ?1", [before.0])? as u64))
            .await
    }

    async fn put_instance(&self, instance: &InstanceRow, gone: Timestamp) -> Result<(), StoreError> {
        let it = instance.clone();
        self.writer
            .run(move |tx| {
                tx.connection.prepare_cached(sql::shared::DELETE_GONE_INSTANCES.sqlite)?.execute([gone.0])?;
                let sql = "insert or replace into instance (id, version, started_at, seen_at) values (?1, ?2, ?3, ?4)";
                let mut statement = tx.connection.prepare_cached(sql)?;
                statement.execute((&it.id, &it.version, it.started_at.0, it.seen_at.0))?;
                Ok(())
            })
            .await
    }

    async fn instances(&self) -> Result<Vec<InstanceRow>, StoreError> {
        self.read(|connection, _| {
            let sql = "select id, version, started_at, seen_at from instance order by id";
            let mut statement = connection.prepare_cached(sql)?;
            let read = |row: &Row<'_>| {
                Ok(InstanceRow {
                    id: row.get(0)?,
                    version: row.get(1)?,
                    started_at: Timestamp(row.get(2)?),
                    seen_at: Timestamp(row.get(3)?),
                })
            };
            Ok(statement.query_map((), read)?.collect::<Result<_, _>>()?)
        })
        .await
    }
}
