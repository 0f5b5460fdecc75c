//! The past: the audit log, replayed events, edited payloads, verdicts taken again, and back-tests of policies.

pub mod audit;
pub mod backtest;
pub mod payload;
pub mod repair;
pub mod replay;
