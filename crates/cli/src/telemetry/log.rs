//! The log: lines wait in a queue for a thread that writes them to standard error. A reader that is gone, a disk that is full or a
//! pipe that nobody empties costs lines and never a request.

use std::io::{self, Write};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use tracing_subscriber::fmt::MakeWriter;

/// Lines that may wait; more are dropped and counted.
const WAITING: usize = 8_192;
/// How long one line may wait for a standard error that does not block and is full.
const PATIENCE: Duration = Duration::from_secs(1);

static QUEUE: OnceLock<SyncSender<Message>> = OnceLock::new();
static DROPPED: AtomicU64 = AtomicU64::new(0);

enum Message {
    Line(Vec<u8>),
    Flush(SyncSender<()>),
}

/// Starts the thread that writes, once.
pub fn start() {
    QUEUE.get_or_init(|| {
        let (send, receive) = sync_channel(WAITING);
        // Without the thread nothing is received, and every line is dropped: the server works all the same.
        let _ = std::thread::Builder::new().name("comeback-log".into()).spawn(move || write_all_lines(&receive));
        send
    });
}

fn write_all_lines(receive: &Receiver<Message>) {
    while let Ok(message) = receive.recv() {
        match message {
            Message::Line(line) => {
                if write(&line) {
                    let dropped = DROPPED.swap(0, Ordering::Relaxed);
                    if dropped > 0 {
                        tracing::warn!(dropped, "log lines were dropped because the log could not be written");
                    }
                } else {
                    DROPPED.fetch_add(1, Ordering::Relaxed);
                }
            }
            Message::Flush(done) => {
                let _ = done.send(());
            }
        }
    }
}

/// Writes to standard error without a lock and without a panic. Whether all of it was written.
pub fn write(mut bytes: &[u8]) -> bool {
    let begun = Instant::now();
    while !bytes.is_empty() {
        match rustix::io::write(rustix::stdio::stderr(), bytes) {
            Ok(0) => return false,
            Ok(written) => bytes = bytes.get(written..).unwrap_or_default(),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) if begun.elapsed() < PATIENCE => std::thread::sleep(Duration::from_millis(5)),
            Err(_) => return false,
        }
    }
    true
}

/// A line of its own, beside the log's.
pub fn line(text: &str) {
    push(format!("{text}\n").into_bytes());
}

fn push(line: Vec<u8>) {
    match QUEUE.get() {
        Some(queue) => {
            if queue.try_send(Message::Line(line)).is_err() {
                DROPPED.fetch_add(1, Ordering::Relaxed);
            }
        }
        None => {
            write(&line);
        }
    }
}

/// Waits until what was logged is written, for a moment at most.
pub fn flush(patience: Duration) {
    let Some(queue) = QUEUE.get() else { return };
    let (done, flushed) = sync_channel(1);
    if queue.try_send(Message::Flush(done)).is_ok() {
        let _ = flushed.recv_timeout(patience);
    }
}

/// Makes a writer for each event; it goes into the queue when it is whole.
#[derive(Clone, Copy)]
pub struct Lines;

impl<'a> MakeWriter<'a> for Lines {
    type Writer = Line;

    fn make_writer(&'a self) -> Line {
        Line(Vec::new())
    }
}

/// One event. To write to it cannot fail.
pub struct Line(Vec<u8>);

impl Write for Line {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        if !self.0.is_empty() {
            push(std::mem::take(&mut self.0));
        }
    }
}
