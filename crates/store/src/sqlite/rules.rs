//! Admission rules. There is one writer, so what it does is atomic; the rules it knows are changed by itself, within the
//! transaction that changes them.

use std::collections::HashMap;
use std::sync::Arc;

use async_trait::async_trait;
use comeback_core::admission::{Admission, Candidate, Key, Rule, Used, Used as InUse, weight};
use comeback_core::{Audit, ExecutionId, Lane, Tally, Timestamp};
use rusqlite::{Connection, OptionalExtension};
use uuid::Uuid;

use super::claim::{Place, next_in_lane, next_ready};
use super::submit::{learn_anyway, namespace_id};
use super::writer::Tx;
use super::{SqliteStore, audit, dependencies};
use crate::audit::as_json;
use crate::dependencies::Dependency;
use crate::dictionary::{Dictionary, Walk};
use crate::ready::{MANY, MOST_LOOKED_AT, ReadyWalk};
use crate::rules::{
    LaneMembership, RULED_FROM, RuleBook, RuleState, RuleTables, Whose, names_to_json, rule_to_json, settle,
};
use crate::{ClaimRequest, RuleStore, Settled, StoreError, dependencies as guards, rules, sql};

/// Tasks of one lane that a claim looks at.
const MOST_OF_A_LANE: u32 = 1_000;

pub fn load(connection: &Connection) -> Result<RuleBook, StoreError> {
    let generation = connection.query_row(sql::rules::GENERATION.sqlite, (), |row| row.get(0))?;
    let mut statement = connection.prepare_cached(sql::rules::ALL.sqlite)?;
    let rows = statement.query_map((), |row| Ok((row.get(0)?, row.get(1)?)))?;
    RuleBook::read(generation, rows.collect::<rusqlite::Result<Vec<(String, String)>>>()?)
}

pub fn put(
    tx: &Tx<'_>,
    namespace: &str,
    name: &str,
    body: &str,
    audit: Option<&Audit>,
    now: Timestamp,
) -> Result<Option<i64>, StoreError> {
    let namespace = namespace_id(tx.connection, namespace)?;
    let sql = "select body from rule where namespace = ?1 and name = ?2";
    let old: Option<String> = tx.connection.query_row(sql, (namespace, name), |row| row.get(0)).optional()?;
    let changed = tx.connection.execute(
        "insert into rule (namespace, name, body, at) values (?1, ?2, ?3, ?4)
         on conflict do update set body = excluded.body, at = excluded.at where body <> excluded.body",
        (namespace, name, body, now.0),
    )?;
    if changed == 0 {
        return Ok(None);
    }
    audit::note(tx.connection, audit, old.as_deref().map(as_json))?;
    changed_rules(tx).map(Some)
}

pub fn delete(tx: &Tx<'_>, namespace: &str, name: &str, audit: Option<&Audit>) -> Result<Option<i64>, StoreError> {
    let namespace = namespace_id(tx.connection, namespace)?;
    let sql = "delete from rule where namespace = ?1 and name = ?2 returning body";
    let old: Option<String> = tx.connection.query_row(sql, (namespace, name), |row| row.get(0)).optional()?;
    let Some(old) = old else { return Ok(None) };
    audit::note(tx.connection, audit, Some(as_json(&old)))?;
    changed_rules(tx).map(Some)
}

pub fn delete_unused(tx: &Tx<'_>, namespace: &str, names: &[String]) -> Result<Option<i64>, StoreError> {
    if !tx.connection.query_row(rules::SETTLED, (), |row| row.get::<_, bool>(0))? {
        return Ok(None);
    }
    let mut statement = tx.connection.prepare(&rules::open_lanes_with_limits())?;
    let lanes = statement.query_map((), |row| row.get(0))?.collect::<rusqlite::Result<Vec<i32>>>()?;
    let id = namespace_id(tx.connection, namespace)?;
    let mut changed = 0;
    for name in rules::unused(tx.dictionary, namespace, names, &lanes) {
        changed += tx.connection.execute("delete from rule where namespace = ?1 and name = ?2", (id, name))?;
    }
    if changed == 0 { Ok(None) } else { changed_rules(tx).map(Some) }
}

