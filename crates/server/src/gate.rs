//! Admission of requests: how many of each class are worked on at once, and how many of one namespace.
//!
//! Every class has places and a queue. A namespace has at most its quota of the places, and never more than three quarters of
//! them; requests that wait are let in by turns of their namespaces, not in the order in which they came. Reports and heartbeats
//! have places and body memory of their own.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::body::{Body, HttpBody};
use axum::extract::Request;
use axum::http::{HeaderMap, Method, header};
use bytes::{Bytes, BytesMut};
use comeback_core::{Quota, QuotaExceeded, Quotas};
use http_body_util::BodyExt;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::auth::Need;
use crate::memory::{Budget, Memory};
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

    /// The quota of a namespace on the places of this class.
    fn quota(self) -> Quota {
        match self {
            Class::Vital => Quota::Reports,
            Class::Lease => Quota::LongPolls,
            Class::Write => Quota::Writes,
            Class::Look => Quota::Reads,
        }
    }

    pub fn of(method: &Method, need: Need) -> Class {
        match need {
            Need::Nothing | Need::Work => Class::Vital,
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
    /// Submits and acts with a large body; each has a place among the writes besides.
    pub large: Room,
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
            large: Room { places: 8, queue: 1_024, patience: seconds(30) },
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

/// Places that namespaces share, with a queue that is served by turns.
pub struct Hall {
    quota: Quota,
    room: Room,
    /// Places that one namespace may hold.
    share: usize,
    /// Requests of one namespace that may wait.
    line: usize,
    queue: Mutex<Queue>,
    refused: AtomicU64,
}

/// Requests inside and requests that wait.
#[derive(Default)]
struct Queue {
    inside: usize,
    waiting: usize,
    namespaces: HashMap<Arc<str>, Guest>,
    /// Namespaces with a request that waits and a share that is not used up, in the order of their turns.
    turns: VecDeque<Arc<str>>,
    /// Number of the next request that waits.
    next: u64,
}

/// The requests of one namespace.
#[derive(Default)]
struct Guest {
    inside: usize,
    /// By number, so that the first one is the oldest.
    waiting: BTreeMap<u64, oneshot::Sender<()>>,
    /// Whether it is among the turns.
    has_turn: bool,
}

/// Admits requests and reads their bodies.
pub struct Gate {
    halls: [Arc<Hall>; 4],
    large: Arc<Hall>,
    /// Memory for bodies of reports and heartbeats, and of all others: one never takes from the other.
    report_bytes: Arc<Budget>,
    bytes: Arc<Budget>,
    options: GateOptions,
}

/// A place that is free again when this is dropped.
pub struct Place {
    hall: Arc<Hall>,
    namespace: Arc<str>,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.hall.leave(&self.namespace);
    }
}

/// What an admitted request holds: its place, and the memory of its body. Work that goes on when the caller has gone keeps a clone,
/// so that it counts until it is done.
#[derive(Clone)]
pub struct Admitted(Arc<Holds>);

struct Holds {
    _places: (Place, Option<Place>),
    memory: Mutex<Option<Memory>>,
}

tokio::task_local! {
    /// What the request that is worked on holds.
    static ADMITTED: Admitted;
}

/// What the present request holds, for work that may outlive it.
pub fn admitted() -> Option<Admitted> {
    ADMITTED.try_with(Clone::clone).ok()
}

impl Admitted {
    /// Answers a request with what it holds at hand.
    pub async fn during<T>(self, answer: impl Future<Output = T>) -> T {
        ADMITTED.scope(self, answer).await
    }

    pub fn new(places: (Place, Option<Place>), memory: Option<Memory>) -> Admitted {
        Admitted(Arc::new(Holds { _places: places, memory: Mutex::new(memory) }))
    }

    /// Counts the body no more.
    pub fn release_memory(&self) {
        self.0.memory.lock().take();
    }

    /// Counts `bytes` in place of the body: it was parsed, and so much is kept of it. That may be more than the body was.
    pub fn keep_memory(&self, bytes: usize) -> Result<(), Problem> {
        let bytes = bytes as u64;
        self.0.memory.lock().as_mut().map_or(Ok(()), |memory| {
            memory.shrink_to(bytes);
            memory.grow_to(bytes)
        })
    }
}

impl Gate {
    pub fn new(options: GateOptions, quotas: &Quotas) -> Gate {
        let rooms = [options.vital, options.lease, options.write, options.look];
        let hall = |class: Class| Arc::new(Hall::new(class.quota(), rooms[class as usize], quotas));
        let budget = |quota| Budget::new(quota, options.body_bytes as u64, quotas);
        Gate {
            halls: Class::ALL.map(hall),
            large: Arc::new(Hall::new(Quota::LargeRequests, options.large, quotas)),
            report_bytes: budget(Quota::ReportBytes),
            bytes: budget(Quota::BodyBytes),
            options,
        }
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
        self.hall(class).queue.lock().inside
    }

    /// Waits for a place.
    pub async fn enter(&self, class: Class, namespace: &str) -> Result<Place, Problem> {
        let hall = self.hall(class);
        hall.enter(namespace).await.inspect_err(|_| hall.count_refusal())
    }

    /// Waits for a place among the writes with a large body.
    pub async fn enter_large(&self, namespace: &str) -> Result<Place, Problem> {
        self.large.enter(namespace).await.inspect_err(|_| self.hall(Class::Write).count_refusal())
    }

    /// The whole body, if there is memory for it and it comes in time. The memory is taken as long as the caller keeps it.
    pub async fn read(
        &self,
        request: Request,
        class: Class,
        most: usize,
        namespace: &str,
    ) -> Result<(Request, Option<Memory>), Problem> {
        let (parts, body) = request.into_parts();
        if body.is_end_stream() {
            return Ok((Request::from_parts(parts, Body::empty()), None));
        }
        check_length(&parts.headers, most)?;
        let budget = if class == Class::Vital { &self.report_bytes } else { &self.bytes };
        let collected = async {
            let memory = budget.take(namespace, PIECE)?;
            collect(body, memory, most).await
        };
        let whole = tokio::time::timeout(self.options.body_timeout, collected).await;
        let whole = whole.map_err(|_| Problem::too_slow(self.options.body_timeout))?;
        let (bytes, memory) = whole.inspect_err(|problem| {
            if problem.retry_after.is_some() {
                self.hall(class).count_refusal();
            }
        })?;
        Ok((Request::from_parts(parts, Body::from(bytes)), Some(memory)))
    }
}

impl Gate {
    /// Memory for a large answer until it was sent. A read is refused where its namespace holds too much already; what was changed is
    /// answered in any case.
    pub fn answer(&self, class: Class, namespace: &str, bytes: u64) -> Result<Memory, Problem> {
        match class {
            Class::Look => self.bytes.take(namespace, bytes).inspect_err(|_| self.hall(class).count_refusal()),
            _ => Ok(self.bytes.take_anyway(namespace, bytes)),
        }
    }
}

/// A body that says it is too large is not read at all.
pub fn check_length(headers: &HeaderMap, most: usize) -> Result<(), Problem> {
    if length(headers).is_some_and(|length| length > most) { Err(Problem::too_large(most)) } else { Ok(()) }
}

fn length(headers: &HeaderMap) -> Option<usize> {
    headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok())
}

