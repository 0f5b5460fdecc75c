//! Who gets in when there is more than can be done at once. Reports and heartbeats come first: work that is finished must never
//! wait for work that is not begun, or for somebody who looks.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use axum::body::{Body, HttpBody};
use axum::extract::Request;
use axum::http::{HeaderMap, Method, header};
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::auth::Need;
use crate::problem::Problem;

/// What a request is to the house.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Class {
    /// Reports, heartbeats, health: never behind the others.
    Vital,
    /// Asking for work; most of that time is waiting.
    Lease,
    /// Submits and acts.
    Write,
    /// Lists, logs, numbers.
    Look,
}

impl Class {
    pub const ALL: [Class; 4] = [Class::Vital, Class::Lease, Class::Write, Class::Look];

    pub fn word(self) -> &'static str {
        match self {
            Class::Vital => "vital",
            Class::Lease => "lease",
            Class::Write => "write",
            Class::Look => "look",
        }
    }

    pub fn of(method: &Method, path: &str, need: Need) -> Class {
        match need {
            Need::Nothing => Class::Vital,
            Need::Work if matches!(path, "/api/v1/leases" | "/api/queue/lease") => Class::Lease,
            Need::Work => Class::Vital,
            Need::Read => Class::Look,
            _ if *method == Method::GET => Class::Look,
            _ => Class::Write,
        }
    }
}

/// How many requests of a class are worked on, how many may wait, and for how long.
#[derive(Clone, Copy, Debug)]
pub struct Room {
    pub places: usize,
    pub queue: usize,
    pub patience: Duration,
}

#[derive(Clone, Copy, Debug)]
pub struct GateOptions {
    pub vital: Room,
    pub lease: Room,
    pub write: Room,
    pub look: Room,
    /// The largest body where many tasks or reports come at once, and elsewhere.
    pub large_body: usize,
    pub small_body: usize,
    /// Bytes of bodies that may be in memory at once: so many of reports and heartbeats, and so many of all others.
    pub body_bytes: usize,
    /// How long a body may take to arrive.
    pub body_timeout: Duration,
}

impl Default for GateOptions {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        GateOptions {
            vital: Room { places: 2_048, queue: 8_192, patience: seconds(20) },
            lease: Room { places: 8_192, queue: 0, patience: seconds(0) },
            write: Room { places: 512, queue: 2_048, patience: seconds(5) },
            look: Room { places: 32, queue: 256, patience: seconds(2) },
            large_body: 32 << 20,
            small_body: 1 << 20,
            body_bytes: 256 << 20,
            body_timeout: seconds(30),
        }
    }
}

impl GateOptions {
    /// Sets one by its name; the names there are when it is none.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        let number = value.parse::<usize>().map_err(|_| format!("`{value}` is no number"));
        match name {
            "reads" => self.look = self.look.with(number?),
            "writes" => self.write = self.write.with(number?),
            "large_body" => self.large_body = number?,
            "small_body" => self.small_body = number?,
            "body_bytes" => self.body_bytes = number?,
            "body_timeout" => {
                self.body_timeout =
                    Duration::from_millis(comeback_core::Millis::parse(value).map_err(|error| error.to_string())?.0);
            }
            _ => return Err(format!("there are {}", Self::NAMES.join(", "))),
        }
        Ok(())
    }

    pub const NAMES: &[&str] = &["reads", "writes", "large_body", "small_body", "body_bytes", "body_timeout"];
}

impl Room {
    /// More or fewer places, and a queue in proportion.
    fn with(self, places: usize) -> Room {
        let places = places.max(1);
        Room { places, queue: places * (self.queue / self.places).max(1), ..self }
    }
}

/// A class with its places, and who has them.
struct Hall {
    room: Room,
    free: Arc<Semaphore>,
    waiting: AtomicUsize,
    /// Requests of each namespace, waiting ones included.
    guests: Mutex<HashMap<String, usize>>,
    refused: AtomicU64,
}

pub struct Gate {
    halls: [Arc<Hall>; 4],
    /// Memory for what is vital, and for the rest: what fills the one leaves the other alone.
    vital_bytes: Arc<Semaphore>,
    bytes: Arc<Semaphore>,
    options: GateOptions,
}

/// A place that is free again when this is gone.
pub struct Place {
    _guest: Guest,
    _permit: OwnedSemaphorePermit,
}

/// Somebody in a hall, counted out however they go.
struct Guest {
    hall: Arc<Hall>,
    name: String,
}

impl Drop for Guest {
    fn drop(&mut self) {
        let mut guests = self.hall.guests.lock();
        if let Some(here) = guests.get_mut(&self.name) {
            *here -= 1;
            if *here == 0 {
                guests.remove(&self.name);
            }
        }
    }
}

