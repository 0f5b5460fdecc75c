//! Tasks of the demo, and the worker that makes them fail in typical ways.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use comeback_client::{Client, Outcome, Task, Worker};
use serde_json::{Value, json};

/// Submits tasks in rounds.
pub struct DemoWorkload {
    pub client: Client,
    pub jitter: bool,
    /// One round only, for a short demo.
    pub once: bool,
    pub outage: CrmOutage,
}

impl DemoWorkload {
    pub async fn feed(self) {
        let jitter = if self.jitter { "proportional" } else { "none" };
        let exp = json!({"strategy": "exponential", "initial_delay": "60s", "multiplier": 2, "max_delay": "1h",
            "max_retries": 5, "jitter": jitter});
        for round in 0_u64.. {
            let tasks = json!({"tasks": [
                {"kind": "payments.charge", "payload": {"round": round}, "retry": exp},
                {"kind": "email.send", "retry": {"strategy": "fixed", "delay": "2m", "max_retries": 7}},
                {"kind": "invoice.render", "retry": exp},
                {"kind": "report.export", "retry": {"strategy": "fixed", "delay": "1m", "max_retries": 3}},
            ]});
            let _ = self.client.submit(&tasks).await;
            if round == 0 {
                let _ = self.client.put(CRM, &crm_settings()).await;
                let _ = self.client.put(ACME, &json!({"credits": 20, "budget": {"retries_per_day": 5}})).await;
            }
            if round < THUMBNAILS {
                let thumbnail = json!({"kind": "thumbnail.make", "account": "acme",
                    "retry": {"strategy": "fixed", "delay": "1m", "max_retries": 4}});
                let _ = self.client.submit(&json!({"tasks": vec![thumbnail; 3]})).await;
            }
            if round % OUTAGE_EVERY == 0 {
                self.outage.begin();
                let sync = json!({"kind": "crm.sync", "dependency": "crm.example",
                    "retry": {"strategy": "fixed", "delay": "1m", "max_retries": 9}});
                let _ = self.client.submit(&json!({"tasks": vec![sync; 40]})).await;
            }
            if round == 0 {
                let _ = self.client.submit(&json!({"kind": "kyc.recheck", "retry": {"schedule": ["7d", "14d"]}})).await;
            }
            let order = json!({"execution": {"name": "order-fulfilment"}, "tasks": [
                {"key": "reserve", "kind": "order.reserve"},
                {"key": "charge", "kind": "payments.charge", "needs": ["reserve"], "retry": exp},
                {"key": "ship", "kind": "order.ship", "needs": ["charge"]},
                {"key": "refund", "kind": "order.refund", "needs": [{"task": "charge", "when": "failure"}]},
            ]});
            let _ = self.client.submit(&order).await;
            tokio::time::sleep(Duration::from_secs(if self.once { 60 } else { 8 })).await;
        }
    }
}

/// The dependency that fails from time to time.
const CRM: &str = "/api/v1/dependencies/crm.example";
/// An account whose tasks all fail: its daily retry budget is soon used up.
const ACME: &str = "/api/v1/accounts/acme";
/// Rounds with tasks of that account.
const THUMBNAILS: u64 = 3;
/// Rounds between two outages.
const OUTAGE_EVERY: u64 = 8;
/// Failing calls per outage: those that open the breaker, and canaries.
const CALLS_THAT_FAIL: u32 = 14;

/// Settings of the dependency, in demo time.
fn crm_settings() -> Value {
    json!({"breaker": {"failures": 10, "window": "10m", "open": "1m", "max_open": "2m", "first_wave": 4, "wave": "30s"},
        "concurrency": {"max": 12, "target": "10m"}})
}

/// An outage of the CRM that ends after a number of calls.
#[derive(Clone, Default)]
pub struct CrmOutage(Arc<AtomicU32>);

impl CrmOutage {
    fn begin(&self) {
        self.0.store(CALLS_THAT_FAIL, Ordering::SeqCst);
    }

    /// Whether this call fails.
    fn hits(&self) -> bool {
        self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok()
    }
}

/// An outage of the bank, switched on and off by a key here or by a task of the dashboard.
#[derive(Clone, Default)]
pub struct BankOutage(Arc<AtomicBool>);

const BACK: &str = "the bank is back: watch the tasks recover";

impl BankOutage {
    /// Switches the outage and returns a line about it.
    pub fn flip(&self) -> &'static str {
        match self.0.fetch_xor(true, Ordering::SeqCst) {
            false => "the bank is down: every payments.charge fails until you press f again",
            true => BACK,
        }
    }

    /// Sets the outage and returns a line about it.
    fn set(&self, down: bool) -> &'static str {
        self.0.store(down, Ordering::SeqCst);
        if down { "the bank is down: every payments.charge fails until you bring it back" } else { BACK }
    }

    fn is_on(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

fn unavailable() -> Outcome {
    Outcome::failed_with(json!({"status": 503, "message": "503 Service Unavailable"}))
}

pub fn worker(client: &Client, fault: &BankOutage, outage: &CrmOutage) -> Worker {
    let fine = |_: Task| async { Outcome::succeeded(Value::Null) };
    let (fault, control, outage) = (fault.clone(), fault.clone(), outage.clone());
    Worker::new(client.clone(), "demo")
        .concurrency(32)
        // Demo time: two seconds of real time.
        .lease(Duration::from_secs(120))
        .handle("payments.charge", move |task: Task| {
            let is_down = fault.is_on() || task.attempt_number < 3;
            async move { if is_down { unavailable() } else { Outcome::succeeded(json!({"charged": true})) } }
        })
        .handle("email.send", |task: Task| async move {
            if task.run < 2 {
                let error = json!({"status": 429, "message": "429 Too Many Requests", "retry_after": "120"});
                return Outcome::failed_with(error);
            }
            Outcome::succeeded(json!({"sent": true}))
        })
        .handle("invoice.render", |_| async {
            Outcome::failed_with(json!({"class": "final", "type": "ValidationError", "message": "vat_id is missing"}))
        })
        .handle("report.export", |task: Task| async move {
            if task.run < 2 {
                // Hangs without heartbeats until long after its lease has expired; not forever, because it occupies a slot.
                tokio::time::sleep(Duration::from_secs(10)).await;
            }
            Outcome::succeeded(json!({"rows": 1_204}))
        })
        .handle("kyc.recheck", |task: Task| async move {
            if task.attempt_number < 3 { unavailable() } else { Outcome::succeeded(json!({"known": true})) }
        })
        .handle("crm.sync", move |_| {
            let is_down = outage.hits();
            async move {
                if is_down {
                    return Outcome::failed_with(json!({"type": "ConnectError", "message": "connection refused"}));
                }
                Outcome::succeeded(json!({"synced": true}))
            }
        })
        .handle("thumbnail.make", |_| async {
            Outcome::failed_with(json!({"type": "OutOfMemory", "message": "image is too large"}))
        })
        // The dashboard submits `{"down": true}` in place of the key f.
        .handle("demo.bank", move |task: Task| {
            let down = task.payload["down"].as_bool();
            let line = down.map(|down| control.set(down));
            async move {
                match line {
                    Some(line) => Outcome::succeeded(json!({"down": down, "said": line})),
                    None => Outcome::failed_with(json!({"class": "final", "message": "`down` must be true or false"})),
                }
            }
        })
        .handle("order.reserve", fine)
        .handle("order.ship", fine)
        .handle("order.refund", fine)
        .without_heartbeats()
}
