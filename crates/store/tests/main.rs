//! What is true of one database and not of the other, or of several at once. What is true of both is in `conformance`.

mod backup;
mod check;
mod file;
mod instances;
mod migration_lock;
mod tls;
