//! The text of a workflow without its secrets, for those who may read it and not change it.

use std::ops::Range;

use granit_parser::{Event, Parser};
use serde_json::Value;

use super::document;
use super::problem::Findings;
use crate::mask::{self, MASK, is_secret_name};

/// A secret that is shorter is not looked for outside of its own place.
const SHORTEST: usize = 6;

/// The text with every secret masked. Where a secret is written in a way that cannot be cut out of the text (folded lines,
/// anchors), the document is told as JSON instead, which is the same document.
pub fn masked_source(text: &str) -> String {
    let Some(value) = parsed(text) else {
        return text.lines().map(mask::mask_line).collect::<Vec<_>>().join("\n");
    };
    let secrets: Vec<String> = mask::secrets_in(&value).into_iter().filter(|it| it != MASK).collect();
    let mut shown = text.to_owned();
    for range in places(text).into_iter().rev() {
        if shown.get(range.clone()).is_some() {
            shown.replace_range(range, &format!("\"{MASK}\""));
        }
    }
    shown = without(&shown, &secrets);
    let lines: Vec<String> = shown.split('\n').map(masked_comment).collect();
    let shown = lines.join("\n");
    if parsed(&shown).is_some_and(|after| holds_none(&after, &secrets)) && scrubbed(&shown, &secrets).is_none() {
        return shown;
    }
    let mut value = value;
    mask::mask(&mut value);
    mask::scrub(&mut value, &long(&secrets));
    serde_json::to_string_pretty(&value).unwrap_or_default()
}

fn parsed(text: &str) -> Option<Value> {
    Some(document::parse(text, &mut Findings::new(text))?.to_value())
}

fn long(secrets: &[String]) -> Vec<String> {
    let mut long: Vec<String> = secrets.iter().filter(|it| it.len() >= SHORTEST).cloned().collect();
    long.sort_by_key(|it| std::cmp::Reverse(it.len()));
    long
}

fn scrubbed(text: &str, secrets: &[String]) -> Option<String> {
    mask::scrub_text(text, &long(secrets))
}

/// Secrets as they are, and as JSON writes them.
fn without(text: &str, secrets: &[String]) -> String {
    let mut all = long(secrets);
    let escaped = all.iter().filter_map(|it| serde_json::to_string(it).ok());
    let escaped: Vec<String> = escaped.map(|it| it.trim_matches('"').to_owned()).collect();
    all.extend(escaped);
    mask::scrub_text(text, &all).unwrap_or_else(|| text.to_owned())
}

fn holds_none(value: &Value, secrets: &[String]) -> bool {
    let mut scrubbed = value.clone();
    mask::scrub(&mut scrubbed, &long(secrets));
    scrubbed == *value && mask::secrets_in(value).iter().all(|it| it == MASK)
}

/// Headers that somebody commented out are still there to be read.
fn masked_comment(line: &str) -> String {
    match line.split_once('#') {
        Some((before, comment)) if before.is_empty() || before.ends_with([' ', '\t']) => {
            format!("{before}#{}", mask::mask_line(comment))
        }
        _ => line.to_owned(),
    }
}

/// The open collections while the document is read.
enum Open {
    /// A map, whether it holds headers, and the name that waits for its value.
    Map {
        headers: bool,
        key: Option<String>,
    },
    List,
}

/// Where the values of secret headers stand in the text.
fn places(text: &str) -> Vec<Range<usize>> {
    let mut open: Vec<Open> = Vec::new();
    let mut places = Vec::new();
    for next in Parser::new_from_str(text) {
        let Ok((event, span)) = next else { return Vec::new() };
        match event {
            Event::Scalar(value, ..) => match open.last_mut() {
                Some(Open::Map { key: key @ None, .. }) => *key = Some(value.into_owned()),
                Some(Open::Map { headers, key }) => {
                    let name = key.take().unwrap_or_default();
                    if *headers && is_secret_name(&name) && value != MASK {
                        places.extend(span.byte_range());
                    }
                }
                _ => {}
            },
            Event::MappingStart(..) | Event::SequenceStart(..) => {
                let name = match open.last_mut() {
                    Some(Open::Map { key, .. }) => key.take().unwrap_or_default(),
                    _ => String::new(),
                };
                let headers = mask::holds_headers(&name);
                open.push(match event {
                    Event::MappingStart(..) => Open::Map { headers, key: None },
                    _ => Open::List,
                });
            }
            Event::MappingEnd | Event::SequenceEnd => drop(open.pop()),
            Event::Alias(..) => {
                if let Some(Open::Map { key, .. }) = open.last_mut() {
                    *key = None;
                }
            }
            _ => {}
        }
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_masked_in_place_and_the_rest_stays() {
        let text = "name: n\nsteps:\n  a:\n    http:\n      url: https://x.test/?token=CANARY-1&a=b\n      headers:\n        \
                    Authorization: Bearer CANARY-2 # the key: CANARY-3\n        x-api-key: \"CANARY-4\"\n        x-colour: blue\n\
                    # cookie: CANARY-5\n";
        let shown = masked_source(text);
        assert!(!shown.contains("CANARY"), "{shown}");
        assert!(shown.contains("Authorization: \"***\"") && shown.contains("x-colour: blue"), "{shown}");
        assert!(shown.contains("token=***&a=b"), "{shown}");
        assert_eq!(parsed(&shown).unwrap()["steps"]["a"]["http"]["headers"]["x-api-key"], "***");
    }

    #[test]
    fn whatever_the_way_it_is_written() {
        for text in [
            "x: &t CANARY-long\nheaders:\n  authorization: *t\n",
            "headers: {authorization: >-\n  }\n",
            "headers:\n  authorization: |\n    CANARY\n    more\n",
            "headers:\n  authorization: >-\n    CANARY\n    more\n",
            "headers:\n  authorization: \"CAN\\x41RY\"\n",
            "headers:\n  authorization: \"CANARY\\\n     -joined\"\n",
            "headers:\n  x-key: abc\n  colour: CANAR\n",
            "headers: [{name: authorization, value: CANARY}]\n",
            "base: &b {authorization: CANARY-x}\nheaders:\n  <<: *b\n",
            "{\"headers\": {\"authorization\": \"CANARY-\\u0041\"}}",
            "headers:\n  ? authorization\n  : CANARY-1\n",
            "headers:\n  authorization:\n    CANARY-1\n    CANARY-2\n",
        ] {
            let shown = masked_source(text);
            assert!(!shown.contains("CANARY") && !shown.contains("abc"), "{text} became {shown}");
        }
    }

    #[test]
    fn a_text_without_secrets_stays_as_it_is() {
        let text = "name: n # a comment\nsteps:\n  a: {kind: k, key: x}\n";
        assert_eq!(masked_source(text), text);
    }
}
