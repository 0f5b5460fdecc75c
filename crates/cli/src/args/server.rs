//! Arguments of `demo`, `serve` and `daemon`.

use std::path::PathBuf;

use clap::Args;

#[derive(Args)]
pub struct DemoArgs {
    /// Address to listen on; the next free port if it is taken
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7330")]
    pub listen: String,
    /// Keep the data in this file
    #[arg(long, value_name = "FILE")]
    pub keep: Option<PathBuf>,
    /// Clock speed, as a multiple of real time
    #[arg(long, value_name = "FACTOR", default_value_t = 60.0)]
    pub speed: f64,
    /// Seed for reproducible ids and delays
    #[arg(long, value_name = "NUMBER")]
    pub seed: Option<u64>,
    /// Exit after this many seconds
    #[arg(long)]
    pub seconds: Option<u64>,
    /// Do not open the dashboard in a browser
    #[arg(long)]
    pub no_open: bool,
}

#[derive(Args)]
pub struct DaemonArgs {
    /// TOML file with kinds, commands, policies, database and address
    #[arg(long, short, value_name = "FILE")]
    pub config: PathBuf,
    /// Clock: system, virtual (POST /clock/advance; virtual@TIME to start at a time), or a speed such as x60
    #[arg(long, env = "COMEBACK_CLOCK", hide_env_values = true, default_value = "system")]
    pub clock: String,
    /// Instance name [default: host and process id]
    #[arg(long, env = "INSTANCE_ID", hide_env_values = true)]
    pub instance: Option<String>,
    /// Pass this environment variable to commands; PATH, HOME, LANG and the like are always passed
    #[arg(long, env = "COMEBACK_PASS_ENV", hide_env_values = true, value_name = "NAME", value_delimiter = ',')]
    pub pass_env: Vec<String>,
    /// Log format: human or json
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
    /// SQLite file, or PostgreSQL URL for several instances
    #[arg(
        long,
        env = "COMEBACK_DB",
        hide_env_values = true,
        value_name = "FILE or URL",
        default_value = "./comeback.db",
        hide_env_values = true
    )]
    pub db: String,
    /// Clock: system, virtual (POST /clock/advance; virtual@TIME to start at a time), or a speed such as x60
    #[arg(long, env = "COMEBACK_CLOCK", hide_env_values = true, default_value = "system")]
    pub clock: String,
    /// Instance name [default: host and process id]
    #[arg(long, env = "INSTANCE_ID", hide_env_values = true)]
    pub instance: Option<String>,
    /// Public base URL for callbacks [default: listen address]
    #[arg(long, env = "COMEBACK_PUBLIC_URL", hide_env_values = true, value_name = "URL")]
    pub public_url: Option<String>,
    /// Allow tasks to run commands on this machine
    #[arg(long, env = "COMEBACK_ALLOW_COMMANDS", hide_env_values = true)]
    pub allow_commands: bool,
    /// Pass this environment variable to commands; PATH, HOME, LANG and the like are always passed
    #[arg(long, env = "COMEBACK_PASS_ENV", hide_env_values = true, value_name = "NAME", value_delimiter = ',')]
    pub pass_env: Vec<String>,
    /// Allow HTTP calls to loopback and private networks
    #[arg(long, env = "COMEBACK_ALLOW_PRIVATE_NETWORKS", hide_env_values = true)]
    pub allow_private_networks: bool,
    /// Allow HTTP calls to this non-public network, such as 10.1.0.0/16
    #[arg(long, env = "COMEBACK_ALLOW_NETWORK", hide_env_values = true, value_name = "CIDR", value_delimiter = ',')]
    pub allow_network: Vec<String>,
    /// Trust X-Forwarded-For from proxies in this network, such as 10.1.0.0/16
    #[arg(long, env = "COMEBACK_TRUSTED_PROXY", hide_env_values = true, value_name = "CIDR", value_delimiter = ',')]
    pub trusted_proxy: Vec<String>,
    /// Do not run http, command and timer tasks on this instance
    #[arg(long, env = "COMEBACK_NO_EXECUTORS", hide_env_values = true)]
    pub no_executors: bool,
    /// Delete ended tasks after this time, such as 90d [default: never]
    #[arg(long, env = "COMEBACK_RETENTION", hide_env_values = true, value_name = "DURATION")]
    pub retention: Option<String>,
    /// Time without a sign of life after which work without a lease counts as stuck
    #[arg(long, env = "COMEBACK_STUCK_AFTER", hide_env_values = true, value_name = "DURATION", default_value = "30m")]
    pub stuck_after: String,
    /// Polling interval of a loop, such as retries=10s [default: 1s, prune 30s, repair on request]
    #[arg(
        long,
        env = "COMEBACK_LOOK_EVERY",
        hide_env_values = true,
        value_name = "LOOP=DURATION",
        value_delimiter = ','
    )]
    pub look_every: Vec<String>,
    /// Set a limit, such as payload_bytes=1048576; an unknown name lists them all
    #[arg(long, env = "COMEBACK_LIMIT", hide_env_values = true, value_name = "NAME=VALUE", value_delimiter = ',')]
    pub limit: Vec<String>,
    /// Set a quota per namespace, such as lanes=20000; an unknown name lists them all
    #[arg(long, env = "COMEBACK_QUOTA", hide_env_values = true, value_name = "NAME=VALUE", value_delimiter = ',')]
    pub quota: Vec<String>,
    /// File with the encryption keys for secrets, newest first; or use COMEBACK_SECRET_KEY
    #[arg(long, env = "COMEBACK_SECRET_KEY_FILE", hide_env_values = true, value_name = "FILE")]
    pub secret_key_file: Option<std::path::PathBuf>,
    /// Log format: human or json
    #[arg(long, env = "COMEBACK_LOG_FORMAT", hide_env_values = true, default_value = "human")]
    pub log_format: String,
}
