//! Serving: accepts until it is told to stop, then lets what was begun come to its end. Nobody may hold a connection by saying
//! nothing or by reading nothing, and there are never more connections than were allowed.

use std::convert::Infallible;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::http::{HeaderValue, header};
use comeback_engine::store::{Running, panic_point};
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::App;
use crate::auth::Peer;
use crate::connections::Open;
use crate::write_timeout::WriteTimeout;

pub struct ServeOptions {
    /// How long requests that were begun may take after the word to stop.
    pub drain: Duration,
    /// How long a request may take to say what it wants.
    pub header_timeout: Duration,
    /// How long a client may take nothing of its answer.
    pub write_timeout: Duration,
    /// Connections at once.
    pub connections: usize,
    /// Connections of one address at once that have not shown a good key.
    pub connections_per_address: usize,
}

impl Default for ServeOptions {
    fn default() -> Self {
        let (drain, header_timeout) = (Duration::from_secs(10), Duration::from_secs(10));
        let write_timeout = Duration::from_secs(30);
        ServeOptions { drain, header_timeout, write_timeout, connections: 10_000, connections_per_address: 2_000 }
    }
}

impl ServeOptions {
    /// The names that [`ServeOptions::set`] knows.
    pub const NAMES: &[&str] = &["connections", "connections_per_address", "write_timeout"];

    /// Sets one by its name; the names there are when it is none.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        let number = || match value.parse::<usize>() {
            Ok(number) if number > 0 => Ok(number),
            _ => Err(format!("`{value}` is no number above 0")),
        };
        match name {
            "connections" => self.connections = number()?,
            "connections_per_address" => self.connections_per_address = number()?,
            "write_timeout" => {
                let span = comeback_core::Millis::parse(value).map_err(|error| error.to_string())?;
                self.write_timeout = Duration::from_millis(span.0.max(1));
            }
            _ => return Err(format!("there are {}", Self::NAMES.join(", "))),
        }
        Ok(())
    }
}

/// More than any client sends.
const MOST_HEADERS: usize = 100;
const MOST_HEADER_BYTES: usize = 64 << 10;
/// How long a connection that must make room may take to finish an answer.
const MAKE_ROOM: Duration = Duration::from_secs(1);

/// Returns when everything that was begun is answered, or when the time for that is over.
pub async fn serve(
    app: Arc<App>,
    listener: TcpListener,
    stop: impl Future<Output = ()> + Send + 'static,
    options: ServeOptions,
) -> std::io::Result<()> {
    let router = app.router();
    app.connections.limit(options.connections, options.connections_per_address);
    let (stopping, stopped) = watch::channel(false);
    let accepting = app.engine.config().background.register("server/accept", Duration::from_secs(1));
    tokio::pin!(stop);
    loop {
        accepting.heartbeat().idle();
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
                app.connections.close_oldest();
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        // Closed at once where every connection has a good key: accepting never waits.
        let Some(open) = app.connections.open_one(peer.ip().to_canonical()) else { continue };
        let _ = stream.set_nodelay(true);
        let service = TowerToHyperService::new(router.clone());
        let named = Running::Request(Arc::new(format!("on a connection from {peer}")));
        tokio::spawn(named.scope(connection(stream, open, service, stopped.clone(), Timeouts::of(&options))));
    }
    app.drain();
    drop((listener, accepting, stopped));
    let _ = stopping.send(true);
    tokio::select! {
        // When the last connection has gone nobody listens any more.
        () = stopping.closed() => {}
        () = tokio::time::sleep(options.drain) => {}
    }
    Ok(())
}

#[derive(Clone, Copy)]
struct Timeouts {
    header: Duration,
    write: Duration,
}

impl Timeouts {
    fn of(options: &ServeOptions) -> Timeouts {
        Timeouts { header: options.header_timeout, write: options.write_timeout }
    }
}

/// Answers the requests of one connection until it ends, the server stops, or it must make room.
async fn connection(
    stream: TcpStream,
    open: Open,
    router: TowerToHyperService<axum::Router>,
    mut stopped: watch::Receiver<bool>,
    timeouts: Timeouts,
) {
    // A client that sends nothing at all is not waited for.
    let mut first = [0];
    let spoke = tokio::select! {
        spoke = tokio::time::timeout(timeouts.header, stream.peek(&mut first)) => matches!(spoke, Ok(Ok(1))),
        () = open.must_close() => false,
        _ = stopped.wait_for(|stopped| *stopped) => false,
    };
    if !spoke {
        return;
    }
    let own = open.connection();
    let service = service_fn(move |mut request: hyper::Request<hyper::body::Incoming>| {
        request.extensions_mut().insert(Peer(own.peer()));
        request.extensions_mut().insert(own.clone());
        let (answered, own) = (router.call(request), own.clone());
        async move {
            let mut response = answered.await?;
            if own.ends_after_answer() {
                response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            Ok::<_, Infallible>(response)
        }
    });
    let mut serving = pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(timeouts.header)
            .max_headers(MOST_HEADERS)
            .max_buf_size(MOST_HEADER_BYTES)
            .serve_connection(TokioIo::new(WriteTimeout::new(stream, timeouts.write)), service)
    );
    let (mut ends, mut give_up) = (false, None);
    loop {
        let timer = async {
            match give_up {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            ended = serving.as_mut() => {
                if let Err(error) = ended {
                    tracing::debug!(%error, "a connection broke off");
                }
                return;
            }
            _ = stopped.wait_for(|stopped| *stopped), if !ends => {
                ends = true;
                serving.as_mut().graceful_shutdown();
            }
            () = open.must_close(), if give_up.is_none() => {
                ends = true;
                give_up = Some(tokio::time::Instant::now() + MAKE_ROOM);
                serving.as_mut().graceful_shutdown();
            }
            () = timer => return,
        }
    }
}
