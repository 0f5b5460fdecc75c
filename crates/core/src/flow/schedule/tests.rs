//! When, as tables. Instants are written as the wall shows them where that says more.

use super::*;

fn at(text: &str) -> Timestamp {
    Timestamp::parse_rfc3339(text).expect("an instant")
}

fn times(cron: &str, zone: &str) -> Times {
    Times {
        cron: Some(cron.into()),
        time_zone: Some(zone.into()),
        anchor: at("2026-01-01T00:00:00Z"),
        ..Times::default()
    }
}

fn calendar(cron: &str, zone: &str) -> Calendar {
    times(cron, zone).read().expect(cron)
}

fn every(span: &str, anchor: &str) -> Calendar {
    let times = Times { every: Millis::parse(span).ok(), anchor: at(anchor), ..Times::default() };
    times.read().expect(span)
}

fn coming(calendar: &Calendar, after: &str, count: usize) -> Vec<String> {
    calendar.coming(at(after)).take(count).map(Timestamp::to_rfc3339).map(|text| text.replace(".000Z", "Z")).collect()
}

#[track_caller]
fn check(cron: &str, zone: &str, after: &str, expected: &[&str]) {
    assert_eq!(coming(&calendar(cron, zone), after, expected.len()), expected, "{cron} in {zone} after {after}");
}

#[test]
fn expressions_name_their_instants() {
    check("*/15 * * * *", "UTC", "2026-11-15T10:07:00Z", &["2026-11-15T10:15:00Z", "2026-11-15T10:30:00Z"]);
    check("*/10 * * * * *", "UTC", "2026-11-15T10:00:00.001Z", &["2026-11-15T10:00:10Z", "2026-11-15T10:00:20Z"]);
    check("0 9 * * mon-fri", "UTC", "2026-11-13T09:00:00Z", &["2026-11-16T09:00:00Z", "2026-11-17T09:00:00Z"]);
    check("@daily", "UTC", "2026-11-15T10:00:00Z", &["2026-11-16T00:00:00Z"]);
    // The last Friday, the second Tuesday, the weekday nearest to the 15th.
    check("0 12 * * 5L", "UTC", "2026-11-01T00:00:00Z", &["2026-11-27T12:00:00Z", "2026-12-25T12:00:00Z"]);
    check("0 12 * * 2#2", "UTC", "2026-11-01T00:00:00Z", &["2026-11-10T12:00:00Z", "2026-12-08T12:00:00Z"]);
    check("0 12 15W * *", "UTC", "2026-11-01T00:00:00Z", &["2026-11-16T12:00:00Z", "2026-12-15T12:00:00Z"]);
}

#[test]
fn the_instant_itself_is_not_after_itself() {
    let nine = calendar("0 9 * * *", "UTC");
    assert_eq!(nine.after(at("2026-11-15T08:59:59.999Z")), Some(at("2026-11-15T09:00:00Z")));
    assert_eq!(nine.after(at("2026-11-15T09:00:00Z")), Some(at("2026-11-16T09:00:00Z")));
    assert_eq!(nine.until(at("2026-11-15T09:00:00Z")), Some(at("2026-11-15T09:00:00Z")));
    assert_eq!(nine.until(at("2026-11-15T08:59:59.999Z")), Some(at("2026-11-14T09:00:00Z")));
}

#[test]
fn months_end_where_they_end() {
    let ends = ["2027-01-31T00:00:00Z", "2027-02-28T00:00:00Z", "2027-03-31T00:00:00Z", "2027-04-30T00:00:00Z"];
    check("0 0 L * *", "UTC", "2027-01-01T00:00:00Z", &ends);
    check("0 0 31 * *", "UTC", "2027-01-31T00:00:00Z", &["2027-03-31T00:00:00Z", "2027-05-31T00:00:00Z"]);
    check("0 0 29 2 *", "UTC", "2026-01-01T00:00:00Z", &["2028-02-29T00:00:00Z", "2032-02-29T00:00:00Z"]);
    // 2100 is no leap year.
    check("0 0 29 2 *", "UTC", "2096-03-01T00:00:00Z", &["2104-02-29T00:00:00Z"]);
}

