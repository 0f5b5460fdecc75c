//! One worker, as a process of its own: leases, does what its task's payload says, and reports; writes down all of it.

use std::io::Read;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use crate::api::{Api, Reply};
use crate::history::{Answer, Call, Grant, Log, Run, What};
use crate::plan::{LEASE_MS, Step};
use crate::rng::Rng;

/// What a worker is told when it is started.
#[derive(Serialize, Deserialize)]
pub struct Orders {
    /// Another one for every start, so that no two processes write under one name.
    pub name: String,
    pub urls: Vec<String>,
    pub history: PathBuf,
    pub seed: u64,
}

struct Me {
    name: String,
    api: Api,
    log: Log,
}

/// Tasks side by side in one worker.
const ROOM: u32 = 8;

pub fn main(orders: Orders) {
    // It ends with whoever started it: its standard input is closed then.
    std::thread::spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(0);
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(work(orders));
}

async fn work(orders: Orders) {
    let me = Arc::new(Me { name: orders.name, api: Api::new(orders.urls), log: Log::create(&orders.history) });
    let mut rng = Rng::new(orders.seed);
    let room = Arc::new(Semaphore::new(ROOM as usize));
    loop {
        let first = room.clone().acquire_owned().await.expect("room");
        let free = u32::try_from(room.available_permits()).unwrap_or(0);
        let server = me.api.any_server(&mut rng);
        let leased = me.lease(server, 1 + free).await;
        drop(first);
        let Some(leased) = leased else {
            tokio::time::sleep(Duration::from_millis(200 + rng.below(400))).await;
            continue;
        };
        for item in leased {
            let permit = room.clone().acquire_owned().await.expect("room");
            let (me, rng) = (me.clone(), rng.fork());
            tokio::spawn(async move {
                me.run(item, rng).await;
                drop(permit);
            });
        }
    }
}

/// What was leased, and what is to be done with it.
struct Leased {
    run: Run,
    token: String,
    step: Step,
}

impl Leased {
    fn read(item: &Value) -> Option<(Leased, Grant)> {
        let task = &item["task"];
        let run = Run { task: task["id"].as_str()?.parse().ok()?, run: u32::try_from(task["run"].as_u64()?).ok()? };
        let steps: Vec<Step> = serde_json::from_value(task["payload"]["steps"].clone()).ok()?;
        let step = steps.get(run.run as usize - 1).copied().unwrap_or(Step::Succeed { ms: 5 });
        let grant = Grant { run, expires_at: instant(&item["expires_at"])? };
        Some((Leased { run, token: item["lease"].as_str()?.to_owned(), step }, grant))
    }
}

fn instant(value: &Value) -> Option<i64> {
    comeback_core::Timestamp::parse_rfc3339(value.as_str()?).ok().map(|at| at.0)
}

impl Me {
    /// Nothing when it is not known whether anything was leased.
    async fn lease(&self, server: usize, limit: u32) -> Option<Vec<Leased>> {
        let asked = self.log.invoke(&self.name, Call::Lease { span_ms: LEASE_MS.cast_signed() });
        let body = json!({"worker": self.name, "limit": limit, "lease": format!("{LEASE_MS}ms"), "wait": "1s"});
        match self.api.post(server, "/leases", &body, None).await {
            Reply::Done(answer) => {
                let items = answer["leases"].as_array().expect("leases").iter();
                let read: Vec<_> = items.map(|item| Leased::read(item).expect("a lease")).collect();
                let (leased, grants) = read.into_iter().unzip();
                asked.end(What::Ok(Answer::Leased(grants)));
                Some(leased)
            }
            Reply::Refused(why) => {
                asked.end(What::Fail(why));
                None
            }
            Reply::Unknown(why) => {
                asked.end(What::Info(why));
                None
            }
        }
    }

