//! Deliver: the call that a delivery is. It is signed when it is made, so every try has its own time and the secrets of that moment.

use std::time::{Duration, Instant};

use comeback_core::transition::Actor;
use comeback_core::{Audit, AuditAction, Class, Failure, Millis, State, TaskId, Timestamp, Trigger};
use comeback_store::{Applied, Resource, ResourceKind, StoreError};
use serde_json::{Value, json};

use super::{DELIVERY, Disabled, Secret, Signing, SubscriptionSpec, SubscriptionState, read, signature};
use crate::schedules::text;
use crate::{Clock, Core, Json, Leased, ReportEnd, SystemClock};

/// Timeout of a delivery.
pub(crate) const LONGEST: Duration = Duration::from_secs(15);
/// Bytes of an answer that are kept.
const KEPT: usize = 1_024;

/// The subscription that a call is a delivery of.
pub(crate) fn subscription_of(task: &Leased) -> Option<String> {
    if task.kind != DELIVERY {
        return None;
    }
    let settings: Value = serde_json::from_str(task.executor.as_deref()?).ok()?;
    Some(settings["subscription"].as_str()?.to_owned())
}

fn finally(message: impl Into<String>) -> Failure {
    let error_type = Some("subscription".into());
    Failure { class: Some(Class::Final), error_type, ..Failure::new(Trigger::Error, message.into()) }
}

/// The delivery that it comes behind: what is told of one task is told in its order.
fn behind(task: &Leased) -> Option<TaskId> {
    let settings: Value = serde_json::from_str(task.executor.as_deref()?).ok()?;
    settings["behind"].as_str()?.parse().ok()
}

/// How long a delivery waits in place while the one before it is under way, looking less and less often.
const IN_PLACE: Duration = Duration::from_secs(5);
/// It is put off by so much at least, and by so much at most.
const PUT_OFF: (Millis, Millis) = (Millis::from_secs(1), Millis::from_days(1));

