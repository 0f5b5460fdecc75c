//! A task fails until it is given up, without any database: `cargo run -p comeback-retry --example decide`.

use comeback_retry::*;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let policy: Policy = "exp(5s, x2, max 1m, 8 retries)".parse()?;
    let mut now = Timestamp(1_800_000_000_000);
    let mut task = Task::new(TaskId(Uuid::from_u128(1)), Default::default(), now);
    while !task.state.is_terminal() {
        let leased = transition::lease(&task, "worker-1", Millis::from_secs(60), now)?.after;
        let failure = Failure { status: Some(503), ..Failure::new(Trigger::Error, "Service Unavailable") };
        let outcome = Outcome { reporter: Reporter::Lease(leased.lease_number), end: End::Failed(failure) };
        let (decided, record) = decide(&Snapshot::new(leased, policy.clone()), &outcome, now)?.into_parts();
        println!("{}", explain::verdict(&record));
        now = decided.next_retry_at.unwrap_or(now);
        task = if decided.state == State::RetryPending { transition::promote(&decided, now)?.after } else { decided };
    }
    Ok(())
}
