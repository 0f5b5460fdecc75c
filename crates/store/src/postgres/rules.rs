//! Admission rules. Who puts a task somewhere reads the generation of the rules in the same transaction, and who changes a rule
//! locks that table: so every task is either placed by the new rules or seen by whoever moves those that were there before.
//!
//! A claim takes the locks of all that it may count, in one order, before it counts; it holds them until its commit, so nobody
//! counts at the same time. They come before all other locks.
//!
//! Over 500 lines: claims under rules share their locks and statements.

use std::collections::HashMap;
use std::sync::Arc;

use async_trait::async_trait;
use comeback_core::admission::{Admission, Candidate, Key, Rule, Used as InUse, weight};
use comeback_core::{Audit, ExecutionId, Lane, Tally, Timestamp};
use deadpool_postgres::{GenericClient, Pool, Transaction};
use sha2::{Digest, Sha256};
use tokio_postgres::Row;
use uuid::Uuid;

use super::claim::{Picked, lease_picked, next_ready, per_lane};
use super::control::is_paused;
use super::{PostgresStore, audit, dependencies, learn};
use crate::audit::as_json;
use crate::dictionary::{Dictionary, Walk};
use crate::ready::{MANY, MOST_LOOKED_AT, ReadyWalk};
use crate::rules::{
    LaneMembership, Open, RULED_FROM, RuleBook, RuleState, RuleTables, Whose, names_to_json, rule_to_json, settle,
};
use crate::{ClaimRequest, Claimed, Loop, RuleStore, Settled, StoreError, dependencies as guards, rules, sql};

/// The first of the two numbers of such locks; the second is made of what is counted.
const LOCK: i32 = 0x6363;

/// Lanes with limits that one claim takes from: the database has room for so many locks only.
const MOST_LANES: usize = 64;

pub const GENERATION: &str = sql::rules::GENERATION.postgres;

/// The rules as they are for this transaction: until it ends nobody changes them.
pub async fn now_in_force(store: &PostgresStore, tx: &Transaction<'_>) -> Result<Arc<RuleBook>, StoreError> {
    let statement = tx.prepare_cached(GENERATION).await?;
    let generation: i64 = tx.query_one(&statement, &[]).await?.get(0);
    let known = store.dictionary.rules();
    if known.generation == generation {
        return Ok(known);
    }
    catch_up(tx, &store.dictionary).await?;
    read(tx, generation).await.map(|book| store.dictionary.learn_rules(book))
}

/// Drops the numbers that others have forgotten. This comes before the rules of the same generation are made known.
pub async fn catch_up(tx: &Transaction<'_>, dictionary: &Dictionary) -> Result<(), StoreError> {
    let sql = "select generation, lanes, policies, purged from forgotten where generation > $1 order by generation";
    let rows = tx.query(sql, &[&dictionary.forgotten()]).await?;
    if rows.iter().any(|row| row.get(3)) {
        return learn::load(tx, dictionary).await;
    }
    for row in rows {
        let policies: Vec<i32> = row.get(2);
        dictionary.forget(row.get(0), &row.get::<_, Vec<i32>>(1), &policies.into_iter().collect());
    }
    Ok(())
}

pub async fn read(client: &impl GenericClient, generation: i64) -> Result<RuleBook, StoreError> {
    let sql = sql::rules::ALL.postgres;
    let rows = client.query(sql, &[]).await?;
    RuleBook::read(generation, rows.iter().map(|row| (row.get(0), row.get(1))))
}

/// The rules as they are at this moment.
pub async fn refresh(pool: &Pool, dictionary: &Dictionary) -> Result<Arc<RuleBook>, StoreError> {
    let mut client = pool.get().await?;
    let tx = client.transaction().await?;
    let generation: i64 = tx.query_one(GENERATION, &[]).await?.get(0);
    catch_up(&tx, dictionary).await?;
    let book = read(&tx, generation).await?;
    tx.commit().await?;
    Ok(dictionary.learn_rules(book))
}

