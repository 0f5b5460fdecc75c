//! Evaluates syntax trees. The parser is minijinja's; the values and the work are ours, so that both are bounded.

use minijinja::machinery::ast::{self, BinOpKind, CallArg, CompareOpKind, Expr, Stmt, UnaryOpKind};
use minijinja::machinery::parse;
use minijinja::syntax::SyntaxConfig;
use serde_json::Value as Json;

use super::meter::{MAX_VALUE, Meter, Res, Writer};
use super::value::{UNDEFINED, Val, append, put, room_for, room_for_fields, undefined, write};
use super::{filters, operators};

/// How many steps a node of the tree costs.
const NODE: usize = 16;

/// Where names are looked up that the text itself does not set.
pub(super) enum Names<'a> {
    Json(&'a Json),
    Fixed(Vec<(&'static str, Val<'a>)>),
}

pub(super) struct Machine<'a, 'm> {
    names: &'m Names<'a>,
    pub meter: &'m mut Meter,
    frames: Vec<Vec<(&'a str, Val<'a>)>>,
    loops: usize,
    /// The line of the node that was looked at last.
    pub line: usize,
}

/// The arguments of a filter, a test or a function.
pub(super) struct Args<'a> {
    pub by_place: Vec<Val<'a>>,
    pub by_name: Vec<(&'a str, Val<'a>)>,
}

impl<'a> Args<'a> {
    /// The next argument by its place, or the one of that name.
    pub fn take(&mut self, name: &str) -> Option<Val<'a>> {
        if !self.by_place.is_empty() {
            return Some(self.by_place.remove(0));
        }
        self.named(name)
    }

    pub fn named(&mut self, name: &str) -> Option<Val<'a>> {
        let at = self.by_name.iter().position(|(given, _)| *given == name)?;
        Some(self.by_name.swap_remove(at).1)
    }

    pub fn need(&mut self, name: &str) -> Res<Val<'a>> {
        self.take(name).ok_or_else(|| format!("missing argument: `{name}`"))
    }

    pub fn finish(self) -> Res<()> {
        match self.by_name.first() {
            Some((name, _)) => Err(format!("too many arguments: unknown keyword argument `{name}`")),
            None if self.by_place.is_empty() => Ok(()),
            None => Err("too many arguments".into()),
        }
    }
}

/// Parses a template as the machine runs it.
pub(super) fn parse_template(source: &str) -> Res<Stmt<'_>> {
    let syntax = SyntaxConfig::builder().keep_trailing_newline(true).build().map_err(|e| super::describe(&e))?;
    parse(source, "<template>", syntax).map_err(|error| super::describe(&error))
}

impl<'a, 'm> Machine<'a, 'm> {
    pub fn new(names: &'m Names<'a>, meter: &'m mut Meter) -> Machine<'a, 'm> {
        Machine { names, meter, frames: vec![Vec::new()], loops: 0, line: 1 }
    }

    /// Renders a template, writing at most `limit` bytes.
    pub fn render(&mut self, template: &'a Stmt<'a>, limit: usize) -> Res<String> {
        let mut out = Writer::limited(self.meter, limit.min(MAX_VALUE))?;
        self.statement(template, &mut out)?;
        Ok(out.into_string())
    }

