//! Commands typed by a person, and their output.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::harness::{Server, file, text};
use crate::terminal::Terminal;

#[test]
fn the_command_line_says_what_happens() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = Server::start(&file(folder.path()), &[]);
    let enqueued = server.cli(&["enqueue", "hello", "--data", "{\"a\": 1}", "--retry", "exp(1s, x2, 3 retries)"]);
    assert!(enqueued.status.success(), "{}", text(&enqueued.stderr));
    let id = text(&enqueued.stdout).split_whitespace().next().expect("an id").to_owned();
    let short = &id[id.len() - 8..];
    let listed = server.cli(&["task", "list", "state:pending"]);
    assert!(
        text(&listed.stdout).contains(short) && text(&listed.stdout).contains("○ pending"),
        "{}",
        text(&listed.stdout)
    );
    let why = server.cli(&["task", "why", short]);
    assert!(text(&why.stdout).contains("nothing was decided"), "{}{}", text(&why.stdout), text(&why.stderr));
    assert!(server.cli(&["task", "cancel", short]).status.success());
    let again = server.cli(&["task", "cancel", short]);
    assert_eq!(again.status.code(), Some(2), "{}", text(&again.stderr));
    assert_eq!(server.cli(&["task", "get", "ffffffff"]).status.code(), Some(3));
    let stats: Value = serde_json::from_str(&text(&server.cli(&["stats", "--json"]).stdout)).expect("json");
    assert_eq!(stats["by_state"]["canceled"], 1);
    let explained = server.cli(&["policy", "explain", "exp(60s, x2, max 1h, 5 retries)"]);
    assert!(text(&explained.stdout).contains("6 executions"), "{}", text(&explained.stdout));
    let simulated = server.cli(&["policy", "simulate", "schedule(7d, 14d)"]);
    assert!(text(&simulated.stdout).contains("after 21d"), "{}", text(&simulated.stdout));
    assert_eq!(server.cli(&["policy", "explain", "often(1s)"]).status.code(), Some(2));
    let paused = server.cli(&["loop", "pause", "reap", "--for", "10m", "--note", "looking"]);
    assert!(text(&paused.stdout).contains("⏸ paused, resumes 20"), "{}", text(&paused.stdout));
    assert_eq!(server.cli(&["status"]).status.code(), Some(8), "a paused loop wants attention");
    let nobody = Command::new(env!("CARGO_BIN_EXE_comeback"))
        .args(["task", "list", "--server", "http://127.0.0.1:1"])
        .output()
        .expect("it runs");
    assert_eq!(nobody.status.code(), Some(7));
    let said = text(&nobody.stderr);
    assert!(said.contains("error: cannot reach") && said.contains("do:  comeback serve"), "{said}");
}

#[test]
fn a_command_is_run_until_it_succeeds() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = Server::start(&file(folder.path()), &[]);
    let run =
        server.cli(&["run", "--retry", "fixed(200ms, 5 retries)", "--", "sh", "-c", "test $COMEBACK_ATTEMPT -ge 3"]);
    let said = text(&run.stderr);
    assert_eq!(run.status.code(), Some(0), "{said}");
    assert!(
        said.contains("attempt 1/6  exit 1") && said.contains("attempt 3/6  ok") && said.contains("recovered"),
        "{said}"
    );
    let run = server.cli(&["run", "--retry", "immediate(2 retries)", "--", "false"]);
    assert_eq!(run.status.code(), Some(10), "{}", text(&run.stderr));
    let run = server.cli(&["run", "--", "no-such-command-anywhere"]);
    assert_eq!(run.status.code(), Some(10), "{}", text(&run.stderr));
}

