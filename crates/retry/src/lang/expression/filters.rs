//! The filters, tests and functions that expressions and templates may use. There are no others.
//!
//! Over 500 lines: the allow-list of filters and functions, one short function each.

use std::cmp::Ordering;

use super::machine::Args;
use super::meter::{Meter, Res, Writer};
use super::operators::{add, contains};
use super::value::{
    Kind, Num, UNDEFINED, Val, append, fields, order, put, room_for, room_for_fields, same, undefined, write,
};

type IsLetter = fn(char) -> bool;

pub(super) const FILTERS: [&str; 41] = [
    "abs",
    "attr",
    "bool",
    "capitalize",
    "count",
    "d",
    "default",
    "dictsort",
    "e",
    "escape",
    "first",
    "float",
    "int",
    "items",
    "join",
    "last",
    "length",
    "lines",
    "list",
    "lower",
    "map",
    "max",
    "min",
    "reject",
    "rejectattr",
    "replace",
    "reverse",
    "round",
    "safe",
    "select",
    "selectattr",
    "sort",
    "split",
    "string",
    "sum",
    "title",
    "tojson",
    "trim",
    "unique",
    "upper",
    "urlencode",
];

pub(super) const TESTS: [&str; 37] = [
    "!=",
    "<",
    "<=",
    "==",
    ">",
    ">=",
    "boolean",
    "defined",
    "divisibleby",
    "endingwith",
    "eq",
    "equalto",
    "even",
    "false",
    "float",
    "ge",
    "greaterthan",
    "gt",
    "in",
    "int",
    "integer",
    "iterable",
    "le",
    "lessthan",
    "lower",
    "lt",
    "mapping",
    "ne",
    "none",
    "number",
    "odd",
    "sameas",
    "sequence",
    "startingwith",
    "string",
    "true",
    "undefined",
];

pub(super) const FUNCTIONS: [&str; 2] = ["dict", "fail"];

/// `upper` is a test too, and no room is left in its list's line.
pub(super) fn is_test(name: &str) -> bool {
    TESTS.contains(&name) || name == "upper"
}

/// Applies a filter. `map` may apply another, which is not `map` again.
pub(super) fn apply<'a>(name: &str, value: Val<'a>, mut args: Args<'a>, meter: &mut Meter) -> Res<Val<'a>> {
    meter.work(8)?;
    if matches!(name, "default" | "d") {
        let other = args.take("default_value").unwrap_or(Val::Str(""));
        let lax = args.take("boolean").is_some_and(|lax| lax.is_true());
        args.finish()?;
        return Ok(if value.is_undefined() || (lax && !value.is_true()) { other } else { value });
    }
    if let Val::Undefined { silent: false } = value {
        return Err(undefined());
    }
    match name {
        "lower" | "upper" | "title" | "capitalize" | "trim" | "replace" | "escape" | "e" | "urlencode" | "split"
        | "lines" | "string" | "safe" | "tojson" => texts(name, value, args, meter),
        "abs" | "int" | "float" | "round" | "bool" => numbers(name, value, args, meter),
        "sort" | "unique" | "min" | "max" | "dictsort" => sorted(name, value, args, meter),
        "map" => mapped(value, args, meter),
        "select" | "reject" | "selectattr" | "rejectattr" => selected(name, value, args, meter),
        "length" | "count" | "first" | "last" | "reverse" | "list" | "join" | "sum" | "items" | "attr" => {
            lists(name, value, args, meter)
        }
        _ => Err(super::check::unknown_filter(name)),
    }
}

/// The value as a text, as `~` writes it.
fn shown<'a>(value: &Val<'a>, meter: &mut Meter) -> Res<Val<'a>> {
    match value {
        Val::Str(_) | Val::Text(_) => Ok(value.clone()),
        Val::Undefined { silent: false } => Err(undefined()),
        other => {
            let mut text = Writer::new(meter)?;
            write(other, false, &mut text, meter, 0)?;
            Ok(Val::Text(text.into_text()))
        }
    }
}

