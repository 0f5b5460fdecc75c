//! The filter language, scopes of API keys, and cells of CSV files.

pub mod filter;
pub mod scope;
pub mod spreadsheet;
