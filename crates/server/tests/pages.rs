//! Pages: as many items as were asked for, and the last one says that it is the last.

use axum::http::Method;
use serde_json::{Value, json};

use crate::place::world::{World, everywhere, text};

/// Three runs that fail and one that succeeds.
async fn task(world: &World) -> String {
    let task = json!({"kind": "k", "retry": {"strategy": "immediate", "max_retries": 5}});
    let id = text(&world.post("/api/v1/tasks", task).await["tasks"][0]["id"]).to_owned();
    for outcome in ["failed", "failed", "failed", "succeeded"] {
        world.pass(1).await;
        let leased = world.post("/api/v1/leases", json!({"worker": "w"})).await;
        let report = json!({"lease": leased["leases"][0]["lease"], "outcome": outcome});
        world.post("/api/v1/leases/report", json!({"reports": [report]})).await;
    }
    id
}

/// Every page of a list with so many items each.
async fn pages(world: &World, address: &str, limit: usize) -> Vec<Vec<Value>> {
    let mut pages = Vec::new();
    let mut next = format!("{address}limit={limit}");
    loop {
        let page = world.get(&next).await;
        pages.push(page["items"].as_array().expect("items").clone());
        let Some(cursor) = page["next_cursor"].as_str() else { return pages };
        next = format!("{address}limit={limit}&cursor={cursor}");
    }
}

async fn whole_pages(world: &World, address: &str) {
    let all = world.get(&format!("{address}limit=500")).await["items"].as_array().expect("items").clone();
    assert!(all.len() > 3, "{all:?}");
    for limit in [1, 2, 3, all.len() - 1, all.len(), all.len() + 1] {
        let pages = pages(world, address, limit).await;
        let (last, full) = pages.split_last().expect("a page");
        assert!(full.iter().all(|page| page.len() == limit), "{address} {limit}: {:?}", lengths(&pages));
        assert!(!last.is_empty() && last.len() <= limit, "{address} {limit}: {:?}", lengths(&pages));
        assert_eq!(pages.concat(), all, "{address} {limit}");
    }
}

fn lengths(pages: &[Vec<Value>]) -> Vec<usize> {
    pages.iter().map(Vec::len).collect()
}

/// L3, L4: `?limit=1` of attempts had none on its first page, and `?limit=3` of events had nine.
#[tokio::test]
async fn a_page_has_as_many_items_as_were_asked_for() {
    everywhere(async |world| {
        let id = task(world).await;
        for list in ["attempts?", "attempts?newest=true&", "events?"] {
            whole_pages(world, &format!("/api/v1/tasks/{id}/{list}")).await;
        }
        let flow = json!({"execution": {"name": "e"}, "tasks": [{"kind": "x", "key": "a"}, {"kind": "x", "key": "b"}]});
        let made = world.post("/api/v1/tasks", flow).await;
        whole_pages(world, &format!("/api/v1/executions/{}/events?", text(&made["execution_id"]))).await;
    })
    .await;
}

/// M11: with and without an execution.
#[tokio::test]
async fn two_tasks_of_one_request_have_two_keys() {
    everywhere(async |world| {
        let tasks = |more: Value| {
            let mut body = json!({"tasks": [{"kind": "k", "key": "a"}, {"kind": "k"}, {"kind": "k", "key": "a"}]});
            body.as_object_mut().expect("fields").extend(more.as_object().expect("fields").clone());
            body
        };
        for more in [json!({}), json!({"execution": {"name": "e"}})] {
            let (status, problem) = world.refused(Method::POST, "/api/v1/tasks", tasks(more)).await;
            let fault = &problem["errors"][0];
            assert_eq!((status.as_u16(), &fault["path"]), (400, &json!("tasks[2].key")), "{problem}");
            assert!(text(&fault["message"]).contains("`a`"), "{problem}");
            assert!(text(&fault["message"]).ends_with("tasks[0]"), "both places are named: {problem}");
        }
        assert_eq!(world.get("/api/v1/tasks").await["items"], json!([]), "nothing was made");
        let twice = json!({"tasks": [{"kind": "k", "dedupe_key": "d"}, {"kind": "k", "dedupe_key": "d"}]});
        let made = world.post("/api/v1/tasks", twice).await;
        assert_eq!(made["tasks"][1]["duplicate"], true, "a dedupe key is another thing: {made}");
        for _ in 0..2 {
            world.post("/api/v1/tasks", json!({"kind": "k", "key": "a"})).await;
        }
    })
    .await;
}

/// L1, T26: `run_at` is `at`.
#[tokio::test]
async fn a_first_run_has_its_time_by_either_name() {
    everywhere(async |world| {
        let (soon, later) = (world.at(60), world.at(61));
        for start in [json!({"run_at": soon}), json!({"at": soon}), json!({"at": soon, "run_at": soon})] {
            let mut task = json!({"kind": "k"});
            task.as_object_mut().expect("fields").extend(start.as_object().expect("fields").clone());
            let made = world.post("/api/v1/tasks", task).await;
            let id = text(&made["tasks"][0]["id"]).to_owned();
            assert_eq!(made["tasks"][0]["state"], "waiting", "{made}");
            let shown = world.get(&format!("/api/v1/tasks/{id}")).await;
            assert_eq!(shown["start_at"], json!(soon), "{shown}");
        }
        let both = json!({"kind": "k", "at": soon, "run_at": later});
        let delayed = json!({"kind": "k", "delay": "1m", "run_at": soon});
        for task in [both, delayed] {
            let (status, problem) = world.refused(Method::POST, "/api/v1/tasks", task).await;
            assert_eq!((status.as_u16(), &problem["errors"][0]["path"]), (400, &json!("run_at")), "{problem}");
        }
    })
    .await;
}

/// F7: quotes and backslashes of a parameter were removed, so that `kind=a"b` found `ab`.
#[tokio::test]
async fn a_parameter_of_a_list_is_taken_as_it_is() {
    everywhere(async |world| {
        let kinds = ["a\"b", "ab", "a\\b", "a b", "a,b", "a", "b"];
        for kind in kinds {
            let labels = json!({"of kind": kind});
            world.post("/api/v1/tasks", json!({"kind": kind, "labels": labels})).await;
        }
        let found = async |address: &str| {
            let page = world.get(&format!("/api/v1/tasks?{address}")).await;
            let mut kinds: Vec<String> =
                page["items"].as_array().expect("items").iter().map(|it| text(&it["kind"]).to_owned()).collect();
            kinds.sort();
            kinds
        };
        for (address, expected) in [
            ("kind=a%22b", &["a\"b"][..]),
            ("kind=a%5Cb", &["a\\b"]),
            ("kind=a%20b", &["a b"]),
            ("kind=a,b", &["a", "b"]),
            ("kind=ab*", &["ab"]),
            ("label.of%20kind=a%22b", &["a\"b"]),
            ("q=kind:ab&state=pending", &["ab"]),
        ] {
            assert_eq!(found(address).await, expected, "{address}");
        }
        let problem = world.ask(Method::GET, "/api/v1/tasks?state=tired", None).await.json();
        assert_eq!(problem["errors"][0]["path"], "state", "{problem}");
    })
    .await;
}