#[inline(never)]
fn texts<'a>(name: &str, value: Val<'a>, mut args: Args<'a>, meter: &mut Meter) -> Res<Val<'a>> {
    match name {
        "tojson" => {
            if args.by_place.is_empty() && args.by_name.is_empty() {
                let mut text = Writer::new(meter)?;
                json(&value, &mut text, meter, 0)?;
                return Ok(Val::Text(text.into_text()));
            }
            return Err("invalid operation: the filter `tojson` takes no arguments here".into());
        }
        "urlencode" if value.kind() == Kind::Map => {
            args.finish()?;
            return form(&value, meter);
        }
        "urlencode" if matches!(value, Val::None) => return Ok(Val::Str("")),
        "string" | "safe" => {
            args.finish()?;
            return if name == "safe" { Ok(value) } else { shown(&value, meter) };
        }
        _ => {}
    }
    let whole = shown(&value, meter)?;
    let text = whole.as_str().unwrap_or_default();
    meter.look(text.len())?;
    let mut out = Writer::new(meter)?;
    match name {
        "lower" => {
            for letter in text.chars() {
                letter.to_lowercase().try_for_each(|letter| out.push_char(meter, letter))?;
            }
        }
        "upper" => {
            for letter in text.chars() {
                letter.to_uppercase().try_for_each(|letter| out.push_char(meter, letter))?;
            }
        }
        "title" | "capitalize" => {
            let mut begins = true;
            for letter in text.chars() {
                if begins {
                    letter.to_uppercase().try_for_each(|letter| out.push_char(meter, letter))?;
                } else {
                    letter.to_lowercase().try_for_each(|letter| out.push_char(meter, letter))?;
                }
                begins = name == "title" && (matches!(letter, '-' | '(' | '{' | '[' | '<') || letter.is_whitespace());
            }
        }
        "trim" => {
            let cut = match args.take("chars") {
                None => text.trim(),
                Some(letters) => {
                    let letters = shown(&letters, meter)?;
                    let letters = letters.as_str().unwrap_or_default();
                    if letters.len() > 64 {
                        return Err("invalid operation: the filter `trim` takes 64 letters at most".into());
                    }
                    meter.look(text.len().saturating_mul(1 + letters.len()))?;
                    text.trim_matches(|letter| letters.contains(letter))
                }
            };
            out.push(meter, cut)?;
        }
        "replace" => {
            let (from, to) = (shown(&args.need("old")?, meter)?, shown(&args.need("new")?, meter)?);
            let (from, to) = (from.as_str().unwrap_or_default(), to.as_str().unwrap_or_default());
            meter.look(2 * (text.len() + from.len()))?;
            let mut plain = 0;
            for (at, found) in text.match_indices(from) {
                meter.work(2)?;
                out.push(meter, &text[plain..at])?;
                out.push(meter, to)?;
                plain = at + found.len();
            }
            out.push(meter, &text[plain..])?;
        }
        "escape" | "e" => {
            for letter in text.chars() {
                match letter {
                    '<' => out.push(meter, "&lt;")?,
                    '>' => out.push(meter, "&gt;")?,
                    '&' => out.push(meter, "&amp;")?,
                    '"' => out.push(meter, "&quot;")?,
                    '\'' => out.push(meter, "&#x27;")?,
                    plain => out.push_char(meter, plain)?,
                }
            }
        }
        "urlencode" => percent(text, &mut out, meter)?,
        _ => {
            let pieces = split(name, text, &mut args, meter)?;
            args.finish()?;
            return Val::list(pieces);
        }
    }
    args.finish()?;
    Ok(Val::Text(out.into_text()))
}

