//! The operators `+`, `*`, `~`, `in` and others. Each pays for its result before making it.

use minijinja::machinery::ast::BinOpKind;

use super::meter::{Meter, Res, Writer};
use super::value::{Kind, Num, Val, order, room_for, same, undefined, write};

pub(super) fn binary<'a>(op: BinOpKind, a: &Val<'a>, b: &Val<'a>, meter: &mut Meter) -> Res<Val<'a>> {
    use std::cmp::Ordering::{Equal, Greater, Less};
    let word = match op {
        BinOpKind::Add => return add(a, b, meter),
        BinOpKind::Mul => return multiply(a, b, meter),
        BinOpKind::Sub => "-",
        BinOpKind::Div => "/",
        BinOpKind::FloorDiv => "//",
        BinOpKind::Rem => "%",
        BinOpKind::Pow => "**",
        BinOpKind::In => return contains(b, a, meter).map(Val::Bool),
        BinOpKind::ScAnd | BinOpKind::ScOr => return Err("invalid operation".into()),
        BinOpKind::Concat => {
            both_there(a, b)?;
            let mut text = Writer::new(meter)?;
            write(a, false, &mut text, meter, 0)?;
            write(b, false, &mut text, meter, 0)?;
            return Ok(Val::Text(text.into_text()));
        }
        compare => {
            both_there(a, b)?;
            let holds = match compare {
                BinOpKind::Eq => same(a, b, meter, 0)?,
                BinOpKind::Ne => !same(a, b, meter, 0)?,
                BinOpKind::Lt => order(a, b, false, meter, 0)? == Less,
                BinOpKind::Lte => order(a, b, false, meter, 0)? != Greater,
                BinOpKind::Gt => order(a, b, false, meter, 0)? == Greater,
                _ => matches!(order(a, b, false, meter, 0)?, Greater | Equal),
            };
            return Ok(Val::Bool(holds));
        }
    };
    let (Some(x), Some(y)) = (Num::of(a), Num::of(b)) else { return Err(impossible(word, a, b)) };
    arithmetic(op, x, y).ok_or_else(|| format!("invalid operation: unable to calculate the result of {word}"))
}

fn both_there(a: &Val<'_>, b: &Val<'_>) -> Res<()> {
    if a.is_undefined() || b.is_undefined() { Err(undefined()) } else { Ok(()) }
}

fn impossible(word: &str, a: &Val<'_>, b: &Val<'_>) -> String {
    let (a, b) = (a.kind().word(), b.kind().word());
    format!("invalid operation: tried to use {word} operator on unsupported types {a} and {b}")
}

fn arithmetic<'a>(op: BinOpKind, a: Num, b: Num) -> Option<Val<'a>> {
    let is_zero = b.real() == 0.0;
    Some(match (op, a, b) {
        (BinOpKind::Sub, Num::Int(a), Num::Int(b)) => Val::Int(a.checked_sub(b)?),
        (BinOpKind::Sub, a, b) => Val::Float(a.real() - b.real()),
        (BinOpKind::Div | BinOpKind::FloorDiv | BinOpKind::Rem, _, _) if is_zero => return None,
        (BinOpKind::Div, a, b) => Val::Float(a.real() / b.real()),
        (BinOpKind::FloorDiv, Num::Int(a), Num::Int(b)) => Val::Int(floor_division(a, b)?.0),
        (BinOpKind::FloorDiv, a, b) => Val::Float((a.real() / b.real()).floor()),
        (BinOpKind::Rem, Num::Int(a), Num::Int(b)) => Val::Int(floor_division(a, b)?.1),
        (BinOpKind::Rem, a, b) => {
            let (a, b) = (a.real(), b.real());
            let rest = a % b;
            Val::Float(if rest != 0.0 && (rest < 0.0) != (b < 0.0) { rest + b } else { rest })
        }
        (BinOpKind::Pow, a, b) if a.real() == 0.0 && b.real() < 0.0 => return None,
        (BinOpKind::Pow, Num::Int(a), Num::Int(b)) if b >= 0 => Val::Int(a.checked_pow(u32::try_from(b).ok()?)?),
        (_, a, b) => Val::Float(a.real().powf(b.real())),
    })
}

