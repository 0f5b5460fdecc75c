//! Tasks: making them, looking at them, acting on them.

use clap::{Args, Subcommand};
use clap_complete::engine::ArgValueCompleter;

use super::Watch;
use crate::complete;

#[derive(Args)]
pub struct EnqueueArgs {
    /// What sort of task it is; workers choose by it
    pub kind: String,
    /// The payload: JSON, @file, or - for standard input
    #[arg(long, value_name = "JSON")]
    pub data: Option<String>,
    /// How it is retried: exp(60s, x2, max 1h, 5 retries), or JSON, or a number of executions
    #[arg(long, value_name = "POLICY")]
    pub retry: Option<String>,
    /// Let the server call this address: POST with the payload as its body
    #[arg(long)]
    pub url: Option<String>,
    /// A name for people
    #[arg(long)]
    pub name: Option<String>,
    /// Which queue it waits in
    #[arg(long)]
    pub queue: Option<String>,
    /// Higher goes first: a number, or high, normal or low
    #[arg(long, allow_hyphen_values = true)]
    pub priority: Option<String>,
    /// Start after a span
    #[arg(long = "in", value_name = "SPAN")]
    pub delay: Option<String>,
    /// Start at an instant
    #[arg(long, value_name = "INSTANT", conflicts_with = "delay")]
    pub at: Option<String>,
    /// Give up after a span
    #[arg(long, value_name = "SPAN")]
    pub deadline: Option<String>,
    /// Only one open task may have it
    #[arg(long, value_name = "KEY")]
    pub dedupe_key: Option<String>,
    /// Who pays for it
    #[arg(long)]
    pub account: Option<String>,
    /// The outside thing it needs
    #[arg(long, value_name = "NAME")]
    pub dependency: Option<String>,
    /// A label; may be said again
    #[arg(long = "label", value_name = "NAME=VALUE")]
    pub labels: Vec<String>,
}

#[derive(Args)]
pub struct RunArgs {
    /// When to try again
    #[arg(long, value_name = "POLICY", default_value = "exp(1s, x2, max 1m, 5 retries)")]
    pub retry: String,
    /// A name for people [default: the command]
    #[arg(long)]
    pub name: Option<String>,
    /// The command, after --
    #[arg(trailing_var_arg = true, required = true, value_name = "COMMAND")]
    pub run: Vec<String>,
}

#[derive(Args)]
pub struct TailArgs {
    /// Only events of one task
    #[arg(long, value_name = "ID", add = ArgValueCompleter::new(complete::task_ids))]
    pub task: Option<String>,
    /// Begin with what was, not only with what comes
    #[arg(long)]
    pub from_start: bool,
    /// Every event, not only verdicts and ends
    #[arg(long)]
    pub all: bool,
    /// End after so many lines
    #[arg(long, value_name = "LINES")]
    pub count: Option<u64>,
}

#[derive(Args)]
pub struct Note {
    /// A note for the history
    #[arg(long)]
    pub note: Option<String>,
}

#[derive(Args)]
pub struct TaskId {
    /// A whole id, or either end of one
    #[arg(add = ArgValueCompleter::new(complete::task_ids))]
    pub id: String,
}

/// One task, or all that a filter finds.
#[derive(Args)]
pub struct OneOrMany {
    /// A whole id, or either end of one
    #[arg(add = ArgValueCompleter::new(complete::task_ids), required_unless_present = "filter")]
    pub id: Option<String>,
    #[command(flatten)]
    pub many: Many,
}

#[derive(Args)]
pub struct Many {
    /// All tasks that match, as one operation in the background (comeback help filters)
    #[arg(long, conflicts_with = "id")]
    pub filter: Option<String>,
    /// With --filter: only say what would be done, and what not
    #[arg(long, requires = "filter")]
    pub dry_run: bool,
    /// With --filter: do not ask first
    #[arg(long, short, requires = "filter")]
    pub yes: bool,
    /// With --filter: do not wait until it is done
    #[arg(long, requires = "filter")]
    pub no_wait: bool,
}