fn split<'a>(name: &str, text: &str, args: &mut Args<'a>, meter: &mut Meter) -> Res<Vec<Val<'a>>> {
    let mut pieces = Vec::new();
    let mut push = |piece: &str, meter: &mut Meter| -> Res<()> {
        let piece = Val::text(meter, piece)?;
        append(&mut pieces, piece, meter)
    };
    if name == "lines" {
        text.lines().try_for_each(|line| push(line, meter))?;
        return Ok(pieces);
    }
    let by = match args.take("split") {
        None | Some(Val::None) => None,
        Some(by) => Some(shown(&by, meter)?),
    };
    let most = match args.take("maxsplits").map(|most| most.as_index()) {
        Some(Some(most)) if most >= 0 => usize::try_from(most).unwrap_or(usize::MAX).saturating_add(1),
        _ => usize::MAX,
    };
    match by.as_ref().and_then(Val::as_str) {
        Some(by) => {
            meter.look(2 * (text.len() + by.len()))?;
            text.splitn(most, by).try_for_each(|piece| push(piece, meter))?;
        }
        None => {
            let mut rest = text.trim_start();
            let mut made = 1;
            while !rest.is_empty() {
                let end = if made < most { rest.find(char::is_whitespace) } else { None };
                let (piece, after) = rest.split_at(end.unwrap_or(rest.len()));
                push(piece, meter)?;
                rest = after.trim_start();
                made += 1;
            }
        }
    }
    Ok(pieces)
}

fn percent(text: &str, out: &mut Writer, meter: &mut Meter) -> Res<()> {
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"/.-_".contains(&byte) {
            out.push_char(meter, char::from(byte))?;
        } else {
            out.push(meter, &format!("%{byte:02X}"))?;
        }
    }
    Ok(())
}

fn form<'a>(value: &Val<'a>, meter: &mut Meter) -> Res<Val<'a>> {
    let mut out = Writer::new(meter)?;
    let mut first = true;
    for (key, field) in fields(value, meter)? {
        if matches!(field, Val::None | Val::Undefined { .. }) {
            continue;
        }
        if !std::mem::take(&mut first) {
            out.push(meter, "&")?;
        }
        let (key, field) = (shown(&key, meter)?, shown(&field, meter)?);
        percent(key.as_str().unwrap_or_default(), &mut out, meter)?;
        out.push(meter, "=")?;
        percent(field.as_str().unwrap_or_default(), &mut out, meter)?;
    }
    Ok(Val::Text(out.into_text()))
}

/// JSON that can stand in a page too: `<`, `>`, `&` and `'` are escaped.
fn json(value: &Val<'_>, out: &mut Writer, meter: &mut Meter, depth: usize) -> Res<()> {
    if depth > 300 {
        return Err("may nest 300 levels at most".into());
    }
    meter.work(1)?;
    match value {
        Val::Undefined { .. } => Err(undefined()),
        Val::None => out.push(meter, "null"),
        Val::Bool(yes) => out.push(meter, if *yes { "true" } else { "false" }),
        Val::Int(number) => out.push(meter, &number.to_string()),
        Val::Float(real) => match serde_json::Number::from_f64(*real) {
            Some(number) => out.push(meter, &number.to_string()),
            None => out.push(meter, "null"),
        },
        Val::Str(_) | Val::Text(_) => json_text(value.as_str().unwrap_or_default(), out, meter),
        Val::Loop { .. } => Err("invalid operation: a loop is no JSON".into()),
        _ => {
            let is_map = value.kind() == Kind::Map;
            out.push(meter, if is_map { "{" } else { "[" })?;
            let mut items = value.iter()?;
            let mut first = true;
            while let Some(item) = items.next(meter)? {
                if !std::mem::take(&mut first) {
                    out.push(meter, ", ")?;
                }
                if is_map {
                    let key = shown(&item, meter)?;
                    json_text(key.as_str().unwrap_or_default(), out, meter)?;
                    out.push(meter, ": ")?;
                    let field = value.item(&item, meter)?.unwrap_or(Val::None);
                    json(&field, out, meter, depth + 1)?;
                } else {
                    json(&item, out, meter, depth + 1)?;
                }
            }
            out.push(meter, if is_map { "}" } else { "]" })
        }
    }
}

fn json_text(text: &str, out: &mut Writer, meter: &mut Meter) -> Res<()> {
    out.push(meter, "\"")?;
    for letter in text.chars() {
        match letter {
            '"' => out.push(meter, "\\\"")?,
            '\\' => out.push(meter, "\\\\")?,
            '\n' => out.push(meter, "\\n")?,
            '\r' => out.push(meter, "\\r")?,
            '\t' => out.push(meter, "\\t")?,
            '<' | '>' | '&' | '\'' => out.push(meter, &format!("\\u{:04x}", letter as u32))?,
            _ if (letter as u32) < 32 => out.push(meter, &format!("\\u{:04x}", letter as u32))?,
            plain => out.push_char(meter, plain)?,
        }
    }
    out.push(meter, "\"")
}