pub async fn put(
    store: &PostgresStore,
    namespace: &str,
    name: &str,
    body: &str,
    audit: Option<&Audit>,
    now: Timestamp,
) -> Result<Option<i64>, StoreError> {
    let mut client = store.writer().await?;
    client.execute(sql::control::ADD_NAMESPACE.postgres, &[&namespace]).await?;
    let tx = client.transaction().await?;
    tx.batch_execute("lock table rule_state in access exclusive mode").await?;
    let sql = "select r.body from rule r join namespace n on n.id = r.namespace where n.name = $1 and r.name = $2";
    let old: Option<String> = tx.query_opt(sql, &[&namespace, &name]).await?.map(|row| row.get(0));
    let changed = tx
        .execute(
            "insert into rule (namespace, name, body, at) select id, $2, $3, $4 from namespace where name = $1
             on conflict (namespace, name) do update set body = excluded.body, at = excluded.at
               where rule.body <> excluded.body",
            &[&namespace, &name, &body, &now.0],
        )
        .await?;
    audit::note(&tx, audit.filter(|_| changed > 0), old.as_deref().map(as_json)).await?;
    commit_change(store, tx, changed).await
}

async fn commit_change(store: &PostgresStore, tx: Transaction<'_>, changed: u64) -> Result<Option<i64>, StoreError> {
    if changed == 0 {
        return Ok(None);
    }
    let sql = "update rule_state set generation = generation + 1, swept = null returning generation";
    let generation: i64 = tx.query_one(sql, &[]).await?.get(0);
    catch_up(&tx, &store.dictionary).await?;
    let book = read(&tx, generation).await?;
    tx.commit().await?;
    store.dictionary.learn_rules(book);
    store.wake.dictionary_grew();
    Ok(Some(generation))
}

/// Active tasks in some lanes, and in all that have limits.
pub fn in_use_statements() -> [String; 2] {
    let running = format!("where state in (2, 3) and lane >= {RULED_FROM}");
    [rules::in_use(&format!("{running} and lane = any($1)"), "greatest"), rules::in_use(&running, "greatest")]
}

async fn in_use(client: &impl GenericClient, lanes: Option<&[i32]>) -> Result<Vec<(i32, i64, i64)>, StoreError> {
    let [some, all] = in_use_statements();
    let rows = match lanes {
        Some([]) => return Ok(Vec::new()),
        Some(lanes) => client.query(&client.prepare_cached(&some).await?, &[&lanes]).await?,
        None => client.query(&client.prepare_cached(&all).await?, &[]).await?,
    };
    Ok(rows.iter().map(|row| (row.get(0), row.get(1), row.get(2))).collect())
}

/// The best of each lane, so many of each, in one order.
pub const BEST: &str = "select x.id, x.lane, x.execution_id, x.version, x.expected, x.success, x.failures, x.prio
     from unnest($1::int4[], $2::int8[]) as l(lane, most) cross join lateral (
       select o.* from task_open o
       where o.lane = l.lane and o.state = 1 and o.hold = 0 and (o.expires_at is null or o.expires_at > $3)
       order by o.prio, o.submitted_at, o.id limit l.most) x
     order by x.prio, x.submitted_at, x.id";

/// Leases where rules have a say, for requests that ask for the same, over all their lanes in one order. Nothing where nobody is ready in a lane with limits
/// that has room: then the request is like any other.
pub async fn claim(
    store: &PostgresStore,
    requests: &[ClaimRequest],
    free: &[(i32, Arc<Lane>)],
    limited: &[i32],
    now: Timestamp,
) -> Result<Option<Vec<Claimed>>, StoreError> {
    if limited.is_empty() {
        return Ok(None);
    }
    for _ in 0..super::claim::LOOKS {
        match claim_once(store, requests, free, limited, now).await? {
            Look::Nobody => return Ok(None),
            Look::Leased(claimed) => return Ok(Some(claimed)),
            Look::Again => {}
        }
    }
    Ok(None)
}

enum Look {
    Nobody,
    Leased(Vec<Claimed>),
    /// Others were faster.
    Again,
}

