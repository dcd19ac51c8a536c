//! Tells the process that joined from a fork of it, without a system call: a page that the kernel wipes in the
//! child.
#![expect(unsafe_code, reason = "a page with madvise(MADV_WIPEONFORK)")]

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

/// Remembers the process that made it.
pub(crate) struct ForkGuard {
    page: Option<NonNull<c_void>>,
    pid: u32,
}

// SAFETY: the page is only ever used as one atomic integer, and freed by Drop alone.
unsafe impl Send for ForkGuard {}
// SAFETY: as above.
unsafe impl Sync for ForkGuard {}

const PAGE: usize = crate::shm::layout::PAGE;

impl ForkGuard {
    pub(crate) fn new() -> ForkGuard {
        let pid = std::process::id();
        // SAFETY: a fresh private mapping of one page, placed by the kernel.
        let page = unsafe {
            mmap_anonymous(std::ptr::null_mut(), PAGE, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
        };
        let page = page.ok().and_then(NonNull::new);
        // SAFETY: our own page, whose content nobody counts on yet. Kernels before 4.14 refuse.
        let wiped = page.is_some_and(|page| unsafe { madvise(page.as_ptr(), PAGE, Advice::LinuxWipeOnFork) }.is_ok());
        let mut guard = ForkGuard { page, pid };
        if !wiped {
            guard.free();
        }
        if let Some(word) = guard.word() {
            word.store(1, Ordering::Relaxed);
        }
        guard
    }

    /// Whether this is a fork of the process that made the guard.
    pub(crate) fn is_fork(&self) -> bool {
        match self.word() {
            Some(word) => word.load(Ordering::Relaxed) == 0,
            None => std::process::id() != self.pid,
        }
    }

    fn word(&self) -> Option<&AtomicU32> {
        // SAFETY: the page is mapped until Drop, aligned, and holds nothing but this word.
        self.page.map(|page| unsafe { page.cast::<AtomicU32>().as_ref() })
    }

    fn free(&mut self) {
        if let Some(page) = self.page.take() {
            // SAFETY: from mmap in `new`, unmapped once, since it was taken out; no reference outlives a method.
            let _ = unsafe { munmap(page.as_ptr(), PAGE) };
        }
    }
}

impl Drop for ForkGuard {
    fn drop(&mut self) {
        self.free();
    }
}
