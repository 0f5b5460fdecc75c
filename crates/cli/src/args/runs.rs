//! Arguments of `query` and `admin`: the runs of a daemon.

use clap::{Args, Subcommand, ValueEnum};

use super::WatchArgs;
use super::work::{NoteArgs, TaskId};

/// Status of a run, as a daemon calls it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum Status {
    /// Waits to be leased
    Discovered,
    Processing,
    Passed,
    #[value(alias = "needs-review")]
    NeedsReview,
    /// Judged as failed; never retried
    Failed,
    /// Could not be judged: to be retried, or given up
    Error,
    Paused,
    #[value(alias = "cancelled")]
    Canceled,
    Skipped,
}

#[derive(Args, Clone, Default)]
pub struct RunFilter {
    /// discovered, processing, passed, needs_review, failed, error, paused, canceled or skipped
    #[arg(long, hide_possible_values = true)]
    pub status: Option<Status>,
    /// Only runs of this kind
    #[arg(long)]
    pub kind: Option<String>,
    /// Only runs of this category
    #[arg(long)]
    pub category: Option<String>,
    /// Only runs whose last error is final, retryable or rate_limited
    #[arg(long)]
    pub class: Option<String>,
    /// Submitted since this time, day, or duration such as 7d
    #[arg(long, value_name = "TIME")]
    pub since: Option<String>,
    /// Submitted before this time, day or duration
    #[arg(long, value_name = "TIME")]
    pub before: Option<String>,
}

#[derive(Subcommand)]
pub enum QueryCommand {
    /// List runs, newest first
    List {
        #[command(flatten)]
        filter: RunFilter,
        /// Maximum number to list, up to 500
        #[arg(long, default_value_t = 50)]
        limit: u32,
        /// Cursor printed by the previous page
        #[arg(long)]
        cursor: Option<String>,
        #[command(flatten)]
        watch: WatchArgs,
    },
    /// Show a run with all its attempts
    #[command(visible_alias = "show")]
    Get(TaskId),
    /// List open runs: processing, next and waiting for a retry
    Queue {
        #[command(flatten)]
        filter: RunFilter,
        /// Maximum number of lines
        #[arg(long, default_value_t = 50)]
        limit: usize,
        #[command(flatten)]
        watch: WatchArgs,
    },
    /// List runs with errors and when they are retried
    Errors {
        #[command(flatten)]
        filter: RunFilter,
        /// Maximum number to list, up to 500
        #[arg(long, default_value_t = 50)]
        limit: u32,
        /// Cursor printed by the previous page
        #[arg(long)]
        cursor: Option<String>,
        #[command(flatten)]
        watch: WatchArgs,
    },
    /// Count runs and attempts by status and error class
    Stats {
        #[command(flatten)]
        filter: RunFilter,
        #[command(flatten)]
        watch: WatchArgs,
    },
}

#[derive(Subcommand)]
pub enum AdminCommand {
    /// Reset a run to discovered, due now; its history is kept
    Reset {
        #[command(flatten)]
        id: TaskId,
        /// Also reset its attempt counter: it gets all its attempts again
        #[arg(long)]
        clear_error: bool,
        /// Do not ask for confirmation
        #[arg(long, short)]
        yes: bool,
        #[command(flatten)]
        note: NoteArgs,
    },
    /// Delete tasks that ended long ago, with their history; open tasks are kept
    Cleanup {
        /// Minimum age since the end, at least 1d
        #[arg(long, value_name = "DURATION", default_value = "30d")]
        older_than: String,
        /// Only show how many would be deleted
        #[arg(long)]
        dry_run: bool,
        /// Do not ask for confirmation
        #[arg(long, short)]
        yes: bool,
        #[command(flatten)]
        note: NoteArgs,
    },
}
