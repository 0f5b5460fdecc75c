//! Admission control: limits concurrent requests per class and per namespace.
//!
//! Every class has permits and a queue. A namespace holds at most its quota of the permits, and never more than three
//! quarters of them; the queue is served round-robin by namespace, not first come first served. Reports and heartbeats
//! have permits and body memory of their own.

mod semaphore;

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, HttpBody};
use axum::extract::Request;
use axum::http::{HeaderMap, Method, header};
use bytes::{Bytes, BytesMut};
use comeback_core::{Quota, Quotas};
use http_body_util::BodyExt;
use parking_lot::Mutex;

use crate::auth::Need;
use crate::memory::{MemoryBudget, MemoryPermit};
use crate::problem::Problem;

pub use semaphore::{FairSemaphore, Permit};

/// Class of a request; each class has its own limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RequestClass {
    /// Reports, heartbeats, health: never queued behind other classes.
    Vital,
    /// Lease requests: mostly long polls.
    Lease,
    /// Submits and acts.
    Write,
    /// Reads: lists, logs, statistics.
    Look,
}

impl RequestClass {
    /// All classes.
    pub const ALL: [RequestClass; 4] =
        [RequestClass::Vital, RequestClass::Lease, RequestClass::Write, RequestClass::Look];

    /// The word of a class, for metrics.
    pub fn word(self) -> &'static str {
        match self {
            RequestClass::Vital => "vital",
            RequestClass::Lease => "lease",
            RequestClass::Write => "write",
            RequestClass::Look => "look",
        }
    }

    /// Quota of a namespace for the permits of this class.
    fn quota(self) -> Quota {
        match self {
            RequestClass::Vital => Quota::Reports,
            RequestClass::Lease => Quota::LongPolls,
            RequestClass::Write => Quota::Writes,
            RequestClass::Look => Quota::Reads,
        }
    }

    /// The class of a route.
    pub fn of(method: &Method, need: Need) -> RequestClass {
        match need {
            Need::Nothing | Need::Work => RequestClass::Vital,
            Need::Read => RequestClass::Look,
            _ if *method == Method::GET => RequestClass::Look,
            _ => RequestClass::Write,
        }
    }
}

/// Limits of a class: concurrent requests, queue length, and maximum wait in the queue.
#[derive(Clone, Copy, Debug)]
pub struct ClassLimits {
    pub permits: usize,
    pub queue: usize,
    pub timeout: Duration,
}

/// Limits of request classes and of request bodies.
#[derive(Clone, Copy, Debug)]
pub struct LimiterOptions {
    pub vital: ClassLimits,
    pub lease: ClassLimits,
    pub write: ClassLimits,
    pub look: ClassLimits,
    /// Submits and acts with a large body; each holds a write permit too.
    pub large: ClassLimits,
    /// Maximum body size of batch routes, and of all others.
    pub large_body: usize,
    pub small_body: usize,
    /// Memory for request bodies in bytes: this much for reports and heartbeats, and the same for all others.
    pub body_bytes: usize,
    /// Timeout for reading a body.
    pub body_timeout: Duration,
}

impl Default for LimiterOptions {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        LimiterOptions {
            vital: ClassLimits { permits: 2_048, queue: 8_192, timeout: seconds(20) },
            lease: ClassLimits { permits: 8_192, queue: 0, timeout: seconds(0) },
            write: ClassLimits { permits: 512, queue: 2_048, timeout: seconds(5) },
            look: ClassLimits { permits: 32, queue: 256, timeout: seconds(2) },
            large: ClassLimits { permits: 8, queue: 1_024, timeout: seconds(30) },
            large_body: 32 << 20,
            small_body: 1 << 20,
            body_bytes: 256 << 20,
            body_timeout: seconds(30),
        }
    }
}

impl LimiterOptions {
    /// Sets an option by its name. An unknown name is an error that lists the names.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        let number = value.parse::<usize>().map_err(|_| format!("`{value}` is not a number"));
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
            _ => return Err(format!("unknown name; must be one of {}", Self::NAMES.join(", "))),
        }
        Ok(())
    }

    /// Names that [`LimiterOptions::set`] accepts.
    pub const NAMES: &[&str] = &["reads", "writes", "large_body", "small_body", "body_bytes", "body_timeout"];
}

impl ClassLimits {
    /// Changes the number of permits, and the queue in proportion.
    fn with(self, permits: usize) -> ClassLimits {
        let permits = permits.max(1);
        ClassLimits { permits, queue: permits * (self.queue / self.permits).max(1), ..self }
    }
}

/// Limits concurrent requests and the memory of their bodies.
pub struct Limiter {
    classes: [Arc<FairSemaphore>; 4],
    large: Arc<FairSemaphore>,
    /// Memory for bodies of reports and heartbeats, separate from all others.
    report_bytes: Arc<MemoryBudget>,
    bytes: Arc<MemoryBudget>,
    options: LimiterOptions,
}

/// Resources of an admitted request: its permits and the memory of its body. Work that outlives its caller keeps a
/// clone, so that it counts until it is done.
#[derive(Clone)]
pub struct Admitted(Arc<AdmittedResources>);

struct AdmittedResources {
    _permits: (Permit, Option<Permit>),
    memory: Mutex<Option<MemoryPermit>>,
}

tokio::task_local! {
    /// Resources of the current request.
    static ADMITTED: Admitted;
}

/// Resources of the current request, for work that may outlive it.
pub fn admitted() -> Option<Admitted> {
    ADMITTED.try_with(Clone::clone).ok()
}

