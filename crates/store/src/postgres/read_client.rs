//! A connection that reads. A statement of an interactive read that nobody waits for any more is canceled on the server.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use deadpool_postgres::Object;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Row, Statement, ToStatement};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::StoreError;
use crate::interactive::Scope;

pub struct ReadClient {
    /// There until it is dropped.
    pub client: Option<Object>,
    pub interactive: Option<(Arc<Scope>, MakeRustlsConnect)>,
}

/// A connection that breaks in the middle of a read leaves nothing behind: these say "unavailable", never "unknown".
impl ReadClient {
    pub async fn prepare_cached(&self, sql: &str) -> Result<Statement, StoreError> {
        told(self.deref().prepare_cached(sql).await)
    }

    pub async fn query<S>(&self, statement: &S, parameters: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>, StoreError>
    where
        S: ?Sized + Sync + Send + ToStatement,
    {
        told(self.deref().query(statement, parameters).await)
    }

    pub async fn query_one<S>(&self, statement: &S, parameters: &[&(dyn ToSql + Sync)]) -> Result<Row, StoreError>
    where
        S: ?Sized + Sync + Send + ToStatement,
    {
        told(self.deref().query_one(statement, parameters).await)
    }

    pub async fn query_opt<S>(
        &self,
        statement: &S,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Option<Row>, StoreError>
    where
        S: ?Sized + Sync + Send + ToStatement,
    {
        told(self.deref().query_opt(statement, parameters).await)
    }
}

fn told<T>(answer: Result<T, tokio_postgres::Error>) -> Result<T, StoreError> {
    answer.map_err(|error| StoreError::from(error).of_a_read())
}

impl Deref for ReadClient {
    type Target = Object;

    #[allow(clippy::expect_used)]
    fn deref(&self) -> &Object {
        self.client.as_ref().expect("a client until it is dropped")
    }
}

impl DerefMut for ReadClient {
    #[allow(clippy::expect_used)]
    fn deref_mut(&mut self) -> &mut Object {
        self.client.as_mut().expect("a client until it is dropped")
    }
}

impl Drop for ReadClient {
    fn drop(&mut self) {
        let (Some(client), Some((scope, tls))) = (self.client.take(), self.interactive.take()) else { return };
        if !scope.is_over() {
            return;
        }
        // It may be in the middle of a statement, and a cancel may arrive late: nobody else gets this connection.
        let client = Object::take(client);
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        runtime.spawn(async move {
            if let Err(error) = client.cancel_token().cancel_query(tls).await {
                tracing::debug!(%error, "a statement that nobody waits for could not be canceled");
            }
            drop(client);
        });
    }
}
