//! Lists: both halves asked with the same conditions, merged in the order that was asked for.

use comeback_core::{TaskId, Timestamp};
use rusqlite::{Connection, ToSql};
use uuid::Uuid;

use super::dependencies;
use super::statements::{Reader, stored_done, stored_open};
use crate::dependencies::{MOST_CLOSED, closed_names};
use crate::dictionary::Dictionary;
use crate::query::{Bind, FEW, Found, ListStatement, Plan, Shortcut, SqlDialect, Statement, TaskTable};
use crate::row::{DoneRow, FixedRow, OpenRow, columns, labels_from_json};
use crate::{ListQuery, Listed, Listing, StoreError, query};

struct SqliteWords;

impl SqlDialect for SqliteWords {
    fn mark(&self, n: usize, _: &Bind) -> String {
        format!("?{n}")
    }

    fn label(&self, name_mark: &str) -> String {
        format!("(select value from json_each(t.labels) where key = {name_mark})")
    }

    fn contains(&self, text: &str, part_mark: &str) -> String {
        format!("instr(lower({text}), {part_mark}) > 0")
    }

    fn starts_with(&self, text: &str, part_mark: &str) -> String {
        format!("substr({text}, 1, length({part_mark})) = {part_mark}")
    }

    fn id_text(&self, column: &str) -> String {
        format!("hex({column})")
    }

    fn member(&self, json: &str, name: &str) -> String {
        format!("cast({json} ->> '$.{name}' as text)")
    }

    fn indexed(&self, table: &str, index: &str) -> String {
        format!("{table} indexed by {index}")
    }

    fn looked_up(&self, table: &str, name: &str, before: &str) -> String {
        format!("cross join {table} {name} on {name}.id = {before}.id")
    }
}

pub fn list(
    connection: &Connection,
    dictionary: &Dictionary,
    namespace: &str,
    query: &ListQuery,
) -> Result<Listing, StoreError> {
    let mut found: Vec<Found> = Vec::new();
    let closed = closed_if_asked(connection, namespace, query)?;
    for half in [TaskTable::Open, TaskTable::Done] {
        let until = query::end_of_page(&mut found, query);
        let question =
            ListStatement { words: &SqliteWords, dictionary, namespace, query, half, until, closed: &closed };
        let Some(plan) = question.plan() else { continue };
        for statements in rounds(connection, plan)? {
            let before = found.len();
            for statement in &statements {
                found.extend(half_list(connection, dictionary, query, half, statement)?);
            }
            if found.len() - before > query.limit as usize {
                break;
            }
        }
    }
    Ok(query::page(found, query))
}

/// The short way where there is one.
fn rounds(connection: &Connection, plan: Plan) -> Result<Vec<Vec<Statement>>, StoreError> {
    for Shortcut { count, statements } in plan.shortcuts {
        let count = count.map(|sql| connection.prepare(&sql)?.query_row((), |row| row.get(0))).transpose()?;
        if count.unwrap_or(0) <= FEW {
            return Ok(vec![statements]);
        }
    }
    Ok(plan.rounds)
}

/// Nobody looks where that is not asked for.
fn closed_if_asked(connection: &Connection, namespace: &str, query: &ListQuery) -> Result<Vec<String>, StoreError> {
    if query::asks_for_held(query) { closed(connection, namespace, query.now) } else { Ok(Vec::new()) }
}

/// The dependencies that let nothing start.
pub fn closed(connection: &Connection, namespace: &str, now: Timestamp) -> Result<Vec<String>, StoreError> {
    Ok(closed_names(&dependencies::page(connection, namespace, "", MOST_CLOSED)?, now))
}

/// The ids of all that match at one moment.
pub fn matching(
    connection: &Connection,
    dictionary: &Dictionary,
    namespace: &str,
    query: &ListQuery,
) -> Result<Vec<TaskId>, StoreError> {
    // Both halves in one snapshot: a task that ends meanwhile is in one of them.
    connection.execute_batch("savepoint matching")?;
    let found = half_ids(connection, dictionary, namespace, query);
    connection.execute_batch("release matching")?;
    let mut found = found?;
    found.sort_unstable();
    found.truncate(query.limit as usize);
    Ok(found)
}

fn half_ids(
    connection: &Connection,
    dictionary: &Dictionary,
    namespace: &str,
    query: &ListQuery,
) -> Result<Vec<TaskId>, StoreError> {
    let mut found = Vec::new();
    let closed = closed_if_asked(connection, namespace, query)?;
    for half in [TaskTable::Open, TaskTable::Done] {
        let question =
            ListStatement { words: &SqliteWords, dictionary, namespace, query, half, until: None, closed: &closed };
        let Some(statement) = question.whole() else { continue };
        let Statement { from, condition, .. } = &statement;
        let sql = format!("select o.id from {from} where {condition} order by o.id limit {}", query.limit);
        let binds: Vec<Box<dyn ToSql>> = statement.binds.iter().map(bind).collect();
        let binds: Vec<&dyn ToSql> = binds.iter().map(AsRef::as_ref).collect();
        let mut prepared = connection.prepare(&sql)?;
        let rows = prepared.query_map(binds.as_slice(), |row| Ok(TaskId(Uuid::from_bytes(row.get(0)?))))?;
        found.extend(rows.collect::<rusqlite::Result<Vec<_>>>()?);
    }
    Ok(found)
}

fn half_list(
    connection: &Connection,
    dictionary: &Dictionary,
    query: &ListQuery,
    half: TaskTable,
    statement: &Statement,
) -> Result<Vec<Found>, StoreError> {
    let own = match half {
        TaskTable::Open => columns("o", OpenRow::COLUMNS),
        TaskTable::Done => format!("{}, {}", columns("o", DoneRow::COLUMNS), columns("t", FixedRow::COLUMNS)),
    };
    let sql = format!(
        "select {own}, p.sort_key, t.key, t.name, t.labels, t.external_id,
           {last_error}, {verdict}
         from {page} join {table} o on o.id = p.id join task t on t.id = p.id",
        last_error = query::last_error(&SqliteWords),
        verdict = query::verdict(&SqliteWords, half),
        page = statement.page(query.limit + 1),
        table = half.table(),
    );
    let binds: Vec<Box<dyn ToSql>> = statement.binds.iter().map(bind).collect();
    let binds: Vec<&dyn ToSql> = binds.iter().map(AsRef::as_ref).collect();
    let mut prepared = connection.prepare(&sql)?;
    let mut rows = prepared.query(binds.as_slice())?;
    let mut found = Vec::new();
    while let Some(row) = rows.next()? {
        let mut from = Reader { row, next: 0 };
        let stored = match half {
            TaskTable::Open => stored_open(connection, OpenRow::read(&mut from)?, dictionary)?,
            TaskTable::Done => {
                let done = DoneRow::read(&mut from)?;
                let fixed = FixedRow::read(&mut from)?;
                stored_done(connection, done, &fixed, dictionary)?
            }
        };
        let key: i64 = from.get()?;
        let id = stored.task.id.0;
        let item = Listed {
            stored,
            key: from.get()?,
            name: from.get()?,
            labels: labels_from_json(from.text()?.as_deref()),
            external_id: from.get()?,
            last_error: from.get()?,
            verdict: from.get()?,
        };
        found.push((key, id, item));
    }
    Ok(found)
}

fn bind(value: &Bind) -> Box<dyn ToSql> {
    match value {
        Bind::Int(number) => Box::new(*number),
        Bind::Text(text) => Box::new(text.clone()),
        Bind::Uuid(id) => Box::new(id.as_bytes().to_vec()),
    }
}
