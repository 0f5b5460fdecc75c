//! Times at which nothing starts: windows, days off, and work that was announced.

use serde::{Deserialize, Serialize};

use super::{Calendar, Holder};
use crate::time::{Millis, Timestamp};
use crate::window::{self, Window};

/// Announced: nothing starts meanwhile, and deadlines wait for its end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Maintenance {
    pub from: Timestamp,
    pub to: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

impl Maintenance {
    pub fn length(&self) -> Millis {
        self.to.since(self.from)
    }
}

/// Where a deadline lies when announced work stops its clock (model A14), for a task that is there from `since` on.
pub fn extended(maintenance: &[Maintenance], since: Timestamp, deadline: Timestamp) -> Timestamp {
    let mut deadline = deadline;
    for it in maintenance.iter().filter(|it| it.to > since) {
        if it.from < deadline {
            deadline = deadline + it.to.since(it.from.max(since));
        }
    }
    deadline
}

/// Who keeps it closed at that time, and until when.
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