async fn claim_once(
    store: &PostgresStore,
    requests: &[ClaimRequest],
    free: &[(i32, Arc<Lane>)],
    limited: &[i32],
    now: Timestamp,
) -> Result<Look, StoreError> {
    let dictionary = &store.dictionary;
    let (request, wanted) = (&requests[0], requests.iter().map(|it| it.limit).fold(0, u32::saturating_add));
    let mut client = store.writer().await?;
    if is_paused(&client, Loop::Dispatch, now).await? {
        return Ok(Look::Leased(Vec::new()));
    }
    let mut walk = ReadyWalk::new(limited, dictionary.turn(&request.namespace, Walk::Limited));
    let mut lanes = next_ready(&client, &mut walk, MANY).await?;
    if lanes.is_empty() && walk.is_over() {
        return Ok(Look::Nobody);
    }
    let tx = client.transaction().await?;
    let book = now_in_force(store, &tx).await?;
    let mut looked_at = 0;
    let (mut ready, mut admission) = loop {
        looked_at += lanes.len().max(1);
        let mut ready: Vec<(i32, Arc<Lane>)> =
            lanes.into_iter().filter_map(|id| dictionary.lane(id).map(|lane| (id, lane))).collect();
        // Without locks this is a guess, but it spares most of those that must wait anyway.
        let mut admission = count(dictionary, &tx, &book, request, &ready).await?;
        let names = guards::named(ready.iter().map(|(_, lane)| &**lane));
        guards::guard(&mut admission, &dependencies::some(&tx, &request.namespace, &names, false).await?, now);
        rules::only_with_room(&mut ready, &admission, dictionary);
        let is_enough = !ready.is_empty() || looked_at >= MOST_LOOKED_AT;
        if is_enough || walk.is_over() {
            if !walk.is_over() {
                dictionary.set_turn(&request.namespace, Walk::Limited, walk.last());
            }
            break (ready, admission);
        }
        lanes = next_ready(&tx, &mut walk, MANY).await?;
    };
    if ready.is_empty() {
        return Ok(Look::Nobody);
    }
    if ready.len() > MOST_LANES {
        ready = best_lanes(&tx, ready, &admission, now).await?;
    }
    let mut guards = Vec::new();
    if lock(store, &tx, request, &ready, &admission).await? {
        // Others may have started meanwhile; from here on nobody does.
        admission = count(dictionary, &tx, &book, request, &ready).await?;
        let names = guards::named(ready.iter().map(|(_, lane)| &**lane));
        guards = dependencies::some(&tx, &request.namespace, &names, true).await?;
        guards::guard(&mut admission, &guards, now);
        rules::only_with_room(&mut ready, &admission, dictionary);
        if ready.is_empty() {
            return Ok(Look::Again);
        }
    }
    ready.extend_from_slice(free);
    let fair = per_lane(u32::MAX, ready.len());
    let open = rules::open_lanes(&ready, &admission, wanted, fair);
    let rows = best(&tx, &open, now).await?;
    let mut given: HashMap<i32, u32> = HashMap::new();
    rows.iter().for_each(|row| *given.entry(row.get(1)).or_default() += 1);
    let limits: HashMap<i32, &Lane> = open.iter().map(|it| (it.lane, &*it.limits)).collect();
    let candidate = |row: &Row| {
        let lane: i32 = row.get(1);
        let count = |column: usize| row.get::<_, i32>(column).cast_unsigned();
        let expected = row.get::<_, Option<i32>>(4).map(i32::cast_unsigned);
        let tally = Tally { expected, success: count(5), failures: count(6) };
        let limits = limits.get(&lane).map_or(&[][..], |lane| &lane.limits);
        Candidate { lane, rank: row.get(7), limits, weight: weight(&tally) }
    };
    let candidates: Vec<Candidate<'_>> = rows.iter().map(candidate).collect();
    let cut = rules::cut(&open, |lane| given.get(&lane).copied().unwrap_or(0));
    let chosen = admission.choose(&candidates, &cut, wanted as usize);
    if chosen.is_empty() {
        return Ok(if rows.is_empty() { Look::Again } else { Look::Nobody });
    }
    for taken in guards::take(&admission, guards, now) {
        dependencies::write(&tx, &taken, now).await?;
    }
    let picked: Vec<Picked> = chosen
        .into_iter()
        .map(|index| {
            let row = &rows[index];
            Picked { id: row.get(0), execution: row.get(2), version: row.get(3) }
        })
        .collect();
    Ok(lease_picked(store, tx, requests, &picked, now).await?.map_or(Look::Again, Look::Leased))
}

