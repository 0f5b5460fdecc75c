//! How far something has got, on stderr: in one line that changes on a terminal, and else in a line every ten seconds.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

pub struct Progress {
    begun: Instant,
    told: Option<Instant>,
    terminal: bool,
    /// What stands on the terminal must be wiped away.
    shown: bool,
}

/// What is over sooner needs no bar.
const PATIENCE: Duration = Duration::from_secs(1);

impl Progress {
    pub fn begin() -> Progress {
        Progress { begun: Instant::now(), told: None, terminal: std::io::stderr().is_terminal(), shown: false }
    }

    pub fn tell(&mut self, what: &str, done: u64, total: Option<u64>) {
        let every = if self.terminal { Duration::from_millis(100) } else { Duration::from_secs(10) };
        let first = if self.terminal { PATIENCE } else { every };
        let soon = self.told.map_or(self.begun.elapsed() < first, |told| told.elapsed() < every);
        if soon {
            return;
        }
        self.told = Some(Instant::now());
        let of = match total {
            Some(total) if total > 0 => format!(" {}% of {}", done * 100 / total, crate::output::grouped(total)),
            _ => String::new(),
        };
        if self.terminal {
            self.shown = true;
            crate::output::noted(format_args!("\r{what}{of}\x1b[K"));
            let _ = std::io::stderr().flush();
        } else {
            crate::output::aside!("{what}{of}");
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.shown {
            crate::output::noted(format_args!("\r\x1b[K"));
        }
    }
}