#[inline(never)]
fn numbers<'a>(name: &str, value: Val<'a>, mut args: Args<'a>, meter: &mut Meter) -> Res<Val<'a>> {
    match name {
        "bool" => {
            args.finish()?;
            value.truth().map(Val::Bool)
        }
        "abs" => {
            args.finish()?;
            match value {
                Val::Int(number) => {
                    number.checked_abs().map(Val::Int).ok_or_else(|| "invalid operation: overflow on abs".into())
                }
                Val::Float(real) => Ok(Val::Float(real.abs())),
                _ => Err("invalid operation: cannot get absolute value".into()),
            }
        }
        "int" | "float" => {
            let default = args.take("default");
            let base = match args.take("base").map(|base| base.as_index()) {
                None => 10,
                Some(Some(base)) if name == "int" && (2..=36).contains(&base) => base as u32,
                Some(_) => return Err("invalid operation: the base of `int` is a number from 2 to 36".into()),
            };
            args.finish()?;
            if let Some(text) = value.as_str() {
                meter.look(text.len())?;
            }
            let read = if name == "int" { int(&value, base) } else { float(&value) };
            read.or(default)
                .ok_or_else(|| format!("invalid operation: cannot convert {} to {name}", value.kind().word()))
        }
        _ => {
            let precision = match args.take("precision") {
                None => 0,
                Some(given) => given
                    .as_index()
                    .filter(|places| (-400..=400).contains(places))
                    .ok_or("invalid operation: `round` takes a precision between -400 and 400")?,
            };
            let method = match args.take("method") {
                None => "common".to_owned(),
                Some(word) => word.as_str().unwrap_or_default().to_owned(),
            };
            args.finish()?;
            // All digits of a fraction are worked out.
            meter.work(50 + (precision * precision) as usize)?;
            round(&value, precision as i32, &method)
        }
    }
}

fn int<'a>(value: &Val<'a>, base: u32) -> Option<Val<'a>> {
    match value {
        Val::None => Some(Val::Int(0)),
        Val::Bool(yes) => Some(Val::Int((*yes).into())),
        Val::Int(_) => Some(value.clone()),
        Val::Float(real) => Some(Val::Int(*real as i128)),
        other => {
            let text = other.as_str()?;
            let prefix = match base {
                2 => "0b",
                8 => "0o",
                16 => "0x",
                _ => "",
            };
            let (sign, digits) = match text.strip_prefix('-') {
                Some(rest) => (-1, rest),
                None => (1, text.strip_prefix('+').unwrap_or(text)),
            };
            let has_prefix = !prefix.is_empty() && digits.get(..2).is_some_and(|it| it.eq_ignore_ascii_case(prefix));
            let digits = if has_prefix { &digits[2..] } else { digits };
            match i128::from_str_radix(digits, base) {
                Ok(number) if !digits.starts_with(['+', '-']) => Some(Val::Int(sign * number)),
                _ => text.parse::<f64>().ok().map(|real| Val::Int(real as i128)),
            }
        }
    }
}

fn float<'a>(value: &Val<'a>) -> Option<Val<'a>> {
    match value {
        Val::None => Some(Val::Float(0.0)),
        other => match other.as_str() {
            Some(text) => text.parse().ok().map(Val::Float),
            None => Num::of(other).map(|number| Val::Float(number.real())),
        },
    }
}

