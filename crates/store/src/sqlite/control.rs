//! Pauses of loops, idempotency keys and small facts about the store itself.

use async_trait::async_trait;
use comeback_core::{Audit, Timestamp};
use rusqlite::{Connection, OptionalExtension};

use super::writer::Tx;
use super::{SqliteStore, apply, audit};
use crate::audit::pause_facts;
use crate::row::corrupt;
use crate::{ControlStore, Idempotency, Loop, Pause, PutIf, StoreError, Used, sql};

pub fn pauses(connection: &Connection) -> Result<Vec<(Loop, Pause)>, StoreError> {
    let mut pauses = Vec::new();
    let mut statement = connection.prepare_cached(sql::control::PAUSES.sqlite)?;
    let mut rows = statement.query(())?;
    while let Some(row) = rows.next()? {
        let name: String = row.get(0)?;
        let pause =
            Pause { until: Timestamp(row.get(1)?), note: row.get(2)?, by: row.get(3)?, at: Timestamp(row.get(4)?) };
        pauses.extend(Loop::from_word(&name).map(|name| (name, pause)));
    }
    Ok(pauses)
}

pub fn meta(connection: &Connection, key: &str) -> Result<Option<String>, StoreError> {
    Ok(connection.query_row(sql::control::META.sqlite, [key], |row| row.get(0)).optional()?)
}

pub fn is_paused(connection: &Connection, name: Loop, now: Timestamp) -> rusqlite::Result<bool> {
    connection.prepare_cached(sql::control::IS_PAUSED.sqlite)?.query_row((name.word(), now.0), |row| row.get(0))
}

pub fn set_pause(tx: &mut Tx<'_>, name: Loop, pause: Option<&Pause>, audit: Option<&Audit>) -> Result<(), StoreError> {
    if audit.is_some() {
        let sql = sql::control::PAUSE.sqlite;
        let facts = |row: &rusqlite::Row<'_>| {
            let (note, by): (Option<String>, Option<String>) = (row.get(1)?, row.get(2)?);
            Ok(pause_facts(row.get(0)?, note.as_deref(), by.as_deref()))
        };
        let old = tx.connection.query_row(sql, [name.word()], facts).optional()?;
        audit::note(tx.connection, audit, old)?;
    }
    match pause {
        None => tx.connection.execute(sql::control::DELETE_PAUSE.sqlite, [name.word()])?,
        Some(pause) => tx.connection.execute(
            "insert or replace into loop_pause (name, until, note, actor, at) values (?1, ?2, ?3, ?4, ?5)",
            (name.word(), pause.until.0, &pause.note, &pause.by, pause.at.0),
        )?,
    };
    Ok(())
}

pub fn put_meta(
    tx: &mut Tx<'_>,
    key: &str,
    value: &str,
    when: PutIf<'_>,
    audit: Option<&Audit>,
) -> Result<String, StoreError> {
    let written = match when {
        PutIf::Always => {
            tx.connection.execute("insert or replace into meta (key, value) values (?1, ?2)", (key, value))?
        }
        PutIf::Absent => {
            let sql = sql::control::ADD_META.sqlite;
            tx.connection.execute(sql, (key, value))?
        }
        PutIf::Is(known) => {
            let sql = sql::control::CHANGE_META.sqlite;
            tx.connection.execute(sql, (key, value, known))?
        }
    };
    audit::note(tx.connection, audit.filter(|_| written > 0), None)?;
    let stands = tx.connection.query_row(sql::control::META.sqlite, [key], |row| row.get(0)).optional()?;
    stands.ok_or_else(|| corrupt("a fact that was just written"))
}

#[async_trait]
impl ControlStore for SqliteStore {
    async fn set_pause(
        &self,
        name: Loop,
        pause: Option<Pause>,
        audit: Option<&Audit>,
        _now: Timestamp,
    ) -> Result<(), StoreError> {
        let audit = audit.cloned();
        self.writer.run(move |tx| set_pause(tx, name, pause.as_ref(), audit.as_ref())).await
    }

    async fn pauses(&self) -> Result<Vec<(Loop, Pause)>, StoreError> {
        self.read(|connection, _| pauses(connection)).await
    }

    async fn meta(&self, key: &str) -> Result<Option<String>, StoreError> {
        let key = key.to_owned();
        self.read(move |connection, _| meta(connection, &key)).await
    }

    async fn put_meta(
        &self,
        key: &str,
        value: &str,
        when: PutIf<'_>,
        audit: Option<&Audit>,
    ) -> Result<String, StoreError> {
        let (key, value, audit) = (key.to_owned(), value.to_owned(), audit.cloned());
        let only_if = match when {
            PutIf::Always => None,
            PutIf::Absent => Some(None),
            PutIf::Is(known) => Some(Some(known.to_owned())),
        };
        let put = move |tx: &mut Tx<'_>| {
            let when =
                only_if.as_ref().map_or(PutIf::Always, |known| known.as_deref().map_or(PutIf::Absent, PutIf::Is));
            put_meta(tx, &key, &value, when, audit.as_ref())
        };
        self.writer.run(put).await
    }

    async fn used(&self, namespace: &str, key: &Idempotency) -> Result<Option<Used>, StoreError> {
        let (namespace, key) = (namespace.to_owned(), key.clone());
        self.read(move |connection, _| apply::used(connection, &namespace, &key)).await
    }

    async fn kept_answer(&self, namespace: &str, key: &Idempotency) -> Result<Option<serde_json::Value>, StoreError> {
        let (namespace, key) = (namespace.to_owned(), key.clone());
        self.read(move |connection, _| apply::kept_answer(connection, &namespace, &key)).await
    }
}
