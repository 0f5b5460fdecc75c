//! A second, much simpler account of a task's life, walked beside the real one: wherever they differ, one is wrong.
//!
//! The reference knows one policy (fixed delay, no jitter), keeps plain numbers and has no events.

use comeback_core::transition::{self, Actor};
use comeback_core::*;
use comeback_core::{Task, decide};
use proptest::prelude::*;
use proptest_state_machine::{ReferenceStateMachine, StateMachineTest, prop_state_machine};
use serde_json::json;

use crate::common::*;

const MAX_RETRIES: u32 = 2;
const MAX_LOST: u32 = 1;
const MAX_THROTTLES: u32 = 1;
const MAX_SNOOZES: u32 = 1;
const DELAY: u64 = 10_000;
const LEASE: u64 = 60_000;
const DEADLINE: u64 = 400_000;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Where {
    Ready,
    Held { lease: u32, until: u64 },
    RetryAt(u64),
    Over(State),
}

#[derive(Clone, Debug)]
struct Reference {
    place: Where,
    paused: bool,
    attempt: u32,
    lost: u32,
    throttled: u32,
    snoozed: u32,
    cycle: u32,
    runs: u32,
    leases: u32,
    now: u64,
    deadline: u64,
}

#[derive(Clone, Debug)]
enum Verb {
    Pass(u64),
    Lease,
    Succeed { lease: u32 },
    Fail { lease: u32 },
    FailFinally { lease: u32 },
    Throttle { lease: u32, after: u64 },
    Snooze { lease: u32, delay: u64 },
    Release { lease: u32 },
    Reap,
    Promote,
    Expire,
    Pause,
    Resume,
    Cancel,
    Retry,
    Move { to: u64 },
}

impl Reference {
    fn speaks(&self, number: u32) -> bool {
        matches!(self.place, Where::Held { lease, until } if lease == number && self.now < until)
    }

    fn again(&mut self, delay: u64) -> bool {
        let due = self.now + delay;
        if due >= self.deadline {
            self.over(State::Dead);
            return false;
        }
        self.place = Where::RetryAt(due);
        true
    }

    fn over(&mut self, state: State) {
        self.place = Where::Over(state);
        self.paused = false;
    }

    fn new_cycle(&mut self) {
        self.cycle += 1;
        (self.attempt, self.lost, self.throttled, self.snoozed) = (0, 0, 0, 0);
        if self.deadline <= self.now {
            self.deadline += self.now;
        }
    }
}

impl ReferenceStateMachine for Reference {
    type State = Reference;
    type Transition = Verb;

    fn init_state() -> BoxedStrategy<Reference> {
        Just(Reference {
            place: Where::Ready,
            paused: false,
            attempt: 0,
            lost: 0,
            throttled: 0,
            snoozed: 0,
            cycle: 0,
            runs: 0,
            leases: 0,
            now: 0,
            deadline: DEADLINE,
        })
        .boxed()
    }

    fn transitions(state: &Reference) -> BoxedStrategy<Verb> {
        let lease = prop_oneof![9 => Just(state.leases), 1 => 0..5_u32];
        prop_oneof![
            4 => prop::sample::select(vec![1_u64, DELAY, DELAY - 1, LEASE, 90_000]).prop_map(Verb::Pass),
            8 => Just(Verb::Lease),
            2 => lease.clone().prop_map(|lease| Verb::Succeed { lease }),
            8 => lease.clone().prop_map(|lease| Verb::Fail { lease }),
            1 => lease.clone().prop_map(|lease| Verb::FailFinally { lease }),
            2 => (lease.clone(), 0..50_000_u64).prop_map(|(lease, after)| Verb::Throttle { lease, after }),
            2 => (lease.clone(), 0..50_000_u64).prop_map(|(lease, delay)| Verb::Snooze { lease, delay }),
            1 => lease.prop_map(|lease| Verb::Release { lease }),
            2 => Just(Verb::Reap),
            8 => Just(Verb::Promote),
            1 => Just(Verb::Expire),
            1 => Just(Verb::Pause),
            2 => Just(Verb::Resume),
            1 => Just(Verb::Cancel),
            1 => Just(Verb::Retry),
            1 => (0..200_000_u64).prop_map(|to| Verb::Move { to }),
        ]
        .boxed()
    }

