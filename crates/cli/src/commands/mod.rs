//! One file per noun.

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
mod operations;
mod policy;
mod query;
mod rules;
mod run;
mod schedule;
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

use crate::args::{Arguments, Command, Global};
use crate::complete;
use crate::config::{Said, Settings};
use crate::failure::{Failure, code};
use crate::output::{self, Output, instant};
use serve::Beside;

/// What every command that talks to a server has.
pub struct Context {
    pub client: Client,
    pub out: Output,
}

impl Context {
    fn new(global: &Global, settings: &Settings) -> Result<Context, Failure> {
        for warning in &settings.warnings {
            crate::output::note!("{warning}");
        }
        let (key, namespace) = (settings.key.value.clone(), settings.namespace.value.clone());
        let client = Client::new(settings.server())?.with_key(key).in_namespace(namespace);
        Ok(Context { client, out: Output::new(global) })
    }

    /// What time it is at the server: relative times are its to say.
    pub async fn now(&self) -> Result<Timestamp, Failure> {
        let clock = self.client.get("/api/v1/clock").await?;
        instant(&clock["now"]).ok_or_else(|| Failure::new(code::FAILED, "the server does not say what time it is"))
    }

    /// A whole id, or either end of one.
    pub async fn resolve(&self, text: &str) -> Result<String, Failure> {
        if uuid::Uuid::try_parse(text).is_ok() {
            return Ok(text.to_owned());
        }
        let bare: String = text.trim_start_matches("tsk_").to_ascii_lowercase().chars().filter(|c| *c != '-').collect();
        let unknown =
            || Failure::new(code::NOT_FOUND, format!("there is no task `{text}`")).remedy("comeback task list");
        if bare.is_empty() || !bare.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(unknown().why("an id is made of the digits 0 to 9 and a to f"));
        }
        let listed = self.client.get_with("/api/v1/tasks", &[("q", bare.clone()), ("limit", "500".into())]).await?;
        let is_end = |item: &&Value| {
            let id: String = output::text(item, "id").chars().filter(|c| *c != '-').collect();
            id.ends_with(&bare) || id.starts_with(&bare)
        };
        let found: Vec<&Value> = output::items(&listed).filter(is_end).collect();
        match found.as_slice() {
            [one] => Ok(output::text(one, "id").to_owned()),
            [] => Err(unknown()),
            many => {
                let few: Vec<String> = many.iter().take(3).map(|it| output::short(&it["id"])).collect();
                Err(Failure::new(code::USAGE, format!("`{text}` stands for {} tasks", many.len()))
                    .why(format!("among them {}", few.join(", ")))
                    .remedy("say more of the id"))
            }
        }
    }
}

pub async fn run(arguments: Arguments, matches: &ArgMatches) -> Result<u8, Failure> {
    let global = arguments.global;
    let settings = || Settings::find(&Said { global: &global, matches });
    let context = || Context::new(&global, &settings()?);
    let out = || Output::new(&global);
    match arguments.command {
        Command::Demo(args) => demo::run(&global, args).await,
        Command::Serve(args) => serve::run(args, Beside::default()).await,
        Command::Daemon(args) => daemon::run(args).await,
        Command::Enqueue(args) => enqueue::run(&context()?, args).await,
        Command::Run(args) => run::run(&context()?, args).await,
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
        Command::Loop(command) => loops::run(&context()?, command).await,
        Command::Account(command) => accounts::run(&context()?, command).await,
        Command::Audit(args) => audit::run(&context()?, args).await,
        Command::Worker(command) => worker::run(&context()?, command).await,
        Command::Key(command) => keys::run(context, command).await,
        Command::Db(command) => db::run(&out(), command).await,
        Command::Doctor(args) => doctor::run(&out(), settings(), args).await,
        Command::Config(command) => config::run(&out(), settings, command),
        Command::Completion { shell } => complete::script(shell),
        Command::Help { about } => help::run(&about),
    }
}

/// What to say where the server knows no thing of this sort under a name.
fn unknown(what: &str, name: &str, error: comeback_client::Error) -> Failure {
    let is_none = |problem: &comeback_client::Problem| problem.kind == "not-found" && problem.detail.contains(what);
    match error.problem().is_some_and(is_none) {
        true => Failure::new(code::NOT_FOUND, format!("there is no {what} `{name}`"))
            .remedy(format!("comeback {what} list")),
        false => error.into(),
    }
}

/// A name as a part of an address.
pub fn escaped(name: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte);
    let escaped = |byte: u8| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    name.bytes().map(escaped).collect()
}

/// A policy as it is typed: JSON, a number, or the short form.
pub fn typed_policy(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|_| Value::String(text.to_owned()))
}

/// A database that cannot be used, in words that help.
pub fn broken(place: &Place, error: &StoreError) -> Failure {
    let failure = Failure::new(code::FAILED, format!("{place} cannot be used")).why(error.to_string());
    match (error, place) {
        (StoreError::Locked(_), _) => failure
            .why("another comeback process has it open")
            .remedy("stop that one, or run several on PostgreSQL: --db postgres://…"),
        (StoreError::Schema(words), _) if !words.contains("db migrate") => {
            failure.remedy("use the version that made it, or a newer one")
        }
        (StoreError::Unavailable(_) | StoreError::Unknown(_), Place::Server(_)) => {
            failure.remedy("check that PostgreSQL runs there and lets you in")
        }
        (StoreError::Unavailable(_), Place::File(_)) => failure.remedy("check that the folder is there and yours"),
        (StoreError::Corrupt(_), Place::File(_)) => failure.remedy("restore a backup, or name another file: --db FILE"),
        _ => failure,
    }
}
