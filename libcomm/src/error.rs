//! What can go wrong in a call, for whoever made it: data in the fields, one sentence each.

use std::io;

use crate::cuda::CudaError;
use crate::node::{AbortReason, RankExit, SegmentError};
use crate::signature::Signature;
use crate::types::Operation;

/// Why a call failed.
///
/// After an error that concerns the peers (everything but [`InvalidArgument`](CommError::InvalidArgument)) the
/// communicator cannot be used any more: each later call returns [`Unusable`](CommError::Unusable).
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CommError {
    /// A variable that the launcher sets is missing.
    #[error("{name} is not set, although other variables of prun are; start the program with prun, or unset them all")]
    MissingVariable {
        /// Its name.
        name: &'static str,
    },
    /// A variable has a value that makes no sense.
    #[error("{name} is {value:?}, wanted {wanted}")]
    Environment {
        /// Its name.
        name: &'static str,
        /// Its value.
        value: String,
        /// What it should be.
        wanted: &'static str,
    },
    /// CUDA shows this process other GPUs than the launcher gave it.
    #[error("this rank does not see the GPUs that it was given: {how}")]
    OtherGpus {
        /// What is different.
        how: String,
    },
    /// The segment cannot be made or is not the right one.
    #[error(transparent)]
    Segment(#[from] SegmentError),
    /// The descriptor is gone and nobody gives out another.
    #[error("cannot get the shared memory of job {job_id}: {inherited}; {fetched}")]
    NoSegment {
        /// The job.
        job_id: String,
        /// What was wrong with the inherited descriptor.
        inherited: String,
        /// What became of asking the daemon.
        fetched: String,
    },
    /// Another program of the same rank is in the communicator.
    #[error(
        "rank {rank} has joined already, as process {pid}: of two libcomm programs of one rank the second can join only after the first has left"
    )]
    AlreadyJoined {
        /// The rank.
        rank: u32,
        /// The process that is in.
        pid: u32,
    },
    /// A peer's process ended and it still owed us something.
    #[error("rank {rank} exited ({exit}) {}{}{}", if *.joined { "without leaving" } else { "before joining" }, during(.call), in_block(.block))]
    RankExited {
        /// The peer.
        rank: u32,
        /// How it ended.
        exit: RankExit,
        /// Whether it had joined.
        joined: bool,
        /// The call that waited.
        call: Option<Signature>,
        /// On a GPU, the block of that call's kernel that waited.
        block: Option<u32>,
    },
    /// A peer's process is gone although its rank lives on: a wrapper goes on without it.
    #[error("rank {rank}'s process {pid} is gone without having left{}", during(.call))]
    RankVanished {
        /// The peer.
        rank: u32,
        /// Its process.
        pid: u32,
        /// The call that waited.
        call: Option<Signature>,
    },
    /// A peer left in order, so it will not take part.
    #[error("rank {rank} has left the communicator{}", during(.call))]
    RankLeft {
        /// The peer.
        rank: u32,
        /// The call that waited.
        call: Option<Signature>,
    },
    /// A peer's call failed.
    #[error("rank {rank} failed{}: {why}", during(.call))]
    PeerFailed {
        /// The peer.
        rank: u32,
        /// What it said.
        why: String,
        /// The call that waited.
        call: Option<Signature>,
    },
    /// The job is being ended.
    #[error("the job is being ended: {reason}{}", during(.call))]
    Aborted {
        /// Why.
        reason: AbortReason,
        /// The call that waited.
        call: Option<Signature>,
    },
    /// The deadline passed.
    #[error("waited {waited_ms} ms for rank {rank}{}", during(.call))]
    Timeout {
        /// The peer waited for.
        rank: u32,
        /// How long.
        waited_ms: u64,
        /// The call that waited.
        call: Option<Signature>,
    },
    /// The ranks called different things.
    #[error("the ranks called different things: rank {rank_a} made {a}, rank {rank_b} made {b}")]
    Mismatch {
        /// One rank.
        rank_a: u32,
        /// What it called.
        a: Signature,
        /// Another one.
        rank_b: u32,
        /// What that one called.
        b: Signature,
    },
    /// Data changed on its way.
    #[error(
        "{call}: chunk {chunk} changed between rank {from} and rank {to} (checksum {sent:016x} sent, {arrived:016x} arrived)"
    )]
    ChunkCorrupt {
        /// The call.
        call: Signature,
        /// Who sent.
        from: u32,
        /// Who received.
        to: u32,
        /// Which chunk of the call, from 0.
        chunk: u64,
        /// The sender's checksum.
        sent: u64,
        /// The receiver's.
        arrived: u64,
    },
    /// The ranks' results are not the same.
    #[error(
        "{call}: the results of rank {rank_a} and rank {rank_b} differ (checksums {sum_a:016x} and {sum_b:016x}), first in chunk {chunk}"
    )]
    ResultsDiffer {
        /// The call.
        call: Signature,
        /// One rank.
        rank_a: u32,
        /// Its checksum.
        sum_a: u64,
        /// Another one.
        rank_b: u32,
        /// That one's.
        sum_b: u64,
        /// The first chunk that differs.
        chunk: u64,
    },
    /// A GPU's result is not what the host makes of the same data.
    #[error("{call}: element {element} is {device} on the GPU and {host} on the host")]
    HostDiffers {
        /// The call.
        call: Signature,
        /// The first element that differs.
        element: u64,
        /// The GPU's result.
        device: String,
        /// The host's.
        host: String,
    },
    /// A rank's result is not what the ranks' data gives.
    #[error(
        "{call}: the result of rank {rank} is not that of what the ranks sent: element {element}, in chunk {chunk}, is {found:#x}, recomputed {wanted:#x}"
    )]
    ResultWrong {
        /// The call.
        call: Signature,
        /// Whose result.
        rank: u32,
        /// Which chunk of the call, from 0.
        chunk: u64,
        /// Which element of the result.
        element: u64,
        /// Its bits.
        found: u64,
        /// What they should be.
        wanted: u64,
    },
    /// The arguments make no sense; nothing was sent and the communicator is as before.
    #[error("{operation}: {why}")]
    InvalidArgument {
        /// What was called.
        operation: Operation,
        /// What is wrong.
        why: String,
    },
    /// The CUDA driver is missing or a call of it failed.
    #[error(transparent)]
    Cuda(#[from] CudaError),
    /// NCCL was asked for and cannot do it.
    #[error("NCCL: {why}")]
    Nccl {
        /// What it said.
        why: String,
    },
    /// The deadline passed in a kernel.
    #[error("GPU: waited for rank {rank}{}, in block {block} for chunk {chunk} of device call {epoch}", during(.call))]
    DeviceTimeout {
        /// The peer waited for.
        rank: u32,
        /// Which launch of a call on the device, from 1: a long call may be several.
        epoch: u64,
        /// Which block waited.
        block: u32,
        /// For which chunk.
        chunk: u32,
        /// The call that waited.
        call: Option<Signature>,
    },
    /// A graph was replayed that was captured with memory which has been deregistered since.
    #[error("{call} puts its result into memory of rank {rank} that has been deregistered: capture the graph again")]
    Stale {
        /// Whose memory it was.
        rank: u32,
        /// The replayed call.
        call: Signature,
    },
    /// One rank waits in a call on the host, and another one that it waits for has gone on to a call on its GPU.
    #[error(
        "rank {rank} waits in {call} on the host, but rank {peer} has made {on_device} on its GPU before that: all ranks must make their calls in the same order"
    )]
    OtherOrder {
        /// Who waits.
        rank: u32,
        /// In which call.
        call: Signature,
        /// For whom.
        peer: u32,
        /// Its last call on its GPU.
        on_device: Signature,
    },
    /// The ranks do not agree on how much each of them sends.
    #[error("rank {rank} has other counts for the ranks than this one")]
    CountsDiffer {
        /// A rank with other counts.
        rank: u32,
    },
    /// The rank's window is full.
    #[error("no room for {bytes} bytes in this rank's part of the shared memory")]
    NoMemory {
        /// What was wanted.
        bytes: usize,
    },
    /// A rank has no room in its window for its part of a new communicator.
    #[error("{operation}: rank {rank} has no room in its shared memory for its part of the new communicator")]
    NoRoomFor {
        /// What was called.
        operation: Operation,
        /// The rank.
        rank: u32,
    },
    /// The thread that carries requests out cannot be started.
    #[error("cannot start the thread that carries requests out: {why}; blocking calls need none")]
    NoThread {
        /// What the system said.
        why: String,
    },
    /// An earlier call failed, so this one was not tried.
    #[error("the communicator cannot be used any more: {because}")]
    Unusable {
        /// The earlier error.
        because: String,
    },
    /// The communicator was inherited over fork.
    #[error("this process is a fork of the one that joined: only that one can use its communicator")]
    Forked,
    /// A bug in libcomm, caught at its border.
    #[error("libcomm failed: {0}")]
    Internal(String),
}

