//! Namespaces, lanes and policies: numbers given once and shared by all instances.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use comeback_core::{Executor, Lane, Policy};
use deadpool_postgres::{GenericClient, Pool, Transaction};
use tokio_postgres::Row;

use super::{PostgresStore, rules};
use crate::dictionary::{Dictionary, Learning, LimitsText, NewEntries, PolicyText};
use crate::row::{DoneRow, FixedRow, OpenRow, corrupt};
use crate::rules::RULED_FROM;
use crate::{StoreError, Stored, sql};

/// The columns of a lane, in the order in which they are read.
const LANE: &str = "select l.id, l.namespace, n.name, l.queue, l.kind, l.executor, l.dependency, l.shared
     from lane l join namespace n on n.id = l.namespace";
const LIMITED: &str = "select r.id, r.lane, r.limits from ruled_lane r";

/// Lanes get their numbers one after the other. An older version does without that, so a few before the last are read again.
const OVERLAP: i32 = 64;

/// Reads all lanes, in place of what was known. Policies may be many: each is read when somebody first speaks of it.
pub async fn load(client: &impl GenericClient, dictionary: &Dictionary) -> Result<(), StoreError> {
    let generation: i64 = client.query_one(rules::GENERATION, &[]).await?.get(0);
    let namespaces = client.query(sql::control::NAMESPACES.postgres, &[]).await?;
    let lanes = client.query(&format!("{LANE} order by l.id"), &[]).await?;
    let limited = client.query(&format!("{LIMITED} order by r.id"), &[]).await?;
    dictionary.replace(generation, |into| add_all(into, &namespaces, &lanes, &limited));
    Ok(())
}

/// Reads the namespaces and lanes that other instances may have added.
///
/// Beside an instance of a newer build there may be lanes that mean nothing here. They are passed over, and what is in them is left
/// to those who know it.
pub async fn refresh(pool: &Pool, dictionary: &Dictionary) -> Result<(), StoreError> {
    loop {
        let client = pool.get().await?;
        let generation: i64 = client.query_one(rules::GENERATION, &[]).await?.get(0);
        let (plain, limited) = dictionary.highest_lanes();
        let namespaces = client.query(sql::control::NAMESPACES.postgres, &[]).await?;
        let statement = client.prepare_cached(&format!("{LANE} where l.id > $1 order by l.id")).await?;
        let lanes = client.query(&statement, &[&plain.saturating_sub(OVERLAP)]).await?;
        let statement = client.prepare_cached(&format!("{LIMITED} where r.id > $1 order by r.id")).await?;
        let limited = client.query(&statement, &[&limited.max(RULED_FROM - 1)]).await?;
        drop(client);
        if dictionary.learn(generation, |into| add_all(into, &namespaces, &lanes, &limited)) {
            return Ok(());
        }
        rules::refresh(pool, dictionary).await?;
    }
}

/// Lanes from the last that was known to the end of the tables.
fn add_all(into: &mut Learning<'_>, namespaces: &[Row], lanes: &[Row], limited: &[Row]) {
    add(into, namespaces, lanes, limited);
    for last in [lanes, limited].into_iter().filter_map(<[Row]>::last) {
        into.is_complete_up_to(last.get(0));
    }
}

fn add(into: &mut Learning<'_>, namespaces: &[Row], lanes: &[Row], limited: &[Row]) {
    namespaces.iter().for_each(|row| into.namespace(row.get(0), row.get(1)));
    lanes.iter().for_each(|row| add_lane(into, row));
    for row in limited {
        into.limited_lane(row.get(0), row.get(1), row.get(2));
    }
}

