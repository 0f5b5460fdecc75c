//! Failed authentication and authorization: counted by reason, logged at most once a second, and delayed for addresses
//! that fail repeatedly.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use axum::http::{HeaderMap, StatusCode, header};
use parking_lot::Mutex;

use crate::problem::Problem;

/// Why a request was refused with 401 or 403.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalReason {
    /// 401, and no key was sent.
    NoKey,
    /// 401, and the key is unknown, expired or revoked.
    BadKey,
    /// 403.
    Forbidden,
}

impl RefusalReason {
    const ALL: [RefusalReason; 3] = [RefusalReason::NoKey, RefusalReason::BadKey, RefusalReason::Forbidden];

    fn word(self) -> &'static str {
        match self {
            RefusalReason::NoKey => "no_key",
            RefusalReason::BadKey => "bad_key",
            RefusalReason::Forbidden => "forbidden",
        }
    }

    /// The refusal reason of a response. `None` for all statuses except 401 and 403.
    pub fn of(status: StatusCode, had_key: bool) -> Option<RefusalReason> {
        match status {
            StatusCode::UNAUTHORIZED if had_key => Some(RefusalReason::BadKey),
            StatusCode::UNAUTHORIZED => Some(RefusalReason::NoKey),
            StatusCode::FORBIDDEN => Some(RefusalReason::Forbidden),
            _ => None,
        }
    }
}

/// Whether a request has a key, valid or not.
pub fn has_key(headers: &HeaderMap) -> bool {
    headers.contains_key(header::AUTHORIZATION)
}

/// Failures per address and minute that are not delayed.
const FREE: u32 = 10;
const WINDOW: Duration = Duration::from_secs(60);
/// Added delay per further failure.
const STEP: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(1);
/// Maximum number of tracked addresses and key ids.
const REMEMBERED: usize = 10_000;
/// Maximum number of delayed responses at a time.
const HELD_BACK: usize = 1_000;

/// Counts authentication failures and delays the sources of repeated ones.
#[derive(Default)]
pub struct AuthFailures {
    counts: [AtomicU64; RefusalReason::ALL.len()],
    log: Mutex<LogLine>,
    recent: Mutex<HashMap<FailureSource, Recent>>,
    held_back: AtomicUsize,
}

#[derive(Default)]
struct LogLine {
    last: Option<Instant>,
    suppressed: u64,
}

/// Source of failures: an address or a key id.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum FailureSource {
    Address(IpAddr),
    Key(String),
}

struct Recent {
    since: Instant,
    count: u32,
}

impl AuthFailures {
    /// Counts a failure, and logs it unless another was logged within the last second.
    pub fn count(&self, reason: RefusalReason, route: &str, request_id: &str) {
        self.counts[reason as usize].fetch_add(1, Ordering::Relaxed);
        let suppressed = {
            let mut log = self.log.lock();
            if log.last.is_some_and(|last| last.elapsed() < Duration::from_secs(1)) {
                log.suppressed += 1;
                return;
            }
            log.last = Some(Instant::now());
            std::mem::take(&mut log.suppressed)
        };
        tracing::warn!(
            reason = reason.word(),
            route,
            request = request_id,
            suppressed,
            "request refused: authentication or authorization failed"
        );
    }

    /// Number of failures by reason.
    pub fn all(&self) -> impl Iterator<Item = (&'static str, u64)> {
        RefusalReason::ALL
            .into_iter()
            .map(|reason| (reason.word(), self.counts[reason as usize].load(Ordering::Relaxed)))
    }

