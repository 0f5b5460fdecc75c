//! One grammar for asking about tasks: API, CLI, bulk operations and the dashboard read the same words.
//!
//! `state:retrying queue:mail -kind:report.* attempt:>=3 due:<1h "connection refused"`: terms are joined by *and*, commas
//! inside a value by *or*, a minus negates. Spans are turned into instants here, so a filter has one meaning for ever.
//!
//! Over 500 lines: the grammar, its tests and the evaluation of a filter change together.

mod holds;

use uuid::Uuid;

use crate::failure::Class;
use crate::task::{Priority, State};
use crate::time::{Millis, Timestamp};
use crate::words::words;

pub use crate::fingerprint::fingerprint_to_hex;
pub use holds::Subject;

/// All terms must hold.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Filter {
    /// The terms; all of them must hold.
    pub terms: Vec<Term>,
}

/// One term of a filter.
#[derive(Clone, Debug, PartialEq)]
pub struct Term {
    /// Whether it holds when the test does not.
    pub negated: bool,
    /// The test.
    pub test: Test,
}

/// The question of a term. A list holds when one of its members does.
#[derive(Clone, Debug, PartialEq)]
pub enum Test {
    /// In one of these states.
    State(Vec<StateTest>),
    /// A text field matches one of these.
    Text {
        /// The field.
        field: TextField,
        /// The patterns.
        any: Vec<Pattern>,
    },
    /// Part of one of these executions.
    Execution(Vec<Uuid>),
    /// Of one of these classes.
    Class(Vec<Class>),
    /// Of one of these error groups.
    Fingerprint(Vec<i64>),
    /// A number compares so.
    Number {
        /// The field.
        field: NumberField,
        /// The comparison.
        compare: Compare,
        /// The value.
        value: i64,
    },
    /// A time compares so.
    Time {
        /// The field.
        field: TimeField,
        /// The comparison.
        compare: Compare,
        /// The instant.
        at: Timestamp,
    },
    /// Somewhere in the id, the name or the last error.
    Word(String),
}

/// A state, or a condition that people name like one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateTest {
    /// In this state.
    Is(State),
    /// Waiting for its retry and not held.
    Retrying,
    /// Kept from running: paused, held by a guard, or its execution is paused.
    Held,
    /// Succeeded, but not at the first try.
    Recovered,
}

/// A field that holds text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TextField {
    /// The kind of task.
    Kind,
    /// The queue.
    Queue,
    /// The name of a step.
    Name,
    /// The dedupe key.
    Key,
    /// The dependency.
    Dependency,
    /// The account.
    Account,
    /// The worker.
    Worker,
    /// The caller's own id.
    ExternalId,
    /// The verdict of a run that succeeded.
    Verdict,
    /// The label of this name.
    Label(String),
}

/// A text, or the start of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    /// The text.
    pub text: String,
    /// The text is only the beginning.
    pub prefix: bool,
}

/// A field that holds a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NumberField {
    /// The priority.
    Priority,
    /// Retries in this cycle.
    Attempt,
    /// Lost runs.
    Lost,
}

/// A field that holds a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeField {
    /// When it is due.
    Due,
    /// When it was submitted.
    Submitted,
    /// When it last changed.
    Updated,
}

/// A comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compare {
    /// `=`.
    Equal,
    /// `<`.
    Less,
    /// `<=`.
    LessOrEqual,
    /// `>`.
    Greater,
    /// `>=`.
    GreaterOrEqual,
}

impl Compare {
    fn reversed(self) -> Compare {
        match self {
            Compare::Equal => Compare::Equal,
            Compare::Less => Compare::Greater,
            Compare::LessOrEqual => Compare::GreaterOrEqual,
            Compare::Greater => Compare::Less,
            Compare::GreaterOrEqual => Compare::LessOrEqual,
        }
    }
}

/// The fault, and at which character (from 0).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("at {position}: {message}")]
pub struct FilterError {
    /// The character, from 0.
    pub position: usize,
    /// The fault, as a sentence.
    pub message: String,
}

/// The fields, for messages.
pub const FIELDS: &str = "state, kind, queue, name, key, label.<name>, execution, dependency, account, class, \
    fingerprint, worker, external_id, verdict, priority, attempt, lost, due, age, submitted, updated";

