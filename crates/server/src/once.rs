//! `Idempotency-Key`: who sends the same request again gets the first answer again, and nothing is done twice.

use std::convert::Infallible;
use std::sync::Arc;

use axum::extract::{FromRequestParts, MatchedPath};
use axum::http::request::Parts;
use comeback_core::Invalid;
use comeback_engine::store::{Idempotency, Running, panic_point};
use sha2::{Digest, Sha256};

use crate::App;
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

    /// For acts that are not about a task: whoever comes under the same key waits for the first, and then has nothing to do.
    /// What was begun is done and remembered, whether or not the caller waits for the answer.
    pub async fn guard<T: Send + 'static>(
        self,
        app: &Arc<App>,
        namespace: &str,
        body: &[u8],
        act: impl Future<Output = Result<T, Problem>> + Send + 'static,
        again: impl Future<Output = Result<T, Problem>> + Send + 'static,
    ) -> Result<T, Problem> {
        let (key, app, namespace) = (self.of(app, body)?, app.clone(), namespace.to_owned());
        let whole = async move {
            let Some(key) = key else { return act.await };
            let _one_at_a_time = app.keyed_acts.lock().await;
            if app.engine.is_done(&namespace, &key).await? {
                return again.await;
            }
            let answer = act.await?;
            panic_point!("server-keyed-act");
            app.engine.remember_done(&namespace, &key).await?;
            Ok(answer)
        };
        Running::spawn(whole).await.map_err(|_| Problem::unavailable("the act broke off"))?
    }
}
