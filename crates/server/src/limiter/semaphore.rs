//! A fair semaphore: permits per namespace, and a queue served round-robin.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use comeback_core::{Quota, QuotaExceeded, Quotas};
use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::ClassLimits;
use crate::problem::Problem;

/// A semaphore shared by namespaces: limited permits per namespace, and a queue served round-robin.
pub struct FairSemaphore {
    quota: Quota,
    limits: ClassLimits,
    /// Maximum number of permits of one namespace.
    share: usize,
    /// Maximum number of queued requests of one namespace.
    queue_share: usize,
    pub(super) queue: Mutex<WaitQueue>,
    refused: AtomicU64,
}

/// Running and waiting requests.
#[derive(Default)]
pub(super) struct WaitQueue {
    pub(super) running: usize,
    pub(super) waiting: usize,
    pub(super) namespaces: HashMap<Arc<str>, NamespaceSlot>,
    /// Round-robin queue of namespaces with a waiting request and a free permit.
    pub(super) turns: VecDeque<Arc<str>>,
    /// Number of the next waiting request.
    next: u64,
}

/// Running and waiting requests of one namespace.
#[derive(Default)]
pub(super) struct NamespaceSlot {
    pub(super) running: usize,
    /// By number: the first is the oldest.
    waiting: BTreeMap<u64, oneshot::Sender<()>>,
    /// Whether the namespace is in `turns`.
    has_turn: bool,
}

/// Permit of one request, released on drop.
pub struct Permit {
    semaphore: Arc<FairSemaphore>,
    namespace: Arc<str>,
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.semaphore.release(&self.namespace);
    }
}

impl FairSemaphore {
    /// A namespace gets its quota of the permits, and at most three quarters.
    pub fn new(quota: Quota, limits: ClassLimits, quotas: &Quotas) -> FairSemaphore {
        let most = usize::try_from(quotas.get(quota)).unwrap_or(usize::MAX);
        FairSemaphore {
            quota,
            limits,
            share: most.min(limits.permits * 3 / 4).max(1),
            queue_share: if limits.queue == 0 { 0 } else { (limits.queue * 3 / 4).max(1) },
            queue: Mutex::default(),
            refused: AtomicU64::new(0),
        }
    }

    /// Number of refused requests.
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Number of running requests.
    pub fn running(&self) -> usize {
        self.queue.lock().running
    }

    /// Counts a refused request.
    pub fn count_refusal(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    fn quota_exceeded(&self, namespace: &str) -> Problem {
        let most = self.share as u64;
        QuotaExceeded { quota: self.quota, namespace: namespace.to_owned(), most }.into()
    }

    /// Waits for a permit. Refused with the name of the quota if the namespace holds its maximum.
    pub async fn acquire(self: &Arc<FairSemaphore>, namespace: &str) -> Result<Permit, Problem> {
        let mut wait = {
            let mut queue = self.queue.lock();
            let name = match queue.namespaces.get_key_value(namespace) {
                Some((name, _)) => name.clone(),
                None => Arc::from(namespace),
            };
            let (all, waiting) = (queue.running, queue.waiting);
            let slot = queue.namespaces.entry(name.clone()).or_default();
            if slot.running < self.share && all < self.limits.permits {
                slot.running += 1;
                queue.running += 1;
                return Ok(Permit { semaphore: self.clone(), namespace: name });
            }
            let used_up = slot.running >= self.share;
            if slot.waiting.len() >= self.queue_share || waiting >= self.limits.queue {
                let mine = used_up || waiting < self.limits.queue;
                queue.remove_idle(&name);
                return Err(if mine { self.quota_exceeded(namespace) } else { overloaded() });
            }
            queue.wait(self, name)
        };
        let granted = tokio::time::timeout(self.limits.timeout, &mut wait.granted).await;
        if matches!(granted, Ok(Ok(()))) {
            return Ok(wait.into_permit());
        }
        let used_up = self.queue.lock().namespaces.get(namespace).is_some_and(|slot| slot.running >= self.share);
        Err(if used_up { self.quota_exceeded(namespace) } else { overloaded() })
    }

    /// Releases a permit and grants it to the next namespace.
    fn release(&self, namespace: &Arc<str>) {
        let mut queue = self.queue.lock();
        queue.running = queue.running.saturating_sub(1);
        if let Some(slot) = queue.namespaces.get_mut(namespace) {
            slot.running = slot.running.saturating_sub(1);
        }
        queue.schedule_turn(namespace, self.share);
        queue.remove_idle(namespace);
        queue.grant_permits(self.limits.permits, self.share);
    }
}

fn overloaded() -> Problem {
    Problem::overloaded("the server is overloaded")
}

impl WaitQueue {
    /// Queues a request of a namespace.
    fn wait(&mut self, semaphore: &Arc<FairSemaphore>, namespace: Arc<str>) -> Waiter {
        let (grant, granted) = oneshot::channel();
        let number = self.next;
        self.next += 1;
        self.waiting += 1;
        if let Some(slot) = self.namespaces.get_mut(&namespace) {
            slot.waiting.insert(number, grant);
        }
        self.schedule_turn(&namespace, semaphore.share);
        Waiter { semaphore: semaphore.clone(), namespace, number, granted, is_over: false }
    }

    /// Adds a namespace to `turns` if it has a waiting request and is below its maximum.
    fn schedule_turn(&mut self, namespace: &Arc<str>, share: usize) {
        if let Some(slot) = self.namespaces.get_mut(namespace)
            && !slot.has_turn
            && !slot.waiting.is_empty()
            && slot.running < share
        {
            slot.has_turn = true;
            self.turns.push_back(namespace.clone());
        }
    }

    /// Grants free permits round-robin, one request per namespace and turn.
    fn grant_permits(&mut self, permits: usize, share: usize) {
        while self.running < permits {
            let Some(namespace) = self.turns.pop_front() else { return };
            if let Some(slot) = self.namespaces.get_mut(&namespace) {
                slot.has_turn = false;
                while slot.running < share {
                    let Some((_, grant)) = slot.waiting.pop_first() else { break };
                    self.waiting -= 1;
                    // A disconnected caller leaves the permit to the next.
                    if grant.send(()).is_ok() {
                        slot.running += 1;
                        self.running += 1;
                        break;
                    }
                }
            }
            self.schedule_turn(&namespace, share);
            self.remove_idle(&namespace);
        }
    }

    /// Removes a namespace without requests.
    fn remove_idle(&mut self, namespace: &Arc<str>) {
        if self.namespaces.get(namespace).is_some_and(|slot| slot.running == 0 && slot.waiting.is_empty()) {
            self.namespaces.remove(namespace);
            self.turns.retain(|other| other != namespace);
        }
    }
}

/// A queued request.
struct Waiter {
    semaphore: Arc<FairSemaphore>,
    namespace: Arc<str>,
    number: u64,
    granted: oneshot::Receiver<()>,
    is_over: bool,
}

impl Waiter {
    fn into_permit(mut self) -> Permit {
        self.is_over = true;
        Permit { semaphore: self.semaphore.clone(), namespace: self.namespace.clone() }
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let mut queue = self.semaphore.queue.lock();
        let left = queue.namespaces.get_mut(&self.namespace).and_then(|slot| slot.waiting.remove(&self.number));
        if left.is_some() {
            queue.waiting -= 1;
            queue.remove_idle(&self.namespace);
            return;
        }
        drop(queue);
        // Granted but never taken: release it to the next.
        if self.granted.try_recv().is_ok() {
            self.semaphore.release(&self.namespace);
        }
    }
}
