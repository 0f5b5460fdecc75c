//! Filters as conditions. The shape of a condition is the same for both databases; where their words differ, the dialect says.
//!
//! Every value a person wrote is a bind. Numbers of our own words (states, lanes) are written into the text.

use std::collections::HashSet;

use comeback_core::filter::{Compare, NumberField, Pattern, Sort, StateTest, Term, Test, TextField, TimeField};
use comeback_core::{AttemptOutcome, Lane, State, Timestamp};
use uuid::Uuid;

use crate::ListQuery;
use crate::dictionary::Dictionary;
use crate::page::ListCursor;
use crate::{Listed, Listing};

mod ways;

use ways::{AccessPath, Due};
pub use ways::{FEW, Plan, Shortcut};

/// A value to be bound.
#[derive(Clone, Debug, PartialEq)]
pub enum Bind {
    Int(i64),
    Text(String),
    Uuid(Uuid),
}

/// Where two databases say the same thing in different words.
pub trait SqlDialect: Sync {
    /// The mark of bind number `n`, from 1, as a 64-bit number, a text or an id.
    fn mark(&self, n: usize, bind: &Bind) -> String;
    fn label(&self, name_mark: &str) -> String;
    fn contains(&self, text: &str, part_mark: &str) -> String;
    fn starts_with(&self, text: &str, part_mark: &str) -> String;
    fn id_text(&self, column: &str) -> String;
    /// The text under a name in stored JSON.
    fn member(&self, json: &str, name: &str) -> String;
    /// A table under another name, to be read through this index.
    fn indexed(&self, table: &str, index: &str) -> String;
    /// Joins the one row of a table that has the id of the row before it, which is never looked for the other way round.
    fn looked_up(&self, table: &str, name: &str, before: &str) -> String;
}

/// Which half of the tasks a statement is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskTable {
    Open,
    Done,
}

/// A list statement for one half: `o` is its row, `t` the body.
pub struct Statement {
    /// The tables.
    pub from: String,
    pub condition: String,
    pub order: String,
    /// The sort key as one 64-bit expression.
    pub key: String,
    pub binds: Vec<Bind>,
}

impl Statement {
    /// Which tasks are on the page and by what they are sorted. Everything else is read of those only.
    pub fn page(&self, limit: u32) -> String {
        let Statement { from, condition, order, key, .. } = self;
        format!(
            "(select o.id, cast({key} as bigint) as sort_key from {from} where {condition} order by {order} limit {limit}) p"
        )
    }
}

/// A line of a page, with its sort key and id.
pub type Found = (i64, Uuid, Listed);

/// A list that somebody asks for, of one half.
#[derive(Clone, Copy)]
pub struct ListStatement<'a> {
    pub words: &'a dyn SqlDialect,
    pub dictionary: &'a Dictionary,
    pub namespace: &'a str,
    pub query: &'a ListQuery,
    pub half: TaskTable,
    /// Where the page ends by what was found in the other half.
    pub until: Option<ListCursor>,
    /// The dependencies that let nothing start.
    pub closed: &'a [String],
}

/// At most this many lanes are named to tell the tasks of a namespace from others.
const MOST_LANES: usize = 1_000;

/// Whether somebody asks for what is held, which dependencies have a say in.
pub fn asks_for_held(query: &ListQuery) -> bool {
    let is_held = |test: &StateTest| *test == StateTest::Held;
    query.filter.terms.iter().any(|term| matches!(&term.test, Test::State(tests) if tests.iter().any(is_held)))
}

