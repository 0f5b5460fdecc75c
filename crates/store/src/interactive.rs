//! Interactive reads: lists, searches and numbers that people ask for, kept apart from the reads of the engine itself.
//!
//! A handler that serves a person runs the whole request inside [`interactive`]. Every read in there uses connections of its own, so loops,
//! verdicts and health checks never wait for one. It is interrupted as soon as the caller's future is dropped. The methods that may have
//! to look at many rows are searches on top of that: each has a time limit, a namespace has so many at once, and the others wait in turn.

use std::collections::{HashMap, VecDeque};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use comeback_core::{Quota, QuotaExceeded};
use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::StoreError;

/// A reader and its limits.
#[derive(Clone, Debug)]
pub struct Interactive {
    /// The namespace that the reads are counted for.
    pub namespace: Arc<str>,
    /// How long one search may take.
    pub timeout: Duration,
    /// How many searches of the namespace may run at once (the quota `searches`).
    pub searches: u64,
}

impl Interactive {
    /// The scope that the current task reads under; None for the engine's own reads.
    pub fn current() -> Option<Interactive> {
        Scope::current().map(|scope| scope.reads.clone())
    }
}

tokio::task_local! {
    static SCOPE: Arc<Scope>;
}

/// Runs a future whose reads are interactive. When it is dropped before it is done, the statements it waits for are interrupted.
pub async fn interactive<T>(reads: Interactive, work: impl Future<Output = T> + Send) -> T {
    let scope = Scope { reads, canceled: AtomicBool::new(false), deadline: None, parent: None };
    Scoped { scope: Arc::new(scope), work: Some(Box::pin(work)) }.await
}

/// State that the reads of one caller share.
#[derive(Debug)]
pub(crate) struct Scope {
    reads: Interactive,
    canceled: AtomicBool,
    deadline: Option<Instant>,
    parent: Option<Arc<Scope>>,
}

impl Scope {
    /// The one that this task runs in; nothing for the engine's own reads.
    pub fn current() -> Option<Arc<Scope>> {
        SCOPE.try_with(Arc::clone).ok()
    }

    /// The same with a time limit from now on, unless it has one.
    pub fn limited(self: &Arc<Scope>) -> Arc<Scope> {
        if self.deadline.is_some() {
            return self.clone();
        }
        let deadline = Instant::now() + self.reads.timeout;
        let (reads, canceled) = (self.reads.clone(), AtomicBool::new(false));
        Arc::new(Scope { reads, canceled, deadline: Some(deadline), parent: Some(self.clone()) })
    }

    /// Whether its statements are to be interrupted.
    pub fn is_over(&self) -> bool {
        self.canceled.load(Ordering::Relaxed) || self.is_late() || self.parent.as_ref().is_some_and(|it| it.is_over())
    }

    /// Whether its time limit has passed.
    pub fn is_late(&self) -> bool {
        self.deadline.is_some_and(|deadline| Instant::now() >= deadline)
    }

    /// The error of an interrupted read.
    pub fn timed_out(&self) -> StoreError {
        StoreError::SearchTimeout(self.reads.timeout)
    }
}

/// A future inside a scope. Its scope is over before the future is dropped, so what the future holds can tell an abandoned statement
/// from one that is done.
struct Scoped<F> {
    scope: Arc<Scope>,
    work: Option<Pin<Box<F>>>,
}

impl<F: Future> Future for Scoped<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.get_mut();
        let Some(work) = this.work.as_mut() else { return Poll::Pending };
        let polled = SCOPE.sync_scope(this.scope.clone(), || work.as_mut().poll(context));
        if polled.is_ready() {
            this.work = None;
        }
        polled
    }
}

impl<F> Drop for Scoped<F> {
    fn drop(&mut self) {
        if self.work.is_some() {
            self.scope.canceled.store(true, Ordering::Relaxed);
        }
    }
}

/// Searches of one namespace that may wait for their turn.
const MOST_WAITING: usize = 32;
/// How long one waits before it is refused.
const LONGEST_WAIT: Duration = Duration::from_secs(10);

/// The places for searches: shared by all namespaces, given to them in turn.
pub(crate) struct Searches {
    places: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    running: usize,
    lines: HashMap<Arc<str>, Line>,
    /// Namespaces with searches that wait, the next one first.
    turn: VecDeque<Arc<str>>,
}

