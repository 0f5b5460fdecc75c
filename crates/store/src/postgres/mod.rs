//! placeholder
pub struct PostgresStore;
pub struct PostgresOptions;
