//! One look at something: its data, and how it is laid out for people. Every format is made from the same view.

use serde_json::Value;

use super::table::Table;
use super::{Output, say};
use crate::args::Format;
use crate::failure::{Failure, code};

#[derive(Clone, Debug, PartialEq)]
pub enum Block {
    Line(String),
    Table(Table),
}

#[derive(Clone, Debug, PartialEq)]
pub struct View {
    /// What the server said.
    pub data: Value,
    pub blocks: Vec<Block>,
    /// Said beside the data, on stderr.
    pub hint: Option<String>,
    /// What a command that ends with this view exits with.
    pub code: u8,
}

impl View {
    pub fn new(data: Value) -> View {
        View { data, blocks: Vec::new(), hint: None, code: code::OK }
    }

    pub fn table(data: Value, table: Table) -> View {
        View { blocks: vec![Block::Table(table)], ..View::new(data) }
    }

    /// One sentence for people, and the data behind it for programs.
    pub fn said(data: Value, words: impl Into<String>) -> View {
        let mut view = View::new(data);
        view.line(words);
        view
    }

    pub fn line(&mut self, text: impl Into<String>) {
        self.blocks.push(Block::Line(text.into()));
    }

    pub fn with_hint(self, hint: impl Into<String>) -> View {
        View { hint: Some(hint.into()), ..self }
    }

    pub fn print(&self, out: &Output) -> Result<u8, Failure> {
        match out.format {
            Format::Json => out.json(&self.data),
            Format::Jsonl => match self.data["items"].as_array() {
                Some(items) => items.iter().for_each(|item| say!("{item}")),
                None => say!("{}", self.data),
            },
            Format::Csv => self.chosen(out)?.csv().iter().for_each(|line| say!("{line}")),
            Format::Name => {
                for row in &self.any_table()?.rows {
                    say!("{}", row.first().map_or("", |cell| cell.text.as_str()));
                }
            }
            Format::Table => self.lines(out, None)?.iter().for_each(|line| say!("{line}")),
        }
        if let Some(hint) = self.hint.as_ref().filter(|_| out.format == Format::Table) {
            crate::output::note!("{hint}");
        }
        Ok(self.code)
    }

    /// As people see it; what differs from `before` stands out.
    pub fn lines(&self, out: &Output, before: Option<&View>) -> Result<Vec<String>, Failure> {
        let mut lines = Vec::new();
        for (i, block) in self.blocks.iter().enumerate() {
            match block {
                Block::Line(line) => lines.push(line.clone()),
                Block::Table(table) => {
                    let table = choose(table, out)?;
                    let before = match before.and_then(|before| before.blocks.get(i)) {
                        Some(Block::Table(before)) => Some(choose(before, out)?),
                        _ => None,
                    };
                    lines.extend(match out.terminal {
                        true => table.for_people(out, before.as_ref()),
                        false => table.for_programs(),
                    });
                }
            }
        }
        Ok(lines)
    }

    fn any_table(&self) -> Result<&Table, Failure> {
        let table = self.blocks.iter().find_map(|block| match block {
            Block::Table(table) => Some(table),
            Block::Line(_) => None,
        });
        table.ok_or_else(|| Failure::new(code::USAGE, "this is no table").remedy("--output table or --output json"))
    }

    fn chosen(&self, out: &Output) -> Result<Table, Failure> {
        choose(self.any_table()?, out)
    }
}

fn choose(table: &Table, out: &Output) -> Result<Table, Failure> {
    table.choose(&out.columns).map_err(|name| {
        let names: Vec<String> = table.head.iter().map(|head| head.to_lowercase().replace(' ', "_")).collect();
        Failure::new(code::USAGE, format!("there is no column `{name}` here"))
            .remedy(format!("--columns {}", names.join(",")))
    })
}
