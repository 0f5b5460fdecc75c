//! Whether a database holds together: every sentence that should be true of it, asked of every row.
//!
//! The sentences are here, once for both databases; `Look` is how each of them is read. Everything is read in one snapshot, so
//! a server may go on working beside it, and nothing is changed.

mod executions;
mod feed;
mod sentences;
mod tasks;

use std::collections::BTreeSet;

use async_trait::async_trait;
use comeback_core::Timestamp;
use uuid::Uuid;

use crate::StoreError;
use crate::audit::act_answer;
use crate::dictionary::{Dictionary, PolicyText};
use crate::events::Answer;
use crate::row::{DoneRow, FixedRow, HistoryRow, OpenRow, oldest_id};

/// Findings that are told one by one; beyond that they are counted.
pub const MOST_TOLD: usize = 1_000;
/// Rows that are read at a time.
const PAGE: u32 = 500;

/// One thing that is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Stable, for programs.
    pub code: &'static str,
    /// The task or execution it is about.
    pub about: Option<Uuid>,
    pub words: String,
}

/// One part of the check: how much it looked at, and how much was wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    pub name: &'static str,
    /// The part that was looked at.
    pub things: &'static str,
    pub looked_at: u64,
    pub wrong: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckReport {
    pub parts: Vec<Part>,
    /// The first of them; `Part::wrong` counts all.
    pub findings: Vec<Finding>,
}

impl CheckReport {
    pub fn is_clean(&self) -> bool {
        self.wrong() == 0
    }

    pub fn wrong(&self) -> u64 {
        self.parts.iter().map(|part| part.wrong).sum()
    }

    fn begin(&mut self, name: &'static str, things: &'static str) {
        self.parts.push(Part { name, things, looked_at: 0, wrong: 0 });
    }

    fn looked_at(&mut self, count: u64) {
        if let Some(part) = self.parts.last_mut() {
            part.looked_at += count;
        }
    }

    fn found(&mut self, code: &'static str, about: Option<Uuid>, words: impl Into<String>) {
        if let Some(part) = self.parts.last_mut() {
            part.wrong += 1;
        }
        if self.findings.len() < MOST_TOLD {
            self.findings.push(Finding { code, about, words: words.into() });
        }
    }
}

/// How far it has got, for whoever waits.
#[derive(Clone, Copy, Debug)]
pub struct CheckProgress {
    pub part: &'static str,
    pub done: u64,
    pub total: Option<u64>,
}

/// When a task was created, as its body says: the first record of a lone task is made from it.
#[derive(Clone, Copy, Debug)]
pub struct Born {
    pub submitted_at: i64,
    pub start_at: Option<i64>,
}

pub struct ExecutionRow {
    pub id: Uuid,
    pub state: i16,
    pub seq: i32,
    pub total: i32,
    pub open: i32,
    pub unhandled: i32,
    pub dead_end_cancel: i16,
}

/// Facts that an execution must know of each of its tasks.
pub struct MemberRow {
    pub id: Uuid,
    pub state: i16,
    pub paused_from: Option<i16>,
    pub start_at: Option<i64>,
    pub needs_left: i32,
    pub children_left: i32,
    pub gated: i32,
    pub hold: i32,
}

pub struct EdgeRow {
    pub from: Uuid,
    pub to: Uuid,
    pub met_when: i16,
    pub on_unmet: i16,
}

/// A stretch of the feed, and where the next one begins.
#[derive(Default)]
pub struct FeedPage {
    pub items: Vec<(Uuid, u32, u32)>,
    pub rows: u64,
    pub next: Option<(i64, i64)>,
}

pub struct LaneRow {
    pub id: i32,
    pub namespace: i32,
    pub namespace_name: String,
    pub queue: String,
    pub kind: String,
    pub executor: i16,
    pub dependency: String,
    pub shared: i16,
}

pub struct PolicyRow {
    pub id: i32,
    pub digest: Vec<u8>,
    pub body: String,
}

/// One snapshot of a database, as the check reads it.
#[async_trait]
pub trait Look: Send {
    /// A place to come back to when the next part cannot be read; where a failed statement does not end the snapshot, nothing.
    async fn mark(&mut self) -> Result<(), StoreError> {
        Ok(())
    }

    async fn back_to_mark(&mut self) -> Result<(), StoreError> {
        Ok(())
    }

