//! Statistics. Whoever moves the place in the feed holds its row until the sums are committed with it; others find it moved.

use std::collections::HashMap;

use async_trait::async_trait;
use comeback_core::error_group::Group;
use comeback_core::stats::{Fact, Fold};
use comeback_core::{Class, Record, Timestamp};
use deadpool_postgres::Transaction;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use super::error_groups::{find_group, forget_groups, write_group};
use super::feed::{FeedRow, ROWS, rows_from, up_to_date};
use super::queries::snapshot;
use super::rows::Reader;
use super::{PostgresStore, learn};
use crate::audit::Given;
use crate::events::MOST_EVENTS;
use crate::page::FeedCursor;
use crate::row::{HistoryRow, corrupt};
use crate::stats::{LEAN_HISTORY, Owner, StatsBatch, SumLine, SumsQuery, fact, keep, place, trouble};
use crate::{StatsStore, StoreError, sql};

async fn facts(store: &PostgresStore, tx: &Transaction<'_>, rows: &[FeedRow]) -> Result<Vec<Fact>, StoreError> {
    let (mut ids, mut firsts, mut lasts): (Vec<Uuid>, Vec<i32>, Vec<i32>) = Default::default();
    for row in rows {
        // What begins with the first event is a creation, which adds nothing.
        for item in (0..row.ids.len()).filter(|item| row.firsts[*item] > 1) {
            ids.push(row.ids[item]);
            firsts.push(row.firsts[item]);
            lasts.push(row.lasts[item]);
        }
    }
    if ids.is_empty() {
        return Ok(Vec::new());
    }
    let sql = format!(
        "select {}, t.lane, t.policy, t.cost::int8
         from unnest($1::uuid[], $2::int4[], $3::int4[]) as i(id, first, last)
         cross join lateral (select * from history x where x.subject = i.id and x.seq > i.first - {MOST_EVENTS}
             and x.seq <= i.last and x.seq + length(x.events) - 1 between i.first and i.last) h
         join task t on t.id = i.id",
        LEAN_HISTORY.as_str()
    );
    let statement = tx.prepare_cached(&sql).await?;
    let mut found: Vec<(Record, Numbers)> = Vec::new();
    for row in tx.query(&statement, &[&ids, &firsts, &lasts]).await? {
        let mut from = Reader::new(&row);
        let record = HistoryRow::read(&mut from)?.into_record()?;
        if Fact::counts(&record.events, record.outcome) {
            found.push((record, (from.get()?, from.get()?, from.get()?)));
        }
    }
    let used = learn::know(store, found.iter().map(|(_, (lane, policy, _))| (*lane, *policy))).await?;
    let mut troubles = troubles(tx, &found).await?;
    let mut facts = Vec::with_capacity(found.len());
    for (record, (lane, policy, cost)) in found {
        // One of a newer version, of which nobody here knows what it is.
        let Some(lane) = store.dictionary.lane(lane) else { continue };
        let policy = policy.and_then(|id| used.get(&id).cloned());
        let owner = Owner { namespace: lane.namespace.as_str().into(), lane, policy, cost };
        let before = troubles.remove(&(record.subject, record.seq));
        let before = before.and_then(|(since, last)| trouble(since, last));
        facts.push(fact(record, &owner, before));
    }
    Ok(facts)
}

/// The lane, the policy and the cost of a task.
type Numbers = (i32, Option<i32>, Option<i64>);

type Troubles = HashMap<(Uuid, u32), (i64, Record)>;

