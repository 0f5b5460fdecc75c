//! Commands: a process here. Exit 0 succeeds, the last line of JSON on standard output is the result, and the exit code says what
//! sort of failure it was.

use std::collections::BTreeMap;
use std::process::Stdio;

use comeback_core::{Class, Failure, Invalid, Trigger};
use serde::Deserialize;
use serde_json::Value;
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncRead, AsyncReadExt, BufReader};
use tokio::process::Command;

use crate::{Json, Leased, ReportEnd};

/// A process as a task describes it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Process {
    #[serde(rename = "type", default)]
    _type: String,
    pub run: Vec<String>,
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    #[serde(default)]
    pub cwd: Option<String>,
}

impl Process {
    pub fn new(run: Vec<String>) -> Process {
        Process { run, ..Process::default() }
    }

    pub fn read(settings: &str) -> Result<Process, Invalid> {
        let process: Process = serde_json::from_str(settings).map_err(|error| {
            let message = error.to_string();
            Invalid::one("", message.split(" at line ").next().unwrap_or_default())
        })?;
        let mut faults = Invalid::default();
        if process.run.first().is_none_or(String::is_empty) {
            faults.push("run", "names the program and its arguments");
        }
        if process.run.iter().any(|part| part.contains('\0')) {
            faults.push("run", "may not contain a zero character");
        }
        for (name, value) in &process.env {
            if name.is_empty() || name.contains(['=', '\0']) || value.contains('\0') {
                faults.push(format!("env.{name}"), "cannot be the name of a variable");
            }
        }
        faults.or(process)
    }
}

/// What of the standard error is kept with a failure.
const MOST_KEPT: u64 = 8 * 1024;

/// More than any result may have, so that one that is too large is refused and not lost.
const MOST_OF_A_LINE: usize = 1 << 20;

pub async fn run_task(task: &Leased) -> ReportEnd {
    match Process::read(task.executor.as_deref().unwrap_or("{}")) {
        Ok(mut process) => {
            process.env.insert("COMEBACK_TASK".into(), task.lease.task.to_string());
            if let Some(payload) = &task.payload {
                process.env.insert("COMEBACK_PAYLOAD".into(), payload.to_string());
            }
            run(&process, task.attempt_number, |_| {}).await
        }
        Err(invalid) => ReportEnd::Failed(Failure {
            class: Some(Class::Final),
            error_type: Some("settings".into()),
            ..Failure::new(Trigger::Error, invalid.to_string())
        }),
    }
}

/// One try. Every line of standard output is passed on.
pub async fn run(process: &Process, attempt_number: u32, mut told: impl FnMut(&str)) -> ReportEnd {
    let mut command = Command::new(&process.run[0]);
    command
        .args(&process.run[1..])
        .envs(&process.env)
        .env("COMEBACK_ATTEMPT", attempt_number.to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    if let Some(folder) = &process.cwd {
        command.current_dir(folder);
    }
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => {
            return ReportEnd::Failed(Failure {
                class: Some(Class::Final),
                error_type: Some("spawn".into()),
                ..Failure::new(Trigger::Error, format!("{}: {error}", process.run[0]))
            });
        }
    };
    let mut result = None;
    let (out, err) = (child.stdout.take(), child.stderr.take());
    let listen = async {
        let Some(out) = out else { return };
        let (mut out, mut line) = (BufReader::new(out), Vec::new());
        while next_line(&mut out, &mut line).await {
            let line = String::from_utf8_lossy(&line);
            told(&line);
            if let Ok(value @ (Value::Object(_) | Value::Array(_))) = serde_json::from_str(&line) {
                result = Some(value);
            }
        }
    };
    let ((), complaint, status) = tokio::join!(listen, beginning(err), child.wait());
    match status {
        Ok(status) if status.success() => ReportEnd::Succeeded { result: result.map(Json::from) },
        Ok(status) => {
            let words = status.code().map_or_else(|| status.to_string(), |code| format!("exit {code}"));
            let message = if complaint.is_empty() { words } else { format!("{words}: {complaint}") };
            ReportEnd::Failed(Failure {
                class: status.code().and_then(Class::of_exit),
                code: status.code().map(|code| code.to_string()),
                error_type: Some("exit".into()),
                result,
                ..Failure::new(Trigger::Error, message)
            })
        }
        Err(error) => ReportEnd::Failed(Failure::new(Trigger::Error, error.to_string())),
    }
}