#[test]
fn the_demo_shows_tasks_that_come_back() {
    let begun = Instant::now();
    let output = Command::new(env!("CARGO_BIN_EXE_comeback"))
        .args(["demo", "--listen", "127.0.0.1:0", "--seconds", "12"])
        .output()
        .expect("it runs");
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(begun.elapsed() < Duration::from_secs(60));
    let (said, summary) = (text(&output.stdout), text(&output.stderr));
    for word in [
        "→ retry in",
        "503 Service Unavailable",
        "429 Too Many Requests",
        "(not counted)",
        "vat_id is missing → failed, no retry",
        "◎ payments.charge",
        "held until",
        "account acme: its budget of retries is used up",
        "crm.example      opened: ",
    ] {
        assert!(said.contains(word), "{word} is missing:\n{said}");
    }
    let recovered: u32 = summary
        .split("recovered ")
        .nth(1)
        .and_then(|rest| rest.split_whitespace().next())
        .and_then(|n| n.parse().ok())
        .unwrap_or(0);
    assert!(recovered >= 2, "{summary}");
}

/// Looking again: one line of JSON whenever something has changed, and a clean end.
#[test]
fn watching_on_a_pipe_says_what_changed_and_ends_cleanly() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = Server::start(&file(folder.path()), &[]);
    let mut child = Command::new(env!("CARGO_BIN_EXE_comeback"))
        .args(["stats", "--json", "--watch", "100ms"])
        .env("COMEBACK_SERVER", &server.url)
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut lines = BufReader::new(child.stdout.take().expect("its output")).lines();
    let mut next = || -> Value { serde_json::from_str(&lines.next().expect("a line").expect("text")).expect("json") };
    assert_eq!(next()["total"], 0);
    assert!(server.cli(&["enqueue", "hello"]).status.success());
    assert_eq!(next()["total"], 1, "nothing was said in between");
    assert_eq!(interrupted(&mut child), Some(0));
}

fn interrupted(child: &mut Child) -> Option<i32> {
    told(child, "-INT")
}

fn told(child: &mut Child, signal: &str) -> Option<i32> {
    let told = Command::new("kill").args([signal, &child.id().to_string()]).status().expect("kill");
    assert!(told.success());
    child.wait().expect("it ends").code()
}

/// A command that is interrupted is not left behind in a queue that nobody else reads.
#[test]
fn an_interrupted_run_cancels_its_task() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = Server::start(&file(folder.path()), &[]);
    let mut child = Command::new(env!("CARGO_BIN_EXE_comeback"))
        .args(["run", "--retry", "fixed(1h, 3 retries)", "--", "false"])
        .env("COMEBACK_SERVER", &server.url)
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut said = BufReader::new(child.stderr.take().expect("its words"));
    let mut line = String::new();
    said.read_line(&mut line).expect("a line");
    assert!(line.contains("retry in 1h"), "{line}");
    assert_eq!(interrupted(&mut child), Some(130));
    said.read_to_string(&mut line).expect("the rest");
    assert!(line.contains("canceled: interrupted"), "{line}");
    let listed = server.cli(&["task", "list", "state:canceled", "-o", "name"]);
    assert_eq!(text(&listed.stdout).lines().count(), 1);
}

/// The server may be started again while the command runs and while its retry is waited for.
#[test]
fn a_run_outlives_its_server() {
    let folder = tempfile::tempdir().expect("a folder");
    let db = file(folder.path());
    let server = Server::start(&db, &[]);
    let address = server.url.trim_start_matches("http://").to_owned();
    let gate = folder.path().join("go on");
    let script =
        format!("echo begun; while ! test -e '{}'; do sleep 0.05; done; test $COMEBACK_ATTEMPT = 2", gate.display());
    let mut child = Command::new(env!("CARGO_BIN_EXE_comeback"))
        .args(["run", "--retry", "fixed(1s, 3 retries)", "--", "sh", "-c", &script])
        .env("COMEBACK_SERVER", &server.url)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut lines = BufReader::new(child.stdout.take().expect("its output")).lines();
    assert_eq!(lines.next().expect("a line").expect("text"), "begun");
    server.kill();
    std::fs::write(&gate, "").expect("it goes on");
    let mut said = BufReader::new(child.stderr.take().expect("its words"));
    let mut line = String::new();
    said.read_line(&mut line).expect("a line");
    assert!(line.contains("cannot reach") && line.contains("retrying until it answers"), "{line}");
    let server = Server::from(Server::command(&db, &address)).expect("it serves again");
    let mut rest = String::new();
    said.read_to_string(&mut rest).expect("the rest");
    assert_eq!(child.wait().expect("it ends").code(), Some(0), "{line}{rest}");
    assert!(rest.contains("attempt 1/4  exit 1") && rest.contains("recovered"), "{rest}");
    drop(server);
}

