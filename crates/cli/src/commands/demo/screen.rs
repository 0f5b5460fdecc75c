//! The terminal of the demo: lines that go by, one line that stays, and keys. Without a terminal only the lines.

use std::io::{IsTerminal, Read, Write};
use std::sync::{Arc, Mutex};

use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use tokio::sync::mpsc;

use crate::output::say;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    Quit,
    Open,
    Fault,
}

const KEYS: &str = "q quit · o open the dashboard · f inject a fault";

/// Prints above the line that stays.
#[derive(Clone, Default)]
pub struct Lines {
    standing: Arc<Mutex<Option<String>>>,
}

impl Lines {
    pub fn tell(&self, line: String) {
        let Ok(standing) = self.standing.lock() else { return };
        match &*standing {
            None => say!("{line}"),
            Some(standing) => {
                say!("\r\x1b[K{line}");
                crate::output::drawn(format_args!("{standing}"));
                let _ = std::io::stdout().flush();
            }
        }
    }
}

pub struct Screen {
    lines: Lines,
    keys: Option<mpsc::UnboundedReceiver<Key>>,
    before: Option<Termios>,
}

impl Screen {
    /// Single keys are read where there is a terminal on both sides; Ctrl-C stays what it is.
    pub fn open() -> Screen {
        let lively = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
        let before = if lively { tcgetattr(std::io::stdin()).ok() } else { None };
        let keys = before.as_ref().map(|before| {
            let mut single = before.clone();
            single.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO);
            let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, &single);
            let (sender, keys) = mpsc::unbounded_channel();
            std::thread::spawn(move || read_keys(&sender));
            keys
        });
        Screen { lines: Lines::default(), keys, before }
    }

    pub fn lines(&self) -> Lines {
        self.lines.clone()
    }

    pub fn is_lively(&self) -> bool {
        self.keys.is_some()
    }

    /// The next key that means something.
    pub async fn key(&mut self) -> Key {
        match &mut self.keys {
            None => std::future::pending().await,
            Some(keys) => match keys.recv().await {
                Some(key) => key,
                None => std::future::pending().await,
            },
        }
    }

    pub fn stand(&self, counts: &str) {
        let line = format!("{counts}        {KEYS}");
        crate::output::drawn(format_args!("\r\x1b[K{line}"));
        let _ = std::io::stdout().flush();
        if let Ok(mut standing) = self.lines.standing.lock() {
            *standing = Some(line);
        }
    }

    pub fn close(&mut self) {
        if let Some(before) = self.before.take() {
            crate::output::drawn(format_args!("\r\x1b[K"));
            let _ = std::io::stdout().flush();
            let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, &before);
        }
        self.keys = None;
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.close();
    }
}

fn read_keys(sender: &mpsc::UnboundedSender<Key>) {
    let mut byte = [0];
    while std::io::stdin().read_exact(&mut byte).is_ok() {
        let key = match byte[0] {
            b'q' => Key::Quit,
            b'o' => Key::Open,
            b'f' => Key::Fault,
            _ => continue,
        };
        if sender.send(key).is_err() {
            return;
        }
    }
}

/// Whether a browser could show itself to whoever sits here.
pub fn has_display() -> bool {
    let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    cfg!(target_os = "macos") || is_set("DISPLAY") || is_set("WAYLAND_DISPLAY")
}

/// What was tried, in words.
pub fn open_in_browser(url: &str) -> String {
    let program = if cfg!(target_os = "macos") { "open" } else { "xdg-open" };
    let quiet = std::process::Stdio::null;
    let opened = std::process::Command::new(program).arg(url).stdin(quiet()).stdout(quiet()).stderr(quiet()).spawn();
    match opened {
        Ok(_) => format!("opened {url}"),
        Err(_) => format!("no browser was found; open {url}"),
    }
}
