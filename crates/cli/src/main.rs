//! Stands at the door: arguments, logging, exit codes, the one binary. What a task is, others know.

mod args;
mod commands;
mod failure;
mod output;
mod telemetry;

use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let arguments = match args::Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            let asked = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
            let _ = error.print();
            return ExitCode::from(if asked { 0 } else { 2 });
        }
    };
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("error: no threads can be started: {error}");
            return ExitCode::from(1);
        }
    };
    let outcome = runtime.block_on(commands::run(arguments));
    // Blocking reads of the store may still run; nobody waits for them any more.
    runtime.shutdown_timeout(std::time::Duration::from_secs(2));
    match outcome {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            eprint!("{failure}");
            ExitCode::from(failure.code)
        }
    }
}
