//! Documents from before: what the engine they were written for let pass is put right, and told (ruling X0-14).

use super::problem::Lines;
use super::{Problem, Problems, read};
use crate::dialect::UNKNOWN_STRATEGY;

/// Rounds of repair, at most. A field that has no place or cannot be repaired stays a problem.
const ROUNDS: usize = 20;

/// A text that can be read, with a warning for everything that was changed in it. A strategy that nobody knows meant "now" there,
/// so it becomes `immediate`; all else that is wrong is refused as ever.
pub fn import(text: &str) -> Result<(String, Vec<Problem>), Problems> {
    let (mut text, mut warnings) = (text.to_owned(), Vec::new());
    for _ in 0..ROUNDS {
        let Err(mut problems) = read(&text) else { return Ok((text, warnings)) };
        problems.0.retain(|problem| problem.message.ends_with(UNKNOWN_STRATEGY));
        // From the end, so that the places before it stay where they are.
        problems.0.reverse();
        let before = warnings.len();
        for problem in problems.0 {
            let Some((changed, word)) = with_immediate(&text, &problem) else { continue };
            text = changed;
            let message = format!("`{word}` is no strategy; it is read as `immediate`");
            warnings.push(Problem { message, ..problem });
        }
        if warnings.len() == before {
            break;
        }
    }
    read(&text).map(|_| (text, warnings))
}

/// The text with `immediate` in place of the word where the problem is, and that word.
fn with_immediate(text: &str, problem: &Problem) -> Option<(String, String)> {
    let start = Lines::new(text).byte(problem.line?, problem.column?)?;
    let rest = text.get(start..)?;
    let quote = rest.chars().next().filter(|first| matches!(first, '"' | '\''));
    let (word, end) = match quote {
        Some(quote) => {
            let length = rest[1..].find(quote)?;
            (&rest[1..=length], length + 2)
        }
        None => {
            let word = rest.split([',', '}', ']', '#', '\n', '\r']).next()?.trim_end();
            (word, word.len())
        }
    };
    let quoted = quote.map_or_else(|| "immediate".to_owned(), |quote| format!("{quote}immediate{quote}"));
    Some((format!("{}{quoted}{}", &text[..start], &rest[end..]), word.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workflow::read;
    use serde_json::{Value, json};

    fn strategies(text: &str) -> Vec<Value> {
        let source = read(text).unwrap_or_else(|problems| panic!("{problems}\n{text}"));
        source.workflow.steps.iter().map(|step| step.task["retry"]["strategy"].clone()).collect()
    }

    #[test]
    fn a_strategy_that_nobody_knows_becomes_immediate_and_is_told() {
        let old = "\
steps:
  a: {dialect: workflow, retry: {strategy: fibonacci, maxAttempts: 3}}
  b:
    dialect: workflow
    retry:
      maxAttempts: 2
      strategy: \"ASAP\"  # as soon as possible
  c: {dialect: workflow, retry: {strategy: fixed_delay, delaySeconds: 60}}
";
        assert!(read(old).is_err(), "it is refused where nothing is imported");
        let (text, warnings) = import(old).expect("it is put right");
        assert_eq!(strategies(&text), [json!("immediate"), json!("immediate"), json!("fixed_delay")]);
        assert!(text.contains("# as soon as possible"), "the rest stays as it was: {text}");
        let told: Vec<_> = warnings.iter().map(|it| (it.path.as_str(), it.line, it.message.as_str())).collect();
        let expected = [
            ("steps.b.retry.strategy", Some(7), "`ASAP` is no strategy; it is read as `immediate`"),
            ("steps.a.retry.strategy", Some(2), "`fibonacci` is no strategy; it is read as `immediate`"),
        ];
        assert_eq!(told, expected);
        let (same, none) = import(&text).expect("it can be read");
        assert_eq!((same, none), (text, Vec::new()));
    }

    #[test]
    fn json_is_put_right_too_and_nothing_else_is() {
        let old = r#"{"retry": {"strategy": "fibonacci"}, "steps": {"a": {}}}"#;
        let (text, warnings) = import(old).expect("it is put right");
        assert_eq!(text, old.replace("fibonacci", "immediate"));
        assert_eq!(warnings.len(), 1);
        let wrong = import(r#"{"steps": {"a": {"retry": {"strategy": "fibonacci", "nonsense": 1}}}}"#).unwrap_err();
        assert!(wrong.0.iter().all(|problem| problem.path.contains("nonsense")), "{wrong}");
    }
}
