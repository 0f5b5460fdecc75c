//! What is submitted: tasks that know what will happen to them, and what was asked for them, for the checker to hold against.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::rng::Rng;

/// Leases are short, so that a worker that dies is missed soon.
pub const LEASE_MS: u64 = 2_500;

/// A task as its client asked for it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Planned {
    /// Unique for every task that was ever asked for, however often the request was sent: the thread from a row to its request.
    pub external: String,
    pub retry: Option<Retry>,
    pub delay_ms: Option<i64>,
    pub dedupe: Option<String>,
    /// Places in the same request, with the end that each must come to.
    pub needs: Vec<Need>,
    /// What the worker does in the first run, the second, and so on; after the last it succeeds.
    pub steps: Vec<Step>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Need {
    pub place: usize,
    pub when: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Retry {
    pub max_retries: u32,
    pub max_lost: u32,
    pub initial_ms: u64,
    /// 1 means a fixed delay.
    pub multiplier: u32,
    pub cap_ms: u64,
    pub jitter: Jitter,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Jitter {
    None,
    Full,
    Equal,
    Proportional,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    Succeed {
        ms: u64,
    },
    Fail {
        ms: u64,
    },
    /// With the class that is not retried.
    Refuse,
    /// Rate limited, with a Retry-After.
    Throttle {
        after_ms: u64,
    },
    Snooze {
        ms: u64,
    },
    Release,
    /// Longer than the lease, with signs of life.
    Slow {
        ms: u64,
    },
    /// Holds its lease and never says a word.
    Hang,
    /// Reports when its lease is over.
    Late,
}

/// What sort of tasks there are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Mix {
    Everything,
    /// Workers that report when their lease is over and another has the task.
    LateWorkers,
}

impl Retry {
    /// The shortest and the longest delay before a retry when `n` were scheduled before.
    pub fn band(&self, n: u32) -> (u64, u64) {
        let grown = (0..n.min(32)).fold(self.initial_ms, |ms, _| ms.saturating_mul(u64::from(self.multiplier)));
        let capped = grown.min(self.cap_ms);
        match self.jitter {
            Jitter::None => (capped, capped),
            Jitter::Full => (0, capped),
            Jitter::Equal => (capped / 2, capped),
            Jitter::Proportional => (capped / 2, (capped + capped.div_ceil(2)).min(self.cap_ms)),
        }
    }

    fn to_json(self) -> Value {
        json!({
            "strategy": "exponential", "max_retries": self.max_retries, "max_lost": self.max_lost,
            "initial_delay": format!("{}ms", self.initial_ms), "multiplier": self.multiplier,
            "max_delay": format!("{}ms", self.cap_ms), "jitter": self.jitter,
        })
    }

    fn random(rng: &mut Rng) -> Retry {
        let jitters = [Jitter::None, Jitter::Full, Jitter::Equal, Jitter::Proportional];
        Retry {
            max_retries: 1 + rng.below(5) as u32,
            max_lost: 2 + rng.below(4) as u32,
            initial_ms: 10 + rng.below(600),
            multiplier: 1 + rng.below(3) as u32,
            cap_ms: 500 + rng.below(1_500),
            jitter: *rng.pick(&jitters).expect("one of them"),
        }
    }
}

impl Planned {
    pub fn random(rng: &mut Rng, external: String) -> Planned {
        let steps = (0..rng.below(5)).map(|_| Step::random(rng)).collect();
        Planned {
            external,
            retry: rng.percent(90).then(|| Retry::random(rng)),
            delay_ms: rng.percent(15).then(|| 50 + rng.below(1_500) as i64),
            dedupe: None,
            needs: Vec::new(),
            steps,
        }
    }

    /// One whose first worker is late, while the second takes its time.
    pub fn late(external: String) -> Planned {
        let retry =
            Retry { max_retries: 3, max_lost: 5, initial_ms: 10, multiplier: 1, cap_ms: 500, jitter: Jitter::None };
        let steps = vec![Step::Late, Step::Slow { ms: LEASE_MS }];
        Planned { external, retry: Some(retry), delay_ms: None, dedupe: None, needs: Vec::new(), steps }
    }

    /// One that fails for good in its first cycle.
    pub fn doomed(rng: &mut Rng, external: String) -> Planned {
        let steps = vec![if rng.percent(50) { Step::Refuse } else { Step::Fail { ms: 5 } }];
        let retry = steps[0] == Step::Refuse;
        Planned { retry: retry.then(|| Retry::random(rng)), delay_ms: None, steps, ..Planned::random(rng, external) }
    }

    /// A small graph; needs point backwards.
    pub fn graph(rng: &mut Rng, external: &str) -> Vec<Planned> {
        let size = 2 + rng.below(5) as usize;
        let mut tasks: Vec<Planned> =
            (0..size).map(|place| Planned::random(rng, format!("{external}-{place}"))).collect();
        for (place, task) in tasks.iter_mut().enumerate().skip(1) {
            for from in 0..place {
                if rng.percent(if from + 1 == place { 60 } else { 25 }) {
                    let when = *rng.pick(&["success", "success", "failure", "always"]).expect("one of them");
                    task.needs.push(Need { place: from, when: when.into() });
                }
            }
        }
        if tasks.iter().all(|task| task.needs.is_empty()) {
            tasks[1].needs.push(Need { place: 0, when: "success".into() });
        }
        tasks
    }

    /// As the server wants to hear it.
    pub fn to_json(&self, place: usize) -> Value {
        let spread = self.external.bytes().fold(0_u32, |sum, byte| sum.wrapping_mul(31).wrapping_add(u32::from(byte)));
        let kinds = ["chaos.a", "chaos.b", "chaos.c"];
        let mut task = json!({
            "kind": kinds[spread as usize % kinds.len()],
            "key": format!("t{place}"),
            "external_id": self.external,
            "priority": i64::from(spread / 3 % 3) - 1,
            "payload": {"steps": self.steps},
            "needs": self.needs.iter().map(|need| json!({
                "task": format!("t{}", need.place), "when": need.when,
                "on_unmet": if spread % 4 == 0 { "fail" } else { "skip" },
            })).collect::<Vec<_>>(),
        });
        if let Some(retry) = self.retry {
            task["retry"] = retry.to_json();
        }
        if let Some(ms) = self.delay_ms {
            task["delay"] = format!("{ms}ms").into();
        }
        if let Some(key) = &self.dedupe {
            task["dedupe_key"] = key.as_str().into();
        }
        task
    }
}

impl Step {
    fn random(rng: &mut Rng) -> Step {
        match rng.below(100) {
            0..25 => Step::Succeed { ms: rng.below(120) },
            25..65 => Step::Fail { ms: rng.below(80) },
            65..69 => Step::Refuse,
            69..79 => Step::Throttle { after_ms: 10 + rng.below(1_500) },
            79..87 => Step::Snooze { ms: 10 + rng.below(1_000) },
            87..92 => Step::Release,
            92..95 => Step::Slow { ms: LEASE_MS + rng.below(1_000) },
            95..98 => Step::Hang,
            _ => Step::Late,
        }
    }
}
