//! Back-test: what another policy would have made of the failures that were recorded.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use comeback_core::backtest::{Backtest, Range, TaskHistory, Terms};
use comeback_core::filter::{Compare, Filter, Sort, StateTest, Test, TimeField};
use comeback_core::{Lane, Millis, Policy, State};
use comeback_store::{ListQuery, StoreError, Stored, Subject};
use futures_util::future::join_all;
use tokio::sync::Semaphore;

use crate::{CommandError, Core, Engine};

/// Tasks that are played at most, and where nothing is said.
pub const MOST_LIVES: u32 = 5_000;
/// Tasks of a back-test if the caller gives no number.
pub const USUAL_LIVES: u32 = 1_000;
/// Rows of history that are read of one task: one that has more is left out, for its end is not among them.
const ROWS: u32 = 500;
/// How long it goes on, and how many verdicts it takes; what was played by then is told.
const PATIENCE: Duration = Duration::from_secs(10);
const MOST_VERDICTS: u64 = 300_000;
/// Back-tests at the same time: each takes a core.
static PLACES: Semaphore = Semaphore::const_new(2);
/// Lives that are in memory at a time.
const PAGE: u32 = 100;
/// Histories that are asked for at the same time.
const SIDE_BY_SIDE: usize = 8;
/// Parts that the load over time is told in.
const PARTS: u64 = 60;
const QUARTER_MINUTE: Millis = Millis::from_secs(15);

/// Which failures.
#[derive(Clone, Debug)]
pub struct Cohort {
    /// Tasks to replay.
    pub filter: Filter,
    /// Of tasks that changed since.
    pub within: Millis,
    /// Most tasks to replay.
    pub most: u32,
}

/// How it went, and of what.
#[derive(Clone, Debug)]
pub struct BacktestResult {
    /// The result.
    pub test: Backtest,
    /// Times between which the tasks ended.
    pub range: Range,
    /// Whether all failures were played that were asked for; those that changed last were otherwise.
    pub complete: bool,
}

/// Time and decisions that are left.
struct Stamina {
    began: Instant,
    verdicts: AtomicU64,
}

impl Stamina {
    fn goes_on(&self) -> bool {
        self.began.elapsed() < PATIENCE && self.verdicts.load(Ordering::Relaxed) < MOST_VERDICTS
    }

    fn takes_another(&self) -> bool {
        self.verdicts.fetch_add(1, Ordering::Relaxed);
        self.goes_on()
    }
}

impl Engine {
    /// Plays what failed again under another policy, or under none. Nothing is changed.
    pub async fn backtest(
        &self,
        namespace: &str,
        cohort: &Cohort,
        policy: Option<Arc<Policy>>,
    ) -> Result<BacktestResult, CommandError> {
        let _place = PLACES.acquire().await;
        let core = &self.core;
        let until = core.clock.now();
        let fine = Millis((cohort.within.0 / PARTS).max(QUARTER_MINUTE.0));
        let range = Range { since: until - cohort.within, until, fine };
        let reclassified = core.classes.of(&Lane { namespace: namespace.to_owned(), ..Lane::default() });
        let terms = Arc::new(Terms { policy, limits: core.config.policy_limits, reclassified });
        let stamina = Arc::new(Stamina { began: Instant::now(), verdicts: AtomicU64::new(0) });
        let mut query = cohort.query(range);
        let (mut test, mut looked_at, mut complete) = (Backtest::default(), 0, true);
        loop {
            query.limit = PAGE.min(cohort.most - looked_at);
            let page = core.store.list(namespace, &query).await?;
            looked_at += u32::try_from(page.items.len()).unwrap_or(query.limit);
            let mut lives = Vec::with_capacity(page.items.len());
            for some in page.items.chunks(SIDE_BY_SIDE) {
                for read in join_all(some.iter().map(|it| core.life(namespace, &it.stored))).await {
                    match read? {
                        Read::Whole(life) => lives.extend(life),
                        Read::Cut => complete = false,
                    }
                }
            }
            let (terms, held) = (terms.clone(), stamina.clone());
            let play = move || {
                // Tasks that never started are left out rather than counted as unknown.
                for life in lives.iter().take_while(|_| held.goes_on()) {
                    test.add(life, &terms, range, &|| held.takes_another());
                }
                test
            };
            let played = tokio::task::spawn_blocking(play).await;
            test = played.map_err(|error| StoreError::Unavailable(error.to_string()))?;
            query.after = page.next;
            if query.after.is_none() {
                break;
            }
            if looked_at >= cohort.most || !stamina.goes_on() {
                complete = false;
                break;
            }
        }
        test.finish();
        Ok(BacktestResult { test, range, complete: complete && stamina.goes_on() })
    }
}

impl Cohort {
    /// Tasks that may have gone wrong and have not been canceled, those that changed last first.
    fn query(&self, range: Range) -> ListQuery {
        use StateTest::{Held, Is, Recovered, Retrying};
        let filter = self
            .filter
            .clone()
            .and(Test::State(vec![Recovered, Retrying, Held, Is(State::Failed), Is(State::Dead)]))
            .and(Test::Time { field: TimeField::Updated, compare: Compare::GreaterOrEqual, at: range.since });
        ListQuery { filter, sort: Sort::Updated, limit: PAGE, after: None, now: range.until }
    }
}

impl Core {
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
        Ok(Read::Whole(TaskHistory::of(task, cost, &records)))
    }
}

enum Read {
    /// `None` if no run failed.
    Whole(Option<TaskHistory>),
    /// There is more of it than is read.
    Cut,
}
