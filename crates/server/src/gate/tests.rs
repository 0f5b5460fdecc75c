use futures_util::{StreamExt, stream};

use super::*;

/// Whether a future waits when it is polled once.
fn waits<F: Future>(future: std::pin::Pin<&mut F>) -> bool {
    future.poll(&mut std::task::Context::from_waker(std::task::Waker::noop())).is_pending()
}

fn gate(places: usize, queue: usize) -> Gate {
    let room = Room { places, queue, patience: Duration::from_millis(50) };
    Gate::new(GateOptions { vital: room, write: room, look: room, ..GateOptions::default() }, &Quotas::default())
}

#[tokio::test]
async fn a_full_class_refuses_and_reports_still_get_in() {
    let gate = gate(2, 0);
    let _one = gate.enter(Class::Write, "a").await.expect("room");
    let _two = gate.enter(Class::Write, "b").await.expect("room");
    let refused = gate.enter(Class::Write, "c").await.err().expect("no room");
    assert_eq!((refused.status.as_u16(), refused.retry_after), (503, Some(1)));
    assert!(gate.enter(Class::Vital, "c").await.is_ok());
    assert!(gate.enter(Class::Look, "c").await.is_ok());
    assert_eq!((gate.refused(Class::Write), gate.refused(Class::Vital)), (1, 0));
}

#[tokio::test]
async fn a_place_is_free_again_when_its_holder_goes() {
    let gate = gate(1, 1);
    let first = gate.enter(Class::Look, "a").await.expect("room");
    assert_eq!(gate.enter(Class::Look, "b").await.err().expect("patience has an end").status.as_u16(), 503);
    let (waited, ()) = tokio::join!(gate.enter(Class::Look, "b"), async { drop(first) });
    drop(waited.expect("room, once the first has gone"));
    assert_eq!(gate.busy(Class::Look), 0);
    assert!(gate.hall(Class::Look).queue.lock().namespaces.is_empty());
}

#[tokio::test]
async fn a_namespace_holds_three_quarters_of_the_places_at_most_however_large_its_quota_is() {
    let gate = gate(4, 0);
    let mut held = Vec::new();
    for _ in 0..3 {
        held.push(gate.enter(Class::Write, "red").await.expect("its share"));
    }
    let refused = gate.enter(Class::Write, "red").await.err().expect("more than its share");
    assert_eq!((refused.status.as_u16(), refused.retry_after), (429, Some(1)));
    assert_eq!(refused.quota, Some(Quota::Writes));
    assert!(gate.enter(Class::Write, "blue").await.is_ok());
}

/// The finding: the queue counted as room, so that one namespace held every place and all others waited behind it.
#[tokio::test]
async fn a_crowd_of_one_namespace_that_waits_keeps_nobody_else_out() {
    let mut quotas = Quotas::default();
    quotas.set("reports", "3").expect("a number");
    let room = Room { places: 8, queue: 100, patience: Duration::from_secs(5) };
    let gate = Arc::new(Gate::new(GateOptions { vital: room, ..GateOptions::default() }, &quotas));
    let (hold, held) = tokio::sync::watch::channel(true);
    let mut crowd = tokio::task::JoinSet::new();
    for _ in 0..60 {
        let (gate, mut held) = (gate.clone(), held.clone());
        crowd.spawn(async move {
            let _place = gate.enter(Class::Vital, "red").await.expect("it waits");
            let _ = held.wait_for(|held| !held).await;
        });
    }
    tokio::task::yield_now().await;
    assert_eq!(gate.busy(Class::Vital), 3, "its quota");
    let blue = tokio::time::timeout(Duration::from_millis(1), gate.enter(Class::Vital, "blue")).await;
    assert!(blue.expect("at once").is_ok());
    hold.send(false).expect("somebody waits");
    crowd.join_all().await;
    assert!(gate.hall(Class::Vital).queue.lock().namespaces.is_empty());
}

#[tokio::test]
async fn the_line_of_a_namespace_is_bounded() {
    let gate = Arc::new(gate(1, 4));
    let first = gate.enter(Class::Write, "red").await.expect("room");
    let mut waiting = tokio::task::JoinSet::new();
    for _ in 0..3 {
        let gate = gate.clone();
        waiting.spawn(async move { gate.enter(Class::Write, "red").await.map(drop).map_err(|it| it.quota) });
    }
    tokio::task::yield_now().await;
    let refused = gate.enter(Class::Write, "red").await.err().expect("three of four may wait");
    assert_eq!(refused.quota, Some(Quota::Writes));
    let blue = tokio::spawn({
        let gate = gate.clone();
        async move { gate.enter(Class::Write, "blue").await.map(drop) }
    });
    tokio::task::yield_now().await;
    drop(first);
    blue.await.expect("no panic").expect("its turn came");
    assert!(waiting.join_all().await.into_iter().all(|it| it.is_ok()));
}

#[tokio::test]
async fn those_who_wait_are_let_in_by_turns_of_their_namespaces() {
    let gate = Arc::new(gate(1, 100));
    let first = gate.enter(Class::Write, "red").await.expect("room");
    let order = Arc::new(Mutex::new(Vec::new()));
    let mut all = tokio::task::JoinSet::new();
    for name in ["red", "red", "red", "red", "blue", "blue", "green"] {
        let (gate, order) = (gate.clone(), order.clone());
        all.spawn(async move {
            let place = gate.enter(Class::Write, name).await.expect("a turn");
            order.lock().push(name);
            drop(place);
        });
        tokio::task::yield_now().await;
    }
    drop(first);
    all.join_all().await;
    let order = order.lock().clone();
    let last_of = |name| order.iter().rposition(|it| *it == name).expect("it was let in");
    assert!(last_of("green") < 3 && last_of("blue") < 5, "{order:?}");
}