async fn count(
    dictionary: &Dictionary,
    tx: &Transaction<'_>,
    book: &RuleBook,
    request: &ClaimRequest,
    lanes: &[(i32, Arc<Lane>)],
) -> Result<Admission, StoreError> {
    learn::learn_limited(tx, dictionary, book.generation).await?;
    let limits = lanes.iter().flat_map(|(_, lane)| &lane.limits);
    let sharing = dictionary.sharing(&request.namespace, limits, rules::MOST_NAMED);
    let mut admission = book.admission(&request.namespace);
    let rows = in_use(tx, sharing.as_deref()).await?;
    rules::count(&mut admission, dictionary, &request.namespace, rows.into_iter());
    Ok(admission)
}

/// The lanes that hold the best tasks.
async fn best_lanes(
    tx: &Transaction<'_>,
    mut lanes: Vec<(i32, Arc<Lane>)>,
    admission: &Admission,
    now: Timestamp,
) -> Result<Vec<(i32, Arc<Lane>)>, StoreError> {
    if admission.is_fair() {
        lanes.sort_by_key(|(_, lane)| admission.share(&lane.limits).unwrap_or(0));
        lanes.truncate(MOST_LANES);
        return Ok(lanes);
    }
    let open: Vec<Open> =
        lanes.into_iter().map(|(lane, limits)| Open { lane, limits, most: 1, is_short: false }).collect();
    let rows = best(tx, &open, now).await?;
    let mut by_number: HashMap<i32, Arc<Lane>> = open.into_iter().map(|it| (it.lane, it.limits)).collect();
    let first = rows.iter().map(|row| row.get::<_, i32>(1)).take(MOST_LANES);
    Ok(first.filter_map(|id| by_number.remove(&id).map(|lane| (id, lane))).collect())
}

async fn best(tx: &Transaction<'_>, open: &[Open], now: Timestamp) -> Result<Vec<Row>, StoreError> {
    let numbers: Vec<i32> = open.iter().map(|it| it.lane).collect();
    let mosts: Vec<i64> = open.iter().map(|it| i64::from(it.most)).collect();
    let statement = tx.prepare_cached(BEST).await?;
    Ok(tx.query(&statement, &[&numbers, &mosts, &now.0]).await?)
}

/// In one order for everybody. What happens to have the same number waits for each other, which is no harm. Whether there was anything
/// to wait for.
#[allow(unused_variables)]
async fn lock(
    store: &PostgresStore,
    tx: &Transaction<'_>,
    request: &ClaimRequest,
    lanes: &[(i32, Arc<Lane>)],
    admission: &Admission,
) -> Result<bool, StoreError> {
    #[cfg(any(test, feature = "conformance"))]
    if store.count_without_locks {
        return Ok(true);
    }
    let number = |key: &Key| {
        let name = serde_json::json!([request.namespace, key]).to_string();
        let digest: [u8; 32] = Sha256::digest(name.as_bytes()).into();
        i32::from_be_bytes([digest[0], digest[1], digest[2], digest[3]])
    };
    // What keeps nobody out may be counted a little wrong.
    let limits = lanes.iter().flat_map(|(_, lane)| &lane.limits);
    let mut numbers: Vec<i32> =
        limits.filter(|limit| admission.is_bounded(&limit.key)).map(|limit| number(&limit.key)).collect();
    numbers.sort_unstable();
    numbers.dedup();
    if numbers.is_empty() {
        return Ok(false);
    }
    let statement =
        tx.prepare_cached("select pg_advisory_xact_lock($1, number) from unnest($2::int4[]) number").await?;
    tx.execute(&statement, &[&LOCK, &numbers]).await?;
    Ok(true)
}

/// Where tasks that are opened again belong, by the rules in force; nothing where none of them has a say.
pub async fn lanes_of_reopened(
    store: &PostgresStore,
    tx: &Transaction<'_>,
    namespace: &str,
    ids: &[Uuid],
) -> Result<Option<HashMap<Uuid, Arc<Lane>>>, StoreError> {
    let book = now_in_force(store, tx).await?;
    if !store.dictionary.is_ruled(namespace) {
        return Ok(None);
    }
    let mut lanes = HashMap::new();
    for task in belongings(tx, Whose::Ended(ids.to_vec())).await? {
        lanes.insert(task.id, task.lane(&store.dictionary, &book)?.0);
    }
    Ok(Some(lanes))
}

