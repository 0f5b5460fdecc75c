//! Dependencies.

use clap::{Args, Subcommand};

#[derive(Subcommand)]
pub enum DependencyCommand {
    /// The dependencies, and how they stand
    List,
    /// A dependency, and how it stands
    Get {
        /// As dependency list shows it
        name: String,
    },
    /// Say what holds tasks back that need it; what is not said is off
    Set(Box<SetArgs>),
    /// Let nothing start that needs it
    Open(TurnArgs),
    /// Let everything start at once
    Close(TurnArgs),
    /// Say that it is well again: those who wait follow in waves
    Healthy {
        /// As dependency list shows it
        name: String,
        /// A note for whoever wonders
        #[arg(long)]
        note: Option<String>,
    },
    /// Announce work on it: nothing that needs it starts meanwhile
    Maintenance {
        /// As dependency list shows it
        name: String,
        /// When it begins [default: now]
        #[arg(long, value_name = "INSTANT")]
        from: Option<String>,
        /// When it is over
        #[arg(long, value_name = "INSTANT")]
        to: String,
        /// A note for whoever wonders
        #[arg(long)]
        note: Option<String>,
    },
    /// Forget it; what it held may start
    Delete {
        /// As dependency list shows it
        name: String,
    },
}

#[derive(Args)]
pub struct TurnArgs {
    /// As dependency list shows it
    pub name: String,
    /// For so long
    #[arg(long = "for", value_name = "SPAN")]
    pub lasts: Option<String>,
    /// A note for whoever wonders
    #[arg(long)]
    pub note: Option<String>,
}

#[derive(Args)]
pub struct SetArgs {
    /// What tasks name, or the host of calls
    pub name: String,
    /// All of it as JSON, in place of the options below
    #[arg(long, value_name = "JSON", conflicts_with_all = ["gate", "breaker", "budget", "concurrency"])]
    pub settings: Option<String>,
    /// One Retry-After holds everybody
    #[arg(long)]
    pub gate: bool,
    /// Hold everybody while most of what is tried fails
    #[arg(long)]
    pub breaker: bool,
    /// How many failures open it [default: 10]
    #[arg(long, value_name = "COUNT", requires = "breaker")]
    pub failures: Option<u32>,
    /// If they are this part of all that ended [default: 0.5]
    #[arg(long, value_name = "PART", requires = "breaker")]
    pub ratio: Option<f64>,
    /// Within so long [default: 10s]
    #[arg(long, value_name = "SPAN", requires = "breaker")]
    pub window: Option<String>,
    /// How long until the first canaries [default: 2s]
    #[arg(long, value_name = "SPAN", requires = "breaker")]
    pub open: Option<String>,
    /// How long at most, since it becomes longer while they fail [default: 15s]
    #[arg(long, value_name = "SPAN", requires = "breaker")]
    pub max_open: Option<String>,
    /// Retries at most so many percent of first attempts
    #[arg(long, value_name = "PERCENT")]
    pub budget: Option<f64>,
    /// And so many a second in any case [default: 1]
    #[arg(long, value_name = "COUNT", requires = "budget")]
    pub floor: Option<f64>,
    /// So many at once at most, fewer on errors and slow answers
    #[arg(long, value_name = "MAX")]
    pub concurrency: Option<u32>,
    /// What a slow answer is [default: half of the time that a run may take]
    #[arg(long, value_name = "SPAN", requires = "concurrency")]
    pub target: Option<String>,
}