/// The next line, whatever bytes it has; of a very long one its beginning.
async fn next_line(stream: &mut (impl AsyncBufRead + Unpin), line: &mut Vec<u8>) -> bool {
    line.clear();
    let mut is_any = false;
    loop {
        let Ok(piece) = stream.fill_buf().await else { return is_any };
        if piece.is_empty() {
            return is_any;
        }
        is_any = true;
        let end = piece.iter().position(|byte| *byte == b'\n');
        let text = &piece[..end.unwrap_or(piece.len())];
        line.extend_from_slice(&text[..text.len().min(MOST_OF_A_LINE - line.len())]);
        let used = text.len() + usize::from(end.is_some());
        stream.consume(used);
        if end.is_some() {
            return true;
        }
    }
}

/// The first of what a stream says; the rest is read and forgotten, so that nobody waits for us.
async fn beginning(stream: Option<impl AsyncRead + Unpin>) -> String {
    let Some(mut stream) = stream else { return String::new() };
    let mut kept = Vec::new();
    let _ = (&mut stream).take(MOST_KEPT).read_to_end(&mut kept).await;
    let _ = tokio::io::copy(&mut stream, &mut tokio::io::sink()).await;
    String::from_utf8_lossy(&kept).trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn sh(script: &str) -> ReportEnd {
        let process = Process::new(vec!["sh".into(), "-c".into(), script.into()]);
        run(&process, 2, |_| {}).await
    }

    #[tokio::test]
    async fn output_may_be_anything() {
        let ReportEnd::Succeeded { result } = sh("printf 'caf\\351\\n'; echo '{\"n\": 2}'").await else {
            panic!("bytes that are no text hurt nobody")
        };
        assert_eq!(&**result.expect("a result").text(), "{\"n\":2}");
        let process =
            Process::new(vec!["sh".into(), "-c".into(), "head -c 5000000 /dev/zero; echo; echo '[3]'".into()]);
        let mut lines = Vec::new();
        let end = run(&process, 1, |line| lines.push(line.len())).await;
        assert!(matches!(end, ReportEnd::Succeeded { result: Some(_) }), "{end:?}");
        assert_eq!(lines, [MOST_OF_A_LINE, 3], "a line without an end is not kept whole");
    }

    #[tokio::test]
    async fn the_exit_code_says_what_it_was() {
        let ReportEnd::Succeeded { result } = sh("echo hi; echo '{\"n\": 1}'").await else { panic!("it succeeds") };
        assert_eq!(&**result.expect("a result").text(), "{\"n\":1}");
        for (script, class, message) in [
            ("exit 1", None, "exit 1"),
            ("echo no >&2; exit 3", None, "exit 3: no"),
            ("exit 64", Some(Class::Final), "exit 64"),
            ("exit 75", Some(Class::Retryable), "exit 75"),
            ("test $COMEBACK_ATTEMPT = 2 || exit 9; exit 4", None, "exit 4"),
        ] {
            let ReportEnd::Failed(failure) = sh(script).await else { panic!("{script} fails") };
            assert_eq!((failure.class, failure.message.as_str()), (class, message), "{script}");
        }
        let ReportEnd::Failed(failure) = run(&Process::new(vec!["no-such-program".into()]), 1, |_| {}).await else {
            panic!("it cannot start")
        };
        assert_eq!(failure.class, Some(Class::Final));
    }
}
