//! Subscriptions: events are delivered to endpoints by signed calls.
//!
//! A subscription is one row that follows the feed. Where it has come to and the deliveries it has made are written in one commit,
//! so every event makes its deliveries once, whoever looks and whoever is killed. A delivery is a lone task: it is tried again by
//! the same rules as everything else, and seen.

pub(crate) mod deliver;
pub(crate) mod follow;
mod sign;
pub(crate) mod turns;

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use comeback_core::admission::{Bound, Key, Matcher, Rule};
use comeback_core::filter::Filter;
use comeback_core::subscription::{Format, Message, Types};
use comeback_core::{Dialect, HOOK_QUEUE, Invalid, Policy, PolicyLimits, TaskId, Timestamp, dialect};
use comeback_store::{FeedCursor, NewTask, Resource, StoreError};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::changes::DependencyCursor;
use crate::executors::HttpCall;
use crate::hooks::as_executor;
use crate::secrets::{SecretText, name_fault};
use crate::{CARRIED, Core, ExecutorSpec, TaskSpec};
pub use sign::{Secret, signature};

/// The kind of every delivery.
pub const DELIVERY: &str = "subscription.delivery";
/// The label that says whose it is.
pub const OF: &str = "subscription";

/// As many of one subscription are under way at once, on all instances together. A dead endpoint keeps no more hands than these.
pub const SIDE_BY_SIDE: u32 = 4;

/// Tried ten times over three days, as Standard Webhooks has it.
static POLICY: LazyLock<Option<Arc<Policy>>> = LazyLock::new(|| {
    let written =
        json!({"schedule": ["5s", "5m", "30m", "2h", "5h", "10h", "14h", "20h", "24h"], "jitter": "proportional"});
    dialect::parse(&written, Dialect::Native, &PolicyLimits::default()).ok().flatten().map(Arc::new)
});

const LONGEST_URL: usize = 2_000;
/// How often a delivery may be put off because the one before it is not over.
const MOST_TURNS: u32 = 1_000;

/// A subscription as a caller asks for it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SubscriptionSpec {
    /// Address of the endpoint.
    pub url: String,
    /// Types of events.
    #[serde(default)]
    pub types: Types,
    /// Of the tasks whose events are told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filter: Option<String>,
    /// Format of messages.
    pub format: Format,
    /// Sent with every delivery, beside those that sign it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, SecretText>,
    /// In place of our own policy, as it was written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<Value>,
    /// Whether it is paused.
    #[serde(default)]
    pub paused: bool,
    /// Note of its author.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// Runtime state of a subscription, including secrets.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SubscriptionState {
    /// Everything up to here has made its deliveries.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
    /// The newest first. The one before it signs too, until its time is over.
    pub secrets: Vec<Kept>,
    /// When and why it was disabled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disabled: Option<Disabled>,
    /// Deliveries that were made.
    pub made: u64,
    /// Since when the quota of waiting deliveries is full.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub full_since: Option<Timestamp>,
    /// Its cursor of dependency changes.
    #[serde(skip_serializing_if = "DependencyCursor::is_empty")]
    pub heard: DependencyCursor,
    /// The last delivery about each task, as far as they have not come to an end: the next one is made behind it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub last: Vec<(String, TaskId)>,
}

/// Signing secret of deliveries: one of the subscription, or a named one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Signing {
    /// A secret of the subscription.
    Own(Secret),
    /// A named secret.
    Named { secret: String },
}

impl Signing {
    /// The name of a named secret, with what is wrong with it.
    pub fn named(name: &str) -> Result<Signing, String> {
        match name_fault(name) {
            Some(fault) => Err(format!("the name of a secret {fault}")),
            None => Ok(Signing::Named { secret: name.to_owned() }),
        }
    }

    /// The name, where it is a named one.
    pub fn name(&self) -> Option<&str> {
        match self {
            Signing::Own(_) => None,
            Signing::Named { secret } => Some(secret),
        }
    }

