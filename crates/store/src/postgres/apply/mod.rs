//! Storing verdicts. Lone tasks go in two statements at most, whatever their number; an execution's commit locks the execution, then
//! its tasks, then writes everything or nothing.

mod lone;
mod whole;

use std::collections::BTreeSet;

use comeback_core::account::Move;
use comeback_core::{Commit, Timestamp};
use deadpool_postgres::{GenericClient, Transaction};
use lone::Lone;
use uuid::Uuid;

use super::control::pause_lock;
use super::{PostgresStore, accounts, audit, operations, payloads};
use crate::{Applied, Behalf, Idempotency, Loop, StoreError, Submission, Used, sql};

pub use lone::Verdict;
#[cfg(test)]
pub use lone::{END, MOVE};
pub use lone::{RETRY, SUCCESS};
pub use whole::{
    append, lock_executions, lock_log_order, read_execution, update_open, write_executions, write_feed,
    write_plain_feed,
};

pub async fn apply(
    store: &PostgresStore,
    commits: &[Commit],
    on_behalf_of: Option<Loop>,
    now: Timestamp,
) -> Result<Vec<Applied>, StoreError> {
    let mut answers = vec![Applied::Stale; commits.len()];
    // A task may stand in a call more than once; its later verdicts meet the facts that the first one made.
    let mut rest: Vec<usize> = (0..commits.len()).collect();
    while !rest.is_empty() {
        let mut seen: BTreeSet<Uuid> = BTreeSet::new();
        let (round, later): (Vec<usize>, Vec<usize>) = rest.into_iter().partition(|index| {
            let ids: Vec<Uuid> = subjects(&commits[*index]).collect();
            let fresh = ids.iter().all(|id| !seen.contains(id));
            seen.extend(ids);
            fresh
        });
        apply_round(store, commits, &round, on_behalf_of, now, &mut answers).await?;
        rest = later;
    }
    Ok(answers)
}

fn subjects(commit: &Commit) -> impl Iterator<Item = Uuid> {
    commit.writes.iter().map(|write| write.after.id.0).chain(executions(commit))
}

fn executions(commit: &Commit) -> impl Iterator<Item = Uuid> {
    commit.executions.iter().map(|write| write.after.id.0)
}

async fn apply_round(
    store: &PostgresStore,
    commits: &[Commit],
    round: &[usize],
    on_behalf_of: Option<Loop>,
    now: Timestamp,
    answers: &mut [Applied],
) -> Result<(), StoreError> {
    let (alone, round): (Vec<usize>, Vec<usize>) = round.iter().partition(|index| may_be_taken_back(&commits[**index]));
    for index in alone {
        answers[index] = apply_alone(store, &commits[index], on_behalf_of, now).await?;
    }
    if round.is_empty() {
        return Ok(());
    }
    let round = round.as_slice();
    let mut client = store.writer().await?;
    let (mut lone, mut whole) = Lone::part(store, commits, round)?;
    let marked = round.iter().any(|index| !commits[*index].marks.is_empty());
    // One sort of verdict and nothing else: the statement is its own transaction.
    let noted = round.iter().any(|index| !commits[*index].audit.is_empty() || !commits[*index].charges.is_empty());
    if whole.is_empty() && on_behalf_of.is_none() && lone.is_one_statement() && !noted && !marked {
        lone.write(&client, now, answers).await?;
        return Ok(());
    }
    let tx = client.transaction().await?;
    if let Some(name) = on_behalf_of
        && pause_lock(&tx, name, now).await?
    {
        for index in round {
            answers[*index] = Applied::Paused;
        }
        return Ok(());
    }
    lock_log_order(&tx, &whole.iter().flat_map(|index| executions(&commits[*index])).collect::<Vec<_>>()).await?;
    let mut free = round.to_vec();
    if marked {
        free = operations::take_steps(&tx, commits, round, answers).await?;
        (lone, whole) = Lone::part(store, commits, &free)?;
    }
    lone.write(&tx, now, answers).await?;
    if !whole.is_empty() {
        whole::apply(store, &tx, commits, &whole, now, answers).await?;
    }
    if marked {
        operations::leave_steps(&tx, commits, &free, answers).await?;
    }
    let mut charges = Vec::new();
    for index in round {
        note(&tx, &commits[*index], answers[*index]).await?;
        if answers[*index] == Applied::Done {
            charges.extend_from_slice(&commits[*index].charges);
        }
    }
    let moves = accounts::moves(&tx, &charges).await?;
    accounts::write(store, &tx, &moves).await?;
    crate::panic_point!("postgres-apply-before-commit");
    tx.commit().await?;
    Ok(())
}

/// A commit that edits a payload, reserves credits or books a budget has a transaction of its own.
fn may_be_taken_back(commit: &Commit) -> bool {
    let is_plain = commit.payloads.is_empty() && commit.bookings.is_empty();
    !is_plain || commit.charges.iter().any(|charge| charge.what == Move::Reserve)
}

async fn apply_alone(
    store: &PostgresStore,
    commit: &Commit,
    on_behalf_of: Option<Loop>,
    now: Timestamp,
) -> Result<Applied, StoreError> {
    let mut client = store.writer().await?;
    let tx = client.transaction().await?;
    if let Some(name) = on_behalf_of
        && pause_lock(&tx, name, now).await?
    {
        return Ok(Applied::Paused);
    }
    lock_log_order(&tx, &executions(commit).collect::<Vec<_>>()).await?;
    let answer = apply_one(store, &tx, commit, now).await?;
    if answer == Applied::Done {
        tx.commit().await?;
    }
    Ok(answer)
}

