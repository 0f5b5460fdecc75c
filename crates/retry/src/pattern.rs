//! Regular expressions over messages: small, checked when a policy is read, compiled when one is asked to match.
//!
//! A policy keeps the text of its patterns only. What is compiled stands in one cache of the process, which is bounded, so
//! that no number of stored policies costs more than a fixed amount of memory.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use regex::{Regex, RegexBuilder};
use regex_syntax::ast::{self, Ast, ClassSetItem, Visitor};
use regex_syntax::hir::{Class, Hir, HirKind, translate::Translator};

/// Bytes of a pattern's text.
const MAX_SOURCE: usize = 1_000;
const MAX_NESTING: u32 = 50;
/// States of the automaton, by an estimate that is rather too high: about 16 KiB once compiled.
const MAX_STATES: usize = 400;
/// Letters in ranges such as `[a-z]`, all together: they are looked at one by one where case does not matter.
const MAX_RANGES: usize = 100_000;
/// Bytes of a message that are searched.
const MAX_MESSAGE: usize = 20 * 1024;
/// Memory of one compiled pattern.
const USUAL: usize = 32 * 1024;
/// Memory of one compiled pattern that an earlier version let in.
const LARGEST: usize = 256 * 1024;
/// Memory of all compiled patterns together.
const CACHED: usize = 2 * 1024 * 1024;
const AUTOMATON: usize = 64 * 1024;

/// A regular expression over the message, compared by its text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MessagePattern {
    source: Arc<str>,
}

impl MessagePattern {
    /// Checks a pattern without compiling it.
    pub fn parse(source: &str) -> Result<MessagePattern, String> {
        if source.len() > MAX_SOURCE {
            return Err(format!("a pattern may have {MAX_SOURCE} bytes at most"));
        }
        let plain = ascii_classes(source);
        let words = |error: String| error.lines().last().unwrap_or("not a pattern").trim().to_owned();
        let tree = ast::parse::ParserBuilder::new()
            .nest_limit(MAX_NESTING)
            .build()
            .parse(&plain)
            .map_err(|error| words(regex_syntax::Error::from(error).to_string()))?;
        if ast::visit(&tree, Ranges::default()).unwrap_or(usize::MAX) > MAX_RANGES {
            return Err("the pattern names too many letters".into());
        }
        let meant = Translator::new()
            .translate(&plain, &tree)
            .map_err(|error| words(regex_syntax::Error::from(error).to_string()))?;
        if states(&meant) > MAX_STATES {
            return Err("the pattern is too large once compiled".into());
        }
        Ok(MessagePattern::stored(source))
    }

    /// One that was stored, by whatever version, and need not be checked again.
    pub fn stored(source: &str) -> MessagePattern {
        MessagePattern { source: source.into() }
    }

    /// Whether the beginning of a message matches. One that cannot be compiled matches nothing.
    pub fn matches(&self, message: &str) -> bool {
        let end = message.floor_char_boundary(message.len().min(MAX_MESSAGE));
        compiled(&self.source).is_some_and(|pattern| pattern.is_match(&message[..end]))
    }

    /// The source text of the pattern.
    pub fn source(&self) -> &str {
        &self.source
    }
}

/// `\d`, `\w` and `\s` mean ASCII here: the classes of Unicode are a thousand times larger.
fn ascii_classes(source: &str) -> String {
    let mut plain = String::with_capacity(source.len() + 32);
    let mut letters = source.chars();
    while let Some(letter) = letters.next() {
        if letter != '\\' {
            plain.push(letter);
            continue;
        }
        match letters.next() {
            Some('d') => plain.push_str("[0-9]"),
            Some('D') => plain.push_str("[^0-9]"),
            Some('w') => plain.push_str("[0-9A-Za-z_]"),
            Some('W') => plain.push_str("[^0-9A-Za-z_]"),
            Some('s') => plain.push_str("[\\t\\n\\v\\f\\r\\x20]"),
            Some('S') => plain.push_str("[^\\t\\n\\v\\f\\r\\x20]"),
            other => {
                plain.push('\\');
                plain.extend(other);
            }
        }
    }
    plain
}

