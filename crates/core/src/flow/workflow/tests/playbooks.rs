use serde_json::json;

use super::*;
use crate::dialect;
use crate::expression::holds;
use crate::policy::{Policy, PolicyLimits};

pub const WHOLE: &str = r#"
apiVersion: noetl.io/v1
kind: Playbook
metadata:
  name: weather
  path: examples/weather
  version: 3
workload:
  city: Berlin
  limit: 25
  cities: [Berlin, Paris]
workbook:
  - name: store
    type: postgres
    auth: pg
    command: INSERT INTO t VALUES ({{ temperature }})
    args: {table: t, mode: append}
workflow:
  - step: start
    desc: Begins
    next: [fetch]
  - step: fetch
    desc: Ask the service
    type: http
    method: GET
    endpoint: "https://example.org/{{ workload.city }}"
    headers: {X-Key: abc}
    params: {q: "{{ workload.city }} now", n: 3, tag: [a b, c]}
    timeout: 10
    retry:
      max_attempts: 3
      retry_when: "{{ status_code >= 500 }}"
    vars: {temp: "{{ result.temperature }}"}
    next:
      - when: "{{ fetch.temperature > workload.limit }}"
        then:
          - step: hot
            args: {level: high}
        else: cold
  - step: hot
    tool: python
    args: {degrees: "{{ fetch.temperature }}", level: low}
    code: |
      def main(degrees): return degrees
    next: save
  - step: cold
    tool: {kind: python, code: "def main(): pass"}
    next: [{step: save}]
  - step: save
    type: workbook
    name: store
    args: {temperature: "{{ vars.temp }}", mode: replace}
    retry: true
    next:
      - step: each
      - step: sub
  - step: each
    tool: duckdb
    loop: {in: "{{ workload.cities }}", iterator: city, mode: parallel}
    command: "select '{{ city }}'"
    next: end
  - step: sub
    type: playbook
    path: examples/other
    args: {rows: "{{ save.rows }}"}
    next: end
  - step: end
    desc: Done
"#;

#[test]
fn a_whole_playbook_is_read() {
    let workflow = good(WHOLE);
    assert!(workflow.is_playbook);
    assert_eq!((workflow.name.as_deref(), workflow.path.as_deref()), (Some("weather"), Some("examples/weather")));
    assert_eq!(workflow.input["city"], "Berlin");
    let names: Vec<&str> = workflow.steps.iter().map(|step| step.name.as_str()).collect();
    assert_eq!(names, ["fetch", "hot", "cold", "save", "each", "sub"], "start and end do nothing");
    let step = |name: &str| workflow.step(name).unwrap();
    assert_eq!(
        json!(step("fetch").task),
        json!({"kind": "http", "name": "Ask the service", "timeout": 10,
               "retry": {"max_attempts": 3, "retry_when": "{{ status_code >= 500 }}"},
               "executor": {"type": "http", "method": "GET", "headers": {"X-Key": "abc"},
                            "url": "https://example.org/{{ workload.city }}?q={{ (workload.city) | urlencode }}%20now&n=3&tag=a%20b&tag=c"}})
    );
    assert_eq!(step("fetch").dialect, Dialect::Step);
    assert_eq!((step("fetch").needs.len(), &step("fetch").condition), (0, &None));
    assert_eq!(step("hot").condition.as_deref(), Some("fetch.temperature > workload.limit"));
    assert_eq!(step("cold").condition.as_deref(), Some("not (fetch.temperature > workload.limit)"));
    let on_fetch = [Need { step: "fetch".into(), when: When::Success, on_unmet: OnUnmet::Skip }];
    assert_eq!((&step("hot").needs[..], &step("cold").needs[..]), (&on_fetch[..], &on_fetch[..]));
    assert_eq!(
        json!(step("hot").task),
        json!({"kind": "python", "payload": {"args": {"degrees": "{{ fetch.temperature }}", "level": "high"},
                                             "code": "def main(degrees): return degrees\n"}})
    );
    assert_eq!(json!(step("cold").task), json!({"kind": "python", "payload": {"code": "def main(): pass"}}));
    assert_eq!(
        json!(step("save").task),
        json!({"kind": "postgres", "retry": true,
               "payload": {"args": {"temperature": "{{ vars.temp }}", "mode": "replace", "table": "t"}, "auth": "pg",
                           "command": "INSERT INTO t VALUES ({{ temperature }})"}})
    );
    assert_eq!(
        step("each").foreach,
        Some(Foreach {
            items: Items::Expression("workload.cities".into()),
            name: "city".into(),
            mode: Mode::Parallel { limit: None }
        })
    );
    assert_eq!(
        step("sub").call,
        Some(Call {
            workflow: "examples/other".into(),
            version: None,
            input: Some(json!({"rows": "{{ save.rows }}"}))
        })
    );
}

