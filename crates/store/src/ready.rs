//! Which of many lanes have something ready, without a look at each: from one to the next along the index of ready tasks.

/// A claim over no more lanes than this looks into each of them. Over more, it looks for those that have something ready and takes
/// from the first so many; the next claim goes on behind them. So the order of priority and age holds over so many lanes.
pub const MANY: usize = 256;

/// Lanes that one claim looks at, at most, while it finds none of them with room under its rules.
pub const MOST_LOOKED_AT: usize = 4_096;

/// A walk through lanes in the order of their numbers that begins behind one of them and comes around once.
pub struct ReadyWalk<'a> {
    lanes: &'a [i32],
    start: usize,
    passed: usize,
}

impl<'a> ReadyWalk<'a> {
    /// `lanes` are in order.
    pub fn new(lanes: &'a [i32], after: i32) -> ReadyWalk<'a> {
        ReadyWalk { lanes, start: lanes.partition_point(|id| *id <= after), passed: 0 }
    }

    pub fn is_over(&self) -> bool {
        self.passed >= self.lanes.len()
    }

    /// The next lanes, up to the end of the list or to where the walk began.
    pub fn segment(&self) -> &'a [i32] {
        let before_end = self.lanes.len() - self.start;
        match self.passed < before_end {
            true => &self.lanes[self.start + self.passed..],
            false => &self.lanes[self.passed - before_end..self.start],
        }
    }

    /// Goes on behind the first lane from here on that has something ready; it may be one that nobody asked for. Whether it is one
    /// of the lanes. Nothing: there is none in this segment.
    pub fn pass(&mut self, ready: Option<i32>) -> bool {
        let segment = self.segment();
        let Some(lane) = ready else {
            self.passed += segment.len();
            return false;
        };
        let place = segment.partition_point(|id| *id < lane);
        let is_wanted = segment.get(place) == Some(&lane);
        self.passed += place + usize::from(is_wanted);
        is_wanted
    }

    /// The last lane that was passed, where the next walk begins.
    pub fn last(&self) -> i32 {
        let place = (self.start + self.passed + self.lanes.len()).saturating_sub(1);
        self.lanes.get(place % self.lanes.len().max(1)).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Walks over `lanes` where `ready` are ready, and counts the looks.
    fn walk(lanes: &[i32], ready: &BTreeSet<i32>, after: i32, most: usize) -> (Vec<i32>, usize, i32) {
        let (mut walk, mut found, mut looks) = (ReadyWalk::new(lanes, after), Vec::new(), 0);
        while !walk.is_over() && found.len() < most {
            let segment = walk.segment();
            let first = ready.range(segment[0]..=segment[segment.len() - 1]).next().copied();
            looks += 1;
            if walk.pass(first) {
                found.extend(first);
            }
        }
        (found, looks, walk.last())
    }

    #[test]
    fn every_ready_lane_is_found_once_whatever_the_beginning() {
        let lanes: Vec<i32> = (0..200).map(|n| n * 3).collect();
        let ready: BTreeSet<i32> = (0..600).filter(|n| n % 7 == 0 || n % 9 == 0).collect();
        let wanted: BTreeSet<i32> = lanes.iter().copied().filter(|id| ready.contains(id)).collect();
        for after in [-1, 0, 1, 300, 301, 597, 598, 10_000] {
            let (found, ..) = walk(&lanes, &ready, after, usize::MAX);
            assert_eq!(found.len(), wanted.len(), "after {after}");
            assert_eq!(found.into_iter().collect::<BTreeSet<_>>(), wanted, "after {after}");
        }
        assert_eq!(walk(&[], &ready, 5, 10).0, Vec::<i32>::new());
    }

    #[test]
    fn looks_are_as_many_as_lanes_that_are_ready_and_not_as_many_as_there_are() {
        let lanes: Vec<i32> = (0..100_000).collect();
        let ready = BTreeSet::from([17, 70_000]);
        let (found, looks, _) = walk(&lanes, &ready, 50_000, 10);
        assert_eq!((found, looks), (vec![70_000, 17], 4));
    }

    #[test]
    fn walks_that_end_early_take_turns() {
        let lanes: Vec<i32> = (1..=10).collect();
        let ready: BTreeSet<i32> = lanes.iter().copied().collect();
        let (mut from, mut all) = (0, Vec::new());
        for _ in 0..5 {
            let (found, _, last) = walk(&lanes, &ready, from, 4);
            all.extend(found);
            from = last;
        }
        assert_eq!(all, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
    }
}
