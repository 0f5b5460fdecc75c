//! Help: about a command, or about what all commands share.

use crate::failure::{Failure, code};
use crate::output::say;

const TOPICS: [(&str, &str); 4] = [
    ("filters", include_str!("help/filters.txt")),
    ("policies", include_str!("help/policies.txt")),
    ("exit-codes", include_str!("help/exit-codes.txt")),
    ("environment", include_str!("help/environment.txt")),
];

pub fn run(about: &[String]) -> Result<u8, Failure> {
    if let [topic] = about
        && let Some((_, text)) = TOPICS.iter().find(|(name, _)| name == topic)
    {
        say!("{}", text.trim_end());
        return Ok(code::OK);
    }
    let mut command = crate::args::command();
    for name in about {
        let found = command.find_subcommand(name).cloned();
        command = found.ok_or_else(|| {
            let topics: Vec<&str> = TOPICS.iter().map(|(name, _)| *name).collect();
            Failure::new(code::USAGE, format!("there is no help about `{}`", about.join(" ")))
                .why(format!("there are topics ({}) and commands", topics.join(", ")))
                .remedy("comeback help")
        })?;
    }
    say!("{}", command.render_help().to_string().trim_end());
    Ok(code::OK)
}
