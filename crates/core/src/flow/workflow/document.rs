//! YAML or JSON into nodes, bounded in every direction before anything is built.
//!
//! JSON is YAML here: one reader, one way to tell where something stands. The reader works on the parser's events because that is
//! where every place is known, a key that comes twice can still be seen, and an alias can be weighed before it is copied.

use std::collections::{HashMap, HashSet};

use granit_parser::{ErrorKind, Event, Marker, Parser, ScalarStyle, Tag};
use serde_json::Number;

use super::node::{Content, Entry, Node};
use super::problem::{Findings, Position, counted};

pub const MAX_TEXT: usize = 1024 * 1024;
pub const MAX_DEPTH: usize = 64;
const TOO_DEEP: &str = "nests more than 64 levels deep";
/// The size that all aliases of a document may add to it.
const MAX_COPIED: Weight = Weight { nodes: 100_000, bytes: 4 * MAX_TEXT };

#[derive(Clone, Copy, Debug, Default)]
struct Weight {
    nodes: usize,
    bytes: usize,
}

impl Weight {
    fn add(&mut self, other: Weight) {
        self.nodes = self.nodes.saturating_add(other.nodes);
        self.bytes = self.bytes.saturating_add(other.bytes);
    }

    fn exceeds(self, limit: Weight) -> bool {
        self.nodes > limit.nodes || self.bytes > limit.bytes
    }
}

/// The root of the document, if there is one that can be looked into at all.
pub fn parse(text: &str, findings: &mut Findings) -> Option<Node> {
    if text.len() > MAX_TEXT {
        findings.push(None, "", format!("has {} bytes; a document may have {MAX_TEXT} at most", text.len()));
        return None;
    }
    // The parser takes it for the end of the text.
    if let Some(byte) = text.find('\0') {
        let at = findings.lines().position(byte);
        findings.push(at, "", "holds a NUL character");
        return None;
    }
    let mut options = granit_parser::options! {
        emit_anchor_events: true,
        emit_unresolved_aliases: true,
        simple_key_max_lookahead: MAX_TEXT,
        flow_nesting_limit: MAX_DEPTH,
    };
    options.set_emit_comments(false);
    let mut builder = Builder::default();
    for next in Parser::new_from_str_with_options(text, options) {
        let step = match next {
            Ok((event, span)) => builder.take(event, place(&span.start), findings),
            Err(error) => {
                let at = place(error.marker());
                match error.kind() {
                    ErrorKind::RecursionLimitExceeded => findings.push(at, "", TOO_DEEP),
                    _ => findings.push(at, "", error.info()),
                }
                Err(Stop)
            }
        };
        if step.is_err() {
            return None;
        }
    }
    if builder.root.is_none() && findings.is_empty() {
        findings.push(None, "", "the document is empty");
    }
    builder.root
}

fn place(marker: &Marker) -> Position {
    Position { line: counted(marker.line().max(1)), column: counted(marker.col() + 1) }
}

/// Reading goes no further; why is among the findings.
struct Stop;

#[derive(Default)]
struct Builder {
    root: Option<Node>,
    open: Vec<Frame>,
    anchors: HashMap<usize, Anchor>,
    copied: Weight,
}

struct Anchor {
    name: String,
    /// The anchored value; `None` while it is still being read.
    node: Option<(Node, Weight)>,
}

struct Frame {
    at: Position,
    anchor: usize,
    weight: Weight,
    kind: FrameKind,
}

enum FrameKind {
    List(Vec<Node>),
    Map { entries: Vec<Entry>, names: HashSet<String>, key: Option<Key>, merged: Vec<Entry> },
}

struct Key {
    name: String,
    at: Position,
    /// A bare `<<`: what follows is taken over where the map does not say otherwise.
    merges: bool,
    repeated: bool,
}

