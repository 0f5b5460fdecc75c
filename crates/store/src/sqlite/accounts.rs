//! Accounts. There is one writer, so what it compares and writes is one.

use std::collections::BTreeMap;

use async_trait::async_trait;
use comeback_core::account::{Charge, Credits, Move};
use comeback_core::budget::{Booked, Booking, Period};
use comeback_core::{Audit, Timestamp};
use rusqlite::{Connection, OptionalExtension, Row};

use super::submit::namespace_id;
use super::writer::Tx;
use super::{SqliteStore, audit};
use crate::accounts::{Account, AccountChange, Closed, Moves, Unfunded, cost_of, terms_from_json, terms_to_json};
use crate::{AccountStore, NewTask, StoreError, sql};

const WHAT: &str = sql::resources::ACCOUNTS.sqlite;

fn read(row: &Row<'_>) -> rusqlite::Result<Result<Account, StoreError>> {
    let (name, terms): (String, String) = (row.get(0)?, row.get(4)?);
    let credits = Credits { held: row.get(1)?, reserved: row.get(2)?, spent: row.get(3)? };
    let (created_at, updated_at) = (Timestamp(row.get(5)?), Timestamp(row.get(6)?));
    Ok(terms_from_json(&terms).map(|terms| Account { name, credits, terms, created_at, updated_at }))
}

pub fn one(connection: &Connection, namespace: &str, name: &str) -> Result<Option<Account>, StoreError> {
    let sql = format!("{WHAT} and a.name = ?2");
    connection.prepare_cached(&sql)?.query_row((namespace, name), read).optional()?.transpose()
}

pub fn page(connection: &Connection, namespace: &str, after: &str, limit: u32) -> Result<Vec<Account>, StoreError> {
    let sql = format!("{WHAT} and a.name > ?2 order by a.name limit ?3");
    let mut statement = connection.prepare_cached(&sql)?;
    statement.query_map((namespace, after, limit), read)?.map(|row| row?).collect()
}

pub fn put(
    connection: &Connection,
    namespace: &str,
    name: &str,
    change: &AccountChange,
    audit: Option<&Audit>,
    now: Timestamp,
) -> Result<Account, StoreError> {
    let old = one(connection, namespace, name)?;
    let new = change.of(name, old.as_ref(), now);
    let Credits { held, reserved, spent } = new.credits;
    let id = namespace_id(connection, namespace)?;
    connection
        .prepare_cached(
            "insert or replace into account (namespace, name, held, reserved, spent, terms, created_at, updated_at)
             values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
        )?
        .execute((id, name, held, reserved, spent, terms_to_json(&new.terms), new.created_at.0, now.0))?;
    let audit = audit.map(|audit| audit.clone().changed(None, Some(new.facts())));
    audit::note(connection, audit.as_ref(), old.as_ref().map(Account::facts))?;
    Ok(new)
}

pub fn delete(
    connection: &Connection,
    namespace: &str,
    name: &str,
    audit: Option<&Audit>,
) -> Result<Closed, StoreError> {
    let Some(old) = one(connection, namespace, name)? else { return Ok(Closed::NotFound) };
    if old.credits.reserved != 0 {
        return Ok(Closed::InUse(old.credits.reserved));
    }
    let id = namespace_id(connection, namespace)?;
    connection.execute("delete from account where namespace = ?1 and name = ?2", (id, name))?;
    audit::note(connection, audit, Some(old.facts()))?;
    Ok(Closed::Gone)
}

/// Sums up charges.
pub fn moves(connection: &Connection, charges: &[Charge]) -> Result<Moves, StoreError> {
    let mut moves = Moves::default();
    let mut statement = connection.prepare_cached("select namespace, account, cost from task where id = ?1")?;
    for charge in charges {
        let id = charge.task.0.as_bytes().as_slice();
        let (namespace, account, cost) =
            statement.query_row([id], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
        let (account, cost) = cost_of(charge.task, account, cost)?;
        moves.add(namespace, &account, charge.what, cost);
    }
    Ok(moves)
}

/// The credits that new tasks reserve.
pub fn of_new<'a>(namespace: i32, tasks: impl Iterator<Item = &'a NewTask>) -> Moves {
    let mut moves = Moves::default();
    for new in tasks.filter(|new| new.task.metered) {
        let (account, cost) = (new.body.account.as_deref().unwrap_or_default(), new.body.cost.unwrap_or(0));
        moves.add(namespace, account, Move::Reserve, cost.into());
    }
    moves
}