/// The searches of one namespace.
#[derive(Default)]
struct Line {
    running: usize,
    most: usize,
    waiting: VecDeque<oneshot::Sender<Place>>,
}

/// A place that is free again when this is dropped.
pub(crate) struct Place {
    searches: Option<Arc<Searches>>,
    namespace: Arc<str>,
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(searches) = self.searches.take() {
            searches.release(&self.namespace);
        }
    }
}

impl Searches {
    pub fn new(places: usize) -> Arc<Searches> {
        Arc::new(Searches { places: places.max(1), state: Mutex::default() })
    }

    /// Runs a search: of a caller when its turn comes and no longer than it may, of the engine at once.
    pub async fn run<T>(
        self: &Arc<Searches>,
        work: impl Future<Output = Result<T, StoreError>> + Send,
    ) -> Result<T, StoreError> {
        let Some(scope) = Scope::current().filter(|scope| scope.deadline.is_none()) else { return work.await };
        let _place = self.enter(&scope.reads).await?;
        let limited = scope.limited();
        let work = Scoped { scope: limited.clone(), work: Some(Box::pin(work)) };
        match tokio::time::timeout(limited.reads.timeout, work).await {
            Ok(Err(_)) | Err(_) if limited.is_late() => Err(limited.timed_out()),
            Ok(answer) => answer,
            Err(_) => Err(limited.timed_out()),
        }
    }

    async fn enter(self: &Arc<Searches>, reads: &Interactive) -> Result<Place, QuotaExceeded> {
        let refused =
            || QuotaExceeded { quota: Quota::Searches, namespace: reads.namespace.to_string(), most: reads.searches };
        let told = {
            let mut state = self.state.lock();
            let most = usize::try_from(reads.searches).unwrap_or(usize::MAX).max(1);
            let has_room = state.running < self.places;
            let line = state.lines.entry(reads.namespace.clone()).or_default();
            line.most = most;
            if has_room && line.running < line.most {
                line.running += 1;
                state.running += 1;
                return Ok(self.place(&reads.namespace));
            }
            line.waiting.retain(|tell| !tell.is_closed());
            if line.waiting.len() >= MOST_WAITING {
                return Err(refused());
            }
            let (tell, told) = oneshot::channel();
            line.waiting.push_back(tell);
            if !state.turn.contains(&reads.namespace) {
                state.turn.push_back(reads.namespace.clone());
            }
            told
        };
        match tokio::time::timeout(LONGEST_WAIT, told).await {
            Ok(Ok(place)) => Ok(place),
            _ => Err(refused()),
        }
    }

    fn place(self: &Arc<Searches>, namespace: &Arc<str>) -> Place {
        Place { searches: Some(self.clone()), namespace: namespace.clone() }
    }

    fn release(self: &Arc<Searches>, namespace: &Arc<str>) {
        let mut state = self.state.lock();
        state.running = state.running.saturating_sub(1);
        if let Some(line) = state.lines.get_mut(namespace) {
            line.running = line.running.saturating_sub(1);
        }
        self.grant(&mut state);
        let is_idle = |line: &Line| line.running == 0 && line.waiting.is_empty();
        if state.lines.get(namespace).is_some_and(is_idle) {
            state.lines.remove(namespace);
        }
    }

