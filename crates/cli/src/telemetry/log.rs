//! The log: a thread writes queued lines to standard error. A missing reader, a full disk or a full pipe costs lines, never a
//! request.

use std::io::{self, Write};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use tracing_subscriber::fmt::MakeWriter;

/// Capacity of the queue; more lines are dropped and counted.
const CAPACITY: usize = 8_192;
/// Longest wait for a full, non-blocking standard error.
const WRITE_TIMEOUT: Duration = Duration::from_secs(1);

static QUEUE: OnceLock<SyncSender<LogMessage>> = OnceLock::new();
static DROPPED: AtomicU64 = AtomicU64::new(0);

enum LogMessage {
    Line(Vec<u8>),
    Flush(SyncSender<()>),
}

/// Starts the writer thread, once.
pub fn start() {
    QUEUE.get_or_init(|| {
        let (send, receive) = sync_channel(CAPACITY);
        // Without the thread every line is dropped; the server works all the same.
        let _ = std::thread::Builder::new().name("comeback-log".into()).spawn(move || write_all_lines(&receive));
        send
    });
}

fn write_all_lines(receive: &Receiver<LogMessage>) {
    while let Ok(message) = receive.recv() {
        match message {
            LogMessage::Line(line) => {
                if write(&line) {
                    let dropped = DROPPED.swap(0, Ordering::Relaxed);
                    if dropped > 0 {
                        tracing::warn!(dropped, "dropped log lines: standard error could not be written");
                    }
                } else {
                    DROPPED.fetch_add(1, Ordering::Relaxed);
                }
            }
            LogMessage::Flush(done) => {
                let _ = done.send(());
            }
        }
    }
}

/// Writes to standard error without a lock and without a panic. Returns whether everything was written.
pub fn write(mut bytes: &[u8]) -> bool {
    let started = Instant::now();
    while !bytes.is_empty() {
        match rustix::io::write(rustix::stdio::stderr(), bytes) {
            Ok(0) => return false,
            Ok(written) => bytes = bytes.get(written..).unwrap_or_default(),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) if started.elapsed() < WRITE_TIMEOUT => std::thread::sleep(Duration::from_millis(5)),
            Err(_) => return false,
        }
    }
    true
}

/// Queues a line that is not a log event.
pub fn line(text: &str) {
    push(format!("{text}\n").into_bytes());
}

fn push(line: Vec<u8>) {
    match QUEUE.get() {
        Some(queue) => {
            if queue.try_send(LogMessage::Line(line)).is_err() {
                DROPPED.fetch_add(1, Ordering::Relaxed);
            }
        }
        None => {
            write(&line);
        }
    }
}

/// Waits until the queue is written, or until the timeout.
pub fn flush(timeout: Duration) {
    let Some(queue) = QUEUE.get() else { return };
    let (done, flushed) = sync_channel(1);
    if queue.try_send(LogMessage::Flush(done)).is_ok() {
        let _ = flushed.recv_timeout(timeout);
    }
}

/// Makes a writer for each log event.
#[derive(Clone, Copy)]
pub struct LogWriter;

impl<'a> MakeWriter<'a> for LogWriter {
    type Writer = LogEvent;

    fn make_writer(&'a self) -> LogEvent {
        LogEvent(Vec::new())
    }
}

/// One log event, queued when dropped. Writing to it cannot fail.
pub struct LogEvent(Vec<u8>);

impl Write for LogEvent {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for LogEvent {
    fn drop(&mut self) {
        if !self.0.is_empty() {
            push(std::mem::take(&mut self.0));
        }
    }
}
