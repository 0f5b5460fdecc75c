//! Named secrets.

use serde_json::json;

use super::{Ask, World, examples};

pub async fn secrets(world: &World) {
    for example in examples("putSecret") {
        for name in ["stripe", "paypal"] {
            let ask = || Ask { part: name, body: Some(example.to_string()), ..Ask::default() };
            let made = world.good("putSecret", ask()).await;
            assert!(!made.to_string().contains(example["value"].as_str().expect("a value")), "{made}");
            assert_eq!(world.good("putSecret", ask()).await["name"], name);
        }
    }
    // A namespace has five here.
    for name in ["a", "b", "c"] {
        world.good("putSecret", Ask { part: name, body: Some(r#"{"value": "v"}"#.into()), ..Ask::default() }).await;
    }
    let sixth = Ask { part: "d", body: Some(r#"{"value": "v"}"#.into()), ..Ask::default() };
    assert_eq!(world.bad("putSecret", sixth).await, "quota-exceeded");
    for name in ["a", "b", "c"] {
        world.get("deleteSecret", name).await;
    }
    let page = world.find("listSecrets", "limit=1").await;
    let next = page["next_cursor"].as_str().expect("there is more").to_owned();
    assert_eq!(world.find("listSecrets", &format!("cursor={next}")).await["items"][0]["name"], "stripe");
    assert_eq!(world.get("getSecret", "stripe").await["name"], "stripe");
    assert_eq!(world.post("reencryptSecrets", "", json!({})).await["unchanged"], 2);
    world.get("deleteSecret", "stripe").await;
    for operation in ["getSecret", "deleteSecret"] {
        assert_eq!(world.bad(operation, Ask { part: "stripe", ..Ask::default() }).await, "not-found");
    }
}
