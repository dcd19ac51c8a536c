//! How many calls on its GPU a rank has made, for those who wait for it in a call on the host.
//!
//! All ranks make the calls of the job's communicator in one order, those on the GPU among them. Who waits in a call on the
//! host has made all calls on the GPU that come before it. A peer that has made more of them, and is not yet where it is
//! awaited, has another order: it waits for us in its stream, and we for it here.
//!
//! *It is certain, however far ranks run ahead of each other.* A rank counts a call with Release before it launches it. Whoever
//! sees the count with Acquire sees all that the rank posted before; it looks again at what it waits for, and if that has not
//! come, the call on the GPU came first. What one rank does in several threads without an order of its own may look like that
//! for a moment, and goes on by itself; so nothing is said before it has stayed for a while ([`wait`](super::wait)).
//!
//! A call that is captured is made whenever its graph is replayed, which the host does not see. A rank that has captured one
//! judges nobody, and is not judged, until the next generation.

use super::View;
use super::atomic::{Acquire, Relaxed, Release};
use super::step::Stamp;
use crate::signature::Signature;

impl View<'_> {
    /// Counts a call of rank `me` on its GPU, before it is launched.
    pub(crate) fn count_on_device(&self, me: u32, generation: u32, call: &Signature) {
        let made = &self.ranks[me as usize].on_device;
        let calls = Stamp::count_in(made.calls.load(Relaxed), generation).unwrap_or(0);
        made.number.store(call.number, Relaxed);
        made.kind.store(call.kind_word(), Relaxed);
        made.count.store(call.count, Relaxed);
        Stamp::new(generation, calls + 1).store_in(&made.calls);
    }

    /// Notes that rank `me` has captured one, so that its count says nothing any more.
    pub(crate) fn note_captured(&self, me: u32, generation: u32) {
        self.ranks[me as usize].on_device.captured.store(generation, Release);
    }

    /// How many `rank` has made; `None` once that says nothing.
    pub(crate) fn made_on_device(&self, rank: u32, generation: u32) -> Option<u64> {
        let made = &self.ranks[rank as usize].on_device;
        let calls = Stamp::count_in(made.calls.load(Acquire), generation).unwrap_or(0);
        (made.captured.load(Acquire) != generation).then_some(calls)
    }

    /// The last one of a rank that makes no other meanwhile.
    pub(crate) fn last_on_device(&self, rank: u32) -> Option<Signature> {
        let made = &self.ranks[rank as usize].on_device;
        Signature::from_words([&made.number, &made.kind, &made.count].map(|word| word.load(Relaxed)))
    }
}
