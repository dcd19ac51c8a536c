//! Simple: a chunk is copied into a slot, announced by the step's stamp, and copied or reduced out of it.
//!
//! One step of rank r: wait until the readers of the slot's last use are done (`reclaim`), fill the slot (`put`,
//! `slot`), `post`, wait for the ranks whose slots are wanted (`await_all`, `await_rank`), read them (`peer`).
//! A step moves up to `chunk_bytes` in and out of each slot, plus the share of an earlier chunk that r has reduced.
//! Data lies in the slot at multiples of 64 bytes; user memory needs the alignment of its element only.
//!
//! The first step of a call carries its signature and waits for all, so no byte of a call that the others did not
//! make is ever used.
#![expect(unsafe_code, reason = "copies between user memory and slots")]

use std::{mem, slice};

use crate::choose::{Protocol, Ranks};
use crate::domains::Domains;
use crate::error::CommError;
use crate::fault::{Fault, Kind, Stage};
use crate::shm::View;
use crate::shm::abort::RankExit;
use crate::shm::atomic::{Acquire, AtomicU64, Relaxed, Release};
use crate::shm::group::Group;
use crate::shm::heap::Heap;
use crate::shm::layout::INLINE_WORDS;
use crate::shm::segment::Mapping;
use crate::shm::step::Stamp;
use crate::shm::text;
use crate::shm::wait::{Stop, Waiter};
use crate::signature::Signature;
use crate::simd::{copy_streaming, copy_to_shared};
use crate::verify::{Sum, Verify, checksum, copy_and_sum};

/// The two places for data in a slot.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Region {
    /// Data as its rank has it.
    Chunk,
    /// A share that its rank has reduced.
    Reduced,
}

/// A part of a slot that has a checksum of its own.
#[derive(Clone, Copy)]
pub(crate) struct Piece {
    pub(crate) region: Region,
    /// Where in the region it begins.
    pub(crate) offset: usize,
    pub(crate) bytes: usize,
    /// Which of the slot's checksums is its: one a rank, and one more.
    pub(crate) index: u32,
}

impl Piece {
    /// The front of a slot's chunk.
    pub(crate) fn whole(bytes: usize) -> Piece {
        Piece { region: Region::Chunk, offset: 0, bytes, index: 0 }
    }
}

/// How far a generation is, as this rank knows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Progress {
    /// Steps posted by this rank.
    posted: u64,
    /// Steps posted by all ranks.
    all_posted: u64,
}

impl Progress {
    /// `steps` are posted by all, none since.
    pub(crate) fn after(steps: u64) -> Progress {
        Progress { posted: steps, all_posted: steps }
    }
}

/// Checksums of the chunks of a call's result, as far as it was read.
#[derive(Default)]
struct ResultSums {
    sums: Vec<u64>,
    /// Of the chunk that is being read.
    sum: Sum,
    summed: usize,
}

/// One call's way through the steps.
pub(crate) struct Steps<'a> {
    mapping: &'a Mapping,
    group: &'a Group,
    heap: Option<&'a Heap>,
    waiter: &'a Waiter,
    signature: Signature,
    /// What of it is in one word.
    kind: u64,
    generation: u32,
    progress: &'a mut Progress,
    greeted: bool,
    verify: bool,
    full: bool,
    protocol: Option<Protocol>,
    domains: Option<&'a Domains>,
    crowded: bool,
    fault: Option<Fault>,
    /// Reduced shares put so far in this call.
    shares: u64,
    /// Steps posted so far in this call.
    steps: u64,
    faulty: bool,
    streaming: bool,
    /// Where a share is reduced to while checksums are on, so that they come from before the copy to the slot.
    scratch: Vec<u64>,
    result_sums: ResultSums,
}

