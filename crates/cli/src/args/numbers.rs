//! What can be said about numbers and about errors.

use clap::{Args, Subcommand};

use super::Watch;

#[derive(Args)]
pub struct StatsArgs {
    /// What retrying came to, told apart by attempt, error, class, strategy, dependency, kind, queue or origin
    #[arg(long, value_name = "WHAT")]
    pub by: Option<String>,
    /// How far to look back
    #[arg(long, value_name = "SPAN", default_value = "7d", requires = "by")]
    pub within: String,
    /// Only of this kind
    #[arg(long, requires = "by")]
    pub kind: Option<String>,
    /// Only of this queue
    #[arg(long, requires = "by")]
    pub queue: Option<String>,
    /// Only of those that depend on this
    #[arg(long, requires = "by")]
    pub dependency: Option<String>,
    #[command(flatten)]
    pub watch: Watch,
}

#[derive(Subcommand)]
pub enum ErrorCommand {
    /// The groups, those that were seen last first
    List {
        /// open, ignored, resolved or regressed; more of them with commas
        #[arg(long)]
        state: Option<String>,
        /// Only of this kind
        #[arg(long)]
        kind: Option<String>,
        /// How many at most
        #[arg(long, default_value_t = 50)]
        limit: u32,
    },
    /// A group, and whether trying again helped
    Get {
        /// Its fingerprint, or the beginning of it
        fingerprint: String,
        /// How far to look back
        #[arg(long, value_name = "SPAN", default_value = "7d")]
        within: String,
    },
    /// It is mended; if it comes again it is marked as regressed
    Resolve {
        /// Its fingerprint, or the beginning of it
        fingerprint: String,
        /// Why
        #[arg(long)]
        note: Option<String>,
    },
    /// It is of no concern
    Ignore {
        /// Its fingerprint, or the beginning of it
        fingerprint: String,
        /// For so long, such as 24h; for good where nothing is said
        #[arg(long = "for", value_name = "SPAN")]
        span: Option<String>,
        /// Why
        #[arg(long)]
        note: Option<String>,
    },
    /// It is of concern again
    Open {
        /// Its fingerprint, or the beginning of it
        fingerprint: String,
        /// Why
        #[arg(long)]
        note: Option<String>,
    },
    /// What such errors are from now on, whatever a policy thinks
    Classify {
        /// Its fingerprint, or the beginning of it
        fingerprint: String,
        /// final, retryable, rate_limited, or policy to take it back
        #[arg(value_parser = ["final", "retryable", "rate_limited", "policy"])]
        class: String,
        /// Why
        #[arg(long)]
        note: Option<String>,
    },
    /// Write something down about it
    Note {
        /// Its fingerprint, or the beginning of it
        fingerprint: String,
        /// What
        note: String,
    },
}