    async fn run(&self, leased: Leased, mut rng: Rng) {
        let nap = |ms: u64| tokio::time::sleep(Duration::from_millis(ms));
        let failed = |error: Value| json!({"outcome": "failed", "error": error});
        let report = match leased.step {
            Step::Succeed { ms } => {
                nap(ms).await;
                json!({"outcome": "succeeded", "result": {"run": leased.run.run}})
            }
            Step::Fail { ms } => {
                nap(ms).await;
                failed(json!({"message": "not yet"}))
            }
            Step::Refuse => failed(json!({"message": "never", "class": "final"})),
            Step::Throttle { after_ms } => failed(json!({
                "message": "too many", "class": "rate_limited", "retry_after": format!("{after_ms}ms"),
            })),
            Step::Snooze { ms } => json!({"outcome": "snoozed", "delay": format!("{ms}ms")}),
            Step::Release => json!({"outcome": "released"}),
            Step::Slow { ms } => {
                let until = tokio::time::Instant::now() + Duration::from_millis(ms);
                while tokio::time::Instant::now() < until {
                    nap(LEASE_MS / 4).await;
                    self.beat(&leased, &mut rng).await;
                }
                json!({"outcome": "succeeded"})
            }
            Step::Hang => return nap(LEASE_MS).await,
            Step::Late => {
                nap(LEASE_MS + 300).await;
                json!({"outcome": "succeeded"})
            }
        };
        self.say(&leased, &report, &mut rng).await;
        if rng.percent(10) {
            self.report(&leased, &report, &mut rng).await;
        } else if rng.percent(5) {
            let other = if report["outcome"] == "failed" { "succeeded" } else { "failed" };
            self.report(&leased, &json!({"outcome": other}), &mut rng).await;
        }
    }

    async fn beat(&self, leased: &Leased, rng: &mut Rng) {
        let asked = self.log.invoke(&self.name, Call::Heartbeat { run: leased.run });
        let body = json!({"leases": [leased.token], "extend": format!("{LEASE_MS}ms")});
        let server = self.api.any_server(rng);
        asked.end(match self.api.post(server, "/leases/heartbeat", &body, None).await {
            Reply::Done(answer) => match instant(&answer["leases"][0]["expires_at"]) {
                Some(until) => What::Ok(Answer::Extended(until)),
                None => What::Fail(answer["leases"][0].to_string()),
            },
            Reply::Refused(why) => What::Fail(why),
            Reply::Unknown(why) => What::Info(why),
        });
    }

    /// Says it until it is heard, or for so long that the lease is over.
    async fn say(&self, leased: &Leased, report: &Value, rng: &mut Rng) {
        for _ in 0..12 {
            if self.report(leased, report, rng).await {
                return;
            }
            tokio::time::sleep(Duration::from_millis(150 + rng.below(350))).await;
        }
    }

    /// Whether there was an answer.
    async fn report(&self, leased: &Leased, report: &Value, rng: &mut Rng) -> bool {
        let outcome = report["outcome"].as_str().expect("an outcome").to_owned();
        let asked = self.log.invoke(&self.name, Call::Report { run: leased.run, outcome });
        let mut report = report.clone();
        report["lease"] = leased.token.as_str().into();
        let server = self.api.any_server(rng);
        let end = match self.api.post(server, "/leases/report", &json!({"reports": [report]}), None).await {
            Reply::Done(answer) => {
                let answer = &answer["reports"][0];
                match answer["state"].as_str() {
                    Some(state) => What::Ok(Answer::State(state.to_owned())),
                    None if answer["problem"]["status"] == 409 => {
                        What::Fail(answer["problem"]["error"].as_str().unwrap_or_default().to_owned())
                    }
                    None => What::Info(answer.to_string()),
                }
            }
            Reply::Refused(why) => What::Fail(why),
            Reply::Unknown(why) => What::Info(why),
        };
        let heard = !matches!(end, What::Info(_));
        asked.end(end);
        heard
    }
}