/// Towards the smaller number, as people count; the rest has the sign of the divisor.
fn floor_division(a: i128, b: i128) -> Option<(i128, i128)> {
    let (quotient, rest) = (a.checked_div(b)?, a.checked_rem(b)?);
    if rest != 0 && (rest < 0) != (b < 0) { Some((quotient.checked_sub(1)?, rest + b)) } else { Some((quotient, rest)) }
}

pub(super) fn negative<'a>(value: &Val<'a>) -> Res<Val<'a>> {
    match value {
        Val::Int(number) => number.checked_neg().map(Val::Int).ok_or_else(|| "invalid operation: overflow".into()),
        Val::Float(real) => Ok(Val::Float(-real)),
        Val::Undefined { .. } => Err(undefined()),
        other => Err(format!("invalid operation: cannot negate {}", other.kind().word())),
    }
}

pub(super) fn add<'a>(a: &Val<'a>, b: &Val<'a>, meter: &mut Meter) -> Res<Val<'a>> {
    if let (Some(x), Some(y)) = (a.as_str(), b.as_str()) {
        meter.keep(x.len() + y.len() + 32)?;
        return Ok(Val::Text([x, y].concat().into()));
    }
    if let (Some(x), Some(y)) = (Num::of(a), Num::of(b)) {
        return match (x, y) {
            (Num::Int(x), Num::Int(y)) => x
                .checked_add(y)
                .map(Val::Int)
                .ok_or_else(|| "invalid operation: unable to calculate the result of +".into()),
            (x, y) => Ok(Val::Float(x.real() + y.real())),
        };
    }
    if a.kind() == Kind::Sequence && b.kind() == Kind::Sequence {
        let mut list = room_for(a.len().unwrap_or(0).saturating_add(b.len().unwrap_or(0)), meter)?;
        for part in [a, b] {
            let mut items = part.iter()?;
            while let Some(item) = items.next(meter)? {
                list.push(item);
            }
        }
        return Val::list(list);
    }
    Err(impossible("+", a, b))
}

fn multiply<'a>(a: &Val<'a>, b: &Val<'a>, meter: &mut Meter) -> Res<Val<'a>> {
    if let (Some(x), Some(y)) = (Num::of(a), Num::of(b)) {
        return match (x, y) {
            (Num::Int(x), Num::Int(y)) => x
                .checked_mul(y)
                .map(Val::Int)
                .ok_or_else(|| "invalid operation: unable to calculate the result of *".into()),
            (x, y) => Ok(Val::Float(x.real() * y.real())),
        };
    }
    let (many, times) = if Num::of(a).is_some() { (b, a) } else { (a, b) };
    let times = match times {
        Val::Int(times) => usize::try_from(*times).unwrap_or(if *times < 0 { 0 } else { usize::MAX }),
        _ => return Err(impossible("*", a, b)),
    };
    if let Some(text) = many.as_str() {
        meter.keep(text.len().saturating_mul(times).saturating_add(32))?;
        return Ok(Val::Text(if text.is_empty() { "".into() } else { text.repeat(times).into() }));
    }
    if many.kind() != Kind::Sequence {
        return Err(impossible("*", a, b));
    }
    let length = many.len().unwrap_or(0);
    let mut list = room_for(length.saturating_mul(times), meter)?;
    if length > 0 {
        for _ in 0..times {
            let mut items = many.iter()?;
            while let Some(item) = items.next(meter)? {
                list.push(item);
            }
        }
    }
    Val::list(list)
}

