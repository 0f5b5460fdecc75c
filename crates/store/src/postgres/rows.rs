//! Reading rows back. The columns stand in the order of `row`.

use std::sync::Arc;

use tokio_postgres::Row;
use tokio_postgres::types::FromSql;

use crate::column::{Column, ColumnReader};

/// Reads one value after the other.
pub struct Reader<'a> {
    row: &'a Row,
    next: usize,
}

impl<'a> Reader<'a> {
    pub fn new(row: &'a Row) -> Reader<'a> {
        Reader { row, next: 0 }
    }

    pub fn get<T: FromSql<'a>>(&mut self) -> Result<T, tokio_postgres::Error> {
        let value = self.row.try_get(self.next);
        self.next += 1;
        value
    }

    pub fn text(&mut self) -> Result<Option<Arc<str>>, tokio_postgres::Error> {
        self.get::<Option<&str>>().map(|text| text.map(Arc::from))
    }
}

impl ColumnReader for Reader<'_> {
    type Error = tokio_postgres::Error;

    fn column<C: Column>(&mut self) -> Result<C, tokio_postgres::Error> {
        self.get::<C::Raw<'_>>().map(C::from_raw)
    }
}
