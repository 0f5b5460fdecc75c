//! Statistics. There is one writer, so whoever finds the place in the feed as it was read may add to the sums.

use std::sync::{Arc, LazyLock};

use async_trait::async_trait;
use comeback_core::error_group::Group;
use comeback_core::stats::{EarlierFailure, Fact, Fold};
use comeback_core::{Class, Timestamp};
use rusqlite::types::Value;
use rusqlite::{Connection, OptionalExtension, params_from_iter};
use uuid::Uuid;

use super::SqliteStore;
use super::error_groups::{find_group, forget_groups, write_group};
use super::feed::unpack;
use super::statements::Reader;
use crate::audit::Given;
use crate::dictionary::Dictionary;
use crate::events::MOST_EVENTS;
use crate::page::FeedCursor;
use crate::row::{HistoryRow, corrupt};
use crate::stats::{LEAN_HISTORY, Owner, StatsBatch, SumLine, SumsQuery, fact, keep, place, trouble};
use crate::{StatsStore, StoreError, sql};

/// Rows of the feed that are looked at in one go, each of which is a transaction.
const ROWS: u32 = 512;

pub fn pending_stats(connection: &Connection, dictionary: &Dictionary, limit: u32) -> Result<StatsBatch, StoreError> {
    let from: String = connection.query_row(sql::stats::PLACE.sqlite, (), |row| row.get(0))?;
    let rows: Vec<(u64, i32, Vec<u8>)> = connection
        .prepare_cached("select id, namespace, items from feed where id > ?1 order by id limit ?2")?
        .query_map((place(&from)?.row.cast_signed(), ROWS), |row| {
            Ok((row.get::<_, i64>(0)?.cast_unsigned(), row.get(1)?, row.get(2)?))
        })?
        .collect::<rusqlite::Result<_>>()?;
    let mut stretch = StatsBatch { to: from.clone(), from, facts: Vec::new(), more: rows.len() >= ROWS as usize };
    let mut items_read = 0;
    for (id, namespace, items) in rows {
        if items_read >= limit as usize {
            stretch.more = true;
            break;
        }
        let name = dictionary.namespace_name(namespace).ok_or_else(|| corrupt("a namespace in the feed"))?;
        for bytes in items.chunks_exact(24) {
            items_read += 1;
            let (subject, first, last) = unpack(bytes);
            // Its creation, which adds nothing.
            if first > 1 {
                facts_of(connection, dictionary, &name, (subject, first, last), &mut stretch.facts)?;
            }
        }
        stretch.to = FeedCursor::end_of(0, id).to_string();
    }
    Ok(stretch)
}

/// History rows that may hold the events between two numbers.
static TOLD: LazyLock<String> = LazyLock::new(|| {
    format!("select {} from history h where h.subject = ?1 and h.seq > ?2 and h.seq <= ?3", LEAN_HISTORY.as_str())
});

fn facts_of(
    connection: &Connection,
    dictionary: &Dictionary,
    namespace: &Arc<str>,
    (subject, first, last): (Uuid, u32, u32),
    into: &mut Vec<Fact>,
) -> Result<(), StoreError> {
    let low = i64::from(first) - i64::from(MOST_EVENTS);
    let rows: Vec<_> = connection
        .prepare_cached(&TOLD)?
        .query_map((subject.as_bytes().as_slice(), low, last), |row| HistoryRow::read(&mut Reader { row, next: 0 }))?
        .collect::<rusqlite::Result<_>>()?;
    for row in rows {
        let record = row.into_record()?;
        let is_told = (first..=last).contains(&record.last_seq());
        if !is_told || !Fact::counts(&record.events, record.outcome) {
            continue;
        }
        let Some(owner) = owner(connection, dictionary, namespace, subject)? else { continue };
        let trouble = match Fact::looks_back(record.run, &record.events, record.outcome) {
            true => trouble_before(connection, subject, record.seq)?,
            false => None,
        };
        into.push(fact(record, &owner, trouble));
    }
    Ok(())
}

