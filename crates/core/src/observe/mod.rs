//! Statistics, error groups, and those who are notified of them.

pub mod alert;
pub mod error_group;
pub mod fingerprint;
pub mod stats;
pub mod subscription;