    fn apply(mut it: Reference, verb: &Verb) -> Reference {
        match verb {
            Verb::Pass(ms) => it.now += ms,
            Verb::Lease if it.place == Where::Ready && !it.paused && it.now < it.deadline => {
                it.leases += 1;
                it.runs += 1;
                it.place = Where::Held { lease: it.leases, until: it.now + LEASE };
            }
            Verb::Succeed { lease } if it.speaks(*lease) => it.over(State::Succeeded),
            Verb::FailFinally { lease } if it.speaks(*lease) => it.over(State::Failed),
            Verb::Fail { lease } if it.speaks(*lease) => {
                if it.attempt == MAX_RETRIES {
                    it.over(State::Dead);
                } else if it.again(DELAY) {
                    it.attempt += 1;
                }
            }
            Verb::Throttle { lease, after } if it.speaks(*lease) => {
                if it.throttled == MAX_THROTTLES {
                    it.over(State::Dead);
                } else if it.again(*after) {
                    it.throttled += 1;
                }
            }
            Verb::Snooze { lease, delay } if it.speaks(*lease) => {
                if it.snoozed == MAX_SNOOZES {
                    it.over(State::Dead);
                } else {
                    it.snoozed += 1;
                    it.place = Where::RetryAt(it.now + delay);
                }
            }
            Verb::Release { lease } if it.speaks(*lease) => it.place = Where::Ready,
            Verb::Reap => {
                if let Where::Held { until, .. } = it.place
                    && until <= it.now
                {
                    it.lost += 1;
                    if it.lost > MAX_LOST {
                        it.over(State::Dead);
                    } else {
                        it.again(DELAY);
                    }
                }
            }
            Verb::Promote => {
                if let Where::RetryAt(due) = it.place
                    && due <= it.now
                    && it.now < it.deadline
                    && !it.paused
                {
                    it.place = Where::Ready;
                }
            }
            Verb::Expire => {
                let waits = matches!(it.place, Where::Ready | Where::RetryAt(_));
                if waits && !it.paused && it.deadline <= it.now {
                    it.over(State::Dead);
                }
            }
            Verb::Pause if !matches!(it.place, Where::Over(_)) => it.paused = true,
            Verb::Resume if it.paused => {
                if it.deadline <= it.now && !matches!(it.place, Where::Held { .. }) {
                    it.over(State::Dead);
                } else {
                    it.paused = false;
                }
            }
            Verb::Cancel if !matches!(it.place, Where::Over(_)) => it.over(State::Canceled),
            Verb::Retry => {
                let stuck = matches!(it.place, Where::Held { until, .. } if until <= it.now);
                let ended = matches!(it.place, Where::Over(State::Failed | State::Dead));
                let waits = matches!(it.place, Where::RetryAt(_));
                if !it.paused && (stuck || ended || waits) {
                    it.new_cycle();
                    it.place = Where::Ready;
                }
            }
            Verb::Move { to } if !it.paused && matches!(it.place, Where::Ready | Where::RetryAt(_)) => {
                it.place = Where::RetryAt((*to).max(it.now));
            }
            _ => {}
        }
        it
    }
}

struct Real {
    snapshot: Snapshot,
}

impl Real {
    fn take(&mut self, change: Result<Transition, Rejection>) {
        if let Ok(change) = change {
            assert_eq!(change.after().broken_invariant(), None);
            self.snapshot.task = change.into_parts().0;
        }
    }

    fn end(&mut self, reporter: Reporter, end: End, now: Timestamp) {
        let decided = decide::decide(&self.snapshot, &Outcome { reporter, end }, now);
        self.take(decided);
    }
}

