//! How long recoveries take, in buckets of which each is a fourth of a doubling: what is read from them is 19 % too long at most.

use super::{Measure, Sums};
use crate::time::Millis;

/// Rows hold bucket n under this number plus n.
pub const RECOVERY: i16 = 1_000;
const PER_DOUBLING: f64 = 4.0;

/// The first that is at least as long.
fn bucket_of(span: Millis) -> i16 {
    if span.0 <= 1 {
        return 0;
    }
    let near = ((span.0 as f64).log2() * PER_DOUBLING).floor() as i16;
    if upper(near) >= span { near } else { near + 1 }
}

fn upper(bucket: i16) -> Millis {
    Millis((f64::from(bucket) / PER_DOUBLING).exp2().round() as u64)
}

impl Sums {
    pub(super) fn add_recovery(&mut self, took: Millis) {
        self.add_code(RECOVERY + bucket_of(took), 1);
    }

    /// How many recoveries were measured.
    pub fn recoveries(&self) -> u64 {
        self.buckets().map(|(_, count)| count).sum()
    }

    /// The mean time from the first failure to the success.
    pub fn mean_recovery(&self) -> Option<Millis> {
        self.get(Measure::RecoveryMs).checked_div(self.recoveries()).map(Millis)
    }

    /// The time within which this share of the recoveries came.
    pub fn recovery(&self, share: f64) -> Option<Millis> {
        let all = self.recoveries();
        let wanted = ((all as f64 * share).ceil() as u64).clamp(1, all.max(1));
        let mut so_far = 0;
        self.buckets().find_map(|(bucket, count)| {
            so_far += count;
            (so_far >= wanted).then(|| upper(bucket))
        })
    }

    /// Each bucket with the longest span that is in it.
    pub fn recovery_spans(&self) -> Vec<(Millis, u64)> {
        self.buckets().map(|(bucket, count)| (upper(bucket), count)).collect()
    }

    fn buckets(&self) -> impl Iterator<Item = (i16, u64)> {
        self.by_code.range(RECOVERY..).map(|(code, count)| (code - RECOVERY, *count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_is_never_too_short_and_a_fifth_too_long_at_most() {
        for exponent in 0..44 {
            for off in [0, 1, 3] {
                let span = Millis((1_u64 << exponent) + off);
                let read = upper(bucket_of(span));
                assert!(read >= span, "{span:?} was read as {read:?}");
                assert!(read.0 as f64 <= span.0 as f64 * 1.2 + 1.0, "{span:?} was read as {read:?}");
            }
        }
    }

    #[test]
    fn percentiles_come_in_order() {
        let mut sums = Sums::default();
        (1..=100).for_each(|n| sums.add_recovery(Millis(n * 1_000)));
        let at = |share: f64| sums.recovery(share).unwrap().0;
        assert!((50_000..=60_000).contains(&at(0.5)), "{}", at(0.5));
        assert!((95_000..=114_000).contains(&at(0.95)), "{}", at(0.95));
        assert!(at(0.5) <= at(0.9) && at(0.9) <= at(0.99));
        assert_eq!(Sums::default().recovery(0.5), None);
    }
}