/// Berlin leaps from 02:00 to 03:00 on 2026-03-29 and goes back from 03:00 to 02:00 on 2026-10-25; New York on 03-08 and 11-01.
#[test]
fn a_time_of_day_that_does_not_exist_comes_as_soon_as_it_can() {
    let berlin = ["2026-03-28T01:30:00Z", "2026-03-29T01:00:00Z", "2026-03-30T00:30:00Z"];
    check("30 2 * * *", "Europe/Berlin", "2026-03-28T00:00:00Z", &berlin);
    let new_york = ["2026-03-07T07:30:00Z", "2026-03-08T07:00:00Z", "2026-03-09T06:30:00Z"];
    check("30 2 * * *", "America/New_York", "2026-03-07T00:00:00Z", &new_york);
}

/// An instant before or behind the leap is not in it.
#[test]
fn a_leap_of_the_clock_is_nobody_elses_time() {
    check("30 1 * * *", "Europe/Berlin", "2026-03-28T12:00:00Z", &["2026-03-29T00:30:00Z", "2026-03-29T23:30:00Z"]);
    check("0 3 * * *", "Europe/Berlin", "2026-03-28T12:00:00Z", &["2026-03-29T01:00:00Z", "2026-03-30T01:00:00Z"]);
    check("30 2 28 * *", "Europe/Berlin", "2026-03-28T12:00:00Z", &["2026-04-28T00:30:00Z"]);
}

#[test]
fn a_time_of_day_that_comes_twice_fires_once() {
    let berlin = ["2026-10-24T00:30:00Z", "2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"];
    check("30 2 * * *", "Europe/Berlin", "2026-10-24T00:00:00Z", &berlin);
    let new_york = ["2026-10-31T05:30:00Z", "2026-11-01T05:30:00Z", "2026-11-02T06:30:00Z"];
    check("30 1 * * *", "America/New_York", "2026-10-31T00:00:00Z", &new_york);
}

#[test]
fn what_comes_every_hour_comes_every_hour_whatever_the_clock_on_the_wall_does() {
    let spring = ["2026-03-29T00:00:00Z", "2026-03-29T01:00:00Z", "2026-03-29T02:00:00Z"];
    check("0 * * * *", "Europe/Berlin", "2026-03-28T23:30:00Z", &spring);
    let autumn = ["2026-10-25T00:00:00Z", "2026-10-25T01:00:00Z", "2026-10-25T02:00:00Z"];
    check("0 * * * *", "Europe/Berlin", "2026-10-24T23:30:00Z", &autumn);
}

#[test]
fn the_same_time_of_day_is_another_instant_in_summer() {
    check("0 9 * * *", "Europe/Berlin", "2026-07-01T00:00:00Z", &["2026-07-01T07:00:00Z"]);
    check("0 9 * * *", "Europe/Berlin", "2026-12-01T00:00:00Z", &["2026-12-01T08:00:00Z"]);
    check("0 9 * * *", "Asia/Kolkata", "2026-12-01T00:00:00Z", &["2026-12-01T03:30:00Z"]);
}

/// Catch-up goes backwards, the loop forwards: both must see the same instants, over both clock changes.
#[test]
fn backwards_and_forwards_name_the_same_instants() {
    let zones = ["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu"];
    for zone in zones {
        for cron in ["30 2 * * *", "30 1 * * *", "*/20 * * * *", "0 0 L * *", "15 1,2,3 * * *", "0 0 * * 1#1"] {
            let calendar = calendar(cron, zone);
            let (from, to) = (at("2026-02-15T00:00:00Z"), at("2026-12-01T00:00:00Z"));
            let forwards: Vec<Timestamp> = calendar.coming(from).take_while(|it| *it <= to).collect();
            let back = std::iter::successors(calendar.until(to), |last| calendar.until(*last - Millis(1)));
            let mut backwards: Vec<Timestamp> = back.take_while(|it| *it > from).collect();
            backwards.reverse();
            let odd: Vec<_> = forwards.iter().zip(&backwards).find(|(a, b)| a != b).into_iter().collect();
            assert!(odd.is_empty() && forwards.len() == backwards.len(), "{cron} in {zone}: {odd:?}");
            assert!(forwards.windows(2).all(|pair| pair[0] < pair[1]), "{cron} in {zone}");
        }
    }
}

