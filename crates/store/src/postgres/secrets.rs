//! Named secrets, as they are kept: encrypted.

use async_trait::async_trait;
use comeback_core::{Audit, Quota, QuotaExceeded, Timestamp};
use tokio_postgres::Row;

use super::{PostgresStore, audit};
use crate::{SealedSecret, SecretStore, StoreError, sql};

const SELECT: &str = sql::resources::SECRETS.postgres;

fn read(row: &Row) -> SealedSecret {
    SealedSecret {
        namespace: row.get(0),
        name: row.get(1),
        version: row.get::<_, i32>(2).cast_unsigned(),
        key_id: row.get(3),
        sealed: row.get(4),
        created_at: Timestamp(row.get(5)),
        updated_at: Timestamp(row.get(6)),
        updated_by: row.get(7),
    }
}

#[async_trait]
impl SecretStore for PostgresStore {
    async fn secret(&self, namespace: &str, name: &str) -> Result<Option<SealedSecret>, StoreError> {
        Ok(self
            .row(&format!("{SELECT} where n.name = $1 and s.name = $2"), &[&namespace, &name])
            .await?
            .map(|row| read(&row)))
    }

    async fn secrets(&self, namespace: &str, after: &str, limit: u32) -> Result<Vec<SealedSecret>, StoreError> {
        let sql =
            format!("{SELECT} where n.name = $1 and s.name collate \"C\" > $2 order by s.name collate \"C\" limit $3");
        let rows = self.rows(&sql, &[&namespace, &after, &i64::from(limit)]).await?;
        Ok(rows.iter().map(read).collect())
    }

    async fn all_secrets(&self, after: (&str, &str), limit: u32) -> Result<Vec<SealedSecret>, StoreError> {
        let sql = format!(
            "{SELECT} where (n.name collate \"C\", s.name collate \"C\") > ($1, $2)
             order by n.name collate \"C\", s.name collate \"C\" limit $3"
        );
        let rows = self.rows(&sql, &[&after.0, &after.1, &i64::from(limit)]).await?;
        Ok(rows.iter().map(read).collect())
    }

    /// Concurrent puts into one namespace go one after the other, so that its quota holds.
    async fn put_secret(
        &self,
        secret: &SealedSecret,
        most: u64,
        audit: Option<&Audit>,
        now: Timestamp,
    ) -> Result<(SealedSecret, bool), StoreError> {
        let mut client = self.writer().await?;
        client.execute(sql::control::ADD_NAMESPACE.postgres, &[&secret.namespace]).await?;
        let tx = client.transaction().await?;
        let namespace: i32 = tx
            .query_one("select id from namespace where name = $1 for no key update", &[&secret.namespace])
            .await?
            .get(0);
        let known = tx
            .query_opt("select 1 from secret where namespace = $1 and name = $2", &[&namespace, &secret.name])
            .await?
            .is_some();
        if !known {
            let count: i64 = tx.query_one(sql::resources::COUNT_SECRETS.postgres, &[&namespace]).await?.get(0);
            if count.cast_unsigned() >= most {
                return Err(QuotaExceeded { quota: Quota::Secrets, namespace: secret.namespace.clone(), most }.into());
            }
        }
        let row = tx
            .query_one(
                "insert into secret as s (namespace, name, version, key_id, sealed, created_at, updated_at, updated_by)
                 values ($1, $2, 1, $3, $4, $5, $5, $6)
                 on conflict (namespace, name) do update set version = s.version + 1, key_id = excluded.key_id,
                 sealed = excluded.sealed, updated_at = excluded.updated_at, updated_by = excluded.updated_by
                 returning s.version, s.created_at",
                &[&namespace, &secret.name, &secret.key_id, &secret.sealed, &now.0, &secret.updated_by],
            )
            .await?;
        audit::note(&tx, audit, None).await?;
        tx.commit().await?;
        let (version, created_at) = (row.get::<_, i32>(0).cast_unsigned(), Timestamp(row.get(1)));
        Ok((SealedSecret { version, created_at, updated_at: now, ..secret.clone() }, !known))
    }

    async fn reseal_secret(&self, secret: &SealedSecret) -> Result<bool, StoreError> {
        let client = self.writer().await?;
        let written = client
            .execute(
                sql::resources::RESEAL_SECRET.postgres,
                &[&secret.namespace, &secret.name, &secret.version.cast_signed(), &secret.key_id, &secret.sealed],
            )
            .await?;
        Ok(written == 1)
    }

    async fn delete_secret(&self, namespace: &str, name: &str, audit: Option<&Audit>) -> Result<bool, StoreError> {
        let mut client = self.writer().await?;
        let tx = client.transaction().await?;
        let sql = "delete from secret s using namespace n where n.id = s.namespace and n.name = $1 and s.name = $2";
        let gone = tx.execute(sql, &[&namespace, &name]).await? == 1;
        audit::note(&tx, audit.filter(|_| gone), None).await?;
        tx.commit().await?;
        Ok(gone)
    }
}
