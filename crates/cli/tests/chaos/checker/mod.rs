//! Holds what was asked and answered against what the database says in the end. A pure function: the same history and the same
//! rows give the same violations. The names are those of the promises.

mod acts;
mod feed;
mod graph;
mod leases;
mod log;
mod submits;
pub mod tests;
mod times;

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use comeback_core::event::Record;
use comeback_core::{Event, State};
use uuid::Uuid;

use crate::dump::{Body, Dump, Present};
use crate::history::{Call, Entry, Op, operations};
use crate::plan::Planned;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Violation {
    pub promise: &'static str,
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.promise, self.what)
    }
}

/// What is found, as it is found.
#[derive(Default)]
pub struct Found(Vec<Violation>);

impl Found {
    fn unless(&mut self, holds: bool, promise: &'static str, what: impl FnOnce() -> String) {
        if !holds {
            self.0.push(Violation { promise, what: what() });
        }
    }
}

/// A task with everything that is known of it.
pub struct Story<'a> {
    pub body: &'a Body,
    pub present: Option<&'a Present>,
    pub planned: Option<&'a Planned>,
    pub records: Vec<Record>,
    pub events: Vec<Event>,
}

impl Story<'_> {
    pub fn state(&self) -> Option<State> {
        self.present.and_then(|present| State::from_code(present.state))
    }

    pub fn is_over(&self) -> bool {
        self.state().is_some_and(State::is_terminal)
    }

    /// The record that tells how a run ended.
    pub fn end_of(&self, run: u32) -> Option<&Record> {
        self.records.iter().find(|record| record.run == run && record.outcome.is_some())
    }
}

/// Everything, in the order in which the checks ask for it.
pub struct Case<'a> {
    pub ops: &'a [Op],
    pub dump: &'a Dump,
    pub stories: BTreeMap<Uuid, Story<'a>>,
    /// What was asked for, by its name: the whole request, and the place in it.
    pub planned: HashMap<&'a str, (&'a [Planned], usize)>,
    pub by_external: HashMap<&'a str, Vec<Uuid>>,
    /// What is told about executions themselves.
    pub of_executions: HashMap<Uuid, Vec<Event>>,
}

impl<'a> Case<'a> {
    fn new(ops: &'a [Op], dump: &'a Dump) -> Case<'a> {
        let mut planned: HashMap<&str, (&[Planned], usize)> = HashMap::new();
        for op in ops {
            if let Call::Submit { tasks, .. } = &op.call {
                planned.extend(tasks.iter().enumerate().map(|(place, task)| (&*task.external, (&**tasks, place))));
            }
        }
        let presents: HashMap<Uuid, &Present> = dump.presents.iter().map(|present| (present.id, present)).collect();
        let mut stories: BTreeMap<Uuid, Story<'_>> = BTreeMap::new();
        let mut by_external: HashMap<&str, Vec<Uuid>> = HashMap::new();
        for body in &dump.bodies {
            let asked = body.external_id.as_deref().and_then(|name| planned.get(name));
            if let Some(name) = body.external_id.as_deref() {
                by_external.entry(name).or_default().push(body.id);
            }
            stories.insert(
                body.id,
                Story {
                    body,
                    present: presents.get(&body.id).copied(),
                    planned: asked.map(|(tasks, place)| &tasks[*place]),
                    records: Vec::new(),
                    events: if body.execution_id.is_none() { body.creation() } else { Vec::new() },
                },
            );
        }
        let mut of_executions: HashMap<Uuid, Vec<Event>> = HashMap::new();
        for row in &dump.history {
            let record = row.record();
            match stories.get_mut(&row.subject) {
                Some(story) => {
                    story.events.extend(record.expand());
                    story.records.push(record);
                }
                None => of_executions.entry(row.subject).or_default().extend(record.expand()),
            }
        }
        Case { ops, dump, stories, planned, by_external, of_executions }
    }
}

/// Everything that contradicts a promise.
pub fn check(entries: &[Entry], dump: &Dump) -> Vec<Violation> {
    let ops = operations(entries);
    let case = Case::new(&ops, dump);
    let mut found = Found::default();
    submits::check(&case, &mut found);
    leases::check(&case, &mut found);
    log::check(&case, &mut found);
    times::check(&case, &mut found);
    acts::check(&case, &mut found);
    graph::check(&case, &mut found);
    feed::check(&case, &mut found);
    for story in case.stories.values().filter(|story| story.present.is_some()) {
        found.unless(story.is_over(), "liveness", || format!("{} is still {:?}", story.body.id, story.state()));
    }
    found.0.sort();
    found.0
}
