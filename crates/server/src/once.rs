//! `Idempotency-Key`: who sends the same request again gets the first answer again, and nothing is done twice.

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
use crate::gate::{self, Hall, Room};
use crate::problem::Problem;

const HEADER: &str = "idempotency-key";

/// The key a request came under, if it had one. Its scope is the route; the address is part of what must be the same.
pub struct Once {
    scope: String,
    path: String,
    key: Option<Result<String, ()>>,
}

impl FromRequestParts<Arc<App>> for Once {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &Arc<App>) -> Result<Once, Infallible> {
        let path = parts.uri.path().to_owned();
        let route = parts.extensions.get::<MatchedPath>().map_or(path.as_str(), MatchedPath::as_str);
        let key = parts.headers.get(HEADER).map(|value| value.to_str().map(str::to_owned).map_err(drop));
        Ok(Once { scope: format!("{} {route}", parts.method), path, key })
    }
}

impl Once {
    pub fn key(&self) -> Option<&str> {
        self.key.as_ref().and_then(|key| key.as_deref().ok())
    }

    pub fn of(self, app: &App, body: &[u8]) -> Result<Option<Idempotency>, Problem> {
        let Once { scope, path, key } = self;
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

    /// Does an act that is not about a task once. `act` is given who acts with the key of the request: the store writes the key in the
    /// transaction of the act, so that neither another instance nor a crash makes a second one of it. An act of several writes does each
    /// under a part of the key ([`Actor::part`]) and brings the key with the last. `again` answers a repetition, by the answer that was
    /// stored with the key or by things as they are now. A request under the same key waits for the first. An act that was begun is done
    /// whether or not its caller waits for the answer; it keeps its caller's place until then.
    pub async fn guard<T, Done, Repeated>(
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
        let admitted = gate::admitted();
        let (key, app, namespace) = (self.of(app, body)?, app.clone(), namespace.to_owned());
        let place = match &key {
            Some(_) => Some(app.keyed_acts.places.enter(&namespace).await?),
            None => None,
        };
        let whole = async move {
            let _held = (admitted, place);
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
                // Another instance was quicker, or it was done and something failed after it.
                Err(problem) => match app.engine.done_before(&namespace, &key).await? {
                    Some(done) => again(done.answer).await,
                    None => Err(problem),
                },
            }
        };
        Running::spawn(whole).await.map_err(|_| Problem::unavailable("the act broke off"))?
    }
}

/// Acts under an idempotency key that are in progress: one at a time of each key, and so many of each namespace.
pub struct KeyedActs {
    places: Arc<Hall>,
    locks: Arc<Mutex<HashMap<LockName, Arc<tokio::sync::Mutex<()>>>>>,
}

/// Namespace, scope and key.
type LockName = (String, String, String);

/// Acts at once, and those that may wait for how long.
const ROOM: Room = Room { places: 512, queue: 2_048, patience: Duration::from_secs(5) };

impl KeyedActs {
    pub fn new(quotas: &Quotas) -> Arc<KeyedActs> {
        let places = Arc::new(Hall::new(Quota::KeyedActs, ROOM, quotas));
        Arc::new(KeyedActs { places, locks: Arc::default() })
    }

    fn lock_of(&self, namespace: &str, key: &Idempotency) -> ActLock {
        let name = (namespace.to_owned(), key.scope.clone(), key.key.clone());
        let mutex = self.locks.lock().entry(name.clone()).or_default().clone();
        ActLock { locks: self.locks.clone(), name, mutex }
    }
}

/// The lock of one key, forgotten with the last that uses it.
struct ActLock {
    locks: Arc<Mutex<HashMap<LockName, Arc<tokio::sync::Mutex<()>>>>>,
    name: LockName,
    mutex: Arc<tokio::sync::Mutex<()>>,
}

impl Drop for ActLock {
    fn drop(&mut self) {
        let mut locks = self.locks.lock();
        // The map's and this one: new ones are only made under the lock of the map.
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