async fn troubles<T>(tx: &Transaction<'_>, found: &[(Record, T)]) -> Result<Troubles, StoreError> {
    let looks_back = |record: &&Record| Fact::looks_back(record.run, &record.events, record.outcome);
    let asked: Vec<&Record> = found.iter().map(|(record, _)| record).filter(looks_back).collect();
    if asked.is_empty() {
        return Ok(Troubles::new());
    }
    let ids: Vec<Uuid> = asked.iter().map(|record| record.subject).collect();
    let before: Vec<i32> = asked.iter().map(|record| record.seq.cast_signed()).collect();
    let sql = format!(
        "select {}, i.before, f.at
         from unnest($1::uuid[], $2::int4[]) as i(id, before)
         cross join lateral (select x.at from history x where x.subject = i.id and x.seq < i.before
             and x.outcome in (1, 2, 3) order by x.seq limit 1) f
         cross join lateral (select * from history x where x.subject = i.id and x.seq < i.before
             and x.outcome in (1, 2, 3) order by x.seq desc limit 1) h",
        LEAN_HISTORY.as_str()
    );
    let statement = tx.prepare_cached(&sql).await?;
    let mut troubles = Troubles::new();
    for row in tx.query(&statement, &[&ids, &before]).await? {
        let mut from = Reader::new(&row);
        let last = HistoryRow::read(&mut from)?.into_record()?;
        let (before, since): (i32, i64) = (from.get()?, from.get()?);
        troubles.insert((last.subject, before.cast_unsigned()), (since, last));
    }
    Ok(troubles)
}

async fn add(store: &PostgresStore, (from, to): (&str, &str), fold: &Fold, now: Timestamp) -> Result<bool, StoreError> {
    let mut client = store.writer().await?;
    let tx = client.transaction().await?;
    let sql = sql::stats::MOVE_ON.postgres;
    if tx.execute(sql, &[&from, &to, &now.0]).await? == 0 {
        return Ok(false);
    }
    add_sums(store, &tx, fold).await?;
    for ((namespace, fingerprint), news) in &fold.groups {
        let namespace = number(store, namespace)?;
        let old = find_group(&tx, namespace, *fingerprint, "for update").await?;
        if let Some(group) = Group::after(old, *fingerprint, news) {
            write_group(&tx, namespace, &group).await?;
        }
    }
    tx.commit().await?;
    Ok(true)
}

fn number(store: &PostgresStore, namespace: &str) -> Result<i32, StoreError> {
    store.dictionary.namespace(namespace).ok_or_else(|| corrupt("a namespace in the statistics"))
}

async fn add_sums(store: &PostgresStore, tx: &Transaction<'_>, fold: &Fold) -> Result<(), StoreError> {
    if fold.sums.is_empty() {
        return Ok(());
    }
    let new_cell = tx
        .prepare_cached(
            "insert into stat_cell as c
               (id, namespace, kind, queue, dependency, strategy, class, fingerprint, attempt, origin, last_at)
             values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)
             on conflict (id) do update set last_at = excluded.last_at where c.last_at < excluded.last_at",
        )
        .await?;
    let (mut ats, mut cells, mut measures, mut values) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for ((namespace, at, cell), sums) in &fold.sums {
        let id = cell.number(namespace);
        let (class, attempt) = (cell.class.map(Class::code), cell.attempt.cast_signed());
        let (origin, namespace) = (cell.origin.code(), number(store, namespace)?);
        let given: [&(dyn ToSql + Sync); 11] = [
            &id,
            &namespace,
            &cell.kind,
            &cell.queue,
            &cell.dependency,
            &cell.strategy,
            &class,
            &cell.fingerprint,
            &attempt,
            &origin,
            &at.0,
        ];
        tx.execute(&new_cell, &given).await?;
        for (code, value) in sums.codes() {
            ats.push(at.0);
            cells.push(id);
            measures.push(code);
            values.push(value.cast_signed());
        }
    }
    let add = tx
        .prepare_cached(
            "insert into stat as s (at, cell, measure, value)
             select * from unnest($1::int8[], $2::int8[], $3::int2[], $4::int8[])
             on conflict (at, cell, measure) do update set value = s.value + excluded.value",
        )
        .await?;
    tx.execute(&add, &[&ats, &cells, &measures, &values]).await?;
    Ok(())
}

