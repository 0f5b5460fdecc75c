//! How long to wait before a retry: a pure function of the policy, the ordinal and the task. Chance is a hash (model A4).

use crate::id::TaskId;
use crate::policy::{Backoff, Jitter, PolicyLimits, Strategy};
use crate::reason::DelayParts;
use crate::time::Millis;

/// The input of jitter. The same task, cycle and ordinal give the same draw wherever it is asked.
#[derive(Clone, Copy, Debug)]
pub struct Draw {
    /// The task.
    pub task: TaskId,
    /// Its cycle: a manual retry draws anew.
    pub cycle: u32,
    /// Which sequence of delays it is.
    pub stream: Stream,
}

/// Counted retries and repeats after a loss number their delays apart, so they draw apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// Counted retries.
    Retry,
    /// Repeats after lost runs.
    Loss,
    /// Retries by the rule of this index.
    Rule(u32),
    /// Coming back after a gate.
    Release,
}

/// Where in a stretch of time a task comes when many come at once: between 0 and 1, and its own.
pub fn place(task: TaskId, cycle: u32, n: u32) -> f64 {
    Draw { task, cycle, stream: Stream::Release }.unit(n)
}

/// The delay before retry number `n + 1`, where `n` retries were already scheduled (ruling D-4).
pub fn delay(backoff: &Backoff, n: u32, draw: Draw, limits: &PolicyLimits) -> DelayParts {
    let base = base(&backoff.strategy, n);
    let cap = cap(backoff, limits);
    let capped = base.min(cap);
    let spread = spread(backoff, capped, n, draw, cap).min(cap);
    DelayParts {
        strategy: backoff.strategy_word().to_owned(),
        n,
        base_ms: base.0,
        capped_ms: (capped < base).then_some(capped.0),
        jitter_ms: spread.0.cast_signed().saturating_sub(capped.0.cast_signed()),
        retry_after_ms: None,
        window_ms: 0,
        total_ms: spread.0,
    }
}

/// The shortest and the longest the delay could be for any task: what a forecast shows for jitter not drawn yet.
pub fn band(backoff: &Backoff, n: u32, limits: &PolicyLimits) -> (Millis, Millis) {
    let cap = cap(backoff, limits);
    let capped = base(&backoff.strategy, n).min(cap);
    let scaled = |factor: f64| Millis::from_f64(capped.as_f64() * factor).min(cap);
    match backoff.jitter {
        Jitter::None => (capped, capped),
        Jitter::Proportional => (scaled(0.5), scaled(1.5)),
        Jitter::Full => (Millis::ZERO, capped),
        Jitter::Equal => (scaled(0.5), capped),
        Jitter::Decorrelated => {
            let first = base_first(backoff).min(cap);
            (first, Millis::from_f64(first.as_f64() * 3_f64.powf(f64::from(n) + 1.0)).min(cap))
        }
    }
}

/// Before cap and jitter. In floating point, so that it saturates in place of wrapping (X1-14).
fn base(strategy: &Strategy, n: u32) -> Millis {
    match strategy {
        Strategy::Immediate { first } => first.filter(|_| n == 0).unwrap_or_default(),
        Strategy::Fixed { delay, first } => first.filter(|_| n == 0).unwrap_or(*delay),
        Strategy::Linear { initial, step } => Millis::from_f64(initial.as_f64() + step.as_f64() * f64::from(n)),
        Strategy::Exponential { initial, multiplier } => {
            Millis::from_f64(initial.as_f64() * multiplier.powf(f64::from(n)))
        }
        Strategy::Schedule(entries) => {
            let ordinal = n.saturating_add(1);
            let at_or_before = entries.iter().rev().find(|entry| entry.retry <= ordinal);
            at_or_before.or(entries.first()).map(|entry| entry.delay).unwrap_or_default()
        }
    }
}

/// The policy's own cap, and the server's for this kind of strategy, whichever is lower.
fn cap(backoff: &Backoff, limits: &PolicyLimits) -> Millis {
    let server = server_cap(backoff, limits);
    backoff.max_delay.map_or(server, |own| own.min(server))
}

fn server_cap(backoff: &Backoff, limits: &PolicyLimits) -> Millis {
    match backoff.strategy {
        Strategy::Exponential { .. } | Strategy::Linear { .. } => limits.max_delay,
        _ => limits.max_schedule,
    }
}

/// The server's limit, where it and not the policy made this delay shorter (X1-12).
pub fn clamped_by_server(backoff: &Backoff, parts: &DelayParts, limits: &PolicyLimits) -> Option<Millis> {
    let server = server_cap(backoff, limits);
    (parts.capped_ms == Some(server.0) && backoff.max_delay.is_none_or(|own| own > server)).then_some(server)
}

fn base_first(backoff: &Backoff) -> Millis {
    base(&backoff.strategy, 0)
}

fn spread(backoff: &Backoff, capped: Millis, n: u32, draw: Draw, cap: Millis) -> Millis {
    let between = |low: f64, high: f64, u: f64| Millis::from_f64(low + (high - low) * u);
    let whole = capped.as_f64();
    match backoff.jitter {
        Jitter::None => capped,
        Jitter::Proportional => between(whole * 0.5, whole * 1.5, draw.unit(n)),
        Jitter::Full => between(0.0, whole, draw.unit(n)),
        Jitter::Equal => between(whole * 0.5, whole, draw.unit(n)),
        Jitter::Decorrelated => {
            let first = base_first(backoff).min(cap);
            let mut previous = first;
            for i in 0..=n {
                let high = previous.as_f64() * 3.0;
                previous = between(first.as_f64(), high.max(first.as_f64()), draw.unit(i)).min(cap);
            }
            previous
        }
    }
}

