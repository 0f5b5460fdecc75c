//! Ways to the rows of a list. A page is asked for in the order of an index that stops when it is full, or by looking at all that
//! can match where those are few. What the planner of a database would choose by itself may read a million rows for a page.

use std::borrow::Cow;

use comeback_core::State;
use comeback_core::filter::{NumberField, Pattern, Sort, StateTest, Test, TextField, TimeField};

use super::{ListStatement, SqlDialect, Statement, TaskTable, closed_lanes, list};

/// At most this many rows are sorted for one page.
pub const FEW: i64 = 5_000;

/// How a page of one half is found.
pub struct Plan {
    /// The first whose count is at most `FEW` is enough.
    pub shortcuts: Vec<Shortcut>,
    /// Else these, until there is a page.
    pub rounds: Vec<Vec<Statement>>,
}

/// All that can match, found by an index.
pub struct Shortcut {
    /// How many there are, counted to `FEW` and one; nothing where they are looked at in any case.
    pub count: Option<String>,
    pub statements: Vec<Statement>,
}

/// An index, and what is true of all rows that it leads to.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct AccessPath {
    pub index: Option<&'static str>,
    pub condition: Option<Cow<'static, str>>,
    pub due: Due,
}

/// Known due times of an access path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Due {
    Unknown,
    Set,
    None,
}

const TASK_LANE: &str = "task_lane";

const fn way(index: &'static str, condition: &'static str, due: Due) -> AccessPath {
    AccessPath { index: Some(index), condition: Some(Cow::Borrowed(condition)), due }
}

const RETRIES: AccessPath = way("open_retry", "o.state = 4 and o.hold = 0", Due::Set);
const STARTS: AccessPath = way("open_start", "o.state = 0 and o.hold = 0 and o.due is not null", Due::Set);
const READY: AccessPath = way("open_ready", "o.state = 1 and o.hold = 0", Due::None);
const LEASED: AccessPath = way("open_lease", "o.lease_expires is not null", Due::None);
const LEASELESS: AccessPath =
    way("open_leaseless", "o.state in (3, 5) and o.lease_at is not null and o.lease_expires is null", Due::None);
const HELD: AccessPath = way("open_held", "(o.state = 5 or o.hold = 1 or o.held_until is not null)", Due::Unknown);
/// Of executions that are paused.
const HELD_DUE: AccessPath = way("open_held", "o.hold = 1 and o.due is not null", Due::Set);
/// All that are not due at any time; none of the ways with `Due::Set` leads there.
const NEVER_DUE: AccessPath =
    AccessPath { index: None, condition: Some(Cow::Borrowed("o.due is null")), due: Due::None };

impl AccessPath {
    pub fn whole() -> AccessPath {
        AccessPath { index: None, condition: None, due: Due::Unknown }
    }

    fn by_lane() -> AccessPath {
        AccessPath { index: Some(TASK_LANE), ..AccessPath::whole() }
    }

    fn ended(state: State) -> AccessPath {
        // Said twice, since only what is said word for word is an index's condition to SQLite.
        let condition = format!("o.state = {} and o.state <> {}", state.code(), State::Succeeded.code());
        AccessPath { index: Some("done_state"), condition: Some(condition.into()), due: Due::None }
    }

    /// The column that says the lane. A row may have moved to a lane beside that of its body; both are asked for together.
    pub fn lane(&self) -> &'static str {
        if self.index == Some(TASK_LANE) { "t.lane" } else { "o.lane" }
    }

    pub fn tables(&self, words: &dyn SqlDialect, half: TaskTable) -> String {
        match self.index {
            Some(TASK_LANE) => {
                format!("{} {}", words.indexed("task t", TASK_LANE), words.looked_up(half.table(), "o", "t"))
            }
            _ => format!("{} {}", self.table(words, half), words.looked_up("task", "t", "o")),
        }
    }

    fn table(&self, words: &dyn SqlDialect, half: TaskTable) -> String {
        let table = format!("{} o", half.table());
        self.index.map_or_else(|| table.clone(), |index| words.indexed(&table, index))
    }

    /// One for each row that it leads to.
    fn rows(&self, words: &dyn SqlDialect, half: TaskTable) -> String {
        let condition = self.condition.as_deref().unwrap_or("1 = 1");
        format!("select 1 from {} where {condition}", self.table(words, half))
    }
}

impl TaskTable {
    pub fn table(self) -> &'static str {
        match self {
            TaskTable::Open => "task_open",
            TaskTable::Done => "task_done",
        }
    }
}