    fn statements(&mut self, list: &'a [Stmt<'a>], out: &mut Writer) -> Res<()> {
        list.iter().try_for_each(|statement| self.statement(statement, out))
    }

    fn statement(&mut self, statement: &'a Stmt<'a>, out: &mut Writer) -> Res<()> {
        self.meter.work(NODE)?;
        match statement {
            Stmt::Template(template) => self.statements(&template.children, out),
            Stmt::EmitRaw(raw) => out.push(self.meter, raw.raw),
            Stmt::EmitExpr(emit) => {
                let value = self.eval(&emit.expr)?;
                if let Val::Undefined { silent: false } = value {
                    return Err(undefined());
                }
                write(&value, false, out, self.meter, 0)
            }
            Stmt::IfCond(branch) => {
                let body = if self.eval(&branch.expr)?.truth()? { &branch.true_body } else { &branch.false_body };
                self.statements(body, out)
            }
            Stmt::ForLoop(each) => self.each(each, out),
            Stmt::WithBlock(with) => {
                self.frames.push(Vec::new());
                for (target, value) in &with.assignments {
                    let value = self.eval(value)?;
                    self.assign(target, value)?;
                }
                self.statements(&with.body, out)?;
                self.frames.pop();
                Ok(())
            }
            Stmt::Set(set) => {
                let value = self.eval(&set.expr)?;
                self.assign(&set.target, value)
            }
            Stmt::SetBlock(set) => {
                let mut inner = Writer::new(self.meter)?;
                self.statements(&set.body, &mut inner)?;
                let text = self.filtered(set.filter.as_ref(), Val::Text(inner.into_text()))?;
                self.assign(&set.target, text)
            }
            Stmt::FilterBlock(block) => {
                let mut inner = Writer::new(self.meter)?;
                self.statements(&block.body, &mut inner)?;
                let value = self.filtered(Some(&block.filter), Val::Text(inner.into_text()))?;
                write(&value, false, out, self.meter, 0)
            }
            Stmt::Do(act) => self.call(&act.call).map(drop),
            Stmt::AutoEscape(_) => Err(super::check::refused_statement("autoescape")),
        }
    }

    /// A loop goes over its items once; `set` in its body holds for one round.
    #[inline(never)]
    fn each(&mut self, each: &'a ast::ForLoop<'a>, out: &mut Writer) -> Res<()> {
        if each.recursive {
            return Err(super::check::refused_statement("for … recursive"));
        }
        let mut over = self.eval(&each.iter)?;
        if let Some(wanted) = &each.filter_expr {
            let mut kept = Vec::new();
            let mut items = over.iter()?;
            self.frames.push(Vec::new());
            while let Some(item) = items.next(self.meter)? {
                self.clear_frame();
                self.assign(&each.target, item.clone())?;
                if self.eval(wanted)?.truth()? {
                    append(&mut kept, item, self.meter)?;
                }
            }
            self.frames.pop();
            over = Val::list(kept)?;
        }
        let length = match &over {
            Val::Str(_) | Val::Text(_) => over.as_str().unwrap_or_default().chars().count(),
            other => other.len().unwrap_or(0),
        };
        let mut items = over.iter()?;
        let mut index = 0;
        self.frames.push(Vec::new());
        self.loops += 1;
        while let Some(item) = items.next(self.meter)? {
            self.meter.work(NODE)?;
            self.clear_frame();
            self.set("loop", Val::Loop { index, length, depth: self.loops - 1 });
            self.assign(&each.target, item)?;
            self.statements(&each.body, out)?;
            index += 1;
        }
        self.loops -= 1;
        self.frames.pop();
        if index == 0 { self.statements(&each.else_body, out) } else { Ok(()) }
    }

    fn clear_frame(&mut self) {
        if let Some(frame) = self.frames.last_mut() {
            frame.clear();
        }
    }

    fn set(&mut self, name: &'a str, value: Val<'a>) {
        let Some(frame) = self.frames.last_mut() else { return };
        match frame.iter_mut().find(|(known, _)| *known == name) {
            Some((_, old)) => *old = value,
            None => frame.push((name, value)),
        }
    }

    fn assign(&mut self, target: &'a Expr<'a>, value: Val<'a>) -> Res<()> {
        let targets = match target {
            Expr::Var(name) => {
                let known = self.frames.last().map_or(0, Vec::len);
                self.meter.work(known / 2 + name.id.len() / 4)?;
                self.set(name.id, value);
                return Ok(());
            }
            Expr::List(list) => &list.items,
            Expr::Tuple(list) => &list.items,
            _ => return Err("invalid operation: can only assign to names".into()),
        };
        let mut items = value.iter().map_err(|_| "cannot unpack: value is not iterable".to_owned())?;
        for target in targets {
            let item = items.next(self.meter)?.ok_or("cannot unpack: sequence of wrong length")?;
            self.assign(target, item)?;
        }
        match items.next(self.meter)? {
            None => Ok(()),
            Some(_) => Err("cannot unpack: sequence of wrong length".into()),
        }
    }

    /// The filters of a block, which have no value of their own at their root.
    fn filtered(&mut self, filter: Option<&'a Expr<'a>>, text: Val<'a>) -> Res<Val<'a>> {
        match filter {
            None => Ok(text),
            Some(Expr::Filter(filter)) => {
                let value = self.filtered(filter.expr.as_ref(), text)?;
                let args = self.args(&filter.args)?;
                filters::apply(filter.name, value, args, self.meter)
            }
            Some(_) => Err("invalid operation: a block takes filters only".into()),
        }
    }

    pub fn eval(&mut self, expr: &'a Expr<'a>) -> Res<Val<'a>> {
        self.meter.work(NODE)?;
        match expr {
            Expr::Var(name) => self.name(name.id),
            Expr::Const(constant) => constant_value(&constant.value),
            Expr::GetAttr(attr) => {
                let base = self.eval(&attr.expr)?;
                self.line_of(expr);
                found(&base, base.attr(attr.name, self.meter)?)
            }
            Expr::GetItem(item) => {
                let base = self.eval(&item.expr)?;
                let key = self.eval(&item.subscript_expr)?;
                self.line_of(expr);
                found(&base, base.item(&key, self.meter)?)
            }
            Expr::BinOp(op) => self.binary(op),
            Expr::UnaryOp(op) => {
                let value = self.eval(&op.expr)?;
                match op.op {
                    UnaryOpKind::Not => Ok(Val::Bool(!value.truth()?)),
                    UnaryOpKind::Neg => operators::negative(&value),
                }
            }
            Expr::IfExpr(choice) => {
                if self.eval(&choice.test_expr)?.truth()? {
                    return self.eval(&choice.true_expr);
                }
                match &choice.false_expr {
                    Some(other) => self.eval(other),
                    None => Ok(Val::Undefined { silent: true }),
                }
            }
            Expr::Compare(chain) => self.chain(chain),
            Expr::Filter(filter) => {
                let Some(value) = &filter.expr else {
                    return Err("invalid operation: a filter without a value".into());
                };
                let value = self.eval(value)?;
                let args = self.args(&filter.args)?;
                self.line_of(expr);
                filters::apply(filter.name, value, args, self.meter)
            }
            Expr::Test(test) => {
                let value = self.eval(&test.expr)?;
                let args = self.args(&test.args)?;
                self.line_of(expr);
                filters::test(test.name, &value, args, self.meter).map(Val::Bool)
            }
            Expr::List(list) => self.list(&list.items),
            Expr::Tuple(list) => self.list(&list.items),
            Expr::Map(map) => self.map(map),
            Expr::Slice(slice) => self.slice(slice),
            Expr::Call(call) => self.call(call),
        }
    }

    fn line_of(&mut self, expr: &Expr<'_>) {
        self.line = expr.span().start_line as usize;
    }

    fn name(&mut self, name: &str) -> Res<Val<'a>> {
        let known: usize = self.frames.iter().map(|frame| frame.len() + 1).sum();
        self.meter.work(known / 2 + name.len() / 4)?;
        let own = self.frames.iter().rev().find_map(|frame| frame.iter().find(|(known, _)| *known == name));
        if let Some((_, value)) = own {
            return Ok(value.clone());
        }
        Ok(match self.names {
            Names::Json(context) => context.get(name).map_or(UNDEFINED, Val::of),
            Names::Fixed(names) => {
                names.iter().find(|(known, _)| *known == name).map_or(UNDEFINED, |(_, value)| value.clone())
            }
        })
    }

    #[inline(never)]
    fn binary(&mut self, op: &'a ast::BinOp<'a>) -> Res<Val<'a>> {
        let left = self.eval(&op.left)?;
        match op.op {
            BinOpKind::ScAnd => return if left.truth()? { self.eval(&op.right) } else { Ok(left) },
            BinOpKind::ScOr => return if left.truth()? { Ok(left) } else { self.eval(&op.right) },
            _ => {}
        }
        let right = self.eval(&op.right)?;
        operators::binary(op.op, &left, &right, self.meter)
    }

    #[inline(never)]
    fn chain(&mut self, chain: &'a ast::Compare<'a>) -> Res<Val<'a>> {
        let mut left = self.eval(&chain.expr)?;
        for link in &chain.ops {
            let right = self.eval(&link.expr)?;
            let (op, wanted) = match link.op {
                CompareOpKind::Eq => (BinOpKind::Eq, true),
                CompareOpKind::Ne => (BinOpKind::Ne, true),
                CompareOpKind::Lt => (BinOpKind::Lt, true),
                CompareOpKind::Lte => (BinOpKind::Lte, true),
                CompareOpKind::Gt => (BinOpKind::Gt, true),
                CompareOpKind::Gte => (BinOpKind::Gte, true),
                CompareOpKind::In => (BinOpKind::In, true),
                CompareOpKind::NotIn => (BinOpKind::In, false),
            };
            if operators::binary(op, &left, &right, self.meter)?.is_true() != wanted {
                return Ok(Val::Bool(false));
            }
            left = right;
        }
        Ok(Val::Bool(true))
    }

    #[inline(never)]
    fn list(&mut self, items: &'a [Expr<'a>]) -> Res<Val<'a>> {
        let mut list = room_for(items.len(), self.meter)?;
        for item in items {
            list.push(self.eval(item)?);
        }
        Val::list(list)
    }

    #[inline(never)]
    fn map(&mut self, map: &'a ast::Map<'a>) -> Res<Val<'a>> {
        let mut entries = room_for_fields(map.keys.len(), self.meter)?;
        for (key, value) in map.keys.iter().zip(&map.values) {
            let (key, value) = (self.eval(key)?, self.eval(value)?);
            put(&mut entries, key, value, self.meter)?;
        }
        Val::map(entries, None)
    }

    #[inline(never)]
    fn slice(&mut self, slice: &'a ast::Slice<'a>) -> Res<Val<'a>> {
        let value = self.eval(&slice.expr)?.there()?;
        let mut bound = |part: &'a Option<Expr<'a>>| -> Res<Option<i64>> {
            match part {
                None => Ok(None),
                Some(expr) => match self.eval(expr)? {
                    Val::None => Ok(None),
                    number => number
                        .as_index()
                        .map(Some)
                        .ok_or_else(|| format!("invalid operation: cannot slice by {}", number.kind().word())),
                },
            }
        };
        let (start, stop, step) = (bound(&slice.start)?, bound(&slice.stop)?, bound(&slice.step)?);
        operators::slice(&value, start, stop, step.unwrap_or(1), self.meter)
    }

    #[inline(never)]
    fn args(&mut self, args: &'a [CallArg<'a>]) -> Res<Args<'a>> {
        let mut read = Args { by_place: room_for(args.len(), self.meter)?, by_name: Vec::new() };
        for arg in args {
            match arg {
                CallArg::Pos(expr) => read.by_place.push(self.eval(expr)?),
                CallArg::Kwarg(name, expr) => {
                    let value = self.eval(expr)?;
                    self.meter.keep(64)?;
                    read.by_name.push((name, value));
                }
                CallArg::PosSplat(_) | CallArg::KwargSplat(_) => return Err(super::check::refused_splat()),
            }
        }
        Ok(read)
    }

    /// `dict(…)`, `fail('why')` and `loop.cycle(…)` are the only calls there are.
    #[inline(never)]
    fn call(&mut self, call: &'a ast::Call<'a>) -> Res<Val<'a>> {
        match &call.expr {
            Expr::Var(name) => {
                let args = self.args(&call.args)?;
                filters::call(name.id, args, self.meter)
            }
            Expr::GetAttr(attr) if attr.name == "cycle" => {
                let Val::Loop { index, .. } = self.eval(&attr.expr)? else {
                    return Err("unknown method: only `loop` has a method `cycle`".into());
                };
                let args = self.args(&call.args)?;
                let length = args.by_place.len().max(1);
                Ok(args.by_place.into_iter().nth(index % length).unwrap_or(UNDEFINED))
            }
            Expr::GetAttr(attr) => Err(format!("unknown method: values have no method `{}`", attr.name)),
            _ => Err("invalid operation: value is not callable".into()),
        }
    }
}

fn found<'a>(base: &Val<'a>, value: Option<Val<'a>>) -> Res<Val<'a>> {
    match value {
        Some(value) => Ok(value),
        None if base.is_undefined() => Err(undefined()),
        None => Ok(UNDEFINED),
    }
}

fn constant_value<'a>(constant: &'a minijinja::Value) -> Res<Val<'a>> {
    use minijinja::value::ValueKind;
    Ok(match constant.kind() {
        ValueKind::None => Val::None,
        ValueKind::Bool => Val::Bool(constant.is_true()),
        ValueKind::String => Val::Str(constant.as_str().unwrap_or_default()),
        ValueKind::Number if constant.is_integer() => {
            Val::Int(i128::try_from(constant.clone()).map_err(|_| "a number of more than 127 bits".to_owned())?)
        }
        ValueKind::Number => Val::Float(f64::try_from(constant.clone()).unwrap_or(f64::NAN)),
        other => return Err(format!("invalid operation: no constant can be a {other}")),
    })
}