#[tokio::test]
async fn a_caller_that_gives_up_leaves_no_trace() {
    let gate = gate(1, 5);
    let first = gate.enter(Class::Look, "a").await.expect("room");
    let waiting = tokio::time::timeout(Duration::from_millis(1), gate.enter(Class::Look, "b")).await;
    assert!(waiting.is_err(), "it waited");
    assert_eq!(gate.hall(Class::Look).queue.lock().waiting, 0);
    // Let in and gone before it knew.
    {
        let mut entering = std::pin::pin!(gate.enter(Class::Look, "b"));
        assert!(waits(entering.as_mut()));
        drop(first);
        assert_eq!(gate.busy(Class::Look), 1);
    }
    assert_eq!(gate.busy(Class::Look), 0);
    let queue = gate.hall(Class::Look).queue.lock();
    assert!(queue.namespaces.is_empty() && queue.turns.is_empty());
}

fn of(body: Body) -> Request {
    Request::post("/").body(body).expect("a request")
}

/// A body of which only the first bytes have come.
fn slow(first: usize) -> Body {
    let piece = stream::iter([Ok::<_, std::io::Error>(Bytes::from(vec![b' '; first]))]);
    Body::from_stream(piece.chain(stream::pending()))
}

#[tokio::test]
async fn memory_is_taken_by_what_has_come_and_until_it_was_worked_on() {
    let options =
        GateOptions { body_bytes: 32 << 10, body_timeout: Duration::from_millis(50), ..GateOptions::default() };
    let gate = Gate::new(options, &Quotas::default());
    let body = || of(Body::from(vec![b' '; 12 << 10]));
    // A sender of one byte of a body of unknown length takes one part of thirty-two.
    let (slow, others) = tokio::join!(gate.read(of(slow(1)), Class::Write, 1 << 20, "red"), async {
        gate.read(body(), Class::Write, 1 << 20, "red").await
    });
    assert_eq!(slow.expect_err("it never ends").status.as_u16(), 408);
    let (_, kept) = others.expect("there is room beside it");
    let refused = gate.read(body(), Class::Write, 1 << 20, "red").await.expect_err("the first is still worked on");
    assert_eq!((refused.status.as_u16(), refused.quota), (429, Some(Quota::BodyBytes)));
    assert_eq!(gate.refused(Class::Write), 1, "it is counted");
    assert!(gate.read(body(), Class::Vital, 1 << 20, "red").await.is_ok(), "reports have memory of their own");
    assert!(gate.read(body(), Class::Write, 1 << 20, "blue").await.is_ok(), "and so has every namespace");
    drop(kept);
    assert!(gate.read(body(), Class::Write, 1 << 20, "red").await.is_ok());
    let large = gate.read(body(), Class::Write, 5 << 10, "red").await;
    assert_eq!(large.expect_err("too large").status.as_u16(), 413);
}

/// The finding: eight unfinished report bodies of one namespace refused every heartbeat of all others.
#[tokio::test]
async fn unfinished_reports_of_one_namespace_refuse_nobody_else() {
    let options = GateOptions {
        body_bytes: 256 << 10,
        large_body: 32 << 10,
        body_timeout: Duration::from_secs(5),
        ..GateOptions::default()
    };
    let gate = Gate::new(options, &Quotas::default());
    let unfinished = futures_util::future::join_all(
        (0..8).map(|_| gate.read(of(slow((32 << 10) - 1)), Class::Vital, 32 << 10, "red")),
    );
    tokio::pin!(unfinished);
    assert!(waits(unfinished.as_mut()));
    for _ in 0..20 {
        let beat = gate.read(of(Body::from(vec![b' '; 300])), Class::Vital, 1 << 20, "blue").await;
        assert!(beat.is_ok(), "a heartbeat");
    }
    let report = gate.read(of(Body::from(vec![b' '; 32 << 10])), Class::Vital, 32 << 10, "blue").await;
    assert!(report.is_ok(), "a report as large as it may be");
}

#[tokio::test]
async fn memory_of_a_parsed_body_is_given_back_while_the_request_waits() {
    let gate = Gate::new(GateOptions { body_bytes: 64 << 10, ..GateOptions::default() }, &Quotas::default());
    let mut polls = Vec::new();
    for _ in 0..100 {
        let padded = of(Body::from(vec![b' '; 12 << 10]));
        let (_, memory) = gate.read(padded, Class::Lease, 1 << 20, "red").await.expect("room");
        let admitted = Admitted::new((gate.enter(Class::Lease, "red").await.expect("room"), None), memory);
        admitted.keep_memory(100).expect("less than before");
        polls.push(admitted);
    }
    assert_eq!(gate.busy(Class::Lease), 100);
}

#[tokio::test]
async fn what_is_kept_of_a_body_counts_even_where_it_is_more_than_the_body_was() {
    let gate = Gate::new(GateOptions { body_bytes: 64 << 10, ..GateOptions::default() }, &Quotas::default());
    let mut polls = Vec::new();
    let refused = loop {
        let (_, memory) = gate.read(of(Body::from("[]")), Class::Lease, 1 << 20, "red").await.expect("room");
        let admitted = Admitted::new((gate.enter(Class::Lease, "red").await.expect("room"), None), memory);
        match admitted.keep_memory(10 << 10) {
            Ok(()) => polls.push(admitted),
            Err(refused) => break refused,
        }
    };
    assert_eq!((polls.len(), refused.quota), (3, Some(Quota::BodyBytes)), "half of 64 KiB is its part");
}