#[test]
fn what_parted_meets_again() {
    let workflow = good(WHOLE);
    let save = workflow.step("save").unwrap();
    let whens: Vec<(&str, When)> = save.needs.iter().map(|need| (need.step.as_str(), need.when)).collect();
    assert_eq!(whens, [("hot", When::Always), ("cold", When::Always)]);
    let condition = save.condition.as_deref().unwrap();
    let asked = |hot: &str, cold: &str| {
        holds(condition, &json!({"steps": {"hot": {"state": hot}, "cold": {"state": cold}}, "input": {}}))
    };
    assert_eq!(asked("succeeded", "skipped"), Ok(true));
    assert_eq!(asked("skipped", "succeeded"), Ok(true));
    assert_eq!(asked("skipped", "skipped"), Ok(false));
    assert!(asked("dead", "skipped").unwrap_err().contains("a step that leads here failed"));
    // A diamond whose sides always run needs both, and asks nothing.
    let diamond = good(
        "kind: Playbook\nworkflow:\n- {step: start, next: [a, b]}\n- {step: a, type: x, next: c}\n- {step: b, type: x, next: c}\n- {step: c, type: x}\n",
    );
    let c = diamond.step("c").unwrap();
    assert_eq!((c.needs.len(), c.needs[0].when, &c.condition), (2, When::Success, &None));
}

#[test]
fn templates_know_the_names_of_playbooks() {
    let workflow = good(WHOLE);
    let context = json!({
        "input": {"city": "Köln", "limit": 25}, "execution": {"id": "x1"}, "attempt": 1,
        "steps": {"fetch": {"state": "succeeded", "result": {"temperature": 30}}},
    });
    let step = |name: &str| workflow.step(name).unwrap();
    let filled = |name: &str| {
        let scope = workflow.scope(Some(step(name)), &context).unwrap();
        step(name).fill(&scope).unwrap()
    };
    assert_eq!(filled("hot")["payload"]["args"], json!({"degrees": 30, "level": "high"}));
    assert_eq!(filled("save")["payload"]["command"], "INSERT INTO t VALUES (30)", "an argument that is a var of fetch");
    assert!(
        filled("fetch")["executor"]["url"]
            .as_str()
            .unwrap()
            .starts_with("https://example.org/Köln?q=K%C3%B6ln%20now&n=3")
    );
    let retry = &filled("fetch")["retry"];
    assert_eq!(retry["retry_when"], "{{ status_code >= 500 }}", "what a policy asks is asked at a failure");
    let scope = workflow.scope(None, &context).unwrap();
    assert_eq!(holds(step("hot").condition.as_deref().unwrap(), &scope), Ok(true));
    assert_eq!(holds(step("cold").condition.as_deref().unwrap(), &scope), Ok(false));
    assert_eq!(scope["execution_id"], "x1");
    // A native workflow sees what it is given.
    let native = good("steps: {a: }");
    assert_eq!(native.scope(None, &context).unwrap().into_owned(), context);
}

/// S4-45 to S4-55: the retry of a step in each of its forms, read in the dialect of steps.
#[test]
fn retries_of_the_dialect_step() {
    let policy = |retry: &str| -> Option<Policy> {
        let workflow = good(&format!(
            "kind: Playbook\nworkflow:\n  - step: my_step\n    type: http\n    url: u\n    retry: {retry}\n"
        ));
        let step = workflow.step("my_step").unwrap();
        dialect::parse(&step.task["retry"], step.dialect, &PolicyLimits::default()).unwrap()
    };
    assert_eq!(policy("true"), Some(Policy::preset(Dialect::Step)));
    assert_eq!(policy("5").unwrap().max_retries, 4);
    assert_eq!(policy("1").unwrap().max_retries, 0);
    assert_eq!(policy("false"), None);
    let whole = policy("{max_attempts: 3, initial_delay: 1.0, backoff_multiplier: 2.0, max_delay: 60.0, jitter: false, retry_when: \"{{ status_code == 503 }}\", stop_when: \"{{ attempt > 2 }}\"}").unwrap();
    assert_eq!(whole.max_retries, 2);
    assert_eq!(whole.retry_when.unwrap().source(), "status_code == 503");
    let bad =
        bad("kind: Playbook\nworkflow:\n  - step: a\n    type: http\n    url: u\n    retry:\n      max_attemps: 3\n");
    assert_eq!(bad, "7:20: workflow[0].retry.max_attemps: is not a field known here");
}

