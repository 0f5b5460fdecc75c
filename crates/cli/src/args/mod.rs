//! What can be said to the binary.

mod alert;
mod dependency;
mod flow;
mod groups;
mod numbers;
mod operate;
mod runs;
mod schedule;
mod secret;
mod server;
mod subscription;
mod work;

use std::ffi::OsString;

use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};
use comeback_core::Millis;

pub use alert::{AlertArgs, AlertCommand};
pub use dependency::{DependencyCommand, SetArgs, TurnArgs};
pub use flow::{ExecutionCommand, OneArgs, StartArgs, SwitchArgs, WorkflowCommand};
pub use numbers::{ErrorCommand, StatsArgs};
pub use operate::{
    AccountCommand, AuditArgs, ConfigCommand, DbCommand, DoctorArgs, ExportFormat, KeyCommand, LoopCommand, RuleArgs,
    RuleCommand, WorkerCommand,
};
pub use runs::{AdminCommand, QueryCommand, RunFilter, Status};
pub use schedule::{PutScheduleArgs, ScheduleCommand, TimesArgs};
pub use secret::SecretCommand;
pub use server::{DaemonArgs, DemoArgs, ServeArgs};
pub use subscription::{SubscribeArgs, SubscriptionCommand};
pub use work::{
    BacktestArgs, EnqueueArgs, Many, OneOrMany, OperationCommand, PolicyCommand, RunArgs, TailArgs, TaskCommand,
};

use crate::output::TimeFormat;

/// All that can be said. What can be said everywhere is explained once, not with every command.
pub fn command() -> clap::Command {
    fn hide(command: &mut clap::Command) {
        for inner in command.get_subcommands_mut() {
            let hidden = std::mem::take(inner).mut_args(|arg| if arg.is_global_set() { arg.hide(true) } else { arg });
            *inner = hidden.after_help("Options for every command: comeback --help");
            hide(inner);
        }
    }
    let mut command = Arguments::command();
    command.build();
    hide(&mut command);
    let page = groups::template(&command);
    command.help_template(page)
}

/// The command line; `--watch 5s` is taken for `--watch=5s`, because what follows may also be a filter.
pub fn typed() -> Vec<OsString> {
    let mut words: Vec<OsString> = Vec::new();
    for word in std::env::args_os() {
        let waits = words.last().is_some_and(|last| last == "--watch" || last == "-w");
        let is_span = word
            .to_str()
            .is_some_and(|word| word.starts_with(|c: char| c.is_ascii_digit()) && Millis::parse(word).is_ok());
        match words.last_mut() {
            Some(last) if waits && is_span => {
                last.push("=");
                last.push(word);
            }
            _ => words.push(word),
        }
    }
    words
}

/// Durable tasks that come back: retries decided once, kept, and explained.
#[derive(Parser)]
#[command(name = "comeback", version, disable_help_subcommand = true, subcommand_value_name = "COMMAND")]
#[command(after_help = "More: comeback help filters, policies, exit-codes or environment")]
pub struct Arguments {
    #[command(flatten)]
    pub global: Global,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Args, Clone, Default)]
pub struct Global {
    /// A profile of the configuration file
    #[arg(long, short, global = true, env = "COMEBACK_PROFILE", hide_env_values = true)]
    pub profile: Option<String>,
    /// Where the server is [default: http://127.0.0.1:7330]
    #[arg(long, global = true, env = "COMEBACK_SERVER", hide_env_values = true, value_name = "URL")]
    pub server: Option<String>,
    /// The key to show to it; better kept in the environment or in a profile than typed
    #[arg(long, global = true, env = "COMEBACK_KEY", hide_env_values = true)]
    pub key: Option<String>,
    /// The namespace, where the key does not say
    #[arg(long, global = true, env = "COMEBACK_NAMESPACE", hide_env_values = true)]
    pub namespace: Option<String>,
    /// How to print it: a table is for people on a terminal and tab-separated on a pipe
    #[arg(long, short, global = true, value_name = "FORMAT", default_value = "table", hide_possible_values = true)]
    #[arg(help = "table, json, jsonl (an item per line), csv, or name")]
    pub output: Format,
    /// The same as --output json
    #[arg(long, global = true, conflicts_with = "output")]
    pub json: bool,
    /// Only these columns of a table, as in --columns id,state
    #[arg(long, global = true, value_delimiter = ',', value_name = "NAMES")]
    pub columns: Vec<String>,
    /// Times as relative, local or utc [default: relative on a terminal, utc on a pipe]
    #[arg(long, global = true, value_name = "FORM", hide_possible_values = true)]
    pub time: Option<TimeFormat>,
    /// No colours; NO_COLOR does the same
    #[arg(long, global = true)]
    pub no_color: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    #[default]
    Table,
    Json,
    Jsonl,
    Csv,
    Name,
}