/// Later commands of the writer go by the new rules; if the commit fails, they are read again.
fn changed_rules(tx: &Tx<'_>) -> Result<i64, StoreError> {
    tx.connection.execute("update rule_state set generation = generation + 1, swept = null", ())?;
    let book = load(tx.connection)?;
    let generation = book.generation;
    tx.dictionary.set_rules(book);
    Ok(generation)
}

/// Active tasks in these lanes, or in all that have limits.
fn in_use(connection: &Connection, lanes: Option<&[i32]>) -> Result<Vec<(i32, i64, i64)>, StoreError> {
    let running = format!("indexed by open_ruled where state in (2, 3) and lane >= {RULED_FROM}");
    let read = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?));
    match lanes {
        None => {
            let mut statement = connection.prepare_cached(&rules::in_use(&running, "max"))?;
            Ok(statement.query_map((), read)?.collect::<rusqlite::Result<_>>()?)
        }
        Some(lanes) => {
            let named = format!("{running} and lane in (select value from json_each(?1))");
            let mut statement = connection.prepare_cached(&rules::in_use(&named, "max"))?;
            let lanes = serde_json::json!(lanes).to_string();
            Ok(statement.query_map([lanes], read)?.collect::<rusqlite::Result<_>>()?)
        }
    }
}

pub fn used(connection: &Connection, dictionary: &Dictionary, namespace: &str) -> Result<Vec<(Key, Used)>, StoreError> {
    Ok(rules::by_key(dictionary, namespace, in_use(connection, None)?))
}

/// The number of open tasks in lanes with limits.
pub fn open_in(connection: &Connection, lanes: &[i32], limit: u32) -> Result<u64, StoreError> {
    let sql = format!(
        "select count(*) from (select 1 from task_open indexed by open_limited
         where lane >= {RULED_FROM} and lane in (select value from json_each(?1)) limit ?2)"
    );
    let lanes = serde_json::json!(lanes).to_string();
    Ok(connection.prepare_cached(&sql)?.query_row((lanes, limit), |row| row.get::<_, i64>(0))?.unsigned_abs())
}

/// The tasks that may start under rules, over all lanes of a request in one order. None where nobody is ready in a lane with
/// limits that has room: then the request is like any other.
pub fn choose(
    tx: &Tx<'_>,
    request: &ClaimRequest,
    free: &[(i32, Arc<Lane>)],
    limited: &[i32],
    now: Timestamp,
) -> Result<Option<Vec<Uuid>>, StoreError> {
    if limited.is_empty() {
        return Ok(None);
    }
    let dictionary = tx.dictionary;
    let mut walk = ReadyWalk::new(limited, dictionary.turn(&request.namespace, Walk::Limited));
    let mut looked_at = 0;
    let (mut ready, mut admission, guards) = loop {
        let lanes = next_ready(tx.connection, &mut walk, MANY)?;
        looked_at += lanes.len().max(1);
        let mut ready: Vec<(i32, Arc<Lane>)> =
            lanes.into_iter().filter_map(|id| dictionary.lane(id).map(|lane| (id, lane))).collect();
        let (admission, guards) = weigh(tx, request, &ready, now)?;
        rules::only_with_room(&mut ready, &admission, dictionary);
        let is_enough = !ready.is_empty() || looked_at >= MOST_LOOKED_AT;
        if is_enough || walk.is_over() {
            if !walk.is_over() {
                dictionary.set_turn(&request.namespace, Walk::Limited, walk.last());
            }
            break (ready, admission, guards);
        }
    };
    if ready.is_empty() {
        return Ok(None);
    }
    ready.extend_from_slice(free);
    let open = rules::open_lanes(&ready, &admission, request.limit, MOST_OF_A_LANE);
    let mut given: HashMap<i32, u32> = HashMap::new();
    let mut found: Vec<(Place, usize)> = Vec::new();
    for (index, it) in open.iter().enumerate() {
        let places = next_in_lane(tx.connection, it.lane, None, it.most, now)?;
        given.insert(it.lane, u32::try_from(places.len()).unwrap_or(u32::MAX));
        found.extend(places.into_iter().map(|place| (place, index)));
    }
    found.sort_unstable();
    let mut candidates = Vec::with_capacity(found.len());
    for (place, index) in &found {
        let limits = open[*index].limits.limits.as_slice();
        let weight = if limits.is_empty() { 0 } else { weight_of(tx.connection, place.2)? };
        candidates.push(Candidate { lane: open[*index].lane, rank: place.0, limits, weight });
    }
    let cut = rules::cut(&open, |lane| given.get(&lane).copied().unwrap_or(0));
    let chosen = admission.choose(&candidates, &cut, request.limit as usize);
    for taken in guards::take(&admission, guards, now) {
        dependencies::put(tx.connection, &taken, None, now)?;
    }
    Ok(Some(chosen.into_iter().map(|index| found[index].0.2).collect()))
}

