//! Commands of callers, one file each.

pub mod accounts;
pub mod act;
pub mod alert;
pub mod audit;
pub mod backtest;
pub mod bulk;
pub mod callback;
pub mod change;
pub mod cleanup;
pub mod count;
pub mod dependencies;
pub mod describe;
pub mod execution;
pub mod forecast;
pub mod heartbeat;
pub mod lease;
pub mod loops;
pub mod report;
pub mod retry;
pub mod rules;
pub mod schedule;
pub mod secret;
pub mod stats;
pub mod stuck;
pub mod submit;
pub mod subscription;
pub mod why;

use std::sync::Arc;

use comeback_store::{Behalf, ClaimRequest, Claimed, Count, StoreError, Submission, Submitted};

use crate::Core;
use crate::combine::Combiner;
use crate::pipeline::{ChangeOutcome, ChangeRequest};

/// Group commit: requests that are gathered before they go to the store.
pub(crate) struct Combiners {
    pub submits: Combiner<Submission, Result<Submitted, StoreError>>,
    pub claims: Combiner<ClaimRequest, Result<Vec<Claimed>, StoreError>>,
    pub changes: Combiner<Vec<ChangeRequest>, Result<Vec<ChangeOutcome>, StoreError>>,
    pub counts: Combiner<Count, Result<bool, StoreError>>,
}

/// A request with this many parts gets a commit of its own.
pub(crate) const BULK: usize = 100;

impl Combiners {
    pub fn start(core: &Arc<Core>) -> Combiners {
        let (submits, claims, changes, counts) = (core.clone(), core.clone(), core.clone(), core.clone());
        let (lanes, background) = (core.config.report_lanes, &core.config.background);
        Combiners {
            submits: Combiner::start(background, "submits", 1, 500, move |batch| {
                let core = submits.clone();
                async move { core.submit_batch(&batch).await }
            }),
            claims: Combiner::start(background, "claims", 1, 200, move |batch| {
                let core = claims.clone();
                async move { core.claim_batch(&batch).await }
            }),
            changes: Combiner::start(background, "reports", lanes, 500, move |batch| {
                let core = changes.clone();
                async move { core.apply_batch(batch).await }
            }),
            counts: Combiner::start(background, "counts", 1, 500, move |batch| {
                let core = counts.clone();
                async move { core.count_batch(&batch).await }
            }),
        }
    }
}

impl Combiners {
    pub async fn close(self) {
        let Combiners { submits, claims, changes, counts } = self;
        tokio::join!(submits.close(), claims.close(), changes.close(), counts.close());
    }
}

impl Core {
    async fn apply_batch(&self, batch: Vec<Vec<ChangeRequest>>) -> Vec<Result<Vec<ChangeOutcome>, StoreError>> {
        let sizes: Vec<usize> = batch.iter().map(Vec::len).collect();
        match self.apply_changes(batch.into_iter().flatten().collect(), Behalf::Caller).await {
            Err(error) => sizes.iter().map(|_| Err(error.clone())).collect(),
            Ok(answers) => {
                let mut answers = answers.into_iter();
                sizes.iter().map(|size| Ok(answers.by_ref().take(*size).collect())).collect()
            }
        }
    }
}
