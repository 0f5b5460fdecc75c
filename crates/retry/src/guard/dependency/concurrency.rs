//! How many may run at once: fewer when answers are slow or bad, one more for every round of good ones.

use super::{Concurrency, Ended, How, Window};
use crate::time::{Millis, Timestamp};

/// The part of the limit that is left after a bad moment.
const SHRINK: f64 = 0.7;
/// One bad moment takes no more than this, however little came back during it.
const STEEPEST: f64 = 0.4;
/// Bad moments come together: after one, so long nothing more is taken away.
const REST: Millis = Millis(500);

/// The limit after these runs ended; `shrunk_at` is when it last became less.
pub fn next(
    settings: Concurrency,
    limit: f64,
    shrunk_at: Option<Timestamp>,
    ended: &[Ended],
    window: &Window,
    now: Timestamp,
) -> (f64, Option<Timestamp>) {
    let (low, high) = (f64::from(settings.min), f64::from(settings.max));
    let limit = limit.clamp(low, high);
    if ended.is_empty() {
        return (limit, shrunk_at);
    }
    // Runs that began before the last cut tell of the time before it.
    let told: Vec<&Ended> = ended.iter().filter(|it| shrunk_at.is_none_or(|at| it.started_at >= at)).collect();
    let bad = told.iter().filter(|it| it.how != How::Answered || is_slow(settings, it)).count();
    let good = told.len() - bad;
    if bad * 10 <= told.len() {
        return ((limit + good as f64 / limit).min(high), shrunk_at);
    }
    if shrunk_at.is_some_and(|at| now < at + REST) {
        return (limit, shrunk_at);
    }
    // A limit that was not reached says nothing. What came back while a slow run was under way is what there is room for at
    // that speed.
    let slow = told.iter().filter(|it| is_slow(settings, it)).map(|it| it.took()).min();
    let reached = slow.map_or(limit, |took| window.answered_within(took, now).clamp(limit * STEEPEST, limit));
    ((reached * SHRINK).max(low), Some(now))
}

fn is_slow(settings: Concurrency, it: &Ended) -> bool {
    let target = settings.target.or(it.allowed.map(|allowed| Millis(allowed.0 / 2)));
    target.is_some_and(|target| it.took() > target)
}
