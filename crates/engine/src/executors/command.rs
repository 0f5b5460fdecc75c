//! Commands: a process here. Exit 0 succeeds, the last line of JSON on standard output is the result, and how it ended badly says
//! what sort of failure it was.

use std::collections::BTreeMap;
use std::process::Stdio;
use std::sync::Arc;

use comeback_core::{Class, Failure, Invalid, Trigger};
use rustix::process::{Pid, Signal, kill_process_group};
use serde::Deserialize;
use serde_json::Value;
use tokio::io::AsyncWriteExt;
use tokio::process::{Child, ChildStdin, Command};

use super::CATEGORY;
use super::classify::{BadEnd, Classify, ClassifyIn};
use super::listen::{Lines, both_ends};
use crate::secrets::{SecretText, scrubbed};
use crate::{Core, Json, Leased, ReportEnd};

/// Which variables of this process a new one gets, beside its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Environment {
    /// The few that every program needs, and those that are named here: a server's own hold its secrets.
    Clean(Arc<[String]>),
    /// All of them but the key and the database of a server: for a command that a user starts at a terminal.
    OfCaller,
}

impl Default for Environment {
    fn default() -> Self {
        Environment::Clean(Arc::default())
    }
}

/// Variables that every program may need; all of `LC_` too.
const USUAL_VARIABLES: [&str; 9] = ["PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR"];
/// Variables of the terminal that no command gets.
const SECRET_VARIABLES: [&str; 3] = ["COMEBACK_KEY", "COMEBACK_DB", "COMEBACK_SECRET_KEY"];

impl Environment {
    fn apply(&self, command: &mut Command) {
        match self {
            Environment::OfCaller => SECRET_VARIABLES.iter().for_each(|name| {
                command.env_remove(name);
            }),
            Environment::Clean(passed) => {
                command.env_clear();
                for (name, value) in std::env::vars_os() {
                    let is_wanted = name.to_str().is_some_and(|name| {
                        USUAL_VARIABLES.contains(&name) || name.starts_with("LC_") || passed.iter().any(|it| it == name)
                    });
                    if is_wanted {
                        command.env(name, value);
                    }
                }
            }
        }
    }
}

/// A process to start.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Process {
    /// Program and arguments.
    pub run: Vec<String>,
    /// Variables that it gets in addition.
    pub env: BTreeMap<String, String>,
    /// Variables whose values are named secrets, looked up when it is started.
    pub secret_env: BTreeMap<String, SecretText>,
    /// Variables that it inherits.
    pub environment: Environment,
    /// Working directory.
    pub cwd: Option<String>,
    /// Classes of its failures.
    pub classify: Classify,
    /// Its standard input.
    pub stdin: Option<Arc<str>>,
}

/// A process as a task describes it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ProcessIn {
    #[serde(rename = "type", default)]
    _type: String,
    run: Vec<String>,
    #[serde(default)]
    env: BTreeMap<String, SecretText>,
    #[serde(default)]
    cwd: Option<String>,
    #[serde(default)]
    classify: Option<ClassifyIn>,
}

impl Process {
    /// A process without settings.
    pub fn new(run: Vec<String>) -> Process {
        Process { run, ..Process::default() }
    }

    /// Reads the settings of a task.
    pub fn read(settings: &str) -> Result<Process, Invalid> {
        let mut reader = serde_json::Deserializer::from_str(settings);
        let given: ProcessIn = serde_path_to_error::deserialize(&mut reader).map_err(|error| {
            let path = Some(error.path().to_string()).filter(|path| path != ".").unwrap_or_default();
            let message = error.inner().to_string();
            Invalid::one(path, message.split(" at line ").next().unwrap_or_default())
        })?;
        let (mut env, mut secret_env) = (BTreeMap::new(), BTreeMap::new());
        let mut faults = Invalid::default();
        for (name, value) in given.env {
            if let Some(fault) = value.fault(&name) {
                faults.push(format!("env.{name}"), fault);
            }
            match value {
                SecretText::Plain(text) => drop(env.insert(name, text)),
                named => drop(secret_env.insert(name, named)),
            }
        }
        faults.or(())?;
        let process = Process { run: given.run, env, secret_env, cwd: given.cwd, ..Process::default() };
        process.with(given.classify)
    }

