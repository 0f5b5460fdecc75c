//! A server with a clock that tests advance, asked by method and path.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::http::{Method, StatusCode};
use comeback_core::{Millis, Timestamp};
use comeback_engine::{LeaseRef, LeaseRequest};
use comeback_server::App;
use serde_json::Value;

use super::{Answer, Place, START, request, send};

/// A server, and time that is moved by hand.
pub struct World {
    pub app: Arc<App>,
    router: Router,
}

impl World {
    pub fn new(app: Arc<App>) -> World {
        World { router: app.router(), app }
    }

    pub async fn ask(&self, method: Method, address: &str, body: Option<Value>) -> Answer {
        let text = body.map(|body| body.to_string());
        let mut builder = request(&method, address);
        if let Some(text) = &text {
            builder = builder.header("content-type", "application/json").header("content-length", text.len());
        }
        send(&self.router, builder.body(text.map_or_else(Body::empty, Body::from)).expect("a request")).await
    }

    pub async fn good(&self, method: Method, address: &str, body: Option<Value>) -> Value {
        let answer = self.ask(method.clone(), address, body).await;
        assert!(answer.status.is_success(), "{method} {address}: {} {:?}", answer.status, answer.bytes);
        if answer.bytes.is_empty() { Value::Null } else { answer.json() }
    }

    pub async fn get(&self, address: &str) -> Value {
        self.good(Method::GET, address, None).await
    }

    pub async fn post(&self, address: &str, body: Value) -> Value {
        self.good(Method::POST, address, Some(body)).await
    }

    pub async fn patch(&self, address: &str, body: Value) -> Value {
        self.good(Method::PATCH, address, Some(body)).await
    }

    pub async fn refused(&self, method: Method, address: &str, body: Value) -> (StatusCode, Value) {
        let answer = self.ask(method, address, Some(body)).await;
        assert!(answer.status.is_client_error(), "{address}: {} {:?}", answer.status, answer.bytes);
        (answer.status, answer.json())
    }

    /// Time passes, and what is due happens.
    pub async fn pass(&self, seconds: u64) {
        self.app.clock.as_ref().expect("time is moved by hand").advance(Millis::from_secs(seconds));
        self.app.engine.tick().await.expect("the loops run");
    }

    /// When that is, so many seconds after the beginning.
    pub fn at(&self, seconds: u64) -> String {
        Timestamp::to_rfc3339(START + Millis::from_secs(seconds))
    }

    /// The calls that start tasks are made; nobody has answered them yet.
    pub async fn call(&self) -> Vec<LeaseRef> {
        let claimed = self.app.engine.claim_hooks(LeaseRequest::new("default", "hooks")).await.expect("claimed");
        claimed.iter().map(|it| it.lease).collect()
    }

    /// The calls that start tasks are made and answered.
    pub async fn start(&self) -> usize {
        let calls = self.call().await;
        for call in &calls {
            self.app.engine.hook_started("default", *call).await.expect("started");
        }
        calls.len()
    }
}

pub fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("{value}"))
}

/// Runs a story on both databases.
pub async fn everywhere(story: impl AsyncFn(&World)) {
    for place in Place::all().await {
        let world = World::new(place.app.clone());
        story(&world).await;
        drop(world);
        place.leave().await;
    }
}