#[test]
fn every_place_of_a_playbook_is_known() {
    let source = read(WHOLE).unwrap();
    let at = |path: &str| source.locate(path).map(|at| (at.line, at.column));
    assert_eq!(at("name"), Some((5, 9)));
    assert_eq!(at("input.city"), Some((9, 9)));
    assert_eq!(at("steps.fetch.retry.max_attempts"), Some((31, 21)));
    assert_eq!(at("steps.fetch.executor.url"), Some((26, 15)));
    assert_eq!(at("steps.each.foreach.in"), Some((59, 16)));
    assert_eq!(at("steps.hot.payload.code"), Some((43, 5)));
}

#[test]
fn routes_and_branches() {
    let steps = "- {step: a, type: x}\n- {step: b, type: x}\n- {step: c, type: x}\n";
    let conditions = |start: &str| {
        let workflow = good(&format!("kind: Playbook\nworkflow:\n- step: start\n{start}{steps}"));
        let shown = |name: &str| workflow.step(name).unwrap().condition.clone().unwrap_or_else(|| "-".into());
        [shown("a"), shown("b"), shown("c")].join(" | ")
    };
    assert_eq!(conditions("  next: [a, b, c]\n"), "- | - | -");
    assert_eq!(
        conditions("  next: [{step: a, when: workload.x}, {when: workload.y, then: [b]}, {else: c}]\n"),
        "workload.x | workload.y | not ((workload.x) or (workload.y))"
    );
    assert_eq!(
        conditions("  next: [{when: workload.x, then: [a, b], else: {step: c}}, {step: b, when: workload.z}]\n"),
        "workload.x | (workload.x) or (workload.z) | not (workload.x)"
    );
    assert_eq!(
        conditions("  case: [{when: workload.x, then: {next: [a, {step: b, when: workload.y}]}}, {else: {next: c}}]\n"),
        "workload.x | (workload.x) and (workload.y) | not (workload.x)"
    );
    assert_eq!(
        conditions("  next: [{step: a, when: workload.x}, {else: [b, c]}]\n"),
        "workload.x | not (workload.x) | not (workload.x)"
    );
    // A step without a tool only passes on.
    let routed =
        "  next: [{step: route, when: workload.x}]\n- {step: route, next: [a, {step: b, when: workload.y}, c]}\n";
    assert_eq!(conditions(routed), "workload.x | (workload.x) and (workload.y) | workload.x");
}

#[test]
fn older_iterators_are_loops() {
    let workflow = good(
        "kind: Playbook\nworkflow:\n- step: start\n  next: i\n- step: i\n  type: iterator\n  collection: '{{ workload.rows }}'\n  element: row\n  mode: async\n  concurrency: 4\n  task: {name: t, type: http, endpoint: 'https://example.org/{{ row.id }}'}\n",
    );
    let step = workflow.step("i").unwrap();
    assert_eq!(step.task["executor"]["url"], "https://example.org/{{ row.id }}");
    let foreach = step.foreach.as_ref().unwrap();
    assert_eq!((foreach.name.as_str(), foreach.mode), ("row", Mode::Parallel { limit: Some(4) }));
}

/// Each argument of a round is checked with the item in it, and nothing else is.
#[test]
fn the_item_of_a_loop_is_known_where_there_is_one_and_refused_elsewhere() {
    let head = "kind: Playbook\nworkflow:\n";
    let looped = "- {step: a, type: x, loop: {in: [1], iterator: it}";
    for name in ["args", "with", "data"] {
        good(&format!("{head}{looped}, {name}: {{v: '{{{{ it }}}} {{{{ index }}}} {{{{ loop.index }}}}'}}}}"));
        good(&format!(
            "{head}- {{step: a, type: iterator, collection: [1], element: it, task: {{type: x, {name}: {{v: '{{{{ it }}}}'}}}}}}"
        ));
    }
    good(&format!("{head}{looped}, when: args.n > 0, args: {{n: 1, v: '{{{{ it }}}}'}}}}"));
    for (text, expected) in [
        (format!("{looped}, when: it > 0}}"), "3:59: workflow[0].when: `it` is not known here"),
        (format!("{looped}, vars: {{x: '{{{{ it }}}}'}}}}"), "3:63: workflow[0].vars.x: `it` is not known here"),
        (
            format!("{looped}, next: [{{step: b, when: it}}]}}\n- {{step: b, type: x}}"),
            "3:76: workflow[0].next[0].when: `it` is not known here",
        ),
        (
            format!("{looped}, when: args.v > 0, args: {{v: '{{{{ it }}}}'}}}}"),
            "3:59: workflow[0].when: `args.v` holds `it`, which is not known before the loop begins",
        ),
        ("- {step: a, type: x, loop: {in: '{{ it }}', iterator: it}}".into(), "3:33: workflow[0].loop.in: `it` is not"),
        ("- {step: a, type: x, loop: {in: [1], iterator: args}}".into(), "3:48: workflow[0].loop.iterator: `args` has"),
        ("- {step: a, type: x, code: '{{ args.v }}'}".into(), "3:28: workflow[0].code: `args` is not known here"),
        ("- {step: a, type: x, args: {a: 1, b: '{{ args.a }}'}}".into(), "3:38: workflow[0].args.b: `args` is not"),
        ("- {step: a, type: x, code: '{{ it }}'}".into(), "3:28: workflow[0].code: `it` is not known here"),
    ] {
        let found = bad(&format!("{head}{text}"));
        assert!(found.lines().any(|line| line.starts_with(expected)), "{text}\n{found}");
    }
}

