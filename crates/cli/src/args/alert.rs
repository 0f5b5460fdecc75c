//! Arguments of `alert`.

use clap::{Args, Subcommand};

use super::WatchArgs;

#[derive(Subcommand)]
pub enum AlertCommand {
    /// Create or replace an alert
    Put(PutAlertArgs),
    /// List alerts
    List {
        #[command(flatten)]
        watch: WatchArgs,
    },
    /// Show an alert
    Get {
        /// Alert name
        name: String,
    },
    /// Show when an alert would have fired in the past
    Backtest {
        /// Existing alert; omit it and use --types to try a new one
        #[arg(conflicts_with = "types", required_unless_present = "types")]
        name: Option<String>,
        #[command(flatten)]
        what: AlertArgs,
        /// How far to look back, at most 7d
        #[arg(long, value_name = "DURATION", default_value = "7d")]
        within: String,
    },
    /// Delete an alert
    Delete {
        /// Alert name
        name: String,
    },
}

#[derive(Args)]
pub struct PutAlertArgs {
    /// Alert name
    pub name: String,
    #[command(flatten)]
    pub what: AlertArgs,
    /// Ids of the subscriptions to notify [default: all that subscribe to alerts]
    #[arg(long, value_delimiter = ',', value_name = "IDS")]
    pub tell: Vec<String>,
    /// Note for the audit log
    #[arg(long)]
    pub note: Option<String>,
}

#[derive(Args)]
pub struct AlertArgs {
    /// Event types to count, such as task.failed
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    pub types: Vec<String>,
    /// Count only events of tasks that match (comeback help filters)
    #[arg(long, value_name = "FILTER")]
    pub filter: Option<String>,
    /// Threshold: fire at this many events
    #[arg(long, default_value_t = 1)]
    pub threshold: u64,
    /// Time window of the count
    #[arg(long, value_name = "DURATION", default_value = "5m")]
    pub window: String,
    /// Also require this share of all counted events, such as 0.2 (with --of)
    #[arg(long, requires = "of")]
    pub share: Option<f64>,
    /// Event types that make up the rest of the total for --share
    #[arg(long, value_delimiter = ',', value_name = "NAMES", requires = "share")]
    pub of: Vec<String>,
}
