//! What no schema says: bytes that are no JSON, addresses that lead nowhere, headers, filters, cursors and contradictions.

use axum::http::Method;
use comeback_server::Route;
use comeback_server::auth::Need;
use serde_json::json;

use super::{Bad, TASK};
use crate::place::routes;

pub fn all() -> Vec<Bad> {
    [bytes(), media(), methods(), addresses(), queries(), filters(), headers(), tasks(), policies(), rest()]
        .into_iter()
        .flatten()
        .collect()
}

fn with_body() -> Vec<&'static str> {
    let takes = |route: &Route| route.doc.as_ref().filter(|doc| !doc.body.is_empty()).map(|doc| doc.id);
    routes().iter().filter_map(takes).collect()
}

/// Bodies that are no JSON, or none that anybody could mean.
fn bytes() -> Vec<Bad> {
    let mut bad = Vec::new();
    let deep = |n: usize| format!("{{\"a\": {}1{}}}", "[".repeat(n), "]".repeat(n));
    for operation in with_body() {
        let raw = |body: Vec<u8>| Bad::new(operation).raw(body);
        // A workflow may be YAML, which much of this is; it is refused all the same.
        let unread = if operation == "putWorkflow" { "validation-failed" } else { "bad-request" };
        for text in ["{", "}", "{]", "{'a': 1}", "{a: 1}", "/* */ {}", "nul"] {
            bad.push(raw(text.into()).is(unread));
        }
        // A field that nobody knows is told before what comes behind it is read.
        for text in ["{} {}", "{}x", "{\"a\": 01}", "{\"a\": 1,}"] {
            bad.push(raw(text.into()));
        }
        for text in ["[]", "1", "\"text\"", "true"] {
            bad.push(raw(text.into()).is("validation-failed"));
        }
        bad.push(raw(b"{\"a\": NaN}".to_vec()));
        bad.push(raw(b"{\"a\": Infinity}".to_vec()));
        bad.push(raw(b"{\"a\": 1e999}".to_vec()));
        bad.push(raw(b"\xef\xbb\xbf{}".to_vec()).is(unread));
        bad.push(raw(b"\x00".to_vec()).is(unread));
        bad.push(raw(b"{\"a\": \"\xff\xfe\"}".to_vec()));
        bad.push(raw(b"{\"\xc3\x28\": 1}".to_vec()));
        bad.push(raw(deep(200).into_bytes()));
        bad.push(raw(deep(50_000).into_bytes()));
        bad.push(raw(b"{\"\\ud800\": 1}".to_vec()));
    }
    bad
}

/// Bodies that a web page could send without asking.
fn media() -> Vec<Bad> {
    let kinds =
        ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "application/jsonx", ""];
    let each = |operation| {
        kinds
            .iter()
            .map(move |kind| Bad::new(operation).header("content-type", kind).bytes("{}").is("unsupported-media-type"))
    };
    with_body().into_iter().flat_map(each).chain([Bad::new("submitTasks").bytes("{\"kind\": \"k\"}")]).collect()
}

fn methods() -> Vec<Bad> {
    let mut paths: Vec<&str> = routes().iter().map(|route| route.path).collect();
    paths.sort_unstable();
    paths.dedup();
    let mut bad = Vec::new();
    for path in paths {
        let taken: Vec<Method> =
            routes().iter().filter(|route| route.path == path).map(|route| route.method.clone()).collect();
        let address = path.replace("{id}", TASK).replace("{name}", "reap").replace("{kind}", "k");
        let address = address.replace("{path}", "w").replace("{version}", "1");
        for method in [Method::POST, Method::PUT, Method::PATCH, Method::DELETE, Method::OPTIONS, Method::TRACE] {
            if !taken.contains(&method) {
                bad.push(Bad::at(method, &address).is("method-not-allowed"));
            }
        }
    }
    bad
}

