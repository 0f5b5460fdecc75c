//! `retry_when`, `stop_when` and a rule's `when`: small Jinja expressions over one failure, bounded in steps and in memory.
//!
//! Values go in as plain data and come out as a yes or no; nothing is loaded, included or evaluated twice. The parser is
//! minijinja's. Evaluation is our own (`machine`), because every value has to be paid for before it is made (`meter`):
//! one evaluation makes 6 MiB of values at most, none of them above 1 MiB, and stops after a fixed number of steps.
//! Filters, tests and functions are a fixed list (`filters`); anything else is refused when a document is read (`check`).
//! Templates of workflows (`template`) are evaluated by the same machine.

// The machine evaluates statements too; only templates have them.
#![cfg_attr(not(feature = "templates"), allow(dead_code))]

mod check;
mod filters;
mod machine;
mod meter;
mod operators;
#[cfg(feature = "templates")]
mod template;
mod value;

use minijinja::machinery::ast::Expr;
use minijinja::machinery::parse_expr;

use crate::failure::{Class, Failure};
use machine::{Machine, Names};
use meter::{MAX_STEPS, Meter};
use value::Val;

#[cfg(feature = "templates")]
pub use template::{Piece, pieces};
#[cfg(feature = "templates")]
pub use template::{check_expression, check_template, eval, holds, is_template, render};

const MAX_SOURCE: usize = 16 * 1024;
const MAX_NESTING: usize = 100;
const MAX_LINKS: usize = 300;
/// Steps that all expressions of one verdict may take together.
const VERDICT_STEPS: u64 = MAX_STEPS / 2;

/// The names that an expression may use. Any other is refused when the policy is read, so a typo never waits for a failure.
pub const NAMES: [&str; 17] = [
    "error",
    "message",
    "error_type",
    "status",
    "status_code",
    "code",
    "class",
    "trigger",
    "attempt",
    "result",
    "response",
    "data",
    "success",
    "execution_id",
    "task_id",
    "node_id",
    "event_type",
];

/// An expression that is known to parse and to name only what exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expression {
    source: String,
}

/// The values that one failure offers to an expression.
pub struct Scope<'a> {
    /// The failure.
    pub failure: &'a Failure,
    /// The class it was given.
    pub class: Class,
    /// 1 on the first run (model A12).
    pub attempt_number: u32,
    /// The execution of the task.
    pub execution_id: String,
    /// The task.
    pub task_id: String,
}

/// The rest of the steps that the expressions of one decision share.
#[derive(Clone, Debug)]
pub struct Allowance {
    steps: u64,
}

impl Default for Allowance {
    fn default() -> Self {
        Allowance { steps: VERDICT_STEPS }
    }
}

impl Expression {
    /// Takes the bare form (`status >= 500`) and the braced one (`{{ status >= 500 }}`).
    pub fn parse(source: &str) -> Result<Expression, String> {
        let bare = bare(source);
        let asked = check::expression(&compile(bare)?)?;
        let root = |name: &'_ String| name.split('.').next().unwrap_or_default().to_owned();
        match asked.iter().map(root).find(|name| !NAMES.contains(&name.as_str())) {
            None => Ok(Expression { source: bare.to_owned() }),
            Some(name) => Err(format!("`{name}` is not known here; these are: {}", NAMES.join(", "))),
        }
    }

    /// One that was stored. An earlier version may have taken what is refused today: evaluating that is an error.
    pub fn stored(source: &str) -> Expression {
        Expression { source: bare(source).to_owned() }
    }

    /// The bare source text.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Whether it holds. An error is an answer: what it means is the policy's to say.
    pub fn holds(&self, scope: &Scope<'_>) -> Result<bool, String> {
        self.holds_within(scope, &mut Allowance::default())
    }

    /// The same, as one of several expressions of a verdict.
    pub fn holds_within(&self, scope: &Scope<'_>, allowance: &mut Allowance) -> Result<bool, String> {
        let compiled = compile(&self.source)?;
        let before = allowance.steps.min(MAX_STEPS);
        let mut meter = Meter::new(before);
        let answer = scope.names().and_then(|names| {
            let value = Machine::new(&names, &mut meter).eval(&compiled)?;
            Ok(is_yes(&value))
        });
        allowance.steps -= before - meter.steps_left();
        answer
    }
}

