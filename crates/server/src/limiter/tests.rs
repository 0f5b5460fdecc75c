use futures_util::{StreamExt, stream};

use super::*;

/// Whether a future waits when it is polled once.
fn waits<F: Future>(future: std::pin::Pin<&mut F>) -> bool {
    future.poll(&mut std::task::Context::from_waker(std::task::Waker::noop())).is_pending()
}

fn limiter(permits: usize, queue: usize) -> Limiter {
    let limits = ClassLimits { permits, queue, timeout: Duration::from_millis(50) };
    Limiter::new(
        LimiterOptions { vital: limits, write: limits, look: limits, ..LimiterOptions::default() },
        &Quotas::default(),
    )
}

#[tokio::test]
async fn a_full_class_refuses_and_reports_still_get_in() {
    let limiter = limiter(2, 0);
    let _one = limiter.acquire(RequestClass::Write, "a").await.expect("a permit");
    let _two = limiter.acquire(RequestClass::Write, "b").await.expect("a permit");
    let refused = limiter.acquire(RequestClass::Write, "c").await.err().expect("no permit");
    assert_eq!((refused.status.as_u16(), refused.retry_after), (503, Some(1)));
    assert!(limiter.acquire(RequestClass::Vital, "c").await.is_ok());
    assert!(limiter.acquire(RequestClass::Look, "c").await.is_ok());
    assert_eq!((limiter.refused(RequestClass::Write), limiter.refused(RequestClass::Vital)), (1, 0));
}

#[tokio::test]
async fn a_place_is_free_again_when_its_holder_goes() {
    let limiter = limiter(1, 1);
    let first = limiter.acquire(RequestClass::Look, "a").await.expect("a permit");
    assert_eq!(limiter.acquire(RequestClass::Look, "b").await.err().expect("it times out").status.as_u16(), 503);
    let (waited, ()) = tokio::join!(limiter.acquire(RequestClass::Look, "b"), async { drop(first) });
    drop(waited.expect("a permit, once the first has gone"));
    assert_eq!(limiter.busy(RequestClass::Look), 0);
    assert!(limiter.semaphore(RequestClass::Look).queue.lock().namespaces.is_empty());
}

#[tokio::test]
async fn a_namespace_holds_three_quarters_of_the_places_at_most_however_large_its_quota_is() {
    let limiter = limiter(4, 0);
    let mut held = Vec::new();
    for _ in 0..3 {
        held.push(limiter.acquire(RequestClass::Write, "red").await.expect("its share"));
    }
    let refused = limiter.acquire(RequestClass::Write, "red").await.err().expect("more than its share");
    assert_eq!((refused.status.as_u16(), refused.retry_after), (429, Some(1)));
    assert_eq!(refused.quota, Some(Quota::Writes));
    assert!(limiter.acquire(RequestClass::Write, "blue").await.is_ok());
}

/// The finding: the queue counted as permits, so that one namespace held every permit and all others waited behind it.
#[tokio::test]
async fn a_crowd_of_one_namespace_that_waits_keeps_nobody_else_out() {
    let mut quotas = Quotas::default();
    quotas.set("reports", "3").expect("a number");
    let limits = ClassLimits { permits: 8, queue: 100, timeout: Duration::from_secs(5) };
    let limiter = Arc::new(Limiter::new(LimiterOptions { vital: limits, ..LimiterOptions::default() }, &quotas));
    let (hold, held) = tokio::sync::watch::channel(true);
    let mut crowd = tokio::task::JoinSet::new();
    for _ in 0..60 {
        let (limiter, mut held) = (limiter.clone(), held.clone());
        crowd.spawn(async move {
            let _permit = limiter.acquire(RequestClass::Vital, "red").await.expect("it waits");
            let _ = held.wait_for(|held| !held).await;
        });
    }
    tokio::task::yield_now().await;
    assert_eq!(limiter.busy(RequestClass::Vital), 3, "its quota");
    let blue = tokio::time::timeout(Duration::from_millis(1), limiter.acquire(RequestClass::Vital, "blue")).await;
    assert!(blue.expect("at once").is_ok());
    hold.send(false).expect("somebody waits");
    crowd.join_all().await;
    assert!(limiter.semaphore(RequestClass::Vital).queue.lock().namespaces.is_empty());
}

#[tokio::test]
async fn the_line_of_a_namespace_is_bounded() {
    let limiter = Arc::new(limiter(1, 4));
    let first = limiter.acquire(RequestClass::Write, "red").await.expect("a permit");
    let mut waiting = tokio::task::JoinSet::new();
    for _ in 0..3 {
        let limiter = limiter.clone();
        waiting
            .spawn(async move { limiter.acquire(RequestClass::Write, "red").await.map(drop).map_err(|it| it.quota) });
    }
    tokio::task::yield_now().await;
    let refused = limiter.acquire(RequestClass::Write, "red").await.err().expect("three of four may wait");
    assert_eq!(refused.quota, Some(Quota::Writes));
    let blue = tokio::spawn({
        let limiter = limiter.clone();
        async move { limiter.acquire(RequestClass::Write, "blue").await.map(drop) }
    });
    tokio::task::yield_now().await;
    drop(first);
    blue.await.expect("no panic").expect("its turn came");
    assert!(waiting.join_all().await.into_iter().all(|it| it.is_ok()));
}