    /// Gives free places to those who wait, one namespace after the other.
    fn grant(self: &Arc<Searches>, state: &mut State) {
        let mut passed_over = 0;
        while state.running < self.places && passed_over < state.turn.len() {
            let Some(namespace) = state.turn.pop_front() else { return };
            let Some(line) = state.lines.get_mut(&namespace) else { continue };
            let mut granted = false;
            while !granted
                && line.running < line.most
                && let Some(tell) = line.waiting.pop_front()
            {
                match tell.send(self.place(&namespace)) {
                    Ok(()) => {
                        line.running += 1;
                        state.running += 1;
                        granted = true;
                    }
                    // The caller has gone; nothing was taken, so nothing is given back.
                    Err(mut place) => place.searches = None,
                }
            }
            passed_over = if granted { 0 } else { passed_over + 1 };
            if line.waiting.is_empty() {
                passed_over = 0;
                if line.running == 0 {
                    state.lines.remove(&namespace);
                }
            } else {
                state.turn.push_back(namespace);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reads(namespace: &str, searches: u64) -> Interactive {
        Interactive { namespace: namespace.into(), timeout: Duration::from_millis(200), searches }
    }

    #[tokio::test]
    async fn a_namespace_has_its_quota_and_leaves_the_others_alone() {
        let searches = Searches::new(2);
        let red = searches.enter(&reads("red", 1)).await.expect("a place");
        let second = tokio::spawn({
            let searches = searches.clone();
            async move { searches.enter(&reads("red", 1)).await.map(drop) }
        });
        tokio::task::yield_now().await;
        let blue = searches.enter(&reads("blue", 1)).await.expect("red holds one place of two");
        assert!(!second.is_finished(), "the second of red waits for the first");
        drop(red);
        second.await.expect("no panic").expect("its turn has come");
        drop(blue);
        let state = searches.state.lock();
        assert_eq!((state.running, state.lines.len(), state.turn.len()), (0, 0, 0));
    }

    #[tokio::test]
    async fn namespaces_are_served_in_turn() {
        let searches = Searches::new(1);
        let first = searches.enter(&reads("red", 1)).await.expect("a place");
        let (said, mut heard) = tokio::sync::mpsc::unbounded_channel();
        for namespace in ["red", "red", "red", "blue"] {
            let (searches, said) = (searches.clone(), said.clone());
            tokio::spawn(async move {
                let place = searches.enter(&reads(namespace, 1)).await.expect("a place");
                said.send(namespace).expect("somebody listens");
                drop(place);
            });
            tokio::task::yield_now().await;
        }
        drop(first);
        let order = [heard.recv().await, heard.recv().await];
        assert!(order.contains(&Some("blue")), "blue waits for one search of red, not for three: {order:?}");
    }

    #[tokio::test]
    async fn the_line_of_a_namespace_is_bounded_and_refused_by_name() {
        let searches = Searches::new(1);
        let _held = searches.enter(&reads("red", 1)).await.expect("a place");
        let wait = |_| {
            let searches = searches.clone();
            tokio::spawn(async move { searches.enter(&reads("red", 1)).await.map(drop) })
        };
        let waiting: Vec<_> = (0..MOST_WAITING).map(wait).collect();
        tokio::task::yield_now().await;
        let refused = searches.enter(&reads("red", 1)).await.err().expect("the line is full");
        assert_eq!(refused.quota, Quota::Searches);
        // Callers that have gone leave the line.
        waiting.iter().for_each(tokio::task::JoinHandle::abort);
        for task in waiting {
            let _ = task.await;
        }
        let again = tokio::spawn(async move { searches.enter(&reads("red", 1)).await.map(drop) });
        tokio::task::yield_now().await;
        assert!(!again.is_finished(), "it waits, and is not refused");
        again.abort();
    }

    #[tokio::test]
    async fn a_search_ends_at_its_deadline_and_the_engines_own_does_not() {
        let searches = Searches::new(1);
        let never = || std::future::pending::<Result<(), StoreError>>();
        let late = interactive(reads("red", 1), searches.run(never())).await;
        assert!(matches!(late, Err(StoreError::SearchTimeout(_))), "{late:?}");
        let own = tokio::time::timeout(Duration::from_millis(400), searches.run(never())).await;
        assert!(own.is_err(), "nobody limits the engine");
    }

    #[tokio::test]
    async fn a_dropped_caller_ends_its_scope_before_its_work_is_dropped() {
        struct Seen(Arc<Scope>, Arc<AtomicBool>);
        impl Drop for Seen {
            fn drop(&mut self) {
                self.1.store(self.0.is_over(), Ordering::Relaxed);
            }
        }
        let saw = Arc::new(AtomicBool::new(false));
        let told = saw.clone();
        let work = async move {
            let _seen = Seen(Scope::current().expect("a scope"), told);
            std::future::pending::<()>().await;
        };
        let _ = tokio::time::timeout(Duration::from_millis(10), interactive(reads("red", 1), work)).await;
        assert!(saw.load(Ordering::Relaxed));
    }
}
