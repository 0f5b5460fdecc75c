//! Subscriptions: put, look at, try out, deliver again and delete.

use comeback_core::filter::{Compare, Filter, Pattern, Sort, StateTest, Term, Test, TextField, TimeField};
use comeback_core::subscription::{Message, TEST};
use comeback_core::transition::Actor;
use comeback_core::{AuditAction, HOOK_QUEUE, Invalid, Millis, Quota, State, TaskId, Timestamp};
use comeback_store::{Applied, FeedCursor, ListQuery, Listing, Resource, ResourceKind, StoreError, Submission};
use serde_json::{Value, json};

use super::change::ActorRequest;
use crate::schedules::text;
use crate::subscriptions::{
    DELIVERY, DeliveryContent, Kept, OF, Secret, Signing, SubscriptionSpec, SubscriptionState, SubscriptionView, read,
};
use crate::{CommandError, Core, Engine, ManualRetry};

/// Attempts if others change the same row at the same time; its loop does so with every event.
const ROUNDS: u32 = 50;
/// How long the secret before the newest goes on signing.
const OVERLAP: Millis = Millis::from_days(1);
/// Deliveries that one request brings back.
const MOST_AGAIN: usize = 1_000;

/// Deliveries to repeat.
#[derive(Clone, Debug)]
pub enum Redeliver {
    /// One message, by the id that it was delivered under, or one event by its place in the feed.
    Event(String),
    /// Whatever was given up since then.
    Since(Timestamp),
}

/// Result of a redelivery.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Redelivered {
    /// Deliveries that are made again.
    pub tasks: Vec<TaskId>,
    /// There is more of it than one request brings back.
    pub more: bool,
}

impl Redelivered {
    /// The answer of the request, which is also kept with its idempotency key.
    pub fn to_json(&self) -> Value {
        let tasks: Vec<String> = self.tasks.iter().map(ToString::to_string).collect();
        json!({"tasks": tasks, "more": self.more})
    }
}

impl Engine {
    /// A new subscription hears of what happens from now on. The answer holds its secret, which is told nowhere else.
    pub async fn create_subscription(
        &self,
        namespace: &str,
        id: &str,
        spec: SubscriptionSpec,
        secret: Option<Signing>,
        act: &Actor,
    ) -> Result<(SubscriptionView, Signing), CommandError> {
        let core = &self.core;
        let now = core.clock.now();
        self.check_subscription(namespace, id, &spec, act, now)?;
        let secret = secret.map_or_else(new_secret, Ok)?;
        core.check_follower_quota(ResourceKind::Subscriptions, Quota::Subscriptions, namespace).await?;
        core.ensure_share(namespace).await?;
        let standing = SubscriptionState {
            cursor: Some(core.store.feed_end().await?.to_string()),
            secrets: vec![Kept { secret: secret.clone(), until: None }],
            ..SubscriptionState::default()
        };
        let row = Resource {
            sort: ResourceKind::Subscriptions,
            namespace: namespace.to_owned(),
            name: id.to_owned(),
            version: 0,
            due: spec.due(&standing),
            body: text(&spec),
            standing: text(&standing),
            created_at: now,
            updated_at: now,
        };
        let entry =
            self.entry(AuditAction::SubscriptionPut, id, act).within(namespace).changed(None, Some(facts(&row)));
        match core.store.put_follower(&row, None, None, Some(&entry), now).await? {
            Applied::Done => Ok((SubscriptionView::of(&row, now)?, secret)),
            _ => Err(CommandError::NameTaken("subscription")),
        }
    }

    /// In place of the one there is, or new; the answer holds the secret if one was made, and says whether it is new. It goes on
    /// where the old one stopped, and one that was disabled hears again.
    pub async fn put_subscription(
        &self,
        namespace: &str,
        id: &str,
        spec: SubscriptionSpec,
        secret: Option<Signing>,
        act: &Actor,
    ) -> Result<(SubscriptionView, Option<Signing>, bool), CommandError> {
        for _ in 0..ROUNDS {
            let (wanted, own) = (spec.clone(), secret.clone());
            let change = move |standing: SubscriptionState, now: Timestamp| {
                let mut standing = SubscriptionState { disabled: None, ..standing };
                if let Some(secret) = own.clone() {
                    standing.rotate(secret, now + OVERLAP, now);
                }
                (wanted.clone(), standing)
            };
            self.check_subscription(namespace, id, &spec, act, self.now())?;
            match self
                .change_subscription(namespace, id, (AuditAction::SubscriptionPut, act), |_, it, now| change(it, now))
                .await
            {
                Ok(view) => return Ok((view, None, false)),
                Err(CommandError::NotFound(_)) => {}
                Err(error) => return Err(error),
            }
            match self.create_subscription(namespace, id, spec.clone(), secret.clone(), act).await {
                Err(CommandError::NameTaken(_)) => {}
                made => return made.map(|(view, secret)| (view, Some(secret), true)),
            }
        }
        Err(CommandError::Conflict)
    }

