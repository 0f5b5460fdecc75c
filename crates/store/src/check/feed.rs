//! The feed tells every event of everything that is not pruned, once, and in order: each task's own, and each execution's log.

use std::collections::HashMap;

use uuid::Uuid;

use super::{Check, PAGE};
use crate::StoreError;

/// Tasks and executions whose place in the feed is remembered at a time; with more of them it is read several times.
const AT_A_TIME: u64 = 2_000_000;

#[derive(Clone, Copy, Default)]
struct Told {
    events: i64,
    last: u32,
    /// The first number that came out of order.
    disorder: Option<u32>,
}

impl Check<'_> {
    pub(super) async fn feed(&mut self) -> Result<(), StoreError> {
        self.begin("feed", "its rows");
        let horizon = self.horizon().await?;
        let rows = self.look.count("feed").await?;
        let passes = (self.look.count("task").await? + self.look.count("execution").await?).div_ceil(AT_A_TIME).max(1);
        self.report.looked_at(rows);
        for pass in 0..passes {
            let in_pass = |id: Uuid| id.as_u128() % u128::from(passes) == u128::from(pass);
            let in_turn = |id: Uuid| id >= horizon && in_pass(id);
            let homes = self.homes(in_pass).await?;
            let mut logs: HashMap<Uuid, u32> = HashMap::new();
            let mut told: HashMap<Uuid, Told> = HashMap::new();
            let (mut after, mut done) = ((-1, -1), 0);
            loop {
                let page = self.look.feed(after).await?;
                done += page.rows;
                for (id, first, last) in &page.items {
                    let Some(log) = homes.get(id) else { continue };
                    let end = logs.entry(*log).or_default();
                    if *first <= *end {
                        let words = format!("the feed tells event {first} of its log after event {end}");
                        self.report.found("feed-order", Some(*log), words);
                    }
                    *end = (*end).max(*last);
                }
                for (id, first, last) in page.items.into_iter().filter(|(id, _, _)| in_turn(*id)) {
                    let it = told.entry(id).or_default();
                    if first <= it.last && it.disorder.is_none() {
                        it.disorder = Some(first);
                    }
                    it.last = last;
                    it.events += i64::from(last) - i64::from(first) + 1;
                }
                self.tell(pass * rows + done, passes * rows);
                match page.next {
                    Some(next) => after = next,
                    None => break,
                }
            }
            for shared in [false, true] {
                let mut after = Uuid::nil();
                loop {
                    let page = if shared {
                        self.look.shared_events(after, PAGE).await?
                    } else {
                        self.look.lone_events(after, PAGE).await?
                    };
                    let Some((last, _)) = page.last() else { break };
                    after = *last;
                    for (id, events) in page.into_iter().filter(|(id, _)| in_turn(*id)) {
                        self.compare(id, events, told.remove(&id).unwrap_or_default());
                    }
                }
            }
            let mut left: Vec<Uuid> = told.into_keys().collect();
            left.sort_unstable();
            for id in left {
                self.report.found("feed", Some(id), "the feed tells of it, and it is not there");
            }
        }
        Ok(())
    }

    /// The log that each task writes into, for the executions of this turn; an execution writes into its own.
    async fn homes(&mut self, in_turn: impl Fn(Uuid) -> bool) -> Result<HashMap<Uuid, Uuid>, StoreError> {
        let mut homes = HashMap::new();
        let mut after = Uuid::nil();
        loop {
            let page = self.look.shared_tasks(after, PAGE).await?;
            let Some((last, _)) = page.last() else { return Ok(homes) };
            after = *last;
            for (task, execution) in page.into_iter().filter(|(_, execution)| in_turn(*execution)) {
                homes.insert(task, execution);
                homes.insert(execution, execution);
            }
        }
    }

    fn compare(&mut self, id: Uuid, events: i64, told: Told) {
        if let Some(first) = told.disorder {
            self.report.found("feed", Some(id), format!("the feed tells its event {first} out of order"));
        } else if told.events != events {
            self.report.found("feed", Some(id), format!("the feed tells {} of its {events} events", told.events));
        }
    }
}
