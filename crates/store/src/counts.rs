//! How many tasks there are, by state.

use std::collections::BTreeMap;

use async_trait::async_trait;
use comeback_core::{Lane, Millis, State, Timestamp};

use crate::StoreError;
use crate::row::corrupt;

/// Counts of tasks.
#[async_trait]
pub trait CountQueries: Send + Sync {
    /// How many tasks are in each state, and how many of those are held.
    async fn counts(&self, namespace: &str, now: Timestamp) -> Result<Counts, StoreError>;

    /// How many tasks that were retried, wait for a retry or ran out of them are in each state.
    async fn retried(&self, namespace: &str) -> Result<Counts, StoreError>;

    /// Open work of all namespaces, for a process that starts.
    async fn open_work(&self, now: Timestamp) -> Result<OpenWork, StoreError>;
}

/// How many tasks are in each state.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Counts {
    /// All of them, by state.
    pub by_state: BTreeMap<State, u64>,
    /// Tasks that are kept from running: paused, held by a guard, or their execution is paused.
    pub held: BTreeMap<State, u64>,
    /// Running tasks, by kind.
    pub running: BTreeMap<String, u64>,
}

impl Counts {
    /// Adds tasks of a lane in a state, and how many of those are held.
    pub(crate) fn add(&mut self, lane: Option<&Lane>, state: i16, count: i64, held: i64) -> Result<(), StoreError> {
        let state = State::from_code(state).ok_or_else(|| corrupt(format!("state {state}")))?;
        *self.by_state.entry(state).or_default() += count.cast_unsigned();
        if held > 0 {
            *self.held.entry(state).or_default() += held.cast_unsigned();
        }
        if let Some(lane) = lane.filter(|_| state == State::Running) {
            *self.running.entry(lane.kind.clone()).or_default() += count.cast_unsigned();
        }
        Ok(())
    }

    /// Of which tasks: of all, or of those that have to do with retries.
    pub(crate) const ALL: &'static str = "true";
    pub(crate) const RETRIED: &'static str = "(attempt > 0 or state in (4, 8))";
}

/// Everything that is open, by what it waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenWork {
    /// Running now.
    pub running: u64,
    /// Ready to run.
    pub pending: u64,
    /// Retries whose time has come.
    pub retries: Overdue,
    /// First starts whose time has come.
    pub starts: Overdue,
    /// Retries and first starts whose time is still to come, and when the first of them is.
    pub scheduled: u64,
    pub next: Option<Timestamp>,
    /// For other tasks.
    pub waiting: u64,
    /// By hand or by a policy, or because their execution is.
    pub paused: u64,
}

/// How many, and how long ago the time of the first of them came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Overdue {
    /// How many.
    pub count: u64,
    /// How long ago the first was due.
    pub late: Millis,
}

impl Overdue {
    fn add(&mut self, count: u64, late: Millis) {
        self.count += count;
        self.late = self.late.max(late);
    }
}

impl OpenWork {
    /// One row per state and hold: how many, how many with a time that is to come, how many with one that has come, and the
    /// first of each.
    pub(crate) const QUERY: &'static str = "select state, hold, count(*), count(case when due > $1 then 1 end),
           count(case when due <= $1 then 1 end), min(case when due > $1 then due end), min(case when due <= $1 then due end)
         from task_open group by state, hold";

    pub(crate) fn add(&mut self, row: OpenWorkRow, now: Timestamp) {
        let OpenWorkRow { state, hold, all, to_come, come, next, first } = row;
        let count = |number: i64| u64::try_from(number).unwrap_or(0);
        if hold != 0 || state == State::Paused.code() {
            self.paused += count(all);
            return;
        }
        let late = first.map_or(Millis::ZERO, |first| now.since(Timestamp(first)));
        match State::from_code(state) {
            Some(State::Pending) => self.pending += count(all),
            Some(State::Claimed | State::Running) => self.running += count(all),
            Some(State::RetryPending) => self.retries.add(count(come), late),
            Some(_) => {
                self.starts.add(count(come), late);
                self.waiting += count(all - to_come - come);
            }
            None => {}
        }
        self.scheduled += count(to_come);
        self.next = [self.next, next.map(Timestamp)].into_iter().flatten().min();
    }
}

pub(crate) struct OpenWorkRow {
    pub state: i16,
    pub hold: i16,
    pub all: i64,
    pub to_come: i64,
    pub come: i64,
    pub next: Option<i64>,
    pub first: Option<i64>,
}