#[test]
fn what_has_no_counterpart_is_refused_by_name() {
    let head = "kind: Playbook\nworkflow:\n";
    for (text, expected) in [
        (
            "- {step: a, type: http, endpoint: u, save: {x: 1}}",
            "3:38: workflow[0].save: `save` is not a field known here",
        ),
        ("- {step: a, type: http, method: GET}", "3:3: workflow[0]: needs an `endpoint`"),
        (
            "- {step: a, type: playbook, path: p, return_step: end}",
            "3:38: workflow[0].return_step: `return_step` is not a field",
        ),
        ("- {step: a, type: workbook, name: nope}", "3:35: workflow[0].name: there is no task `nope` in the workbook"),
        ("- {step: a, type: x, next: nope}", "3:28: workflow[0].next: there is no step `nope`"),
        (
            "- {step: a, type: x, next: b}\n- {step: b, type: x, next: a}",
            "3:28: workflow[0].next: the steps lead round in a circle: a → b → a",
        ),
        ("- {step: a, type: x, next: [a]}", "3:29: workflow[0].next[0]: `a` leads to itself"),
        (
            "- {step: start}\n- {step: a, type: x}",
            "4:10: workflow[1].step: nothing leads to `a`, so it would never run",
        ),
        ("- {step: start, next: [end]}\n- {step: end}", "workflow: no step does anything"),
        ("- {step: a, type: x}\n- {step: end, next: a}", "4:15: workflow[1].next: `end` leads nowhere"),
        ("- {step: a, type: x}\n- {step: a, type: y}", "4:10: workflow[1].step: a step `a` is there already"),
        ("- {step: a, args: {x: 1}}", "3:13: workflow[0].args: `args` is nothing that a step without a tool could use"),
        ("- {type: x}", "3:3: workflow[0]: needs a `step`, its name"),
        ("- {step: a, type: x, code: '{{ nope.x }}'}", "3:28: workflow[0].code: `nope` is not known here"),
        (
            "- {step: a, type: x, code: '{{ b.x }}'}\n- {step: b, type: x}",
            "3:28: workflow[0].code: `b` does not come before `a`",
        ),
        (
            "- {step: a, type: x, next: [{step: b, set: {x: 1}}]}\n- {step: b, type: x}",
            "3:39: workflow[0].next[0].set: `set` is not a field",
        ),
        (
            "- {step: a, type: x, next: [{then: b}]}\n- {step: b, type: x}",
            "3:30: workflow[0].next[0].then: needs a `when`",
        ),
        (
            "- {step: a, type: x, next: [{else: b}]}\n- {step: b, type: x}",
            "3:30: workflow[0].next[0].else: an `else` alone stands last",
        ),
        ("- {step: a, type: x, next: {arcs: []}}", "3:28: workflow[0].next: needs a `step`, or `when` with `then`"),
        (
            "- {step: a, type: x, loop: {in: [1], iterator: input}}",
            "3:48: workflow[0].loop.iterator: `input` has a meaning",
        ),
        (
            "- {step: a, type: x, next: [{step: c, args: {x: 1}}]}\n- {step: b, type: x, next: c}\n- {step: c, type: x}",
            "3:39: workflow[0].next[0].args: several steps lead to `c`",
        ),
    ] {
        let found = bad(&format!("{head}{text}"));
        assert!(found.lines().any(|line| line.starts_with(expected)), "{text}\n{found}");
    }
    assert!(bad("kind: Playbook\nkeychain: []\n").contains("2:1: keychain: `keychain` is not a field known here"));
    assert!(
        bad("kind: Playbook\nmetadata: {nmae: x}\nworkflow: []")
            .contains("2:12: metadata.nmae: `nmae` is not a field known here; did you mean `name`?")
    );
}
