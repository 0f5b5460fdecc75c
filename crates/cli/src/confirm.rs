//! Confirmation on a terminal.

use std::io::{BufRead, IsTerminal, Write};

use crate::error::{CliError, code};
use crate::output::Output;

/// Whether there is a terminal to ask on.
pub fn can_ask(out: &Output) -> bool {
    std::io::stdin().is_terminal() && out.terminal
}

/// Asks a yes-or-no question; the default is no.
pub fn is_confirmed(question: &str) -> Result<bool, CliError> {
    crate::output::write_err_raw(format_args!("{}? [y/N] ", crate::output::safe::cell(question)));
    let _ = std::io::stderr().flush();
    let mut line = String::new();
    let unreadable =
        |error: std::io::Error| CliError::new(code::FAILED, "cannot read the answer").why(error.to_string());
    std::io::stdin().lock().read_line(&mut line).map_err(unreadable)?;
    Ok(matches!(line.trim(), "y" | "Y" | "yes"))
}
