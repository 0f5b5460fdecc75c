//! Random expressions and templates, with an allocator that counts: none of them panics, none takes more than 16 MiB, and none
//! takes longer than 50 ms.
//!
//! `make fuzz-expressions` evaluates 1,000,000 of them in release; `COMEBACK_EXPRESSIONS` says how many. The time is looked at
//! only then, because a debug build is slow.

use std::time::Duration;

use comeback_core::expression::{self, Expression, Scope};
use comeback_core::{Class, Failure, Trigger};
use peak_alloc::PeakAlloc;
use serde_json::{Value, json};

#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

const MOST_BYTES: usize = 16 * 1024 * 1024;
const LONGEST: Duration = Duration::from_millis(50);
const USUAL: u64 = 20_000;

/// xorshift: the same seeds give the same texts everywhere.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % sides
    }

    fn one<'a>(&mut self, of: &[&'a str]) -> &'a str {
        of[self.roll(of.len())]
    }
}

const NUMBERS: [&str; 16] = [
    "0",
    "1",
    "2",
    "-1",
    "7",
    "63",
    "64",
    "1000",
    "65536",
    "999999",
    "1000000",
    "9223372036854775807",
    "9223372036854775808",
    "200000000000000",
    "1e308",
    "0.1",
];
const TEXTS: [&str; 9] = ["''", "'x'", "'xx'", "'%99999999999999d'", "'a,b,c'", "' '", "'ß\u{130}'", "'\\n'", "'name'"];
const NAMES: [&str; 16] = [
    "long", "longer", "rows", "many", "empties", "nested", "deep", "n", "big", "none", "real", "error", "message",
    "result", "a", "loop",
];
const OPERATORS: [&str; 18] =
    ["+", "-", "*", "/", "//", "%", "**", "~", "==", "!=", "<", "<=", ">", ">=", "in", "not in", "and", "or"];
const FILTERS: [&str; 52] = [
    "abs",
    "attr",
    "batch",
    "bool",
    "capitalize",
    "chain",
    "count",
    "d",
    "default",
    "dictsort",
    "e",
    "escape",
    "first",
    "float",
    "format",
    "groupby",
    "indent",
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
    "pprint",
    "reject",
    "rejectattr",
    "replace",
    "reverse",
    "round",
    "safe",
    "select",
    "selectattr",
    "slice",
    "sort",
    "split",
    "string",
    "sum",
    "title",
    "tojson",
    "trim",
    "truncate",
    "unique",
    "upper",
    "urlencode",
    "wordcount",
    "xmlattr",
    "zip",
];
const TESTS: [&str; 14] = [
    "defined",
    "undefined",
    "none",
    "odd",
    "even",
    "number",
    "string",
    "mapping",
    "iterable",
    "in",
    "eq",
    "lt",
    "startingwith",
    "upper",
];

fn expression(dice: &mut Dice, depth: usize) -> String {
    if depth == 0 {
        return match dice.roll(3) {
            0 => dice.one(&NUMBERS).to_owned(),
            1 => dice.one(&TEXTS).to_owned(),
            _ => dice.one(&NAMES).to_owned(),
        };
    }
    let next = |dice: &mut Dice| {
        let less = 1 + dice.roll(2);
        expression(dice, depth.saturating_sub(less))
    };
    match dice.roll(17) {
        0..=4 => format!("({} {} {})", next(dice), dice.one(&OPERATORS), next(dice)),
        5 | 6 => filtered(dice, depth),
        7 => {
            let times = 1 + dice.roll(12);
            let filter = dice.one(&[
                "replace('x', 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx')",
                "join(long)",
                "list",
                "tojson",
                "upper",
            ]);
            format!("{}{}", next(dice), format!("|{filter}").repeat(times))
        }
        8 => format!("[{}]", (0..dice.roll(6)).map(|_| next(dice)).collect::<Vec<_>>().join(", ")),
        9 => format!("{{{}: {}, 'b': {}}}", dice.one(&TEXTS), next(dice), next(dice)),
        10 => format!("({} if {} else {})", next(dice), next(dice), next(dice)),
        11 => format!("({} is {}({}))", next(dice), dice.one(&TESTS), next(dice)),
        12 => format!("{}[{}:{}:{}]", next(dice), dice.one(&NUMBERS), dice.one(&NUMBERS), dice.one(&NUMBERS)),
        13 => format!("{}[{}]", next(dice), next(dice)),
        14 => format!("{}.{}", next(dice), dice.one(&["name", "id", "x", "index", "0"])),
        15 => match dice.roll(4) {
            0 => format!("dict(a={}, b={})", next(dice), next(dice)),
            1 => format!("range({})", next(dice)),
            2 => format!("fail({})", next(dice)),
            _ => format!("(not {})", next(dice)),
        },
        _ => {
            // The same value again and again: doubling.
            let (value, sign) = (next(dice), dice.one(&["+", "~", "*"]));
            vec![value; 2 + dice.roll(6)].join(&format!(" {sign} "))
        }
    }
}

