//! From "this leads there" to "that needs this".
//!
//! In a playbook a step runs when something leads to it; here it runs when all it needs is over. The two agree where one step
//! leads to it, and where all that lead to it always run. Where steps part and meet again, the meeting point needs all of them
//! whatever became of them, and its condition asks whether one of them really led to it.

use std::collections::HashMap;

use super::super::Need;
use super::super::problem::Findings;
use super::super::template::Reference;
use super::next::Edge;
use super::{Kind, Written};
use crate::expression::check_expression;
use crate::graph::{OnUnmet, When};

/// How a step is reached.
#[derive(Default)]
pub struct Arrival<'a> {
    pub needs: Vec<Need>,
    pub condition: Option<String>,
    pub references: Vec<Reference>,
    /// Every edge that ends here, as it is written.
    pub edges: Vec<&'a Edge>,
}

/// One way in: from a step, or from the beginning.
#[derive(Clone)]
struct Entrance {
    from: Option<usize>,
    condition: Option<String>,
    references: Vec<Reference>,
}

/// Steps without a tool multiply the ways through them, and every way carries its conditions along.
const MOST_CARRIED: usize = 4 * 1024 * 1024;

/// `sorted` has every step after all those it leads to.
pub fn arrivals<'a>(
    written: &[Written],
    edges: &'a [Vec<Edge>],
    sorted: &[usize],
    findings: &mut Findings,
) -> Vec<Arrival<'a>> {
    let by_name: HashMap<&str, usize> = written.iter().enumerate().map(|(n, step)| (step.name.as_str(), n)).collect();
    let has_start = by_name.contains_key("start");
    let mut incoming: Vec<Vec<(usize, &Edge)>> = vec![Vec::new(); written.len()];
    for (from, edges) in edges.iter().enumerate() {
        for edge in edges {
            if let Some(to) = by_name.get(edge.to.as_str()) {
                incoming[*to].push((from, edge));
            }
        }
    }
    let mut carried = 0;
    let mut entrances: Vec<Vec<Entrance>> = vec![Vec::new(); written.len()];
    let mut may_be_skipped = vec![false; written.len()];
    let mut arrivals: Vec<Arrival<'a>> = written.iter().map(|_| Arrival::default()).collect();
    for step in sorted.iter().rev().copied() {
        let mut ways = Vec::new();
        for (from, edge) in &incoming[step] {
            let here = Entrance {
                from: Some(*from),
                condition: edge.guard.condition.clone(),
                references: edge.guard.references.clone(),
            };
            match written[*from].kind {
                Kind::Tool(_) => ways.push(here),
                Kind::Marker => {
                    for before in &entrances[*from] {
                        ways.push(before.then(&here));
                        carried += ways.last().map_or(0, Entrance::weight);
                        if carried > MOST_CARRIED {
                            let message = "too many ways with too many conditions lead through steps without a tool";
                            findings.push(edge.at, &edge.path, message);
                            return arrivals;
                        }
                    }
                }
            }
        }
        let begins = if has_start { written[step].name == "start" } else { incoming[step].is_empty() };
        if begins {
            ways.push(Entrance { from: None, condition: None, references: Vec::new() });
        } else if incoming[step].is_empty() {
            let message = format!("nothing leads to `{}`, so it would never run", written[step].name);
            findings.push(written[step].at, format!("{}.step", written[step].path), message);
        }
        let arrival = arrive(&ways, written, &may_be_skipped);
        if matches!(written[step].kind, Kind::Tool(_))
            && let Some(Err(message)) = arrival.condition.as_deref().map(check_expression)
        {
            let message = format!("what leads here asks too much: {message}");
            findings.push(written[step].at, format!("{}.step", written[step].path), message);
        }
        may_be_skipped[step] = arrival.condition.is_some()
            || written[step].node.get("when").is_some()
            || ways.iter().filter_map(|way| way.from).any(|from| may_be_skipped[from]);
        entrances[step] = ways;
        arrivals[step] = Arrival { edges: incoming[step].iter().map(|(_, edge)| *edge).collect(), ..arrival };
    }
    arrivals
}

impl Entrance {
    fn weight(&self) -> usize {
        100 + self.condition.as_ref().map_or(0, String::len) + 200 * self.references.len()
    }

    /// On through a marker: where it came from stays, both conditions must hold.
    fn then(&self, next: &Entrance) -> Entrance {
        Entrance {
            from: self.from,
            condition: both(self.condition.as_deref(), next.condition.as_deref()),
            references: [&self.references[..], &next.references[..]].concat(),
        }
    }
}

fn arrive<'a>(ways: &[Entrance], written: &[Written], may_be_skipped: &[bool]) -> Arrival<'a> {
    let mut from: Vec<Option<usize>> = ways.iter().map(|way| way.from).collect();
    from.sort_unstable();
    from.dedup();
    let of =
        |source: Option<usize>| any(ways.iter().filter(|way| way.from == source).map(|way| way.condition.as_deref()));
    let need = |step: usize, when| Need { step: written[step].name.clone(), when, on_unmet: OnUnmet::Skip };
    let sources: Vec<usize> = from.iter().copied().flatten().collect();
    let references: Vec<Reference> = ways.iter().flat_map(|way| way.references.iter().cloned()).collect();
    if let [only] = from[..] {
        let needs = sources.iter().map(|step| need(*step, When::Success)).collect();
        return Arrival { needs, condition: of(only), references, edges: Vec::new() };
    }
    let all_come = from.iter().all(|source| of(*source).is_none() && source.is_none_or(|step| !may_be_skipped[step]));
    if all_come {
        let needs = sources.iter().map(|step| need(*step, When::Success)).collect();
        return Arrival { needs, condition: None, references, edges: Vec::new() };
    }
    let state = |step: usize| format!("steps['{}'].state", written[step].name);
    let led_here: Vec<String> = from
        .iter()
        .map(|source| match (source, of(*source)) {
            (Some(step), Some(condition)) => format!("({} == 'succeeded' and ({condition}))", state(*step)),
            (Some(step), None) => format!("{} == 'succeeded'", state(*step)),
            (None, Some(condition)) => format!("({condition})"),
            (None, None) => "true".to_owned(),
        })
        .collect();
    // An edge that is met by any end counts a failure as handled: the step itself must fail in its place.
    let failed: Vec<String> =
        sources.iter().map(|step| format!("{} in ['failed', 'dead', 'canceled']", state(*step))).collect();
    let condition =
        format!("fail('a step that leads here failed') if {} else {}", failed.join(" or "), led_here.join(" or "));
    let needs = sources.iter().map(|step| need(*step, When::Always)).collect();
    Arrival { needs, condition: Some(condition), references, edges: Vec::new() }
}

/// One that asks nothing makes the others idle.
pub fn any<'c>(conditions: impl Iterator<Item = Option<&'c str>>) -> Option<String> {
    let conditions: Option<Vec<&str>> = conditions.collect();
    match &conditions?[..] {
        [] => None,
        [only] => Some((*only).to_owned()),
        many => Some(many.iter().map(|condition| format!("({condition})")).collect::<Vec<_>>().join(" or ")),
    }
}

pub fn both(one: Option<&str>, other: Option<&str>) -> Option<String> {
    match (one, other) {
        (Some(one), Some(other)) => Some(format!("({one}) and ({other})")),
        (one, other) => one.or(other).map(str::to_owned),
    }
}
