//! Changing labels, priority and policy of a task.

use comeback_core::{Audit, TaskId, Timestamp};
use rusqlite::{Connection, OptionalExtension};

use super::writer::Tx;
use super::{SqliteStore, audit, submit};
use crate::row::labels_to_json;
use crate::rules::{RuleTables, Whose};
use crate::{Description, StoreError, TaskQueries, rules, sql};

pub async fn describe(
    store: &SqliteStore,
    id: TaskId,
    change: &Description,
    entry: Option<&Audit>,
    now: Timestamp,
) -> Result<bool, StoreError> {
    let described = loop {
        if let Some(Some(policy)) = &change.retry {
            let namespace = store.load(&[id]).await?.pop().flatten().map(|stored| stored.task.lane.namespace.clone());
            let Some(namespace) = namespace else { return Ok(false) };
            submit::learn(store, store.dictionary.news_of(&namespace, policy)).await?;
        }
        let (wanted, entry) = (change.clone(), entry.cloned());
        let written = store.writer.run(move |tx| write(tx, id, &wanted, entry.as_ref(), now)).await?;
        if let Some(described) = written {
            break described;
        }
    };
    if described && change.labels.is_some() {
        let tasks = store.belongings(Whose::Task(id.0)).await?;
        rules::put_where_they_belong(store, tasks).await?;
    }
    Ok(described)
}

/// Whether it was written. Nothing where its policy must be given a number again.
fn write(
    tx: &mut Tx<'_>,
    id: TaskId,
    change: &Description,
    entry: Option<&Audit>,
    now: Timestamp,
) -> Result<Option<bool>, StoreError> {
    let (connection, key) = (tx.connection, id.0.as_bytes().as_slice());
    if !is_as_seen(connection, key, change)? {
        return Ok(Some(false));
    }
    let policy = match &change.retry {
        Some(Some(policy)) => match tx.dictionary.policy_id(policy) {
            Some(id) => Some(id),
            // It was forgotten since.
            None => return Ok(None),
        },
        _ => None,
    };
    if let Some(priority) = change.priority {
        let sql =
            "update task_open set prio = ?2, version = version + 1, updated_at = max(?3, updated_at) where id = ?1";
        connection.prepare_cached(sql)?.execute((key, -priority, now.0))?;
        connection.prepare_cached(sql::tasks::SET_PRIORITY.sqlite)?.execute((key, priority))?;
    }
    if change.retry.is_some() {
        let sql = "update task_open set policy = ?2, rule_counts = null, version = version + 1, updated_at = max(?3, updated_at)
             where id = ?1";
        connection.prepare_cached(sql)?.execute((key, policy, now.0))?;
        for table in ["task_done", "task"] {
            connection.execute(&format!("update {table} set policy = ?2 where id = ?1"), (key, policy))?;
        }
    }
    if let Some((_, labels)) = &change.labels {
        let sql = "update task set labels = ?2 where id = ?1";
        connection.prepare_cached(sql)?.execute((key, labels_to_json(labels)))?;
    }
    entry.map_or(Ok(()), |entry| audit::write(connection, entry))?;
    Ok(Some(true))
}

fn is_as_seen(connection: &Connection, key: &[u8], change: &Description) -> Result<bool, StoreError> {
    let sql = "select t.labels, o.id is not null from task t left join task_open o on o.id = t.id where t.id = ?1";
    let row = |row: &rusqlite::Row<'_>| Ok((row.get::<_, Option<String>>(0)?, row.get::<_, bool>(1)?));
    let Some((labels, open)) = connection.prepare_cached(sql)?.query_row([key], row).optional()? else {
        return Ok(false);
    };
    let same = change.labels.as_ref().is_none_or(|(before, _)| labels_to_json(before) == labels);
    Ok(same && (open || change.priority.is_none()))
}
