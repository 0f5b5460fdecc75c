//! Refuses unknown filters, tests, functions and statements when a document is read.

use std::collections::BTreeSet;

use minijinja::machinery::ast::{self, BinOpKind, CallArg, Expr, Stmt};

use super::filters::{FILTERS, FUNCTIONS, TESTS, is_test};

/// The largest number that may be written as an argument of a filter which is a size, or as the times of a repetition.
const MAX_SIZE: i128 = 1_000_000;

pub(super) fn unknown_filter(name: &str) -> String {
    format!("unknown filter: `{}` is not known here; these are: {}", cut(name), FILTERS.join(", "))
}

pub(super) fn unknown_test(name: &str) -> String {
    format!("unknown test: `{}` is not known here; these are: {}", cut(name), TESTS.join(", "))
}

pub(super) fn unknown_function(name: &str) -> String {
    format!("unknown function: `{}` is not known here; these are: {}", cut(name), FUNCTIONS.join(", "))
}

pub(super) fn refused_statement(name: &str) -> String {
    format!("the statement `{name}` is not known here; these are: if, for, set, with, filter, do, raw")
}

pub(super) fn refused_splat() -> String {
    "arguments with `*` and `**` are not known here".into()
}

fn cut(name: &str) -> &str {
    &name[..name.floor_char_boundary(name.len().min(60))]
}

/// The names that an expression asks for, dotted as far as they are written so, if it uses nothing that is refused.
pub(super) fn expression(expr: &Expr<'_>) -> Result<BTreeSet<String>, String> {
    let mut check = Check { own: vec![BTreeSet::new()], asked: BTreeSet::new() };
    check.expr(expr)?;
    Ok(check.asked)
}

pub(super) fn template(template: &Stmt<'_>) -> Result<BTreeSet<String>, String> {
    let mut check = Check { own: vec![BTreeSet::new()], asked: BTreeSet::new() };
    check.statement(template)?;
    Ok(check.asked)
}

struct Check<'a> {
    /// Names that the text itself sets, by block.
    own: Vec<BTreeSet<&'a str>>,
    asked: BTreeSet<String>,
}

