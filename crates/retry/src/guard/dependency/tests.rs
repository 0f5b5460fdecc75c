use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::guard::GuardView;

const T0: Timestamp = Timestamp(1_800_000_000_000);

fn at(ms: u64) -> Timestamp {
    T0 + Millis(ms)
}

fn settings(value: Value) -> Settings {
    Settings::parse(&value).expect("good settings")
}

fn ended(how: How, started: u64, took: u64) -> Ended {
    Ended { started_at: at(started), at: at(started + took), how, is_retry: false, not_before: None, allowed: None }
}

fn many(how: How, n: usize, started: u64) -> Seen {
    Seen { ended: vec![ended(how, started, 10); n] }
}

fn view(settings: &Settings, standing: &Standing, place: f64) -> View {
    View { name: "psp".into(), settings: settings.clone(), standing: standing.clone(), place }
}

#[test]
fn what_is_wrong_is_named_by_its_path() {
    let bad = [
        (json!({"breaker": {"ratio": 2}}), "breaker.ratio"),
        (json!({"breaker": {"failures": 0}}), "breaker.failures"),
        (json!({"breaker": {"open": "1m", "max_open": "1s"}}), "breaker.max_open"),
        (json!({"breaker": {"colour": 1}}), "breaker.colour"),
        (json!({"breaker": 7}), "breaker"),
        (json!({"gate": {"max": "0s"}}), "gate.max"),
        (json!({"budget": {"percent": -1}}), "budget.percent"),
        (json!({"concurrency": {"min": 9, "max": 3}}), "concurrency.max"),
        (json!({"calendar": {"holidays": ["2026-13-01"]}}), "calendar.holidays[0]"),
        (json!({"calendar": {"time_zone": "Mars/Base"}}), "calendar.time_zone"),
        (json!({"calendar": {"windows": [{"from": "00:00", "to": "00:00"}]}}), "calendar.windows"),
        (json!({"braker": {}}), "braker"),
        (json!([]), ""),
    ];
    for (value, path) in bad {
        let faults = Settings::parse(&value).expect_err(path);
        assert!(faults.faults.iter().any(|fault| fault.path == path), "{value}: {faults:?}");
    }
}

/// A stored state is read, and not begun anew.
#[test]
fn a_calendar_closes_for_a_year_at_most() {
    let until =
        |to: &str| settings(json!({"calendar": {"windows": [{"from": "2026-01-01T00:00:00Z", "to": to}]}})).check();
    assert!(until("2027-01-02T00:00:00Z").is_empty());
    assert_eq!(until("2999-01-01T00:00:00Z").faults[0].path, "calendar.windows[0].to");
}

#[test]
fn settings_are_read_as_they_were_written() {
    let all = settings(json!({
        "gate": {"spread": "1500ms"}, "breaker": {"window": "1m"}, "budget": {}, "concurrency": {"max": 7},
        "calendar": {"windows": [{"from": "22:00", "to": "06:00", "tz": "Europe/Berlin"}], "holidays": ["2026-12-25"], "time_zone": "Europe/Berlin"},
    }));
    assert_eq!(settings(all.to_json()), all);
    assert!(settings(json!({})).is_empty());
}

/// A floor and a ratio, both: few failures open nothing, and many among more successes open nothing.
#[test]
fn it_opens_at_a_floor_and_a_ratio() {
    let settings = settings(json!({"breaker": {"failures": 10, "ratio": 0.5}}));
    let after = |good: usize, bad: usize| {
        let mut standing = Standing::default();
        standing.observe(&settings, &many(How::Failed, bad / 2, 0), at(100));
        standing.observe(&settings, &many(How::Answered, good, 0), at(150));
        standing.observe(&settings, &many(How::Failed, bad - bad / 2, 0), at(200));
        standing.phase.word()
    };
    assert_eq!(after(0, 9), "closed");
    assert_eq!(after(0, 10), "open");
    assert_eq!(after(10, 10), "open");
    assert_eq!(after(11, 10), "closed");
}

#[test]
fn what_failed_long_ago_no_longer_counts() {
    let settings = settings(json!({"breaker": {"failures": 10, "window": "10s"}}));
    let mut standing = Standing::default();
    standing.observe(&settings, &many(How::Failed, 6, 0), at(0));
    standing.observe(&settings, &many(How::Failed, 6, 11_000), at(11_000));
    assert_eq!(standing.phase.word(), "closed");
}

