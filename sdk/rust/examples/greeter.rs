use comeback_client::{Client, Outcome, Worker};
use serde_json::json;

#[tokio::main]
async fn main() -> Result<(), comeback_client::Error> {
    let client = Client::new("http://127.0.0.1:7330")?;
    Worker::new(client, "greeter")
        .concurrency(20)
        .handle("hello", |task| async move {
            match task.payload["name"].as_str() {
                Some(name) => Outcome::succeeded(json!({"greeting": format!("Hello, {name}")})),
                None => Outcome::failed_with(json!({"class": "final", "message": "no name"})),
            }
        })
        .run(async { drop(tokio::signal::ctrl_c().await) })
        .await
}