    /// The database's own check of its files and indexes.
    async fn own_check(&mut self) -> Result<Vec<String>, StoreError>;
    /// The tables and indexes there are.
    async fn names(&mut self) -> Result<BTreeSet<String>, StoreError>;
    async fn count(&mut self, table: &'static str) -> Result<u64, StoreError>;
    /// Rows of an id and what is wrong with it.
    async fn offenders(&mut self, sql: &'static str) -> Result<Vec<(Option<Uuid>, String)>, StoreError>;
    async fn namespaces(&mut self) -> Result<Vec<(i32, String)>, StoreError>;
    async fn lanes(&mut self) -> Result<Vec<LaneRow>, StoreError>;
    async fn ruled_lanes(&mut self) -> Result<Vec<(i32, i32, String)>, StoreError>;
    async fn policies(&mut self) -> Result<Vec<PolicyRow>, StoreError>;
    async fn meta(&mut self, key: &str) -> Result<Option<String>, StoreError>;
    async fn open_tasks(&mut self, after: Uuid, limit: u32) -> Result<Vec<(OpenRow, Born)>, StoreError>;
    async fn done_tasks(&mut self, after: Uuid, limit: u32) -> Result<Vec<(DoneRow, FixedRow, Born)>, StoreError>;
    /// In the order of subject and number.
    async fn histories(&mut self, subjects: &[Uuid]) -> Result<Vec<HistoryRow>, StoreError>;
    async fn executions(&mut self, after: Uuid, limit: u32) -> Result<Vec<ExecutionRow>, StoreError>;
    async fn members(&mut self, execution: Uuid) -> Result<Vec<MemberRow>, StoreError>;
    async fn edges(&mut self, execution: Uuid) -> Result<Vec<EdgeRow>, StoreError>;
    /// The first number of every record in the log of an execution, and how many events it stands for.
    async fn log(&mut self, execution: Uuid) -> Result<Vec<(i32, i64)>, StoreError>;
    async fn feed(&mut self, after: (i64, i64)) -> Result<FeedPage, StoreError>;
    /// Lone tasks and how many events each has.
    async fn lone_events(&mut self, after: Uuid, limit: u32) -> Result<Vec<(Uuid, i64)>, StoreError>;
    /// The same of executions and the tasks inside.
    async fn shared_events(&mut self, after: Uuid, limit: u32) -> Result<Vec<(Uuid, i64)>, StoreError>;
    /// The tasks that share a log, and the executions whose log it is.
    async fn shared_tasks(&mut self, after: Uuid, limit: u32) -> Result<Vec<(Uuid, Uuid)>, StoreError>;
    /// Kept answers by the place after which to go on.
    async fn answers(&mut self, after: &AnswerPlace, limit: u32) -> Result<Vec<(AnswerPlace, String)>, StoreError>;
    /// Which of these are tasks or executions.
    async fn existing(&mut self, ids: &[Uuid]) -> Result<BTreeSet<Uuid>, StoreError>;
}

/// Namespace, scope and key of a kept answer.
pub type AnswerPlace = (i32, String, String);

/// The statements that both databases read, with `$1` for the first parameter.
pub mod sql {
    pub const EXECUTIONS: &str = "select id, state, seq, total, open, unhandled, dead_end_cancel from execution where id > $1 order by id limit $2";
    pub const MEMBERS: &str = "select t.id, coalesce(o.state, d.state), o.paused_from, o.start_at,
           coalesce(o.needs_left, 0), coalesce(o.children_left, 0), coalesce(o.gated, 0), coalesce(o.hold, 0)
         from task t left join task_open o on o.id = t.id left join task_done d on d.id = t.id
         where t.execution_id = $1 and (o.id is not null or d.id is not null) order by t.id";
    pub const EDGES: &str =
        "select e.from_id, e.to_id, e.met_when, e.on_unmet from edge e join task t on t.id = e.from_id
         where t.execution_id = $1";
    pub const LOG: &str =
        "select h.seq, cast(length(h.events) as bigint) from history h where h.execution_id = $1 order by h.seq";
    pub const LONE_EVENTS: &str = "select t.id, cast(coalesce(o.seq, d.seq, 0) as bigint)
         from task t left join task_open o on o.id = t.id left join task_done d on d.id = t.id
         where t.id > $1 and t.execution_id is null order by t.id limit $2";
    pub const SHARED_EVENTS: &str = "select h.subject, cast(sum(length(h.events)) as bigint) from history h
         where h.subject > $1 and h.execution_id is not null group by h.subject order by h.subject limit $2";
    pub const SHARED_TASKS: &str =
        "select id, execution_id from task where id > $1 and execution_id is not null order by id limit $2";
    pub const ANSWERS: &str = "select namespace, scope, key, answer from idempotency
         where (namespace, scope, key) > ($1, $2, $3) order by namespace, scope, key limit $4";
    pub const NAMESPACES: &str = "select id, name from namespace";
    pub const LANES: &str = "select l.id, l.namespace, n.name, l.queue, l.kind, l.executor, l.dependency, l.shared
         from lane l join namespace n on n.id = l.namespace";
    pub const RULED_LANES: &str = "select id, lane, limits from ruled_lane";
    pub const POLICIES: &str = "select id, digest, body from policy";
}

/// Asks everything. `created` are the names that the migrations make.
pub async fn run(
    look: &mut dyn Look,
    created: &[String],
    progress: &mut (dyn FnMut(CheckProgress) + Send),
) -> Result<CheckReport, StoreError> {
    let mut check = Check { look, report: CheckReport::default(), dictionary: Dictionary::default(), progress };
    for part in [
        Stage::Database,
        Stage::Dictionary,
        Stage::Tables,
        Stage::Tasks,
        Stage::Executions,
        Stage::Feed,
        Stage::Answers,
    ] {
        check.look.mark().await?;
        let outcome = match part {
            Stage::Database => check.database(created).await,
            Stage::Dictionary => check.dictionary().await,
            Stage::Tables => check.between_tables().await,
            Stage::Tasks => check.tasks().await,
            Stage::Executions => check.executions().await,
            Stage::Feed => check.feed().await,
            Stage::Answers => check.answers().await,
        };
        match outcome {
            // What cannot be read is the gravest finding of all, and the rest is still worth a look.
            Err(StoreError::Corrupt(words) | StoreError::Refused(words)) => {
                check.report.found("unreadable", None, words);
                check.look.back_to_mark().await?;
            }
            other => other?,
        }
    }
    Ok(check.report)
}

enum Stage {
    Database,
    Dictionary,
    Tables,
    Tasks,
    Executions,
    Feed,
    Answers,
}

struct Check<'a> {
    look: &'a mut dyn Look,
    report: CheckReport,
    dictionary: Dictionary,
    progress: &'a mut (dyn FnMut(CheckProgress) + Send),
}

impl Check<'_> {
    fn begin(&mut self, name: &'static str, things: &'static str) {
        self.report.begin(name, things);
        (self.progress)(CheckProgress { part: name, done: 0, total: None });
    }

