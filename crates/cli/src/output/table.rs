//! Tables without borders: aligned and cut to the width of a terminal, or tab-separated and complete on a pipe.

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use super::{Output, safe};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Paint {
    Dim,
    Blue,
    Yellow,
    Green,
    Red,
    Magenta,
}

impl Paint {
    fn code(self) -> &'static str {
        match self {
            Paint::Dim => "2",
            Paint::Blue => "34",
            Paint::Yellow => "33",
            Paint::Green => "32",
            Paint::Red => "31",
            Paint::Magenta => "35",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cell {
    pub text: String,
    pub paint: Option<Paint>,
    /// A relative time, which changes without an event.
    pub moves: bool,
}

impl Cell {
    pub fn painted(text: impl Into<String>, paint: Paint) -> Cell {
        Cell { text: text.into(), paint: Some(paint), moves: false }
    }

    /// The text with its colour.
    pub fn show(&self, out: &Output) -> String {
        painted(&safe::cell(&self.text), self.paint, false, out)
    }
}

impl<T: Into<String>> From<T> for Cell {
    fn from(text: T) -> Cell {
        Cell { text: text.into(), paint: None, moves: false }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    pub head: Vec<&'static str>,
    pub rows: Vec<Vec<Cell>>,
}

/// Minimum width of a column on a narrow terminal.
const NARROWEST: usize = 8;

impl Table {
    pub fn new(head: &[&'static str]) -> Table {
        Table { head: head.to_vec(), rows: Vec::new() }
    }

    /// The named columns in that order; `Err` holds the first unknown name.
    pub fn choose(&self, names: &[String]) -> Result<Table, String> {
        if names.is_empty() {
            return Ok(self.clone());
        }
        let column = |name: &String| {
            let same = |head: &str| head.to_lowercase().replace(' ', "_") == *name;
            self.head.iter().position(|head| same(head)).ok_or_else(|| name.clone())
        };
        let chosen: Vec<usize> = names.iter().map(column).collect::<Result<_, _>>()?;
        let pick = |row: &Vec<Cell>| chosen.iter().map(|i| row[*i].clone()).collect();
        Ok(Table { head: chosen.iter().map(|i| self.head[*i]).collect(), rows: self.rows.iter().map(pick).collect() })
    }

    /// Lines for a terminal. Cells that differ from `before` are highlighted.
    pub fn aligned(&self, out: &Output, before: Option<&Table>) -> Vec<String> {
        let widths = self.widths(out.width);
        let mut lines = Vec::with_capacity(self.rows.len() + 1);
        if self.head.iter().any(|head| !head.is_empty()) && !self.rows.is_empty() {
            let cells = self.head.iter().map(|head| Cell::painted(*head, Paint::Dim));
            lines.push(laid_out(cells, &widths, |_| false, out));
        }
        for row in &self.rows {
            let same = before.and_then(|table| table.rows.iter().find(|it| it.first() == row.first()));
            let changed =
                |i: usize| same.is_some_and(|same| same.get(i).is_some_and(|it| *it != row[i] && !row[i].moves));
            lines.push(laid_out(row.iter().cloned(), &widths, changed, out));
        }
        lines
    }

    /// Lines for a pipe: complete, without colours, separated by tabs.
    pub fn tab_separated(&self) -> Vec<String> {
        let clean = |cell: &Cell| safe::cell(&cell.text).into_owned();
        self.rows.iter().map(|row| row.iter().map(clean).collect::<Vec<_>>().join("\t")).collect()
    }

    pub fn csv(&self) -> Vec<String> {
        let head: Vec<String> = self.head.iter().map(|head| head.to_lowercase().replace(' ', "_")).collect();
        let rows = self
            .rows
            .iter()
            .map(|row| row.iter().map(|cell| comeback_core::spreadsheet::cell(&cell.text).into_owned()).collect());
        std::iter::once(head).chain(rows).map(csv_line).collect()
    }

    /// Widths of the columns; the widest ones are narrowed until all fit.
    fn widths(&self, room: usize) -> Vec<usize> {
        let mut widths: Vec<usize> = self.head.iter().map(|head| head.width()).collect();
        for row in &self.rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(safe::cell(&cell.text).width());
            }
        }
        let gaps = 2 * widths.len().saturating_sub(1);
        loop {
            let over = (widths.iter().sum::<usize>() + gaps).saturating_sub(room);
            let Some(widest) = widths.iter_mut().max() else { return widths };
            if over == 0 || *widest <= NARROWEST {
                return widths;
            }
            *widest = (*widest - over.min(*widest - NARROWEST)).max(NARROWEST);
        }
    }
}

fn csv_line(cells: Vec<String>) -> String {
    let mut writer = csv::Writer::from_writer(Vec::new());
    // Writing to memory cannot fail.
    let _ = writer.write_record(&cells);
    let written = writer.into_inner().unwrap_or_default();
    String::from_utf8_lossy(&written).trim_end_matches('\n').to_owned()
}

fn laid_out(
    cells: impl Iterator<Item = Cell>,
    widths: &[usize],
    changed: impl Fn(usize) -> bool,
    out: &Output,
) -> String {
    let mut line = String::new();
    for (i, (cell, width)) in cells.zip(widths).enumerate() {
        let text = cut(&safe::cell(&cell.text), *width);
        let room = if i + 1 == widths.len() { 0 } else { width.saturating_sub(text.width()) + 2 };
        line.push_str(&painted(&text, cell.paint, changed(i), out));
        line.push_str(&" ".repeat(room));
    }
    line.trim_end().to_owned()
}

/// Shortens a text to a width, with an ellipsis.
fn cut(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    let mut kept = String::new();
    let mut used = 1;
    for character in text.chars() {
        used += character.width().unwrap_or(0);
        if used > width {
            break;
        }
        kept.push(character);
    }
    kept + "…"
}

fn painted(text: &str, paint: Option<Paint>, stands_out: bool, out: &Output) -> String {
    let codes: Vec<&str> = paint.map(Paint::code).into_iter().chain(stands_out.then_some("1;7")).collect();
    if !out.colour || codes.is_empty() || text.is_empty() {
        text.to_owned()
    } else {
        format!("\x1b[{}m{text}\x1b[0m", codes.join(";"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Global;

    fn out(width: usize) -> Output {
        Output { width, ..Output::new(&Global::default()) }
    }

    fn table() -> Table {
        let mut table = Table::new(&["ID", "LAST ERROR"]);
        table.rows.push(vec!["1".into(), "connection refused by the other side".into()]);
        table.rows.push(vec!["22".into(), "日本語のエラー, with a\ttab".into()]);
        table
    }

    #[test]
    fn columns_are_aligned_and_cut_to_the_terminal() {
        assert_eq!(
            table().aligned(&out(80), None),
            ["ID  LAST ERROR", "1   connection refused by the other side", "22  日本語のエラー, with a tab"]
        );
        for width in 12..50 {
            assert!(table().aligned(&out(width), None).iter().all(|line| line.width() <= width), "{width}");
        }
        assert_eq!(table().aligned(&out(20), None)[1], "1   connection refu…");
    }

    #[test]
    fn programs_get_everything() {
        assert_eq!(table().tab_separated()[1], "22\t日本語のエラー, with a tab");
        assert_eq!(
            table().csv(),
            ["id,last_error", "1,connection refused by the other side", "22,\"日本語のエラー, with a\ttab\""]
        );
    }

    #[test]
    fn columns_can_be_chosen_by_name() {
        let chosen = table().choose(&["last_error".into(), "id".into()]).expect("both are there");
        assert_eq!(chosen.head, ["LAST ERROR", "ID"]);
        assert_eq!(table().choose(&["colour".into()]), Err("colour".into()));
    }

    #[test]
    fn what_changed_stands_out_and_what_moves_does_not() {
        let bright = Output { colour: true, ..out(80) };
        let mut now = table();
        now.rows[0][1] = "timed out".into();
        now.rows[1][1].moves = true;
        let lines = now.aligned(&bright, Some(&table()));
        assert!(lines[1].contains("\x1b[1;7mtimed out\x1b[0m"), "{lines:?}");
        now.rows[1][1].text = "something else".into();
        assert!(!now.aligned(&bright, Some(&table()))[2].contains("\x1b[1;7m"));
    }
}
