//! What a run was worth: whether enough was answered and everything planned went wrong, and how long things took.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::time::Duration;

use comeback_core::{AttemptOutcome, EventKind, Timestamp};

use crate::faults::{Kind, Schedule, said};
use crate::history::{Call, End, Entry, Op, What, operations};
use crate::run::Outcome;

/// What happens right after something came back still belongs to its absence: connections are made anew.
const SETTLE_MS: i64 = 1_000;

/// A stretch in which something was broken that callers feel, by our clock and by the machine's.
struct Window {
    ns: (u64, u64),
    wall: (i64, i64),
}

fn windows(entries: &[Entry]) -> Vec<Window> {
    let mut open: HashMap<(&str, &str), &Entry> = HashMap::new();
    let mut windows = Vec::new();
    for entry in entries {
        let What::Fault(fault) = &entry.what else { continue };
        if !Kind::is_felt(&fault.kind) {
            continue;
        }
        let name = (&*fault.kind, &*fault.target);
        if !fault.over {
            open.insert(name, entry);
        } else if let Some(begin) = open.remove(&name) {
            let settle = SETTLE_MS.cast_unsigned() * 1_000_000;
            windows.push(Window { ns: (begin.ns, entry.ns + settle), wall: (begin.wall, entry.wall + SETTLE_MS) });
        }
    }
    windows
}

/// Of how many calls, how many had a definite answer.
#[derive(Default)]
pub struct Share {
    pub all: u64,
    pub answered: u64,
}

impl Share {
    fn percent(&self) -> f64 {
        self.answered as f64 * 100.0 / self.all.max(1) as f64
    }
}

#[derive(Default)]
pub struct Figures {
    pub calm: Share,
    pub troubled: Share,
    calls: BTreeMap<&'static str, [u64; 3]>,
    planned: BTreeMap<Kind, u64>,
    fired: BTreeMap<Kind, u64>,
    tasks: u64,
    runs: u64,
    retries: u64,
    lost: u64,
    refused_reports: u64,
    repeated_keys: u64,
    executions: u64,
    server_starts: Vec<u64>,
    postgres_starts: Vec<u64>,
    /// From the moment at which PostgreSQL answered again to the first submit that was acknowledged.
    acknowledged_after: Vec<u64>,
    late_calm: Vec<u64>,
    late: Vec<u64>,
    drained_in: Option<Duration>,
}

impl Figures {
    pub fn of(outcome: &Outcome, schedule: &Schedule) -> Figures {
        let mut figures = Figures {
            fired: outcome.done.fired.clone(),
            tasks: outcome.dump.bodies.len() as u64,
            executions: outcome.dump.executions.len() as u64,
            server_starts: millis(&outcome.done.server_starts),
            postgres_starts: millis(&outcome.done.postgres_starts),
            drained_in: outcome.drained_in,
            ..Figures::default()
        };
        for fault in schedule.iter().flatten() {
            *figures.planned.entry(fault.kind).or_default() += 1;
        }
        let ops = operations(&outcome.entries);
        let windows = windows(&outcome.entries);
        figures.count_calls(&ops, &windows);
        figures.count_recoveries(&outcome.entries, &ops);
        figures.count_history(outcome, &windows);
        figures
    }

    fn count_calls(&mut self, ops: &[Op], windows: &[Window]) {
        let mut keys: HashMap<&str, u32> = HashMap::new();
        for op in ops {
            let word = match &op.call {
                Call::Submit { key, .. } => {
                    if let Some(key) = key {
                        *keys.entry(key).or_default() += 1;
                    }
                    "submit"
                }
                Call::Act { .. } => "act",
                Call::Read { .. } => "read",
                Call::Lease { .. } => "lease",
                Call::Heartbeat { .. } => "heartbeat",
                Call::Report { .. } => "report",
                Call::Follow { .. } => "follow",
            };
            let place = match op.end {
                End::Ok(_) => 0,
                End::Refused(_) => 1,
                End::Unknown => 2,
            };
            self.calls.entry(word).or_default()[place] += 1;
            if let (Call::Report { .. }, End::Refused(_)) = (&op.call, &op.end) {
                self.refused_reports += 1;
            }
            // One who was killed while waiting says nothing about the servers.
            let Some(until) = op.waited_until else { continue };
            let troubled = windows.iter().any(|window| op.begun < window.ns.1 && until > window.ns.0);
            let share = if troubled { &mut self.troubled } else { &mut self.calm };
            share.all += 1;
            share.answered += u64::from(place < 2);
        }
        self.repeated_keys = keys.values().filter(|times| **times > 1).count() as u64;
    }

