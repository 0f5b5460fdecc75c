//! Bulk operations: rows that say how far each is, and marks that are written with the changes they stand for.

use std::collections::{BTreeMap, HashMap, HashSet};

use async_trait::async_trait;
use comeback_core::operation::Mark;
use comeback_core::{Audit, Commit, TaskId, Timestamp};
use deadpool_postgres::Transaction;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use super::control::pause_lock;
use super::{PostgresStore, audit};
use crate::operations::{
    Operation, OperationStep, Started, ids_of, parts, parts_of, recounts, state_of, wanted, was_text,
};
use crate::row::corrupt;
use crate::{Applied, Idempotency, Loop, OperationStore, StoreError, Used, sql};

const WHAT: &str = sql::operations::SELECT.postgres;

fn read(row: &Row) -> Result<Operation, StoreError> {
    let at = |column: usize| row.get::<_, Option<i64>>(column).map(Timestamp);
    Ok(Operation {
        id: row.get(0),
        namespace: row.get(1),
        version: row.get::<_, i32>(2).cast_unsigned(),
        state: state_of(row.get(3))?,
        total: row.get::<_, i32>(4).cast_unsigned(),
        due: at(5),
        body: row.get(6),
        standing: row.get(7),
        created_at: Timestamp(row.get(8)),
        updated_at: Timestamp(row.get(9)),
        ended_at: at(10),
        done: row.get::<_, i32>(11).cast_unsigned(),
        undone: row.get::<_, i32>(12).cast_unsigned(),
    })
}

async fn all(
    store: &PostgresStore,
    condition: &str,
    values: &[&(dyn ToSql + Sync)],
) -> Result<Vec<Operation>, StoreError> {
    store.rows(&format!("{WHAT} where {condition}"), values).await?.iter().map(read).collect()
}

/// Marks the steps that these commits take, before what they do: an abort that was acknowledged is seen, and waits for what is under
/// way. Answers those whose steps may be taken; the others are answered.
pub async fn take_steps(
    tx: &Transaction<'_>,
    commits: &[Commit],
    round: &[usize],
    answers: &mut [Applied],
) -> Result<Vec<usize>, StoreError> {
    let mut refused: HashSet<usize> = HashSet::new();
    for ((operation, is_taken_back), steps) in by_operation(commits, round) {
        let Some((_, first)) = steps.first() else { continue };
        let lock = tx.prepare_cached("select state from operation where id = $1 for share").await?;
        let state: Option<i16> = tx.query_opt(&lock, &[&operation]).await?.map(|row| row.get(0));
        if state != Some(wanted(first).code()) {
            for (index, _) in &steps {
                answers[*index] = Applied::Paused;
                refused.insert(*index);
            }
            continue;
        }
        let tasks: Vec<Uuid> = steps.iter().map(|(_, mark)| mark.task.0).collect();
        let rows = if is_taken_back {
            let sql = "update operation_task set undone = 1 where operation = $1 and task_id = any($2) and undone = 0
                       returning task_id";
            tx.query(&tx.prepare_cached(sql).await?, &[&operation, &tasks]).await?
        } else {
            let sql = "insert into operation_task (operation, task_id, was)
                       select $1, * from unnest($2::uuid[], $3::text[]) on conflict do nothing returning task_id";
            let was: Vec<String> = steps.iter().map(|(_, mark)| was_text(mark)).collect::<Result<_, _>>()?;
            tx.query(&tx.prepare_cached(sql).await?, &[&operation, &tasks, &was]).await?
        };
        let ours: HashSet<Uuid> = rows.iter().map(|row| row.get(0)).collect();
        for (index, mark) in &steps {
            if !ours.contains(&mark.task.0) {
                answers[*index] = Applied::Used(Used::ForThis);
                refused.insert(*index);
            }
        }
        // What a refused commit has marked beside that is as it was.
        let others = steps.iter().filter(|(index, mark)| refused.contains(index) && ours.contains(&mark.task.0));
        unmark(tx, operation, is_taken_back, others.map(|(_, mark)| mark.task.0).collect()).await?;
    }
    Ok(round.iter().copied().filter(|index| !refused.contains(index)).collect())
}