const MAX_LENGTH: usize = 4_096;
const MAX_TERMS: usize = 50;
/// Words without a field: each is looked for in the texts of every task, so they are the dearest.
const MAX_WORDS: usize = 16;

impl Filter {
    /// The kinds that it asks for by their whole names.
    pub fn kinds(&self) -> impl Iterator<Item = &str> {
        fn of(term: &Term) -> &[Pattern] {
            match &term.test {
                Test::Text { field: TextField::Kind, any } if !term.negated => any,
                _ => &[],
            }
        }
        self.terms.iter().flat_map(of).filter(|pattern| !pattern.prefix).map(|pattern| pattern.text.as_str())
    }

    /// Parses a filter; `now` is what relative times count from.
    pub fn parse(text: &str, now: Timestamp) -> Result<Filter, FilterError> {
        if text.len() > MAX_LENGTH {
            return Err(fault(MAX_LENGTH, format!("a filter may have {MAX_LENGTH} bytes at most")));
        }
        let mut terms = Vec::new();
        for token in tokens(text)? {
            if terms.len() == MAX_TERMS {
                return Err(fault(token.position, format!("a filter may have {MAX_TERMS} terms at most")));
            }
            terms.push(term(&token, now)?);
            let words = terms.iter().filter(|term| matches!(term.test, Test::Word(_))).count();
            if words > MAX_WORDS {
                return Err(fault(
                    token.position,
                    format!("a filter may have {MAX_WORDS} words without a field at most"),
                ));
            }
        }
        Ok(Filter { terms })
    }

    /// One more term, of a field and a value that is taken as it is: quotes and backslashes stand for themselves. A value of letters,
    /// digits and `-_.,*:` may be a list with commas or end with a star; any other is one text.
    pub fn and_field(self, field: &str, value: &str, now: Timestamp) -> Result<Filter, FilterError> {
        if value.len() > MAX_LENGTH {
            return Err(fault(MAX_LENGTH, format!("a value may have {MAX_LENGTH} bytes at most")));
        }
        if self.terms.len() >= MAX_TERMS {
            return Err(fault(0, format!("a filter may have {MAX_TERMS} terms at most")));
        }
        let quoted = !value.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.,*:".contains(&byte));
        let pieces: Vec<&str> = if quoted { vec![value] } else { value.split(',').collect() };
        let values = pieces.into_iter().map(|piece| Value { position: 0, text: piece.to_owned(), quoted }).collect();
        let token = Token { position: 0, negated: false, field: Some(field.to_owned()), values };
        let Term { test, .. } = term(&token, now)?;
        Ok(self.and(test))
    }

    /// The same filter with one more term.
    pub fn and(mut self, test: Test) -> Filter {
        self.terms.push(Term { negated: false, test });
        self
    }
}

/// One term as written, with its quotes resolved.
struct Token {
    position: usize,
    negated: bool,
    /// Before the first colon outside quotes.
    field: Option<String>,
    /// Pieces of the value, split at commas outside quotes.
    values: Vec<Value>,
}

struct Value {
    position: usize,
    text: String,
    quoted: bool,
}

fn fault(position: usize, message: impl Into<String>) -> FilterError {
    FilterError { position, message: message.into() }
}

fn tokens(text: &str) -> Result<Vec<Token>, FilterError> {
    let mut chars = text.char_indices().peekable();
    let mut out = Vec::new();
    loop {
        while chars.next_if(|(_, c)| c.is_whitespace()).is_some() {}
        let Some(&(start, first)) = chars.peek() else { return Ok(out) };
        let mut token = Token { position: start, negated: false, field: None, values: Vec::new() };
        if first == '-' {
            token.negated = true;
            chars.next();
        }
        let mut value = Value { position: start, text: String::new(), quoted: false };
        while let Some((at, c)) = chars.next_if(|(_, c)| !c.is_whitespace()) {
            match c {
                '"' => {
                    value.quoted = true;
                    loop {
                        match chars.next() {
                            Some((_, '"')) => break,
                            Some((_, '\\')) => value.text.extend(chars.next().map(|(_, c)| c)),
                            Some((_, c)) => value.text.push(c),
                            None => return Err(fault(at, "this quote is never closed")),
                        }
                    }
                }
                ':' if token.field.is_none() && !value.quoted => {
                    token.field = Some(std::mem::take(&mut value.text));
                    value.position = at + 1;
                }
                ',' if token.field.is_some() => {
                    token.values.push(value);
                    value = Value { position: at + 1, text: String::new(), quoted: false };
                }
                c => value.text.push(c),
            }
        }
        token.values.push(value);
        out.push(token);
    }
}

