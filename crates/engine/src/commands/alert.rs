//! Alerts: put, look at and delete.

use comeback_core::alert::Count;
use comeback_core::transition::Actor;
use comeback_core::{AuditAction, Quota, Timestamp};
use comeback_store::{Applied, Resource, ResourceKind};
use serde_json::Value;

use crate::alerts::{AlertSpec, AlertState, AlertView, read};
use crate::schedules::text;
use crate::{CommandError, Core, Engine};

/// Attempts if others change the same row at the same time; its loop does so with every count.
const ROUNDS: u32 = 50;

impl Engine {
    /// In place of the one there is, or new; the answer says whether it is new. It counts from now on, unless only its words or those
    /// who are told have changed: then it goes on.
    pub async fn put_alert(
        &self,
        namespace: &str,
        name: &str,
        spec: AlertSpec,
        act: &Actor,
    ) -> Result<(AlertView, bool), CommandError> {
        let core = &self.core;
        self.check_alert(namespace, name, &spec, act, self.now()).await?;
        for _ in 0..ROUNDS {
            let now = core.clock.now();
            let old = core.store.follower(ResourceKind::Alerts, namespace, name).await?;
            let known = old.as_ref().and_then(|row| read(row).ok());
            let standing = match known {
                Some((before, standing)) if before.counts_the_same(&spec) && !before.paused => standing,
                _ => AlertState {
                    cursor: Some(core.store.feed_end().await?.to_string()),
                    count: Count::from(now),
                    last: known.and_then(|(_, standing)| standing.last),
                },
            };
            let row = Resource {
                sort: ResourceKind::Alerts,
                namespace: namespace.to_owned(),
                name: name.to_owned(),
                version: old.as_ref().map_or(0, |row| row.version),
                due: spec.due(&standing.count),
                body: text(&spec),
                standing: text(&standing),
                created_at: old.as_ref().map_or(now, |row| row.created_at),
                updated_at: now,
            };
            let entry = self.entry(AuditAction::AlertPut, name, act).within(namespace);
            let entry = entry.changed(old.as_ref().map(facts), Some(facts(&row)));
            if core.store.put_follower(&row, None, None, Some(&entry), now).await? == Applied::Done {
                return Ok((AlertView::of(&row)?, old.is_none()));
            }
        }
        Err(CommandError::Conflict)
    }

    /// One alert.
    pub async fn alert(&self, namespace: &str, name: &str) -> Result<AlertView, CommandError> {
        self.core.may_be_named("alert", name)?;
        let found = self.core.store.follower(ResourceKind::Alerts, namespace, name).await?;
        Ok(AlertView::of(&found.ok_or(CommandError::NotFound("alert"))?)?)
    }

    /// Behind `after`, by name.
    pub async fn alerts(&self, namespace: &str, after: &str, limit: u32) -> Result<Vec<AlertView>, CommandError> {
        let rows = self.core.store.followers(ResourceKind::Alerts, namespace, after, limit).await?;
        Ok(rows.iter().map(AlertView::of).collect::<Result<_, _>>()?)
    }

    /// Deletes an alert.
    pub async fn delete_alert(&self, namespace: &str, name: &str, act: &Actor) -> Result<(), CommandError> {
        self.core.may_be_named("alert", name)?;
        let entry = self.entry(AuditAction::AlertDelete, name, act).within(namespace);
        match self.core.store.delete_follower(ResourceKind::Alerts, namespace, name, Some(&entry)).await? {
            true => Ok(()),
            false => Err(CommandError::NotFound("alert")),
        }
    }

    async fn check_alert(
        &self,
        namespace: &str,
        name: &str,
        spec: &AlertSpec,
        act: &Actor,
        now: Timestamp,
    ) -> Result<(), CommandError> {
        let (limits, mut faults) = (&self.core.config.limits, spec.check(now));
        limits.check_namespace(namespace, &mut faults);
        limits.check_name("name", name, &mut faults);
        if let Some(note) = &spec.note {
            let act = Actor { note: Some(note.clone()), ..Actor::default() };
            faults.absorb("", limits.check_act(&act).err().unwrap_or_default());
        }
        for (n, id) in spec.tell.iter().enumerate() {
            if self.core.subscription_exists(namespace, id).await? {
                continue;
            }
            faults.push(format!("tell[{n}]"), format!("there is no subscription `{id}`"));
        }
        faults.or(())?;
        limits.check_act(act)?;
        if self.core.store.follower(ResourceKind::Alerts, namespace, name).await?.is_none() {
            self.core.check_follower_quota(ResourceKind::Alerts, Quota::Alerts, namespace).await?;
        }
        Ok(())
    }
}

fn facts(row: &Resource) -> Value {
    serde_json::from_str(&row.body).unwrap_or_default()
}

impl Core {
    async fn subscription_exists(&self, namespace: &str, id: &str) -> Result<bool, CommandError> {
        match self.subscription_row(namespace, id).await {
            Ok(_) => Ok(true),
            Err(CommandError::NotFound(_)) => Ok(false),
            Err(error) => Err(error),
        }
    }
}
