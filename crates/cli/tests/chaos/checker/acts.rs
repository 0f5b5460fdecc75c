//! R-I1, R-I5, R-I8, R-I16, R-I17, R-I24: what people do is done once or not at all, stands, and is seen.

use std::collections::HashMap;

use comeback_core::State;
use uuid::Uuid;

use super::{Case, Found};
use crate::history::{Answer, Call, End, Op, Run};

pub fn check(case: &Case<'_>, found: &mut Found) {
    let mut notes: HashMap<&str, u32> = HashMap::new();
    for record in case.stories.values().flat_map(|story| &story.records) {
        if let Some(note) = record.data.as_ref().and_then(|data| data.get("note")).and_then(|note| note.as_str()) {
            *notes.entry(note).or_default() += 1;
        }
    }
    let mut first_word: HashMap<Run, u64> = HashMap::new();
    let mut by_task: HashMap<Uuid, About<'_>> = HashMap::new();
    for op in case.ops {
        if let Call::Report { run, .. } = &op.call {
            let begun = first_word.entry(*run).or_insert(op.begun);
            *begun = op.begun.min(*begun);
        }
        match (&op.call, op.answer()) {
            (Call::Act { verb, task, note }, _) => {
                let times = notes.get(&**note).copied().unwrap_or(0);
                once(op, verb, *task, note, times, case.stories.contains_key(task), found);
                by_task.entry(*task).or_default().acts.push((op, verb));
            }
            (Call::Read { task }, _) => by_task.entry(*task).or_default().reads.push(op),
            (Call::Lease { .. }, Some(Answer::Leased(grants))) => {
                for grant in grants {
                    by_task.entry(grant.run.task).or_default().leases.push(op);
                }
            }
            (Call::Report { run, .. }, Some(Answer::State(state))) => {
                let state = State::from_word(state);
                if let Some(state) = state.filter(|state| state.is_terminal()) {
                    by_task.entry(run.task).or_default().ends.push((*run, op, state));
                }
            }
            (Call::Submit { .. }, Some(Answer::Submitted { tasks, .. })) => {
                for made in tasks {
                    let heard = &mut by_task.entry(made.id).or_default().known_since;
                    *heard = Some(heard.map_or(op.ended, |before| before.min(op.ended)));
                }
            }
            _ => {}
        }
    }
    for (task, about) in &by_task {
        about.pauses_hold(*task, found);
        about.cancels_stand(*task, case, found);
        about.ends_stand(*task, &first_word, case, found);
        about.is_seen(*task, found);
    }
}

/// An act that was acknowledged is in the log once; one that was refused is not.
fn once(op: &Op, verb: &str, task: Uuid, note: &str, times: u32, is_there: bool, found: &mut Found) {
    match &op.end {
        End::Ok(_) if is_there => {
            found.unless(times > 0, "R-I1", || {
                format!("{verb} of {task} ({note}) was acknowledged and is not in the log")
            });
        }
        End::Refused(why) => {
            found.unless(times == 0, "R-I5", || format!("{verb} of {task} ({note}) was refused ({why}) and done"));
        }
        _ => {}
    }
    found.unless(times <= 1, "R-I3", || format!("{verb} of {task} ({note}) was done {times} times"));
}

/// All that was asked about one task.
#[derive(Default)]
struct About<'a> {
    acts: Vec<(&'a Op, &'a str)>,
    reads: Vec<&'a Op>,
    leases: Vec<&'a Op>,
    /// Reports that were answered with its end.
    ends: Vec<(Run, &'a Op, State)>,
    known_since: Option<u64>,
}

impl About<'_> {
    fn done(&self, verb: &str) -> impl Iterator<Item = &&Op> {
        self.acts.iter().filter(move |(op, its)| *its == verb && op.answer().is_some()).map(|(op, _)| op)
    }

    /// Whether such an act may have taken effect between two moments.
    fn may_have(&self, verb: &str, after: u64, before: u64) -> bool {
        let refused = |op: &Op| matches!(op.end, End::Refused(_));
        self.acts.iter().any(|(op, its)| *its == verb && !refused(op) && op.begun < before && op.ended > after)
    }

    fn pauses_hold(&self, task: Uuid, found: &mut Found) {
        for pause in self.done("pause") {
            for lease in self.leases.iter().filter(|lease| lease.begun > pause.ended) {
                // A run that was under way may have ended badly; then it can be retried, too.
                let lifted = ["resume", "retry"].iter().any(|verb| self.may_have(verb, pause.begun, lease.ended));
                found.unless(lifted, "R-I16", || format!("{task} was given to {} while paused", lease.client));
            }
        }
    }

    fn cancels_stand(&self, task: Uuid, case: &Case<'_>, found: &mut Found) {
        for cancel in self.done("cancel") {
            let given = self.leases.iter().find(|lease| lease.begun > cancel.ended);
            found.unless(given.is_none(), "R-I17", || format!("{task} was given to somebody after its cancel"));
            let acted = self.acts.iter().find(|(op, _)| op.begun > cancel.ended && op.answer().is_some());
            found.unless(acted.is_none(), "R-I8", || format!("{task} was canceled, and then {acted:?}"));
            if let Some(state) = case.stories.get(&task).and_then(|story| story.state()) {
                found.unless(state == State::Canceled, "R-I17", || format!("{task} was canceled and is {state}"));
            }
        }
    }

    /// R-I8: what was acknowledged as over stays so, unless somebody may have asked for another try. A report that is said again
    /// hears what the first one brought about, and that may be long ago.
    fn ends_stand(&self, task: Uuid, first_word: &HashMap<Run, u64>, case: &Case<'_>, found: &mut Found) {
        for (run, report, state) in &self.ends {
            let retryable = matches!(state, State::Failed | State::Dead);
            if retryable && self.may_have("retry", first_word[run], u64::MAX) {
                continue;
            }
            let given = self.leases.iter().find(|lease| lease.begun > report.ended);
            found.unless(given.is_none(), "R-I8", || format!("{task} was {state}, and given to somebody again"));
            if let Some(stands) = case.stories.get(&task).and_then(|story| story.state()) {
                found.unless(stands == *state, "R-I8", || format!("{task} was {state} and is {stands}"));
            }
        }
    }

    /// R-I24: whoever was answered finds it at every server.
    fn is_seen(&self, task: Uuid, found: &mut Found) {
        for read in &self.reads {
            if let End::Refused(why) = &read.end {
                let known = self.known_since.is_some_and(|since| since < read.begun);
                found.unless(!known, "R-I24", || format!("{task} was acknowledged, and then: {why}"));
            }
            let canceled = self.done("cancel").any(|cancel| cancel.ended < read.begun);
            if let (true, Some(Answer::State(state))) = (canceled, read.answer()) {
                found.unless(state == "canceled", "R-I24", || format!("{task} was canceled, and is shown as {state}"));
            }
        }
    }
}
