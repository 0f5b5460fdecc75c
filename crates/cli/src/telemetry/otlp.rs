//! Spans over OTLP/HTTP, as JSON: one per request and one per attempt. All attempts of a task share a trace: the one it was
//! submitted under, or one derived from the task id. Export never blocks work: spans that cannot be sent in time are dropped.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use comeback_core::{AttemptOutcome, Record, Task, Timestamp};
use comeback_engine::store::{Background, Finished, Heartbeat};
use comeback_server::RequestRecord;
use percent_encoding::percent_decode_str;
use serde_json::{Value, json};
use tokio::sync::{Mutex, mpsc, oneshot};

use crate::error::{CliError, code};

/// Capacity of the queue, size of a batch, and interval of sending.
const QUEUE: usize = 8_192;
const BATCH: usize = 512;
const EVERY: Duration = Duration::from_secs(2);
const TIMEOUT: Duration = Duration::from_secs(10);

/// Settings of the `OTEL_` variables about traces over HTTP.
#[derive(Clone, Debug, PartialEq)]
pub struct OtlpSettings {
    endpoint: String,
    headers: Vec<(String, String)>,
    resource: Vec<(String, String)>,
    sampler: Sampler,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Sampler {
    /// Share of traces to sample without a decision of the parent.
    share: f64,
    /// Whether the decision of the parent wins.
    by_parent: bool,
}

impl OtlpSettings {
    /// `None` if tracing is not enabled.
    pub fn read(variable: impl Fn(&str) -> Option<String>) -> Result<Option<OtlpSettings>, String> {
        let variable = |name: &str| variable(name).filter(|text| !text.trim().is_empty());
        if variable("OTEL_SDK_DISABLED").is_some_and(|text| text.eq_ignore_ascii_case("true")) {
            return Ok(None);
        }
        let exact = variable("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT");
        let general = || {
            let base = variable("OTEL_EXPORTER_OTLP_ENDPOINT")?;
            Some(format!("{}/v1/traces", base.trim_end_matches('/')))
        };
        let Some(endpoint) = exact.or_else(general) else { return Ok(None) };
        let pairs = |name: &str| -> Result<Vec<(String, String)>, String> {
            let text = variable(name).unwrap_or_default();
            let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
            let pair = |part: &str| match part.split_once('=') {
                Some((key, value)) => {
                    Ok((key.trim().to_owned(), percent_decode_str(value.trim()).decode_utf8_lossy().into_owned()))
                }
                None => Err(format!("{name}: `{part}` is not of the form key=value")),
            };
            parts.map(pair).collect()
        };
        let mut headers = pairs("OTEL_EXPORTER_OTLP_HEADERS")?;
        headers.extend(pairs("OTEL_EXPORTER_OTLP_TRACES_HEADERS")?);
        let mut resource = pairs("OTEL_RESOURCE_ATTRIBUTES")?;
        let named = resource.iter().any(|(key, _)| key == "service.name");
        match variable("OTEL_SERVICE_NAME") {
            Some(name) => {
                resource.retain(|(key, _)| key != "service.name");
                resource.push(("service.name".into(), name));
            }
            None if !named => resource.push(("service.name".into(), "comeback".into())),
            None => {}
        }
        let word = variable("OTEL_TRACES_SAMPLER").unwrap_or_else(|| "parentbased_always_on".into());
        let share = || match variable("OTEL_TRACES_SAMPLER_ARG") {
            None => Ok(1.0),
            Some(text) => match text.parse::<f64>() {
                Ok(share) if (0.0..=1.0).contains(&share) => Ok(share),
                _ => Err(format!("OTEL_TRACES_SAMPLER_ARG: `{text}` is not between 0 and 1")),
            },
        };
        let (by_parent, rest) = word.strip_prefix("parentbased_").map_or((false, word.as_str()), |rest| (true, rest));
        let share = match rest {
            "always_on" => 1.0,
            "always_off" => 0.0,
            "traceidratio" => share()?,
            _ => return Err(format!("OTEL_TRACES_SAMPLER: `{word}` is not supported")),
        };
        Ok(Some(OtlpSettings { endpoint, headers, resource, sampler: Sampler { share, by_parent } }))
    }
}

/// The parent span of a `traceparent`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Parent {
    trace: u128,
    span: u64,
    sampled: bool,
}