impl Core {
    /// Waits for the delivery before it, where that is under way. Answers for how long it is to be put off where that waits itself.
    pub(crate) async fn until_its_turn(&self, task: &Leased) -> Result<Option<Millis>, StoreError> {
        let Some(before) = behind(task) else { return Ok(None) };
        let (began, mut pause) = (Instant::now(), Duration::from_millis(10));
        loop {
            let found = self.store.load(&[before]).await?.pop().flatten().map(|it| it.task);
            // A paused delivery does not hold up the next ones.
            let Some(it) = found.filter(|it| it.state.is_open() && it.state != State::Paused) else { return Ok(None) };
            if !it.state.is_active() || began.elapsed() >= IN_PLACE {
                let now = self.clock.now();
                let due = it.due().map_or(PUT_OFF.0, |due| due.since(now) + PUT_OFF.0);
                return Ok(Some(due.clamp(PUT_OFF.0, PUT_OFF.1)));
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(Duration::from_millis(500));
        }
    }

    /// The call as it is to be made now, or why it is not.
    pub(crate) async fn signed(&self, id: &str, task: &Leased) -> Result<Leased, Box<Failure>> {
        let away = |error: StoreError| {
            let class = Some(Class::Retryable);
            Box::new(Failure { class, ..Failure::new(Trigger::Error, error.to_string()) })
        };
        let found = self.store.follower(ResourceKind::Subscriptions, &task.namespace, id).await.map_err(away)?;
        let row = found.ok_or_else(|| Box::new(finally(format!("the subscription {id} was deleted"))))?;
        let (spec, standing) = read(&row).map_err(away)?;
        if let Some(disabled) = &standing.disabled {
            return Err(Box::new(finally(format!("the subscription {id} is disabled: {}", disabled.reason))));
        }
        if spec.paused {
            return Err(Box::new(finally(format!("the subscription {id} is paused"))));
        }
        let body = task.payload.as_deref().unwrap_or("{}");
        let message = task.name.as_deref().unwrap_or_default();
        // By the time that everybody outside has, whatever clock tasks live by.
        let now = SystemClock::new().now();
        let seconds = now.0 / 1_000;
        let secrets = self.signing_secrets(&standing, task).await?;
        let signed = signature(secrets.iter(), message, seconds, body);
        let mut headers = json!(spec.headers);
        let own = json!({
            "content-type": spec.format.content_type(),
            "idempotency-key": message,
            "webhook-id": message,
            "webhook-timestamp": seconds.to_string(),
            "webhook-signature": signed,
        });
        if let (Value::Object(headers), Value::Object(own)) = (&mut headers, own) {
            headers.extend(own);
        }
        let settings = json!({"type": "http", "method": "POST", "url": spec.url, "headers": headers});
        Ok(Leased { executor: Some(settings.to_string()), ..task.clone() })
    }

    /// The secrets that sign now, the named ones looked up.
    async fn signing_secrets(&self, standing: &SubscriptionState, task: &Leased) -> Result<Vec<Secret>, Box<Failure>> {
        let now = self.clock.now();
        let named = standing.signing(now).filter_map(Signing::name);
        let values = self.secret_values(&task.namespace, named).await?;
        let mut secrets = Vec::new();
        for signing in standing.signing(now) {
            secrets.push(match signing {
                Signing::Own(secret) => secret.clone(),
                Signing::Named { secret: name } => {
                    Secret::read(values.get(name).unwrap_or_default()).map_err(|why| {
                        let (class, error_type) = (Some(Class::Retryable), Some("secret".into()));
                        let message = format!("the secret `{name}` cannot sign: it {why}");
                        Box::new(Failure { class, error_type, ..Failure::new(Trigger::Error, message) })
                    })?
                }
            });
        }
        Ok(secrets)
    }

    /// The end of a delivery: anything but a success is retried, except 410 Gone.
    pub(crate) async fn heard(&self, id: &str, task: &Leased, end: ReportEnd) -> ReportEnd {
        match end {
            ReportEnd::Failed(failure) if failure.status == Some(410) => {
                let reason = "the endpoint answered 410 Gone";
                if let Err(error) = self.disable(&task.namespace, id, reason).await {
                    let class = Some(Class::Retryable);
                    return ReportEnd::Failed(Failure { class, ..Failure::new(Trigger::Error, error.to_string()) });
                }
                ReportEnd::Failed(Failure { class: Some(Class::Final), ..failure })
            }
            ReportEnd::Failed(failure) => {
                let waits = matches!(failure.status, Some(429 | 503)) && failure.retry_after.is_some();
                let class = failure.class.or((!waits).then_some(Class::Retryable));
                ReportEnd::Failed(Failure { class, result: failure.result.map(short), ..failure })
            }
            ReportEnd::Succeeded { result } => {
                let answer = result.and_then(|result| serde_json::from_str(result.text()).ok()).map(short);
                ReportEnd::Succeeded { result: answer.map(Json::from) }
            }
            other => other,
        }
    }

    /// Disables the subscription until it is put again.
    async fn disable(&self, namespace: &str, id: &str, reason: &str) -> Result<(), StoreError> {
        for _ in 0..20 {
            let Some(row) = self.store.follower(ResourceKind::Subscriptions, namespace, id).await? else {
                return Ok(());
            };
            let (spec, standing) = read(&row)?;
            if standing.disabled.is_some() {
                return Ok(());
            }
            let now = self.clock.now();
            let disabled = Some(Disabled { at: now, reason: reason.to_owned() });
            let row = stopped(row, &spec, SubscriptionState { disabled, ..standing });
            let act = Actor { by: Some("comeback".into()), note: Some(reason.to_owned()), ..Actor::default() };
            let entry =
                Audit::new(self.ids.act(now), now, AuditAction::SubscriptionDisable, id, &act).within(namespace);
            if self.store.put_follower(&row, None, None, Some(&entry), now).await? == Applied::Done {
                tracing::warn!(subscription = id, namespace, reason, "subscription disabled");
                return Ok(());
            }
        }
        Err(StoreError::Unavailable("the subscription is changed by others all the time".into()))
    }
}

fn stopped(row: Resource, spec: &SubscriptionSpec, standing: SubscriptionState) -> Resource {
    let due: Option<Timestamp> = spec.due(&standing);
    Resource { due, standing: text(&standing), ..row }
}

/// The status, and the beginning of what was said.
fn short(answer: Value) -> Value {
    let body = match &answer["body"] {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    json!({"status": answer["status"], "body": body.chars().take(KEPT).collect::<String>()})
}
