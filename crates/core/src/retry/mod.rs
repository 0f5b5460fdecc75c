//! Retries: what a policy says, what a failure is, and the one function that decides between them.

pub mod decide;

pub mod backoff;
pub mod budget;
pub mod failure;
pub mod guard;
pub(crate) mod pattern;
pub mod policy;
pub mod reason;
pub mod window;