/// Open, one canary at its time, open for a quarter longer, one canary, waves of 2, 4, 8 …, closed.
#[test]
fn canaries_on_schedule_and_then_doubling_waves() {
    let settings =
        settings(json!({"breaker": {"open": "5s", "max_open": "15s", "canaries": 1, "first_wave": 2, "wave": "1s"}}));
    let mut standing = Standing::default();
    standing.observe(&settings, &many(How::Failed, 20, 0), at(0));
    assert_eq!(standing.allowance(&settings, at(4_999)).starts, Some(0));
    assert_eq!(
        standing.allowance(&settings, at(1)).words("psp").as_deref(),
        Some(format!("held by breaker psp until {}", at(5_000).to_rfc3339()).as_str())
    );
    assert_eq!(standing.allowance(&settings, at(5_000)).starts, Some(1));
    assert!(standing.take(&settings, 1, at(5_000)));
    assert_eq!(standing.phase.word(), "half_open");
    assert_eq!(standing.allowance(&settings, at(5_001)).starts, Some(0), "one canary is all");
    // A straggler from before says nothing of it.
    standing.observe(&settings, &many(How::Answered, 3, 0), at(5_100));
    assert_eq!(standing.phase.word(), "half_open");
    standing.observe(&settings, &many(How::Failed, 1, 5_000), at(5_200));
    assert_eq!(standing.allowance(&settings, at(11_449)).starts, Some(0), "a quarter longer this time");
    assert_eq!(standing.allowance(&settings, at(11_450)).starts, Some(1));
    standing.take(&settings, 1, at(11_450));
    standing.observe(&settings, &many(How::Answered, 1, 11_450), at(11_500));
    assert_eq!(standing.phase.word(), "recovering");
    let mut now = 11_500;
    for size in [2, 4, 8, 16] {
        let (mut started, begun) = (0, now);
        while now - begun < 1_000 {
            let starts = standing.allowance(&settings, at(now)).starts.expect("a number");
            assert!(starts <= 1, "they are spread out: {starts} at {now}");
            if starts > 0 {
                standing.take(&settings, starts, at(now));
                standing.observe(&settings, &many(How::Answered, starts as usize, now), at(now));
            }
            started += starts;
            now += 10;
        }
        assert_eq!(started, size, "twice as many");
    }
    now += 2_000;
    standing.advance(&settings, at(now));
    assert_eq!(standing.phase.word(), "recovering", "as long as somebody may wait");
    standing.nobody_waits(&settings, at(now + 1_000));
    assert_eq!(standing.phase, Phase::Closed, "nobody wanted the last one");
    assert_eq!(standing.allowance(&settings, at(now)), Allowance::ANY);
    let told: Vec<&str> = standing.told.iter().map(|it| it.what.word()).collect();
    assert_eq!(told, ["opened", "half_open", "opened", "half_open", "recovering", "closed"]);
}

/// The callers: how often they ask, how many there are, and for how many tasks each.
#[derive(Clone, Copy, Debug)]
struct Asks {
    every: u64,
    workers: u32,
    limit: u32,
    /// How long a run takes.
    takes: u64,
}