fn owner(
    connection: &Connection,
    dictionary: &Dictionary,
    namespace: &Arc<str>,
    task: Uuid,
) -> Result<Option<Owner>, StoreError> {
    let found: Option<(i32, Option<i32>, Option<i64>)> = connection
        .prepare_cached("select lane, policy, cost from task where id = ?1")?
        .query_row([task.as_bytes().as_slice()], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
        .optional()?;
    let Some((lane, policy, cost)) = found else { return Ok(None) };
    let lane = dictionary.lane(lane).ok_or_else(|| corrupt(format!("lane {lane}")))?;
    let policy = policy.and_then(|id| super::statements::policy(connection, id, dictionary).ok());
    Ok(Some(Owner { namespace: namespace.clone(), lane, policy, cost }))
}

fn trouble_before(connection: &Connection, subject: Uuid, seq: u32) -> Result<Option<EarlierFailure>, StoreError> {
    let since: Option<i64> = connection
        .prepare_cached(
            "select at from history where subject = ?1 and seq < ?2 and outcome in (1, 2, 3) order by seq limit 1",
        )?
        .query_row((subject.as_bytes().as_slice(), seq), |row| row.get(0))
        .optional()?;
    let Some(since) = since else { return Ok(None) };
    let sql = format!(
        "select {} from history h where h.subject = ?1 and h.seq < ?2 and h.outcome in (1, 2, 3)
         order by h.seq desc limit 1",
        LEAN_HISTORY.as_str()
    );
    let last = connection
        .prepare_cached(&sql)?
        .query_row((subject.as_bytes().as_slice(), seq), |row| HistoryRow::read(&mut Reader { row, next: 0 }))?;
    Ok(trouble(since, last.into_record()?))
}

fn add(
    connection: &Connection,
    dictionary: &Dictionary,
    (from, to): (&str, &str),
    fold: &Fold,
    now: Timestamp,
) -> Result<bool, StoreError> {
    let sql = sql::stats::MOVE_ON.sqlite;
    if connection.prepare_cached(sql)?.execute((from, to, now.0))? == 0 {
        return Ok(false);
    }
    let number = |name: &str| dictionary.namespace(name).ok_or_else(|| corrupt("a namespace in the statistics"));
    for ((namespace, at, cell), sums) in &fold.sums {
        let id = cell.number(namespace);
        connection
            .prepare_cached(
                "insert into stat_cell
                   (id, namespace, kind, queue, dependency, strategy, class, fingerprint, attempt, origin, last_at)
                 values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)
                 on conflict (id) do update set last_at = max(last_at, excluded.last_at)",
            )?
            .execute((
                id,
                number(namespace)?,
                &cell.kind,
                &cell.queue,
                &cell.dependency,
                &cell.strategy,
                cell.class.map(Class::code),
                cell.fingerprint,
                cell.attempt,
                cell.origin.code(),
                at.0,
            ))?;
        let mut add = connection.prepare_cached(
            "insert into stat (at, cell, measure, value) values (?1, ?2, ?3, ?4)
             on conflict do update set value = value + excluded.value",
        )?;
        for (code, value) in sums.codes() {
            add.execute((at.0, id, code, value.cast_signed()))?;
        }
    }
    for ((namespace, fingerprint), news) in &fold.groups {
        let namespace = number(namespace)?;
        let old = find_group(connection, namespace, *fingerprint)?;
        if let Some(group) = Group::after(old, *fingerprint, news) {
            write_group(connection, namespace, &group)?;
        }
    }
    Ok(true)
}

pub fn sums(connection: &Connection, namespace: &str, query: &SumsQuery) -> Result<Vec<SumLine>, StoreError> {
    let (sql, given) = query.statement('?', namespace);
    let values = given.into_iter().map(|given| match given {
        Given::Text(text) => Value::Text(text),
        Given::Number(number) => Value::Integer(number),
        Given::Id(id) => Value::Blob(id.as_bytes().to_vec()),
    });
    let mut statement = connection.prepare_cached(&sql)?;
    let rows = statement.query_map(params_from_iter(values), |row| {
        Ok(query.line(row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?))
    })?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}

/// Whether there is more to do of it.
pub fn compact_stats(
    connection: &Connection,
    now: Timestamp,
    limit: u32,
    most_groups: u32,
) -> Result<bool, StoreError> {
    let mut more = false;
    for (before, span) in keep::steps(now) {
        let sql = "select min(at) from stat where at < ?1 and at % ?2 <> 0";
        let first: Option<i64> = connection.prepare_cached(sql)?.query_row((before, span), |row| row.get(0))?;
        let Some(first) = first else { continue };
        let start = first.div_euclid(span) * span;
        connection
            .prepare_cached(
                "insert into stat (at, cell, measure, value)
                 select ?1, cell, measure, sum(value) from stat where at > ?1 and at < ?1 + ?2 group by cell, measure
                 on conflict do update set value = value + excluded.value",
            )?
            .execute((start, span))?;
        connection.prepare_cached("delete from stat where at > ?1 and at < ?1 + ?2")?.execute((start, span))?;
        more = true;
    }
    let oldest = keep::oldest(now).0;
    let mut gone = connection.prepare_cached(sql::stats::DELETE_OLD.sqlite)?.execute((oldest, limit))?;
    if gone < limit as usize {
        gone += connection.prepare_cached(sql::stats::DELETE_OLD_CELLS.sqlite)?.execute((oldest, limit))?;
        gone += connection.prepare_cached(sql::stats::DELETE_OLD_GROUPS.sqlite)?.execute([oldest])?;
        connection.execute("delete from account_use where period < ?1", [keep::oldest_month(now)])?;
        forget_groups(connection, most_groups)?;
    }
    Ok(more || gone >= limit as usize)
}

#[async_trait]
impl StatsStore for SqliteStore {
    async fn pending_stats(&self, limit: u32) -> Result<StatsBatch, StoreError> {
        self.read(move |connection, dictionary| pending_stats(connection, dictionary, limit)).await
    }

    async fn fold(&self, stretch: &StatsBatch, fold: &Fold, now: Timestamp) -> Result<bool, StoreError> {
        let (from, to, fold) = (stretch.from.clone(), stretch.to.clone(), fold.clone());
        self.writer.run(move |tx| add(tx.connection, tx.dictionary, (&from, &to), &fold, now)).await
    }

    async fn sums(&self, namespace: &str, query: &SumsQuery) -> Result<Vec<SumLine>, StoreError> {
        let (namespace, query) = (namespace.to_owned(), query.clone());
        self.search(move |connection, _| sums(connection, &namespace, &query)).await
    }

    async fn compact_stats(&self, now: Timestamp, limit: u32, most_groups: u32) -> Result<bool, StoreError> {
        self.writer.run(move |tx| compact_stats(tx.connection, now, limit, most_groups)).await
    }
}
