//! Errors that look the same to a person are one group: how many there were, how it stands with them, and what a person said of them.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::failure::{Class, Failure, Trigger};
use crate::fingerprint::normalise;
use crate::id::TaskId;
use crate::time::Timestamp;
use crate::words::words;

pub use crate::guard::Reclassified;

words! {
    /// How it stands with a group.
    #[derive(Default)]
    pub enum GroupStatus {
        #[default]
        Open = 0 "open",
        Ignored = 1 "ignored",
        Resolved = 2 "resolved",
        /// It was resolved, and then there was another.
        Regressed = 3 "regressed",
    }
}

/// One of them, as it was told.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// When it happened.
    pub at: Timestamp,
    /// The task.
    pub task: TaskId,
    /// The run.
    pub run: u32,
    /// The message.
    pub message: String,
    /// The start of the stack trace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stack: Option<String>,
}

/// The common facts of the errors of a group.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ErrorSignature {
    /// The kind of task.
    pub kind: String,
    /// The message without what varies.
    pub title: String,
    /// The trigger.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trigger: Option<Trigger>,
    /// The error type.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_type: Option<String>,
    /// The error code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// The HTTP status.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
}

impl ErrorSignature {
    /// The facts of one failure.
    pub fn of(kind: &str, failure: &Failure) -> ErrorSignature {
        ErrorSignature {
            kind: kind.to_owned(),
            title: normalise(&failure.message),
            trigger: Some(failure.trigger),
            error_type: failure.error_type.clone(),
            code: failure.code.clone(),
            status: failure.status,
        }
    }
}

/// The changes that a batch of history makes to a group.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GroupDelta {
    /// Errors.
    pub count: u64,
    /// Tasks that came back from it.
    pub recovered: u64,
    /// The first of them.
    pub first: Option<Timestamp>,
    /// The last of them, with the class that it was given.
    pub last: Option<(Sample, Option<Class>)>,
    /// Their common facts.
    pub face: Option<ErrorSignature>,
}

/// How much of a stack is kept as an example.
const MOST_STACK: usize = 4_000;

impl GroupDelta {
    pub(crate) fn see(
        &mut self,
        task: TaskId,
        run: u32,
        at: Timestamp,
        kind: &str,
        failure: &Failure,
        class: Option<Class>,
    ) {
        let stack = failure.stack.as_ref().map(|stack| stack.chars().take(MOST_STACK).collect());
        let sample = Sample { at, task, run, message: failure.message.clone(), stack };
        let (first, face) = (Some(at), Some(ErrorSignature::of(kind, failure)));
        self.merge(GroupDelta { count: 1, recovered: 0, first, last: Some((sample, class)), face });
    }

    /// Both together, whichever came first.
    pub fn merge(&mut self, other: GroupDelta) {
        self.count += other.count;
        self.recovered += other.recovered;
        self.first = [self.first, other.first].into_iter().flatten().min();
        let place = |last: &Option<(Sample, Option<Class>)>| last.as_ref().map(|(it, _)| (it.at, it.task, it.run));
        if place(&other.last) >= place(&self.last) && other.last.is_some() {
            self.last = other.last;
        }
        self.face = self.face.take().or(other.face);
    }
}

/// A group as it stands.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    /// Its fingerprint.
    pub fingerprint: i64,
    /// The common facts.
    pub face: ErrorSignature,
    /// Errors.
    pub count: u64,
    /// Tasks that recovered from it.
    pub recovered: u64,
    /// The first error.
    pub first_seen: Timestamp,
    /// The last error.
    pub last_seen: Timestamp,
    /// The class that the last of them was given.
    pub class: Option<Class>,
    /// The last error, as an example.
    pub sample: Sample,
    /// Its triage.
    pub word: Triage,
}

/// The triage of a group by people.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Triage {
    /// Its triage state.
    pub standing: GroupStatus,
    /// Since when it stands so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    /// When ignoring it ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ignored_until: Option<Timestamp>,
    /// The class that its errors get from now on, whatever a policy says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reclassified: Option<Class>,
    /// A note.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// The last actor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
}

impl Group {
    /// As it is when more is known. Nothing where nobody has seen one of them.
    pub fn after(old: Option<Group>, fingerprint: i64, news: &GroupDelta) -> Option<Group> {
        let Some(mut group) = old else {
            let (sample, class) = news.last.clone()?;
            let first_seen = news.first.unwrap_or(sample.at);
            let (count, recovered, last_seen) = (news.count, news.recovered, sample.at);
            let face = news.face.clone().unwrap_or_default();
            let word = Triage::default();
            return Some(Group { fingerprint, face, count, recovered, first_seen, last_seen, class, sample, word });
        };
        group.count += news.count;
        group.recovered += news.recovered;
        group.first_seen = news.first.map_or(group.first_seen, |first| first.min(group.first_seen));
        if let Some((sample, class)) = &news.last
            && sample.at >= group.last_seen
        {
            (group.last_seen, group.class, group.sample) = (sample.at, *class, sample.clone());
        }
        group.word.heed(news.last.as_ref().map(|(sample, _)| sample.at));
        Some(group)
    }

