//! Arguments of `dependency`.

use clap::{Args, Subcommand};

#[derive(Subcommand)]
pub enum DependencyCommand {
    /// List dependencies and their state
    List,
    /// Show a dependency and its state
    Get {
        /// Dependency name
        name: String,
    },
    /// Create or replace a dependency; guards that are not given are off
    #[command(visible_alias = "set")]
    Put(Box<PutDependencyArgs>),
    /// Open the breaker: block all tasks that need it
    Open(BreakerArgs),
    /// Close the breaker: release all blocked tasks at once
    Close(BreakerArgs),
    /// Mark it healthy: release blocked tasks gradually, in waves
    Healthy {
        /// Dependency name
        name: String,
        /// Note for the audit log
        #[arg(long)]
        note: Option<String>,
    },
    /// Schedule a maintenance window: block tasks that need it meanwhile
    Maintenance {
        /// Dependency name
        name: String,
        /// Start of the window [default: now]
        #[arg(long, value_name = "TIME")]
        from: Option<String>,
        /// End of the window
        #[arg(long, value_name = "TIME")]
        to: String,
        /// Note for the audit log
        #[arg(long)]
        note: Option<String>,
    },
    /// Delete a dependency and release the tasks it blocked
    Delete {
        /// Dependency name
        name: String,
    },
}

#[derive(Args)]
pub struct BreakerArgs {
    /// Dependency name
    pub name: String,
    /// For this long
    #[arg(long = "for", value_name = "DURATION")]
    pub duration: Option<String>,
    /// Note for the audit log
    #[arg(long)]
    pub note: Option<String>,
}

#[derive(Args)]
pub struct PutDependencyArgs {
    /// Dependency name, as tasks give it, or the host of HTTP calls
    pub name: String,
    /// All settings as JSON, in place of the options below
    #[arg(long, value_name = "JSON", conflicts_with_all = ["gate", "breaker", "budget", "concurrency"])]
    pub settings: Option<String>,
    /// Gate: one Retry-After blocks all tasks of this dependency
    #[arg(long)]
    pub gate: bool,
    /// Circuit breaker: block all tasks while most attempts fail
    #[arg(long)]
    pub breaker: bool,
    /// Failures that open the breaker [default: 10]
    #[arg(long, value_name = "COUNT", requires = "breaker")]
    pub failures: Option<u32>,
    /// Minimum failure rate, from 0 to 1 [default: 0.5]
    #[arg(long, value_name = "PART", requires = "breaker")]
    pub ratio: Option<f64>,
    /// Time window of the failure count [default: 10s]
    #[arg(long, value_name = "DURATION", requires = "breaker")]
    pub window: Option<String>,
    /// Time from opening to the first canaries [default: 2s]
    #[arg(long, value_name = "DURATION", requires = "breaker")]
    pub open: Option<String>,
    /// Longest open time; it grows while canaries fail [default: 15s]
    #[arg(long, value_name = "DURATION", requires = "breaker")]
    pub max_open: Option<String>,
    /// Retry budget, in percent of first attempts
    #[arg(long, value_name = "PERCENT")]
    pub budget: Option<f64>,
    /// Retries per second that are always allowed [default: 1]
    #[arg(long, value_name = "COUNT", requires = "budget")]
    pub floor: Option<f64>,
    /// Maximum concurrency; lowered on errors and slow answers
    #[arg(long, value_name = "MAX")]
    pub concurrency: Option<u32>,
    /// Latency above which an answer counts as slow [default: half of the run timeout]
    #[arg(long, value_name = "DURATION", requires = "concurrency")]
    pub target: Option<String>,
}
