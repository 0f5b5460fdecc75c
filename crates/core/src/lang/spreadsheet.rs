//! Cells of CSV files, as spreadsheets read them.

use std::borrow::Cow;

/// A cell that no spreadsheet takes for a formula: one that begins like a formula gets an apostrophe before it. Numbers stay.
pub fn cell(text: &str) -> Cow<'_, str> {
    match text.chars().next() {
        Some('=' | '@' | '\t' | '\r') => Cow::Owned(format!("'{text}")),
        Some('+' | '-') if text.parse::<f64>().is_err() || !text.ends_with(|last: char| last.is_ascii_digit()) => {
            Cow::Owned(format!("'{text}"))
        }
        _ => Cow::Borrowed(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formulas_become_texts_and_numbers_stay() {
        for (text, written) in [
            ("=HYPERLINK(\"http://evil\",\"x\")", "'=HYPERLINK(\"http://evil\",\"x\")"),
            ("+1+cmd|' /C calc'!A0", "'+1+cmd|' /C calc'!A0"),
            ("-2+3", "'-2+3"),
            ("@SUM(A1)", "'@SUM(A1)"),
            ("\t=1", "'\t=1"),
            ("\r=1", "'\r=1"),
            ("-", "'-"),
            ("-inf", "'-inf"),
            ("-5", "-5"),
            ("-5.25", "-5.25"),
            ("+3e8", "+3e8"),
            ("a=b", "a=b"),
            ("'=1", "'=1"),
            ("", ""),
        ] {
            assert_eq!(cell(text), written, "{text}");
        }
    }
}
