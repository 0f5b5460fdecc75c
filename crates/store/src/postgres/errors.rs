//! Errors of the driver, as a store tells them.

use crate::StoreError;

impl StoreError {
    /// A read that broke off did nothing.
    pub(super) fn of_a_read(self) -> StoreError {
        match self {
            StoreError::Unknown(what) => StoreError::Unavailable(what),
            other => other,
        }
    }
}

impl From<tokio_postgres::Error> for StoreError {
    fn from(error: tokio_postgres::Error) -> Self {
        use tokio_postgres::error::SqlState;
        match error.as_db_error() {
            // The connection went away in the middle: what was asked may have been done or not.
            None => StoreError::Unknown(error.to_string()),
            Some(db) => {
                let message = format!("{} ({})", db.message(), db.code().code());
                let passing = [
                    SqlState::T_R_SERIALIZATION_FAILURE,
                    SqlState::T_R_DEADLOCK_DETECTED,
                    SqlState::LOCK_NOT_AVAILABLE,
                    SqlState::QUERY_CANCELED,
                    SqlState::TOO_MANY_CONNECTIONS,
                    SqlState::ADMIN_SHUTDOWN,
                    SqlState::CRASH_SHUTDOWN,
                    SqlState::CANNOT_CONNECT_NOW,
                    SqlState::DISK_FULL,
                    SqlState::READ_ONLY_SQL_TRANSACTION,
                    SqlState::IDLE_IN_TRANSACTION_SESSION_TIMEOUT,
                ];
                match passing.contains(db.code()) {
                    true => StoreError::Unavailable(message),
                    false => StoreError::Refused(message),
                }
            }
        }
    }
}

impl From<deadpool_postgres::PoolError> for StoreError {
    fn from(error: deadpool_postgres::PoolError) -> Self {
        StoreError::Unavailable(error.to_string())
    }
}