    /// Rotates the secret. Both sign for a day.
    pub async fn rotate_subscription(
        &self,
        namespace: &str,
        id: &str,
        secret: Option<Signing>,
        act: &Actor,
    ) -> Result<(SubscriptionView, Signing), CommandError> {
        let secret = secret.map_or_else(new_secret, Ok)?;
        let new = secret.clone();
        let rotate = move |spec: SubscriptionSpec, mut standing: SubscriptionState, now: Timestamp| {
            standing.rotate(new.clone(), now + OVERLAP, now);
            (spec, standing)
        };
        let view = self.change_subscription(namespace, id, (AuditAction::SubscriptionPut, act), rotate).await?;
        Ok((view, secret))
    }

    /// One subscription.
    pub async fn subscription(&self, namespace: &str, id: &str) -> Result<SubscriptionView, CommandError> {
        Ok(SubscriptionView::of(&self.core.subscription_row(namespace, id).await?, self.now())?)
    }

    /// Behind `after`, by their ids.
    pub async fn subscriptions(
        &self,
        namespace: &str,
        after: &str,
        limit: u32,
    ) -> Result<Vec<SubscriptionView>, CommandError> {
        let rows = self.core.store.followers(ResourceKind::Subscriptions, namespace, after, limit).await?;
        Ok(rows.iter().map(|row| SubscriptionView::of(row, self.now())).collect::<Result<_, _>>()?)
    }

    /// Deletes a subscription; its open deliveries are never made.
    pub async fn delete_subscription(&self, namespace: &str, id: &str, act: &Actor) -> Result<(), CommandError> {
        self.core.may_be_named("subscription", id)?;
        let entry = self.entry(AuditAction::SubscriptionDelete, id, act).within(namespace);
        match self.core.store.delete_follower(ResourceKind::Subscriptions, namespace, id, Some(&entry)).await? {
            true => Ok(()),
            false => Err(CommandError::NotFound("subscription")),
        }
    }

    /// Something to see whether it arrives.
    pub async fn test_subscription(&self, namespace: &str, id: &str, act: &Actor) -> Result<TaskId, CommandError> {
        let at = self.now();
        let message = Message {
            id: format!("test_{}", self.core.ids.act(at).simple()),
            name: TEST.to_owned(),
            at,
            namespace: namespace.to_owned(),
            subject: Some(id.to_owned()),
            data: json!({"subscription": id}),
        };
        let row = self.core.subscription_row(namespace, id).await?;
        let (spec, _) = read(&row)?;
        let body = message.written(spec.format);
        self.deliver_now(namespace, id, (AuditAction::SubscriptionTest, act), (&message.id, TEST), &body).await
    }

    /// Delivers again under the same id, so that receivers can tell repetitions.
    pub async fn redeliver(
        &self,
        namespace: &str,
        id: &str,
        what: Redeliver,
        act: &Actor,
    ) -> Result<Redelivered, CommandError> {
        self.core.subscription_row(namespace, id).await?;
        match what {
            Redeliver::Event(event) => {
                let task = self.redeliver_one(namespace, id, &event, act).await?;
                Ok(Redelivered { tasks: vec![task], more: false })
            }
            Redeliver::Since(since) => {
                let given_up = vec![StateTest::Is(State::Failed), StateTest::Is(State::Dead)];
                let filter = of_subscription(id).and(Test::State(given_up)).and(Test::Time {
                    field: TimeField::Updated,
                    compare: Compare::GreaterOrEqual,
                    at: since,
                });
                let found = self.deliveries(namespace, filter, MOST_AGAIN as u32, None).await?;
                let mut again = Redelivered { tasks: Vec::new(), more: found.next.is_some() };
                for it in found.items {
                    let task = it.stored.task.id;
                    match self.retry_delivery(namespace, task, act).await {
                        Ok(()) => again.tasks.push(task),
                        // Another caller was quicker.
                        Err(CommandError::WrongState { .. } | CommandError::Conflict | CommandError::NotFound(_)) => {}
                        Err(error) => return Err(error),
                    }
                }
                let entry = self.entry(AuditAction::SubscriptionRedeliver, id, act).within(namespace);
                let told = json!({"since": since.to_rfc3339(), "deliveries": again.tasks.len()});
                self.note(&entry.changed(None, Some(told)).answered(again.to_json())).await?;
                Ok(again)
            }
        }
    }