#[derive(Subcommand)]
pub enum TaskCommand {
    /// List tasks by a filter
    List {
        /// Such as: state:retrying queue:mail -kind:report.* "connection refused" (comeback help filters)
        filter: Vec<String>,
        /// At most so many, up to 500
        #[arg(long, default_value_t = 50)]
        limit: u32,
        /// submitted, -submitted, due, updated or priority
        #[arg(long, value_name = "FIELD", allow_hyphen_values = true)]
        sort: Option<String>,
        /// Where the page before ended
        #[arg(long)]
        cursor: Option<String>,
        #[command(flatten)]
        watch: Watch,
    },
    /// Everything about a task
    Get {
        #[command(flatten)]
        id: TaskId,
        /// Wait until it is over; exits 0 when it succeeded, 10 when it failed, 11 when it was canceled
        #[arg(long)]
        wait: bool,
        /// With --wait: exit 124 after this
        #[arg(long, value_name = "SPAN", requires = "wait")]
        timeout: Option<String>,
        #[command(flatten)]
        watch: Watch,
    },
    /// Why it is in the state it is in, and what comes next
    Why(TaskId),
    /// Every run and how it ended
    Attempts(TaskId),
    /// Retry by hand, now, with a fresh count
    Retry {
        #[command(flatten)]
        which: OneOrMany,
        /// With --filter: smear the retries evenly over this span
        #[arg(long, value_name = "SPAN", requires = "filter")]
        spread: Option<String>,
        /// With --filter: a few first, the next when those did well: 'canary 10, pause 30s, stop over 20% alike'
        #[arg(long, value_name = "WAVES", requires = "filter", conflicts_with = "spread")]
        waves: Option<String>,
        /// Go on counting where it stopped
        #[arg(long)]
        keep_counters: bool,
        /// What the payload should say otherwise: '{"card": {"number": "4242"}, "coupon": null}'
        #[arg(long, value_name = "JSON", conflicts_with = "filter")]
        patch: Option<String>,
        #[command(flatten)]
        note: Note,
    },
    /// Cancel for good; a run under way loses its lease
    Cancel {
        #[command(flatten)]
        which: OneOrMany,
        #[command(flatten)]
        note: Note,
        /// Work on the database itself, for a server that does not start
        #[arg(long, value_name = "FILE or URL", conflicts_with = "filter")]
        db: Option<String>,
    },
    /// Keep it from running until it is resumed
    Pause {
        #[command(flatten)]
        which: OneOrMany,
        #[command(flatten)]
        note: Note,
    },
    /// Let it go on
    Resume {
        #[command(flatten)]
        which: OneOrMany,
        #[command(flatten)]
        note: Note,
    },
    /// Say otherwise how it is retried, how urgent it is, or what it is labelled with
    Edit {
        #[command(flatten)]
        id: TaskId,
        /// How it is retried from its next failure on: exp(60s, x2, max 1h, 5 retries), or JSON
        #[arg(long, value_name = "POLICY", required_unless_present_any = ["priority", "labels"])]
        retry: Option<String>,
        /// Higher goes first
        #[arg(long, allow_hyphen_values = true)]
        priority: Option<i16>,
        /// A label, or one to take away; may be said again
        #[arg(long = "label", value_name = "NAME[=VALUE]")]
        labels: Vec<String>,
    },
    /// Move the due time by a span from now
    Snooze {
        #[command(flatten)]
        id: TaskId,
        /// Such as 10m
        span: String,
    },
    /// Move the due time to an instant
    Reschedule {
        #[command(flatten)]
        id: TaskId,
        /// Such as 2026-01-31T09:00:00Z
        at: String,
    },
}

#[derive(Subcommand)]
pub enum OperationCommand {
    /// The newest bulk operations
    List {
        /// At most so many
        #[arg(long, default_value_t = 50)]
        limit: u32,
        #[command(flatten)]
        watch: Watch,
    },
    /// How far one has come, and what was left out
    Get {
        id: String,
        #[command(flatten)]
        watch: Watch,
    },
    /// Leave what was not done as it is
    Abort {
        id: String,
        #[command(flatten)]
        note: Note,
    },
    /// Take back what has not started
    Undo {
        id: String,
        #[command(flatten)]
        note: Note,
    },
}

#[derive(Args)]
pub struct PolicyArgs {
    /// exp(60s, x2, max 1h, 5 retries), or JSON, or a number of executions
    pub policy: String,
    /// native, workflow, task, job, run or step
    #[arg(long, default_value = "native")]
    pub dialect: String,
}

#[derive(Subcommand)]
pub enum PolicyCommand {
    /// How a policy is read, in words
    Explain(PolicyArgs),
    /// When it would retry
    Simulate {
        #[command(flatten)]
        policy: PolicyArgs,
        /// Makes the jitter repeatable
        #[arg(long, value_name = "NUMBER")]
        seed: Option<u64>,
    },
    /// What is allowed in it and seldom meant; exits 8 when there is something
    Lint(PolicyArgs),
    /// What it would have made of the failures that the server has recorded
    Backtest(BacktestArgs),
}

#[derive(Args)]
pub struct BacktestArgs {
    #[command(flatten)]
    pub policy: PolicyArgs,
    /// Of which tasks: comeback help filters
    pub filter: Vec<String>,
    /// Of those that changed within this time
    #[arg(long, value_name = "SPAN", default_value = "7d")]
    pub within: String,
    /// How many tasks at most, of those that changed last
    #[arg(long, value_name = "NUMBER")]
    pub limit: Option<u32>,
}
