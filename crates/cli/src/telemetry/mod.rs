//! What an operator's tools are told: log lines for people and programs, and spans for those who collect traces.

mod attempts;
pub mod log;
mod otlp;

use std::sync::Arc;
use std::time::Duration;

use comeback_engine::Watching;
use comeback_engine::store::Background;
use comeback_server::RequestObserver;
use tracing_subscriber::EnvFilter;

use crate::failure::{Failure, code};

/// What was logged has so long to be written at the end.
const LAST_LINES: Duration = Duration::from_secs(1);

/// Keeps the spans flowing; ends with the process.
pub struct Telemetry {
    spans: Option<Arc<otlp::Spans>>,
}

impl Telemetry {
    /// Logs to standard error; spans only where `OTEL_EXPORTER_OTLP_ENDPOINT` says where to.
    pub fn start(format: &str, instance: &str, background: &Background) -> Result<Telemetry, Failure> {
        let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
        log::start();
        // A log that cannot be written is nobody's failure, and nothing is said of it on a standard error that is broken.
        let builder =
            tracing_subscriber::fmt().with_env_filter(filter).with_writer(log::Lines).log_internal_errors(false);
        match format {
            "human" => builder.init(),
            "json" => builder.json().init(),
            other => {
                return Err(Failure::new(code::USAGE, format!("`{other}` is no format of a log"))
                    .remedy("--log-format human or --log-format json"));
            }
        }
        let settings = otlp::Settings::read(|name| std::env::var(name).ok());
        let settings = settings.map_err(|why| Failure::new(code::USAGE, "tracing cannot be set up").why(why))?;
        Ok(Telemetry {
            spans: settings.map(|settings| otlp::Spans::start(settings, instance, background)).transpose()?,
        })
    }

    pub fn attempts(&self) -> Watching {
        Watching::by(Arc::new(attempts::Attempts::new(self.spans.clone())))
    }

    pub fn requests(&self) -> Option<RequestObserver> {
        let spans = self.spans.clone()?;
        Some(Arc::new(move |asked| spans.request(asked)))
    }

    /// Sends what has not been sent, for a moment at most.
    pub async fn finish(&self) {
        if let Some(spans) = &self.spans {
            spans.flush().await;
        }
        log::flush(LAST_LINES);
    }
}
