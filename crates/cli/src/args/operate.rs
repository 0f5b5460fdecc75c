//! Arguments of the commands that operate a server and its database.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use clap_complete::engine::ArgValueCompleter;

use super::WatchArgs;
use crate::complete;

#[derive(Subcommand)]
pub enum LoopCommand {
    /// List loops
    List,
    /// Pause a loop, on all instances and across restarts
    Pause {
        /// retries, starts, reap, timeout, expire, flow, schedule, subscriptions, alerts, operations, dispatch, hooks, prune or repair;
        /// promote means retries and starts
        #[arg(add = ArgValueCompleter::new(complete::loops))]
        name: String,
        /// Resume automatically after this time
        #[arg(long = "for", value_name = "DURATION")]
        duration: Option<String>,
        /// Note for the audit log
        #[arg(long)]
        note: Option<String>,
        /// Only show what the pause would delay
        #[arg(long)]
        dry_run: bool,
        /// Work on the database directly, when the server does not start
        #[arg(long, value_name = "FILE or URL", conflicts_with = "dry_run")]
        db: Option<String>,
    },
    /// Resume a loop
    Resume {
        /// Loop name
        #[arg(add = ArgValueCompleter::new(complete::loops))]
        name: String,
        /// Work on the database directly, when the server does not start
        #[arg(long, value_name = "FILE or URL")]
        db: Option<String>,
    },
}

#[derive(Subcommand)]
pub enum AccountCommand {
    /// Create or update an account; options that are not given stay as they are
    Put {
        /// Account name
        name: String,
        /// Set the credits, reserved ones included
        #[arg(long, conflicts_with = "add")]
        credits: Option<u64>,
        /// Add credits; a negative number removes some
        #[arg(long, allow_hyphen_values = true)]
        add: Option<i64>,
        /// Cost of a task of this kind; may be repeated
        #[arg(long = "cost", value_name = "KIND=CREDITS")]
        costs: Vec<String>,
        /// Retry budget per day (UTC)
        #[arg(long, value_name = "COUNT")]
        retries_per_day: Option<u32>,
        /// Retry budget per month (UTC)
        #[arg(long, value_name = "COUNT")]
        retries_per_month: Option<u32>,
        /// Credits that retries may cost per month
        #[arg(long, value_name = "CREDITS")]
        retry_cost_per_month: Option<u64>,
        /// Parent account that is charged for retries too; '' for none
        #[arg(long, value_name = "ACCOUNT")]
        organisation: Option<String>,
    },
    /// List accounts and their credits
    List,
    /// Show an account and its credits
    #[command(visible_alias = "show")]
    Get {
        /// Account name
        name: String,
    },
    /// Delete an account without reserved credits
    Delete {
        /// Account name
        name: String,
    },
}

#[derive(Args)]
pub struct AuditArgs {
    /// Actor: the name given, or the name of the key
    #[arg(long)]
    pub actor: Option<String>,
    /// Action such as task.retry, or task for all actions on tasks (comma-separated)
    #[arg(long)]
    pub act: Option<String>,
    /// Target: an id or a name
    #[arg(long)]
    pub subject: Option<String>,
    /// Only entries since this time, or this long ago
    #[arg(long, value_name = "TIME")]
    pub since: Option<String>,
    /// Only entries before this time, or this long ago
    #[arg(long, value_name = "TIME")]
    pub until: Option<String>,
    /// All namespaces
    #[arg(long)]
    pub all: bool,
    /// Maximum number to list
    #[arg(long, default_value_t = 50)]
    pub limit: u32,
    /// Export all entries, for another program
    #[arg(long, value_name = "FORMAT", conflicts_with = "limit")]
    pub export: Option<ExportFormat>,
}

#[derive(Clone, Copy, clap::ValueEnum)]
pub enum ExportFormat {
    Ndjson,
    Csv,
}

#[derive(Subcommand)]
pub enum WorkerCommand {
    /// List workers seen in the last hour
    List {
        #[command(flatten)]
        watch: WatchArgs,
    },
    /// Drain a worker: no new leases, running ones finish
    Drain {
        /// Worker name
        name: String,
        /// Note for the worker list and the audit log
        #[arg(long)]
        note: Option<String>,
    },
    /// Undrain a worker: it gets leases again
    Undrain {
        /// Worker name
        name: String,
    },
}

