//! `Idempotency-Key`: a repeated request gets the first response, and nothing is done twice.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{FromRequestParts, MatchedPath};
use axum::http::request::Parts;
use comeback_core::transition::Actor;
use comeback_core::{ActKey, Invalid, Quota, Quotas};
use comeback_engine::store::{Idempotency, Running, panic_point};
use parking_lot::Mutex;
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::App;
use crate::limiter::{self, ClassLimits, FairSemaphore};
use crate::problem::Problem;

const HEADER: &str = "idempotency-key";

/// The idempotency key of a request, if it has one. Its scope is the route; path and body must be the same in a
/// repetition.
pub struct IdempotencyKey {
    scope: String,
    path: String,
    key: Option<Result<String, ()>>,
}

impl FromRequestParts<Arc<App>> for IdempotencyKey {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &Arc<App>) -> Result<IdempotencyKey, Infallible> {
        let path = parts.uri.path().to_owned();
        let route = parts.extensions.get::<MatchedPath>().map_or(path.as_str(), MatchedPath::as_str);
        let key = parts.headers.get(HEADER).map(|value| value.to_str().map(str::to_owned).map_err(drop));
        Ok(IdempotencyKey { scope: format!("{} {route}", parts.method), path, key })
    }
}

impl IdempotencyKey {
    /// The key as sent; `None` if there is none or it is not ASCII.
    pub fn text(&self) -> Option<&str> {
        self.key.as_ref().and_then(|key| key.as_deref().ok())
    }

    /// The key with the digest of path and body, for the store.
    pub fn with_body(self, app: &App, body: &[u8]) -> Result<Option<Idempotency>, Problem> {
        let IdempotencyKey { scope, path, key } = self;
        let Some(key) = key else { return Ok(None) };
        let key = key.map_err(|()| Invalid::one(HEADER, "must be printable ASCII"))?;
        let mut digest = Sha256::new();
        digest.update(path);
        digest.update([0]);
        digest.update(body);
        let key = Idempotency { scope, key, digest: digest.finalize().into() };
        app.engine.check_key(&key)?;
        Ok(Some(key))
    }

    /// Runs an act that is not about a task at most once per key. `act` gets the actor with the key of the request: the
    /// store writes the key in the transaction of the act, so that neither another instance nor a crash repeats it. An
    /// act of several writes does each under a part of the key ([`Actor::part`]) and writes the key with the last.
    /// `again` answers a repetition, from the response stored with the key or from the current state. A request with
    /// the same key waits for the first. An act that has started completes even if its caller disconnects, and holds
    /// its permit until then.
    pub async fn run_once<T, Done, Repeated>(
        self,
        app: &Arc<App>,
        namespace: &str,
        body: &[u8],
        by: Actor,
        act: impl FnOnce(Actor) -> Done + Send + 'static,
        again: impl FnOnce(Option<Value>) -> Repeated + Send + 'static,
    ) -> Result<T, Problem>
    where
        T: Send + 'static,
        Done: Future<Output = Result<T, Problem>> + Send,
        Repeated: Future<Output = Result<T, Problem>> + Send,
    {
        let admitted = limiter::admitted();
        let (key, app, namespace) = (self.with_body(app, body)?, app.clone(), namespace.to_owned());
        let permit = match &key {
            Some(_) => Some(app.keyed_acts.permits.acquire(&namespace).await?),
            None => None,
        };
        let whole = async move {
            let _held = (admitted, permit);
            let Some(key) = key else { return act(by).await };
            let lock = app.keyed_acts.lock_of(&namespace, &key);
            let _one_at_a_time = lock.mutex.lock().await;
            if let Some(done) = app.engine.done_before(&namespace, &key).await? {
                return again(done.answer).await;
            }
            let once = Some(Arc::new(ActKey { namespace: namespace.clone(), key: key.clone() }));
            let answer = act(Actor { once, ..by }).await;
            panic_point!("server-keyed-act");
            match answer {
                Ok(answer) => {
                    // An act that found nothing to write has not used its key yet.
                    app.engine.remember_done(&namespace, &key).await?;
                    Ok(answer)
                }
                // Another instance did it first, or it was done and a later step failed.
                Err(problem) => match app.engine.done_before(&namespace, &key).await? {
                    Some(done) => again(done.answer).await,
                    None => Err(problem),
                },
            }
        };
        Running::spawn(whole).await.map_err(|_| Problem::unavailable("request aborted: the act did not complete"))?
    }
}

/// Acts in progress under an idempotency key: one at a time per key, and a limited number per namespace.
pub struct KeyedActs {
    permits: Arc<FairSemaphore>,
    locks: Arc<Mutex<HashMap<LockName, Arc<tokio::sync::Mutex<()>>>>>,
}

/// Namespace, scope and key.
type LockName = (String, String, String);

/// Limits of keyed acts of all namespaces.
const LIMITS: ClassLimits = ClassLimits { permits: 512, queue: 2_048, timeout: Duration::from_secs(5) };

impl KeyedActs {
    /// No acts in progress.
    pub fn new(quotas: &Quotas) -> Arc<KeyedActs> {
        let permits = Arc::new(FairSemaphore::new(Quota::KeyedActs, LIMITS, quotas));
        Arc::new(KeyedActs { permits, locks: Arc::default() })
    }

    fn lock_of(&self, namespace: &str, key: &Idempotency) -> ActLock {
        let name = (namespace.to_owned(), key.scope.clone(), key.key.clone());
        let mutex = self.locks.lock().entry(name.clone()).or_default().clone();
        ActLock { locks: self.locks.clone(), name, mutex }
    }
}

/// The lock of one key, removed with its last user.
struct ActLock {
    locks: Arc<Mutex<HashMap<LockName, Arc<tokio::sync::Mutex<()>>>>>,
    name: LockName,
    mutex: Arc<tokio::sync::Mutex<()>>,
}

impl Drop for ActLock {
    fn drop(&mut self) {
        let mut locks = self.locks.lock();
        // Two references: the map's and this one. New ones are only made under the lock of the map.
        if Arc::strong_count(&self.mutex) <= 2 {
            locks.remove(&self.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(key: &str) -> Idempotency {
        Idempotency { scope: "POST /events".into(), key: key.into(), digest: [0; 32] }
    }

    #[tokio::test]
    async fn acts_wait_for_their_own_key_only_and_locks_are_forgotten() {
        let acts = KeyedActs::new(&Quotas::default());
        let held = acts.lock_of("red", &key("a"));
        let guard = held.mutex.lock().await;
        for (namespace, other) in [("red", "b"), ("blue", "a")] {
            assert!(acts.lock_of(namespace, &key(other)).mutex.try_lock().is_ok(), "{namespace} {other}");
        }
        let same = acts.lock_of("red", &key("a"));
        assert!(same.mutex.try_lock().is_err());
        drop(guard);
        drop(held);
        assert!(same.mutex.try_lock().is_ok());
        assert_eq!(acts.locks.lock().len(), 1, "one is still in use");
        drop(same);
        assert!(acts.locks.lock().is_empty());
    }
}
