//! Named secrets.

use std::path::PathBuf;

use clap::Subcommand;

use super::Watch;

#[derive(Subcommand)]
pub enum SecretCommand {
    /// Put a value under a name; it is read from standard input, so that no shell remembers it
    Put {
        /// The name that calls, commands and subscriptions use
        name: String,
        /// Read the value from this file instead
        #[arg(long, value_name = "FILE")]
        file: Option<PathBuf>,
    },
    /// All names, and when each was last put
    List {
        #[command(flatten)]
        watch: Watch,
    },
    /// One of them, without its value
    Get {
        /// The name of the secret
        name: String,
    },
    /// Delete one; whatever names it fails until it is put again
    Delete {
        /// The name of the secret
        name: String,
    },
    /// Encrypt all secrets with the first of the server's keys, so that the others can go
    RotateKey,
}