/// Bytes by which the memory of a body grows.
const PIECE: u64 = 1024;
/// A body is gathered in segments of this size, which are joined when it is whole: one that never is takes what was sent of it.
const SEGMENT: usize = 256 << 10;

/// Takes memory as the body grows: a sender that only announces a large body takes none from the others.
async fn collect(mut body: Body, mut memory: Memory, most: usize) -> Result<(Bytes, Memory), Problem> {
    let (mut full, mut last, mut size) = (Vec::new(), BytesMut::new(), 0);
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| Problem::bad_request("the body broke off"))?;
        let Ok(mut piece) = frame.into_data() else { continue };
        size += piece.len();
        if size > most {
            return Err(Problem::too_large(most));
        }
        memory.grow_to((size as u64 / PIECE + 1) * PIECE)?;
        while last.len() + piece.len() > SEGMENT {
            last.extend_from_slice(&piece.split_to(SEGMENT - last.len()));
            full.push(std::mem::replace(&mut last, BytesMut::with_capacity(SEGMENT)));
        }
        last.extend_from_slice(&piece);
    }
    if full.is_empty() {
        return Ok((last.freeze(), memory));
    }
    let mut whole = BytesMut::with_capacity(size);
    for segment in full.drain(..).chain([last]) {
        whole.extend_from_slice(&segment);
    }
    Ok((whole.freeze(), memory))
}

impl Hall {
    /// Places of which a namespace gets its quota, and three quarters at most.
    pub fn new(quota: Quota, room: Room, quotas: &Quotas) -> Hall {
        let most = usize::try_from(quotas.get(quota)).unwrap_or(usize::MAX);
        Hall {
            quota,
            room,
            share: most.min(room.places * 3 / 4).max(1),
            line: if room.queue == 0 { 0 } else { (room.queue * 3 / 4).max(1) },
            queue: Mutex::default(),
            refused: AtomicU64::new(0),
        }
    }

