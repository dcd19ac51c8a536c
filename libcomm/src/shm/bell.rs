//! Sleeping and being woken: one bell a rank, so that a rank sleeps on one word whatever it waits for.
//!
//! No wake-up is lost. The sleeper writes `sleepers` and `waiting_for`, fences, and then looks at its condition
//! once more; who makes the condition true writes it, fences, and then looks at `sleepers`. Of two such pairs at
//! least one sees the other's write. If the waker saw the sleeper, it counts the sleeper's bell up, and since the
//! sleeper read its bell before that last look, the futex does not sleep on the old value.

use std::time::Duration;

use super::View;
use super::atomic::{AcqRel, Acquire, Mutex, Relaxed, SeqCst, fence, sleep_while, wake_all};

/// Whoever it is: what a bell says whose rank waits for several peers.
const ANYONE: u32 = u32::MAX;

/// How many threads of this process sleep as its rank: several say `ANYONE`, since the bell has one place to say it.
#[derive(Default)]
pub(crate) struct Naps(Mutex<u32>);

/// The peer that a bell says its rank waits for, if it is one.
pub(crate) fn awaited(waiting_for: u32) -> Option<u32> {
    waiting_for.checked_sub(1).filter(|_| waiting_for != ANYONE)
}

impl View<'_> {
    /// Wakes the sleepers whose awaited rank + 1 is `wanted`. The caller has written what they wait for.
    pub(crate) fn ring(&self, wanted: impl Fn(u32) -> bool) {
        fence(SeqCst);
        if self.shared.sleepers.0.load(Relaxed) == 0 {
            return;
        }
        for block in self.ranks {
            let waiting_for = block.bell.waiting_for.load(Relaxed);
            if waiting_for == ANYONE || (waiting_for != 0 && wanted(waiting_for)) {
                block.bell.count.fetch_add(1, AcqRel);
                wake_all(&block.bell.count);
            }
        }
    }

    /// Sleeps as rank `me`, for `limit` at most, unless `done` after all. Returns for any reason or none.
    pub(crate) fn sleep(&self, me: u32, whom: [u32; 2], naps: &Naps, limit: Duration, done: impl Fn() -> bool) {
        let bell = &self.ranks[me as usize].bell;
        self.shared.sleepers.0.fetch_add(1, Relaxed);
        {
            let mut sleepers = naps.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            *sleepers += 1;
            let one = *sleepers == 1 && whom[0] == whom[1];
            bell.waiting_for.store(if one { whom[0] + 1 } else { ANYONE }, Relaxed);
        }
        let count = bell.count.load(Acquire);
        fence(SeqCst);
        if !done() {
            sleep_while(&bell.count, count, limit);
        }
        {
            let mut sleepers = naps.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            *sleepers -= 1;
            bell.waiting_for.store(if *sleepers == 0 { 0 } else { ANYONE }, Relaxed);
        }
        self.shared.sleepers.0.fetch_sub(1, Relaxed);
    }
}
