//! Back-test: when an alert would have fired, by the same count over what was told.

use std::time::{Duration, Instant};

use comeback_core::alert::{Change, Count};
use comeback_core::{Millis, Timestamp};

use super::look::count;
use super::{AlertSpec, AlertState};
use crate::subscriptions::follow::Tasks;
use crate::{CommandError, Engine};

/// How far back.
pub const LONGEST: Millis = Millis::from_days(7);
/// Events that are looked at before it is enough.
const MOST: u64 = 500_000;
const PATIENCE: Duration = Duration::from_secs(10);
const PAGE: u32 = 1_000;

/// Result of a back-test of an alert.
#[derive(Clone, Debug, PartialEq)]
pub struct Backtest {
    /// Start of the period.
    pub from: Timestamp,
    /// End of the period.
    pub to: Timestamp,
    /// Times at which it would have fired or been resolved.
    pub changes: Vec<Change>,
    /// Events of the namespace, of all sorts, that were looked at.
    pub events: u64,
    /// There was more than could be looked at: `to` is as far as it came.
    pub complete: bool,
}

impl Engine {
    /// Filters ask about tasks as they are now.
    pub async fn backtest_alert(
        &self,
        namespace: &str,
        spec: &AlertSpec,
        within: Millis,
    ) -> Result<Backtest, CommandError> {
        let core = &self.core;
        let now = core.clock.now();
        spec.check(now).or(())?;
        let from = now - within.min(LONGEST);
        let mut standing = AlertState { count: Count::from(from), ..AlertState::default() };
        let (mut place, mut tasks, began) = (None, Tasks::default(), Instant::now());
        // Events of other namespaces are read too and ignored.
        let mut looked = 0;
        let mut test = Backtest { from, to: now, changes: Vec::new(), events: 0, complete: true };
        let mut reached = from;
        loop {
            let feed = core.store.feed(place, PAGE).await?;
            if feed.next == place {
                break;
            }
            looked += feed.events.len() as u64;
            let own: Vec<_> = feed.events.into_iter().filter(|it| it.namespace == namespace).collect();
            test.events += own.len() as u64;
            let events: Vec<_> = own.into_iter().filter(|it| it.event.at >= from).collect();
            test.changes.extend(count(core, namespace, spec, &mut standing, &events, &mut tasks, now).await?);
            reached = events.last().map_or(reached, |last| last.event.at);
            if looked >= MOST || began.elapsed() >= PATIENCE {
                test.complete = false;
                test.to = reached;
                break;
            }
            place = feed.next;
        }
        test.changes.extend(standing.count.pass(&spec.watch, test.to));
        Ok(test)
    }
}