/// Plays a recovery with so many who wait: how many started in each wave, and when each started.
fn recovery(settings: &Settings, mut waiting: u32, asks: Asks) -> (Vec<u32>, Vec<u64>) {
    let mut standing = Standing::default();
    standing.observe(settings, &many(How::Failed, 20, 0), at(0));
    standing.take(settings, 1, at(10_000));
    standing.observe(settings, &many(How::Answered, 1, 10_000), at(10_000));
    let (mut waves, mut starts, mut under_way) = (Vec::new(), Vec::new(), Vec::new());
    let mut since = 0;
    while since < 10_000_000 {
        // The loop that looks after it, or somebody who asks.
        since = [100, asks.every].map(|span| since - since % span + span).into_iter().min().unwrap();
        let now = 10_000 + since;
        let (ended, still): (Vec<u64>, Vec<u64>) = under_way.into_iter().partition(|began| began + asks.takes <= now);
        under_way = still;
        if !ended.is_empty() {
            let ended = ended.into_iter().map(|began| ended_at(How::Answered, began, now)).collect();
            standing.observe(settings, &Seen { ended }, at(now));
        }
        if waiting == 0 {
            standing.nobody_waits(settings, at(now));
        }
        standing.advance(settings, at(now));
        if standing.phase.is_closed() {
            assert_eq!(waiting, 0, "{asks:?}: until nobody waits");
            return (waves, starts);
        }
        let polls = if since.is_multiple_of(asks.every) { asks.workers } else { 0 };
        for _ in 0..polls {
            standing.advance(settings, at(now));
            let Phase::Recovering { wave, .. } = standing.phase else { panic!("{asks:?}: {:?}", standing.phase) };
            waves.resize(waves.len().max(wave as usize + 1), 0);
            let n = standing.allowance(settings, at(now)).starts.unwrap_or(u32::MAX).min(asks.limit).min(waiting);
            standing.take(settings, n, at(now));
            (waiting, waves[wave as usize]) = (waiting - n, waves[wave as usize] + n);
            (0..n).for_each(|_| under_way.push(now));
            starts.resize(starts.len() + n as usize, now);
            if asks.takes == 0 && n > 0 {
                standing.observe(settings, &many_at(How::Answered, n as usize, now), at(now));
                under_way.clear();
            }
        }
    }
    panic!("{asks:?}: {waiting} still wait, {:?}", standing.phase)
}

fn ended_at(how: How, began: u64, now: u64) -> Ended {
    ended(how, began, now - began)
}

fn many_at(how: How, n: usize, now: u64) -> Seen {
    Seen { ended: vec![ended_at(how, now, now); n] }
}

/// A worker that asks each second, one that waits to be told, a hundred small ones: each of them sees 5, 10, 20, 40 and the rest.
#[test]
fn waves_double_until_nobody_waits_whoever_asks() {
    let settings = settings(json!({"breaker": {}}));
    let ask = |every, workers, limit, takes| Asks { every, workers, limit, takes };
    let table = [
        ("told at once", ask(10, 1, 1_000, 0)),
        ("told at once, slow answers", ask(10, 1, 1_000, 700)),
        ("four times a second", ask(250, 1, 100, 0)),
        ("each second", ask(1_000, 1, 100, 0)),
        ("each second, told of it with the next", ask(1_000, 1, 100, 1_000)),
        ("each second, in between", ask(1_000, 1, 100, 300)),
        ("every three seconds", ask(3_000, 1, 100, 0)),
        ("every half minute", ask(30_000, 1, 100, 10)),
        ("a hundred small ones each second", ask(1_000, 100, 1, 0)),
        ("a hundred small ones all the time", ask(10, 100, 1, 50)),
    ];
    for (name, asks) in table {
        let (waves, starts) = recovery(&settings, 99, asks);
        assert_eq!(waves[..5], [5, 10, 20, 40, 24], "{name}");
        if asks.every >= 1_000 {
            let mut asked: Vec<u64> = starts.clone();
            asked.dedup();
            assert_eq!(asked.len(), 5, "{name}: each time it asks it gets a wave");
        }
    }
}

#[test]
fn a_wave_that_fails_opens_it_again() {
    let settings = settings(json!({"breaker": {"first_wave": 8, "wave": "1s"}}));
    let mut standing = Standing::default();
    standing.observe(&settings, &many(How::Failed, 20, 0), at(0));
    standing.take(&settings, 1, at(5_000));
    standing.observe(&settings, &many(How::Answered, 1, 5_000), at(5_001));
    standing.take(&settings, 4, at(5_900));
    standing.observe(&settings, &many(How::Failed, 4, 5_900), at(5_950));
    assert_eq!(standing.phase.word(), "open");
    assert_eq!(standing.allowance(&settings, at(5_950 + 2_499)).starts, Some(0), "and for longer");
}

