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
    },
    /// What is in the catalog
    List,
    /// A workflow as it was written
    Show {
        path: String,
        /// Another than the newest
        #[arg(long)]
        version: Option<u32>,
    },
    /// Its versions
    Versions { path: String },
    /// What changed from one version to another
    Diff {
        path: String,
        /// The one before where nothing is said
        #[arg(long)]
        from: Option<u32>,
        /// The newest where nothing is said
        #[arg(long)]
        to: Option<u32>,
    },
    /// Look whether a file is well, without a server
    Check { file: PathBuf },
    /// The JSON Schema of workflows, for editors
    Schema,
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
    pub id: String,
    /// A note for whoever wonders
    #[arg(long)]
    pub note: Option<String>,
}
