//! From rows to events: what a log says, whichever database holds it; and the small texts that answers are kept in.

use std::collections::HashMap;

use comeback_core::{Event, ExecutionId, Record, State, Task, TaskId, Timestamp};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::StoreError;
use crate::row::corrupt;
use crate::{NewTask, SubmittedTask};

/// No record stands for more events than this.
pub const MOST_EVENTS: u32 = 16;

/// The log of a new execution, numbered from 1.
#[derive(Default)]
pub struct SharedLog {
    pub records: Vec<(Record, u32)>,
    pub last: u32,
}

impl SharedLog {
    /// Goes on behind `last`.
    pub fn after(last: u32) -> SharedLog {
        SharedLog { records: Vec::new(), last }
    }

    pub fn add(&mut self, record: Record) {
        let first = self.last + 1;
        self.last += u32::try_from(record.events.len()).unwrap_or(0);
        self.records.push((record, first));
    }

    pub fn add_created(&mut self, new: &NewTask, now: Timestamp) {
        self.add(Record::of_creation(&new.task, now));
    }
}

/// The records that a part of the feed is made of.
#[derive(Default)]
pub struct Sources {
    pub records: HashMap<Uuid, Vec<Record>>,
    pub open: HashMap<Uuid, Task>,
}

impl Sources {
    pub fn add_record(&mut self, record: Record) {
        self.records.entry(record.subject).or_default().push(record);
    }

    /// The events of one subject numbered `first` to `last`, as far as they are still kept.
    pub fn events(&self, subject: Uuid, first: u32, last: u32) -> Vec<Event> {
        let written = self.records.get(&subject).into_iter().flatten();
        let carried = self.open.get(&subject).and_then(|task| task.unwritten_record(task.updated_at));
        let mut events: Vec<Event> = written
            .chain(carried.as_ref())
            .filter(|record| record.seq <= last && record.last_seq() >= first)
            .flat_map(Record::expand)
            .filter(|event| (first..=last).contains(&event.seq))
            .collect();
        events.sort_unstable_by_key(|event| event.seq);
        events.dedup_by_key(|event| event.seq);
        events
    }
}

/// The answer to a submission, kept for whoever asks again. Ids and states, no bodies.
#[derive(Debug, PartialEq)]
pub struct Answer {
    pub execution: Option<ExecutionId>,
    pub tasks: Vec<SubmittedTask>,
}

#[derive(Serialize, Deserialize)]
struct AnswerText {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    x: Option<ExecutionId>,
    t: Vec<(TaskId, State, bool)>,
}

impl Answer {
    pub fn to_json(&self) -> String {
        let text = AnswerText {
            x: self.execution,
            t: self.tasks.iter().map(|task| (task.id, task.state, task.duplicate)).collect(),
        };
        serde_json::to_string(&text).unwrap_or_default()
    }

    pub fn from_json(text: &str) -> Result<Answer, StoreError> {
        let text: AnswerText =
            serde_json::from_str(text).map_err(|error| corrupt(format!("a kept answer: {error}")))?;
        let tasks = text.t.into_iter().map(|(id, state, duplicate)| SubmittedTask { id, state, duplicate }).collect();
        Ok(Answer { execution: text.x, tasks })
    }
}
