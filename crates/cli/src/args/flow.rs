//! Workflows and their executions.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::Watch;

#[derive(Subcommand)]
pub enum WorkflowCommand {
    /// Put a file into the catalog; what is wrong with it is told with its line
    Put {
        /// Where it goes, such as etl/nightly
        path: String,
        /// YAML or JSON; - for standard input
        file: PathBuf,
        /// It is from before: a strategy that nobody knows becomes immediate, with a warning
        #[arg(long)]
        import: bool,
    },
    /// What is in the catalog
    List,
    /// Its steps, how each is retried, and who says so
    Steps {
        /// As workflow list shows it
        path: String,
    },
    /// Let whatever starts it do so again
    Activate(SwitchArgs),
    /// Take it out of use: nothing starts it, and its schedules stop
    Deactivate(SwitchArgs),
    /// Let nothing start it until it is resumed; what was begun goes on
    Pause(SwitchArgs),
    /// Go on after a pause
    Resume(SwitchArgs),
    /// Make an older version the newest again
    Rollback {
        #[command(flatten)]
        one: SwitchArgs,
        /// Which one
        #[arg(long)]
        to: u32,
    },
    /// A workflow as it was written
    Show {
        /// As workflow list shows it
        path: String,
        /// Another than the newest
        #[arg(long)]
        version: Option<u32>,
    },
    /// Its versions
    Versions {
        /// As workflow list shows it
        path: String,
    },
    /// What changed from one version to another
    Diff {
        /// As workflow list shows it
        path: String,
        /// The one before where nothing is said
        #[arg(long)]
        from: Option<u32>,
        /// The newest where nothing is said
        #[arg(long)]
        to: Option<u32>,
    },
    /// Look whether a file is well, without a server
    Check {
        /// YAML or JSON; - for standard input
        file: PathBuf,
    },
    /// The JSON Schema of workflows, for editors
    Schema,
}

#[derive(Args)]
pub struct SwitchArgs {
    /// As workflow list shows it
    pub path: String,
    /// Why
    #[arg(long)]
    pub note: Option<String>,
}

#[derive(Subcommand)]
pub enum ExecutionCommand {
    /// Execute a workflow
    Start(StartArgs),
    /// Executions, newest first
    List {
        /// pending, running, paused, succeeded, failed or canceled; several with commas
        #[arg(long)]
        state: Option<String>,
        /// Of one workflow
        #[arg(long, value_name = "PATH")]
        workflow: Option<String>,
        /// At most so many
        #[arg(long, default_value_t = 20)]
        limit: u32,
        #[command(flatten)]
        watch: Watch,
    },
    /// One execution with its steps
    Get {
        /// A whole id, or either end of one
        id: String,
        #[command(flatten)]
        watch: Watch,
    },
    /// Cancel everything in it that is open
    Cancel(OneArgs),
    /// Start nothing more of it until it is resumed
    Pause(OneArgs),
    /// Go on
    Resume(OneArgs),
    /// Try again what failed, or all of it as a new execution
    Retry {
        #[command(flatten)]
        one: OneArgs,
        /// A new execution of the same version with the same input
        #[arg(long)]
        from_start: bool,
    },
}

#[derive(Args)]
pub struct StartArgs {
    /// The path of a workflow
    pub workflow: String,
    /// Another version than the newest
    #[arg(long)]
    pub version: Option<u32>,
    /// Its input, as JSON
    #[arg(long, value_name = "JSON")]
    pub input: Option<String>,
    /// What people call it
    #[arg(long)]
    pub name: Option<String>,
    /// A policy for the execution as a whole
    #[arg(long, value_name = "POLICY")]
    pub retry: Option<String>,
    /// A label, as name=value
    #[arg(long = "label", value_name = "NAME=VALUE")]
    pub labels: Vec<String>,
    /// Wait until it is over; exits 8 when it failed
    #[arg(long)]
    pub wait: bool,
}

#[derive(Args)]
pub struct OneArgs {
    /// A whole id, or either end of one
    pub id: String,
    /// A note for whoever wonders
    #[arg(long)]
    pub note: Option<String>,
}
