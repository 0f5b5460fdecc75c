//! R-I13, and that an execution is what its tasks are: nobody starts before its needs are met.

use std::collections::HashMap;

use comeback_core::{EventKind, ExecutionState, State, When};
use uuid::Uuid;

use super::log::walk;
use super::{Case, Found};

pub fn check(case: &Case<'_>, found: &mut Found) {
    let mut inside: HashMap<Uuid, Vec<Uuid>> = HashMap::new();
    let mut out: HashMap<Uuid, Vec<When>> = HashMap::new();
    for edge in &case.dump.edges {
        out.entry(edge.from_id).or_default().extend(When::from_code(edge.met_when));
    }
    for story in case.stories.values() {
        let Some(execution) = story.body.execution_id else { continue };
        inside.entry(execution).or_default().push(story.body.id);
        let Some((tasks, place)) = story.body.external_id.as_deref().and_then(|name| case.planned.get(name)) else {
            continue;
        };
        for need in &tasks[*place].needs {
            let parent = case.by_external.get(&*tasks[need.place].external).and_then(|ids| case.stories.get(&ids[0]));
            let Some(path) = parent.and_then(|parent| walk(&parent.events).ok()) else { continue };
            for start in story.events.iter().filter(|event| event.kind == EventKind::AttemptStarted) {
                let stood = path.iter().take_while(|(seq, _)| *seq < start.seq).last().map(|(_, state)| *state);
                found.unless(stood.is_some_and(|state| is_met(&need.when, state)), "R-I13", || {
                    format!("{} started at {} when its need ({}) was {stood:?}", story.body.id, start.seq, need.when)
                });
            }
        }
    }
    for execution in &case.dump.executions {
        let tasks = inside.get(&execution.id).map(Vec::as_slice).unwrap_or_default();
        found.unless(tasks.len() == execution.total as usize, "R-I2", || {
            format!("{} has {} tasks, {} are there", execution.id, execution.total, tasks.len())
        });
        let states: HashMap<Uuid, State> = tasks
            .iter()
            .filter_map(|id| case.stories.get(id).and_then(|story| story.state()).map(|state| (*id, state)))
            .collect();
        let open = states.values().filter(|state| state.is_open()).count();
        found.unless(open == execution.open as usize, "R-I19", || {
            format!("{} says that {} are open, {open} are", execution.id, execution.open)
        });
        if open == 0 {
            ended(&out, execution.id, ExecutionState::from_code(execution.state), &states, found);
        }
    }
}

fn is_met(when: &str, state: State) -> bool {
    match when {
        "success" => state == State::Succeeded,
        "failure" => matches!(state, State::Failed | State::Dead | State::Canceled),
        _ => state.is_terminal(),
    }
}

/// It has failed if a failure was left that nothing was waiting for.
fn ended(
    out: &HashMap<Uuid, Vec<When>>,
    execution: Uuid,
    stored: Option<ExecutionState>,
    states: &HashMap<Uuid, State>,
    found: &mut Found,
) {
    let handled =
        |id: &Uuid, state: State| out.get(id).is_some_and(|edges| edges.iter().any(|when| is_met(when.word(), state)));
    let unhandled = states.iter().any(|(id, state)| state.is_failure() && !handled(id, *state));
    let follows = if unhandled { ExecutionState::Failed } else { ExecutionState::Succeeded };
    found.unless(stored == Some(follows), "R-I19", || {
        format!("{execution} is {stored:?}, and its tasks make it {follows:?}: {states:?}")
    });
}
