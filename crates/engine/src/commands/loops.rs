//! Pausing and resuming the loops. A pause survives restarts, holds on every instance and ends by itself.

use comeback_core::transition::Act;
use comeback_core::{Millis, Timestamp};
use comeback_store::{Loop, Pause};

use crate::{CommandError, Engine};

impl Engine {
    /// For a span, or until somebody resumes it. Once this returns, nothing of that loop happens anywhere (R-I16).
    pub async fn pause_loop(
        &self,
        name: Loop,
        span: Option<Millis>,
        note: Option<String>,
        by: Option<String>,
    ) -> Result<Pause, CommandError> {
        self.core.config.limits.check_act(&Act { by: by.clone(), note: note.clone() })?;
        let now = self.now();
        let pause = Pause { until: span.map_or(Timestamp::MAX, |span| now + span), note, by, at: now };
        self.core.store.set_pause(name, Some(pause.clone()), now).await?;
        Ok(pause)
    }

    pub async fn resume_loop(&self, name: Loop) -> Result<(), CommandError> {
        self.core.store.set_pause(name, None, self.now()).await?;
        if name.is_asked_for() {
            self.core.wake.everybody();
            self.core.store.notify();
        }
        self.core.ring(name);
        Ok(())
    }

    pub async fn paused_loops(&self) -> Result<Vec<(Loop, Pause)>, CommandError> {
        let now = self.now();
        let pauses = self.core.store.pauses().await?;
        Ok(pauses.into_iter().filter(|(_, pause)| pause.until > now).collect())
    }
}
