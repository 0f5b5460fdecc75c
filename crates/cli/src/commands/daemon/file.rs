//! The configuration file of a daemon. Errors name the field and the line; paths are relative to the folder of the file.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use comeback_core::{Dialect, Invalid, Millis, Policy, PolicyLimits, dialect};
use comeback_engine::executors::classify::{ClassifyIn, Span};
use comeback_engine::executors::command::Process;
use comeback_engine::executors::{Discover, Kind};
use comeback_engine::{EngineConfig, Limits};
use serde::Deserialize;
use serde_json::Value;
use toml::Spanned;

use crate::error::{CliError, code};

/// The configuration of a daemon.
pub struct DaemonConfig {
    pub listen: String,
    pub db: String,
    pub retention: Option<String>,
    /// In the form of `serve --limit`.
    pub limits: Vec<String>,
    pub grace: Duration,
    pub kinds: Vec<Kind>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DaemonFile {
    #[serde(default = "listen")]
    listen: String,
    #[serde(default = "db")]
    db: String,
    #[serde(default = "namespace")]
    namespace: String,
    retention: Option<String>,
    grace: Option<Span>,
    #[serde(default)]
    limits: TomlTable,
    #[serde(default)]
    retry: TomlTable,
    #[serde(default)]
    kinds: BTreeMap<String, Spanned<KindIn>>,
}

/// Names and values with their positions in the file.
type TomlTable = BTreeMap<String, Spanned<toml::Value>>;

#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct KindIn {
    command: Vec<String>,
    #[serde(default)]
    env: BTreeMap<String, String>,
    cwd: Option<PathBuf>,
    timeout: Option<Span>,
    concurrency: Option<usize>,
    categories: Option<Vec<String>>,
    #[serde(default)]
    retry: TomlTable,
    classify: Option<ClassifyIn>,
    discover: Option<DiscoverIn>,
}

#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct DiscoverIn {
    command: Vec<String>,
    #[serde(default = "an_hour")]
    every: Span,
}

fn listen() -> String {
    "127.0.0.1:7330".into()
}

fn db() -> String {
    "comeback.db".into()
}

fn namespace() -> String {
    "default".into()
}

fn an_hour() -> Span {
    Span(Millis::from_secs(3_600))
}

const LONGEST_GRACE: Millis = Millis::from_secs(3_600);
/// A lease can name this many queues.
const MOST_CATEGORIES: usize = 100;

/// Reads the file of a daemon.
pub fn read(path: &Path) -> Result<DaemonConfig, CliError> {
    let invalid = |why: String| {
        CliError::new(code::USAGE, format!("invalid configuration {}", path.display()))
            .why(why)
            .remedy("correct it, or name another one: --config FILE")
    };
    let text = std::fs::read_to_string(path).map_err(|error| invalid(error.to_string()))?;
    let folder = path.canonicalize().ok().and_then(|path| path.parent().map(Path::to_owned)).unwrap_or_default();
    configured(&text, &folder).map_err(|FileFault { at, why }| {
        let line = at.map(|at| format!("line {}: ", text[..at.min(text.len())].matches('\n').count() + 1));
        invalid(format!("{}{why}", line.unwrap_or_default()))
    })
}

/// An error in the file and its position.
#[derive(Debug, PartialEq)]
struct FileFault {
    at: Option<usize>,
    why: String,
}

impl FileFault {
    fn at(at: usize, why: impl Into<String>) -> FileFault {
        FileFault { at: Some(at), why: why.into() }
    }
}

fn configured(text: &str, folder: &Path) -> Result<DaemonConfig, FileFault> {
    let file: DaemonFile = toml::from_str(text)
        .map_err(|error| FileFault { at: error.span().map(|span| span.start), why: error.message().to_owned() })?;
    let plain = |why: String| FileFault { at: None, why };
    if file.kinds.is_empty() {
        return Err(plain("there is no [kinds.NAME], so no task could run".into()));
    }
    let grace = file.grace.map_or(Millis::from_secs(30), |Span(span)| span);
    if grace > LONGEST_GRACE {
        return Err(plain(format!("grace: the maximum is {LONGEST_GRACE}")));
    }
    let reader = KindReader { folder, namespace: &file.namespace, retry: &file.retry };
    let kinds = file.kinds.into_iter().map(|(name, kind)| {
        let at = kind.span().start;
        reader.kind(&name, kind.into_inner(), at)
    });
    Ok(DaemonConfig {
        listen: file.listen,
        db: database(file.db, folder),
        retention: file.retention,
        limits: file.limits.iter().map(limit).collect::<Result<_, _>>()?,
        grace: Duration::from_millis(grace.0),
        kinds: kinds.collect::<Result<_, _>>()?,
    })
}

/// A database file is relative to the configuration, wherever the daemon was started.
fn database(named: String, folder: &Path) -> String {
    if named.contains("://") { named } else { folder.join(named).to_string_lossy().into_owned() }
}