    /// Shown once, to its creator: the secret itself, or a reference to it.
    pub fn reveal(&self) -> Value {
        match self {
            Signing::Own(secret) => secret.reveal().into(),
            Signing::Named { secret } => json!({"secret": secret}),
        }
    }
}

/// A signing secret.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Kept {
    /// The secret.
    pub secret: Signing,
    /// Time until which it signs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
}

/// Why nothing is delivered any more.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Disabled {
    /// Time.
    pub at: Timestamp,
    /// Reason in words.
    pub reason: String,
}

/// A subscription as it is shown: without its secrets.
#[derive(Clone, Debug, PartialEq)]
pub struct SubscriptionView {
    /// Its id.
    pub id: String,
    /// Its specification.
    pub spec: SubscriptionSpec,
    /// When and why it was disabled.
    pub disabled: Option<Disabled>,
    /// Deliveries so far.
    pub made: u64,
    /// Since when the quota of waiting deliveries is full.
    pub full_since: Option<Timestamp>,
    /// How many secrets sign at this moment.
    pub secrets: usize,
    /// Time of its creation.
    pub created_at: Timestamp,
    /// Time of its last change.
    pub updated_at: Timestamp,
}

impl SubscriptionView {
    /// Its state in one word.
    pub fn state(&self) -> &'static str {
        match (&self.disabled, self.spec.paused) {
            (Some(_), _) => "disabled",
            (None, true) => "paused",
            (None, false) if self.full_since.is_some() => "full",
            (None, false) => "active",
        }
    }

    pub(crate) fn of(row: &Resource, now: Timestamp) -> Result<SubscriptionView, StoreError> {
        let (spec, standing) = read(row)?;
        Ok(SubscriptionView {
            id: row.name.clone(),
            secrets: standing.signing(now).count(),
            spec,
            disabled: standing.disabled,
            made: standing.made,
            full_since: standing.full_since,
            created_at: row.created_at,
            updated_at: row.updated_at,
        })
    }
}

impl SubscriptionSpec {
    /// Its faults, as far as they are known without a call.
    pub(crate) fn check(&self, policies: &PolicyLimits, now: Timestamp) -> Invalid {
        let mut faults = Invalid::default();
        if self.url.len() > LONGEST_URL {
            faults.push("url", format!("may have {LONGEST_URL} bytes at most"));
        }
        let call = json!({"url": self.url, "headers": self.headers});
        if let Err(part) = HttpCall::checked(&as_executor(&call).to_string()) {
            faults.absorb("", part);
        }
        for name in self.headers.keys().filter(|name| is_ours(name)) {
            faults.push(format!("headers.{name}"), "is set by the delivery itself");
        }
        if let Some(text) = &self.filter
            && let Err(error) = Filter::parse(text, now)
        {
            faults.push("filter", error);
        }
        if let Some(written) = &self.retry
            && let Err(part) = dialect::parse(written, Dialect::Native, policies)
        {
            faults.absorb("retry", part);
        }
        faults
    }

    fn policy(&self) -> Option<Arc<Policy>> {
        match &self.retry {
            None => POLICY.clone(),
            Some(written) => {
                dialect::parse(written, Dialect::Native, &PolicyLimits::default()).ok().flatten().map(Arc::new)
            }
        }
    }

    /// When it is to be looked at: always, or not at all.
    pub(crate) fn due(&self, standing: &SubscriptionState) -> Option<Timestamp> {
        (!self.paused && standing.disabled.is_none()).then_some(Timestamp(0))
    }
}

impl SubscriptionState {
    pub(crate) fn place(&self) -> Option<FeedCursor> {
        self.cursor.as_deref().and_then(|text| text.parse().ok())
    }

    /// The secrets that sign now.
    pub(crate) fn signing(&self, now: Timestamp) -> impl Iterator<Item = &Signing> {
        self.secrets.iter().filter(move |kept| kept.until.is_none_or(|until| until > now)).map(|kept| &kept.secret)
    }