#[test]
fn spans_are_counted_from_where_they_begin() {
    let eight = every("8h", "2026-11-15T10:30:00.250Z");
    let expected = ["2026-11-15T18:30:00.250Z", "2026-11-16T02:30:00.250Z"];
    assert_eq!(coming(&eight, "2026-11-15T10:30:00.250Z", 2), expected);
    assert_eq!(coming(&eight, "2026-11-15T18:30:00.249Z", 2), expected);
    assert_eq!(eight.until(at("2026-11-16T02:30:00.249Z")), Some(at("2026-11-15T18:30:00.250Z")));
    assert_eq!(eight.until(at("2026-11-15T10:30:00Z")), None);
    assert_eq!(coming(&eight, "2020-01-01T00:00:00Z", 1), ["2026-11-15T10:30:00.250Z"]);
    let from =
        Times { start_at: Some(at("2026-11-20T00:00:00Z")), every: Some(Millis::from_secs(60)), ..Times::default() };
    assert_eq!(coming(&from.read().unwrap(), "2026-11-15T00:00:00Z", 1), ["2026-11-20T00:00:00Z"]);
}

#[test]
fn bounds_are_part_of_what_they_bound() {
    let bounded = Times {
        start_at: Some(at("2026-11-16T09:00:00Z")),
        end_at: Some(at("2026-11-18T09:00:00Z")),
        ..times("0 9 * * *", "UTC")
    };
    let calendar = bounded.read().unwrap();
    let expected = ["2026-11-16T09:00:00Z", "2026-11-17T09:00:00Z", "2026-11-18T09:00:00Z"];
    assert_eq!(coming(&calendar, "2026-11-01T00:00:00Z", 9), expected);
    assert_eq!(calendar.until(at("2027-01-01T00:00:00Z")), Some(at("2026-11-18T09:00:00Z")));
    assert_eq!(calendar.until(at("2026-11-16T08:00:00Z")), None);
}

fn due(calendar: &Calendar, settled: &str, now: &str, catch_up: CatchUp, limit: u32) -> (Vec<String>, u64) {
    let due = calendar.due(at(settled), at(now), catch_up, limit);
    assert!(due.fire.windows(2).all(|pair| pair[0] < pair[1]));
    assert!(due.fire.last().is_none_or(|last| Some(*last) == due.newest));
    (due.fire.iter().map(|it| it.to_rfc3339()[..16].to_owned()).collect(), due.missed)
}

#[test]
fn three_days_away_are_made_up_for_as_was_asked() {
    let nine = calendar("0 9 * * *", "UTC");
    let away = |catch_up, limit| due(&nine, "2026-11-12T09:00:00Z", "2026-11-15T12:00:00Z", catch_up, limit);
    let all = ["2026-11-13T09:00", "2026-11-14T09:00", "2026-11-15T09:00"].map(str::to_owned);
    assert_eq!(away(CatchUp::None, 9), (vec![], 3));
    assert_eq!(away(CatchUp::Last, 9), (all[2..].to_vec(), 2));
    assert_eq!(away(CatchUp::All, 9), (all.to_vec(), 0));
    assert_eq!(away(CatchUp::All, 2), (all[1..].to_vec(), 1));
}

#[test]
fn what_comes_on_time_is_fired_whatever_was_missed_before() {
    let nine = calendar("0 9 * * *", "UTC");
    let now = "2026-11-15T09:00:30Z";
    for catch_up in [CatchUp::None, CatchUp::Last] {
        assert_eq!(due(&nine, "2026-11-12T09:00:00Z", now, catch_up, 9), (vec!["2026-11-15T09:00".into()], 2));
    }
    // A moment of inattention loses nothing.
    let often = calendar("*/10 * * * * *", "UTC");
    for catch_up in [CatchUp::None, CatchUp::Last, CatchUp::All] {
        let found = often.due(at("2026-11-15T09:00:00Z"), at("2026-11-15T09:00:31Z"), catch_up, 100);
        assert_eq!((found.fire.len(), found.missed), (3, 0), "{catch_up}");
    }
    // Nothing is due at once again.
    assert_eq!(due(&nine, "2026-11-15T09:00:00Z", now, CatchUp::All, 9), (vec![], 0));
}

