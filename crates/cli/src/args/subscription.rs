//! Subscriptions.

use clap::{Args, Subcommand};

use super::Watch;

#[derive(Subcommand)]
pub enum SubscriptionCommand {
    /// Tell somebody outside what happens; the secret is shown once
    Create(SubscribeArgs),
    /// All subscriptions, and how they are
    List {
        #[command(flatten)]
        watch: Watch,
    },
    /// One subscription
    Get {
        /// The id of the subscription
        id: String,
    },
    /// What was delivered, and what came of it
    Deliveries {
        /// The id of the subscription
        id: String,
        /// How many at most
        #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..=500))]
        limit: u16,
        #[command(flatten)]
        watch: Watch,
    },
    /// Deliver something to see whether it arrives
    Test {
        /// The id of the subscription
        id: String,
    },
    /// Deliver again: one event, or whatever was given up since some time ago
    Redeliver {
        /// The id of the subscription
        id: String,
        /// The id of an event, or the webhook-id that it was delivered under
        #[arg(long, conflicts_with = "since", required_unless_present = "since")]
        event: Option<String>,
        /// An instant, or how long ago, such as 3d
        #[arg(long, value_name = "WHEN")]
        since: Option<String>,
    },
    /// Sign with another secret; both sign for a day
    Rotate {
        /// The id of the subscription
        id: String,
    },
    /// Delete it; what was not delivered yet never is
    Delete {
        /// The id of the subscription
        id: String,
    },
}

#[derive(Args)]
pub struct SubscribeArgs {
    /// Where deliveries go
    pub url: String,
    /// A name of your own
    #[arg(long)]
    pub id: Option<String>,
    /// Types of events, such as task.failed or 'task.*' [default: all]
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    pub types: Vec<String>,
    /// Only events of tasks for which this holds: comeback help filters
    #[arg(long, value_name = "FILTER")]
    pub filter: Option<String>,
    /// webhook or cloudevents
    #[arg(long, default_value = "webhook")]
    pub format: String,
    /// A policy in place of ours, which tries ten times over three days; as JSON
    #[arg(long, value_name = "POLICY")]
    pub retry: Option<String>,
    /// Why
    #[arg(long)]
    pub note: Option<String>,
}
