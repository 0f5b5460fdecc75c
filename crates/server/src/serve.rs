//! Serving: accepts until it is told to stop, then lets what was begun come to its end. Nobody may hold a connection by saying
//! nothing, and there are never more connections than were allowed.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use comeback_engine::store::{Running, panic_point};
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use crate::App;
use crate::auth::Peer;

pub struct ServeOptions {
    /// How long requests that were begun may take after the word to stop.
    pub drain: Duration,
    /// How long a request may take to say what it wants.
    pub header_timeout: Duration,
    pub connections: usize,
}

impl Default for ServeOptions {
    fn default() -> Self {
        let (drain, header_timeout) = (Duration::from_secs(10), Duration::from_secs(10));
        ServeOptions { drain, header_timeout, connections: 10_000 }
    }
}

/// More than any client sends.
const MOST_HEADERS: usize = 100;
const MOST_HEADER_BYTES: usize = 64 << 10;

/// Returns when everything that was begun is answered, or when the time for that is over.
pub async fn serve(
    app: Arc<App>,
    listener: TcpListener,
    stop: impl Future<Output = ()> + Send + 'static,
    options: ServeOptions,
) -> std::io::Result<()> {
    let router = app.router();
    let room = Arc::new(Semaphore::new(options.connections));
    let graceful = GracefulShutdown::new();
    let accepting = app.engine.config().background.register("server/accept", Duration::from_secs(1));
    tokio::pin!(stop);
    loop {
        accepting.heartbeat().idle();
        // Who finds no room waits in the line of the operating system.
        let permit = tokio::select! {
            () = &mut stop => break,
            permit = room.clone().acquire_owned() => permit,
        };
        let accepted = tokio::select! {
            () = &mut stop => break,
            accepted = listener.accept() => accepted,
        };
        panic_point!("server-accept");
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // Too many open files, or a caller that is gone already: neither is a reason to stop.
                tracing::warn!(%error, "a connection could not be accepted");
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        let _ = stream.set_nodelay(true);
        let (inner, watcher) = (TowerToHyperService::new(router.clone()), graceful.watcher());
        let service = service_fn(move |mut request: hyper::Request<hyper::body::Incoming>| {
            request.extensions_mut().insert(Peer(peer.ip()));
            inner.call(request)
        });
        let patience = options.header_timeout;
        let named = Running::Request(Arc::new(format!("on a connection from {peer}")));
        tokio::spawn(named.scope(async move {
            let _permit = permit;
            // Who says nothing at all is not waited for either.
            let spoke = tokio::time::timeout(patience, stream.peek(&mut [0])).await;
            if !matches!(spoke, Ok(Ok(1))) {
                return;
            }
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(patience)
                .max_headers(MOST_HEADERS)
                .max_buf_size(MOST_HEADER_BYTES)
                .serve_connection(TokioIo::new(stream), service);
            if let Err(error) = watcher.watch(connection).await {
                tracing::debug!(%error, "a connection broke off");
            }
        }));
    }
    app.drain();
    drop((listener, accepting));
    tokio::select! {
        () = graceful.shutdown() => {}
        () = tokio::time::sleep(options.drain) => {}
    }
    Ok(())
}