/// Whether a text holds a text, a list an item or an object a key. A search looks at every byte of both, and no more.
pub(super) fn contains<'a>(container: &Val<'a>, value: &Val<'a>, meter: &mut Meter) -> Res<bool> {
    if container.is_undefined() || value.is_undefined() {
        return Err(undefined());
    }
    if let Some(text) = container.as_str() {
        if let Some(part) = value.as_str() {
            meter.look(2 * (text.len() + part.len()))?;
            return Ok(text.contains(part));
        }
        let mut part = Writer::new(meter)?;
        write(value, false, &mut part, meter, 0)?;
        meter.look(text.len())?;
        return Ok(text.contains(&part.into_string()));
    }
    match container {
        Val::Map(map) if map.message().is_some() => {
            let (Some(message), Some(part)) = (map.message(), value.as_str()) else { return Ok(false) };
            meter.look(2 * (message.len() + part.len()))?;
            Ok(container.item(value, meter)?.is_some() || message.contains(part))
        }
        _ if container.kind() == Kind::Map => Ok(container.item(value, meter)?.is_some()),
        _ if container.kind() == Kind::Sequence => {
            let mut items = container.iter()?;
            while let Some(item) = items.next(meter)? {
                if same(&item, value, meter, 0)? {
                    return Ok(true);
                }
            }
            Ok(false)
        }
        _ => Err("invalid operation: cannot perform a containment check on this value".into()),
    }
}

/// `value[start:stop:step]`, as in Python.
pub(super) fn slice<'a>(
    value: &Val<'a>,
    start: Option<i64>,
    stop: Option<i64>,
    step: i64,
    meter: &mut Meter,
) -> Res<Val<'a>> {
    if step == 0 {
        return Err("invalid operation: cannot slice by step size of 0".into());
    }
    if let Some(text) = value.as_str() {
        meter.look(text.len())?;
        let length = text.chars().count();
        let mut chosen = places(length, start, stop, step);
        let mut out = Writer::new(meter)?;
        let Some(first) = chosen.next() else { return Ok(Val::Text(out.into_text())) };
        let (count, stride) = (chosen.len() + 1, usize::try_from(step.unsigned_abs()).unwrap_or(usize::MAX));
        let mut push = |letter: char| out.push_char(meter, letter);
        if step > 0 {
            text.chars().skip(first).step_by(stride).take(count).try_for_each(&mut push)?;
        } else {
            text.chars().rev().skip(length - 1 - first).step_by(stride).take(count).try_for_each(&mut push)?;
        }
        return Ok(Val::Text(out.into_text()));
    }
    match value {
        Val::None => Val::list(Vec::new()),
        _ if value.kind() == Kind::Sequence => {
            let chosen = places(value.len().unwrap_or(0), start, stop, step);
            let mut list = room_for(chosen.len(), meter)?;
            for at in chosen {
                meter.work(2)?;
                list.extend(value.item(&Val::Int(at as i128), meter)?);
            }
            Val::list(list)
        }
        other => Err(format!("invalid operation: value of type {} cannot be sliced", other.kind().word())),
    }
}

/// Which places a slice takes, without making a list of them.
fn places(length: usize, start: Option<i64>, stop: Option<i64>, step: i64) -> impl ExactSizeIterator<Item = usize> {
    let length = i64::try_from(length).unwrap_or(i64::MAX);
    let (low, high) = if step > 0 { (0, length) } else { (-1, length - 1) };
    let place = |bound: Option<i64>, default: i64| match bound {
        None => default,
        Some(at) if at < 0 => at.saturating_add(length).clamp(low, high),
        Some(at) => at.clamp(low, high),
    };
    let (from, to) =
        if step > 0 { (place(start, low), place(stop, high)) } else { (place(start, high), place(stop, low)) };
    let stride = step.unsigned_abs();
    let span = if step > 0 { to.saturating_sub(from) } else { from.saturating_sub(to) };
    let count = u64::try_from(span).map_or(0, |span| span.div_ceil(stride));
    let count = usize::try_from(count).unwrap_or(0);
    (0..count).map(move |n| {
        let moved = stride.saturating_mul(n as u64);
        let at = if step > 0 { from as u64 + moved } else { (from as u64).saturating_sub(moved) };
        usize::try_from(at).unwrap_or(usize::MAX)
    })
}