fn term(token: &Token, now: Timestamp) -> Result<Term, FilterError> {
    if let Some(empty) = token.values.iter().find(|value| value.text.is_empty() && !value.quoted) {
        return Err(fault(empty.position, "a value is missing here"));
    }
    let test = match &token.field {
        None => Test::Word(token.values.iter().map(|value| value.text.as_str()).collect()),
        Some(field) => field_test(field, token, now)?,
    };
    Ok(Term { negated: token.negated, test })
}

fn field_test(field: &str, token: &Token, now: Timestamp) -> Result<Test, FilterError> {
    let text = |field: TextField, wildcard: bool| {
        let any = token.values.iter().map(|value| pattern(value, wildcard)).collect();
        Ok(Test::Text { field, any })
    };
    match field.to_ascii_lowercase().as_str() {
        "state" | "status" => {
            let lists: Result<Vec<_>, _> = token.values.iter().map(state_tests).collect();
            Ok(Test::State(lists?.into_iter().flatten().collect()))
        }
        "kind" => text(TextField::Kind, true),
        "queue" => text(TextField::Queue, true),
        "name" => text(TextField::Name, true),
        "key" => text(TextField::Key, false),
        "dependency" => text(TextField::Dependency, false),
        "account" => text(TextField::Account, false),
        "worker" => text(TextField::Worker, false),
        "external_id" => text(TextField::ExternalId, false),
        "verdict" => text(TextField::Verdict, false),
        "execution" | "execution_id" => each(token, |text| text.parse().ok(), "is not an id").map(Test::Execution),
        "class" | "error_class" => {
            each(token, Class::from_word, &format!("is not one of {}", Class::list())).map(Test::Class)
        }
        "fingerprint" => {
            each(token, fingerprint_from_hex, "is not a fingerprint of 16 hex digits").map(Test::Fingerprint)
        }
        "priority" => number(NumberField::Priority, token),
        "attempt" => number(NumberField::Attempt, token),
        "lost" => number(NumberField::Lost, token),
        "due" => time(TimeField::Due, Relative::Ahead, token, now),
        "age" => time(TimeField::Submitted, Relative::Age, token, now),
        "submitted" => time(TimeField::Submitted, Relative::Ago, token, now),
        "updated" => time(TimeField::Updated, Relative::Ago, token, now),
        _ => match field.get(..6).filter(|start| start.eq_ignore_ascii_case("label.")) {
            Some(_) if field.len() > 6 => text(TextField::Label(field[6..].to_owned()), false),
            _ => Err(fault(token.position, format!("`{field}` is not a field; these are: {FIELDS}"))),
        },
    }
}

/// Reads a fingerprint of 16 hexadecimal digits.
pub fn fingerprint_from_hex(text: &str) -> Option<i64> {
    if text.len() != 16 {
        return None;
    }
    u64::from_str_radix(text, 16).ok().map(u64::cast_signed)
}

fn pattern(value: &Value, wildcard: bool) -> Pattern {
    match value.text.strip_suffix('*').filter(|_| wildcard && !value.quoted) {
        Some(start) => Pattern { text: start.to_owned(), prefix: true },
        None => Pattern { text: value.text.clone(), prefix: false },
    }
}

fn each<T>(token: &Token, read: impl Fn(&str) -> Option<T>, otherwise: &str) -> Result<Vec<T>, FilterError> {
    let one =
        |value: &Value| read(&value.text).ok_or_else(|| fault(value.position, format!("`{}` {otherwise}", value.text)));
    token.values.iter().map(one).collect()
}

