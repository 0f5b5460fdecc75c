//! Clients of other systems, on both databases: what they send is accepted as it is, and they are answered in their own words.

mod batch;
mod jobs;
#[path = "../../server/tests/place/mod.rs"]
#[allow(dead_code, reason = "tests of the server use the rest")]
mod place;
mod queue;
mod schedules;