impl<'a> Steps<'a> {
    pub(crate) fn new(
        mapping: &'a Mapping,
        group: &'a Group,
        waiter: &'a Waiter,
        generation: u32,
        progress: &'a mut Progress,
        signature: Signature,
    ) -> Steps<'a> {
        let scratch = Vec::new();
        Steps {
            mapping,
            group,
            heap: None,
            waiter,
            signature,
            kind: signature.kind_word(),
            generation,
            progress,
            greeted: false,
            verify: false,
            full: false,
            protocol: None,
            domains: None,
            crowded: false,
            fault: None,
            shares: 0,
            steps: 0,
            faulty: false,
            streaming: false,
            scratch,
            result_sums: ResultSums::default(),
        }
    }

    /// Says what is forced, and which ranks are near each other.
    pub(crate) fn choosing(mut self, protocol: Option<Protocol>, domains: Option<&'a Domains>) -> Steps<'a> {
        (self.protocol, self.domains) = (protocol, domains);
        self
    }

    /// Says that the ranks share few CPUs.
    pub(crate) fn crowded(mut self, crowded: bool) -> Steps<'a> {
        self.crowded = crowded;
        self
    }

    /// The protocol that is forced, if one is.
    pub(crate) fn protocol(&self) -> Option<Protocol> {
        self.protocol
    }

    /// Groups of ranks that are near each other, where it pays to know.
    pub(crate) fn domains(&self) -> Option<&'a Domains> {
        self.domains
    }

    /// Says where buffers of `comm_alloc` are.
    pub(crate) fn with_heap(mut self, heap: Option<&'a Heap>) -> Steps<'a> {
        self.heap = heap;
        self
    }

    /// The windows of all ranks, if this one has allocated from its own.
    pub(crate) fn heap(&self) -> Option<&'a Heap> {
        self.heap
    }

    /// Lets [`take`](Steps::take) write past the caches; whoever asks for that drains.
    pub(crate) fn stream_results(&mut self, streaming: bool) {
        self.streaming = streaming;
    }

    /// Turns checksums on, and a fault where there is one for this call.
    pub(crate) fn checking(mut self, verify: Verify, fault: Option<Fault>) -> Steps<'a> {
        self.verify = verify != Verify::Off;
        self.full = verify == Verify::Full;
        let fault = fault.filter(|fault| matches!(fault.kind, Kind::Flip | Kind::Kill));
        self.faulty = fault.is_some_and(|fault| fault.kind == Kind::Flip); // who ends takes the ways of all
        self.fault = fault.filter(|fault| fault.rank == self.rank() && fault.call == self.signature.number);
        self
    }

    /// The call.
    pub(crate) fn signature(&self) -> Signature {
        self.signature
    }

    pub(crate) fn rank(&self) -> u32 {
        self.group.me()
    }

    /// The rank in the segment of member `rank`: what errors, exits and windows go by.
    pub(crate) fn in_segment(&self, rank: u32) -> u32 {
        self.group.in_segment(rank)
    }

    pub(crate) fn size(&self) -> u32 {
        self.group.size()
    }

    /// Whether any rank has a fault to make in any call, which is the same on all of them.
    pub(crate) fn has_fault(&self) -> bool {
        self.faulty
    }

    pub(crate) fn verifies(&self) -> bool {
        self.verify
    }

    /// Whether results are recomputed.
    pub(crate) fn recomputes(&self) -> bool {
        self.full
    }

    /// Whether the call's first step is over, so that all are known to make the same call.
    pub(crate) fn greeted(&self) -> bool {
        self.greeted
    }

    /// Bytes of data that a region holds.
    pub(crate) fn chunk_bytes(&self) -> usize {
        self.mapping.geometry().chunk_bytes
    }

    pub(crate) fn view(&self) -> View<'a> {
        self.mapping.view()
    }

    fn stamp(&self) -> Stamp {
        Stamp::new(self.generation, self.progress.posted)
    }

    /// Waits until rank `reader` is done with what this rank's next slot held two steps ago.
    pub(crate) fn reclaim_from(&self, reader: u32) -> Result<(), CommError> {
        if self.progress.posted == 0 {
            return Ok(()); // the first step of a communicator that was split off
        }
        let done = self.group.await_post(self.view(), self.waiter, reader, self.stamp());
        done.map_err(|stop| self.explain(stop))
    }

    /// The same for all ranks. Free where the last step waited for all.
    pub(crate) fn reclaim(&mut self) -> Result<(), CommError> {
        if self.progress.all_posted != self.progress.posted {
            let all = self.group.await_all(self.view(), self.waiter, self.stamp());
            all.map_err(|stop| self.explain(stop))?;
            self.progress.all_posted = self.progress.posted;
        }
        Ok(())
    }

    /// Makes what this rank has put into its slot visible: the step is posted.
    pub(crate) fn post(&mut self) -> Result<(), CommError> {
        self.post_with(&[])
    }

    /// The same with up to [`INLINE_BYTES`] of data that travel in the post.
    pub(crate) fn post_with(&mut self, data: &[u8]) -> Result<(), CommError> {
        let view = self.view();
        if !self.greeted || !data.is_empty() {
            // What this place carried before was read by all: it was a step two back or more, and whoever has posted a
            // step after that has read it. All have, or we wait here.
            self.reclaim()?;
        }
        if let Some(fault) = self.fault {
            fault.maybe_kill(self.steps);
        }
        self.steps += 1;
        self.progress.posted += 1;
        let stamp = self.stamp();
        let post = self.group.post_of(view, self.rank(), stamp);
        if !self.greeted {
            post.kind.store(self.kind, Relaxed);
            post.count.store(self.signature.count, Relaxed);
        }
        store_inline(&post.inline, data);
        view.announce(&post.stamp, self.waiter.me(), stamp);
        if self.group.member(self.rank()).is_some() {
            view.record_activity(self.waiter.me()); // no step of the job's own communicator shows it
        }
        Ok(())
    }

    /// The data that `rank` sent in the post of the last step, which all are known to have posted.
    pub(crate) fn inline_of(&self, rank: u32) -> &'a [AtomicU64; INLINE_WORDS] {
        &self.group.post_of(self.view(), rank, self.stamp()).inline
    }

    /// Waits until all have posted the step.
    pub(crate) fn await_all(&mut self) -> Result<(), CommError> {
        self.reclaim()?; // the same question: have all posted as many steps as we have
        self.greet()
    }

    /// A step without data.
    pub(crate) fn meet(&mut self) -> Result<(), CommError> {
        self.reclaim()?;
        self.post()?;
        self.await_all()
    }

    /// Waits until `rank` has posted the step; in the first step of a call, until all have.
    pub(crate) fn await_rank(&mut self, rank: u32) -> Result<(), CommError> {
        match self.greeted {
            true => self.reclaim_from(rank),
            false => self.await_all(),
        }
    }

    /// How many steps of this communicator this rank has posted.
    pub(crate) fn posted(&self) -> u64 {
        self.progress.posted
    }

    /// Waits until `rank` has posted as many; after the first step of a call only.
    pub(crate) fn await_count(&self, rank: u32, posted: u64) -> Result<(), CommError> {
        debug_assert!(self.greeted);
        let stamp = Stamp::new(self.generation, posted);
        let done = self.group.await_post(self.view(), self.waiter, rank, stamp);
        done.map_err(|stop| self.explain(stop))
    }

    /// Rank 0's slot of a step, for a way in which others write there, too. It has room for two chunks.
    pub(crate) fn slot_of_first(&self, step: u64) -> *mut u8 {
        self.group.slot(self.mapping, 0, step)
    }

    /// Of two ranks: waits until the other has posted the step `back` before the one that this rank posted last. After
    /// the first step of a call only.
    pub(crate) fn await_other(&mut self, back: u64) -> Result<(), CommError> {
        debug_assert!(self.greeted && self.size() == 2);
        let wanted = self.progress.posted - back;
        if self.progress.all_posted < wanted {
            let stamp = Stamp::new(self.generation, wanted);
            let done = self.group.await_post(self.view(), self.waiter, 1 - self.rank(), stamp);
            done.map_err(|stop| self.explain(stop))?;
            self.progress.all_posted = wanted;
        }
        Ok(())
    }

    /// Of two ranks: the other's slot of the step `back` before the one that this rank posted last. Once that is read,
    /// it is this rank's slot of the second step after.
    pub(crate) fn slot_of_other(&self, back: u64) -> *mut u8 {
        self.place(1 - self.rank(), self.progress.posted - 1 - back, Region::Chunk, 0)
    }

    /// Where this rank wrote the data of the step that it posted last.
    pub(crate) fn posted_slot(&self) -> *const u8 {
        self.place(self.rank(), self.progress.posted - 1, Region::Chunk, 0)
    }

    /// Once a call: compares what all have called.
    fn greet(&mut self) -> Result<(), CommError> {
        if self.greeted {
            return Ok(());
        }
        self.greeted = true;
        let (view, stamp, me) = (self.view(), self.stamp(), self.rank());
        let (kind, count) = (self.kind, self.signature.count);
        for rank in (0..self.size()).filter(|rank| *rank != me) {
            let post = self.group.post_of(view, rank, stamp);
            if post.kind.load(Relaxed) != kind || post.count.load(Relaxed) != count {
                return Err(self.mismatch());
            }
        }
        Ok(())
    }

    /// The error that names both sides. Not in line: small messages are on their way past here.
    #[cold]
    #[inline(never)]
    fn mismatch(&self) -> CommError {
        let (view, stamp) = (self.view(), self.stamp());
        let words = |rank: u32| {
            let post = self.group.post_of(view, rank, stamp);
            [self.signature.number, post.kind.load(Relaxed), post.count.load(Relaxed)]
        };
        // All have agreed on every call before, so this one has the same number on all ranks.
        let word = self.signature.communicator_word();
        let called = |rank: u32| Signature::from_words(words(rank)).map(|call| call.with_communicator_word(word));
        // All name the same pair: rank 0 and the first that differs from it.
        let first = called(0);
        let other = (1..self.size()).find(|rank| called(*rank) != first).unwrap_or(0);
        match (first, called(other)) {
            (Some(a), Some(b)) => {
                let (rank_a, rank_b) = (self.group.in_segment(0), self.group.in_segment(other));
                CommError::Mismatch { rank_a, a, rank_b, b }
            }
            _ => CommError::Internal("a signature cannot be read".into()),
        }
    }

    /// Where this rank writes `region` of the step that it will post next, at `offset`.
    pub(crate) fn slot(&self, region: Region, offset: usize) -> *mut u8 {
        self.place(self.rank(), self.progress.posted, region, offset)
    }

    /// Where `rank` wrote `region` in the step that was posted last.
    pub(crate) fn peer(&self, rank: u32, region: Region, offset: usize) -> *const u8 {
        self.place(rank, self.progress.posted - 1, region, offset)
    }

    fn place(&self, rank: u32, step: u64, region: Region, offset: usize) -> *mut u8 {
        let base = match region {
            Region::Chunk => 0,
            Region::Reduced => self.chunk_bytes(),
        };
        debug_assert!(offset <= self.chunk_bytes());
        // SAFETY: inside the slot, which holds two regions of `chunk_bytes` and then the checksums.
        unsafe { self.group.slot(self.mapping, rank, step).add(base + offset) }
    }

    /// Where the checksum number `index` of a slot lies: one a rank for its share, then that of the reduced share.
    fn sum_place(&self, rank: u32, step: u64, index: u32) -> *mut u64 {
        // SAFETY: as above; a slot begins at a multiple of 64 bytes, and regions are multiples of 64 long.
        unsafe {
            self.group.slot(self.mapping, rank, step).add(2 * self.chunk_bytes()).cast::<u64>().add(index as usize)
        }
    }

    /// Where the checksum of `bytes` bytes at the front of a slot lies if it comes right behind them, in a line that the
    /// reader fetches anyway. There is room, since a slot has two regions.
    pub(crate) fn sum_behind(slot: *mut u8, bytes: usize) -> *mut u64 {
        slot.wrapping_add(bytes.next_multiple_of(8)).cast()
    }

    /// Copies to the front of the slot; where checksums are wanted, one comes behind.
    ///
    /// # Safety
    /// `source` is readable for `bytes` bytes, which the slot has, and the slot is reclaimed.
    pub(crate) unsafe fn fill_front(&self, source: *const u8, bytes: usize, chunk: u64) {
        if !self.verify {
            // SAFETY: the caller's.
            return unsafe { self.fill(Region::Chunk, 0, source, bytes) };
        }
        let (slot, mut sum) = (self.slot(Region::Chunk, 0), self.next_sum());
        // SAFETY: as above; the slot is ours until we post, since its readers are done.
        unsafe {
            copy_and_sum(copy_to_shared, source, slot, bytes, &mut sum);
            Self::sum_behind(slot, bytes).write(sum.end());
            self.maybe_damage(Stage::Chunk, chunk, slot, bytes);
        }
    }

    /// Copies into a region of the slot, without a checksum.
    ///
    /// # Safety
    /// `source` is readable for `bytes` bytes, which the region has from `offset` on, and the slot is reclaimed.
    pub(crate) unsafe fn fill(&self, region: Region, offset: usize, source: *const u8, bytes: usize) {
        debug_assert!(offset + bytes <= self.chunk_bytes());
        // SAFETY: the caller's source; the slot is ours until we post, since its readers are done.
        unsafe { copy_to_shared(source, self.slot(region, offset), bytes) };
    }

    /// Fills a piece of the slot.
    ///
    /// # Safety
    /// `source` is readable for the piece, and the slot is reclaimed.
    pub(crate) unsafe fn put(&mut self, piece: Piece, source: *const u8) {
        debug_assert!(piece.offset + piece.bytes <= self.chunk_bytes());
        if piece.region == Region::Reduced {
            // SAFETY: a share that its rank has just reduced is in memory that it may write.
            unsafe { self.maybe_damage(Stage::Reduction, self.shares, source.cast_mut(), piece.bytes) };
            self.shares += 1;
        }
        if !self.verify {
            // SAFETY: the caller's.
            return unsafe { self.fill(piece.region, piece.offset, source, piece.bytes) };
        }
        let (target, mut sum) = (self.slot(piece.region, piece.offset), self.next_sum());
        let place = self.sum_place(self.rank(), self.progress.posted, piece.index);
        // SAFETY: the caller's source; the slot and its sums are ours until we post, since its readers are done.
        unsafe {
            copy_and_sum(copy_to_shared, source, target, piece.bytes, &mut sum);
            place.write(sum.end());
        }
    }

    /// An empty checksum of what this rank posts next.
    pub(crate) fn next_sum(&self) -> Sum {
        Sum::of_step(self.progress.posted)
    }

    /// An empty checksum of what was put in the step `back` before the one that this rank posted last.
    pub(crate) fn sum_of(&self, back: u64) -> Sum {
        Sum::of_step(self.progress.posted - 1 - back)
    }

    /// Fails unless what `arrived` of a piece that `rank` put in the last step is what left.
    ///
    /// # Safety
    /// `arrived` is readable for the piece, and `rank` has been waited for.
    pub(crate) unsafe fn check(
        &self,
        rank: u32,
        piece: Piece,
        arrived: *const u8,
        chunk: u64,
    ) -> Result<(), CommError> {
        if !self.verify {
            return Ok(());
        }
        let mut sum = self.sum_of(0);
        // SAFETY: the caller's.
        sum.add(unsafe { bytes_at(arrived, piece.bytes) });
        // SAFETY: `rank` has posted and will not write before we post the next step.
        let sent = unsafe { self.sum_place(rank, self.progress.posted - 1, piece.index).read() };
        self.judge(rank, chunk, sent, sum)
    }

    /// Fails unless what arrived from `rank` has the checksum with which it left.
    pub(crate) fn judge(&self, rank: u32, chunk: u64, sent: u64, arrived: Sum) -> Result<(), CommError> {
        let arrived = arrived.end();
        match sent == arrived {
            true => Ok(()),
            false => {
                let (call, from, to) = (self.signature, self.in_segment(rank), self.in_segment(self.rank()));
                Err(CommError::ChunkCorrupt { call, from, to, chunk, sent, arrived })
            }
        }
    }

    /// Copies a piece that `rank` put in the last step to user memory, and checks what it copies.
    ///
    /// # Safety
    /// `target` is writable for the piece, and `rank` has been waited for.
    pub(crate) unsafe fn take(&self, rank: u32, piece: Piece, target: *mut u8, chunk: u64) -> Result<(), CommError> {
        debug_assert!(piece.offset + piece.bytes <= self.chunk_bytes());
        let slot = self.peer(rank, piece.region, piece.offset);
        let copy = if self.streaming { copy_streaming } else { std::ptr::copy_nonoverlapping::<u8> };
        if !self.verify {
            // SAFETY: the caller's target; the source is not written before we post the next step.
            unsafe { copy(slot, target, piece.bytes) };
            return Ok(());
        }
        let mut sum = self.sum_of(0);
        // SAFETY: as above, and for the sum as in `check`.
        let sent = unsafe {
            copy_and_sum(copy, slot, target, piece.bytes, &mut sum);
            self.sum_place(rank, self.progress.posted - 1, piece.index).read()
        };
        self.judge(rank, chunk, sent, sum)
    }

    /// Posts a step whose data travels in the post, and its checksum with it.
    pub(crate) fn post_checked(&mut self, data: &[u8]) -> Result<(), CommError> {
        debug_assert!(data.len() <= INLINE_BYTES - 8);
        let (mut words, used) = ([0u64; INLINE_WORDS], data.len().div_ceil(8));
        let mut sum = self.next_sum();
        sum.add(data);
        words[used] = sum.end();
        let place = words.as_mut_ptr().cast::<u8>();
        // SAFETY: the words have room for the data; any eight bytes are a word, and any word is bytes.
        let posted = unsafe {
            std::ptr::copy_nonoverlapping(data.as_ptr(), place, data.len());
            self.maybe_damage(Stage::Chunk, 0, place, data.len());
            bytes_at(place, 8 * (used + 1))
        };
        self.post_with(posted)
    }

    /// The `bytes` bytes that `rank` sent so in the last step, which all are known to have posted.
    pub(crate) fn checked_of(&self, rank: u32, bytes: usize) -> Result<[u64; INLINE_WORDS], CommError> {
        let (mut words, used) = ([0u64; INLINE_WORDS], bytes.div_ceil(8));
        for (place, word) in words[..=used].iter_mut().zip(self.inline_of(rank)) {
            *place = word.load(Relaxed);
        }
        let mut sum = self.sum_of(0);
        // SAFETY: no more bytes than the words have, all of them initialized.
        sum.add(unsafe { bytes_at(words.as_ptr().cast(), bytes) });
        self.judge(rank, 0, words[used], sum)?;
        Ok(words)
    }

    /// Room for `bytes` bytes that nobody else sees, aligned for any element.
    pub(crate) fn scratch(&mut self, bytes: usize) -> *mut u8 {
        self.scratch.resize(bytes.div_ceil(8), 0);
        self.scratch.as_mut_ptr().cast()
    }

    /// Test hook: damages data of `chunk`, if this is the call, the chunk and the stage to do so.
    ///
    /// # Safety
    /// `data` is writable for `bytes` bytes.
    pub(crate) unsafe fn maybe_damage(&self, stage: Stage, chunk: u64, data: *mut u8, bytes: usize) {
        if let Some(fault) =
            self.fault.filter(|fault| fault.kind == Kind::Flip && fault.stage == stage && fault.chunk == chunk)
        {
            // SAFETY: the caller's.
            fault.strike(unsafe { slice::from_raw_parts_mut(data, bytes) });
        }
    }

    /// Compares the result of `bytes` bytes across the ranks, chunk by chunk. Costs a step for each 256 MiB of
    /// checksums' worth, and nothing while checksums are off. What [`sum_result`](Steps::sum_result) has summed of it
    /// is not summed again.
    ///
    /// # Safety
    /// `result` is valid for `bytes` bytes.
    pub(crate) unsafe fn compare_results(&mut self, result: *mut u8, bytes: usize) -> Result<(), CommError> {
        if !self.verify || bytes == 0 {
            return Ok(());
        }
        if bytes <= self.chunk_bytes() {
            // SAFETY: the caller's.
            let sum = unsafe {
                self.maybe_damage(Stage::Result, 0, result, bytes);
                checksum(bytes_at(result, bytes))
            };
            self.post_with(&sum.to_ne_bytes())?;
            self.await_all()?;
            return self.compare(0, |rank| self.inline_of(rank)[0].load(Relaxed));
        }
        // SAFETY: the caller's.
        unsafe { self.sum_result(result, bytes, bytes, usize::MAX) };
        let ResultSums { sums, .. } = mem::take(&mut self.result_sums);
        if sums.len() <= INLINE_WORDS {
            let mut words = [[0; 8]; INLINE_WORDS];
            words.iter_mut().zip(&sums).for_each(|(word, sum)| *word = sum.to_ne_bytes());
            self.post_with(words[..sums.len()].as_flattened())?;
            self.await_all()?;
            return (0..sums.len())
                .try_for_each(|chunk| self.compare(chunk as u64, |rank| self.inline_of(rank)[chunk].load(Relaxed)));
        }
        let per_step = self.chunk_bytes() / 8;
        for (step, sums) in (0..).zip(sums.chunks(per_step)) {
            self.reclaim()?;
            let slot = self.slot(Region::Chunk, 0).cast::<u64>();
            // SAFETY: the slot is reclaimed and holds `per_step` words.
            unsafe { std::ptr::copy_nonoverlapping(sums.as_ptr(), slot, sums.len()) };
            self.post()?;
            self.await_all()?;
            for number in 0..sums.len() {
                // SAFETY: all have posted that many words.
                let sum = |rank: u32| unsafe { self.peer(rank, Region::Chunk, 8 * number).cast::<u64>().read() };
                self.compare((step * per_step + number) as u64, sum)?;
            }
        }
        Ok(())
    }

    /// Reads up to `most` bytes more of a result of `bytes` bytes, of which `made` are made, and sums them: so that what was
    /// written past the caches is on its way back while the next chunk is made.
    ///
    /// # Safety
    /// `result` is valid for `bytes` bytes, and the same in all of a call.
    pub(crate) unsafe fn sum_result(&mut self, result: *mut u8, bytes: usize, made: usize, most: usize) {
        let chunk_bytes = self.chunk_bytes();
        // A fault is made in a chunk that is there as a whole, before any of it is read.
        let ready = if self.fault.is_some() && made < bytes { made / chunk_bytes * chunk_bytes } else { made };
        let mut left = most;
        while self.result_sums.summed < ready && left > 0 {
            let at = self.result_sums.summed;
            let chunk_end = bytes.min((at / chunk_bytes + 1) * chunk_bytes);
            // Pieces of a sum are whole words, but for the last.
            let piece = left.min(ready - at);
            let piece = if piece < chunk_end - at { piece / 8 * 8 } else { chunk_end - at };
            if piece == 0 {
                return;
            }
            // SAFETY: inside the result.
            let read = unsafe {
                if at.is_multiple_of(chunk_bytes) {
                    self.maybe_damage(Stage::Result, (at / chunk_bytes) as u64, result.add(at), chunk_end - at);
                }
                bytes_at(result.add(at), piece)
            };
            let sums = &mut self.result_sums;
            sums.sum.add(read);
            sums.summed += piece;
            left -= piece;
            if sums.summed == chunk_end {
                sums.sums.push(mem::take(&mut sums.sum).end());
            }
        }
    }

    /// Names the first rank that differs from what most have, and the first of those.
    fn compare(&self, chunk: u64, sum: impl Fn(u32) -> u64) -> Result<(), CommError> {
        let ranks = 0..self.size();
        if ranks.clone().all(|rank| sum(rank) == sum(0)) {
            return Ok(());
        }
        let share = |wanted: u64| ranks.clone().filter(|rank| sum(*rank) == wanted).count();
        let rank_a = ranks.clone().rev().max_by_key(|rank| share(sum(*rank))).unwrap_or(0);
        let rank_b = ranks.clone().find(|rank| sum(*rank) != sum(rank_a)).unwrap_or(0);
        let (sum_a, sum_b) = (sum(rank_a), sum(rank_b));
        let (rank_a, rank_b) = (self.in_segment(rank_a), self.in_segment(rank_b));
        Err(CommError::ResultsDiffer { call: self.signature, rank_a, sum_a, rank_b, sum_b, chunk })
    }

    /// The error that says that this rank's own result changed after it was made.
    pub(crate) fn own_result_changed(&self, chunk: u64, sent: u64, arrived: u64) -> CommError {
        let me = self.in_segment(self.rank());
        CommError::ChunkCorrupt { call: self.signature, from: me, to: me, chunk, sent, arrived }
    }

    /// The error that says that this rank's result is not what all ranks' data gives.
    pub(crate) fn result_is_wrong(&self, chunk: u64, element: u64, found: u64, wanted: u64) -> CommError {
        let (call, rank) = (self.signature, self.in_segment(self.rank()));
        CommError::ResultWrong { call, rank, chunk, element, found, wanted }
    }

    fn explain(&self, stop: Stop) -> CommError {
        explain(self.view(), stop, Some(self.signature))
    }
}