fn add_lane(into: &mut Learning<'_>, row: &Row) {
    let id: i32 = row.get(0);
    if into.has_seen(id) {
        return;
    }
    let code: i16 = row.get(5);
    let Some(executor) = Executor::from_code(code) else {
        if into.strange_lane(id) {
            tracing::warn!(lane = id, executor = code, "a lane of a newer version is left alone");
        }
        return;
    };
    let (namespace, dependency): (&str, String) = (row.get(2), row.get(6));
    into.namespace(row.get(1), namespace);
    let lane = Lane {
        namespace: namespace.to_owned(),
        queue: row.get(3),
        kind: row.get(4),
        executor,
        dependency: (!dependency.is_empty()).then_some(dependency),
        shared: row.get::<_, i16>(7) != 0,
        limits: Vec::new(),
    };
    into.lane(id, row.get(1), lane);
}

/// Lanes with limits that others have made, with what is below them. Whoever calls this holds the rules as they are.
pub async fn learn_limited(
    client: &impl GenericClient,
    dictionary: &Dictionary,
    generation: i64,
) -> Result<(), StoreError> {
    let (plain, limited) = dictionary.highest_lanes();
    let statement = client.prepare_cached(&format!("{LIMITED} where r.id > $1 order by r.id")).await?;
    let rows = client.query(&statement, &[&limited.max(RULED_FROM - 1)]).await?;
    if rows.is_empty() {
        return Ok(());
    }
    let statement = client.prepare_cached(&format!("{LANE} where l.id > $1 order by l.id")).await?;
    let lanes = client.query(&statement, &[&plain.saturating_sub(OVERLAP)]).await?;
    dictionary.learn(generation, |into| add_all(into, &[], &lanes, &rows));
    Ok(())
}

/// Whether another instance has made lanes that are not known here; then they are learnt.
pub async fn has_grown(store: &PostgresStore) -> Result<bool, StoreError> {
    let client = store.reader().await?;
    let statement =
        client.prepare_cached("select (select max(id) from lane), (select max(id) from ruled_lane)").await?;
    let row = client.query_one(&statement, &[]).await?;
    drop(client);
    let (plain, limited): (Option<i32>, Option<i32>) = (row.get(0), row.get(1));
    let known = store.dictionary.highest_lanes();
    if plain.unwrap_or(0) <= known.0 && limited.unwrap_or(0) <= known.1 {
        return Ok(false);
    }
    refresh(&store.pools.learn, &store.dictionary).await?;
    Ok(true)
}

/// Gives numbers to what is new before anything refers to it, if the quotas of those who bring it allow it: to all of it or to none.
pub async fn learn(store: &PostgresStore, news: Option<NewEntries>) -> Result<(), StoreError> {
    let Some(news) = news else { return Ok(()) };
    // One after the other: what is counted here is not counted by somebody else in this process at the same time.
    let _turn = store.learning.lock().await;
    store.dictionary.check_lanes(&news)?;
    give_numbers(store, &news, true).await
}

/// The same without quotas, for what tasks need that are there already.
pub async fn learn_anyway(store: &PostgresStore, news: Option<NewEntries>) -> Result<(), StoreError> {
    let Some(news) = news else { return Ok(()) };
    let _turn = store.learning.lock().await;
    give_numbers(store, &news, false).await
}

/// On a connection of its own: whoever has a thousand new kinds does not keep others from a connection to write with.
async fn give_numbers(store: &PostgresStore, news: &NewEntries, checked: bool) -> Result<(), StoreError> {
    let dictionary = &store.dictionary;
    let mut client = store.pools.number.get().await?;
    // Read before all else: what is forgotten from here on is not remembered by what follows.
    let generation: i64 = client.query_one(rules::GENERATION, &[]).await?.get(0);
    let tx = client.transaction().await?;
    let mut namespaces: Vec<&str> = news.namespaces.iter().map(String::as_str).collect();
    namespaces.extend(news.policies.iter().map(|(namespace, _)| namespace.as_str()));
    namespaces.sort_unstable();
    namespaces.dedup();
    tx.execute(
        "insert into namespace (name) select name from unnest($1::text[]) as i(name)
           where not exists (select 1 from namespace n where n.name = i.name) on conflict do nothing",
        &[&namespaces],
    )
    .await?;
    let policies = number_policies(dictionary, &tx, &news.policies, checked).await?;
    number_lanes(&tx, &news.lanes).await?;
    tx.commit().await?;
    drop(client);
    dictionary.learn(generation, |_| {
        policies.into_iter().for_each(|(id, digest)| dictionary.policies.learn_number(id, digest));
    });
    if !news.namespaces.is_empty() || !news.lanes.is_empty() {
        refresh(&store.pools.learn, dictionary).await?;
        store.wake.dictionary_grew();
    }
    Ok(())
}