/// Good ends of before do not hide that nothing is good now: so many failures in a row are enough. One that answers begins the row anew,
/// and rows that take longer than the window say nothing.
#[test]
fn a_sudden_end_is_noticed_at_once() {
    let settings = settings(json!({"breaker": {"failures": 10, "window": "10s"}}));
    let busy = || {
        let mut standing = Standing::default();
        (0..10).for_each(|second| {
            standing.observe(&settings, &many(How::Answered, 70, second * 1_000), at(second * 1_000))
        });
        standing
    };
    let mut sudden = busy();
    sudden.observe(&settings, &many(How::Failed, 9, 9_100), at(9_200));
    assert_eq!(sudden.phase, Phase::Closed);
    sudden.observe(&settings, &many(How::Failed, 1, 9_100), at(9_300));
    assert_eq!(sudden.phase.word(), "open", "ten of seven hundred, but the last ten");
    let mut mixed = busy();
    for _ in 0..20 {
        mixed.observe(&settings, &many(How::Failed, 9, 9_100), at(9_200));
        mixed.observe(&settings, &many(How::Answered, 10, 9_100), at(9_200));
    }
    assert_eq!(mixed.phase, Phase::Closed);
    let mut slow = Standing::default();
    (0..20).for_each(|n| slow.observe(&settings, &many(How::Failed, 1, n * 2_000), at(n * 2_000)));
    assert_eq!(slow.phase, Phase::Closed, "five within ten seconds");
}

/// The longest wait is told by how long it has been away, not doubled by each canary.
#[test]
fn canaries_come_after_a_quarter_of_the_time_away() {
    let settings = settings(json!({"breaker": {"open": "2s", "max_open": "1m"}}));
    let mut standing = Standing::default();
    standing.observe(&settings, &many(How::Failed, 10, 0), at(0));
    let (mut now, mut waits) = (0, Vec::new());
    while now < 600_000 {
        let Phase::Open { until, .. } = standing.phase else { panic!("{:?}", standing.phase) };
        waits.push((now, until.since(at(now)).0));
        now = until.since(T0).0;
        standing.take(&settings, 1, until);
        standing.observe(&settings, &many(How::Failed, 1, now), until + Millis(10));
        now += 10;
    }
    for (away, wait) in waits {
        assert!(wait == 60_000 || (wait >= 2_000 && wait <= 2_100 + away / 4), "{wait} after {away}");
    }
}

/// A canary of which nothing is heard does not keep it closed for ever.
#[test]
fn canaries_that_are_lost_are_followed_by_others() {
    let settings = settings(json!({"breaker": {"open": "5s"}}));
    let mut standing = Standing::default();
    standing.observe(&settings, &many(How::Failed, 20, 0), at(0));
    standing.take(&settings, 1, at(5_000));
    assert_eq!(standing.allowance(&settings, at(9_999)).starts, Some(0));
    assert_eq!(standing.allowance(&settings, at(10_000)).starts, Some(1));
}

#[test]
fn people_have_the_last_word() {
    let settings = settings(json!({"breaker": {}}));
    let mut standing = Standing::default();
    standing.open_by_hand(None, "we move house", at(0));
    assert!(standing.allowance(&settings, at(86_400_000)).is_closed());
    standing.close_by_hand(Some(at(200_000)), "done", at(100_000));
    standing.observe(&settings, &many(How::Failed, 99, 100_001), at(110_000));
    assert_eq!(standing.allowance(&settings, at(110_000)), Allowance::ANY, "kept closed, whatever happens");
    standing.observe(&settings, &many(How::Failed, 99, 200_001), at(200_100));
    assert_eq!(standing.phase.word(), "open", "and no longer than that");
    standing.healthy(&settings, "they said so", at(200_200));
    assert_eq!(standing.allowance(&settings, at(200_200)).starts, Some(1), "in waves");
    let none = Settings::default();
    standing.open_by_hand(Some(at(300_000)), "by hand", at(210_000));
    assert!(standing.allowance(&none, at(250_000)).is_closed(), "without a breaker too");
    assert_eq!(standing.allowance(&none, at(300_000)), Allowance::ANY);
}

/// Runs that were under way when somebody closed it do not open it again.
#[test]
fn what_began_before_says_nothing() {
    let settings = settings(json!({"breaker": {"failures": 5}}));
    let mut standing = Standing::default();
    standing.observe(&settings, &many(How::Failed, 5, 0), at(100));
    standing.close_by_hand(None, "closed", at(1_000));
    standing.observe(&settings, &many(How::Failed, 9, 900), at(1_100));
    assert_eq!(standing.phase, Phase::Closed);
    standing.observe(&settings, &many(How::Failed, 5, 1_001), at(1_200));
    assert_eq!(standing.phase.word(), "open");
}

