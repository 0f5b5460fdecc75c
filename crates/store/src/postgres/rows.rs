//! Reading rows back. The columns stand in the order of `row`.

use std::sync::Arc;

use tokio_postgres::Row;
use tokio_postgres::types::FromSql;
use uuid::Uuid;

use crate::row::{DoneRow, FixedRow, HistoryRow, OpenRow};

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

pub fn read_open(from: &mut Reader<'_>) -> Result<OpenRow, tokio_postgres::Error> {
    Ok(OpenRow {
        id: from.get()?,
        lane: from.get()?,
        execution_id: from.get()?,
        policy: from.get()?,
        state: from.get()?,
        prio: from.get()?,
        hold: from.get()?,
        submitted_at: from.get()?,
        version: from.get()?,
        seq: from.get()?,
        unwritten: from.get()?,
        ready_at: from.get()?,
        attempt: from.get()?,
        lost: from.get()?,
        throttled: from.get()?,
        snoozed: from.get()?,
        rule_counts: from.get()?,
        cycle: from.get()?,
        run: from.get()?,
        lease_no: from.get()?,
        worker: from.text()?,
        lease_at: from.get()?,
        lease_expires: from.get()?,
        due: from.get()?,
        start_at: from.get()?,
        next_retry_at: from.get()?,
        held_until: from.get()?,
        held_by: from.get()?,
        timeout_ms: from.get()?,
        attempt_deadline_ms: from.get()?,
        timeout_at: from.get()?,
        expires_at: from.get()?,
        hard_deadline: from.get()?,
        first_failed_at: from.get()?,
        started_at: from.get()?,
        updated_at: from.get()?,
        paused_from: from.get()?,
        parked: from.get()?,
        reason: from.get()?,
        class: from.get()?,
        fingerprint: from.get()?,
        expected: from.get()?,
        success: from.get()?,
        failures: from.get()?,
        needs_left: from.get()?,
        children_left: from.get()?,
        dead_end_barrier: from.get()?,
        gated: from.get()?,
        hooked: from.get()?,
        dedupe: from.get()?,
    })
}

pub fn read_done(from: &mut Reader<'_>) -> Result<DoneRow, tokio_postgres::Error> {
    Ok(DoneRow {
        id: from.get()?,
        lane: from.get()?,
        execution_id: from.get()?,
        policy: from.get()?,
        state: from.get()?,
        version: from.get()?,
        seq: from.get()?,
        attempt: from.get()?,
        lost: from.get()?,
        throttled: from.get()?,
        snoozed: from.get()?,
        cycle: from.get()?,
        run: from.get()?,
        lease_no: from.get()?,
        started_at: from.get()?,
        ended_at: from.get()?,
        updated_at: from.get()?,
        first_failed_at: from.get()?,
        expires_at: from.get()?,
        reason: from.get()?,
        class: from.get()?,
        fingerprint: from.get()?,
        expected: from.get()?,
        success: from.get()?,
        failures: from.get()?,
    })
}

pub fn read_fixed(from: &mut Reader<'_>) -> Result<FixedRow, tokio_postgres::Error> {
    Ok(FixedRow {
        priority: from.get()?,
        submitted_at: from.get()?,
        timeout_ms: from.get()?,
        attempt_deadline_ms: from.get()?,
        start_at: from.get()?,
        expires_at: from.get()?,
        hard_deadline: from.get()?,
        dead_end_barrier: from.get()?,
        gated: from.get()?,
        hooked: from.get()?,
    })
}

pub fn read_history(from: &mut Reader<'_>) -> Result<HistoryRow, tokio_postgres::Error> {
    Ok(HistoryRow {
        subject: from.get::<Uuid>()?,
        seq: from.get()?,
        execution_id: from.get()?,
        events: from.get()?,
        at: from.get()?,
        ready_at: from.get()?,
        started_at: from.get()?,
        cycle: from.get()?,
        run: from.get()?,
        attempt: from.get()?,
        lease_no: from.get()?,
        outcome: from.get()?,
        worker: from.text()?,
        actor: from.get()?,
        result: from.text()?,
        error: from.get()?,
        decision: from.get()?,
        data: from.get()?,
    })
}