fn round<'a>(value: &Val<'a>, places: i32, method: &str) -> Res<Val<'a>> {
    let too_large = || "invalid operation: rounded value is too large to represent".to_owned();
    match (value, method) {
        (_, method) if !matches!(method, "common" | "ceil" | "floor") => {
            Err("invalid operation: method must be common, ceil or floor".into())
        }
        (Val::Int(_), _) if places >= 0 => Ok(value.clone()),
        (Val::Int(number), method) => {
            let Some(factor) = 10_i128.checked_pow(places.unsigned_abs()) else { return Ok(Val::Int(0)) };
            let (quotient, rest) = (number.div_euclid(factor), number.rem_euclid(factor));
            let up = match method {
                "ceil" => rest > 0,
                "floor" => false,
                _ => rest > factor - rest || (rest == factor - rest && quotient % 2 != 0),
            };
            (quotient + i128::from(up)).checked_mul(factor).map(Val::Int).ok_or_else(too_large)
        }
        (Val::Float(real), "common") if places >= 0 => {
            let text = format!("{real:.places$}", places = places.unsigned_abs() as usize);
            Ok(Val::Float(text.parse().unwrap_or(*real)))
        }
        (Val::Float(real), method) => {
            let factor = 10_f64.powi(places);
            let scaled = real * factor;
            if !scaled.is_finite() || factor == 0.0 {
                return Ok(Val::Float(if factor == 0.0 { 0.0 } else { *real }));
            }
            let whole = match method {
                "ceil" => scaled.ceil(),
                "floor" => scaled.floor(),
                _ => scaled.round_ties_even(),
            };
            let rounded = (whole + 0.0) / factor;
            if rounded.is_finite() { Ok(Val::Float(rounded)) } else { Err(too_large()) }
        }
        (other, _) => Err(format!("invalid operation: cannot round value ({})", other.kind().word())),
    }
}

#[inline(never)]
fn lists<'a>(name: &str, value: Val<'a>, mut args: Args<'a>, meter: &mut Meter) -> Res<Val<'a>> {
    match name {
        "length" | "count" => {
            args.finish()?;
            if let Some(text) = value.as_str() {
                meter.look(text.len())?;
                return Ok(Val::Int(text.chars().count() as i128));
            }
            value.len().map(|length| Val::Int(length as i128)).ok_or_else(|| {
                format!("invalid operation: cannot calculate length of value of type {}", value.kind().word())
            })
        }
        "first" => {
            args.finish()?;
            if !matches!(value.kind(), Kind::String | Kind::Sequence | Kind::Map) {
                return Err("invalid operation: cannot get first item from value".into());
            }
            Ok(value.iter()?.next(meter)?.unwrap_or(UNDEFINED))
        }
        "last" => {
            args.finish()?;
            if !matches!(value.kind(), Kind::String | Kind::Sequence) {
                return Err("invalid operation: cannot get last item from value".into());
            }
            Ok(value.item(&Val::Int(-1), meter)?.unwrap_or(UNDEFINED))
        }
        "reverse" => {
            args.finish()?;
            match value.kind() {
                Kind::String | Kind::Sequence => super::operators::slice(&value, None, None, -1, meter),
                _ => {
                    let mut items = collect(&value, meter)?;
                    items.reverse();
                    Val::list(items)
                }
            }
        }
        "list" => {
            args.finish()?;
            Val::list(collect(&value, meter)?)
        }
        "items" => {
            args.finish()?;
            pairs(fields(&value, meter)?, meter)
        }
        "attr" => {
            let key = args.need("name")?;
            args.finish()?;
            Ok(value.item(&key, meter)?.unwrap_or(UNDEFINED))
        }
        "join" => {
            let by = shown(&args.take("d").unwrap_or(Val::Str("")), meter)?;
            let attribute = args.take("attribute");
            args.finish()?;
            let mut items = value
                .iter()
                .map_err(|_| format!("invalid operation: cannot join value of type {}", value.kind().word()))?;
            let mut out = Writer::new(meter)?;
            let mut first = true;
            while let Some(item) = items.next(meter)? {
                if !std::mem::take(&mut first) {
                    out.push(meter, by.as_str().unwrap_or_default())?;
                }
                let item = part(item, attribute.as_ref(), meter)?;
                write(&item, false, &mut out, meter, 0)?;
            }
            Ok(Val::Text(out.into_text()))
        }
        _ => {
            let attribute = args.take("attribute");
            let mut sum = args.take("start").unwrap_or(Val::Int(0));
            args.finish()?;
            let mut items = value.iter()?;
            while let Some(item) = items.next(meter)? {
                let item = part(item, attribute.as_ref(), meter)?;
                if item.is_undefined() {
                    continue;
                }
                if Num::of(&sum).is_some() && Num::of(&item).is_none() {
                    return Err(format!("invalid operation: can only sum numbers, got {}", item.kind().word()));
                }
                sum = add(&sum, &item, meter)?;
            }
            Ok(sum)
        }
    }
}