/// Usage under the keys of these lanes, and the state of their dependencies.
fn weigh(
    tx: &Tx<'_>,
    request: &ClaimRequest,
    ready: &[(i32, Arc<Lane>)],
    now: Timestamp,
) -> Result<(Admission, Vec<Dependency>), StoreError> {
    let dictionary = tx.dictionary;
    let mut admission = dictionary.rules().admission(&request.namespace);
    if ready.is_empty() {
        return Ok((admission, Vec::new()));
    }
    let limits = ready.iter().flat_map(|(_, lane)| &lane.limits);
    let sharing = dictionary.sharing(&request.namespace, limits, rules::MOST_NAMED);
    let rows = in_use(tx.connection, sharing.as_deref())?;
    rules::count(&mut admission, dictionary, &request.namespace, rows.into_iter());
    let names = guards::named(ready.iter().map(|(_, lane)| &**lane));
    let guards = dependencies::some(tx.connection, &request.namespace, &names)?;
    guards::guard(&mut admission, &guards, now);
    Ok((admission, guards))
}

fn weight_of(connection: &Connection, id: Uuid) -> rusqlite::Result<u64> {
    connection
        .prepare_cached("select expected, success, failures from task_open where id = ?1")?
        .query_row([id.as_bytes().as_slice()], |row| {
            Ok(weight(&Tally { expected: row.get(0)?, success: row.get(1)?, failures: row.get(2)? }))
        })
}

/// Where a task that is opened again belongs; nothing if that lane has no number yet.
pub fn lane_of_reopened(tx: &Tx<'_>, lane: i32, id: Uuid) -> Result<Option<i32>, StoreError> {
    let namespace = tx.dictionary.lane(lane).map(|lane| lane.namespace.clone()).unwrap_or_default();
    if !tx.dictionary.is_ruled(&namespace) {
        return Ok(Some(lane));
    }
    let body = ended(tx.connection, &[id])?.pop();
    let Some(body) = body else { return Ok(Some(lane)) };
    let (lane, _) = body.lane(tx.dictionary, &tx.dictionary.rules())?;
    Ok(tx.dictionary.lane_id(&lane))
}

fn ended(connection: &Connection, ids: &[Uuid]) -> Result<Vec<LaneMembership>, StoreError> {
    let mut statement =
        connection.prepare_cached("select id, lane, labels, rules, executor from task where id = ?1")?;
    let mut found = Vec::with_capacity(ids.len());
    for id in ids {
        found.extend(statement.query_row([id.as_bytes().as_slice()], read_belongs).optional()?);
    }
    Ok(found)
}

