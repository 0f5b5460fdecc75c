//! The storm in virtual time: a service that does a hundred calls a second and works on those whose callers have left, seventy
//! tasks a second that call it, and trouble. `make storm` plays the same with a real server; here it is played often, with trouble
//! that lasts longer and shorter, and what is asked of the dependency is what people write: `{}`.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde_json::json;

use super::{Ended, How, Phase, Seen, Settings, Standing, View};
use crate::time::{Millis, Timestamp};

const TICK: u64 = 10;
const OFFERED: u64 = 70;
const CAPACITY: f64 = 100.0;
const TIMEOUT: u64 = 1_000;
const CALM: u64 = 20_000;
/// How long what is seen is gathered while nothing fails.
const GATHER: u64 = 100;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Trouble {
    /// Calls are taken and not answered.
    Silence,
    /// Every other answer is an error.
    Errors,
    /// It does so many a second.
    Slow(f64),
}

fn at(ms: u64) -> Timestamp {
    Timestamp(1_800_000_000_000) + Millis(ms)
}

/// Between 0 and 1, the same for the same number.
fn chance(number: u64) -> f64 {
    (number.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 11) as f64 / (1_u64 << 53) as f64
}

#[derive(Default)]
struct World {
    now: u64,
    settings: Settings,
    standing: Standing,
    /// Tasks that may start, the oldest first, and those that wait for their time.
    ready: BTreeSet<u64>,
    waiting: BTreeSet<(u64, u64)>,
    attempts: BTreeMap<u64, u32>,
    offered: u64,
    /// Calls whose callers wait, by number: the task, and when it began.
    calls: BTreeMap<u64, (u64, u64)>,
    called: u64,
    /// Calls as the service has them.
    queue: VecDeque<u64>,
    credit: f64,
    seen: Vec<Ended>,
    told_at: u64,
    done: u64,
    /// How often somebody asks; who waits to be told asks all the time.
    polls: u64,
}

impl World {
    fn new() -> World {
        let settings = Settings::parse(&json!({"gate": {}, "breaker": {}, "concurrency": {}})).expect("good settings");
        World { settings, polls: TICK, ..World::default() }
    }

    fn open(&self) -> u64 {
        (self.ready.len() + self.waiting.len() + self.calls.len()) as u64
    }

    fn tick(&mut self, trouble: Option<Trouble>) {
        self.now += TICK;
        while self.offered < self.now * OFFERED / 1_000 {
            self.ready.insert(self.offered);
            self.offered += 1;
        }
        while let Some((due, task)) = self.waiting.first().copied().filter(|(due, _)| *due <= self.now) {
            self.waiting.remove(&(due, task));
            self.ready.insert(task);
        }
        self.serve(trouble);
        while let Some((call, (_, began))) = self.calls.first_key_value().map(|(call, it)| (*call, *it))
            && began + TIMEOUT <= self.now
        {
            self.end(call, How::Failed);
        }
        self.tell();
        if self.ready.is_empty() {
            self.standing.nobody_waits(&self.settings, at(self.now));
        } else if self.now.is_multiple_of(self.polls) {
            self.start();
        }
    }

    fn serve(&mut self, trouble: Option<Trouble>) {
        let capacity = match trouble {
            Some(Trouble::Silence) => 0.0,
            Some(Trouble::Slow(capacity)) => capacity,
            Some(Trouble::Errors) | None => CAPACITY,
        };
        self.credit += capacity * TICK as f64 / 1_000.0;
        while self.credit >= 1.0
            && let Some(call) = self.queue.pop_front()
        {
            self.credit -= 1.0;
            let fails = trouble == Some(Trouble::Errors) && chance(call) < 0.5;
            self.end(call, if fails { How::Failed } else { How::Answered });
        }
        if self.queue.is_empty() {
            self.credit = self.credit.min(1.0);
        }
    }

    /// A worker that has left does not hear it.
    fn end(&mut self, call: u64, how: How) {
        let Some((task, began)) = self.calls.remove(&call) else { return };
        let attempts = self.attempts.entry(task).or_default();
        *attempts += 1;
        let tried = *attempts;
        self.seen.push(Ended {
            started_at: at(began),
            at: at(self.now),
            how,
            is_retry: tried > 1,
            not_before: None,
            allowed: Some(Millis(TIMEOUT)),
        });
        if how == How::Answered {
            self.attempts.remove(&task);
            self.done += 1;
            return;
        }
        let longest = 1_000.0 * 2_f64.powi((tried.cast_signed() - 1).min(6));
        let due = at(self.now) + Millis::from_f64(longest.min(60_000.0) * chance(task * 31 + u64::from(tried)));
        let (settings, standing) = (self.settings.clone(), self.standing.clone());
        let view = View { name: "psp".into(), settings, standing, place: chance(task) };
        let due = view.hold(due).map_or(due, |hold| hold.until);
        self.waiting.insert((due.since(at(0)).0, task));
    }

    /// A change is written at once, the rest now and then, as the engine does it.
    fn tell(&mut self) {
        let is_quiet = self.standing.phase == Phase::Closed && self.seen.iter().all(|it| it.how == How::Answered);
        if self.seen.is_empty() || (is_quiet && self.now < self.told_at + GATHER) {
            return;
        }
        let seen = Seen { ended: std::mem::take(&mut self.seen) };
        self.standing.observe(&self.settings, &seen, at(self.now));
        self.told_at = self.now;
    }