impl Gate {
    pub fn new(options: GateOptions) -> Gate {
        let halls = [options.vital, options.lease, options.write, options.look].map(|room| {
            Arc::new(Hall {
                room,
                free: Arc::new(Semaphore::new(room.places)),
                waiting: AtomicUsize::new(0),
                guests: Mutex::default(),
                refused: AtomicU64::new(0),
            })
        });
        // Counted in KiB, because a semaphore does not count far enough in bytes.
        let bytes = || Arc::new(Semaphore::new(options.body_bytes / 1024));
        Gate { halls, vital_bytes: bytes(), bytes: bytes(), options }
    }

    pub fn options(&self) -> &GateOptions {
        &self.options
    }

    fn hall(&self, class: Class) -> &Arc<Hall> {
        &self.halls[class as usize]
    }

    /// Requests of a class that were turned away.
    pub fn refused(&self, class: Class) -> u64 {
        self.hall(class).refused.load(Ordering::Relaxed)
    }

    /// Requests of a class that are worked on.
    pub fn busy(&self, class: Class) -> usize {
        let hall = self.hall(class);
        hall.room.places - hall.free.available_permits()
    }

    /// Waits for a place. One namespace gets three quarters of what there is: the rest is for the others.
    pub async fn enter(&self, class: Class, guest: &str) -> Result<Place, Problem> {
        let hall = self.hall(class);
        let entered = async {
            let guest = hall.came(guest)?;
            let permit = hall.wait().await?;
            Ok(Place { _guest: guest, _permit: permit })
        };
        entered.await.inspect_err(|_| {
            hall.refused.fetch_add(1, Ordering::Relaxed);
        })
    }

    /// The whole body, if there is memory for it and it comes in time. The memory is taken as long as the caller keeps it.
    pub async fn read(
        &self,
        request: Request,
        class: Class,
        most: usize,
    ) -> Result<(Request, Option<Memory>), Problem> {
        let (parts, body) = request.into_parts();
        if body.is_end_stream() {
            return Ok((Request::from_parts(parts, Body::empty()), None));
        }
        check_length(&parts.headers, most)?;
        let budget = if class == Class::Vital { &self.vital_bytes } else { &self.bytes };
        let whole = tokio::time::timeout(self.options.body_timeout, collect(body, budget, most));
        let (bytes, memory) = whole.await.map_err(|_| Problem::too_slow(self.options.body_timeout))??;
        Ok((Request::from_parts(parts, Body::from(bytes)), Some(memory)))
    }
}

/// What says that it is too large is not read at all.
pub fn check_length(headers: &HeaderMap, most: usize) -> Result<(), Problem> {
    let length = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<usize>().ok());
    if length.is_some_and(|length| length > most) { Err(Problem::too_large(most)) } else { Ok(()) }
}

/// Memory that a body takes, free again when this is gone.
pub type Memory = OwnedSemaphorePermit;

/// Takes memory as the body grows: who only says that much will come takes none from the others.
async fn collect(mut body: Body, budget: &Arc<Semaphore>, most: usize) -> Result<(Bytes, Memory), Problem> {
    let take = |kib: usize| {
        let kib = u32::try_from(kib).unwrap_or(u32::MAX);
        let taken = budget.clone().try_acquire_many_owned(kib);
        taken.map_err(|_| Problem::overloaded("too many large requests are being read"))
    };
    let (mut memory, mut taken) = (take(1)?, 1);
    let mut whole = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| Problem::bad_request("the body broke off"))?;
        let Ok(piece) = frame.into_data() else { continue };
        let size = whole.len() + piece.len();
        if size > most {
            return Err(Problem::too_large(most));
        }
        let needed = size / 1024 + 1;
        if needed > taken {
            memory.merge(take(needed - taken)?);
            taken = needed;
        }
        whole.extend_from_slice(&piece);
    }
    Ok((whole.freeze(), memory))
}

impl Hall {
    async fn wait(&self) -> Result<OwnedSemaphorePermit, Problem> {
        let full = || Problem::overloaded("more is asked of this server than it can do at once");
        if let Ok(permit) = self.free.clone().try_acquire_owned() {
            return Ok(permit);
        }
        if self.waiting.fetch_add(1, Ordering::SeqCst) >= self.room.queue {
            self.waiting.fetch_sub(1, Ordering::SeqCst);
            return Err(full());
        }
        let leaves = Leaves(&self.waiting);
        let waited = tokio::time::timeout(self.room.patience, self.free.clone().acquire_owned()).await;
        drop(leaves);
        match waited {
            Ok(Ok(permit)) => Ok(permit),
            _ => Err(full()),
        }
    }

    fn came(self: &Arc<Hall>, guest: &str) -> Result<Guest, Problem> {
        let share = ((self.room.places + self.room.queue) * 3 / 4).max(1);
        let mut guests = self.guests.lock();
        let here = guests.entry(guest.to_owned()).or_default();
        if *here >= share {
            return Err(Problem::too_many_requests(format!("the namespace `{guest}` has {here} requests under way")));
        }
        *here += 1;
        Ok(Guest { hall: self.clone(), name: guest.to_owned() })
    }
}

