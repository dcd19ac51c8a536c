#![doc = include_str!("README.md")]

pub(crate) mod abort;
pub(crate) mod atomic;
pub(crate) mod barrier;
pub(crate) mod bell;
pub(crate) mod group;
pub(crate) mod heap;
pub(crate) mod layout;
pub(crate) mod mailbox;
pub(crate) mod on_device;
pub(crate) mod recorder;
pub(crate) mod segment;
pub(crate) mod step;
pub(crate) mod text;
pub(crate) mod wait;

use atomic::AtomicU32;
use layout::{RankBlock, Shared};

/// The words of a segment that processes share: everything but identity and slots.
#[derive(Clone, Copy)]
pub(crate) struct View<'a> {
    /// Common words.
    pub(crate) shared: &'a Shared,
    /// How each rank ended.
    pub(crate) exits: &'a [AtomicU32],
    /// Each rank's block.
    pub(crate) ranks: &'a [RankBlock],
}

#[cfg(all(test, loom))]
mod loom_tests;