/// Looks again and again.
#[derive(Args, Clone, Default)]
pub struct Watch {
    /// Look again every so often, such as 5s, until Ctrl-C [default: 2s]
    #[arg(long, short, value_name = "SPAN", num_args = 0..=1, require_equals = true, default_missing_value = "2s")]
    pub watch: Option<String>,
}

#[derive(Subcommand)]
pub enum Command {
    /// Watch tasks fail and come back, on temporary data and sixty times as fast
    Demo(DemoArgs),
    /// Run the server
    Serve(ServeArgs),
    /// Run the server with commands and policies from a file
    Daemon(DaemonArgs),
    /// Run a command durably: retried until it succeeds or its policy gives up
    Run(RunArgs),
    /// Create a task
    Enqueue(EnqueueArgs),
    /// Look at tasks and act on them
    #[command(subcommand)]
    Task(TaskCommand),
    /// Follow one act on many tasks, stop it, or take it back
    #[command(subcommand, visible_alias = "op")]
    Operation(OperationCommand),
    /// Keep workflows in a catalog of versions
    #[command(subcommand)]
    Workflow(WorkflowCommand),
    /// Execute workflows, look at executions and act on them
    #[command(subcommand)]
    Execution(ExecutionCommand),
    /// Start work by itself, by cron, by spans or by events
    #[command(subcommand)]
    Schedule(ScheduleCommand),
    /// Tell others what happens, by signed calls
    #[command(subcommand)]
    Subscription(SubscriptionCommand),
    /// Be told when too much of something happens within a while
    #[command(subcommand)]
    Alert(AlertCommand),
    /// Read a retry policy, try it out, and find what is odd about it
    #[command(subcommand)]
    Policy(PolicyCommand),
    /// Limit how many tasks of one sort run at once
    #[command(subcommand)]
    Rule(RuleCommand),
    /// Hold tasks back while something they need is in trouble
    #[command(subcommand)]
    Dependency(DependencyCommand),
    /// Show what is due when
    Upcoming {
        /// How far to look ahead
        #[arg(long, value_name = "SPAN", default_value = "24h")]
        within: String,
        /// How much time one line stands for
        #[arg(long, value_name = "SPAN", default_value = "1h")]
        bucket: String,
        #[command(flatten)]
        watch: Watch,
    },
    /// Count tasks by state, and say what retrying came to
    Stats(StatsArgs),
    /// Group errors that look the same, and say what is to be done about them
    #[command(subcommand, visible_alias = "errors")]
    Error(ErrorCommand),
    /// Look at the runs of a daemon, in its words
    #[command(subcommand)]
    Query(QueryCommand),
    /// Put runs right by hand
    #[command(subcommand)]
    Admin(AdminCommand),
    /// Follow what happens, line by line
    Tail(TailArgs),
    /// Say whether anything needs a person; exits 8 when it does
    Status {
        #[command(flatten)]
        watch: Watch,
    },
    /// Look at the background loops, pause and resume them
    #[command(subcommand)]
    Loop(LoopCommand),
    /// Keep credits that tasks cost, and budgets for retries
    #[command(subcommand)]
    Account(AccountCommand),
    /// List what was done from outside, and by whom
    Audit(AuditArgs),
    /// List who asks for work, and drain one
    #[command(subcommand)]
    Worker(WorkerCommand),
    /// Create, list, rotate and revoke API keys
    #[command(subcommand)]
    Key(KeyCommand),
    /// Keep secrets that calls, commands and subscriptions name
    #[command(subcommand)]
    Secret(SecretCommand),
    /// Bring the database up to date, check it, back it up
    #[command(subcommand)]
    Db(DbCommand),
    /// Look for what is wrong, and say what to do; exits 8 when something is
    Doctor(DoctorArgs),
    /// Show which settings are in force, and where they come from
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Print a script that completes commands, options and ids
    Completion { shell: clap_complete::Shell },
    /// Explain a command, or one of: filters, policies, exit-codes, environment
    Help {
        #[arg(value_name = "COMMAND or TOPIC")]
        about: Vec<String>,
    },
}