/// Ways to things that are not there, or not theirs.
fn addresses() -> Vec<Bad> {
    let mut bad: Vec<Bad> = [
        "/api",
        "/api/v1",
        "/api/v2/tasks",
        "/api/v1/task",
        "/api/v1/tasks/",
        "/API/V1/TASKS",
        "//api/v1/tasks",
        "/api/v1/../v1/tasks",
        "/api/v1/tasks/..",
        "/etc/passwd",
        "/api/v1/tasks/a/b/c",
        "/favicon.ico",
        "/docs/x",
    ]
    .iter()
    .map(|address| Bad::at(Method::GET, address).is("not-found"))
    .collect();
    let long = "a".repeat(5_000);
    let ids = [
        "..",
        "%2e%2e%2f%2e%2e%2fetc%2fpasswd",
        "1",
        "null",
        "%00",
        "a%00b",
        "%0a",
        "*",
        "%25",
        "'%20or%201=1--",
        "00000000-0000-7000-8000-00000000000g",
        "00000000-0000-7000-8000-0000000000000",
        &long,
    ];
    for route in routes().iter().filter(|route| route.path.contains('{') && route.method != Method::PUT) {
        let operation = route.doc.as_ref().expect("a description").id;
        let base = match operation {
            "settleTask" => Bad::new(operation).json(json!({"status": "succeeded"})),
            "updateBatchTask" => Bad::new(operation).json(json!({"status": "Success"})),
            "completeJob" | "failJob" | "keepJob" => Bad::new(operation).json(json!({"worker_id": "w"})),
            "snoozeTask" | "rescheduleTask" => Bad::new(operation).json(json!({"delay": 1})),
            "redeliver" => Bad::new(operation).json(json!({"within": "1h"})),
            "rollbackWorkflow" => Bad::new(operation).json(json!({"version": 1})),
            "changeError" => Bad::new(operation).json(json!({"action": "open"})),
            _ => Bad::new(operation),
        };
        for id in ids {
            // A router takes two dots for what they are.
            bad.push(base.clone().part(id).is("not-found"));
        }
        bad.push(base.part("%ff").is("bad-request"));
    }
    for kind in ["%00", "a%0ab", &"k".repeat(300)] {
        bad.push(Bad::new("bindPolicy").json(json!({"policy": true})).part(kind).names("kind"));
    }
    bad
}

fn queries() -> Vec<Bad> {
    let mut bad = Vec::new();
    for route in routes().iter().filter(|route| route.need != Need::Nothing) {
        let operation = route.doc.as_ref().expect("a description").id;
        bad.push(Bad::new(operation).query("no_such_parameter=1").names("no_such_parameter"));
        bad.push(Bad::new(operation).query("a=%zz").is("bad-request"));
        bad.push(Bad::new(operation).query("a=%+1").is("bad-request"));
        bad.push(Bad::new(operation).query("a=%f").is("bad-request"));
        bad.push(Bad::new(operation).query("%ff=1").is("bad-request"));
    }
    for operation in ["listTasks", "listEvents", "followEvents", "listAttempts", "listTaskEvents", "forecastTask"] {
        for limit in ["0", "501", "-1", "1.5", "many", "", "99999999999999999999", "NaN", "%00", "1&limit=2"] {
            bad.push(Bad::new(operation).query(&format!("limit={limit}")).names("limit"));
        }
    }
    let cursors = [
        "x",
        "l",
        "f",
        "l9-1-00000000000070008000000000000000",
        "l0-z-1",
        "f1-2-3",
        "f1-2-3-4-5",
        "f1-2-3-fffffffff",
        "-1",
        "4294967296",
        "",
        "%00",
        "é",
        "../../etc",
    ];
    for (operation, name) in [("listTasks", "cursor"), ("listEvents", "after"), ("followEvents", "after")] {
        for cursor in cursors {
            bad.push(Bad::new(operation).query(&format!("{name}={}", cursor)).names(name));
        }
    }
    bad.push(Bad::new("listTasks").query("cursor=l1-1-00000000000070008000000000000000&sort=due").names("cursor"));
    for cursor in ["x", "-1", "4294967296", "1.5", "", "%00"] {
        // Of a task that is there or not: what cannot be read is said first.
        bad.push(Bad::new("listAttempts").query(&format!("cursor={cursor}")));
        bad.push(Bad::new("listTaskEvents").query(&format!("cursor={cursor}")));
    }
    for name in ["execution_id", "error_class", "fingerprint", "due_before", "sort", "label.a"] {
        bad.push(Bad::new("listTasks").query(&format!("{name}=")).names(name));
    }
    for name in ["within", "bucket"] {
        bad.push(Bad::new("getUpcoming").query(&format!("{name}=")).names(name));
    }
    for sort in ["name", "-due", "submitted,due", "%00", "\"", "1"] {
        bad.push(Bad::new("listTasks").query(&format!("sort={sort}")).names("sort"));
    }
    for (name, value) in [
        ("types", "task.exploded"),
        ("types", "task.created,x"),
        ("execution_id", "7"),
        ("task_id", "x"),
        ("task_id", ""),
        ("execution_id", "%00"),
    ] {
        for operation in ["listEvents", "followEvents"] {
            bad.push(Bad::new(operation).query(&format!("{name}={value}")).names(name));
        }
    }
    for (name, value) in [
        ("within", "soon"),
        ("within", "-1h"),
        ("bucket", "0"),
        ("bucket", "0ms"),
        ("bucket", "1ms"),
        ("bucket", "NaN"),
        ("within", "%00"),
        ("bucket", "P1Y"),
        ("within", "1e999"),
    ] {
        bad.push(Bad::new("getUpcoming").query(&format!("{name}={value}")).names(name));
    }
    bad
}

