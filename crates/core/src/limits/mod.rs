//! Limits on what may run: admission rules, accounts, dependencies, quotas, and bulk operations.

pub mod account;
pub mod admission;
pub mod dependency;
pub mod operation;
pub mod quota;
