//! Arguments of `secret`.

use std::path::PathBuf;

use clap::Subcommand;

use super::WatchArgs;

#[derive(Subcommand)]
pub enum SecretCommand {
    /// Create or replace a secret; the value is read from standard input
    Put {
        /// Secret name, as calls, commands and subscriptions refer to it
        name: String,
        /// Read the value from this file instead
        #[arg(long, value_name = "FILE")]
        file: Option<PathBuf>,
    },
    /// List secrets, without their values
    List {
        #[command(flatten)]
        watch: WatchArgs,
    },
    /// Show a secret, without its value
    Get {
        /// Secret name
        name: String,
    },
    /// Delete a secret; what refers to it fails until it is put again
    Delete {
        /// Secret name
        name: String,
    },
    /// Re-encrypt all secrets with the server's first key, so that older keys can be removed
    RotateKey,
}
