//! A typed command of the binary, on a pipe or on a terminal.

use std::fs::File;
use std::io::{Read, Write};
use std::process::{Command, Stdio};

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

use crate::stage::Stage;

pub struct Said {
    pub stdout: String,
    pub stderr: String,
    pub code: i32,
}

/// `$ …` on a pipe, `tty$ …` on a terminal.
pub fn command(line: &str) -> Option<(bool, &str)> {
    line.strip_prefix("$ ").map(|rest| (false, rest)).or_else(|| line.strip_prefix("tty$ ").map(|rest| (true, rest)))
}

pub fn say(stage: &Stage, text: &str, terminal: bool) -> Result<Said, String> {
    let mut words = split(text)?;
    let mut input = None;
    if words.first().is_some_and(|word| word == "echo") && words.get(2).is_some_and(|word| word == "|") {
        input = Some(words[1].clone());
        words.drain(..3);
    }
    let mut variables = Vec::new();
    while let Some((name, value)) = words.first().and_then(|word| word.split_once('=')) {
        variables.push((name.to_owned(), value.to_owned()));
        words.remove(0);
    }
    if words.first().is_none_or(|word| word != "comeback") {
        return Err(format!("only comeback is typed here, not `{text}`"));
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_comeback"));
    command.args(&words[1..]).current_dir(stage.folder()).env_clear().envs(stage.variables()).envs(variables);
    command.stdin(if input.is_some() { Stdio::piped() } else { Stdio::null() }).stderr(Stdio::piped());
    if terminal { on_terminal(command, input) } else { on_pipe(command, input) }
}

fn on_pipe(mut command: Command, input: Option<String>) -> Result<Said, String> {
    let mut child = command.stdout(Stdio::piped()).spawn().map_err(|error| error.to_string())?;
    if let (Some(input), Some(mut stdin)) = (input, child.stdin.take()) {
        stdin.write_all(input.as_bytes()).map_err(|error| error.to_string())?;
    }
    let output = child.wait_with_output().map_err(|error| error.to_string())?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ok(Said { stdout: text(&output.stdout), stderr: text(&output.stderr), code: output.status.code().unwrap_or(-1) })
}

/// Without colours: what they are, the unit tests know. What is typed there is not seen: the terminal does not echo.
fn on_terminal(mut command: Command, input: Option<String>) -> Result<Said, String> {
    let told = |error: rustix::io::Errno| error.to_string();
    let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).map_err(told)?;
    grantpt(&ours).map_err(told)?;
    unlockpt(&ours).map_err(told)?;
    let name = ptsname(&ours, Vec::new()).map_err(told)?;
    let name = name.into_string().map_err(|error| error.to_string())?;
    let theirs = File::options().read(true).write(true).open(name).map_err(|error| error.to_string())?;
    let size = rustix::termios::Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
    rustix::termios::tcsetwinsize(&theirs, size).map_err(told)?;
    let mut ours = File::from(ours);
    if let Some(input) = input {
        let mut modes = rustix::termios::tcgetattr(&theirs).map_err(told)?;
        modes.local_modes.remove(rustix::termios::LocalModes::ECHO);
        rustix::termios::tcsetattr(&theirs, rustix::termios::OptionalActions::Now, &modes).map_err(told)?;
        command.stdin(theirs.try_clone().map_err(|error| error.to_string())?);
        writeln!(ours, "{input}").map_err(|error| error.to_string())?;
    }
    command.env("NO_COLOR", "1").stdout(theirs);
    let mut child = command.spawn().map_err(|error| error.to_string())?;
    // Ours is the last copy of their end: reading ends when the process does.
    drop(command);
    let mut stdout = Vec::new();
    // A terminal whose other end is gone answers with an error in place of an end.
    let _ = ours.read_to_end(&mut stdout);
    let mut stderr = String::new();
    if let Some(mut pipe) = child.stderr.take() {
        pipe.read_to_string(&mut stderr).map_err(|error| error.to_string())?;
    }
    let code = child.wait().map_err(|error| error.to_string())?.code().unwrap_or(-1);
    Ok(Said { stdout: String::from_utf8_lossy(&stdout).replace("\r\n", "\n"), stderr, code })
}

/// As a shell would, for as much of a shell as transcripts need.
fn split(text: &str) -> Result<Vec<String>, String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        match character {
            ' ' => words.extend(word.take()),
            '\'' | '"' => {
                let into = word.get_or_insert_default();
                loop {
                    match characters.next() {
                        Some(next) if next == character => break,
                        Some(next) => into.push(next),
                        None => return Err(format!("a quote is open: {text}")),
                    }
                }
            }
            other => word.get_or_insert_default().push(other),
        }
    }
    words.extend(word);
    Ok(words)
}
