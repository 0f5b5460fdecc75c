//! Arguments of `stats` and `error`.

use clap::{Args, Subcommand};

use super::WatchArgs;

#[derive(Args)]
pub struct StatsArgs {
    /// Retry statistics by attempt, error, class, strategy, dependency, kind, queue or origin
    #[arg(long, value_name = "WHAT")]
    pub by: Option<String>,
    /// How far to look back
    #[arg(long, value_name = "DURATION", default_value = "7d", requires = "by")]
    pub within: String,
    /// Only tasks of this kind
    #[arg(long, requires = "by")]
    pub kind: Option<String>,
    /// Only tasks of this queue
    #[arg(long, requires = "by")]
    pub queue: Option<String>,
    /// Only tasks with this dependency
    #[arg(long, requires = "by")]
    pub dependency: Option<String>,
    #[command(flatten)]
    pub watch: WatchArgs,
}

#[derive(Subcommand)]
pub enum ErrorCommand {
    /// List error groups, most recently seen first
    List {
        /// open, ignored, resolved or regressed (comma-separated)
        #[arg(long)]
        state: Option<String>,
        /// Only tasks of this kind
        #[arg(long)]
        kind: Option<String>,
        /// Maximum number to list
        #[arg(long, default_value_t = 50)]
        limit: u32,
    },
    /// Show an error group and how often retries helped
    Get {
        /// Fingerprint, or its first characters
        fingerprint: String,
        /// How far to look back
        #[arg(long, value_name = "DURATION", default_value = "7d")]
        within: String,
    },
    /// Mark as resolved; it becomes regressed if it occurs again
    Resolve {
        /// Fingerprint, or its first characters
        fingerprint: String,
        /// Note for the audit log
        #[arg(long)]
        note: Option<String>,
    },
    /// Ignore a group
    Ignore {
        /// Fingerprint, or its first characters
        fingerprint: String,
        /// Ignore for this long, such as 24h [default: forever]
        #[arg(long = "for", value_name = "DURATION")]
        span: Option<String>,
        /// Note for the audit log
        #[arg(long)]
        note: Option<String>,
    },
    /// Reopen a group
    Open {
        /// Fingerprint, or its first characters
        fingerprint: String,
        /// Note for the audit log
        #[arg(long)]
        note: Option<String>,
    },
    /// Override the class of such errors, whatever the policy says
    Classify {
        /// Fingerprint, or its first characters
        fingerprint: String,
        /// final, retryable, rate_limited, or policy to remove the override
        #[arg(value_parser = ["final", "retryable", "rate_limited", "policy"])]
        class: String,
        /// Note for the audit log
        #[arg(long)]
        note: Option<String>,
    },
    /// Add a note to a group
    Note {
        /// Fingerprint, or its first characters
        fingerprint: String,
        /// Text of the note
        note: String,
    },
}
