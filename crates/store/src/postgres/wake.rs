//! Hints between instances. They are sent after a commit and never inside one, at most a few a second, and everything
//! works without them: whoever waits also looks by itself now and then.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use deadpool_postgres::Pool;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tokio_postgres::AsyncMessage;

use super::learn;
use super::rules;
use super::setup::{self, PostgresOptions};
use crate::dictionary::Dictionary;
use crate::{Background, Finished, Heartbeat, panic_point};

const CHANNEL: &str = "comeback_wake";
/// Hints are gathered for this long.
const GATHER: Duration = Duration::from_millis(50);
/// A failure that goes on is logged this often.
const LOG_EVERY: Duration = Duration::from_secs(60);
/// Without a connection for ten times as long, other instances are not heard.
const PERIOD: Duration = Duration::from_secs(3);

pub struct Wake {
    shared: Arc<Shared>,
    wakes: watch::Sender<u64>,
    tasks: Vec<tokio::task::JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    pending: Notify,
    work: AtomicBool,
    dictionary: AtomicBool,
}

impl Wake {
    pub fn start(
        options: PostgresOptions,
        readers: Pool,
        dictionary: Arc<Dictionary>,
        background: &Background,
    ) -> Wake {
        let shared = Arc::new(Shared::default());
        let (wakes, _) = watch::channel(0);
        let (hears, tells) = (shared.clone(), wakes.clone());
        let talk = background.spawn("postgres/listener", PERIOD, move |beat| {
            talk_and_listen(options.clone(), hears.clone(), tells.clone(), readers.clone(), dictionary.clone(), beat)
        });
        Wake { shared, wakes, tasks: vec![talk] }
    }

    pub fn notify(&self) {
        self.shared.work.store(true, Ordering::Release);
        self.shared.pending.notify_one();
    }

    pub fn dictionary_grew(&self) {
        self.shared.dictionary.store(true, Ordering::Release);
        self.shared.pending.notify_one();
    }

    pub fn wakes(&self) -> watch::Receiver<u64> {
        self.wakes.subscribe()
    }
}

