//! The communicator: one rank's access to all others, from join to leave.
//!
//! `job.rs` has what all communicators of a rank share, `core.rs` the frame around each call, `typed.rs` and `raw.rs` the
//! collectives, `point.rs` messages between two ranks, `split.rs` communicators made of others, `request.rs` and
//! `queue.rs` calls that return before they are done, `device.rs` the calls on GPU memory, `full.rs` the same done again on
//! the host, `buffer.rs` and `register.rs` memory that all ranks reach.

mod buffer;
mod check;
mod core;
mod device;
mod full;
mod job;
mod point;
mod queue;
mod raw;
mod register;
mod request;
mod split;
mod typed;

use rustix::fd::BorrowedFd;
use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use self::check::Call;
use self::core::Core;
use self::job::Job;
use self::request::Requests;
use crate::bootstrap;
use crate::device::Device;
use crate::error::CommError;
use crate::protocol::simple::Steps;
use crate::settings::Settings;
use crate::shm::abort::AbortReason;
use crate::shm::mailbox::{self, Exchanged};
use crate::shm::segment::{self, Mapping};
use crate::types::Operation;

pub use buffer::Buffer;
pub use request::Request;

/// One rank's communicator: with all ranks of its job, or with some of them, after [`split`](Comm::split).
///
/// All ranks make the same calls in the same order, on host and GPU memory alike, each with the same count, type, op and
/// root; a difference is an error on all of them. A call returns once this rank's part is done and its result is
/// complete. Calls from several threads take turns; a wait for peers ends when they come, when one of them dies, fails
/// or leaves, when the job is ended, or at the deadline of [`TIMEOUT_MS`](crate::env::TIMEOUT_MS) where that is set.
///
/// After an error that is not about arguments every later call returns [`CommError::Unusable`], on all communicators
/// of the job. An error about arguments is this rank's alone: nothing was sent, and the others wait for the call that was meant.
///
/// [`finalize`](Comm::finalize) leaves in order, together with all. A rank that merely drops its communicator counts as
/// joined until its process ends: who still waits for it then learns how that was, and waits no longer than two
/// seconds if the process lives on. Who no longer needs it is not disturbed, provided that it ends with status 0.
pub struct Comm {
    core: Arc<Core>,
    /// Calls that have returned before they are done; made by the first.
    requests: OnceLock<Requests>,
    /// Set up by the first call on device memory. Locked before the core's calls.
    device: Mutex<Option<Device>>,
}

impl Comm {
    /// Joins the job that prun started this program for, and returns once all its ranks have joined.
    ///
    /// A program that prun did not start is alone: rank 0 of 1.
    pub fn init() -> Result<Comm, CommError> {
        let (settings, launched) = Settings::from_env()?;
        let mapping = match launched {
            true => bootstrap::find_segment(&settings)?,
            false => segment::private(&settings.job_id)?,
        };
        Comm::join(mapping, settings)
    }

    /// Joins a segment that is at hand, as tests do whose ranks are threads.
    #[doc(hidden)]
    pub fn attach(fd: BorrowedFd<'_>, settings: Settings) -> Result<Comm, CommError> {
        let mapping = segment::open(fd, &settings.job_id)?;
        Comm::join(mapping, settings)
    }

    fn join(mapping: Mapping, settings: Settings) -> Result<Comm, CommError> {
        let (waiter, generation) = bootstrap::join(&mapping, &settings)?;
        let job = Arc::new(Job::new(mapping, settings, generation));
        Ok(Comm::of(Core::jobs_own(job, waiter)))
    }

    fn of(core: Core) -> Comm {
        Comm { core: Arc::new(core), requests: OnceLock::new(), device: Mutex::new(None) }
    }

    /// This rank's number in this communicator, from 0.
    pub fn rank(&self) -> u32 {
        self.core.group.me()
    }

    /// How many ranks this communicator has.
    pub fn size(&self) -> u32 {
        self.core.group.size()
    }

    /// This rank's number among those of its job on its node.
    pub fn local_rank(&self) -> u32 {
        self.core.job.settings.local_rank
    }

    /// Returns once all ranks have called it. What any rank did before, all can rely on after.
    pub fn barrier(&self) -> Result<(), CommError> {
        self.call(Call::plain(Operation::Barrier), |steps| steps.meet())
    }