/// A limit in the form of `serve --limit`, which validates it; the line is added here.
fn limit((name, value): (&String, &Spanned<toml::Value>)) -> Result<String, FileFault> {
    let value_json = json(value);
    let text = value_json.as_str().map_or_else(|| value_json.to_string(), str::to_owned);
    let limit = format!("{name}={text}");
    match crate::commands::serve::limits(std::slice::from_ref(&limit)) {
        Ok(_) => Ok(limit),
        Err(failure) => Err(FileFault::at(value.span().start, failure.in_a_line())),
    }
}

fn json(value: &Spanned<toml::Value>) -> Value {
    serde_json::to_value(value.get_ref()).unwrap_or(Value::Null)
}

/// Reads the kinds of a file.
struct KindReader<'a> {
    folder: &'a Path,
    namespace: &'a str,
    /// Default policy of all kinds.
    retry: &'a TomlTable,
}

impl KindReader<'_> {
    fn kind(&self, name: &str, given: KindIn, at: usize) -> Result<Kind, FileFault> {
        let in_kind = |path: &str| format!("kinds.{name}.{path}");
        let mut faults = Invalid::default();
        let limits = Limits::default();
        limits.check_name(&format!("kinds.{name}"), name, &mut faults);
        limits.check_namespace(self.namespace, &mut faults);
        let concurrency = given.concurrency.unwrap_or(1);
        if !(1..=1_000).contains(&concurrency) {
            faults.push(in_kind("concurrency"), "must be between 1 and 1000");
        }
        if given.categories.as_ref().is_some_and(|list| list.is_empty() || list.len() > MOST_CATEGORIES) {
            faults.push(in_kind("categories"), format!("may hold 1 to {MOST_CATEGORIES} names"));
        }
        for category in given.categories.iter().flatten() {
            limits.check_name(&in_kind("categories"), category, &mut faults);
        }
        for (path, span) in [
            ("timeout", given.timeout.map(|Span(span)| span)),
            ("discover.every", given.discover.as_ref().map(|discover| discover.every.0)),
        ] {
            if span.is_some_and(|span| span < Millis::from_secs(1)) {
                faults.push(in_kind(path), "must be at least 1s");
            }
        }
        let process = |run: Vec<String>, classify| {
            let cwd = given.cwd.as_ref().map_or_else(|| self.folder.to_owned(), |cwd| self.folder.join(cwd));
            let process = Process {
                run: self.program(run),
                env: given.env.clone(),
                cwd: Some(cwd.to_string_lossy().into_owned()),
                ..Process::default()
            };
            process.with(classify).map_err(with_names_of_the_file)
        };
        let take = |read: Result<Process, Invalid>, path: String, faults: &mut Invalid| {
            read.unwrap_or_else(|part| {
                faults.absorb(&path, part);
                Process::default()
            })
        };
        let own = take(process(given.command, given.classify), format!("kinds.{name}"), &mut faults);
        let discover = given.discover.map(|discover| Discover {
            process: take(process(discover.command, None), in_kind("discover"), &mut faults),
            every: discover.every.0,
        });
        faults.or(()).map_err(|faults| FileFault::at(at, faults.to_string()))?;
        Ok(Kind {
            retry: self.policy(name, &given.retry, at)?,
            timeout: given.timeout.map(|Span(span)| span),
            concurrency,
            categories: given.categories,
            discover,
            ..Kind::new(self.namespace, name, own)
        })
    }

    /// A program given as a path is relative to the folder of the file.
    fn program(&self, mut run: Vec<String>) -> Vec<String> {
        if let Some(program) = run.first_mut().filter(|program| program.contains('/')) {
            *program = self.folder.join(&*program).to_string_lossy().into_owned();
        }
        run
    }

    /// The policy of a kind: its own settings over those of all kinds.
    fn policy(&self, name: &str, own: &TomlTable, at: usize) -> Result<Option<Arc<Policy>>, FileFault> {
        let merged: TomlTable =
            self.retry.iter().chain(own).map(|(name, value)| (name.clone(), value.clone())).collect();
        let written: Value = merged.iter().map(|(name, value)| (name.clone(), json(value))).collect();
        let limits: PolicyLimits = EngineConfig::default().policy_limits;
        dialect::parse(&written, Dialect::Run, &limits).map(|policy| policy.map(Arc::new)).map_err(|faults| {
            let first = faults.faults.first().map(|fault| fault.path.split(['.', '[']).next().unwrap_or_default());
            let value = first.and_then(|name| merged.get(name));
            let is_own = first.is_some_and(|name| own.contains_key(name));
            let prefix = if is_own { format!("kinds.{name}.retry") } else { "retry".into() };
            FileFault::at(value.map_or(at, |value| value.span().start), faults.under(&prefix).to_string())
        })
    }
}

