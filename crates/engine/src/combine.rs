//! Group commit: what callers ask at the same moment goes to the store together. The commit under way is the window; nobody
//! waits for a timer.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use comeback_store::background::caught;
use comeback_store::{Background, Finished, StoreError, panic_point};
use tokio::sync::{Mutex, mpsc, oneshot};

use crate::CommandError;

/// Gathers questions and asks them together. The askers stop when this is gone and everything was answered.
pub struct Combiner<Q, A> {
    queue: mpsc::Sender<(Q, oneshot::Sender<A>)>,
    askers: Vec<tokio::task::JoinHandle<()>>,
}

/// How many questions may wait before callers have to.
const WAITING: usize = 4_096;
/// A batch that takes ten times as long is stuck.
const PERIOD: Duration = Duration::from_secs(3);

/// Why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unanswered {
    /// The engine is shutting down; nothing was done.
    Closed,
    /// The batch panicked; it may have been done.
    BrokenOff,
}

impl From<Unanswered> for CommandError {
    fn from(unanswered: Unanswered) -> Self {
        match unanswered {
            Unanswered::Closed => CommandError::ShuttingDown,
            Unanswered::BrokenOff => StoreError::Unknown("the batch broke off".into()).into(),
        }
    }
}

impl<Q: Send + 'static, A: Send + 'static> Combiner<Q, A> {
    /// `askers` run side by side; each takes what has gathered, at most `most`, and asks it in one go. A batch that panics fails
    /// its own callers only.
    pub fn start<F, Fut>(
        background: &Background,
        name: &'static str,
        askers: usize,
        most: usize,
        ask: F,
    ) -> Combiner<Q, A>
    where
        F: Fn(Vec<Q>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Vec<A>> + Send,
    {
        let (queue, receiver) = mpsc::channel::<(Q, oneshot::Sender<A>)>(WAITING);
        let receiver = Arc::new(Mutex::new(receiver));
        let ask = Arc::new(ask);
        let start = |number: usize| {
            let name = if askers > 1 { format!("combiner/{name}-{number}") } else { format!("combiner/{name}") };
            let (receiver, ask) = (receiver.clone(), ask.clone());
            background.spawn(name, PERIOD, move |beat| {
                let (receiver, ask) = (receiver.clone(), ask.clone());
                async move {
                    let mut batch = Vec::new();
                    loop {
                        beat.idle();
                        let taken = receiver.lock().await.recv_many(&mut batch, most).await;
                        if taken == 0 {
                            return Finished;
                        }
                        beat.turn();
                        let (questions, replies): (Vec<Q>, Vec<_>) = batch.drain(..).unzip();
                        panic_point!("combiner-before-batch");
                        let answers = match caught(ask(questions)).await {
                            Ok(answers) => answers,
                            Err(panic) => {
                                let task = beat.name();
                                tracing::error!(task, panic, "batch panicked; its callers get an error");
                                continue;
                            }
                        };
                        panic_point!("combiner-after-batch");
                        for (reply, answer) in replies.into_iter().zip(answers) {
                            // A caller that went away does not want its answer; what was done stays done.
                            let _ = reply.send(answer);
                        }
                    }
                }
            })
        };
        Combiner { queue, askers: (0..askers.max(1)).map(start).collect() }
    }

    /// Takes no more questions and waits until those that were asked are answered.
    pub async fn close(self) {
        drop(self.queue);
        for asker in self.askers {
            let _ = asker.await;
        }
    }

    pub async fn ask(&self, question: Q) -> Result<A, Unanswered> {
        let (reply, answer) = oneshot::channel();
        self.queue.send((question, reply)).await.map_err(|_| Unanswered::Closed)?;
        answer.await.map_err(|_| Unanswered::BrokenOff)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[tokio::test]
    async fn what_gathers_is_asked_together_and_everybody_gets_their_own_answer() {
        let rounds = Arc::new(AtomicUsize::new(0));
        let counted = rounds.clone();
        let combiner = Arc::new(Combiner::start(&Background::default(), "test", 1, 100, move |questions: Vec<u32>| {
            counted.fetch_add(1, Ordering::SeqCst);
            async move {
                tokio::task::yield_now().await;
                questions.into_iter().map(|n| n * 2).collect()
            }
        }));
        let mut callers = tokio::task::JoinSet::new();
        for n in 0..50_u32 {
            let combiner = combiner.clone();
            callers.spawn(async move { (n, combiner.ask(n).await) });
        }
        for (n, answer) in callers.join_all().await {
            assert_eq!(answer, Ok(n * 2));
        }
        assert!(rounds.load(Ordering::SeqCst) < 50, "they were combined");
    }

    /// C3: a panic in one batch used to end its lane for everybody and for good.
    #[tokio::test]
    async fn a_batch_that_panics_fails_its_own_callers_only() {
        let background = Background::default();
        let combiner = Combiner::start(&background, "test", 2, 1, |questions: Vec<u32>| async move {
            assert!(!questions.contains(&13), "on purpose");
            questions
        });
        for round in 0..5 {
            assert_eq!(combiner.ask(13).await, Err(Unanswered::BrokenOff), "{round}");
            assert_eq!(combiner.ask(round).await, Ok(round));
        }
        assert_eq!(background.names(), ["combiner/test-0", "combiner/test-1"]);
        assert_eq!(background.stalled(), []);
        combiner.close().await;
        assert!(background.names().is_empty());
    }
}
