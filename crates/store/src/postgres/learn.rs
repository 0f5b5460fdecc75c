//! Namespaces, lanes and policies: numbers given once and shared by all instances.

use std::sync::Arc;

use comeback_core::{Executor, Lane};
use deadpool_postgres::Pool;
use tokio_postgres::Row;

use super::PostgresStore;
use crate::StoreError;
use crate::dictionary::{Dictionary, LimitsText, News};
use crate::row::{DoneRow, FixedRow, OpenRow, corrupt};
use crate::rules::RULED_FROM;
use crate::types::Stored;

/// Reads the namespaces and lanes that other instances may have added. The tables are small and only grow. Policies may be many:
/// each is read when somebody first speaks of it.
///
/// Beside an instance of a newer build there may be lanes that mean nothing here. They are passed over, and what is in them is left
/// to those who know it.
pub async fn refresh(pool: &Pool, dictionary: &Dictionary) -> Result<(), StoreError> {
    let client = pool.get().await?;
    for row in client.query("select id, name from namespace", &[]).await? {
        dictionary.learn_namespace(row.get(0), row.get(1));
    }
    let lanes = client
        .query(
            "select l.id, l.namespace, n.name, l.queue, l.kind, l.executor, l.dependency, l.shared
             from lane l join namespace n on n.id = l.namespace",
            &[],
        )
        .await?;
    for row in lanes {
        learn_lane(dictionary, &row, [0, 1, 2, 3, 4, 5, 6, 7]);
    }
    super::rules::learn_ruled_lanes(dictionary, &client).await?;
    Ok(())
}

/// Learns a lane from a row: its number, its namespace and the name of that, queue, kind, executor, dependency and whether it is shared
/// stand in these columns.
pub fn learn_lane(dictionary: &Dictionary, row: &Row, at: [usize; 8]) {
    let id: i32 = row.get(at[0]);
    if dictionary.has_seen_lane(id) {
        return;
    }
    let code: i16 = row.get(at[5]);
    let Some(executor) = Executor::from_code(code) else {
        if dictionary.note_strange_lane(id) {
            tracing::warn!(lane = id, executor = code, "a lane of a newer version is left alone");
        }
        return;
    };
    let dependency: String = row.get(at[6]);
    let lane = Lane {
        namespace: row.get(at[2]),
        queue: row.get(at[3]),
        kind: row.get(at[4]),
        executor,
        dependency: (!dependency.is_empty()).then_some(dependency),
        shared: row.get::<_, i16>(at[7]) != 0,
        limits: Vec::new(),
    };
    dictionary.learn_lane(id, row.get(at[1]), lane);
}

/// Learns policies from rows of number and text. One that cannot be read is passed over like a lane.
fn learn_policies(dictionary: &Dictionary, rows: &[Row]) {
    for row in rows {
        let id: i32 = row.get(0);
        if let Err(error) = dictionary.learn_policy(id, row.get(1))
            && dictionary.note_strange_policy(id)
        {
            tracing::warn!(policy = id, %error, "a policy cannot be read; its tasks are left alone");
        }
    }
}

/// Whether another instance has made lanes that are not known here; then they are learnt.
pub async fn has_grown(store: &PostgresStore) -> Result<bool, StoreError> {
    let client = store.reader().await?;
    let statement = client.prepare_cached("select count(*), (select max(id) from ruled_lane) from lane").await?;
    let row = client.query_one(&statement, &[]).await?;
    drop(client);
    let (count, last): (i64, Option<i32>) = (row.get(0), row.get(1));
    let knows_all = usize::try_from(count).unwrap_or(0) <= store.dictionary.lane_count();
    if knows_all && last.is_none_or(|last| store.dictionary.has_seen_lane(last)) {
        return Ok(false);
    }
    refresh(&store.pools.learn, &store.dictionary).await?;
    Ok(true)
}

/// Gives numbers to what is new, before anything refers to it.
pub async fn learn(store: &PostgresStore, news: Option<News>) -> Result<(), StoreError> {
    let dictionary = &store.dictionary;
    let Some(news) = news else { return Ok(()) };
    let mut client = store.writer().await?;
    for name in &news.namespaces {
        client.execute("insert into namespace (name) values ($1) on conflict do nothing", &[&name]).await?;
    }
    number_lanes(&mut client, &news.lanes).await?;
    for policy in &news.policies {
        client
            .execute(
                "insert into policy (digest, body) values ($1, $2) on conflict do nothing",
                &[&policy.digest.as_slice(), &policy.body],
            )
            .await?;
    }
    if !news.policies.is_empty() {
        let digests: Vec<&[u8]> = news.policies.iter().map(|policy| policy.digest.as_slice()).collect();
        let rows = client.query("select id, body from policy where digest = any($1)", &[&digests]).await?;
        learn_policies(dictionary, &rows);
    }
    drop(client);
    if !news.namespaces.is_empty() || !news.lanes.is_empty() {
        refresh(&store.pools.learn, dictionary).await?;
        store.wake.dictionary_grew();
    }
    Ok(())
}

/// Gives numbers to lanes that have none.
pub async fn learn_lanes(store: &PostgresStore, lanes: &[Arc<Lane>]) -> Result<(), StoreError> {
    let new: Vec<Arc<Lane>> = lanes.iter().filter(|lane| store.dictionary.lane_id(lane).is_none()).cloned().collect();
    if new.is_empty() {
        return Ok(());
    }
    let mut client = store.writer().await?;
    number_lanes(&mut client, &new).await?;
    drop(client);
    refresh(&store.pools.learn, &store.dictionary).await?;
    store.wake.dictionary_grew();
    Ok(())
}

