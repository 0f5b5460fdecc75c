//! Limits on what may run: admission rules, accounts, quotas, and bulk operations.

pub mod account;
pub mod admission;
pub mod operation;
pub mod quota;
