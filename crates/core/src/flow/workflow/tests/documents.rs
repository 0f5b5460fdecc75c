use serde_json::json;

use super::*;

pub const WHOLE: &str = r#"
name: nightly
description: Loads and reports.
labels: {team: data}
input:
  day: today
  regions: [eu, us]
retry: {max_retries: 1, initial_delay: 1h}
fail_fast: true
defaults:
  queue: etl
  timeout: 5m
  labels: {tenant: acme, tier: gold}
  retry: {max_retries: 5}
steps:
  extract:
    run: "make extract DAY={{ input.day }}"
    retry: 3
  fetch:
    http:
      url: "https://example.org/{{ item }}"
      headers: {X-Run: 7}
      expect: 204
    foreach: {in: "{{ input.regions }}", as: item, mode: parallel, limit: 2}
  approve:
    hook: {url: "https://example.org/approve"}
    needs: [extract]
    labels: {tier: silver}
  load:
    kind: loader
    needs: [extract, {step: fetch, when: always, on_unmet: fail}, {task: approve}]
    if: "{{ steps.extract.result.rows > 0 }}"
    payload: {rows: "{{ steps.extract.result.rows }}", note: "for {{ execution.id }}"}
    output: {count: "{{ result.n }}"}
    retry: null
  report:
    workflow: {path: reports/daily, version: 4, input: {n: "{{ steps['load'].result.count }}"}}
    needs: load
    foreach: [1, 2]
  cleanup:
    run: [rm, -rf, scratch, 5]
    needs: [{step: load, when: failure}]
    foreach: {in: [a, b], mode: sequential}
output: {rows: "{{ steps.load.result.count }}"}
"#;

#[test]
fn a_whole_document_is_read() {
    let workflow = good(WHOLE);
    assert_eq!(workflow.name.as_deref(), Some("nightly"));
    assert_eq!(workflow.input["regions"], json!(["eu", "us"]));
    assert_eq!(workflow.retry, Some(json!({"max_retries": 1, "initial_delay": "1h"})));
    assert!(workflow.fail_fast && !workflow.dead_end_cancel && !workflow.is_playbook);
    assert_eq!(workflow.output, Some(json!({"rows": "{{ steps.load.result.count }}"})));
    let names: Vec<&str> = workflow.steps.iter().map(|step| step.name.as_str()).collect();
    assert_eq!(names, ["extract", "fetch", "approve", "load", "report", "cleanup"]);

    let task = |name: &str| json!(workflow.step(name).unwrap().task);
    assert_eq!(
        task("extract"),
        json!({"kind": "extract", "queue": "etl", "timeout": "5m", "retry": 3, "labels": {"tenant": "acme", "tier": "gold"},
               "executor": {"type": "command", "run": ["sh", "-c", "make extract DAY={{ input.day }}"]}})
    );
    assert_eq!(
        task("fetch")["executor"],
        json!({"type": "http", "url": "https://example.org/{{ item }}", "headers": {"X-Run": "7"}, "expect": "204"})
    );
    assert_eq!(task("approve")["executor"], json!({"type": "hook", "start": {"url": "https://example.org/approve"}}));
    assert_eq!(task("approve")["labels"], json!({"tenant": "acme", "tier": "silver"}));
    assert_eq!(task("cleanup")["executor"], json!({"type": "command", "run": ["rm", "-rf", "scratch", "5"]}));
    assert_eq!(task("load")["retry"], json!(null));
    assert_eq!(task("report")["kind"], "report");

    let load = workflow.step("load").unwrap();
    let need = |step: &str, when, on_unmet| Need { step: step.into(), when, on_unmet };
    assert_eq!(
        load.needs,
        [
            need("extract", When::Success, OnUnmet::Skip),
            need("fetch", When::Always, OnUnmet::Fail),
            need("approve", When::Success, OnUnmet::Skip)
        ]
    );
    assert_eq!(load.condition.as_deref(), Some("steps.extract.result.rows > 0"));
    assert_eq!(load.output, Some(json!({"count": "{{ result.n }}"})));
    let fetch = workflow.step("fetch").unwrap().foreach.clone().unwrap();
    assert_eq!(fetch.items, Items::Expression("input.regions".into()));
    assert_eq!((fetch.name.as_str(), fetch.mode), ("item", Mode::Parallel { limit: Some(2) }));
    let report = workflow.step("report").unwrap();
    assert_eq!(report.foreach.as_ref().unwrap().items, Items::List(vec![json!(1), json!(2)]));
    assert_eq!(
        report.call,
        Some(Call {
            workflow: "reports/daily".into(),
            version: Some(4),
            input: Some(json!({"n": "{{ steps['load'].result.count }}"}))
        })
    );
    assert_eq!(workflow.step("cleanup").unwrap().foreach.as_ref().unwrap().mode, Mode::Sequential);
}