    /// Swaps blobs of one length between all ranks; `open` makes something of each peer's. If any rank fails to,
    /// all get the same [`Exchanged::Fallback`] and nothing stays open.
    #[doc(hidden)]
    pub fn exchange<T>(
        &self,
        blob: &[u8],
        open: impl FnMut(u32, &[u8]) -> Result<T, String>,
    ) -> Result<Exchanged<T>, CommError> {
        let operation = Operation::Exchange;
        if blob.len() > mailbox::MAILBOX_BYTES {
            let why = format!("{} bytes do not fit the mailbox of {}", blob.len(), mailbox::MAILBOX_BYTES);
            return Err(CommError::invalid(operation, why));
        }
        if !self.core.is_jobs_own() {
            return Err(CommError::invalid(operation, "only the job's own communicator has mailboxes"));
        }
        let (view, me) = (self.core.job.view(), self.core.job.me());
        self.call(Call { count: blob.len(), ..Call::plain(operation) }, |steps| {
            // Nobody reads an old blob any more: all have left the exchange before, whose end was a barrier.
            steps.reclaim()?;
            let meet = || {
                steps.post()?;
                steps.await_all()
            };
            mailbox::exchange(view, me, blob, meet, open)
        })
    }

    /// Ends the job for all ranks: every wait and every later call of theirs fails and says that this rank called
    /// for it. Waits for nobody, so it may be called while another thread is in a call. In a forked child it does nothing.
    pub fn abort(&self) -> CommError {
        if self.core.job.guard.is_fork() {
            return CommError::Forked;
        }
        let reason = AbortReason::Called(self.local_rank());
        self.core.job.view().set_abort(reason);
        CommError::Aborted { reason, call: None }
    }

    /// Leaves together with all ranks of this communicator: returns once all have called it, so that whoever leaves
    /// leaves nobody waiting. Who leaves the job's own can use none that was split off it any more.
    ///
    /// An error that says that a request was not waited for, or a message not received, comes after all that.
    pub fn finalize(self) -> Result<(), CommError> {
        if self.core.job.guard.is_fork() {
            return Err(CommError::Forked);
        }
        let unfinished = self.requests.get().map_or(Ok(()), |requests| requests.close(&self.core));
        let mut device = self.device.lock().unwrap_or_else(PoisonError::into_inner).take();
        // Before the barrier all let go of the others' memory, after it each frees its own.
        let closed = device.as_mut().map_or(Ok(()), |device| {
            let closed = device.close_peers();
            self.core.job.on_device.forget();
            match device.trouble(self.core.job.view(), self.rank()) {
                Some(error) => Err(error),
                None => closed.map_err(CommError::Cuda),
            }
        });
        let left = self.core.call(Call::plain(Operation::Finalize), |steps| {
            closed?;
            steps.meet()
        });
        match (left.is_ok(), device) {
            (false, Some(device)) => device.abandon(),
            (_, device) => drop(device),
        }
        left?;
        let unreceived = self.core.unreceived();
        self.core.leave();
        unfinished.and(unreceived)
    }

    /// One call in the order of the program: after all that was started before.
    fn call<T>(&self, call: Call, body: impl FnOnce(&mut Steps<'_>) -> Result<T, CommError>) -> Result<T, CommError> {
        if let Some(requests) = self.requests.get() {
            requests.drain(&self.core);
        }
        self.core.call(call, body)
    }
}

impl fmt::Debug for Comm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Job { settings: Settings { job_id, .. }, generation, .. } = &*self.core.job;
        let (rank, size) = (self.rank(), self.size());
        write!(f, "Comm(rank {rank} of {size}, job {job_id}, generation {generation}")?;
        match self.core.id {
            0 => write!(f, ")"),
            id => write!(f, ", communicator {id})"),
        }
    }
}

impl Drop for Comm {
    fn drop(&mut self) {
        let device = self.device.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if self.core.job.guard.is_fork() {
            std::mem::forget(device); // its driver is of no use in a fork
            std::mem::forget(self.requests.take()); // and so is its thread
            return;
        }
        if let Some(requests) = self.requests.take() {
            requests.abandon(&self.core);
        }
        if let Some(device) = device {
            self.core.job.on_device.forget();
            device.abandon();
        }
        self.core.give_up();
    }
}