impl StateMachineTest for Real {
    type SystemUnderTest = Real;
    type Reference = Reference;

    fn init_test(_: &Reference) -> Real {
        let policy = native(json!({
            "strategy": "fixed", "delay_ms": DELAY, "max_retries": MAX_RETRIES, "max_lost": MAX_LOST,
            "max_throttles": MAX_THROTTLES, "max_snoozes": MAX_SNOOZES, "max_retry_after": "365d",
        }));
        let mut snapshot = pending(Some(policy));
        snapshot.task.expires_at = Some(T0 + Millis(DEADLINE));
        Real { snapshot }
    }

    fn apply(mut real: Real, reference: &Reference, verb: Verb) -> Real {
        let now = T0 + Millis(reference.now);
        let act = Actor::default();
        let task: Task = real.snapshot.task.clone();
        match verb {
            Verb::Pass(_) => {}
            Verb::Lease => {
                if let Ok(step) = transition::lease(&task, "w", Millis(LEASE), now) {
                    real.snapshot.task = step.after;
                }
            }
            Verb::Succeed { lease } => real.end(Reporter::Lease(lease), End::Succeeded { result: None }, now),
            Verb::Fail { lease } => real.end(Reporter::Lease(lease), End::Failed(error("x")), now),
            Verb::FailFinally { lease } => real.end(Reporter::Lease(lease), End::Failed(class(Class::Final)), now),
            Verb::Throttle { lease, after } => {
                let retry_after = Some(RetryAfter::Span(Millis(after)));
                real.end(
                    Reporter::Lease(lease),
                    End::Failed(Failure { retry_after, ..class(Class::RateLimited) }),
                    now,
                );
            }
            Verb::Snooze { lease, delay } => {
                real.end(Reporter::Lease(lease), End::Snoozed { delay: Millis(delay) }, now)
            }
            Verb::Release { lease } => real.end(Reporter::Lease(lease), End::Released, now),
            Verb::Reap => {
                let expired = task.lease.as_ref().and_then(|lease| lease.expires_at).is_some_and(|at| at <= now);
                if expired {
                    real.end(Reporter::Server, End::Lost(Trigger::LeaseExpired), now);
                }
            }
            Verb::Promote => {
                if let Ok(step) = transition::promote(&task, now) {
                    real.snapshot.task = step.after;
                }
            }
            Verb::Expire => real.take(transition::expire(&task, false, now)),
            Verb::Pause => real.take(transition::pause(&task, &act, now)),
            Verb::Resume => real.take(transition::resume(&task, &act, now)),
            Verb::Cancel => real.take(transition::cancel(&task, Reason::Canceled, &act, now)),
            Verb::Retry => real.take(transition::manual_retry(&task, false, &act, now)),
            Verb::Move { to } => real.take(transition::reschedule(&task, T0 + Millis(to), &act, now)),
        }
        real
    }

    fn check_invariants(real: &Real, reference: &Reference) {
        let task = &real.snapshot.task;
        let inner = match reference.place {
            Where::Ready => State::Pending,
            Where::Held { .. } => State::Running,
            Where::RetryAt(_) => State::RetryPending,
            Where::Over(state) => state,
        };
        let state = if reference.paused { State::Paused } else { inner };
        assert_eq!(task.state, state);
        assert_eq!(task.paused_from, reference.paused.then_some(inner));
        let due = match reference.place {
            Where::RetryAt(at) => Some(T0 + Millis(at)),
            _ => None,
        };
        assert_eq!(task.next_retry_at, due);
        let counters = Counters {
            attempt: reference.attempt,
            lost: reference.lost,
            throttled: reference.throttled,
            snoozed: reference.snoozed,
        };
        assert_eq!(task.counters, counters);
        assert_eq!((task.cycle, task.run, task.lease_number), (reference.cycle, reference.runs, reference.leases));
    }
}

prop_state_machine! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]

    #[test]
    fn the_real_task_walks_with_its_reference(sequential 1..60 => Real);
}
