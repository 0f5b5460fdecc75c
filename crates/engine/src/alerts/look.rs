//! Look: what has happened since an alert last looked is counted, and what becomes of it is told.

use std::collections::{HashMap, HashSet};

use comeback_core::alert::Change;
use comeback_core::subscription::{AlertEvent, Message};
use comeback_core::{Millis, Timestamp};
use comeback_store::{Applied, FeedEvent, Loop, Resource, ResourceKind, StoreError, Submission};
use parking_lot::Mutex;
use serde_json::json;

use super::{AlertSpec, AlertState, Last, read};
use crate::Core;
use crate::loops::Progress;
use crate::schedules::text;
use crate::subscriptions::follow::{Pages, Tasks};
use crate::subscriptions::turns::{self, Turns};
use crate::subscriptions::{self, DELIVERY};

/// Where nothing becomes of it, it is written down this often: a restart counts again no more than that.
const WRITTEN_EVERY: Millis = Millis::from_secs(10);

/// Subscriptions read at a time.
const PAGE: u32 = 500;

/// Namespace and name of an alert.
type Key = (String, String);

/// Counts that are not written yet, by the version of the row. They may be lost at any moment.
#[derive(Default)]
pub(crate) struct CountCache {
    standings: Mutex<HashMap<Key, (u32, AlertState)>>,
    /// Order of namespaces.
    turns: Turns,
}

impl CountCache {
    fn get(&self, row: &Resource) -> Option<AlertState> {
        let all = self.standings.lock();
        let found = all.get(&(row.namespace.clone(), row.name.clone()));
        found.filter(|(version, _)| *version == row.version).map(|(_, standing)| standing.clone())
    }

    fn keep(&self, row: &Resource, standing: AlertState) {
        self.standings.lock().insert((row.namespace.clone(), row.name.clone()), (row.version, standing));
    }

    fn retain(&self, rows: &[Resource]) {
        let there: HashSet<_> = rows.iter().map(|row| (&row.namespace, &row.name)).collect();
        self.standings.lock().retain(|(namespace, name), _| there.contains(&(namespace, name)));
    }
}

pub async fn tick(core: &Core) -> Result<Progress, StoreError> {
    let now = core.clock.now();
    let rows = turns::active(core, ResourceKind::Alerts).await?;
    core.feed_positions.keep(ResourceKind::Alerts, &rows);
    core.alert_counts.retain(&rows);
    // The store holds what a pause forbids; this spares the work.
    if rows.is_empty() || core.is_paused(Loop::Alerts).await? {
        return Ok(Progress::default());
    }
    let (mut pages, mut tasks, mut progress) = (Pages::default(), Tasks::default(), Progress::default());
    for row in core.alert_counts.turns.in_turn(rows) {
        comeback_store::Running::turn();
        comeback_store::panic_point!("alert-look");
        if let Err(error) = look(core, &row, &mut pages, &mut tasks, &mut progress, now).await {
            match error {
                StoreError::Corrupt(_) | StoreError::Refused(_) => {
                    tracing::error!(alert = row.name, %error, "cannot evaluate alert");
                }
                error => return Err(error),
            }
        }
    }
    Ok(progress)
}

