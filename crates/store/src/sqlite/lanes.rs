//! Forgetting lanes and policies that no task refers to. See `crate::dictionary` for why nobody stores a number that is gone.

use std::collections::BTreeSet;

use async_trait::async_trait;
use comeback_core::{Executor, Quotas, Timestamp};
use rusqlite::Connection;

use super::writer::Tx;
use super::{SqliteStore, setup, submit};
use crate::forget::{PAGE, empty_lanes};
use crate::rules::RULED_FROM;
use crate::{Forgotten, LaneStore, StoreError, Submission, sql};

/// The lanes of the next page that are empty, and where it ended.
type Page = (Vec<i32>, [Option<i32>; 2]);

pub async fn lanes(store: &SqliteStore, now: Timestamp) -> Result<Forgotten, StoreError> {
    let place = store.suspects.place();
    let (empty, ends) = store.read(move |connection, _| page(connection, place)).await?;
    let ripe = store.suspects.note(&empty, ends, now);
    let more = ends.iter().any(Option::is_some);
    if ripe.is_empty() {
        return Ok(Forgotten { lanes: 0, more });
    }
    let gone = store.forgetting(move |tx| delete_lanes(tx, &ripe)).await?;
    store.suspects.remove(&gone);
    Ok(Forgotten { lanes: gone.len() as u64, more })
}

fn page(connection: &Connection, (plain, limited): (i32, i32)) -> Result<Page, StoreError> {
    let (mut empty, mut ends) = (Vec::new(), [None; 2]);
    for (end, (is_limited, from)) in ends.iter_mut().zip([(false, plain), (true, limited)]) {
        let mut statement = connection.prepare_cached(&empty_lanes(is_limited, "?1", "?2"))?;
        let rows = statement.query_map((from, PAGE), |row| Ok((row.get(0)?, row.get(1)?)))?;
        let rows: Vec<(i32, bool)> = rows.collect::<rusqlite::Result<_>>()?;
        empty.extend(rows.iter().filter(|(_, is_empty)| *is_empty).map(|(id, _)| *id));
        *end = rows.last().map(|(id, _)| *id).filter(|_| rows.len() as i64 == PAGE);
    }
    Ok((empty, ends))
}

/// Deletes lanes that are still empty. The writer runs nothing else meanwhile.
fn delete_lanes(tx: &Tx<'_>, lanes: &[i32]) -> Result<Vec<i32>, StoreError> {
    let mut limited = tx.connection.prepare_cached(&format!(
        "delete from ruled_lane where id = ?1 and id < (select max(id) from ruled_lane)
           and not exists (select 1 from task_open o where o.lane = ?1 and o.lane >= {RULED_FROM})
           and not exists (select 1 from task t where t.lane = ?1)"
    ))?;
    let mut plain = tx.connection.prepare_cached(
        "delete from lane where id = ?1 and id < (select max(id) from lane)
           and not exists (select 1 from ruled_lane r where r.lane = ?1)
           and not exists (select 1 from task t where t.lane = ?1)",
    )?;
    let mut gone = Vec::new();
    for id in lanes {
        let statement = if *id >= RULED_FROM { &mut limited } else { &mut plain };
        if statement.execute([id])? > 0 {
            gone.push(*id);
        }
    }
    if !gone.is_empty() {
        let generation = raise(tx)?;
        tx.dictionary.forget(generation, &gone, &BTreeSet::new());
        hold_to(tx, generation);
    }
    Ok(gone)
}

/// A new generation, without another rule: tasks stay where they are.
fn raise(tx: &Tx<'_>) -> Result<i64, StoreError> {
    let sql = sql::rules::NEXT_GENERATION.sqlite;
    Ok(tx.connection.query_row(sql, (), |row| row.get(0))?)
}

fn hold_to(tx: &Tx<'_>, generation: i64) {
    let mut book = (*tx.dictionary.rules()).clone();
    book.generation = generation;
    tx.dictionary.set_rules(book);
}

/// In four steps: look which policies no task uses, take their numbers out of use, look again, and delete those that are still out
/// of use. Between the second and the third nobody can store a task with one of them without giving it its number again, which puts
/// it back into use.
pub async fn policies(store: &SqliteStore, beyond: u64) -> Result<u64, StoreError> {
    let count: i64 = store
        .read(|connection, _| Ok(connection.query_row(sql::lanes::COUNT_POLICIES.sqlite, (), |row| row.get(0))?))
        .await?;
    if count.cast_unsigned() <= beyond {
        return Ok(0);
    }
    let unused = store.read(|connection, _| unused_policies(connection)).await?;
    if unused.is_empty() {
        return Ok(0);
    }
    store
        .forgetting(move |tx| {
            let generation = raise(tx)?;
            let mut statement = tx.connection.prepare_cached("update policy set retired = ?2 where id = ?1")?;
            for id in &unused {
                statement.execute((id, generation))?;
            }
            tx.dictionary.forget(generation, &[], &unused);
            hold_to(tx, generation);
            Ok(Vec::new())
        })
        .await?;
    let unused = store.read(|connection, _| unused_policies(connection)).await?;
    let delete = move |tx: &mut Tx<'_>| {
        let mut statement = tx.connection.prepare_cached("delete from policy where id = ?1 and retired is not null")?;
        let mut gone = 0;
        for id in &unused {
            gone += statement.execute([id])?;
        }
        // Whatever was out of use and is used after all stays as it is.
        tx.connection.execute(sql::lanes::KEEP_POLICIES.sqlite, ())?;
        Ok(gone as u64)
    };
    store.writer.run(delete).await
}

fn unused_policies(connection: &Connection) -> Result<BTreeSet<i32>, StoreError> {
    let mut statement = connection.prepare(sql::lanes::USED_POLICIES.sqlite)?;
    let used = statement.query_map((), |row| row.get(0))?.collect::<rusqlite::Result<BTreeSet<i32>>>()?;
    let mut statement = connection.prepare(sql::lanes::POLICIES.sqlite)?;
    let all = statement.query_map((), |row| row.get(0))?.collect::<rusqlite::Result<BTreeSet<i32>>>()?;
    Ok(all.difference(&used).copied().collect())
}

impl SqliteStore {
    /// Reads again what the writer has forgotten with a commit that failed.
    async fn forgetting(
        &self,
        forget: impl FnMut(&mut Tx<'_>) -> Result<Vec<i32>, StoreError> + Send + 'static,
    ) -> Result<Vec<i32>, StoreError> {
        let forgotten = self.writer.run(forget).await;
        if forgotten.is_err() {
            self.writer.run(|tx| setup::load_dictionary(tx.connection, tx.dictionary)).await?;
        }
        forgotten
    }
}

#[async_trait]
impl LaneStore for SqliteStore {
    async fn learn(&self, submission: &Submission) -> Result<(), StoreError> {
        let news = self.dictionary.news(&self.dictionary.rules().place(std::slice::from_ref(submission)));
        submit::learn(self, news).await
    }

    async fn lane_namespaces(&self, executor: Option<Executor>) -> Result<Vec<String>, StoreError> {
        Ok(self.dictionary.lane_namespaces(executor))
    }

    fn set_quotas(&self, quotas: &Quotas) {
        self.dictionary.set_quotas(quotas);
    }

    async fn forget_unused(&self, now: Timestamp) -> Result<Forgotten, StoreError> {
        lanes(self, now).await
    }

    async fn forget_policies(&self, beyond: u64, _now: Timestamp) -> Result<u64, StoreError> {
        policies(self, beyond).await
    }
}