    /// Checked, with what its bad ends mean.
    pub fn with(self, classify: Option<ClassifyIn>) -> Result<Process, Invalid> {
        let mut faults = Invalid::default();
        if self.run.first().is_none_or(String::is_empty) {
            faults.push("run", "names the program and its arguments");
        }
        if self.run.iter().any(|part| part.contains('\0')) {
            faults.push("run", "may not contain a zero character");
        }
        let named = self.secret_env.keys().map(|name| (name, ""));
        for (name, value) in self.env.iter().map(|(name, value)| (name, value.as_str())).chain(named) {
            if name.is_empty() || name.contains(['=', '\0']) || value.contains('\0') {
                faults.push(format!("env.{name}"), "cannot be the name of a variable");
            }
        }
        let classify = classify.unwrap_or_default().check().unwrap_or_else(|part| {
            faults.absorb("classify", part);
            Classify::default()
        });
        faults.or(Process { classify, ..self })
    }

    /// Told what it is to do: the payload on its standard input, and all that is short in its environment.
    fn about(mut self, task: &Leased) -> Process {
        let mut tell = |name: &str, value: &str| {
            if value.len() <= LONGEST_VARIABLE && !value.contains('\0') {
                self.env.insert(format!("COMEBACK_{name}"), value.to_owned());
            }
        };
        tell("TASK", &task.lease.task.to_string());
        tell("KIND", &task.kind);
        tell("RUN", &task.run.to_string());
        if let Some(key) = &task.key {
            tell("TASK_KEY", key);
        }
        if let Some(category) = task.labels.get(CATEGORY) {
            tell("CATEGORY", category);
        }
        if let Some(payload) = &task.payload {
            tell("PAYLOAD", payload);
            if let Ok(Value::Object(fields)) = serde_json::from_str::<Value>(payload) {
                for (name, value) in fields.iter().filter(|(name, _)| is_variable(name)) {
                    let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                    tell(&format!("PAYLOAD_{}", name.to_ascii_uppercase()), &value);
                }
            }
            self.stdin = Some(payload.clone());
        }
        self
    }
}

/// A longer one would keep the process from starting.
const LONGEST_VARIABLE: usize = 64 * 1024;

