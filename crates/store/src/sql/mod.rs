//! Statements that are the same on both databases, written once.
//!
//! Hot paths (claims, verdicts, promotion) are written for each database by itself.

pub mod control;
pub mod due;
pub mod error_groups;
pub mod executions;
pub mod lanes;
pub mod operations;
pub mod resources;
pub mod retention;
pub mod rules;
pub mod shared;
pub mod stats;
pub mod tasks;

/// A statement as each database takes it: parameters are `$1` in PostgreSQL and `?1` in SQLite.
pub struct Sql {
    pub postgres: &'static str,
    pub sqlite: &'static str,
}

/// The same text with other marks, which are as long.
const fn question_marks<const LENGTH: usize>(text: &str) -> [u8; LENGTH] {
    let (bytes, mut marked, mut at) = (text.as_bytes(), [0; LENGTH], 0);
    while at < LENGTH {
        marked[at] = if bytes[at] == b'$' { b'?' } else { bytes[at] };
        at += 1;
    }
    marked
}

/// Declares statements; their parameters are written as `$1`.
macro_rules! sql {
    ($($(#[$doc:meta])* $name:ident = $text:literal;)+) => {$(
        $(#[$doc])*
        pub const $name: $crate::sql::Sql = {
            const MARKED: [u8; $text.len()] = $crate::sql::question_marks($text);
            let sqlite = match std::str::from_utf8(&MARKED) {
                Ok(text) => text,
                Err(_) => panic!("a statement is text"),
            };
            $crate::sql::Sql { postgres: $text, sqlite }
        };
    )+};
}

use sql;

#[cfg(test)]
mod tests {
    sql! {
        BOTH = "select a from b where c = $1 and d > $2";
    }

    #[test]
    fn each_database_gets_the_marks_it_knows() {
        assert_eq!(BOTH.postgres, "select a from b where c = $1 and d > $2");
        assert_eq!(BOTH.sqlite, "select a from b where c = ?1 and d > ?2");
    }
}
