//! Schedules.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::Watch;

#[derive(Subcommand)]
pub enum ScheduleCommand {
    /// Make a schedule, or put another in its place
    Put(Box<PutScheduleArgs>),
    /// All schedules, and when each fires next
    List {
        #[command(flatten)]
        watch: Watch,
    },
    /// One schedule: its next instants, and what came of the last
    Show {
        /// As schedule list shows it
        name: String,
    },
    /// Let its instants pass until it is resumed
    Pause {
        /// As schedule list shows it
        name: String,
        /// Why
        #[arg(long)]
        note: Option<String>,
    },
    /// Fire again from now on
    Resume {
        /// As schedule list shows it
        name: String,
    },
    /// Start what it starts, now
    Trigger {
        /// As schedule list shows it
        name: String,
    },
    /// Tell of an event from outside: every schedule that waits for it fires
    Tell {
        /// Of the event, such as order.paid
        #[arg(value_name = "TYPE")]
        event: String,
        /// What happened, as JSON; {{ event.data }} in the schedule
        #[arg(long, value_name = "JSON")]
        data: Option<String>,
        /// The same event has the same id, and starts nothing twice
        #[arg(long)]
        id: Option<String>,
    },
    /// Delete it; what it has started goes on
    Delete {
        /// As schedule list shows it
        name: String,
    },
    /// The instants that an expression names, without a server
    Next {
        #[command(flatten)]
        times: TimesArgs,
        /// How many
        #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=1000))]
        count: u16,
        /// After which instant; now where nothing is said
        #[arg(long, value_name = "INSTANT")]
        after: Option<String>,
    },
}

#[derive(Args)]
pub struct TimesArgs {
    /// Minute, hour, day, month and weekday, such as '30 2 * * 1-5'
    #[arg(long, value_name = "EXPRESSION", conflicts_with = "every", required_unless_present_any = ["every", "event"])]
    pub cron: Option<String>,
    /// A span from one instant to the next, such as 8h
    #[arg(long, value_name = "SPAN")]
    pub every: Option<String>,
    /// In place of instants: events of this type, as schedule tell tells them; it may end in *
    #[arg(long, value_name = "TYPE", conflicts_with_all = ["cron", "every"])]
    pub event: Option<String>,
    /// Such as Europe/Berlin [default: UTC]
    #[arg(long, value_name = "ZONE")]
    pub time_zone: Option<String>,
    /// Nothing before this
    #[arg(long, value_name = "INSTANT")]
    pub start_at: Option<String>,
    /// Nothing after this
    #[arg(long, value_name = "INSTANT")]
    pub end_at: Option<String>,
}

#[derive(Args)]
pub struct PutScheduleArgs {
    /// What it is called, such as reports/nightly
    pub name: String,
    #[command(flatten)]
    pub times: TimesArgs,
    /// The path of the workflow that it executes
    #[arg(long, value_name = "PATH", conflicts_with = "task", required_unless_present = "task")]
    pub workflow: Option<String>,
    /// Another version than the newest at each instant
    #[arg(long, requires = "workflow")]
    pub version: Option<u32>,
    /// The workflow's input, as JSON; {{ scheduled_at }} is the instant
    #[arg(long, value_name = "JSON", requires = "workflow")]
    pub input: Option<String>,
    /// A file with the task that it makes, as JSON; - for standard input
    #[arg(long, value_name = "FILE")]
    pub task: Option<PathBuf>,
    /// What becomes of instants that nobody was there for: none, last or all
    #[arg(long, default_value = "last")]
    pub catch_up: String,
    /// How many of them at most, for all
    #[arg(long, value_name = "COUNT")]
    pub catch_up_limit: Option<u32>,
    /// Whether an instant fires while the run before is open: allow or skip
    #[arg(long, default_value = "allow")]
    pub overlap: String,
    /// It fires once it is resumed
    #[arg(long)]
    pub paused: bool,
    /// Why
    #[arg(long)]
    pub note: Option<String>,
}
