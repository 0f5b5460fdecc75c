//! Texts with holes: `{{ … }}` and `{% … %}` in any string of a JSON value.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::machine::{Machine, Names, parse_template};
use super::meter::{MAX_STEPS, MAX_VALUE, Meter, Res, too_large};
use super::value::{Room, to_json};
use super::{check, compile, filters, is_yes, only_hole};
use crate::invalid::Invalid;

const MAX_TEMPLATE: usize = 64 * 1024;
/// Each `elif` stands inside the one before it.
const MAX_STATEMENTS: usize = 200;
const MAX_RENDERED: usize = MAX_VALUE;
const MAX_DEPTH: usize = 100;
/// The memory of one value that `eval` answers with.
const MAX_ANSWER: usize = 8 * 1024 * 1024;
/// The memory of all values that `render` puts into one document.
const MAX_FILLED: usize = 5 * 1024 * 1024;

/// Whether a text has `{{ … }}` or `{% … %}`.
pub fn is_template(text: &str) -> bool {
    text.contains("{{") || text.contains("{%")
}

/// The bare expression, and the names it asks for, dotted as far as they are written so (`steps.load.result`).
pub fn check_expression(source: &str) -> Result<(String, BTreeSet<String>), String> {
    let bare = super::bare(source);
    let asked = check::expression(&compile(bare)?)?;
    Ok((bare.to_owned(), asked_for(asked)))
}

/// Whether a text can be rendered, and the names it asks for.
pub fn check_template(source: &str) -> Result<BTreeSet<String>, String> {
    if !is_template(source) {
        return Ok(BTreeSet::new());
    }
    if let Some(bare) = only_hole(source) {
        return check::expression(&compile(bare)?).map(asked_for);
    }
    bound(source)?;
    check::template(&parse_template(source)?).map(asked_for)
}

/// The value of an expression. What is not there is an error, never an empty value.
pub fn eval(source: &str, context: &Value) -> Result<Value, String> {
    let mut meter = Meter::new(MAX_STEPS);
    evaluate(super::bare(source), &Names::Json(context), &mut meter, &mut Room::new(MAX_ANSWER))
}

/// Whether a condition holds: as in a policy, the words `true`, `1` and `yes` do.
pub fn holds(source: &str, context: &Value) -> Result<bool, String> {
    let bare = super::bare(source);
    let (names, mut meter) = (Names::Json(context), Meter::new(MAX_STEPS));
    let compiled = compile(bare)?;
    let mut machine = Machine::new(&names, &mut meter);
    match machine.eval(&compiled) {
        Ok(value) if value.is_undefined() => Err(not_there(bare)),
        Ok(value) => Ok(is_yes(&value)),
        Err(message) => Err(fault(message, machine.line, bare)),
    }
}

/// Fills the holes of every string. A string that is one `{{ … }}` and nothing else becomes the value itself, whatever its
/// type; any other becomes a text. Keys stay as they are. Faults name the path of the string.
pub fn render(value: &Value, context: &Value) -> Result<Value, Invalid> {
    let mut work = Rendering {
        names: Names::Json(context),
        meter: Meter::new(MAX_STEPS),
        room: Room::new(MAX_FILLED),
        left: MAX_RENDERED,
        faults: Invalid::default(),
    };
    let rendered = work.value(value, &mut String::new(), 0);
    work.faults.or(rendered)
}

struct Rendering<'a> {
    names: Names<'a>,
    /// Shared by all strings of a document: a long document may not take longer than one long text.
    meter: Meter,
    room: Room,
    /// Bytes that may still be written: a short template over a long list can be endless.
    left: usize,
    faults: Invalid,
}

