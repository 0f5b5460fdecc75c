use super::*;

/// A document and the beginning of each of its problems.
#[track_caller]
fn check(text: &str, expected: &[&str]) {
    let found = bad(text);
    let found: Vec<&str> = found.lines().collect();
    let fits = found.len() == expected.len() && found.iter().zip(expected).all(|(one, other)| one.starts_with(other));
    assert!(fits, "\n{text}\n---\nfound\n{}\nexpected\n{}", found.join("\n"), expected.join("\n"));
}

#[test]
fn the_shape_of_the_whole() {
    check("- a", &["1:1: must be a map"]);
    check("name: x", &["1:1: steps: a workflow needs steps"]);
    check("steps: {}", &["1:8: steps: a workflow needs steps"]);
    check("steps: 3", &["1:8: steps: must be a map of steps by name"]);
    check("steps: [a]", &["1:9: steps[0]: must be a map with a `name`"]);
    check("steps: [{run: x}]", &["1:9: steps[0]: needs a `name`"]);
    check(
        "name: [x]\nstesp: {a: }",
        &[
            "1:1: steps: a workflow needs steps",
            "1:7: name: must be a text",
            "2:1: stesp: `stesp` is not a field known here; did you mean `steps`?",
        ],
    );
    check(
        "input: 3\nlabels: {a: [1]}\nfail_fast: maybe\nsteps: {a: }",
        &[
            "1:8: input: must be a map of defaults",
            "2:13: labels.a: must be a text",
            "3:12: fail_fast: must be true or false",
        ],
    );
    check("kind: Deployment\nsteps: {a: }", &["1:7: kind: must be `Playbook`"]);
}

#[test]
fn unknown_fields_are_named_with_what_was_meant() {
    check(
        "steps:\n  a:\n    rtery: 3\n    depends_on: b\n    colour: red\n",
        &[
            "3:5: steps.a.rtery: `rtery` is not a field known here; did you mean `retry`?",
            "4:5: steps.a.depends_on: `depends_on` is not a field known here; did you mean `needs`?",
            "5:5: steps.a.colour: `colour` is not a field known here",
        ],
    );
    check(
        "steps: {a: {http: {url: u, methd: GET}}}",
        &["1:28: steps.a.http.methd: `methd` is not a field known here; did you mean `method`?"],
    );
    check(
        "defaults: {name: x, run: y}\nsteps: {a: }",
        &[
            "1:12: defaults.name: `name` is not a field known here",
            "1:21: defaults.run: `run` is not a field known here",
        ],
    );
}

#[test]
fn names_are_unique_and_well_made() {
    check("steps:\n  a: {}\n  a: {}\n", &["3:3: steps.a: `a` is here twice"]);
    check("steps:\n- name: a\n- name: a\n", &["3:9: steps[1].name: a step `a` is there already, as steps[0]"]);
    check("steps: {\"a b\": }", &["1:9: steps.a b: the name of a step is made of"]);
    check(&format!("steps: {{{}: }}", "a".repeat(101)), &["1:9: steps.aaa"]);
}

#[test]
fn needs_lead_to_steps_and_never_round() {
    check(
        "steps:\n  load:\n  b: {needs: [laod, b]}\n",
        &[
            "3:15: steps.b.needs[0]: there is no step `laod`; did you mean `load`?",
            "3:21: steps.b.needs[1]: `b` needs itself",
        ],
    );
    check(
        "steps:\n  a: {needs: c}\n  b: {needs: a}\n  c: {needs: [b]}\n  d: {needs: c}\n",
        &["2:14: steps.a.needs: the needs go round in a circle: a → c → b → a"],
    );
    check(
        "steps:\n  a: {needs: b}\n  b: {needs: a}\n  c: {needs: d}\n  d: {needs: [{step: c, when: always}]}\n",
        &[
            "2:14: steps.a.needs: the needs go round in a circle: a → b → a",
            "4:14: steps.c.needs: the needs go round in a circle: c → d → c",
        ],
    );
    check(
        "steps:\n  a:\n  b: {needs: [a, a, 3, {when: success}, {step: a, when: sometimes}]}\n",
        &[
            "3:18: steps.b.needs[1]: `a` is named twice",
            "3:21: steps.b.needs[2]: must be the name of a step",
            "3:24: steps.b.needs[3]: needs a `step`",
            "3:48: steps.b.needs[4].step: `a` is named twice",
            "3:57: steps.b.needs[4].when: must be one of success, failure, always",
        ]
        .map(|it| it),
    );
}