async fn belongings(client: &impl GenericClient, whose: Whose) -> Result<Vec<LaneMembership>, StoreError> {
    const OPEN: &str =
        "select o.id, o.lane, t.labels::text, t.rules, t.executor from task_open o join task t on t.id = o.id";
    let rows = match whose {
        Whose::After(after, limit) => {
            let sql = format!("{OPEN} where o.id > $1 order by o.id limit $2");
            client.query(&sql, &[&after, &i64::from(limit)]).await?
        }
        Whose::Ended(ids) => {
            client.query("select id, lane, labels::text, rules, executor from task where id = any($1)", &[&ids]).await?
        }
        Whose::Execution(id) => client.query(&format!("{OPEN} where o.execution_id = $1"), &[&id]).await?,
        Whose::Task(id) => client.query(&format!("{OPEN} where o.id = $1"), &[&id]).await?,
    };
    Ok(rows.iter().map(|row| LaneMembership::new(row.get(0), row.get(1), row.get(2), row.get(3), row.get(4))).collect())
}

pub async fn carry(store: &PostgresStore, execution: Uuid, kind: &str, names: &[String]) -> Result<u64, StoreError> {
    let client = store.writer().await?;
    let rows = client.query(sql::tasks::LANES_OF_EXECUTION.postgres, &[&execution]).await?;
    let mut lanes: Vec<i32> = rows.iter().map(|row| row.get(0)).collect();
    learn::know(store, lanes.iter().map(|id| (*id, None))).await?;
    lanes.retain(|id| store.dictionary.lane(*id).is_some_and(|lane| lane.kind == kind));
    let sql = "update task set rules = $3
               where id in (select id from task_open where execution_id = $1 and lane = any($2))";
    let changed = client.execute(sql, &[&execution, &lanes, &names_to_json(names)]).await?;
    drop(client);
    let tasks = store.belongings(Whose::Execution(execution)).await?;
    rules::put_where_they_belong(store, tasks).await?;
    Ok(changed)
}

#[async_trait]
impl RuleTables for PostgresStore {
    fn dictionary(&self) -> &Dictionary {
        &self.dictionary
    }

    async fn rule_state(&self) -> Result<RuleState, StoreError> {
        let mut client = self.writer().await?;
        let tx = client.transaction().await?;
        now_in_force(self, &tx).await?;
        let row = tx.query_one(sql::rules::STATE.postgres, &[]).await?;
        tx.commit().await?;
        Ok(RuleState { generation: row.get(0), settled: row.get(1), swept: row.get(2) })
    }

    async fn belongings(&self, whose: Whose) -> Result<Vec<LaneMembership>, StoreError> {
        let client = self.writer().await?;
        let found = belongings(&client, whose).await?;
        drop(client);
        learn::know(self, found.iter().map(|it| (it.lane, None))).await?;
        Ok(found)
    }

    async fn learn_lanes(&self, lanes: Vec<Arc<Lane>>) -> Result<(), StoreError> {
        learn::learn_anyway(self, self.dictionary.news_of_lanes(&lanes)).await
    }

    async fn move_tasks(&self, moves: Vec<(Uuid, i32, i32)>) -> Result<(), StoreError> {
        let ids: Vec<Uuid> = moves.iter().map(|it| it.0).collect();
        let from: Vec<i32> = moves.iter().map(|it| it.1).collect();
        let to: Vec<i32> = moves.iter().map(|it| it.2).collect();
        let mut client = self.writer().await?;
        let tx = client.transaction().await?;
        // Nobody was in a lane that is new: it may have been forgotten since. From here on none is.
        now_in_force(self, &tx).await?;
        if to.iter().any(|id| !self.dictionary.has_seen_lane(*id)) {
            return Err(StoreError::Unavailable("a lane was forgotten at the same moment".into()));
        }
        tx.execute("select 1 from task_open where id = any($1) order by id for update", &[&ids]).await?;
        tx.execute(
            "update task_open o set lane = i.to_lane
             from unnest($1::uuid[], $2::int4[], $3::int4[]) as i(id, from_lane, to_lane)
             where o.id = i.id and o.lane = i.from_lane",
            &[&ids, &from, &to],
        )
        .await?;
        tx.commit().await?;
        Ok(())
    }

    async fn note_swept(&self, generation: i64, swept: Option<Uuid>) -> Result<(), StoreError> {
        let client = self.writer().await?;
        let sql =
            "update rule_state set swept = $2, settled = case when $2::uuid is null then generation else settled end
                   where generation = $1";
        client.execute(sql, &[&generation, &swept]).await?;
        Ok(())
    }
}

