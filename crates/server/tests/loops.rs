//! What each round of a loop is given, and what is refused before there is one.

use axum::http::Method;
use serde_json::{Value, json};

use crate::place::world::{World, everywhere, text};

/// Puts a workflow, starts it, and answers with what workers are given for it, in the order of its rounds.
async fn rounds_of(world: &World, name: &str, document: Value) -> (String, Vec<Value>) {
    world.good(Method::PUT, &format!("/api/v1/workflows/{name}"), Some(document)).await;
    let started = world.post("/api/v1/executions", json!({"workflow": name})).await;
    let mut rounds = Vec::new();
    loop {
        for _ in 0..3 {
            world.pass(0).await;
        }
        let leased = world.post("/api/v1/leases", json!({"worker": "w", "limit": 10})).await;
        let leases = leased["leases"].as_array().expect("leases").clone();
        if leases.is_empty() {
            break;
        }
        for lease in leases {
            let report = json!({"lease": lease["lease"], "outcome": "succeeded", "result": {"n": rounds.len()}});
            world.post("/api/v1/leases/report", json!({"reports": [report]})).await;
            rounds.push(lease["task"].clone());
        }
    }
    (text(&started["execution_id"]).to_owned(), rounds)
}

fn payloads(rounds: &[Value]) -> Vec<Value> {
    rounds.iter().map(|task| task["payload"].clone()).collect()
}

async fn state(world: &World, execution: &str) -> String {
    text(&world.get(&format!("/api/v1/executions/{execution}")).await["state"]).to_owned()
}

/// A playbook hands the element to its step under every name that it has for arguments.
#[tokio::test]
async fn an_iterator_hands_its_element_to_every_argument() {
    everywhere(async |world| {
        for name in ["args", "with", "data"] {
            let iterator = json!({"step": "each", "type": "iterator", "collection": "{{ workload.rows }}", "element": "it",
                "task": {"type": "python", name: {"v": "{{ it }}"}, "code": "{{ it }}/{{ v }}/{{ index }}"}});
            let looped = json!({"step": "each", "type": "python", name: {"v": "{{ it }}"}, "code": "{{ it }}/{{ v }}/{{ index }}",
                "loop": {"in": "{{ workload.rows }}", "iterator": "it"}});
            for (way, step) in [("iterator", iterator), ("loop", looped)] {
                let document = json!({"kind": "Playbook", "workload": {"rows": ["a", "b", "c"]}, "workflow": [step]});
                let (execution, rounds) = rounds_of(world, &format!("{way}-{name}"), document).await;
                let expected: Vec<Value> = ["a", "b", "c"]
                    .into_iter()
                    .enumerate()
                    .map(|(n, row)| json!({name: {"v": row}, "code": format!("{row}/{row}/{n}")}))
                    .collect();
                assert_eq!(payloads(&rounds), expected, "{way} {name}");
                assert_eq!(state(world, &execution).await, "succeeded");
            }
        }
    })
    .await;
}

/// Arguments that do not speak of the element are known before the loop begins, also to what it goes over.
#[tokio::test]
async fn a_loop_goes_over_what_its_other_arguments_say() {
    everywhere(async |world| {
        let first = json!({"step": "first", "type": "x", "next": [{"step": "each", "args": {"rows": [7, 8]}}]});
        let each = json!({"step": "each", "type": "x", "when": "args.limit > 1", "args": {"limit": 2, "v": "{{ it }}"},
            "loop": {"in": "{{ args.rows }}", "iterator": "it"}});
        let document = json!({"kind": "Playbook", "workflow": [first, each]});
        let (execution, rounds) = rounds_of(world, "given", document).await;
        let args: Vec<&Value> = rounds.iter().skip(1).map(|task| &task["payload"]["args"]["v"]).collect();
        assert_eq!(args, [&json!(7), &json!(8)]);
        assert_eq!(state(world, &execution).await, "succeeded");
    })
    .await;
}

/// Payload, name, labels, output and what an inner workflow is given.
#[tokio::test]
async fn foreach_hands_its_item_to_all_that_a_round_has_for_itself() {
    everywhere(async |world| {
        world.good(Method::PUT, "/api/v1/workflows/inner", Some(json!({"steps": {"one": {"payload": "{{ input.part }}"}}}))).await;
        let document = json!({
            "steps": {
                "load": {"foreach": {"in": ["a", "b"], "as": "part"}, "name": "part {{ part }}", "labels": {"part": "{{ part }}"},
                    "payload": {"part": "{{ part }}", "n": "{{ index }}", "try": "{{ attempt }}"},
                    "output": {"part": "{{ part }}", "n": "{{ result.n }}"}},
                "call": {"needs": ["load"], "foreach": "{{ steps.load.result }}",
                    "workflow": {"path": "inner", "input": {"part": "{{ item.part }}{{ attempt }}"}}},
            },
            "output": "{{ steps.load.result }}",
        });
        let (execution, rounds) = rounds_of(world, "outer", document).await;
        assert_eq!(
            payloads(&rounds),
            [json!({"part": "a", "n": 0, "try": 1}), json!({"part": "b", "n": 1, "try": 1}), json!("a1"), json!("b1")]
        );
        let found = world.get("/api/v1/tasks?label.part=b").await;
        assert_eq!((&found["items"][0]["name"], &found["items"][0]["key"]), (&json!("part b"), &json!("load[1]")));
        let whole = world.get(&format!("/api/v1/executions/{execution}")).await;
        assert_eq!(whole["output"], json!([{"part": "a", "n": 0}, {"part": "b", "n": 1}]), "{whole}");
        assert_eq!(whole["state"], "succeeded");
    })
    .await;
}

/// A name that can never be there is told when the document is put, with its line and column.
#[tokio::test]
async fn what_no_round_can_know_is_refused_when_the_document_is_put() {
    everywhere(async |world| {
        let refused = async |document: Value| {
            let (status, problem) = world.refused(Method::PUT, "/api/v1/workflows/w", document).await;
            assert_eq!(status, 400, "{problem}");
            let first = &problem["errors"][0];
            assert!(first["line"].is_u64() && first["column"].is_u64(), "{problem}");
            format!("{}: {}", text(&first["path"]), text(&first["message"]))
        };
        let step = json!({"step": "each", "type": "x", "when": "it > 1", "loop": {"in": [1], "iterator": "it"}});
        let told = refused(json!({"kind": "Playbook", "workflow": [step]})).await;
        assert!(told.starts_with("workflow[0].when: `it` is not known here"), "{told}");
        let told = refused(json!({"steps": {"a": {"foreach": [1], "queue": "{{ item }}"}}})).await;
        assert!(told.starts_with("steps.a.queue: `item` is not known here"), "{told}");
    })
    .await;
}
