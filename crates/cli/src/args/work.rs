//! Arguments of the commands on tasks, bulk operations and policies.

use clap::{Args, Subcommand};
use clap_complete::engine::ArgValueCompleter;

use super::WatchArgs;
use crate::complete;

#[derive(Args)]
pub struct EnqueueArgs {
    /// Task kind; workers select tasks by it
    pub kind: String,
    /// Payload: JSON, @file, or - for standard input
    #[arg(long, value_name = "JSON")]
    pub data: Option<String>,
    /// Retry policy: exp(60s, x2, max 1h, 5 retries), or JSON, or a number of attempts
    #[arg(long, value_name = "POLICY")]
    pub retry: Option<String>,
    /// Let the server call this URL: POST with the payload as body, GET without one
    #[arg(long)]
    pub url: Option<String>,
    /// Display name
    #[arg(long)]
    pub name: Option<String>,
    /// Queue name
    #[arg(long)]
    pub queue: Option<String>,
    /// Priority: a number (higher first), or high, normal or low
    #[arg(long, allow_hyphen_values = true)]
    pub priority: Option<String>,
    /// Start after this delay
    #[arg(long = "in", value_name = "DURATION")]
    pub delay: Option<String>,
    /// Start at this time
    #[arg(long, value_name = "TIME", conflicts_with = "delay")]
    pub at: Option<String>,
    /// Give up after this time
    #[arg(long, value_name = "DURATION")]
    pub deadline: Option<String>,
    /// Deduplication key: only one open task may have it
    #[arg(long, value_name = "KEY")]
    pub dedupe_key: Option<String>,
    /// Account that pays for it
    #[arg(long)]
    pub account: Option<String>,
    /// External dependency it needs
    #[arg(long, value_name = "NAME")]
    pub dependency: Option<String>,
    /// Label; may be repeated
    #[arg(long = "label", value_name = "NAME=VALUE")]
    pub labels: Vec<String>,
}

#[derive(Args)]
pub struct RunArgs {
    /// Retry policy
    #[arg(long, value_name = "POLICY", default_value = "exp(1s, x2, max 1m, 5 retries)")]
    pub retry: String,
    /// Display name [default: the command]
    #[arg(long)]
    pub name: Option<String>,
    /// Command to run, after --
    #[arg(trailing_var_arg = true, required = true, value_name = "COMMAND")]
    pub run: Vec<String>,
}

#[derive(Args)]
pub struct TailArgs {
    /// Only events of this task
    #[arg(long, value_name = "ID", add = ArgValueCompleter::new(complete::task_ids))]
    pub task: Option<String>,
    /// Start with past events, not only new ones
    #[arg(long)]
    pub from_start: bool,
    /// All events, not only retry decisions and ends
    #[arg(long)]
    pub all: bool,
    /// Exit after this many lines
    #[arg(long, value_name = "LINES")]
    pub count: Option<u64>,
}

#[derive(Args)]
pub struct NoteArgs {
    /// Note for the history
    #[arg(long)]
    pub note: Option<String>,
}

#[derive(Args)]
pub struct TaskId {
    /// Task id, or its first or last characters
    #[arg(add = ArgValueCompleter::new(complete::task_ids))]
    pub id: String,
}

/// One task, or all that match a filter.
#[derive(Args)]
pub struct TaskSelection {
    /// Task id, or its first or last characters
    #[arg(add = ArgValueCompleter::new(complete::task_ids), required_unless_present = "filter")]
    pub id: Option<String>,
    #[command(flatten)]
    pub bulk: BulkArgs,
}

#[derive(Args)]
pub struct BulkArgs {
    /// All matching tasks, as one bulk operation in the background (comeback help filters)
    #[arg(long, conflicts_with = "id")]
    pub filter: Option<String>,
    /// With --filter: only show which tasks would change and which be skipped
    #[arg(long, requires = "filter")]
    pub dry_run: bool,
    /// With --filter: do not ask for confirmation
    #[arg(long, short, requires = "filter")]
    pub yes: bool,
    /// With --filter: do not wait for the end
    #[arg(long, requires = "filter")]
    pub no_wait: bool,
}

