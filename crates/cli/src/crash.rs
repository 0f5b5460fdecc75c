//! Crash-only: a server that panics writes one log line with the place and the current work, and aborts. Its supervisor restarts it,
//! and acknowledged work is safe; a process with a dead thread would go on without doing its work.
//!
//! A hook and not `panic = "abort"` in the profile: the hook names the request or the background task, works in every build, and
//! leaves the libraries free to unwind where a program embeds them.

use std::fmt::Write;
use std::panic::PanicHookInfo;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use comeback_engine::background::{Running, panic_message};
use serde_json::json;

use crate::telemetry::log;

/// Time to write the line; after it the process aborts without.
const WRITE_TIMEOUT: Duration = Duration::from_secs(1);
/// Time to flush earlier log lines.
const FLUSH_TIMEOUT: Duration = Duration::from_millis(200);

/// Installs the hook: a panic on any thread aborts the process.
pub fn abort_on_panic(log_format: &str) {
    // Tests of the libraries need panics that unwind.
    #[cfg(feature = "panic-points")]
    if std::env::var_os("COMEBACK_TEST_PANICS").is_some_and(|word| word == "unwind") {
        return;
    }
    let is_json = log_format == "json";
    static FIRST: AtomicBool = AtomicBool::new(true);
    std::panic::set_hook(Box::new(move |panic| {
        if FIRST.swap(false, Ordering::SeqCst) {
            write(line(panic, is_json));
        } else {
            // Another thread panicked first: it writes its line and aborts.
            std::thread::sleep(WRITE_TIMEOUT * 2);
        }
        std::process::abort();
    }));
}

/// The log line of a panic.
fn line(panic: &PanicHookInfo<'_>, is_json: bool) -> String {
    let now = jiff::Timestamp::now();
    let message = panic_message(panic.payload());
    let place = panic.location().map_or_else(|| "unknown".to_owned(), |at| format!("{}:{}", at.file(), at.line()));
    let thread = std::thread::current();
    let thread = thread.name().unwrap_or("unnamed");
    let running = Running::here().map(|running| running.to_string());
    let task = Running::subject().map(|task| task.to_string());
    let trace = std::backtrace::Backtrace::capture();
    let trace = (trace.status() == std::backtrace::BacktraceStatus::Captured).then(|| trace.to_string());
    let words = "process panicked; aborting";
    if is_json {
        let mut fields = json!({"message": words, "panic": message, "place": place, "thread": thread});
        for (name, value) in [("running", running), ("task", task), ("backtrace", trace)] {
            if let Some(value) = value {
                fields[name] = value.into();
            }
        }
        return json!({"timestamp": now.to_string(), "level": "ERROR", "fields": fields, "target": "comeback::panic"})
            .to_string();
    }
    let mut line = format!("{now} ERROR comeback::panic: {words} panic={message:?} place={place} thread={thread:?}");
    for (name, value) in [("running", running), ("task", task), ("backtrace", trace)] {
        if let Some(value) = value {
            let _ = write!(line, " {name}={value:?}");
        }
    }
    line
}

/// Writes on a thread of its own: standard error may be a full pipe.
fn write(mut line: String) {
    line.push('\n');
    let (done, written) = mpsc::sync_channel(1);
    let write = move || {
        log::flush(FLUSH_TIMEOUT);
        log::write(line.as_bytes());
        let _ = done.send(());
    };
    if std::thread::Builder::new().name("comeback-panic".into()).spawn(write).is_ok() {
        let _ = written.recv_timeout(WRITE_TIMEOUT);
    }
}
