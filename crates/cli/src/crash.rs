//! Crash-only: a server that panics says in one log line where and what it was doing, and aborts. Its supervisor starts it again, and
//! nothing that was acknowledged is lost; a process that lives on with one thread less would lose everything that comes after.
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

/// The line may take so long to write; then the process ends without it.
const PATIENCE: Duration = Duration::from_secs(1);
/// Lines that were logged before have so long.
const LINES_BEFORE: Duration = Duration::from_millis(200);

/// From now on a panic on any thread ends the process.
pub fn abort_on_panic(log_format: &str) {
    // The tests of what libraries do with a panic need one that is survived.
    #[cfg(feature = "panic-points")]
    if std::env::var_os("COMEBACK_TEST_PANICS").is_some_and(|word| word == "unwind") {
        return;
    }
    let is_json = log_format == "json";
    static FIRST: AtomicBool = AtomicBool::new(true);
    std::panic::set_hook(Box::new(move |panic| {
        if FIRST.swap(false, Ordering::SeqCst) {
            tell(line(panic, is_json));
        } else {
            // Another thread panicked first: it writes its line and aborts.
            std::thread::sleep(PATIENCE * 2);
        }
        std::process::abort();
    }));
}

/// Everything a person needs to find it, in one line.
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
    let words = "the process panicked and aborts";
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

/// On a thread of its own: standard error may be a pipe that nobody empties.
fn tell(mut line: String) {
    line.push('\n');
    let (done, told) = mpsc::sync_channel(1);
    let write = move || {
        log::flush(LINES_BEFORE);
        log::write(line.as_bytes());
        let _ = done.send(());
    };
    if std::thread::Builder::new().name("comeback-panic".into()).spawn(write).is_ok() {
        let _ = told.recv_timeout(PATIENCE);
    }
}