/// `tail` fails when the server is unreachable or stops.
#[test]
fn a_stream_that_ends_is_not_taken_for_an_end() {
    let nobody = Command::new(env!("CARGO_BIN_EXE_comeback"))
        .args(["tail", "--server", "http://127.0.0.1:1"])
        .output()
        .expect("it runs");
    let said = text(&nobody.stderr);
    assert_eq!(nobody.status.code(), Some(7), "{said}");
    assert!(said.contains("error: cannot reach") && said.contains("why: ") && said.contains("do: "), "{said}");
    let folder = tempfile::tempdir().expect("a folder");
    let server = Server::start(&file(folder.path()), &[]);
    let tail = || {
        let mut child = Command::new(env!("CARGO_BIN_EXE_comeback"))
            .args(["tail", "--from-start", "--all"])
            .env("COMEBACK_SERVER", &server.url)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it starts");
        let mut lines = BufReader::new(child.stdout.take().expect("its output")).lines();
        lines.next().expect("a line").expect("text");
        (child, lines)
    };
    assert!(server.cli(&["enqueue", "hello"]).status.success());
    let (mut first, _lines) = tail();
    assert_eq!(interrupted(&mut first), Some(0), "whoever ends it knows that it ends");
    let (second, _lines) = tail();
    server.kill();
    let output = second.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(7));
    assert!(text(&output.stderr).contains("error: event stream aborted"), "{}", text(&output.stderr));
}

#[test]
fn the_demo_takes_its_data_with_it() {
    for signal in ["-INT", "-TERM"] {
        let folder = tempfile::tempdir().expect("a folder");
        let mut child = Command::new(env!("CARGO_BIN_EXE_comeback"))
            .args(["demo", "--no-open", "--listen", "127.0.0.1:0"])
            .env("TMPDIR", folder.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("it starts");
        let mut said = BufReader::new(child.stdout.take().expect("what it says")).lines();
        assert!(said.any(|line| line.expect("a line").contains("Dashboard")));
        let left = || std::fs::read_dir(folder.path()).expect("the folder").count();
        assert_eq!(left(), 1);
        // Somebody must go on reading, or it could not say how it ends.
        let reading = std::thread::spawn(move || said.count());
        assert_eq!(told(&mut child, signal), Some(0), "{signal}");
        reading.join().expect("read");
        assert_eq!(left(), 0, "{signal}");
    }
}

#[test]
fn the_demo_is_for_this_machine() {
    let output = Command::new(env!("CARGO_BIN_EXE_comeback"))
        .args(["demo", "--listen", "0.0.0.0:0", "--seconds", "1"])
        .output()
        .expect("it runs");
    assert_eq!(output.status.code(), Some(4), "{}", text(&output.stderr));
    assert!(text(&output.stderr).contains("can be reached from outside"), "{}", text(&output.stderr));
}

/// On a terminal: single keys, a line that stays, and the next port when the first is taken.
#[test]
fn the_demo_listens_to_keys() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = taken.local_addr().expect("an address").port();
    let mut terminal = Terminal::open();
    let mut command = Command::new(env!("CARGO_BIN_EXE_comeback"));
    command.args(["demo", "--seed", "7", "--no-open", "--listen", &format!("127.0.0.1:{port}")]).stderr(Stdio::piped());
    let mut child = terminal.spawn(command);
    terminal.wait_for("f inject a fault");
    terminal.wait_for("◎");
    terminal.keys.write_all(b"f").expect("a key");
    terminal.wait_for("the bank is down");
    terminal.keys.write_all(b"fq").expect("keys");
    terminal.wait_for("the bank is back");
    assert!(child.wait().expect("it ends").success());
    let mut beside = String::new();
    child.stderr.take().expect("its words").read_to_string(&mut beside).expect("text");
    assert!(beside.contains(&format!("127.0.0.1:{port} is taken; using 127.0.0.1:")), "{beside}");
    assert!(beside.contains("recovered ") && beside.contains("dead 0"), "{beside}");
}

