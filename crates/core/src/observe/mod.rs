//! Statistics, error groups, alerts and webhook subscriptions.

pub mod alert;
pub mod error_group;
pub mod stats;
pub mod subscription;
