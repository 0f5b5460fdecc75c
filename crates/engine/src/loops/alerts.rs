//! Alerts: fires and resolves alerts.

use std::time::Duration;

use async_trait::async_trait;
use comeback_core::Timestamp;
use comeback_store::{Loop, NextDue, StoreError, panic_point};

use super::{BackgroundLoop, Cadence, Progress, rest_of_feed_reader};
use crate::Core;
use crate::alerts::look;

/// The loop.
pub struct AlertsLoop;

#[async_trait]
impl BackgroundLoop for AlertsLoop {
    fn name(&self) -> Loop {
        Loop::Alerts
    }

    fn cadence(&self) -> Cadence {
        Cadence::WakeUp
    }

    fn next_due(&self, next: &NextDue) -> Option<Timestamp> {
        next.alert
    }

    fn rest_after(&self, took: Duration) -> Duration {
        rest_of_feed_reader(took)
    }

    async fn tick(&self, core: &Core, _due_by: Timestamp) -> Result<Progress, StoreError> {
        panic_point!("loop-alerts");
        look::tick(core).await
    }
}
