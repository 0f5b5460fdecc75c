//! Pausing and resuming the loops. A pause survives restarts, holds on every instance and ends by itself.

use comeback_core::transition::Actor;
use comeback_core::{AuditAction, Millis, Timestamp};
use comeback_store::{Loop, Pause};
use serde_json::json;

use crate::{CommandError, Engine};

/// Preview of a pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preview {
    /// The loop.
    pub name: Loop,
    /// Tasks that are due before the pause ends.
    pub delayed: u64,
    /// Of those, the ones that are then past their own deadline.
    pub past_deadline: u64,
    /// `None` if it must be resumed by hand.
    pub until: Option<Timestamp>,
}

impl Engine {
    /// Preview of a pause of this length that starts now.
    pub async fn preview_pause(&self, name: Loop, span: Option<Millis>) -> Result<Preview, CommandError> {
        let until = span.map(|span| self.now() + span);
        let due = self.core.store.due_before(until.unwrap_or(Timestamp::MAX)).await?;
        let (delayed, past_deadline) = match name {
            Loop::Retries => (due.retries, due.late_retries),
            Loop::Starts => (due.starts, due.late_starts),
            Loop::Reap => (due.leases, 0),
            Loop::Timeout => (due.timeouts, 0),
            Loop::Expire => (due.deadlines, 0),
            Loop::Schedule => (due.schedules, 0),
            Loop::Dispatch => (due.ready, 0),
            Loop::Flow | Loop::Prune | Loop::Hooks | Loop::Repair | Loop::Operations => (0, 0),
            Loop::Tell | Loop::Alerts => (0, 0),
        };
        Ok(Preview { name, delayed, past_deadline, until })
    }

    /// Pauses a loop for a span or until it is resumed. Once this returns, no instance runs it (R-I16).
    pub async fn pause_loop(&self, name: Loop, span: Option<Millis>, act: Actor) -> Result<Pause, CommandError> {
        self.core.config.limits.check_act(&act)?;
        let now = self.now();
        let until = span.map(|span| now + span);
        let after = json!({"until": until.map(Timestamp::to_rfc3339), "note": act.note, "by": act.by});
        let entry = self.entry(AuditAction::LoopPause, name.word(), &act).changed(None, Some(after));
        let pause = Pause { until: until.unwrap_or(Timestamp::MAX), note: act.note, by: act.by, at: now };
        self.core.store.set_pause(name, Some(pause.clone()), Some(&entry), now).await?;
        Ok(pause)
    }

    /// Resumes a paused loop.
    pub async fn resume_loop(&self, name: Loop, act: Actor) -> Result<(), CommandError> {
        self.core.config.limits.check_act(&act)?;
        let entry = self.entry(AuditAction::LoopResume, name.word(), &act);
        self.core.store.set_pause(name, None, Some(&entry), self.now()).await?;
        if name.is_asked_for() {
            self.core.wake.everybody();
            self.core.store.notify();
        }
        self.core.wake_loop(name);
        Ok(())
    }

    /// The loops that are paused.
    pub async fn paused_loops(&self) -> Result<Vec<(Loop, Pause)>, CommandError> {
        let now = self.now();
        let pauses = self.core.store.pauses().await?;
        Ok(pauses.into_iter().filter(|(_, pause)| pause.until > now).collect())
    }
}
