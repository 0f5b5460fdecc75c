//! Parts of which routes are made, for crates that add some ([`RouteSet`]).

pub use crate::auth::{Caller, Need};
pub use crate::idempotency::IdempotencyKey;
pub use crate::openapi::{Doc, Param, schema, schema_types};
pub use crate::page::ListPage;
pub use crate::route_set::{ErrorFormat, RouteSet};
pub use crate::routes::admin::NothingIn;
pub use crate::routes::events::{EventFilter, read_events};
pub use crate::routes::leases::{lease_now, report_all};
pub use crate::routes::{CURSOR, LIMIT, Line, Query, header_text, large, line, task_id};
pub use crate::wire::event::playbook_event_name;
pub use crate::wire::lease::ErrorIn;
pub use crate::wire::{
    Instant, MOST_PAGE_BYTES, Object, Page, Raw, instant, read as read_body, read_whole as read_body_at,
};
