//! Makes foreign text harmless for a terminal: control characters, which could write to the clipboard or move the cursor, and
//! characters that change the writing direction are printed as their number.

use std::borrow::Cow;
use std::fmt::Write;

fn is_harmful(letter: char) -> bool {
    letter.is_control()
        || matches!(letter, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}' | '\u{2029}')
        || matches!(letter, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{fff9}'..='\u{fffb}')
}

/// Text of one or more lines. With `colours`, the colour sequences of this program are kept.
pub fn lines(text: &str, colours: bool) -> Cow<'_, str> {
    if !text.contains(|letter| is_harmful(letter) && letter != '\n' && letter != '\t') {
        return Cow::Borrowed(text);
    }
    let mut safe = String::with_capacity(text.len() + 16);
    let mut rest = text;
    while let Some(letter) = rest.chars().next() {
        if let Some(colour) = own_colour(rest).filter(|_| colours) {
            safe.push_str(colour);
            rest = &rest[colour.len()..];
            continue;
        }
        match letter {
            '\n' | '\t' => safe.push(letter),
            _ if is_harmful(letter) => push_number(&mut safe, letter),
            _ => safe.push(letter),
        }
        rest = &rest[letter.len_utf8()..];
    }
    Cow::Owned(safe)
}

/// Text within a line, such as a cell.
pub fn cell(text: &str) -> Cow<'_, str> {
    if !text.contains(is_harmful) {
        return Cow::Borrowed(text);
    }
    let mut safe = String::with_capacity(text.len() + 16);
    for letter in text.chars() {
        match letter {
            '\n' | '\t' | '\r' => safe.push(' '),
            _ if is_harmful(letter) => push_number(&mut safe, letter),
            _ => safe.push(letter),
        }
    }
    Cow::Owned(safe)
}

/// JSON with harmful characters escaped as `\u0000`; the value is the same.
pub fn json(text: &str) -> Cow<'_, str> {
    if !text.contains(|letter| is_harmful(letter) && letter != '\n') {
        return Cow::Borrowed(text);
    }
    let mut safe = String::with_capacity(text.len() + 16);
    for letter in text.chars() {
        if is_harmful(letter) && letter != '\n' {
            let _ = write!(safe, "\\u{:04x}", letter as u32);
        } else {
            safe.push(letter);
        }
    }
    Cow::Owned(safe)
}

fn push_number(into: &mut String, letter: char) {
    let number = letter as u32;
    let _ = if number <= 0xff { write!(into, "\\x{number:02x}") } else { write!(into, "\\u{{{number:04x}}}") };
}

/// The colour sequence of `Paint` at the start of a text.
fn own_colour(text: &str) -> Option<&str> {
    let inner = text.strip_prefix("\x1b[")?;
    let end = inner.bytes().take(10).position(|byte| byte == b'm')?;
    let known = |code: &str| matches!(code, "0" | "1" | "2" | "7" | "31" | "32" | "33" | "34" | "35");
    inner[..end].split(';').all(known).then(|| &text[..end + 3])
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVIL: &str = "a\x1b]52;c;ZXZpbA==\x07b\u{9b}31mc\u{202e}d\x7fe\rf\x1b[31mg";

    #[test]
    fn nothing_reaches_the_terminal_that_could_act_on_it() {
        assert_eq!(lines(EVIL, false), "a\\x1b]52;c;ZXZpbA==\\x07b\\x9b31mc\\u{202e}d\\x7fe\\x0df\\x1b[31mg");
        assert_eq!(
            lines("\x1b[31mred\x1b[0m \x1b[1;7mx\x1b[8mhidden", true),
            "\x1b[31mred\x1b[0m \x1b[1;7mx\\x1b[8mhidden"
        );
        assert_eq!(lines("two\nlines\tand ümläute 日本", false), "two\nlines\tand ümläute 日本");
        assert_eq!(cell("two\nlines\r\tx\x1bc"), "two lines  x\\x1bc");
    }

    #[test]
    fn json_means_the_same() {
        let value = serde_json::json!({"a": EVIL, "b": [1, "\u{2066}"]});
        for text in [value.to_string(), serde_json::to_string_pretty(&value).expect("it is JSON")] {
            let safe = json(&text);
            assert!(!safe.contains(|letter| is_harmful(letter) && letter != '\n'), "{safe:?}");
            assert_eq!(serde_json::from_str::<serde_json::Value>(&safe).expect("still JSON"), value);
        }
    }
}