    fn count_refusal(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    fn quota_exceeded(&self, namespace: &str) -> Problem {
        let most = self.share as u64;
        QuotaExceeded { quota: self.quota, namespace: namespace.to_owned(), most }.into()
    }

    /// Waits for a place: refused by the quota's name where the namespace has all it may have.
    pub async fn enter(self: &Arc<Hall>, namespace: &str) -> Result<Place, Problem> {
        let mut wait = {
            let mut queue = self.queue.lock();
            let name = match queue.namespaces.get_key_value(namespace) {
                Some((name, _)) => name.clone(),
                None => Arc::from(namespace),
            };
            let (all, waiting) = (queue.inside, queue.waiting);
            let guest = queue.namespaces.entry(name.clone()).or_default();
            if guest.inside < self.share && all < self.room.places {
                guest.inside += 1;
                queue.inside += 1;
                return Ok(Place { hall: self.clone(), namespace: name });
            }
            let used_up = guest.inside >= self.share;
            if guest.waiting.len() >= self.line || waiting >= self.room.queue {
                let mine = used_up || waiting < self.room.queue;
                queue.forget(&name);
                return Err(if mine { self.quota_exceeded(namespace) } else { overloaded() });
            }
            queue.wait(self, name)
        };
        let granted = tokio::time::timeout(self.room.patience, &mut wait.granted).await;
        if matches!(granted, Ok(Ok(()))) {
            return Ok(wait.into_place());
        }
        let used_up = self.queue.lock().namespaces.get(namespace).is_some_and(|guest| guest.inside >= self.share);
        Err(if used_up { self.quota_exceeded(namespace) } else { overloaded() })
    }

    /// Frees a place and gives it to the namespace whose turn it is.
    fn leave(&self, namespace: &Arc<str>) {
        let mut queue = self.queue.lock();
        queue.inside = queue.inside.saturating_sub(1);
        if let Some(guest) = queue.namespaces.get_mut(namespace) {
            guest.inside = guest.inside.saturating_sub(1);
        }
        queue.line_up(namespace, self.share);
        queue.forget(namespace);
        queue.admit(self.room.places, self.share);
    }
}

fn overloaded() -> Problem {
    Problem::overloaded("more is asked of this server than it can do at once")
}

impl Queue {
    /// Puts a request at the end of its namespace's line.
    fn wait(&mut self, hall: &Arc<Hall>, namespace: Arc<str>) -> Waiting {
        let (grant, granted) = oneshot::channel();
        let number = self.next;
        self.next += 1;
        self.waiting += 1;
        if let Some(guest) = self.namespaces.get_mut(&namespace) {
            guest.waiting.insert(number, grant);
        }
        self.line_up(&namespace, hall.share);
        Waiting { hall: hall.clone(), namespace, number, granted, is_over: false }
    }

    /// Gives a namespace a turn if it has a request that waits and a share that is not used up.
    fn line_up(&mut self, namespace: &Arc<str>, share: usize) {
        if let Some(guest) = self.namespaces.get_mut(namespace)
            && !guest.has_turn
            && !guest.waiting.is_empty()
            && guest.inside < share
        {
            guest.has_turn = true;
            self.turns.push_back(namespace.clone());
        }
    }

    /// Lets in one request of each namespace in turn, while there are places.
    fn admit(&mut self, places: usize, share: usize) {
        while self.inside < places {
            let Some(namespace) = self.turns.pop_front() else { return };
            if let Some(guest) = self.namespaces.get_mut(&namespace) {
                guest.has_turn = false;
                while guest.inside < share {
                    let Some((_, grant)) = guest.waiting.pop_first() else { break };
                    self.waiting -= 1;
                    // A caller that has gone leaves the place to the next.
                    if grant.send(()).is_ok() {
                        guest.inside += 1;
                        self.inside += 1;
                        break;
                    }
                }
            }
            self.line_up(&namespace, share);
            self.forget(&namespace);
        }
    }

    /// Forgets a namespace that has no request here.
    fn forget(&mut self, namespace: &Arc<str>) {
        if self.namespaces.get(namespace).is_some_and(|guest| guest.inside == 0 && guest.waiting.is_empty()) {
            self.namespaces.remove(namespace);
            self.turns.retain(|other| other != namespace);
        }
    }
}

/// A request that waits for its turn.
struct Waiting {
    hall: Arc<Hall>,
    namespace: Arc<str>,
    number: u64,
    granted: oneshot::Receiver<()>,
    is_over: bool,
}

impl Waiting {
    fn into_place(mut self) -> Place {
        self.is_over = true;
        Place { hall: self.hall.clone(), namespace: self.namespace.clone() }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let mut queue = self.hall.queue.lock();
        let left = queue.namespaces.get_mut(&self.namespace).and_then(|guest| guest.waiting.remove(&self.number));
        if left.is_some() {
            queue.waiting -= 1;
            queue.forget(&self.namespace);
            return;
        }
        drop(queue);
        // It was let in and never knew: the next one gets the place.
        if self.granted.try_recv().is_ok() {
            self.hall.leave(&self.namespace);
        }
    }
}

#[cfg(test)]
mod tests;