    /// Another secret from now on; the one in use goes on signing beside it for a while.
    pub(crate) fn rotate(&mut self, secret: Signing, until: Timestamp, now: Timestamp) {
        if self.signing(now).next() == Some(&secret) {
            return;
        }
        self.secrets.truncate(1);
        for old in &mut self.secrets {
            old.until = Some(until);
        }
        self.secrets.insert(0, Kept { secret, until: None });
    }
}

/// Headers that a delivery brings itself.
fn is_ours(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    name.starts_with("webhook-") || matches!(name.as_str(), "content-type" | "idempotency-key")
}

pub(crate) fn read(row: &Resource) -> Result<(SubscriptionSpec, SubscriptionState), StoreError> {
    let what = |error: serde_json::Error| StoreError::Corrupt(format!("the subscription {}: {error}", row.name));
    let spec = serde_json::from_str(&row.body).map_err(what)?;
    let standing = serde_json::from_str(&row.standing).map_err(what)?;
    Ok((spec, standing))
}

/// Content of a delivery.
pub(crate) struct DeliveryContent<'a> {
    pub id: &'a str,
    pub name: &'a str,
    pub body: Value,
    /// The delivery that has to be over before: the last of the same subscription about the same task.
    pub behind: Option<TaskId>,
}

/// The policy with enough snoozes: a delivery that waits for its turn is never given up for that.
fn patient(policy: Arc<Policy>) -> Arc<Policy> {
    match policy.max_snoozes {
        0..MOST_TURNS => Arc::new(Policy { max_snoozes: MOST_TURNS, ..(*policy).clone() }),
        _ => policy,
    }
}

/// The rule that keeps one subscription from taking every slot.
fn share() -> Rule {
    Rule {
        name: format!("{CARRIED}subscriptions"),
        matcher: Matcher { queue: Some(HOOK_QUEUE.into()), kind: Some(DELIVERY.into()), ..Matcher::default() },
        per: vec![OF.into()],
        bound: Bound::Running(SIDE_BY_SIDE),
        fair: false,
        carried: true,
    }
}

/// The key under which the deliveries of one subscription count.
fn share_of(subscription: &str) -> Key {
    Key { rule: share().name, per: vec![Some(subscription.to_owned())] }
}

impl Core {
    /// The rule that deliveries bring along is there before they are.
    pub(crate) async fn ensure_share(&self, namespace: &str) -> Result<(), StoreError> {
        let rule = share();
        if self.store.rules(namespace).await?.contains(&rule) {
            return Ok(());
        }
        self.store.put_rule(namespace, &rule, None, self.clock.now()).await?;
        self.settle_rules().await
    }

    /// One message for one subscription, behind another delivery or behind none.
    pub(crate) fn message_to(
        &self,
        namespace: &str,
        id: &str,
        spec: &SubscriptionSpec,
        (message, behind): (&Message, Option<TaskId>),
        now: Timestamp,
    ) -> NewTask {
        let content =
            DeliveryContent { id: &message.id, name: &message.name, body: message.written(spec.format), behind };
        self.delivery_of(namespace, id, spec, content, now)
    }

    /// The same of a body that was told before.
    pub(crate) fn delivery_of(
        &self,
        namespace: &str,
        id: &str,
        spec: &SubscriptionSpec,
        content: DeliveryContent<'_>,
        now: Timestamp,
    ) -> NewTask {
        // Callers cannot write such settings: a submitted call has no field of that name.
        let mut settings = json!({"type": "http", "subscription": id, "url": spec.url});
        if let Some(behind) = content.behind {
            settings["behind"] = behind.to_string().into();
        }
        let labels = [(OF, id), ("event", content.id), ("type", content.name)];
        let task = TaskSpec {
            name: Some(content.id.to_owned()),
            queue: Some(HOOK_QUEUE.into()),
            payload: Some(content.body.into()),
            executor: ExecutorSpec::Http(settings.into()),
            retry: spec.policy().map(patient),
            labels: labels.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect(),
            rules: vec![share().name],
            external_id: Some(content.id.to_owned()),
            ..TaskSpec::new(DELIVERY)
        };
        task.lone(namespace, &self.config, self.ids.task(now), now)
    }
}
