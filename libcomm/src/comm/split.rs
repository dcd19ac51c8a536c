//! Communicators made of others: their members, their memory, and when that may be used again.
//!
//! Each member takes two pieces of its window: a page for its posts, and a body of slots and channels, sparse as all of
//! the window. All learn of all in two gathers over the communicator that is split, the second of which ends in a step
//! that all are in; so nobody uses a piece before it is there and zero.
//!
//! Leaving ends in a barrier of the new communicator. Past it nobody looks at a body any more, and it is given back at
//! once. The page is another matter: who has passed the barrier may be awaited there still. So each member, once it has
//! passed, adds itself up in the pages of all others, and a page waits in the graves until all others have.
#![expect(unsafe_code, reason = "hands places in windows to the new communicator")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::Comm;
use super::check::Call;
use super::job::Job;
use crate::collectives::all_gather;
use crate::error::CommError;
use crate::protocol::simple::Steps;
use crate::shm::atomic::Acquire;
use crate::shm::group::{Group, Member};
use crate::shm::heap::Heap;
use crate::shm::layout::{CHANNEL_BYTES, Place};
use crate::types::Operation;

impl Comm {
    /// Makes new communicators: one of all ranks that give the same color, numbered in the order of their keys, and for
    /// equal keys in that of their ranks here. Who gives no color is in none. All ranks call it.
    ///
    /// A new communicator and this one can be used in any order that is the same on the ranks of both: each has its own
    /// steps and slots. Errors, exits and the flight recorder name ranks by their numbers in the job.
    pub fn split(&self, color: Option<u32>, key: i32) -> Result<Option<Comm>, CommError> {
        self.make(Operation::Split, color, key)
    }

    /// A new communicator with the same ranks in the same order.
    pub fn dup(&self) -> Result<Comm, CommError> {
        self.make(Operation::Dup, Some(0), 0)?.ok_or_else(|| CommError::Internal("a duplicate without members".into()))
    }

    fn make(&self, operation: Operation, color: Option<u32>, key: i32) -> Result<Option<Comm>, CommError> {
        let job = &*self.core.job;
        let highest = job.communicators.load(Ordering::Relaxed);
        let wish = Wish { color, key, highest, able: job.heap().is_ok() };
        let (me, in_segment) = (self.rank(), |rank: u32| self.core.group.in_segment(rank));
        let mut ours = None;
        let (wishes, pieces) = self.call(Call::plain(operation), |steps| {
            let wishes = gather(steps, wish.to_words())?.into_iter().map(Wish::from_words).collect::<Vec<_>>();
            if wishes.iter().all(|wish| wish.able) && color.is_some() {
                let members = wishes.iter().filter(|wish| wish.color == color).count();
                ours = Pieces::take(job, members);
            }
            let words = match (color, &ours) {
                (None, _) => [u64::MAX; 2],
                (Some(_), None) => [0; 2],
                (Some(_), Some(pieces)) => pieces.to_words(job),
            };
            Ok((wishes, gather(steps, words)?))
        })?;
        if let Some(rank) = (0..self.size()).find(|rank| pieces[*rank as usize][0] == 0) {
            ours.inspect(|pieces| pieces.give_back(job));
            job.heap()?;
            return Err(CommError::NoRoomFor { operation, rank: in_segment(rank) });
        }
        let id = wishes.iter().map(|wish| wish.highest).fold(0, u32::max) + 1;
        job.communicators.store(id, Ordering::Relaxed);
        let Some(ours) = ours else { return Ok(None) };
        let heap = job.heap()?;
        let mut ranks: Vec<u32> = (0..self.size()).filter(|rank| wishes[*rank as usize].color == color).collect();
        ranks.sort_by_key(|rank| (wishes[*rank as usize].key, *rank));
        let new_rank = ranks.iter().position(|rank| *rank == me).unwrap_or(0) as u32;
        let members = ranks.into_iter().map(|rank| {
            let [place, body] = pieces[rank as usize].map(|word| word as usize - 1);
            let rank = in_segment(rank);
            Member { rank, place: heap.address(rank, place).cast_const().cast(), body: heap.address(rank, body) }
        });
        // SAFETY: the windows stay mapped with the job, which the new communicator keeps; each member has just taken
        // these pieces for it alone.
        let group = unsafe { Group::of(new_rank, members.collect()) };
        Ok(Some(Comm::of(self.core.split_off(id, group, Origin { pieces: ours }))))
    }
}

/// What a rank says first.
#[derive(Clone, Copy)]
struct Wish {
    color: Option<u32>,
    key: i32,
    /// The highest number of a communicator that it was in.
    highest: u32,
    /// Whether it has mapped the windows.
    able: bool,
}

impl Wish {
    fn to_words(self) -> [u64; 4] {
        let color = self.color.map_or(0, |color| u64::from(color) + 1);
        [color, self.key as u32 as u64, u64::from(self.highest), u64::from(self.able)]
    }