impl Rendering<'_> {
    fn value(&mut self, value: &Value, path: &mut String, depth: usize) -> Value {
        let before = path.len();
        match value {
            Value::String(text) if is_template(text) => self.text(text).unwrap_or_else(|message| {
                self.faults.push(path.as_str(), message);
                Value::Null
            }),
            Value::Array(_) | Value::Object(_) if depth >= MAX_DEPTH => {
                self.faults.push(path.as_str(), format!("may nest {MAX_DEPTH} levels at most"));
                Value::Null
            }
            Value::Array(items) => {
                let mut filled = Vec::with_capacity(items.len());
                for (n, item) in items.iter().enumerate() {
                    path.push_str(&format!("[{n}]"));
                    filled.push(self.value(item, path, depth + 1));
                    path.truncate(before);
                }
                Value::Array(filled)
            }
            Value::Object(fields) => {
                let mut filled = Map::new();
                for (name, field) in fields {
                    if before > 0 {
                        path.push('.');
                    }
                    path.push_str(name);
                    filled.insert(name.clone(), self.value(field, path, depth + 1));
                    path.truncate(before);
                }
                Value::Object(filled)
            }
            plain => plain.clone(),
        }
    }

    fn text(&mut self, source: &str) -> Result<Value, String> {
        self.meter.forget_values();
        self.meter.look(source.len())?;
        if let Some(bare) = only_hole(source) {
            let value = evaluate(bare, &self.names, &mut self.meter, &mut self.room)?;
            self.left = self.left.checked_sub(weight(&value)).ok_or_else(too_large)?;
            return Ok(value);
        }
        bound(source)?;
        let template = parse_template(source)?;
        let mut machine = Machine::new(&self.names, &mut self.meter);
        let text = machine.render(&template, self.left).map_err(|message| fault(message, machine.line, source))?;
        self.left -= text.len();
        self.room.take(text.len())?;
        Ok(Value::String(text))
    }
}

fn not_there(bare: &str) -> String {
    format!("`{bare}` is not there")
}

fn evaluate(bare: &str, names: &Names<'_>, meter: &mut Meter, room: &mut Room) -> Res<Value> {
    let compiled = compile(bare)?;
    let mut machine = Machine::new(names, meter);
    match machine.eval(&compiled) {
        Ok(value) if value.is_undefined() => Err(not_there(bare)),
        Ok(value) => to_json(&value, room, machine.meter, 0),
        Err(message) => Err(fault(message, machine.line, bare)),
    }
}

/// The error alone often does not say what it is about.
fn fault(message: String, line: usize, source: &str) -> String {
    if message == too_large() {
        return message;
    }
    let line = source.trim().lines().nth(line.saturating_sub(1)).unwrap_or_default().trim();
    let end = line.floor_char_boundary(line.len().min(80));
    format!("{message} in `{}`", &line[..end])
}

fn asked_for(names: BTreeSet<String>) -> BTreeSet<String> {
    let is_function = |name: &String| filters::FUNCTIONS.contains(&name.split('.').next().unwrap_or_default());
    names.into_iter().filter(|name| !is_function(name)).collect()
}

fn weight(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(weight).sum::<usize>() + items.len(),
        Value::Object(fields) => fields.iter().map(|(name, field)| name.len() + 1 + weight(field)).sum(),
        _ => 8,
    }
}

/// As for expressions, but text outside of the braces may hold what it likes.
fn bound(source: &str) -> Result<(), String> {
    if source.len() > MAX_TEMPLATE {
        return Err(format!("a template may have {MAX_TEMPLATE} bytes at most"));
    }
    if source.matches("{%").count() > MAX_STATEMENTS {
        return Err(format!("a template may have {MAX_STATEMENTS} statements at most"));
    }
    code_of(source).into_iter().try_for_each(super::bound)
}

/// A template that is text and `{{ … }}` only, piece by piece.
pub enum Piece<'a> {
    /// Literal text.
    Text(&'a str),
    /// The code between two braces.
    Hole(&'a str),
}

/// A text cut into literals and holes; `None` if it has statements or cannot be cut.
pub fn pieces(source: &str) -> Option<Vec<Piece<'_>>> {
    if source.contains("{%") || source.contains("{#") {
        return None;
    }
    let (mut found, mut rest) = (Vec::new(), source);
    while let Some(start) = rest.find("{{") {
        let code = &rest[start + 2..];
        let end = end_of_code(code, "}}");
        found.push(Piece::Text(&rest[..start]));
        found.push(Piece::Hole(code[..end].trim_matches(['-', '+']).trim()));
        rest = code.get(end + 2..).unwrap_or_default();
    }
    found.push(Piece::Text(rest));
    Some(found)
}

