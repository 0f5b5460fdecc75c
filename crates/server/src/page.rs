//! Pages bounded in bytes and items: read in small batches until one of the bounds is reached.

use comeback_core::Record;
use comeback_engine::store::{ListCursor, Listed, Listing};

use serde_json::Value;

use crate::wire::task as shape;
use crate::wire::{Page, PageBytes};

/// Records per read: each may have a result of many kilobytes.
const RECORDS: usize = 32;
/// Maximum number of records that one page scans.
const MOST_RECORDS: usize = 10_000;
/// Tasks per read: list items are small.
const LINES: usize = 100;

/// Builds a page of a log. Reads one item more than the limit to know whether the page is the last.
pub struct LogPage {
    limit: usize,
    items: Vec<Value>,
    bytes: PageBytes,
    asked: usize,
    looked_at: usize,
    /// Position of the last item.
    last: u32,
    next: Option<u32>,
}

impl LogPage {
    /// An empty page with a limit.
    pub fn new(limit: u32) -> LogPage {
        let (items, bytes) = (Vec::new(), PageBytes::default());
        LogPage { limit: limit as usize, items, bytes, asked: 0, looked_at: 0, last: 0, next: None }
    }

    /// Number of records to read next.
    pub fn wants(&mut self) -> u32 {
        self.asked = (self.limit - self.items.len() + 1).min(RECORDS);
        u32::try_from(self.asked).unwrap_or(1)
    }

    /// Adds the items of the records read, each with its position. Returns where to read on, or `None` when the page is
    /// complete.
    pub fn add(
        &mut self,
        found: &[Record],
        place: impl Fn(&Record) -> u32,
        told: impl Fn(&Record) -> Vec<(u32, Value)>,
    ) -> Option<u32> {
        for (place, item) in found.iter().flat_map(told) {
            if self.items.len() >= self.limit || !self.bytes.fits(&item) {
                self.next = Some(self.last);
                return None;
            }
            self.items.push(item);
            self.last = place;
        }
        self.looked_at += found.len();
        let on = found.last().filter(|_| found.len() >= self.asked).map(place)?;
        if self.looked_at >= MOST_RECORDS {
            self.next = Some(on);
            return None;
        }
        Some(on)
    }

    /// The complete page.
    pub fn into_page(self) -> Page<Value> {
        Page { items: self.items, next_cursor: self.next.map(|place| place.to_string()) }
    }
}

/// Builds a page of a list of tasks.
pub struct ListPage {
    limit: usize,
    items: Vec<Listed>,
    after: Option<ListCursor>,
    bytes: PageBytes,
    /// Number of items of the last batch that fit: it is read again with this limit to get its cursor.
    fitting: Option<usize>,
    is_over: bool,
}

impl ListPage {
    /// An empty page with a limit and a start cursor.
    pub fn new(limit: u32, after: Option<ListCursor>) -> ListPage {
        let (items, bytes) = (Vec::new(), PageBytes::default());
        ListPage { limit: limit as usize, items, after, bytes, fitting: None, is_over: false }
    }

    /// Number of tasks to read next and the cursor, or `None` when the page is complete.
    pub fn wants(&self) -> Option<(u32, Option<ListCursor>)> {
        let most = self.fitting.unwrap_or_else(|| (self.limit - self.items.len()).min(LINES));
        let most = u32::try_from(most).ok().filter(|_| !self.is_over)?;
        Some((most, self.after))
    }

    /// Adds a batch, if it fits.
    pub fn add(&mut self, mut found: Listing) {
        if self.fitting.is_none() {
            let fitting = found.items.iter().take_while(|it| self.bytes.fits(&shape::line(it))).count();
            if fitting < found.items.len() {
                self.fitting = Some(fitting);
                self.is_over = fitting == 0;
                return;
            }
        }
        self.items.append(&mut found.items);
        self.after = found.next;
        self.is_over = self.fitting.is_some() || self.after.is_none() || self.items.len() >= self.limit;
    }

    /// The items found and the cursor of the next page.
    pub fn into_listing(self) -> Listing {
        Listing { items: self.items, next: self.after }
    }
}