    async fn redeliver_one(&self, namespace: &str, id: &str, event: &str, act: &Actor) -> Result<TaskId, CommandError> {
        let place = event.strip_prefix("evt_").unwrap_or(event);
        let mut names = vec![event.to_owned(), format!("evt_{place}")];
        // An event has one id in the clear, from before, and one that is encrypted.
        if let Some(cursor) = self.core.cursors.read(namespace, place) {
            names.push(format!("evt_{cursor}"));
            names.push(format!("evt_{}", self.core.cursors.show(namespace, cursor)));
        }
        let any = names.iter().map(|name| Pattern { text: name.clone(), prefix: false }).collect();
        let filter = of_subscription(id).and(Test::Text { field: TextField::ExternalId, any });
        let found = self.deliveries(namespace, filter, 1, None).await?;
        let told = match found.items.first() {
            Some(it) => {
                let view = self.task(namespace, it.stored.task.id).await?;
                let body = view.body.payload.as_deref().map(serde_json::from_str).transpose();
                let body: Value = body.map_err(|error| StoreError::Corrupt(error.to_string()))?.unwrap_or_default();
                let name = view.body.labels.get("type").cloned().unwrap_or_default();
                Some((view.body.external_id.unwrap_or_default(), name, body))
            }
            None => self.told_of(namespace, id, place).await?,
        };
        let Some((message, name, body)) = told else { return Err(CommandError::NotFound("event")) };
        self.deliver_now(namespace, id, (AuditAction::SubscriptionRedeliver, act), (&message, &name), &body).await
    }

    /// An event that was never delivered there, by its place in the feed.
    async fn told_of(
        &self,
        namespace: &str,
        id: &str,
        place: &str,
    ) -> Result<Option<(String, String, Value)>, CommandError> {
        let Some(cursor) = self.core.cursors.read(namespace, place) else { return Ok(None) };
        let cursor = self.core.store.feed_cursor(cursor).await?;
        let before = FeedCursor { seq: cursor.seq.saturating_sub(1), ..cursor };
        let feed = self.core.store.feed(Some(before), 1).await?;
        let found = feed.events.into_iter().find(|it| it.cursor == cursor && it.namespace == namespace);
        let Some(found) = found else { return Ok(None) };
        let kind = match found.event.task {
            Some(task) => self.core.store.load(&[task]).await?.into_iter().flatten().next(),
            None => None,
        };
        let kind = kind.as_ref().map(|stored| stored.task.lane.kind.as_str());
        let (spec, _) = read(&self.core.subscription_row(namespace, id).await?)?;
        let place = self.core.cursors.show(namespace, cursor);
        let message = Message::of_event(&place, found.event.kind.word(), namespace, &found.event, kind);
        Ok(Some((message.id.clone(), message.name.clone(), message.written(spec.format))))
    }

    async fn retry_delivery(&self, namespace: &str, task: TaskId, act: &Actor) -> Result<(), CommandError> {
        let once = act.part(&task.to_string()).once.map(|once| once.key.clone());
        let request = ActorRequest { act: act.without_key(), once };
        self.retry(namespace, task, ManualRetry { request, ..ManualRetry::default() }).await.map(drop)
    }

    /// A delivery of its own, beside those that the feed makes.
    async fn deliver_now(
        &self,
        namespace: &str,
        id: &str,
        (did, act): (AuditAction, &Actor),
        message: (&str, &str),
        body: &Value,
    ) -> Result<TaskId, CommandError> {
        let core = &self.core;
        core.config.limits.check_act(act)?;
        core.ensure_share(namespace).await?;
        for _ in 0..ROUNDS {
            let row = core.subscription_row(namespace, id).await?;
            let (spec, standing) = read(&row)?;
            let now = core.clock.now();
            let mut start = Submission::in_namespace(namespace);
            let told = DeliveryContent { id: message.0, name: message.1, body: body.clone(), behind: None };
            let delivery = core.delivery_of(namespace, id, &spec, told, now);
            let task = delivery.task.id;
            start.tasks.push(delivery);
            let entry = self.entry(did, id, act).within(namespace);
            let entry = entry.changed(None, Some(json!({"event": message.0, "task_id": task.to_string()})));
            let entry = entry.answered(Redelivered { tasks: vec![task], more: false }.to_json());
            let standing = SubscriptionState { made: standing.made + 1, ..standing };
            let row = Resource { standing: text(&standing), ..row };
            if core.store.put_follower(&row, Some(&start), None, Some(&entry), now).await? == Applied::Done {
                core.tell_fired(&start);
                return Ok(task);
            }
        }
        Err(CommandError::Conflict)
    }

