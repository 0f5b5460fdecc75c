//! Pauses of loops, idempotency keys and small facts about the store itself.

use async_trait::async_trait;
use comeback_core::{Audit, Timestamp};
use deadpool_postgres::{Client, GenericClient, Transaction};
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::apply::find_key;
use super::{PostgresStore, audit};
use crate::audit::{act_answer, pause_facts};
use crate::row::corrupt;
use crate::{ControlStore, Idempotency, Loop, Pause, PutIf, StoreError, Used, sql};

/// The whole transaction goes out in one write: retries that are due should not wait for round trips. The lock comes first and the
/// pause is looked at by a statement of its own, so a pause that was acknowledged is seen.
pub async fn unless_paused(
    client: &Client,
    name: Loop,
    sql: &str,
    params: &[&(dyn ToSql + Sync)],
) -> Result<Vec<Row>, StoreError> {
    let lock = client.prepare_cached(PAUSE_LOCK).await?;
    let statement = client.prepare_cached(sql).await?;
    let number = lock_number(name);
    let lock_params: [&(dyn ToSql + Sync); 1] = [&number];
    let (begun, locked, rows, committed) = tokio::join!(
        client.batch_execute("begin"),
        client.execute(&lock, &lock_params),
        client.query(&statement, params),
        client.batch_execute("commit"),
    );
    begun?;
    locked?;
    let rows = rows?;
    committed?;
    Ok(rows)
}

/// Lock numbers of the loops: work holds one shared, a pause takes it alone.
fn lock_number(name: Loop) -> i64 {
    let place = Loop::ALL.iter().position(|it| *it == name).unwrap_or(0);
    0x636f_6d65_0000_0000 + i64::try_from(place).unwrap_or(0)
}

pub const PAUSE_LOCK: &str = "select pg_advisory_xact_lock_shared($1)";

const IS_PAUSED: &str = sql::control::IS_PAUSED.postgres;

/// Whether the loop is paused at this moment.
pub async fn is_paused(client: &impl GenericClient, name: Loop, now: Timestamp) -> Result<bool, StoreError> {
    let statement = client.prepare_cached(IS_PAUSED).await?;
    Ok(client.query_one(&statement, &[&name.word(), &now.0]).await?.get(0))
}

/// Whether the loop is paused. If it is not, no pause can begin before this transaction ends: an acknowledged pause means that
/// nothing of the loop is still under way anywhere (R-I16).
pub async fn pause_lock(tx: &Transaction<'_>, name: Loop, now: Timestamp) -> Result<bool, StoreError> {
    let lock = tx.prepare_cached(PAUSE_LOCK).await?;
    let look = tx.prepare_cached(IS_PAUSED).await?;
    let number = lock_number(name);
    let word = name.word();
    let lock_params: [&(dyn ToSql + Sync); 1] = [&number];
    let look_params: [&(dyn ToSql + Sync); 2] = [&word, &now.0];
    let (locked, row) = tokio::join!(tx.execute(&lock, &lock_params), tx.query_one(&look, &look_params));
    locked?;
    Ok(row?.get(0))
}

pub async fn set_pause(
    store: &PostgresStore,
    name: Loop,
    pause: Option<&Pause>,
    audit: Option<&Audit>,
) -> Result<(), StoreError> {
    let mut client = store.writer().await?;
    let tx = client.transaction().await?;
    tx.execute("select pg_advisory_xact_lock($1)", &[&lock_number(name)]).await?;
    if audit.is_some() {
        let old = tx.query_opt(sql::control::PAUSE.postgres, &[&name.word()]).await?;
        let old = old.map(|row| pause_facts(row.get(0), row.get(1), row.get(2)));
        audit::note(&tx, audit, old).await?;
    }
    match pause {
        None => tx.execute(sql::control::DELETE_PAUSE.postgres, &[&name.word()]).await?,
        Some(pause) => {
            tx.execute(
                "insert into loop_pause (name, until, note, actor, at) values ($1, $2, $3, $4, $5)
                 on conflict (name) do update set until = excluded.until, note = excluded.note, actor = excluded.actor,
                   at = excluded.at",
                &[&name.word(), &pause.until.0, &pause.note, &pause.by, &pause.at.0],
            )
            .await?
        }
    };
    tx.commit().await?;
    Ok(())
}

#[async_trait]
impl ControlStore for PostgresStore {
    async fn set_pause(
        &self,
        name: Loop,
        pause: Option<Pause>,
        audit: Option<&Audit>,
        _now: Timestamp,
    ) -> Result<(), StoreError> {
        set_pause(self, name, pause.as_ref(), audit).await
    }

    async fn pauses(&self) -> Result<Vec<(Loop, Pause)>, StoreError> {
        let client = self.reader().await?;
        let rows = client.query(sql::control::PAUSES.postgres, &[]).await?;
        Ok(rows
            .iter()
            .filter_map(|row| {
                let pause =
                    Pause { until: Timestamp(row.get(1)), note: row.get(2), by: row.get(3), at: Timestamp(row.get(4)) };
                Loop::from_word(row.get(0)).map(|name| (name, pause))
            })
            .collect())
    }

    async fn meta(&self, key: &str) -> Result<Option<String>, StoreError> {
        let client = self.reader().await?;
        Ok(client.query_opt(sql::control::META.postgres, &[&key]).await?.map(|row| row.get(0)))
    }

    async fn put_meta(
        &self,
        key: &str,
        value: &str,
        when: PutIf<'_>,
        audit: Option<&Audit>,
    ) -> Result<String, StoreError> {
        let mut client = self.writer().await?;
        let client = client.transaction().await?;
        let written = match when {
            PutIf::Always => {
                let sql = sql::control::PUT_META.postgres;
                client.execute(sql, &[&key, &value]).await?
            }
            PutIf::Absent => {
                let sql = sql::control::ADD_META.postgres;
                client.execute(sql, &[&key, &value]).await?
            }
            PutIf::Is(known) => {
                let sql = sql::control::CHANGE_META.postgres;
                client.execute(sql, &[&key, &value, &known]).await?
            }
        };
        // By the count, not by looking again: somebody may have changed it since.
        if written > 0 {
            audit::note(&client, audit, None).await?;
            client.commit().await?;
            return Ok(value.to_owned());
        }
        let stands = client.query_opt(sql::control::META.postgres, &[&key]).await?;
        stands.map(|row| row.get(0)).ok_or_else(|| corrupt("a fact that was just written"))
    }

    async fn used(&self, namespace: &str, key: &Idempotency) -> Result<Option<Used>, StoreError> {
        self.read(async { find_key(&*self.reader().await?, namespace, key).await }).await
    }

    async fn kept_answer(&self, namespace: &str, key: &Idempotency) -> Result<Option<serde_json::Value>, StoreError> {
        let sql = "select answer from idempotency
                   where namespace = (select id from namespace where name = $1) and scope = $2 and key = $3";
        self.read(async {
            let found = self.reader().await?.query_opt(sql, &[&namespace, &key.scope, &key.key]).await?;
            Ok(found.and_then(|row| act_answer(row.get(0))))
        })
        .await
    }
}
