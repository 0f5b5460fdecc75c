//! What the database says at the end, row by row, read without any code of ours that writes it.

use comeback_core::event::Record;
use comeback_core::{AttemptOutcome, Event, EventKind, ExecutionId, TaskId, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio_postgres::Client;
use uuid::Uuid;

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Dump {
    pub bodies: Vec<Body>,
    /// One for every task, from the table of what is open or from that of what is over.
    pub presents: Vec<Present>,
    pub history: Vec<HistoryRow>,
    pub executions: Vec<ExecutionRow>,
    pub edges: Vec<EdgeRow>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Body {
    pub id: Uuid,
    pub external_id: Option<String>,
    pub execution_id: Option<Uuid>,
    pub dedupe_key: Option<String>,
    pub submitted_at: i64,
    pub start_at: Option<i64>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Present {
    pub id: Uuid,
    pub state: i16,
    pub seq: u32,
    pub attempt: u32,
    pub lost: u32,
    pub throttled: u32,
    pub snoozed: u32,
    pub cycle: u32,
    pub run: u32,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct HistoryRow {
    pub subject: Uuid,
    pub seq: u32,
    pub execution_id: Option<Uuid>,
    /// Hexadecimal, two digits for each event.
    pub events: String,
    pub at: i64,
    pub ready_at: Option<i64>,
    pub started_at: Option<i64>,
    pub cycle: u32,
    pub run: u32,
    pub attempt: u32,
    pub lease_no: u32,
    pub outcome: Option<i16>,
    pub worker: Option<String>,
    pub error: Option<String>,
    pub decision: Option<String>,
    pub data: Option<String>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ExecutionRow {
    pub id: Uuid,
    pub state: i16,
    pub seq: u32,
    pub total: u32,
    pub open: u32,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct EdgeRow {
    pub from_id: Uuid,
    pub met_when: i16,
}

const PRESENT: &str = "id, state, seq, attempt, lost, throttled, snoozed, cycle, run";

impl Dump {
    pub async fn take(client: &Client) -> Dump {
        client
            .batch_execute("set search_path = comeback; begin transaction isolation level repeatable read read only")
            .await
            .expect("a snapshot");
        let dump = Dump {
            bodies: rows(client, "id, external_id, execution_id, dedupe_key, submitted_at, start_at from task").await,
            presents: rows(
                client,
                &format!("{PRESENT} from task_open union all select {PRESENT} from task_done order by id"),
            )
            .await,
            history: rows(
                client,
                "subject, seq, execution_id, encode(events, 'hex') as events, at, ready_at, started_at, cycle, run, attempt,
                 lease_no, outcome, worker, error, decision, data from history order by execution_id, subject, seq",
            )
            .await,
            executions: rows(client, "id, state, seq, total, open from execution").await,
            edges: rows(client, "from_id, met_when from edge").await,
        };
        client.batch_execute("commit").await.expect("read");
        dump
    }
}

async fn rows<T: serde::de::DeserializeOwned>(client: &Client, what: &str) -> Vec<T> {
    let sql = format!("select row_to_json(x)::text from (select {what}) x");
    let found = client.query(&sql, &[]).await.expect("rows");
    found.iter().map(|row| serde_json::from_str(row.get(0)).expect("a row")).collect()
}

impl Body {
    /// A lone task's creation is no row: its body says it.
    pub fn creation(&self) -> Vec<Event> {
        let event = |kind: EventKind, seq: u32| Event {
            kind,
            at: Timestamp(self.submitted_at),
            execution: ExecutionId(self.execution_id.unwrap_or(self.id)),
            task: Some(TaskId(self.id)),
            seq,
            run: 0,
            attempt: 0,
            data: Value::Null,
        };
        let mut events = vec![event(EventKind::TaskCreated, 1)];
        if self.start_at.is_none() {
            events.push(event(EventKind::TaskReady, 2));
        }
        events
    }
}

impl HistoryRow {
    pub fn record(&self) -> Record {
        fn read<T: serde::de::DeserializeOwned>(text: &Option<String>) -> Option<T> {
            text.as_deref().map(|text| serde_json::from_str(text).expect("JSON in history"))
        }
        let bytes: Vec<u8> = self
            .events
            .as_bytes()
            .chunks(2)
            .map(|pair| u8::from_str_radix(&String::from_utf8_lossy(pair), 16).expect("two digits"))
            .collect();
        Record {
            subject: self.subject,
            execution: self.execution_id.map(ExecutionId),
            seq: self.seq,
            events: EventKind::unpack(&bytes).expect("known events"),
            carried: 0,
            at: Timestamp(self.at),
            ready_at: self.ready_at.map(Timestamp),
            started_at: self.started_at.map(Timestamp),
            cycle: self.cycle,
            run: self.run,
            attempt: self.attempt,
            lease_number: self.lease_no,
            outcome: self.outcome.and_then(AttemptOutcome::from_code),
            worker: self.worker.as_deref().map(Into::into),
            actor: None,
            result: None,
            failure: read(&self.error),
            decision: read(&self.decision),
            data: read(&self.data),
        }
    }
}