/// Filters, each with the position of what is wrong.
fn filters() -> Vec<Bad> {
    let mut bad: Vec<Bad> = [
        "state:sad",
        "state:dead,sad",
        "colour:red",
        "a kind:",
        "kind:a,,b",
        "attempt:many",
        "attempt:1,2",
        "due:soon",
        "due:1h",
        "execution:7",
        "x \"open",
        "label.:x",
        "fingerprint:zz",
        "fingerprint:1",
        "class:bad",
        "age:>x",
        "-",
        "-:",
        ":x",
        "priority:highest",
        "lost:1.5",
        "submitted:yesterday",
        "updated:>",
        "state:\"",
        "priority:99999999999999999999",
    ]
    .iter()
    .map(|filter| Bad::new("listTasks").query(&format!("q={}", filter)).names("q"))
    .collect();
    bad.push(Bad::new("listTasks").query(&format!("q={}", "a".repeat(5_000))).names("q"));
    bad.push(Bad::new("listTasks").query(&format!("q={}", "a+".repeat(60))).names("q"));
    bad.push(Bad::new("listTasks").query("q=a%00b").names("q"));
    for (name, value) in [
        ("state", "sad"),
        ("execution_id", "7"),
        ("error_class", "bad"),
        ("fingerprint", "zz"),
        ("due_before", "soon"),
        ("due_before", "-1"),
        ("label.", "x"),
        ("kind", "%00"),
        ("label.a", "%00"),
    ] {
        bad.push(Bad::new("listTasks").query(&format!("{name}={value}")).is("validation-failed"));
    }
    bad
}

fn headers() -> Vec<Bad> {
    let mut bad = Vec::new();
    let long = "n".repeat(300);
    let huge = "n".repeat(64 * 1024);
    for route in routes().iter().filter(|route| route.need != Need::Nothing) {
        let operation = route.doc.as_ref().expect("a description").id;
        for namespace in ["", "*", &long, &huge, "\u{fc}"] {
            bad.push(Bad::new(operation).header("comeback-namespace", namespace).names("comeback-namespace"));
        }
        for key in ["", "Bearer", "Bearer ", "Basic YTpi", "Bearer cbk_", "Bearer cbk_0_0", "bearer cbk_0_0", &huge] {
            bad.push(Bad::new(operation).header("authorization", key).is("unauthorized"));
        }
    }
    let task = || Bad::new("submitTasks").json(json!({"kind": "k"}));
    for key in ["", &long, &huge] {
        bad.push(task().header("idempotency-key", key).names("idempotency"));
        bad.push(task().header("traceparent", key).names("traceparent"));
    }
    bad.push(task().header("idempotency-key", b"\xff").names("idempotency"));
    bad.push(task().header("traceparent", b"\xff").names("traceparent"));
    for cursor in ["", "x", "f1-2-3", "l0-1-1", &long] {
        bad.push(Bad::new("followEvents").header("last-event-id", cursor).names("last-event-id"));
    }
    bad.push(Bad::new("followEvents").header("last-event-id", b"\xff").names("last-event-id"));
    bad
}

