//! One column of a row, for both databases: how its values are written and read.

use std::sync::Arc;

use rusqlite::types::{Null, ValueRef};
use tokio_postgres::types::{FromSql, ToSql};
use uuid::Uuid;

/// A type of column.
pub trait Column: Sized + 'static {
    /// The name of the type in PostgreSQL.
    const POSTGRES: &'static str;
    /// The value as PostgreSQL sends and takes it.
    type Raw<'a>: FromSql<'a> + ToSql + Sync;

    fn raw(&self) -> Self::Raw<'_>;
    fn from_raw(raw: Self::Raw<'_>) -> Self;
    fn bind_sqlite(&self, to: &mut rusqlite::Statement<'_>, place: usize) -> rusqlite::Result<()>;
    fn read_sqlite(row: &rusqlite::Row<'_>, place: usize) -> rusqlite::Result<Self>;
}

/// Reads the columns of a row one after the other.
pub trait ColumnReader {
    type Error;

    fn column<C: Column>(&mut self) -> Result<C, Self::Error>;
}

macro_rules! number {
    ($($type:ty = $name:literal),+) => {$(
        impl Column for $type {
            const POSTGRES: &'static str = $name;
            type Raw<'a> = $type;

            fn raw(&self) -> $type {
                *self
            }

            fn from_raw(raw: $type) -> $type {
                raw
            }

            fn bind_sqlite(&self, to: &mut rusqlite::Statement<'_>, place: usize) -> rusqlite::Result<()> {
                to.raw_bind_parameter(place, self)
            }

            fn read_sqlite(row: &rusqlite::Row<'_>, place: usize) -> rusqlite::Result<$type> {
                row.get(place)
            }
        }
    )+};
}

number!(i16 = "int2", i32 = "int4", i64 = "int8");

impl Column for Uuid {
    const POSTGRES: &'static str = "uuid";
    type Raw<'a> = Uuid;

    fn raw(&self) -> Uuid {
        *self
    }

    fn from_raw(raw: Uuid) -> Uuid {
        raw
    }

    fn bind_sqlite(&self, to: &mut rusqlite::Statement<'_>, place: usize) -> rusqlite::Result<()> {
        to.raw_bind_parameter(place, self.as_bytes().as_slice())
    }

    fn read_sqlite(row: &rusqlite::Row<'_>, place: usize) -> rusqlite::Result<Uuid> {
        row.get(place).map(Uuid::from_bytes)
    }
}

macro_rules! borrowed {
    ($($type:ty as $raw:ty = $name:literal, $read:ident;)+) => {$(
        impl Column for $type {
            const POSTGRES: &'static str = $name;
            type Raw<'a> = &'a $raw;

            fn raw(&self) -> &$raw {
                self
            }

            fn from_raw(raw: &$raw) -> $type {
                raw.into()
            }

            fn bind_sqlite(&self, to: &mut rusqlite::Statement<'_>, place: usize) -> rusqlite::Result<()> {
                to.raw_bind_parameter(place, self.raw())
            }

            fn read_sqlite(row: &rusqlite::Row<'_>, place: usize) -> rusqlite::Result<$type> {
                Ok(row.get_ref(place)?.$read()?.into())
            }
        }
    )+};
}

borrowed! {
    String as str = "text", as_str;
    Arc<str> as str = "text", as_str;
    Vec<u8> as [u8] = "bytea", as_blob;
}

impl<C: Column> Column for Option<C> {
    const POSTGRES: &'static str = C::POSTGRES;
    type Raw<'a> = Option<C::Raw<'a>>;

    fn raw(&self) -> Option<C::Raw<'_>> {
        self.as_ref().map(C::raw)
    }

    fn from_raw(raw: Option<C::Raw<'_>>) -> Option<C> {
        raw.map(C::from_raw)
    }

    fn bind_sqlite(&self, to: &mut rusqlite::Statement<'_>, place: usize) -> rusqlite::Result<()> {
        match self {
            Some(value) => value.bind_sqlite(to, place),
            None => to.raw_bind_parameter(place, Null),
        }
    }

    fn read_sqlite(row: &rusqlite::Row<'_>, place: usize) -> rusqlite::Result<Option<C>> {
        match row.get_ref(place)? {
            ValueRef::Null => Ok(None),
            _ => C::read_sqlite(row, place).map(Some),
        }
    }
}

/// Declares a row: its struct, the names of its columns, and how it is read.
///
/// With `arrays Name`, PostgreSQL takes many of them at once, as one array per column, and SQLite binds them one by one. Columns
/// behind `apart` have no part in that: whoever writes the row binds them.
macro_rules! row {
    ($(#[$doc:meta])* $row:ident arrays $arrays:ident { $($fields:tt)+ } $($apart:tt)*) => {
        $crate::column::row! { $(#[$doc])* $row { $($fields)+ } $($apart)* }
        $crate::column::arrays! { $row $arrays { $($fields)+ } }
    };
    (
        $(#[$doc:meta])*
        $row:ident { $($(#[$about:meta])* $field:ident: $type:ty,)+ }
        $(apart { $($(#[$beside:meta])* $other:ident: $kind:ty,)+ })?
    ) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Default, PartialEq)]
        pub struct $row {
            $($(#[$about])* pub $field: $type,)+
            $($($(#[$beside])* pub $other: $kind,)+)?
        }

        impl $row {
            /// The names of the columns, in the order in which they are read and bound.
            pub const COLUMNS: &'static [&'static str] = &[$(stringify!($field),)+ $($(stringify!($other),)+)?];

            pub fn read<R: $crate::column::ColumnReader>(from: &mut R) -> Result<$row, R::Error> {
                Ok($row {
                    $($field: from.column()?,)+
                    $($($other: from.column()?,)+)?
                })
            }
        }
    };
}

macro_rules! arrays {
    ($row:ident $arrays:ident { $($(#[$about:meta])* $field:ident: $type:ty,)+ }) => {
        impl $row {
            /// Binds the columns in their order; answers how many those are.
            pub fn bind_sqlite(&self, to: &mut rusqlite::Statement<'_>) -> rusqlite::Result<usize> {
                let mut place = 0;
                $(
                    place += 1;
                    $crate::column::Column::bind_sqlite(&self.$field, to, place)?;
                )+
                Ok(place)
            }
        }

        /// Many rows, as one array for each column.
        #[derive(Default)]
        pub struct $arrays<'a> {
            $($field: Vec<<$type as $crate::column::Column>::Raw<'a>>,)+
        }

        impl<'a> $arrays<'a> {
            pub fn push(&mut self, row: &'a $row) {
                $(self.$field.push($crate::column::Column::raw(&row.$field));)+
            }

            pub fn params(&self) -> Vec<&(dyn tokio_postgres::types::ToSql + Sync)> {
                vec![$(&self.$field as &(dyn tokio_postgres::types::ToSql + Sync)),+]
            }

            /// `$1::uuid[], $2::int4[], …`, counted from `first`.
            pub fn arrays(first: usize) -> String {
                let kinds = [$(<$type as $crate::column::Column>::POSTGRES),+];
                let marks = kinds.iter().zip(first..).map(|(kind, n)| format!("${n}::{kind}[]"));
                marks.collect::<Vec<_>>().join(", ")
            }

            /// The names, each with a prefix so that several sorts can stand side by side.
            pub fn names(prefix: &str) -> String {
                let names = [$(stringify!($field)),+];
                names.iter().map(|name| format!("{prefix}{name}")).collect::<Vec<_>>().join(", ")
            }

            /// How many columns there are.
            pub const WIDTH: usize = [$(stringify!($field)),+].len();
        }
    };
}

pub(crate) use {arrays, row};