fn state_tests(value: &Value) -> Result<Vec<StateTest>, FilterError> {
    let all = |states: &[State]| states.iter().copied().map(StateTest::Is).collect();
    Ok(match value.text.to_ascii_lowercase().as_str() {
        "queued" => all(&[State::Waiting, State::Pending]),
        "retrying" => vec![StateTest::Retrying],
        "held" => vec![StateTest::Held],
        "recovered" => vec![StateTest::Recovered],
        word => match State::family(word) {
            Some(states) => all(states),
            None => {
                let families = "open, terminal, failure, active, error, queued, retrying, held, recovered";
                let message = format!("`{word}` is not a state; these are: {}, {families}", State::list());
                return Err(fault(value.position, message));
            }
        },
    })
}

fn comparison(text: &str) -> (Compare, &str) {
    for (sign, compare) in
        [(">=", Compare::GreaterOrEqual), ("<=", Compare::LessOrEqual), (">", Compare::Greater), ("<", Compare::Less)]
    {
        if let Some(rest) = text.strip_prefix(sign) {
            return (compare, rest);
        }
    }
    (Compare::Equal, text)
}

fn single(token: &Token) -> Result<&Value, FilterError> {
    match token.values.as_slice() {
        [value] => Ok(value),
        _ => Err(fault(token.position, "takes one value, not a list")),
    }
}

fn number(field: NumberField, token: &Token) -> Result<Test, FilterError> {
    let value = single(token)?;
    let (compare, text) = comparison(&value.text);
    let named = Priority::from_word(text).filter(|_| field == NumberField::Priority);
    match named.map_or_else(|| text.parse(), |priority| Ok(i64::from(priority.code()))) {
        Ok(value) => Ok(Test::Number { field, compare, value }),
        Err(_) => Err(fault(value.position, format!("`{text}` is not a whole number"))),
    }
}

/// How a span is meant: from now on, as an age, or as how long ago.
#[derive(Clone, Copy, PartialEq)]
enum Relative {
    Ahead,
    Age,
    Ago,
}

fn time(field: TimeField, relative: Relative, token: &Token, now: Timestamp) -> Result<Test, FilterError> {
    let value = single(token)?;
    let (compare, text) = comparison(&value.text);
    if let Ok(at) = Timestamp::parse_rfc3339(text)
        && relative != Relative::Age
    {
        return Ok(Test::Time { field, compare, at });
    }
    let span = Millis::parse(text)
        .map_err(|_| fault(value.position, format!("`{text}` is neither a duration nor an instant")))?;
    if compare == Compare::Equal {
        return Err(fault(value.position, "a time is compared with <, <=, > or >="));
    }
    // Older than two days is submitted before two days ago: a span that looks back turns the comparison round.
    Ok(match relative {
        Relative::Ahead => Test::Time { field, compare, at: now + span },
        Relative::Age | Relative::Ago => Test::Time { field, compare: compare.reversed(), at: now - span },
    })
}