/// The first account that has too little for them.
pub fn short(connection: &Connection, moves: &Moves) -> Result<Option<Unfunded>, StoreError> {
    if moves.is_empty() {
        return Ok(None);
    }
    let mut statement = connection.prepare_cached(sql::resources::CREDITS_LEFT.sqlite)?;
    for (namespace, name, sum) in moves.iter().filter(|(_, _, sum)| sum.reserve > 0) {
        let available: i64 = statement.query_row((namespace, name), |row| row.get(0)).optional()?.unwrap_or_default();
        if available < sum.reserve {
            return Ok(Some(Unfunded { required: sum.reserve, available }));
        }
    }
    Ok(None)
}

pub fn write(connection: &Connection, moves: &Moves) -> Result<(), StoreError> {
    if moves.is_empty() {
        return Ok(());
    }
    let mut statement = connection.prepare_cached(
        "update account set held = held - ?4, reserved = reserved + ?3 - ?4 - ?5, spent = spent + ?4
         where namespace = ?1 and name = ?2",
    )?;
    for (namespace, name, sum) in moves.iter() {
        statement.execute((namespace, name, sum.reserve, sum.spend, sum.release))?;
    }
    Ok(())
}

pub fn booked(
    connection: &Connection,
    namespace: &str,
    account: &str,
    since: &str,
) -> Result<BTreeMap<String, Booked>, StoreError> {
    let sql = "select u.period, u.retries, u.cost from account_use u join namespace n on n.id = u.namespace
               where n.name = ?1 and u.account = ?2 and u.period >= ?3";
    let mut statement = connection.prepare_cached(sql)?;
    let rows = statement.query_map((namespace, account, since), |row| {
        let number = |column: usize| row.get::<_, i64>(column).map(i64::cast_unsigned);
        Ok((row.get(0)?, Booked { retries: number(1)?, cost: number(2)? }))
    })?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}

/// Whether one of their periods has no room for all of them.
pub fn is_full(connection: &Connection, bookings: &[Booking]) -> Result<bool, StoreError> {
    for (place, booking) in bookings.iter().enumerate() {
        let Some(first) = booking.periods.iter().map(|period| period.name.as_str()).min() else { continue };
        let mut booked = booked(connection, &booking.namespace, &booking.account, first)?;
        let same = |it: &&Booking| it.namespace == booking.namespace && it.account == booking.account;
        for earlier in bookings[..place].iter().filter(same) {
            for period in &earlier.periods {
                let sum = booked.entry(period.name.clone()).or_default();
                sum.retries += 1;
                sum.cost += u64::from(earlier.cost);
            }
        }
        let has_room =
            |period: &Period| period.has_room(booked.get(&period.name).copied().unwrap_or_default(), booking.cost);
        if !booking.periods.iter().all(has_room) {
            return Ok(true);
        }
    }
    Ok(false)
}

pub fn book(connection: &Connection, booking: &Booking) -> Result<(), StoreError> {
    let namespace = namespace_id(connection, &booking.namespace)?;
    let mut statement = connection.prepare_cached(
        "insert into account_use (namespace, account, period, retries, cost) values (?1, ?2, ?3, 1, ?4)
         on conflict do update set retries = retries + 1, cost = cost + excluded.cost",
    )?;
    for period in &booking.periods {
        statement.execute((namespace, &booking.account, &period.name, booking.cost))?;
    }
    Ok(())
}

#[async_trait]
impl AccountStore for SqliteStore {
    async fn account(&self, namespace: &str, name: &str) -> Result<Option<Account>, StoreError> {
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        self.read(move |connection, _| one(connection, &namespace, &name)).await
    }

    async fn accounts(&self, namespace: &str, after: &str, limit: u32) -> Result<Vec<Account>, StoreError> {
        let (namespace, after) = (namespace.to_owned(), after.to_owned());
        self.read(move |connection, _| page(connection, &namespace, &after, limit)).await
    }

    async fn put_account(
        &self,
        namespace: &str,
        name: &str,
        change: &AccountChange,
        audit: Option<&Audit>,
        now: Timestamp,
    ) -> Result<Account, StoreError> {
        let (namespace, name, change) = (namespace.to_owned(), name.to_owned(), change.clone());
        let audit = audit.cloned();
        let put = move |tx: &mut Tx<'_>| put(tx.connection, &namespace, &name, &change, audit.as_ref(), now);
        self.writer.run(put).await
    }

    async fn delete_account(&self, namespace: &str, name: &str, audit: Option<&Audit>) -> Result<Closed, StoreError> {
        let (namespace, name, audit) = (namespace.to_owned(), name.to_owned(), audit.cloned());
        self.writer.run(move |tx| delete(tx.connection, &namespace, &name, audit.as_ref())).await
    }

    async fn booked(
        &self,
        namespace: &str,
        account: &str,
        since: &str,
    ) -> Result<BTreeMap<String, Booked>, StoreError> {
        let (namespace, account, since) = (namespace.to_owned(), account.to_owned(), since.to_owned());
        self.read(move |connection, _| booked(connection, &namespace, &account, &since)).await
    }
}
