//! Times at which nothing starts: windows, days off, and work that was announced.

use serde::{Deserialize, Serialize};

use super::{Calendar, Holder};
use crate::time::{Millis, Timestamp};
use crate::window::{self, Window};

/// Announced: nothing starts meanwhile, and deadlines wait for its end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Maintenance {
    /// Start of the maintenance.
    pub from: Timestamp,
    /// End of the maintenance.
    pub to: Timestamp,
    /// A note for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

impl Maintenance {
    /// From start to end.
    pub fn length(&self) -> Millis {
        self.to.since(self.from)
    }
}

/// Where a deadline lies when announced work stops its clock (model A14), for a task that is there from `since` on. The work is
/// given in the order in which it begins; what two of them cover counts once.
pub fn extended(maintenance: &[Maintenance], since: Timestamp, deadline: Timestamp) -> Timestamp {
    let mut deadline = deadline;
    for (n, it) in maintenance.iter().enumerate().filter(|(_, it)| it.to > since) {
        if it.from < deadline {
            deadline = deadline + uncovered(&maintenance[..n], it.from.max(since), it.to);
        }
    }
    deadline
}

/// Which deadlines wait for the end of work that is announced now, and for how long: those behind the instant, by the span. What
/// was announced before made them wait already.
pub fn stopped(
    announced: &[Maintenance],
    from: Timestamp,
    to: Timestamp,
    now: Timestamp,
) -> Option<(Timestamp, Millis)> {
    let begins = from.max(now);
    let span = uncovered(announced, begins, to);
    (span > Millis(0)).then_some((begins, span))
}

/// How much of a stretch none of them covers.
fn uncovered(maintenance: &[Maintenance], from: Timestamp, to: Timestamp) -> Millis {
    let (mut free, mut reached) = (Millis(0), from);
    for it in maintenance.iter().filter(|it| it.from < to) {
        free = free + it.from.since(reached);
        reached = reached.max(it.to);
    }
    free + to.since(reached)
}

/// The holder that keeps it closed at that time, and until when.
pub fn closed(calendar: Option<&Calendar>, maintenance: &[Maintenance], at: Timestamp) -> Option<(Holder, Timestamp)> {
    let announced: Vec<Window> = maintenance.iter().map(|it| Window::Once { from: it.from, to: it.to }).collect();
    let works = window::open_at(&announced, at).filter(|open| *open > at);
    let windows: Vec<Window> =
        calendar.map_or(Vec::new(), |it| it.windows.iter().chain(&it.days_off).cloned().collect());
    let opens = window::open_at(&windows, at).filter(|open| *open > at);
    let works = works.map(|until| (Holder::Maintenance, until));
    let opens = opens.map(|until| (Holder::Calendar, until));
    works.into_iter().chain(opens).max_by_key(|(_, until)| *until)
}