fn filtered(dice: &mut Dice, depth: usize) -> String {
    let value = expression(dice, depth - 1);
    let filter = dice.one(&FILTERS);
    let mut args: Vec<String> = (0..dice.roll(4)).map(|_| expression(dice, depth / 3)).collect();
    match (filter, dice.roll(4)) {
        ("map" | "sort" | "sum" | "join" | "unique" | "min" | "max", 0) => args.push("attribute='name'".into()),
        ("map", _) => args.insert(0, format!("'{}'", dice.one(&FILTERS))),
        ("select" | "reject", _) => args.insert(0, format!("'{}'", dice.one(&TESTS))),
        ("tojson" | "indent", 1) => args.push("indent=200000000000000".into()),
        _ => {}
    }
    match args.is_empty() {
        true => format!("{value}|{filter}"),
        false => format!("{value}|{filter}({})", args.join(", ")),
    }
}

fn template(dice: &mut Dice, depth: usize) -> String {
    let mut text = String::from("t ");
    for _ in 0..1 + dice.roll(4) {
        let inner = if depth > 0 { template(dice, depth - 1) } else { "x".repeat(dice.roll(200)) };
        let value = expression(dice, 2);
        text.push_str(&match dice.roll(11) {
            0 | 1 => format!("{{{{ {value} }}}}"),
            2 => format!("{{% for a in {value} %}}{inner}{{{{ a }}}}{{% endfor %}}"),
            3 => format!(
                "{{% for a in many if a %}}{{% set b %}}{inner}{{% endset %}}{{{{ b ~ b }}}}{{% else %}}-{{% endfor %}}"
            ),
            4 => format!("{{% if {value} %}}{inner}{{% else %}}n{{% endif %}}"),
            5 => format!("{{% set a = {value} %}}"),
            6 => {
                let sign = dice.one(&[
                    "a ~ a",
                    "a + a",
                    "[a, a]",
                    "{'a': a, 'b': a}",
                    "a * 1000",
                    "a|replace('x', a)",
                    "a|join(a)",
                ]);
                format!(
                    "{{% set a = {} %}}{}{{{{ a }}}}",
                    expression(dice, 1),
                    format!("{{% set a = {sign} %}}").repeat(dice.roll(40))
                )
            }
            7 => format!("{{% filter {} %}}{inner}{{% endfilter %}}", dice.one(&FILTERS)),
            8 => format!("{{% with a = {value} %}}{inner}{{% endwith %}}"),
            9 => format!("{{% for a in deep recursive %}}{{{{ loop(a) }}}}{inner}{{% endfor %}}"),
            _ => format!("{{% macro m(x) %}}{inner}{{{{ m(x) }}}}{{% endmacro %}}{{{{ m(1) }}}}"),
        });
    }
    text
}

fn context() -> Value {
    let mut deep = json!([1]);
    for _ in 0..60 {
        deep = json!([deep, 1]);
    }
    json!({
        "long": "x".repeat(10_000),
        "longer": "ab".repeat(200_000),
        "rows": (0..300).map(|n| json!({"name": format!("row {}", n % 17), "id": n, "x": [n]})).collect::<Vec<_>>(),
        "many": (0..20_000).rev().collect::<Vec<_>>(),
        "empties": vec![""; 20_000],
        "nested": {"name": {"id": {"x": "y".repeat(1_000)}}, "0": [[[]]]},
        "deep": deep, "n": 3, "big": u64::MAX, "none": null, "real": -0.5, "error": "timeout", "message": "m".repeat(5_000),
        "result": {"name": vec!["x"; 100]}
    })
}

/// How long this thread has had a processor: others may want it too.
fn busy() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Memory and time of one evaluation, in every way in which one can be asked for.
struct Bounds {
    context: Value,
    failure: Failure,
    look_at_time: bool,
    most: usize,
    longest: Duration,
}

