//! Through the real binary: a server is started, spoken to over HTTP and by its own command line, killed, and started again.

mod command_line;
mod daemon;
mod database;
mod door;
mod examples;
mod executors;
mod harness;
mod kills;
mod postgres;
mod restores;
mod scripts;
#[path = "../common/server.rs"]
mod server;
mod tasks;
mod telemetry;
mod terminal;
mod workers;