/// Steps whose commits were not written after all are not taken.
pub async fn leave_steps(
    tx: &Transaction<'_>,
    commits: &[Commit],
    round: &[usize],
    answers: &[Applied],
) -> Result<(), StoreError> {
    let left: Vec<usize> = round.iter().copied().filter(|index| answers[*index] != Applied::Done).collect();
    for ((operation, is_taken_back), steps) in by_operation(commits, &left) {
        let tasks = steps.iter().map(|(_, mark)| mark.task.0).collect();
        unmark(tx, operation, is_taken_back, tasks).await?;
    }
    Ok(())
}

async fn unmark(
    tx: &Transaction<'_>,
    operation: Uuid,
    is_taken_back: bool,
    tasks: Vec<Uuid>,
) -> Result<(), StoreError> {
    if tasks.is_empty() {
        return Ok(());
    }
    let sql = if is_taken_back {
        "update operation_task set undone = 0 where operation = $1 and task_id = any($2)"
    } else {
        "delete from operation_task where operation = $1 and task_id = any($2)"
    };
    tx.execute(&tx.prepare_cached(sql).await?, &[&operation, &tasks]).await?;
    Ok(())
}

/// The marks of these commits, by operation and direction, in the order of their tasks.
fn by_operation<'a>(commits: &'a [Commit], round: &[usize]) -> BTreeMap<(Uuid, bool), Vec<(usize, &'a Mark)>> {
    let mut groups: BTreeMap<(Uuid, bool), Vec<(usize, &Mark)>> = BTreeMap::new();
    for index in round {
        for mark in &commits[*index].marks {
            groups.entry((mark.operation, mark.was.is_none())).or_default().push((*index, mark));
        }
    }
    for steps in groups.values_mut() {
        steps.sort_unstable_by_key(|(_, mark)| mark.task);
    }
    groups
}

/// Deletes operations that ended before an instant, a few at a time; answers whether that was all.
pub async fn prune(tx: &Transaction<'_>, before: Timestamp, limit: u32) -> Result<bool, StoreError> {
    let sql = "select id from operation where ended_at < $1 order by id limit $2 for update skip locked";
    let ended: Vec<Uuid> = tx.query(sql, &[&before.0, &i64::from(limit)]).await?.iter().map(|row| row.get(0)).collect();
    let mut left = u64::from(limit);
    for id in &ended {
        let sql = "delete from operation_task where operation = $1 and task_id = any(array(
                     select task_id from operation_task where operation = $1 limit $2))";
        left -= tx.execute(sql, &[id, &i64::try_from(left).unwrap_or(i64::MAX)]).await?.min(left);
        if left == 0 {
            return Ok(false);
        }
        tx.execute(sql::operations::DELETE_IDS.postgres, &[id]).await?;
        tx.execute(sql::operations::DELETE.postgres, &[id]).await?;
    }
    Ok(ended.len() < limit as usize)
}

#[async_trait]
impl OperationStore for PostgresStore {
    /// The key comes before what it stands for: whoever uses it at the same moment waits for us here.
    async fn start_operation(
        &self,
        operation: &Operation,
        ids: &[TaskId],
        key: Option<&Idempotency>,
        audit: Option<&Audit>,
        now: Timestamp,
    ) -> Result<Started, StoreError> {
        let mut client = self.writer().await?;
        client.execute(sql::control::ADD_NAMESPACE.postgres, &[&operation.namespace]).await?;
        let tx = client.transaction().await?;
        if let Some(key) = key {
            let answer = operation.id.to_string();
            let taken = tx
                .execute(
                    "insert into idempotency (namespace, scope, key, digest, answer, at)
                     select id, $2, $3, $4, $5, $6 from namespace where name = $1 on conflict do nothing",
                    &[&operation.namespace, &key.scope, &key.key, &key.digest.as_slice(), &answer, &now.0],
                )
                .await?;
            if taken == 0 {
                let sql = "select digest, answer from idempotency
                           where namespace = (select id from namespace where name = $1) and scope = $2 and key = $3";
                let row = tx.query_one(sql, &[&operation.namespace, &key.scope, &key.key]).await?;
                if row.get::<_, &[u8]>(0) != key.digest {
                    return Ok(Started::Mismatch);
                }
                let first = row.get::<_, &str>(1).parse().map_err(|_| corrupt("the answer of a key"))?;
                return Ok(Started::Repeated(first));
            }
        }
        let (total, due) = (operation.total.cast_signed(), operation.due.map(|at| at.0));
        tx.execute(
            "insert into operation (id, namespace, version, state, total, due, body, standing, created_at, updated_at)
             select $2, id, 1, $3, $4, $5, $6, $7, $8, $8 from namespace where name = $1",
            &[
                &operation.namespace,
                &operation.id,
                &operation.state.code(),
                &total,
                &due,
                &operation.body,
                &operation.standing,
                &now.0,
            ],
        )
        .await?;
        let parts = parts(ids);
        tx.execute(
            "insert into operation_part (operation, part, ids)
             select $1, (place - 1)::int4, ids from unnest($2::bytea[]) with ordinality as part(ids, place)",
            &[&operation.id, &parts],
        )
        .await?;
        audit::note(&tx, audit, None).await?;
        tx.commit().await?;
        Ok(Started::New)
    }

