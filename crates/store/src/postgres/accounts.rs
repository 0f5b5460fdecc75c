//! Accounts. A reservation compares and writes in one statement, which waits for whoever moves the same account; several accounts
//! are moved in one order, after everything else of a transaction.

use std::collections::BTreeMap;

use async_trait::async_trait;
use comeback_core::account::{Charge, Credits, Move};
use comeback_core::budget::{Booked, Booking};
use comeback_core::{Audit, Timestamp};
use deadpool_postgres::{GenericClient, Transaction};
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use super::{PostgresStore, audit};
use crate::accounts::{Account, AccountChange, Closed, Moves, Unfunded, cost_of, terms_from_json, terms_to_json};
use crate::{AccountStore, NewTask, StoreError, sql};

const WHAT: &str = sql::resources::ACCOUNTS.postgres;

fn read(row: &Row) -> Result<Account, StoreError> {
    Ok(Account {
        name: row.get(0),
        credits: Credits { held: row.get(1), reserved: row.get(2), spent: row.get(3) },
        terms: terms_from_json(row.get(4))?,
        created_at: Timestamp(row.get(5)),
        updated_at: Timestamp(row.get(6)),
    })
}

async fn find(
    client: &impl GenericClient,
    namespace: &str,
    name: &str,
    lock: &str,
) -> Result<Option<Account>, StoreError> {
    let sql = format!("{WHAT} and a.name = $2 {lock}");
    let statement = client.prepare_cached(&sql).await?;
    client.query_opt(&statement, &[&namespace, &name]).await?.as_ref().map(read).transpose()
}

/// Sums up charges.
pub async fn moves(tx: &Transaction<'_>, charges: &[Charge]) -> Result<Moves, StoreError> {
    let mut moves = Moves::default();
    if charges.is_empty() {
        return Ok(moves);
    }
    let ids: Vec<Uuid> = charges.iter().map(|charge| charge.task.0).collect();
    let sql = "select t.namespace, t.account, t.cost::int8 from unnest($1::uuid[]) with ordinality as i(id, n)
               join task t on t.id = i.id order by i.n";
    let statement = tx.prepare_cached(sql).await?;
    for (charge, row) in charges.iter().zip(tx.query(&statement, &[&ids]).await?) {
        let (account, cost) = cost_of(charge.task, row.get(1), row.get(2))?;
        moves.add(row.get(0), &account, charge.what, cost);
    }
    Ok(moves)
}

/// The credits that new tasks reserve.
pub fn of_new<'a>(store: &PostgresStore, tasks: impl Iterator<Item = &'a NewTask>) -> Moves {
    let mut moves = Moves::default();
    for new in tasks.filter(|new| new.task.metered) {
        let namespace = store.dictionary.namespace(&new.task.lane.namespace).unwrap_or_default();
        let (account, cost) = (new.body.account.as_deref().unwrap_or_default(), new.body.cost.unwrap_or(0));
        moves.add(namespace, account, Move::Reserve, cost.into());
    }
    moves
}

/// Makes the moves, or tells which account has too little: then the transaction must not be committed.
pub async fn write(store: &PostgresStore, tx: &Transaction<'_>, moves: &Moves) -> Result<Option<Unfunded>, StoreError> {
    for (namespace, name, sum) in moves.iter() {
        let compares = if compares_first(store, tx, namespace, name, sum.reserve).await? {
            "true"
        } else {
            "($3::int8 = 0 or held - reserved >= $3::int8)"
        };
        let sql = format!(
            "update account set held = held - $4::int8, reserved = reserved + $3::int8 - $4::int8 - $5::int8,
               spent = spent + $4::int8
             where namespace = $1 and name = $2 and {compares}"
        );
        let statement = tx.prepare_cached(&sql).await?;
        let written = tx.execute(&statement, &[&namespace, &name, &sum.reserve, &sum.spend, &sum.release]).await?;
        if written == 0 && sum.reserve > 0 {
            let sql = sql::resources::CREDITS_LEFT.postgres;
            let available = tx.query_opt(sql, &[&namespace, &name]).await?.map_or(0, |row| row.get(0));
            return Ok(Some(Unfunded { required: sum.reserve, available }));
        }
    }
    Ok(None)
}

/// A mistake for tests that must notice it: what is there is looked at first, and then reserved without looking again.
#[cfg(any(test, feature = "conformance"))]
async fn compares_first(
    store: &PostgresStore,
    tx: &Transaction<'_>,
    namespace: i32,
    name: &str,
    reserve: i64,
) -> Result<bool, StoreError> {
    if !store.count_without_locks || reserve == 0 {
        return Ok(false);
    }
    let sql = "select held - reserved >= $3 from account where namespace = $1 and name = $2";
    let row = tx.query_opt(sql, &[&namespace, &name, &reserve]).await?;
    tokio::task::yield_now().await;
    Ok(row.is_some_and(|row| row.get(0)))
}

