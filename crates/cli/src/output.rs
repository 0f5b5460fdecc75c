//! How things look in a terminal: data on stdout, everything else on stderr.

use std::fmt;
use std::io::{ErrorKind, IsTerminal, Write};

use comeback_core::{Millis, Timestamp};
use serde_json::Value;

/// A line of data. Whoever reads it may stop reading, as `head` does; then there is nothing left to do.
macro_rules! say {
    ($($text:tt)*) => { $crate::output::line(format_args!($($text)*)) };
}
pub(crate) use say;

pub fn line(text: fmt::Arguments<'_>) {
    if let Err(error) = writeln!(std::io::stdout(), "{text}") {
        std::process::exit(if error.kind() == ErrorKind::BrokenPipe { 0 } else { 1 });
    }
}

/// A table without borders: columns are as wide as what is in them.
pub fn table(head: &[&str], rows: &[Vec<String>]) {
    let mut widths: Vec<usize> = head.iter().map(|cell| cell.chars().count()).collect();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let print = |cells: Vec<&str>| {
        let line: Vec<String> = cells.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        say!("{}", line.join("  ").trim_end());
    };
    if std::io::stdout().is_terminal() {
        print(head.to_vec());
    }
    for row in rows {
        print(row.iter().map(String::as_str).collect());
    }
}

pub fn json(value: &Value) {
    say!("{}", serde_json::to_string_pretty(value).unwrap_or_default());
}

/// A state as people see it: a glyph and a word, never one alone.
pub fn state(task: &Value) -> String {
    let word = task["state"].as_str().unwrap_or("?");
    let recovered = word == "succeeded" && task["total_attempts"].as_u64().unwrap_or(0) > 1;
    let glyph = match word {
        "waiting" | "pending" => "○",
        "claimed" | "running" => "▶",
        "retry_pending" => "↻",
        "paused" => "⏸",
        "succeeded" if recovered => "◎",
        "succeeded" => "✓",
        "failed" | "dead" => "✕",
        _ => "–",
    };
    let shown = match word {
        "retry_pending" => "retrying",
        "succeeded" if recovered => "recovered",
        other => other,
    };
    format!("{glyph} {shown}")
}

/// The last eight digits: what people say.
pub fn short(id: &Value) -> String {
    let text = id.as_str().unwrap_or_default();
    text.get(text.len().saturating_sub(8)..).unwrap_or_default().to_owned()
}

pub fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value[name].as_str().unwrap_or_default()
}

/// An instant relative to now, as the server has it.
pub fn relative(at: &Value, now: Timestamp) -> String {
    let Some(at) = at.as_str().and_then(|text| Timestamp::parse_rfc3339(text).ok()) else { return "–".into() };
    if at >= now { format!("in {}", span(at.since(now))) } else { format!("{} ago", span(now.since(at))) }
}

/// A span in at most two units.
pub fn span(span: Millis) -> String {
    let Millis(ms) = span;
    let (secs, mins, hours, days) = (ms / 1_000, ms / 60_000, ms / 3_600_000, ms / 86_400_000);
    match ms {
        0..1_000 => format!("{ms}ms"),
        1_000..10_000 => format!("{}.{}s", secs, ms % 1_000 / 100),
        10_000..60_000 => format!("{secs}s"),
        60_000..3_600_000 => two(mins, "m", secs % 60, "s"),
        3_600_000..86_400_000 => two(hours, "h", mins % 60, "m"),
        _ => two(days, "d", hours % 24, "h"),
    }
}

fn two(large: u64, unit: &str, small: u64, small_unit: &str) -> String {
    if small == 0 { format!("{large}{unit}") } else { format!("{large}{unit} {small}{small_unit}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_short() {
        for (ms, words) in [
            (0, "0ms"),
            (250, "250ms"),
            (2_100, "2.1s"),
            (42_000, "42s"),
            (72_000, "1m 12s"),
            (3_600_000, "1h"),
            (5_400_000, "1h 30m"),
            (14 * 86_400_000, "14d"),
        ] {
            assert_eq!(span(Millis(ms)), words);
        }
    }
}
