//! Those who ask: submitters that do not give up on a key, operators that interfere, and one who follows everything.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use uuid::Uuid;

use crate::api::{Api, Reply};
use crate::history::{Answer, Call, Log, Made, What};
use crate::plan::{Mix, Planned};
use crate::rng::Rng;

/// What all of them share.
#[derive(Clone)]
pub struct Desk {
    pub api: Api,
    pub log: Arc<Log>,
    /// Tasks to interfere with: the last ones that were made.
    pub known: Arc<Mutex<Vec<Known>>>,
    pub over: Arc<AtomicBool>,
}

#[derive(Clone, Copy)]
pub struct Known {
    id: Uuid,
    /// Its first cycle ends badly, and nothing depends on it.
    doomed: bool,
}

const REMEMBERED: usize = 400;
/// A request under a key is sent again so often, at most, until somebody answers.
const TRIES: usize = 40;

impl Desk {
    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    fn remember(&self, made: &[Made], doomed: bool) {
        let mut known = self.known.lock().expect("tasks");
        known.extend(made.iter().map(|made| Known { id: made.id, doomed }));
        let surplus = known.len().saturating_sub(REMEMBERED);
        known.drain(..surplus);
    }
}

/// Waits longer after every failure, as anybody should.
struct Patience(u64);

impl Patience {
    async fn after(&mut self, heard: bool, rng: &mut Rng) {
        self.0 = if heard { 0 } else { (self.0 * 2).clamp(50, 800) };
        tokio::time::sleep(Duration::from_millis(self.0 + 20 + rng.below(80))).await;
    }
}

/// A request to make tasks, as it is sent once or many times.
#[derive(Clone)]
struct Request {
    key: Option<String>,
    tasks: Vec<Planned>,
    many: bool,
}

impl Request {
    fn body(&self) -> Value {
        if !self.many {
            return self.tasks[0].to_json(0);
        }
        json!({"tasks": self.tasks.iter().enumerate().map(|(place, task)| task.to_json(place)).collect::<Vec<_>>()})
    }
}

#[derive(PartialEq)]
enum Heard {
    Made(Vec<Made>),
    Refused,
    Nothing,
}

pub async fn submitter(desk: Desk, n: usize, mix: Mix, mut rng: Rng) {
    let name = format!("c{n}");
    let mut patience = Patience(0);
    let mut count = 0;
    while !desk.is_over() {
        count += 1;
        let external = format!("{name}-{count}");
        let (request, doomed) = request(&mut rng, mix, external);
        let heard = match (&request.key, rng.below(10)) {
            (None, _) => desk.submit(&name, &request, &mut rng).await,
            // Two at once, at two servers: they must agree.
            (Some(_), 0..2) => {
                let (mut left, mut right) = (rng.fork(), rng.fork());
                let both =
                    tokio::join!(desk.submit(&name, &request, &mut left), desk.submit(&name, &request, &mut right));
                if both.0 == Heard::Nothing { both.1 } else { both.0 }
            }
            (Some(_), _) => desk.submit_until_heard(&name, &request, &mut rng).await,
        };
        if let Heard::Made(made) = &heard {
            desk.remember(made, doomed);
            if request.key.is_some() && rng.percent(20) {
                desk.submit(&name, &request, &mut rng).await;
            }
            if request.key.is_some() && rng.percent(5) {
                let other = Planned::random(&mut rng, format!("{name}-{count}-other"));
                let misuse = Request { tasks: vec![other], many: false, ..request.clone() };
                desk.submit(&name, &misuse, &mut rng).await;
            }
            if rng.percent(10) {
                desk.read(&name, made[0].id, &mut rng).await;
            }
        }
        patience.after(heard != Heard::Nothing, &mut rng).await;
    }
}

