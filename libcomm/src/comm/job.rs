//! What all communicators of a rank share: the rank itself, its mapping of the segment, and whether it still works.

use std::mem::forget;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use crate::clock::{now_ns, tick_ns};
use crate::error::CommError;
use crate::fork_guard::ForkGuard;
use crate::protocol::simple::{explain, publish_failure};
use crate::settings::Settings;
use crate::shm::View;
use crate::shm::heap::Heap;
use crate::shm::recorder::{CallState, SHORT_CALL};
use crate::shm::segment::Mapping;
use crate::shm::wait::Waiter;
use crate::signature::Signature;
use crate::usable_cpus;

/// A rank in one generation of its job.
pub(super) struct Job {
    pub(super) settings: Settings,
    pub(super) mapping: Mapping,
    pub(super) generation: u32,
    /// Whether the ranks share few CPUs: the same on all of them.
    pub(super) crowded: bool,
    pub(super) guard: ForkGuard,
    /// The windows, mapped by the first that needs them.
    heap: OnceLock<Heap>,
    opening: Mutex<()>,
    /// Whether calls are refused, and why.
    broken: AtomicBool,
    because: Mutex<String>,
    /// Calls recorded in this generation.
    sequence: AtomicU64,
    /// The highest number of a communicator that this rank was in.
    pub(super) communicators: AtomicU32,
}

impl Job {
    pub(super) fn new(mapping: Mapping, settings: Settings, generation: u32) -> Job {
        let crowded = usable_cpus::are_few(mapping.view());
        Job {
            settings,
            mapping,
            generation,
            crowded,
            guard: ForkGuard::new(),
            heap: OnceLock::new(),
            opening: Mutex::new(()),
            broken: AtomicBool::new(false),
            because: Mutex::default(),
            sequence: AtomicU64::new(0),
            communicators: AtomicU32::new(0),
        }
    }

    /// This rank in the segment.
    pub(super) fn me(&self) -> u32 {
        self.settings.local_rank
    }

    pub(super) fn view(&self) -> View<'_> {
        self.mapping.view()
    }

    /// The windows, if they are mapped.
    pub(super) fn mapped_heap(&self) -> Option<&Heap> {
        self.heap.get()
    }

    /// The windows of all ranks.
    pub(super) fn heap(&self) -> Result<&Heap, CommError> {
        if let Some(heap) = self.heap.get() {
            return Ok(heap);
        }
        let _one = self.opening.lock().unwrap_or_else(PoisonError::into_inner);
        match self.heap.get() {
            Some(heap) => Ok(heap),
            None => {
                let heap = Heap::open(&self.mapping, self.me())?;
                Ok(self.heap.get_or_init(|| heap))
            }
        }
    }

    /// No call is made any more, for the first reason given.
    pub(super) fn refuse_calls(&self, because: impl FnOnce() -> String) {
        let mut reason = self.because.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.broken.load(Ordering::Relaxed) {
            *reason = because();
            self.broken.store(true, Ordering::Release);
        }
    }

    /// One call, from its record to its end. A failure ends all communicators of the job, here and for the peers.
    pub(super) fn perform<T>(
        &self,
        waiter: &Waiter,
        signature: Signature,
        body: impl FnOnce() -> Result<T, CommError>,
    ) -> Result<T, CommError> {
        if self.broken.load(Ordering::Acquire) {
            let because = self.because.lock().unwrap_or_else(PoisonError::into_inner).clone();
            return Err(CommError::Unusable { because });
        }
        let (view, me) = (self.view(), self.me());
        let sequence = self.sequence.fetch_add(1, Ordering::Relaxed) + 1;
        // Of a call that takes less than a microsecond, two looks at the exact time would be a quarter.
        let clock = if signature.count <= SHORT_CALL { tick_ns } else { now_ns };
        view.record_start(me, self.generation, sequence, &signature, clock());
        waiter.begin_call();
        let unreturned = Unreturned { job: self, signature };
        // What ended the job for another rank since the last call ends it for us, too.
        let result = match waiter.trouble(view, me) {
            Some(stop) => Err(explain(view, stop, Some(signature))),
            None => body(),
        };
        forget(unreturned);
        let state = if result.is_ok() { CallState::Done } else { CallState::Failed };
        view.record_end(me, sequence, &signature, state, clock());
        if let Err(error) = &result {
            self.refuse_calls(|| error.to_string());
            publish_failure(view, me, self.generation, error);
        }
        result
    }
}

/// A call that panics ends the job's communicators: nobody knows how far it came.
struct Unreturned<'a> {
    job: &'a Job,
    signature: Signature,
}

impl Drop for Unreturned<'_> {
    fn drop(&mut self) {
        self.job.refuse_calls(|| format!("{} did not return", self.signature));
    }
}
