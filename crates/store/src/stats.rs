//! Statistics: what is read to add to them, how they are asked for, and error groups as rows.

use std::sync::{Arc, LazyLock};

use async_trait::async_trait;
use comeback_core::error_group::{Group, Triage};
use comeback_core::filter::{fingerprint_from_hex, fingerprint_to_hex};
use comeback_core::stats::{Dimension, EarlierFailure, Fact, Fold, Origin};
use comeback_core::{Class, Lane, Millis, Policy, Record, TaskId, Timestamp};
use serde::de::DeserializeOwned;

use crate::StoreError;
use crate::audit::Given;
use crate::page::FeedCursor;
use crate::row::{HistoryRow, corrupt};

/// Statistics that are added up from the feed.
#[async_trait]
pub trait StatsStore: Send + Sync {
    /// Events that are not in the statistics yet, a batch at a time.
    async fn pending_stats(&self, limit: u32) -> Result<StatsBatch, StoreError>;

    /// Adds what a stretch came to and moves on behind it, both or neither. Whether it did: somebody else may have been quicker.
    async fn fold(&self, stretch: &StatsBatch, fold: &Fold, now: Timestamp) -> Result<bool, StoreError>;

    /// Sums of what attempts came to.
    async fn sums(&self, namespace: &str, query: &SumsQuery) -> Result<Vec<SumLine>, StoreError>;

    /// Keeps old sums less fine, and forgets the oldest, what was booked in months that are over, and of each namespace the error
    /// groups beyond so many. Whether there is more to do of it.
    async fn compact_stats(&self, now: Timestamp, limit: u32, most_groups: u32) -> Result<bool, StoreError>;
}

/// A stretch of the past that is not in the statistics yet.
#[derive(Clone, Debug)]
pub struct StatsBatch {
    /// Behind what, and up to where; the same where nothing is new.
    pub(crate) from: String,
    pub(crate) to: String,
    /// The facts to add up.
    pub facts: Vec<Fact>,
    /// Whether there is more to add.
    pub more: bool,
}

impl StatsBatch {
    /// Whether nothing is new.
    pub fn is_empty(&self) -> bool {
        self.from == self.to
    }
}

/// Where statistics were last added to.
pub(crate) fn place(text: &str) -> Result<FeedCursor, StoreError> {
    if text.is_empty() {
        return Ok(FeedCursor::default());
    }
    text.parse().map_err(|_| corrupt(format!("a place in the feed: {text}")))
}

/// The columns of history that statistics are made of; what may be large is left out.
pub(crate) static LEAN_HISTORY: LazyLock<String> = LazyLock::new(|| {
    let column = |name: &&str| match *name {
        "worker" | "actor" | "result" | "data" => format!("cast(null as text) as {name}"),
        name => format!("h.{name}"),
    };

    HistoryRow::COLUMNS.iter().map(column).collect::<Vec<_>>().join(", ")
});

/// The part of a fact that comes from the task.
pub(crate) struct Owner {
    pub namespace: Arc<str>,
    pub lane: Arc<Lane>,
    pub policy: Option<Arc<Policy>>,
    pub cost: Option<i64>,
}

pub(crate) fn fact(record: Record, owner: &Owner, trouble: Option<EarlierFailure>) -> Fact {
    Fact {
        namespace: owner.namespace.clone(),
        task: TaskId(record.subject),
        lane: owner.lane.clone(),
        strategy: owner.policy.as_ref().map(|policy| policy.backoff.strategy_word()),
        cost: owner.cost.and_then(|cost| u32::try_from(cost).ok()).unwrap_or(0),
        events: record.events,
        at: record.at,
        started_at: record.started_at,
        cycle: record.cycle,
        run: record.run,
        attempt: record.attempt,
        outcome: record.outcome,
        failure: record.failure,
        decision: record.decision,
        trouble,
    }
}

/// The last failure, and since when there are some.
pub(crate) fn trouble(since: i64, last: Record) -> Option<EarlierFailure> {
    let class = last.decision.as_ref().and_then(|decision| decision.class);
    Some(EarlierFailure { since: Timestamp(since), failure: last.failure?, class })
}

/// Which sums, and told apart by what.
#[derive(Clone, Debug, PartialEq)]
pub struct SumsQuery {
    /// The dimension to group by.
    pub by: Dimension,
    /// From this instant on.
    pub since: Timestamp,
    /// Not included.
    pub until: Timestamp,
    /// How long the parts of time are; nothing where the whole is one.
    pub bucket: Option<Millis>,
    /// Only those that have these values.
    pub only: Vec<(Dimension, String)>,
}

/// One sum: of those with a value, in a part of time, of what has this number in `stats::Measure` or is a bucket of recoveries.
#[derive(Clone, Debug, PartialEq)]
pub struct SumLine {
    /// The value of the dimension.
    pub value: String,
    /// The beginning of the period.
    pub at: Timestamp,
    /// The number of the measure.
    pub code: i16,
    /// The sum.
    pub sum: u64,
}

