//! Deleting what ended long ago.

use async_trait::async_trait;
use comeback_core::Timestamp;
use uuid::Uuid;

use super::{PostgresStore, operations, sequence};
use crate::check::PRUNED_BEFORE;
use crate::row::{oldest_id, whole_ones};
use crate::{Pruned, Retention, StoreError, sql};

#[async_trait]
impl Retention for PostgresStore {
    async fn prune(&self, before: Timestamp, limit: u32) -> Result<Pruned, StoreError> {
        // What has no position yet would stay.
        self.sequencer.run().await?;
        let mut client = self.writer().await?;
        let tx = client.transaction().await?;
        let lone = tx
            .query(
                "delete from task_done where id = any(array(select id from task_done
                   where id < $3 and execution_id is null and ended_at < $1 order by id limit $2
                   for update skip locked)) returning id",
                &[&before.0, &i64::from(limit), &oldest_id(before)],
            )
            .await?;
        let mut ids: Vec<Uuid> = lone.iter().map(|row| row.get(0)).collect();
        let at_limit = |count: u64| count >= u64::from(limit);
        let mut more = at_limit(lone.len() as u64);
        let found = tx
            .query(
                "select id, total from execution
                 where id < $3 and state in (3, 4, 5) and ended_at < $1 and open = 0 order by id limit $2
                 for update skip locked",
                &[&before.0, &i64::from(limit), &oldest_id(before)],
            )
            .await?;
        let (executions, more_of_them): (Vec<Uuid>, bool) =
            whole_ones(found.iter().map(|row| (row.get(0), row.get(1))).collect(), limit);
        more |= more_of_them;
        if !executions.is_empty() {
            tx.execute("delete from execution where id = any($1)", &[&executions]).await?;
            let inside = tx.query("select id from task where execution_id = any($1)", &[&executions]).await?;
            let inside: Vec<Uuid> = inside.iter().map(|row| row.get(0)).collect();
            tx.execute("delete from task_done where id = any($1)", &[&inside]).await?;
            tx.execute("delete from edge where from_id = any($1)", &[&inside]).await?;
            tx.execute("delete from history where subject = any($1)", &[&executions]).await?;
            ids.extend(inside);
        }
        tx.execute("delete from history where subject = any($1)", &[&ids]).await?;
        tx.execute("delete from task where id = any($1)", &[&ids]).await?;
        tx.execute("delete from task_payload where task_id = any($1)", &[&ids]).await?;
        let told = sequence::prune(&tx, before.0, i64::from(limit)).await?;
        let keys = tx.execute(sql::control::DELETE_OLD_KEYS.postgres, &[&before.0, &i64::from(limit)]).await?;
        more |= !operations::prune(&tx, before, limit).await?;
        if !ids.is_empty() || told > 0 {
            tx.execute(
                "insert into meta (key, value) values ($1, $2) on conflict (key) do update set value = excluded.value
                 where excluded.value::int8 > meta.value::int8",
                &[&PRUNED_BEFORE, &before.0.to_string()],
            )
            .await?;
        }
        tx.commit().await?;
        Ok(Pruned { tasks: ids.len() as u64, more: more || at_limit(told) || at_limit(keys) })
    }

    /// Whole executions, and lone tasks, that ended long enough ago; with each go its body, its history and its edges.
    async fn prunable(&self, before: Timestamp) -> Result<u64, StoreError> {
        self.search(async {
            let row = self
                .reader()
                .await?
                .query_one(sql::retention::COUNT_OLD.postgres, &[&before.0, &oldest_id(before)])
                .await?;
            Ok(row.get::<_, i64>(0).cast_unsigned())
        })
        .await
    }
}