impl Bounds {
    fn new(look_at_time: bool) -> Bounds {
        let context = context();
        let failure = Failure {
            status: Some(503),
            result: Some(context.clone()),
            ..Failure::new(Trigger::Error, "timeout ".repeat(1_000))
        };
        Bounds { context, failure, look_at_time, most: 0, longest: Duration::ZERO }
    }

    fn watch(&mut self, source: &str, what: &str, act: impl FnOnce(&Bounds)) {
        let before = MEMORY.current_usage();
        MEMORY.reset_peak_usage();
        let begun = busy();
        act(self);
        let (took, bytes) = (busy().saturating_sub(begun), MEMORY.peak_usage().saturating_sub(before));
        let source = &source[..source.floor_char_boundary(source.len().min(2_000))];
        assert!(bytes <= MOST_BYTES, "{what} takes {bytes} bytes: {source}");
        assert!(!self.look_at_time || took <= LONGEST, "{what} takes {took:?}: {source}");
        self.most = self.most.max(bytes);
        self.longest = self.longest.max(took);
    }

    fn expression(&mut self, source: &str) {
        self.watch(source, "reading", |_| drop(Expression::parse(source)));
        self.watch(source, "a condition of a stored policy", |it| {
            let scope = Scope {
                failure: &it.failure,
                class: Class::Retryable,
                attempt_number: 2,
                execution_id: "x".into(),
                task_id: "t".into(),
            };
            let _ = Expression::stored(source).holds(&scope);
        });
        self.watch(source, "checking", |_| drop(expression::check_expression(source)));
        self.watch(source, "a value", |it| drop(expression::eval(source, &it.context)));
    }

    fn template(&mut self, source: &str) {
        self.watch(source, "checking", |_| drop(expression::check_template(source)));
        let value = json!({"a": source, "b": ["plain", source]});
        self.watch(source, "a template", |it| drop(expression::render(&value, &it.context)));
    }
}

#[test]
fn no_expression_takes_much_memory_or_time() {
    let asked: Option<u64> = std::env::var("COMEBACK_EXPRESSIONS").ok().and_then(|text| text.parse().ok());
    // Evaluations need little stack, in a debug build too: the server's threads have 2 MiB.
    let work = std::thread::Builder::new().stack_size(2 * 1024 * 1024).spawn(move || {
        let mut bounds = Bounds::new(asked.is_some());
        for (name, bomb) in bombs() {
            if name == "template" { bounds.template(&bomb) } else { bounds.expression(&bomb) }
        }
        for seed in 1..=asked.unwrap_or(USUAL) {
            let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
            if seed % 4 == 0 {
                let depth = dice.roll(3);
                let source = template(&mut dice, depth);
                bounds.template(&source);
            } else {
                let depth = 1 + dice.roll(6);
                let source = expression(&mut dice, depth);
                bounds.expression(&source);
            }
        }
        println!("at most {} KiB and {:?}", bounds.most / 1024, bounds.longest);
    });
    work.expect("a thread").join().expect("nothing panics");
}