/// W3C `traceparent`: version, trace, span, flags.
fn parse_traceparent(text: &str) -> Option<Parent> {
    let parts: Vec<&str> = text.trim().split('-').collect();
    let [version, trace, span, flags, ..] = parts.as_slice() else { return None };
    if version.len() != 2 || *version == "ff" || trace.len() != 32 || span.len() != 16 || flags.len() != 2 {
        return None;
    }
    let trace = u128::from_str_radix(trace, 16).ok().filter(|trace| *trace != 0)?;
    let span = u64::from_str_radix(span, 16).ok().filter(|span| *span != 0)?;
    let flags = u8::from_str_radix(flags, 16).ok()?;
    Some(Parent { trace, span, sampled: flags & 1 == 1 })
}

impl Sampler {
    fn takes(self, trace: u128, parent: Option<Parent>) -> bool {
        match parent {
            Some(parent) if self.by_parent => parent.sampled,
            // The lower half decides, as every implementation of the ratio does.
            _ => self.share >= 1.0 || ((trace as u64) >> 1) as f64 / (i64::MAX as f64) < self.share,
        }
    }
}

enum SpanMessage {
    Span(Box<Value>),
    Flush(oneshot::Sender<()>),
}

/// Queue of spans for the exporter.
pub struct Spans {
    send: mpsc::Sender<SpanMessage>,
    sampler: Sampler,
}

impl Spans {
    pub fn start(settings: OtlpSettings, instance: &str, background: &Background) -> Result<Arc<Spans>, CliError> {
        let wrong = |error: String| CliError::new(code::FAILED, "tracing cannot be set up").why(error);
        let client = reqwest::Client::builder().timeout(TIMEOUT).build().map_err(|error| wrong(error.to_string()))?;
        let endpoint: reqwest::Url =
            settings.endpoint.parse().map_err(|error| wrong(format!("`{}`: {error}", settings.endpoint)))?;
        let mut resource = settings.resource.clone();
        resource.push(("service.instance.id".into(), instance.to_owned()));
        resource.push(("service.version".into(), env!("CARGO_PKG_VERSION").into()));
        let resource: Vec<Value> = resource.iter().map(|(key, value)| attribute(key, text(value))).collect();
        let (send, receive) = mpsc::channel(QUEUE);
        let sender = SpanSender { client, endpoint, headers: settings.headers, resource, warned_at: None };
        let shared = Arc::new(Mutex::new((sender, receive)));
        background.spawn("otlp", EVERY, move |beat| {
            let shared = shared.clone();
            async move {
                let (sender, receive) = &mut *shared.lock().await;
                sender.run(receive, &beat).await
            }
        });
        Ok(Arc::new(Spans { send, sampler: settings.sampler }))
    }

    pub async fn flush(&self) {
        let (done, flushed) = oneshot::channel();
        if self.send.send(SpanMessage::Flush(done)).await.is_ok() {
            let _ = tokio::time::timeout(TIMEOUT, flushed).await;
        }
    }

    fn push(&self, span: Value) {
        // A full queue drops the span: tasks do not wait for a slow collector.
        let _ = self.send.try_send(SpanMessage::Span(Box::new(span)));
    }

