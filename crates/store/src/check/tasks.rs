//! Every task by itself: its row is one that the core could have written, and its log gives what the row says.

use std::collections::HashMap;

use comeback_core::replay::{Replayed, replay};
use comeback_core::{Event, Record, Task};
use uuid::Uuid;

use super::{Born, Check, PAGE};
use crate::StoreError;
use crate::row::{Fixed, HistoryRow, OpenRow, created_record};

type Faults = Vec<(&'static str, String)>;

impl Check<'_> {
    pub(super) async fn tasks(&mut self) -> Result<(), StoreError> {
        self.begin("open tasks", "their rows, leases and logs");
        let total = self.look.count("task_open").await?;
        let (mut after, mut done) = (Uuid::nil(), 0);
        loop {
            let page = self.look.open_tasks(after, PAGE).await?;
            let Some((last, _)) = page.last() else { break };
            after = last.id;
            done += page.len() as u64;
            let mut logs = self.logs(page.iter().map(|(row, _)| row.id).collect()).await?;
            for (row, born) in page {
                let id = row.id;
                let faults = match self.dictionary.lane(row.lane) {
                    // Told already, by what is said about numbers.
                    None => Faults::new(),
                    Some(lane) => match row.clone().into_task(lane) {
                        Err(error) => vec![("row", error.to_string())],
                        Ok(task) => {
                            let mut faults = of_row(&row, &task);
                            faults.extend(of_task(&task, born, logs.remove(&id).unwrap_or_default()));
                            faults
                        }
                    },
                };
                self.report_faults(id, faults);
            }
            self.tell(done, total);
        }
        self.begin("finished tasks", "their rows and logs");
        let total = self.look.count("task_done").await?;
        let (mut after, mut done) = (Uuid::nil(), 0);
        loop {
            let page = self.look.done_tasks(after, PAGE).await?;
            let Some((last, _, _)) = page.last() else { break };
            after = last.id;
            done += page.len() as u64;
            let mut logs = self.logs(page.iter().map(|(row, _, _)| row.id).collect()).await?;
            for (row, fixed, born) in page {
                let id = row.id;
                let faults = match self.dictionary.lane(row.lane) {
                    None => Faults::new(),
                    Some(lane) => match row.into_task(lane, &fixed) {
                        Err(error) => vec![("row", error.to_string())],
                        Ok(task) => of_task(&task, born, logs.remove(&id).unwrap_or_default()),
                    },
                };
                self.report_faults(id, faults);
            }
            self.tell(done, total);
        }
        Ok(())
    }

    fn report_faults(&mut self, id: Uuid, faults: Faults) {
        self.report.looked_at(1);
        for (code, words) in faults {
            self.report.found(code, Some(id), words);
        }
    }

    async fn logs(&mut self, ids: Vec<Uuid>) -> Result<HashMap<Uuid, Vec<HistoryRow>>, StoreError> {
        let mut logs: HashMap<Uuid, Vec<HistoryRow>> = HashMap::new();
        for row in self.look.histories(&ids).await? {
            logs.entry(row.subject).or_default().push(row);
        }
        Ok(logs)
    }
}

/// Written again, it would be the same row: what is kept twice, such as when it is due, agrees.
fn of_row(row: &OpenRow, task: &Task) -> Faults {
    let fixed = Fixed { hard_deadline: row.hard_deadline != 0, dedupe: row.dedupe != 0 };
    let mut again = OpenRow::new(task, row.lane, row.policy, fixed);
    // Left over from the last time it was carried, and read by nobody while nothing is.
    if row.unwritten == 0 {
        again.ready_at = row.ready_at;
    }
    if again == *row {
        return Faults::new();
    }
    let mut names = Vec::new();
    if again.due != row.due {
        names.push("when it is due");
    }
    if (&again.worker, again.lease_at, again.lease_expires) != (&row.worker, row.lease_at, row.lease_expires) {
        names.push("its lease");
    }
    if (again.held_until, &again.held_by) != (row.held_until, &row.held_by) {
        names.push("its hold");
    }
    if names.is_empty() {
        names.push("what it is");
    }
    vec![("row", format!("its row contradicts itself about {}", names.join(" and ")))]
}

fn of_task(task: &Task, born: Born, log: Vec<HistoryRow>) -> Faults {
    let mut faults = Faults::new();
    if let Some(broken) = task.broken_invariant() {
        faults.push(("row", format!("it breaks a rule: {broken}")));
    }
    let lone = task.execution.is_none();
    let mut records: Vec<Record> = Vec::with_capacity(log.len() + 2);
    if lone {
        records.push(created_record(task.id.0, born.submitted_at, born.start_at));
    }
    for row in log {
        let seq = row.seq;
        match row.into_record() {
            Ok(record) => records.push(record),
            Err(error) => {
                faults.push(("history", format!("record {seq} cannot be read: {error}")));
                return faults;
            }
        }
    }
    if let Some(newest) = records.iter().map(|record| record.lease_number).max().filter(|it| *it > task.lease_number) {
        faults.push(("lease", format!("its log knows lease {newest}, its row only {}", task.lease_number)));
    }
    records.extend(task.unwritten_record(task.updated_at));
    let events: Vec<Event> = records.iter().flat_map(Record::expand).collect();
    match replay(&events, lone) {
        Err(error) => faults.push(("log", format!("its log contradicts itself: {error}"))),
        Ok(told) => {
            let mut now = Replayed::of(task);
            if !lone {
                now.last_seq = told.last_seq;
            }
            if told != now {
                faults.push(("log", format!("its log and its row differ: {}", difference(&told, &now))));
            }
        }
    }
    faults
}

/// The first point in which they differ, in words.
fn difference(told: &Replayed, now: &Replayed) -> String {
    let differs = |name: &str, told: &dyn std::fmt::Debug, now: &dyn std::fmt::Debug| {
        let (told, now) = (format!("{told:?}"), format!("{now:?}"));
        (told != now).then(|| format!("{name} is {told} by the log and {now} by the row"))
    };
    differs("the state", &told.state, &now.state)
        .or_else(|| differs("the last event", &told.last_seq, &now.last_seq))
        .or_else(|| differs("the cycle", &told.cycle, &now.cycle))
        .or_else(|| differs("the run", &told.run, &now.run))
        .or_else(|| differs("the state it was paused in", &told.paused_from, &now.paused_from))
        .or_else(|| differs("the next retry", &told.next_retry_at, &now.next_retry_at))
        .or_else(|| differs("a counter", &told.counters, &now.counters))
        .unwrap_or_default()
}