impl SumsQuery {
    pub(crate) fn statement(&self, mark: char, namespace: &str) -> (String, Vec<Given>) {
        let mut given =
            vec![Given::Text(namespace.to_owned()), Given::Number(self.since.0), Given::Number(self.until.0)];
        let at = match self.bucket {
            Some(span) => format!("s.at / {0} * {0}", span.0.max(1)),
            None => "cast(0 as bigint)".to_owned(),
        };
        let by = column(self.by);
        let mut sql = format!(
            "select coalesce(cast(c.{by} as text), ''), {at}, s.measure, cast(sum(s.value) as bigint)
             from stat s join stat_cell c on c.id = s.cell join namespace n on n.id = c.namespace
             where n.name = {mark}1 and s.at >= {mark}2 and s.at < {mark}3"
        );
        for (dimension, value) in &self.only {
            let by = column(*dimension);
            match encoded(*dimension, value) {
                Some(Encoded::Text(text)) => {
                    given.push(Given::Text(text));
                    sql.push_str(&format!(" and c.{by} = {mark}{}", given.len()));
                }
                Some(Encoded::Number(number)) => sql.push_str(&format!(" and c.{by} = ({number})")),
                // There is no such thing, so nothing was counted of it.
                None => sql.push_str(" and 1 = 0"),
            }
        }
        sql.push_str(" group by 1, 2, 3 order by 1, 2, 3");
        (sql, given)
    }

    pub(crate) fn line(&self, value: String, at: i64, code: i16, sum: i64) -> SumLine {
        SumLine { value: decoded(self.by, value), at: Timestamp(at), code, sum: sum.cast_unsigned() }
    }
}

fn column(dimension: Dimension) -> &'static str {
    dimension.word()
}

/// As the row has it.
enum Encoded {
    Text(String),
    Number(i64),
}

fn encoded(dimension: Dimension, value: &str) -> Option<Encoded> {
    Some(match dimension {
        Dimension::Class => Encoded::Number(Class::from_word(value)?.code().into()),
        Dimension::Origin => Encoded::Number(Origin::from_word(value)?.code().into()),
        Dimension::Attempt => Encoded::Number(value.parse::<u16>().ok()?.into()),
        Dimension::Fingerprint => Encoded::Number(fingerprint_from_hex(value)?),
        Dimension::Strategy | Dimension::Dependency | Dimension::Kind | Dimension::Queue => {
            Encoded::Text(value.to_owned())
        }
    })
}

fn decoded(dimension: Dimension, value: String) -> String {
    let small = || value.parse::<i16>().ok();
    match dimension {
        Dimension::Class => small().and_then(Class::from_code).map(|it| it.word().to_owned()).unwrap_or_default(),
        Dimension::Origin => small().and_then(Origin::from_code).map(|it| it.word().to_owned()).unwrap_or_default(),
        Dimension::Fingerprint => value.parse().map(fingerprint_to_hex).unwrap_or_default(),
        Dimension::Attempt | Dimension::Strategy | Dimension::Dependency | Dimension::Kind | Dimension::Queue => value,
    }
}

/// How long sums are kept, and how fine.
pub(crate) mod keep {
    use super::{Millis, Timestamp};

    const HOUR: i64 = 3_600_000;
    const DAY: i64 = 24 * HOUR;

    /// From the finest to the coarsest: after so long, the parts of time are so long.
    const STEPS: [(i64, i64); 2] = [(3 * DAY, HOUR), (35 * DAY, DAY)];
    /// After this nothing is kept, and no cell or group that nobody has seen for so long.
    const YEAR: Millis = Millis(400 * DAY as u64);

    /// Sums older than the first are kept in periods as long as the second.
    pub fn steps(now: Timestamp) -> impl Iterator<Item = (i64, i64)> {
        STEPS.iter().map(move |(age, span)| ((now.0 - age).div_euclid(*span) * span, *span))
    }

    pub fn oldest(now: Timestamp) -> Timestamp {
        now - YEAR
    }

    /// The first month whose bookings are kept: the last one is over for everybody, and is still there to be looked at.
    pub fn oldest_month(now: Timestamp) -> String {
        comeback_core::budget::month(now - Millis::from_days(31))
    }
}

/// A group as its columns hold it.
pub(crate) struct GroupRow {
    pub fingerprint: i64,
    pub face: String,
    pub count: i64,
    pub recovered: i64,
    pub first_seen: i64,
    pub last_seen: i64,
    pub class: Option<i16>,
    pub sample: String,
    pub word: String,
    pub reclassified: Option<i16>,
}

impl GroupRow {
    pub const COLUMNS: &'static str =
        "fingerprint, face, count, recovered, first_seen, last_seen, class, sample, word, reclassified";

    pub fn new(group: &Group) -> GroupRow {
        let text = |value: Result<String, serde_json::Error>| value.unwrap_or_default();
        GroupRow {
            fingerprint: group.fingerprint,
            face: text(serde_json::to_string(&group.face)),
            count: group.count.cast_signed(),
            recovered: group.recovered.cast_signed(),
            first_seen: group.first_seen.0,
            last_seen: group.last_seen.0,
            class: group.class.map(Class::code),
            sample: text(serde_json::to_string(&group.sample)),
            word: text(serde_json::to_string(&group.word)),
            reclassified: group.word.reclassified.map(Class::code),
        }
    }

    pub fn into_group(self) -> Result<Group, StoreError> {
        Ok(Group {
            fingerprint: self.fingerprint,
            face: read(&self.face)?,
            count: self.count.cast_unsigned(),
            recovered: self.recovered.cast_unsigned(),
            first_seen: Timestamp(self.first_seen),
            last_seen: Timestamp(self.last_seen),
            class: self.class.and_then(Class::from_code),
            sample: read(&self.sample)?,
            word: read::<Triage>(&self.word)?,
        })
    }
}

fn read<T: DeserializeOwned>(text: &str) -> Result<T, StoreError> {
    serde_json::from_str(text).map_err(|error| corrupt(format!("an error group: {error}")))
}

/// Groups to list, those that were seen last first.
#[derive(Clone, Debug, Default)]
pub struct GroupQuery {
    /// Behind this one: when it was seen last, and its fingerprint.
    pub after: Option<(Timestamp, i64)>,
    /// At most this many.
    pub limit: u32,
}
