//! Pages that are bounded in bytes as well as in items: they are read in small pieces until one of the bounds is reached.

use comeback_core::Record;
use comeback_engine::store::{ListCursor, Listed, Listing};

use crate::routes::tasks::told_after;
use crate::wire::PageBytes;
use crate::wire::task as shape;

/// Records that are read at a time: each may have a result of many kilobytes.
const RECORDS: usize = 32;
/// Lines of tasks that are read at a time: they are small, as a rule.
const LINES: usize = 100;

/// A page of a log that is being read.
pub struct RecordPage {
    limit: usize,
    pub records: Vec<Record>,
    bytes: PageBytes,
    asked: usize,
    is_over: bool,
    /// Whether there may be more behind it.
    pub is_full: bool,
}

impl RecordPage {
    pub fn new(limit: u32) -> RecordPage {
        let (records, bytes) = (Vec::new(), PageBytes::default());
        RecordPage { limit: limit as usize, records, bytes, asked: 0, is_over: false, is_full: false }
    }

    /// How many records to read next, after the last one that is here; nothing when the page is done.
    pub fn wants(&mut self) -> Option<u32> {
        if self.is_over {
            return None;
        }
        self.asked = (self.limit - self.records.len()).min(RECORDS);
        u32::try_from(self.asked).ok()
    }

    /// Adds what was read, as far as it fits.
    pub fn add(&mut self, found: Vec<Record>) {
        let was_last = found.len() < self.asked;
        for record in found {
            if !self.bytes.fits(&told_after(std::slice::from_ref(&record), 0)) {
                (self.is_over, self.is_full) = (true, true);
                return;
            }
            self.records.push(record);
        }
        self.is_full = !was_last;
        self.is_over = was_last || self.records.len() >= self.limit;
    }

    /// The record to go on after, if there may be more.
    pub fn last_of_full(&self) -> Option<&Record> {
        self.records.last().filter(|_| self.is_full)
    }
}

/// A page of a list of tasks that is being read.
pub struct ListPage {
    limit: usize,
    items: Vec<Listed>,
    after: Option<ListCursor>,
    bytes: PageBytes,
    /// As many of the last piece fit: it is read once more to know where it ends.
    fitting: Option<usize>,
    is_over: bool,
}

impl ListPage {
    pub fn new(limit: u32, after: Option<ListCursor>) -> ListPage {
        let (items, bytes) = (Vec::new(), PageBytes::default());
        ListPage { limit: limit as usize, items, after, bytes, fitting: None, is_over: false }
    }

    /// How many to list next, and after which; nothing when the page is done.
    pub fn wants(&self) -> Option<(u32, Option<ListCursor>)> {
        let most = self.fitting.unwrap_or_else(|| (self.limit - self.items.len()).min(LINES));
        let most = u32::try_from(most).ok().filter(|_| !self.is_over)?;
        Some((most, self.after))
    }

    /// Adds what was listed, if it fits.
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

    /// What was found, and where to go on.
    pub fn into_listing(self) -> Listing {
        Listing { items: self.items, next: self.after }
    }
}
