//! The terminal of the demo: scrolling lines, a status line, and keys. Without a terminal only the lines.

use std::io::{IsTerminal, Read, Write};
use std::sync::{Arc, Mutex};

use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use tokio::sync::mpsc;

use crate::output::outln;

/// Keys of the demo.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyPress {
    Quit,
    Open,
    InjectFault,
}

const KEYS: &str = "q quit · o open the dashboard · f inject a fault";

/// Prints lines above the status line.
#[derive(Clone, Default)]
pub struct DemoLines {
    status: Arc<Mutex<Option<String>>>,
}

impl DemoLines {
    pub fn print(&self, line: String) {
        let Ok(status) = self.status.lock() else { return };
        match &*status {
            None => outln!("{line}"),
            Some(status) => {
                outln!("\r\x1b[K{line}");
                crate::output::write_out_raw(format_args!("{status}"));
                let _ = std::io::stdout().flush();
            }
        }
    }
}

/// The terminal in single-key mode, restored when dropped.
pub struct DemoScreen {
    lines: DemoLines,
    keys: Option<mpsc::UnboundedReceiver<KeyPress>>,
    before: Option<Termios>,
}

impl DemoScreen {
    /// Reads single keys if stdin and stdout are terminals; Ctrl-C works as usual.
    pub fn open() -> DemoScreen {
        let interactive = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
        let before = if interactive { tcgetattr(std::io::stdin()).ok() } else { None };
        let keys = before.as_ref().map(|before| {
            let mut single = before.clone();
            single.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO);
            let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, &single);
            let (sender, keys) = mpsc::unbounded_channel();
            std::thread::spawn(move || read_keys(&sender));
            keys
        });
        DemoScreen { lines: DemoLines::default(), keys, before }
    }

    pub fn lines(&self) -> DemoLines {
        self.lines.clone()
    }

    pub fn is_interactive(&self) -> bool {
        self.keys.is_some()
    }

    /// The next known key.
    pub async fn key(&mut self) -> KeyPress {
        match &mut self.keys {
            None => std::future::pending().await,
            Some(keys) => match keys.recv().await {
                Some(key) => key,
                None => std::future::pending().await,
            },
        }
    }

    pub fn set_status(&self, counts: &str) {
        let line = format!("{counts}        {KEYS}");
        crate::output::write_out_raw(format_args!("\r\x1b[K{line}"));
        let _ = std::io::stdout().flush();
        if let Ok(mut status) = self.lines.status.lock() {
            *status = Some(line);
        }
    }

    pub fn close(&mut self) {
        if let Some(before) = self.before.take() {
            crate::output::write_out_raw(format_args!("\r\x1b[K"));
            let _ = std::io::stdout().flush();
            let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, &before);
        }
        self.keys = None;
    }
}

impl Drop for DemoScreen {
    fn drop(&mut self) {
        self.close();
    }
}

fn read_keys(sender: &mpsc::UnboundedSender<KeyPress>) {
    let mut byte = [0];
    while std::io::stdin().read_exact(&mut byte).is_ok() {
        let key = match byte[0] {
            b'q' => KeyPress::Quit,
            b'o' => KeyPress::Open,
            b'f' => KeyPress::InjectFault,
            _ => continue,
        };
        if sender.send(key).is_err() {
            return;
        }
    }
}

/// Whether there is a display for a browser.
pub fn has_display() -> bool {
    let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    cfg!(target_os = "macos") || is_set("DISPLAY") || is_set("WAYLAND_DISPLAY")
}

/// Opens a browser and returns a line about it.
pub fn open_in_browser(url: &str) -> String {
    let program = if cfg!(target_os = "macos") { "open" } else { "xdg-open" };
    let quiet = std::process::Stdio::null;
    let opened = std::process::Command::new(program).arg(url).stdin(quiet()).stdout(quiet()).stderr(quiet()).spawn();
    match opened {
        Ok(_) => format!("opened {url}"),
        Err(_) => format!("no browser found; open {url}"),
    }
}
