//! The first page of help: commands in groups, because a flat list of thirty is hard to read.

use std::fmt::Write as _;

const GROUPS: [(&str, &[&str]); 6] = [
    ("Start", &["demo", "run", "serve", "daemon", "help"]),
    ("Tasks", &["enqueue", "task", "operation", "upcoming", "tail", "query", "admin"]),
    ("Workflows", &["workflow", "execution", "schedule"]),
    ("Retries and limits", &["policy", "rule", "dependency", "account"]),
    ("Monitor", &["status", "stats", "error", "alert", "subscription", "audit"]),
    ("Operate", &["loop", "worker", "key", "secret", "db", "doctor", "config", "completion"]),
];

/// The page as a clap help template; names are aligned in one column.
pub fn template(command: &clap::Command) -> String {
    let heading = command.get_styles().get_header();
    let literal = command.get_styles().get_literal();
    let width = GROUPS.iter().flat_map(|(_, names)| *names).map(|name| name.len()).max().unwrap_or_default();
    let mut page = String::from("{about-with-newline}\n{usage-heading} {usage}\n");
    for (group, names) in GROUPS {
        let _ = write!(page, "\n{heading}{group}:{heading:#}\n");
        for found in names.iter().filter_map(|name| command.find_subcommand(name)) {
            let about = found.get_about().map(ToString::to_string).unwrap_or_default();
            let _ = writeln!(page, "  {literal}{:width$}{literal:#}  {about}", found.get_name());
        }
    }
    let _ = write!(page, "\n{heading}Global options:{heading:#}\n{{options}}{{after-help}}");
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_is_in_one_group() {
        let command = crate::args::command();
        let mut there: Vec<&str> = command.get_subcommands().map(clap::Command::get_name).collect();
        let mut grouped: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        there.sort_unstable();
        grouped.sort_unstable();
        assert_eq!(grouped, there);
    }

    #[test]
    fn a_line_of_the_page_fits_a_terminal() {
        let page = crate::args::command().render_help().to_string();
        for line in page.lines() {
            assert!(line.chars().count() <= 100, "{line}");
        }
    }
}
