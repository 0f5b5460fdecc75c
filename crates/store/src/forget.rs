//! Forgetting lanes: what both databases do the same.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicI32, Ordering};

use comeback_core::{Millis, Timestamp};
use parking_lot::Mutex;

use crate::rules::RULED_FROM;

/// Lanes of each sort that one call looks at.
pub const PAGE: i64 = 2_000;

/// How long a lane must have been found empty before it is forgotten: longer than any read takes that began while it was not.
const EMPTY_FOR: Millis = Millis::from_secs(20);

/// Lanes that were found without a task, since when, and how far the look at all lanes has come.
#[derive(Default)]
pub struct UnusedCandidates {
    since: Mutex<BTreeMap<i32, Timestamp>>,
    plain: AtomicI32,
    limited: AtomicI32,
}

impl UnusedCandidates {
    /// Behind which numbers the next page begins: of lanes without limits, and of those with.
    pub fn place(&self) -> (i32, i32) {
        (self.plain.load(Ordering::Relaxed), self.limited.load(Ordering::Relaxed).max(RULED_FROM - 1))
    }

    /// Takes note of a page: what was found empty in it, and where it ended (nothing: at the end of the table). Answers which of
    /// the empty ones have been so for long enough.
    pub fn note(&self, empty: &[i32], ends: [Option<i32>; 2], now: Timestamp) -> Vec<i32> {
        let (from, limited_from) = self.place();
        let [end, limited_end] = ends;
        self.plain.store(end.unwrap_or(0), Ordering::Relaxed);
        self.limited.store(limited_end.unwrap_or(0), Ordering::Relaxed);
        let mut since = self.since.lock();
        let is_on_page = |id: i32| {
            (id > from && id <= end.unwrap_or(RULED_FROM - 1))
                || (id > limited_from && id <= limited_end.unwrap_or(i32::MAX))
        };
        since.retain(|id, _| !is_on_page(*id) || empty.binary_search(id).is_ok());
        let is_ripe = |id: &&i32| *since.entry(**id).or_insert(now) + EMPTY_FOR <= now;
        empty.iter().filter(is_ripe).copied().collect()
    }

    pub fn remove(&self, lanes: &[i32]) {
        self.since.lock().retain(|id, _| !lanes.contains(id));
    }
}

/// The lanes of a page that no task is in, and where the page ends. `$1` is where it begins and `$2` how many lanes it has.
/// Lanes with limits are for open tasks alone; what an older version has stored may refer to them otherwise too.
pub fn empty_lanes(limited: bool, one: &str, two: &str) -> String {
    let (table, unused) = match limited {
        false => ("lane", "not exists (select 1 from ruled_lane r where r.lane = l.id)".to_owned()),
        true => (
            "ruled_lane",
            format!("not exists (select 1 from task_open o where o.lane = l.id and o.lane >= {RULED_FROM})"),
        ),
    };
    format!(
        "select l.id, {unused} and not exists (select 1 from task t where t.lane = l.id)
         from (select id from {table} where id > {one} order by id limit {two}) l order by l.id"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lane_is_ripe_when_it_was_empty_all_the_while() {
        let suspects = UnusedCandidates::default();
        let at = |seconds: i64| Timestamp(seconds * 1_000);
        assert!(suspects.note(&[1, 2, RULED_FROM], [None, None], at(0)).is_empty());
        assert!(suspects.note(&[2, RULED_FROM], [None, None], at(10)).is_empty());
        assert_eq!(suspects.note(&[1, 2, RULED_FROM], [None, None], at(20)), [2, RULED_FROM]);
        assert_eq!(suspects.note(&[1, 2], [None, None], at(40)), [1, 2]);
        suspects.remove(&[1, 2]);
        assert!(suspects.note(&[1, 2], [None, None], at(41)).is_empty());
    }

    #[test]
    fn pages_follow_one_another_and_come_around() {
        let suspects = UnusedCandidates::default();
        suspects.note(&[1], [Some(5), Some(RULED_FROM + 9)], Timestamp(0));
        assert_eq!(suspects.place(), (5, RULED_FROM + 9));
        suspects.note(&[], [None, None], Timestamp(0));
        assert_eq!(suspects.place(), (0, RULED_FROM - 1));
        assert_eq!(
            suspects.note(&[1], [Some(5), None], Timestamp(20_000)),
            [1],
            "the second page says nothing of the first"
        );
    }
}
