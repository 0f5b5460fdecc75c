//! The epoch of a database: it changes whenever the database goes back in time, so that a lease token from before a restore is
//! never taken for one from after it. Both databases keep it in `meta`, together with what tells them that they were restored.

use uuid::Uuid;

use crate::{PutIf, Store, StoreError};

/// The epoch; absent in the first one.
pub(crate) const EPOCH: &str = "lease_epoch";
/// Where the database was when its epoch began: a restored copy finds itself somewhere else.
pub(crate) const HOME: &str = "lease_epoch_home";
/// Present in a copy that `db backup` made, until somebody opens it.
pub(crate) const COPIED: &str = "lease_epoch_copied";

/// A name that no other epoch and no other database has.
pub(crate) fn fresh() -> String {
    Uuid::now_v7().simple().to_string()
}

/// Begins a new epoch by hand, for restores that nothing can detect, such as a snapshot of a whole disk.
pub async fn begin_epoch(store: &dyn Store) -> Result<String, StoreError> {
    store.put_meta(EPOCH, &fresh(), PutIf::Always, None).await
}