/// Writes the audit of a commit.
async fn note(tx: &Transaction<'_>, commit: &Commit, applied: Applied) -> Result<(), StoreError> {
    for audit in commit.audit.iter().filter(|_| applied == Applied::Done) {
        audit::write(tx, audit).await?;
    }
    Ok(())
}

/// The key comes before what it stands for: whoever uses it at the same moment waits for us here. What was not written takes its
/// key back with it.
pub async fn apply_once(
    store: &PostgresStore,
    namespace: &str,
    key: &Idempotency,
    commit: Option<&Commit>,
    now: Timestamp,
) -> Result<Applied, StoreError> {
    let mut client = store.writer().await?;
    let tx = client.transaction().await?;
    lock_log_order(&tx, &commit.into_iter().flat_map(executions).collect::<Vec<_>>()).await?;
    if let Some(refused) = refuse_used_key(&tx, namespace, key, now).await? {
        return Ok(refused);
    }
    let answer = match commit {
        Some(commit) => apply_one(store, &tx, commit, now).await?,
        None => Applied::Done,
    };
    if answer == Applied::Done {
        tx.commit().await?;
    }
    Ok(answer)
}

/// `None` if the key is ours now, otherwise the answer.
async fn refuse_used_key(
    tx: &Transaction<'_>,
    namespace: &str,
    key: &Idempotency,
    now: Timestamp,
) -> Result<Option<Applied>, StoreError> {
    if take_key(tx, namespace, key, "", now).await? {
        return Ok(None);
    }
    let used = find_key(tx, namespace, key).await?;
    Ok(Some(used.map_or(Applied::Stale, Applied::Used)))
}

/// Whether the key is ours now. Waits for a transaction that has taken it and is not over.
pub async fn take_key(
    client: &impl GenericClient,
    namespace: &str,
    key: &Idempotency,
    answer: &str,
    now: Timestamp,
) -> Result<bool, StoreError> {
    client.execute("insert into namespace (name) values ($1) on conflict do nothing", &[&namespace]).await?;
    let taken = client
        .execute(
            "insert into idempotency (namespace, scope, key, digest, answer, at)
             select id, $2, $3, $4, $5, $6 from namespace where name = $1 on conflict do nothing",
            &[&namespace, &key.scope, &key.key, &key.digest.as_slice(), &answer, &now.0],
        )
        .await?;
    Ok(taken == 1)
}

/// One verdict and what it makes, together.
pub async fn apply_spawning(
    store: &PostgresStore,
    commit: &Commit,
    spawn: &Submission,
    behalf: Behalf<'_>,
    now: Timestamp,
) -> Result<Applied, StoreError> {
    let book = store.dictionary.rules();
    let spawn = book.place(std::slice::from_ref(spawn));
    super::learn::learn_anyway(store, store.dictionary.news(&spawn)).await?;
    let mut client = store.writer().await?;
    let tx = client.transaction().await?;
    if super::rules::now_in_force(store, &tx).await?.generation != book.generation {
        return Ok(Applied::Stale);
    }
    lock_log_order(&tx, &executions(commit).collect::<Vec<_>>()).await?;
    match behalf {
        Behalf::Caller => {}
        Behalf::Loop(name) => {
            if pause_lock(&tx, name, now).await? {
                return Ok(Applied::Paused);
            }
        }
        Behalf::Key(namespace, key) => {
            if let Some(refused) = refuse_used_key(&tx, namespace, key, now).await? {
                return Ok(refused);
            }
        }
    }
    let answer = apply_one(store, &tx, commit, now).await?;
    if answer == Applied::Done {
        super::submit::spawn(store, &tx, &spawn[0], book.generation, now).await?;
        tx.commit().await?;
    }
    Ok(answer)
}

async fn apply_one(
    store: &PostgresStore,
    tx: &Transaction<'_>,
    commit: &Commit,
    now: Timestamp,
) -> Result<Applied, StoreError> {
    let mut answers = [Applied::Stale];
    if payloads::moved_on(tx, &commit.payloads).await? {
        return Ok(Applied::Stale);
    }
    let commits = std::slice::from_ref(commit);
    if !commit.marks.is_empty() && operations::take_steps(tx, commits, &[0], &mut answers).await?.is_empty() {
        return Ok(answers[0]);
    }
    let (lone, whole) = Lone::part(store, commits, &[0])?;
    lone.write(tx, now, &mut answers).await?;
    if !whole.is_empty() {
        whole::apply(store, tx, commits, &whole, now, &mut answers).await?;
    }
    let [answer] = answers;
    note(tx, commit, answer).await?;
    if answer == Applied::Done {
        for edit in &commit.payloads {
            payloads::write(tx, edit).await?;
        }
        let moves = accounts::moves(tx, &commit.charges).await?;
        if let Some(short) = accounts::write(store, tx, &moves).await? {
            return Ok(Applied::Unfunded(short));
        }
        // In one order for everybody, so that no two wait for each other.
        let mut bookings: Vec<_> = commit.bookings.iter().collect();
        bookings.sort_by_key(|it| (&it.namespace, &it.account));
        for booking in bookings {
            if !accounts::book(tx, booking).await? {
                return Ok(Applied::Stale);
            }
        }
    }
    Ok(answer)
}

pub async fn find_key(
    client: &impl GenericClient,
    namespace: &str,
    key: &Idempotency,
) -> Result<Option<Used>, StoreError> {
    let sql = sql::control::KEY_DIGEST.postgres;
    let found = client.query_opt(sql, &[&namespace, &key.scope, &key.key]).await?;
    Ok(found.map(|row| Used::by(row.get(0), key)))
}
