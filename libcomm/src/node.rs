//! What a node's daemon does with the segment of one job: make it, hand it out, note who ended, read how far
//! each rank is.
//!
//! The daemon only records facts. What an exit means for a rank that waits is decided by that rank, which knows
//! what it waits for: a rank that left in order owes nobody anything.

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use serde::{Deserialize, Serialize};
use std::fmt;

use crate::shm::atomic::{Acquire, Relaxed};
use crate::shm::layout::Geometry;
use crate::shm::segment::{self, Mapping};
use crate::shm::{View, bell, recorder, text};

pub use crate::handover::{JobSocket, JoinServer};
pub use crate::shm::abort::{AbortReason, RankExit};
pub use crate::shm::recorder::CallState;
pub use crate::shm::segment::SegmentError;
pub use crate::types::{DataType, Op, Operation};

/// The shared memory of one job on one node. Dropping it unmaps and closes the daemon's own; ranks keep theirs.
#[derive(Debug)]
pub struct JobSegment {
    fd: OwnedFd,
    mapping: Mapping,
}

impl JobSegment {
    /// A new nameless segment for `local_size` ranks, which for now are all of the job's `world_size`.
    ///
    /// Costs four system calls and one touched page, whatever the number of ranks: the memory is sparse, and all
    /// but the identity starts as zero.
    pub fn create(job_id: &str, world_size: u32, local_size: u32) -> Result<JobSegment, SegmentError> {
        JobSegment::create_with_chunks(job_id, world_size, local_size, Geometry::DEFAULT_CHUNK_BYTES)
    }

    /// The same with another chunk size, so that tests meet many chunk edges with little data.
    #[doc(hidden)]
    pub fn create_with_chunks(
        job_id: &str,
        world_size: u32,
        local_size: u32,
        chunk_bytes: usize,
    ) -> Result<JobSegment, SegmentError> {
        let (fd, mapping) = segment::create(job_id, world_size, local_size, chunk_bytes)?;
        Ok(JobSegment { fd, mapping })
    }

    /// The descriptor, which is close-on-exec: a child gets a duplicate that is not.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// How many ranks it serves.
    pub fn local_size(&self) -> u32 {
        self.mapping.geometry().ranks as u32
    }

    /// Notes that a rank's process ended and wakes everyone who waits.
    ///
    /// Call it as soon as the process is reaped. A rank that was joined and had not left makes this an abort of
    /// the job's communicator, unless it had dropped its own and ended with status 0.
    pub fn note_exit(&self, local_rank: u32, exit: RankExit) {
        if local_rank < self.local_size() {
            self.mapping.view().record_exit(local_rank, exit);
        }
    }

    /// Ends every wait because the job is being ended for a reason that is no rank's death.
    pub fn abort(&self, reason: AbortReason) {
        self.mapping.view().set_abort(reason);
    }

    /// Why the ranks' calls are being refused, if they are.
    pub fn aborted(&self) -> Option<AbortReason> {
        self.mapping.view().abort_reason()
    }

    /// Grows whenever any rank starts or ends a call or a step of one: a job that stalls shows the same number
    /// twice.
    pub fn progress(&self) -> u64 {
        if !self.anyone_joined() {
            return 0;
        }
        let of = |block: &crate::shm::layout::RankBlock| {
            let posted = |which: usize| block.control.posts[which].stamp.load(Relaxed);
            block.activity.0.load(Relaxed).wrapping_add(posted(0)).wrapping_add(posted(1))
        };
        self.mapping.view().ranks.iter().map(of).fold(0, u64::wrapping_add)
    }

    /// Whether any rank has ever joined: if not, nobody linked libcomm, or nobody came that far.
    pub fn anyone_joined(&self) -> bool {
        self.mapping.view().shared.joins.0.load(Acquire) != 0
    }

    /// Where a rank stands and what it called last. Panics on a rank that the segment does not have.
    pub fn rank_report(&self, local_rank: u32) -> RankReport {
        report(self.mapping.view(), local_rank)
    }
}

/// A running job, seen from outside: its shared memory, mapped for reading only.
#[derive(Debug)]
pub struct JobLook(Mapping);

impl JobLook {
    /// Asks the daemon that listens at the abstract name `socket` for the memory of job `job_id`.
    ///
    /// # Errors
    /// The job has ended, is another user's, or was started by another version of libcomm.
    pub fn open(socket: &str, job_id: &str) -> std::io::Result<JobLook> {
        let fd = crate::handover::fetch(socket, job_id)?;
        segment::open_to_read(fd.as_fd(), job_id).map(JobLook).map_err(std::io::Error::other)
    }

    /// How many ranks it serves.
    pub fn local_size(&self) -> u32 {
        self.0.geometry().ranks as u32
    }

    /// Why the ranks' calls are being refused, if they are.
    pub fn aborted(&self) -> Option<AbortReason> {
        self.0.view().abort_reason()
    }

    /// As [`JobSegment::rank_report`].
    pub fn rank_report(&self, local_rank: u32) -> RankReport {
        report(self.0.view(), local_rank)
    }
}