#[test]
fn a_clock_that_was_set_back_finds_nothing_to_fire_again() {
    let hourly = calendar("0 * * * *", "UTC");
    let settled = "2026-11-15T12:00:00Z";
    for now in ["2026-11-15T11:00:00Z", "2026-11-15T09:30:00Z", "2026-11-15T12:00:00Z"] {
        for catch_up in [CatchUp::None, CatchUp::Last, CatchUp::All] {
            assert_eq!(hourly.due(at(settled), at(now), catch_up, 9), Due::default());
        }
    }
    assert_eq!(hourly.after(at(settled)), Some(at("2026-11-15T13:00:00Z")));
}

#[test]
fn years_of_seconds_are_not_gone_through_one_by_one() {
    let often = calendar("* * * * * *", "UTC");
    let found = often.due(at("2020-01-01T00:00:00Z"), at("2026-11-15T12:00:00Z"), CatchUp::Last, 1);
    assert_eq!(found.fire, [at("2026-11-15T12:00:00Z")]);
    assert_eq!(found.missed, MOST_COUNTED as u64 - 1);
}

#[test]
fn what_is_wrong_is_told_by_its_field() {
    let bad = |times: Times| {
        let faults = times.read().expect_err("it is wrong").faults;
        faults.into_iter().map(|fault| fault.path).collect::<Vec<_>>()
    };
    let with = |cron: &str| Times { cron: Some(cron.into()), ..Times::default() };
    for cron in
        ["", "*", "* * * *", "61 * * * *", "* * * * * * * *", "@sometimes", "a b c d e", "0 0 30 2 *", "5-1 * * * *"]
    {
        assert_eq!(bad(with(cron)), ["cron"], "{cron}");
    }
    assert_eq!(bad(with(&"1,".repeat(200))), ["cron"]);
    assert_eq!(bad(Times::default()), ["cron"]);
    assert_eq!(bad(Times { every: Some(Millis(10)), ..Times::default() }), ["every"]);
    assert_eq!(bad(Times { every: Some(Millis::MAX), ..Times::default() }), ["every"]);
    assert_eq!(bad(Times { every: Some(Millis(1_000)), ..with("* * * * *") }), ["every"]);
    assert_eq!(bad(Times { time_zone: Some("Mars/Olympus".into()), ..with("* * * *") }), ["time_zone", "cron"]);
    let (from, to) = (Some(Timestamp(5)), Some(Timestamp(4)));
    assert_eq!(bad(Times { start_at: from, end_at: to, ..with("* * * * *") }), ["end_at"]);
}

#[test]
fn another_note_is_the_same_rhythm_and_another_zone_is_not() {
    let nine = times("0 9 * * *", "UTC");
    assert!(nine.same_instants(&Times { time_zone: None, anchor: Timestamp(7), ..nine.clone() }));
    assert!(!nine.same_instants(&times("0 9 * * *", "Europe/Berlin")));
    let span = Times { every: Some(Millis(60_000)), ..Times::default() };
    assert!(!span.same_instants(&Times { anchor: Timestamp(7), ..span.clone() }));
}

#[test]
fn an_event_fires_by_its_type_and_within_its_bounds() {
    let by = |event: &str| Times { event: Some(event.into()), ..Times::default() };
    let (now, later) = (Timestamp(10), Timestamp(20));
    let exact = by("order.paid").read().unwrap();
    assert!(exact.listens_to("order.paid", now));
    assert!(!exact.listens_to("order.paid.late", now) && !exact.listens_to("order", now));
    assert_eq!((exact.after(now), exact.until(later), exact.is_over(later)), (None, None, false));
    assert_eq!(exact.due(Timestamp(0), later, CatchUp::All, 9), Due::default());
    let any = by("order.*").read().unwrap();
    assert!(any.listens_to("order.paid", now) && !any.listens_to("orders", now));
    let bounded =
        Times { start_at: Some(Timestamp(15)), end_at: Some(Timestamp(18)), ..by("order.paid") }.read().unwrap();
    let heard = [10, 15, 18, 19].map(|at| bounded.listens_to("order.paid", Timestamp(at)));
    assert_eq!(heard, [false, true, true, false]);
    assert!(bounded.is_over(later) && !bounded.is_over(now));
    for wrong in ["", "two words", "a*b", &"x".repeat(201)] {
        assert_eq!(by(wrong).read().unwrap_err().faults[0].path, "event", "{wrong}");
    }
    let both = Times { every: Some(Millis::from_secs(60)), ..by("order.paid") };
    assert_eq!(both.read().unwrap_err().faults[0].path, "event");
}