fn read_belongs(row: &rusqlite::Row<'_>) -> rusqlite::Result<LaneMembership> {
    let (labels, rules): (Option<String>, Option<String>) = (row.get(2)?, row.get(3)?);
    let id = Uuid::from_bytes(row.get(0)?);
    Ok(LaneMembership::new(id, row.get(1)?, labels.as_deref(), rules.as_deref(), row.get(4)?))
}

fn belongings(connection: &Connection, whose: &Whose) -> Result<Vec<LaneMembership>, StoreError> {
    const OPEN: &str = "select o.id, o.lane, t.labels, t.rules, t.executor from task_open o join task t on t.id = o.id";
    match whose {
        Whose::Ended(ids) => ended(connection, ids),
        Whose::After(after, limit) => {
            let sql = format!("{OPEN} where o.id > ?1 order by o.id limit ?2");
            let mut statement = connection.prepare_cached(&sql)?;
            let rows = statement.query_map((after.as_bytes().as_slice(), limit), read_belongs)?;
            Ok(rows.collect::<rusqlite::Result<_>>()?)
        }
        Whose::Execution(id) | Whose::Task(id) => {
            let column = if matches!(whose, Whose::Task(_)) { "o.id" } else { "o.execution_id" };
            let mut statement = connection.prepare_cached(&format!("{OPEN} where {column} = ?1"))?;
            let rows = statement.query_map([id.as_bytes().as_slice()], read_belongs)?;
            Ok(rows.collect::<rusqlite::Result<_>>()?)
        }
    }
}

pub async fn carry(store: &SqliteStore, execution: Uuid, kind: &str, names: &[String]) -> Result<u64, StoreError> {
    let (names, kind) = (names_to_json(names), kind.to_owned());
    let changed = store
        .writer
        .run(move |tx| {
            let mut lanes = tx
                .connection
                .prepare_cached(sql::tasks::LANES_OF_EXECUTION.sqlite)?
                .query_map([execution.as_bytes().as_slice()], |row| row.get(0))?
                .collect::<rusqlite::Result<Vec<i32>>>()?;
            lanes.retain(|id| tx.dictionary.lane(*id).is_some_and(|lane| lane.kind == kind));
            let lanes = serde_json::json!(lanes).to_string();
            let sql = "update task set rules = ?3 where id in (select id from task_open
                         where execution_id = ?1 and lane in (select value from json_each(?2)))";
            Ok(tx.connection.execute(sql, (execution.as_bytes().as_slice(), &lanes, &names))?)
        })
        .await?;
    let tasks = store.belongings(Whose::Execution(execution)).await?;
    rules::put_where_they_belong(store, tasks).await?;
    Ok(changed as u64)
}

impl SqliteStore {
    /// A change of rules; what the writer has learnt of one that failed is forgotten.
    pub(super) async fn change_rules(
        &self,
        change: impl FnMut(&mut Tx<'_>) -> Result<Option<i64>, StoreError> + Send + 'static,
    ) -> Result<Option<i64>, StoreError> {
        let changed = self.writer.run(change).await;
        if changed.is_err() {
            let book = self.read(|connection, _| load(connection)).await?;
            self.dictionary.set_rules(book);
        }
        changed
    }

    pub(super) async fn named_rules(&self, namespace: &str) -> Result<Vec<Rule>, StoreError> {
        Ok(self.dictionary.rules().of(namespace).to_vec())
    }
}

#[async_trait]
impl RuleTables for SqliteStore {
    fn dictionary(&self) -> &Dictionary {
        &self.dictionary
    }

    async fn rule_state(&self) -> Result<RuleState, StoreError> {
        self.read(|connection, _| {
            let sql = sql::rules::STATE.sqlite;
            Ok(connection.query_row(sql, (), |row| {
                let swept: Option<[u8; 16]> = row.get(2)?;
                Ok(RuleState { generation: row.get(0)?, settled: row.get(1)?, swept: swept.map(Uuid::from_bytes) })
            })?)
        })
        .await
    }

    async fn belongings(&self, whose: Whose) -> Result<Vec<LaneMembership>, StoreError> {
        self.read(move |connection, _| belongings(connection, &whose)).await
    }

