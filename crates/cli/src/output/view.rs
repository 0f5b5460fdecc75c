//! The result of a command: its data, and its layout. Every output format is made from the same view.

use serde_json::Value;

use super::table::Table;
use super::{Output, errln, json_line, outln, safe};
use crate::args::OutputFormat;
use crate::error::{CliError, code};

/// A part of a view.
#[derive(Clone, Debug, PartialEq)]
pub enum Block {
    Line(String),
    Table(Table),
}

/// The result of a command.
#[derive(Clone, Debug, PartialEq)]
pub struct View {
    /// The answer of the server.
    pub data: Value,
    pub blocks: Vec<Block>,
    /// Printed on stderr.
    pub hint: Option<String>,
    /// Exit code of a command that ends with this view.
    pub code: u8,
}

impl View {
    pub fn new(data: Value) -> View {
        View { data, blocks: Vec::new(), hint: None, code: code::OK }
    }

    pub fn table(data: Value, table: Table) -> View {
        View { blocks: vec![Block::Table(table)], ..View::new(data) }
    }

    /// Data with its lines.
    pub fn lines_of(data: Value, lines: Vec<String>) -> View {
        View { blocks: lines.into_iter().map(Block::Line).collect(), ..View::new(data) }
    }

    /// Data with one line.
    pub fn message(data: Value, words: impl Into<String>) -> View {
        let mut view = View::new(data);
        view.line(words);
        view
    }

    pub fn line(&mut self, text: impl Into<String>) {
        self.blocks.push(Block::Line(text.into()));
    }

    /// Adds a hint if there is no row.
    pub fn hint_if_empty(self, hint: impl Into<String>) -> View {
        let has_rows = |block: &Block| matches!(block, Block::Table(table) if !table.rows.is_empty());
        if self.blocks.iter().any(has_rows) { self } else { self.with_hint(hint) }
    }

    pub fn with_hint(self, hint: impl Into<String>) -> View {
        View { hint: Some(hint.into()), ..self }
    }

    pub fn print(&self, out: &Output) -> Result<u8, CliError> {
        match out.format {
            OutputFormat::Json => out.json(&self.data),
            OutputFormat::Jsonl => match self.data["items"].as_array() {
                Some(items) => items.iter().for_each(|item| outln!("{}", json_line(item))),
                None => outln!("{}", json_line(&self.data)),
            },
            OutputFormat::Csv => self.chosen(out)?.csv().iter().for_each(|line| outln!("{line}")),
            OutputFormat::Name => {
                for row in &self.any_table()?.rows {
                    outln!("{}", safe::cell(row.first().map_or("", |cell| cell.text.as_str())));
                }
            }
            OutputFormat::Table => self.lines(out, None)?.iter().for_each(|line| outln!("{line}")),
        }
        if let Some(hint) = self.hint.as_ref().filter(|_| out.format == OutputFormat::Table) {
            errln!("{hint}");
        }
        Ok(self.code)
    }

    /// The lines of a table view; cells that differ from `before` are highlighted.
    pub fn lines(&self, out: &Output, before: Option<&View>) -> Result<Vec<String>, CliError> {
        let mut lines = Vec::new();
        for (i, block) in self.blocks.iter().enumerate() {
            match block {
                Block::Line(line) => lines.push(safe::lines(line, out.colour).into_owned()),
                Block::Table(table) => {
                    let table = choose(table, out)?;
                    let before = match before.and_then(|before| before.blocks.get(i)) {
                        Some(Block::Table(before)) => Some(choose(before, out)?),
                        _ => None,
                    };
                    lines.extend(match out.terminal {
                        true => table.aligned(out, before.as_ref()),
                        false => table.tab_separated(),
                    });
                }
            }
        }
        Ok(lines)
    }

    fn any_table(&self) -> Result<&Table, CliError> {
        let table = self.blocks.iter().find_map(|block| match block {
            Block::Table(table) => Some(table),
            Block::Line(_) => None,
        });
        table.ok_or_else(|| {
            CliError::new(code::USAGE, "this command prints no table").remedy("--output table or --output json")
        })
    }

    fn chosen(&self, out: &Output) -> Result<Table, CliError> {
        choose(self.any_table()?, out)
    }
}

fn choose(table: &Table, out: &Output) -> Result<Table, CliError> {
    table.choose(&out.columns).map_err(|name| {
        let names: Vec<String> = table.head.iter().map(|head| head.to_lowercase().replace(' ', "_")).collect();
        CliError::new(code::USAGE, format!("unknown column `{name}`")).remedy(format!("--columns {}", names.join(",")))
    })
}