fn is_variable(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// One try of a task that brings its own settings. What it leaves behind holds none of the secrets it was given.
pub(crate) async fn run_own(core: &Core, task: &Leased, environment: Environment) -> ReportEnd {
    let mut process = match Process::read(task.executor.as_deref().unwrap_or("{}")) {
        Ok(process) => Process { environment, ..process },
        Err(invalid) => return never("settings", invalid.to_string()),
    };
    let named = std::mem::take(&mut process.secret_env);
    let values = core.secret_values(&task.namespace, named.values().filter_map(SecretText::name)).await;
    let values = match values {
        Ok(values) => values,
        Err(failure) => return ReportEnd::Failed(*failure),
    };
    let plain = process.env.iter().map(|(name, text)| (name.clone(), SecretText::Plain(text.clone()))).collect();
    let hidden = values.to_hide(&plain);
    process.env.extend(named.iter().filter_map(|(name, value)| Some((name.clone(), values.text(value)?))));
    scrubbed(run_task(process, task).await, &hidden)
}

/// Runs the process of a task.
pub async fn run_task(process: Process, task: &Leased) -> ReportEnd {
    run(&process.about(task), task.attempt_number, |_| {}).await
}

fn never(error_type: &str, message: String) -> ReportEnd {
    ReportEnd::Failed(Failure {
        class: Some(Class::Final),
        error_type: Some(error_type.into()),
        ..Failure::new(Trigger::Error, message)
    })
}

/// One try. Every line of standard output is passed on.
pub async fn run(process: &Process, attempt_number: u32, mut told: impl FnMut(&str)) -> ReportEnd {
    comeback_store::panic_point!("executor-command");
    let mut command = Command::new(&process.run[0]);
    process.environment.apply(&mut command);
    command
        .args(&process.run[1..])
        .envs(&process.env)
        .env("COMEBACK_ATTEMPT", attempt_number.to_string())
        .stdin(if process.stdin.is_some() { Stdio::piped() } else { Stdio::null() })
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        // Ctrl-C at our terminal is said to us, and we say what becomes of it.
        .process_group(0)
        .kill_on_drop(true);
    if let Some(folder) = &process.cwd {
        command.current_dir(folder);
    }
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => return never("spawn", format!("{}: {error}", process.run[0])),
    };
    let mut family = Family::of(&child);
    let mut result = None;
    let (input, out, err) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let listen = async {
        let Some(out) = out else { return };
        let mut lines = Lines::of(out);
        while let Some(line) = lines.next().await {
            told(&line);
            if let Ok(value @ (Value::Object(_) | Value::Array(_))) = serde_json::from_str(&line) {
                result = Some(value);
            }
        }
    };
    let ((), (), complaint, status) =
        tokio::join!(feed(input, process.stdin.as_deref()), listen, both_ends(err), child.wait());
    family.is_over();
    match status {
        Ok(status) if status.success() => ReportEnd::Succeeded { result: result.map(Json::from) },
        Ok(status) => {
            let words = status.code().map_or_else(|| status.to_string(), |code| format!("exit {code}"));
            let end = BadEnd { code: status.code(), words, result, complaint };
            ReportEnd::Failed(process.classify.failure(end))
        }
        Err(error) => ReportEnd::Failed(Failure::new(Trigger::Error, error.to_string())),
    }
}

/// Errors are ignored: a process need not read its input.
async fn feed(input: Option<ChildStdin>, text: Option<&str>) {
    if let (Some(mut input), Some(text)) = (input, text) {
        let _ = input.write_all(text.as_bytes()).await;
        let _ = input.shutdown().await;
    }
}

/// A process and all it has started: when it is given up, none of them goes on.
struct Family(Option<Pid>);

impl Family {
    fn of(child: &Child) -> Family {
        Family(child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw))
    }

    fn is_over(&mut self) {
        self.0 = None;
    }
}