/// Tasks that are wrong by what they say, not by how they say it.
fn tasks() -> Vec<Bad> {
    let task = |more: &str, path: &str| Bad::new("submitTasks").raw(format!("{{\"kind\": \"k\", {more}}}")).names(path);
    let many = |tasks: &str, path: &str| Bad::new("submitTasks").raw(format!("{{\"tasks\": [{tasks}]}}")).names(path);
    let deep = format!("\"payload\": {}1{}", "[".repeat(500), "]".repeat(500));
    let endless = format!("\"payload\": {}1{}", "[".repeat(100_000), "]".repeat(100_000));
    let large = format!("\"payload\": \"{}\"", "x".repeat(300_000));
    let labels = |n: usize| {
        let all: Vec<String> = (0..n).map(|i| format!("\"l{i}\": \"v\"")).collect();
        format!("\"labels\": {{{}}}", all.join(", "))
    };
    let long_label = format!("\"labels\": {{\"l\": \"{}\"}}", "v".repeat(300));
    let crowd: Vec<&str> = vec!["{\"kind\": \"k\"}"; 10_001];
    vec![
        task("\"kind\": \"again\"", "kind"),
        task("\"queue\": \"a\", \"queue\": \"b\"", "queue"),
        task("\"name\": \"\\ud800\"", "").is("bad-request"),
        task("\"payload\": \"\\ud800\"", "payload"),
        task("\"payload\": {\"\\udc00\": 1}", "payload"),
        task("\"payload\": 1e999", "payload"),
        task(&deep, "payload"),
        task(&endless, "payload"),
        task(&large, "payload"),
        task(&labels(33), "labels"),
        task(&long_label, "labels.l"),
        task("\"labels\": {\"\": \"v\"}", "labels."),
        task("\"labels\": {\"a\": 1}", "labels.a"),
        task("\"labels\": {\"a\": null}", "labels.a"),
        task("\"labels\": {\"a\\u0000\": \"v\"}", "labels."),
        task("\"priority\": 1001", "priority"),
        task("\"priority\": -1001", "priority"),
        task("\"priority\": 1e10", "priority"),
        task("\"priority\": \"highest\"", "priority"),
        task("\"timeout\": 0", "timeout"),
        task("\"timeout\": \"0s\"", "timeout"),
        task("\"timeout\": -0.5", "timeout"),
        task("\"timeout\": \"-5s\"", "timeout"),
        task("\"timeout\": \"11y\"", "timeout"),
        task("\"timeout\": \"P1M\"", "timeout"),
        task("\"timeout\": 1e18", "timeout"),
        task("\"deadline\": \"10000d\"", "deadline"),
        task("\"deadline\": \"tomorrow\"", "deadline"),
        task("\"deadline\": \"2026-13-01T00:00:00Z\"", "deadline"),
        task("\"at\": \"2026-02-30T00:00:00Z\"", "at"),
        task("\"at\": \"2026-01-01\"", "at"),
        task("\"at\": \"2026-01-01T00:00:00\"", "at"),
        task("\"at\": 1700000000", "at"),
        task("\"delay\": 1, \"at\": \"2030-01-01T00:00:00Z\"", "at"),
        task("\"delay\": \"1 fortnight\"", "delay"),
        task("\"attempt_deadline\": \"\"", "attempt_deadline"),
        task("\"dependency\": \"a\\u0000\"", "dependency"),
        task("\"account\": \"acme\"", "account"),
        task("\"cost\": 1", "cost"),
        task("\"cost\": 4294967296", "cost"),
        task("\"hooks\": {\"end\": []}", "hooks.end"),
        task("\"hooks\": {\"success\": [{\"url\": \"ftp://x\"}]}", "hooks.success[0].url"),
        task("\"hooks\": 1", "hooks"),
        task("\"dialect\": \"klingon\", \"retry\": true", "dialect"),
        task("\"executor\": 1", "executor"),
        task("\"executor\": {}", "executor"),
        task("\"executor\": {\"type\": \"magic\"}", "executor"),
        task("\"executor\": {\"type\": 7}", "executor"),
        task("\"executor\": {\"type\": \"worker\", \"x\": 1}", "executor"),
        task("\"executor\": {\"type\": \"timer\", \"x\": 1}", "executor"),
        task("\"executor\": {\"type\": \"http\"}", "executor"),
        task("\"executor\": {\"type\": \"http\", \"url\": \"\"}", "executor.url"),
        task("\"executor\": {\"type\": \"http\", \"url\": \"nowhere\"}", "executor.url"),
        task("\"executor\": {\"type\": \"http\", \"url\": \"file:///etc/passwd\"}", "executor.url"),
        task("\"executor\": {\"type\": \"http\", \"url\": \"http://a:b@c/\"}", "executor.url"),
        task("\"executor\": {\"type\": \"http\", \"url\": \"http://c/\", \"method\": \"BREW\"}", "executor.method"),
        task("\"executor\": {\"type\": \"http\", \"url\": \"http://c/\", \"method\": null}", "executor"),
        task(
            "\"executor\": {\"type\": \"http\", \"url\": \"http://c/\", \"headers\": {\"a b\": \"c\"}}",
            "executor.headers",
        ),
        task(
            "\"executor\": {\"type\": \"http\", \"url\": \"http://c/\", \"headers\": {\"a\": \"b\\n\"}}",
            "executor.headers",
        ),
        task("\"executor\": {\"type\": \"http\", \"url\": \"http://c/\", \"expect\": \"9xx\"}", "executor.expect"),
        task(
            "\"executor\": {\"type\": \"http\", \"url\": \"http://c/\", \"expect\": [\"2xx\", \"x\"]}",
            "executor.expect",
        ),
        task("\"executor\": {\"type\": \"http\", \"url\": \"http://c/\", \"wait\": 1}", "executor"),
        task("\"executor\": {\"type\": \"command\"}", "executor"),
        task("\"executor\": {\"type\": \"command\", \"run\": []}", "executor.run"),
        task("\"executor\": {\"type\": \"command\", \"run\": [\"\"]}", "executor.run"),
        task("\"executor\": {\"type\": \"command\", \"run\": [\"a\\u0000\"]}", "executor.run"),
        task("\"executor\": {\"type\": \"command\", \"run\": \"ls\"}", "executor"),
        task("\"executor\": {\"type\": \"command\", \"run\": [\"ls\"], \"env\": {\"A=B\": \"c\"}}", "executor.env"),
        task("\"needs\": [\"nobody\"]", "needs[0].task"),
        task("\"needs\": [7]", "needs[0]"),
        task("\"needs\": [{\"task\": \"a\", \"when\": \"sometimes\"}]", "needs[0].when"),
        task("\"needs\": [{\"task\": \"a\", \"on_unmet\": \"cry\"}]", "needs[0].on_unmet"),
        task("\"needs\": [{\"task\": \"a\", \"if\": true}]", "needs[0].if"),
        task("\"tasks\": []", "kind"),
        many("{\"kind\": \"a\", \"key\": \"a\", \"needs\": [\"a\"]}", "needs[0].task"),
        many(
            "{\"kind\": \"a\", \"key\": \"a\", \"needs\": [\"b\"]}, {\"kind\": \"b\", \"key\": \"b\", \"needs\": [\"a\"]}",
            "tasks",
        ),
        many(
            "{\"kind\": \"a\", \"key\": \"a\"}, {\"kind\": \"b\", \"key\": \"a\", \"needs\": [\"a\"]}",
            "tasks[1].key",
        ),
        many(
            "{\"kind\": \"a\", \"key\": \"a\"}, {\"kind\": \"b\", \"needs\": [\"a\", \"a\"]}",
            "tasks[1].needs[1].task",
        ),
        many(
            "{\"kind\": \"a\", \"key\": \"a\"}, {\"kind\": \"b\", \"needs\": [\"a\"], \"dedupe_key\": \"x\"}",
            "tasks[1].dedupe_key",
        ),
        many("{\"kind\": \"a\"}, {\"kind\": \"\"}", "tasks[1].kind"),
        many("{\"kind\": \"a\"}, {\"kind\": \"a\", \"payload\": \"\\ud800\"}", "tasks[1].payload"),
        many("{\"kind\": \"a\"}, 7", "tasks[1]"),
        many("{\"kind\": \"a\"}, null", "tasks[1]"),
        many(&crowd.join(","), "tasks"),
        Bad::new("submitTasks").json(json!({"tasks": [], "execution": {}})).names("tasks"),
        Bad::new("submitTasks").json(json!({"execution": {}})).names(""),
        Bad::new("submitTasks").json(json!({"tasks": [{"kind": "k"}], "kind": "k"})).names("kind"),
        Bad::new("submitTasks").bytes("").names(""),
    ]
}