    fn tell(&mut self, done: u64, total: u64) {
        let part = self.report.parts.last().map_or("", |part| part.name);
        (self.progress)(CheckProgress { part, done, total: Some(total) });
    }

    async fn database(&mut self, created: &[String]) -> Result<(), StoreError> {
        self.begin("database", "tables and indexes");
        let there = self.look.names().await?;
        for name in created.iter().filter(|name| !there.contains(*name)) {
            self.report.found("missing-object", None, format!("the table or index {name} is missing"));
        }
        self.report.looked_at(created.len() as u64);
        for words in self.look.own_check().await? {
            self.report.found("database", None, words);
        }
        Ok(())
    }

    /// Whatever the numbers in rows stand for must be readable.
    async fn dictionary(&mut self) -> Result<(), StoreError> {
        self.begin("dictionary", "namespaces, lanes and policies");
        for (id, name) in self.look.namespaces().await? {
            self.dictionary.learn_namespace(id, &name);
            self.report.looked_at(1);
        }
        for row in self.look.lanes().await? {
            self.report.looked_at(1);
            match comeback_core::Executor::from_code(row.executor) {
                None => {
                    let words = format!("lane {} names executor {}, which does not exist", row.id, row.executor);
                    self.report.found("lane", None, words);
                }
                Some(executor) => {
                    let lane = comeback_core::Lane {
                        namespace: row.namespace_name,
                        queue: row.queue,
                        kind: row.kind,
                        executor,
                        dependency: (!row.dependency.is_empty()).then_some(row.dependency),
                        shared: row.shared != 0,
                        limits: Vec::new(),
                    };
                    self.dictionary.learn(0, |into| into.lane(row.id, row.namespace, lane));
                }
            }
        }
        for (id, lane, limits) in self.look.ruled_lanes().await? {
            self.report.looked_at(1);
            let mut is_readable = false;
            self.dictionary.learn(0, |into| is_readable = into.limited_lane(id, lane, &limits));
            if !is_readable {
                let words = format!("lane {id} has limits that cannot be read, or is of a lane that does not exist");
                self.report.found("lane", None, words);
            }
        }
        for row in self.look.policies().await? {
            self.report.looked_at(1);
            match self.dictionary.policies.parse(row.id, &row.body) {
                Err(error) => self.report.found("policy", None, error.to_string()),
                Ok(policy) if PolicyText::of(&policy).digest.as_slice() != row.digest => {
                    self.report.found("policy", None, format!("policy {} is not the one it was stored as", row.id));
                }
                Ok(_) => {}
            }
        }
        Ok(())
    }

