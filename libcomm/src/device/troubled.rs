//! Calls on the device that have failed since they returned: where it says so, and who looks there.
//!
//! The device's own calls look while they hold its lock. All others of the job's communicators, on the host, look through
//! [`Lookout`], which is let go of before the memory is.
#![expect(unsafe_code, reason = "reads what the device writes")]

use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use kernels::args::Record;

use super::{Device, Watched, explain};
use crate::error::CommError;
use crate::shm::View;

/// Where a device side says that a call has failed.
pub(crate) struct Troubled {
    /// In pinned memory; the device writes its `kind` last.
    record: *const Record,
    /// The number that the proof has on the device: the caller's first call is the one after it. A long call takes several.
    first_call: u64,
    /// Why NCCL's calls were ended.
    ended: Option<Arc<OnceLock<CommError>>>,
}

// SAFETY: the record is only read, and may be by any thread.
unsafe impl Send for Troubled {}

impl Troubled {
    /// What the first call that gave up has left, if any has, or why NCCL's were ended.
    ///
    /// # Safety
    /// The record is there.
    unsafe fn look(&self, view: View<'_>, rank: u32) -> Option<CommError> {
        // SAFETY: the caller's; plain numbers, for which all bits are valid.
        let record = unsafe {
            if (&raw const (*self.record).kind).read_volatile() == 0 {
                return self.ended.as_ref()?.get().cloned();
            }
            fence(Ordering::Acquire);
            self.record.read_volatile()
        };
        let record = Record { epoch: record.epoch.saturating_sub(self.first_call), ..record };
        Some(explain(&record, view, rank))
    }
}

impl Device {
    /// For a [`Lookout`], which must let go of it before this value goes.
    pub(crate) fn troubled(&self) -> Troubled {
        let record = self.record.host().cast_const().cast();
        Troubled { record, first_call: self.first_call, ended: self.nccl.as_ref().map(Watched::why) }
    }

    /// Why calls on the device are of no use any more, if so.
    pub(crate) fn trouble(&self, view: View<'_>, rank: u32) -> Option<CommError> {
        if self.staged {
            return None; // no kernel runs, and the record may still have what the proof found
        }
        // SAFETY: the record lies in pinned memory of this value's.
        unsafe { self.troubled().look(view, rank) }
    }
}

/// Looks at a device side's record without its lock, which a thread may hold that waits. One load where there is no device side.
#[derive(Default)]
pub(crate) struct Lookout {
    any: AtomicBool,
    troubled: Mutex<Option<Troubled>>,
}

impl Lookout {
    /// Looks there from now on.
    ///
    /// # Safety
    /// The record stays until [`forget`](Lookout::forget) has returned.
    pub(crate) unsafe fn watch(&self, troubled: Troubled) {
        *self.lock() = Some(troubled);
        self.any.store(true, Ordering::Release);
    }

    /// Looks no more: no thread is at it once this returns.
    pub(crate) fn forget(&self) {
        self.any.store(false, Ordering::Relaxed);
        *self.lock() = None;
    }

    /// Why calls are of no use any more, if a call on the device has failed.
    #[inline]
    pub(crate) fn trouble(&self, view: View<'_>, rank: u32) -> Option<CommError> {
        if self.any.load(Ordering::Acquire) { self.look(view, rank) } else { None }
    }

    #[cold]
    fn look(&self, view: View<'_>, rank: u32) -> Option<CommError> {
        // SAFETY: the record is there while it is watched, and `forget` waits for the lock.
        self.lock().as_ref().and_then(|troubled| unsafe { troubled.look(view, rank) })
    }

    fn lock(&self) -> MutexGuard<'_, Option<Troubled>> {
        self.troubled.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(all(test, not(loom)))]
pub(crate) mod tests {
    use super::*;

    /// A record as a kernel would leave it, for ever there.
    pub(crate) fn found(record: Record) -> Troubled {
        Troubled { record: Box::leak(Box::new(record)), first_call: 0, ended: None }
    }
}
