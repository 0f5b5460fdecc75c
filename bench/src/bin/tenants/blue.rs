//! BLUE: a steady, honest tenant, and what it feels.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::Result;
use serde_json::{Value, json};
use tokio::sync::Mutex;

use crate::server::Keys;

/// Workers that ask for work side by side.
const WORKERS: usize = 4;

/// BLUE's measurements over some time: milliseconds of every answered request, and the number of refusals.
#[derive(Clone, Debug, Default)]
pub struct Felt {
    submit: Vec<f64>,
    /// From the submit until a worker has it.
    start: Vec<f64>,
    heartbeat: Vec<f64>,
    report: Vec<f64>,
    pub refused: usize,
    /// How late the latest task with a delay was.
    pub late_ms: f64,
    why: Option<String>,
}

impl Felt {
    pub fn p99(&self) -> [f64; 4] {
        [&self.submit, &self.start, &self.heartbeat, &self.report].map(|all| percentile(all, 0.99))
    }

    /// The p99 of everything that BLUE waited for.
    pub fn overall_p99(&self) -> f64 {
        percentile(&[&*self.submit, &*self.start, &*self.heartbeat, &*self.report].concat(), 0.99)
    }

    /// By which factor that is larger than it was.
    pub fn ratio(&self, quiet: &Felt) -> f64 {
        self.overall_p99() / quiet.overall_p99().max(0.1)
    }
}

impl fmt::Display for Felt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [submit, start, heartbeat, report] = self.p99();
        write!(f, "p99 submit {submit:.1} start {start:.1} heartbeat {heartbeat:.1} report {report:.1} ms, ")?;
        write!(f, "{} submits, {} refused, late {:.0} ms", self.submit.len(), self.refused, self.late_ms)?;
        self.why.as_ref().map_or(Ok(()), |why| write!(f, " ({why})"))
    }
}

fn percentile(all: &[f64], part: f64) -> f64 {
    let mut sorted = all.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = ((sorted.len() as f64 * part).ceil() as usize).clamp(1, sorted.len().max(1)) - 1;
    sorted.get(at).copied().unwrap_or(f64::INFINITY)
}

pub struct Blue {
    felt: Arc<parking_lot::Mutex<Felt>>,
    stopped: Arc<AtomicBool>,
}

impl Drop for Blue {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::Relaxed);
    }
}

struct Caller {
    client: reqwest::Client,
    keys: Keys,
    felt: Arc<parking_lot::Mutex<Felt>>,
    stopped: Arc<AtomicBool>,
    turn: Mutex<()>,
}

impl Blue {
    pub async fn start(keys: &Keys, rate: u64) -> Result<Blue> {
        let felt = Arc::new(parking_lot::Mutex::new(Felt::default()));
        let stopped = Arc::new(AtomicBool::new(false));
        let client = reqwest::Client::builder().timeout(Duration::from_secs(30)).build()?;
        let caller =
            Caller { client, keys: keys.clone(), felt: felt.clone(), stopped: stopped.clone(), turn: Mutex::default() };
        let caller = Arc::new(caller);
        tokio::spawn(submits(caller.clone(), rate));
        for n in 0..WORKERS {
            tokio::spawn(works(caller.clone(), n));
        }
        Ok(Blue { felt, stopped })
    }

    /// The measurements since the last call.
    pub fn take(&self) -> Felt {
        std::mem::take(&mut *self.felt.lock())
    }

    pub async fn over(&self, time: Duration) -> Felt {
        self.take();
        tokio::time::sleep(time).await;
        self.take()
    }
}

impl Caller {
    /// The answer and how long it took; a refusal is counted.
    async fn post(&self, key: &str, path: &str, body: &Value) -> Option<(Value, f64)> {
        let began = Instant::now();
        let url = format!("http://{}/api/v1/{path}", self.keys.address);
        let sent = self.client.post(url).bearer_auth(key).json(body).send().await;
        let why = match sent {
            Ok(answer) if answer.status().is_success() => match answer.json::<Value>().await {
                Ok(json) => return Some((json, began.elapsed().as_secs_f64() * 1e3)),
                Err(error) => format!("{path}: {error}"),
            },
            Ok(answer) => format!("{path}: {}", answer.status()),
            Err(error) => format!("{path}: {error}"),
        };
        let mut felt = self.felt.lock();
        felt.refused += 1;
        felt.why.get_or_insert(why);
        None
    }
}

fn now_ms() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64() * 1e3)
}

async fn submits(caller: Arc<Caller>, rate: u64) {
    let mut ticks = tokio::time::interval(Duration::from_micros(1_000_000 / rate.max(1)));
    let mut n = 0_u64;
    while !caller.stopped.load(Ordering::Relaxed) {
        ticks.tick().await;
        n += 1;
        let caller = caller.clone();
        tokio::spawn(async move {
            // One a second begins later, to see whether loops are on time.
            let late = n.is_multiple_of(rate.max(1));
            let mut task = json!({"kind": "pay", "queue": "blue", "payload": {"sent": now_ms(), "late": late}});
            if late {
                task["delay"] = json!("1s");
            }
            if let Some((_, took)) = caller.post(&caller.keys.blue_submitter, "tasks", &task).await {
                caller.felt.lock().submit.push(took);
            }
        });
    }
}

async fn works(caller: Arc<Caller>, n: usize) {
    let key = caller.keys.blue_worker.clone();
    let ask = json!({"worker": format!("blue-{n}"), "queues": ["blue"], "limit": 10, "wait": "5s", "lease": "60s"});
    while !caller.stopped.load(Ordering::Relaxed) {
        // One at a time asks, so that work is not handed out in crumbs.
        let turn = caller.turn.lock().await;
        let asked = caller.post(&key, "leases", &ask).await;
        drop(turn);
        let Some((answer, _)) = asked else {
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let leases = answer["leases"].as_array().cloned().unwrap_or_default();
        if leases.is_empty() {
            continue;
        }
        {
            let mut felt = caller.felt.lock();
            for lease in &leases {
                let payload = &lease["task"]["payload"];
                let waited = now_ms() - payload["sent"].as_f64().unwrap_or(0.0);
                if payload["late"].as_bool() == Some(true) {
                    felt.late_ms = felt.late_ms.max(waited - 1_000.0);
                } else {
                    felt.start.push(waited);
                }
            }
        }
        let tokens: Vec<&Value> = leases.iter().map(|lease| &lease["lease"]).collect();
        if let Some((_, took)) =
            caller.post(&key, "leases/heartbeat", &json!({"leases": tokens, "extend": "60s"})).await
        {
            caller.felt.lock().heartbeat.push(took);
        }
        let reports: Vec<Value> = tokens.iter().map(|token| json!({"lease": token, "outcome": "succeeded"})).collect();
        if let Some((answer, took)) = caller.post(&key, "leases/report", &json!({"reports": reports})).await {
            let refused = answer["reports"]
                .as_array()
                .map_or(0, |all| all.iter().filter(|it| it.get("problem").is_some()).count());
            let mut felt = caller.felt.lock();
            felt.report.push(took);
            felt.refused += refused;
        }
    }
}