/// Policies that contradict themselves, in every dialect.
fn policies() -> Vec<Bad> {
    let mut bad = Vec::new();
    let everywhere = [
        (json!({"max_retries": 3, "max_attempts": 9}), "max_retries"),
        (json!({"max_retries": 3, "maxRetries": 4}), "max"),
        (json!({"max_retries": 1001}), "max_retries"),
        (json!({"strategy": "sometimes"}), "strategy"),
        (json!({"strategy": "fixed", "backoff": "linear"}), "backoff"),
        (json!({"multiplier": 0.5}), "multiplier"),
        (json!({"multiplier": -2}), "multiplier"),
        (json!({"initial_delay": "1s", "initial_backoff": "2s"}), "initial_backoff"),
        (json!({"initial_delay": -1}), "initial_delay"),
        (json!({"initial_delay_ms": -1}), "initial_delay_ms"),
        (json!({"max_delay": "soon"}), "max_delay"),
        (json!({"max_delay": "1000d"}), "max_delay"),
        (json!({"schedule": ["7d", "x"]}), "schedule[1]"),
        (json!({"schedule": [{"attempt": 2, "delay": 1}, {"attempt": 1, "delay": 1}]}), "schedule[1].attempt"),
        (json!({"schedule": [{"attempt": 0, "delay": 1}]}), "schedule[0].attempt"),
        (json!({"schedule": [{"attempt": 1}]}), "schedule[0].delay"),
        (json!({"schedule": [{"delay_days": -1}]}), "schedule[0].delay_days"),
        (json!({"schedule": {"attempts": 7}}), "schedule.attempts"),
        (json!({"schedule": {"tries": []}}), "schedule"),
        (json!({"schedule": vec!["1s"; 1_001]}), "schedule"),
        (json!({"schedule": ["1s"], "custom_schedule": ["1s"]}), "custom_schedule"),
        (json!({"strategy": "schedule", "schedule": ["400d"]}), "schedule[0]"),
        (json!({"jitter": "wild"}), "jitter"),
        (json!({"jitter": 1}), "jitter"),
        (json!({"retry_on": []}), "retry_on"),
        (json!({"retry_on": ["9xx"]}), "retry_on"),
        (json!({"retry_on": [null]}), "retry_on"),
        (json!({"ignore": vec!["a"; 201]}), "ignore"),
        (json!({"retry_when": "status >="}), "retry_when"),
        (json!({"retry_when": "nonsense > 1"}), "retry_when"),
        (json!({"retry_when": "x".repeat(20_000)}), "retry_when"),
        (json!({"stop_when": "{% for x in y %}"}), "stop_when"),
        (json!({"rules": [{"then": "explode"}]}), "rules[0].then"),
        (json!({"rules": [{"then": "snooze"}]}), "rules[0].delay"),
        (json!({"rules": [{"then": "retry", "match": {"message": "("}}]}), "rules[0].match.message"),
        (json!({"rules": [{"then": "retry", "match": {"colour": "red"}}]}), "rules[0].match.colour"),
        (json!({"rules": vec![json!({"then": "retry"}); 101]}), "rules"),
        (json!({"windows": [{"from": "25:00", "to": "06:00"}]}), "windows[0].from"),
        (json!({"windows": [{"from": "22:00", "to": "06:00", "tz": "Mars/Base"}]}), "windows[0].tz"),
        (json!({"windows": [{"from": "22:00", "to": "06:00", "days": ["someday"]}]}), "windows[0].days"),
        (json!({"windows": [{"from": "2030-01-02T00:00:00Z", "to": "2030-01-01T00:00:00Z"}]}), "windows[0].to"),
        (json!({"windows": [{"from": "00:00", "to": "00:00"}]}), "windows"),
        (json!({"timeout": 0}), "timeout"),
        (json!({"expires_at": "never"}), "expires_at"),
        (json!({"on_lost": "cry"}), "on_lost"),
        (json!({"max_lost": -1}), "max_lost"),
        (json!({"deadline": "tomorrow"}), "deadline"),
        (json!({"preset": "klingon"}), "preset"),
        (json!({"maxretries": 3}), "maxretries"),
        (json!({"max retries": 3}), "max retries"),
        (json!({"": 3}), ""),
    ];
    for dialect in ["native", "workflow", "task", "job", "run", "step"] {
        for (policy, path) in &everywhere {
            let body = json!({"policy": policy, "dialect": dialect});
            bad.push(
                Bad::new("simulatePolicy").json(body.clone()).names(format!("policy.{path}").trim_end_matches('.')),
            );
            if dialect == "native" {
                bad.push(Bad::new("submitTasks").json(json!({"kind": "k", "retry": policy})).names("retry"));
            }
        }
        let other = if dialect == "task" { "job" } else { "task" };
        if dialect != "native" {
            let body = json!({"policy": {"dialect": other}, "dialect": dialect});
            bad.push(Bad::new("bindPolicy").json(body).names("policy.dialect"));
            bad.push(Bad::new("bindPolicy").json(json!({"policy": "exp(1s)", "dialect": dialect})).names("policy"));
        }
    }
    for max in [0, 11] {
        bad.push(
            Bad::new("bindPolicy")
                .json(json!({"policy": {"max_retries": max}, "dialect": "task"}))
                .names("policy.max_retries"),
        );
    }
    bad.push(Bad::new("bindPolicy").json(json!({"policy": {"job_type": "X"}})).names("policy.job_type"));
    for short in [
        "",
        "exp",
        "exp(",
        "exp(60s",
        "sometimes(1s)",
        "exp(5)",
        "exp(1s, 2s)",
        "exp(often)",
        "exp(1s, 3 retries, 4 retries)",
        "immediate(0 attempts)",
        "schedule()",
        "exp(xy)",
        "exp(1s, x0.5)",
        "fixed(-1s)",
        "fixed(1s, 5000 retries)",
        "exp(1s, jitter wild)",
    ] {
        bad.push(Bad::new("bindPolicy").json(json!({"policy": short})).names("policy"));
    }
    for number in [json!(-1), json!(1.5), json!(1_002), json!(1e300), json!([]), json!(["1s"])] {
        bad.push(Bad::new("bindPolicy").json(json!({"policy": number})).names("policy"));
    }
    bad
}

