//! The commands, one file per noun.

mod accounts;
mod alert;
mod audit;
mod config;
mod daemon;
mod db;
mod demo;
mod dependencies;
mod doctor;
mod enqueue;
mod errors;
mod execution;
mod help;
mod keys;
mod loops;
mod numbers;
mod offline;
mod operations;
mod policy;
mod query;
mod resource;
mod rules;
mod run;
mod schedule;
mod secret;
mod serve;
mod status;
mod subscription;
mod tail;
mod task;
mod worker;
mod workflow;

use clap::ArgMatches;
use comeback_client::Client;
use comeback_core::Timestamp;
use comeback_engine::store::{Place, StoreError};
use serde_json::Value;

use crate::args::{Arguments, Command, Global, LoopCommand, TaskCommand};
use crate::complete;
use crate::config::{ClientSettings, ConfigSources};
use crate::error::{CliError, code};
use crate::output::{self, Output, instant};
use serve::ServeExtras;

/// Client and output of a command that talks to a server.
pub struct Context {
    pub client: Client,
    pub out: Output,
}

impl Context {
    fn new(global: &Global, settings: &ClientSettings) -> Result<Context, CliError> {
        for warning in &settings.warnings {
            output::errln!("{warning}");
        }
        let (key, namespace) = (settings.key.value.clone(), settings.namespace.value.clone());
        let client = Client::new(settings.server())?.with_key(key).in_namespace(namespace);
        Ok(Context { client, out: Output::new(global) })
    }

    /// The time of the server, which relative times refer to.
    pub async fn now(&self) -> Result<Timestamp, CliError> {
        let clock = self.client.get("/api/v1/clock").await?;
        instant(&clock["now"]).ok_or_else(|| CliError::new(code::FAILED, "the server did not return its time"))
    }

    /// The task id that `text` is, or abbreviates.
    pub async fn resolve(&self, text: &str) -> Result<String, CliError> {
        if uuid::Uuid::try_parse(text).is_ok() {
            return Ok(text.to_owned());
        }
        let digits = resource::digits(text);
        if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(resource::missing("task", text).why("an id is made of the digits 0 to 9 and a to f"));
        }
        let listed = self.client.get_with("/api/v1/tasks", &[("q", digits), ("limit", "500".into())]).await?;
        let found = output::items(&listed).map(|it| output::text(it, "id"));
        resource::pick("task", text, found.filter(|id| resource::abbreviates(text, id)).collect())
    }
}

/// Runs the command and returns its exit code.
pub async fn run(arguments: Arguments, matches: &ArgMatches) -> Result<u8, CliError> {
    let global = arguments.global;
    let settings = || ClientSettings::find(&ConfigSources { global: &global, matches });
    let context = || Context::new(&global, &settings()?);
    let out = || Output::new(&global);
    match arguments.command {
        Command::Demo(args) => demo::run(&global, args).await,
        Command::Serve(args) => serve::run(args, ServeExtras::default()).await,
        Command::Daemon(args) => daemon::run(args).await,
        Command::Enqueue(args) => enqueue::run(&context()?, args).await,
        Command::Run(args) => run::run(&context()?, args).await,
        Command::Task(TaskCommand::Cancel { which, note, db: Some(db) }) => {
            let id = which.id.unwrap_or_default();
            offline::cancel(&out(), &db, &id, global.namespace.as_deref(), note.note).await
        }
        Command::Task(command) => task::run(&context()?, command).await,
        Command::Operation(command) => operations::run(&context()?, command).await,
        Command::Workflow(command) => workflow::run(context, &out(), command).await,
        Command::Execution(command) => execution::run(&context()?, command).await,
        Command::Schedule(command) => schedule::run(context, &out(), command).await,
        Command::Alert(command) => alert::run(&context()?, command).await,
        Command::Subscription(command) => subscription::run(&context()?, command).await,
        Command::Policy(command) => policy::run(context, &out(), command).await,
        Command::Rule(command) => rules::run(&context()?, command).await,
        Command::Dependency(command) => dependencies::run(&context()?, command).await,
        Command::Stats(args) => numbers::stats(&context()?, args).await,
        Command::Error(command) => errors::run(&context()?, command).await,
        Command::Upcoming { within, bucket, watch } => numbers::upcoming(&context()?, within, bucket, &watch).await,
        Command::Query(command) => query::run(&context()?, command).await,
        Command::Admin(command) => query::admin(&context()?, command).await,
        Command::Tail(args) => tail::run(&context()?, args).await,
        Command::Status { watch } => status::run(&context()?, &watch).await,
        Command::Loop(LoopCommand::Pause { name, duration, note, db: Some(db), .. }) => {
            offline::pause(&out(), &db, &name, duration.as_deref(), note).await
        }
        Command::Loop(LoopCommand::Resume { name, db: Some(db) }) => offline::resume(&out(), &db, &name).await,
        Command::Loop(command) => loops::run(&context()?, command).await,
        Command::Account(command) => accounts::run(&context()?, command).await,
        Command::Audit(args) => audit::run(&context()?, args).await,
        Command::Worker(command) => worker::run(&context()?, command).await,
        Command::Key(command) => keys::run(context, command).await,
        Command::Secret(command) => secret::run(&context()?, command).await,
        Command::Db(command) => db::run(&out(), command).await,
        Command::Doctor(args) => doctor::run(&out(), settings(), args).await,
        Command::Config(command) => config::run(&out(), settings, command),
        Command::Completion { shell } => complete::script(shell),
        Command::Help { about } => help::run(&about),
    }
}

/// A policy as it is typed: JSON, a number, or the short form.
pub fn typed_policy(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|_| Value::String(text.to_owned()))
}

/// Error for a database that cannot be used, with a remedy.
pub fn broken(place: &Place, error: &StoreError) -> CliError {
    let failure = CliError::new(code::FAILED, format!("cannot use {place}")).why(error.to_string());
    match (error, place) {
        (StoreError::Locked(_), _) => failure
            .why("another comeback process has it open")
            .remedy("stop that one, or run several on PostgreSQL: --db postgres://…"),
        (StoreError::Schema(words), _) if !words.contains("db migrate") => {
            failure.remedy("use the version that created it, or a newer one")
        }
        (StoreError::Unavailable(_) | StoreError::Unknown(_), Place::Server(_)) => {
            failure.remedy("check that PostgreSQL is running there and accepts the login")
        }
        (StoreError::Unavailable(_), Place::File(_)) => failure.remedy("check that the folder exists and is writable"),
        (StoreError::Corrupt(_), Place::File(_)) => failure.remedy("restore a backup, or name another file: --db FILE"),
        _ => failure,
    }
}
