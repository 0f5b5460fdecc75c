//! What a server says, asked without a socket. One program for all of it: linking takes longer than most of these tests.

mod audit;
mod bad_inputs;
#[path = "../../engine/tests/common/between.rs"]
mod between;
mod contract;
mod ends;
mod instances;
mod keys;
mod loops;
mod metrics;
mod native;
mod once;
mod pages;
mod place;
mod ready;
mod reports;
mod roles;
mod secrets;
mod shares;
mod steps;
mod triggers;
mod walls;
