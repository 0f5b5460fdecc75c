//! One JSON object, read field by field: aliases, both cases of letters, conflicts, and what nobody asked for.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::expression::Expression;
use crate::failure::Matcher;
use crate::invalid::Invalid;
use crate::time::{Millis, Timestamp};

pub struct Fields<'a> {
    /// By snake-case name: the name as written, and its value.
    left: BTreeMap<String, (&'a str, &'a Value)>,
    /// Every name as written, by its snake-case form.
    written: BTreeMap<String, &'a str>,
    faults: Invalid,
    /// It was checked when it was stored, perhaps by an earlier version that let in more.
    stored: bool,
}

/// A number may stand in several names that differ by unit.
const UNITS: [(&str, f64); 4] = [("_secs", 1e3), ("_seconds", 1e3), ("_ms", 1.0), ("", 1e3)];

impl<'a> Fields<'a> {
    pub fn new(value: &'a Value) -> Result<Fields<'a>, Invalid> {
        let Value::Object(object) = value else {
            return Err(Invalid::one("", "must be an object"));
        };
        let (left, written, faults) = (BTreeMap::new(), BTreeMap::new(), Invalid::default());
        let mut fields = Fields { left, written, faults, stored: false };
        for (name, value) in object {
            if !value.is_null() {
                fields.written.insert(snake(name), name);
            }
            if let Some((other, first)) = fields.left.insert(snake(name), (name, value))
                && first != value
            {
                fields.faults.push(name, format!("disagrees with `{other}`; give one of the two"));
            }
        }
        Ok(fields)
    }

    /// The same, of a document that was stored.
    pub fn stored(value: &'a Value) -> Result<Fields<'a>, Invalid> {
        Ok(Fields { stored: true, ..Fields::new(value)? })
    }

    /// A part of this document.
    pub fn part<'p>(&self, value: &'p Value) -> Result<Fields<'p>, Invalid> {
        Ok(Fields { stored: self.stored, ..Fields::new(value)? })
    }

    pub fn is_stored(&self) -> bool {
        self.stored
    }

    pub fn has(&self, name: &str) -> bool {
        self.left.contains_key(name)
    }

    /// Whether any spelling that `duration` reads is there.
    pub fn has_duration(&self, names: &[&str]) -> bool {
        names.iter().any(|name| UNITS.iter().any(|(unit, _)| self.has(&format!("{name}{unit}"))))
    }