/// Every part that is read as code. Comments and raw blocks could hide where code begins: with them all of it counts.
fn code_of(source: &str) -> Vec<&str> {
    let raw = |part: &str| part.trim_start_matches(|c: char| c.is_whitespace() || "-+".contains(c)).starts_with("raw");
    if source.contains("{#") || source.split("{%").skip(1).any(raw) {
        return vec![source];
    }
    let mut parts = Vec::new();
    let mut rest = source;
    // Looks no further than the next opening: a long template has thousands.
    let next = |text: &str| text.as_bytes().windows(2).position(|two| two == b"{{" || two == b"{%");
    while let Some(start) = next(rest) {
        let close = if rest[start..].starts_with("{{") { "}}" } else { "%}" };
        let code = &rest[start + 2..];
        let end = end_of_code(code, close);
        parts.push(&code[..end]);
        rest = &code[end..];
    }
    parts
}

fn end_of_code(code: &str, close: &str) -> usize {
    let (mut quote, mut escaped) = (None, false);
    for (at, letter) in code.char_indices() {
        match quote {
            Some(_) if escaped => escaped = false,
            Some(_) if letter == '\\' => escaped = true,
            Some(open) if letter == open => quote = None,
            Some(_) => {}
            None if letter == '"' || letter == '\'' => quote = Some(letter),
            None if code[at..].starts_with(close) => return at,
            None => {}
        }
    }
    code.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn context() -> Value {
        json!({"input": {"name": "Ada", "n": 3, "rows": [1, 2], "ratio": 0.5, "big": u64::MAX, "none": null},
               "steps": {"load": {"result": {"rows": [{"id": 7}]}}, "my-step": {"result": 1}}})
    }

    #[test]
    fn a_string_that_is_one_hole_becomes_the_value() {
        for (source, value) in [
            ("{{ input.n }}", json!(3)),
            ("{{ input.rows }}", json!([1, 2])),
            ("{{ steps.load.result.rows[0] }}", json!({"id": 7})),
            ("{{ steps['my-step'].result + 1 }}", json!(2)),
            ("{{ input.none }}", json!(null)),
            ("{{ input.ratio }}", json!(0.5)),
            ("{{ input.big }}", json!(u64::MAX)),
            ("{{ input.n > 2 }}", json!(true)),
            ("  {{ input.n }}\n", json!(3)),
            ("{{- input.n -}}", json!(3)),
            ("{{ {'a': {'b': input.n}} }}", json!({"a": {"b": 3}})),
            ("{{ input.missing | default('x') }}", json!("x")),
            ("{{ input.n }}-{{ input.n }}", json!("3-3")),
            ("Hello {{ input.name }}!\n", json!("Hello Ada!\n")),
            ("{% for row in input.rows %}{{ row }};{% endfor %}", json!("1;2;")),
            ("{{ '}}' }} {{ '{{' }}", json!("}} {{")),
            ("plain { } text", json!("plain { } text")),
        ] {
            assert_eq!(render(&json!(source), &context()), Ok(value), "{source}");
        }
    }

    #[test]
    fn every_string_of_a_value_is_rendered_and_nothing_else() {
        let value = json!({"a": ["{{ input.n }}", {"b": "x{{ input.n }}"}], "{{ key }}": 1, "c": 2.5, "d": null});
        let rendered = json!({"a": [3, {"b": "x3"}], "{{ key }}": 1, "c": 2.5, "d": null});
        assert_eq!(render(&value, &context()), Ok(rendered));
    }

    #[test]
    fn what_is_not_there_is_an_error_that_names_its_place() {
        let value = json!({"a": ["ok", "{{ input.missing }}"], "b": "x {{ nothing }}", "c": "{{ [input.missing] }}"});
        let faults = render(&value, &context()).unwrap_err().faults;
        let paths: Vec<&str> = faults.iter().map(|fault| fault.path.as_str()).collect();
        assert_eq!(paths, ["a[1]", "b", "c"]);
        assert!(eval("input.missing", &context()).unwrap_err().contains("`input.missing` is not there"));
        assert_eq!(eval("input.missing.deeper", &context()), Err("undefined value in `input.missing.deeper`".into()));
        assert_eq!(
            render(&json!("one\n{{ input.n }}{{ nothing }}"), &context()).unwrap_err().faults[0].message,
            "undefined value in `{{ input.n }}{{ nothing }}`"
        );
        assert_eq!(eval("input.n * 2", &context()), Ok(json!(6)));
        assert_eq!(eval("{{ input.n * 2 }}", &context()), Ok(json!(6)));
    }

    #[test]
    fn conditions_hold_by_truth_or_by_word() {
        for (source, yes) in
            [("input.n == 3", true), ("{{ input.rows }}", true), ("'no'", false), ("'Yes'", true), ("0", false)]
        {
            assert_eq!(holds(source, &context()), Ok(yes), "{source}");
        }
        assert!(holds("input.missing", &context()).is_err());
        assert!(holds("fail('no rows') if input.n == 3 else true", &context()).unwrap_err().contains("no rows"));
    }

    #[test]
    fn templates_are_checked_and_tell_what_they_ask_for() {
        let asked = |source: &str| check_template(source).map(|names| names.into_iter().collect::<Vec<_>>().join(" "));
        assert_eq!(asked("{{ steps.load.result.rows[0].id }}").as_deref(), Ok("steps.load.result.rows"));
        assert_eq!(asked("a {{ input.x }} b {{ y }}").as_deref(), Ok("input.x y"));
        assert_eq!(asked("{% for a in input.rows %}{{ a }}{{ loop.index }}{% endfor %}").as_deref(), Ok("input.rows"));
        assert_eq!(asked("{{ dict(a=1) }}{{ fail('x') }}").as_deref(), Ok(""));
        for wrong in ["{{ a", "{{ }}", "{% if x %}", "{{ a b }}", "x {{ a | nofilter( }} y"] {
            assert!(asked(wrong).is_err(), "{wrong}");
        }
        assert_eq!(check_expression(" {{ a.b }} ").unwrap().0, "a.b");
    }

    #[test]
    fn no_template_runs_or_grows_without_end() {
        let long = json!({"rows": vec!["x".repeat(1_000); 2_000]});
        let deep = format!("a {{{{ {}1{} }}}}", "(".repeat(20_000), ")".repeat(20_000));
        let hidden = format!("{{# {{{{ ' #}}{{{{ ' }}}} ' ~ {} 1 }}}}", "not ".repeat(10_000));
        for source in [
            "x{% for a in rows %}{{ rows | join }}{% endfor %}",
            "x{% for a in rows %}{% for b in rows %}{% for c in rows %}{% endfor %}{% endfor %}{% endfor %}",
            &deep,
            &hidden,
        ] {
            let answer = render(&json!(source), &long);
            assert!(answer.is_err(), "{}", &source[..source.len().min(40)]);
        }
        let elses = format!("{{% if 1 %}}{}{{% endif %}}", "{% elif 1 %}".repeat(199));
        let loops = format!("x{}{}", "{% if 1 %}".repeat(100), "{% endif %}".repeat(100));
        for source in [elses, loops] {
            let _ = render(&json!(source), &long);
        }
        let dashes = format!("{}\n{{{{ rows | length }}}}", "-".repeat(500));
        assert!(render(&json!(dashes), &long).is_ok());
        assert!(render(&json!(["{{ rows }}"]), &long).is_err(), "two megabytes are too much");
    }
}