/// What ended servers, and what is near to it.
fn bombs() -> Vec<(&'static str, String)> {
    let grow = |by: &str, times: usize| format!("'x'{}", by.repeat(times));
    let mut all: Vec<(&str, String)> = [
        "'x'|indent(200000000000000)",
        "'%99999999999999d'|format(1)",
        "'%*d'|format(99999999999999, 1)",
        "'x'|indent(9223372036854775808)",
        "'x'|indent(width=9223372036854775807)",
        "[1]|slice(1000000000000)",
        "[1]|batch(1000000000000, 1)",
        "many|batch(1)|list",
        "{'a':1}|tojson(indent=200000000000000)",
        "{'a':1}|tojson(200000000000000)",
        "'x' * 100000000",
        "'x' * 1000000 * 1000000",
        "('x' * 1000000) ~ ('x' * 1000000)",
        "('x' * 1000000)|replace('x', 'x' * 1000000)",
        "('x' * 1000000)|list|join('x' * 1000000)",
        "('x' * 1000000)|list|sort|join",
        "[[]] * 100000000",
        "[1] * 1000000 * 1000000",
        "many * 1000",
        "(many + many + many + many)|sort|first",
        "longer in longer ~ 'x'",
        "(('a' * 100000) ~ 'b') in ('a' * 1000000)",
        "longer == longer ~ ''",
        "many|map('string')|sort|last",
        "many|map('list')|list",
        "empties|map('default', long)|join",
        "[empties, empties, empties, empties, empties, empties, empties, empties, empties]",
        "[longer, longer, longer, longer, longer, longer, longer, longer]",
        "many|unique|length",
        "many|select('in', many)|list",
        "many|selectattr('name', 'in', longer)|list",
        "longer|list|length",
        "longer|split('a')|length",
        "longer|urlencode|length",
        "('\u{130}' * 500000)|lower|upper|length",
        "2 ** 100000",
        "1 ** 9223372036854775807",
        "9 ** 9 ** 9",
        "1|round(2147483647)",
        "1.5|round(1000000)",
        "1e308|round(-308)",
        "rows|tojson|tojson|tojson|tojson|tojson|tojson|tojson|tojson",
        "rows|groupby('name')",
        "rows|pprint",
        "dict(rows[0], a=rows)|tojson",
        "long[::-1][::-1][::-1]",
        "longer[-9223372036854775808:9223372036854775807:-9223372036854775808]",
        "many[9223372036854775807:-9223372036854775808:-1]",
        "deep|tojson",
        "deep == deep and deep <= deep",
        "'{:>99999999999}'|format(1)",
    ]
    .into_iter()
    .map(|source| ("expression", source.to_owned()))
    .collect();
    let sixty_four = format!("|replace('x','{}')", "x".repeat(64));
    all.push(("expression", grow(&sixty_four, 8)));
    all.push(("expression", format!("long{}", " ~ long".repeat(149))));
    all.push(("expression", format!("longer{}", " + longer".repeat(149))));
    all.push(("expression", format!("rows{}", " + rows".repeat(149))));
    all.push(("expression", grow("|list|join('xxxxxxxxxxxxxxxx')", 20)));
    all.push(("expression", format!("{}many{}", "[".repeat(99), "]".repeat(99))));
    all.push(("expression", format!("many{}", "|map('string')".repeat(40))));
    all.push(("expression", format!("{{{}}}", (0..3_000).map(|n| format!("{n}:1")).collect::<Vec<_>>().join(","))));
    all.push(("expression", format!("error{}", " or 1".repeat(300))));
    let double = |begin: &str, step: &str, times: usize| {
        ("template", format!("x{{% set a = {begin} %}}{}{{{{ a }}}}", format!("{{% set a = {step} %}}").repeat(times)))
    };
    all.extend([
        double("'x'", "a ~ a", 34),
        double("'x'", "a + a", 190),
        double("[1]", "a + a", 40),
        double("[1]", "[a, a]", 60),
        double("[1]", "[a]", 190),
        double("{}", "{'a': a, 'b': a}", 60),
        double("'x'", "a * 1000", 20),
        double("'x'", "a|replace('x', a)", 20),
        double("'xx'", "a|list|join(a)", 20),
        double("'<'", "a|escape", 150),
        double("[1]", "[a, a]|tojson", 60),
        (
            "template",
            "x{% for a in many %}{% for b in many %}{% for c in many %}{% endfor %}{% endfor %}{% endfor %}".into(),
        ),
        ("template", "x{% for a in many %}{% set b %}{{ longer }}{% endset %}{% endfor %}".into()),
        ("template", "x{% for a in rows %}{{ longer }}{% endfor %}".into()),
        ("template", "x{% for a in many if longer in longer %}{% endfor %}".into()),
        (
            "template",
            "x{% filter replace('x', 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx') %}{{ long }}{% endfilter %}".repeat(20),
        ),
        ("template", "{% for a in deep recursive %}{{ loop(a) }}{% endfor %}".into()),
        ("template", "{% macro m(x) %}{{ m(x ~ x) }}{% endmacro %}{{ m('x') }}".into()),
        ("template", "{% block b %}{{ self.b() }}{% endblock %}".into()),
        ("template", "{% include 'x' %}".into()),
        ("template", format!("{}x{}", "{% set a %}".repeat(90), "{{ long }}{% endset %}".repeat(90))),
        ("template", format!("x{}{}", "{% if 1 %}".repeat(100), "{% endif %}".repeat(100))),
        ("template", format!("{}{{{{ rows|length }}}}", "-".repeat(60_000))),
        ("template", "{{ 1 }}".repeat(9_000)),
        ("template", format!("x {{{{ [{}] }}}}", "1,".repeat(8_000))),
    ]);
    all
}
