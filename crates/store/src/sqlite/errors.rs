//! Errors of SQLite, as a store tells them.

use crate::StoreError;

impl From<rusqlite::Error> for StoreError {
    fn from(error: rusqlite::Error) -> Self {
        use rusqlite::ffi::ErrorCode;
        match error.sqlite_error_code() {
            Some(ErrorCode::DiskFull | ErrorCode::DatabaseBusy | ErrorCode::CannotOpen | ErrorCode::ReadOnly) => {
                StoreError::Unavailable(error.to_string())
            }
            Some(ErrorCode::SystemIoFailure) => StoreError::Unknown(error.to_string()),
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => StoreError::Corrupt(error.to_string()),
            _ => StoreError::Refused(error.to_string()),
        }
    }
}
