//! How long things took, by how many took at most so long.

use std::sync::atomic::{AtomicU64, Ordering};

/// The upper ends, in milliseconds. What took longer is in the last one beside them.
pub const BOUNDS_MS: [u64; 10] = [1, 5, 25, 100, 500, 2_500, 10_000, 60_000, 600_000, 3_600_000];

#[derive(Default)]
pub struct Times {
    within: [AtomicU64; BOUNDS_MS.len() + 1],
    sum_us: AtomicU64,
}

/// The numbers at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Took {
    /// How many took at most as long as each bound, and no less than the one before it.
    pub within: Vec<u64>,
    /// Sum in microseconds.
    pub sum_us: u64,
}

impl Times {
    pub fn add_us(&self, us: u64) {
        let place = BOUNDS_MS.iter().position(|bound| us <= bound * 1_000).unwrap_or(BOUNDS_MS.len());
        self.within[place].fetch_add(1, Ordering::Relaxed);
        self.sum_us.fetch_add(us, Ordering::Relaxed);
    }

    pub fn now(&self) -> Took {
        let within = self.within.iter().map(|it| it.load(Ordering::Relaxed)).collect();
        Took { within, sum_us: self.sum_us.load(Ordering::Relaxed) }
    }
}

impl Took {
    /// Adds what others took.
    pub fn add(&mut self, other: &Took) {
        self.within.resize(self.within.len().max(other.within.len()), 0);
        self.within.iter_mut().zip(&other.within).for_each(|(sum, count)| *sum += count);
        self.sum_us += other.sum_us;
    }

    /// Number of durations.
    pub fn count(&self) -> u64 {
        self.within.iter().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_counted_where_it_belongs() {
        let times = Times::default();
        for us in [0, 1_000, 1_001, 3_600_000_000, 3_600_000_001] {
            times.add_us(us);
        }
        let took = times.now();
        assert_eq!((took.within[0], took.within[1], took.within[9], took.within[10]), (2, 1, 1, 1));
        assert_eq!((took.count(), took.sum_us), (5, 7_200_002_002));
    }
}
