//! Looking after a server and its database.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use clap_complete::engine::ArgValueCompleter;

use super::Watch;
use crate::complete;

#[derive(Subcommand)]
pub enum LoopCommand {
    /// Which there are, and which are paused
    List,
    /// Pause one, on all instances and across restarts
    Pause {
        /// retries, starts, reap, timeout, expire, flow, schedule, subscriptions, alerts, operations, dispatch, hooks, prune or repair;
        /// promote stands for the first two
        #[arg(add = ArgValueCompleter::new(complete::loops))]
        name: String,
        /// Resumes by itself after this
        #[arg(long = "for", value_name = "SPAN")]
        duration: Option<String>,
        /// A note for whoever wonders
        #[arg(long)]
        note: Option<String>,
        /// Only tell what the pause would delay
        #[arg(long)]
        dry_run: bool,
    },
    /// Let it go on
    Resume {
        /// One of them
        #[arg(add = ArgValueCompleter::new(complete::loops))]
        name: String,
    },
}

#[derive(Subcommand)]
pub enum AccountCommand {
    /// Make an account, or change it; what is not said stays
    Put {
        /// What it is called
        name: String,
        /// What it holds from now on, reserved credits included
        #[arg(long, conflicts_with = "add")]
        credits: Option<u64>,
        /// Added to what it holds; a minus takes away
        #[arg(long, allow_hyphen_values = true)]
        add: Option<i64>,
        /// What tasks of a kind cost; may be said more than once
        #[arg(long = "cost", value_name = "KIND=CREDITS")]
        costs: Vec<String>,
        /// How many retries of policies it pays for in a day (UTC)
        #[arg(long, value_name = "COUNT")]
        retries_per_day: Option<u32>,
        /// The same for a month
        #[arg(long, value_name = "COUNT")]
        retries_per_month: Option<u32>,
        /// What the retried tasks may cost together in a month
        #[arg(long, value_name = "CREDITS")]
        retry_cost_per_month: Option<u64>,
        /// Another account, in whose budget its retries are booked as well; '' for none
        #[arg(long, value_name = "ACCOUNT")]
        organisation: Option<String>,
    },
    /// The accounts, and what they hold
    List,
    /// An account, and what it holds
    Show {
        /// As account list shows it
        name: String,
    },
    /// Delete an account that no open task has reserved of
    Delete {
        /// As account list shows it
        name: String,
    },
}

#[derive(Args)]
pub struct AuditArgs {
    /// Who it was, by the name they said or by that of their key
    #[arg(long)]
    pub actor: Option<String>,
    /// task.retry, or task for everything done to tasks; more of them with commas
    #[arg(long)]
    pub act: Option<String>,
    /// What it was done to: an id, or a name
    #[arg(long)]
    pub subject: Option<String>,
    /// Not before this instant, or this span ago
    #[arg(long, value_name = "TIME")]
    pub since: Option<String>,
    /// Before this instant, or this span ago
    #[arg(long, value_name = "TIME")]
    pub until: Option<String>,
    /// In all namespaces
    #[arg(long)]
    pub all: bool,
    /// How many at most
    #[arg(long, default_value_t = 50)]
    pub limit: u32,
    /// All of it, for another program
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
    /// Who asked for work in the last hour
    List {
        #[command(flatten)]
        watch: Watch,
    },
    /// Give a worker nothing more; what it has it keeps
    Drain {
        /// As worker list shows it
        name: String,
        /// Why, for the list and the audit
        #[arg(long)]
        note: Option<String>,
    },
    /// Give a drained worker work again
    Undrain {
        /// As worker list shows it
        name: String,
    },
}

#[derive(Subcommand)]
pub enum KeyCommand {
    /// Make a key; the secret is shown once
    Create {
        /// viewer, worker, submitter, operator or admin
        #[arg(long)]
        role: String,
        /// Whose it is
        #[arg(long)]
        name: Option<String>,
        /// Valid for a span
        #[arg(long, value_name = "SPAN")]
        expires_in: Option<String>,
        /// Which namespace the key is for, * for all; else * for an admin and `default` for the others
        #[arg(long, value_name = "NAMESPACE")]
        for_namespace: Option<String>,
        /// Work on the database itself, without a server
        #[arg(long, value_name = "FILE or URL")]
        db: Option<String>,
    },
    /// The keys, without their secrets
    List,
    /// Refuse a key from now on
    Revoke {
        /// As key list shows it, or the beginning of it
        id: String,
    },
}

#[derive(Args)]
pub struct RuleArgs {
    /// What it is called
    pub name: String,
    /// Tasks of this queue
    #[arg(long)]
    pub queue: Option<String>,
    /// Tasks of this kind
    #[arg(long)]
    pub kind: Option<String>,
    /// Tasks with this label; may be said more than once
    #[arg(long = "label", value_name = "NAME=VALUE")]
    pub labels: Vec<String>,
    /// A limit for each value of this label; may be said more than once
    #[arg(long, value_name = "LABEL")]
    pub per: Vec<String>,
    /// How many may run at once
    #[arg(long, value_name = "COUNT")]
    pub max_running: Option<u32>,
    /// How much those that run may still have to do
    #[arg(long, value_name = "SUM")]
    pub capacity: Option<u32>,
    /// Of the values of --per, the one of which the fewest run goes first
    #[arg(long, requires = "per")]
    pub fair: bool,
}

#[derive(Subcommand)]
pub enum RuleCommand {
    /// Make a rule, or change it; what is not said matches anything
    Put(RuleArgs),
    /// The rules, and how many run under each
    List,
    /// A rule, and what runs under it
    Show {
        /// As rule list shows it
        name: String,
    },
    /// Delete a rule
    Delete {
        /// As rule list shows it
        name: String,
    },
}

#[derive(Args)]
pub struct DatabaseArgs {
    /// A SQLite file, or a PostgreSQL URL
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
    /// Bring the schema up to date, as a server does when it starts
    Migrate {
        #[command(flatten)]
        at: DatabaseArgs,
        /// Only tell what would be done
        #[arg(long)]
        dry_run: bool,
    },
    /// Read everything and tell what does not hold together; a server may go on beside it
    Check {
        #[command(flatten)]
        at: DatabaseArgs,
    },
    /// Make every lease token void that was given out so far, after a restore that is not detected
    Fence {
        #[command(flatten)]
        at: DatabaseArgs,
    },
    /// Copy it while it is in use
    Backup {
        #[command(flatten)]
        at: DatabaseArgs,
        /// A file that does not exist yet
        #[arg(long, value_name = "FILE")]
        to: PathBuf,
    },
}

#[derive(Args)]
pub struct DoctorArgs {
    /// Also look at this database [default: ./comeback.db where there is one]
    #[arg(long, env = "COMEBACK_DB", value_name = "FILE or URL", hide_env_values = true)]
    pub db: Option<String>,
}

#[derive(Subcommand)]
pub enum ConfigCommand {
    /// Every setting and where it comes from
    View {
        /// The settings of serve in place of one's own
        #[arg(long)]
        serve: bool,
    },
    /// Where the configuration file is looked for
    Path,
}