impl Drop for Wake {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

/// Keeps one connection for hints, and makes a new one when it breaks.
async fn talk_and_listen(
    options: PostgresOptions,
    shared: Arc<Shared>,
    wakes: watch::Sender<u64>,
    readers: Pool,
    dictionary: Arc<Dictionary>,
    beat: Arc<Heartbeat>,
) -> Finished {
    let mut failures = Failures::default();
    loop {
        let connected = setup::connect(&options).await;
        if let Err(error) = &connected {
            failures.add(error);
        }
        if let Ok((client, mut connection)) = connected {
            let (messages, mut heard) = tokio::sync::mpsc::channel(64);
            let driver = tokio::spawn(async move {
                while let Some(Ok(message)) = std::future::poll_fn(|cx| connection.poll_message(cx)).await {
                    if let AsyncMessage::Notification(note) = message {
                        let _ = messages.try_send((note.process_id(), note.payload().to_owned()));
                    }
                }
            });
            let own: i32 = match client.query_one("select pg_backend_pid()", &[]).await {
                Ok(row) => row.get(0),
                Err(_) => 0,
            };
            let channel = format!("{CHANNEL}_{}", options.schema);
            let listening = client.batch_execute(&format!("listen {channel}")).await;
            if let Err(error) = &listening {
                failures.add(error);
            }
            if listening.is_ok() {
                failures.over();
                loop {
                    panic_point!("postgres-listener");
                    // A connection that is dead is found by its keepalives.
                    beat.idle();
                    tokio::select! {
                        note = heard.recv() => {
                            let Some((from, payload)) = note else { break };
                            beat.turn();
                            if from == own {
                                continue;
                            }
                            if payload.contains('d') {
                                let _ = learn::refresh(&readers, &dictionary).await;
                                let _ = rules::refresh(&readers, &dictionary).await;
                            }
                            wakes.send_modify(|count| *count += 1);
                        }
                        () = shared.pending.notified() => {
                            beat.turn();
                            tokio::time::sleep(GATHER).await;
                            let work = shared.work.swap(false, Ordering::AcqRel);
                            let grew = shared.dictionary.swap(false, Ordering::AcqRel);
                            let payload = match (work, grew) {
                                (_, true) => "d",
                                (true, false) => "w",
                                (false, false) => continue,
                            };
                            let sent = client.execute("select pg_notify($1, $2)", &[&channel, &payload]).await;
                            if sent.is_err() {
                                break;
                            }
                        }
                    }
                }
            }
            driver.abort();
            beat.turn();
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

/// Logs that LISTEN fails: the first time, and then once a minute while it goes on.
#[derive(Default)]
struct Failures {
    count: u64,
    logged: Option<Instant>,
    /// Since it worked last.
    is_logged: bool,
}

impl Failures {
    fn add(&mut self, error: &dyn std::fmt::Display) {
        self.count += 1;
        if self.logged.is_none_or(|logged| logged.elapsed() >= LOG_EVERY) {
            (self.logged, self.is_logged) = (Some(Instant::now()), true);
            tracing::warn!(%error, failures = self.count, "LISTEN failed; other instances are noticed by polling only");
        }
    }

    fn over(&mut self) {
        if self.is_logged {
            tracing::info!(failures = self.count, "LISTEN works again");
        }
        (self.count, self.is_logged) = (0, false);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::fmt::Debug;

    use parking_lot::Mutex;
    use tracing::field::{Field, Visit};
    use tracing::{Event, Metadata, Subscriber, span};

    use super::*;

    /// The messages of what is logged.
    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<String>>>);

    impl Visit for Log {
        fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
            if field.name() == "message" {
                self.0.lock().push(format!("{value:?}"));
            }
        }
    }

    impl Subscriber for Log {
        fn enabled(&self, metadata: &Metadata<'_>) -> bool {
            metadata.target().starts_with("comeback_store::postgres::wake")
        }
        fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
            span::Id::from_u64(1)
        }
        fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
        fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
        fn event(&self, event: &Event<'_>) {
            event.record(&mut self.clone());
        }
        fn enter(&self, _: &span::Id) {}
        fn exit(&self, _: &span::Id) {}
    }

    const FAILED: &str = "LISTEN failed; other instances are noticed by polling only";

    #[test]
    fn failures_that_go_on_are_logged_once_in_a_while() {
        let log = Log::default();
        let _guard = tracing::subscriber::set_default(log.clone());
        let mut failures = Failures::default();
        for _ in 0..1_000 {
            failures.add(&"refused");
        }
        assert_eq!(*log.0.lock(), [FAILED]);
        for _ in 0..1_000 {
            failures.over();
            failures.add(&"refused");
        }
        assert_eq!(*log.0.lock(), [FAILED, "LISTEN works again"], "also when it comes and goes");
    }

    /// F6: it was tried again each second without a word.
    #[tokio::test]
    async fn a_listener_that_cannot_connect_says_so() {
        let log = Log::default();
        let _guard = tracing::subscriber::set_default(log.clone());
        // A port that nobody listens at.
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let options = PostgresOptions::new(format!("postgres://nobody@127.0.0.1:{port}/nowhere"));
        let readers = setup::pools(&options).await.unwrap().read;
        let (background, dictionary) = (Background::default(), Arc::new(Dictionary::default()));
        let listener = background.register("postgres/listener", PERIOD);
        let (wakes, _) = watch::channel(0);
        let beat = listener.heartbeat().clone();
        let talks = talk_and_listen(options, Arc::default(), wakes, readers, dictionary, beat);
        let logged = async {
            while log.0.lock().is_empty() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::select! {
            _ = talks => {}
            () = logged => {}
            () = tokio::time::sleep(Duration::from_secs(60)) => {}
        }
        assert_eq!(*log.0.lock(), [FAILED]);
    }
}