impl Ranks for Steps<'_> {
    fn count(&self) -> u32 {
        self.size()
    }

    fn has_domains(&self) -> bool {
        self.domains.is_some()
    }

    fn are_crowded(&self) -> bool {
        self.crowded
    }
}

/// The most bytes that travel in a post.
pub(crate) const INLINE_BYTES: usize = 8 * INLINE_WORDS;

fn store_inline(words: &[AtomicU64; INLINE_WORDS], data: &[u8]) {
    let mut parts = data.chunks_exact(8);
    for (word, part) in words.iter().zip(&mut parts) {
        word.store(u64::from_ne_bytes(part.try_into().expect("chunks of eight")), Relaxed);
    }
    let rest = parts.remainder();
    if !rest.is_empty() {
        let mut padded = [0; 8];
        padded[..rest.len()].copy_from_slice(rest);
        words[data.len() / 8].store(u64::from_ne_bytes(padded), Relaxed);
    }
}

/// The bytes at an address.
///
/// # Safety
/// Readable for `bytes` bytes, and not written while the slice lives.
pub(crate) unsafe fn bytes_at<'a>(address: *const u8, bytes: usize) -> &'a [u8] {
    match bytes {
        0 => &[], // the address may be null
        // SAFETY: the caller's.
        _ => unsafe { slice::from_raw_parts(address, bytes) },
    }
}