/// Where somebody could see it, the dashboard opens by itself; else only its address is said.
#[test]
fn the_demo_opens_the_dashboard() {
    let folder = tempfile::tempdir().expect("a folder");
    std::os::unix::fs::symlink("/bin/true", folder.path().join("xdg-open")).expect("a browser");
    for (display, more, opens) in [(":0", &[][..], true), (":0", &["--no-open"][..], false), ("", &[][..], false)] {
        let mut terminal = Terminal::open();
        let mut command = Command::new(env!("CARGO_BIN_EXE_comeback"));
        command.args(["demo", "--listen", "127.0.0.1:0"]).args(more).stderr(Stdio::null());
        command.env("PATH", folder.path()).env("DISPLAY", display).env_remove("WAYLAND_DISPLAY");
        let mut child = terminal.spawn(command);
        terminal.wait_for("Dashboard   http://127.0.0.1:");
        let shown = terminal.wait_for("q quit");
        assert_eq!(shown.contains("opened http://127.0.0.1:"), opens, "`{display}` {more:?}: {shown}");
        terminal.keys.write_all(b"q").expect("a key");
        assert!(child.wait().expect("it ends").success());
    }
}

/// Repainted in place, with what changed standing out, and the cursor given back.
#[test]
fn watching_on_a_terminal_repaints() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = Server::start(&file(folder.path()), &[]);
    let mut terminal = Terminal::open();
    let mut command = Command::new(env!("CARGO_BIN_EXE_comeback"));
    command.args(["stats", "-w", "100ms"]).env("COMEBACK_SERVER", &server.url);
    let mut child = terminal.spawn(command);
    terminal.wait_for("Ctrl-C to stop");
    assert!(server.cli(&["enqueue", "hello"]).status.success());
    terminal.wait_for("○ pending");
    assert!(server.cli(&["enqueue", "hello"]).status.success());
    terminal.wait_for("\x1b[1;7m2\x1b[0m");
    assert_eq!(interrupted(&mut child), Some(0));
    terminal.wait_for("\x1b[?25h");
}

#[test]
fn every_shell_has_a_completion() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let output =
            Command::new(env!("CARGO_BIN_EXE_comeback")).args(["completion", shell]).output().expect("it runs");
        assert!(output.status.success() && text(&output.stdout).contains("COMEBACK_COMPLETE"), "{shell}");
    }
}

/// As a shell asks: commands, options and ids; and nothing at all where there is no server.
#[test]
fn commands_and_ids_complete() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = Server::start(&file(folder.path()), &[]);
    let id = text(&server.cli(&["enqueue", "hello"]).stdout);
    let id = id.split_whitespace().next().expect("an id");
    let short = &id[id.len() - 8..];
    let complete = |url: &str, words: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_comeback"))
            .args(["--", "comeback"])
            .args(words)
            .env("COMEBACK_COMPLETE", "bash")
            .env("_CLAP_COMPLETE_INDEX", words.len().to_string())
            .env("COMEBACK_SERVER", url)
            .output()
            .expect("it runs");
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    assert_eq!(complete(&server.url, &["task", "wh"]), "why");
    assert!(complete(&server.url, &["task", "why", &short[..2]]).lines().any(|line| line == short));
    assert_eq!(complete(&server.url, &["loop", "pause", "re"]), "retries\nreap\nrepair");
    let nowhere = complete("http://127.0.0.1:1", &["task", "why", &short[..2]]);
    assert!(!nowhere.contains(short), "{nowhere}");
}
