//! The small languages: policies as they are written, expressions, filters, and the words and times on the wire.

pub mod dialect;
pub mod expression;
pub mod filter;
pub mod id;
pub mod invalid;
pub mod mask;
pub mod scope;
pub mod spreadsheet;
pub mod time;
pub(crate) mod words;