    /// How one of these fields was written, whether it was read already or not.
    pub fn written(&self, names: &[&str]) -> Option<&'a str> {
        names.iter().find_map(|name| self.written.get(*name).copied())
    }

    /// The same for fields that `duration` reads.
    pub fn written_duration(&self, names: &[&str]) -> Option<&'a str> {
        let mut spelled = names.iter().flat_map(|name| UNITS.iter().map(move |(unit, _)| format!("{name}{unit}")));
        spelled.find_map(|name| self.written.get(&name).copied())
    }

    /// Takes over what is wrong with the whole, but for what is told of a field or of a part of it already.
    pub fn absorb_whole(&mut self, whole: Invalid) {
        for fault in whole.faults {
            let below = |told: &str| {
                told.strip_prefix(fault.path.as_str())
                    .is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
            };
            if !self.faults.faults.iter().any(|told| below(&told.path)) {
                self.faults.push(fault.path, fault.message);
            }
        }
    }

    pub fn ignore(&mut self, name: &str) {
        self.left.remove(name);
    }

    pub fn take(&mut self, name: &str) -> Option<(&'a str, &'a Value)> {
        self.left.remove(name).filter(|(_, value)| !value.is_null())
    }

    pub fn fault(&mut self, path: impl Into<String>, message: impl std::fmt::Display) {
        self.faults.push(path, message);
    }

    pub fn absorb(&mut self, path: &str, part: Invalid) {
        self.faults.absorb(path, part);
    }

    /// All faults so far, and every field that was never asked for.
    pub fn finish(mut self) -> Result<(), Invalid> {
        for (name, _) in self.left.values() {
            self.faults.push(*name, "is not a field known here");
        }
        self.faults.or(())
    }

    /// Reads every alias that is there; two that say different things are a fault.
    fn read<T: PartialEq>(&mut self, names: &[&str], read: impl Fn(&str, &Value) -> Result<T, String>) -> Option<T> {
        let mut found: Option<(&str, T)> = None;
        for name in names {
            let Some((written, value)) = self.take(name) else { continue };
            match read(name, value) {
                Err(message) => self.faults.push(written, message),
                Ok(value) => match &found {
                    None => found = Some((written, value)),
                    Some((other, first)) if *first != value => {
                        self.faults.push(written, format!("disagrees with `{other}`; give one of the two"));
                    }
                    Some(_) => {}
                },
            }
        }
        found.map(|(_, value)| value)
    }

    pub fn boolean(&mut self, names: &[&str]) -> Option<bool> {
        self.read(names, |_, value| value.as_bool().ok_or_else(|| "must be true or false".into()))
    }

    pub fn count(&mut self, names: &[&str]) -> Option<u32> {
        self.read(names, |_, value| {
            let whole = value.as_u64().or_else(|| {
                value.as_f64().filter(|number| number.fract() == 0.0 && (0.0..4e9).contains(number)).map(|n| n as u64)
            });
            whole
                .and_then(|number| u32::try_from(number).ok())
                .ok_or_else(|| "must be a whole number of 0 or more".into())
        })
    }

    pub fn number(&mut self, names: &[&str]) -> Option<f64> {
        self.read(names, |_, value| value.as_f64().ok_or_else(|| "must be a number".into()))
    }

    /// A duration under any of these names, each also with `_secs`, `_seconds` and `_ms` behind it.
    pub fn duration(&mut self, names: &[&str]) -> Option<Millis> {
        let spelled: Vec<String> =
            names.iter().flat_map(|name| UNITS.iter().map(move |(unit, _)| format!("{name}{unit}"))).collect();
        let spelled: Vec<&str> = spelled.iter().map(String::as_str).collect();
        self.read(&spelled, |name, value| duration(value, scale_of(name)))
    }

    /// A number of milliseconds under a name that does not say so.
    pub fn millis(&mut self, name: &str) -> Option<Millis> {
        self.read(&[name], |_, value| duration(value, 1.0))
    }

    pub fn instant(&mut self, names: &[&str]) -> Option<Timestamp> {
        self.read(names, |_, value| match value {
            Value::String(text) => Timestamp::parse_rfc3339(text).map_err(|error| error.to_string()),
            _ => Err("must be an instant in RFC 3339".into()),
        })
    }

    pub fn word<T: PartialEq>(
        &mut self,
        name: &str,
        read: impl Fn(&str) -> Option<T>,
        list: impl Fn() -> String,
    ) -> Option<T> {
        self.read(&[name], |_, value| {
            value.as_str().and_then(&read).ok_or_else(|| format!("must be one of {}", list()))
        })
    }

    pub fn text(&mut self, name: &str) -> Option<String> {
        self.read(&[name], |_, value| value.as_str().map(str::to_owned).ok_or_else(|| "must be a text".into()))
    }

    pub fn expression(&mut self, names: &[&str]) -> Option<Expression> {
        let stored = self.stored;
        self.read(names, |_, value| match value {
            Value::String(source) if stored => Ok(Expression::stored(source)),
            Value::String(source) => Expression::parse(source),
            Value::Bool(constant) => Expression::parse(if *constant { "true" } else { "false" }),
            _ => Err("must be an expression".into()),
        })
    }

    pub fn matchers(&mut self, names: &[&str]) -> Option<Vec<Matcher>> {
        self.read(names, |_, value| matchers(value))
    }
}

/// A matcher, or a list of them; statuses may be numbers.
pub fn matchers(value: &Value) -> Result<Vec<Matcher>, String> {
    match value {
        Value::Array(items) if items.len() > 200 => Err("may hold 200 matchers at most".into()),
        Value::Array(items) => items.iter().map(matcher).collect(),
        single => matcher(single).map(|it| vec![it]),
    }
}

fn matcher(value: &Value) -> Result<Matcher, String> {
    match value {
        Value::String(text) => Matcher::parse(text),
        Value::Number(number) => Matcher::parse(&number.to_string()),
        _ => Err("a matcher is a status, a class such as 5xx, a trigger, an error class or a name".into()),
    }
}

pub fn duration(value: &Value, scale: f64) -> Result<Millis, String> {
    match value {
        Value::Number(number) => {
            let seconds = number.as_f64().unwrap_or(f64::NAN) * scale / 1e3;
            Millis::parse_secs(seconds).map_err(|error| error.to_string())
        }
        Value::String(text) => Millis::parse(text).map_err(|error| error.to_string()),
        _ => Err("must be a duration".into()),
    }
}

fn scale_of(name: &str) -> f64 {
    UNITS.iter().find(|(unit, _)| name.ends_with(unit)).map_or(1e3, |(_, scale)| *scale)
}

/// `maxRetries` and `max-retries` are `max_retries`.
pub fn snake(name: &str) -> String {
    let mut out = String::with_capacity(name.len() + 4);
    for (i, c) in name.char_indices() {
        if c.is_ascii_uppercase() {
            if i > 0 && !out.ends_with('_') {
                out.push('_');
            }
            out.push(c.to_ascii_lowercase());
        } else {
            out.push(if c == '-' { '_' } else { c });
        }
    }
    out
}