/// A policy belongs to the namespace that brought it first. One that was about to be deleted is in use again.
async fn number_policies(
    dictionary: &Dictionary,
    tx: &Transaction<'_>,
    policies: &[(String, PolicyText)],
    checked: bool,
) -> Result<Vec<(i32, [u8; 32])>, StoreError> {
    if policies.is_empty() {
        return Ok(Vec::new());
    }
    let digests: Vec<&[u8]> = policies.iter().map(|(_, text)| text.digest.as_slice()).collect();
    if checked {
        let rows = tx.query("select digest from policy where digest = any($1)", &[&digests]).await?;
        let known: HashSet<&[u8]> = rows.iter().map(|row| row.get(0)).collect();
        let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
        for (namespace, _) in policies.iter().filter(|(_, text)| !known.contains(text.digest.as_slice())) {
            *counts.entry(namespace).or_default() += 1;
        }
        let sql = sql::lanes::COUNT_LIVE_POLICIES.postgres;
        for (namespace, count) in counts {
            let used: i64 = tx.query_one(sql, &[&namespace]).await?.get(0);
            dictionary.check_policies(namespace, used.cast_unsigned() + count)?;
        }
    }
    let bodies: Vec<&str> = policies.iter().map(|(_, text)| text.body.as_str()).collect();
    let namespaces: Vec<&str> = policies.iter().map(|(namespace, _)| namespace.as_str()).collect();
    // In one order for everybody, so that two instances never wait for each other.
    tx.execute(
        "insert into policy (digest, body, namespace)
         select i.digest, i.body, n.id from unnest($1::bytea[], $2::text[], $3::text[]) as i(digest, body, name)
         join namespace n on n.name = i.name order by i.digest
         on conflict (digest) do update set retired = null where policy.retired is not null",
        &[&digests, &bodies, &namespaces],
    )
    .await?;
    let rows = tx.query("select id, digest from policy where digest = any($1)", &[&digests]).await?;
    let number = |row: &Row| Some((row.get(0), <[u8; 32]>::try_from(row.get::<_, &[u8]>(1)).ok()?));
    Ok(rows.iter().filter_map(number).collect())
}

/// The lanes of a request as columns.
#[derive(Default)]
struct LaneColumns<'a> {
    namespaces: Vec<&'a str>,
    queues: Vec<&'a str>,
    kinds: Vec<&'a str>,
    executors: Vec<i16>,
    dependencies: Vec<&'a str>,
    shared: Vec<i16>,
}