#[async_trait]
impl RuleStore for PostgresStore {
    async fn rules(&self, namespace: &str) -> Result<Vec<Rule>, StoreError> {
        let book = self.read(refresh(&self.pools.read, &self.dictionary)).await?;
        Ok(book.of(namespace).to_vec())
    }

    async fn put_rule(
        &self,
        namespace: &str,
        rule: &Rule,
        audit: Option<&Audit>,
        now: Timestamp,
    ) -> Result<Option<i64>, StoreError> {
        put(self, namespace, &rule.name, &rule_to_json(rule)?, audit, now).await
    }

    async fn delete_rule(&self, namespace: &str, name: &str, audit: Option<&Audit>) -> Result<Option<i64>, StoreError> {
        let mut client = self.writer().await?;
        let tx = client.transaction().await?;
        tx.batch_execute("lock table rule_state in access exclusive mode").await?;
        let sql = "delete from rule r using namespace n where n.id = r.namespace and n.name = $1 and r.name = $2
                   returning r.body";
        let old: Option<String> = tx.query_opt(sql, &[&namespace, &name]).await?.map(|row| row.get(0));
        audit::note(&tx, audit.filter(|_| old.is_some()), old.as_deref().map(as_json)).await?;
        commit_change(self, tx, u64::from(old.is_some())).await
    }

    async fn delete_unused_rules(&self, namespace: &str, names: &[String]) -> Result<Option<i64>, StoreError> {
        let mut client = self.writer().await?;
        let tx = client.transaction().await?;
        tx.batch_execute("lock table rule_state in access exclusive mode").await?;
        if !tx.query_one(rules::SETTLED, &[]).await?.get::<_, bool>(0) {
            return Ok(None);
        }
        let generation: i64 = tx.query_one(GENERATION, &[]).await?.get(0);
        catch_up(&tx, &self.dictionary).await?;
        learn::learn_limited(&tx, &self.dictionary, generation).await?;
        let rows = tx.query(&rules::open_lanes_with_limits(), &[]).await?;
        let lanes: Vec<i32> = rows.iter().map(|row| row.get(0)).collect();
        let unused = rules::unused(&self.dictionary, namespace, names, &lanes);
        let sql = "delete from rule r using namespace n where n.id = r.namespace and n.name = $1 and r.name = any($2)";
        let changed = tx.execute(sql, &[&namespace, &unused]).await?;
        commit_change(self, tx, changed).await
    }

    async fn settle_rules(&self) -> Result<Settled, StoreError> {
        settle(self).await
    }

    async fn attach_rules(&self, id: ExecutionId, kind: &str, names: &[String]) -> Result<u64, StoreError> {
        carry(self, id.0, kind, names).await
    }

    async fn in_use(&self, namespace: &str) -> Result<Vec<(Key, InUse)>, StoreError> {
        self.read(async {
            let client = self.reader().await?;
            let generation: i64 = client.query_one(GENERATION, &[]).await?.get(0);
            learn::learn_limited(&*client, &self.dictionary, generation).await?;
            Ok(rules::by_key(&self.dictionary, namespace, in_use(&*client, None).await?))
        })
        .await
    }

    async fn open_under(&self, namespace: &str, key: &Key, limit: u32) -> Result<u64, StoreError> {
        let sql = format!(
            "select count(*) from (select 1 from task_open where lane >= {RULED_FROM} and lane = any($1) limit $2) as x"
        );
        self.read(async {
            let client = self.reader().await?;
            let generation: i64 = client.query_one(GENERATION, &[]).await?.get(0);
            learn::learn_limited(&*client, &self.dictionary, generation).await?;
            let lanes = self.dictionary.lanes_under(namespace, key);
            let row = client.query_one(&client.prepare_cached(&sql).await?, &[&lanes, &i64::from(limit)]).await?;
            Ok(row.get::<_, i64>(0).unsigned_abs())
        })
        .await
    }

    fn held_by_rules(&self) -> u64 {
        self.dictionary.held.load(std::sync::atomic::Ordering::Relaxed)
    }

    fn freed_by(&self, lane: &Lane) -> Vec<Arc<Lane>> {
        self.dictionary.freed_by(lane)
    }
}