/// Renames `run`, the field of a task, to `command`, the field of the file.
fn with_names_of_the_file(mut faults: Invalid) -> Invalid {
    for fault in faults.faults.iter_mut().filter(|fault| fault.path == "run") {
        fault.path = "command".into();
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: &str = r#"
listen = "127.0.0.1:0"
db = "runs.db"
grace = "5s"

[limits]
payload_bytes = 1000

[retry]
max_attempts = 4
initial_backoff_secs = 10

[kinds.replay]
command = ["./replay", "--fast"]
timeout = "10m"
categories = ["any%", "100%"]

[kinds.replay.retry]
max_attempts = 2
backoff_multiplier = 3.0

[kinds.replay.classify.exit_codes]
2 = "final"
75 = { class = "rate_limited", retry_after = "60s" }

[[kinds.replay.classify.stderr]]
pattern = "too many"
class = "rate_limited"

[kinds.replay.discover]
command = ["list-runs"]
every = "15m"

[kinds.judge]
command = ["judge"]
concurrency = 3
"#;

    fn wrong(text: &str) -> (usize, String) {
        let Err(FileFault { at, why }) = configured(text, Path::new("/there")) else {
            panic!("nothing is wrong: {text}")
        };
        (at.map_or(0, |at| text[..at].matches('\n').count() + 1), why)
    }

    #[test]
    fn a_whole_file_is_read() {
        let Ok(read) = configured(WHOLE, Path::new("/there")) else { panic!("it is good") };
        assert_eq!((read.db.as_str(), read.listen.as_str()), ("/there/runs.db", "127.0.0.1:0"));
        assert_eq!((read.grace, read.limits), (Duration::from_secs(5), vec!["payload_bytes=1000".to_owned()]));
        let [judge, replay] = read.kinds.as_slice() else { panic!("two kinds") };
        assert_eq!(replay.process.run, ["/there/./replay", "--fast"]);
        assert_eq!(replay.process.cwd.as_deref(), Some("/there"));
        let policy = replay.retry.as_ref().expect("a policy").to_json();
        assert_eq!((&policy["max_retries"], &policy["multiplier"]), (&1.into(), &3.0.into()), "its own: {policy}");
        assert_eq!(
            policy["initial_delay"],
            judge.retry.as_ref().expect("a policy").to_json()["initial_delay"],
            "of all"
        );
        assert_eq!(replay.discover.as_ref().map(|it| it.every), Some(Millis::from_secs(900)));
        assert_eq!((judge.process.run[0].as_str(), judge.concurrency), ("judge", 3));
    }

    #[test]
    fn the_policy_of_runs_is_the_default() {
        let Ok(read) = configured("[kinds.a]\ncommand = ['x']", Path::new("/")) else { panic!("it is good") };
        let policy = read.kinds[0].retry.as_ref().expect("a policy");
        assert_eq!(**policy, Policy::preset(Dialect::Run));
        assert_eq!(policy.max_retries, 7, "eight attempts");
    }

    #[test]
    fn what_is_wrong_is_told_by_name_and_line() {
        for (bad, line, words) in [
            ("colour = 1\n", 1, "`colour`"),
            ("\n[kinds.a]\ncommand = ['x']\ncolour = 1\n", 4, "`colour`"),
            ("[kinds.a]\ncommand = ['x']\n[kinds.a.classify]\ncolour = 1\n", 4, "`colour`"),
            ("[kinds.a]\ncommand = ['x']\n[kinds.a.discover]\ncommand = ['y']\ncolour = 1\n", 5, "`colour`"),
            ("[retry]\ncolour = 1\n[kinds.a]\ncommand = ['x']\n", 2, "retry.colour"),
            ("[kinds.a]\ncommand = ['x']\nretry.max_attempts = 'many'\n", 3, "kinds.a.retry.max_attempts"),
            ("[retry]\nbackoff_multiplier = 0.5\n[kinds.a]\ncommand = ['x']\n", 2, "retry.backoff_multiplier"),
            (
                "[kinds.a]\ncommand = ['x']\n[kinds.a.retry]\ninitial_backoff_secs = 1\nbackoff_multiplier = 0.5\n",
                5,
                "kinds.a.retry.backoff_multiplier",
            ),
            ("[limits]\ncolour = 1\n[kinds.a]\ncommand = ['x']\n", 2, "invalid --limit `colour=1`"),
            ("[kinds.a]\n", 1, "command"),
            ("[kinds.a]\ncommand = []\n", 1, "kinds.a.command"),
            ("[kinds.a]\ncommand = ['x']\nconcurrency = 0\n", 1, "kinds.a.concurrency"),
            ("[kinds.a]\ncommand = ['x']\ncategories = []\n", 1, "kinds.a.categories"),
            ("[kinds.a]\ncommand = ['x']\ntimeout = 'soon'\n", 3, "soon"),
            ("[kinds.a]\ncommand = ['x']\ndiscover = {command = ['y'], every = 0}\n", 1, "kinds.a.discover.every"),
            (
                "[kinds.a]\ncommand = ['x']\n[[kinds.a.classify.stderr]]\npattern = '('\nclass = 'final'\n",
                1,
                "classify.stderr[0].pattern",
            ),
            ("[kinds.a]\ncommand = ['x']\n[kinds.a.classify.exit_codes]\n2 = 'no'\n", 4, "`no` is not one of"),
            ("listen = 'x'\n", 0, "[kinds.NAME]"),
            ("grace = '2h'\n[kinds.a]\ncommand = ['x']\n", 0, "grace"),
        ] {
            let (at, why) = wrong(bad);
            assert!(at == line && why.contains(words), "{bad:?}: line {at}: {why}");
        }
    }
}
