//! Asking somebody whether they want what they asked for.

use std::io::{BufRead, IsTerminal, Write};

use crate::failure::{Failure, code};
use crate::output::Output;

/// Whether anybody is there to answer.
pub fn can_ask(out: &Output) -> bool {
    std::io::stdin().is_terminal() && out.terminal
}

/// Only a clear yes is one.
pub fn is_confirmed(question: &str) -> Result<bool, Failure> {
    crate::output::noted(format_args!("{}? [y/N] ", crate::output::safe::cell(question)));
    let _ = std::io::stderr().flush();
    let mut line = String::new();
    let unread = |error: std::io::Error| Failure::new(code::FAILED, "no answer could be read").why(error.to_string());
    std::io::stdin().lock().read_line(&mut line).map_err(unread)?;
    Ok(matches!(line.trim(), "y" | "Y" | "yes"))
}
