//! Runs: the tasks of a daemon, in its words.

use clap::{Args, Subcommand, ValueEnum};

use super::Watch;
use super::work::{Note, TaskId};

/// How a run is, in the words of a daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum Status {
    /// Waits for its turn
    Discovered,
    Processing,
    Passed,
    #[value(alias = "needs-review")]
    NeedsReview,
    /// Judged, and found wanting: it is never retried
    Failed,
    /// Could not be judged: retried, or given up
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
    /// Whose last error is final, retryable or rate_limited
    #[arg(long)]
    pub class: Option<String>,
    /// Submitted since then: an instant, a day, or a span such as 7d
    #[arg(long, value_name = "WHEN")]
    pub since: Option<String>,
    /// Submitted before then
    #[arg(long, value_name = "WHEN")]
    pub before: Option<String>,
}

#[derive(Subcommand)]
pub enum QueryCommand {
    /// Runs and how they are, newest first
    List {
        #[command(flatten)]
        filter: RunFilter,
        /// At most so many, up to 500
        #[arg(long, default_value_t = 50)]
        limit: u32,
        /// Where the page before ended
        #[arg(long)]
        cursor: Option<String>,
        #[command(flatten)]
        watch: Watch,
    },
    /// Everything about a run, with all its attempts
    Show(TaskId),
    /// What is processed, what is next, and what waits for its retry
    Queue {
        #[command(flatten)]
        filter: RunFilter,
        /// At most so many lines
        #[arg(long, default_value_t = 50)]
        limit: usize,
        #[command(flatten)]
        watch: Watch,
    },
    /// Runs that could not be judged: what went wrong, and when they are tried again
    Errors {
        #[command(flatten)]
        filter: RunFilter,
        /// At most so many, up to 500
        #[arg(long, default_value_t = 50)]
        limit: u32,
        /// Where the page before ended
        #[arg(long)]
        cursor: Option<String>,
        #[command(flatten)]
        watch: Watch,
    },
    /// How many runs there are of each status and error class, and how often they were tried
    Stats {
        #[command(flatten)]
        filter: RunFilter,
        #[command(flatten)]
        watch: Watch,
    },
}

#[derive(Subcommand)]
pub enum AdminCommand {
    /// Make a run discovered again, now; what went wrong stays in its history
    Reset {
        #[command(flatten)]
        id: TaskId,
        /// Also forget how often it has failed: it gets all its attempts again
        #[arg(long)]
        clear_error: bool,
        /// Do it without asking
        #[arg(long, short)]
        yes: bool,
        #[command(flatten)]
        note: Note,
    },
    /// Forget what ended long ago, with its history; what is open is never touched
    Cleanup {
        /// What ended so long ago, a day or more
        #[arg(long, value_name = "SPAN", default_value = "30d")]
        older_than: String,
        /// Only say how much that would be
        #[arg(long)]
        dry_run: bool,
        /// Do it without asking
        #[arg(long, short)]
        yes: bool,
        #[command(flatten)]
        note: Note,
    },
}