    /// How it stands at an instant: nobody is ignored for longer than was said.
    pub fn standing(&self, now: Timestamp) -> GroupStatus {
        match self.word.standing {
            GroupStatus::Ignored if self.word.ignored_until.is_some_and(|until| until <= now) => GroupStatus::Open,
            other => other,
        }
    }

    /// As much of it as an act can change.
    pub fn facts(&self) -> Value {
        json!({
            "standing": self.word.standing,
            "ignored_until": self.word.ignored_until.map(Timestamp::to_rfc3339),
            "reclassified": self.word.reclassified,
            "note": self.word.note,
        })
    }
}

impl Triage {
    /// One more was seen: what was resolved is not.
    fn heed(&mut self, seen: Option<Timestamp>) {
        if let (GroupStatus::Resolved, Some(seen)) = (self.standing, seen)
            && self.since.is_none_or(|since| seen > since)
        {
            (self.standing, self.since) = (GroupStatus::Regressed, Some(seen));
        }
    }
}

/// An action of a person on a group.
#[derive(Clone, Debug, PartialEq)]
pub enum TriageAction {
    /// Opens it again.
    Reopen,
    /// Until an instant, or for good.
    Ignore(Option<Timestamp>),
    /// Marks it as resolved.
    Resolve,
    /// Sets the class; `None` takes it back.
    Reclassify(Option<Class>),
    /// Changes the note only.
    Note,
}

impl Triage {
    /// The triage after an action.
    pub fn after(&self, deed: &TriageAction, note: Option<&str>, by: Option<&str>, now: Timestamp) -> Triage {
        let mut word = self.clone();
        let stand = |word: &mut Triage, standing, until| {
            (word.standing, word.since, word.ignored_until) = (standing, Some(now), until);
        };
        match deed {
            TriageAction::Reopen => stand(&mut word, GroupStatus::Open, None),
            TriageAction::Ignore(until) => stand(&mut word, GroupStatus::Ignored, *until),
            TriageAction::Resolve => stand(&mut word, GroupStatus::Resolved, None),
            TriageAction::Reclassify(class) => word.reclassified = *class,
            TriageAction::Note => {}
        }
        word.note = note.map(str::to_owned).or(word.note);
        word.by = by.map(str::to_owned).or(word.by);
        word
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn news(at: i64) -> GroupDelta {
        let mut news = GroupDelta::default();
        let failure = Failure { status: Some(503), ..Failure::new(Trigger::Error, format!("order {at} refused")) };
        news.see(TaskId(uuid::Uuid::from_u128(7)), 1, Timestamp(at), "pay", &failure, Some(Class::Retryable));
        news
    }

    fn group() -> Group {
        Group::after(None, 9, &news(1_000)).unwrap()
    }

    #[test]
    fn a_group_begins_with_the_first_of_them_and_goes_on_with_the_next() {
        let group = Group::after(Some(group()), 9, &news(3_000)).unwrap();
        assert_eq!((group.count, group.first_seen, group.last_seen), (2, Timestamp(1_000), Timestamp(3_000)));
        assert_eq!((group.face.title.as_str(), group.face.status), ("order # refused", Some(503)));
        assert_eq!(group.sample.message, "order 3000 refused", "the last one is the example");
        let late = Group::after(Some(group), 9, &news(500)).unwrap();
        assert_eq!((late.first_seen, late.last_seen), (Timestamp(500), Timestamp(3_000)));
    }

    #[test]
    fn nobody_heard_of_a_group_of_which_none_was_seen() {
        assert_eq!(Group::after(None, 9, &GroupDelta { recovered: 1, ..GroupDelta::default() }), None);
    }

    #[test]
    fn what_is_resolved_and_comes_again_is_regressed() {
        let mut old = group();
        old.word = old.word.after(&TriageAction::Resolve, Some("deployed"), Some("ann"), Timestamp(2_000));
        let quiet = Group::after(Some(old.clone()), 9, &news(1_500)).unwrap();
        assert_eq!(quiet.word.standing, GroupStatus::Resolved, "that one was before");
        let again = Group::after(Some(old), 9, &news(2_001)).unwrap();
        assert_eq!((again.word.standing, again.word.since), (GroupStatus::Regressed, Some(Timestamp(2_001))));
        assert_eq!(again.word.note.as_deref(), Some("deployed"));
    }

    #[test]
    fn what_is_ignored_stays_so_until_its_time() {
        let mut group = group();
        group.word = group.word.after(&TriageAction::Ignore(Some(Timestamp(5_000))), None, None, Timestamp(2_000));
        let more = Group::after(Some(group), 9, &news(3_000)).unwrap();
        assert_eq!(more.standing(Timestamp(4_999)), GroupStatus::Ignored);
        assert_eq!(more.standing(Timestamp(5_000)), GroupStatus::Open);
    }

    #[test]
    fn what_was_said_of_the_class_is_kept_and_taken_back() {
        let word = Triage::default().after(&TriageAction::Reclassify(Some(Class::Final)), None, None, Timestamp(1));
        assert_eq!((word.reclassified, word.standing), (Some(Class::Final), GroupStatus::Open));
        assert_eq!(word.after(&TriageAction::Reclassify(None), None, None, Timestamp(2)).reclassified, None);
    }
}