    fn count_recoveries(&mut self, entries: &[Entry], ops: &[Op]) {
        let mut acknowledged: Vec<u64> = ops
            .iter()
            .filter(|op| matches!(op.call, Call::Submit { .. }) && op.answer().is_some())
            .map(|op| op.ended)
            .collect();
        acknowledged.sort_unstable();
        for entry in entries {
            if let What::Fault(fault) = &entry.what
                && fault.over
                && fault.kind == Kind::KillPostgres.word()
                && let Some(first) = acknowledged.get(acknowledged.partition_point(|at| *at < entry.ns))
            {
                self.acknowledged_after.push((first - entry.ns) / 1_000_000);
            }
        }
    }

    fn count_history(&mut self, outcome: &Outcome, windows: &[Window]) {
        let mut due: HashMap<uuid::Uuid, i64> = HashMap::new();
        for row in &outcome.dump.history {
            let record = row.record();
            self.runs += u64::from(record.outcome.is_some());
            self.lost += u64::from(record.outcome == Some(AttemptOutcome::Lost));
            for event in record.expand() {
                if event.kind == EventKind::TaskRetryDue
                    && let Some(due) = due.remove(&row.subject)
                {
                    let late = u64::try_from(event.at.0 - due).unwrap_or(0);
                    self.late.push(late);
                    if !windows.iter().any(|window| due < window.wall.1 && event.at.0 > window.wall.0) {
                        self.late_calm.push(late);
                    }
                }
                if event.kind == EventKind::TaskRetryScheduled {
                    self.retries += 1;
                }
                let told = event.data.get("next_retry_at").and_then(|at| at.as_str());
                match told.and_then(|at| Timestamp::parse_rfc3339(at).ok()) {
                    Some(at) => due.insert(row.subject, at.0),
                    // A pause holds up what is due; that is no delay of ours.
                    None if event.kind == EventKind::TaskPaused => due.remove(&row.subject),
                    None => None,
                };
            }
        }
        for times in [&mut self.late, &mut self.late_calm, &mut self.server_starts, &mut self.postgres_starts] {
            times.sort_unstable();
        }
        self.acknowledged_after.sort_unstable();
    }

    /// A run in which too little was answered, or less went wrong than was planned, proves nothing, whatever it found.
    pub fn void(&self) -> Option<String> {
        if self.fired != self.planned {
            return Some(format!("planned were {:?}, fired {:?}", self.planned, self.fired));
        }
        if self.calm.all < 500 || self.calm.percent() < 99.0 {
            return Some(format!("{:.2} % of {} calm calls were answered", self.calm.percent(), self.calm.all));
        }
        if self.troubled.all < 500 || self.troubled.percent() < 50.0 {
            return Some(format!(
                "{:.1} % of {} troubled calls were answered",
                self.troubled.percent(),
                self.troubled.all
            ));
        }
        let worth = [
            ("tasks", self.tasks, 500),
            ("retries", self.retries, 200),
            ("lost runs", self.lost, 30),
            ("refused reports", self.refused_reports, 10),
            ("repeated keys", self.repeated_keys, 50),
            ("executions", self.executions, 50),
        ];
        worth.iter().find(|(_, count, least)| count < least).map(|(what, count, _)| format!("only {count} {what}"))
    }
}

fn millis(times: &[Duration]) -> Vec<u64> {
    times.iter().map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX)).collect()
}

/// The middle, the ninety-ninth of a hundred, and the most; of sorted numbers.
struct Spread<'a>(&'a [u64]);

impl fmt::Display for Spread<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = |share: usize| self.0.get(self.0.len() * share / 100).or(self.0.last()).copied().unwrap_or(0);
        write!(f, "p50 {} ms, p99 {} ms, max {} ms of {}", at(50), at(99), at(100), self.0.len())
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "  faults      {}", said(&self.fired))?;
        for (word, [ok, refused, unknown]) in &self.calls {
            writeln!(f, "  {word:<11} {ok} done, {refused} refused, {unknown} unknown")?;
        }
        let (calm, troubled) = (&self.calm, &self.troubled);
        writeln!(f, "  answered    {:.2} % of {} calm calls", calm.percent(), calm.all)?;
        writeln!(f, "              {:.1} % of {} calls in trouble", troubled.percent(), troubled.all)?;
        writeln!(
            f,
            "  tasks       {} in {} runs, {} retries, {} lost runs, {} executions, {} keys sent again",
            self.tasks, self.runs, self.retries, self.lost, self.executions, self.repeated_keys
        )?;
        writeln!(f, "  servers     ready after {}", Spread(&self.server_starts))?;
        writeln!(f, "  PostgreSQL  answers after {}", Spread(&self.postgres_starts))?;
        writeln!(f, "              first submit acknowledged then after {}", Spread(&self.acknowledged_after))?;
        writeln!(f, "  retries     late in calm by {}", Spread(&self.late_calm))?;
        writeln!(f, "              late at all by {}", Spread(&self.late))?;
        let drained = self.drained_in.map_or("not".to_owned(), |time| format!("in {:.1} s", time.as_secs_f64()));
        write!(f, "  drained     {drained}")
    }
}
