//! Group commit: what callers ask at the same moment goes to the store together. The commit under way is the window; nobody
//! waits for a timer.

use std::future::Future;
use std::sync::Arc;

use tokio::sync::{Mutex, mpsc, oneshot};

/// Gathers questions and asks them together. The askers stop when this is gone and everything was answered.
pub struct Combiner<Q, A> {
    queue: mpsc::Sender<(Q, oneshot::Sender<A>)>,
    askers: Vec<tokio::task::JoinHandle<()>>,
}

/// How many questions may wait before callers have to.
const WAITING: usize = 4_096;

impl<Q: Send + 'static, A: Send + 'static> Combiner<Q, A> {
    /// `askers` run side by side; each takes what has gathered, at most `most`, and asks it in one go.
    pub fn start<F, Fut>(askers: usize, most: usize, ask: F) -> Combiner<Q, A>
    where
        F: Fn(Vec<Q>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Vec<A>> + Send,
    {
        let (queue, receiver) = mpsc::channel::<(Q, oneshot::Sender<A>)>(WAITING);
        let receiver = Arc::new(Mutex::new(receiver));
        let ask = Arc::new(ask);
        let start = |_| {
            let (receiver, ask) = (receiver.clone(), ask.clone());
            tokio::spawn(async move {
                let mut batch = Vec::new();
                loop {
                    let taken = receiver.lock().await.recv_many(&mut batch, most).await;
                    if taken == 0 {
                        return;
                    }
                    let (questions, replies): (Vec<Q>, Vec<_>) = batch.drain(..).unzip();
                    for (reply, answer) in replies.into_iter().zip(ask(questions).await) {
                        // A caller that went away does not want its answer; what was done stays done.
                        let _ = reply.send(answer);
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

    /// Nothing only when the engine is shutting down.
    pub async fn ask(&self, question: Q) -> Option<A> {
        let (reply, answer) = oneshot::channel();
        self.queue.send((question, reply)).await.ok()?;
        answer.await.ok()
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
        let combiner = Arc::new(Combiner::start(1, 100, move |questions: Vec<u32>| {
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
            assert_eq!(answer, Some(n * 2));
        }
        assert!(rounds.load(Ordering::SeqCst) < 50, "they were combined");
    }
}
