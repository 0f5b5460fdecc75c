//! The languages that policies are written in, and the types that everything is said with.

pub mod dialect;
pub mod expression;
pub mod id;
pub mod invalid;
pub mod mask;
pub mod time;
pub(crate) mod words;
