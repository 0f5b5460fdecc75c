//! Statuses of a playbook engine: six words and their synonyms.

use comeback_core::{EventKind, State};
use comeback_server::route::playbook_event_name;

/// Status of a job or an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlaybookStatus {
    Started,
    Running,
    Paused,
    Pending,
    Failed,
    Completed,
}

const WORDS: [(PlaybookStatus, &str, &[&str]); 6] = [
    (PlaybookStatus::Started, "STARTED", &["start", "starting"]),
    (PlaybookStatus::Running, "RUNNING", &["in_progress", "processing", "executing", "active", "leased", "claimed"]),
    (PlaybookStatus::Paused, "PAUSED", &["suspended", "stopped", "held", "on_hold"]),
    (
        PlaybookStatus::Pending,
        "PENDING",
        &["queued", "created", "waiting", "scheduled", "ready", "new", "initialized", "retry", "retrying"],
    ),
    (
        PlaybookStatus::Failed,
        "FAILED",
        &["failure", "fail", "error", "errored", "dead", "timeout", "timed_out", "aborted", "killed"],
    ),
    (
        PlaybookStatus::Completed,
        "COMPLETED",
        &["complete", "success", "succeeded", "successful", "done", "finished", "ok"],
    ),
];

impl PlaybookStatus {
    /// The words of all statuses.
    pub const fn all() -> [&'static str; 6] {
        let mut words = [""; 6];
        let mut n = 0;
        while n < WORDS.len() {
            words[n] = WORDS[n].1;
            n += 1;
        }
        words
    }

    /// The word of the status.
    pub fn word(self) -> &'static str {
        WORDS.iter().find(|(standing, ..)| *standing == self).map_or("PENDING", |(_, word, _)| word)
    }

    /// Reads a word or a synonym in any case, with `-`, `_` or spaces between its parts.
    pub fn read(word: &str) -> Option<PlaybookStatus> {
        let word = word.trim().to_ascii_lowercase().replace(['-', ' '], "_");
        let is_it = |(_, own, others): &&(PlaybookStatus, &str, &[&str])| {
            own.eq_ignore_ascii_case(&word) || others.contains(&word.as_str())
        };
        WORDS.iter().find(is_it).map(|(standing, ..)| *standing)
    }

    /// The status after an event.
    pub fn of(kind: EventKind) -> PlaybookStatus {
        match kind {
            EventKind::ExecutionStarted | EventKind::TaskReady | EventKind::AttemptStarted => PlaybookStatus::Started,
            EventKind::ExecutionSucceeded | EventKind::AttemptSucceeded | EventKind::TaskSucceeded => {
                PlaybookStatus::Completed
            }
            EventKind::TaskRetryScheduled | EventKind::TaskThrottled => PlaybookStatus::Pending,
            _ => PlaybookStatus::Failed,
        }
    }

    /// Kinds of events after which this is the status.
    pub fn kinds(self) -> Vec<EventKind> {
        let named = EventKind::ALL.iter().filter(|kind| playbook_event_name(**kind).is_some());
        named.filter(|kind| PlaybookStatus::of(**kind) == self).copied().collect()
    }

    /// States of jobs with this status.
    pub fn states(self) -> &'static [State] {
        match self {
            PlaybookStatus::Started | PlaybookStatus::Running => &[State::Claimed, State::Running],
            PlaybookStatus::Paused => &[State::Paused],
            PlaybookStatus::Pending => &[State::Waiting, State::Pending, State::RetryPending],
            PlaybookStatus::Failed => &[State::Failed, State::Dead],
            PlaybookStatus::Completed => &[State::Succeeded],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_words_are_read() {
        let table = [
            ("success done COMPLETED Succeeded finished", PlaybookStatus::Completed),
            ("error failure Failed dead timed-out", PlaybookStatus::Failed),
            ("queued created waiting PENDING", PlaybookStatus::Pending),
            ("suspended stopped paused on-hold", PlaybookStatus::Paused),
            ("running in_progress Processing", PlaybookStatus::Running),
            ("started START", PlaybookStatus::Started),
        ];
        for (words, expected) in table {
            for word in words.split(' ') {
                assert_eq!(PlaybookStatus::read(word), Some(expected), "{word}");
            }
        }
        assert_eq!(PlaybookStatus::read("in progress"), Some(PlaybookStatus::Running));
        assert_eq!(PlaybookStatus::read("nonsense"), None);
        let mut all: Vec<&str> = WORDS.iter().flat_map(|(_, _, others)| others.iter().copied()).collect();
        all.sort_unstable();
        let count = all.len();
        all.dedup();
        assert_eq!(all.len(), count, "no word stands for two");
    }
}
