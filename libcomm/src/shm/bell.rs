//! Sleeping and being woken: one bell a rank, so that a rank sleeps on one word whatever it waits for.
//!
//! No wake-up is lost. The sleeper writes `sleepers` and `waiting_for`, fences, and then looks at its condition
//! once more; who makes the condition true writes it, fences, and then looks at `sleepers`. Of two such pairs at
//! least one sees the other's write. If the waker saw the sleeper, it counts the sleeper's bell up, and since the
//! sleeper read its bell before that last look, the futex does not sleep on the old value.

use std::time::Duration;

use super::View;
use super::atomic::{AcqRel, Acquire, Relaxed, SeqCst, fence, sleep_while, wake_all};

impl View<'_> {
    /// Wakes the sleepers whose awaited rank + 1 is `wanted`. The caller has written what they wait for.
    pub(crate) fn ring(&self, wanted: impl Fn(u32) -> bool) {
        fence(SeqCst);
        if self.shared.sleepers.0.load(Relaxed) == 0 {
            return;
        }
        for block in self.ranks {
            let waiting_for = block.bell.waiting_for.load(Relaxed);
            if waiting_for != 0 && wanted(waiting_for) {
                block.bell.count.fetch_add(1, AcqRel);
                wake_all(&block.bell.count);
            }
        }
    }

    /// Sleeps as rank `me`, for `limit` at most, unless `done` after all. Returns for any reason or none.
    pub(crate) fn sleep(&self, me: u32, whom: u32, limit: Duration, done: impl Fn() -> bool) {
        let bell = &self.ranks[me as usize].bell;
        self.shared.sleepers.0.fetch_add(1, Relaxed);
        bell.waiting_for.store(whom + 1, Relaxed);
        let count = bell.count.load(Acquire);
        fence(SeqCst);
        if !done() {
            sleep_while(&bell.count, count, limit);
        }
        bell.waiting_for.store(0, Relaxed);
        self.shared.sleepers.0.fetch_sub(1, Relaxed);
    }
}
