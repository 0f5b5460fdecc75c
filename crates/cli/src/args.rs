//! What can be said to the binary.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

/// Durable tasks that come back: retries decided once, kept, and explained.
#[derive(Parser)]
#[command(name = "comeback", version, disable_help_subcommand = true)]
pub struct Arguments {
    #[command(flatten)]
    pub global: Global,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Args, Clone)]
pub struct Global {
    /// Where the server is.
    #[arg(long, global = true, env = "COMEBACK_SERVER", default_value = "http://127.0.0.1:7330")]
    pub server: String,
    /// The key to show to it. It is better kept in the environment than typed.
    #[arg(long, global = true, env = "COMEBACK_KEY", hide_env_values = true)]
    pub key: Option<String>,
    /// The namespace, where the key does not say.
    #[arg(long, global = true, env = "COMEBACK_NAMESPACE")]
    pub namespace: Option<String>,
    /// Print the server's JSON as it is.
    #[arg(long, global = true)]
    pub json: bool,
}

#[derive(Subcommand)]
pub enum Command {
    /// Watch tasks fail and come back, on temporary data and sixty times as fast
    Demo(DemoArgs),
    /// Run the server
    Serve(ServeArgs),
    /// Create a task
    Enqueue(EnqueueArgs),
    /// Run a command durably: it is retried until it succeeds or its policy gives up
    Run(RunArgs),
    /// Look at tasks and act on them
    #[command(subcommand)]
    Task(TaskCommand),
    /// Read a retry policy
    #[command(subcommand)]
    Policy(PolicyCommand),
    /// How many tasks are in each state
    Stats,
    /// What is due when
    Upcoming {
        #[arg(long, default_value = "24h")]
        within: String,
        #[arg(long, default_value = "1h")]
        bucket: String,
    },
    /// Follow what happens, line by line
    Tail {
        /// Only events of one task
        #[arg(long)]
        task: Option<String>,
        /// Begin with what was, not only with what comes
        #[arg(long)]
        from_start: bool,
        /// Every event, not only verdicts and ends
        #[arg(long)]
        all: bool,
    },
    /// Whether anything needs a person; exits 8 when it does
    Status,
    /// The background loops
    #[command(subcommand)]
    Loop(LoopCommand),
    /// API keys
    #[command(subcommand)]
    Key(KeyCommand),
    /// Print a completion script
    Completion { shell: clap_complete::Shell },
}

#[derive(Args)]
pub struct DemoArgs {
    /// Address to listen on; the next free one when it is taken
    #[arg(long, default_value = "127.0.0.1:7330")]
    pub listen: String,
    /// Keep the data in this file
    #[arg(long)]
    pub keep: Option<PathBuf>,
    /// How many times as fast as real time
    #[arg(long, default_value_t = 60.0)]
    pub speed: f64,
    /// End after so many seconds
    #[arg(long)]
    pub seconds: Option<u64>,
}

#[derive(Args)]
pub struct ServeArgs {
    /// Address to listen on
    #[arg(long, env = "COMEBACK_LISTEN", default_value = "127.0.0.1:7330")]
    pub listen: String,
    /// A SQLite file, or a PostgreSQL URL for many instances
    #[arg(long, env = "COMEBACK_DB", default_value = "./comeback.db")]
    pub db: String,
    /// system, virtual (moved by POST /clock/advance), or x60 and the like
    #[arg(long, env = "COMEBACK_CLOCK", default_value = "system")]
    pub clock: String,
    /// Names this process among others
    #[arg(long, env = "INSTANCE_ID")]
    pub instance: Option<String>,
    /// Let tasks start processes on this machine
    #[arg(long, env = "COMEBACK_ALLOW_COMMANDS")]
    pub allow_commands: bool,
    /// Let calls reach loopback and private networks
    #[arg(long, env = "COMEBACK_ALLOW_PRIVATE_NETWORKS")]
    pub allow_private_networks: bool,
    /// Let calls reach a network that is not public, such as 10.1.0.0/16
    #[arg(long, env = "COMEBACK_ALLOW_NETWORK", value_name = "CIDR", value_delimiter = ',')]
    pub allow_network: Vec<String>,
    /// Leave http, command and timer tasks to other instances
    #[arg(long, env = "COMEBACK_NO_EXECUTORS")]
    pub no_executors: bool,
    /// How long tasks that are over are kept, such as 90d; for ever when nothing is said
    #[arg(long, env = "COMEBACK_RETENTION", value_name = "SPAN")]
    pub retention: Option<String>,
    /// Change a limit, such as payload_bytes=1048576; a wrong name lists them all
    #[arg(long, env = "COMEBACK_LIMIT", value_name = "NAME=VALUE", value_delimiter = ',')]
    pub limit: Vec<String>,
    /// human or json
    #[arg(long, env = "COMEBACK_LOG_FORMAT", default_value = "human")]
    pub log_format: String,
}

