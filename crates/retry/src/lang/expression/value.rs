//! Values of expressions: borrowed from the context where they come from it, counted where they are made.
//!
//! Over 500 lines: values, their arithmetic and their limits in memory.

use std::cmp::Ordering;
use std::rc::Rc;

use serde_json::{Map as JsonMap, Number, Value as Json};

use super::meter::{Meter, Res, Writer};

/// How deep lists and maps that an expression makes may stand in each other.
const MAX_DEPTH: usize = 100;
/// How deep a value may be that is compared or written: one from outside inside of one that was made.
const MAX_WALK: usize = 400;

#[derive(Clone)]
pub(super) enum Val<'a> {
    /// Not there. A silent one (`x if no`) is written as nothing.
    Undefined {
        silent: bool,
    },
    None,
    Bool(bool),
    Int(i128),
    Float(f64),
    Str(&'a str),
    Text(Rc<str>),
    /// A list or an object of the context.
    Json(&'a Json),
    List(Rc<List<'a>>),
    Map(Rc<Map<'a>>),
    /// The variable `loop`.
    Loop {
        index: usize,
        length: usize,
        depth: usize,
    },
}

pub(super) struct List<'a> {
    pub items: Vec<Val<'a>>,
    depth: usize,
}

pub(super) struct Map<'a> {
    pub entries: Vec<(Val<'a>, Val<'a>)>,
    depth: usize,
    /// Written in place of the fields, and `in` looks into it: `error` is both its fields and its message.
    message: Option<&'a str>,
}

pub(super) const UNDEFINED: Val<'static> = Val::Undefined { silent: false };

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Undefined,
    None,
    Bool,
    Number,
    String,
    Sequence,
    Map,
}

impl Kind {
    pub fn word(self) -> &'static str {
        match self {
            Kind::Undefined => "undefined",
            Kind::None => "none",
            Kind::Bool => "bool",
            Kind::Number => "number",
            Kind::String => "string",
            Kind::Sequence => "sequence",
            Kind::Map => "map",
        }
    }
}