    pub fn attempt(&self, task: &Task, record: &Record, traceparent: Option<&str>) {
        let parent = traceparent.and_then(parse_traceparent);
        let trace = parent.map_or(task.id.0.as_u128(), |parent| parent.trace);
        if !self.sampler.takes(trace, parent) {
            return;
        }
        let decision = record.decision.as_ref();
        let number = decision.map_or(record.attempt, |decision| decision.before.attempt) + 1;
        let mut attributes = vec![
            attribute("comeback.task.id", text(&task.id.to_string())),
            attribute("comeback.task.kind", text(&task.lane.kind)),
            attribute("comeback.task.queue", text(&task.lane.queue)),
            attribute("comeback.namespace", text(&task.lane.namespace)),
            attribute("comeback.attempt", whole(number.into())),
            attribute("comeback.run", whole(record.run.into())),
            attribute("comeback.cycle", whole(record.cycle.into())),
            attribute("comeback.is_retry", json!({"boolValue": number > 1})),
            attribute("comeback.outcome", text(record.outcome.map_or("ended", AttemptOutcome::word))),
            attribute("comeback.state", text(task.state.word())),
        ];
        attributes.extend(record.worker.as_deref().map(|worker| attribute("comeback.worker", text(worker))));
        attributes.extend(decision.map(|it| attribute("comeback.reason", text(it.reason.word()))));
        attributes.extend(task.next_retry_at.map(|at| attribute("comeback.next_retry_at", text(&at.to_rfc3339()))));
        let failure = record.failure.as_ref();
        attributes
            .extend(failure.and_then(|it| it.error_type.as_deref()).map(|name| attribute("error.type", text(name))));
        attributes.extend(
            failure.and_then(|it| it.status).map(|status| attribute("http.response.status_code", whole(status.into()))),
        );
        let status = match failure {
            Some(failure) => json!({"code": 2, "message": failure.message.chars().take(500).collect::<String>()}),
            None => json!({}),
        };
        self.push(json!({
            "traceId": format!("{trace:032x}"),
            "spanId": format!("{:016x}", span_id(&(task.id, record.run))),
            "parentSpanId": parent.map_or_else(String::new, |parent| format!("{:016x}", parent.span)),
            "name": format!("attempt {}", task.lane.kind),
            "kind": 5,
            "startTimeUnixNano": nanos(record.started_at.unwrap_or(record.at)),
            "endTimeUnixNano": nanos(record.at),
            "attributes": attributes,
            "status": status,
        }));
    }

    pub fn request(&self, asked: &RequestRecord<'_>) {
        let parent = asked.traceparent.and_then(parse_traceparent);
        let own = || (u128::from(span_id(&(asked.id, 1))) << 64) | u128::from(span_id(&(asked.id, 2)));
        let trace = parent.map_or_else(own, |parent| parent.trace);
        if !self.sampler.takes(trace, parent) {
            return;
        }
        let since_epoch = |at: SystemTime| at.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos().to_string();
        let status = if asked.status >= 500 { json!({"code": 2}) } else { json!({}) };
        self.push(json!({
            "traceId": format!("{trace:032x}"),
            "spanId": format!("{:016x}", span_id(&(asked.id, 0))),
            "parentSpanId": parent.map_or_else(String::new, |parent| format!("{:016x}", parent.span)),
            "name": format!("{} {}", asked.method, asked.route),
            "kind": 2,
            "startTimeUnixNano": since_epoch(asked.began),
            "endTimeUnixNano": since_epoch(asked.began + asked.took),
            "attributes": [
                attribute("http.request.method", text(asked.method)),
                attribute("http.route", text(asked.route)),
                attribute("http.response.status_code", whole(asked.status.into())),
                attribute("comeback.request.id", text(asked.id)),
            ],
            "status": status,
        }));
    }
}

fn attribute(key: &str, value: Value) -> Value {
    json!({"key": key, "value": value})
}

fn text(value: &str) -> Value {
    json!({"stringValue": value})
}

fn whole(value: u64) -> Value {
    json!({"intValue": value.to_string()})
}

fn nanos(at: Timestamp) -> String {
    (i128::from(at.0) * 1_000_000).to_string()
}

fn span_id(of: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    hasher.finish().max(1)
}

/// Sends batches of spans.
struct SpanSender {
    client: reqwest::Client,
    endpoint: reqwest::Url,
    headers: Vec<(String, String)>,
    resource: Vec<Value>,
    warned_at: Option<std::time::Instant>,
}