/// One Retry-After holds every sibling, and they come back spread out, each at a place of its own.
#[test]
fn a_gate_holds_everybody_and_lets_them_back_spread_out() {
    let settings = settings(json!({"gate": {"spread": "10s"}}));
    let mut standing = Standing::default();
    let told = Ended { not_before: Some(at(30_000)), ..ended(How::Throttled, 0, 10) };
    standing.observe(&settings, &Seen { ended: vec![told] }, at(10));
    assert!(standing.allowance(&settings, at(29_999)).is_closed());
    let until = |place: f64| view(&settings, &standing, place).hold(at(1_000)).map(|hold| (hold.until, hold.reason));
    assert_eq!(until(0.0), Some((at(30_000), "gate psp".into())));
    assert_eq!(until(0.5), Some((at(35_000), "gate psp".into())));
    assert_eq!(view(&settings, &standing, 0.5).hold(at(30_000)), None, "its own time is later");
    let mut by = Vec::new();
    for ms in (30_000..40_000).step_by(100) {
        let starts = standing.allowance(&settings, at(ms)).starts.expect("counted");
        standing.take(&settings, starts, at(ms));
        by.push(starts);
    }
    assert_eq!(by[0], 1, "not all at once");
    let (early, late): (u32, u32) = (by[..50].iter().sum(), by[50..].iter().sum());
    assert!(early < 40 && late > 300, "{early} and then {late}");
    assert_eq!(standing.allowance(&settings, at(40_000)), Allowance::ANY);
}

#[test]
fn a_gate_believes_no_more_than_it_is_told_to() {
    let settings = settings(json!({"gate": {"max": "1m"}}));
    let mut standing = Standing::default();
    let told = Ended { not_before: Some(at(86_400_000)), ..ended(How::Throttled, 0, 10) };
    standing.observe(&settings, &Seen { ended: vec![told] }, at(0));
    assert_eq!(standing.gate.until, Some(at(60_000)));
}

#[test]
fn concurrency_shrinks_on_errors_and_on_slow_answers_and_grows_back() {
    let settings = settings(json!({"concurrency": {"min": 2, "max": 64, "target": "100ms"}}));
    let mut standing = Standing::default();
    let running = |standing: &Standing, ms: u64| standing.allowance(&settings, at(ms)).running.expect("a limit");
    assert_eq!(running(&standing, 0), 64);
    standing.observe(&settings, &many(How::Failed, 10, 0), at(10));
    assert_eq!(running(&standing, 10), 44);
    let slow = Seen { ended: vec![ended(How::Answered, 1_000, 500); 10] };
    standing.observe(&settings, &slow, at(1_500));
    assert_eq!(running(&standing, 1_500), 12, "only ten came back meanwhile");
    standing.observe(&settings, &slow, at(1_501));
    assert_eq!(running(&standing, 1_501), 12, "they tell of the time before the cut");
    for step in 0_u64..2_000 {
        standing.observe(&settings, &many(How::Answered, 2, 2_000 + step * 10), at(2_010 + step * 10));
    }
    assert_eq!(running(&standing, 30_000), 64);
    for step in 0_u64..100 {
        standing.observe(&settings, &many(How::Failed, 2, 40_000 + step * 1_000), at(40_010 + step * 1_000));
    }
    assert_eq!(running(&standing, 200_000), 2);
}

/// Where no target is given, half of the time that a run may take is slow; who may take any time is never slow.
#[test]
fn slow_is_half_of_what_a_run_may_take() {
    let settings = settings(json!({"concurrency": {"max": 64}}));
    let after = |allowed: Option<Millis>, took: u64| {
        let mut standing = Standing::default();
        let seen = Seen { ended: vec![Ended { allowed, ..ended(How::Answered, 0, took) }; 50] };
        standing.observe(&settings, &seen, at(took));
        standing.allowance(&settings, at(took)).running.expect("a limit")
    };
    assert_eq!(after(Some(Millis(1_000)), 500), 64);
    assert_eq!(after(Some(Millis(1_000)), 501), 35, "of the fifty that came back");
    assert_eq!(after(Some(Millis::from_secs(60)), 20_000), 64);
    assert_eq!(after(None, 3_600_000), 64);
}

