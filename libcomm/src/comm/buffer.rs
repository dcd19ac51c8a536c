//! Memory that all ranks can reach.
#![expect(unsafe_code, reason = "looks at shared memory as elements")]

use std::ffi::c_void;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use super::Comm;
use crate::element::Element;
use crate::error::CommError;

impl Comm {
    /// Zeroed memory for `count` elements that all ranks can reach: an AllReduce from and to such buffers, on every
    /// rank, moves its data without a copy in between. This rank's alone: the others need not call it, and may have
    /// other sizes. It takes memory as it is first written.
    pub fn alloc<T: Element>(&self, count: usize) -> Result<Buffer<'_, T>, CommError> {
        let refuse = || CommError::NoMemory { bytes: count.saturating_mul(size_of::<T>()) };
        let bytes =
            count.checked_mul(size_of::<T>()).filter(|bytes| *bytes <= isize::MAX as usize).ok_or_else(refuse)?;
        let address = NonNull::new(self.alloc_raw(bytes)?).ok_or_else(refuse)?;
        Ok(Buffer { comm: self, address: address.cast(), count })
    }

    /// [`alloc`](Comm::alloc) of `bytes` bytes at a plain address, which begins at a page.
    pub fn alloc_raw(&self, bytes: usize) -> Result<*mut c_void, CommError> {
        let job = &self.core.job;
        if job.guard.is_fork() {
            return Err(CommError::Forked);
        }
        job.heap()?.allocate(bytes).map(|address| address.cast()).ok_or(CommError::NoMemory { bytes })
    }

    /// Gives memory of [`alloc_raw`](Comm::alloc_raw) back; null is fine.
    ///
    /// # Safety
    /// `address` is null, or from `alloc_raw` of this communicator and used by nobody any more.
    pub unsafe fn free_raw(&self, address: *mut c_void) {
        if let Some(heap) = self.core.job.mapped_heap().filter(|_| !self.core.job.guard.is_fork()) {
            // SAFETY: the caller's.
            unsafe { heap.release(address.cast()) };
        }
    }
}

/// Elements in memory that all ranks can reach, from [`Comm::alloc`]. Used as a slice.
pub struct Buffer<'a, T: Element> {
    comm: &'a Comm,
    address: NonNull<T>,
    count: usize,
}

// SAFETY: like a Vec of elements, which may be sent and shared; peers touch the memory only inside a call that has it.
unsafe impl<T: Element> Send for Buffer<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Element> Sync for Buffer<'_, T> {}

impl<T: Element> Deref for Buffer<'_, T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: ours for that many elements until we are dropped; zeros, or what was written, are elements.
        unsafe { std::slice::from_raw_parts(self.address.as_ptr(), self.count) }
    }
}

impl<T: Element> DerefMut for Buffer<'_, T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above, and borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.address.as_ptr(), self.count) }
    }
}

impl<T: Element> fmt::Debug for Buffer<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} x {})", T::TYPE, self.count)
    }
}

impl<T: Element> Drop for Buffer<'_, T> {
    fn drop(&mut self) {
        // SAFETY: from `alloc`, and given back once.
        unsafe { self.comm.free_raw(self.address.as_ptr().cast()) };
    }
}