#[tokio::test]
async fn those_who_wait_are_let_in_by_turns_of_their_namespaces() {
    let limiter = Arc::new(limiter(1, 100));
    let first = limiter.acquire(RequestClass::Write, "red").await.expect("a permit");
    let order = Arc::new(Mutex::new(Vec::new()));
    let mut all = tokio::task::JoinSet::new();
    for name in ["red", "red", "red", "red", "blue", "blue", "green"] {
        let (limiter, order) = (limiter.clone(), order.clone());
        all.spawn(async move {
            let permit = limiter.acquire(RequestClass::Write, name).await.expect("a turn");
            order.lock().push(name);
            drop(permit);
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
    let limiter = limiter(1, 5);
    let first = limiter.acquire(RequestClass::Look, "a").await.expect("a permit");
    let waiting = tokio::time::timeout(Duration::from_millis(1), limiter.acquire(RequestClass::Look, "b")).await;
    assert!(waiting.is_err(), "it waited");
    assert_eq!(limiter.semaphore(RequestClass::Look).queue.lock().waiting, 0);
    // Let in and gone before it knew.
    {
        let mut acquiring = std::pin::pin!(limiter.acquire(RequestClass::Look, "b"));
        assert!(waits(acquiring.as_mut()));
        drop(first);
        assert_eq!(limiter.busy(RequestClass::Look), 1);
    }
    assert_eq!(limiter.busy(RequestClass::Look), 0);
    let queue = limiter.semaphore(RequestClass::Look).queue.lock();
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
        LimiterOptions { body_bytes: 32 << 10, body_timeout: Duration::from_millis(50), ..LimiterOptions::default() };
    let limiter = Limiter::new(options, &Quotas::default());
    let body = || of(Body::from(vec![b' '; 12 << 10]));
    // A sender of one byte of a body of unknown length takes one part of thirty-two.
    let (slow, others) = tokio::join!(limiter.read(of(slow(1)), RequestClass::Write, 1 << 20, "red"), async {
        limiter.read(body(), RequestClass::Write, 1 << 20, "red").await
    });
    assert_eq!(slow.expect_err("it never ends").status.as_u16(), 408);
    let (_, kept) = others.expect("there is memory beside it");
    let refused =
        limiter.read(body(), RequestClass::Write, 1 << 20, "red").await.expect_err("the first is still worked on");
    assert_eq!((refused.status.as_u16(), refused.quota), (429, Some(Quota::BodyBytes)));
    assert_eq!(limiter.refused(RequestClass::Write), 1, "it is counted");
    assert!(
        limiter.read(body(), RequestClass::Vital, 1 << 20, "red").await.is_ok(),
        "reports have memory of their own"
    );
    assert!(limiter.read(body(), RequestClass::Write, 1 << 20, "blue").await.is_ok(), "and so has every namespace");
    drop(kept);
    assert!(limiter.read(body(), RequestClass::Write, 1 << 20, "red").await.is_ok());
    let large = limiter.read(body(), RequestClass::Write, 5 << 10, "red").await;
    assert_eq!(large.expect_err("too large").status.as_u16(), 413);
}

/// The finding: eight unfinished report bodies of one namespace refused every heartbeat of all others.
#[tokio::test]
async fn unfinished_reports_of_one_namespace_refuse_nobody_else() {
    let options = LimiterOptions {
        body_bytes: 256 << 10,
        large_body: 32 << 10,
        body_timeout: Duration::from_secs(5),
        ..LimiterOptions::default()
    };
    let limiter = Limiter::new(options, &Quotas::default());
    let unfinished = futures_util::future::join_all(
        (0..8).map(|_| limiter.read(of(slow((32 << 10) - 1)), RequestClass::Vital, 32 << 10, "red")),
    );
    tokio::pin!(unfinished);
    assert!(waits(unfinished.as_mut()));
    for _ in 0..20 {
        let beat = limiter.read(of(Body::from(vec![b' '; 300])), RequestClass::Vital, 1 << 20, "blue").await;
        assert!(beat.is_ok(), "a heartbeat");
    }
    let report = limiter.read(of(Body::from(vec![b' '; 32 << 10])), RequestClass::Vital, 32 << 10, "blue").await;
    assert!(report.is_ok(), "a report as large as it may be");
}

#[tokio::test]
async fn memory_of_a_parsed_body_is_given_back_while_the_request_waits() {
    let limiter =
        Limiter::new(LimiterOptions { body_bytes: 64 << 10, ..LimiterOptions::default() }, &Quotas::default());
    let mut polls = Vec::new();
    for _ in 0..100 {
        let padded = of(Body::from(vec![b' '; 12 << 10]));
        let (_, memory) = limiter.read(padded, RequestClass::Lease, 1 << 20, "red").await.expect("a permit");
        let admitted =
            Admitted::new((limiter.acquire(RequestClass::Lease, "red").await.expect("a permit"), None), memory);
        admitted.keep_memory(100).expect("less than before");
        polls.push(admitted);
    }
    assert_eq!(limiter.busy(RequestClass::Lease), 100);
}

#[tokio::test]
async fn what_is_kept_of_a_body_counts_even_where_it_is_more_than_the_body_was() {
    let limiter =
        Limiter::new(LimiterOptions { body_bytes: 64 << 10, ..LimiterOptions::default() }, &Quotas::default());
    let mut polls = Vec::new();
    let refused = loop {
        let (_, memory) =
            limiter.read(of(Body::from("[]")), RequestClass::Lease, 1 << 20, "red").await.expect("a permit");
        let admitted =
            Admitted::new((limiter.acquire(RequestClass::Lease, "red").await.expect("a permit"), None), memory);
        match admitted.keep_memory(10 << 10) {
            Ok(()) => polls.push(admitted),
            Err(refused) => break refused,
        }
    };
    assert_eq!((polls.len(), refused.quota), (3, Some(Quota::BodyBytes)), "half of 64 KiB is its part");
}