impl Draw {
    /// A number in [0, 1), always the same for the same question.
    fn unit(self, n: u32) -> f64 {
        let (high, low) = self.task.0.as_u64_pair();
        let stream = match self.stream {
            Stream::Retry => 0,
            Stream::Loss => 1 << 62,
            Stream::Rule(index) => (2 << 62) | u64::from(index),
            Stream::Release => 3 << 62,
        };
        let mut state = 0x9e37_79b9_7f4a_7c15;
        for word in [high, low, u64::from(self.cycle) << 32 | u64::from(n), stream] {
            state = mix(state ^ word);
        }
        (state >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// The finaliser of SplitMix64.
fn mix(mut z: u64) -> u64 {
    z = z.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::ScheduleEntry;
    use uuid::Uuid;

    fn draw(task: u128) -> Draw {
        Draw { task: TaskId(Uuid::from_u128(task)), cycle: 0, stream: Stream::Retry }
    }

    fn ms(backoff: &Backoff, n: u32, task: u128) -> u64 {
        delay(backoff, n, draw(task), &PolicyLimits::default()).total_ms
    }

    fn exponential(initial: u64, multiplier: f64, cap: Option<u64>, jitter: Jitter) -> Backoff {
        Backoff {
            strategy: Strategy::Exponential { initial: Millis(initial), multiplier },
            max_delay: cap.map(Millis),
            jitter,
        }
    }

    #[test]
    fn nothing_overflows() {
        let year = Millis::from_days(366).0;
        for (initial, multiplier) in [(1, 1e300), (u64::MAX, 2.0), (1_000, 1.0 + f64::EPSILON), (5_000, 2.0)] {
            for jitter in Jitter::ALL {
                for n in [0, 1, 63, 64, 1_000, 10_000] {
                    assert!(ms(&exponential(initial, multiplier, None, *jitter), n, 7) <= year);
                }
            }
        }
        assert_eq!(ms(&exponential(0, 1e300, None, Jitter::None), 10_000, 7), 0);
        let linear = Backoff {
            strategy: Strategy::Linear { initial: Millis(1), step: Millis::MAX },
            max_delay: None,
            jitter: Jitter::None,
        };
        assert_eq!(ms(&linear, 10_000, 7), year);
    }

    #[test]
    fn the_cap_bounds_before_and_after_jitter() {
        let capped = exponential(1_000, 10.0, Some(5_000), Jitter::Proportional);
        let parts = delay(&capped, 3, draw(1), &PolicyLimits::default());
        assert_eq!((parts.base_ms, parts.capped_ms), (1_000_000, Some(5_000)));
        for task in 0..500 {
            assert!((2_500..=5_000).contains(&ms(&capped, 3, task)));
        }
    }

    #[test]
    fn each_jitter_stays_in_its_band_and_fills_it() {
        for jitter in Jitter::ALL {
            let backoff = exponential(1_000, 2.0, Some(60_000), *jitter);
            for n in 0..8 {
                let (low, high) = band(&backoff, n, &PolicyLimits::default());
                let drawn: Vec<u64> = (0..400).map(|task| ms(&backoff, n, task)).collect();
                assert!(drawn.iter().all(|d| (low.0..=high.0).contains(d)), "{jitter} {n}");
                if *jitter != Jitter::None && *jitter != Jitter::Decorrelated {
                    let span = high.0 - low.0;
                    assert!(drawn.iter().any(|d| *d < low.0 + span / 5), "{jitter} {n}: low end");
                    assert!(drawn.iter().any(|d| *d > high.0 - span / 5), "{jitter} {n}: high end");
                }
            }
        }
    }

    #[test]
    fn the_same_question_has_the_same_answer_and_another_task_another() {
        let backoff = exponential(10_000, 2.0, None, Jitter::Full);
        assert_eq!(ms(&backoff, 2, 99), ms(&backoff, 2, 99));
        assert_ne!(ms(&backoff, 2, 99), ms(&backoff, 2, 100));
        let in_cycle = |cycle| delay(&backoff, 2, Draw { cycle, ..draw(99) }, &PolicyLimits::default()).total_ms;
        assert_ne!(in_cycle(0), in_cycle(1));
    }

    #[test]
    fn a_schedule_is_looked_up_by_ordinal() {
        let schedule = |entries: &[(u32, u64)]| Backoff {
            strategy: Strategy::Schedule(
                entries.iter().map(|(retry, delay)| ScheduleEntry { retry: *retry, delay: Millis(*delay) }).collect(),
            ),
            max_delay: None,
            jitter: Jitter::None,
        };
        let gaps = schedule(&[(2, 20), (5, 50)]);
        let delays: Vec<u64> = (0..7).map(|n| ms(&gaps, n, 1)).collect();
        assert_eq!(delays, [20, 20, 20, 20, 50, 50, 50]);
        assert_eq!(ms(&schedule(&[]), 0, 1), 0);
    }

    #[test]
    fn the_server_limit_clamps_policies_made_before_it() {
        let limits = PolicyLimits { max_delay: Millis(2_000), ..PolicyLimits::default() };
        let parts = delay(&exponential(1_000, 10.0, None, Jitter::None), 4, draw(1), &limits);
        assert_eq!(parts.total_ms, 2_000);
    }
}