fn collect<'a>(value: &Val<'a>, meter: &mut Meter) -> Res<Vec<Val<'a>>> {
    let mut items = value.iter().map_err(|error| {
        if value.is_undefined() { error } else { "invalid operation: cannot convert value to list".into() }
    })?;
    let mut list = room_for(if value.as_str().is_some() { 0 } else { value.len().unwrap_or(0) }, meter)?;
    while let Some(item) = items.next(meter)? {
        append(&mut list, item, meter)?;
    }
    Ok(list)
}

fn pairs<'a>(fields: Vec<(Val<'a>, Val<'a>)>, meter: &mut Meter) -> Res<Val<'a>> {
    let mut list = room_for(fields.len(), meter)?;
    for (key, value) in fields {
        let mut pair = room_for(2, meter)?;
        pair.extend([key, value]);
        list.push(Val::list(pair)?);
    }
    Val::list(list)
}

/// The named attribute of an item, or the item.
fn part<'a>(item: Val<'a>, attribute: Option<&Val<'a>>, meter: &mut Meter) -> Res<Val<'a>> {
    match attribute {
        None | Some(Val::None) => Ok(item),
        Some(name) => match name.as_str() {
            Some(path) => item.path(path, meter),
            None => Ok(item.item(name, meter)?.unwrap_or(UNDEFINED)),
        },
    }
}

#[inline(never)]
fn mapped<'a>(value: Val<'a>, mut args: Args<'a>, meter: &mut Meter) -> Res<Val<'a>> {
    let mut list = Vec::new();
    let mut items = value.iter()?;
    if let Some(attribute) = args.named("attribute") {
        let default = args.named("default").unwrap_or(UNDEFINED);
        args.finish()?;
        while let Some(item) = items.next(meter)? {
            let found = part(item, Some(&attribute), meter)?;
            append(&mut list, if found.is_undefined() { default.clone() } else { found }, meter)?;
        }
        return Val::list(list);
    }
    let name = args.need("filter")?;
    let name = name.as_str().ok_or("invalid operation: filter name must be a string")?;
    if matches!(name, "map" | "select" | "reject" | "selectattr" | "rejectattr") {
        return Err(format!("invalid operation: the filter `map` cannot apply `{name}`"));
    }
    while let Some(item) = items.next(meter)? {
        let again = Args { by_place: copied(&args.by_place, meter)?, by_name: args.by_name.clone() };
        let made = apply(name, item, again, meter)?;
        append(&mut list, made, meter)?;
    }
    Val::list(list)
}

/// Arguments are few; each round gets its own.
fn copied<'a>(values: &[Val<'a>], meter: &mut Meter) -> Res<Vec<Val<'a>>> {
    meter.work(4 + values.len() * 2)?;
    Ok(values.to_vec())
}

#[inline(never)]
fn selected<'a>(name: &str, value: Val<'a>, mut args: Args<'a>, meter: &mut Meter) -> Res<Val<'a>> {
    let attribute = if name.ends_with("attr") { Some(args.need("attribute")?) } else { None };
    let test_name = args.take("test");
    let test_name = test_name.as_ref().map(|name| name.as_str().unwrap_or_default());
    let wanted = name.starts_with("select");
    let mut kept = Vec::new();
    let mut items = value.iter()?;
    while let Some(item) = items.next(meter)? {
        let looked_at = part(item.clone(), attribute.as_ref(), meter)?;
        let passes = match test_name {
            None => looked_at.is_true(),
            Some(name) => {
                let again = Args { by_place: copied(&args.by_place, meter)?, by_name: Vec::new() };
                test(name, &looked_at, again, meter)?
            }
        };
        if passes == wanted {
            append(&mut kept, item, meter)?;
        }
    }
    Val::list(kept)
}