impl<'a> Val<'a> {
    pub fn of(json: &'a Json) -> Val<'a> {
        match json {
            Json::Null => Val::None,
            Json::Bool(yes) => Val::Bool(*yes),
            Json::Number(number) => match (number.as_i64(), number.as_u64(), number.as_f64()) {
                (Some(whole), _, _) => Val::Int(whole.into()),
                (_, Some(whole), _) => Val::Int(whole.into()),
                (_, _, real) => Val::Float(real.unwrap_or(f64::NAN)),
            },
            Json::String(text) => Val::Str(text),
            Json::Array(_) | Json::Object(_) => Val::Json(json),
        }
    }

    /// A list of values that was paid for with `room_for`.
    pub fn list(items: Vec<Val<'a>>) -> Res<Val<'a>> {
        let depth = 1 + items.iter().map(Val::depth).max().unwrap_or(0);
        check_depth(depth)?;
        Ok(Val::List(Rc::new(List { items, depth })))
    }

    pub fn map(entries: Vec<(Val<'a>, Val<'a>)>, message: Option<&'a str>) -> Res<Val<'a>> {
        let depth = 1 + entries.iter().map(|(key, value)| key.depth().max(value.depth())).max().unwrap_or(0);
        check_depth(depth)?;
        Ok(Val::Map(Rc::new(Map { entries, depth, message })))
    }

    pub fn text(meter: &mut Meter, text: &str) -> Res<Val<'a>> {
        meter.keep(text.len() + 32)?;
        Ok(Val::Text(Rc::from(text)))
    }

    fn depth(&self) -> usize {
        match self {
            Val::List(list) => list.depth,
            Val::Map(map) => map.depth,
            _ => 0,
        }
    }

    pub fn kind(&self) -> Kind {
        match self {
            Val::Undefined { .. } => Kind::Undefined,
            Val::None => Kind::None,
            Val::Bool(_) => Kind::Bool,
            Val::Int(_) | Val::Float(_) => Kind::Number,
            Val::Str(_) | Val::Text(_) => Kind::String,
            Val::Json(Json::Array(_)) | Val::List(_) => Kind::Sequence,
            Val::Json(_) | Val::Map(_) | Val::Loop { .. } => Kind::Map,
        }
    }

    pub fn is_undefined(&self) -> bool {
        matches!(self, Val::Undefined { .. })
    }

    pub fn as_str(&self) -> Option<&str> {
        match self {
            Val::Str(text) => Some(text),
            Val::Text(text) => Some(text),
            _ => None,
        }
    }

    pub fn as_index(&self) -> Option<i64> {
        match self {
            Val::Int(number) => i64::try_from(*number).ok(),
            Val::Bool(yes) => Some((*yes).into()),
            Val::Float(real) if real.fract() == 0.0 && real.abs() < 9e15 => Some(*real as i64),
            _ => None,
        }
    }

    pub fn is_true(&self) -> bool {
        match self {
            Val::Undefined { .. } | Val::None => false,
            Val::Bool(yes) => *yes,
            Val::Int(number) => *number != 0,
            Val::Float(real) => *real != 0.0,
            Val::Loop { .. } => true,
            other => other.len() != Some(0),
        }
    }

    /// As a condition: what is not there is an error, unless it is silent.
    pub fn truth(&self) -> Res<bool> {
        match self {
            Val::Undefined { silent: false } => Err(undefined()),
            other => Ok(other.is_true()),
        }
    }

    pub fn there(self) -> Res<Val<'a>> {
        if self.is_undefined() { Err(undefined()) } else { Ok(self) }
    }

    /// The number of letters, items or fields. Texts are counted in `length`.
    pub fn len(&self) -> Option<usize> {
        match self {
            Val::Str(text) => Some(text.len()),
            Val::Text(text) => Some(text.len()),
            Val::Json(Json::Array(items)) => Some(items.len()),
            Val::Json(Json::Object(fields)) => Some(fields.len()),
            Val::List(list) => Some(list.items.len()),
            Val::Map(map) => Some(map.entries.len()),
            _ => None,
        }
    }

    /// The items of a list, the keys of an object or the letters of a text.
    pub fn iter(&self) -> Res<Items<'a>> {
        Ok(match self {
            Val::Undefined { silent: false } => return Err(undefined()),
            Val::Undefined { .. } => Items::Empty,
            Val::Str(text) => Items::Chars(text.chars()),
            Val::Text(text) => Items::Text(text.clone(), 0),
            Val::Json(Json::Array(items)) => Items::Json(items.iter()),
            Val::Json(Json::Object(fields)) => Items::Fields(fields.keys()),
            Val::List(list) => Items::List(list.clone(), 0),
            Val::Map(map) => Items::Map(map.clone(), 0),
            other => return Err(format!("invalid operation: {} is not iterable", other.kind().word())),
        })
    }

