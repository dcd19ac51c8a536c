//! Who takes part in a communicator, and where its members' posts, slots and channels lie.
//!
//! The job's own communicator has its posts in the blocks of the segment, its slots in the parts behind them and its
//! channels at the front of the windows. One that was split off has all three in the windows of its members: a
//! [`Place`] with the posts, and a body of slots and channels. Its members are numbered anew; waits, exits and errors
//! keep to the ranks of the segment.
#![expect(unsafe_code, reason = "looks at places in windows")]

use super::View;
use super::atomic::{Acquire, AtomicU32, Release};
use super::layout::{Place, Post, part_of};
use super::segment::Mapping;
use super::step::Stamp;
use super::wait::{Stop, Waiter};

/// The members of one communicator, as one of them sees it.
pub(crate) struct Group {
    me: u32,
    size: u32,
    /// None: all ranks of the segment in their order.
    members: Option<Box<[Member]>>,
}

/// A member of a communicator that was split off.
pub(crate) struct Member {
    /// Its rank in the segment.
    pub(crate) rank: u32,
    /// In its window, mapped and zero until it writes there.
    pub(crate) place: *const Place,
    /// The same: two slots, then a channel to each member.
    pub(crate) body: *mut u8,
}

// SAFETY: the places are atomics, the bodies are handed over by steps and channels, and both stay mapped as long as
// the windows, which the communicator keeps.
unsafe impl Send for Group {}
// SAFETY: as above.
unsafe impl Sync for Group {}

impl Group {
    /// All ranks of the segment.
    pub(crate) fn all(me: u32, size: u32) -> Group {
        Group { me, size, members: None }
    }

    /// Some of them, in the new order.
    ///
    /// # Safety
    /// Places and bodies are mapped as long as this value is used, and no others.
    pub(crate) unsafe fn of(me: u32, members: Vec<Member>) -> Group {
        Group { me, size: members.len() as u32, members: Some(members.into_boxed_slice()) }
    }

    pub(crate) fn me(&self) -> u32 {
        self.me
    }

    pub(crate) fn size(&self) -> u32 {
        self.size
    }

    /// The rank in the segment of member `rank`.
    pub(crate) fn in_segment(&self, rank: u32) -> u32 {
        self.members.as_ref().map_or(rank, |members| members[rank as usize].rank)
    }

    /// Where member `rank` was split off to, unless this is the job's own communicator.
    pub(crate) fn member(&self, rank: u32) -> Option<&Member> {
        self.members.as_ref().map(|members| &members[rank as usize])
    }

    /// Where member `rank` announces `stamp`.
    pub(crate) fn post_of<'a>(&'a self, view: View<'a>, rank: u32, stamp: Stamp) -> &'a Post {
        match self.member(rank) {
            None => view.post_of(rank, stamp),
            Some(member) => &member.place().control.posts[stamp.parity()],
        }
    }

    /// Member `rank`'s slot of step `step`.
    pub(crate) fn slot(&self, mapping: &Mapping, rank: u32, step: u64) -> *mut u8 {
        let part = part_of(self.size, rank, step);
        match self.member(part) {
            None => mapping.slot(part, step),
            Some(member) => member.body.wrapping_add((step % 2) as usize * mapping.geometry().slot_bytes()),
        }
    }

    /// Whether member `rank` dropped the communicator without leaving it in order.
    pub(crate) fn has_dropped(&self, rank: u32) -> bool {
        self.member(rank).is_some_and(|member| member.place().gone.0.load(Acquire) != 0)
    }

    /// Tells the others that this member does so.
    pub(crate) fn drop_out(&self, view: View<'_>) {
        if let Some(member) = self.member(self.me) {
            let gone: &AtomicU32 = &member.place().gone.0;
            gone.store(1, Release);
            view.tell_all();
        }
    }

    /// After the barrier with which all leave: this member looks at the places of the others no more.
    pub(crate) fn let_go(&self) {
        for rank in (0..self.size).filter(|rank| *rank != self.me) {
            if let Some(member) = self.member(rank) {
                // Read with Acquire by the owner, before it makes the page zero.
                member.place().passed.0.fetch_add(1, Release);
            }
        }
    }

    /// Waits until member `rank` has posted `stamp`.
    pub(crate) fn await_post(&self, view: View<'_>, waiter: &Waiter, rank: u32, stamp: Stamp) -> Result<(), Stop> {
        if self.members.is_none() {
            return view.await_post(waiter, rank, stamp);
        }
        let post = self.post_of(view, rank, stamp);
        let whom = self.in_segment(rank);
        waiter.wait(view, whom, || stamp.is_in(&post.stamp) || self.has_dropped(rank))?;
        match stamp.is_in(&post.stamp) {
            true => Ok(()), // it came before the end did
            false => Err(self.why_left(view, waiter, rank)),
        }
    }

    /// Why a member that has dropped the communicator will not come: what made it do so, if that concerns all, goes first.
    pub(crate) fn why_left(&self, view: View<'_>, waiter: &Waiter, rank: u32) -> Stop {
        waiter.trouble(view, waiter.me()).unwrap_or(Stop::Left { rank: self.in_segment(rank) })
    }

    /// Waits until all have.
    pub(crate) fn await_all(&self, view: View<'_>, waiter: &Waiter, stamp: Stamp) -> Result<(), Stop> {
        if self.members.is_none() {
            return view.await_all(waiter, stamp);
        }
        (1..self.size).try_for_each(|distance| self.await_post(view, waiter, (self.me + distance) % self.size, stamp))
    }
}

impl Member {
    fn place(&self) -> &Place {
        // SAFETY: mapped as long as the group is used, as `Group::of` demands; atomics, for which all bits are valid.
        unsafe { &*self.place }
    }
}
