//! The commands that are servers.

use std::path::PathBuf;

use clap::Args;

#[derive(Args)]
pub struct DemoArgs {
    /// Address to listen on; the next free port when it is taken
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7330")]
    pub listen: String,
    /// Keep the data in this file
    #[arg(long, value_name = "FILE")]
    pub keep: Option<PathBuf>,
    /// How many times as fast as real time
    #[arg(long, value_name = "FACTOR", default_value_t = 60.0)]
    pub speed: f64,
    /// The same ids and delays every time
    #[arg(long, value_name = "NUMBER")]
    pub seed: Option<u64>,
    /// End after so many seconds
    #[arg(long)]
    pub seconds: Option<u64>,
    /// Do not open the dashboard in a browser
    #[arg(long)]
    pub no_open: bool,
}

#[derive(Args)]
pub struct DaemonArgs {
    /// Kinds, their commands and policies, the database and the address, in TOML
    #[arg(long, short, value_name = "FILE")]
    pub config: PathBuf,
    /// system, virtual (moved by POST /clock/advance; virtual@TIME starts there), or x60 and the like
    #[arg(long, env = "COMEBACK_CLOCK", hide_env_values = true, default_value = "system")]
    pub clock: String,
    /// Names this process among others
    #[arg(long, env = "INSTANCE_ID", hide_env_values = true)]
    pub instance: Option<String>,
    /// Let the processes of tasks see this variable of the server; PATH, HOME, LANG and the like they see anyway
    #[arg(long, env = "COMEBACK_PASS_ENV", hide_env_values = true, value_name = "NAME", value_delimiter = ',')]
    pub pass_env: Vec<String>,
    /// human or json
    #[arg(long, env = "COMEBACK_LOG_FORMAT", hide_env_values = true, default_value = "human")]
    pub log_format: String,
}

#[derive(Args)]
pub struct ServeArgs {
    /// Address to listen on
    #[arg(
        long,
        env = "COMEBACK_LISTEN",
        hide_env_values = true,
        value_name = "ADDRESS",
        default_value = "127.0.0.1:7330"
    )]
    pub listen: String,
    /// A SQLite file, or a PostgreSQL URL for many instances
    #[arg(
        long,
        env = "COMEBACK_DB",
        hide_env_values = true,
        value_name = "FILE or URL",
        default_value = "./comeback.db",
        hide_env_values = true
    )]
    pub db: String,
    /// system, virtual (moved by POST /clock/advance; virtual@TIME starts there), or x60 and the like
    #[arg(long, env = "COMEBACK_CLOCK", hide_env_values = true, default_value = "system")]
    pub clock: String,
    /// Names this process among others
    #[arg(long, env = "INSTANCE_ID", hide_env_values = true)]
    pub instance: Option<String>,
    /// This server's address as those see it whom it calls; its own where nothing is said
    #[arg(long, env = "COMEBACK_PUBLIC_URL", hide_env_values = true, value_name = "URL")]
    pub public_url: Option<String>,
    /// Let tasks start processes on this machine
    #[arg(long, env = "COMEBACK_ALLOW_COMMANDS", hide_env_values = true)]
    pub allow_commands: bool,
    /// Let the processes of tasks see this variable of the server; PATH, HOME, LANG and the like they see anyway
    #[arg(long, env = "COMEBACK_PASS_ENV", hide_env_values = true, value_name = "NAME", value_delimiter = ',')]
    pub pass_env: Vec<String>,
    /// Let calls reach loopback and private networks
    #[arg(long, env = "COMEBACK_ALLOW_PRIVATE_NETWORKS", hide_env_values = true)]
    pub allow_private_networks: bool,
    /// Let calls reach a network that is not public, such as 10.1.0.0/16
    #[arg(long, env = "COMEBACK_ALLOW_NETWORK", hide_env_values = true, value_name = "CIDR", value_delimiter = ',')]
    pub allow_network: Vec<String>,
    /// Believe X-Forwarded-For of proxies in this network, such as 10.1.0.0/16
    #[arg(long, env = "COMEBACK_TRUSTED_PROXY", hide_env_values = true, value_name = "CIDR", value_delimiter = ',')]
    pub trusted_proxy: Vec<String>,
    /// Leave http, command and timer tasks to other instances
    #[arg(long, env = "COMEBACK_NO_EXECUTORS", hide_env_values = true)]
    pub no_executors: bool,
    /// How long tasks that are over are kept, such as 90d; for ever when nothing is said
    #[arg(long, env = "COMEBACK_RETENTION", hide_env_values = true, value_name = "SPAN")]
    pub retention: Option<String>,
    /// How long work without a lease may be silent until it counts as stuck
    #[arg(long, env = "COMEBACK_STUCK_AFTER", hide_env_values = true, value_name = "SPAN", default_value = "30m")]
    pub stuck_after: String,
    /// How often a loop looks when nothing told it to, such as retries=10s or repair=30s; 1s, prune 30s, and repair only when asked
    #[arg(long, env = "COMEBACK_LOOK_EVERY", hide_env_values = true, value_name = "LOOP=SPAN", value_delimiter = ',')]
    pub look_every: Vec<String>,
    /// Change a limit, such as payload_bytes=1048576; a wrong name lists them all
    #[arg(long, env = "COMEBACK_LIMIT", hide_env_values = true, value_name = "NAME=VALUE", value_delimiter = ',')]
    pub limit: Vec<String>,
    /// Change what one namespace may have, such as lanes=20000; a wrong name lists them all
    #[arg(long, env = "COMEBACK_QUOTA", hide_env_values = true, value_name = "NAME=VALUE", value_delimiter = ',')]
    pub quota: Vec<String>,
    /// A file with the keys that named secrets are encrypted with, the newest first; COMEBACK_SECRET_KEY may hold them instead
    #[arg(long, env = "COMEBACK_SECRET_KEY_FILE", hide_env_values = true, value_name = "FILE")]
    pub secret_key_file: Option<std::path::PathBuf>,
    /// human or json
    #[arg(long, env = "COMEBACK_LOG_FORMAT", hide_env_values = true, default_value = "human")]
    pub log_format: String,
}
