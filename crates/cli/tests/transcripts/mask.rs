//! Masks values that differ on every run: `<id1>`, `<T+5s>`, `<port>`. A masked value can be typed again.

use std::collections::HashMap;
use std::path::Path;
use std::sync::LazyLock;

use comeback_core::{Millis, Timestamp};
use regex::{Captures, Regex};

use crate::stage::Stage;

pub struct Mask {
    folder: String,
    begun: Option<Timestamp>,
    /// By the last eight digits: the name, and the whole id where it was seen.
    ids: HashMap<String, (usize, Option<String>)>,
    /// Secrets, by what they are called here.
    keys: Vec<String>,
    cursors: Vec<String>,
}

fn regex(text: &str) -> Regex {
    Regex::new(text).expect("a pattern")
}

static ID: LazyLock<Regex> =
    LazyLock::new(|| regex(r"\b[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}\b|\b[0-9a-f]{8}\b"));
static INSTANT: LazyLock<Regex> = LazyLock::new(|| regex(r"\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"));
static KEY: LazyLock<Regex> = LazyLock::new(|| regex(r"cbk_([A-Za-z0-9]+)_[A-Za-z0-9_-]{20,}"));
static CURSOR: LazyLock<Regex> = LazyLock::new(|| regex(r"--cursor ([^<\s]\S*)"));
/// One id in fifty is made of digits only. What looks like it and is none is written here.
const PLAIN_NUMBERS: [&str; 2] = ["00000000", "86400000"];
/// Short id at the start of a line, as `run` prints it.
static RUN: LazyLock<Regex> = LazyLock::new(|| regex(r"(?m)^[0-9a-f]{8}  "));
static CLOCK: LazyLock<Regex> = LazyLock::new(|| regex(r"(?m)^\d\d:\d\d:\d\d  "));

/// Values that are masked without a number.
static PLAIN: LazyLock<Vec<(Regex, &str)>> = LazyLock::new(|| {
    vec![
        (regex(r"127\.0\.0\.1:\d{4,5}\b"), "127.0.0.1:<port>"),
        (regex(r"\b0\.1\.0\b"), "<version>"),
        (regex(r"(attempt \d+/\d+  .*?) in [0-9.]+m?s\b"), "$1 in <took>"),
        (regex(r"recovered after [0-9.]+m?s"), "recovered after <took>"),
        (regex(r"\b[0-9.]+ [KMGT]iB\b"), "<size>"),
        (regex(r#""bytes": \d+"#), r#""bytes": <size>"#),
        (regex(r"[0-9,]+ open files"), "<n> open files"),
        (regex(r"whsec_[A-Za-z0-9+/=]{20,}"), "whsec_<secret>"),
        (regex(r#""id":"c[A-Za-z0-9_-]{40,}""#), r#""id":"<cursor>""#),
    ]
});

impl Mask {
    pub fn new(folder: &Path) -> Mask {
        let folder = folder.to_string_lossy().into_owned();
        Mask { folder, begun: None, ids: HashMap::new(), keys: Vec::new(), cursors: Vec::new() }
    }

    pub fn learn(&mut self, stage: &Stage) {
        self.begun = stage.begun.as_deref().and_then(|text| Timestamp::parse_rfc3339(text).ok());
    }

    pub fn apply(&mut self, text: &str) -> String {
        for found in ID.find_iter(text).filter(|found| found.len() > 8).chain(RUN.find_iter(text)) {
            self.number(found.as_str().trim_end());
        }
        let text = text.replace(&self.folder, "<folder>");
        let text = KEY.replace_all(&text, |found: &Captures<'_>| {
            let number = place(&mut self.keys, &found[0]);
            format!("<key{number}>")
        });
        let mut text = text.into_owned();
        for (i, key) in self.keys.iter().enumerate() {
            if let Some(found) = KEY.captures(key) {
                text = text.replace(&found[1], &format!("<key{}-id>", i + 1));
            }
        }
        let begun = self.begun;
        let text = INSTANT.replace_all(&text, |found: &Captures<'_>| match begun {
            Some(begun) => relative(&found[0], begun),
            None => "<time>".into(),
        });
        let text = CURSOR.replace_all(&text, |found: &Captures<'_>| {
            let number = place(&mut self.cursors, &found[1]);
            format!("--cursor <cursor{number}>")
        });
        let text = CLOCK.replace_all(&text, "<clock>  ");
        let text = ID.replace_all(&text, |found: &Captures<'_>| {
            let text = &found[0];
            if PLAIN_NUMBERS.contains(&text) {
                return text.to_owned();
            }
            let number = self.number(text);
            if text.len() > 8 { format!("<id{number}>") } else { format!("<short{number}>") }
        });
        let mut text = text.into_owned();
        for (pattern, with) in PLAIN.iter() {
            text = pattern.replace_all(&text, *with).into_owned();
        }
        text
    }

    /// The same id has the same number, whether it is said as a whole or not.
    fn number(&mut self, id: &str) -> usize {
        let next = self.ids.len() + 1;
        let known = self.ids.entry(id[id.len() - 8..].to_owned()).or_insert((next, None));
        if id.len() > 8 {
            known.1 = Some(id.to_owned());
        }
        known.0
    }

    /// Replaces masks by their values, so that they can be typed.
    pub fn undo(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for (short, (number, whole)) in &self.ids {
            text = text.replace(&format!("<short{number}>"), short);
            text = text.replace(&format!("<id{number}>"), whole.as_deref().unwrap_or(short));
        }
        for (i, key) in self.keys.iter().enumerate() {
            text = text.replace(&format!("<key{}>", i + 1), key);
            if let Some(found) = KEY.captures(key) {
                text = text.replace(&format!("<key{}-id>", i + 1), &found[1]);
            }
        }
        for (i, cursor) in self.cursors.iter().enumerate() {
            text = text.replace(&format!("<cursor{}>", i + 1), cursor);
        }
        text.replace("<folder>", &self.folder)
    }
}

/// From 1.
fn place(list: &mut Vec<String>, text: &str) -> usize {
    match list.iter().position(|it| it == text) {
        Some(place) => place + 1,
        None => {
            list.push(text.to_owned());
            list.len()
        }
    }
}

/// How long after the clock was stopped.
fn relative(text: &str, begun: Timestamp) -> String {
    let Ok(at) = Timestamp::parse_rfc3339(text) else { return text.to_owned() };
    match at.0 - begun.0 {
        0 => "<T>".into(),
        ms if ms > 0 => format!("<T+{}>", compact(ms)),
        ms => format!("<T-{}>", compact(-ms)),
    }
}

fn compact(ms: i64) -> String {
    Millis(ms.unsigned_abs()).to_string().replace(' ', "")
}
