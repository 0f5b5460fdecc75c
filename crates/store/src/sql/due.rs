//! Conditions for open tasks `o` for which a time has come: `$1` is now.

use super::sql;

sql! {
    LEASES = "o.lease_expires is not null and o.lease_expires <= $1 order by o.lease_expires, o.id";
    TIMEOUTS = "o.timeout_at is not null and o.timeout_at <= $1 order by o.timeout_at, o.id";
    /// Tasks that wait for their first start, a run or a retry; running ones too where the deadline is hard.
    DEADLINES = "o.expires_at is not null and (o.state in (0, 1, 4) or (o.hard_deadline = 1 and o.state in (2, 3)))
           and o.expires_at <= $1 order by o.expires_at, o.id";
    /// Whatever the time.
    GATES = "o.gated = 1 and o.state = 0 and o.needs_left = 0 and o.hold = 0 and cast($1 as bigint) is not null
           order by o.id";
}