    /// Delays the response to a request that failed to authenticate, by the recent failures of its address or key. It
    /// holds no permit meanwhile. Refuses the request if too many responses are delayed already.
    pub async fn slow_down(&self, peer: IpAddr, headers: &HeaderMap) -> Result<(), Problem> {
        let delay = self.delay(FailureSource::Address(peer), Instant::now());
        let tried = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        let id = tried.and_then(|text| text.strip_prefix("Bearer cbk_")?.split('_').next()).filter(|id| id.len() <= 64);
        let of_key = id.map_or(Duration::ZERO, |id| self.delay(FailureSource::Key(id.to_owned()), Instant::now()));
        let delay = delay.max(of_key);
        if delay.is_zero() {
            return Ok(());
        }
        if self.held_back.fetch_add(1, Ordering::SeqCst) >= HELD_BACK {
            self.held_back.fetch_sub(1, Ordering::SeqCst);
            return Err(Problem::too_many_requests("too many requests from this address failed to authenticate"));
        }
        let _counted = HeldBack(&self.held_back);
        tokio::time::sleep(delay).await;
        Ok(())
    }

    fn delay(&self, source: FailureSource, now: Instant) -> Duration {
        let mut recent = self.recent.lock();
        if recent.len() >= REMEMBERED && !recent.contains_key(&source) {
            recent.retain(|_, it| now.duration_since(it.since) < WINDOW);
            if recent.len() >= REMEMBERED {
                // More sources than can be tracked: start over rather than grow.
                recent.clear();
            }
        }
        let it = recent.entry(source).or_insert(Recent { since: now, count: 0 });
        if now.duration_since(it.since) >= WINDOW {
            *it = Recent { since: now, count: 0 };
        }
        it.count = it.count.saturating_add(1);
        (STEP * it.count.saturating_sub(FREE).min(100)).min(LONGEST)
    }
}

struct HeldBack<'a>(&'a AtomicUsize);

impl Drop for HeldBack<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_fails_again_and_again_is_answered_later_and_later() {
        let failures = AuthFailures::default();
        let (now, red) = (Instant::now(), || FailureSource::Address(IpAddr::from([10, 0, 0, 1])));
        let delays: Vec<u128> = (0..30).map(|_| failures.delay(red(), now).as_millis()).collect();
        assert!(delays[..10].iter().all(|delay| *delay == 0), "{delays:?}");
        assert_eq!((delays[10], delays[29]), (100, 1_000));
        assert!(
            failures.delay(FailureSource::Address(IpAddr::from([10, 0, 0, 2])), now).is_zero(),
            "others are not slowed"
        );
        assert!(failures.delay(red(), now + WINDOW).is_zero(), "a minute later it is forgotten");
    }

    #[test]
    fn addresses_are_remembered_in_bounded_memory() {
        let failures = AuthFailures::default();
        let now = Instant::now();
        for n in 0..30_000_u32 {
            failures.delay(FailureSource::Address(IpAddr::from(n.to_be_bytes())), now);
        }
        assert!(failures.recent.lock().len() <= REMEMBERED);
    }

    #[tokio::test]
    async fn no_more_answers_are_held_back_than_allowed() {
        let failures = AuthFailures::default();
        let (peer, headers) = (IpAddr::from([10, 0, 0, 1]), HeaderMap::new());
        for _ in 0..FREE {
            failures.slow_down(peer, &headers).await.expect("at once");
        }
        failures.held_back.store(HELD_BACK, Ordering::SeqCst);
        let refused = failures.slow_down(peer, &headers).await.expect_err("too many wait");
        assert_eq!((refused.status.as_u16(), refused.slug().as_str()), (429, "too-many-requests"));
        failures.held_back.store(0, Ordering::SeqCst);
        let begun = Instant::now();
        failures.slow_down(peer, &headers).await.expect("later");
        assert!(begun.elapsed() >= STEP);
        assert_eq!(failures.held_back.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn one_line_a_second_is_logged() {
        let failures = AuthFailures::default();
        for _ in 0..5 {
            failures.count(RefusalReason::BadKey, "/api/v1/tasks", "r");
        }
        assert_eq!(failures.log.lock().suppressed, 4);
        assert_eq!(failures.all().collect::<Vec<_>>(), [("no_key", 0), ("bad_key", 5), ("forbidden", 0)]);
    }
}
