//! What was asked, what was answered, and when: one line of JSON per moment, written before anything can be killed.
//!
//! Every process writes a file of its own. Their times are comparable: all of them ask the machine's monotonic clock.

use std::collections::HashMap;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::plan::Planned;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    pub ns: u64,
    /// Milliseconds since the epoch, to compare with what the database's clock said.
    pub wall: i64,
    pub client: String,
    pub op: u64,
    #[serde(flatten)]
    pub what: What,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", content = "value", rename_all = "snake_case")]
pub enum What {
    Invoke(Call),
    Ok(Answer),
    /// It was refused: nothing was done.
    Fail(String),
    /// Nobody knows: it may have been done, and may still be.
    Info(String),
    Fault(Fault),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Call {
    Submit { key: Option<String>, tasks: Vec<Planned> },
    Act { verb: String, task: Uuid, note: String },
    Read { task: Uuid },
    Lease { span_ms: i64 },
    Heartbeat { run: Run },
    Report { run: Run, outcome: String },
    Follow { after: Option<String> },
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    Submitted {
        tasks: Vec<Made>,
        execution: Option<Uuid>,
    },
    State(String),
    Leased(Vec<Grant>),
    Extended(i64),
    /// In the order in which they were told: execution, number, kind.
    Followed {
        next: Option<String>,
        events: Vec<(Uuid, u32, String)>,
    },
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Made {
    pub id: Uuid,
    pub duplicate: bool,
}

/// One run of one task; a lease stands for one run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Run {
    pub task: Uuid,
    pub run: u32,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Grant {
    pub run: Run,
    /// By the server's clock, in milliseconds since the epoch.
    pub expires_at: i64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fault {
    pub kind: String,
    pub target: String,
    /// It begins, or what it broke works again.
    pub over: bool,
}

pub fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}

fn wall_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

/// Where a process writes.
pub struct Log {
    file: Mutex<File>,
    next: AtomicU64,
}

impl Log {
    pub fn create(path: &Path) -> Log {
        let file = File::options().create(true).append(true).open(path).expect("a history");
        Log { file: Mutex::new(file), next: AtomicU64::new(0) }
    }

    /// One write per line: a process that is killed leaves whole lines, but perhaps for the last.
    fn write(&self, client: &str, op: u64, what: What) {
        let mut file = self.file.lock().expect("the history");
        let entry = Entry { ns: now_ns(), wall: wall_ms(), client: client.to_owned(), op, what };
        let mut line = serde_json::to_string(&entry).expect("JSON");
        line.push('\n');
        file.write_all(line.as_bytes()).expect("written");
    }

    pub fn invoke<'a>(&'a self, client: &'a str, call: Call) -> Asked<'a> {
        let op = self.next.fetch_add(1, Ordering::Relaxed);
        self.write(client, op, What::Invoke(call));
        Asked { log: self, client, op }
    }

    /// How many calls were written down so far.
    pub fn calls(&self) -> u64 {
        self.next.load(Ordering::Relaxed)
    }

    pub fn fault(&self, kind: &str, target: &str, over: bool) {
        let op = self.next.fetch_add(1, Ordering::Relaxed);
        let fault = Fault { kind: kind.into(), target: target.into(), over };
        self.write("faults", op, What::Fault(fault));
    }
}

/// A call that was written down and waits for its end. Dropped without one, it stays open: nobody knows.
pub struct Asked<'a> {
    log: &'a Log,
    client: &'a str,
    op: u64,
}

impl Asked<'_> {
    pub fn end(self, what: What) {
        self.log.write(self.client, self.op, what);
    }
}

/// A call with its end.
#[derive(Clone, Debug)]
pub struct Op {
    pub client: String,
    pub call: Call,
    pub begun: u64,
    /// Never, where nobody knows how it ended: it may take effect at any time.
    pub ended: u64,
    /// When its caller stopped waiting, one way or the other; never, for one who was killed.
    pub waited_until: Option<u64>,
    /// When its end was heard, by the machine's clock.
    pub heard_at: i64,
    pub end: End,
}

#[derive(Clone, Debug, PartialEq)]
pub enum End {
    Ok(Answer),
    Refused(String),
    Unknown,
}

impl Op {
    pub fn answer(&self) -> Option<&Answer> {
        match &self.end {
            End::Ok(answer) => Some(answer),
            _ => None,
        }
    }
}

/// Reads what a process wrote. Only the last line may be cut off.
pub fn read(path: &Path) -> Vec<Entry> {
    let text = std::fs::read_to_string(path).expect("a history");
    let whole = text.ends_with('\n');
    let lines: Vec<&str> = text.lines().collect();
    let count = lines.len() - usize::from(!whole && !lines.is_empty());
    lines[..count]
        .iter()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{}: {error}: {line}", path.display())))
        .collect()
}

/// Everything in a folder, in the order of time.
pub fn read_all(folder: &Path) -> Vec<Entry> {
    let files = std::fs::read_dir(folder).expect("a folder").flatten().map(|file| file.path());
    let mut entries: Vec<Entry> = files
        .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().ends_with(".history.jsonl")))
        .flat_map(|path| read(&path))
        .collect();
    entries.sort_by_key(|entry| entry.ns);
    entries
}

/// Pairs calls with their ends.
pub fn operations(entries: &[Entry]) -> Vec<Op> {
    let mut ops: Vec<Op> = Vec::new();
    let mut open: HashMap<(&str, u64), usize> = HashMap::new();
    for entry in entries {
        let place = (entry.client.as_str(), entry.op);
        let end = match &entry.what {
            What::Invoke(call) => {
                open.insert(place, ops.len());
                ops.push(Op {
                    client: entry.client.clone(),
                    call: call.clone(),
                    begun: entry.ns,
                    ended: u64::MAX,
                    waited_until: None,
                    heard_at: i64::MAX,
                    end: End::Unknown,
                });
                continue;
            }
            What::Ok(answer) => End::Ok(answer.clone()),
            What::Fail(why) => End::Refused(why.clone()),
            What::Info(_) => End::Unknown,
            What::Fault(_) => continue,
        };
        if let Some(op) = open.remove(&place).and_then(|index| ops.get_mut(index)) {
            op.waited_until = Some(entry.ns);
            if end != End::Unknown {
                op.ended = entry.ns;
                op.heard_at = entry.wall;
            }
            op.end = end;
        }
    }
    ops
}