#[cfg(not(any(test, feature = "conformance")))]
async fn compares_first(_: &PostgresStore, _: &Transaction<'_>, _: i32, _: &str, _: i64) -> Result<bool, StoreError> {
    Ok(false)
}

/// Books a retry in all its periods, or tells that one of them is full: then the transaction must not be committed. Months come
/// before days, for everybody.
pub async fn book(tx: &Transaction<'_>, booking: &Booking) -> Result<bool, StoreError> {
    let sql = "insert into account_use as u (namespace, account, period, retries, cost)
               select id, $2, $3, 1, $4::int8 from namespace where name = $1 and $4::int8 <= coalesce($6::int8, $4::int8)
               on conflict (namespace, account, period) do update
                 set retries = u.retries + 1, cost = u.cost + excluded.cost
                 where u.retries < coalesce($5::int8, u.retries + 1)
                   and u.cost + excluded.cost <= coalesce($6::int8, u.cost + excluded.cost)";
    let statement = tx.prepare_cached(sql).await?;
    let most = |most: Option<u64>| most.map(|most| i64::try_from(most).unwrap_or(i64::MAX));
    for period in &booking.periods {
        let (retries, cost) = (most(period.most_retries), most(period.most_cost));
        let values: [&(dyn ToSql + Sync); 6] =
            [&booking.namespace, &booking.account, &period.name, &i64::from(booking.cost), &retries, &cost];
        if tx.execute(&statement, &values).await? == 0 {
            return Ok(false);
        }
    }
    Ok(true)
}

#[async_trait]
impl AccountStore for PostgresStore {
    async fn account(&self, namespace: &str, name: &str) -> Result<Option<Account>, StoreError> {
        self.read(async {
            let client = self.reader().await?;
            find(&*client, namespace, name, "").await
        })
        .await
    }

    async fn accounts(&self, namespace: &str, after: &str, limit: u32) -> Result<Vec<Account>, StoreError> {
        let sql = format!("{WHAT} and a.name collate \"C\" > $2 order by a.name collate \"C\" limit $3");
        self.rows(&sql, &[&namespace, &after, &i64::from(limit)]).await?.iter().map(read).collect()
    }

    async fn put_account(
        &self,
        namespace: &str,
        name: &str,
        change: &AccountChange,
        audit: Option<&Audit>,
        now: Timestamp,
    ) -> Result<Account, StoreError> {
        let mut client = self.writer().await?;
        client.execute(sql::control::ADD_NAMESPACE.postgres, &[&namespace]).await?;
        let tx = client.transaction().await?;
        // Of two who make the same account, the second finds the first one's.
        let fresh = tx
            .execute(
                "insert into account (namespace, name, held, reserved, spent, terms, created_at, updated_at)
                 select id, $2, 0, 0, 0, '{}', $3, $3 from namespace where name = $1 on conflict do nothing",
                &[&namespace, &name, &now.0],
            )
            .await?;
        let found = find(&tx, namespace, name, "for update of a").await?;
        let old = found.filter(|_| fresh == 0);
        let new = change.of(name, old.as_ref(), now);
        tx.execute(
            "update account set held = $3, terms = $4, updated_at = $5
             where namespace = (select id from namespace where name = $1) and name = $2",
            &[&namespace, &name, &new.credits.held, &terms_to_json(&new.terms), &now.0],
        )
        .await?;
        let audit = audit.map(|audit| audit.clone().changed(None, Some(new.facts())));
        audit::note(&tx, audit.as_ref(), old.as_ref().map(Account::facts)).await?;
        tx.commit().await?;
        Ok(new)
    }

    async fn delete_account(&self, namespace: &str, name: &str, audit: Option<&Audit>) -> Result<Closed, StoreError> {
        let mut client = self.writer().await?;
        let tx = client.transaction().await?;
        let Some(old) = find(&tx, namespace, name, "for update of a").await? else { return Ok(Closed::NotFound) };
        if old.credits.reserved != 0 {
            return Ok(Closed::InUse(old.credits.reserved));
        }
        let sql = "delete from account a using namespace n where n.id = a.namespace and n.name = $1 and a.name = $2";
        tx.execute(sql, &[&namespace, &name]).await?;
        audit::note(&tx, audit, Some(old.facts())).await?;
        tx.commit().await?;
        Ok(Closed::Gone)
    }

    async fn booked(
        &self,
        namespace: &str,
        account: &str,
        since: &str,
    ) -> Result<BTreeMap<String, Booked>, StoreError> {
        let sql = "select u.period, u.retries, u.cost from account_use u join namespace n on n.id = u.namespace
                   where n.name = $1 and u.account = $2 and u.period collate \"C\" >= $3";
        let number = |row: &Row, column: usize| row.get::<_, i64>(column).cast_unsigned();
        let read = |row: &Row| (row.get(0), Booked { retries: number(row, 1), cost: number(row, 2) });
        Ok(self.rows(sql, &[&namespace, &account, &since]).await?.iter().map(read).collect())
    }
}
