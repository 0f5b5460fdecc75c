//! R-I20: who follows the feed hears every event, each execution's in order.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use uuid::Uuid;

use super::{Case, Found};
use crate::history::{Answer, Call};

pub fn check(case: &Case<'_>, found: &mut Found) {
    let mut told: HashMap<Uuid, BTreeMap<u32, &str>> = HashMap::new();
    let mut followed = false;
    for op in case.ops {
        let (Call::Follow { .. }, Some(Answer::Followed { events, .. })) = (&op.call, op.answer()) else { continue };
        followed = true;
        for (execution, seq, kind) in events {
            let heard = told.entry(*execution).or_default();
            let last = heard.last_key_value().map_or(0, |(last, _)| *last);
            found.unless(*seq > last || heard.contains_key(seq), "R-I20", || {
                format!("{execution}: event {seq} was told after {last}")
            });
            heard.insert(*seq, kind);
        }
    }
    if !followed {
        return;
    }
    let mut written: HashMap<Uuid, BTreeSet<(u32, &str)>> = HashMap::new();
    // What a lone task that is open has not written yet is told all the same.
    for story in case.stories.values().filter(|story| story.is_over() || story.body.execution_id.is_some()) {
        let execution = story.body.execution_id.unwrap_or(story.body.id);
        written.entry(execution).or_default().extend(story.events.iter().map(|event| (event.seq, event.kind.word())));
    }
    for (execution, events) in &case.of_executions {
        written.entry(*execution).or_default().extend(events.iter().map(|event| (event.seq, event.kind.word())));
    }
    for (execution, events) in &written {
        let heard: BTreeSet<(u32, &str)> =
            told.get(execution).into_iter().flatten().map(|(seq, kind)| (*seq, *kind)).collect();
        let missed: Vec<_> = events.difference(&heard).collect();
        found.unless(missed.is_empty(), "R-I20", || format!("{execution}: the feed never told {missed:?}"));
        let invented: Vec<_> = heard.difference(events).collect();
        found.unless(invented.is_empty(), "R-I20", || format!("{execution}: the feed told {invented:?}"));
    }
}
