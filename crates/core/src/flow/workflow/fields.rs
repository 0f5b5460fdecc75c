//! One map of a document, read field by field: what is asked for is taken, what is left is refused by name.

use super::node::{Entry, Node};
use super::problem::{Findings, Position};

pub struct Field<'a> {
    pub path: String,
    /// Where to point when its value is wrong.
    pub at: Position,
    pub key_at: Position,
    pub node: &'a Node,
}

pub struct Fields<'a> {
    pub path: String,
    pub at: Position,
    entries: &'a [Entry],
    taken: Vec<bool>,
}

/// Field names of other systems, and their names here.
const ELSEWHERE: [(&str, &str); 16] = [
    ("depends_on", "needs"),
    ("dependsOn", "needs"),
    ("after", "needs"),
    ("when", "if"),
    ("condition", "if"),
    ("loop", "foreach"),
    ("for_each", "foreach"),
    ("with_items", "foreach"),
    ("matrix", "foreach"),
    ("args", "payload"),
    ("with", "payload"),
    ("data", "payload"),
    ("command", "run"),
    ("shell", "run"),
    ("script", "run"),
    ("outputs", "output"),
];

pub fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

impl<'a> Fields<'a> {
    /// The fields of a map; `None`, and a problem, where the node is no map.
    pub fn of(node: &'a Node, path: &str, findings: &mut Findings) -> Option<Fields<'a>> {
        let Some(entries) = node.map() else {
            findings.push(node.at, path, "must be a map");
            return None;
        };
        Some(Fields { path: path.to_owned(), at: node.at, entries, taken: vec![false; entries.len()] })
    }

    pub fn has(&self, name: &str) -> bool {
        self.entries.iter().any(|entry| entry.key == name && !entry.value.is_null())
    }

    /// The field even where it says `null`.
    pub fn take(&mut self, name: &str) -> Option<Field<'a>> {
        let n = self.entries.iter().position(|entry| entry.key == name)?;
        self.taken[n] = true;
        Some(self.field(&self.entries[n]))
    }

    /// The field where it says something.
    pub fn some(&mut self, name: &str) -> Option<Field<'a>> {
        self.take(name).filter(|field| !field.node.is_null())
    }

    pub fn text(&mut self, name: &str, findings: &mut Findings) -> Option<String> {
        let field = self.some(name)?;
        let text = field.node.text().map(str::to_owned);
        if text.is_none() {
            findings.push(field.at, field.path, "must be a text");
        }
        text
    }

    pub fn boolean(&mut self, name: &str, findings: &mut Findings) -> Option<bool> {
        let field = self.some(name)?;
        let yes = field.node.to_value().as_bool();
        if yes.is_none() {
            findings.push(field.at, field.path, "must be true or false");
        }
        yes
    }

    /// One of several spellings; two of them at once are a problem.
    pub fn one_of(&mut self, names: &[&str], findings: &mut Findings) -> Option<Field<'a>> {
        let mut found: Option<(&str, Field<'a>)> = None;
        for name in names {
            let Some(field) = self.some(name) else { continue };
            match &found {
                Some((first, _)) => {
                    findings.push(field.key_at, field.path, format!("says the same as `{first}`; give one of the two"));
                }
                None => found = Some((name, field)),
            }
        }
        found.map(|(_, field)| field)
    }

    /// The fields that were not read so far.
    pub fn rest(&mut self) -> Vec<(&'a str, Field<'a>)> {
        let left: Vec<&'a Entry> =
            self.entries.iter().zip(&self.taken).filter(|(_, taken)| !**taken).map(|(entry, _)| entry).collect();
        self.taken.fill(true);
        left.into_iter().map(|entry| (entry.key.as_str(), self.field(entry))).collect()
    }

    /// Reports the fields that were never read as unknown.
    pub fn finish(mut self, known: &[&str], findings: &mut Findings) {
        for (name, field) in self.rest() {
            let near = || nearest(name, known.iter().copied()).filter(|_| findings.wants_hints());
            let meant = ELSEWHERE.iter().find(|(theirs, ours)| *theirs == name && known.contains(ours));
            let hint = match meant.map(|(_, ours)| *ours).or_else(near) {
                Some(meant) => format!("; did you mean `{meant}`?"),
                None => String::new(),
            };
            findings.push(field.key_at, field.path, format!("`{name}` is not a field known here{hint}"));
        }
    }

    fn field(&self, entry: &'a Entry) -> Field<'a> {
        Field { path: join(&self.path, &entry.key), at: entry.at(), key_at: entry.key_at, node: &entry.value }
    }
}

/// The name that was probably meant: few letters away, or the same but for case and hyphens.
pub fn nearest<'n>(name: &str, known: impl IntoIterator<Item = &'n str>) -> Option<&'n str> {
    let plain = |text: &str| text.to_ascii_lowercase().replace(['-', '_', '.'], "");
    let wanted = plain(name);
    if wanted.len() > 100 {
        return None;
    }
    let allowed = (wanted.chars().count() / 3).clamp(1, 2);
    known
        .into_iter()
        .map(|candidate| (distance(&wanted, &plain(candidate)), candidate))
        .filter(|(distance, _)| *distance <= allowed)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// Letters to add, drop, change or swap.
fn distance(one: &str, other: &str) -> usize {
    let (one, other): (Vec<char>, Vec<char>) = (one.chars().collect(), other.chars().collect());
    if one.len().abs_diff(other.len()) > 2 {
        return usize::MAX;
    }
    let mut rows = vec![(0..=other.len()).collect::<Vec<usize>>()];
    for i in 1..=one.len() {
        let mut row = vec![i; other.len() + 1];
        for j in 1..=other.len() {
            let same = one[i - 1] == other[j - 1];
            row[j] = (rows[i - 1][j] + 1).min(row[j - 1] + 1).min(rows[i - 1][j - 1] + usize::from(!same));
            if i > 1 && j > 1 && one[i - 1] == other[j - 2] && one[i - 2] == other[j - 1] {
                row[j] = row[j].min(rows[i - 2][j - 2] + 1);
            }
        }
        rows.push(row);
    }
    rows[one.len()][other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_name_is_found_and_no_far_one() {
        let known = ["retry", "needs", "max_retries", "if"];
        let check = |name: &str, meant: Option<&str>| assert_eq!(nearest(name, known), meant, "{name}");
        check("rerty", Some("retry"));
        check("need", Some("needs"));
        check("maxRetries", Some("max_retries"));
        check("max-retires", Some("max_retries"));
        check("colour", None);
        check("of", Some("if"));
        check("x", None);
    }
}
