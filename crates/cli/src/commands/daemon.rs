//! `daemon`: `serve` with kinds of tasks that the server runs itself; their commands and policies are read from a file.

mod file;

use comeback_core::Millis;
use comeback_engine::executors::{Kind, Kinds};

use super::serve::{self, ServeExtras};
use crate::args::{DaemonArgs, ServeArgs};
use crate::error::CliError;
use crate::output::span;
use file::DaemonConfig;

pub async fn run(args: DaemonArgs) -> Result<u8, CliError> {
    let configured = file::read(&args.config)?;
    let DaemonConfig { listen, db, retention, limits, grace, kinds } = configured;
    let serve = ServeArgs {
        listen,
        db,
        clock: args.clock,
        instance: args.instance,
        public_url: None,
        allow_commands: false,
        pass_env: args.pass_env,
        allow_private_networks: false,
        allow_network: Vec::new(),
        trusted_proxy: Vec::new(),
        no_executors: false,
        retention,
        stuck_after: "30m".into(),
        look_every: Vec::new(),
        limit: limits,
        quota: Vec::new(),
        secret_key_file: std::env::var_os("COMEBACK_SECRET_KEY_FILE").map(Into::into),
        log_format: args.log_format,
    };
    let lines = kinds.iter().enumerate().map(|(i, kind)| {
        let name = if i == 0 { "Kinds" } else { "" };
        format!("{name:<12}{}", words(kind))
    });
    let lines = lines.collect();
    serve::run(serve, ServeExtras { kinds: Kinds::of(kinds), grace, lines }).await
}

/// One line about a kind, for the banner.
fn words(kind: &Kind) -> String {
    let mut parts = vec![match kind.concurrency {
        1 => "one at a time".to_owned(),
        many => format!("{many} at a time"),
    }];
    if let Some(retry) = &kind.retry {
        parts.push(match retry.max_retries {
            0 => "no retries".to_owned(),
            retries => format!("{} attempts", retries + 1),
        });
    }
    if let Some(categories) = &kind.categories {
        parts.push(format!("only {}", categories.join(", ")));
    }
    if let Some(timeout) = kind.timeout {
        parts.push(format!("timeout {}", span(timeout)));
    }
    if let Some(discover) = &kind.discover {
        parts.push(format!("discovers every {}", span(discover.every.max(Millis(1)))));
    }
    format!("{}: {}", kind.name, parts.join("; "))
}
