//! Problems of a document, each with its place and its line.

use std::fmt;

use serde::Serialize;

/// Counted from 1, columns in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Position {
    /// The line, from 1.
    pub line: u32,
    /// The column, from 1.
    pub column: u32,
}

/// One problem of a document.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// As in every other fault: `steps.load.retry.max_retries`.
    pub path: String,
    /// The problem, as a sentence.
    pub message: String,
    /// The line, from 1.
    pub line: Option<u32>,
    /// The column, from 1.
    pub column: Option<u32>,
    /// The line with its number, and below it a caret.
    pub snippet: Option<String>,
}

/// All problems of a document, in the order of their places.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Problems(pub Vec<Problem>);

const MOST_PROBLEMS: usize = 1_000;
const WIDEST_SNIPPET: usize = 100;

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let (Some(line), Some(column)) = (self.line, self.column) {
            write!(f, "{line}:{column}: ")?;
        }
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        f.write_str(&self.message)
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, problem) in self.0.iter().enumerate() {
            if n > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{problem}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Problems {}

/// A text by its lines, as YAML breaks them.
#[derive(Clone, Debug)]
pub(super) struct Lines {
    text: String,
    starts: Vec<usize>,
}

impl Lines {
    pub fn new(text: &str) -> Lines {
        let mut starts = vec![0];
        let bytes = text.as_bytes();
        for (at, byte) in bytes.iter().enumerate() {
            let lone_return = *byte == b'\r' && bytes.get(at + 1) != Some(&b'\n');
            if *byte == b'\n' || lone_return {
                starts.push(at + 1);
            }
        }
        Lines { text: text.to_owned(), starts }
    }

    fn line(&self, number: u32) -> Option<&str> {
        let index = usize::try_from(number).ok()?.checked_sub(1)?;
        let start = *self.starts.get(index)?;
        let end = self.starts.get(index + 1).copied().unwrap_or(self.text.len());
        self.text.get(start..end).map(|line| line.trim_end_matches(['\n', '\r']))
    }

    /// Where a byte of the text stands.
    pub fn position(&self, byte: usize) -> Position {
        let line = self.starts.partition_point(|start| *start <= byte).max(1);
        let before = self.text.get(self.starts[line - 1]..byte).map_or(0, |before| before.chars().count());
        Position { line: counted(line), column: counted(before + 1) }
    }

    /// The byte at which a column of a line begins.
    pub fn byte(&self, line: u32, column: u32) -> Option<usize> {
        let start = *self.starts.get(usize::try_from(line).ok()?.checked_sub(1)?)?;
        let skipped = usize::try_from(column).ok()?.checked_sub(1)?;
        let within = self.line(line)?.char_indices().nth(skipped)?.0;
        Some(start + within)
    }

    pub fn snippet(&self, at: Position) -> Option<String> {
        let line = self.line(at.line)?;
        let column = usize::try_from(at.column).ok()?.saturating_sub(1);
        let length = line.chars().count();
        let (skipped, cut) = if length <= WIDEST_SNIPPET {
            (0, false)
        } else {
            let skipped = column.saturating_sub(WIDEST_SNIPPET / 2);
            (skipped, length > skipped + WIDEST_SNIPPET)
        };
        let clean = |letter: char| if letter.is_control() { ' ' } else { letter };
        let shown: String = line.chars().skip(skipped).take(WIDEST_SNIPPET).map(clean).collect();
        let (lead, tail) = (if skipped > 0 { "… " } else { "" }, if cut { " …" } else { "" });
        let number = at.line.to_string();
        let margin = " ".repeat(number.len());
        let indent = " ".repeat(lead.chars().count() + column.saturating_sub(skipped));
        Some(format!("{number} | {lead}{shown}{tail}\n{margin} | {indent}^"))
    }

    pub fn problem(&self, at: Option<Position>, path: impl Into<String>, message: impl fmt::Display) -> Problem {
        Problem {
            path: path.into(),
            message: message.to_string(),
            line: at.map(|at| at.line),
            column: at.map(|at| at.column),
            snippet: at.and_then(|at| self.snippet(at)),
        }
    }
}

pub(super) fn counted(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// Problems as they are found.
pub(super) struct Findings {
    lines: Lines,
    found: Vec<Problem>,
    more: usize,
}

impl Findings {
    pub fn new(text: &str) -> Findings {
        Findings { lines: Lines::new(text), found: Vec::new(), more: 0 }
    }

    pub fn lines(&self) -> &Lines {
        &self.lines
    }

    pub fn push(&mut self, at: impl Into<Option<Position>>, path: impl Into<String>, message: impl fmt::Display) {
        if self.found.len() >= MOST_PROBLEMS {
            self.more += 1;
            return;
        }
        self.found.push(self.lines.problem(at.into(), path, message));
    }

    /// Looking for what was meant takes time: after some problems the rest are told without.
    pub fn wants_hints(&self) -> bool {
        self.found.len() < 50
    }

    pub fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    pub fn into_lines(self) -> Lines {
        self.lines
    }

    pub fn into_problems(self) -> Problems {
        let mut found = self.found;
        found.sort_by_key(|problem| (problem.line.unwrap_or(0), problem.column.unwrap_or(0)));
        found.dedup();
        if self.more > 0 {
            let message = format!("{} more problems are not told here", self.more);
            found.push(self.lines.problem(None, "", message));
        }
        Problems(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snippet_points_at_the_place() {
        let lines = Lines::new("a: 1\r\nbé: [x]\rlast");
        let at = |line, column| Position { line, column };
        assert_eq!(lines.snippet(at(2, 5)).as_deref(), Some("2 | bé: [x]\n  |     ^"));
        assert_eq!(lines.snippet(at(3, 1)).as_deref(), Some("3 | last\n  | ^"));
        assert_eq!(lines.snippet(at(4, 1)), None);
        assert_eq!(lines.position("a: 1\r\nbé: ".len()), at(2, 5));
    }

    #[test]
    fn a_long_line_is_cut_around_the_place() {
        let text = format!("{}X{}", "a".repeat(400), "b".repeat(400));
        let snippet = Lines::new(&text).snippet(Position { line: 1, column: 401 }).unwrap();
        let (shown, caret) = snippet.split_once('\n').unwrap();
        assert!(shown.chars().count() < 120, "{shown}");
        assert_eq!(shown.chars().nth(caret.chars().count() - 1), Some('X'), "{snippet}");
    }
}
