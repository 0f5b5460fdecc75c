//! Arguments of `workflow` and `execution`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::WatchArgs;

#[derive(Subcommand)]
pub enum WorkflowCommand {
    /// Add a workflow version from a file; errors are reported with their line
    Put {
        /// Workflow path, such as etl/nightly
        path: String,
        /// YAML or JSON file; - for standard input
        file: PathBuf,
        /// Import an older file: an unknown strategy becomes immediate, with a warning
        #[arg(long)]
        import: bool,
    },
    /// List workflows
    List,
    /// List the steps, their retry policies and where each policy comes from
    Steps {
        /// Workflow path
        path: String,
    },
    /// Activate: allow new executions again
    Activate(WorkflowArgs),
    /// Deactivate: no new executions, and its schedules stop
    Deactivate(WorkflowArgs),
    /// Pause: no new executions until resumed; running ones continue
    Pause(WorkflowArgs),
    /// Resume after a pause
    Resume(WorkflowArgs),
    /// Add an older version again as the newest one
    Rollback {
        #[command(flatten)]
        one: WorkflowArgs,
        /// Version to roll back to
        #[arg(long)]
        to: u32,
    },
    /// Show the source of a workflow
    #[command(visible_alias = "show")]
    Get {
        /// Workflow path
        path: String,
        /// Version [default: the newest]
        #[arg(long)]
        version: Option<u32>,
    },
    /// List the versions of a workflow
    Versions {
        /// Workflow path
        path: String,
    },
    /// Compare two versions
    Diff {
        /// Workflow path
        path: String,
        /// Older version [default: the one before --to]
        #[arg(long)]
        from: Option<u32>,
        /// Newer version [default: the newest]
        #[arg(long)]
        to: Option<u32>,
    },
    /// Validate a file, without a server
    Check {
        /// YAML or JSON file; - for standard input
        file: PathBuf,
    },
    /// Print the JSON Schema of workflow files, for editors
    Schema,
}

#[derive(Args)]
pub struct WorkflowArgs {
    /// Workflow path
    pub path: String,
    /// Note for the audit log
    #[arg(long)]
    pub note: Option<String>,
}

#[derive(Subcommand)]
pub enum ExecutionCommand {
    /// Start an execution of a workflow
    Start(StartArgs),
    /// List executions, newest first
    List {
        /// pending, running, paused, succeeded, failed or canceled (comma-separated)
        #[arg(long)]
        state: Option<String>,
        /// Only executions of this workflow
        #[arg(long, value_name = "PATH")]
        workflow: Option<String>,
        /// Maximum number to list
        #[arg(long, default_value_t = 20)]
        limit: u32,
        #[command(flatten)]
        watch: WatchArgs,
    },
    /// Show an execution and its steps
    Get {
        /// Execution id, or its first or last characters
        id: String,
        #[command(flatten)]
        watch: WatchArgs,
    },
    /// Cancel all open steps
    Cancel(ExecutionArgs),
    /// Pause: start no more steps until resumed
    Pause(ExecutionArgs),
    /// Resume after a pause
    Resume(ExecutionArgs),
    /// Retry the failed steps, or rerun it as a new execution
    Retry {
        #[command(flatten)]
        one: ExecutionArgs,
        /// Start a new execution of the same version with the same input
        #[arg(long)]
        from_start: bool,
    },
}

#[derive(Args)]
pub struct StartArgs {
    /// Workflow path
    pub workflow: String,
    /// Version [default: the newest]
    #[arg(long)]
    pub version: Option<u32>,
    /// Input, as JSON
    #[arg(long, value_name = "JSON")]
    pub input: Option<String>,
    /// Display name
    #[arg(long)]
    pub name: Option<String>,
    /// Retry policy of the execution as a whole
    #[arg(long, value_name = "POLICY")]
    pub retry: Option<String>,
    /// Label; may be repeated
    #[arg(long = "label", value_name = "NAME=VALUE")]
    pub labels: Vec<String>,
    /// Wait until it ends; exits 10 when it failed, 11 when it was canceled
    #[arg(long)]
    pub wait: bool,
}

#[derive(Args)]
pub struct ExecutionArgs {
    /// Execution id, or its first or last characters
    pub id: String,
    /// Note for the audit log
    #[arg(long)]
    pub note: Option<String>,
}
