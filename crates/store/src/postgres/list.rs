//! Lists: both halves asked with the same conditions, merged in the order that was asked for.

use comeback_core::{TaskId, Timestamp};
use tokio_postgres::types::ToSql;

use super::rows::Reader;
use super::{PostgresStore, dependencies, learn};
use crate::dependencies::{MOST_CLOSED, closed_names};
use crate::query::{Bind, FEW, Found, ListStatement, Plan, Shortcut, SqlDialect, Statement, TaskTable};
use crate::row::{DoneRow, FixedRow, OpenRow, columns, labels_from_json};
use crate::{ListQuery, Listed, Listing, StoreError, query};

struct PostgresWords;

impl SqlDialect for PostgresWords {
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

    fn indexed(&self, table: &str, _: &str) -> String {
        table.to_owned()
    }

    fn looked_up(&self, table: &str, name: &str, before: &str) -> String {
        format!("cross join lateral (select * from {table} where id = {before}.id offset 0) {name}")
    }
}

pub async fn list(store: &PostgresStore, namespace: &str, query: &ListQuery) -> Result<Listing, StoreError> {
    know_lanes(store, namespace).await?;
    let mut found = Vec::new();
    let closed = closed_if_asked(store, namespace, query).await?;
    for half in [TaskTable::Open, TaskTable::Done] {
        let until = query::end_of_page(&mut found, query);
        let question = ListStatement { until, ..question(store, namespace, query, half, &closed) };
        let Some(plan) = question.plan() else { continue };
        for statements in rounds(store, plan).await? {
            let before = found.len();
            for statement in &statements {
                found.extend(half_list(store, query, half, statement).await?);
            }
            if found.len() - before > query.limit as usize {
                break;
            }
        }
    }
    Ok(query::page(found, query))
}

/// Which lanes are meant is said by what is known here: what another instance has just added is looked up first.
async fn know_lanes(store: &PostgresStore, namespace: &str) -> Result<(), StoreError> {
    if !learn::has_grown(store).await? && store.dictionary.namespace(namespace).is_none() {
        learn::refresh(&store.pools.learn, &store.dictionary).await?;
    }
    Ok(())
}

pub(super) fn question<'a>(
    store: &'a PostgresStore,
    namespace: &'a str,
    query: &'a ListQuery,
    half: TaskTable,
    closed: &'a [String],
) -> ListStatement<'a> {
    ListStatement { words: &PostgresWords, dictionary: &store.dictionary, namespace, query, half, until: None, closed }
}

/// The short way where there is one.
async fn rounds(store: &PostgresStore, plan: Plan) -> Result<Vec<Vec<Statement>>, StoreError> {
    for Shortcut { count, statements } in plan.shortcuts {
        let count = match count {
            None => 0,
            Some(sql) => store.reader().await?.query_one(&sql, &[]).await?.get(0),
        };
        if count <= FEW {
            return Ok(vec![statements]);
        }
    }
    Ok(plan.rounds)
}

/// Nobody looks where that is not asked for.
async fn closed_if_asked(store: &PostgresStore, namespace: &str, query: &ListQuery) -> Result<Vec<String>, StoreError> {
    if query::asks_for_held(query) { closed(store, namespace, query.now).await } else { Ok(Vec::new()) }
}

/// The dependencies that let nothing start.
pub async fn closed(store: &PostgresStore, namespace: &str, now: Timestamp) -> Result<Vec<String>, StoreError> {
    Ok(closed_names(&dependencies::page(store, namespace, "", MOST_CLOSED).await?, now))
}

/// The ids of all that match at one moment.
pub async fn matching(store: &PostgresStore, namespace: &str, query: &ListQuery) -> Result<Vec<TaskId>, StoreError> {
    know_lanes(store, namespace).await?;
    let closed = closed_if_asked(store, namespace, query).await?;
    let mut client = store.reader().await?;
    // Both halves in one snapshot: a task that ends meanwhile is in one of them.
    let isolation = tokio_postgres::IsolationLevel::RepeatableRead;
    let tx = client.build_transaction().isolation_level(isolation).read_only(true).start().await?;
    let mut found: Vec<TaskId> = Vec::new();
    for half in [TaskTable::Open, TaskTable::Done] {
        let Some(statement) = question(store, namespace, query, half, &closed).whole() else { continue };
        let Statement { from, condition, .. } = &statement;
        let sql = format!("select o.id from {from} where {condition} order by o.id limit {}", query.limit);
        let rows = tx.query(&sql, &params(&statement)).await?;
        found.extend(rows.iter().map(|row| TaskId(row.get(0))));
    }
    found.sort_unstable();
    found.truncate(query.limit as usize);
    Ok(found)
}

fn params(statement: &Statement) -> Vec<&(dyn ToSql + Sync)> {
    let mut params: Vec<&(dyn ToSql + Sync)> = Vec::with_capacity(statement.binds.len());
    for bind in &statement.binds {
        params.push(match bind {
            Bind::Int(number) => number,
            Bind::Text(text) => text,
            Bind::Uuid(id) => id,
        });
    }
    params
}

async fn half_list(
    store: &PostgresStore,
    query: &ListQuery,
    half: TaskTable,
    statement: &Statement,
) -> Result<Vec<Found>, StoreError> {
    let own = match half {
        TaskTable::Open => columns("o", OpenRow::COLUMNS),
        TaskTable::Done => format!("{}, {}", columns("o", DoneRow::COLUMNS), columns("t", FixedRow::COLUMNS)),
    };
    let sql = format!(
        "select {own}, p.sort_key, t.key, t.name, t.labels::text, t.external_id,
           {last_error}, {verdict}
         from {page} join {table} o on o.id = p.id join task t on t.id = p.id",
        last_error = query::last_error(&PostgresWords),
        verdict = query::verdict(&PostgresWords, half),
        page = statement.page(query.limit + 1),
        table = half.table(),
    );
    let client = store.reader().await?;
    let rows = client.query(&sql, &params(statement)).await?;
    drop(client);
    let mut readers: Vec<Reader<'_>> = rows.iter().map(Reader::new).collect();
    let stored = match half {
        TaskTable::Open => {
            let open = readers.iter_mut().map(OpenRow::read).collect::<Result<Vec<_>, _>>()?;
            learn::stored_open(store, open).await?
        }
        TaskTable::Done => {
            let mut done = Vec::with_capacity(rows.len());
            for from in &mut readers {
                done.push((DoneRow::read(from)?, FixedRow::read(from)?));
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
