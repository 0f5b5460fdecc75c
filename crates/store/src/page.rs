//! Cursors: where a reader stopped. Opaque outside; a text that is not one of ours is refused, never guessed at.

use std::fmt;
use std::str::FromStr;

use comeback_core::filter::Sort;
use uuid::Uuid;

/// The last line of a page, by the key it was sorted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListCursor {
    pub sort: Sort,
    pub key: i64,
    pub id: Uuid,
}

/// A place in the feed: after this event of this row. SQLite numbers rows in the order of commits (`transaction` is 0), PostgreSQL
/// gives them positions (`transaction` is [`FeedCursor::POSITIONS`]). Before it did, its cursors named a transaction and a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct FeedCursor {
    pub transaction: u64,
    pub row: u64,
    pub item: u32,
    pub seq: u32,
}

impl FeedCursor {
    /// Larger than the number of any transaction: an instance of an older version finds nothing after such a cursor, and leaves what
    /// follows the feed to the newer ones.
    pub const POSITIONS: u64 = 1 << 56;

    /// Before everything that the row at a position holds.
    pub fn at(position: u64) -> FeedCursor {
        FeedCursor { transaction: FeedCursor::POSITIONS, row: position, item: 0, seq: 0 }
    }

    /// Behind everything that the row at a position holds.
    pub fn end_of_position(position: u64) -> FeedCursor {
        FeedCursor::end_of(FeedCursor::POSITIONS, position)
    }

    /// Whether it names a position.
    pub fn is_position(&self) -> bool {
        self.transaction >= FeedCursor::POSITIONS
    }

    /// Behind everything a row holds.
    pub fn end_of(transaction: u64, row: u64) -> FeedCursor {
        FeedCursor { transaction, row, item: u32::MAX, seq: u32::MAX }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this is not a cursor")]
pub struct NotACursor;

impl fmt::Display for ListCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "l{}-{:x}-{}", self.sort.code(), self.key.cast_unsigned(), self.id.simple())
    }
}

impl FromStr for ListCursor {
    type Err = NotACursor;

    fn from_str(text: &str) -> Result<Self, NotACursor> {
        let mut parts = text.strip_prefix('l').ok_or(NotACursor)?.split('-');
        let mut next = || parts.next().ok_or(NotACursor);
        let sort = next()?.parse().ok().and_then(Sort::from_code).ok_or(NotACursor)?;
        let key = u64::from_str_radix(next()?, 16).map_err(|_| NotACursor)?.cast_signed();
        let id = Uuid::try_parse(next()?).map_err(|_| NotACursor)?;
        if parts.next().is_some() { Err(NotACursor) } else { Ok(ListCursor { sort, key, id }) }
    }
}

impl fmt::Display for FeedCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "f{:x}-{:x}-{:x}-{:x}", self.transaction, self.row, self.item, self.seq)
    }
}

impl FromStr for FeedCursor {
    type Err = NotACursor;

    fn from_str(text: &str) -> Result<Self, NotACursor> {
        let mut parts = text.strip_prefix('f').ok_or(NotACursor)?.split('-');
        let mut next = || u64::from_str_radix(parts.next().ok_or(NotACursor)?, 16).map_err(|_| NotACursor);
        let (transaction, row, item, seq) = (next()?, next()?, next()?, next()?);
        let small = |value: u64| u32::try_from(value).map_err(|_| NotACursor);
        let cursor = FeedCursor { transaction, row, item: small(item)?, seq: small(seq)? };
        if parts.next().is_some() { Err(NotACursor) } else { Ok(cursor) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursors_travel_as_text() {
        let list = ListCursor { sort: Sort::Due, key: -7, id: Uuid::from_u128(9) };
        assert_eq!(list.to_string().parse(), Ok(list));
        let feed = FeedCursor { transaction: 1, row: u64::MAX, item: 3, seq: 4 };
        assert_eq!(feed.to_string().parse(), Ok(feed));
    }

    #[test]
    fn what_is_not_a_cursor_is_refused() {
        for text in ["", "l", "f", "l0", "l0-1", "l9-1-0", "f1-2-3", "f1-2-3-4-5", "f1-2-3-fffffffff", "x", "l0-z-1"] {
            assert_eq!(text.parse::<ListCursor>(), Err(NotACursor), "{text}");
            assert_eq!(text.parse::<FeedCursor>(), Err(NotACursor), "{text}");
        }
    }
}