impl<'a> LaneColumns<'a> {
    fn of(lanes: impl Iterator<Item = &'a Arc<Lane>>) -> LaneColumns<'a> {
        let mut columns = LaneColumns::default();
        for lane in lanes {
            columns.namespaces.push(&lane.namespace);
            columns.queues.push(&lane.queue);
            columns.kinds.push(&lane.kind);
            columns.executors.push(lane.executor.code());
            columns.dependencies.push(lane.dependency.as_deref().unwrap_or(""));
            columns.shared.push(i16::from(lane.shared));
        }
        columns
    }
}

/// All in one statement. One transaction after the other, so that whoever knows a number knows all before it.
async fn number_lanes(tx: &Transaction<'_>, lanes: &[Arc<Lane>]) -> Result<(), StoreError> {
    if lanes.is_empty() {
        return Ok(());
    }
    let LaneColumns { namespaces, queues, kinds, executors, dependencies, shared } = LaneColumns::of(lanes.iter());
    tx.batch_execute("lock table lane in share row exclusive mode").await?;
    tx.execute(
        "insert into lane (namespace, queue, kind, executor, dependency, shared)
         select distinct n.id, i.queue, i.kind, i.executor, i.dependency, i.shared
         from unnest($1::text[], $2::text[], $3::text[], $4::int2[], $5::text[], $6::int2[])
           as i(namespace, queue, kind, executor, dependency, shared)
         join namespace n on n.name = i.namespace
         where not exists (select 1 from lane l where l.namespace = n.id and l.queue = i.queue and l.kind = i.kind
           and l.executor = i.executor and l.dependency = i.dependency and l.shared = i.shared)
         on conflict do nothing",
        &[&namespaces, &queues, &kinds, &executors, &dependencies, &shared],
    )
    .await?;
    let limited: Vec<&Arc<Lane>> = lanes.iter().filter(|lane| !lane.limits.is_empty()).collect();
    if limited.is_empty() {
        return Ok(());
    }
    let texts: Vec<LimitsText> = limited.iter().map(|lane| LimitsText::of(lane)).collect();
    let digests: Vec<&[u8]> = texts.iter().map(|text| text.digest.as_slice()).collect();
    let bodies: Vec<&str> = texts.iter().map(|text| text.body.as_str()).collect();
    let LaneColumns { namespaces, queues, kinds, executors, dependencies, shared } =
        LaneColumns::of(limited.into_iter());
    tx.batch_execute("lock table ruled_lane in share row exclusive mode").await?;
    tx.execute(
        "insert into ruled_lane (id, lane, digest, limits)
         select (select coalesce(max(id), $9 - 1) from ruled_lane) + row_number() over (), l.id, i.digest, i.body
         from unnest($1::text[], $2::text[], $3::text[], $4::int2[], $5::text[], $6::int2[], $7::bytea[], $8::text[])
           as i(namespace, queue, kind, executor, dependency, shared, digest, body)
         join namespace n on n.name = i.namespace
         join lane l on l.namespace = n.id and l.queue = i.queue and l.kind = i.kind and l.executor = i.executor
           and l.dependency = i.dependency and l.shared = i.shared
         where not exists (select 1 from ruled_lane r where r.lane = l.id and r.digest = i.digest)
         on conflict do nothing",
        &[&namespaces, &queues, &kinds, &executors, &dependencies, &shared, &digests, &bodies, &RULED_FROM],
    )
    .await?;
    Ok(())
}

/// The policies that some rows use.
pub type Used = HashMap<i32, Arc<Policy>>;

/// Rows as tasks; what another instance has just added to the dictionary is looked up first.
pub async fn stored_open(store: &PostgresStore, rows: Vec<OpenRow>) -> Result<Vec<Stored>, StoreError> {
    let used = know(store, rows.iter().map(|row| (row.lane, row.policy))).await?;
    rows.into_iter().map(|row| open_task(store, &used, row)).collect()
}

/// The same, for those who go on without what cannot be read: one row of a newer build must not hold up all others.
pub async fn readable_open(store: &PostgresStore, rows: Vec<OpenRow>) -> Result<Vec<Option<Stored>>, StoreError> {
    let used = know(store, rows.iter().map(|row| (row.lane, row.policy))).await?;
    let read = |row: OpenRow| {
        let id = row.id;
        match open_task(store, &used, row) {
            Ok(stored) => Some(stored),
            Err(error) => {
                tracing::warn!(task = %id, %error, "a task cannot be read; it is left alone");
                None
            }
        }
    };
    Ok(rows.into_iter().map(read).collect())
}

fn open_task(store: &PostgresStore, used: &Used, row: OpenRow) -> Result<Stored, StoreError> {
    let lane = store.dictionary.lane(row.lane).ok_or_else(|| corrupt(format!("lane {}", row.lane)))?;
    let (policy_id, hard_deadline) = (row.policy, row.hard_deadline != 0);
    let policy = policy_of(used, policy_id)?;
    Ok(Stored { task: row.into_task(lane)?, policy_id, policy, hard_deadline })
}

pub async fn stored_done(store: &PostgresStore, rows: Vec<(DoneRow, FixedRow)>) -> Result<Vec<Stored>, StoreError> {
    let used = know(store, rows.iter().map(|(row, _)| (row.lane, row.policy))).await?;
    rows.into_iter()
        .map(|(row, fixed)| {
            let lane = store.dictionary.lane(row.lane).ok_or_else(|| corrupt(format!("lane {}", row.lane)))?;
            let policy_id = row.policy;
            let policy = policy_of(&used, policy_id)?;
            let hard_deadline = fixed.hard_deadline != 0;
            Ok(Stored { task: row.into_task(lane, &fixed)?, policy_id, policy, hard_deadline })
        })
        .collect()
}

fn policy_of(used: &Used, id: Option<i32>) -> Result<Option<Arc<Policy>>, StoreError> {
    id.map(|id| used.get(&id).cloned().ok_or_else(|| corrupt(format!("policy {id}")))).transpose()
}

/// Looks up the lanes and policies of these numbers that are not known yet. The policies are answered: the cache may drop them at
/// any time.
pub async fn know(
    store: &PostgresStore,
    numbers: impl Iterator<Item = (i32, Option<i32>)>,
) -> Result<Used, StoreError> {
    let dictionary = &store.dictionary;
    let (mut lanes, mut missing, mut used) = (Vec::new(), Vec::new(), Used::new());
    for (lane, policy) in numbers {
        if !dictionary.has_seen_lane(lane) {
            lanes.push(lane);
        }
        if let Some(id) = policy.filter(|id| !used.contains_key(id)) {
            match dictionary.policies.get(id) {
                Some(known) => drop(used.insert(id, known)),
                None if dictionary.policies.is_strange(id) => {}
                None => missing.push(id),
            }
        }
    }
    if !lanes.is_empty() {
        learn_numbers(store, lanes).await?;
    }
    if !missing.is_empty() {
        missing.sort_unstable();
        missing.dedup();
        let client = store.pools.learn.get().await?;
        for row in client.query("select id, body from policy where id = any($1)", &[&missing]).await? {
            let id: i32 = row.get(0);
            match dictionary.policies.parse(id, row.get(1)) {
                Ok(policy) => drop(used.insert(id, policy)),
                Err(error) if dictionary.policies.note_strange(id) => {
                    tracing::warn!(policy = id, %error, "a policy cannot be read; its tasks are left alone");
                }
                Err(_) => {}
            }
        }
    }
    Ok(used)
}

/// Lanes that tasks were found in.
async fn learn_numbers(store: &PostgresStore, mut lanes: Vec<i32>) -> Result<(), StoreError> {
    lanes.sort_unstable();
    lanes.dedup();
    let dictionary = &store.dictionary;
    loop {
        let client = store.pools.learn.get().await?;
        let generation: i64 = client.query_one(rules::GENERATION, &[]).await?.get(0);
        let limited = client.query(&format!("{LIMITED} where r.id = any($1) order by r.id"), &[&lanes]).await?;
        let mut plain = lanes.clone();
        plain.extend(limited.iter().map(|row| row.get::<_, i32>(1)));
        let plain = client.query(&format!("{LANE} where l.id = any($1) order by l.id"), &[&plain]).await?;
        drop(client);
        if dictionary.learn(generation, |into| add(into, &[], &plain, &limited)) {
            return Ok(());
        }
        rules::refresh(&store.pools.learn, dictionary).await?;
    }
}
