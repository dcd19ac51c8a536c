//! The windows at the end of the segment, one a rank, that all ranks map: channels, and memory from `comm_alloc`.
//!
//! A window begins with the rank's channel to each rank. Behind them it is handed out: to the program, and to
//! communicators that are split off.
//!
//! The segment is sparse, so a window costs nothing but its addresses until it is used. A rank hands out pieces of its
//! own window by itself, without a word to anyone; a peer finds a buffer by its place in its rank's window, which
//! travels with the call. All windows are mapped by the first allocation, so who has a buffer can reach everyone's.
#![expect(unsafe_code, reason = "maps the windows and gives out addresses in them")]

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::collections::HashMap;
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Mutex;

use super::layout::{CHANNEL_BYTES, PAGE};
use super::segment::{Mapping, SegmentError};

/// All windows, mapped.
pub(crate) struct Heap {
    base: NonNull<c_void>,
    window_bytes: usize,
    ranks: usize,
    me: usize,
    in_file: bool,
    pieces: Mutex<Pieces>,
}

struct Pieces {
    /// As offset and length, in order, never touching each other.
    free: Vec<(usize, usize)>,
    /// Length by offset.
    taken: HashMap<usize, usize>,
}

// SAFETY: a range of addresses that this value owns; what lies in it belongs to whoever allocated it.
unsafe impl Send for Heap {}
// SAFETY: as above; the list of free pieces has a lock.
unsafe impl Sync for Heap {}

impl Drop for Heap {
    fn drop(&mut self) {
        // SAFETY: from one mmap of that length; buffers borrow from the communicator that owns this.
        let _ = unsafe { munmap(self.base.as_ptr(), self.window_bytes * self.ranks) };
    }
}

impl Heap {
    /// Maps all windows. Our own starts empty and zero: what an earlier program of this rank left is let go.
    pub(crate) fn open(mapping: &Mapping, me: u32) -> Result<Heap, SegmentError> {
        let geometry = mapping.geometry();
        let (window_bytes, ranks) = (geometry.window_bytes, geometry.ranks);
        let bytes = window_bytes * ranks;
        if bytes == 0 {
            return Err(SegmentError::Map { bytes, cause: rustix::io::Errno::FBIG });
        }
        let base = match mapping.file() {
            // SAFETY: a fresh shared mapping, placed by the kernel, of a part that the sealed file has.
            Some(fd) => unsafe {
                let protection = ProtFlags::READ | ProtFlags::WRITE;
                mmap(std::ptr::null_mut(), bytes, protection, MapFlags::SHARED, fd, geometry.heap_at() as u64)
            },
            // SAFETY: fresh anonymous memory, placed by the kernel.
            None => unsafe {
                let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
                rustix::mm::mmap_anonymous(std::ptr::null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, flags)
            },
        };
        let base = base.map_err(|cause| SegmentError::Map { bytes, cause })?;
        let base = NonNull::new(base).ok_or(SegmentError::Map { bytes, cause: rustix::io::Errno::NOMEM })?;
        let front = geometry.channels_bytes();
        let free = vec![(front, window_bytes - front)];
        let pieces = Mutex::new(Pieces { free, taken: HashMap::new() });
        let heap = Heap { base, window_bytes, ranks, me: me as usize, in_file: mapping.file().is_some(), pieces };
        heap.forget(0, window_bytes);
        // Farther memory is slower, and that is all that can come of a refusal.
        crate::numa::bind_here((heap.address(me, 0).cast(), window_bytes));
        Ok(heap)
    }

    /// Where a place in a rank's window is mapped here.
    pub(crate) fn address(&self, rank: u32, offset: usize) -> *mut u8 {
        debug_assert!(offset <= self.window_bytes);
        // SAFETY: inside the mapping: the callers give offsets that lie in the window.
        unsafe { self.base.as_ptr().cast::<u8>().add(rank as usize * self.window_bytes + offset) }
    }

    /// The offset in our own window of `bytes` bytes that begin at `address`, if they lie there.
    pub(crate) fn offset_of(&self, address: *const u8, bytes: usize) -> Option<usize> {
        let offset = (address as usize).checked_sub(self.address(self.me as u32, 0) as usize)?;
        (offset.checked_add(bytes)? <= self.window_bytes).then_some(offset)
    }

    /// Where the channel from one rank to another lies.
    pub(crate) fn channel(&self, from: u32, to: u32) -> *mut u8 {
        self.address(from, to as usize * CHANNEL_BYTES)
    }

    /// A rank's window as it is mapped here.
    pub(crate) fn window(&self, rank: u32) -> (*const u8, usize) {
        (self.address(rank, 0), self.window_bytes)
    }

    /// Whether a peer may have a buffer there.
    pub(crate) fn holds(&self, offset: usize, bytes: usize) -> bool {
        offset.checked_add(bytes).is_some_and(|end| end <= self.window_bytes)
    }

    /// Zeroed memory, at a page of its own; `None` when the window is full.
    pub(crate) fn allocate(&self, bytes: usize) -> Option<*mut u8> {
        let bytes = bytes.max(1).checked_next_multiple_of(PAGE)?;
        let Pieces { free, taken } = &mut *self.lock();
        let place = free.iter().position(|(_, length)| *length >= bytes)?;
        let (offset, length) = free[place];
        match length == bytes {
            true => drop(free.remove(place)),
            false => free[place] = (offset + bytes, length - bytes),
        }
        taken.insert(offset, bytes);
        Some(self.address(self.me as u32, offset))
    }

    /// Takes a piece back and gives its pages to the system. An address that is no piece is left alone.
    ///
    /// # Safety
    /// Nobody uses the memory any more.
    pub(crate) unsafe fn release(&self, address: *mut u8) {
        let Pieces { free, taken } = &mut *self.lock();
        let Some(offset) = self.offset_of(address, 0) else { return };
        let Some(bytes) = taken.remove(&offset) else { return };
        self.forget(offset, bytes);
        let place = free.partition_point(|(start, _)| *start < offset);
        free.insert(place, (offset, bytes));
        if free.get(place + 1).is_some_and(|(start, _)| *start == offset + bytes) {
            free[place].1 += free.remove(place + 1).1;
        }
        if place > 0 && free[place - 1].0 + free[place - 1].1 == offset {
            free[place - 1].1 += free.remove(place).1;
        }
    }

    /// Makes a part of our window zero and takes no memory any more.
    fn forget(&self, offset: usize, bytes: usize) {
        let address = self.address(self.me as u32, offset);
        // Punches a hole into the file, or lets private pages go.
        let advice = if self.in_file { libc::MADV_REMOVE } else { libc::MADV_DONTNEED };
        // SAFETY: our own window, of which nobody uses that part.
        let _ = unsafe { libc::madvise(address.cast(), bytes, advice) };
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Pieces> {
        self.pieces.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}
