//! Times that come: retries, first starts, leases, limits and deadlines.

use async_trait::async_trait;
use comeback_core::Timestamp;

use crate::sql::Sql;
use crate::{StoreError, Stored, sql};

/// Reads of what is due, and of when the next thing will be.
#[async_trait]
pub trait DueQueries: Send + Sync {
    /// Tasks for which a time has come, the longest overdue first: expired leases, run limits, deadlines.
    async fn due(&self, what: Due, now: Timestamp, limit: u32) -> Result<Vec<Stored>, StoreError>;

    /// When the next time of each sort comes.
    async fn next_due(&self) -> Result<NextDue, StoreError>;

    /// How much is due before an instant.
    async fn due_before(&self, until: Timestamp) -> Result<DueBefore, StoreError>;

    /// When the next retry after this instant is due.
    async fn retry_after(&self, after: Timestamp) -> Result<Option<Timestamp>, StoreError>;

    /// When time next changes something about a dependency.
    async fn next_dependency(&self, after: Timestamp) -> Result<Option<Timestamp>, StoreError>;
}

/// Sorts of time that come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    Leases,
    Timeouts,
    Deadlines,
    /// Tasks whose needs are met and that stand at their gate, whatever the time.
    Gates,
}

impl Due {
    /// Condition for open tasks `o` for which a time has come, in the order of their indexes.
    pub(crate) const fn condition(self) -> Sql {
        match self {
            Due::Leases => sql::due::LEASES,
            Due::Timeouts => sql::due::TIMEOUTS,
            Due::Deadlines => sql::due::DEADLINES,
            Due::Gates => sql::due::GATES,
        }
    }
}

/// The next time of each sort.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NextDue {
    /// The next retry.
    pub retry: Option<Timestamp>,
    /// The next first start.
    pub start: Option<Timestamp>,
    /// The next lease that runs out.
    pub lease: Option<Timestamp>,
    /// The next run limit.
    pub timeout: Option<Timestamp>,
    /// The next deadline.
    pub deadline: Option<Timestamp>,
    /// Since when somebody has stood at a gate.
    pub gate: Option<Timestamp>,
    /// The next schedule that fires.
    pub schedule: Option<Timestamp>,
    /// The next step of a bulk operation.
    pub operation: Option<Timestamp>,
    /// Alerts that are only to be looked at whenever something happens are due since the beginning of time, and not told here.
    pub alert: Option<Timestamp>,
}

impl NextDue {
    /// The first of all of them.
    pub fn earliest(&self) -> Option<Timestamp> {
        let tasks = [self.retry, self.start, self.lease, self.timeout, self.deadline, self.gate];
        tasks.into_iter().chain([self.schedule, self.operation, self.alert]).flatten().min()
    }
}

/// How many are due before an instant, overdue ones included, by what waits for them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DueBefore {
    /// Retries.
    pub retries: u64,
    /// First starts.
    pub starts: u64,
    /// Leases that run out.
    pub leases: u64,
    /// Run limits.
    pub timeouts: u64,
    /// Deadlines.
    pub deadlines: u64,
    /// Schedules.
    pub schedules: u64,
    /// Ready for somebody to take them, whenever that is.
    pub ready: u64,
    /// Of the retries and the first starts, those whose deadline comes before that instant.
    pub late_retries: u64,
    /// The same of first starts.
    pub late_starts: u64,
}

impl DueBefore {
    pub(crate) const QUERY: &'static str = "select
           (select count(*) from task_open where state = 4 and hold = 0 and due < $1),
           (select count(*) from task_open where state = 0 and hold = 0 and due is not null and due < $1),
           (select count(*) from task_open where lease_expires is not null and lease_expires < $1),
           (select count(*) from task_open where timeout_at is not null and timeout_at < $1),
           (select count(*) from task_open where expires_at is not null
             and (state in (0, 1, 4) or (hard_deadline = 1 and state in (2, 3))) and expires_at < $1),
           (select count(*) from schedule where due is not null and due < $1),
           (select count(*) from task_open where state = 1 and hold = 0),
           (select count(*) from task_open where state = 4 and hold = 0 and due < $1 and expires_at <= $1),
           (select count(*) from task_open where state = 0 and hold = 0 and due is not null and due < $1
             and expires_at <= $1)";

    pub(crate) fn read(counts: [i64; 9]) -> DueBefore {
        let [retries, starts, leases, timeouts, deadlines, schedules, ready, late_retries, late_starts] =
            counts.map(i64::cast_unsigned);
        DueBefore { retries, starts, leases, timeouts, deadlines, schedules, ready, late_retries, late_starts }
    }
}
