//! A task that fails twice and comes back, inside your own program: `cargo run -p comeback-engine --example ten_lines`.

use comeback_engine::{Engine, Failure, LeaseRequest, Policy, Report, ReportEnd, Submit, TaskSpec, Trigger};
use std::time::Duration;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = std::env::temp_dir().join(format!("comeback-example-{}.db", std::process::id()));
    let engine = Engine::open_sqlite(&folder).await?;
    let policy: Policy = "fixed(300ms, 5 retries)".parse()?;
    engine.submit(Submit::one("default", TaskSpec::new("hello").retry(policy))).await?;
    loop {
        let ask = LeaseRequest { wait: Duration::from_secs(5), ..LeaseRequest::new("default", "me") };
        let Some(task) = engine.lease(ask).await?.pop() else { break };
        let failure = Failure::new(Trigger::Error, "not yet");
        let end =
            if task.attempt_number < 3 { ReportEnd::Failed(failure) } else { ReportEnd::Succeeded { result: None } };
        let answer = engine.report(vec![Report { lease: task.lease, end }]).await?.remove(0)?;
        println!("attempt {}: {} {:?}", task.attempt_number, answer.state, answer.reason);
        if answer.state.is_terminal() {
            println!("{}", engine.why("default", answer.task).await?.text);
            break;
        }
    }
    Ok(std::fs::remove_file(&folder)?)
}