impl ListStatement<'_> {
    /// None if no task of this half can match.
    pub fn whole(&self) -> Option<Statement> {
        self.through(&AccessPath::whole())
    }

    /// The same of what lies on a way.
    fn through(&self, way: &AccessPath) -> Option<Statement> {
        let ListStatement { query, half, .. } = *self;
        let number = self.dictionary.namespace(self.namespace)?;
        let mut builder = Builder { question: *self, now: query.now.0, binds: Vec::new() };
        let mut conditions = vec![format!("t.namespace = {number}")];
        conditions.extend(way.condition.clone().map(String::from));
        if let Some(lanes) = self.lanes() {
            if lanes.is_empty() {
                return None;
            }
            conditions.push(list(way.lane(), lanes.into_iter()));
        }
        for term in query.filter.terms.iter().filter(|term| term.negated || asked_lane(&term.test).is_none()) {
            match builder.term(term) {
                Truth::Always => {}
                Truth::Never => return None,
                Truth::When(condition) => conditions.push(condition),
            }
        }
        let key = Key::of(query.sort, half, way.due);
        for (place, side) in [(query.after, Side::Beyond), (self.until, Side::Before)] {
            match place.map_or(Truth::Always, |place| builder.place(place, side, &key)) {
                Truth::Always => {}
                Truth::Never => return None,
                Truth::When(condition) => conditions.push(condition),
            }
        }
        let direction = if is_descending(query.sort) { "desc" } else { "asc" };
        let (order, key) = match key {
            Key::Id(key) => (format!("o.id {direction}"), key.to_owned()),
            Key::Same(key) => (format!("o.id {direction}"), key.to_string()),
            Key::Own(key) => (format!("{key} {direction}, o.id {direction}"), key),
        };
        let from = if self.is_of_bodies() && *way == AccessPath::whole() {
            // Only a planner that has counted can say from which side there is less to look at.
            format!("{} o join task t on t.id = o.id", half.table())
        } else {
            way.tables(self.words, half)
        };
        Some(Statement { from, condition: conditions.join(" and "), order, key, binds: builder.binds })
    }

    /// Kinds, queues and dependencies are in the dictionary: which lanes they mean is known before the question is asked. Nothing
    /// where neither a term nor the namespace leaves any of them out.
    fn lanes(&self) -> Option<Vec<i64>> {
        let terms = self.query.filter.terms.iter().filter(|term| !term.negated);
        let asked: Vec<_> = terms.filter_map(|term| asked_lane(&term.test)).collect();
        if asked.is_empty() && self.dictionary.namespace_count() == 1 {
            return None;
        }
        let lanes = self.lanes_that(|lane| asked.iter().all(|asked| asked.is_of(lane)));
        // So that a few are found among a million of others; a namespace of so many lanes is not small.
        (!asked.is_empty() || lanes.len() <= MOST_LANES).then_some(lanes)
    }

    fn lanes_that(&self, wanted: impl Fn(&Lane) -> bool) -> Vec<i64> {
        self.dictionary.lanes_in(self.namespace, wanted).into_iter().map(i64::from).collect()
    }
}

/// Condition for held tasks among open rows `o`: paused, held by a guard, and what could start but for a dependency that is closed.
pub fn held_now(dictionary: &Dictionary, namespace: &str, closed: &[String], now: Timestamp) -> String {
    let held = format!("o.state = 5 or o.hold = 1 or coalesce(o.held_until, 0) > {}", now.0);
    let lanes = closed_lanes(dictionary, namespace, closed);
    if lanes.is_empty() {
        return format!("({held})");
    }
    format!("({held} or (o.state = 1 and {}))", list("o.lane", lanes.into_iter()))
}

/// The lanes of those that could start but for what they need.
fn closed_lanes(dictionary: &Dictionary, namespace: &str, closed: &[String]) -> Vec<i64> {
    let is_closed = |name: &str| closed.iter().any(|closed| closed == name);
    let waits = |lane: &Lane| lane.limits.iter().filter_map(|limit| limit.key.dependency()).any(is_closed);
    if closed.is_empty() {
        return Vec::new();
    }
    dictionary.limited_lanes(namespace, waits).into_iter().map(i64::from).collect()
}