words! {
    /// The order of a list. Ties are broken by id.
    pub enum Sort {
        /// Newest first.
        SubmittedDesc = 0 "-submitted",
        Submitted = 1 "submitted",
        Due = 2 "due",
        Updated = 3 "updated",
        Priority = 4 "priority",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp(1_000_000_000_000);

    fn one(text: &str) -> Test {
        let mut filter = Filter::parse(text, NOW).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(filter.terms.len(), 1, "{text}");
        filter.terms.remove(0).test
    }

    fn text(field: TextField, any: &[(&str, bool)]) -> Test {
        let any = any.iter().map(|(text, prefix)| Pattern { text: (*text).to_owned(), prefix: *prefix }).collect();
        Test::Text { field, any }
    }

    #[test]
    fn a_value_of_a_field_is_taken_as_it_is() {
        let of = |field: &str, value: &str| {
            let mut filter = Filter::default().and_field(field, value, NOW)?;
            Ok::<Test, FilterError>(filter.terms.remove(0).test)
        };
        for literal in ["a\"b", "a\\b", "\"\"", "a b, c*", "-x y", "é*"] {
            assert_eq!(of("kind", literal), Ok(text(TextField::Kind, &[(literal, false)])), "{literal}");
        }
        for same in ["a,b.*", "x:y", "-a", "a-b_c"] {
            assert_eq!(of("kind", same), Ok(one(&format!("kind:{same}"))), "{same}");
        }
        assert_eq!(of("label.a b", "c"), Ok(text(TextField::Label("a b".into()), &[("c", false)])));
        assert_eq!(of("state", "dead,failed"), Ok(one("state:dead,failed")));
        assert_eq!(of("due", "<1h"), Ok(one("due:<1h")));
        assert!(
            of("kind", "a,,b").is_err() && of("state", "tired").is_err() && of("kind", &"k".repeat(5_000)).is_err()
        );
        let many = |count: usize| (0..count).try_fold(Filter::default(), |all, _| all.and_field("kind", "k", NOW));
        assert!(many(MAX_TERMS).is_ok() && many(MAX_TERMS + 1).is_err());
    }

    #[test]
    fn every_field_is_read() {
        use StateTest::*;
        assert_eq!(one("state:dead,Failed"), Test::State(vec![Is(State::Dead), Is(State::Failed)]));
        assert_eq!(one("state:cancelled"), Test::State(vec![Is(State::Canceled)]));
        assert_eq!(one("state:queued"), Test::State(vec![Is(State::Waiting), Is(State::Pending)]));
        assert_eq!(one("state:retrying,held,recovered"), Test::State(vec![Retrying, Held, Recovered]));
        assert_eq!(one("kind:pay.*"), text(TextField::Kind, &[("pay.", true)]));
        assert_eq!(one("key:pay.*"), text(TextField::Key, &[("pay.*", false)]));
        assert_eq!(one("queue:a,\"b c\""), text(TextField::Queue, &[("a", false), ("b c", false)]));
        assert_eq!(one("label.Tenant:acme"), text(TextField::Label("Tenant".into()), &[("acme", false)]));
        assert_eq!(one("verdict:failed"), text(TextField::Verdict, &[("failed", false)]));
        assert_eq!(one("class:rate_limited"), Test::Class(vec![Class::RateLimited]));
        assert_eq!(one("fingerprint:00000000000000ff"), Test::Fingerprint(vec![255]));
        let compare = Compare::GreaterOrEqual;
        assert_eq!(one("attempt:>=3"), Test::Number { field: NumberField::Attempt, compare, value: 3 });
        let low = Test::Number { field: NumberField::Priority, compare: Compare::Equal, value: -100 };
        assert_eq!(one("priority:low"), low, "S2-133");
        assert_eq!(one("refused"), Test::Word("refused".into()));
        assert_eq!(one("\"state:dead x\""), Test::Word("state:dead x".into()));
    }

    #[test]
    fn spans_become_instants() {
        let time = |field, compare, at| Test::Time { field, compare, at: Timestamp(at) };
        assert_eq!(one("due:<1h"), time(TimeField::Due, Compare::Less, NOW.0 + 3_600_000));
        assert_eq!(one("age:>2d"), time(TimeField::Submitted, Compare::Less, NOW.0 - 172_800_000));
        assert_eq!(one("updated:<=5m"), time(TimeField::Updated, Compare::GreaterOrEqual, NOW.0 - 300_000));
        assert_eq!(
            one("submitted:>2015-10-21T07:28:00Z"),
            time(TimeField::Submitted, Compare::Greater, 1_445_412_480_000)
        );
    }

    #[test]
    fn terms_are_joined_and_negated() {
        let filter = Filter::parse("  state:open   -queue:mail -\"not this\" ", NOW).unwrap();
        assert_eq!(filter.terms.iter().map(|term| term.negated).collect::<Vec<_>>(), [false, true, true]);
        assert_eq!(Filter::parse("", NOW), Ok(Filter::default()));
    }

    #[test]
    fn faults_say_where() {
        let check = |text: &str, position: usize| {
            let error = Filter::parse(text, NOW).expect_err(text);
            assert_eq!(error.position, position, "{text}: {error}");
        };
        check("state:sad", 6);
        check("state:dead,sad", 11);
        check("colour:red", 0);
        check("a kind:", 7);
        check("kind:a,,b", 7);
        check("attempt:many", 8);
        check("attempt:1,2", 0);
        check("due:soon", 4);
        check("due:1h", 4);
        check("execution:7", 10);
        check("x \"open", 2);
        check("label.:x", 0);
        check("fingerprint:zz", 12);
        check(&"a".repeat(5_000), 4_096);
        check(&"a ".repeat(60), 32);
        check(&"kind:a ".repeat(60), 350);
    }
}