/// Only loads: a viewer's mapping cannot be written to.
fn report(view: View<'_>, local_rank: u32) -> RankReport {
    let block = &view.ranks[local_rank as usize];
    let session = block.status.session.load(Acquire);
    let generation = session.div_ceil(2);
    let error_bytes = block.status.text_bytes.load(Acquire) as usize;
    let error = (error_bytes != 0).then(|| text::load_text(&block.text.0, error_bytes));
    let waiting_for = bell::awaited(block.bell.waiting_for.load(Relaxed));
    let now = crate::clock::now_ns();
    let mut calls: Vec<CallReport> = view.recorded(local_rank).iter().map(|call| CallReport::of(call, now)).collect();
    if let Some(last) = calls.last_mut() {
        match last.state {
            CallState::Running => last.waiting_for = waiting_for,
            CallState::Failed if last.generation == generation => last.error = error.clone(),
            _ => {}
        }
    }
    RankReport {
        local_rank,
        ever_joined: session != 0,
        joined: session % 2 == 1 && block.status.dropped.load(Acquire) != generation,
        generation,
        pid: (session != 0).then(|| block.status.pid.load(Relaxed)),
        exit: view.exit_of(local_rank),
        waiting_for,
        error,
        calls,
    }
}

/// Where one rank stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankReport {
    /// Which rank.
    pub local_rank: u32,
    /// Whether a program of this rank ever joined.
    pub ever_joined: bool,
    /// Whether one is joined now (or ended without leaving).
    pub joined: bool,
    /// How many programs of this rank have joined, one after the other.
    pub generation: u32,
    /// The process that joined last, by its own pid namespace.
    pub pid: Option<u32>,
    /// How the rank ended, once it has.
    pub exit: Option<RankExit>,
    /// The local rank that it waits for, in a call or to join, if it has waited long enough to say so.
    pub waiting_for: Option<u32>,
    /// Why its communicator failed, if it did.
    pub error: Option<String>,
    /// Its last calls, oldest first.
    pub calls: Vec<CallReport>,
}

impl RankReport {
    /// The call that the rank is in, or its last one.
    pub fn last_call(&self) -> Option<&CallReport> {
        self.calls.last()
    }
}

/// One line: the rank, where it is, for whom it waits, for how long.
impl fmt::Display for RankReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {}: ", self.local_rank)?;
        match (self.exit, self.joined) {
            (Some(exit), true) => write!(f, "ended without leaving ({exit}); ")?,
            (Some(exit), false) => write!(f, "ended ({exit}); ")?,
            (None, _) => {}
        }
        match (self.last_call(), self.ever_joined) {
            (Some(call), _) => write!(f, "{call}"),
            (None, true) => match (&self.error, self.waiting_for) {
                (Some(error), _) => write!(f, "could not join: {error}"),
                (None, Some(rank)) => write!(f, "waits for rank {rank} to join"),
                (None, None) => write!(f, "joined, no call yet"),
            },
            (None, false) => write!(f, "has not joined"),
        }
    }
}

/// One call of one rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallReport {
    /// Number of the call in its communicator, from 1; of a message, its number between the two ranks.
    pub number: u64,
    /// Generation: which of the rank's programs made it.
    pub generation: u32,
    /// What was called.
    pub operation: Operation,
    /// Elements.
    pub count: u64,
    /// Their type, where data moves.
    pub data_type: Option<DataType>,
    /// The reduction, where there is one.
    pub op: Option<Op>,
    /// The root, where there is one; of a message, the other rank.
    pub root: Option<u32>,
    /// Which communicator it was made on, 0 for the job's own.
    pub communicator: u32,
    /// The tag of a message.
    pub tag: Option<u32>,
    /// How far it is.
    pub state: CallState,
    /// The local rank it waits for, if it has waited long enough to say so.
    pub waiting_for: Option<u32>,
    /// Milliseconds since it started.
    pub since_ms: u64,
    /// Microseconds that it took, once it returned; not of calls on little data, whose times are those of the kernel's
    /// tick (1 to 10 ms).
    pub took_us: Option<u64>,
    /// Why it failed, if it did.
    pub error: Option<String>,
}

impl CallReport {
    fn of(call: &recorder::Recorded, now_ns: u64) -> CallReport {
        let recorder::Recorded { signature, state, generation, started_ns, ended_ns, .. } = *call;
        CallReport {
            number: signature.number,
            generation,
            operation: signature.operation,
            count: signature.count,
            data_type: signature.data_type,
            op: signature.op,
            root: signature.root,
            communicator: signature.communicator,
            tag: signature.tag,
            state,
            waiting_for: None,
            since_ms: now_ns.saturating_sub(started_ns) / 1_000_000,
            took_us: (state != CallState::Running && signature.count > recorder::SHORT_CALL)
                .then(|| ended_ns.saturating_sub(started_ns) / 1000),
            error: None,
        }
    }
}

impl fmt::Display for CallReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let CallReport { number, operation, count, data_type, op, root, communicator, tag, .. } = *self;
        let signature =
            crate::signature::Signature { number, operation, data_type, op, root, count, communicator, tag };
        write!(f, "{signature}")?;
        let since = self.since_ms as f64 / 1000.0;
        match (self.state, self.waiting_for) {
            (CallState::Running, Some(rank)) => write!(f, ", waits for rank {rank}, since {since:.1} s")?,
            (CallState::Running, None) => write!(f, ", runs since {since:.1} s")?,
            (CallState::Done, _) => write!(f, ", done, begun {since:.1} s ago")?,
            (CallState::Failed, _) => write!(f, ", failed, begun {since:.1} s ago")?,
        }
        match &self.error {
            Some(error) => write!(f, ": {error}"),
            None => Ok(()),
        }
    }
}
