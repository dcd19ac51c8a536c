//! What a call needs: who takes part, how far the steps are, and the frame around each call.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use super::check::Call;
use super::job::Job;
use super::point::Channels;
use super::split::Origin;
use crate::bootstrap;
use crate::choose::Algorithm;
use crate::domains::{self, Domains};
use crate::error::CommError;
use crate::protocol::simple::{Progress, Steps};
use crate::settings::Settings;
use crate::shm::group::Group;
use crate::shm::wait::Waiter;
use crate::verify::Verify;

/// A communicator without what its first calls set up.
pub(super) struct Core {
    pub(super) job: Arc<Job>,
    /// 0 for the job's own, the same number on all members.
    pub(super) id: u32,
    pub(super) group: Group,
    /// Where a communicator that was split off has its memory.
    origin: Option<Origin>,
    /// Groups of ranks that are near each other, where that is asked for or pays.
    domains: Option<Domains>,
    calls: Mutex<Calls>,
    /// What new waiters are made from, also while a call has its own.
    spare: Mutex<Waiter>,
    /// Made by the first message.
    pub(super) channels: OnceLock<Channels>,
    /// Whether it was left in order.
    left: AtomicBool,
}

struct Calls {
    waiter: Waiter,
    progress: Progress,
    /// Calls made on this communicator.
    number: u64,
}

impl Core {
    /// The communicator of all ranks, which have just met.
    pub(super) fn jobs_own(job: Arc<Job>, waiter: Waiter) -> Core {
        let group = Group::all(job.me(), job.settings.size);
        waiter.keep_order();
        Core::new(job, 0, group, None, waiter, Progress::after(bootstrap::FIRST_STEPS))
    }

    /// One that was split off.
    pub(super) fn split_off(&self, id: u32, group: Group, origin: Origin) -> Core {
        Core::new(self.job.clone(), id, group, Some(origin), self.waiter(), Progress::after(0))
    }

    fn new(job: Arc<Job>, id: u32, group: Group, origin: Option<Origin>, waiter: Waiter, progress: Progress) -> Core {
        let domains = domains_of(&job, &group);
        let spare = Mutex::new(waiter.another());
        Core {
            job,
            id,
            group,
            origin,
            domains,
            calls: Mutex::new(Calls { waiter, progress, number: 0 }),
            spare,
            channels: OnceLock::new(),
            left: AtomicBool::new(false),
        }
    }

    /// Whether it is the communicator of all ranks that `init` makes.
    pub(super) fn is_jobs_own(&self) -> bool {
        self.origin.is_none()
    }

    /// A waiter for calls that may wait beside others.
    pub(super) fn waiter(&self) -> Waiter {
        self.spare.lock().unwrap_or_else(PoisonError::into_inner).another()
    }

    /// One collective call, in turn.
    pub(super) fn call<T>(
        &self,
        call: Call,
        body: impl FnOnce(&mut Steps<'_>) -> Result<T, CommError>,
    ) -> Result<T, CommError> {
        if self.job.guard.is_fork() {
            return Err(CommError::Forked);
        }
        let Calls { waiter, progress, number } = &mut *self.lock();
        *number += 1;
        let (job, signature) = (&*self.job, call.numbered(*number, self.id));
        if let Some(heap) = job.mapped_heap() {
            job.graves.clear(heap);
        }
        job.perform(waiter, signature, || {
            let settings = &job.settings;
            let steps = Steps::new(&job.mapping, &self.group, waiter, job.generation, progress, signature);
            let steps = steps.with_heap(job.mapped_heap()).checking(settings.verify, settings.fault);
            body(&mut steps.choosing(settings.protocol, self.domains.as_ref()).crowded(job.crowded))
        })
    }

    /// After the barrier of `finalize`.
    pub(super) fn leave(&self) {
        self.left.store(true, Ordering::Relaxed);
        match &self.origin {
            Some(origin) => origin.bury(&self.job, &self.group),
            None => self.job.refuse_calls(|| "the job's own communicator was left".into()),
        }
    }

    /// When the communicator is dropped.
    pub(super) fn give_up(&self) {
        let (view, left) = (self.job.view(), self.left.load(Ordering::Relaxed));
        match (self.is_jobs_own(), left) {
            (true, true) => bootstrap::leave(view, self.job.me(), self.job.generation),
            (true, false) => {
                self.job.refuse_calls(|| "the job's own communicator was dropped".into());
                bootstrap::note_dropped(view, self.job.me(), self.job.generation);
            }
            (false, true) => {}
            (false, false) => self.group.drop_out(view),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Calls> {
        // After a panic in a call no other is made.
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The same on all members: from what is forced, and what each rank had published before they met.
fn domains_of(job: &Job, group: &Group) -> Option<Domains> {
    let Settings { algorithm, invariant, verify, .. } = &job.settings;
    let by_machine = || {
        let published = (0..group.size()).map(|rank| domains::of(job.view(), group.in_segment(rank)));
        Domains::nearest(&published.collect::<Vec<_>>())
    };
    match algorithm {
        Some(Algorithm::Hierarchical { group: 0 }) => by_machine(),
        Some(Algorithm::Hierarchical { group: ranks }) => Domains::of_size(group.size(), *ranks),
        // Its bits are not those of the order of the ranks.
        None if !*invariant && *verify != Verify::Full && group.size() >= domains::FROM_RANKS => by_machine(),
        _ => None,
    }
}