#[test]
fn a_policy_is_read_as_the_server_will_read_it() {
    check(
        "steps:\n  load:\n    retry:\n      max_retries: many\n      max_retires: 3\n",
        &[
            "4:20: steps.load.retry.max_retries: must be a whole number",
            "5:20: steps.load.retry.max_retires: is not a field known here",
        ],
    );
    check(
        "retry: {strategy: sometimes}\nsteps: {a: {retry: 2000}}",
        &["1:19: retry.strategy: must be one of", "2:20: steps.a.retry.max_retries: at most 1000 retries"],
    );
    check(
        "steps: {a: {dialect: step}, b: {dialect: klingon, retry: 1}}",
        &[
            "1:13: steps.a.dialect: there is no `retry` here that could speak it",
            "1:42: steps.b.dialect: must be one of native",
        ],
    );
    check(
        "steps: {a: {retry: {retry_when: 'statuss == 5'}}}",
        &["1:33: steps.a.retry.retry_when: `statuss` is not known"],
    );
}

#[test]
fn a_step_is_run_in_one_way() {
    check("steps: {a: {run: x, http: u}}", &["1:21: steps.a.http: `run` and `http` both say how the step is run"]);
    check(
        "steps: {a: {workflow: p, executor: {type: timer}}}",
        &["1:13: steps.a.workflow: `executor` and `workflow` both"],
    );
    check("steps: {a: {workflow: p, payload: 1}}", &["1:26: steps.a.payload: another workflow takes `input`"]);
    check(
        "steps: {a: {run: []}, b: {run: {x: 1}}, c: {http: {method: GET}}, d: {hook: 3}, e: {executor: {type: rocket}}}",
        &[
            "1:18: steps.a.run: must be a line for the shell",
            "1:32: steps.b.run: must be a line for the shell",
            "1:51: steps.c.http: needs a `url`",
            "1:77: steps.d.hook: must be a map",
            "1:102: steps.e.executor.type: must be one of worker",
        ],
    );
    check(
        "steps: {a: {executor: {type: command}}, b: {executor: {type: timer, at: 3}}, c: {executor: {type: hook}}}",
        &[
            "1:23: steps.a.executor: a command needs `run`",
            "1:69: steps.b.executor.at: `at` is not a field known here",
            "1:92: steps.c.executor: a hook needs `start`",
        ],
    );
    check(
        "steps: {a: {workflow: {version: 0, input: 3}}}",
        &[
            "1:23: steps.a.workflow: needs a `path`",
            "1:33: steps.a.workflow.version: must be the number of a version",
            "1:43: steps.a.workflow.input: must be a map",
        ],
    );
}

#[test]
fn fields_have_their_shapes_unless_a_template_stands_there() {
    check(
        "steps:\n  a: {kind: 3, priority: high, timeout: soon, delay: '-1s', at: tomorrow, deadline: x, labels: {a: {}}, dead_end_barrier: 1}",
        &[
            "2:13: steps.a.kind: must be a text",
            "2:26: steps.a.priority: must be a whole number",
            "2:41: steps.a.timeout: ",
            "2:54: steps.a.delay: ",
            "2:65: steps.a.at: ",
            "2:85: steps.a.deadline: ",
            "2:100: steps.a.labels.a: must be a text",
            "2:123: steps.a.dead_end_barrier: must be true or false",
        ],
    );
    good(
        "steps: {a: {kind: '{{ input.kind }}', priority: '{{ input.p }}', timeout: '{{ input.t }}', at: '{{ input.at }}'}}",
    );
    good(
        "steps: {a: {timeout: 90, delay: 1h30m, at: '2026-01-01T00:00:00Z', deadline: 14d}, b: {deadline: '2026-01-01T00:00:00Z'}}",
    );
}

#[test]
fn loops_have_their_shapes() {
    check(
        "steps: {a: {foreach: {as: item}}, b: {foreach: {in: [1], as: a-b}}, c: {foreach: {in: [1], as: input, mode: both, limit: 0}}}",
        &[
            "1:22: steps.a.foreach: needs `in`",
            "1:62: steps.b.foreach.as: must be a name",
            "1:96: steps.c.foreach.as: `input` has a meaning of its own",
            "1:109: steps.c.foreach.mode: must be one of parallel, sequential",
            "1:122: steps.c.foreach.limit: must be how many",
        ],
    );
    check(
        "steps: {a: {foreach: {in: [1], mode: sequential, limit: 3}}, b: {foreach: 3}}",
        &[
            "1:50: steps.a.foreach.limit: one after another needs no limit",
            "1:75: steps.b.foreach: must be a list, or an expression",
        ],
    );
}

