//! Discover: a command of a kind that is asked again and again what there is to do. Each line that it prints is one thing, and
//! becomes a task once, however often it is printed.

use std::collections::HashSet;
use std::sync::Arc;

use comeback_core::filter::{Filter, Pattern, Sort, Test, TextField};
use comeback_core::{Millis, Timestamp};
use comeback_store::{Idempotency, ListQuery};
use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;

use super::command::{self, Environment, Process};
use super::kinds::{CATEGORY, Kind};
use crate::{CommandError, Engine, Json, ReportEnd, Submit, TaskSpec};

/// A command that discovers tasks of a kind.
#[derive(Clone, Debug, PartialEq)]
pub struct Discover {
    /// The command.
    pub process: Process,
    /// In the engine's own time.
    pub every: Millis,
}

/// Tasks of one round; the rest is for the next one.
const MOST_FOUND: usize = 10_000;
/// Ids that are looked for with one question.
const ASKED_AT_ONCE: usize = 200;

/// One thing as it is printed.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FoundIn {
    id: Id,
    #[serde(default)]
    category: Option<String>,
    #[serde(default)]
    submitted_at: Option<String>,
    #[serde(default)]
    payload: Option<Box<RawValue>>,
    #[serde(default)]
    name: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "an id: a text or a whole number")]
enum Id {
    Text(String),
    Number(i64),
}

struct Found {
    id: String,
    category: Option<String>,
    submitted_at: Option<Timestamp>,
    payload: Json,
    name: Option<String>,
}

impl Found {
    fn read(line: &str) -> Result<Found, String> {
        let mut given: FoundIn = serde_json::from_str(line).map_err(|error| error.to_string())?;
        let id = match given.id {
            Id::Text(text) => text,
            Id::Number(number) => number.to_string(),
        };
        let submitted_at = given.submitted_at.as_deref().map(Timestamp::parse_rfc3339).transpose();
        let submitted_at = submitted_at.map_err(|error| format!("submitted_at: {error}"))?;
        // What there is to do is at least what it is called.
        let payload = given.payload.take().map_or_else(
            || Json::from(json!({"id": id, "category": given.category, "submitted_at": given.submitted_at})),
            Json::from,
        );
        Ok(Found { id, category: given.category, submitted_at, payload, name: given.name })
    }
}

/// Result of one round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Round {
    /// Lines that it printed.
    pub printed: usize,
    /// Tasks that were submitted.
    pub made: usize,
    /// Lines that say nothing we understand, or ask for what is not allowed.
    pub refused: usize,
}

impl Engine {
    /// Runs the discover command once per period, until aborted.
    pub(super) async fn discover_loop(self, kind: Arc<Kind>, environment: Environment) {
        let Some(discover) = &kind.discover else { return };
        loop {
            match self.discover(&kind, discover, &environment).await {
                Ok(Round { printed, made, refused }) if made + refused > 0 => {
                    tracing::info!(kind = kind.name, printed, made, refused, "discover command found new tasks");
                }
                Ok(Round { printed, .. }) => {
                    tracing::debug!(kind = kind.name, printed, "discover command found no new tasks")
                }
                Err(error) => tracing::warn!(kind = kind.name, %error, "cannot store discovered tasks"),
            }
            let clock = &self.core.clock;
            clock.sleep_until(clock.now() + discover.every).await;
        }
    }

    async fn discover(
        &self,
        kind: &Kind,
        discover: &Discover,
        environment: &Environment,
    ) -> Result<Round, CommandError> {
        let mut round = Round::default();
        let mut found: Vec<Found> = Vec::new();
        let process = Process { environment: environment.clone(), ..discover.process.clone() };
        let end = command::run(&process, 1, |line| {
            if line.trim().is_empty() {
                return;
            }
            round.printed += 1;
            match Found::read(line) {
                Ok(thing) if found.len() < MOST_FOUND => found.push(thing),
                Ok(_) => {}
                Err(why) => {
                    round.refused += 1;
                    tracing::warn!(kind = kind.name, %why, "cannot parse line of discover command");
                }
            }
        })
        .await;
        if let ReportEnd::Failed(failure) = end {
            // What it has printed is true all the same; the rest comes with the next round.
            tracing::warn!(kind = kind.name, error = failure.message, "discover command failed");
        }
        let mut seen = HashSet::new();
        found.retain(|thing| seen.insert(thing.id.clone()));
        // The oldest first: it may be leased before the next one is stored.
        found.sort_by_key(|thing| thing.submitted_at.unwrap_or(Timestamp(i64::MAX)));
        for part in found.chunks(ASKED_AT_ONCE) {
            let known = self.known(kind, part).await?;
            for thing in part.iter().filter(|thing| !known.contains(&thing.id)) {
                match self.make(kind, thing).await {
                    Ok(made) => round.made += usize::from(made),
                    Err(CommandError::Invalid(why)) => {
                        round.refused += 1;
                        tracing::warn!(kind = kind.name, id = thing.id, %why, "discovered task rejected");
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(round)
    }

    /// Which of these have a task already, open or over.
    async fn known(&self, kind: &Kind, found: &[Found]) -> Result<HashSet<String>, CommandError> {
        let exactly = |text: &str| Pattern { text: text.to_owned(), prefix: false };
        let ids = found.iter().map(|thing| exactly(&thing.id)).collect();
        let filter = Filter::default()
            .and(Test::Text { field: TextField::Kind, any: vec![exactly(&kind.name)] })
            .and(Test::Text { field: TextField::ExternalId, any: ids });
        let limit = u32::try_from(found.len()).unwrap_or(u32::MAX);
        let query = ListQuery { filter, sort: Sort::Submitted, limit, after: None, now: self.now() };
        let listing = self.store().list(&kind.namespace, &query).await?;
        Ok(listing.items.into_iter().filter_map(|item| item.external_id).collect())
    }

    /// Whether it was made now: another instance may have found the same thing at the same moment.
    async fn make(&self, kind: &Kind, thing: &Found) -> Result<bool, CommandError> {
        let task = TaskSpec {
            key: Some(thing.id.clone()),
            external_id: Some(thing.id.clone()),
            name: thing.name.clone(),
            payload: Some(thing.payload.clone()),
            labels: thing.category.iter().map(|category| (CATEGORY.to_owned(), category.clone())).collect(),
            retry: kind.retry.clone(),
            submitted_at: thing.submitted_at,
            ..TaskSpec::new(&kind.name)
        };
        // The id is all there is to it: the same thing may be printed otherwise the next time.
        let once = Idempotency { scope: format!("discover {}", kind.name), key: thing.id.clone(), digest: [0; 32] };
        let submit = Submit { idempotency: Some(once), ..Submit::one(&kind.namespace, task) };
        Ok(!self.submit(submit).await?.repeated)
    }
}