impl Builder {
    fn take(&mut self, event: Event<'_>, at: Position, findings: &mut Findings) -> Result<(), Stop> {
        match event {
            Event::DocumentStart(..) if self.root.is_some() => {
                findings.push(at, "", "a second document begins here; one at a time");
                Err(Stop)
            }
            Event::Scalar(text, style, anchor, tag) => {
                let content = scalar(&text, style, tag.as_deref()).map_err(|message| {
                    findings.push(at, self.path(), message);
                    Stop
                })?;
                let weight = Weight { nodes: 1, bytes: text.len() };
                let merges = style == ScalarStyle::Plain && text == "<<";
                self.add(Node { at, content }, weight, anchor, Some((&text, merges)), findings)
            }
            Event::SequenceStart(_, anchor, tag) => {
                self.open(at, anchor, tag.as_deref(), "seq", FrameKind::List(Vec::new()), findings)
            }
            Event::MappingStart(_, anchor, tag) => {
                let map = FrameKind::Map { entries: Vec::new(), names: HashSet::new(), key: None, merged: Vec::new() };
                self.open(at, anchor, tag.as_deref(), "map", map, findings)
            }
            Event::SequenceEnd | Event::MappingEnd => self.close(findings),
            Event::Anchor(id, name) => {
                match self.anchors.get_mut(&id) {
                    Some(anchor) => anchor.name = name.into_owned(),
                    None => drop(self.anchors.insert(id, Anchor { name: name.into_owned(), node: None })),
                }
                Ok(())
            }
            Event::Alias(id) => self.alias(id, at, findings),
            Event::UnresolvedAlias(name) => {
                findings.push(at, self.path(), format!("there is no anchor &{name} before this alias"));
                Err(Stop)
            }
            _ => Ok(()),
        }
    }

    fn open(
        &mut self,
        at: Position,
        anchor: usize,
        tag: Option<&Tag>,
        expected: &str,
        kind: FrameKind,
        findings: &mut Findings,
    ) -> Result<(), Stop> {
        if tag.is_some_and(|tag| tag.core_suffix() != Some(expected)) {
            findings.push(
                at,
                self.path(),
                format!("the tag {} is not understood here", tag.map(Tag::original).unwrap_or_default()),
            );
            return Err(Stop);
        }
        if self.open.len() >= MAX_DEPTH {
            findings.push(at, self.path(), TOO_DEEP);
            return Err(Stop);
        }
        if self.expects_key() {
            let message = match kind {
                // `a: {{ b }}` is a map whose key is a map.
                FrameKind::Map { .. } => {
                    "a key must be a text; a template that begins a value needs quotes: \"{{ … }}\""
                }
                FrameKind::List(_) => "a key must be a text",
            };
            findings.push(at, self.path(), message);
            return Err(Stop);
        }
        self.open.push(Frame { at, anchor, weight: Weight { nodes: 1, bytes: 0 }, kind });
        Ok(())
    }

    fn close(&mut self, findings: &mut Findings) -> Result<(), Stop> {
        let Some(frame) = self.open.pop() else { return Ok(()) };
        let content = match frame.kind {
            FrameKind::List(items) => Content::List(items.into()),
            FrameKind::Map { mut entries, mut names, merged, .. } => {
                entries.extend(merged.into_iter().filter(|entry| names.insert(entry.key.clone())));
                Content::Map(entries.into())
            }
        };
        self.add(Node { at: frame.at, content }, frame.weight, frame.anchor, None, findings)
    }

    /// Weighed before it is copied: a few lines of aliases can stand for more than any memory.
    fn alias(&mut self, id: usize, at: Position, findings: &mut Findings) -> Result<(), Stop> {
        let Some(anchor) = self.anchors.get(&id) else { return Ok(()) };
        let Some((node, weight)) = &anchor.node else {
            let message = format!("the alias *{} stands inside what it names: {}", anchor.name, self.circle(id));
            findings.push(at, self.path(), message);
            return Err(Stop);
        };
        self.copied.add(*weight);
        if self.copied.exceeds(MAX_COPIED) {
            let message = format!(
                "the aliases stand for more than {} values or {} bytes; *{} is where it is too much",
                MAX_COPIED.nodes, MAX_COPIED.bytes, anchor.name
            );
            findings.push(at, self.path(), message);
            return Err(Stop);
        }
        let (node, weight) = (node.clone(), *weight);
        if self.open.len() + depth(&node) > MAX_DEPTH {
            findings.push(at, self.path(), TOO_DEEP);
            return Err(Stop);
        }
        let text = node.text().map(str::to_owned);
        self.add(node, weight, 0, text.as_deref().map(|text| (text, false)), findings)
    }

