//! Tasks that stand for an execution when a person repairs it.
//!
//! A task may stand for an execution: a step that calls a workflow, or the lone task of an execution with a policy of its own. When
//! the execution fails, that task waits for its retry, which would begin everything anew. A repair by hand comes before that: whoever
//! retries a task in the execution, or the execution itself, has the task that stands for it take it up again, in the same commit, and
//! so on upwards. Nothing that was done is done twice.

use crate::execution::ExecutionState;
use crate::task::{State, Task};

/// The effect on the task that stands for an execution which is over and is to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stands {
    /// It takes it up again (T30); a retry that was to come is superseded.
    RetryOptions,
    /// It has not heard yet how the execution ended, and hears of it first.
    Unaware,
    /// There is none any more, and nobody else waits for it: the execution goes on by itself.
    Nobody,
    /// Another execution took its place, or nothing leads back to it: the verb of a rejection.
    Refuses(&'static str),
}

/// `run` is the run of the task that the execution was. A task that is not remembered any more is none.
pub fn stands(task: Option<&Task>, run: u32) -> Stands {
    let Some(task) = task else { return Stands::Nobody };
    if task.run != run {
        return Stands::Refuses(REPLACED);
    }
    match task.paused_from.unwrap_or(task.state) {
        State::RetryPending | State::Pending | State::Failed | State::Dead => Stands::RetryOptions,
        State::Running if task.lease.is_some() => Stands::Unaware,
        // Its lease is gone, and it would come back as pending.
        State::Running => Stands::RetryOptions,
        State::Claimed => Stands::Refuses(REPLACED),
        State::Waiting => Stands::Refuses("retried: the step that stands for the execution waits for others first"),
        State::Canceled if task.execution.is_none() => Stands::Nobody,
        State::Canceled => Stands::Refuses("retried: the step that stood for the execution was canceled"),
        State::Succeeded => Stands::Refuses("retried: the task that stood for the execution has succeeded"),
        State::Skipped | State::Paused => Stands::Refuses("retried: the step that stood for the execution is over"),
    }
}

/// Somebody or a policy was quicker.
pub const REPLACED: &str = "retried: another execution was begun in its place";

/// The rejection while the loop above it is ending.
pub const GATHERED: &str = "retried: the loop above it is just coming to its end; ask again";

/// Whether the execution that a step is in can go on; one that ended otherwise than by failing stays as it is.
pub fn above(state: ExecutionState) -> Result<(), &'static str> {
    match state {
        ExecutionState::Canceled => Err("retried: the execution above was canceled"),
        ExecutionState::Succeeded => {
            Err("retried: the execution above has succeeded, since the failure was dealt with")
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use uuid::Uuid;

    use super::*;
    use crate::id::{ExecutionId, TaskId};
    use crate::task::{Executor, Lane, Lease};
    use crate::time::{Millis, Timestamp};
    use crate::transition::{Actor, take_up};

    fn standing(state: State) -> Task {
        let lane = Lane { executor: Executor::Flow, ..Lane::default() };
        let mut task = Task::new(TaskId(Uuid::from_u128(1)), Arc::new(lane), Timestamp(0));
        (task.state, task.run, task.lease_number) = (state, 2, 2);
        task.counters.attempt = 1;
        if state.is_active() {
            task.lease = Some(Lease { number: 2, worker: "w".into(), acquired_at: Timestamp(0), expires_at: None });
        }
        task.next_retry_at = (state == State::RetryPending).then_some(Timestamp(9));
        task.ended_at = state.is_terminal().then_some(Timestamp(1));
        task.started_at = task.ended_at;
        task
    }

    fn paused(from: State) -> Task {
        Task { state: State::Paused, paused_from: Some(from), ..standing(from) }
    }

    #[test]
    fn who_waits_for_a_retry_or_gave_up_stands_for_it_again() {
        let states = [State::RetryPending, State::Pending, State::Failed, State::Dead];
        for state in State::ALL {
            let stands_again = stands(Some(&standing(*state)), 2) == Stands::RetryOptions;
            assert_eq!(stands_again, states.contains(state), "{state}");
        }
        assert_eq!(stands(Some(&paused(State::RetryPending)), 2), Stands::RetryOptions);
        assert_eq!(stands(Some(&standing(State::Running)), 2), Stands::Unaware);
        assert_eq!(stands(Some(&paused(State::Running)), 2), Stands::Unaware);
        assert_eq!(stands(None, 2), Stands::Nobody);
    }

    #[test]
    fn an_execution_that_another_one_followed_is_not_taken_up() {
        for state in State::ALL {
            assert!(matches!(stands(Some(&standing(*state)), 1), Stands::Refuses(_)), "{state}");
        }
        assert!(matches!(stands(Some(&standing(State::Claimed)), 2), Stands::Refuses(_)), "the next one begins");
        assert_eq!(stands(Some(&standing(State::Canceled)), 2), Stands::Nobody, "nobody waits for it");
        let step = Task { execution: Some(ExecutionId(Uuid::from_u128(5))), ..standing(State::Canceled) };
        assert!(matches!(stands(Some(&step), 2), Stands::Refuses(_)), "its execution does");
    }

    /// A task that stands again can be taken up, and the retry that was to come is gone.
    #[test]
    fn taking_up_supersedes_the_retry_and_begins_a_cycle() {
        let execution = ExecutionId(Uuid::from_u128(7));
        let tasks = State::ALL.iter().flat_map(|state| [standing(*state), paused(*state)]);
        let worker: Arc<str> = "one".into();
        for task in tasks.filter(|task| stands(Some(task), 2) == Stands::RetryOptions) {
            if task.state == State::Paused && task.paused_from.is_some_and(State::is_terminal) {
                continue;
            }
            for to_begin in [None, Some(Millis(60_000))] {
                let change =
                    take_up(&task, execution, to_begin, &worker, &Actor::default(), Timestamp(5)).expect("it may");
                let after = change.after();
                assert_eq!((after.broken_invariant(), after.next_retry_at), (None, None), "{task:?}");
                assert_eq!((after.cycle, after.counters.attempt), (1, 0));
                assert!(after.paused_from.unwrap_or(after.state).is_active());
                assert_eq!(after.run, if to_begin.is_some() { 2 } else { 3 });
                assert_eq!(after.started_at.is_none(), to_begin.is_some(), "nothing was begun yet");
                assert_eq!(after.state == State::Paused, task.state == State::Paused && to_begin.is_none());
                assert!(change.record().data.as_ref().is_some_and(|data| data["mended"] == execution.to_string()));
            }
        }
    }
}
