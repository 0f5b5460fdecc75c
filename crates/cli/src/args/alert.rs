//! Alerts.

use clap::{Args, Subcommand};

use super::Watch;

#[derive(Subcommand)]
pub enum AlertCommand {
    /// Make an alert, or put another in its place
    Put(PutAlertArgs),
    /// All alerts, and which of them fire
    List {
        #[command(flatten)]
        watch: Watch,
    },
    /// One alert
    Get {
        /// The name of the alert
        name: String,
    },
    /// When it would have fired in the last days
    Backtest {
        /// One that is there; or say what it would be with --types
        #[arg(conflicts_with = "types", required_unless_present = "types")]
        name: Option<String>,
        #[command(flatten)]
        what: AlertArgs,
        /// How far back, 7d at most
        #[arg(long, value_name = "SPAN", default_value = "7d")]
        within: String,
    },
    /// Delete it
    Delete {
        /// The name of the alert
        name: String,
    },
}

#[derive(Args)]
pub struct PutAlertArgs {
    /// The name of the alert
    pub name: String,
    #[command(flatten)]
    pub what: AlertArgs,
    /// Subscriptions that are told, by id [default: all that want alerts]
    #[arg(long, value_delimiter = ',', value_name = "IDS")]
    pub tell: Vec<String>,
    /// Why
    #[arg(long)]
    pub note: Option<String>,
}

#[derive(Args)]
pub struct AlertArgs {
    /// Types of events, such as task.failed
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    pub types: Vec<String>,
    /// Only events of tasks for which this holds: comeback help filters
    #[arg(long, value_name = "FILTER")]
    pub filter: Option<String>,
    /// So many are too many
    #[arg(long, default_value_t = 1)]
    pub threshold: u64,
    /// Within this
    #[arg(long, value_name = "SPAN", default_value = "5m")]
    pub window: String,
    /// And only where they are at least this share, such as 0.2, of themselves and --of
    #[arg(long, requires = "of")]
    pub share: Option<f64>,
    /// Types of events that the share is of
    #[arg(long, value_delimiter = ',', value_name = "NAMES", requires = "share")]
    pub of: Vec<String>,
}
