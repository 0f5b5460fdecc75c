//! Changing labels, priority and policy of a task.

use comeback_core::{Audit, TaskId, Timestamp};

use super::{PostgresStore, audit, learn};
use crate::row::{labels_from_json, labels_to_json};
use crate::rules::{RuleTables, Whose};
use crate::{Description, StoreError, TaskQueries, rules, sql};

pub async fn describe(
    store: &PostgresStore,
    id: TaskId,
    change: &Description,
    entry: Option<&Audit>,
    now: Timestamp,
) -> Result<bool, StoreError> {
    if let Some(Some(policy)) = &change.retry {
        let namespace = store.load(&[id]).await?.pop().flatten().map(|stored| stored.task.lane.namespace.clone());
        let Some(namespace) = namespace else { return Ok(false) };
        learn::learn(store, store.dictionary.news_of(&namespace, policy)).await?;
    }
    if !write(store, id, change, entry, now).await? {
        return Ok(false);
    }
    if change.labels.is_some() {
        let tasks = store.belongings(Whose::Task(id.0)).await?;
        rules::put_where_they_belong(store, tasks).await?;
    }
    Ok(true)
}

async fn write(
    store: &PostgresStore,
    id: TaskId,
    change: &Description,
    entry: Option<&Audit>,
    now: Timestamp,
) -> Result<bool, StoreError> {
    let mut client = store.writer().await?;
    let tx = client.transaction().await?;
    if let Some(priority) = change.priority {
        let sql = "update task_open set prio = $2, version = version + 1, updated_at = greatest($3, updated_at) where id = $1";
        if tx.execute(sql, &[&id.0, &-priority, &now.0]).await? == 0 {
            return Ok(false);
        }
        tx.execute(sql::tasks::SET_PRIORITY.postgres, &[&id.0, &priority]).await?;
    }
    if let Some(policy) = &change.retry {
        let forgotten = || StoreError::Unavailable("the policy was forgotten at the same moment".into());
        let known = |policy| store.dictionary.policy_id(policy).ok_or_else(forgotten);
        let policy = policy.as_ref().map(known).transpose()?;
        // From here on it is not deleted, and before it was not.
        let sql = "select 1 from policy where id = $1 and retired is null for share";
        if policy.is_some() && tx.query_opt(sql, &[&policy]).await?.is_none() {
            return Err(forgotten());
        }
        let sql = "update task_open set policy = $2, rule_counts = null, version = version + 1, updated_at = greatest($3, updated_at)
             where id = $1";
        let open = tx.execute(sql, &[&id.0, &policy, &now.0]).await?;
        let done = tx.execute("update task_done set policy = $2 where id = $1", &[&id.0, &policy]).await?;
        // It went from one to the other in between, or is gone.
        if open + done != 1 {
            return Ok(false);
        }
        tx.execute("update task set policy = $2 where id = $1", &[&id.0, &policy]).await?;
    }
    if let Some((before, after)) = &change.labels {
        let row = tx.query_opt("select labels::text from task where id = $1 for update", &[&id.0]).await?;
        if row.is_none_or(|row| labels_from_json(row.get(0)) != *before) {
            return Ok(false);
        }
        let sql = "update task set labels = $2::text::jsonb where id = $1";
        tx.execute(sql, &[&id.0, &labels_to_json(after)]).await?;
    }
    if let Some(entry) = entry {
        audit::write(&tx, entry).await?;
    }
    tx.commit().await?;
    Ok(true)
}