    pub fn attr(&self, name: &str, meter: &mut Meter) -> Res<Option<Val<'a>>> {
        match self {
            Val::Json(Json::Object(fields)) => {
                meter.look(name.len())?;
                Ok(fields.get(name).map(Val::of))
            }
            Val::Map(map) => {
                meter.work(map.entries.len() / 4 + name.len() / 4 + 1)?;
                Ok(map.entries.iter().find(|(key, _)| key.as_str() == Some(name)).map(|(_, value)| value.clone()))
            }
            Val::Loop { index, length, depth } => {
                let number = |number: usize| Some(Val::Int(number as i128));
                Ok(match name {
                    "index" => number(index + 1),
                    "index0" => number(*index),
                    "length" => number(*length),
                    "revindex" => number(length.saturating_sub(*index)),
                    "revindex0" => number(length.saturating_sub(index + 1)),
                    "first" => Some(Val::Bool(*index == 0)),
                    "last" => Some(Val::Bool(index + 1 == *length)),
                    "depth" => number(depth + 1),
                    "depth0" => number(*depth),
                    _ => None,
                })
            }
            _ => Ok(None),
        }
    }

    pub fn item(&self, key: &Val<'a>, meter: &mut Meter) -> Res<Option<Val<'a>>> {
        match self {
            Val::Json(Json::Object(_)) | Val::Loop { .. } => match key.as_str() {
                Some(name) => self.attr(name, meter),
                None => Ok(None),
            },
            Val::Map(map) => map.get(key, meter),
            Val::Json(Json::Array(items)) => Ok(place(key, items.len()).and_then(|at| items.get(at)).map(Val::of)),
            Val::List(list) => Ok(place(key, list.items.len()).and_then(|at| list.items.get(at)).cloned()),
            Val::Str(_) | Val::Text(_) => {
                let text = self.as_str().unwrap_or_default();
                meter.look(text.len())?;
                let at = place(key, text.chars().count());
                match at.and_then(|at| text.chars().nth(at)) {
                    Some(letter) => Val::text(meter, letter.encode_utf8(&mut [0; 4])).map(Some),
                    None => Ok(None),
                }
            }
            _ => Ok(None),
        }
    }

    /// `a.b.0`, for filters that take the name of an attribute.
    pub fn path(&self, path: &str, meter: &mut Meter) -> Res<Val<'a>> {
        meter.look(path.len())?;
        let mut found = self.clone();
        for part in path.split('.') {
            meter.work(4)?;
            let next = match part.parse::<i64>() {
                Ok(at) if found.kind() == Kind::Sequence => found.item(&Val::Int(at.into()), meter)?,
                _ => found.attr(part, meter)?,
            };
            found = next.unwrap_or(UNDEFINED);
        }
        Ok(found)
    }
}

pub(super) fn undefined() -> String {
    "undefined value".into()
}

fn place(key: &Val<'_>, length: usize) -> Option<usize> {
    let at = key.as_index()?;
    if at < 0 { length.checked_sub(usize::try_from(at.unsigned_abs()).ok()?) } else { usize::try_from(at).ok() }
}

fn check_depth(depth: usize) -> Res<()> {
    if depth > MAX_DEPTH { Err(format!("may nest {MAX_DEPTH} levels at most")) } else { Ok(()) }
}

