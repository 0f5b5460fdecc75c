//! Talks to a Comeback server over HTTP. It decides nothing about retries: a worker says what happened, the server says what
//! comes of it.
//!
//! ```no_run
//! # async fn demo() -> Result<(), comeback_client::Error> {
//! use comeback_client::{Client, Outcome, Worker};
//! use serde_json::json;
//!
//! let client = Client::new("http://127.0.0.1:7330")?;
//! client.submit(&json!({"kind": "hello", "retry": 5})).await?;
//! Worker::new(client, "me")
//!     .handle("hello", |task| async move { Outcome::succeeded(json!({"attempt": task.attempt_number})) })
//!     .run(std::future::pending())
//!     .await
//! # }
//! ```

#![deny(missing_docs)]

mod client;
mod reports;
mod worker;

pub use client::{Client, Error, Problem};
pub use worker::{Lease, Outcome, Task, Worker};