#[inline(never)]
fn sorted<'a>(name: &str, value: Val<'a>, mut args: Args<'a>, meter: &mut Meter) -> Res<Val<'a>> {
    let is = |args: &mut Args<'a>, name: &str| args.named(name).is_some_and(|flag| flag.is_true());
    let fold_case = !is(&mut args, "case_sensitive");
    let reverse = is(&mut args, "reverse");
    if name == "dictsort" {
        let by_value = args.take("by").is_some_and(|by| by.as_str() == Some("value"));
        args.finish()?;
        let mut list = room_for(value.len().unwrap_or(0), meter)?;
        let mut keys = room_for(value.len().unwrap_or(0), meter)?;
        for (key, field) in fields(&value, meter)? {
            keys.push(if by_value { field.clone() } else { key.clone() });
            let mut pair = room_for(2, meter)?;
            pair.extend([key, field]);
            list.push(Val::list(pair)?);
        }
        let places = sort(&keys, fold_case, reverse, meter)?;
        return picked(&list, &places, meter);
    }
    let attribute = args.named("attribute");
    args.finish()?;
    let items = collect(&value, meter)?;
    let mut keys = room_for(items.len(), meter)?;
    for item in &items {
        keys.push(part(item.clone(), attribute.as_ref(), meter)?);
    }
    match name {
        "sort" => {
            let places = sort(&keys, fold_case, reverse, meter)?;
            picked(&items, &places, meter)
        }
        "unique" => {
            let places = sort(&keys, fold_case, false, meter)?;
            meter.keep(items.len() + 32)?;
            let mut first = vec![true; items.len()];
            for two in places.windows(2) {
                if order(&keys[two[0]], &keys[two[1]], fold_case, meter, 0)? == Ordering::Equal {
                    first[two[1]] = false;
                }
            }
            let mut kept = Vec::new();
            for (item, first) in items.into_iter().zip(first) {
                if first {
                    append(&mut kept, item, meter)?;
                }
            }
            Val::list(kept)
        }
        _ => {
            let mut best: Option<usize> = None;
            for at in 0..keys.len() {
                let better = match best {
                    None => true,
                    Some(best) => {
                        let ordering = order(&keys[at], &keys[best], fold_case, meter, 0)?;
                        if name == "min" { ordering == Ordering::Less } else { ordering != Ordering::Less }
                    }
                };
                if better {
                    best = Some(at);
                }
            }
            Ok(best.and_then(|at| items.get(at)).cloned().unwrap_or(UNDEFINED))
        }
    }
}

fn picked<'a>(items: &[Val<'a>], places: &[usize], meter: &mut Meter) -> Res<Val<'a>> {
    let mut list = room_for(items.len(), meter)?;
    list.extend(places.iter().filter_map(|at| items.get(*at)).cloned());
    Val::list(list)
}

