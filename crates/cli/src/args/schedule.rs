//! Arguments of `schedule`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::WatchArgs;

#[derive(Subcommand)]
pub enum ScheduleCommand {
    /// Create or replace a schedule
    Put(Box<PutScheduleArgs>),
    /// List schedules and when each fires next
    List {
        #[command(flatten)]
        watch: WatchArgs,
    },
    /// Show a schedule: next times and last run
    #[command(visible_alias = "show")]
    Get {
        /// Schedule name
        name: String,
    },
    /// Pause a schedule
    Pause {
        /// Schedule name
        name: String,
        /// Note for the audit log
        #[arg(long)]
        note: Option<String>,
    },
    /// Resume a schedule
    Resume {
        /// Schedule name
        name: String,
    },
    /// Fire a schedule now
    Trigger {
        /// Schedule name
        name: String,
    },
    /// Publish an event: every schedule that waits for it fires
    Tell {
        /// Event type, such as order.paid
        #[arg(value_name = "TYPE")]
        event: String,
        /// Event data as JSON; {{ event.data }} in the schedule
        #[arg(long, value_name = "JSON")]
        data: Option<String>,
        /// Event id; an event with a known id fires nothing again
        #[arg(long)]
        id: Option<String>,
    },
    /// Delete a schedule; what it started continues
    Delete {
        /// Schedule name
        name: String,
    },
    /// Print the next times of an expression, without a server
    Next {
        #[command(flatten)]
        times: TimesArgs,
        /// Number of times to print
        #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=1000))]
        count: u16,
        /// Start of the list [default: now]
        #[arg(long, value_name = "TIME")]
        after: Option<String>,
    },
}

#[derive(Args)]
pub struct TimesArgs {
    /// Cron expression: minute, hour, day, month, weekday, such as '30 2 * * 1-5'
    #[arg(long, value_name = "EXPRESSION", conflicts_with = "every", required_unless_present_any = ["every", "event"])]
    pub cron: Option<String>,
    /// Interval between two firings, such as 8h
    #[arg(long, value_name = "DURATION")]
    pub every: Option<String>,
    /// Fire on events of this type (comeback schedule tell); may end in *
    #[arg(long, value_name = "TYPE", conflicts_with_all = ["cron", "every"])]
    pub event: Option<String>,
    /// Time zone, such as Europe/Berlin [default: UTC]
    #[arg(long, value_name = "ZONE")]
    pub time_zone: Option<String>,
    /// Do not fire before this time
    #[arg(long, value_name = "TIME")]
    pub start_at: Option<String>,
    /// Do not fire after this time
    #[arg(long, value_name = "TIME")]
    pub end_at: Option<String>,
}

#[derive(Args)]
pub struct PutScheduleArgs {
    /// Schedule name, such as reports/nightly
    pub name: String,
    #[command(flatten)]
    pub times: TimesArgs,
    /// Path of the workflow to start
    #[arg(long, value_name = "PATH", conflicts_with = "task", required_unless_present = "task")]
    pub workflow: Option<String>,
    /// Workflow version [default: the newest when it fires]
    #[arg(long, requires = "workflow")]
    pub version: Option<u32>,
    /// Input of the workflow, as JSON; {{ scheduled_at }} is the scheduled time
    #[arg(long, value_name = "JSON", requires = "workflow")]
    pub input: Option<String>,
    /// File with the task to create, as JSON; - for standard input
    #[arg(long, value_name = "FILE")]
    pub task: Option<PathBuf>,
    /// Missed times to catch up on after downtime: none, last or all
    #[arg(long, default_value = "last")]
    pub catch_up: String,
    /// Maximum number to catch up on, with --catch-up all
    #[arg(long, value_name = "COUNT")]
    pub catch_up_limit: Option<u32>,
    /// While the previous run is open: allow or skip
    #[arg(long, default_value = "allow")]
    pub overlap: String,
    /// Create it paused
    #[arg(long)]
    pub paused: bool,
    /// Note for the audit log
    #[arg(long)]
    pub note: Option<String>,
}