impl ListStatement<'_> {
    /// None if no task of this half can match.
    pub fn plan(&self) -> Option<Plan> {
        let whole = self.whole()?;
        if self.is_narrow() {
            return Some(Plan { shortcuts: Vec::new(), rounds: vec![vec![whole]] });
        }
        let rounds = match (self.query.sort, self.half) {
            (Sort::Due, TaskTable::Open) => vec![self.along(&self.dated()), self.along(&self.undated())],
            _ => vec![vec![whole]],
        };
        Some(Plan { shortcuts: self.shortcuts(), rounds })
    }

    fn along(&self, ways: &[AccessPath]) -> Vec<Statement> {
        ways.iter().filter_map(|way| self.through(way)).collect()
    }

    fn asked(&self) -> impl Iterator<Item = &Test> {
        self.query.filter.terms.iter().filter(|term| !term.negated).map(|term| &term.test)
    }

    /// Whether a term leaves so few that any planner sees it.
    fn is_narrow(&self) -> bool {
        let is_whole = |pattern: &Pattern| !pattern.prefix;
        self.asked().any(|test| match test {
            Test::Execution(_) | Test::Fingerprint(_) => true,
            Test::Text { field: TextField::ExternalId, any } => any.iter().all(is_whole),
            _ => false,
        })
    }

    /// Whether a term asks for what only bodies say.
    pub(super) fn is_of_bodies(&self) -> bool {
        self.query.filter.terms.iter().any(|term| match &term.test {
            Test::Text { field, .. } => match field {
                TextField::Name | TextField::Key | TextField::Account | TextField::ExternalId | TextField::Label(_) => {
                    true
                }
                TextField::Kind | TextField::Queue | TextField::Dependency | TextField::Verdict | TextField::Worker => {
                    false
                }
            },
            Test::Number { field, .. } => matches!(field, NumberField::Priority),
            Test::Time { field, .. } => matches!(field, TimeField::Submitted),
            Test::Execution(_) | Test::Word(_) => true,
            Test::State(_) | Test::Class(_) | Test::Fingerprint(_) => false,
        })
    }

    fn shortcuts(&self) -> Vec<Shortcut> {
        let mut shortcuts = Vec::new();
        let counted = |rows: String| format!("select count(*) from ({rows} limit {}) few", FEW + 1);
        if let Some(ways) = self.asked().find_map(|test| self.ways_to(test)) {
            // No index has these orders: else everything would have to be read.
            let in_any_case = matches!(self.query.sort, Sort::Updated | Sort::Priority);
            let rows = ways.iter().map(|way| way.rows(self.words, self.half)).collect::<Vec<_>>().join(" union all ");
            let count = (!in_any_case).then(|| counted(rows));
            shortcuts.push(Shortcut { count, statements: self.along(&ways) });
        }
        if let Some(lanes) = self.lanes() {
            let rows = format!("select 1 from task where {}", list("lane", lanes.into_iter()));
            shortcuts.push(Shortcut { count: Some(counted(rows)), statements: self.along(&[AccessPath::by_lane()]) });
        }
        shortcuts
    }

    /// The indexes that together lead to all that are in one of these states; nothing where some of them are in none.
    fn ways_to(&self, test: &Test) -> Option<Vec<AccessPath>> {
        let Test::State(tests) = test else { return None };
        let mut ways: Vec<AccessPath> = Vec::new();
        for test in tests {
            for way in self.ways_to_state(test)? {
                if !ways.contains(&way) {
                    ways.push(way);
                }
            }
        }
        (!ways.is_empty()).then_some(ways)
    }

    fn ways_to_state(&self, test: &StateTest) -> Option<Vec<AccessPath>> {
        match (test, self.half) {
            (StateTest::Is(State::Waiting), TaskTable::Open) => None,
            (StateTest::Is(State::Pending), TaskTable::Open) => Some(vec![READY, HELD]),
            (StateTest::Is(State::Claimed | State::Running), TaskTable::Open) => Some(vec![LEASED, LEASELESS]),
            (StateTest::Is(State::RetryPending), TaskTable::Open) => Some(vec![RETRIES, HELD]),
            (StateTest::Retrying, TaskTable::Open) => Some(vec![RETRIES]),
            (StateTest::Held, TaskTable::Open)
                if closed_lanes(self.dictionary, self.namespace, self.closed).is_empty() =>
            {
                Some(vec![HELD])
            }
            (StateTest::Held, TaskTable::Open) => Some(vec![HELD, READY]),
            (StateTest::Is(State::Paused), TaskTable::Open) => Some(vec![HELD]),
            (StateTest::Is(State::Succeeded) | StateTest::Recovered, TaskTable::Done) => None,
            (StateTest::Is(state), TaskTable::Done) if state.is_terminal() => Some(vec![AccessPath::ended(*state)]),
            _ => Some(Vec::new()),
        }
    }

    /// Whether the states that are asked for leave one that such a test is about.
    fn may_be(&self, wanted: impl Fn(&StateTest) -> bool) -> bool {
        self.asked().all(|test| !matches!(test, Test::State(tests) if !tests.iter().any(&wanted)))
    }

    /// The ways to all that are due at some time, each in that order.
    fn dated(&self) -> Vec<AccessPath> {
        let waits = |test: &StateTest| matches!(test, StateTest::Is(State::Waiting) | StateTest::Held);
        let retries = |test: &StateTest| {
            matches!(test, StateTest::Is(State::RetryPending) | StateTest::Retrying | StateTest::Held)
        };
        let ways = [
            (RETRIES, self.may_be(retries)),
            (STARTS, self.may_be(waits)),
            (HELD_DUE, self.may_be(|test| waits(test) || retries(test))),
        ];
        ways.into_iter().filter(|(_, may_be)| *may_be).map(|(way, _)| way).collect()
    }

    /// The way to all others, of which a term about due times says nothing.
    fn undated(&self) -> Vec<AccessPath> {
        let is_of_due = |test: &Test| matches!(test, Test::Time { field: TimeField::Due, .. });
        let is_other = |test: &StateTest| !matches!(test, StateTest::Is(State::RetryPending) | StateTest::Retrying);
        let none = self.asked().any(is_of_due) || !self.may_be(is_other);
        if none { Vec::new() } else { vec![NEVER_DUE] }
    }
}
