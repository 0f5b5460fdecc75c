//! Progress on stderr: one line that changes on a terminal, a line every ten seconds elsewhere.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// Progress of one command; erased from the terminal when dropped.
pub struct ProgressLine {
    started: Instant,
    printed: Option<Instant>,
    terminal: bool,
    /// A line is on the terminal and must be erased.
    shown: bool,
}

/// Commands that end sooner print no progress.
const QUIET: Duration = Duration::from_secs(1);

impl ProgressLine {
    pub fn new() -> ProgressLine {
        ProgressLine { started: Instant::now(), printed: None, terminal: std::io::stderr().is_terminal(), shown: false }
    }

    /// Prints the progress, unless it was printed a moment ago.
    pub fn update(&mut self, what: &str, done: u64, total: Option<u64>) {
        let every = if self.terminal { Duration::from_millis(100) } else { Duration::from_secs(10) };
        let first = if self.terminal { QUIET } else { every };
        let soon = self.printed.map_or(self.started.elapsed() < first, |at| at.elapsed() < every);
        if soon {
            return;
        }
        self.printed = Some(Instant::now());
        let of = match total {
            Some(total) if total > 0 => format!(" {}% of {}", done * 100 / total, crate::output::grouped(total)),
            _ => String::new(),
        };
        if self.terminal {
            self.shown = true;
            crate::output::write_err_raw(format_args!("\r{what}{of}\x1b[K"));
            let _ = std::io::stderr().flush();
        } else {
            crate::output::errln!("{what}{of}");
        }
    }
}

impl Drop for ProgressLine {
    fn drop(&mut self) {
        if self.shown {
            crate::output::write_err_raw(format_args!("\r\x1b[K"));
        }
    }
}
