//! Back-test: what another policy would have made of the failures that were recorded.

use std::sync::Arc;
use std::time::{Duration, Instant};

use comeback_core::backtest::{Backtest, Life, Terms, backtest};
use comeback_core::filter::{Compare, Filter, Sort, StateTest, Test, TimeField};
use comeback_core::{Lane, Millis, Policy, State, Timestamp};
use comeback_store::{ListQuery, StoreError, Stored, Subject};
use futures_util::future::join_all;

use crate::{CommandError, Core, Engine};

/// Tasks that are played at most, and where nothing is said.
pub const MOST_LIVES: u32 = 5_000;
pub const USUAL_LIVES: u32 = 1_000;
/// Rows of history that are read of one task: one that failed more often is left out, for its end is not among them.
const ROWS: u32 = 500;
/// How long lives are gathered; what was found by then is played.
const PATIENCE: Duration = Duration::from_secs(10);
const PAGE: u32 = 500;
/// Histories that are asked for at the same time.
const SIDE_BY_SIDE: usize = 8;
/// Parts that the load over time is told in.
const PARTS: u64 = 60;
const QUARTER_MINUTE: Millis = Millis::from_secs(15);

/// Which failures.
#[derive(Clone, Debug)]
pub struct Cohort {
    pub filter: Filter,
    /// Of tasks that changed since.
    pub within: Millis,
    pub most: u32,
}

/// How it went, and of what.
#[derive(Clone, Debug)]
pub struct Tested {
    pub test: Backtest,
    pub since: Timestamp,
    pub until: Timestamp,
    /// How fine the load over time is told.
    pub fine: Millis,
    /// Whether all failures were played that were asked for; those that changed last were otherwise.
    pub complete: bool,
}

impl Engine {
    /// Plays what failed again under another policy, or under none. Nothing is changed.
    pub async fn backtest(
        &self,
        namespace: &str,
        cohort: &Cohort,
        policy: Option<Arc<Policy>>,
    ) -> Result<Tested, CommandError> {
        let core = &self.core;
        let until = core.clock.now();
        let since = until - cohort.within;
        let (lives, complete) = core.lives(namespace, cohort, since, until).await?;
        let fine = Millis((cohort.within.0 / PARTS).max(QUARTER_MINUTE.0));
        let reclassified = core.classes.of(&Lane { namespace: namespace.to_owned(), ..Lane::default() });
        let terms = Terms { policy, limits: core.config.policy_limits, reclassified };
        let play = move || backtest(&lives, &terms, until, fine);
        let test =
            tokio::task::spawn_blocking(play).await.map_err(|error| StoreError::Unavailable(error.to_string()))?;
        Ok(Tested { test, since, until, fine, complete })
    }
}

impl Core {
    /// Tasks that went wrong, those that changed last first, and whether these are all.
    async fn lives(
        &self,
        namespace: &str,
        cohort: &Cohort,
        since: Timestamp,
        now: Timestamp,
    ) -> Result<(Vec<Life>, bool), StoreError> {
        use StateTest::{Held, Is, Recovered, Retrying};
        let filter = cohort
            .filter
            .clone()
            .and(Test::State(vec![Recovered, Retrying, Held, Is(State::Failed), Is(State::Dead)]))
            .and(Test::Time { field: TimeField::Updated, compare: Compare::GreaterOrEqual, at: since });
        let began = Instant::now();
        let (mut lives, mut after, mut looked_at, mut complete) = (Vec::new(), None, 0, true);
        loop {
            let limit = PAGE.min(cohort.most - looked_at);
            let query = ListQuery { filter: filter.clone(), sort: Sort::Updated, limit, after, now };
            let page = self.store.list(namespace, &query).await?;
            looked_at += u32::try_from(page.items.len()).unwrap_or(limit);
            for some in page.items.chunks(SIDE_BY_SIDE) {
                for read in join_all(some.iter().map(|it| self.life(namespace, &it.stored))).await {
                    match read? {
                        Read::Whole(life) => lives.extend(life),
                        Read::Cut => complete = false,
                    }
                }
            }
            after = page.next;
            if after.is_none() {
                return Ok((lives, complete));
            }
            if looked_at >= cohort.most || began.elapsed() >= PATIENCE {
                return Ok((lives, false));
            }
        }
    }

    async fn life(&self, namespace: &str, stored: &Stored) -> Result<Read, StoreError> {
        let task = &stored.task;
        let records = self.store.history(Subject::Task(task.id), 0, ROWS).await?;
        if records.len() >= ROWS as usize {
            return Ok(Read::Cut);
        }
        let cost = match task.metered {
            true => self.store.task(namespace, task.id).await?.and_then(|view| view.body.cost).unwrap_or(0),
            false => 0,
        };
        Ok(Read::Whole(Life::of(task, cost, &records)))
    }
}

enum Read {
    /// Nothing where nothing went wrong.
    Whole(Option<Life>),
    /// There is more of it than is read.
    Cut,
}
