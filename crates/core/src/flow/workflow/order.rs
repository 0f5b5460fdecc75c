//! Which step comes before which: circles are spelled out, and what a template names must have run before.

use std::cell::OnceCell;
use std::collections::HashMap;

use super::fields::nearest;
use super::problem::{Findings, Position};
use super::template::Reference;

/// One step as the order sees it.
pub struct Place {
    pub name: String,
    /// Each with the place and the path where it is written.
    pub needs: Vec<(String, Position, String)>,
    pub references: Vec<Reference>,
}

/// The edge from one place to the next, for the messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Needs,
    /// The other way round, as playbooks write it.
    Next,
}

pub struct Order<'a> {
    places: &'a [Place],
    index: HashMap<&'a str, usize>,
    needs: Vec<Vec<usize>>,
    /// Every step after all it needs; nothing where there is a circle.
    sorted: Option<Vec<usize>>,
    ancestors: OnceCell<Vec<Bits>>,
}

impl<'a> Order<'a> {
    /// Unknown needs, needs of itself and circles are told.
    pub fn of(places: &'a [Place], way: Way, findings: &mut Findings) -> Order<'a> {
        let mut index = HashMap::with_capacity(places.len());
        for (n, place) in places.iter().enumerate() {
            index.entry(place.name.as_str()).or_insert(n);
        }
        let mut needs = vec![Vec::new(); places.len()];
        for (n, place) in places.iter().enumerate() {
            for (name, at, path) in &place.needs {
                match index.get(name.as_str()) {
                    Some(other) if *other == n && way == Way::Needs => {
                        findings.push(*at, path, format!("`{name}` needs itself"));
                    }
                    Some(other) if *other == n => findings.push(*at, path, format!("`{name}` leads to itself")),
                    Some(other) => needs[n].push(*other),
                    None => tell_no_such_step(name, *at, path, places, findings),
                }
            }
        }
        let mut order = Order { places, index, needs, sorted: None, ancestors: OnceCell::new() };
        order.sort(way, findings);
        order
    }

    /// Every step that a template names must come before the step that the template is for.
    pub fn check_references(&self, findings: &mut Findings) {
        for (n, place) in self.places.iter().enumerate() {
            for reference in &place.references {
                let step = &reference.step;
                let message = match self.index.get(step.as_str()) {
                    None => {
                        tell_no_such_step(step, reference.at, &reference.path, self.places, findings);
                        continue;
                    }
                    Some(other) if *other == n => {
                        format!("`{step}` names itself; its own result is `result`, in `output`")
                    }
                    Some(other) if self.comes_before(*other, n) => continue,
                    Some(_) => {
                        format!(
                            "`{step}` does not come before `{}`: name it under `needs`, or a step behind it",
                            place.name
                        )
                    }
                };
                findings.push(reference.at, &reference.path, message);
            }
        }
    }

    /// For the output of the workflow, which comes after everything.
    pub fn check_known(&self, references: &[Reference], findings: &mut Findings) {
        for reference in references.iter().filter(|reference| !self.index.contains_key(reference.step.as_str())) {
            tell_no_such_step(&reference.step, reference.at, &reference.path, self.places, findings);
        }
    }

    /// Every step after all that it points at.
    pub fn sorted(&self) -> Option<&[usize]> {
        self.sorted.as_deref()
    }

    fn comes_before(&self, earlier: usize, later: usize) -> bool {
        if self.needs[later].contains(&earlier) {
            return true;
        }
        // In a circle everything comes before everything, and the circle is told already.
        let Some(sorted) = &self.sorted else { return true };
        let ancestors = self.ancestors.get_or_init(|| {
            let mut all = vec![Bits::default(); self.places.len()];
            for step in sorted {
                let mut before = Bits::new(self.places.len());
                for need in &self.needs[*step] {
                    before.set(*need);
                    before.join(&all[*need]);
                }
                all[*step] = before;
            }
            all
        });
        ancestors[later].has(earlier)
    }

    fn sort(&mut self, way: Way, findings: &mut Findings) {
        let mut left: Vec<usize> = self.needs.iter().map(Vec::len).collect();
        let mut children = vec![Vec::new(); self.places.len()];
        for (child, needs) in self.needs.iter().enumerate() {
            for need in needs {
                children[*need].push(child);
            }
        }
        let mut sorted: Vec<usize> = (0..left.len()).filter(|step| left[*step] == 0).collect();
        let mut next = 0;
        while let Some(step) = sorted.get(next).copied() {
            next += 1;
            for child in &children[step] {
                left[*child] -= 1;
                if left[*child] == 0 {
                    sorted.push(*child);
                }
            }
        }
        if sorted.len() == self.places.len() {
            self.sorted = Some(sorted);
        } else {
            self.spell_circles(&left, way, findings);
        }
    }

    /// Finds a cycle: every step that is left over waits for another one that is left over.
    fn spell_circles(&self, left: &[usize], way: Way, findings: &mut Findings) {
        let mut seen_in = vec![0_usize; left.len()];
        for (walk, start) in (0..left.len()).filter(|step| left[*step] > 0).enumerate() {
            let mut trail = Vec::new();
            let mut step = start;
            while seen_in[step] == 0 {
                seen_in[step] = walk + 1;
                trail.push(step);
                let Some(next) = self.needs[step].iter().copied().find(|need| left[*need] > 0) else { break };
                step = next;
            }
            let Some(from) = trail.iter().position(|it| *it == step).filter(|_| seen_in[step] == walk + 1) else {
                continue;
            };
            let mut circle = trail.split_off(from);
            let first = circle.iter().enumerate().min_by_key(|(_, step)| **step).map_or(0, |(n, _)| n);
            circle.rotate_left(first);
            self.tell_circle(&circle, way, findings);
        }
    }

    fn tell_circle(&self, circle: &[usize], way: Way, findings: &mut Findings) {
        let Some(first) = circle.first().copied() else { return };
        let mut names: Vec<&str> = circle.iter().map(|step| self.places[*step].name.as_str()).collect();
        if names.len() > 20 {
            names.splice(10..names.len() - 5, ["…"]);
        }
        names.push(&self.places[first].name);
        let after = circle.get(1).copied().unwrap_or(first);
        let need = self.places[first].needs.iter().find(|(name, ..)| *name == self.places[after].name);
        if let Some((_, at, path)) = need {
            let what = if way == Way::Needs { "the needs go" } else { "the steps lead" };
            findings.push(*at, path, format!("{what} round in a circle: {}", names.join(" → ")));
        }
    }
}

fn tell_no_such_step(name: &str, at: Position, path: &str, places: &[Place], findings: &mut Findings) {
    let names = || places.iter().map(|place| place.name.as_str()).filter(|_| findings.wants_hints());
    let quoted = names().find(|step| step.strip_prefix(name).is_some_and(|rest| rest.starts_with(['-', '.'])));
    let hint = match quoted {
        Some(meant) => format!("; in a template `{meant}` is written steps['{meant}']"),
        None => nearest(name, names()).map(|meant| format!("; did you mean `{meant}`?")).unwrap_or_default(),
    };
    findings.push(at, path, format!("there is no step `{name}`{hint}"));
}

#[derive(Clone, Debug, Default)]
struct Bits(Vec<u64>);

impl Bits {
    fn new(length: usize) -> Bits {
        Bits(vec![0; length.div_ceil(64)])
    }

    fn set(&mut self, n: usize) {
        self.0[n / 64] |= 1 << (n % 64);
    }

    fn has(&self, n: usize) -> bool {
        self.0.get(n / 64).is_some_and(|word| word & (1 << (n % 64)) != 0)
    }

    fn join(&mut self, other: &Bits) {
        for (mine, theirs) in self.0.iter_mut().zip(&other.0) {
            *mine |= theirs;
        }
    }
}