impl Drop for Family {
    fn drop(&mut self) {
        if let Some(id) = self.0 {
            let _ = kill_process_group(id, Signal::KILL);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    async fn sh(script: &str) -> ReportEnd {
        let process = Process::new(vec!["sh".into(), "-c".into(), script.into()]);
        run(&process, 2, |_| {}).await
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
            ("kill -9 $$", None, "signal: 9 (SIGKILL)"),
        ] {
            let ReportEnd::Failed(failure) = sh(script).await else { panic!("{script} fails") };
            assert_eq!((failure.class, failure.message.as_str()), (class, message), "{script}");
        }
        let ReportEnd::Failed(failure) = run(&Process::new(vec!["no-such-program".into()]), 1, |_| {}).await else {
            panic!("it cannot start")
        };
        assert_eq!(failure.class, Some(Class::Final));
    }

    /// The names of the variables that a process sees. Cargo gives every test some of its own.
    async fn variables(environment: Environment) -> Vec<String> {
        let script = "env | cut -d= -f1 | sed 's/.*/\"&\"/' | tr '\n' ',' | sed 's/,$//; s/.*/[&]/'; echo";
        let process = Process { environment, ..Process::new(vec!["sh".into(), "-c".into(), script.into()]) };
        let ReportEnd::Succeeded { result } = run(&process, 1, |_| {}).await else { panic!("it succeeds") };
        serde_json::from_str(result.expect("a result").text()).expect("names")
    }

    #[tokio::test]
    async fn a_process_gets_a_clean_environment_and_what_is_passed() {
        let all = variables(Environment::OfCaller).await;
        assert!(all.iter().any(|name| name == "CARGO_MANIFEST_DIR"), "{all:?}");
        let clean = variables(Environment::default()).await;
        assert!(
            clean.iter().any(|name| name == "PATH") && clean.iter().any(|name| name == "COMEBACK_ATTEMPT"),
            "{clean:?}"
        );
        assert!(!clean.iter().any(|name| name.starts_with("CARGO")), "{clean:?}");
        let passed = variables(Environment::Clean(["CARGO_MANIFEST_DIR".to_owned()].into())).await;
        assert!(passed.iter().any(|name| name == "CARGO_MANIFEST_DIR"), "{passed:?}");
        assert!(!passed.iter().any(|name| name == "CARGO_PKG_NAME"), "{passed:?}");
    }

    #[tokio::test]
    async fn a_verdict_is_a_result_whatever_it_says() {
        for verdict in ["passed", "needs_review", "failed"] {
            let script = format!("echo '{{\"verdict\": \"{verdict}\"}}'");
            let ReportEnd::Succeeded { result } = sh(&script).await else { panic!("{verdict} is no failure") };
            assert_eq!(&**result.expect("a result").text(), format!("{{\"verdict\":\"{verdict}\"}}"));
        }
    }

    #[tokio::test]
    async fn a_process_reads_its_payload_and_need_not() {
        let text: Arc<str> = format!("[\"{}\"]", "x".repeat(200_000)).into();
        let with = |script: &str| Process {
            stdin: Some(text.clone()),
            ..Process::new(vec!["sh".into(), "-c".into(), script.into()])
        };
        let ReportEnd::Succeeded { result } = run(&with("cat; echo"), 1, |_| {}).await else { panic!("it reads") };
        assert_eq!(result.expect("a result").text(), &text);
        assert!(matches!(run(&with("exit 0"), 1, |_| {}).await, ReportEnd::Succeeded { .. }), "it does not read");
    }

    #[tokio::test]
    async fn what_is_given_up_leaves_nobody_behind() {
        let folder = tempfile::tempdir().expect("a folder");
        let mark = folder.path().join("alive");
        let script = format!("(while true; do touch {0}; sleep 0.02; done) & wait", mark.display());
        let process = Process::new(vec!["sh".into(), "-c".into(), script]);
        let begun = async {
            while !mark.exists() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::select! {
            _ = run(&process, 1, |_| {}) => panic!("it has no end"),
            () = begun => {}
        }
        // A moment for those that were told to end; then the mark must not come back.
        tokio::time::sleep(Duration::from_millis(100)).await;
        let _ = std::fs::remove_file(&mark);
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert!(!mark.exists(), "a child goes on");
    }

    #[test]
    fn settings_are_checked_by_their_path() {
        let fault = |text: &str| Process::read(text).expect_err(text).to_string();
        assert!(
            Process::read(r#"{"type": "command", "run": ["x"], "classify": {"exit_codes": {"2": "final"}}}"#).is_ok()
        );
        assert!(fault(r#"{"type": "command", "run": []}"#).starts_with("run: "));
        assert!(fault(r#"{"type": "command", "run": [1]}"#).starts_with("run[0]: "));
        assert!(
            fault(r#"{"run": ["x"], "classify": {"exit_codes": {"2": "no"}}}"#).starts_with("classify.exit_codes.2: ")
        );
        assert!(
            fault(r#"{"run": ["x"], "classify": {"stderr": [{"pattern": "(", "class": "final"}]}}"#)
                .starts_with("classify.stderr[0].pattern: ")
        );
        assert!(fault(r#"{"run": ["x"], "colour": 1}"#).contains("colour"));
        assert!(fault(r#"{"run": ["x"], "env": {"a=b": "c"}}"#).starts_with("env.a=b"));
        assert!(fault(r#"{"run": ["x"], "env": {"a=b": {"secret": "c"}}}"#).starts_with("env.a=b"));
        assert!(fault(r#"{"run": ["x"], "env": {"API_KEY": "***"}}"#).starts_with("env.API_KEY"));
        assert!(fault(r#"{"run": ["x"], "env": {"API_KEY": {"secret": ""}}}"#).starts_with("env.API_KEY"));
    }
}