#[derive(Subcommand)]
pub enum KeyCommand {
    /// Create a key; the secret is shown once
    Create {
        /// viewer, worker, submitter, operator or admin
        #[arg(long)]
        role: String,
        /// Owner name
        #[arg(long)]
        name: Option<String>,
        /// Expire after this time, such as 90d
        #[arg(long, visible_alias = "expires", value_name = "DURATION")]
        expires_in: Option<String>,
        /// Only this queue, or a prefix such as mail*; may be repeated
        #[arg(long = "queue", value_name = "QUEUE")]
        queues: Vec<String>,
        /// Only this kind, or a prefix such as billing.*; may be repeated
        #[arg(long = "kind", value_name = "KIND")]
        kinds: Vec<String>,
        /// Only from this network, such as 10.0.0.0/8; may be repeated
        #[arg(long = "from", value_name = "CIDR")]
        addresses: Vec<String>,
        /// Namespace of the key, * for all [default: * for an admin, `default` for other roles]
        #[arg(long, value_name = "NAMESPACE")]
        for_namespace: Option<String>,
        /// Work on the database directly, without a server
        #[arg(long, value_name = "FILE or URL")]
        db: Option<String>,
    },
    /// List keys, without their secrets
    List,
    /// Replace a key by a new one; the old one stays valid for a while
    Rotate {
        /// Key id, or its first characters
        id: String,
        /// How long the old key stays valid, such as 24h; 0s revokes it now
        #[arg(long, value_name = "DURATION", default_value = "24h")]
        overlap: String,
        /// Expire the new key after this time [default: the lifetime of the old one]
        #[arg(long, visible_alias = "expires", value_name = "DURATION")]
        expires_in: Option<String>,
    },
    /// Revoke a key
    Revoke {
        /// Key id, or its first characters
        id: String,
    },
}

#[derive(Args)]
pub struct RuleArgs {
    /// Rule name
    pub name: String,
    /// Match tasks of this queue
    #[arg(long)]
    pub queue: Option<String>,
    /// Match tasks of this kind
    #[arg(long)]
    pub kind: Option<String>,
    /// Match tasks with this label; may be repeated
    #[arg(long = "label", value_name = "NAME=VALUE")]
    pub labels: Vec<String>,
    /// Apply the limit per value of this label; may be repeated
    #[arg(long, value_name = "LABEL")]
    pub per: Vec<String>,
    /// Maximum number of running tasks
    #[arg(long, value_name = "COUNT")]
    pub max_running: Option<u32>,
    /// Maximum remaining work of all running tasks together
    #[arg(long, value_name = "SUM")]
    pub capacity: Option<u32>,
    /// Fair share: the --per value with the fewest running tasks goes first
    #[arg(long, requires = "per")]
    pub fair: bool,
}

#[derive(Subcommand)]
pub enum RuleCommand {
    /// Create or replace a rule; a match that is not given matches all tasks
    Put(RuleArgs),
    /// List rules and how many tasks run under each
    List,
    /// Show a rule and what runs under it
    #[command(visible_alias = "show")]
    Get {
        /// Rule name
        name: String,
    },
    /// Delete a rule
    Delete {
        /// Rule name
        name: String,
    },
}

#[derive(Args)]
pub struct DatabaseArgs {
    /// SQLite file or PostgreSQL URL
    #[arg(
        long,
        env = "COMEBACK_DB",
        value_name = "FILE or URL",
        default_value = "./comeback.db",
        hide_env_values = true
    )]
    pub db: String,
}

#[derive(Subcommand)]
pub enum DbCommand {
    /// Migrate the schema, as a server does when it starts
    Migrate {
        #[command(flatten)]
        at: DatabaseArgs,
        /// Only show what would be done
        #[arg(long)]
        dry_run: bool,
    },
    /// Check the integrity of all data; a server may keep running
    Check {
        #[command(flatten)]
        at: DatabaseArgs,
    },
    /// Invalidate all lease tokens issued so far, after a restore that was not detected
    Fence {
        #[command(flatten)]
        at: DatabaseArgs,
    },
    /// Back up the database while it is in use
    Backup {
        #[command(flatten)]
        at: DatabaseArgs,
        /// New file to write
        #[arg(long, value_name = "FILE")]
        to: PathBuf,
    },
}

#[derive(Args)]
pub struct DoctorArgs {
    /// Also check this database [default: ./comeback.db if it exists]
    #[arg(long, env = "COMEBACK_DB", value_name = "FILE or URL", hide_env_values = true)]
    pub db: Option<String>,
}

#[derive(Subcommand)]
pub enum ConfigCommand {
    /// Show every setting and where it comes from
    View {
        /// Show the settings of serve instead of the client's
        #[arg(long)]
        serve: bool,
    },
    /// Print the path of the configuration file
    Path,
}
