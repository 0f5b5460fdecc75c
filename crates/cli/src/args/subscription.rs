//! Arguments of `subscription`.

use clap::{Args, Subcommand};

use super::WatchArgs;

#[derive(Subcommand)]
pub enum SubscriptionCommand {
    /// Create a webhook subscription; the secret is shown once
    Create(SubscribeArgs),
    /// List subscriptions
    List {
        #[command(flatten)]
        watch: WatchArgs,
    },
    /// Show a subscription
    Get {
        /// Subscription id
        id: String,
    },
    /// List deliveries and their outcome
    Deliveries {
        /// Subscription id
        id: String,
        /// Maximum number to list
        #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..=500))]
        limit: u16,
        #[command(flatten)]
        watch: WatchArgs,
    },
    /// Send a test event
    Test {
        /// Subscription id
        id: String,
    },
    /// Redeliver one event, or all deliveries given up since a time
    Redeliver {
        /// Subscription id
        id: String,
        /// Event id, or the webhook-id it was delivered under
        #[arg(long, conflicts_with = "since", required_unless_present = "since")]
        event: Option<String>,
        /// Time, or how long ago, such as 3d
        #[arg(long, value_name = "TIME")]
        since: Option<String>,
    },
    /// Rotate the signing secret; for a day both secrets sign
    Rotate {
        /// Subscription id
        id: String,
    },
    /// Delete a subscription; pending deliveries are dropped
    Delete {
        /// Subscription id
        id: String,
    },
}

#[derive(Args)]
pub struct SubscribeArgs {
    /// URL to deliver to
    pub url: String,
    /// Subscription id [default: generated]
    #[arg(long)]
    pub id: Option<String>,
    /// Event types, such as task.failed or 'task.*' [default: all]
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    pub types: Vec<String>,
    /// Only events of tasks that match (comeback help filters)
    #[arg(long, value_name = "FILTER")]
    pub filter: Option<String>,
    /// Payload format: webhook or cloudevents
    #[arg(long, default_value = "webhook")]
    pub format: String,
    /// Retry policy as JSON [default: ten attempts over three days]
    #[arg(long, value_name = "POLICY")]
    pub retry: Option<String>,
    /// Note for the audit log
    #[arg(long)]
    pub note: Option<String>,
}