/// The order of places, by merging. The library's sort cannot stop when the steps are used up.
fn sort(keys: &[Val<'_>], fold_case: bool, reverse: bool, meter: &mut Meter) -> Res<Vec<usize>> {
    meter.keep((2 * keys.len() * size_of::<usize>()).saturating_add(64))?;
    let mut from: Vec<usize> = (0..keys.len()).collect();
    let mut into = Vec::with_capacity(keys.len());
    let mut width = 1;
    while width < keys.len() {
        into.clear();
        for run in from.chunks(2 * width) {
            let (left, right) = run.split_at(width.min(run.len()));
            let (mut l, mut r) = (0, 0);
            while l < left.len() && r < right.len() {
                let ordering = order(&keys[right[r]], &keys[left[l]], fold_case, meter, 0)?;
                let ordering = if reverse { ordering.reverse() } else { ordering };
                if ordering == Ordering::Less {
                    into.push(right[r]);
                    r += 1;
                } else {
                    into.push(left[l]);
                    l += 1;
                }
            }
            into.extend_from_slice(&left[l..]);
            into.extend_from_slice(&right[r..]);
        }
        std::mem::swap(&mut from, &mut into);
        width *= 2;
    }
    Ok(from)
}

#[inline(never)]
pub(super) fn test<'a>(name: &str, value: &Val<'a>, mut args: Args<'a>, meter: &mut Meter) -> Res<bool> {
    meter.work(4)?;
    let holds = match name {
        "defined" => !value.is_undefined(),
        "undefined" => value.is_undefined(),
        "none" => matches!(value, Val::None),
        "boolean" => matches!(value, Val::Bool(_)),
        "true" => matches!(value, Val::Bool(true)),
        "false" => matches!(value, Val::Bool(false)),
        "number" => value.kind() == Kind::Number,
        "integer" | "int" => matches!(value, Val::Int(_)),
        "float" => matches!(value, Val::Float(_)),
        "string" => value.kind() == Kind::String,
        "sequence" => value.is_undefined() || value.kind() == Kind::Sequence,
        "mapping" => value.kind() == Kind::Map,
        "iterable" => value.is_undefined() || value.iter().is_ok(),
        "odd" => matches!(value, Val::Int(number) if number % 2 != 0),
        "even" => matches!(value, Val::Int(number) if number % 2 == 0),
        "divisibleby" => match (Num::of(value), Num::of(&args.need("by")?)) {
            (Some(Num::Int(a)), Some(Num::Int(b))) => a.checked_rem(b) == Some(0),
            (Some(a), Some(b)) => a.real() % b.real() == 0.0,
            _ => false,
        },
        "lower" | "upper" => match value.as_str() {
            None => false,
            Some(text) => {
                meter.look(text.len())?;
                let (wanted, other): (IsLetter, IsLetter) = if name == "lower" {
                    (char::is_lowercase, char::is_uppercase)
                } else {
                    (char::is_uppercase, char::is_lowercase)
                };
                text.chars().any(wanted) && !text.chars().any(other)
            }
        },
        "startingwith" | "endingwith" => {
            let (whole, part) = (shown(value, meter)?, shown(&args.need("part")?, meter)?);
            let (whole, part) = (whole.as_str().unwrap_or_default(), part.as_str().unwrap_or_default());
            meter.look(part.len())?;
            if name == "startingwith" { whole.starts_with(part) } else { whole.ends_with(part) }
        }
        "in" => contains(&args.need("in")?, value, meter)?,
        "eq" | "equalto" | "==" => same(value, &args.need("other")?, meter, 0)?,
        "ne" | "!=" => !same(value, &args.need("other")?, meter, 0)?,
        "sameas" => {
            let other = args.need("other")?;
            value.kind() == other.kind() && same(value, &other, meter, 0)?
        }
        "lt" | "lessthan" | "<" => order(value, &args.need("other")?, false, meter, 0)? == Ordering::Less,
        "le" | "<=" => order(value, &args.need("other")?, false, meter, 0)? != Ordering::Greater,
        "gt" | "greaterthan" | ">" => order(value, &args.need("other")?, false, meter, 0)? == Ordering::Greater,
        "ge" | ">=" => order(value, &args.need("other")?, false, meter, 0)? != Ordering::Less,
        _ => return Err(super::check::unknown_test(name)),
    };
    args.finish()?;
    Ok(holds)
}

/// `dict(a=1)` makes an object; `fail('why')` ends the evaluation with an error.
pub(super) fn call<'a>(name: &str, mut args: Args<'a>, meter: &mut Meter) -> Res<Val<'a>> {
    match name {
        "fail" => {
            let why = shown(&args.need("why")?, meter)?;
            args.finish()?;
            let why = why.as_str().unwrap_or_default();
            let end = why.floor_char_boundary(why.len().min(2_000));
            Err(format!("invalid operation: {}", &why[..end]))
        }
        "dict" => {
            let base = match args.by_place.is_empty() {
                true => Vec::new(),
                false => fields(&args.by_place.remove(0), meter)?,
            };
            if !args.by_place.is_empty() {
                return Err("too many arguments".into());
            }
            let mut entries = room_for_fields(base.len() + args.by_name.len(), meter)?;
            entries.extend(base);
            for (name, value) in args.by_name {
                put(&mut entries, Val::Str(name), value, meter)?;
            }
            Val::map(entries, None)
        }
        _ => Err(super::check::unknown_function(name)),
    }
}
