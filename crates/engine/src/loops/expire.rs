//! Expire: a task whose deadline has passed is over (T15, T27).

use comeback_store::{Due, Loop, StoreError};

use super::reap::end_all;
use super::{BATCH, Progress};
use crate::Core;
use crate::road::Verb;

pub async fn tick(core: &Core) -> Result<Progress, StoreError> {
    let due = core.store.due(Due::Deadlines, core.clock.now(), BATCH).await?;
    end_all(core, due, Loop::Expire, |_| Verb::Expire).await
}