impl<'a> Scope<'a> {
    fn names<'s>(&'s self) -> Result<Names<'s>, String> {
        let failure: &'s Failure = self.failure;
        let text = |value: &'s Option<String>| value.as_deref().map_or(Val::None, Val::Str);
        let status = failure.status.map_or(Val::None, |status| Val::Int(status.into()));
        let result = failure.result.as_ref().map_or(Val::None, Val::of);
        let class = Val::Str(self.class.word());
        let trigger = Val::Str(failure.trigger.word());
        // Its fields by name, its message when printed, and `'timeout' in error` looks into the message.
        let error = Val::map(
            vec![
                (Val::Str("class"), class.clone()),
                (Val::Str("code"), text(&failure.code)),
                (Val::Str("message"), Val::Str(&failure.message)),
                (Val::Str("status"), status.clone()),
                (Val::Str("trigger"), trigger.clone()),
                (Val::Str("type"), text(&failure.error_type)),
            ],
            Some(&failure.message),
        )?;
        Ok(Names::Fixed(vec![
            ("error", error),
            ("message", Val::Str(&failure.message)),
            ("error_type", text(&failure.error_type)),
            ("status", status.clone()),
            ("status_code", status),
            ("code", text(&failure.code)),
            ("class", class),
            ("trigger", trigger),
            ("attempt", Val::Int(self.attempt_number.into())),
            ("result", result.clone()),
            ("response", result.clone()),
            ("data", result),
            ("success", Val::Bool(false)),
            ("execution_id", Val::Str(&self.execution_id)),
            ("task_id", Val::Str(&self.task_id)),
            ("node_id", Val::Str(&self.task_id)),
            // The dialect `step` has this word for the event that asks: a failed attempt (F4-11, S4-4).
            ("event_type", Val::Str("action_error")),
        ]))
    }
}

/// Bounded before it is parsed, so that the parser never meets a text that could exhaust the stack.
fn compile(bare: &str) -> Result<Expr<'_>, String> {
    if bare.len() > MAX_SOURCE {
        return Err(format!("an expression may have {MAX_SOURCE} bytes at most"));
    }
    if bare.is_empty() {
        return Err("an expression may not be empty".into());
    }
    bound(bare)?;
    parse_expr(bare).map_err(|error| describe(&error))
}

fn is_yes(value: &Val<'_>) -> bool {
    match value.as_str() {
        Some(word) => matches!(word.trim().to_ascii_lowercase().as_str(), "true" | "1" | "yes"),
        None => value.is_true(),
    }
}

fn bare(source: &str) -> &str {
    only_hole(source).unwrap_or_else(|| source.trim())
}

/// The code between the braces of a text that is one `{{ … }}` and nothing else.
fn only_hole(source: &str) -> Option<&str> {
    let inner = source.trim().strip_prefix("{{")?.strip_suffix("}}")?;
    let two_holes = inner.find("}}").is_some_and(|end| inner[end..].contains("{{"));
    let inner = inner.strip_prefix(['-', '+']).unwrap_or(inner);
    let inner = inner.strip_suffix(['-', '+']).unwrap_or(inner);
    (!two_holes).then(|| inner.trim())
}

fn bound(code: &str) -> Result<(), String> {
    if deepest_nesting(code) > MAX_NESTING {
        return Err(format!("an expression may nest {MAX_NESTING} levels at most"));
    }
    if links(code) > MAX_LINKS {
        return Err(format!("an expression may have {MAX_LINKS} operators at most"));
    }
    Ok(())
}

/// Everything that hangs one part on another: the tree of `a ~ b ~ c` is as deep as the chain is long.
fn links(code: &str) -> usize {
    let (mut quote, mut escaped, mut signs) = (None, false, 0);
    let mut outside = String::with_capacity(code.len());
    for letter in code.chars() {
        match quote {
            Some(_) if escaped => escaped = false,
            Some(_) if letter == '\\' => escaped = true,
            Some(open) if letter == open => quote = None,
            Some(_) => {}
            None if matches!(letter, '"' | '\'') => quote = Some(letter),
            None => {
                signs += usize::from(".|~*/%<>=!+-([{".contains(letter));
                outside.push(if letter.is_alphanumeric() || letter == '_' { letter } else { ' ' });
            }
        }
    }
    let words = ["and", "or", "not", "if", "else", "in", "is"];
    signs + outside.split_whitespace().filter(|word| words.contains(word)).count()
}

