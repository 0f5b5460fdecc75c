//! Subscriptions: makes deliveries of the events that subscriptions select.

use std::time::Duration;

use async_trait::async_trait;
use comeback_core::Timestamp;
use comeback_store::{Loop, StoreError, panic_point};

use super::{BackgroundLoop, Cadence, Progress, rest_of_feed_reader};
use crate::Core;
use crate::subscriptions::follow;

/// The loop.
pub struct SubscriptionsLoop;

#[async_trait]
impl BackgroundLoop for SubscriptionsLoop {
    fn name(&self) -> Loop {
        Loop::Tell
    }

    fn cadence(&self) -> Cadence {
        Cadence::WakeUp
    }

    fn rest_after(&self, took: Duration) -> Duration {
        rest_of_feed_reader(took)
    }

    async fn tick(&self, core: &Core, _due_by: Timestamp) -> Result<Progress, StoreError> {
        panic_point!("loop-subscriptions");
        follow::tick(core).await
    }
}
