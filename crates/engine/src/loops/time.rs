//! Time: follows the store's clock, so that all instances agree on what time it is (model A3).
//!
//! A clock that jumps forward would expire the leases of live workers. So the leases are extended before this instance follows the
//! jump, and no run is declared lost until every instance has followed it (R-I21).

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use comeback_core::transition::Actor;
use comeback_core::{Audit, AuditAction, Millis};
use comeback_store::{Finished, Heartbeat, StoreError, panic_point};
use serde_json::json;

use super::{is_answered, real};
use crate::{Core, Step};

pub(super) const EVERY: Millis = Millis::from_secs(5);
/// No run is declared lost for this long after a jump: the default length of a lease, and much longer than an instance needs to notice.
const HOLD: Millis = Millis::from_secs(60);

pub async fn run(core: Weak<Core>, beat: Arc<Heartbeat>) -> Finished {
    let mut told = None;
    loop {
        tokio::time::sleep(real(EVERY)).await;
        let Some(core) = core.upgrade() else { return Finished };
        panic_point!("loop-clock");
        let followed = match core.store.clock_offset().await {
            Ok(offset) => follow(&core, offset.unwrap_or(0), &mut told).await,
            Err(error) => Err(error),
        };
        if followed.as_ref().err().is_none_or(is_answered) {
            beat.turn();
        }
        if let Err(error) = followed {
            // The clock runs on by itself, and the other loops log that the store is unavailable.
            tracing::debug!(%error, "cannot read the clock of the store");
        }
    }
}

/// `told` is the jump that was logged last.
async fn follow(core: &Core, offset_millis: i64, told: &mut Option<i64>) -> Result<(), StoreError> {
    let Some(step) = core.clock.step(offset_millis) else {
        *told = None;
        core.clock.follow(offset_millis);
        return Ok(());
    };
    let off_by = step.to.0 - step.from.0;
    let held = if off_by > 0 { core.store.extend_leases(step.from, step.to).await? } else { 0 };
    core.clock.follow(offset_millis);
    if off_by > 0 {
        core.losses_from.fetch_max((core.clock.now() + HOLD).0, Ordering::Relaxed);
    }
    // A jump back is not followed, so it is found again every time.
    if told.is_none_or(|told| (told - off_by).abs() > 2_000) {
        log_step(core, step, held).await?;
    }
    *told = Some(off_by);
    Ok(())
}

/// Logs and audits a jump of the clock.
async fn log_step(core: &Core, step: Step, leases: u64) -> Result<(), StoreError> {
    let (from, to) = (step.from.to_rfc3339(), step.to.to_rfc3339());
    if step.to > step.from {
        tracing::warn!(%from, %to, leases, "clock jumped forward; extended leases");
    } else {
        tracing::warn!(%from, %to, "clock jumped back; ignored until it catches up");
    }
    let now = core.clock.now();
    let act = Actor { by: Some(core.config.instance.clone()), ..Actor::default() };
    let entry = Audit::new(core.ids.act(now), now, AuditAction::ClockStep, "clock", &act);
    core.store.put_audit(&entry.changed(Some(json!({"now": from})), Some(json!({"now": to, "leases": leases})))).await
}

#[cfg(test)]
mod tests {
    use comeback_store::{AuditQuery, BeatAnswer, Loop, SqliteOptions, SqliteStore};

    use super::*;
    use crate::{Engine, EngineConfig, Heartbeat, LeaseRequest, Report, ReportEnd, Submit, SystemClock, TaskSpec};

    const FORTNIGHT: i64 = 14 * 86_400_000;

    async fn engine() -> Engine {
        let store = Arc::new(SqliteStore::open(&SqliteOptions::in_memory()).unwrap());
        let engine = Engine::without_loops(store, SystemClock::new(), EngineConfig::default()).await.unwrap();
        for kind in ["a", "b", "c"] {
            engine.submit(Submit::one("default", TaskSpec::new(kind))).await.unwrap();
        }
        engine
    }

    async fn steps(engine: &Engine) -> usize {
        let lines = engine.audit(&AuditQuery { limit: 10, ..AuditQuery::default() }).await.unwrap();
        lines.iter().filter(|line| line.did == AuditAction::ClockStep).count()
    }

    /// R-I21: no loss of leases that were alive; what had run out before has run out.
    #[tokio::test]
    async fn leases_outlast_a_clock_that_is_set_ahead() {
        let engine = engine().await;
        let short = LeaseRequest { lease: Millis(1), ..LeaseRequest::new("default", "gone") };
        let gone = engine.lease(LeaseRequest { limit: 1, ..short }).await.unwrap()[0].lease;
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        let held = engine.lease(LeaseRequest { limit: 2, ..LeaseRequest::new("default", "w") }).await.unwrap();
        let mut told = None;
        follow(&engine.core, FORTNIGHT, &mut told).await.unwrap();
        follow(&engine.core, FORTNIGHT, &mut told).await.unwrap();
        assert_eq!(steps(&engine).await, 1, "it is told once");
        assert_eq!(engine.tick_loop(Loop::Reap).await.unwrap().moved, 0, "nobody is lost until all have noticed");
        let beat = |lease| Heartbeat { lease, extend: Millis::from_secs(60), progress: None };
        let beats = engine.heartbeat(&[beat(held[0].lease), beat(gone)]).await.unwrap();
        assert!(matches!(beats[0], BeatAnswer::Extended(_)), "{beats:?}");
        assert_eq!(beats[1], BeatAnswer::Lost);
        let report = Report { lease: held[1].lease, end: ReportEnd::Succeeded { result: None } };
        engine.report(vec![report]).await.unwrap().remove(0).unwrap();
        engine.core.losses_from.store(i64::MIN, Ordering::Relaxed);
        assert_eq!(engine.tick_loop(Loop::Reap).await.unwrap().moved, 1, "the one that had run out");
    }

    #[tokio::test]
    async fn a_clock_that_is_set_back_is_told_of_and_not_followed() {
        let engine = engine().await;
        let before = engine.now();
        let mut told = None;
        for _ in 0..3 {
            follow(&engine.core, -FORTNIGHT, &mut told).await.unwrap();
        }
        assert!(engine.now() >= before);
        assert_eq!(steps(&engine).await, 1);
    }
}
