//! One file per noun.

mod admin;
mod demo;
mod enqueue;
mod policy;
mod run;
mod serve;
mod tail;
mod task;

use clap::CommandFactory;
use comeback_client::Client;
use comeback_core::Timestamp;
use serde_json::Value;

use crate::args::{Arguments, Command, Global};
use crate::failure::{Failure, code};

/// What every command that talks to a server has.
pub struct Context {
    pub client: Client,
    pub json: bool,
}

impl Context {
    fn new(global: &Global) -> Result<Context, Failure> {
        let client = Client::new(global.server.clone())?;
        let client = client.with_key(global.key.clone()).in_namespace(global.namespace.clone());
        Ok(Context { client, json: global.json })
    }

    /// What time it is at the server: relative times are its to say.
    pub async fn now(&self) -> Result<Timestamp, Failure> {
        let clock = self.client.get("/api/v1/clock").await?;
        let now = clock["now"].as_str().and_then(|text| Timestamp::parse_rfc3339(text).ok());
        now.ok_or_else(|| Failure::new(code::FAILED, "the server does not say what time it is"))
    }

    /// A whole id, or either end of one.
    pub async fn resolve(&self, text: &str) -> Result<String, Failure> {
        if uuid::Uuid::try_parse(text).is_ok() {
            return Ok(text.to_owned());
        }
        let bare: String = text.trim_start_matches("tsk_").to_ascii_lowercase().chars().filter(|c| *c != '-').collect();
        let listed = self.client.get_with("/api/v1/tasks", &[("q", bare.clone()), ("limit", "500".into())]).await?;
        let is_end = |item: &&Value| {
            let id: String = item["id"].as_str().unwrap_or_default().chars().filter(|c| *c != '-').collect();
            id.ends_with(&bare) || id.starts_with(&bare)
        };
        let found: Vec<&Value> = listed["items"].as_array().into_iter().flatten().filter(is_end).collect();
        match found.as_slice() {
            [one] => Ok(one["id"].as_str().unwrap_or_default().to_owned()),
            [] => Err(Failure::new(code::NOT_FOUND, format!("there is no task `{text}`")).remedy("comeback task list")),
            many => Err(Failure::new(code::USAGE, format!("`{text}` stands for {} tasks", many.len()))
                .remedy("say more of the id")),
        }
    }
}

pub async fn run(arguments: Arguments) -> Result<u8, Failure> {
    let global = arguments.global;
    let context = || Context::new(&global);
    match arguments.command {
        Command::Demo(args) => demo::run(&global, args).await,
        Command::Serve(args) => serve::run(args).await,
        Command::Enqueue(args) => enqueue::run(&context()?, args).await,
        Command::Run(args) => run::run(&context()?, args).await,
        Command::Task(command) => task::run(&context()?, command).await,
        Command::Policy(command) => policy::run(global.json, command),
        Command::Stats => admin::stats(&context()?).await,
        Command::Upcoming { within, bucket } => admin::upcoming(&context()?, within, bucket).await,
        Command::Tail { task, from_start, all } => {
            let what = tail::What { task, from_start, all };
            tail::run(&context()?, &global, what).await
        }
        Command::Status => admin::status(&context()?).await,
        Command::Loop(command) => admin::loops(&context()?, command).await,
        Command::Key(command) => admin::keys(&context()?, command).await,
        Command::Completion { shell } => {
            clap_complete::generate(shell, &mut Arguments::command(), "comeback", &mut std::io::stdout());
            Ok(code::OK)
        }
    }
}

/// A policy as it is typed: JSON, a number, or the short form.
pub fn typed_policy(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|_| Value::String(text.to_owned()))
}