/// By what a list is sorted.
enum Key {
    /// Ids are made in the order of submission, so their order is that order.
    Id(&'static str),
    /// It is the same for all.
    Same(i64),
    Own(String),
}

impl Key {
    fn of(sort: Sort, half: TaskTable, due: Due) -> Key {
        match (sort, half, due) {
            (Sort::Submitted | Sort::SubmittedDesc, ..) => Key::Id("t.submitted_at"),
            (Sort::Due, TaskTable::Done, _) | (Sort::Due, _, Due::None) => Key::Same(i64::MAX),
            (Sort::Due, _, Due::Set) => Key::Own("o.due".into()),
            (Sort::Due, _, Due::Unknown) => Key::Own(format!("coalesce(o.due, {})", i64::MAX)),
            (Sort::Updated, ..) => Key::Own("o.updated_at".into()),
            (Sort::Priority, ..) => Key::Own("(0 - t.priority)".into()),
        }
    }
}

fn is_descending(sort: Sort) -> bool {
    matches!(sort, Sort::SubmittedDesc | Sort::Updated)
}

/// The lanes that a term allows.
struct AskedLane<'a> {
    field: &'a TextField,
    any: &'a [Pattern],
}

fn asked_lane(test: &Test) -> Option<AskedLane<'_>> {
    match test {
        Test::Text { field: field @ (TextField::Kind | TextField::Queue | TextField::Dependency), any } => {
            Some(AskedLane { field, any })
        }
        _ => None,
    }
}

impl AskedLane<'_> {
    fn is_of(&self, lane: &Lane) -> bool {
        let text = match self.field {
            TextField::Kind => Some(&lane.kind),
            TextField::Queue => Some(&lane.queue),
            _ => lane.dependency.as_ref(),
        };
        let is_it = |text: &String, p: &Pattern| if p.prefix { text.starts_with(&p.text) } else { *text == p.text };
        text.is_some_and(|text| self.any.iter().any(|pattern| is_it(text, pattern)))
    }
}

/// The first of what was found, and where to go on if there is more.
pub fn page(mut found: Vec<Found>, query: &ListQuery) -> Listing {
    // A task that ended between the two looks is in both halves; the later look is right.
    let mut seen = HashSet::with_capacity(found.len());
    found.reverse();
    found.retain(|(_, id, _)| seen.insert(*id));
    sort(&mut found, query.sort);
    let more = found.len() > query.limit as usize;
    found.truncate(query.limit as usize);
    let next = found.last().filter(|_| more).map(|found| place(found, query.sort));
    Listing { items: found.into_iter().map(|(_, _, item)| item).collect(), next }
}

/// The first that is on no page any more, where there are enough already: what comes after it in the other half need not be found.
pub fn end_of_page(found: &mut [Found], query: &ListQuery) -> Option<ListCursor> {
    sort(found, query.sort);
    found.get(query.limit as usize).map(|found| place(found, query.sort))
}

fn sort(found: &mut [Found], sort: Sort) {
    found.sort_unstable_by(|a, b| {
        let order = match sort {
            Sort::Submitted | Sort::SubmittedDesc => a.1.cmp(&b.1),
            _ => (a.0, a.1).cmp(&(b.0, b.1)),
        };
        if is_descending(sort) { order.reverse() } else { order }
    });
}

fn place((key, id, _): &Found, sort: Sort) -> ListCursor {
    ListCursor { sort, key: *key, id: *id }
}

/// A side of a place in the order.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Beyond,
    Before,
}

enum Truth {
    Always,
    Never,
    When(String),
}

struct Builder<'a> {
    question: ListStatement<'a>,
    now: i64,
    binds: Vec<Bind>,
}