impl Admitted {
    /// Runs a future with these as the current resources.
    pub async fn during<T>(self, answer: impl Future<Output = T>) -> T {
        ADMITTED.scope(self, answer).await
    }

    /// Resources of an admitted request.
    pub fn new(permits: (Permit, Option<Permit>), memory: Option<MemoryPermit>) -> Admitted {
        Admitted(Arc::new(AdmittedResources { _permits: permits, memory: Mutex::new(memory) }))
    }

    /// Releases the memory of the body.
    pub fn release_memory(&self) {
        self.0.memory.lock().take();
    }

    /// Replaces the memory of the body by `bytes`, the size of its parsed form, which may be larger.
    pub fn keep_memory(&self, bytes: usize) -> Result<(), Problem> {
        let bytes = bytes as u64;
        self.0.memory.lock().as_mut().map_or(Ok(()), |memory| {
            memory.shrink_to(bytes);
            memory.grow_to(bytes)
        })
    }
}

impl Limiter {
    /// A limiter with these limits and quotas.
    pub fn new(options: LimiterOptions, quotas: &Quotas) -> Limiter {
        let limits = [options.vital, options.lease, options.write, options.look];
        let semaphore =
            |class: RequestClass| Arc::new(FairSemaphore::new(class.quota(), limits[class as usize], quotas));
        let budget = |quota| MemoryBudget::new(quota, options.body_bytes as u64, quotas);
        Limiter {
            classes: RequestClass::ALL.map(semaphore),
            large: Arc::new(FairSemaphore::new(Quota::LargeRequests, options.large, quotas)),
            report_bytes: budget(Quota::ReportBytes),
            bytes: budget(Quota::BodyBytes),
            options,
        }
    }

    /// The configured limits.
    pub fn options(&self) -> &LimiterOptions {
        &self.options
    }

    fn semaphore(&self, class: RequestClass) -> &Arc<FairSemaphore> {
        &self.classes[class as usize]
    }

    /// Number of refused requests of a class.
    pub fn refused(&self, class: RequestClass) -> u64 {
        self.semaphore(class).refused()
    }

    /// Number of running requests of a class.
    pub fn busy(&self, class: RequestClass) -> usize {
        self.semaphore(class).running()
    }

    /// Waits for a permit of a class.
    pub async fn acquire(&self, class: RequestClass, namespace: &str) -> Result<Permit, Problem> {
        let semaphore = self.semaphore(class);
        semaphore.acquire(namespace).await.inspect_err(|_| semaphore.count_refusal())
    }

    /// Waits for a permit for a write with a large body.
    pub async fn acquire_large(&self, namespace: &str) -> Result<Permit, Problem> {
        self.large.acquire(namespace).await.inspect_err(|_| self.semaphore(RequestClass::Write).count_refusal())
    }

    /// Reads the whole body within the memory limit and the timeout. The memory is held until the returned permit is
    /// dropped.
    pub async fn read(
        &self,
        request: Request,
        class: RequestClass,
        most: usize,
        namespace: &str,
    ) -> Result<(Request, Option<MemoryPermit>), Problem> {
        let (parts, body) = request.into_parts();
        if body.is_end_stream() {
            return Ok((Request::from_parts(parts, Body::empty()), None));
        }
        check_length(&parts.headers, most)?;
        let budget = if class == RequestClass::Vital { &self.report_bytes } else { &self.bytes };
        let collected = async {
            let memory = budget.take(namespace, PIECE)?;
            collect(body, memory, most).await
        };
        let whole = tokio::time::timeout(self.options.body_timeout, collected).await;
        let whole = whole.map_err(|_| Problem::too_slow(self.options.body_timeout))?;
        let (bytes, memory) = whole.inspect_err(|problem| {
            if problem.retry_after.is_some() {
                self.semaphore(class).count_refusal();
            }
        })?;
        Ok((Request::from_parts(parts, Body::from(bytes)), Some(memory)))
    }
}

impl Limiter {
    /// Memory for a large response until it is sent. A read is refused if its namespace is over its quota; a write has
    /// happened and is always answered.
    pub fn answer(&self, class: RequestClass, namespace: &str, bytes: u64) -> Result<MemoryPermit, Problem> {
        match class {
            RequestClass::Look => {
                self.bytes.take(namespace, bytes).inspect_err(|_| self.semaphore(class).count_refusal())
            }
            _ => Ok(self.bytes.take_anyway(namespace, bytes)),
        }
    }
}

/// Refuses a body whose `Content-Length` is over the limit.
pub fn check_length(headers: &HeaderMap, most: usize) -> Result<(), Problem> {
    if length(headers).is_some_and(|length| length > most) { Err(Problem::too_large(most)) } else { Ok(()) }
}

fn length(headers: &HeaderMap) -> Option<usize> {
    headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok())
}

/// Granularity of body memory, in bytes.
const PIECE: u64 = 1024;
/// A body is buffered in segments of this size and joined at the end, so an incomplete body takes no more memory than
/// was sent.
const SEGMENT: usize = 256 << 10;

/// Takes memory as the body grows: announcing a large body reserves nothing.
async fn collect(mut body: Body, mut memory: MemoryPermit, most: usize) -> Result<(Bytes, MemoryPermit), Problem> {
    let (mut full, mut last, mut size) = (Vec::new(), BytesMut::new(), 0);
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| Problem::bad_request("the body is incomplete"))?;
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

#[cfg(test)]
mod tests;
