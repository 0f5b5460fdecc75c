//! One transcript from its beginning to its end.

use std::path::Path;

use crate::mask::Mask;
use crate::stage::Stage;
use crate::typed::{self, Said};

/// Plays it again and compares; or writes down what was said.
pub fn play(path: &Path) -> Result<(), String> {
    let written = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
    let spoken = speak(&written)?;
    if written == spoken {
        return Ok(());
    }
    if std::env::var_os("COMEBACK_TRANSCRIPTS").is_some_and(|value| value == "write") {
        return std::fs::write(path, spoken).map_err(|error| error.to_string());
    }
    Err(difference(&written, &spoken))
}

fn speak(written: &str) -> Result<String, String> {
    let mut stage = Stage::new();
    let mut mask = Mask::new(stage.folder());
    let mut spoken = String::new();
    let mut lines = written.lines().peekable();
    while let Some(line) = lines.next() {
        if let Some(direction) = line.strip_prefix("% ") {
            spoken.push_str(&format!("{line}\n"));
            let mut text = Vec::new();
            if direction.starts_with("write ") {
                for line in lines.by_ref() {
                    spoken.push_str(&format!("{line}\n"));
                    if line == "% end" {
                        break;
                    }
                    text.push(line);
                }
            }
            let said = stage.act(&mask.undo(direction), &text)?;
            mask.learn(&stage);
            spoken.push_str(&mask.apply(&said));
            skip_answer(&mut lines);
        } else if let Some((terminal, command)) = typed::command(line) {
            spoken.push_str(&format!("{line}\n"));
            let said = typed::say(&stage, &mask.undo(command), terminal)?;
            spoken.push_str(&answer(&said, &mut mask));
            skip_answer(&mut lines);
        } else if line.is_empty() || line.starts_with('#') {
            spoken.push_str(&format!("{line}\n"));
        } else {
            return Err(format!("nobody says `{line}`"));
        }
    }
    Ok(spoken)
}

/// The recorded answer, up to the next command or the empty line before it.
fn skip_answer<'a>(lines: &mut std::iter::Peekable<impl Iterator<Item = &'a str>>) {
    while let Some(line) = lines.peek() {
        let begins = line.starts_with("% ") || line.starts_with("# ") || typed::command(line).is_some();
        if begins || *line == SEPARATOR {
            return;
        }
        lines.next();
    }
}

/// An empty line stands between two answers; an empty line of an answer is marked.
const SEPARATOR: &str = "";

fn answer(said: &Said, mask: &mut Mask) -> String {
    let mut text = String::new();
    let (stdout, stderr) = (mask.apply(&said.stdout), mask.apply(&said.stderr));
    for line in stdout.lines() {
        text.push_str(if line.is_empty() { "." } else { line });
        text.push('\n');
    }
    for line in stderr.lines() {
        text.push_str(&format!("! {line}\n"));
    }
    if said.code != 0 {
        text.push_str(&format!("? {}\n", said.code));
    }
    text
}

fn difference(written: &str, spoken: &str) -> String {
    let (before, after): (Vec<&str>, Vec<&str>) = (written.lines().collect(), spoken.lines().collect());
    let same = before.iter().zip(&after).take_while(|(a, b)| a == b).count();
    let part = |lines: &[&str]| lines[same.saturating_sub(3).min(lines.len())..(same + 12).min(lines.len())].join("\n");
    format!(
        "line {}\n--- written ---\n{}\n--- spoken ---\n{}\n\nCOMEBACK_TRANSCRIPTS=write writes it down",
        same + 1,
        part(&before),
        part(&after)
    )
}