async fn number_lanes(client: &mut deadpool_postgres::Object, lanes: &[Arc<Lane>]) -> Result<(), StoreError> {
    for lane in lanes {
        client
            .execute(
                "insert into lane (namespace, queue, kind, executor, dependency, shared)
                 select id, $2, $3, $4, $5, $6 from namespace where name = $1 on conflict do nothing",
                &[
                    &lane.namespace,
                    &lane.queue,
                    &lane.kind,
                    &lane.executor.code(),
                    &lane.dependency.as_deref().unwrap_or(""),
                    &i16::from(lane.shared),
                ],
            )
            .await?;
    }
    let ruled: Vec<&Arc<Lane>> = lanes.iter().filter(|lane| !lane.limits.is_empty()).collect();
    if ruled.is_empty() {
        return Ok(());
    }
    let tx = client.transaction().await?;
    // One after the other, so that whoever knows a number knows all before it.
    tx.batch_execute("lock table ruled_lane in share row exclusive mode").await?;
    for lane in ruled {
        let LimitsText { body, digest } = LimitsText::of(lane);
        tx.execute(
            "insert into ruled_lane (id, lane, digest, limits)
             select (select coalesce(max(id), $9 - 1) + 1 from ruled_lane), l.id, $7, $8
             from lane l join namespace n on n.id = l.namespace
             where n.name = $1 and l.queue = $2 and l.kind = $3 and l.executor = $4 and l.dependency = $5 and l.shared = $6
             on conflict do nothing",
            &[
                &lane.namespace,
                &lane.queue,
                &lane.kind,
                &lane.executor.code(),
                &lane.dependency.as_deref().unwrap_or(""),
                &i16::from(lane.shared),
                &digest.as_slice(),
                &body,
                &RULED_FROM,
            ],
        )
        .await?;
    }
    tx.commit().await?;
    Ok(())
}

/// Rows as tasks; what another instance has just added to the dictionary is looked up first.
pub async fn stored_open(store: &PostgresStore, rows: Vec<OpenRow>) -> Result<Vec<Stored>, StoreError> {
    know(store, rows.iter().map(|row| (row.lane, row.policy))).await?;
    rows.into_iter().map(|row| open_task(store, row)).collect()
}

/// The same, for those who go on without what cannot be read: one row of a newer build must not hold up all others.
pub async fn readable_open(store: &PostgresStore, rows: Vec<OpenRow>) -> Result<Vec<Option<Stored>>, StoreError> {
    know(store, rows.iter().map(|row| (row.lane, row.policy))).await?;
    let read = |row: OpenRow| {
        let id = row.id;
        match open_task(store, row) {
            Ok(stored) => Some(stored),
            Err(error) => {
                tracing::warn!(task = %id, %error, "a task cannot be read; it is left alone");
                None
            }
        }
    };
    Ok(rows.into_iter().map(read).collect())
}

fn open_task(store: &PostgresStore, row: OpenRow) -> Result<Stored, StoreError> {
    let lane = store.dictionary.lane(row.lane).ok_or_else(|| corrupt(format!("lane {}", row.lane)))?;
    let (policy_id, hard_deadline) = (row.policy, row.hard_deadline != 0);
    let policy = policy_of(store, policy_id)?;
    Ok(Stored { task: row.into_task(lane)?, policy_id, policy, hard_deadline })
}

pub async fn stored_done(store: &PostgresStore, rows: Vec<(DoneRow, FixedRow)>) -> Result<Vec<Stored>, StoreError> {
    know(store, rows.iter().map(|(row, _)| (row.lane, row.policy))).await?;
    rows.into_iter()
        .map(|(row, fixed)| {
            let lane = store.dictionary.lane(row.lane).ok_or_else(|| corrupt(format!("lane {}", row.lane)))?;
            let policy_id = row.policy;
            let policy = policy_of(store, policy_id)?;
            let hard_deadline = fixed.hard_deadline != 0;
            Ok(Stored { task: row.into_task(lane, &fixed)?, policy_id, policy, hard_deadline })
        })
        .collect()
}

fn policy_of(store: &PostgresStore, id: Option<i32>) -> Result<Option<Arc<comeback_core::Policy>>, StoreError> {
    id.map(|id| store.dictionary.policy(id).ok_or_else(|| corrupt(format!("policy {id}")))).transpose()
}

pub async fn know(store: &PostgresStore, numbers: impl Iterator<Item = (i32, Option<i32>)>) -> Result<(), StoreError> {
    let dictionary = &store.dictionary;
    let mut lanes = false;
    let mut policies: Vec<i32> = Vec::new();
    for (lane, policy) in numbers {
        lanes |= !dictionary.has_seen_lane(lane);
        policies.extend(policy.filter(|id| !dictionary.has_seen_policy(*id)));
    }
    if lanes {
        refresh(&store.pools.learn, dictionary).await?;
    }
    if !policies.is_empty() {
        policies.sort_unstable();
        policies.dedup();
        let client = store.pools.learn.get().await?;
        let rows = client.query("select id, body from policy where id = any($1)", &[&policies]).await?;
        learn_policies(dictionary, &rows);
    }
    Ok(())
}