/// Counts the letters in all ranges; a class of Unicode counts as many.
#[derive(Default)]
struct Ranges(usize);

impl Visitor for Ranges {
    type Output = usize;
    type Err = ();

    fn finish(self) -> Result<usize, ()> {
        Ok(self.0)
    }

    fn visit_pre(&mut self, ast: &Ast) -> Result<(), ()> {
        if let Ast::ClassUnicode(_) = ast {
            self.0 += MAX_RANGES / 4;
        }
        Ok(())
    }

    fn visit_class_set_item_pre(&mut self, item: &ClassSetItem) -> Result<(), ()> {
        self.0 += match item {
            ClassSetItem::Range(range) => (range.end.c as usize).saturating_sub(range.start.c as usize) + 1,
            ClassSetItem::Unicode(_) => MAX_RANGES / 4,
            _ => 1,
        };
        Ok(())
    }
}

fn states(meant: &Hir) -> usize {
    match meant.kind() {
        HirKind::Empty | HirKind::Look(_) => 1,
        HirKind::Literal(text) => text.0.len(),
        HirKind::Class(Class::Bytes(_)) => 1,
        HirKind::Class(Class::Unicode(class)) => {
            // A letter beyond ASCII is two to four bytes, and a range of them several ways to go.
            let beyond = class.ranges().iter().filter(|range| range.end() > '\u{7f}').count();
            if beyond == 0 { 1 } else { 2 + (2 * beyond).max(8) }
        }
        HirKind::Repetition(again) => {
            let times = again.max.unwrap_or(again.min.saturating_add(1)).max(again.min).max(1) as usize;
            (states(&again.sub) + 1).saturating_mul(times)
        }
        HirKind::Capture(group) => states(&group.sub).saturating_add(2),
        HirKind::Concat(parts) | HirKind::Alternation(parts) => {
            parts.iter().fold(1, |sum: usize, part| sum.saturating_add(states(part)))
        }
    }
}

/// Compiled patterns, the last used first, up to a number of bytes.
#[derive(Default)]
struct Cache {
    patterns: HashMap<Arc<str>, Entry>,
    bytes: usize,
    clock: u64,
}

struct Entry {
    /// None if it cannot be compiled.
    pattern: Option<Arc<Regex>>,
    bytes: usize,
    used: u64,
}

static CACHE: LazyLock<Mutex<Cache>> = LazyLock::new(Mutex::default);

impl Cache {
    fn get(&mut self, source: &str) -> Option<Option<Arc<Regex>>> {
        self.clock += 1;
        let entry = self.patterns.get_mut(source)?;
        entry.used = self.clock;
        Some(entry.pattern.clone())
    }

    fn put(&mut self, source: &Arc<str>, pattern: Option<Arc<Regex>>, bytes: usize) {
        while self.bytes + bytes > CACHED {
            let oldest = self.patterns.iter().min_by_key(|(_, entry)| entry.used).map(|(source, _)| source.clone());
            let Some(oldest) = oldest else { break };
            if let Some(entry) = self.patterns.remove(&oldest) {
                self.bytes -= entry.bytes;
            }
        }
        let entry = Entry { pattern, bytes, used: self.clock };
        self.bytes += bytes;
        if let Some(before) = self.patterns.insert(source.clone(), entry) {
            self.bytes -= before.bytes;
        }
    }
}