impl SpanSender {
    async fn run(&mut self, receive: &mut mpsc::Receiver<SpanMessage>, beat: &Heartbeat) -> Finished {
        let mut spans: Vec<Value> = Vec::new();
        let mut tick = tokio::time::interval(EVERY);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            beat.turn();
            tokio::select! {
                message = receive.recv() => match message {
                    Some(SpanMessage::Span(span)) => spans.push(*span),
                    Some(SpanMessage::Flush(done)) => {
                        self.send(&mut spans).await;
                        let _ = done.send(());
                    }
                    None => break,
                },
                _ = tick.tick() => self.send(&mut spans).await,
            }
            if spans.len() >= BATCH {
                self.send(&mut spans).await;
            }
        }
        self.send(&mut spans).await;
        Finished
    }

    async fn send(&mut self, spans: &mut Vec<Value>) {
        if spans.is_empty() {
            return;
        }
        let body = json!({"resourceSpans": [{
            "resource": {"attributes": self.resource},
            "scopeSpans": [{"scope": {"name": "comeback"}, "spans": std::mem::take(spans)}],
        }]});
        let mut request = self.client.post(self.endpoint.clone()).json(&body);
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        let sent = request.send().await.and_then(reqwest::Response::error_for_status);
        let Err(error) = sent else { return };
        if self.warned_at.is_none_or(|at| at.elapsed() > Duration::from_secs(60)) {
            self.warned_at = Some(std::time::Instant::now());
            tracing::warn!(%error, "failed to export spans; dropping them");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Option<OtlpSettings>, String> {
        OtlpSettings::read(|name| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned()))
    }

    #[test]
    fn the_standards_variables_are_read() {
        assert_eq!(read(&[]), Ok(None));
        let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318/");
        assert_eq!(read(&[endpoint, ("OTEL_SDK_DISABLED", "true")]), Ok(None));
        let found = read(&[
            endpoint,
            ("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20x%2Cy, a=b%"),
            ("OTEL_RESOURCE_ATTRIBUTES", "service.name=other,zone=eu"),
            ("OTEL_SERVICE_NAME", "jobs"),
            ("OTEL_TRACES_SAMPLER", "traceidratio"),
            ("OTEL_TRACES_SAMPLER_ARG", "0.25"),
        ]);
        let found = found.expect("read").expect("asked for");
        assert_eq!(found.endpoint, "http://collector:4318/v1/traces");
        assert_eq!(found.headers[0], ("authorization".into(), "Bearer x,y".into()));
        assert_eq!(found.headers[1], ("a".into(), "b%".into()));
        assert_eq!(found.resource, [("zone".into(), "eu".into()), ("service.name".into(), "jobs".into())]);
        assert_eq!(found.sampler, Sampler { share: 0.25, by_parent: false });
        assert!(read(&[endpoint, ("OTEL_TRACES_SAMPLER", "dice")]).is_err());
        assert!(read(&[endpoint, ("OTEL_EXPORTER_OTLP_HEADERS", "nonsense")]).is_err());
    }

    #[test]
    fn a_traceparent_is_read_or_left_alone() {
        let good = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let parent = parse_traceparent(good).expect("a parent");
        assert_eq!((parent.span, parent.sampled), (0xb7ad_6b71_6920_3331, true));
        for bad in [
            "",
            "00",
            "00-0-1-01",
            &good.replace("00-0af", "ff-0af"),
            &good.replace("b7ad6b7169203331", "0000000000000000"),
        ] {
            assert_eq!(parse_traceparent(bad), None, "{bad}");
        }
    }

    #[test]
    fn who_submitted_has_the_first_word_on_sampling() {
        let sampler = Sampler { share: 1.0, by_parent: true };
        let parent = |sampled| Some(Parent { trace: 1, span: 1, sampled });
        assert!(sampler.takes(1, None) && sampler.takes(1, parent(true)) && !sampler.takes(1, parent(false)));
        let ratio = Sampler { share: 0.25, by_parent: false };
        let taken = (0..4_000_u128).filter(|n| ratio.takes(n.wrapping_mul(0x9e37_79b9_7f4a_7c15), None)).count();
        assert!((800..1_200).contains(&taken), "{taken}");
    }
}
