//! `docs/requirements.md` names a test for every point. This looks that it does, and that those tests are there.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// How many points each family has: a line that is lost is a promise that is lost.
const FAMILIES: [(&str, usize); 15] = [
    ("F0", 17),
    ("S0", 84),
    ("X0", 20),
    ("F1", 24),
    ("S1", 90),
    ("X1", 15),
    ("F2", 14),
    ("S2", 140),
    ("X2", 16),
    ("F3", 13),
    ("S3", 55),
    ("X3", 11),
    ("F4", 15),
    ("S4", 57),
    ("X4", 12),
];

/// Points that are not proved in full yet, each marked as planned in the document. A new gap fails here; so does a point that stays
/// in this list after it was proved.
const GAPS: &[&str] =
    &["F2-3", "S2-121", "S2-122", "S2-123", "S2-128", "S2-135", "S2-136", "S2-137", "S2-138", "S2-139"];

struct Point {
    tag: String,
    /// The last column.
    proof: String,
}

impl Point {
    fn number(&self) -> usize {
        self.tag.split_once('-').and_then(|(_, number)| number.parse().ok()).unwrap_or(0)
    }

    fn citations(&self) -> impl Iterator<Item = &str> {
        self.proof.split('`').skip(1).step_by(2)
    }

    fn is_proved(&self) -> bool {
        let nothing_to_prove = self.proof == "nothing to prove";
        nothing_to_prove || (self.citations().next().is_some() && !self.proof.contains("planned"))
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn document() -> String {
    std::fs::read_to_string(root().join("docs/requirements.md")).expect("the document")
}

fn points() -> Vec<Point> {
    let point = |line: &str| {
        let cells: Vec<&str> = line.strip_prefix("| ")?.strip_suffix(" |")?.split(" | ").collect();
        let [tag, _, proof] = cells.try_into().ok()?;
        let known = FAMILIES.iter().any(|(family, _)| tag.split_once('-').is_some_and(|(own, _)| own == *family));
        known.then(|| Point { tag: tag.to_owned(), proof: proof.to_owned() })
    };
    document().lines().filter_map(point).collect()
}

/// The file that a citation names, with the test in it where one is named.
fn cited(citation: &str) -> (PathBuf, Option<&str>) {
    let (file, test) = citation.split_once("::").map_or((citation, None), |(file, test)| (file, Some(test)));
    let is_beside = ["bench/", "sdk/", "ui/"].iter().any(|folder| file.starts_with(folder));
    let folder = if is_beside { root() } else { root().join("crates") };
    (folder.join(file), test)
}

/// Why a citation proves nothing.
fn fault(citation: &str) -> Option<String> {
    let (path, test) = cited(citation);
    let Ok(text) = std::fs::read_to_string(&path) else { return Some("there is no such file".into()) };
    let test = test?;
    // Tests of their own harness have names in place of functions: a transcript is its file.
    let is_there = text.contains(&format!("fn {test}("))
        || text.contains(&format!("Trial::test(\"{test}\""))
        || text.contains(&format!("test('{test}'"))
        || path.with_file_name(format!("{test}.txt")).is_file();
    (!is_there).then(|| format!("there is no test {test} in it"))
}

#[test]
fn every_point_is_there_once() {
    let mut numbers: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for point in points() {
        numbers.entry(point.tag[..2].to_owned()).or_default().push(point.number());
    }
    for (family, count) in FAMILIES {
        let found = numbers.remove(family).unwrap_or_default();
        assert_eq!(found, (1..=count).collect::<Vec<_>>(), "the points of {family}, in their order");
    }
}

/// Points, and how many of them are proved, partly proved, planned, and without anything to prove.
fn sums(points: &[&Point]) -> [usize; 5] {
    let count = |is: &dyn Fn(&Point) -> bool| points.iter().filter(|point| is(point)).count();
    let nothing = count(&|point| point.proof == "nothing to prove");
    let partly = count(&|point| point.proof.starts_with("partly"));
    let planned = count(&|point| point.proof.starts_with("planned"));
    [points.len(), points.len() - nothing - partly - planned, partly, planned, nothing]
}

#[test]
fn the_sums_at_the_top_are_right() {
    let document = document();
    let points = points();
    let [all, proved, partly, planned, nothing] = sums(&points.iter().collect::<Vec<_>>());
    let first =
        format!("{all} points: {proved} proved, {partly} partly, {planned} planned, {nothing} with nothing to prove.");
    assert!(document.contains(&first), "{first}");
    for family in ["S", "F", "X"] {
        let of_family: Vec<&Point> = points.iter().filter(|point| point.tag.starts_with(family)).collect();
        let cells = sums(&of_family).map(|sum| sum.to_string()).join(" | ");
        let is_it =
            |line: &str| line.starts_with(&format!("| {family} | ")) && line.ends_with(&format!(" | {cells} |"));
        assert!(document.lines().any(is_it), "{family}: {cells}");
    }
}

#[test]
fn every_test_that_is_named_exists() {
    let mut faults = Vec::new();
    for point in points() {
        let found = point.citations().filter_map(|citation| Some((citation, fault(citation)?)));
        faults.extend(found.map(|(citation, fault)| format!("{}: {citation}: {fault}", point.tag)));
    }
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}

/// What docs/security.md promises names a test for each promise.
#[test]
fn every_promise_of_security_is_proved() {
    let page = std::fs::read_to_string(root().join("docs/security.md")).expect("the page");
    let promised = page.lines().filter_map(|line| line.strip_suffix("` |")?.rsplit_once("| `"));
    let promised: Vec<&str> = promised.map(|(_, citation)| citation).filter(|it| it.contains("::")).collect();
    assert!(promised.len() > 25, "{}", promised.len());
    let faults: Vec<String> =
        promised.iter().filter_map(|citation| Some(format!("{citation}: {}", fault(citation)?))).collect();
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}

#[test]
fn every_point_is_proved_or_a_known_gap() {
    let points = points();
    let mut faults = Vec::new();
    for point in &points {
        match (point.is_proved(), GAPS.contains(&point.tag.as_str())) {
            (false, false) => faults.push(format!("{}: no test proves it: {}", point.tag, point.proof)),
            (true, true) => faults.push(format!("{}: it is proved, and still listed as a gap", point.tag)),
            (false, true) if !point.proof.contains("planned") => {
                faults.push(format!("{}: the document does not say that it is planned", point.tag));
            }
            _ => {}
        }
    }
    faults.extend(
        GAPS.iter().filter(|gap| !points.iter().any(|point| point.tag == **gap)).map(|gap| format!("{gap}: no point")),
    );
    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}
