//! The command line of the binary.

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
pub use dependency::{BreakerArgs, DependencyCommand, PutDependencyArgs};
pub use flow::{ExecutionArgs, ExecutionCommand, StartArgs, WorkflowArgs, WorkflowCommand};
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
    BacktestArgs, BulkArgs, EnqueueArgs, OperationCommand, PolicyCommand, RunArgs, TailArgs, TaskCommand, TaskSelection,
};

use crate::output::TimeFormat;

/// The whole command line. Global options are documented once, on the first page of help, and hidden elsewhere.
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

/// The arguments of the process, with `--watch 5s` rewritten as `--watch=5s`: the word after `--watch` may also be a filter.
pub fn from_process() -> Vec<OsString> {
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

/// Durable job and workflow server: every retry is decided once, stored, and explained.
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
    /// Profile of the configuration file
    #[arg(long, short, global = true, env = "COMEBACK_PROFILE", hide_env_values = true)]
    pub profile: Option<String>,
    /// Server URL [default: http://127.0.0.1:7330]
    #[arg(long, global = true, env = "COMEBACK_SERVER", hide_env_values = true, value_name = "URL")]
    pub server: Option<String>,
    /// API key; prefer the environment or a profile to typing it
    #[arg(long, global = true, env = "COMEBACK_KEY", hide_env_values = true)]
    pub key: Option<String>,
    /// Namespace, for keys that are valid in all of them
    #[arg(long, global = true, env = "COMEBACK_NAMESPACE", hide_env_values = true)]
    pub namespace: Option<String>,
    /// Output format; a table is aligned on a terminal and tab-separated on a pipe
    #[arg(long, short, global = true, value_name = "FORMAT", default_value = "table", hide_possible_values = true)]
    #[arg(help = "Output format: table, json, jsonl (an item per line), csv, or name")]
    pub output: OutputFormat,
    /// Same as --output json
    #[arg(long, global = true, conflicts_with = "output")]
    pub json: bool,
    /// Columns to print, such as id,state
    #[arg(long, global = true, value_delimiter = ',', value_name = "NAMES")]
    pub columns: Vec<String>,
    /// Print times as relative, local or utc [default: relative on a terminal, utc on a pipe]
    #[arg(long, global = true, value_name = "FORM", hide_possible_values = true)]
    pub time: Option<TimeFormat>,
    /// Disable colours, like NO_COLOR
    #[arg(long, global = true)]
    pub no_color: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum OutputFormat {
    #[default]
    Table,
    Json,
    Jsonl,
    Csv,
    Name,
}

/// The option `--watch`, shared by all tables.
#[derive(Args, Clone, Default)]
pub struct WatchArgs {
    /// Refresh at this interval, such as 5s, until Ctrl-C [default: 2s]
    #[arg(long, short, value_name = "DURATION", num_args = 0..=1, require_equals = true, default_missing_value = "2s")]
    pub watch: Option<String>,
}

#[derive(Subcommand)]
pub enum Command {
    /// Run a demo: tasks fail and recover, on temporary data at 60x speed
    Demo(DemoArgs),
    /// Run the server
    Serve(ServeArgs),
    /// Run the server with task kinds, commands and policies from a file
    Daemon(DaemonArgs),
    /// Run a command durably: retry it until it succeeds or its policy gives up
    Run(RunArgs),
    /// Create a task
    Enqueue(EnqueueArgs),
    /// List, inspect, retry, cancel and edit tasks
    #[command(subcommand)]
    Task(TaskCommand),
    /// List bulk operations, follow, abort or undo them
    #[command(subcommand, visible_alias = "op")]
    Operation(OperationCommand),
    /// Manage workflows and their versions
    #[command(subcommand)]
    Workflow(WorkflowCommand),
    /// Start, list and control executions of workflows
    #[command(subcommand)]
    Execution(ExecutionCommand),
    /// Manage schedules: start work by cron, interval or event
    #[command(subcommand)]
    Schedule(ScheduleCommand),
    /// Manage webhook subscriptions
    #[command(subcommand)]
    Subscription(SubscriptionCommand),
    /// Manage alerts on event counts
    #[command(subcommand)]
    Alert(AlertCommand),
    /// Explain, simulate, lint and back-test retry policies
    #[command(subcommand)]
    Policy(PolicyCommand),
    /// Manage concurrency limits
    #[command(subcommand)]
    Rule(RuleCommand),
    /// Manage external dependencies: gates, breakers, retry budgets
    #[command(subcommand)]
    Dependency(DependencyCommand),
    /// Show upcoming starts and retries
    Upcoming {
        /// How far to look ahead
        #[arg(long, value_name = "DURATION", default_value = "24h")]
        within: String,
        /// Time per line
        #[arg(long, value_name = "DURATION", default_value = "1h")]
        bucket: String,
        #[command(flatten)]
        watch: WatchArgs,
    },
    /// Count tasks by state; show retry statistics with --by
    Stats(StatsArgs),
    /// List and triage groups of similar errors
    #[command(subcommand, visible_alias = "errors")]
    Error(ErrorCommand),
    /// List and inspect the runs of a daemon
    #[command(subcommand)]
    Query(QueryCommand),
    /// Reset runs of a daemon, delete old tasks
    #[command(subcommand)]
    Admin(AdminCommand),
    /// Follow events, one per line
    Tail(TailArgs),
    /// Show whether anything needs attention; exits 8 if so
    Status {
        #[command(flatten)]
        watch: WatchArgs,
    },
    /// List, pause and resume background loops
    #[command(subcommand)]
    Loop(LoopCommand),
    /// Manage accounts: credits and retry budgets
    #[command(subcommand)]
    Account(AccountCommand),
    /// List audit log entries
    Audit(AuditArgs),
    /// List workers, drain and undrain them
    #[command(subcommand)]
    Worker(WorkerCommand),
    /// Create, list, rotate and revoke API keys
    #[command(subcommand)]
    Key(KeyCommand),
    /// Manage secrets for HTTP calls, commands and subscriptions
    #[command(subcommand)]
    Secret(SecretCommand),
    /// Migrate, check and back up the database
    #[command(subcommand)]
    Db(DbCommand),
    /// Diagnose client, server and database; exits 8 if something is wrong
    Doctor(DoctorArgs),
    /// Show effective settings and where they come from
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Print a shell completion script
    Completion { shell: clap_complete::Shell },
    /// Show help for a command or topic: filters, policies, exit-codes, environment
    Help {
        #[arg(value_name = "COMMAND or TOPIC")]
        about: Vec<String>,
    },
}
