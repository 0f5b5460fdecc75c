//! `help`: a command, or a topic.

use crate::error::{CliError, code};
use crate::output::outln;

const TOPICS: [(&str, &str); 4] = [
    ("filters", include_str!("help/filters.txt")),
    ("policies", include_str!("help/policies.txt")),
    ("exit-codes", include_str!("help/exit-codes.txt")),
    ("environment", include_str!("help/environment.txt")),
];

pub fn run(about: &[String]) -> Result<u8, CliError> {
    if let [topic] = about
        && let Some((_, text)) = TOPICS.iter().find(|(name, _)| name == topic)
    {
        outln!("{}", text.trim_end());
        return Ok(code::OK);
    }
    let mut command = crate::args::command();
    for name in about {
        let found = command.find_subcommand(name).cloned();
        command = found.ok_or_else(|| {
            let topics: Vec<&str> = TOPICS.iter().map(|(name, _)| *name).collect();
            CliError::new(code::USAGE, format!("no help for `{}`", about.join(" ")))
                .why(format!("topics are {}; all else is a command", topics.join(", ")))
                .remedy("comeback help")
        })?;
    }
    outln!("{}", command.render_help().to_string().trim_end());
    Ok(code::OK)
}