#[test]
fn a_calendar_closes_and_announced_work_too() {
    let settings = settings(json!({"calendar": {
        "windows": [{"from": "22:00", "to": "06:00", "tz": "Europe/Berlin"}], "holidays": ["2026-12-25"],
        "time_zone": "Europe/Berlin"}}));
    let instant = |text: &str| Timestamp::parse_rfc3339(text).expect("an instant");
    let mut standing = Standing::default();
    let held = |standing: &Standing, text: &str| view(&settings, standing, 0.0).hold(instant(text));
    let night = held(&standing, "2026-12-23T23:30:00+01:00").expect("held");
    assert_eq!((night.until, night.reason.as_str()), (instant("2026-12-24T06:00:00+01:00"), "calendar psp"));
    let eve = held(&standing, "2026-12-24T22:30:00+01:00").expect("held");
    assert_eq!(eve.until, instant("2026-12-26T06:00:00+01:00"), "a night, a day off, and a night");
    assert_eq!(held(&standing, "2026-12-24T12:00:00+01:00"), None);
    let (from, to) = (instant("2026-12-24T11:00:00+01:00"), instant("2026-12-24T13:00:00+01:00"));
    standing.announce(Maintenance { from, to, note: None }, instant("2026-12-24T08:00:00+01:00"));
    let works = held(&standing, "2026-12-24T12:00:00+01:00").expect("held");
    assert_eq!((works.until, works.reason.as_str()), (to, "maintenance psp"));
    assert!(standing.allowance(&settings, from).is_closed());
    assert_eq!(standing.allowance(&settings, to), Allowance::ANY);
}

/// Twenty percent of first attempts and one a second: the rest come later, none is lost.
#[test]
fn a_budget_defers_and_never_drops() {
    let settings =
        settings(json!({"budget": {"percent": 20, "floor": 1}, "breaker": {"window": "10s", "failures": 100000}}));
    let mut standing = Standing::default();
    // 10 first attempts a second.
    for second in 0_u64..10 {
        standing.observe(&settings, &many(How::Answered, 10, second * 1_000), at(second * 1_000));
    }
    let mut times = Vec::new();
    for _ in 0..300 {
        let due = at(10_000);
        let hold = view(&settings, &standing, 0.0).hold(due);
        let when = hold.as_ref().map_or(due, |hold| hold.until);
        assert!(hold.is_none_or(|hold| hold.reason == "budget psp"));
        standing.slots.take(when);
        times.push(when);
    }
    assert!(times.is_sorted(), "in order");
    let within = |from: u64, to: u64| times.iter().filter(|it| **it >= at(from) && **it < at(to)).count();
    assert_eq!(within(10_000, 20_000), 30, "three a second");
    assert_eq!(within(20_000, 30_000), 30);
    assert_eq!(times.len(), 300);
}

/// Announced work stops the clock of deadlines that lie behind its beginning, also where one leads into the next.
#[test]
fn announced_work_moves_deadlines() {
    let work = |from: u64, to: u64| Maintenance { from: at(from), to: at(to), note: None };
    let all = [work(100, 200), work(300, 400)];
    let moved = |since: u64, deadline: u64| extended(&all, at(since), at(deadline));
    assert_eq!(moved(0, 100), at(100), "before it begins");
    assert_eq!(moved(0, 150), at(250));
    assert_eq!(moved(0, 250), at(450), "by the first into the second");
    assert_eq!(moved(150, 180), at(230), "only what is left of it");
    assert_eq!(moved(400, 450), at(450), "it is over");
    let two = [work(100, 200), work(150, 250)];
    assert_eq!(extended(&two, at(0), at(120)), at(270), "what both cover counts once");
}