    async fn between_tables(&mut self) -> Result<(), StoreError> {
        self.begin("tables", "rows against rows of other tables");
        for table in ["task", "task_open", "task_done", "history", "execution", "edge", "dedupe"] {
            let rows = self.look.count(table).await?;
            self.report.looked_at(rows);
        }
        for sentence in sentences::ALL {
            for (about, words) in self.look.offenders(sentence.sql).await? {
                self.report.found(sentence.code, about, words);
            }
        }
        Ok(())
    }

    /// Answers that are kept for who asks again must lead somewhere, unless what they lead to was old and is pruned.
    async fn answers(&mut self) -> Result<(), StoreError> {
        self.begin("idempotency", "kept answers");
        let total = self.look.count("idempotency").await?;
        let horizon = self.horizon().await?;
        let mut after: AnswerPlace = (i32::MIN, String::new(), String::new());
        let mut done = 0;
        loop {
            let page = self.look.answers(&after, PAGE).await?;
            let Some((last, _)) = page.last() else { return Ok(()) };
            after = last.clone();
            done += page.len() as u64;
            self.report.looked_at(page.len() as u64);
            let mut named: Vec<(String, Uuid)> = Vec::new();
            for ((namespace, scope, key), text) in page {
                if self.dictionary.namespace_name(namespace).is_none() {
                    let words = format!("the answer for key `{key}` is in namespace {namespace}, which does not exist");
                    self.report.found("answer", None, words);
                }
                match Answer::from_json(&text) {
                    // An act, which has no answer but the task as it is.
                    _ if text.is_empty() => {}
                    // A bulk operation, which may be forgotten before its key.
                    _ if text.parse::<Uuid>().is_ok() => {}
                    Err(_) if act_answer(&text).is_some() => {}
                    Err(error) => self.report.found("answer", None, format!("key `{key}` of {scope}: {error}")),
                    Ok(answer) => {
                        let ids = answer.tasks.iter().map(|task| task.id.0).chain(answer.execution.map(|id| id.0));
                        named.extend(ids.filter(|id| *id >= horizon).map(|id| (key.clone(), id)));
                    }
                }
            }
            let ids: Vec<Uuid> = named.iter().map(|(_, id)| *id).collect();
            let there = self.look.existing(&ids).await?;
            for (key, id) in named.into_iter().filter(|(_, id)| !there.contains(id)) {
                self.report.found("answer", Some(id), format!("key `{key}` promised it, and it is not there"));
            }
            self.tell(done, total);
        }
    }

    /// Rows with a smaller id may have been pruned; the rest must be whole.
    async fn horizon(&mut self) -> Result<Uuid, StoreError> {
        let kept = self.look.meta(PRUNED_BEFORE).await?;
        Ok(oldest_id(Timestamp(kept.and_then(|text| text.parse().ok()).unwrap_or(0))))
    }
}

/// Up to when the store was told to forget; kept by `prune`, so that a check can tell what is forgotten from what is lost.
pub const PRUNED_BEFORE: &str = "pruned_before";

/// The tables and indexes that are there after these statements.
pub fn created_by<'a>(migrations: impl Iterator<Item = &'a str>) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for sql in migrations {
        for line in sql.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            match words.as_slice() {
                ["create", "table" | "index", name, ..] | ["create", "unique", "index", name, ..] => {
                    names.push((*name).trim_end_matches('(').to_owned());
                }
                ["drop", "table" | "index", name, ..] => names.retain(|it| it != name.trim_end_matches(';')),
                _ => {}
            }
        }
    }
    names
}
