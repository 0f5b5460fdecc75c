//! Lists: both halves asked with the same conditions, merged in the order that was asked for.

use tokio_postgres::types::ToSql;
use uuid::Uuid;

use super::PostgresStore;
use super::learn;
use super::rows::{Reader, read_done, read_fixed, read_open};
use crate::query::{self, Bind, Half, Words};
use crate::row::{DONE_COLUMNS, FIXED_COLUMNS, OPEN_COLUMNS, columns, labels_from_json};
use crate::types::{Listed, Listing};
use crate::{ListQuery, StoreError};

struct PostgresWords;

impl Words for PostgresWords {
    fn mark(&self, n: usize, bind: &Bind) -> String {
        let kind = match bind {
            Bind::Int(_) => "int8",
            Bind::Text(_) => "text",
            Bind::Uuid(_) => "uuid",
        };
        format!("${n}::{kind}")
    }

    fn label(&self, name_mark: &str) -> String {
        format!("(t.labels ->> {name_mark})")
    }

    fn contains(&self, text: &str, part_mark: &str) -> String {
        format!("strpos(lower({text}), {part_mark}) > 0")
    }

    fn starts_with(&self, text: &str, part_mark: &str) -> String {
        format!("starts_with({text}, {part_mark})")
    }

    fn id_text(&self, column: &str) -> String {
        format!("replace({column}::text, '-', '')")
    }

    fn member(&self, json: &str, name: &str) -> String {
        format!("({json}::json ->> '{name}')")
    }
}

pub async fn list(store: &PostgresStore, namespace: &str, query: &ListQuery) -> Result<Listing, StoreError> {
    if store.dictionary.namespace(namespace).is_none() {
        learn::refresh(&store.pools.learn, &store.dictionary).await?;
    }
    let mut found = Vec::new();
    for half in [Half::Open, Half::Done] {
        if let Some(statement) = query::statement(&PostgresWords, &store.dictionary, namespace, query, half) {
            found.extend(half_list(store, query, half, &statement).await?);
        }
    }
    Ok(query::page(found, query))
}

async fn half_list(
    store: &PostgresStore,
    query: &ListQuery,
    half: Half,
    statement: &query::Statement,
) -> Result<Vec<(i64, Uuid, Listed)>, StoreError> {
    let (table, own) = match half {
        Half::Open => ("task_open", columns("o", &OPEN_COLUMNS)),
        Half::Done => ("task_done", format!("{}, {}", columns("o", &DONE_COLUMNS), columns("t", &FIXED_COLUMNS))),
    };
    let sql = format!(
        "select {own}, ({key})::int8, t.key, t.name, t.labels::text, t.external_id,
           {last_error}, {verdict}
         from {table} o join task t on t.id = o.id where {condition} order by {order} limit {limit}",
        last_error = query::last_error(&PostgresWords),
        verdict = query::verdict(&PostgresWords, half),
        key = statement.key,
        condition = statement.condition,
        order = statement.order,
        limit = query.limit + 1,
    );
    let params: Vec<&(dyn ToSql + Sync)> = statement
        .binds
        .iter()
        .map(|bind| match bind {
            Bind::Int(number) => number as &(dyn ToSql + Sync),
            Bind::Text(text) => text,
            Bind::Uuid(id) => id,
        })
        .collect();
    let client = store.reader().await?;
    let rows = client.query(&sql, &params).await?;
    drop(client);
    let mut readers: Vec<Reader<'_>> = rows.iter().map(Reader::new).collect();
    let stored = match half {
        Half::Open => {
            let open = readers.iter_mut().map(read_open).collect::<Result<Vec<_>, _>>()?;
            learn::stored_open(store, open).await?
        }
        Half::Done => {
            let mut done = Vec::with_capacity(rows.len());
            for from in &mut readers {
                done.push((read_done(from)?, read_fixed(from)?));
            }
            learn::stored_done(store, done).await?
        }
    };
    stored
        .into_iter()
        .zip(&mut readers)
        .map(|(stored, from)| {
            let key: i64 = from.get()?;
            let id = stored.task.id.0;
            let item = Listed {
                stored,
                key: from.get()?,
                name: from.get()?,
                labels: labels_from_json(from.get::<Option<&str>>()?),
                external_id: from.get()?,
                last_error: from.get()?,
                verdict: from.get()?,
            };
            Ok((key, id, item))
        })
        .collect()
}