    fn start(&mut self) {
        let allowance = self.standing.allowance(&self.settings, at(self.now));
        let room = allowance.running.map_or(u32::MAX, |most| most.saturating_sub(self.calls.len() as u32));
        let n = room.min(allowance.starts.unwrap_or(u32::MAX)).min(self.ready.len() as u32);
        if n == 0 {
            return;
        }
        for _ in 0..n {
            let Some(task) = self.ready.pop_first() else { break };
            self.calls.insert(self.called, (task, self.now));
            self.queue.push_back(self.called);
            self.called += 1;
        }
        self.standing.take(&self.settings, n, at(self.now));
    }
}

/// The outcome of an outage.
#[derive(Debug)]
struct Outcome {
    calls_in_trouble: f64,
    done_in_trouble: f64,
    /// Seconds until it did what is offered, and went on doing it.
    back_after: u64,
    calls_per_done: f64,
    /// How long the backlog took beside the least it could have taken.
    drained: f64,
}

fn play(trouble: Trouble, lasts: u64, polls: u64) -> Outcome {
    let mut world = World { polls, ..World::new() };
    let (over, seconds) = (CALM + lasts, |ms: u64| ms as f64 / 1_000.0);
    while world.now < CALM {
        world.tick(None);
    }
    let (called, done) = (world.called, world.done);
    while world.now < over {
        world.tick(Some(trouble));
    }
    let offered = OFFERED as f64 * seconds(lasts);
    let (calls_in_trouble, done_in_trouble) =
        ((world.called - called) as f64 / offered, (world.done - done) as f64 / offered);
    let least = (world.open() as f64 / (CAPACITY - OFFERED as f64)).max(1.0);
    let (called, done) = (world.called, world.done);
    let (mut by_second, mut drained) = (vec![done], None);
    let watched = 300_000.max((least * 1_600.0) as u64);
    let mut after_five_minutes = None;
    while world.now < over + watched {
        world.tick(None);
        if (world.now - over).is_multiple_of(1_000) {
            by_second.push(world.done);
        }
        if world.now == over + 300_000 {
            after_five_minutes = Some((world.called - called) as f64 / (world.done - done).max(1) as f64);
        }
        // One second's worth is what there is in calm times too, and more.
        if drained.is_none() && world.open() <= OFFERED {
            drained = Some(seconds(world.now - over));
        }
    }
    let enough = 0.95 * OFFERED as f64;
    let is_back = |from: &usize| {
        let good = |to: usize| (by_second[to] - by_second[*from]) as f64 / (to - from) as f64;
        good(from + 5) >= enough && good(by_second.len() - 1) >= enough
    };
    let back_after = (0..by_second.len() - 5).find(is_back).unwrap_or(usize::MAX) as u64;
    Outcome {
        calls_in_trouble,
        done_in_trouble,
        back_after,
        calls_per_done: after_five_minutes.unwrap_or(f64::MAX),
        drained: drained.unwrap_or(f64::MAX) / least,
    }
}

/// The targets for the time after the storm.
fn recovers(trouble: Trouble, lasts: u64) -> Outcome {
    let it = play(trouble, lasts, TICK);
    assert!(it.back_after <= 30, "{trouble:?} for {lasts} ms: {it:?}");
    assert!(it.calls_per_done <= 1.2, "{trouble:?} for {lasts} ms: {it:?}");
    it
}

#[test]
fn an_outage_is_left_alone_and_left_behind() {
    for lasts in [20_000, 61_500, 150_000] {
        let it = recovers(Trouble::Silence, lasts);
        assert!(it.calls_in_trouble <= 0.10, "{lasts} ms: {it:?}");
        if lasts >= 60_000 {
            assert!(it.drained <= 1.5, "{lasts} ms: {it:?}");
        }
    }
}

#[test]
fn a_service_that_fails_every_other_call_is_left_behind_too() {
    for lasts in [30_000, 120_000] {
        let it = recovers(Trouble::Errors, lasts);
        assert!(it.drained <= 1.5, "{lasts} ms: {it:?}");
    }
}

/// While it is slow it does what it can: most of it is for callers who still wait.
#[test]
fn a_service_that_became_slow_goes_on_as_fast_as_it_can() {
    for lasts in [30_000, 120_000] {
        let it = recovers(Trouble::Slow(40.0), lasts);
        assert!(it.drained <= 1.5, "{lasts} ms: {it:?}");
        assert!(it.done_in_trouble >= 0.8 * 40.0 / OFFERED as f64, "{lasts} ms: {it:?}");
    }
}

/// Ten workers that ask each second, each at a moment of its own: no storm comes of it.
#[test]
fn those_who_ask_seldom_recover_too() {
    for (trouble, lasts) in [(Trouble::Silence, 61_500), (Trouble::Errors, 30_000), (Trouble::Slow(40.0), 30_000)] {
        let it = play(trouble, lasts, 100);
        assert!(it.back_after <= 30 && it.calls_per_done <= 1.2, "{trouble:?} for {lasts} ms: {it:?}");
    }
}
