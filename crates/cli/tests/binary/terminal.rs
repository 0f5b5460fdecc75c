//! A terminal with a program on it.

use std::fs::File;
use std::io::Read;
use std::process::{Child, Command};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

pub struct Terminal {
    pub keys: File,
    theirs: Option<File>,
    pieces: Receiver<Vec<u8>>,
    /// Everything that was shown and not waited for yet.
    shown: Vec<u8>,
}

impl Terminal {
    pub fn open() -> Terminal {
        let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a terminal");
        grantpt(&ours).expect("granted");
        unlockpt(&ours).expect("unlocked");
        let name = ptsname(&ours, Vec::new()).expect("a name").into_string().expect("a path");
        let theirs = File::options().read(true).write(true).open(name).expect("the other end");
        let keys = File::from(ours);
        let mut screen = keys.try_clone().expect("two hands");
        let (sender, pieces) = channel();
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(count) = screen.read(&mut buffer) {
                if count == 0 || sender.send(buffer[..count].to_vec()).is_err() {
                    return;
                }
            }
        });
        Terminal { keys, theirs: Some(theirs), pieces, shown: Vec::new() }
    }

    pub fn spawn(&mut self, mut command: Command) -> Child {
        let theirs = self.theirs.take().expect("one program");
        let input = theirs.try_clone().expect("two ends");
        command.env_remove("NO_COLOR").env("TERM", "xterm").stdin(input).stdout(theirs);
        command.spawn().expect("it starts")
    }

    /// Waits for a text and returns the output before it.
    pub fn wait_for(&mut self, words: &str) -> String {
        let begun = Instant::now();
        loop {
            if let Some(at) = self.shown.windows(words.len()).position(|piece| piece == words.as_bytes()) {
                let before = String::from_utf8_lossy(&self.shown[..at]).into_owned();
                self.shown.drain(..at + words.len());
                return before;
            }
            let left = Duration::from_secs(30).saturating_sub(begun.elapsed());
            match self.pieces.recv_timeout(left) {
                Ok(piece) => self.shown.extend(piece),
                Err(_) => panic!("`{words}` was not shown:\n{}", String::from_utf8_lossy(&self.shown)),
            }
        }
    }
}