    /// a → b → a: the anchors that are open from the one that is named again.
    fn circle(&self, id: usize) -> String {
        let open = self.open.iter().map(|frame| frame.anchor).skip_while(|anchor| *anchor != id).filter(|id| *id > 0);
        let names = open.chain([id]).filter_map(|id| self.anchors.get(&id)).map(|anchor| anchor.name.as_str());
        names.collect::<Vec<_>>().join(" → ")
    }

    fn expects_key(&self) -> bool {
        matches!(self.open.last(), Some(Frame { kind: FrameKind::Map { key: None, .. }, .. }))
    }

    /// Puts a finished node where it belongs. `written` is what a scalar looks like, in case it is a key.
    fn add(
        &mut self,
        node: Node,
        weight: Weight,
        anchor: usize,
        written: Option<(&str, bool)>,
        findings: &mut Findings,
    ) -> Result<(), Stop> {
        if anchor > 0 {
            let known = self.anchors.entry(anchor).or_insert_with(|| Anchor { name: anchor.to_string(), node: None });
            known.node = Some((node.clone(), weight));
        }
        let Some(frame) = self.open.last_mut() else {
            self.root = Some(node);
            return Ok(());
        };
        frame.weight.add(weight);
        let at = node.at;
        match frame.add(node, written) {
            Ok(None) => Ok(()),
            Ok(Some(repeated)) => {
                findings.push(at, self.path(), format!("`{repeated}` is here twice"));
                Ok(())
            }
            Err(message) => {
                findings.push(at, self.path(), message);
                Err(Stop)
            }
        }
    }

    /// Where the reader is, for those problems that stop it.
    fn path(&self) -> String {
        let mut path = String::new();
        for frame in &self.open {
            match &frame.kind {
                FrameKind::List(items) => path.push_str(&format!("[{}]", items.len())),
                FrameKind::Map { key: Some(key), .. } => {
                    if !path.is_empty() {
                        path.push('.');
                    }
                    path.push_str(&key.name);
                }
                FrameKind::Map { .. } => {}
            }
        }
        path
    }
}

impl Frame {
    /// A key that was there before comes back: its value will be left out.
    fn add(&mut self, node: Node, written: Option<(&str, bool)>) -> Result<Option<String>, &'static str> {
        let (entries, names, key, merged) = match &mut self.kind {
            FrameKind::List(items) => {
                items.push(node);
                return Ok(None);
            }
            FrameKind::Map { entries, names, key, merged } => (entries, names, key, merged),
        };
        match key.take() {
            None => {
                let (name, merges) = written.filter(|_| !node.is_null()).ok_or("a key must be a text")?;
                let repeated = !merges && !names.insert(name.to_owned());
                *key = Some(Key { name: name.to_owned(), at: node.at, merges, repeated });
                return Ok(repeated.then(|| name.to_owned()));
            }
            Some(Key { repeated: true, .. }) => {}
            Some(Key { merges: true, .. }) => {
                let parts = node.list().unwrap_or(std::slice::from_ref(&node));
                for part in parts {
                    merged.extend(part.map().ok_or("`<<` takes over a map or a list of maps")?.iter().cloned());
                }
            }
            Some(Key { name, at, .. }) => entries.push(Entry { key: name, key_at: at, value: node }),
        }
        Ok(None)
    }
}

