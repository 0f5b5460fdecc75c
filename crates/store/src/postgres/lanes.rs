//! Forgetting lanes and policies that no task refers to. See `crate::dictionary` for why nobody stores a number that is gone.

use std::collections::BTreeSet;

use async_trait::async_trait;
use comeback_core::{Executor, Millis, Quotas, Timestamp};
use deadpool_postgres::Transaction;

use super::{PostgresStore, learn, rules};
use crate::forget::{PAGE, empty_lanes};
use crate::rules::RULED_FROM;
use crate::{Forgotten, LaneStore, StoreError, Submission, sql};

/// A write of a task holds the lock that is asked for here until its commit. It is not waited for longer than this, because
/// all others wait behind: there is another day.
const WAIT: &str = "set local lock_timeout = '200ms'";

/// How long other instances are told which numbers were forgotten; one that comes later reads everything again.
const TOLD_FOR: Millis = Millis::from_days(7);

/// Whether nobody is about to store a task, and nobody begins to.
async fn lock(tx: &Transaction<'_>) -> Result<bool, StoreError> {
    tx.batch_execute(WAIT).await?;
    match tx.batch_execute("lock table rule_state in access exclusive mode").await {
        Ok(()) => Ok(true),
        Err(error) if error.code() == Some(&tokio_postgres::error::SqlState::LOCK_NOT_AVAILABLE) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// A new generation, without another rule: tasks stay where they are. Other instances learn what was forgotten before it.
async fn commit(
    store: &PostgresStore,
    tx: Transaction<'_>,
    lanes: &[i32],
    policies: &BTreeSet<i32>,
    now: Timestamp,
) -> Result<(), StoreError> {
    let sql = sql::rules::NEXT_GENERATION.postgres;
    let generation: i64 = tx.query_one(sql, &[]).await?.get(0);
    let list: Vec<i32> = policies.iter().copied().collect();
    let sql = "insert into forgotten (generation, at, lanes, policies) values ($1, $2, $3, $4)";
    tx.execute(sql, &[&generation, &now.0, &lanes, &list]).await?;
    let old = (now - TOLD_FOR).0;
    let sql = "update forgotten set purged = true, lanes = '{}', policies = '{}' where at < $1 and not purged";
    if tx.execute(sql, &[&old]).await? > 0 {
        let sql =
            "delete from forgotten where purged and generation < (select max(generation) from forgotten where purged)";
        tx.execute(sql, &[]).await?;
    }
    rules::catch_up(&tx, &store.dictionary).await?;
    let book = rules::read(&tx, generation).await?;
    tx.commit().await?;
    store.dictionary.forget(generation, lanes, policies);
    store.dictionary.learn_rules(book);
    store.wake.dictionary_grew();
    Ok(())
}

async fn unused_policies(store: &PostgresStore) -> Result<BTreeSet<i32>, StoreError> {
    let used = store.counted(sql::lanes::USED_POLICIES.postgres, &[]).await?;
    let used: BTreeSet<i32> = used.iter().map(|row| row.get(0)).collect();
    let all = store.counted(sql::lanes::POLICIES.postgres, &[]).await?;
    Ok(all.iter().map(|row| row.get(0)).filter(|id| !used.contains(id)).collect())
}

#[async_trait]
impl LaneStore for PostgresStore {
    async fn learn(&self, submission: &Submission) -> Result<(), StoreError> {
        let placed = self.dictionary.rules().place(std::slice::from_ref(submission));
        learn::learn(self, self.dictionary.news(&placed)).await
    }

    /// Lanes that another instance has just added are looked up first.
    async fn lane_namespaces(&self, executor: Option<Executor>) -> Result<Vec<String>, StoreError> {
        self.read(learn::has_grown(self)).await?;
        Ok(self.dictionary.lane_namespaces(executor))
    }

    fn set_quotas(&self, quotas: &Quotas) {
        self.dictionary.set_quotas(quotas);
    }

    async fn forget_unused(&self, now: Timestamp) -> Result<Forgotten, StoreError> {
        let (plain, limited) = self.suspects.place();
        let client = self.reader().await?;
        let (mut empty, mut ends) = (Vec::new(), [None; 2]);
        for (end, (is_limited, from)) in ends.iter_mut().zip([(false, plain), (true, limited)]) {
            let statement = client.prepare_cached(&empty_lanes(is_limited, "$1", "$2")).await?;
            let rows = client.query(&statement, &[&from, &PAGE]).await?;
            empty.extend(rows.iter().filter(|row| row.get(1)).map(|row| row.get::<_, i32>(0)));
            *end = rows.last().map(|row| row.get(0)).filter(|_| rows.len() as i64 == PAGE);
        }
        drop(client);
        let ripe = self.suspects.note(&empty, ends, now);
        let more = ends.iter().any(Option::is_some);
        if ripe.is_empty() {
            return Ok(Forgotten { lanes: 0, more });
        }
        let mut client = self.writer().await?;
        let tx = client.transaction().await?;
        if !lock(&tx).await? {
            return Ok(Forgotten { lanes: 0, more });
        }
        let sql = format!(
            "delete from ruled_lane l where l.id = any($1) and l.id < (select max(id) from ruled_lane)
               and not exists (select 1 from task_open o where o.lane = l.id and o.lane >= {RULED_FROM})
               and not exists (select 1 from task t where t.lane = l.id) returning l.id"
        );
        let mut gone: Vec<i32> = tx.query(&sql, &[&ripe]).await?.iter().map(|row| row.get(0)).collect();
        let sql = "delete from lane l where l.id = any($1) and l.id < (select max(id) from lane)
                     and not exists (select 1 from ruled_lane r where r.lane = l.id)
                     and not exists (select 1 from task t where t.lane = l.id) returning l.id";
        gone.extend(tx.query(sql, &[&ripe]).await?.iter().map(|row| row.get::<_, i32>(0)));
        if gone.is_empty() {
            return Ok(Forgotten { lanes: 0, more });
        }
        commit(self, tx, &gone, &BTreeSet::new(), now).await?;
        self.suspects.remove(&gone);
        Ok(Forgotten { lanes: gone.len() as u64, more })
    }

    /// In four steps: look which policies no task uses, take their numbers out of use, look again, and delete those that are still out
    /// of use. Between the second and the third nobody can store a task with one of them without giving it its number again, which puts
    /// it back into use.
    async fn forget_policies(&self, beyond: u64, now: Timestamp) -> Result<u64, StoreError> {
        let count: i64 = self.counted(sql::lanes::COUNT_POLICIES.postgres, &[]).await?[0].get(0);
        if count.cast_unsigned() <= beyond {
            return Ok(0);
        }
        let unused = unused_policies(self).await?;
        if unused.is_empty() {
            return Ok(0);
        }
        let list: Vec<i32> = unused.iter().copied().collect();
        let mut client = self.writer().await?;
        let tx = client.transaction().await?;
        if !lock(&tx).await? {
            return Ok(0);
        }
        tx.execute("update policy set retired = $2 where id = any($1)", &[&list, &now.0]).await?;
        commit(self, tx, &[], &unused, now).await?;
        drop(client);
        let unused: Vec<i32> = unused_policies(self).await?.into_iter().collect();
        let client = self.writer().await?;
        let gone = client.execute("delete from policy where id = any($1) and retired is not null", &[&unused]).await?;
        // Whatever was out of use and is used after all stays as it is.
        client.execute(sql::lanes::KEEP_POLICIES.postgres, &[]).await?;
        Ok(gone)
    }
}