#[async_trait]
impl StatsStore for PostgresStore {
    async fn pending_stats(&self, limit: u32) -> Result<StatsBatch, StoreError> {
        self.read(async {
            let mut client = self.reader().await?;
            let from: String = client.query_one(sql::stats::PLACE.postgres, &[]).await?.get(0);
            let start = up_to_date(self, &client, place(&from)?).await?;
            let tx = snapshot(&mut client).await?;
            let mut rows = rows_from(&tx, start, None).await?;
            let mut more = rows.len() as i64 >= ROWS;
            rows.retain(|row| row.position > start.row);
            let mut items = 0;
            let enough = rows.iter().position(|row| {
                items += row.ids.len();
                items >= limit as usize
            });
            if let Some(last) = enough {
                more |= last + 1 < rows.len();
                rows.truncate(last + 1);
            }
            let to =
                rows.last().map_or_else(|| from.clone(), |row| FeedCursor::end_of_position(row.position).to_string());
            let facts = facts(self, &tx, &rows).await?;
            Ok(StatsBatch { from, to, facts, more })
        })
        .await
    }

    async fn fold(&self, stretch: &StatsBatch, fold: &Fold, now: Timestamp) -> Result<bool, StoreError> {
        add(self, (&stretch.from, &stretch.to), fold, now).await
    }

    async fn sums(&self, namespace: &str, query: &SumsQuery) -> Result<Vec<SumLine>, StoreError> {
        self.search(async {
            let (sql, given) = query.statement('$', namespace);
            let values: Vec<&(dyn ToSql + Sync)> = given
                .iter()
                .map(|given| -> &(dyn ToSql + Sync) {
                    match given {
                        Given::Text(text) => text,
                        Given::Number(number) => number,
                        Given::Id(id) => id,
                    }
                })
                .collect();
            let client = self.reader().await?;
            let rows = client.query(&sql, &values).await?;
            Ok(rows.iter().map(|row| query.line(row.get(0), row.get(1), row.get(2), row.get(3))).collect())
        })
        .await
    }

    /// Whether there is more to do of it.
    async fn compact_stats(&self, now: Timestamp, limit: u32, most_groups: u32) -> Result<bool, StoreError> {
        let mut client = self.writer().await?;
        let tx = client.transaction().await?;
        // Nobody adds meanwhile.
        tx.execute("select 1 from stat_fold for update", &[]).await?;
        let mut more = false;
        for (before, span) in keep::steps(now) {
            let sql = "select min(at) from stat where at < $1 and at % $2::int8 <> 0";
            let first: Option<i64> = tx.query_one(sql, &[&before, &span]).await?.get(0);
            let Some(first) = first else { continue };
            let start = first.div_euclid(span) * span;
            tx.execute(
                "insert into stat as s (at, cell, measure, value)
                 select $1::int8, cell, measure, sum(value)::int8 from stat where at > $1 and at < $1 + $2::int8
                 group by cell, measure
                 on conflict (at, cell, measure) do update set value = s.value + excluded.value",
                &[&start, &span],
            )
            .await?;
            tx.execute("delete from stat where at > $1 and at < $1 + $2::int8", &[&start, &span]).await?;
            more = true;
        }
        let (oldest, most) = (keep::oldest(now).0, i64::from(limit));
        let mut gone = tx.execute(sql::stats::DELETE_OLD.postgres, &[&oldest, &most]).await?;
        if gone < u64::from(limit) {
            gone += tx.execute(sql::stats::DELETE_OLD_CELLS.postgres, &[&oldest, &most]).await?;
            gone += tx.execute(sql::stats::DELETE_OLD_GROUPS.postgres, &[&oldest]).await?;
            tx.execute("delete from account_use where period collate \"C\" < $1", &[&keep::oldest_month(now)]).await?;
            forget_groups(&tx, most_groups).await?;
        }
        tx.commit().await?;
        Ok(more || gone >= u64::from(limit))
    }
}
