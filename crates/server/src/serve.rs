//! Serving: accepts until it is told to stop, then lets what was begun come to its end.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;

use crate::App;

pub struct ServeOptions {
    /// How long requests that were begun may take after the word to stop.
    pub drain: Duration,
}

impl Default for ServeOptions {
    fn default() -> Self {
        ServeOptions { drain: Duration::from_secs(10) }
    }
}

/// Returns when everything that was begun is answered, or when the time for that is over.
pub async fn serve(
    app: Arc<App>,
    listener: TcpListener,
    stop: impl Future<Output = ()> + Send + 'static,
    options: ServeOptions,
) -> std::io::Result<()> {
    let router = app.router();
    let (stopped, mut is_stopped) = tokio::sync::watch::channel(false);
    let signal = {
        let app = app.clone();
        async move {
            stop.await;
            app.drain();
            let _ = stopped.send(true);
        }
    };
    let server = axum::serve(listener, router).with_graceful_shutdown(signal);
    tokio::select! {
        done = server.into_future() => done,
        () = async {
            let _ = is_stopped.wait_for(|stopped| *stopped).await;
            tokio::time::sleep(options.drain).await;
        } => Ok(()),
    }
}