#[test]
fn every_field_tells_whose_word_it_is() {
    let workflow = good(WHOLE);
    let origin = |step: &str, field: &str| workflow.step(step).unwrap().origins.get(field).copied();
    assert_eq!(origin("extract", "retry"), Some(Origin::Step));
    assert_eq!(origin("extract", "queue"), Some(Origin::Workflow));
    assert_eq!(origin("fetch", "retry"), Some(Origin::Workflow));
    assert_eq!(origin("approve", "labels.tier"), Some(Origin::Step));
    assert_eq!(origin("approve", "labels.tenant"), Some(Origin::Workflow));
    assert_eq!(origin("load", "retry"), Some(Origin::Step), "none is a word too");
    assert_eq!(origin("load", "priority"), None);
    assert_eq!(Origin::Workflow.word(), "workflow");
}

#[test]
fn a_list_and_json_say_the_same() {
    let map = good("steps:\n  a: {run: [x]}\n  b: {needs: a, kind: k}\n");
    let list = good("steps:\n- {name: a, run: [x]}\n- {name: b, needs: [a], kind: k}\n");
    let json = good(r#"{"steps": {"a": {"run": ["x"]}, "b": {"needs": [{"step": "a"}], "kind": "k"}}}"#);
    assert_eq!(map, list);
    assert_eq!(map, json);
    assert!(diff(&map, &json).is_empty());
}

#[test]
fn the_dialect_goes_with_the_retry() {
    let workflow = good(
        "defaults: {retry: {maxAttempts: 2}, dialect: workflow}\n\
         steps:\n  a:\n  b: {retry: {max_attempts: 3}, dialect: step}\n  c: {retry: {maxAttempts: 4}}\n",
    );
    let dialects: Vec<Dialect> = workflow.steps.iter().map(|step| step.dialect).collect();
    assert_eq!(dialects, [Dialect::Workflow, Dialect::Step, Dialect::Workflow]);
    assert!(workflow.steps.iter().all(|step| !step.task.contains_key("dialect")));
}

#[test]
fn every_path_has_its_place() {
    let source = read(WHOLE).unwrap();
    let text_at = |path: &str| {
        let at = source.locate(path).unwrap_or_else(|| panic!("{path} is nowhere"));
        WHOLE.lines().nth(at.line as usize - 1).unwrap().chars().skip(at.column as usize - 1).collect::<String>()
    };
    for (path, text) in [
        ("name", "nightly"),
        ("steps.extract.retry", "3"),
        ("steps.extract.executor.run", "\"make extract"),
        ("steps.fetch.executor.url", "\"https://example.org/{{"),
        ("steps.fetch.retry.max_retries", "5}"),
        ("steps.fetch.queue", "etl"),
        ("steps.load", "load:"),
        ("steps.load.needs[1].when", "always"),
        ("steps.load.payload.rows", "\"{{ steps.extract"),
        ("steps.load.payload.unknown.deeper", "{rows:"),
        ("retry.max_retries", "1, initial"),
        ("steps.approve.labels.tier", "silver"),
    ] {
        assert!(text_at(path).starts_with(text), "{path}: {}", text_at(path));
    }
    assert_eq!(source.locate("nowhere.at.all"), None);
    let problem = source.problem("steps.load.retry.max_retries", "is too much");
    assert_eq!((problem.line, problem.column), (Some(35), Some(12)));
    assert_eq!(problem.snippet.as_deref(), Some("35 |     retry: null\n   |            ^"));
}

#[test]
fn a_list_of_steps_has_its_places_too() {
    let source = read("steps:\n- name: a.b\n  run: [x]\n  retry: {max_retries: 2}\n").unwrap();
    assert_eq!(source.locate("steps.a.b.retry.max_retries"), Some(Position { line: 4, column: 24 }));
    assert_eq!(source.locate("steps.a.b.executor"), Some(Position { line: 3, column: 8 }));
    assert_eq!(source.locate("steps[0].name"), Some(Position { line: 2, column: 9 }));
}

#[test]
fn differences_are_in_meaning() {
    let before = good("name: a\nsteps:\n  x: {retry: {max_retries: 2}, queue: q}\n  y: {needs: x}\n  z:\n");
    let after = good(
        "name: b\nsteps:\n  w:\n  x: {retry: {max_retries: 3}, queue: q, run: [p]}\n  y: {needs: [{step: x, when: always}], if: input.go}\n",
    );
    let found = diff(&before, &after);
    let shown: Vec<(String, Option<Value>, Option<Value>)> =
        found.into_iter().map(|it| (it.path, it.before, it.after)).collect();
    let row = |path: &str, before: Option<Value>, after: Option<Value>| (path.to_owned(), before, after);
    assert_eq!(
        shown,
        [
            row("name", Some(json!("a")), Some(json!("b"))),
            row("steps.x.retry.max_retries", Some(json!(2)), Some(json!(3))),
            row("steps.x.executor", None, Some(json!({"type": "command", "run": ["p"]}))),
            row("steps.y.needs.x.when", Some(json!("success")), Some(json!("always"))),
            row("steps.y.if", None, Some(json!("input.go"))),
            row("steps.z", Some(json!({"kind": "z"})), None),
            row("steps.w", None, Some(json!({"kind": "w"}))),
        ]
    );
    assert!(diff(&after, &after).is_empty());
}

/// Nodes of another engine, in a list, in a map, under `nodes`, and one alone.
#[test]
fn nodes_of_another_engine_are_steps() {
    let node = json!({"nodeId": "api-call-1", "type": "action", "subType": "api-call", "config": {
        "url": "https://api.example.com/users", "method": "POST",
        "retry": {"enabled": true, "strategy": "exponential_backoff", "maxAttempts": 5, "initialDelaySeconds": 60,
            "multiplier": 2.0, "maxDelaySeconds": 3600, "retryOn": ["5xx", "408", "429"], "ignoreExceptions": ["4xx"]}}});
    let other = json!({"nodeId": "mail", "type": "action", "subType": "send-email", "needs": ["api-call-1"],
        "config": {"to": "{{ steps['api-call-1'].result.mail }}", "timeout": 30}});
    for document in [
        json!({"steps": [node, other]}),
        json!({"nodes": [node, other]}),
        json!({"steps": {"api-call-1": node, "mail": other}}),
        node.clone(),
    ] {
        let source = read(&document.to_string()).unwrap_or_else(|problems| panic!("{problems}\n{document}"));
        let step = source.workflow.step("api-call-1").expect("a step");
        assert_eq!((&step.task["kind"], step.dialect), (&json!("api-call"), Dialect::Workflow));
        let call = json!({"type": "http", "url": "https://api.example.com/users", "method": "POST"});
        assert_eq!(step.task["executor"], call);
        assert_eq!(step.task["retry"], node["config"]["retry"]);
        let Some(mail) = source.workflow.step("mail") else { continue };
        assert_eq!(mail.task["payload"], json!({"to": "{{ steps['api-call-1'].result.mail }}"}));
        assert_eq!((&mail.task["kind"], &mail.task["timeout"]), (&json!("send-email"), &json!(30)));
        assert_eq!((mail.needs.len(), mail.task.contains_key("retry")), (1, false));
    }
    let told = |text: &str| read(text).expect_err(text).to_string();
    let wrong = told("steps:\n- {nodeId: a, type: x, config: {retry: {strategy: custom, maxAttempts: many}}}\n");
    assert!(wrong.contains("2:") && wrong.contains("maxAttempts"), "{wrong}");
    let wrong = told("steps:\n- {type: x, config: {a: 1}}\n- {nodeId: b, config: {url: u, colour: red}}\n");
    assert!(wrong.contains("steps[0]: needs a `nodeId`") && wrong.contains("3:32: steps[1].config.colour"), "{wrong}");
}