#[derive(Args)]
pub struct EnqueueArgs {
    /// What sort of task it is; workers choose by it
    pub kind: String,
    /// The payload: JSON, @file, or - for standard input
    #[arg(long)]
    pub data: Option<String>,
    /// How it is retried: exp(60s, x2, max 1h, 5 retries), or JSON, or a number of executions
    #[arg(long)]
    pub retry: Option<String>,
    #[arg(long)]
    pub queue: Option<String>,
    #[arg(long)]
    pub priority: Option<i32>,
    /// Start after a span
    #[arg(long = "in", value_name = "SPAN")]
    pub delay: Option<String>,
    /// Start at an instant
    #[arg(long, conflicts_with = "delay")]
    pub at: Option<String>,
    /// Give up after a span
    #[arg(long)]
    pub deadline: Option<String>,
    /// Only one open task may have it
    #[arg(long)]
    pub dedupe_key: Option<String>,
    /// A label, as name=value
    #[arg(long = "label", value_name = "NAME=VALUE")]
    pub labels: Vec<String>,
}

#[derive(Args)]
pub struct RunArgs {
    #[arg(long, default_value = "exp(1s, x2, max 1m, 5 retries)")]
    pub retry: String,
    #[arg(long)]
    pub name: Option<String>,
    #[arg(trailing_var_arg = true, required = true)]
    pub run: Vec<String>,
}

#[derive(Subcommand)]
pub enum TaskCommand {
    /// List tasks by a filter
    List {
        /// Such as: state:retrying queue:mail -kind:report.* "connection refused"
        filter: Vec<String>,
        #[arg(long, default_value_t = 50)]
        limit: u32,
        #[arg(long)]
        sort: Option<String>,
        #[arg(long)]
        cursor: Option<String>,
    },
    /// Everything about a task
    Get { id: String },
    /// Why it is in the state it is in, and what comes next
    Why { id: String },
    /// Every run and how it ended
    Attempts { id: String },
    /// Retry by hand
    Retry {
        id: String,
        #[arg(long)]
        keep_counters: bool,
        #[arg(long)]
        note: Option<String>,
    },
    Cancel {
        id: String,
        #[arg(long)]
        note: Option<String>,
    },
    Pause {
        id: String,
        #[arg(long)]
        note: Option<String>,
    },
    Resume {
        id: String,
        #[arg(long)]
        note: Option<String>,
    },
    /// Move the due time by a span from now
    Snooze { id: String, span: String },
    /// Move the due time to an instant
    Reschedule { id: String, at: String },
}

#[derive(Subcommand)]
pub enum PolicyCommand {
    /// How a policy is read, in words
    Explain {
        policy: String,
        #[arg(long, default_value = "native")]
        dialect: String,
    },
    /// When it would retry
    Simulate {
        policy: String,
        #[arg(long, default_value = "native")]
        dialect: String,
        /// Makes the jitter repeatable
        #[arg(long)]
        seed: Option<u64>,
    },
}

#[derive(Subcommand)]
pub enum LoopCommand {
    List,
    Pause {
        name: String,
        /// Resumes by itself after this
        #[arg(long = "for", value_name = "SPAN")]
        duration: Option<String>,
        #[arg(long)]
        note: Option<String>,
    },
    Resume {
        name: String,
    },
}

#[derive(Subcommand)]
pub enum KeyCommand {
    /// Make a key; the secret is shown once
    Create {
        #[arg(long)]
        role: String,
        #[arg(long)]
        name: Option<String>,
        /// Valid for a span
        #[arg(long)]
        expires_in: Option<String>,
        /// Which namespace the key is for; * for all
        #[arg(long)]
        for_namespace: Option<String>,
        /// Work on the database itself, while no server has it open
        #[arg(long)]
        db: Option<PathBuf>,
    },
    List,
    Revoke {
        id: String,
    },
}
