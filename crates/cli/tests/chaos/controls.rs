//! Checks need teeth: each of these breaks one promise on purpose, between the parts or inside the database, and the same run
//! with the same checker must name it.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;
use tokio_postgres::Client;

use crate::cluster::Cluster;
use crate::plan::Mix;
use crate::proxy::{self, Lie};

#[derive(Clone, Debug, Default)]
pub enum Sabotage {
    #[default]
    Nothing,
    /// Once, before anybody begins.
    Before(&'static str),
    /// Again and again while the clients work.
    Meanwhile(&'static str),
    /// Between the callers and the servers.
    Lie(Lie),
}

pub struct Control {
    pub name: &'static str,
    /// What the checker must call it.
    pub breaks: Option<&'static str>,
    pub sabotage: Sabotage,
    pub mix: Mix,
}

impl Sabotage {
    pub async fn begin(&self, cluster: &Cluster, urls: &mut Vec<String>) {
        match self {
            Sabotage::Before(sql) => {
                let client = connect(cluster).await.expect("a session");
                client.batch_execute(sql).await.expect("sabotage");
            }
            Sabotage::Lie(lie) => {
                for url in urls {
                    *url = proxy::start(url.clone(), *lie).await;
                }
            }
            Sabotage::Nothing | Sabotage::Meanwhile(_) => {}
        }
    }

    pub async fn go_on(self, cluster: Arc<Mutex<Cluster>>) {
        let Sabotage::Meanwhile(sql) = self else { return };
        let client = connect(&*cluster.lock().await).await.expect("a session");
        loop {
            tokio::time::sleep(Duration::from_millis(250)).await;
            client.batch_execute(sql).await.expect("sabotage");
        }
    }
}

async fn connect(cluster: &Cluster) -> Option<Client> {
    let client = cluster.connect().await?;
    client.batch_execute("set search_path = comeback").await.ok()?;
    Some(client)
}

/// A trigger that looks at every row before it is written.
macro_rules! trigger {
    ($table:literal, $on:literal, $body:literal) => {
        concat!(
            "create function comeback.sabotage() returns trigger language plpgsql as $$ begin ",
            $body,
            " return new; end $$; create trigger sabotage before ",
            $on,
            " on comeback.",
            $table,
            " for each row execute function comeback.sabotage();"
        )
    };
}

/// One of each sort of sabotage, and the one that breaks nothing.
pub const FEW: &[&str] =
    &["nothing_is_broken", "a_submit_is_acknowledged_and_not_made", "a_lease_is_given_away", "retries_come_early"];

pub fn all() -> Vec<Control> {
    let control = |name, breaks, sabotage| Control { name, breaks: Some(breaks), sabotage, mix: Mix::Everything };
    let before = |name, breaks, sql| control(name, breaks, Sabotage::Before(sql));
    let meanwhile = |name, breaks, sql| control(name, breaks, Sabotage::Meanwhile(sql));
    let lie = |name, breaks, lie| control(name, breaks, Sabotage::Lie(lie));
    vec![
        Control { name: "nothing_is_broken", breaks: None, sabotage: Sabotage::Nothing, mix: Mix::Everything },
        lie("a_submit_is_acknowledged_and_not_made", "R-I1", Lie::AcknowledgeSubmits),
        lie("a_report_is_acknowledged_and_not_taken", "R-I1", Lie::AcknowledgeReports),
        meanwhile("a_batch_is_torn", "R-I2", TEAR),
        lie("a_request_is_sent_twice", "R-I3", Lie::SendTwice),
        before("keys_are_forgotten", "R-I3", FORGET),
        meanwhile("a_lease_is_given_away", "R-I4", GIVE_AWAY),
        Control {
            name: "lease_numbers_go_back",
            breaks: Some("R-I5"),
            sabotage: Sabotage::Before(trigger!(
                "task_open",
                "update",
                "if new.lease_no > old.lease_no then new.lease_no := 1; end if;"
            )),
            mix: Mix::LateWorkers,
        },
        before(
            "retries_are_not_counted",
            "R-I7",
            trigger!(
                "task_open",
                "update",
                "if new.state = 4 and new.cycle = old.cycle then new.attempt := old.attempt; end if;"
            ),
        ),
        meanwhile("what_succeeded_runs_again", "R-I8", RESURRECT),
        before(
            "retries_come_early",
            "R-I10",
            trigger!("task_open", "update", "if new.state = 4 then new.due := new.due - 300; end if;"),
        ),
        lie("another_policy_is_stored", "R-I12", Lie::OtherPolicy),
        meanwhile(
            "children_do_not_wait",
            "R-I13",
            "update task_open set state = 1, needs_left = 0, version = version + 1
             where id in (select id from task_open where state = 0 and needs_left > 0 limit 2)",
        ),
        before(
            "a_pause_does_not_hold",
            "R-I16",
            trigger!(
                "task_open",
                "update",
                "if new.state = 5 and old.state in (1, 4) then
                   new.state := old.state; new.paused_from := null; new.due := old.due;
                 end if;"
            ),
        ),
        meanwhile("what_was_canceled_runs_again", "R-I17", UNCANCEL),
        meanwhile(
            "an_event_is_lost",
            "R-I18",
            "delete from history where (subject, seq) in (select subject, seq from history order by random() limit 2)",
        ),
        before("the_feed_skips", "R-I20", trigger!("feed", "insert", "if random() < 0.02 then return null; end if;")),
    ]
}

/// One task of a batch disappears without a trace.
const TEAR: &str = "
    create temporary table if not exists torn (id uuid);
    truncate torn;
    insert into torn select id from task where external_id ~ '^c[0-9]+-[0-9]+-1$' and execution_id is null
      order by random() limit 1;
    delete from task where id in (select id from torn);
    delete from task_open where id in (select id from torn);
    delete from task_done where id in (select id from torn);
    delete from history where subject in (select id from torn);";

/// The key is written, and gone when the transaction is.
const FORGET: &str = "
    create function comeback.forget() returns trigger language plpgsql as $$ begin
      delete from comeback.idempotency; return null;
    end $$;
    create trigger forget after insert on comeback.idempotency for each statement execute function comeback.forget();";

/// What somebody has is offered to others.
const GIVE_AWAY: &str = "
    update task_open set state = 1, worker = null, lease_at = null, lease_expires = null, timeout_at = null,
      started_at = null, version = version + 1, unwritten = (unwritten & 3)::int2
    where id in (select id from task_open where state = 3 and execution_id is null
      and lease_expires > extract(epoch from clock_timestamp()) * 1000 + 1000 limit 3)";

macro_rules! reopen {
    ($state:literal) => {
        concat!(
            "with gone as (delete from task_done where id in (select id from task_done
                 where state = ",
            $state,
            " and execution_id is null order by random() limit 2) returning *)
             insert into task_open (id, lane, policy, state, prio, hold, submitted_at, version, seq, unwritten, attempt,
               lost, throttled, snoozed, cycle, run, lease_no, hard_deadline, updated_at, parked, success, failures,
               needs_left, children_left, dead_end_barrier, dedupe)
             select g.id, g.lane, g.policy, 1, 0, 0, t.submitted_at, g.version + 1, g.seq, 0, g.attempt, g.lost,
               g.throttled, g.snoozed, g.cycle, g.run, g.lease_no, 0, g.updated_at, 0, 0, 0, 0, 0, 0, 0
             from gone g join task t on t.id = g.id"
        )
    };
}

const RESURRECT: &str = reopen!("6");
const UNCANCEL: &str = reopen!("9");