fn during(call: &Option<Signature>) -> String {
    call.map_or(String::new(), |call| format!(" during {call}"))
}

fn in_block(block: &Option<u32>) -> String {
    block.map_or(String::new(), |block| format!(", in block {block} on the GPU"))
}

impl CommError {
    pub(crate) fn invalid(operation: Operation, why: impl Into<String>) -> CommError {
        CommError::InvalidArgument { operation, why: why.into() }
    }

    pub(crate) fn no_segment(job_id: &str, inherited: impl ToString, fetched: Option<io::Error>) -> CommError {
        let fetched = match fetched {
            None => format!("{} is not set either, so nobody can be asked for it", crate::env::SOCKET),
            Some(error) if error.kind() == io::ErrorKind::ConnectionRefused => "the job's daemon is gone".to_owned(),
            Some(error) => format!("asking the job's daemon for it: {error}"),
        };
        CommError::NoSegment { job_id: job_id.to_owned(), inherited: inherited.to_string(), fetched }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_death_is_told_with_all_that_is_known_of_it() {
        let died =
            |call, block| CommError::RankExited { rank: 1, exit: RankExit::Signal(9), joined: true, call, block };
        assert_eq!(died(None, None).to_string(), "rank 1 exited (signal 9, SIGKILL) without leaving");
        let call = Signature {
            number: 7,
            operation: Operation::Barrier,
            data_type: None,
            op: None,
            root: None,
            count: 0,
            communicator: 0,
            tag: None,
        };
        let text = died(Some(call), Some(3)).to_string();
        assert_eq!(
            text,
            "rank 1 exited (signal 9, SIGKILL) without leaving during call 7 barrier, in block 3 on the GPU"
        );
    }
}