#[test]
fn templates_are_read_before_they_are_needed() {
    check(
        "steps:\n  a:\n    payload: ['{{ input. }}', {x: 'a {% if %} b'}]\n    if: '{{ 1 + }}'\n",
        &[
            "3:15: steps.a.payload[0]: syntax error",
            "3:35: steps.a.payload[1].x: syntax error",
            "4:9: steps.a.if: syntax error",
        ],
    );
    check(
        "steps: {a: {payload: '{{ inptu.x }} {{ result }}', output: '{{ item }}', if: 'result'}}",
        &[
            "1:22: steps.a.payload: `inptu` is not known here; these are: attempt, execution, input, steps",
            "1:22: steps.a.payload: `result` is not known here",
            "1:60: steps.a.output: `item` is not known here",
            "1:78: steps.a.if: `result` is not known here",
        ],
    );
    good(
        "steps: {a: {foreach: [1], payload: '{{ item }} {{ loop.index }} {{ index }}', output: '{{ item + result }}'}}",
    );
    good("steps: {a: {foreach: [1], name: 'part {{ item }}', labels: {part: '{{ item }}'}, run: 'x {{ item }}'}}");
    check(
        "steps: {a: {foreach: [1], kind: '{{ item }}', queue: '{{ item }}', output: '{{ attempt }}'}}\noutput: '{{ attempt }}'",
        &[
            "1:33: steps.a.kind: `item` is not known here",
            "1:54: steps.a.queue: `item` is not known here",
            "1:76: steps.a.output: `attempt` is not known here",
            "2:9: output: `attempt` is not known here",
        ],
    );
    check(
        "steps: {a: {foreach: '{{ item }}', if: item}}",
        &["1:22: steps.a.foreach: `item`", "1:40: steps.a.if: `item`"],
    );
}

#[test]
fn what_a_template_names_has_run_before() {
    check(
        "steps:\n  a:\n  b: {payload: '{{ steps.a.result }}'}\n  c: {needs: b, if: 'steps.nope.result and steps.c.result'}\n",
        &[
            "3:16: steps.b.payload: `a` does not come before `b`: name it under `needs`",
            "4:21: steps.c.if: `c` names itself",
            "4:21: steps.c.if: there is no step `nope`",
        ],
    );
    check(
        "steps:\n  a-b:\n  c: {needs: a-b, payload: [\"{{ steps['x'].result }}\", '{{ steps.a.result }}']}\n",
        &[
            "3:29: steps.c.payload[0]: there is no step `x`",
            "3:56: steps.c.payload[1]: there is no step `a`; in a template `a-b` is written steps['a-b']",
        ],
    );
    good(
        "steps:\n  a-b:\n  b: {needs: a-b}\n  c: {needs: b, payload: \"{{ steps['a-b'].result }}\"}\noutput: '{{ steps.c.result }}'\n",
    );
    check(
        "steps: {a: }\noutput: {x: '{{ steps.b.result }}'}\ndefaults: {payload: '{{ steps.a.result }}'}",
        &["2:13: output.x: there is no step `b`", "3:21: defaults.payload: defaults are for every step"],
    );
}

#[test]
fn a_problem_shows_its_line() {
    let problems = read("steps:\n  load:\n    retry: {max_retries: x}\n").unwrap_err();
    assert_eq!(
        problems.0[0].snippet.as_deref(),
        Some("3 |     retry: {max_retries: x}\n  |                          ^")
    );
    assert_eq!((problems.0[0].line, problems.0[0].column), (Some(3), Some(26)));
}

#[test]
fn problems_without_end_are_cut() {
    let mut text = String::from("steps:\n");
    for n in 0..5_000 {
        text.push_str(&format!("  s{n}: {{needs: nope{n}}}\n"));
    }
    let problems = read(&text).unwrap_err().0;
    assert_eq!(problems.len(), 1_001);
    assert_eq!(problems[1_000].message, "4000 more problems are not told here");
}
