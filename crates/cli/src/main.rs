//! The binary: command line, configuration, logging and exit codes of server and client.

// `println!` panics when its reader is gone; `outln!`, `try_outln!` and `errln!` do not.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod args;
mod commands;
mod complete;
mod config;
mod confirm;
mod crash;
mod environment;
mod error;
mod output;
mod telemetry;
mod watch;

use std::process::ExitCode;

use clap::FromArgMatches;
use clap::error::ErrorKind;

use error::CliError;

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    complete::answer();
    let read = args::command()
        .try_get_matches_from(args::from_process())
        .and_then(|matches| args::Arguments::from_arg_matches(&matches).map(|arguments| (arguments, matches)));
    let (arguments, matches) = match read {
        Ok(read) => read,
        Err(error) => return print_parse_error(&error),
    };
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            crate::output::errln!("error: cannot start threads: {error}");
            return ExitCode::from(error::code::FAILED);
        }
    };
    let outcome = runtime.block_on(commands::run(arguments, &matches));
    // Blocking reads of the store may still run; their results are not needed.
    runtime.shutdown_timeout(std::time::Duration::from_secs(2));
    // Log lines written before a failure.
    telemetry::log::flush(std::time::Duration::from_millis(500));
    match outcome {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            output::write_err(format_args!("{}", failure.to_string().trim_end()));
            ExitCode::from(failure.code)
        }
    }
}

/// Prints a parse error. `--help` and `--version` exit with 0, a missing or unreadable command with 2.
fn print_parse_error(error: &clap::Error) -> ExitCode {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            let _ = error.print();
            ExitCode::from(error::code::OK)
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = error.print();
            ExitCode::from(error::code::USAGE)
        }
        _ => {
            crate::output::write_err_raw(format_args!("{}", CliError::from(error)));
            ExitCode::from(error::code::USAGE)
        }
    }
}
