//! Telemetry: log lines on standard error, and spans over OTLP.

mod attempts;
pub mod log;
mod otlp;

use std::sync::Arc;
use std::time::Duration;

use comeback_engine::Watching;
use comeback_engine::store::Background;
use comeback_server::RequestObserver;
use tracing_subscriber::EnvFilter;

use crate::error::{CliError, code};

/// Time to write the last log lines at the end.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// Log and exporter of a server.
pub struct Telemetry {
    spans: Option<Arc<otlp::Spans>>,
}

impl Telemetry {
    /// Logs to standard error; exports spans if `OTEL_EXPORTER_OTLP_ENDPOINT` is set.
    pub fn start(format: &str, instance: &str, background: &Background) -> Result<Telemetry, CliError> {
        let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
        log::start();
        // A log that cannot be written is no error of the server, and standard error is no place to report it.
        let builder =
            tracing_subscriber::fmt().with_env_filter(filter).with_writer(log::LogWriter).log_internal_errors(false);
        match format {
            "human" => builder.init(),
            "json" => builder.json().init(),
            other => {
                return Err(CliError::new(code::USAGE, format!("invalid --log-format `{other}`"))
                    .remedy("--log-format human or --log-format json"));
            }
        }
        let settings = otlp::OtlpSettings::read(|name| std::env::var(name).ok());
        let settings = settings.map_err(|why| CliError::new(code::USAGE, "cannot set up tracing").why(why))?;
        Ok(Telemetry {
            spans: settings.map(|settings| otlp::Spans::start(settings, instance, background)).transpose()?,
        })
    }

    /// Observer of attempts for the engine.
    pub fn attempts(&self) -> Watching {
        Watching::by(Arc::new(attempts::Attempts::new(self.spans.clone())))
    }

    /// Listener for requests; `None` if spans are not exported.
    pub fn requests(&self) -> Option<RequestObserver> {
        let spans = self.spans.clone()?;
        Some(Arc::new(move |asked| spans.request(asked)))
    }

    /// Sends pending spans and log lines, for a short time at most.
    pub async fn finish(&self) {
        if let Some(spans) = &self.spans {
            spans.flush().await;
        }
        log::flush(FLUSH_TIMEOUT);
    }
}