async fn look(
    core: &Core,
    row: &Resource,
    pages: &mut Pages,
    tasks: &mut Tasks,
    progress: &mut Progress,
    now: Timestamp,
) -> Result<(), StoreError> {
    let (spec, stored) = read(row)?;
    let mut standing = core.alert_counts.get(row).unwrap_or(stored);
    let place = standing.place();
    let feed = pages.after(core, place).await?;
    let mut changes = count(core, &row.namespace, &spec, &mut standing, feed.events(), tasks, now).await?;
    if feed.next() == place {
        changes.extend(standing.count.pass(&spec.watch, now));
        if changes.is_empty() && spec.due(&standing.count) == row.due {
            return Ok(());
        }
    } else {
        progress.more = true;
        standing.cursor = feed.next().map(|cursor| cursor.to_string());
    }
    let due = spec.due(&standing.count);
    if changes.is_empty() && due == row.due && now.since(row.updated_at) < WRITTEN_EVERY {
        core.alert_counts.keep(row, standing);
        progress.moved += 1;
        return Ok(());
    }
    standing.last = changes.last().map(Last::from).or(standing.last);
    let mut start = Submission::in_namespace(&row.namespace);
    for change in &changes {
        tell(core, row, &spec, change, &mut start, now).await?;
    }
    if !start.tasks.is_empty() {
        core.ensure_share(&row.namespace).await?;
    }
    let moved = Resource { due, standing: text(&standing), ..row.clone() };
    let start = Some(&start).filter(|start| !start.tasks.is_empty());
    // Of several who count the same, one is stored.
    if core.store.put_follower(&moved, start, Some(Loop::Alerts), None, now).await? == Applied::Done {
        progress.moved += 1;
        if let Some(start) = start {
            core.tell_fired(start);
        }
        for change in changes {
            let (alert, hits, of) = (row.name.as_str(), change.hits, change.all);
            match change.what {
                AlertEvent::Fired => tracing::warn!(alert, namespace = row.namespace, hits, of, "alert fired"),
                AlertEvent::Resolved => tracing::info!(alert, namespace = row.namespace, hits, of, "alert resolved"),
            }
        }
    }
    Ok(())
}

/// Counts a stretch of the feed. Deliveries are nothing that anybody is alarmed about.
pub(super) async fn count(
    core: &Core,
    namespace: &str,
    spec: &AlertSpec,
    standing: &mut AlertState,
    events: &[FeedEvent],
    tasks: &mut Tasks,
    now: Timestamp,
) -> Result<Vec<Change>, StoreError> {
    let filter = spec.filter(now).map_err(|error| StoreError::Corrupt(error.to_string()))?;
    let told = events.iter().filter(|it| it.namespace == namespace);
    let counted: Vec<_> = told.filter_map(|it| Some((it, spec.counts(&it.event)?))).collect();
    tasks.learn(core, counted.iter().filter_map(|(it, _)| it.event.task)).await?;
    let mut changes = Vec::new();
    for (it, counts) in counted {
        let is_delivery = tasks.kind(it.event.task) == Some(DELIVERY);
        if !is_delivery && tasks.pass(core, namespace, it.event.task, filter.as_ref(), now).await? {
            changes.extend(standing.count.add(&spec.watch, counts, it.event.at));
        }
    }
    Ok(changes)
}

/// Deliveries for those who are to hear of it.
async fn tell(
    core: &Core,
    row: &Resource,
    spec: &AlertSpec,
    change: &Change,
    start: &mut Submission,
    now: Timestamp,
) -> Result<(), StoreError> {
    let word = change.what.word();
    let message = Message {
        id: format!("alert_{}", core.ids.act(now).simple()),
        name: word.to_owned(),
        at: change.at,
        namespace: row.namespace.clone(),
        subject: Some(row.name.clone()),
        data: json!({
            "alert": row.name,
            "at": change.at.to_rfc3339(),
            "count": change.hits,
            "of": spec.watch.share.map(|_| change.all),
            "threshold": spec.watch.threshold,
            "share": spec.watch.share,
            "window_ms": spec.watch.window.0,
            "types": spec.types.words(),
            "filter": spec.filter,
            "note": spec.note,
        }),
    };
    let mut after = String::new();
    loop {
        let page = core.store.followers(ResourceKind::Subscriptions, &row.namespace, &after, PAGE).await?;
        for it in &page {
            let (wants, standing) = subscriptions::read(it)?;
            let is_meant = if spec.tell.is_empty() { wants.types.want(word) } else { spec.tell.contains(&it.name) };
            if is_meant && wants.due(&standing).is_some() {
                start.tasks.push(core.message_to(&row.namespace, &it.name, &wants, (&message, None), now));
            }
        }
        match page.last() {
            Some(last) if page.len() >= PAGE as usize => after.clone_from(&last.name),
            _ => return Ok(()),
        }
    }
}