/// The deadlines that move when maintenance is announced, and by how much.
#[test]
fn announcing_work_moves_the_deadlines_behind_it_once() {
    let work = |from: u64, to: u64| Maintenance { from: at(from), to: at(to), note: None };
    let table = [
        ("the first", vec![], (100, 200), 0, Some((100, 100))),
        ("it has begun", vec![], (100, 200), 150, Some((150, 50))),
        ("it is over", vec![], (100, 200), 200, None),
        ("announced before", vec![work(100, 200)], (100, 200), 0, None),
        ("made longer", vec![work(100, 200)], (100, 260), 0, Some((100, 60))),
        ("made shorter", vec![work(100, 200)], (100, 150), 0, None),
        ("half of it covered", vec![work(100, 200)], (150, 250), 0, Some((150, 50))),
        ("its middle covered", vec![work(120, 140)], (100, 200), 0, Some((100, 80))),
        ("covered twice", vec![work(100, 150), work(120, 180)], (100, 200), 0, Some((100, 20))),
        ("another day", vec![work(500, 600)], (100, 200), 0, Some((100, 100))),
        ("one that is over", vec![work(10, 20)], (100, 200), 50, Some((100, 100))),
    ];
    for (name, announced, (from, to), now, expected) in table {
        let expected = expected.map(|(behind, by)| (at(behind), Millis(by)));
        assert_eq!(stopped(&announced, at(from), at(to), at(now)), expected, "{name}");
    }
}

/// The health of the other side, by its answer.
#[test]
fn an_answer_says_how_the_other_side_is() {
    let table = [
        (Some(429), None, How::Throttled),
        (Some(408), None, How::Failed),
        (Some(500), None, How::Failed),
        (Some(503), Some(Class::Final), How::Failed),
        (Some(404), None, How::Answered),
        (Some(422), Some(Class::Retryable), How::Answered),
        (None, Some(Class::Final), How::Answered),
        (None, Some(Class::Retryable), How::Failed),
        (None, None, How::Failed),
    ];
    for (status, class, how) in table {
        assert_eq!(How::of_failure(status, class), how, "{status:?} {class:?}");
    }
}

/// When one that is ready, or whose time comes, can start: the end of whatever holds then.
#[test]
fn who_asks_when_it_starts_is_told_who_keeps_it() {
    let settings = settings(json!({"breaker": {"open": "5s"}, "gate": {"spread": "10s"}, "calendar": {"windows": [
        {"from": "2027-01-15T08:00:10Z", "to": "2027-01-15T08:01:00Z"}]}}));
    assert_eq!(at(0), Timestamp::parse_rfc3339("2027-01-15T08:00:00Z").unwrap());
    let mut open = Standing::default();
    open.observe(&settings, &many(How::Failed, 20, 0), at(0));
    let mut kept = Standing::default();
    kept.open_by_hand(Some(at(12_000)), "by hand", at(0));
    let mut for_ever = Standing::default();
    for_ever.open_by_hand(None, "by hand", at(0));
    let mut gated = Standing::default();
    let told = Ended { not_before: Some(at(8_000)), ..ended(How::Throttled, 0, 10) };
    gated.observe(&settings, &Seen { ended: vec![told] }, at(10));
    let table = [
        ("nothing", Standing::default(), 1_000, None),
        ("it is open", open.clone(), 1_000, Some((Holder::Breaker, at(5_000)))),
        ("its own time is later", open, 6_000, None),
        ("a person, and then the calendar", kept, 1_000, Some((Holder::Calendar, at(60_000)))),
        ("nobody knows", for_ever, 1_000, Some((Holder::Breaker, Timestamp::MAX))),
        ("the gate, in its place", gated, 1_000, Some((Holder::Gate, at(9_000)))),
    ];
    for (name, standing, when, expected) in table {
        assert_eq!(view(&settings, &standing, 0.1).keeps(at(when)), expected, "{name}");
    }
}

