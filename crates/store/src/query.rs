//! Filters as conditions. The shape of a condition is the same for both databases; where their words differ, the dialect says.
//!
//! Every value a person wrote is a bind. Numbers of our own words (states, lanes) are written into the text.

use std::collections::HashSet;

use comeback_core::filter::{Compare, NumberField, Pattern, Sort, StateTest, Term, Test, TextField, TimeField};
use comeback_core::{AttemptOutcome, State};
use uuid::Uuid;

use crate::ListQuery;
use crate::dictionary::Dictionary;
use crate::page::ListCursor;
use crate::types::{Listed, Listing};

/// A value to be bound.
#[derive(Clone, Debug, PartialEq)]
pub enum Bind {
    Int(i64),
    Text(String),
    Uuid(Uuid),
}

/// Where two databases say the same thing in different words.
pub trait Words {
    /// The mark of bind number `n`, from 1, as a 64-bit number, a text or an id.
    fn mark(&self, n: usize, bind: &Bind) -> String;
    fn label(&self, name_mark: &str) -> String;
    fn contains(&self, text: &str, part_mark: &str) -> String;
    fn starts_with(&self, text: &str, part_mark: &str) -> String;
    fn id_text(&self, column: &str) -> String;
    /// The text under a name in stored JSON.
    fn member(&self, json: &str, name: &str) -> String;
}

/// Which half of the tasks a statement is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Half {
    Open,
    Done,
}

/// A list statement for one half: `o` is its row, `t` the body.
pub struct Statement {
    pub condition: String,
    pub order: String,
    /// The sort key as one 64-bit expression.
    pub key: String,
    pub binds: Vec<Bind>,
}

/// Nothing when no task of this half can match.
pub fn statement(
    words: &dyn Words,
    dictionary: &Dictionary,
    namespace: &str,
    query: &ListQuery,
    half: Half,
) -> Option<Statement> {
    let number = dictionary.namespace(namespace)?;
    let mut builder = Builder { words, dictionary, namespace, half, now: query.now.0, binds: Vec::new() };
    let mut conditions = vec![format!("t.namespace = {number}")];
    for term in &query.filter.terms {
        match builder.term(term) {
            Truth::Always => {}
            Truth::Never => return None,
            Truth::When(condition) => conditions.push(condition),
        }
    }
    let (key, descending) = sort_key(query.sort, half);
    if let Some(after) = query.after {
        let key_mark = builder.bind(Bind::Int(after.key));
        let id_mark = builder.bind(Bind::Uuid(after.id));
        let sign = if descending { "<" } else { ">" };
        conditions.push(match query.sort {
            Sort::Submitted | Sort::SubmittedDesc => format!("o.id {sign} {id_mark} and {key_mark} = {key_mark}"),
            _ => format!("({key}, o.id) {sign} ({key_mark}, {id_mark})"),
        });
    }
    let direction = if descending { "desc" } else { "asc" };
    let order = match (query.sort, half) {
        (Sort::Submitted | Sort::SubmittedDesc, _) | (Sort::Due, Half::Done) => format!("o.id {direction}"),
        _ => format!("{key} {direction}, o.id {direction}"),
    };
    Some(Statement { condition: conditions.join(" and "), order, key, binds: builder.binds })
}

/// Ids are made in the order of submission, so their order is that order.
fn sort_key(sort: Sort, half: Half) -> (String, bool) {
    match (sort, half) {
        (Sort::SubmittedDesc, _) => ("t.submitted_at".into(), true),
        (Sort::Submitted, _) => ("t.submitted_at".into(), false),
        (Sort::Due, Half::Open) => (format!("coalesce(o.due, {})", i64::MAX), false),
        (Sort::Due, Half::Done) => (i64::MAX.to_string(), false),
        (Sort::Updated, _) => ("o.updated_at".into(), true),
        (Sort::Priority, _) => ("(0 - t.priority)".into(), false),
    }
}

fn is_descending(sort: Sort) -> bool {
    matches!(sort, Sort::SubmittedDesc | Sort::Updated)
}

/// The first of what was found, and where to go on if there is more.
pub fn page(mut found: Vec<(i64, Uuid, Listed)>, query: &ListQuery) -> Listing {
    // A task that ended between the two looks is in both halves; the later look is right.
    let mut seen = HashSet::with_capacity(found.len());
    found.reverse();
    found.retain(|(_, id, _)| seen.insert(*id));
    found.sort_unstable_by(|a, b| {
        let order = match query.sort {
            Sort::Submitted | Sort::SubmittedDesc => a.1.cmp(&b.1),
            _ => (a.0, a.1).cmp(&(b.0, b.1)),
        };
        if is_descending(query.sort) { order.reverse() } else { order }
    });
    let more = found.len() > query.limit as usize;
    found.truncate(query.limit as usize);
    let next = found.last().filter(|_| more).map(|(key, id, _)| ListCursor { sort: query.sort, key: *key, id: *id });
    Listing { items: found.into_iter().map(|(_, _, item)| item).collect(), next }
}

