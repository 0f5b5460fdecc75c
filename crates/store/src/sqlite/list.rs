//! Lists: both halves asked with the same conditions, merged in the order that was asked for.

use rusqlite::{Connection, ToSql};
use uuid::Uuid;

use super::statements::{Reader, read_done, read_fixed, read_open, stored_done, stored_open};
use crate::dictionary::Dictionary;
use crate::query::{self, Bind, Half, Words};
use crate::row::{DONE_COLUMNS, FIXED_COLUMNS, OPEN_COLUMNS, columns, labels_from_json};
use crate::types::{Listed, Listing};
use crate::{ListQuery, StoreError};

struct SqliteWords;

impl Words for SqliteWords {
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
}

pub fn list(
    connection: &Connection,
    dictionary: &Dictionary,
    namespace: &str,
    query: &ListQuery,
) -> Result<Listing, StoreError> {
    let mut found: Vec<(i64, Uuid, Listed)> = Vec::new();
    for half in [Half::Open, Half::Done] {
        if let Some(statement) = query::statement(&SqliteWords, dictionary, namespace, query, half) {
            found.extend(half_list(connection, dictionary, query, half, &statement)?);
        }
    }
    Ok(query::page(found, query))
}

fn half_list(
    connection: &Connection,
    dictionary: &Dictionary,
    query: &ListQuery,
    half: Half,
    statement: &query::Statement,
) -> Result<Vec<(i64, Uuid, Listed)>, StoreError> {
    let (table, own) = match half {
        Half::Open => ("task_open", columns("o", &OPEN_COLUMNS)),
        Half::Done => ("task_done", format!("{}, {}", columns("o", &DONE_COLUMNS), columns("t", &FIXED_COLUMNS))),
    };
    let sql = format!(
        "select {own}, {key}, t.key, t.name, t.labels, t.external_id,
           {last_error}, {verdict}
         from {table} o join task t on t.id = o.id where {condition} order by {order} limit {limit}",
        last_error = query::last_error(&SqliteWords),
        verdict = query::verdict(&SqliteWords, half),
        key = statement.key,
        condition = statement.condition,
        order = statement.order,
        limit = query.limit + 1,
    );
    let binds: Vec<Box<dyn ToSql>> = statement.binds.iter().map(bind).collect();
    let binds: Vec<&dyn ToSql> = binds.iter().map(AsRef::as_ref).collect();
    let mut prepared = connection.prepare(&sql)?;
    let mut rows = prepared.query(binds.as_slice())?;
    let mut found = Vec::new();
    while let Some(row) = rows.next()? {
        let mut from = Reader { row, next: 0 };
        let stored = match half {
            Half::Open => stored_open(read_open(&mut from)?, dictionary)?,
            Half::Done => {
                let done = read_done(&mut from)?;
                let fixed = read_fixed(&mut from)?;
                stored_done(done, &fixed, dictionary)?
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