fn compiled(source: &Arc<str>) -> Option<Arc<Regex>> {
    let lock = || CACHE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = lock().get(source) {
        return known;
    }
    // Not under the lock: others match meanwhile.
    let build = |most: usize| {
        RegexBuilder::new(&ascii_classes(source))
            .size_limit(most)
            .dfa_size_limit(AUTOMATON)
            .nest_limit(MAX_NESTING)
            .build()
            .ok()
            .map(Arc::new)
    };
    let (pattern, bytes) = match build(USUAL) {
        Some(pattern) => (Some(pattern), USUAL),
        None => (build(LARGEST), LARGEST),
    };
    lock().put(source, pattern.clone(), bytes);
    pattern
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordinary_patterns_fit_and_match() {
        for (pattern, message, fits) in [
            (r"timeout|connection reset", "the connection reset", true),
            (r"(?i)rate.?limit", "Rate-Limit exceeded", true),
            (r"(?i)rate.?limit", "RATE LIMIT", true),
            (r"\d{3}", "HTTP 503", true),
            (r"\d{3}", "HTTP 5٣٣", false),
            (r"\bfoo\b", "a foo there", true),
            (r"\bfoo\b", "a food there", false),
            (r"\w+@\w+\.\w+", "mail to a@b.de failed", true),
            (r"^HTTP/\d\.\d 5\d\d", "HTTP/1.1 502 Bad Gateway", true),
            (r"E\d{4}:.*disk.*full", "E1234: the disk of x is full", true),
            (r"[^\s]+\s[\d.]+$", "took 3.5", true),
            (r"(?i)ECONN(RESET|REFUSED|ABORTED)|EPIPE|ETIMEDOUT|EAI_AGAIN|ENOTFOUND", "econnrefused", true),
            (r"(?i)(timeout|timed out|connection (reset|refused)|deadline exceeded|try again)", "Timed Out", true),
            (r"Zeitüberschreitung|straße", "die straße", true),
            (r"[äöü]+", "für", true),
            (r"[a-z]{1,100}!", "hello!", true),
            (r"\\d", r"a \d there", true),
            (r"^\S+ \S+ \W", "a b !", true),
        ] {
            let read = MessagePattern::parse(pattern).unwrap_or_else(|error| panic!("{pattern}: {error}"));
            assert_eq!(read.matches(message), fits, "{pattern} on {message}");
            let plain = ascii_classes(pattern);
            assert!(RegexBuilder::new(&plain).size_limit(USUAL).build().is_ok(), "{pattern} is larger than estimated");
        }
    }

    #[test]
    fn large_and_wrong_patterns_are_refused_at_once() {
        let begun = std::time::Instant::now();
        let nested = format!("{}a{}", "(".repeat(400), ")".repeat(400));
        let wide = format!("(?i){}", r"[!-\u{10ffff}]".repeat(60));
        let names = format!("(?i){}", r"\pL".repeat(300));
        let long = "x".repeat(2_000);
        let wrong = ["(", "a**b(", r"\p{Nothing}", "a{1000}", "(a{100}){100}", "((a{9}){9}){9}"];
        for pattern in wrong.into_iter().chain([&*nested, &wide, &names, &long]) {
            let refused = MessagePattern::parse(pattern);
            assert!(refused.is_err(), "{}", &pattern[..pattern.len().min(40)]);
        }
        // Milliseconds; compiled, they would take minutes. Wide enough for a busy machine.
        assert!(begun.elapsed() < std::time::Duration::from_secs(20), "{:?}", begun.elapsed());
    }

    #[test]
    fn what_an_earlier_version_stored_still_matches_and_the_cache_stays_bounded() {
        for n in 0..500 {
            let old = MessagePattern::stored(&format!("(?:\\w{{5}})x{n}"));
            assert!(old.matches(&format!("abcdex{n}")), "{n}");
        }
        assert!(MessagePattern::stored(r"([a-z]{1,30}){1,10}!").matches("abc!"));
        assert!(!MessagePattern::stored("(").matches("("), "what cannot be compiled matches nothing");
        let cache = CACHE.lock().unwrap_or_else(PoisonError::into_inner);
        assert!(cache.bytes <= CACHED, "{}", cache.bytes);
        assert_eq!(cache.bytes, cache.patterns.values().map(|entry| entry.bytes).sum::<usize>());
    }
}
