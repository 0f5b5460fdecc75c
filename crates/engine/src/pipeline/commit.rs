//! Applies planned commits and turns the answers of the store into outcomes.

use comeback_core::{Commit, Timestamp};
use comeback_store::{Applied, Behalf, StoreError, Submission, panic_point};

use super::plan::Plan;
use super::{ChangeOutcome, Indexed};
use crate::{Core, Query};

impl Core {
    /// Applies all plans, those that add tasks one by one. Returns the requests that met a stale version.
    pub(super) async fn commit_plans(
        &self,
        mut plans: Vec<Plan>,
        behalf: Behalf<'_>,
        now: Timestamp,
        outcomes: &mut [Option<ChangeOutcome>],
    ) -> Result<Vec<Indexed>, StoreError> {
        for plan in &mut plans {
            if let Some(calls) = self.calls_of(&plan.commit, now).await? {
                let spawn = plan.spawn.get_or_insert_with(|| Submission::in_namespace(&calls.namespace));
                spawn.tasks.extend(calls.tasks);
            }
        }
        let (spawning, mut plain): (Vec<Plan>, Vec<Plan>) = plans.into_iter().partition(|plan| plan.spawn.is_some());
        let mut again = Vec::new();
        panic_point!("pipeline-before-store");
        let commits: Vec<Commit> = plain.iter_mut().map(|plan| std::mem::take(&mut plan.commit)).collect();
        if !commits.is_empty() {
            let applied = self.apply_commits(&commits, behalf, now).await?;
            for ((plan, commit), applied) in plain.into_iter().zip(&commits).zip(applied) {
                panic_point!("pipeline-after-store");
                again.extend(self.handle_outcome(plan, commit, applied, outcomes));
                if applied == Applied::Done {
                    self.registered_meanwhile(commit).await;
                }
            }
        }
        for mut plan in spawning {
            let (commit, spawn) = (std::mem::take(&mut plan.commit), plan.spawn.take().unwrap_or_default());
            let applied = self.store.apply_spawning(&commit, &spawn, behalf, now);
            let applied = self.tallies.asked(Query::Apply, applied).await?;
            again.extend(self.handle_outcome(plan, &commit, applied, outcomes));
            if applied == Applied::Done {
                self.notify_submitted(std::slice::from_ref(&spawn));
                self.registered_meanwhile(&commit).await;
            }
        }
        Ok(again)
    }

    async fn apply_commits(
        &self,
        commits: &[Commit],
        behalf: Behalf<'_>,
        now: Timestamp,
    ) -> Result<Vec<Applied>, StoreError> {
        let applied = async {
            match behalf {
                Behalf::Caller => self.store.apply(commits, None, now).await,
                Behalf::Loop(name) => self.store.apply(commits, Some(name), now).await,
                Behalf::Key(namespace, key) => {
                    Ok(vec![self.store.apply_once(namespace, key, commits.first(), now).await?])
                }
            }
        };
        self.tallies.asked(Query::Apply, applied).await
    }

    /// Sets the outcomes of a plan that was given to the store. Returns the requests to try again.
    fn handle_outcome(
        &self,
        plan: Plan,
        commit: &Commit,
        applied: Applied,
        outcomes: &mut [Option<ChangeOutcome>],
    ) -> Vec<Indexed> {
        if applied == Applied::Done {
            self.notify_committed(commit);
        }
        let mut again = Vec::new();
        for (index, request, changed) in plan.items {
            outcomes[index] = Some(match applied {
                Applied::Done => ChangeOutcome::Changed(changed),
                Applied::Stale if !request.is_exact() => {
                    again.push((index, request.without_snapshot()));
                    continue;
                }
                Applied::Stale => ChangeOutcome::Stale,
                Applied::Paused => ChangeOutcome::Paused,
                Applied::KeyTaken => ChangeOutcome::KeyTaken,
                Applied::Used(used) => ChangeOutcome::Used(used),
                Applied::Unfunded(short) => ChangeOutcome::Unfunded(short),
            });
        }
        again
    }
}