    fn from_words([color, key, highest, able]: [u64; 4]) -> Wish {
        let color = color.checked_sub(1).map(|color| color as u32);
        Wish { color, key: key as u32 as i32, highest: highest as u32, able: able != 0 }
    }
}

/// Everyone's words, in the order of the ranks.
fn gather<const N: usize>(steps: &mut Steps<'_>, words: [u64; N]) -> Result<Vec<[u64; N]>, CommError> {
    let mut all = vec![[0; N]; steps.size() as usize];
    // SAFETY: N words from here, and as many for each rank.
    unsafe { all_gather::run(steps, words.as_ptr().cast(), all.as_mut_ptr().cast(), size_of_val(&words))? };
    Ok(all)
}

/// What a member takes of its window. As addresses, which other threads may give back.
#[derive(Clone, Copy)]
struct Pieces {
    place: usize,
    body: usize,
}

impl Pieces {
    fn take(job: &Job, members: usize) -> Option<Pieces> {
        let heap = job.heap().ok()?;
        let place = heap.allocate(size_of::<Place>())?;
        let Some(body) = heap.allocate(job.mapping.geometry().part_bytes() + members * CHANNEL_BYTES) else {
            release(heap, place as usize);
            return None;
        };
        Some(Pieces { place: place as usize, body: body as usize })
    }

    /// Where they lie in the window, each plus 1.
    fn to_words(self, job: &Job) -> [u64; 2] {
        let offset = |address: usize| {
            let heap = job.mapped_heap()?;
            heap.offset_of(address as *const u8, 0).map(|offset| offset as u64 + 1)
        };
        [self.place, self.body].map(|address| offset(address).unwrap_or(0))
    }

    fn give_back(&self, job: &Job) {
        if let Some(heap) = job.mapped_heap() {
            release(heap, self.place);
            release(heap, self.body);
        }
    }
}

fn release(heap: &Heap, address: usize) {
    // SAFETY: from `allocate`, and, as the head of this file says, used by nobody any more.
    unsafe { heap.release(address as *mut u8) };
}

/// Where a communicator that was split off has its memory.
pub(super) struct Origin {
    pieces: Pieces,
}

impl Origin {
    /// After the barrier with which all leave.
    pub(super) fn bury(&self, job: &Job, group: &Group) {
        if let Some(heap) = job.mapped_heap() {
            release(heap, self.pieces.body);
            group.let_go();
            job.graves.add(Grave { place: self.pieces.place, others: group.size() - 1 });
            job.graves.clear(heap);
        }
    }
}

/// A page of this rank's in which members of a communicator that it left may be waiting for it still.
struct Grave {
    place: usize,
    others: u32,
}

impl Grave {
    fn is_forsaken(&self) -> bool {
        // SAFETY: our own page, mapped with the job and not given back yet; atomics, for which all bits are valid.
        let place = unsafe { &*(self.place as *const Place) };
        place.passed.0.load(Acquire) == self.others
    }
}

/// All of them.
#[derive(Default)]
pub(super) struct Graves {
    any: AtomicBool,
    all: Mutex<Vec<Grave>>,
}

impl Graves {
    fn add(&self, grave: Grave) {
        self.lock().push(grave);
        self.any.store(true, Ordering::Release);
    }

    /// Gives back what nobody looks at any more. Costs a look at a flag where there is nothing.
    pub(super) fn clear(&self, heap: &Heap) {
        if !self.any.load(Ordering::Acquire) {
            return;
        }
        let mut all = self.lock();
        all.retain(|grave| {
            let forsaken = grave.is_forsaken();
            if forsaken {
                release(heap, grave.place);
            }
            !forsaken
        });
        self.any.store(!all.is_empty(), Ordering::Release);
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Grave>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::time::Duration;

    use crate::comm::check::Call;
    use crate::node::JobSegment;
    use crate::settings::Settings;
    use crate::{Comm, Operation};

    /// Who comes last finds the other there, has left at once, and makes calls that wait for nobody, as those on GPUs are,
    /// while the other has yet to wake up and see that it came.
    #[test]
    fn who_has_left_takes_nothing_from_those_who_are_still_leaving() {
        let segment = JobSegment::create("leaving", 2, 2).unwrap();
        let run = |rank: u32| {
            let mut settings = Settings::of("leaving", rank, 2);
            settings.timeout = Some(Duration::from_secs(10));
            let comm = Comm::attach(segment.as_fd(), settings).unwrap();
            for round in 0..40 {
                let copy = comm.dup().unwrap();
                if rank == round % 2 {
                    std::thread::sleep(Duration::from_millis(4)); // the other falls asleep
                }
                copy.finalize().unwrap_or_else(|error| panic!("round {round}, rank {rank}: {error}"));
                comm.call(Call::plain(Operation::AllReduce), |_| Ok(())).unwrap();
            }
            comm.finalize().unwrap();
        };
        let run = &run;
        std::thread::scope(|scope| [0, 1].map(|rank| scope.spawn(move || run(rank))).map(|rank| rank.join().unwrap()));
    }
}
