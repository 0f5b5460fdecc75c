//! Documents: texts under names, with versions.

use async_trait::async_trait;
use comeback_core::{Audit, Timestamp};
use tokio_postgres::Row;

use super::{PostgresStore, audit};
use crate::{Collection, Document, DocumentStore, StoreError, sql};

const WHAT: &str = sql::resources::DOCUMENTS.postgres;

fn read(row: &Row) -> Document {
    Document {
        name: row.get(0),
        version: row.get::<_, i32>(1).cast_unsigned(),
        body: row.get(2),
        at: Timestamp(row.get(3)),
        namespace: row.get(4),
    }
}

async fn list(
    store: &PostgresStore,
    sql: &str,
    at: Collection<'_>,
    name: &str,
    limit: u32,
) -> Result<Vec<Document>, StoreError> {
    let rows = store.rows(sql, &[&at.namespace, &at.shelf, &name, &i64::from(limit)]).await?;
    Ok(rows.iter().map(read).collect())
}

#[async_trait]
impl DocumentStore for PostgresStore {
    async fn document(
        &self,
        at: Collection<'_>,
        name: &str,
        version: Option<u32>,
    ) -> Result<Option<Document>, StoreError> {
        let sql =
            format!("{WHAT} and d.name = $3 and ($4::int4 is null or d.version = $4) order by d.version desc limit 1");
        let version = version.map(u32::cast_signed);
        let row = self.row(&sql, &[&at.namespace, &at.shelf, &name, &version]).await?;
        Ok(row.as_ref().map(read))
    }

    async fn documents(&self, at: Collection<'_>, after: &str, limit: u32) -> Result<Vec<Document>, StoreError> {
        let sql = format!(
            "{WHAT} and d.name collate \"C\" > $3 and d.version = (select max(version) from document l
               where (l.namespace, l.shelf, l.name) = (d.namespace, d.shelf, d.name)) order by d.name collate \"C\" limit $4"
        );
        list(self, &sql, at, after, limit).await
    }

    async fn versions(&self, at: Collection<'_>, name: &str, limit: u32) -> Result<Vec<Document>, StoreError> {
        list(self, &format!("{WHAT} and d.name = $3 order by d.version desc limit $4"), at, name, limit).await
    }

    /// Two who write the same version: the key lets one of them through.
    async fn put_document(
        &self,
        at: Collection<'_>,
        name: &str,
        known: u32,
        body: &str,
        audit: Option<&Audit>,
        now: Timestamp,
    ) -> Result<bool, StoreError> {
        let mut client = self.writer().await?;
        client.execute(sql::control::ADD_NAMESPACE.postgres, &[&at.namespace]).await?;
        let tx = client.transaction().await?;
        let statement = tx
            .prepare_cached(
                "insert into document (namespace, shelf, name, version, body, at)
                 select n.id, $2, $3, $4 + 1, $5, $6 from namespace n where n.name = $1 and $4 = (
                   select coalesce(max(version), 0) from document d where d.namespace = n.id and d.shelf = $2 and d.name = $3)
                 on conflict do nothing",
            )
            .await?;
        let known = known.cast_signed();
        let written = tx.execute(&statement, &[&at.namespace, &at.shelf, &name, &known, &body, &now.0]).await?;
        audit::note(&tx, audit.filter(|_| written == 1), None).await?;
        tx.commit().await?;
        Ok(written == 1)
    }

    async fn delete_document(&self, at: Collection<'_>, name: &str) -> Result<bool, StoreError> {
        let client = self.writer().await?;
        let sql = "delete from document d using namespace n
                   where n.id = d.namespace and n.name = $1 and d.shelf = $2 and d.name = $3";
        Ok(client.execute(sql, &[&at.namespace, &at.shelf, &name]).await? > 0)
    }
}
