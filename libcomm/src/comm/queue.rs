//! A queue whose items are done one at a time, in their order, by whoever comes first.
//!
//! Nobody owns the work: a thread that waits for an item does the next one itself if nobody is at it, else it sleeps until
//! that one is done. So an item is begun once, items never overlap, and who waits for something that is not done either
//! works or is woken by who does.

use std::collections::VecDeque;
use std::sync::PoisonError;

use crate::shm::atomic::{Condvar, Mutex, MutexGuard};

/// The items that are not done.
pub(super) struct Queue<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
}

/// How far a queue is.
pub(super) struct State<T> {
    waiting: VecDeque<T>,
    /// Whether somebody does one.
    running: bool,
    /// Items that nobody has claimed yet.
    pub(super) unclaimed: usize,
    /// No more will come.
    closed: bool,
}

impl<T> State<T> {
    /// Whether all is done.
    pub(super) fn is_idle(&self) -> bool {
        self.waiting.is_empty() && !self.running
    }

    /// Whether all is done, and nothing will come.
    pub(super) fn is_over(&self) -> bool {
        self.closed && self.is_idle()
    }
}

impl<T> Queue<T> {
    pub(super) fn new() -> Queue<T> {
        let state = State { waiting: VecDeque::new(), running: false, unclaimed: 0, closed: false };
        Queue { state: Mutex::new(state), changed: Condvar::new() }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn add(&self, item: T) {
        let mut state = self.lock();
        state.unclaimed += 1;
        state.waiting.push_back(item);
        drop(state);
        self.changed.notify_all();
    }

    /// Nothing more will come.
    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }

    /// Does items, or waits while another thread does one, until `done`. `run` must not panic.
    pub(super) fn work_until(&self, run: impl Fn(&T), done: impl Fn(&State<T>) -> bool) {
        let mut state = self.lock();
        while !done(&state) {
            let next = if state.running { None } else { state.waiting.pop_front() };
            let Some(item) = next else {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            state.running = true;
            drop(state);
            run(&item);
            state = self.lock();
            state.running = false;
            self.changed.notify_all();
        }
    }
}

#[cfg(all(test, loom))]
mod tests {
    use super::*;
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;

    /// A thread of the library, a thread that waits for the second of two items, and one that adds them and then wants all
    /// done: each item is done once, in order, and nobody sleeps for ever.
    #[test]
    fn loom_items_are_done_once_in_order_whoever_does_them() {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(2);
        builder.check(|| {
            // What the items do is not protected by a lock of its own: loom finds any two at once.
            let shared = Arc::new((Queue::new(), UnsafeCell::new(Vec::new())));
            let run = |log: &UnsafeCell<Vec<u32>>, item: &u32| {
                // SAFETY: one item at a time, which is what loom checks.
                #[expect(unsafe_code, reason = "a log as loom sees it")]
                log.with_mut(|log| unsafe { (*log).push(*item) });
            };
            let helper = {
                let shared = shared.clone();
                loom::thread::spawn(move || shared.0.work_until(|item| run(&shared.1, item), State::is_over))
            };
            shared.0.add(1);
            shared.0.add(2);
            shared.0.work_until(|item| run(&shared.1, item), State::is_idle);
            shared.0.close();
            helper.join().unwrap();
            // SAFETY: all others are done.
            #[expect(unsafe_code, reason = "as above")]
            shared.1.with(|log| assert_eq!(unsafe { &*log }, &[1, 2]));
        });
    }
}
