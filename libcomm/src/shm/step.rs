//! Steps: how far each rank is, and with that, whose turn it is to touch a slot.
//!
//! Each rank counts the steps that it has posted in the current generation. In step s (from 0) a rank writes its
//! slot of parity s, then posts: its count becomes s + 1, stored with Release. Whoever has seen that count with
//! Acquire may read the slot. The writer may use the slot again in step s + 2 once each reader has posted step
//! s + 1, for a reader does that only after it has read step s; so "may I write" asks for the same count as the
//! writer's own, and where all wait for all in every step it is true already.
//!
//! A post has two places, by the parity of its count, and each only grows; so "has it posted s" looks at the place of
//! s, where s stays readable, with the signature and payload beside it, until s + 2 is posted.
//!
//! The generation stands above the count, and a rank posts in a generation only after all have joined it. So a
//! count of a later generation never satisfies someone who still waits in an earlier one: nobody can have posted
//! it before that one left.

use super::View;
use super::atomic::{Acquire, AtomicU64, Release};
use super::layout::Post;
use super::wait::{Stop, Waiter};

const COUNT_BITS: u32 = 48;

/// The last generation whose number fits above the count.
pub(crate) const LAST_GENERATION: u32 = u16::MAX as u32;

/// "`count` steps of `generation` are posted", in one word that only grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Stamp(u64);

impl Stamp {
    pub(crate) fn new(generation: u32, count: u64) -> Stamp {
        debug_assert!(count < 1 << COUNT_BITS && generation <= LAST_GENERATION);
        Stamp(u64::from(generation) << COUNT_BITS | count)
    }

    /// How many a word says are posted in `generation`; `None` if it is of another one.
    pub(crate) fn count_in(word: u64, generation: u32) -> Option<u64> {
        (word >> COUNT_BITS == u64::from(generation)).then_some(word & ((1 << COUNT_BITS) - 1))
    }

    /// Makes a word that nobody sleeps for say so. Whoever sees it sees all that was written before.
    pub(crate) fn store_in(self, word: &AtomicU64) {
        word.store(self.0, Release);
    }

    /// Whether a word has come that far. If so, all that was written before it was announced there is visible.
    pub(crate) fn is_in(self, word: &AtomicU64) -> bool {
        word.load(Acquire) >= self.0
    }

    /// Which of the two places of a rank's posts is its.
    pub(crate) fn parity(self) -> usize {
        self.0 as usize % 2
    }
}

impl<'a> View<'a> {
    /// Publishes all that rank `me` has written so far, and wakes who sleeps for it.
    pub(crate) fn post(&self, me: u32, stamp: Stamp) {
        self.announce(&self.post_of(me, stamp).stamp, me, stamp);
    }

    /// The same in any word that nobody else writes and that only grows.
    pub(crate) fn announce(&self, word: &AtomicU64, me: u32, stamp: Stamp) {
        word.store(stamp.0, Release);
        self.ring(|waiting_for| waiting_for == me + 1);
    }

    /// Where `rank` announces `stamp`. Once that is posted it stays until the rank posts the second one after it.
    pub(crate) fn post_of(&self, rank: u32, stamp: Stamp) -> &'a Post {
        &self.ranks[rank as usize].control.posts[stamp.parity()]
    }

    /// Whether `rank` has come that far. If so, all that it wrote before is visible.
    pub(crate) fn has_posted(&self, rank: u32, stamp: Stamp) -> bool {
        stamp.is_in(&self.post_of(rank, stamp).stamp)
    }

    /// Waits until `rank` has come that far.
    pub(crate) fn await_post(&self, waiter: &Waiter, rank: u32, stamp: Stamp) -> Result<(), Stop> {
        waiter.wait(*self, rank, || self.has_posted(rank, stamp))
    }
}