enum Truth {
    Always,
    Never,
    When(String),
}

struct Builder<'a> {
    words: &'a dyn Words,
    dictionary: &'a Dictionary,
    namespace: &'a str,
    half: Half,
    now: i64,
    binds: Vec<Bind>,
}

impl Builder<'_> {
    fn bind(&mut self, value: Bind) -> String {
        let mark = self.words.mark(self.binds.len() + 1, &value);
        self.binds.push(value);
        mark
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
                let column = match (field, self.half) {
                    (TimeField::Due, Half::Done) => return Truth::Never,
                    (TimeField::Due, Half::Open) => "o.due",
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
        let half = self.half;
        let in_half = |state: State| state.is_open() == (half == Half::Open);
        let mut codes: Vec<i64> = Vec::new();
        let mut others: Vec<String> = Vec::new();
        for test in tests {
            match (test, half) {
                (StateTest::Is(state), _) if in_half(*state) => codes.push(i64::from(state.code())),
                (StateTest::Retrying, Half::Open) => {
                    others.push(format!("(o.state = 4 and o.hold = 0 and coalesce(o.held_until, 0) <= {})", self.now))
                }
                (StateTest::Held, Half::Open) => {
                    others.push(format!("(o.state = 5 or o.hold = 1 or coalesce(o.held_until, 0) > {})", self.now))
                }
                (StateTest::Recovered, Half::Done) => {
                    others.push("(o.state = 6 and o.first_failed_at is not null)".into());
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
            TextField::Kind => self.lanes(any, |lane| Some(&lane.kind)),
            TextField::Queue => self.lanes(any, |lane| Some(&lane.queue)),
            TextField::Dependency => self.lanes(any, |lane| lane.dependency.as_ref()),
            TextField::Name => self.column("t.name", any),
            TextField::Key => self.column("t.key", any),
            TextField::Account => self.column("t.account", any),
            TextField::ExternalId => self.column("t.external_id", any),
            TextField::Verdict if self.half == Half::Open => Truth::Never,
            TextField::Verdict => {
                let verdict = format!("({})", verdict(self.words, self.half));
                self.column(&verdict, any)
            }
            TextField::Worker => self.column(
                match self.half {
                    Half::Open => "o.worker",
                    Half::Done => {
                        "(select h.worker from history h where h.subject = o.id and h.worker is not null
                           order by h.seq desc limit 1)"
                    }
                },
                any,
            ),
            TextField::Label(name) => {
                let mark = self.bind(Bind::Text(name.clone()));
                let label = self.words.label(&mark);
                self.column(&label, any)
            }
        }
    }

    /// Kinds, queues and dependencies are in the dictionary: which lanes they mean is known before the question is asked.
    fn lanes(&self, any: &[Pattern], of: impl Fn(&comeback_core::Lane) -> Option<&String>) -> Truth {
        let wanted =
            |text: &String| any.iter().any(|p| if p.prefix { text.starts_with(&p.text) } else { *text == p.text });
        let lanes =
            self.dictionary.lanes_where(|lane| lane.namespace == self.namespace && of(lane).is_some_and(&wanted));
        if lanes.is_empty() {
            return Truth::Never;
        }
        Truth::When(list("t.lane", lanes.iter().map(|(id, _)| i64::from(*id))))
    }

    fn column(&mut self, column: &str, any: &[Pattern]) -> Truth {
        let tests: Vec<String> = any
            .iter()
            .map(|pattern| {
                let mark = self.bind(Bind::Text(pattern.text.clone()));
                if pattern.prefix { self.words.starts_with(column, &mark) } else { format!("{column} = {mark}") }
            })
            .collect();
        Truth::When(format!("({})", tests.join(" or ")))
    }

    fn word(&mut self, word: &str) -> Truth {
        let mark = self.bind(Bind::Text(word.to_lowercase()));
        let bare: String = word.to_lowercase().chars().filter(|c| *c != '-').collect();
        let id_mark = self.bind(Bind::Text(bare));
        let last_error = last_error(self.words);
        Truth::When(format!(
            "({} or {} or {})",
            self.words.contains(&self.words.id_text("t.id"), &id_mark),
            self.words.contains("coalesce(t.name, '')", &mark),
            self.words.contains(&format!("coalesce({last_error}, '')"), &mark),
        ))
    }
}

/// What the latest error of the task `o` said.
pub fn last_error(words: &dyn Words) -> String {
    format!(
        "(select {} from history h where h.subject = o.id and h.error is not null order by h.seq desc limit 1)",
        words.member("h.error", "message")
    )
}

/// What the task `o` judged when it succeeded; a verdict is a word.
pub fn verdict(words: &dyn Words, half: Half) -> String {
    match half {
        Half::Open => "null".into(),
        Half::Done => format!(
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