impl Builder<'_> {
    fn bind(&mut self, value: Bind) -> String {
        let mark = self.question.words.mark(self.binds.len() + 1, &value);
        self.binds.push(value);
        mark
    }

    /// Condition for rows behind a sort key.
    fn place(&mut self, place: ListCursor, side: Side, key: &Key) -> Truth {
        let sign = if is_descending(self.question.query.sort) == (side == Side::Beyond) { "<" } else { ">" };
        if let Key::Same(key) = key
            && place.key != *key
        {
            // Nothing that is the same for all is sorted downwards.
            return if (place.key < *key) == (side == Side::Beyond) { Truth::Always } else { Truth::Never };
        }
        Truth::When(match key {
            // Said of both tables: whichever is walked along, the walk begins and ends there.
            Key::Id(_) => {
                let mark = self.bind(Bind::Uuid(place.id));
                format!("o.id {sign} {mark} and t.id {sign} {mark}")
            }
            Key::Same(_) => format!("o.id {sign} {}", self.bind(Bind::Uuid(place.id))),
            Key::Own(key) => {
                let key_mark = self.bind(Bind::Int(place.key));
                let id_mark = self.bind(Bind::Uuid(place.id));
                format!("({key}, o.id) {sign} ({key_mark}, {id_mark})")
            }
        })
    }

    fn term(&mut self, term: &Term) -> Truth {
        let truth = self.test(&term.test);
        if !term.negated {
            return truth;
        }
        match truth {
            Truth::Always => Truth::Never,
            Truth::Never => Truth::Always,
            Truth::When(condition) => Truth::When(format!("not coalesce({condition}, false)")),
        }
    }

    fn test(&mut self, test: &Test) -> Truth {
        match test {
            Test::State(tests) => self.states(tests),
            Test::Text { field, any } => self.text(field, any),
            Test::Execution(ids) => {
                let marks: Vec<String> = ids.iter().map(|id| self.bind(Bind::Uuid(*id))).collect();
                let list = marks.join(", ");
                Truth::When(format!("(t.execution_id in ({list}) or (t.execution_id is null and t.id in ({list})))"))
            }
            Test::Class(classes) => numbers("o.class", classes.iter().map(|class| i64::from(class.code()))),
            Test::Fingerprint(prints) => numbers("o.fingerprint", prints.iter().copied()),
            Test::Number { field, compare, value } => {
                let column = match field {
                    NumberField::Priority => "t.priority",
                    NumberField::Attempt => "o.attempt",
                    NumberField::Lost => "o.lost",
                };
                let mark = self.bind(Bind::Int(*value));
                Truth::When(format!("{column} {} {mark}", sign(*compare)))
            }
            Test::Time { field, compare, at } => {
                let column = match (field, self.question.half) {
                    (TimeField::Due, TaskTable::Done) => return Truth::Never,
                    (TimeField::Due, TaskTable::Open) => "o.due",
                    (TimeField::Submitted, _) => "t.submitted_at",
                    (TimeField::Updated, _) => "o.updated_at",
                };
                let mark = self.bind(Bind::Int(at.0));
                Truth::When(format!("{column} {} {mark}", sign(*compare)))
            }
            Test::Word(word) => self.word(word),
        }
    }

    fn states(&self, tests: &[StateTest]) -> Truth {
        let half = self.question.half;
        let in_half = |state: State| state.is_open() == (half == TaskTable::Open);
        let mut codes: Vec<i64> = Vec::new();
        let mut others: Vec<String> = Vec::new();
        for test in tests {
            match (test, half) {
                (StateTest::Is(state), _) if in_half(*state) => codes.push(i64::from(state.code())),
                (StateTest::Retrying, TaskTable::Open) => {
                    others.push(format!("(o.state = 4 and o.hold = 0 and coalesce(o.held_until, 0) <= {})", self.now))
                }
                (StateTest::Held, TaskTable::Open) => {
                    let ListStatement { dictionary, namespace, closed, query, .. } = self.question;
                    others.push(held_now(dictionary, namespace, closed, query.now));
                }
                (StateTest::Recovered, TaskTable::Done) => {
                    others.push("(o.state = 6 and o.run > 1)".into());
                }
                _ => {}
            }
        }
        if !codes.is_empty() {
            others.push(list("o.state", codes.into_iter()));
        }
        if others.is_empty() { Truth::Never } else { Truth::When(format!("({})", others.join(" or "))) }
    }

    fn text(&mut self, field: &TextField, any: &[Pattern]) -> Truth {
        match field {
            TextField::Kind | TextField::Queue | TextField::Dependency => {
                let asked = AskedLane { field, any };
                let lanes = self.question.lanes_that(|lane| asked.is_of(lane));
                if lanes.is_empty() { Truth::Never } else { numbers("o.lane", lanes.into_iter()) }
            }
            TextField::Name => self.column("t.name", any),
            TextField::Key => self.column("t.key", any),
            TextField::Account => self.column("t.account", any),
            TextField::ExternalId => self.column("t.external_id", any),
            TextField::Verdict if self.question.half == TaskTable::Open => Truth::Never,
            TextField::Verdict => {
                let verdict = format!("({})", verdict(self.question.words, self.question.half));
                self.column(&verdict, any)
            }
            TextField::Worker => self.column(
                match self.question.half {
                    TaskTable::Open => "o.worker",
                    TaskTable::Done => {
                        "(select h.worker from history h where h.subject = o.id and h.worker is not null
                           order by h.seq desc limit 1)"
                    }
                },
                any,
            ),
            TextField::Label(name) => {
                let mark = self.bind(Bind::Text(name.clone()));
                let label = self.question.words.label(&mark);
                self.column(&label, any)
            }
        }
    }

    fn column(&mut self, column: &str, any: &[Pattern]) -> Truth {
        let tests: Vec<String> = any
            .iter()
            .map(|pattern| {
                let mark = self.bind(Bind::Text(pattern.text.clone()));
                if pattern.prefix {
                    self.question.words.starts_with(column, &mark)
                } else {
                    format!("{column} = {mark}")
                }
            })
            .collect();
        Truth::When(format!("({})", tests.join(" or ")))
    }

    fn word(&mut self, word: &str) -> Truth {
        let mark = self.bind(Bind::Text(word.to_lowercase()));
        let bare: String = word.to_lowercase().chars().filter(|c| *c != '-').collect();
        let id_mark = self.bind(Bind::Text(bare));
        let last_error = last_error(self.question.words);
        Truth::When(format!(
            "({} or {} or {})",
            self.question.words.contains(&self.question.words.id_text("t.id"), &id_mark),
            self.question.words.contains("coalesce(t.name, '')", &mark),
            self.question.words.contains(&format!("coalesce({last_error}, '')"), &mark),
        ))
    }
}

