//! Bulk operations on the wire.

use comeback_core::filter::fingerprint_to_hex;
use comeback_core::operation::{Excluded, Plan, WaveEnd};
use comeback_engine::{OperationView, Preview};
use serde_json::{Value, json};

use super::instant;

fn excluded(list: &[Excluded]) -> Value {
    let one = |it: &Excluded| json!({"reason": it.why, "state": it.state, "count": it.count, "sample": it.sample});
    list.iter().map(one).collect()
}

fn waves(plan: &Plan) -> Option<Value> {
    plan.waves.as_ref().map(|it| {
        let stop_if =
            it.stop_if.map(|stop| json!({"failed_over": stop.failed_over, "same_fingerprint": stop.same_fingerprint}));
        json!({"canary": it.canary, "size": it.size, "pause_ms": it.pause.0, "stop_if": stop_if})
    })
}

fn wave_end(it: &WaveEnd) -> Value {
    json!({
        "number": it.number,
        "tasks": it.tasks,
        "succeeded": it.succeeded,
        "failed": it.failed,
        "alike": it.alike,
        "fingerprint": it.fingerprint.map(fingerprint_to_hex),
    })
}

fn count(list: &[Excluded]) -> u32 {
    list.iter().map(|it| it.count).sum()
}

/// JSON of a dry run.
pub fn preview(it: &Preview) -> Value {
    json!({
        "id": null,
        "action": it.plan.action,
        "state": "dry_run",
        "filter": it.plan.filter,
        "matched": it.total,
        "eligible": it.eligible,
        "excluded": excluded(&it.excluded),
        "sample": it.sample,
        "cost": it.cost,
        "done": 0,
        "left": it.eligible,
        "undone": 0,
        "kept": [],
        "spread_ms": it.plan.spread,
        "waves": waves(&it.plan),
        "wave": null,
        "waves_done": [],
        "requested_by": it.plan.by,
        "note": it.plan.note,
        "created_at": it.at.to_rfc3339(),
        "updated_at": it.at.to_rfc3339(),
        "ended_at": null,
    })
}

/// JSON of an operation.
pub fn whole(it: &OperationView) -> Value {
    let (row, standing) = (&it.row, &it.standing);
    let eligible = row.total.saturating_sub(count(&standing.excluded));
    let wave = standing.wave.filter(|_| row.state.is_open());
    json!({
        "id": row.id,
        "action": it.plan.action,
        "state": row.state,
        "filter": it.plan.filter,
        "matched": row.total,
        "eligible": eligible,
        "excluded": excluded(&standing.excluded),
        "sample": [],
        "cost": null,
        "done": row.done,
        "left": eligible.saturating_sub(row.done),
        "undone": row.undone,
        "kept": excluded(standing.undo.as_ref().map_or(&[], |undo| undo.kept.as_slice())),
        "spread_ms": it.plan.spread,
        "waves": waves(&it.plan),
        "wave": wave.map(|wave| json!({"number": wave.number, "tasks": wave.to - wave.from, "sent_at": instant(wave.sent_at)})),
        "waves_done": standing.waves.iter().map(wave_end).collect::<Vec<_>>(),
        "requested_by": it.plan.by,
        "note": it.plan.note,
        "created_at": row.created_at.to_rfc3339(),
        "updated_at": row.updated_at.to_rfc3339(),
        "ended_at": instant(row.ended_at),
    })
}