/// Pays for a list of that many values.
pub(super) fn room_for<'a>(length: usize, meter: &mut Meter) -> Res<Vec<Val<'a>>> {
    meter.keep(length.saturating_mul(size_of::<Val<'_>>()).saturating_add(64))?;
    Ok(Vec::with_capacity(length))
}

/// Pays for a map of that many fields.
pub(super) fn room_for_fields<'a>(length: usize, meter: &mut Meter) -> Res<Vec<(Val<'a>, Val<'a>)>> {
    meter.keep(length.saturating_mul(2 * size_of::<Val<'_>>()).saturating_add(64))?;
    Ok(Vec::with_capacity(length))
}

/// A list that grows item by item.
pub(super) fn append<'a>(items: &mut Vec<Val<'a>>, item: Val<'a>, meter: &mut Meter) -> Res<()> {
    if items.len() == items.capacity() {
        let more = items.len().max(8);
        let bytes = (items.len() + more) * size_of::<Val<'_>>();
        meter.keep(bytes)?;
        items.reserve_exact(more);
    }
    meter.work(2)?;
    items.push(item);
    Ok(())
}

impl<'a> Map<'a> {
    fn get(&self, key: &Val<'a>, meter: &mut Meter) -> Res<Option<Val<'a>>> {
        for (name, value) in &self.entries {
            if same(name, key, meter, 0)? {
                return Ok(Some(value.clone()));
            }
        }
        Ok(None)
    }

    pub fn message(&self) -> Option<&'a str> {
        self.message
    }
}

/// Puts a field into a map that is being made; the last value of a key counts.
pub(super) fn put<'a>(
    entries: &mut Vec<(Val<'a>, Val<'a>)>,
    key: Val<'a>,
    value: Val<'a>,
    meter: &mut Meter,
) -> Res<()> {
    if matches!(key.kind(), Kind::Sequence | Kind::Map | Kind::Undefined) {
        return Err(format!("not a key type: {}", key.kind().word()));
    }
    for (name, old) in entries.iter_mut() {
        if same(name, &key, meter, 0)? {
            *old = value;
            return Ok(());
        }
    }
    entries.push((key, value));
    Ok(())
}

/// The items of a value, one by one.
pub(super) enum Items<'a> {
    Empty,
    Chars(std::str::Chars<'a>),
    Text(Rc<str>, usize),
    Json(std::slice::Iter<'a, Json>),
    Fields(serde_json::map::Keys<'a>),
    List(Rc<List<'a>>, usize),
    Map(Rc<Map<'a>>, usize),
}

impl<'a> Items<'a> {
    /// The next item, paid for.
    pub fn next(&mut self, meter: &mut Meter) -> Res<Option<Val<'a>>> {
        meter.work(2)?;
        let letter = |letter: char, meter: &mut Meter| Val::text(meter, letter.encode_utf8(&mut [0; 4])).map(Some);
        match self {
            Items::Empty => Ok(None),
            Items::Chars(letters) => letters.next().map_or(Ok(None), |next| letter(next, meter)),
            Items::Text(text, at) => match text[*at..].chars().next() {
                None => Ok(None),
                Some(next) => {
                    *at += next.len_utf8();
                    letter(next, meter)
                }
            },
            Items::Json(items) => Ok(items.next().map(Val::of)),
            Items::Fields(keys) => Ok(keys.next().map(|key| Val::Str(key))),
            Items::List(list, at) => {
                *at += 1;
                Ok(list.items.get(*at - 1).cloned())
            }
            Items::Map(map, at) => {
                *at += 1;
                Ok(map.entries.get(*at - 1).map(|(key, _)| key.clone()))
            }
        }
    }
}

/// A key and its value, for those that go over the fields of an object.
pub(super) fn fields<'a>(value: &Val<'a>, meter: &mut Meter) -> Res<Vec<(Val<'a>, Val<'a>)>> {
    match value {
        Val::Json(Json::Object(fields)) => {
            let mut pairs = room_for_fields(fields.len(), meter)?;
            pairs.extend(fields.iter().map(|(name, field)| (Val::Str(name.as_str()), Val::of(field))));
            Ok(pairs)
        }
        Val::Map(map) => {
            let mut pairs = room_for_fields(map.entries.len(), meter)?;
            pairs.extend(map.entries.iter().cloned());
            Ok(pairs)
        }
        other => Err(format!("invalid operation: cannot convert {} into pairs", other.kind().word())),
    }
}

fn numbers(a: &Val<'_>, b: &Val<'_>) -> Option<(Num, Num)> {
    Some((Num::of(a)?, Num::of(b)?))
}

/// A number, as operators see it; `true` is 1.
#[derive(Clone, Copy)]
pub(super) enum Num {
    Int(i128),
    Float(f64),
}

impl Num {
    pub fn of(value: &Val<'_>) -> Option<Num> {
        match value {
            Val::Bool(yes) => Some(Num::Int((*yes).into())),
            Val::Int(number) => Some(Num::Int(*number)),
            Val::Float(real) => Some(Num::Float(*real)),
            _ => None,
        }
    }

    pub fn real(self) -> f64 {
        match self {
            Num::Int(number) => number as f64,
            Num::Float(real) => real,
        }
    }
}

pub(super) fn same(a: &Val<'_>, b: &Val<'_>, meter: &mut Meter, depth: usize) -> Res<bool> {
    meter.work(1)?;
    walk(depth)?;
    if let (Some(a), Some(b)) = (a.as_str(), b.as_str()) {
        if a.len() != b.len() {
            return Ok(false);
        }
        meter.look(a.len())?;
        return Ok(a == b);
    }
    if let Some((a, b)) = numbers(a, b) {
        return Ok(match (a, b) {
            (Num::Int(a), Num::Int(b)) => a == b,
            (a, b) => a.real() == b.real(),
        });
    }
    match (a.kind(), b.kind()) {
        (Kind::None, Kind::None) | (Kind::Undefined, Kind::Undefined) => Ok(true),
        (Kind::Sequence, Kind::Sequence) => {
            if a.len() != b.len() {
                return Ok(false);
            }
            let (mut left, mut right) = (a.iter()?, b.iter()?);
            while let (Some(one), Some(other)) = (left.next(meter)?, right.next(meter)?) {
                if !same(&one, &other, meter, depth + 1)? {
                    return Ok(false);
                }
            }
            Ok(true)
        }
        (Kind::Map, Kind::Map) => {
            if a.len() != b.len() {
                return Ok(false);
            }
            let Ok(mut keys) = a.iter() else { return Ok(false) };
            while let Some(key) = keys.next(meter)? {
                let (Some(one), Some(other)) = (value_at(a, &key, meter)?, value_at(b, &key, meter)?) else {
                    return Ok(false);
                };
                if !same(&one, &other, meter, depth + 1)? {
                    return Ok(false);
                }
            }
            Ok(true)
        }
        _ => Ok(false),
    }
}

/// `Val::item` for values of different origins.
fn value_at<'a>(map: &Val<'a>, key: &Val<'_>, meter: &mut Meter) -> Res<Option<Val<'a>>> {
    match map {
        Val::Map(map) => {
            for (name, value) in &map.entries {
                if same(name, key, meter, 0)? {
                    return Ok(Some(value.clone()));
                }
            }
            Ok(None)
        }
        other => match key.as_str() {
            Some(name) => other.attr(name, meter),
            None => Ok(None),
        },
    }
}

/// The order of any two values: by kind, then by what they are.
pub(super) fn order(a: &Val<'_>, b: &Val<'_>, fold_case: bool, meter: &mut Meter, depth: usize) -> Res<Ordering> {
    meter.work(1)?;
    walk(depth)?;
    let kinds = a.kind().cmp(&b.kind());
    if kinds != Ordering::Equal {
        return Ok(kinds);
    }
    if let (Some(a), Some(b)) = (a.as_str(), b.as_str()) {
        meter.look(a.len().min(b.len()))?;
        return Ok(if fold_case {
            let lower = |byte: u8| byte.to_ascii_lowercase();
            a.bytes().map(lower).cmp(b.bytes().map(lower))
        } else {
            a.cmp(b)
        });
    }
    if let Some((a, b)) = numbers(a, b) {
        return Ok(match (a, b) {
            (Num::Int(a), Num::Int(b)) => a.cmp(&b),
            (a, b) => order_of_reals(a.real(), b.real()),
        });
    }
    match a.kind() {
        Kind::Sequence => {
            let (mut left, mut right) = (a.iter()?, b.iter()?);
            loop {
                match (left.next(meter)?, right.next(meter)?) {
                    (None, None) => return Ok(Ordering::Equal),
                    (None, Some(_)) => return Ok(Ordering::Less),
                    (Some(_), None) => return Ok(Ordering::Greater),
                    (Some(one), Some(other)) => match order(&one, &other, false, meter, depth + 1)? {
                        Ordering::Equal => {}
                        decided => return Ok(decided),
                    },
                }
            }
        }
        Kind::Map => {
            let (Ok(mut left), Ok(mut right)) = (a.iter(), b.iter()) else { return Ok(Ordering::Equal) };
            loop {
                match (left.next(meter)?, right.next(meter)?) {
                    (None, None) => return Ok(Ordering::Equal),
                    (None, Some(_)) => return Ok(Ordering::Less),
                    (Some(_), None) => return Ok(Ordering::Greater),
                    (Some(one), Some(other)) => {
                        let keys = order(&one, &other, false, meter, depth + 1)?;
                        if keys != Ordering::Equal {
                            return Ok(keys);
                        }
                        let one = value_at(a, &one, meter)?.unwrap_or(UNDEFINED);
                        let other = value_at(b, &other, meter)?.unwrap_or(UNDEFINED);
                        match order(&one, &other, false, meter, depth + 1)? {
                            Ordering::Equal => {}
                            decided => return Ok(decided),
                        }
                    }
                }
            }
        }
        _ => Ok(Ordering::Equal),
    }
}

/// Numbers as usual; what is no number comes last, so that the order is total.
fn order_of_reals(a: f64, b: f64) -> Ordering {
    a.partial_cmp(&b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
}

fn walk(depth: usize) -> Res<()> {
    if depth > MAX_WALK { Err(format!("may nest {MAX_WALK} levels at most")) } else { Ok(()) }
}

/// Writes a value as a text. Inside of lists and maps texts are quoted.
pub(super) fn write(value: &Val<'_>, quoted: bool, into: &mut Writer, meter: &mut Meter, depth: usize) -> Res<()> {
    meter.work(1)?;
    walk(depth)?;
    match value {
        Val::Undefined { .. } if quoted => into.push(meter, "undefined"),
        Val::Undefined { .. } => Ok(()),
        Val::None => into.push(meter, "None"),
        Val::Bool(yes) => into.push(meter, if *yes { "True" } else { "False" }),
        Val::Int(number) => into.push(meter, &number.to_string()),
        Val::Float(real) => into.push(meter, &real_text(*real)),
        Val::Str(text) if quoted => quote(text, into, meter),
        Val::Text(text) if quoted => quote(text, into, meter),
        Val::Str(text) => into.push(meter, text),
        Val::Text(text) => into.push(meter, text),
        Val::Loop { index, length, .. } => into.push(meter, &format!("<loop {}/{length}>", index + 1)),
        Val::Map(map) if map.message.is_some() => into.push(meter, map.message.unwrap_or_default()),
        Val::Json(Json::Object(_)) | Val::Map(_) => {
            into.push(meter, "{")?;
            let mut keys = value.iter()?;
            let mut first = true;
            while let Some(key) = keys.next(meter)? {
                if !std::mem::take(&mut first) {
                    into.push(meter, ", ")?;
                }
                write(&key, true, into, meter, depth + 1)?;
                into.push(meter, ": ")?;
                let field = value_at(value, &key, meter)?.unwrap_or(UNDEFINED);
                write(&field, true, into, meter, depth + 1)?;
            }
            into.push(meter, "}")
        }
        Val::Json(_) | Val::List(_) => {
            into.push(meter, "[")?;
            let mut items = value.iter()?;
            let mut first = true;
            while let Some(item) = items.next(meter)? {
                if !std::mem::take(&mut first) {
                    into.push(meter, ", ")?;
                }
                write(&item, true, into, meter, depth + 1)?;
            }
            into.push(meter, "]")
        }
    }
}

fn real_text(real: f64) -> String {
    if real.is_nan() {
        return "NaN".into();
    }
    if real.is_infinite() {
        return if real > 0.0 { "inf".into() } else { "-inf".into() };
    }
    let text = real.to_string();
    if text.contains('.') { text } else { text + ".0" }
}

fn quote(text: &str, into: &mut Writer, meter: &mut Meter) -> Res<()> {
    let mark = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    into.push_char(meter, mark)?;
    let mut plain = 0;
    for (at, letter) in text.char_indices() {
        let escaped = match letter {
            '\\' => "\\\\".to_owned(),
            '\n' => "\\n".to_owned(),
            '\r' => "\\r".to_owned(),
            '\t' => "\\t".to_owned(),
            _ if letter == mark => format!("\\{mark}"),
            _ if letter.is_control() => format!("\\x{:02x}", letter as u32),
            _ => continue,
        };
        into.push(meter, &text[plain..at])?;
        into.push(meter, &escaped)?;
        plain = at + letter.len_utf8();
    }
    into.push(meter, &text[plain..])?;
    into.push_char(meter, mark)
}

/// Bytes of memory that the answer of one evaluation may take.
pub(super) struct Room {
    left: usize,
}

/// A node of a JSON document in memory.
const NODE: usize = size_of::<Json>();

impl Room {
    pub fn new(bytes: usize) -> Room {
        Room { left: bytes }
    }

    pub fn take(&mut self, bytes: usize) -> Res<()> {
        self.left =
            self.left.checked_sub(bytes).ok_or_else(|| "holds more than one evaluation may answer with".to_owned())?;
        Ok(())
    }
}

/// The value as JSON. `MAX` bounds how deep it may be.
pub(super) fn to_json(value: &Val<'_>, room: &mut Room, meter: &mut Meter, depth: usize) -> Res<Json> {
    if depth > MAX_DEPTH {
        return Err(format!("may nest {MAX_DEPTH} levels at most"));
    }
    meter.work(1)?;
    room.take(NODE)?;
    let mut text = |text: &str, meter: &mut Meter| -> Res<String> {
        room.take(text.len())?;
        meter.look(text.len())?;
        Ok(text.to_owned())
    };
    match value {
        Val::Undefined { .. } => Err("holds something that is not there".into()),
        Val::None => Ok(Json::Null),
        Val::Bool(yes) => Ok(Json::Bool(*yes)),
        Val::Int(number) => whole(*number).map(Json::Number),
        Val::Float(real) => real_number(*real).map(Json::Number),
        Val::Str(_) | Val::Text(_) => text(value.as_str().unwrap_or_default(), meter).map(Json::String),
        Val::Json(Json::Array(_)) | Val::List(_) => {
            let length = value.len().unwrap_or(0);
            // Paid for twice, here and by each item; so a list that is too long is never made room for.
            let mut filled = Vec::with_capacity(length.min(room.left / NODE));
            let mut items = value.iter()?;
            while let Some(item) = items.next(meter)? {
                filled.push(to_json(&item, room, meter, depth + 1)?);
            }
            Ok(Json::Array(filled))
        }
        Val::Loop { .. } => Err("a loop is no JSON".into()),
        Val::Json(_) | Val::Map(_) => {
            let mut filled = JsonMap::new();
            let mut keys = value.iter()?;
            while let Some(key) = keys.next(meter)? {
                // The key's own place, and the table that finds it, which may have grown just now.
                room.take(2 * (NODE + 48))?;
                let name = match key.as_str() {
                    Some(name) => {
                        room.take(name.len())?;
                        meter.look(name.len())?;
                        name.to_owned()
                    }
                    None => {
                        let mut words = Writer::new(meter)?;
                        write(&key, false, &mut words, meter, 0)?;
                        words.into_string()
                    }
                };
                let field = value_at(value, &key, meter)?.unwrap_or(UNDEFINED);
                filled.insert(name, to_json(&field, room, meter, depth + 1)?);
            }
            Ok(Json::Object(filled))
        }
    }
}

fn whole(number: i128) -> Res<Number> {
    let read = i64::try_from(number).map(Number::from).or_else(|_| u64::try_from(number).map(Number::from));
    read.or_else(|_| real_number(number as f64))
}

fn real_number(real: f64) -> Res<Number> {
    Number::from_f64(real).ok_or_else(|| format!("{real} is no number that JSON knows"))
}
