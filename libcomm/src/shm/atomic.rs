//! The atomics of the shared memory, and how to sleep on one: the machine's own, or loom's in its tests.
//!
//! Nothing in `shm` names `std::sync::atomic`, so that what loom explores is the code that ships.

pub use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use std::time::Duration;

#[cfg(loom)]
pub use loom::sync::atomic::{AtomicU32, AtomicU64, fence};
#[cfg(loom)]
pub use loom::sync::{Condvar, Mutex, MutexGuard};
#[cfg(not(loom))]
pub use std::sync::atomic::{AtomicU32, AtomicU64, fence};
#[cfg(not(loom))]
pub use std::sync::{Condvar, Mutex, MutexGuard};

/// Sleeps while `word` is `value`, `limit` at most. May return early: the caller looks again.
#[cfg(not(loom))]
pub fn sleep_while(word: &AtomicU32, value: u32, limit: Duration) {
    use rustix::thread::futex;
    let limit = rustix::time::Timespec { tv_sec: limit.as_secs() as _, tv_nsec: limit.subsec_nanos() as _ };
    // Not the private kind: the sleepers are other processes. Each way to return (woken, changed, time over,
    // interrupted) means the same here, that the caller looks at its condition again.
    let _ = futex::wait(word, futex::Flags::empty(), value, Some(&limit));
}

/// Under loom: parked among the sleepers of that word. A sleeper that nobody wakes is a deadlock, which loom finds.
#[cfg(loom)]
pub fn sleep_while(word: &AtomicU32, value: u32, _limit: Duration) {
    {
        // As in the kernel, nobody can wake between the look at the word and the sleep.
        let mut sleepers = SLEEPERS.lock().unwrap();
        if word.load(Relaxed) != value {
            return;
        }
        sleepers.push((std::ptr::from_ref(word) as usize, loom::thread::current()));
    }
    loom::thread::park();
}

#[cfg(loom)]
loom::lazy_static! {
    static ref SLEEPERS: loom::sync::Mutex<Vec<(usize, loom::thread::Thread)>> = Default::default();
}

/// Wakes all who sleep on `word`.
#[cfg(not(loom))]
pub fn wake_all(word: &AtomicU32) {
    use rustix::thread::futex;
    let _ = futex::wake(word, futex::Flags::empty(), i32::MAX as u32); // fails only for a bad address
}

#[cfg(loom)]
pub fn wake_all(word: &AtomicU32) {
    let wanted = std::ptr::from_ref(word) as usize;
    let mut sleepers = SLEEPERS.lock().unwrap();
    sleepers.iter().filter(|(address, _)| *address == wanted).for_each(|(_, thread)| thread.unpark());
    sleepers.retain(|(address, _)| *address != wanted);
}

/// Tells the core that we spin.
pub fn relax() {
    #[cfg(not(loom))]
    std::hint::spin_loop();
    #[cfg(loom)]
    loom::thread::yield_now();
}

/// Lets another thread have this core.
pub fn yield_now() {
    #[cfg(not(loom))]
    std::thread::yield_now();
    #[cfg(loom)]
    loom::thread::yield_now();
}
