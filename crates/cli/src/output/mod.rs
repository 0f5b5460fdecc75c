//! Output: data on stdout, everything else on stderr; aligned on a terminal, tab-separated on a pipe.

pub mod safe;
mod table;
mod time;
mod view;

use std::fmt;
use std::io::{ErrorKind, IsTerminal, Write};

use serde_json::Value;

use crate::args::{Global, OutputFormat};

pub use table::{Cell, Paint, Table};
pub use time::{TimeFormat, instant, soon, span};
pub use view::{Block, View};

/// Prints a line on stdout. Exits when the reader is gone, as `head` is after its lines.
macro_rules! outln {
    ($($text:tt)*) => { $crate::output::write_out(format_args!($($text)*)) };
}
pub(crate) use outln;

/// Prints a line of a server on stdout. A reader that is gone does not stop the server.
macro_rules! try_outln {
    ($($text:tt)*) => { $crate::output::try_write_out(format_args!($($text)*)) };
}
pub(crate) use try_outln;

/// Prints a line on stdout, without harmful control characters.
pub fn write_out(text: fmt::Arguments<'_>) {
    let text = text.to_string();
    raw_line(&safe::lines(&text, std::io::stdout().is_terminal()));
}

/// Prints a line on stdout unchanged: the output of a command that `run` executes.
pub fn raw_line(text: &str) {
    if let Err(error) = writeln!(std::io::stdout(), "{text}") {
        std::process::exit(if error.kind() == ErrorKind::BrokenPipe { 0 } else { 1 });
    }
}

/// Prints a line on stderr.
macro_rules! errln {
    ($($text:tt)*) => { $crate::output::write_err(format_args!($($text)*)) };
}
pub(crate) use errln;

/// Prints a line on stderr, without harmful control characters.
pub fn write_err(text: fmt::Arguments<'_>) {
    let text = text.to_string();
    let _ = writeln!(std::io::stderr(), "{}", safe::lines(&text, std::io::stderr().is_terminal()));
}

/// JSON in one line.
pub fn json_line(value: &Value) -> String {
    safe::json(&value.to_string()).into_owned()
}

/// Prints a line on stdout and ignores errors.
pub fn try_write_out(text: fmt::Arguments<'_>) {
    let _ = writeln!(std::io::stdout(), "{text}");
}

/// Writes on stderr unchanged, without a line end.
pub fn write_err_raw(text: fmt::Arguments<'_>) {
    let _ = std::io::stderr().write_fmt(text);
}

/// Writes on stdout unchanged, without a line end.
pub fn write_out_raw(text: fmt::Arguments<'_>) {
    let _ = std::io::stdout().write_fmt(text);
}

/// Output options of a command.
#[derive(Clone, Debug)]
pub struct Output {
    pub format: OutputFormat,
    pub columns: Vec<String>,
    pub time: TimeFormat,
    /// Stdout is a terminal.
    pub terminal: bool,
    pub colour: bool,
    pub width: usize,
}

impl Output {
    pub fn new(global: &Global) -> Output {
        let terminal = std::io::stdout().is_terminal();
        let plain = global.no_color
            || std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
            || std::env::var_os("TERM").is_some_and(|value| value == "dumb");
        let width = rustix::termios::tcgetwinsize(std::io::stdout()).map_or(0, |size| usize::from(size.ws_col));
        Output {
            format: if global.json { OutputFormat::Json } else { global.output },
            columns: global.columns.iter().map(|name| name.to_ascii_lowercase()).collect(),
            time: global.time.unwrap_or(if terminal { TimeFormat::Relative } else { TimeFormat::Utc }),
            terminal,
            colour: terminal && !plain,
            width: if width == 0 { 100 } else { width },
        }
    }

    pub fn is_json(&self) -> bool {
        matches!(self.format, OutputFormat::Json | OutputFormat::Jsonl)
    }

    /// Prints one document: indented, or in one line as JSONL.
    pub fn json(&self, value: &Value) {
        match self.format {
            OutputFormat::Jsonl => outln!("{}", json_line(value)),
            _ => outln!("{}", safe::json(&serde_json::to_string_pretty(value).unwrap_or_default())),
        }
    }
}

/// The state of a task: a glyph and a word.
pub fn state(task: &Value) -> Cell {
    let word = task["state"].as_str().unwrap_or("?");
    let recovered = word == "succeeded" && task["total_attempts"].as_u64().unwrap_or(0) > 1;
    let (glyph, paint) = match word {
        "waiting" | "pending" => ("○", Paint::Dim),
        "claimed" | "running" => ("▶", Paint::Blue),
        "retry_pending" => ("↻", Paint::Yellow),
        "paused" => ("⏸", Paint::Magenta),
        "succeeded" if recovered => ("◎", Paint::Green),
        "succeeded" => ("✓", Paint::Green),
        "failed" | "dead" => ("✕", Paint::Red),
        _ => ("–", Paint::Dim),
    };
    let shown = match word {
        "retry_pending" => "retrying",
        "succeeded" if recovered => "recovered",
        other => other,
    };
    Cell::painted(format!("{glyph} {shown}"), paint)
}

/// The last eight digits of an id.
pub fn short(id: &Value) -> String {
    let text = id.as_str().unwrap_or_default();
    text.get(text.len().saturating_sub(8)..).unwrap_or_default().to_owned()
}

/// A text field, empty if it is missing.
pub fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value[name].as_str().unwrap_or_default()
}

/// The items of a list.
pub fn items(list: &Value) -> impl Iterator<Item = &Value> {
    list["items"].as_array().into_iter().flatten()
}

/// `1 task`, `2 tasks`.
pub fn plural(count: u64, noun: &str) -> String {
    format!("{} {noun}{}", grouped(count), if count == 1 { "" } else { "s" })
}

/// With a comma between thousands.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `12 KiB`, `3.4 GiB`.
pub fn size(bytes: u64) -> String {
    let units = ["bytes", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1_024.0 && unit + 1 < units.len() {
        value /= 1_024.0;
        unit += 1;
    }
    if unit == 0 || value >= 10.0 {
        format!("{value:.0} {}", units[unit])
    } else {
        format!("{value:.1} {}", units[unit])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_easy_to_read() {
        for (number, words) in [(0, "0"), (999, "999"), (1_000, "1,000"), (1_234_567, "1,234,567")] {
            assert_eq!(grouped(number), words);
        }
        for (bytes, words) in [(12, "12 bytes"), (2_048, "2.0 KiB"), (40 << 20, "40 MiB"), (3_650_722_202, "3.4 GiB")] {
            assert_eq!(size(bytes), words);
        }
    }
}
