//! The real binary, started as a server. What every test of a running server begins with.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

pub struct Server {
    pub child: Child,
    pub url: String,
    /// The lines it printed at its start.
    pub lines: Vec<String>,
}

impl Server {
    pub fn command(db: &str, listen: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_comeback"));
        command.args(["serve", "--listen", listen, "--db", db]).env("RUST_LOG", "warn").stdout(Stdio::piped());
        command
    }

    /// Returns when it serves; what it said instead, when it ended before.
    pub fn from(mut command: Command) -> Result<Server, String> {
        let mut child = command.spawn().map_err(|error| error.to_string())?;
        let mut reader = BufReader::new(child.stdout.take().ok_or("its output is not piped")?);
        let mut server = Server { child, url: String::new(), lines: Vec::new() };
        loop {
            let mut line = String::new();
            if !reader.read_line(&mut line).is_ok_and(|read| read > 0) {
                return Err(format!("it ended before it served: {:?}", server.lines));
            }
            let last = line.trim_start().starts_with("resumed") || line.trim_start().starts_with("ready");
            server.lines.push(line);
            if last {
                break;
            }
        }
        let api = server.lines.iter().find_map(|line| line.trim().strip_prefix("API")).ok_or("no address")?.trim();
        server.url = api.trim_end_matches("/api/v1").to_owned();
        std::thread::spawn(move || std::io::copy(&mut reader, &mut std::io::sink()));
        Ok(server)
    }

    pub fn kill(mut self) {
        self.child.kill().expect("killed");
        self.child.wait().expect("gone");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
