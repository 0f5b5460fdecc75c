//! The short form that people type: `exp(60s, x2, max 1h, 5 retries)`. It is turned into the long form and read as that.

use serde_json::{Map, Value, json};

use crate::invalid::Invalid;
use crate::time::Millis;

const FORMS: &str = "write for example exp(60s, x2, max 1h, 5 retries), fixed(5m, 3 retries), immediate(3 retries) or \
    schedule(7d, 14d)";

pub fn long_form(text: &str) -> Result<Value, Invalid> {
    let text = text.trim();
    let wrong = |why: String| Invalid::one("", format!("{why}; {FORMS}"));
    let (name, rest) = text.split_once('(').ok_or_else(|| wrong(format!("`{text}` has no brackets")))?;
    let inside = rest.strip_suffix(')').ok_or_else(|| wrong(format!("`{text}` does not end with a bracket")))?;
    let strategy = match name.trim().to_ascii_lowercase().as_str() {
        "exp" | "exponential" => "exponential",
        "fixed" => "fixed",
        "linear" => "linear",
        "immediate" => "immediate",
        "schedule" => "schedule",
        other => return Err(wrong(format!("`{other}` is no strategy"))),
    };
    let mut long = Map::new();
    long.insert("strategy".into(), strategy.into());
    let mut spans: Vec<u64> = Vec::new();
    for argument in inside.split(',').map(str::trim).filter(|argument| !argument.is_empty()) {
        let known =
            read_argument(argument, &mut long, &mut spans).map_err(|why| wrong(format!("`{argument}` {why}")))?;
        if !known {
            return Err(wrong(format!("`{argument}` is not understood")));
        }
    }
    match (strategy, spans.as_slice()) {
        ("schedule", []) => return Err(wrong("a schedule has at least one span".into())),
        ("schedule", spans) => {
            let spans: Vec<String> = spans.iter().map(|ms| format!("{ms}ms")).collect();
            long.insert("schedule".into(), json!(spans));
        }
        (_, []) => {}
        (_, [delay]) => {
            let field = if strategy == "fixed" { "delay" } else { "initial_delay" };
            long.insert(field.into(), format!("{delay}ms").into());
        }
        _ => return Err(wrong("only a schedule has several spans".into())),
    }
    Ok(Value::Object(long))
}

/// Whether it is one of the arguments there are.
fn read_argument(argument: &str, long: &mut Map<String, Value>, spans: &mut Vec<u64>) -> Result<bool, String> {
    let mut put = |name: &str, value: Value| match long.insert(name.to_owned(), value) {
        None => Ok(true),
        Some(_) => Err("is said twice".to_owned()),
    };
    let span = |text: &str| Millis::parse(text.trim()).map(|span| Value::from(format!("{}ms", span.0)));
    let words: Vec<&str> = argument.split_whitespace().collect();
    match words.as_slice() {
        [count, "retry" | "retries"] => {
            let count: u32 = count.parse().map_err(|_| "has no number before it".to_owned())?;
            put("max_retries", count.into())
        }
        [count, "attempt" | "attempts"] => {
            let count: u32 = count.parse().map_err(|_| "has no number before it".to_owned())?;
            let retries = count.checked_sub(1).ok_or("means that it never runs")?;
            put("max_retries", retries.into())
        }
        ["max", rest @ ..] => put("max_delay", span(&rest.join("")).map_err(|error| error.to_string())?),
        ["within", rest @ ..] => put("max_elapsed", span(&rest.join("")).map_err(|error| error.to_string())?),
        ["jitter", word] => put("jitter", (*word).into()),
        [word] => {
            if let Some(factor) = word.strip_prefix(['x', '×']) {
                let factor: f64 = factor.parse().map_err(|_| "has no number after the x".to_owned())?;
                return put("multiplier", factor.into());
            }
            if word.bytes().all(|byte| byte.is_ascii_digit()) {
                return Err("needs a unit: retries, attempts, or one of time such as s, m, h, d".into());
            }
            let Ok(span) = Millis::parse(word) else { return Ok(false) };
            spans.push(span.0);
            Ok(true)
        }
        _ => Ok(false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_short_forms_have_long_ones() {
        let check = |text: &str, long: Value| assert_eq!(long_form(text), Ok(long), "{text}");
        check(
            "exp(60s, x2, max 1h, 5 retries)",
            json!({"strategy": "exponential", "multiplier": 2.0, "max_delay": "3600000ms", "max_retries": 5,
                "initial_delay": "60000ms"}),
        );
        check("fixed(5m, 3 retries)", json!({"strategy": "fixed", "max_retries": 3, "delay": "300000ms"}));
        check("immediate(3 attempts)", json!({"strategy": "immediate", "max_retries": 2}));
        check("schedule(7d, 14d)", json!({"strategy": "schedule", "schedule": ["604800000ms", "1209600000ms"]}));
        check(
            "exp(2s, jitter full, within 14d)",
            json!({"strategy": "exponential", "jitter": "full", "max_elapsed": "1209600000ms", "initial_delay": "2000ms"}),
        );
    }

    #[test]
    fn what_is_not_understood_is_named() {
        for (text, word) in [
            ("", "no brackets"),
            ("exp", "no brackets"),
            ("exp(60s", "does not end"),
            ("sometimes(1s)", "sometimes"),
            ("exp(5)", "needs a unit"),
            ("exp(1s, 2s)", "several"),
            ("exp(often)", "often"),
            ("exp(1s, 3 retries, 4 retries)", "twice"),
            ("immediate(0 attempts)", "never runs"),
            ("schedule()", "at least one"),
            ("exp(xy)", "x"),
        ] {
            let error = long_form(text).expect_err(text).to_string();
            assert!(error.contains(word), "{text}: {error}");
        }
    }
}