    async fn operation(&self, namespace: &str, id: Uuid) -> Result<Option<Operation>, StoreError> {
        Ok(all(self, "o.id = $1 and n.name = $2", &[&id, &namespace]).await?.pop())
    }

    /// Newest first.
    async fn operations(
        &self,
        namespace: &str,
        before: Option<Uuid>,
        limit: u32,
    ) -> Result<Vec<Operation>, StoreError> {
        let before = before.unwrap_or(Uuid::max());
        let condition = "n.name = $1 and o.id < $2 order by o.id desc limit $3";
        all(self, condition, &[&namespace, &before, &i64::from(limit)]).await
    }

    async fn due_operations(&self, now: Timestamp, limit: u32) -> Result<Vec<Operation>, StoreError> {
        all(self, "o.due <= $1 order by o.due, o.id limit $2", &[&now.0, &i64::from(limit)]).await
    }

    async fn put_operation(
        &self,
        operation: &Operation,
        on_behalf_of: Option<Loop>,
        audit: Option<&Audit>,
        now: Timestamp,
    ) -> Result<Applied, StoreError> {
        let mut client = self.writer().await?;
        let tx = client.transaction().await?;
        if let Some(name) = on_behalf_of
            && pause_lock(&tx, name, now).await?
        {
            return Ok(Applied::Paused);
        }
        let statement = tx.prepare_cached(sql::operations::UPDATE.postgres).await?;
        let (version, due) = (operation.version.cast_signed(), operation.due.map(|at| at.0));
        let ended = operation.ended_at.map(|at| at.0);
        let (done, undone) = (operation.done.cast_signed(), operation.undone.cast_signed());
        let values: [&(dyn ToSql + Sync); 9] = [
            &operation.id,
            &version,
            &operation.state.code(),
            &due,
            &operation.standing,
            &now.0,
            &ended,
            &done,
            &undone,
        ];
        if tx.execute(&statement, &values).await? == 0 {
            return Ok(Applied::Stale);
        }
        for sql in recounts(operation) {
            tx.execute(sql, &[&operation.id]).await?;
        }
        audit::note(&tx, audit, None).await?;
        tx.commit().await?;
        Ok(Applied::Done)
    }

    async fn operation_ids(&self, id: Uuid, from: u32, to: u32) -> Result<Vec<TaskId>, StoreError> {
        let (first, last) = parts_of(from, to);
        let sql = sql::operations::IDS.postgres;
        let rows = self.rows(sql, &[&id, &first, &last]).await?;
        let rows: Vec<Vec<u8>> = rows.iter().map(|row| row.get(0)).collect();
        ids_of(&rows, from, to)
    }

    async fn marks(&self, id: Uuid, tasks: &[TaskId]) -> Result<HashMap<TaskId, OperationStep>, StoreError> {
        let sql = "select task_id, was, undone from operation_task where operation = $1 and task_id = any($2)";
        let tasks: Vec<Uuid> = tasks.iter().map(|task| task.0).collect();
        let rows = self.rows(sql, &[&id, &tasks]).await?;
        let mark = |row: &Row| OperationStep { was: row.get(1), undone: row.get::<_, i16>(2) != 0 };
        Ok(rows.iter().map(|row| (TaskId(row.get(0)), mark(row))).collect())
    }
}