fn request(rng: &mut Rng, mix: Mix, external: String) -> (Request, bool) {
    let key = |rng: &mut Rng, percent: u64| rng.percent(percent).then(|| format!("key-{external}"));
    let one = |task: Planned, key: Option<String>| Request { key, tasks: vec![task], many: false };
    if mix == Mix::LateWorkers {
        return (one(Planned::late(external), None), false);
    }
    match rng.below(100) {
        0..50 => {
            let key = key(rng, 60);
            (one(Planned::random(rng, external), key), false)
        }
        50..60 => {
            let key = key(rng, 30);
            (one(Planned::doomed(rng, external), key), true)
        }
        60..72 => {
            let key = key(rng, 50);
            let size = 2 + rng.below(8);
            let tasks = (0..size).map(|place| Planned::random(rng, format!("{external}-{place}"))).collect();
            (Request { key, tasks, many: true }, false)
        }
        72..84 => {
            let key = key(rng, 50);
            (Request { key, tasks: Planned::graph(rng, &external), many: true }, false)
        }
        _ => {
            let dedupe = Some(format!("d{}", rng.below(6)));
            (one(Planned { dedupe, ..Planned::random(rng, external) }, None), false)
        }
    }
}

impl Desk {
    async fn submit(&self, name: &str, request: &Request, rng: &mut Rng) -> Heard {
        let call = Call::Submit { key: request.key.clone(), tasks: request.tasks.clone() };
        let asked = self.log.invoke(name, call);
        match self.api.post(self.api.any_server(rng), "/tasks", &request.body(), request.key.as_deref()).await {
            Reply::Done(answer) => {
                let made: Vec<Made> = answer["tasks"].as_array().expect("tasks").iter().map(made).collect();
                let execution = answer["execution_id"].as_str().and_then(|text| text.parse().ok());
                asked.end(What::Ok(Answer::Submitted { tasks: made.clone(), execution }));
                Heard::Made(made)
            }
            Reply::Refused(why) => {
                asked.end(What::Fail(why));
                Heard::Refused
            }
            Reply::Unknown(why) => {
                asked.end(What::Info(why));
                Heard::Nothing
            }
        }
    }

    /// The same key and the same body, until somebody answers.
    async fn submit_until_heard(&self, name: &str, request: &Request, rng: &mut Rng) -> Heard {
        let mut patience = Patience(0);
        for _ in 0..TRIES {
            let heard = self.submit(name, request, rng).await;
            if heard != Heard::Nothing {
                return heard;
            }
            patience.after(false, rng).await;
        }
        Heard::Nothing
    }

    async fn read(&self, name: &str, task: Uuid, rng: &mut Rng) {
        let asked = self.log.invoke(name, Call::Read { task });
        asked.end(ended(
            self.api.get(self.api.any_server(rng), &format!("/tasks/{task}"), &[]).await,
            |it| &it["state"],
        ));
    }

    /// Whether there was an answer, and whether it was done.
    async fn act(&self, name: &str, verb: &str, task: Uuid, body: Value, rng: &mut Rng) -> Option<bool> {
        let note = format!("{name}-{:x}", rng.next());
        let asked = self.log.invoke(name, Call::Act { verb: verb.into(), task, note: note.clone() });
        let mut body = body;
        body["note"] = note.into();
        let reply = self.api.post(self.api.any_server(rng), &format!("/tasks/{task}/{verb}"), &body, None).await;
        let done = match &reply {
            Reply::Done(_) => Some(true),
            Reply::Refused(_) => Some(false),
            Reply::Unknown(_) => None,
        };
        asked.end(ended(reply, |it| &it["task"]["state"]));
        done
    }
}

fn made(task: &Value) -> Made {
    let id = task["id"].as_str().and_then(|text| text.parse().ok()).expect("an id");
    Made { id, duplicate: task["duplicate"] == true }
}

fn ended(reply: Reply, state: impl Fn(&Value) -> &Value) -> What {
    match reply {
        Reply::Done(answer) => What::Ok(Answer::State(state(&answer).as_str().expect("a state").to_owned())),
        Reply::Refused(why) => What::Fail(why),
        Reply::Unknown(why) => What::Info(why),
    }
}