proptest! {
    /// However often anybody asks, no wave is larger than twice the one before, no two waves are shorter than one is to last,
    /// and nobody is let go at once as long as somebody waits.
    #[test]
    fn no_pattern_of_polling_makes_a_stampede(
        every in 1_u64..400, workers in 1_u32..20, limit in 1_u32..200, takes in 0_u64..3_000, waiting in 1_u32..400,
    ) {
        let settings = settings(json!({"breaker": {}}));
        let (waves, starts) = recovery(&settings, waiting, Asks { every: every * 10, workers, limit, takes });
        prop_assert_eq!(waves.iter().sum::<u32>(), waiting);
        for (wave, started) in waves.iter().enumerate() {
            prop_assert!(*started <= 5 << wave, "wave {}: {:?}", wave, waves);
            let is_last = waves[wave + 1..].iter().all(|it| *it == 0);
            prop_assert!(is_last || *started == 5 << wave, "only the last is not full: {:?}", waves);
        }
        for (n, began) in starts.iter().enumerate() {
            // So many seconds after the canary, so many waves at most.
            let whole = 5 * ((1_usize << ((began - 10_000) / 1_000 + 1).min(20)) - 1);
            prop_assert!(n < whole, "{} had started at {}: {:?}", n, began, waves);
        }
    }

    /// In any history, a hold never goes past the deadline, never before the due time, and canaries stay on schedule.
    #[test]
    fn holds_stay_between_the_due_time_and_the_deadline(
        outcomes in prop::collection::vec((0_u8..3, 0_u64..60_000, 0_u64..3_000), 0..80),
        due in 0_u64..200_000, patience in 1_u64..100_000, place in 0.0_f64..1.0,
    ) {
        let settings = settings(json!({"gate": {}, "breaker": {"failures": 3}, "budget": {"percent": 0, "floor": 0.1}, "concurrency": {}}));
        let mut standing = Standing::default();
        let mut times: Vec<_> = outcomes;
        times.sort_by_key(|(_, started, took)| started + took);
        for (how, started, took) in times {
            let how = [How::Answered, How::Failed, How::Throttled][usize::from(how)];
            let now = started + took;
            let not_before = (how == How::Throttled).then(|| at(now + 5_000));
            let one = Ended { not_before, ..ended(how, started, took) };
            standing.observe(&settings, &Seen { ended: vec![one] }, at(now));
            let starts = standing.allowance(&settings, at(now)).starts.unwrap_or(3).min(3);
            standing.take(&settings, starts, at(now));
            if let Some(hold) = view(&settings, &standing, place).hold(at(now)) {
                standing.slots.take(hold.until);
            }
        }
        let it = view(&settings, &standing, place);
        let (due, deadline) = (at(due), at(due + patience));
        let free = it.hold(due);
        let guard = GuardView { dependency: Some(it.clone()), ..GuardView::default() };
        match (guard.hold(due, Some(deadline)), &free) {
            (Some(hold), Some(free)) => {
                prop_assert!(hold.until > due && hold.until <= deadline && hold.until <= free.until);
            }
            (held, free) => prop_assert_eq!(held.is_none(), free.is_none()),
        }
        if let Phase::Open { until, .. } = standing.phase {
            prop_assert!(standing.phase.holds(until).is_none(), "who is due by then is not held by it");
            prop_assert!(standing.phase.starts(&settings.breaker.unwrap(), until) > Some(0));
        }
    }

    /// Never below the least, never above the most, whatever is seen.
    #[test]
    fn concurrency_stays_in_its_bounds(
        steps in prop::collection::vec((0_u8..2, 0_u64..500, 1_usize..20), 0..100), min in 1_u32..10, more in 0_u32..100,
    ) {
        let settings = settings(json!({"concurrency": {"min": min, "max": min + more, "target": "200ms"}}));
        let mut standing = Standing::default();
        let mut now = 0;
        for (how, took, n) in steps {
            let how = if how == 0 { How::Answered } else { How::Failed };
            now += 100;
            standing.observe(&settings, &Seen { ended: vec![ended(how, now, took); n] }, at(now + took));
            let running = standing.allowance(&settings, at(now + took)).running.unwrap();
            prop_assert!((min..=min + more).contains(&running));
        }
    }

    /// The state is read as it was written.
    #[test]
    fn a_standing_survives_its_text(fails in 0_usize..40, waits in 0_u64..30_000) {
        let settings = settings(json!({"gate": {}, "breaker": {}, "budget": {}, "concurrency": {}}));
        let mut standing = Standing::default();
        standing.observe(&settings, &many(How::Failed, fails, 0), at(0));
        standing.take(&settings, 1, at(waits));
        standing.slots.take(at(waits));
        let text = serde_json::to_string(&standing).unwrap();
        prop_assert_eq!(serde_json::from_str::<Standing>(&text).unwrap(), standing);
    }
}