#[derive(Subcommand)]
pub enum TaskCommand {
    /// List tasks that match a filter
    List {
        /// Filter, such as: state:retrying queue:mail -kind:report.* "connection refused" (comeback help filters)
        filter: Vec<String>,
        /// Maximum number to list, up to 500
        #[arg(long, default_value_t = 50)]
        limit: u32,
        /// Sort order: submitted, -submitted, due, updated or priority
        #[arg(long, value_name = "FIELD", allow_hyphen_values = true)]
        sort: Option<String>,
        /// Cursor printed by the previous page
        #[arg(long)]
        cursor: Option<String>,
        #[command(flatten)]
        watch: WatchArgs,
    },
    /// Show a task
    Get {
        #[command(flatten)]
        id: TaskId,
        /// Wait until it ends; exits 0 when it succeeded, 10 when it failed, 11 when it was canceled
        #[arg(long)]
        wait: bool,
        /// With --wait: exit 124 after this time
        #[arg(long, value_name = "DURATION", requires = "wait")]
        timeout: Option<String>,
        #[command(flatten)]
        watch: WatchArgs,
    },
    /// Explain the state of a task and what happens next
    Why(TaskId),
    /// List every run and its outcome
    Attempts(TaskId),
    /// Retry now, with a new attempt counter
    Retry {
        #[command(flatten)]
        which: TaskSelection,
        /// With --filter: spread the retries evenly over this time
        #[arg(long, value_name = "DURATION", requires = "filter")]
        spread: Option<String>,
        /// With --filter: retry in waves, stop if one fails: 'canary 10, pause 30s, stop over 20% alike'
        #[arg(long, value_name = "WAVES", requires = "filter", conflicts_with = "spread")]
        waves: Option<String>,
        /// Keep the attempt counter
        #[arg(long)]
        keep_counters: bool,
        /// Merge patch for the payload: '{"card": {"number": "4242"}, "coupon": null}'
        #[arg(long, value_name = "JSON", conflicts_with = "filter")]
        patch: Option<String>,
        #[command(flatten)]
        note: NoteArgs,
    },
    /// Cancel a task; a running one loses its lease
    Cancel {
        #[command(flatten)]
        which: TaskSelection,
        #[command(flatten)]
        note: NoteArgs,
        /// Work on the database directly, when the server does not start
        #[arg(long, value_name = "FILE or URL", conflicts_with = "filter")]
        db: Option<String>,
    },
    /// Pause a task until it is resumed
    Pause {
        #[command(flatten)]
        which: TaskSelection,
        #[command(flatten)]
        note: NoteArgs,
    },
    /// Resume a paused task
    Resume {
        #[command(flatten)]
        which: TaskSelection,
        #[command(flatten)]
        note: NoteArgs,
    },
    /// Change the retry policy, priority or labels of a task
    Edit {
        #[command(flatten)]
        id: TaskId,
        /// Retry policy from the next failure on: exp(60s, x2, max 1h, 5 retries), or JSON
        #[arg(long, value_name = "POLICY", required_unless_present_any = ["priority", "labels"])]
        retry: Option<String>,
        /// Priority; higher first
        #[arg(long, allow_hyphen_values = true)]
        priority: Option<i16>,
        /// Label to set, or to remove without a value; may be repeated
        #[arg(long = "label", value_name = "NAME[=VALUE]")]
        labels: Vec<String>,
    },
    /// Postpone: set the due time to a delay from now
    Snooze {
        #[command(flatten)]
        id: TaskId,
        /// Delay, such as 10m
        delay: String,
    },
    /// Set the due time
    Reschedule {
        #[command(flatten)]
        id: TaskId,
        /// Time, such as 2026-01-31T09:00:00Z
        at: String,
    },
}

#[derive(Subcommand)]
pub enum OperationCommand {
    /// List bulk operations, newest first
    List {
        /// Maximum number to list
        #[arg(long, default_value_t = 50)]
        limit: u32,
        #[command(flatten)]
        watch: WatchArgs,
    },
    /// Show progress and skipped tasks of a bulk operation
    Get {
        /// Operation id, or its first or last characters
        id: String,
        #[command(flatten)]
        watch: WatchArgs,
    },
    /// Abort: leave the remaining tasks as they are
    Abort {
        /// Operation id, or its first or last characters
        id: String,
        #[command(flatten)]
        note: NoteArgs,
    },
    /// Undo what has not started yet
    Undo {
        /// Operation id, or its first or last characters
        id: String,
        #[command(flatten)]
        note: NoteArgs,
    },
}

#[derive(Args)]
pub struct PolicyArgs {
    /// Policy: exp(60s, x2, max 1h, 5 retries), or JSON, or a number of attempts
    pub policy: String,
    /// Dialect: native, workflow, task, job, run or step
    #[arg(long, default_value = "native")]
    pub dialect: String,
}

#[derive(Subcommand)]
pub enum PolicyCommand {
    /// Describe a policy in words
    Explain(PolicyArgs),
    /// Print the times at which a policy retries
    Simulate {
        #[command(flatten)]
        policy: PolicyArgs,
        /// Seed for reproducible jitter
        #[arg(long, value_name = "NUMBER")]
        seed: Option<u64>,
    },
    /// Report valid but suspicious settings; exits 8 if there are any
    Lint(PolicyArgs),
    /// Back-test a policy on the failures recorded by the server
    Backtest(BacktestArgs),
}

#[derive(Args)]
pub struct BacktestArgs {
    #[command(flatten)]
    pub policy: PolicyArgs,
    /// Filter (comeback help filters)
    pub filter: Vec<String>,
    /// Only tasks that changed within this time
    #[arg(long, value_name = "DURATION", default_value = "7d")]
    pub within: String,
    /// Maximum number of tasks, most recently changed first
    #[arg(long, value_name = "NUMBER")]
    pub limit: Option<u32>,
}