/// Counts somebody out, however they go.
struct Leaves<'a>(&'a AtomicUsize);

impl Drop for Leaves<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::{StreamExt, stream};

    use super::*;

    fn gate(places: usize, queue: usize) -> Gate {
        let room = Room { places, queue, patience: Duration::from_millis(20) };
        Gate::new(GateOptions { write: room, look: room, ..GateOptions::default() })
    }

    #[tokio::test]
    async fn what_is_full_turns_away_and_reports_still_get_in() {
        let gate = gate(2, 0);
        let _one = gate.enter(Class::Write, "a").await.expect("room");
        let _two = gate.enter(Class::Write, "b").await.expect("room");
        let refused = gate.enter(Class::Write, "c").await.err().expect("no room");
        assert_eq!((refused.status.as_u16(), refused.retry_after), (503, Some(1)));
        assert!(gate.enter(Class::Vital, "c").await.is_ok());
        assert!(gate.enter(Class::Look, "c").await.is_ok());
        assert_eq!((gate.refused(Class::Write), gate.refused(Class::Vital)), (1, 0));
    }

    #[tokio::test]
    async fn a_place_is_free_again_when_its_holder_goes() {
        let gate = gate(1, 1);
        let first = gate.enter(Class::Look, "a").await.expect("room");
        assert_eq!(gate.enter(Class::Look, "b").await.err().expect("patience has an end").status.as_u16(), 503);
        let (waited, ()) = tokio::join!(gate.enter(Class::Look, "b"), async { drop(first) });
        drop(waited.expect("room, once the first has gone"));
        assert_eq!(gate.busy(Class::Look), 0);
        assert!(gate.hall(Class::Look).guests.lock().is_empty());
    }

    #[tokio::test]
    async fn one_namespace_leaves_room_for_the_others() {
        let gate = gate(4, 0);
        let mut held = Vec::new();
        for _ in 0..3 {
            held.push(gate.enter(Class::Write, "greedy").await.expect("its share"));
        }
        let refused = gate.enter(Class::Write, "greedy").await.err().expect("more than its share");
        assert_eq!((refused.status.as_u16(), refused.retry_after), (429, Some(1)));
        assert!(gate.enter(Class::Write, "modest").await.is_ok());
    }

    #[tokio::test]
    async fn a_caller_that_gives_up_leaves_no_trace() {
        let gate = gate(1, 5);
        let first = gate.enter(Class::Look, "a").await.expect("room");
        let waiting = tokio::time::timeout(Duration::from_millis(1), gate.enter(Class::Look, "b")).await;
        assert!(waiting.is_err(), "it waited");
        assert_eq!(gate.hall(Class::Look).waiting.load(Ordering::SeqCst), 0);
        drop(first);
        assert!(gate.hall(Class::Look).guests.lock().is_empty(), "{:?}", gate.hall(Class::Look).guests.lock());
    }

    fn of(body: Body) -> Request {
        Request::post("/").body(body).expect("a request")
    }

    /// A body of so many bytes of which only the first have come.
    fn slow(first: usize) -> Body {
        let piece = stream::iter([Ok::<_, std::io::Error>(Bytes::from(vec![b' '; first]))]);
        Body::from_stream(piece.chain(stream::pending()))
    }

    #[tokio::test]
    async fn memory_is_taken_by_what_has_come_and_until_it_was_worked_on() {
        let options =
            GateOptions { body_bytes: 8 << 10, body_timeout: Duration::from_millis(50), ..GateOptions::default() };
        let gate = Gate::new(options);
        // Somebody who has sent one byte of a body of unknown length takes one part of eight.
        let (slow, others) = tokio::join!(gate.read(of(slow(1)), Class::Write, 1 << 20), async {
            gate.read(of(Body::from(vec![b' '; 6 << 10])), Class::Write, 1 << 20).await
        });
        assert_eq!(slow.expect_err("it never ends").status.as_u16(), 408);
        let (_, kept) = others.expect("there is room beside it");
        let refused = gate.read(of(Body::from(vec![b' '; 6 << 10])), Class::Write, 1 << 20).await;
        assert_eq!(refused.expect_err("the first is still worked on").status.as_u16(), 503);
        let report = gate.read(of(Body::from(vec![b' '; 6 << 10])), Class::Vital, 1 << 20).await;
        assert!(report.is_ok(), "reports have memory of their own");
        drop(kept);
        assert!(gate.read(of(Body::from(vec![b' '; 6 << 10])), Class::Write, 1 << 20).await.is_ok());
        let large = gate.read(of(Body::from(vec![b' '; 6 << 10])), Class::Write, 5 << 10).await;
        assert_eq!(large.expect_err("too large").status.as_u16(), 413);
    }
}
