//! R-I1, R-I2, R-I3: what was acknowledged is there, whole, and once.

use std::collections::{BTreeMap, HashMap, HashSet};

use uuid::Uuid;

use super::{Case, Found};
use crate::history::{Answer, Call, End, Made, Op};
use crate::plan::Planned;

pub fn check(case: &Case<'_>, found: &mut Found) {
    rows(case, found);
    // However often a request was sent, it is one: its first task has a name of its own.
    let mut requests: BTreeMap<&str, Vec<(&Op, &[Planned])>> = BTreeMap::new();
    let mut keys: BTreeMap<&str, Vec<(&Op, &str)>> = BTreeMap::new();
    for op in case.ops {
        if let Call::Submit { key, tasks } = &op.call {
            requests.entry(&tasks[0].external).or_default().push((op, tasks));
            if let Some(key) = key {
                keys.entry(key).or_default().push((op, &tasks[0].external));
            }
        }
    }
    for (name, sent) in &requests {
        whole(case, name, sent, found);
        for (op, tasks) in sent {
            if let Some(Answer::Submitted { tasks: made, execution }) = op.answer() {
                acknowledged(case, name, tasks, made, *execution, found);
            }
        }
    }
    for (key, sent) in &keys {
        one_answer(key, sent, found);
    }
    deduplicated(case, found);
}

/// Every task has one present, and a request behind it.
fn rows(case: &Case<'_>, found: &mut Found) {
    for story in case.stories.values() {
        found.unless(story.present.is_some(), "R-I2", || format!("{} has a body and no state", story.body.id));
        found.unless(story.planned.is_some(), "R-I3", || format!("{} was asked for by nobody", story.body.id));
    }
    let mut seen: HashSet<Uuid> = HashSet::new();
    for present in &case.dump.presents {
        found.unless(seen.insert(present.id), "R-I2", || format!("{} is open and over at once", present.id));
        found.unless(case.stories.contains_key(&present.id), "R-I2", || format!("{} has no body", present.id));
    }
    for (name, ids) in &case.by_external {
        found.unless(ids.len() == 1, "R-I3", || format!("one request for {name} made {ids:?}"));
    }
}

/// All of a request, or nothing; nothing, where it was refused.
fn whole(case: &Case<'_>, name: &str, sent: &[(&Op, &[Planned])], found: &mut Found) {
    let tasks = sent[0].1;
    let there = tasks.iter().filter(|task| case.by_external.contains_key(&*task.external)).count();
    found.unless(there == 0 || there == tasks.len(), "R-I2", || {
        format!("of the {} tasks of {name} there are {there}", tasks.len())
    });
    let refused = sent.iter().all(|(op, _)| matches!(op.end, End::Refused(_)));
    found.unless(!refused || there == 0, "R-I2", || format!("{name} was refused, and {there} tasks were made"));
}

fn acknowledged(
    case: &Case<'_>,
    name: &str,
    asked: &[Planned],
    made: &[Made],
    execution: Option<Uuid>,
    found: &mut Found,
) {
    found.unless(made.len() == asked.len(), "R-I2", || format!("{name}: {} of {} answered", made.len(), asked.len()));
    for (task, made) in asked.iter().zip(made) {
        let Some(story) = case.stories.get(&made.id) else {
            found.unless(false, "R-I1", || format!("{} ({}) was acknowledged and is gone", made.id, task.external));
            continue;
        };
        let body = story.body;
        if made.duplicate {
            let same = task.dedupe.is_some() && body.dedupe_key == task.dedupe;
            found.unless(same, "R-I3", || format!("{} was answered for {}, and is another", made.id, task.external));
        } else {
            let same = body.external_id.as_deref() == Some(&*task.external);
            found.unless(same, "R-I3", || format!("{} was answered for {}: {body:?}", made.id, task.external));
        }
        found.unless(made.duplicate || body.execution_id == execution, "R-I2", || {
            format!("{} is in {:?}, and was answered to be in {execution:?}", made.id, body.execution_id)
        });
    }
}

/// One key, one request, one answer.
fn one_answer(key: &str, sent: &[(&Op, &str)], found: &mut Found) {
    let mut first: Option<(&str, Vec<Uuid>)> = None;
    for (op, name) in sent {
        let Some(Answer::Submitted { tasks, .. }) = op.answer() else { continue };
        let ids: Vec<Uuid> = tasks.iter().map(|made| made.id).collect();
        let (first_name, first_ids) = first.get_or_insert_with(|| (name, ids.clone()));
        found.unless(first_name == name, "R-I3", || format!("{key} was taken for {first_name} and for {name}"));
        found.unless(*first_ids == ids, "R-I3", || format!("{key} was answered with {first_ids:?} and with {ids:?}"));
    }
}

/// Of all that share a dedupe key one is open: once a second was made, nobody gets the first any more.
fn deduplicated(case: &Case<'_>, found: &mut Found) {
    let mut made: HashMap<&str, Vec<(Uuid, &Op)>> = HashMap::new();
    let mut last_lease: HashMap<Uuid, u64> = HashMap::new();
    for op in case.ops {
        match (&op.call, op.answer()) {
            (Call::Submit { tasks, .. }, Some(Answer::Submitted { tasks: answered, .. })) => {
                for (task, answered) in tasks.iter().zip(answered).filter(|(_, answered)| !answered.duplicate) {
                    if let Some(key) = &task.dedupe {
                        made.entry(key).or_default().push((answered.id, op));
                    }
                }
            }
            (Call::Lease { .. }, Some(Answer::Leased(grants))) => {
                for grant in grants {
                    let last = last_lease.entry(grant.run.task).or_default();
                    *last = op.begun.max(*last);
                }
            }
            _ => {}
        }
    }
    for (key, all) in &made {
        for (first, its_op) in all {
            for (second, other) in all.iter().filter(|(_, other)| other.begun > its_op.ended) {
                let leased = last_lease.get(first).copied().unwrap_or(0);
                found.unless(leased <= other.ended, "R-I3", || {
                    format!("{first} and {second} were open at the same time under the key {key}")
                });
            }
        }
    }
}