/// Cancels, pauses, resumes, retries and moves what others have made.
pub async fn operator(desk: Desk, n: usize, mut rng: Rng) {
    let name = format!("o{n}");
    let mut paused: Vec<(tokio::time::Instant, Uuid)> = Vec::new();
    let mut patience = Patience(0);
    while !desk.is_over() {
        let now = tokio::time::Instant::now();
        if let Some(place) = paused.iter().position(|(until, _)| *until <= now) {
            let (_, task) = paused.remove(place);
            if desk.act(&name, "resume", task, json!({}), &mut rng).await.is_none() {
                paused.push((now + Duration::from_millis(200), task));
            }
        }
        let known = desk.known.lock().expect("tasks").clone();
        let doomed: Vec<Known> = known.iter().filter(|it| it.doomed).copied().collect();
        // The younger a task is, the more can still be done to it.
        let known = &known[known.len().saturating_sub(1 << (1 + rng.below(6)))..];
        let heard = match (rng.below(100), rng.pick(known), rng.pick(&doomed)) {
            (0..20, Some(it), _) => {
                let done = desk.act(&name, "cancel", it.id, json!({}), &mut rng).await;
                if done == Some(true) && rng.percent(50) {
                    desk.read(&name, it.id, &mut rng).await;
                }
                done.is_some()
            }
            (20..60, Some(it), _) => {
                let done = desk.act(&name, "pause", it.id, json!({}), &mut rng).await;
                if done != Some(false) {
                    paused.push((now + Duration::from_millis(300 + rng.below(2_000)), it.id));
                }
                done.is_some()
            }
            (60..75, Some(it), _) => {
                let delay = json!({"delay": format!("{}ms", 100 + rng.below(1_000))});
                desk.act(&name, "snooze", it.id, delay, &mut rng).await.is_some()
            }
            (75.., _, Some(it)) => desk.act(&name, "retry", it.id, json!({}), &mut rng).await.is_some(),
            _ => true,
        };
        patience.after(heard, &mut rng).await;
    }
    resume_all(&desk, &name, &mut rng).await;
}

/// Nothing stays paused when the operators go home.
pub async fn resume_all(desk: &Desk, name: &str, rng: &mut Rng) {
    loop {
        let server = desk.api.any_server(rng);
        let Reply::Done(page) = desk.api.get(server, "/tasks", &[("state", "paused"), ("limit", "500")]).await else {
            tokio::time::sleep(Duration::from_millis(200)).await;
            continue;
        };
        let ids: Vec<Uuid> = page["items"]
            .as_array()
            .expect("items")
            .iter()
            .filter_map(|task| task["id"].as_str()?.parse().ok())
            .collect();
        if ids.is_empty() {
            return;
        }
        for id in ids {
            desk.act(name, "resume", id, json!({}), rng).await;
        }
    }
}

/// Follows the feed by its cursor, at whichever server answers, until it is told that nothing more will come and has heard
/// nothing more.
pub async fn follower(desk: Desk, enough: Arc<AtomicBool>, mut rng: Rng) {
    let mut cursor: Option<String> = None;
    let mut patience = Patience(0);
    loop {
        let last = enough.load(Ordering::Relaxed);
        let asked = desk.log.invoke("f0", Call::Follow { after: cursor.clone() });
        let mut query = vec![("limit", "500")];
        query.extend(cursor.as_deref().map(|cursor| ("after", cursor)));
        match desk.api.get(desk.api.any_server(&mut rng), "/events", &query).await {
            Reply::Done(page) => {
                let told = page["items"].as_array().expect("items");
                let events = told.iter().filter_map(event).collect();
                let next = page["next_cursor"].as_str().map(str::to_owned);
                let is_end = told.is_empty() && next == cursor;
                cursor.clone_from(&next);
                asked.end(What::Ok(Answer::Followed { next, events }));
                if is_end && last {
                    return;
                }
                if is_end {
                    patience.after(true, &mut rng).await;
                }
            }
            Reply::Refused(why) => panic!("the follower was refused: {why}"),
            Reply::Unknown(why) => {
                asked.end(What::Info(why));
                patience.after(false, &mut rng).await;
            }
        }
    }
}

fn event(it: &Value) -> Option<(Uuid, u32, String)> {
    let number = u32::try_from(it["seq"].as_u64()?).ok()?;
    Some((it["execution_id"].as_str()?.parse().ok()?, number, it["type"].as_str()?.to_owned()))
}