/// The message of the latest error of the task `o`.
pub fn last_error(words: &dyn SqlDialect) -> String {
    format!(
        "(select {} from history h where h.subject = o.id and h.error is not null order by h.seq desc limit 1)",
        words.member("h.error", "message")
    )
}

/// The verdict of the task `o` when it succeeded; a verdict is a word.
pub fn verdict(words: &dyn SqlDialect, half: TaskTable) -> String {
    match half {
        TaskTable::Open => "null".into(),
        TaskTable::Done => format!(
            "case when o.state = {} then (select substr({}, 1, 100) from history h
               where h.subject = o.id and h.outcome = {} order by h.seq desc limit 1) end",
            State::Succeeded.code(),
            words.member("h.result", "verdict"),
            AttemptOutcome::Succeeded.code(),
        ),
    }
}

fn numbers(column: &str, values: impl Iterator<Item = i64>) -> Truth {
    Truth::When(list(column, values))
}

fn list(column: &str, values: impl Iterator<Item = i64>) -> String {
    let values: Vec<String> = values.map(|value| value.to_string()).collect();
    format!("{column} in ({})", values.join(", "))
}

fn sign(compare: Compare) -> &'static str {
    match compare {
        Compare::Equal => "=",
        Compare::Less => "<",
        Compare::LessOrEqual => "<=",
        Compare::Greater => ">",
        Compare::GreaterOrEqual => ">=",
    }
}
