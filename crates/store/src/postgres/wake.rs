//! Hints between instances. They are sent after a commit and never inside one, at most a few a second, and everything
//! works without them: whoever waits also looks by itself now and then.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use deadpool_postgres::Pool;
use tokio::sync::{Notify, watch};
use tokio_postgres::AsyncMessage;

use super::learn;
use super::rules;
use super::setup::{self, PostgresOptions};
use crate::dictionary::Dictionary;
use crate::{Background, Finished, Heartbeat, panic_point};

const CHANNEL: &str = "comeback_wake";
/// Hints are gathered for this long.
const GATHER: Duration = Duration::from_millis(50);
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
    loop {
        if let Ok((client, mut connection)) = setup::connect(&options).await {
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
            if client.batch_execute(&format!("listen {channel}")).await.is_ok() {
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
