//! Names for new things: UUIDv7, growing with the store's clock and, within a millisecond, with every call.

use comeback_core::{ExecutionId, TaskId, Timestamp};
use parking_lot::Mutex;
use uuid::{Builder, Uuid};

pub struct Ids {
    state: Mutex<State>,
}

struct State {
    millis: u64,
    /// Counts within one millisecond, so that ids made in a row are in a row.
    count: u32,
    noise: u64,
}

impl Ids {
    /// The same seed gives the same ids, for simulations; none takes it from the machine.
    pub fn new(seed: Option<u64>) -> Ids {
        let noise = seed.unwrap_or_else(|| getrandom::u64().unwrap_or(0x9e37_79b9_7f4a_7c15));
        Ids { state: Mutex::new(State { millis: 0, count: 0, noise }) }
    }

    pub fn task(&self, now: Timestamp) -> TaskId {
        TaskId(self.next(now))
    }

    /// For a task that is older than others that have their names already: it sorts by its age, and among those of the same
    /// millisecond by chance.
    pub fn earlier_task(&self, at: Timestamp) -> TaskId {
        let mut state = self.state.lock();
        let mut random = [0; 10];
        state.noise = mix(state.noise);
        random[..8].copy_from_slice(&state.noise.to_be_bytes());
        state.noise = mix(state.noise);
        random[8..].copy_from_slice(&state.noise.to_be_bytes()[..2]);
        TaskId(Builder::from_unix_timestamp_millis(u64::try_from(at.0).unwrap_or(0), &random).into_uuid())
    }

    pub fn execution(&self, now: Timestamp) -> ExecutionId {
        ExecutionId(self.next(now))
    }

    pub fn act(&self, now: Timestamp) -> Uuid {
        self.next(now)
    }

    fn next(&self, now: Timestamp) -> Uuid {
        let mut state = self.state.lock();
        let millis = u64::try_from(now.0).unwrap_or(0);
        if millis > state.millis {
            state.millis = millis;
            state.count = 0;
        }
        state.count += 1;
        state.noise = mix(state.noise);
        let mut random = [0; 10];
        // The version takes four bits of the first byte and the variant two of the third: the count is laid around them.
        random[0] = u8::try_from(state.count >> 20 & 0x0f).unwrap_or(0);
        random[1] = u8::try_from(state.count >> 12 & 0xff).unwrap_or(0);
        random[2] = u8::try_from(state.count >> 6 & 0x3f).unwrap_or(0);
        random[3] = u8::try_from((state.count & 0x3f) << 2).unwrap_or(0);
        random[4..].copy_from_slice(&state.noise.to_be_bytes()[..6]);
        Builder::from_unix_timestamp_millis(state.millis, &random).into_uuid()
    }
}

/// One step of SplitMix64.
fn mix(state: u64) -> u64 {
    let mut z = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_unique_and_grow() {
        let ids = Ids::new(Some(1));
        let mut made: Vec<TaskId> = (0..5_000).map(|_| ids.task(Timestamp(1_800_000_000_000))).collect();
        made.extend((0..100).map(|_| ids.task(Timestamp(1_800_000_000_001))));
        made.push(ids.task(Timestamp(1_700_000_000_000)));
        assert!(made.is_sorted(), "even when the clock goes back");
        made.dedup();
        assert_eq!(made.len(), 5_101);
        assert!(made.iter().all(|id| id.0.get_version_num() == 7));
        let earlier = [3, 5].map(|millis| ids.earlier_task(Timestamp(millis)));
        assert!(earlier[0] < earlier[1] && earlier[1] < made[0] && earlier[0] != ids.earlier_task(Timestamp(3)));
        assert_eq!(Ids::new(Some(1)).task(Timestamp(5)), Ids::new(Some(1)).task(Timestamp(5)));
        assert_ne!(Ids::new(None).task(Timestamp(5)), Ids::new(None).task(Timestamp(5)));
    }
}