impl<'a> Check<'a> {
    fn block(&mut self, statements: &'a [Stmt<'a>]) -> Result<(), String> {
        self.own.push(BTreeSet::new());
        self.statements(statements)?;
        self.own.pop();
        Ok(())
    }

    fn statements(&mut self, statements: &'a [Stmt<'a>]) -> Result<(), String> {
        statements.iter().try_for_each(|statement| self.statement(statement))
    }

    fn statement(&mut self, statement: &'a Stmt<'a>) -> Result<(), String> {
        match statement {
            Stmt::Template(template) => self.statements(&template.children),
            Stmt::EmitRaw(_) => Ok(()),
            Stmt::EmitExpr(emit) => self.expr(&emit.expr),
            Stmt::ForLoop(each) => {
                if each.recursive {
                    return Err(refused_statement("for … recursive"));
                }
                self.expr(&each.iter)?;
                self.own.push(BTreeSet::from(["loop"]));
                self.target(&each.target)?;
                if let Some(wanted) = &each.filter_expr {
                    self.expr(wanted)?;
                }
                self.statements(&each.body)?;
                self.own.pop();
                self.block(&each.else_body)
            }
            Stmt::IfCond(branch) => {
                self.expr(&branch.expr)?;
                self.block(&branch.true_body)?;
                self.block(&branch.false_body)
            }
            Stmt::WithBlock(with) => {
                self.own.push(BTreeSet::new());
                for (target, value) in &with.assignments {
                    self.target(target)?;
                    self.expr(value)?;
                }
                self.statements(&with.body)?;
                self.own.pop();
                Ok(())
            }
            Stmt::Set(set) => {
                self.target(&set.target)?;
                self.expr(&set.expr)
            }
            Stmt::SetBlock(set) => {
                if let Some(filter) = &set.filter {
                    self.expr(filter)?;
                }
                self.block(&set.body)?;
                self.target(&set.target)
            }
            Stmt::FilterBlock(filter) => {
                self.expr(&filter.filter)?;
                self.block(&filter.body)
            }
            Stmt::Do(act) => self.call(&act.call),
            Stmt::AutoEscape(_) => Err(refused_statement("autoescape")),
        }
    }

    fn target(&mut self, target: &'a Expr<'a>) -> Result<(), String> {
        match target {
            Expr::Var(name) => {
                if let Some(block) = self.own.last_mut() {
                    block.insert(name.id);
                }
                Ok(())
            }
            Expr::List(list) => list.items.iter().try_for_each(|item| self.target(item)),
            Expr::Tuple(list) => list.items.iter().try_for_each(|item| self.target(item)),
            _ => Err("only names can be set".into()),
        }
    }

    fn is_own(&self, name: &str) -> bool {
        self.own.iter().any(|block| block.contains(name))
    }

    fn maybe(&mut self, expr: &'a Option<Expr<'a>>) -> Result<(), String> {
        expr.as_ref().map_or(Ok(()), |expr| self.expr(expr))
    }

    fn args(&mut self, args: &'a [CallArg<'a>]) -> Result<(), String> {
        args.iter().try_for_each(|arg| match arg {
            CallArg::Pos(expr) | CallArg::Kwarg(_, expr) => self.expr(expr),
            CallArg::PosSplat(_) | CallArg::KwargSplat(_) => Err(refused_splat()),
        })
    }

    fn call(&mut self, call: &'a ast::Call<'a>) -> Result<(), String> {
        match &call.expr {
            Expr::Var(name) if !FUNCTIONS.contains(&name.id) => Err(unknown_function(name.id)),
            Expr::Var(_) => self.args(&call.args),
            Expr::GetAttr(attr) if attr.name == "cycle" => {
                self.expr(&attr.expr)?;
                self.args(&call.args)
            }
            Expr::GetAttr(attr) => Err(format!("unknown method: values have no method `{}`", cut(attr.name))),
            _ => Err("only functions can be called".into()),
        }
    }

    fn expr(&mut self, expr: &'a Expr<'a>) -> Result<(), String> {
        match expr {
            Expr::Const(_) => Ok(()),
            Expr::Var(name) => {
                if !self.is_own(name.id) {
                    self.asked.insert(name.id.to_owned());
                }
                Ok(())
            }
            Expr::GetAttr(attr) => match dotted(expr) {
                Some((root, _)) if self.is_own(root) => Ok(()),
                Some((_, whole)) => {
                    self.asked.insert(whole);
                    Ok(())
                }
                None => self.expr(&attr.expr),
            },
            Expr::GetItem(item) => {
                self.expr(&item.expr)?;
                self.expr(&item.subscript_expr)
            }
            Expr::Slice(slice) => {
                self.expr(&slice.expr)?;
                self.maybe(&slice.start)?;
                self.maybe(&slice.stop)?;
                self.maybe(&slice.step)
            }
            Expr::UnaryOp(op) => self.expr(&op.expr),
            Expr::BinOp(op) => {
                if matches!(op.op, BinOpKind::Mul) && repeats_too_often(&op.left, &op.right) {
                    return Err(format!("a text or a list may be repeated {MAX_SIZE} times at most"));
                }
                self.expr(&op.left)?;
                self.expr(&op.right)
            }
            Expr::Compare(chain) => {
                self.expr(&chain.expr)?;
                chain.ops.iter().try_for_each(|link| self.expr(&link.expr))
            }
            Expr::IfExpr(choice) => {
                self.expr(&choice.test_expr)?;
                self.expr(&choice.true_expr)?;
                self.maybe(&choice.false_expr)
            }
            Expr::Filter(filter) => self.filter(filter),
            Expr::Test(test) => {
                if !is_test(test.name) {
                    return Err(unknown_test(test.name));
                }
                self.expr(&test.expr)?;
                self.args(&test.args)
            }
            Expr::Call(call) => self.call(call),
            Expr::List(list) => list.items.iter().try_for_each(|item| self.expr(item)),
            Expr::Tuple(list) => list.items.iter().try_for_each(|item| self.expr(item)),
            Expr::Map(map) => map.keys.iter().chain(&map.values).try_for_each(|part| self.expr(part)),
        }
    }

    fn filter(&mut self, filter: &'a ast::Filter<'a>) -> Result<(), String> {
        if !FILTERS.contains(&filter.name) {
            return Err(unknown_filter(filter.name));
        }
        if filter.name == "tojson" && !filter.args.is_empty() {
            return Err("the filter `tojson` takes no arguments here".into());
        }
        let is_size = matches!(filter.name, "round" | "split");
        let too_large = |arg: &CallArg<'_>| match arg {
            CallArg::Pos(expr) | CallArg::Kwarg(_, expr) => literal(expr).is_some_and(|number| number > MAX_SIZE),
            _ => false,
        };
        if is_size && filter.args.iter().any(too_large) {
            return Err(format!("an argument of the filter `{}` may be {MAX_SIZE} at most", filter.name));
        }
        // A name that another filter is told as a text is known as well.
        if let ("map" | "select" | "reject", Some(CallArg::Pos(Expr::Const(name)))) = (filter.name, filter.args.first())
            && let Some(name) = name.value.as_str()
        {
            match filter.name {
                "map" if !FILTERS.contains(&name) => return Err(unknown_filter(name)),
                "select" | "reject" if !is_test(name) => return Err(unknown_test(name)),
                _ => {}
            }
        }
        self.maybe(&filter.expr)?;
        self.args(&filter.args)
    }
}

/// `a.b.c`, and its root.
fn dotted<'a>(expr: &Expr<'a>) -> Option<(&'a str, String)> {
    match expr {
        Expr::Var(name) => Some((name.id, name.id.to_owned())),
        Expr::GetAttr(attr) => {
            let (root, whole) = dotted(&attr.expr)?;
            Some((root, format!("{whole}.{}", attr.name)))
        }
        _ => None,
    }
}

fn literal(expr: &Expr<'_>) -> Option<i128> {
    match expr {
        Expr::Const(constant) if constant.value.is_integer() => i128::try_from(constant.value.clone()).ok(),
        _ => None,
    }
}

fn repeats_too_often(left: &Expr<'_>, right: &Expr<'_>) -> bool {
    let is_many = |expr: &Expr<'_>| match expr {
        Expr::Const(constant) => constant.value.as_str().is_some(),
        Expr::List(_) | Expr::Tuple(_) => true,
        _ => false,
    };
    let is_large = |expr: &Expr<'_>| literal(expr).is_some_and(|number| number > MAX_SIZE);
    (is_many(left) && is_large(right)) || (is_many(right) && is_large(left))
}