/// Says why a wait ended, for whoever called.
pub(crate) fn explain(view: View<'_>, stop: Stop, call: Option<Signature>) -> CommError {
    match stop {
        Stop::Aborted(reason) => CommError::Aborted { reason, call },
        Stop::Exited { rank, exit, joined } => CommError::RankExited { rank, exit, joined, call, block: None },
        Stop::Vanished { rank, pid } => CommError::RankVanished { rank, pid, call },
        Stop::Left { rank } => CommError::RankLeft { rank, call },
        Stop::Deadline { rank, waited } => CommError::Timeout { rank, waited_ms: waited.as_millis() as u64, call },
        Stop::Failed { rank } => {
            let block = &view.ranks[rank as usize];
            let why = text::load_text(&block.text.0, block.status.text_bytes.load(Relaxed) as usize);
            CommError::PeerFailed { rank, why, call }
        }
        Stop::OnDevice { me, rank } => match (call, view.last_on_device(rank)) {
            (Some(call), Some(on_device)) => CommError::OtherOrder { rank: me, call, peer: rank, on_device },
            _ => CommError::Internal(format!("rank {rank} has made calls on its GPU that nobody can name")),
        },
    }
}

/// Tells the peers that this rank's call failed, so that nobody waits for it, and the daemon why.
///
/// What the peers see for themselves is not passed on: everyone on the host looks at all exits, failures and the abort
/// word, so the first failure reaches each of them directly, and not as a tale of who heard it from whom. A kernel looks at the
/// peer that it waits for and no other: for those a failure is passed on, marked as second-hand.
pub(crate) fn publish_failure(view: View<'_>, me: u32, generation: u32, error: &CommError) {
    let block = &view.ranks[me as usize];
    if block.status.failed.load(Relaxed) == generation {
        return; // what it said first is what the others have read
    }
    let bytes = text::store_text(&block.text.0, &error.to_string());
    block.status.text_bytes.store(bytes as u32, Release);
    let seen_by_all = match error {
        // One that dropped its communicator and ended well is trouble for those only who wait for it.
        CommError::RankExited { rank, exit: RankExit::Code(0), .. } => {
            view.ranks[*rank as usize].status.dropped.load(Acquire) != generation
        }
        CommError::RankExited { .. } | CommError::Aborted { .. } => true,
        _ => false,
    };
    if seen_by_all {
        return;
    }
    let is_passed_on = matches!(error, CommError::PeerFailed { .. });
    if is_passed_on {
        block.status.second_hand.store(generation, Relaxed); // before `failed`, whose readers look here
    }
    block.status.failed.store(generation, Release);
    if !is_passed_on {
        view.tell_all(); // the host has news of the first failure already
    }
}
