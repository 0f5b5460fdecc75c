//! Stands at the door: arguments, configuration, logging, exit codes, the one binary. What a task is, others know.

// They panic when nobody can be written to: `say!`, `tell!` and `note!` do not.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod args;
mod commands;
mod complete;
mod config;
mod confirm;
mod crash;
mod environment;
mod failure;
mod output;
mod telemetry;
mod watch;

use std::process::ExitCode;

use clap::FromArgMatches;
use clap::error::ErrorKind;

use failure::Failure;

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    complete::answer();
    let read = args::command()
        .try_get_matches_from(args::typed())
        .and_then(|matches| args::Arguments::from_arg_matches(&matches).map(|arguments| (arguments, matches)));
    let (arguments, matches) = match read {
        Ok(read) => read,
        Err(error) => return refuse(&error),
    };
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            crate::output::aside!("error: no threads can be started: {error}");
            return ExitCode::from(failure::code::FAILED);
        }
    };
    let outcome = runtime.block_on(commands::run(arguments, &matches));
    // Blocking reads of the store may still run; nobody waits for them any more.
    runtime.shutdown_timeout(std::time::Duration::from_secs(2));
    // What a server logged before it failed.
    telemetry::log::flush(std::time::Duration::from_millis(500));
    match outcome {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            output::beside(format_args!("{}", failure.to_string().trim_end()));
            ExitCode::from(failure.code)
        }
    }
}

/// Help that was asked for is an answer; help in place of a command, and anything that cannot be read, is not.
fn refuse(error: &clap::Error) -> ExitCode {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            let _ = error.print();
            ExitCode::from(failure::code::OK)
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = error.print();
            ExitCode::from(failure::code::USAGE)
        }
        _ => {
            crate::output::noted(format_args!("{}", Failure::from(error)));
            ExitCode::from(failure::code::USAGE)
        }
    }
}
