//! Accepts connections until stopped, then finishes the running requests. Idle and slow clients time out, and the
//! number of connections is limited.

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
use crate::connections::ConnectionGuard;
use crate::write_timeout::WriteTimeout;

/// Timeouts and limits of connections.
pub struct ServeOptions {
    /// How long running requests may take after the stop signal.
    pub drain: Duration,
    /// Timeout for reading the request head.
    pub header_timeout: Duration,
    /// Timeout for a client that does not read its response.
    pub write_timeout: Duration,
    /// Maximum number of connections.
    pub connections: usize,
    /// Maximum number of unauthenticated connections per address.
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
    /// Names that [`ServeOptions::set`] accepts.
    pub const NAMES: &[&str] = &["connections", "connections_per_address", "write_timeout"];

    /// Sets an option by its name. An unknown name is an error that lists the names.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        let number = || match value.parse::<usize>() {
            Ok(number) if number > 0 => Ok(number),
            _ => Err(format!("`{value}` is not a number above 0")),
        };
        match name {
            "connections" => self.connections = number()?,
            "connections_per_address" => self.connections_per_address = number()?,
            "write_timeout" => {
                let span = comeback_core::Millis::parse(value).map_err(|error| error.to_string())?;
                self.write_timeout = Duration::from_millis(span.0.max(1));
            }
            _ => return Err(format!("unknown name; must be one of {}", Self::NAMES.join(", "))),
        }
        Ok(())
    }
}

/// Maximum number of request headers.
const MOST_HEADERS: usize = 100;
const MOST_HEADER_BYTES: usize = 64 << 10;
/// Time for a connection that must close to finish its response.
const MAKE_ROOM: Duration = Duration::from_secs(1);

/// Serves until `stop` resolves, then drains running requests for at most `options.drain`.
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
                tracing::warn!(%error, "cannot accept connection");
                app.connections.close_oldest();
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
        };
        // Closed immediately if every connection is authenticated: accepting never waits.
        let Some(open) = app.connections.admit(peer.ip().to_canonical()) else { continue };
        let _ = stream.set_nodelay(true);
        let service = TowerToHyperService::new(router.clone());
        let named = Running::Request(Arc::new(format!("on a connection from {peer}")));
        tokio::spawn(named.scope(connection(stream, open, service, stopped.clone(), Timeouts::of(&options))));
    }
    app.drain();
    drop((listener, accepting, stopped));
    let _ = stopping.send(true);
    tokio::select! {
        // Resolves when the last connection has closed.
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

/// Serves the requests of one connection until it ends, the server stops, or it must close to make room.
async fn connection(
    stream: TcpStream,
    open: ConnectionGuard,
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
                    tracing::debug!(%error, "connection closed with an error");
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
