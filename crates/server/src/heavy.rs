//! Heavy requests: reads and large bodies run on threads of their own with lower priority, so that reports, heartbeats
//! and small submits never wait for a core that parses or prints megabytes.

use std::sync::OnceLock;

use comeback_engine::store::Running;
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;

/// A body above this size makes a request heavy.
pub const LARGE: usize = 32 << 10;
/// Number of threads for heavy requests.
const THREADS: usize = 2;
/// Maximum number of blocking reads and simulations at a time.
const BLOCKING_THREADS: usize = 32;

/// Runtime of heavy requests, one per process. Without one they run on the main runtime.
fn runtime() -> Option<&'static Runtime> {
    static RUNTIME: OnceLock<Option<Runtime>> = OnceLock::new();
    let build = || {
        Builder::new_multi_thread()
            .worker_threads(THREADS)
            .max_blocking_threads(BLOCKING_THREADS)
            .thread_name("comeback-heavy")
            .on_thread_start(lower_priority)
            .enable_all()
            .build()
            .inspect_err(|error| {
                tracing::warn!(%error, "cannot start the runtime for heavy requests; using the \
                 main runtime")
            })
            .ok()
    };
    RUNTIME.get_or_init(build).as_ref()
}

/// Lowers the priority of the thread. Linux only: elsewhere it would affect the whole process.
fn lower_priority() {
    #[cfg(target_os = "linux")]
    let _ = rustix::process::setpriority_process(None, 10);
}

/// Runs a heavy request. It is canceled when the caller disconnects.
pub async fn run<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> T {
    let Some(runtime) = runtime() else { return work.await };
    let mut only = JoinSet::new();
    match Running::here() {
        Some(running) => only.spawn_on(running.scope(work), runtime.handle()),
        None => only.spawn_on(work, runtime.handle()),
    };
    match only.join_next().await {
        Some(Ok(answer)) => answer,
        Some(Err(error)) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        // The runtime never stops, and nobody else can cancel it.
        _ => std::future::pending().await,
    }
}

/// Spawns heavy work in the background. A panic names the current request.
pub fn spawn(work: impl Future<Output = ()> + Send + 'static) {
    let Some(runtime) = runtime() else {
        Running::spawn(work);
        return;
    };
    match Running::here() {
        Some(running) => runtime.spawn(running.scope(work)),
        None => runtime.spawn(work),
    };
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn heavy_work_runs_on_a_thread_of_lower_priority() {
        let name = run(async { std::thread::current().name().map(str::to_owned) }).await;
        assert_eq!(name.as_deref(), Some("comeback-heavy"));
        #[cfg(target_os = "linux")]
        {
            let nice = || rustix::process::getpriority_process(None).expect("a priority");
            let (here, there) = (nice(), run(async move { nice() }).await);
            assert_eq!(there, (here + 10).min(19));
        }
    }

    #[tokio::test]
    async fn work_is_canceled_when_its_caller_has_gone() {
        let held = Arc::new(());
        let kept = held.clone();
        let work = async move {
            let _kept = kept;
            std::future::pending::<()>().await;
        };
        assert!(tokio::time::timeout(Duration::from_millis(20), run(work)).await.is_err());
        while Arc::strong_count(&held) > 1 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}
