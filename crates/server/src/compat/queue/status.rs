//! How things stand in a playbook engine: six words, and the many in which people and workers say them.

use comeback_core::{EventKind, State};

use crate::wire::event::seed_name;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    Started,
    Running,
    Paused,
    Pending,
    Failed,
    Completed,
}

const WORDS: [(Standing, &str, &[&str]); 6] = [
    (Standing::Started, "STARTED", &["start", "starting"]),
    (Standing::Running, "RUNNING", &["in_progress", "processing", "executing", "active", "leased", "claimed"]),
    (Standing::Paused, "PAUSED", &["suspended", "stopped", "held", "on_hold"]),
    (
        Standing::Pending,
        "PENDING",
        &["queued", "created", "waiting", "scheduled", "ready", "new", "initialized", "retry", "retrying"],
    ),
    (
        Standing::Failed,
        "FAILED",
        &["failure", "fail", "error", "errored", "dead", "timeout", "timed_out", "aborted", "killed"],
    ),
    (Standing::Completed, "COMPLETED", &["complete", "success", "succeeded", "successful", "done", "finished", "ok"]),
];

impl Standing {
    pub const fn all() -> [&'static str; 6] {
        let mut words = [""; 6];
        let mut n = 0;
        while n < WORDS.len() {
            words[n] = WORDS[n].1;
            n += 1;
        }
        words
    }

    pub fn word(self) -> &'static str {
        WORDS.iter().find(|(standing, ..)| *standing == self).map_or("PENDING", |(_, word, _)| word)
    }

    /// Whatever the case, and with any of `-`, `_` and spaces between its parts.
    pub fn read(word: &str) -> Option<Standing> {
        let word = word.trim().to_ascii_lowercase().replace(['-', ' '], "_");
        let is_it = |(_, own, others): &&(Standing, &str, &[&str])| {
            own.eq_ignore_ascii_case(&word) || others.contains(&word.as_str())
        };
        WORDS.iter().find(is_it).map(|(standing, ..)| *standing)
    }

    /// How what an event is about stands with it.
    pub fn of(kind: EventKind) -> Standing {
        match kind {
            EventKind::ExecutionStarted | EventKind::TaskReady | EventKind::AttemptStarted => Standing::Started,
            EventKind::ExecutionSucceeded | EventKind::AttemptSucceeded | EventKind::TaskSucceeded => {
                Standing::Completed
            }
            EventKind::TaskRetryScheduled | EventKind::TaskThrottled => Standing::Pending,
            _ => Standing::Failed,
        }
    }

    /// The events with which something stands so.
    pub fn kinds(self) -> Vec<EventKind> {
        let named = EventKind::ALL.iter().filter(|kind| seed_name(**kind).is_some());
        named.filter(|kind| Standing::of(**kind) == self).copied().collect()
    }

    /// The states of jobs that stand so.
    pub fn states(self) -> &'static [State] {
        match self {
            Standing::Started | Standing::Running => &[State::Claimed, State::Running],
            Standing::Paused => &[State::Paused],
            Standing::Pending => &[State::Waiting, State::Pending, State::RetryPending],
            Standing::Failed => &[State::Failed, State::Dead],
            Standing::Completed => &[State::Succeeded],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_words_are_read() {
        let table = [
            ("success done COMPLETED Succeeded finished", Standing::Completed),
            ("error failure Failed dead timed-out", Standing::Failed),
            ("queued created waiting PENDING", Standing::Pending),
            ("suspended stopped paused on-hold", Standing::Paused),
            ("running in_progress Processing", Standing::Running),
            ("started START", Standing::Started),
        ];
        for (words, expected) in table {
            for word in words.split(' ') {
                assert_eq!(Standing::read(word), Some(expected), "{word}");
            }
        }
        assert_eq!(Standing::read("in progress"), Some(Standing::Running));
        assert_eq!(Standing::read("nonsense"), None);
        let mut all: Vec<&str> = WORDS.iter().flat_map(|(_, _, others)| others.iter().copied()).collect();
        all.sort_unstable();
        let count = all.len();
        all.dedup();
        assert_eq!(all.len(), count, "no word stands for two");
    }
}