    async fn learn_lanes(&self, lanes: Vec<Arc<Lane>>) -> Result<(), StoreError> {
        learn_anyway(self, self.dictionary.news_of_lanes(&lanes)).await
    }

    async fn move_tasks(&self, moves: Vec<(Uuid, i32, i32)>) -> Result<(), StoreError> {
        self.writer
            .run(move |tx| {
                // Nobody was in a lane that is new: it may have been forgotten since.
                if moves.iter().any(|(_, _, to)| !tx.dictionary.has_seen_lane(*to)) {
                    return Err(StoreError::Unavailable("a lane was forgotten at the same moment".into()));
                }
                let sql = "update task_open set lane = ?3 where id = ?1 and lane = ?2";
                let mut statement = tx.connection.prepare_cached(sql)?;
                for (id, from, to) in &moves {
                    statement.execute((id.as_bytes().as_slice(), from, to))?;
                }
                Ok(())
            })
            .await
    }

    async fn note_swept(&self, generation: i64, swept: Option<Uuid>) -> Result<(), StoreError> {
        self.writer
            .run(move |tx| {
                match swept {
                    Some(id) => tx.connection.execute(
                        "update rule_state set swept = ?2 where generation = ?1",
                        (generation, id.as_bytes().as_slice()),
                    )?,
                    None => tx.connection.execute(
                        "update rule_state set settled = ?1, swept = null where generation = ?1",
                        [generation],
                    )?,
                };
                Ok(())
            })
            .await
    }
}

#[async_trait]
impl RuleStore for SqliteStore {
    async fn rules(&self, namespace: &str) -> Result<Vec<Rule>, StoreError> {
        self.named_rules(namespace).await
    }

    async fn put_rule(
        &self,
        namespace: &str,
        rule: &Rule,
        audit: Option<&Audit>,
        now: Timestamp,
    ) -> Result<Option<i64>, StoreError> {
        let (namespace, name, body) = (namespace.to_owned(), rule.name.clone(), rule_to_json(rule)?);
        let audit = audit.cloned();
        self.change_rules(move |tx| put(tx, &namespace, &name, &body, audit.as_ref(), now)).await
    }

    async fn delete_rule(&self, namespace: &str, name: &str, audit: Option<&Audit>) -> Result<Option<i64>, StoreError> {
        let (namespace, name, audit) = (namespace.to_owned(), name.to_owned(), audit.cloned());
        self.change_rules(move |tx| delete(tx, &namespace, &name, audit.as_ref())).await
    }

    async fn delete_unused_rules(&self, namespace: &str, names: &[String]) -> Result<Option<i64>, StoreError> {
        let (namespace, names) = (namespace.to_owned(), names.to_vec());
        self.change_rules(move |tx| delete_unused(tx, &namespace, &names)).await
    }

    async fn settle_rules(&self) -> Result<Settled, StoreError> {
        settle(self).await
    }

    async fn attach_rules(&self, id: ExecutionId, kind: &str, names: &[String]) -> Result<u64, StoreError> {
        carry(self, id.0, kind, names).await
    }

    async fn in_use(&self, namespace: &str) -> Result<Vec<(Key, InUse)>, StoreError> {
        let namespace = namespace.to_owned();
        self.read(move |connection, dictionary| used(connection, dictionary, &namespace)).await
    }

    async fn open_under(&self, namespace: &str, key: &Key, limit: u32) -> Result<u64, StoreError> {
        let lanes = self.dictionary.lanes_under(namespace, key);
        self.read(move |connection, _| open_in(connection, &lanes, limit)).await
    }

    fn held_by_rules(&self) -> u64 {
        self.dictionary.held.load(std::sync::atomic::Ordering::Relaxed)
    }

    fn freed_by(&self, lane: &Lane) -> Vec<Arc<Lane>> {
        self.dictionary.freed_by(lane)
    }
}