    /// Deliveries, newest first.
    pub async fn deliveries_of(
        &self,
        namespace: &str,
        id: &str,
        limit: u32,
        after: Option<comeback_store::ListCursor>,
    ) -> Result<Listing, CommandError> {
        self.core.subscription_row(namespace, id).await?;
        self.deliveries(namespace, of_subscription(id), limit, after).await
    }

    async fn deliveries(
        &self,
        namespace: &str,
        filter: Filter,
        limit: u32,
        after: Option<comeback_store::ListCursor>,
    ) -> Result<Listing, CommandError> {
        let query = ListQuery { filter, sort: Sort::SubmittedDesc, limit, after, now: self.now() };
        Ok(self.core.store.list(namespace, &query).await?)
    }

    fn check_subscription(
        &self,
        namespace: &str,
        id: &str,
        spec: &SubscriptionSpec,
        act: &Actor,
        now: Timestamp,
    ) -> Result<(), CommandError> {
        let config = &self.core.config;
        let (limits, mut faults) = (&config.limits, spec.check(&config.policy_limits, now));
        limits.check_namespace(namespace, &mut faults);
        limits.check_name("id", id, &mut faults);
        if let Some(note) = &spec.note {
            let act = Actor { note: Some(note.clone()), ..Actor::default() };
            faults.absorb("", limits.check_act(&act).err().unwrap_or_default());
        }
        faults.or(())?;
        Ok(limits.check_act(act)?)
    }

    async fn change_subscription(
        &self,
        namespace: &str,
        id: &str,
        (did, act): (AuditAction, &Actor),
        change: impl Fn(SubscriptionSpec, SubscriptionState, Timestamp) -> (SubscriptionSpec, SubscriptionState),
    ) -> Result<SubscriptionView, CommandError> {
        let core = &self.core;
        for _ in 0..ROUNDS {
            let old = core.subscription_row(namespace, id).await?;
            let (spec, standing) = read(&old)?;
            let now = core.clock.now();
            let (spec, standing) = change(spec, standing, now);
            let due = spec.due(&standing);
            let row = Resource { due, body: text(&spec), standing: text(&standing), ..old.clone() };
            let entry = self.entry(did, id, act).within(namespace).changed(Some(facts(&old)), Some(facts(&row)));
            if core.store.put_follower(&row, None, None, Some(&entry), now).await? == Applied::Done {
                return Ok(SubscriptionView::of(&Resource { updated_at: now, ..row }, now)?);
            }
        }
        Err(CommandError::Conflict)
    }
}

/// The specification for the audit, without secrets.
fn facts(row: &Resource) -> Value {
    serde_json::from_str(&row.body).unwrap_or_default()
}

fn new_secret() -> Result<Signing, CommandError> {
    Secret::new().map(Signing::Own).map_err(|error| StoreError::Unavailable(error).into())
}

fn of_subscription(id: &str) -> Filter {
    let is = |field: TextField, text: &str| {
        let any = vec![Pattern { text: text.to_owned(), prefix: false }];
        Term { negated: false, test: Test::Text { field, any } }
    };
    let terms =
        vec![is(TextField::Queue, HOOK_QUEUE), is(TextField::Kind, DELIVERY), is(TextField::Label(OF.into()), id)];
    Filter { terms }
}

impl Core {
    /// Refuses a new follower where the namespace has as many as it may have.
    pub(crate) async fn check_follower_quota(
        &self,
        sort: ResourceKind,
        quota: Quota,
        namespace: &str,
    ) -> Result<(), CommandError> {
        let most = u32::try_from(self.config.quotas.get(quota)).unwrap_or(u32::MAX);
        let used = self.store.followers(sort, namespace, "", most).await?.len() as u64;
        Ok(self.config.quotas.check(quota, namespace, used)?)
    }

    /// No database need be asked for what can be no name.
    pub(crate) fn may_be_named(&self, what: &'static str, name: &str) -> Result<(), CommandError> {
        let mut faults = Invalid::default();
        self.config.limits.check_name("id", name, &mut faults);
        if faults.is_empty() { Ok(()) } else { Err(CommandError::NotFound(what)) }
    }

    pub(crate) async fn subscription_row(&self, namespace: &str, id: &str) -> Result<Resource, CommandError> {
        self.may_be_named("subscription", id)?;
        let found = self.store.follower(ResourceKind::Subscriptions, namespace, id).await?;
        found.ok_or(CommandError::NotFound("subscription"))
    }
}