fn deepest_nesting(source: &str) -> usize {
    let (mut depth, mut deepest) = (0_usize, 0);
    for byte in source.bytes() {
        match byte {
            b'(' | b'[' | b'{' => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    let prefix_operators = source.split_whitespace().filter(|word| *word == "not").count()
        + source.bytes().filter(|byte| matches!(byte, b'-' | b'+')).count();
    deepest.max(prefix_operators)
}

fn describe(error: &minijinja::Error) -> String {
    match error.detail() {
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::Trigger;

    fn ask(source: &str, failure: &Failure) -> Result<bool, String> {
        let scope = Scope {
            failure,
            class: failure.classify(Class::Retryable).0,
            attempt_number: 2,
            execution_id: "x".into(),
            task_id: "t".into(),
        };
        Expression::parse(source)?.holds(&scope)
    }

    #[test]
    fn expressions_see_the_failure() {
        let failure = Failure {
            status: Some(503),
            error_type: Some("IoError".into()),
            result: Some(serde_json::json!({"retry": true, "left": 0})),
            ..Failure::new(Trigger::Error, "socket timeout after 3 s")
        };
        let check = |source: &str, holds: bool| assert_eq!(ask(source, &failure), Ok(holds), "{source}");
        check("status >= 500", true);
        check("{{ status_code == 503 }}", true);
        check("{{ error.status == 404 or 'timeout' in error }}", true);
        check("'refused' in error", false);
        check("error.type == 'IoError' and class == 'retryable'", true);
        check("attempt < 2", false);
        check("result.retry", true);
        check("result.left", false);
        check("error is not none", true);
        check("'yes'", true);
        check("'no'", false);
        check("trigger == 'timeout'", false);
        check("event_type == 'action_error'", true);
        check("response.retry and data.left == 0 and not success", true);
        check("execution_id == 'x' and node_id == 't' and task_id == 't'", true);
        for (word, holds) in [("true", true), ("1", true), ("Yes", true), ("false", false), ("0", false)] {
            check(&format!("'{word}'"), holds);
        }
    }

    #[test]
    fn faults_are_found_when_the_policy_is_read() {
        for source in ["", "  ", "status >=", "statuss == 500", "{% for x in y %}", "a b", "{{ {{ status }} }}"] {
            assert!(Expression::parse(source).is_err(), "{source}");
        }
        assert!(Expression::parse("statuss == 5").unwrap_err().contains("`statuss` is not known"));
    }

    #[test]
    fn faults_at_run_time_are_answers() {
        let failure = Failure::new(Trigger::Error, "x");
        assert!(ask("result.missing.deeper == 1", &failure).is_err());
        assert!(ask("status >= 'a'", &failure).is_ok() || ask("status >= 'a'", &failure).is_err());
    }

    /// Each of these is one long chain; none may need more stack than a thread has.
    #[test]
    fn long_chains_are_answered() {
        let failure = Failure::new(Trigger::Error, "x");
        for more in
            ["~1", ".a", "|upper", " or 1", " and 1", "()", "[0]", " if 1 else 1", "<1", "*1", " is defined", " in 1"]
        {
            for times in [MAX_LINKS / 2 - 1, MAX_LINKS - 1, (MAX_SOURCE - 10) / more.len()] {
                let _ = ask(&format!("error{}", more.repeat(times)), &failure);
            }
        }
        assert_eq!(ask(&format!("1{}", " or 1".repeat(MAX_LINKS)), &failure), Ok(true));
        assert!(
            ask(&format!("1{}", " or 1".repeat(MAX_LINKS + 1)), &failure).unwrap_err().contains("operators at most")
        );
        assert_eq!(
            ask(&format!("'{}' in error", "|".repeat(1_000)), &failure),
            Ok(false),
            "a text may hold what it likes"
        );
    }

    #[test]
    fn expensive_expressions_stop() {
        let failure = Failure::new(Trigger::Error, "x");
        let deep = format!("{}1{}", "(".repeat(50_000), ")".repeat(50_000));
        for source in [
            "range(1000000000)",
            &deep,
            &"not ".repeat(50_000),
            &"-".repeat(60_000),
            "'x' * 1000000000000",
            "2 ** 100000",
        ] {
            let answer = ask(source, &failure);
            assert!(answer.is_err(), "{}: {answer:?}", &source[..source.len().min(40)]);
        }
    }
}
