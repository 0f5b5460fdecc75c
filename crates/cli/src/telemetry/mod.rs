//! What an operator's tools are told: log lines for people and programs, and spans for those who collect traces.

mod attempts;
mod otlp;

use std::sync::Arc;

use comeback_engine::Watching;
use comeback_server::Listener;
use tracing_subscriber::EnvFilter;

use crate::failure::{Failure, code};

/// Keeps the spans flowing; ends with the process.
pub struct Telemetry {
    spans: Option<Arc<otlp::Spans>>,
}

impl Telemetry {
    /// Logs to standard error; spans only where `OTEL_EXPORTER_OTLP_ENDPOINT` says where to.
    pub fn start(format: &str, instance: &str) -> Result<Telemetry, Failure> {
        let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
        let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
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
        Ok(Telemetry { spans: settings.map(|settings| otlp::Spans::start(settings, instance)).transpose()? })
    }

    pub fn attempts(&self) -> Watching {
        Watching::by(Arc::new(attempts::Attempts::new(self.spans.clone())))
    }

    pub fn requests(&self) -> Option<Listener> {
        let spans = self.spans.clone()?;
        Some(Arc::new(move |asked| spans.request(asked)))
    }

    /// Sends what has not been sent, for a moment at most.
    pub async fn finish(&self) {
        if let Some(spans) = &self.spans {
            spans.flush().await;
        }
    }
}
