//! The same question asked of one task in the hand. The databases answer it for lists; who follows the feed asks it here.

use std::collections::BTreeMap;

use super::{Compare, Filter, NumberField, Pattern, StateTest, Test, TextField, TimeField};
use crate::task::{State, Task};
use crate::time::Timestamp;

/// A task with what a filter may ask about it.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'a> {
    /// The task.
    pub task: &'a Task,
    /// Its dedupe key.
    pub key: Option<&'a str>,
    /// The name of its step.
    pub name: Option<&'a str>,
    /// Its labels.
    pub labels: &'a BTreeMap<String, String>,
    /// Its account.
    pub account: Option<&'a str>,
    /// The caller's own id.
    pub external_id: Option<&'a str>,
    /// The message of its last error.
    pub last_error: Option<&'a str>,
    /// The verdict of its last run.
    pub verdict: Option<&'a str>,
    /// Its worker.
    pub worker: Option<&'a str>,
}

impl Filter {
    /// Whether a task matches.
    pub fn holds(&self, it: &Subject<'_>, now: Timestamp) -> bool {
        self.terms.iter().all(|term| it.passes(&term.test, now) != term.negated)
    }
}

impl Subject<'_> {
    fn passes(&self, test: &Test, now: Timestamp) -> bool {
        let task = self.task;
        match test {
            Test::State(any) => any.iter().any(|state| self.is(*state, now)),
            Test::Text { field, any } => self.text(field).is_some_and(|text| any.iter().any(|it| it.fits(text))),
            Test::Execution(ids) => ids.contains(&task.execution.map_or(task.id.0, |id| id.0)),
            Test::Class(any) => task.class.is_some_and(|class| any.contains(&class)),
            Test::Fingerprint(any) => task.fingerprint.is_some_and(|print| any.contains(&print)),
            Test::Number { field, compare, value } => {
                let number = match field {
                    NumberField::Priority => i64::from(task.priority),
                    NumberField::Attempt => i64::from(task.counters.attempt),
                    NumberField::Lost => i64::from(task.counters.lost),
                };
                compare.holds(number, *value)
            }
            Test::Time { field, compare, at } => {
                let time = match field {
                    TimeField::Due if task.state.is_terminal() => None,
                    TimeField::Due => task.due(),
                    TimeField::Submitted => Some(task.submitted_at),
                    TimeField::Updated => Some(task.updated_at),
                };
                time.is_some_and(|time| compare.holds(time.0, at.0))
            }
            Test::Word(word) => self.mentions(&word.to_lowercase()),
        }
    }

    fn is(&self, state: StateTest, now: Timestamp) -> bool {
        let task = self.task;
        let is_held = task.execution_paused || task.hold.as_ref().is_some_and(|hold| hold.until > now);
        match state {
            StateTest::Is(state) => task.state == state,
            StateTest::Retrying => task.state == State::RetryPending && !is_held,
            StateTest::Held => task.state.is_open() && (task.state == State::Paused || is_held),
            StateTest::Recovered => task.state == State::Succeeded && task.run > 1,
        }
    }

    fn text(&self, field: &TextField) -> Option<&str> {
        match field {
            TextField::Kind => Some(&self.task.lane.kind),
            TextField::Queue => Some(&self.task.lane.queue),
            TextField::Dependency => self.task.lane.dependency.as_deref(),
            TextField::Name => self.name,
            TextField::Key => self.key,
            TextField::Account => self.account,
            TextField::Worker => self.worker,
            TextField::ExternalId => self.external_id,
            TextField::Verdict => self.verdict,
            TextField::Label(name) => self.labels.get(name).map(String::as_str),
        }
    }

    fn mentions(&self, word: &str) -> bool {
        let contains = |text: Option<&str>| text.is_some_and(|text| text.to_lowercase().contains(word));
        let bare: String = word.chars().filter(|c| *c != '-').collect();
        self.task.id.0.simple().to_string().contains(&bare) || contains(self.name) || contains(self.last_error)
    }
}

impl Pattern {
    fn fits(&self, text: &str) -> bool {
        if self.prefix { text.starts_with(&self.text) } else { text == self.text }
    }
}

impl Compare {
    fn holds(self, left: i64, right: i64) -> bool {
        match self {
            Compare::Equal => left == right,
            Compare::Less => left < right,
            Compare::LessOrEqual => left <= right,
            Compare::Greater => left > right,
            Compare::GreaterOrEqual => left >= right,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::id::TaskId;
    use crate::task::Lane;
    use crate::time::Millis;

    #[test]
    fn a_task_in_the_hand_is_asked_what_lists_are_asked() {
        let now = Timestamp(10_000_000);
        let lane = Lane { kind: "mail.send".into(), queue: "mail".into(), ..Lane::default() };
        let mut task = Task::new(TaskId(uuid::Uuid::from_u128(0xabcd)), Arc::new(lane), now - Millis::from_secs(3_600));
        task.state = State::RetryPending;
        task.counters.attempt = 2;
        task.next_retry_at = Some(now + Millis::from_secs(60));
        let labels = BTreeMap::from([("tenant".to_owned(), "acme".to_owned())]);
        let subject = Subject {
            task: &task,
            key: Some("k"),
            name: Some("Import data"),
            labels: &labels,
            account: None,
            external_id: None,
            last_error: Some("Connection refused"),
            verdict: None,
            worker: None,
        };
        let holds = |text: &str| Filter::parse(text, now).expect(text).holds(&subject, now);
        let yes = [
            "",
            "kind:mail.*",
            "kind:mail.send queue:mail",
            "state:retrying",
            "state:open",
            "-state:dead",
            "label.tenant:acme,other",
            "attempt:>=2",
            "attempt:2",
            "age:>30m",
            "due:<2m",
            "refused",
            "abcd",
            "import",
            "key:k",
            "-account:x",
            "priority:0",
            "-worker:w",
        ];
        let no = [
            "kind:mail",
            "kind:sms.*",
            "state:failed",
            "-state:retrying",
            "label.tenant:other",
            "label.x:acme",
            "attempt:>2",
            "age:>2h",
            "due:<30s",
            "timeout",
            "key:l",
            "account:x",
            "state:held",
            "state:recovered",
            "class:final",
            "kind:mail.* state:dead",
            "verdict:passed",
        ];
        for text in yes {
            assert!(holds(text), "{text}");
        }
        for text in no {
            assert!(!holds(text), "{text}");
        }
    }
}