fn rest() -> Vec<Bad> {
    let too_many: Vec<&str> = vec!["x"; 5_001];
    let names: Vec<String> = (0..101).map(|n| n.to_string()).collect();
    let kinds: Vec<String> = (0..1_001).map(|n| n.to_string()).collect();
    let one = |operation: &str, body: serde_json::Value, path: &str| Bad::new(operation).json(body).names(path);
    let progress = json!("p".repeat(300_000));
    vec![
        one("bulkTasks", json!({"action": "retry"}), "filter"),
        one("bulkTasks", json!({"action": "retry", "filter": "", "ids": []}), "filter"),
        one("bulkTasks", json!({"action": "retry", "filter": "state:sad"}), "filter"),
        one("bulkTasks", json!({"action": "explode", "filter": ""}), "action"),
        one("bulkTasks", json!({"action": "retry", "ids": ["x"]}), "ids[0]"),
        one("bulkTasks", json!({"action": "reschedule", "filter": ""}), "at"),
        one(
            "bulkTasks",
            json!({"action": "reschedule", "filter": "", "at": "2030-01-31T09:00:00Z", "delay": "1s"}),
            "delay",
        ),
        one("bulkTasks", json!({"action": "cancel", "filter": "", "spread": "1m"}), "spread"),
        one("bulkTasks", json!({"action": "retry", "filter": "", "spread": "31d"}), "spread"),
        one("bulkTasks", json!({"action": "retry", "filter": "", "spread": "1m", "waves": {"canary": 1}}), "waves"),
        one("bulkTasks", json!({"action": "retry", "filter": "", "waves": {"canary": 0}}), "waves.canary"),
        one(
            "bulkTasks",
            json!({"action": "retry", "filter": "", "waves": {"canary": 1, "size": 2, "double": true}}),
            "waves.double",
        ),
        one(
            "bulkTasks",
            json!({"action": "retry", "filter": "", "waves": {"canary": 1, "stop_if": {"failed_over": 20}}}),
            "waves.stop_if.failed_over",
        ),
        one("leaseTasks", json!({"worker": "w", "queues": names}), "queues"),
        one("leaseTasks", json!({"worker": "w", "kinds": kinds}), "kinds"),
        one("leaseTasks", json!({"worker": "w", "queues": ["a\u{0}"]}), "queues[0]"),
        one("leaseTasks", json!({"worker": "w", "kinds": [""]}), "kinds[0]"),
        one("leaseTasks", json!({"worker": "w", "limit": 5_001}), "limit"),
        one("leaseTasks", json!({"worker": "w", "lease": 0}), "lease"),
        one("leaseTasks", json!({"worker": "w", "lease": "2h"}), "lease"),
        one("leaseTasks", json!({"worker": "w", "wait": "-1s"}), "wait"),
        one("keepLeases", json!({"leases": too_many}), "leases"),
        one("keepLeases", json!({"leases": ["x"], "extend": 0}), "extend"),
        one("keepLeases", json!({"leases": ["x"], "extend": "2h"}), "extend"),
        one("keepLeases", json!({"leases": ["x"], "progress": progress}), "progress"),
        one("reportRuns", json!({"reports": [{"outcome": "succeeded"}]}), "reports[0]"),
        one("reportRuns", json!({"reports": [{"lease": "x"}]}), "reports[0]"),
        one(
            "reportRuns",
            json!({"reports": [{"lease": "x", "outcome": "failed", "error": {"msg": "x"}}]}),
            "reports[0].error",
        ),
        one(
            "reportRuns",
            json!({"reports": [{"lease": "x", "outcome": "failed", "error": {"status": 70_000}}]}),
            "reports[0].error.status",
        ),
        one(
            "reportRuns",
            json!({"reports": [{"lease": "x", "outcome": "failed", "error": {"code": []}}]}),
            "reports[0].error.code",
        ),
        Bad::new("reportRuns")
            .raw("{\"reports\": [{\"lease\": \"x\", \"outcome\": \"succeeded\", \"result\": \"\\ud800\"}]}")
            .names("reports[0].result"),
        one("advanceClock", json!({"by": "11000d"}), "by"),
        one("advanceClock", json!({"by": 1, "to": "next"}), "by"),
        one("advanceClock", json!({}), "by"),
        one("advanceClock", json!({"to": "never"}), "to"),
        one("advanceClock", json!({"to": "9999-01-01T00:00:00Z"}), "to"),
        one("createKey", json!({"role": "god"}), "role"),
        one("createKey", json!({"role": "ADMIN"}), "role"),
        one("createKey", json!({"role": "admin", "namespace": ""}), "namespace"),
        one("createKey", json!({"role": "admin", "namespace": "a\u{0}"}), "namespace"),
        one("createKey", json!({"role": "admin", "name": "n".repeat(300)}), "name"),
        one("createKey", json!({"role": "admin", "expires_in": "never"}), "expires_in"),
        one("settleTask", json!({"status": "done"}), "status"),
        one("settleTask", json!({"status": "failed", "error": {"class": "bad"}}), "error.class"),
        one("settleTask", json!({"status": "failed", "error": {"retry_after": "soon"}}), "error.retry_after"),
        one("settleTask", json!({"status": "failed", "error": {"status": 99}}), "error.status"),
        one("settleTask", json!({"status": "succeeded", "run": -1}), "run"),
        one("snoozeTask", json!({}), "delay"),
        one("snoozeTask", json!({"delay": 1, "at": "2030-01-01T00:00:00Z"}), "delay"),
        one("snoozeTask", json!({"delay": "11000d"}), "delay"),
        one("rescheduleTask", json!({"at": "9999-01-01T00:00:00Z"}), "at"),
        one("cancelTask", json!({"keep_counters": false}), "keep_counters"),
        one("cancelTask", json!({"delay": null}), "delay"),
        one("cancelTask", json!({"note": "n".repeat(5_000)}), "note"),
        one("cancelTask", json!({"note": "a\u{0}"}), "note"),
        one("cancelTask", json!({"requested_by": ""}), "requested_by"),
        one("pauseLoop", json!({"duration": -1}), "duration"),
        one("pauseLoop", json!({"note": "n".repeat(5_000)}), "note"),
        Bad::new("pauseLoop").part("promotion").is("not-found"),
        Bad::new("resumeLoop").part("REAP").is("not-found"),
        one("pauseWork", json!({"types": ["ALL"]}), "types[0]"),
        one("resumeWork", json!({"types": ["RETRIES", "retries"]}), "types[1]"),
        one("resumeWork", json!({"duration": "1m"}), "duration"),
        one("changeError", json!({"action": "classify"}), "class"),
        one("changeError", json!({"action": "open", "class": "final"}), "class"),
        one("changeError", json!({"action": "resolve", "for": "1h"}), "for"),
        one("changeError", json!({"action": "note", "note": "n".repeat(5_000)}), "note"),
        one("repairFailedTasks", json!({"limit": 0}), "limit"),
        one("repairFailedTasks", json!({"limit": 1_001}), "limit"),
        one("simulatePolicy", json!({"policy": true, "failures": vec![json!({}); 1_001]}), "failures"),
        one("simulatePolicy", json!({"policy": true, "failures": [{}], "error": "x"}), "error"),
        one("simulatePolicy", json!({"policy": true, "failures": [{"after": -1}]}), "failures[0].after"),
        one("simulatePolicy", json!({"policy": true, "limit": 0}), "limit"),
        one("simulatePolicy", json!({"policy": true, "limit": 1_001}), "limit"),
        one("simulatePolicy", json!({"policy": true, "seed": -1}), "seed"),
        one("simulatePolicy", json!({"policy": true, "error": 7}), "error"),
        one("settleTask", json!({"retry": "exp(now)"}), "retry"),
        one("settleTask", json!({"retry": true, "dialect": "klingon"}), "dialect"),
        one("backtestPolicy", json!({"policy": "exp(now)"}), "policy"),
        one("backtestPolicy", json!({"policy": true, "filter": "state:nonsense"}), "filter"),
        one("backtestPolicy", json!({"policy": true, "within": -1}), "within"),
        one("backtestPolicy", json!({"policy": true, "limit": 0}), "limit"),
        one("backtestPolicy", json!({"policy": true, "limit": 5_001}), "limit"),
    ]
}
