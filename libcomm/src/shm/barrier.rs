//! The epoch barrier: everyone has posted the step. The epoch is the step's stamp, so it only grows.

use super::View;
use super::step::Stamp;
use super::wait::{Stop, Waiter};

impl View<'_> {
    /// Returns once every rank has posted `stamp`, which the caller has posted before.
    ///
    /// What any rank wrote before its post, every rank sees after: each post is a Release store that each waiter
    /// reads with Acquire. The barrier cannot be overtaken: a rank that runs ahead into the next one posts a
    /// greater stamp, which satisfies those who still wait here just as well.
    pub(crate) fn await_all(&self, waiter: &Waiter, stamp: Stamp) -> Result<(), Stop> {
        let (me, size) = (waiter.me(), self.ranks.len() as u32);
        // From the next rank on, so that not all look at the same line first.
        (1..size).try_for_each(|distance| self.await_post(waiter, (me + distance) % size, stamp))
    }
}
