//! Every execution: its counts are what its tasks are, no child was forgotten, and its log has no gap.

use std::collections::HashMap;

use comeback_core::{Edge, ExecutionState, OnUnmet, State, TaskId, When};
use uuid::Uuid;

use super::{Check, EdgeRow, ExecutionRow, MemberRow, PAGE};
use crate::StoreError;

impl Check<'_> {
    pub(super) async fn executions(&mut self) -> Result<(), StoreError> {
        self.begin("executions", "their counts, edges and logs");
        let total = self.look.count("execution").await?;
        let (mut after, mut done) = (Uuid::nil(), 0);
        loop {
            let page = self.look.executions(after, PAGE).await?;
            let Some(last) = page.last() else { return Ok(()) };
            after = last.id;
            done += page.len() as u64;
            for row in page {
                let members = self.look.members(row.id).await?;
                let edges = self.look.edges(row.id).await?;
                let mut faults = counts(&row, &members, &edges);
                faults.extend(gap(&row, &self.look.log(row.id).await?));
                self.report.looked_at(1);
                for (about, code, words) in faults {
                    self.report.found(code, Some(about), words);
                }
            }
            self.tell(done, total);
        }
    }
}

type Faults = Vec<(Uuid, &'static str, String)>;

fn edge(row: &EdgeRow) -> Option<Edge> {
    Some(Edge {
        from: TaskId(row.from),
        to: TaskId(row.to),
        when: When::from_code(row.met_when)?,
        on_unmet: OnUnmet::from_code(row.on_unmet)?,
    })
}

fn counts(row: &ExecutionRow, members: &[MemberRow], edges: &[EdgeRow]) -> Faults {
    let mut faults = Faults::new();
    let edges: Vec<Edge> = match edges.iter().map(edge).collect() {
        Some(edges) => edges,
        None => return vec![(row.id, "edge", "one of its edges has a condition that does not exist".into())],
    };
    let mut states: HashMap<Uuid, State> = HashMap::new();
    for member in members {
        states.extend(State::from_code(member.state).map(|state| (member.id, state)));
    }
    let mut says = |what: &str, stored: i32, counted: usize| {
        if usize::try_from(stored).ok() != Some(counted) {
            faults.push((row.id, "counts", format!("it counts {stored} {what} tasks, and there are {counted}")));
        }
    };
    let open = states.values().filter(|state| state.is_open()).count();
    let is_handled = |id: &Uuid, state: State| edges.iter().any(|edge| edge.from.0 == *id && edge.is_met_by(state));
    let unhandled = states.iter().filter(|(id, state)| state.is_failure() && !is_handled(id, **state)).count();
    says("in all", row.total, members.len());
    says("open", row.open, open);
    says("failed and unhandled", row.unhandled, unhandled);
    let Some(state) = ExecutionState::from_code(row.state) else {
        faults.push((row.id, "row", format!("its state {} does not exist", row.state)));
        return faults;
    };
    if state.is_terminal() != (open == 0) {
        faults.push((row.id, "counts", format!("it is {state}, and {open} of its tasks are open")));
    }
    let verdict = if unhandled == 0 { ExecutionState::Succeeded } else { ExecutionState::Failed };
    if matches!(state, ExecutionState::Succeeded | ExecutionState::Failed) && open == 0 && verdict != state {
        faults.push((row.id, "counts", format!("it is {state}, and {unhandled} of its failures were not handled")));
    }
    for member in members {
        faults.extend(needs(member, row.dead_end_cancel != 0, &edges, &states));
        let is_open = states.get(&member.id).is_some_and(|state| state.is_open());
        let paused = state == ExecutionState::Paused;
        if is_open && (member.hold == 1) != paused {
            let words =
                if paused { "its execution is paused, and it is not" } else { "it is held, and nothing is paused" };
            faults.push((member.id, "hold", words.into()));
        }
    }
    faults
}

/// Needs and children that a task still waits for.
fn needs(member: &MemberRow, counts_children: bool, edges: &[Edge], states: &HashMap<Uuid, State>) -> Faults {
    let mut faults = Faults::new();
    let Some(state) = states.get(&member.id) else { return faults };
    let was = member.paused_from.and_then(State::from_code).unwrap_or(*state);
    if was == State::Waiting {
        let end = |edge: &Edge| states.get(&edge.from.0).copied().filter(|state| state.is_terminal());
        let met = |edge: &&Edge| end(edge).is_some_and(|end| edge.is_met_by(end));
        let into: Vec<&Edge> = edges.iter().filter(|edge| edge.to.0 == member.id).collect();
        let left = into.len() - into.iter().filter(|edge| met(edge)).count();
        if usize::try_from(member.needs_left).ok() != Some(left) {
            let words = format!("it waits for {} tasks, and {left} are not over", member.needs_left);
            faults.push((member.id, "needs", words));
        } else if left == 0 && member.start_at.is_none() && member.gated == 0 && *state == State::Waiting {
            faults.push((member.id, "needs", "it waits, and there is nothing to wait for".into()));
        }
        if let Some(parent) = into.iter().find(|edge| end(edge).is_some_and(|end| !edge.is_met_by(end))) {
            let words = format!("it waits for {}, which is over and has not met it", parent.from);
            faults.push((member.id, "needs", words));
        }
    }
    // Nobody else looks at them, so nobody else counts.
    if state.is_open() && counts_children {
        let children = edges.iter().filter(|edge| edge.from.0 == member.id);
        let left = children.filter(|edge| states.get(&edge.to.0).is_some_and(|child| child.is_open())).count();
        if usize::try_from(member.children_left).ok() != Some(left) {
            let words = format!("it counts {} open children, and there are {left}", member.children_left);
            faults.push((member.id, "needs", words));
        }
    }
    faults
}

/// The log is numbered from 1 without a gap, up to what the execution says.
fn gap(row: &ExecutionRow, log: &[(i32, i64)]) -> Faults {
    let mut next: i64 = 1;
    for (seq, events) in log {
        if i64::from(*seq) != next {
            return vec![(row.id, "log", format!("event {seq} stands where event {next} belongs"))];
        }
        next += events;
    }
    if next - 1 == i64::from(row.seq) {
        return Faults::new();
    }
    vec![(row.id, "log", format!("its log ends with event {}, and it has had {}", next - 1, row.seq))]
}