fn depth(node: &Node) -> usize {
    match &node.content {
        Content::List(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        Content::Map(entries) => 1 + entries.iter().map(|entry| depth(&entry.value)).max().unwrap_or(0),
        _ => 0,
    }
}

/// A scalar by YAML's core schema: what JSON can say, and nothing else.
fn scalar(text: &str, style: ScalarStyle, tag: Option<&Tag>) -> Result<Content, String> {
    let plain = match tag {
        None if style == ScalarStyle::Plain => return resolve(text),
        None => return Ok(Content::Text(text.into())),
        Some(tag) => tag.core_suffix().map(str::to_owned).ok_or_else(|| tag.original()),
    };
    let resolved = resolve(text);
    match (plain.as_deref(), resolved) {
        (Ok("str"), _) => Ok(Content::Text(text.into())),
        (Ok("null"), Ok(content @ Content::Null)) => Ok(content),
        (Ok("bool"), Ok(content @ Content::Bool(_))) => Ok(content),
        (Ok("int" | "float"), Ok(content @ Content::Number(_))) => Ok(content),
        (Ok(name @ ("null" | "bool" | "int" | "float")), _) => Err(format!("`{text}` is no !!{name}")),
        (Ok(other), _) => Err(format!("the tag !!{other} is not understood here")),
        (Err(other), _) => Err(format!("the tag {other} is not understood here")),
    }
}

fn resolve(text: &str) -> Result<Content, String> {
    Ok(match text {
        "" | "~" | "null" | "Null" | "NULL" => Content::Null,
        "true" | "True" | "TRUE" => Content::Bool(true),
        "false" | "False" | "FALSE" => Content::Bool(false),
        ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF" | "-.inf" | "-.Inf" | "-.INF" | ".nan" | ".NaN"
        | ".NAN" => {
            return Err(format!("`{text}` is no number that JSON knows; put it in quotes to mean the text"));
        }
        _ => match number(text) {
            Some(number) => Content::Number(number),
            None => Content::Text(text.into()),
        },
    })
}

fn number(text: &str) -> Option<Number> {
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    let radix =
        |prefix: &str, radix| digits.strip_prefix(prefix).and_then(|rest| u64::from_str_radix(rest, radix).ok());
    if digits.len() == text.len()
        && let Some(number) = radix("0x", 16).or_else(|| radix("0o", 8))
    {
        return Some(number.into());
    }
    let numeric = digits.starts_with(|letter: char| letter.is_ascii_digit() || letter == '.')
        && digits.bytes().any(|byte| byte.is_ascii_digit())
        && digits.bytes().all(|byte| byte.is_ascii_digit() || matches!(byte, b'.' | b'e' | b'E' | b'-' | b'+'));
    if !numeric {
        return None;
    }
    let text = text.strip_prefix('+').unwrap_or(text);
    text.parse::<i64>()
        .map(Number::from)
        .or_else(|_| text.parse::<u64>().map(Number::from))
        .ok()
        .or_else(|| text.parse::<f64>().ok().and_then(Number::from_f64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn read(text: &str) -> Result<Value, Vec<String>> {
        let mut findings = Findings::new(text);
        let node = parse(text, &mut findings);
        let problems = findings.into_problems().0;
        match node {
            Some(node) if problems.is_empty() => Ok(node.to_value()),
            _ => Err(problems.iter().map(ToString::to_string).collect()),
        }
    }

    #[test]
    fn yaml_and_json_are_read_alike() {
        for (text, value) in [
            ("a: 1\nb: [x, 'y', \"z\\u00e9\"]\n", json!({"a": 1, "b": ["x", "y", "zé"]})),
            ("{\"a\": 1, \"b\": [\"x\", true, null, -2.5e3]}", json!({"a": 1, "b": ["x", true, null, -2500.0]})),
            ("{\n\t\"a\":\t{\"b\":1}\n}", json!({"a": {"b": 1}})),
            ("\"\\ud83d\\ude00\"", json!("😀")),
            (
                "a: yes\nb: on\nc: 012\nd: 0x1F\ne: 1_000\nf: 1.2.3\ng: 10s",
                json!({"a": "yes", "b": "on", "c": 12, "d": 31, "e": "1_000", "f": "1.2.3", "g": "10s"}),
            ),
            ("a: 18446744073709551615\nb: -9223372036854775808", json!({"a": u64::MAX, "b": i64::MIN})),
            ("a: !!str 12\nb: !!int 3\n200: x", json!({"a": "12", "b": 3, "200": "x"})),
            ("a: |\n  one\n  two\nb: >-\n  one\n  two", json!({"a": "one\ntwo\n", "b": "one two"})),
            (
                "a: &x {p: 1, q: 2}\nb:\n  <<: *x\n  q: 3\nc: *x",
                json!({"a": {"p": 1, "q": 2}, "b": {"q": 3, "p": 1}, "c": {"p": 1, "q": 2}}),
            ),
            ("\"<<\": 1", json!({"<<": 1})),
            ("\u{feff}a: 1", json!({"a": 1})),
        ] {
            assert_eq!(read(text), Ok(value), "{text}");
        }
    }

    #[test]
    fn what_is_wrong_has_its_place() {
        for (text, expected) in [
            ("", "the document is empty"),
            ("a: 1\na: 2\nb:\n  c: 1\n  c: 1", "2:1: a: `a` is here twice|5:3: b.c: `c` is here twice"),
            ("a: &x [*x]", "1:8: a[0]: the alias *x stands inside what it names: x → x"),
            ("a: &x\n  b: &y\n    c: *x", "3:8: a.b.c: the alias *x stands inside what it names: x → y → x"),
            ("a: *nowhere", "1:4: a: there is no anchor &nowhere before this alias"),
            ("a: {{ b }}", "1:5: a: a key must be a text; a template that begins a value needs quotes"),
            ("a: 1\n---\nb: 2", "2:1: a second document begins here; one at a time"),
            ("a: .nan", "1:4: a: `.nan` is no number that JSON knows"),
            ("a: !secret x", "1:12: a: the tag !secret is not understood here"),
            ("? [a]\n: 1", "1:3: a key must be a text"),
            ("~: 1", "1:1: a key must be a text"),
            ("a: 1\nb: [1, 2\nc: 3", "3:2: "),
            ("a\0b", "1:2: holds a NUL"),
            ("a:\n  <<: 3", "2:7: a: `<<` takes over a map"),
        ] {
            let problems = read(text).expect_err(text);
            assert_eq!(problems.len(), expected.split('|').count(), "{text}: {problems:?}");
            for (problem, expected) in problems.iter().zip(expected.split('|')) {
                assert!(problem.starts_with(expected), "{text}: {problem}");
            }
        }
    }

    #[test]
    fn too_much_is_refused_at_once() {
        let deep = format!("a: {}{}", "[".repeat(64), "]".repeat(64));
        assert!(read(&deep).unwrap_err()[0].contains("nests more than 64"));
        assert!(read(&"[".repeat(500)).unwrap_err()[0].contains("nests more than 64"));
        assert!(read(&"- ".repeat(500)).unwrap_err()[0].contains("nests more than 64"));
        assert!(read(&format!("a: {}{}", "[".repeat(63), "]".repeat(63))).is_ok());
        assert!(read(&"x".repeat(MAX_TEXT + 1)).unwrap_err()[0].contains("1048576 at most"));
        let mut laughs = String::from("a0: &a0 [lol]\n");
        for n in 1..40 {
            let many = vec![format!("*a{}", n - 1); 10].join(", ");
            laughs.push_str(&format!("a{n}: &a{n} [{many}]\n"));
        }
        let problem = &read(&laughs).unwrap_err()[0];
        assert!(problem.contains("the aliases stand for more than 100000 values"), "{problem}");
        let long = format!("a: &a {}\nb: [{}]", "x".repeat(100_000), vec!["*a"; 1_000].join(", "));
        assert!(read(&long).unwrap_err()[0].contains("4194304 bytes"));
        let mut climbing = String::from("a0: &a0 [x]\n");
        for n in 1..80 {
            climbing.push_str(&format!("a{n}: &a{n} [*a{}]\n", n - 1));
        }
        assert!(read(&climbing).unwrap_err()[0].contains("nests more than 64"));
    }
}
