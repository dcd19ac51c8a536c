//! The calls that can be measured: their shape, their bandwidth, and the call itself.
#![expect(unsafe_code, reason = "the calls take pointers")]

use std::ffi::c_void;

use comm::{Comm, CommError, DataType, Op};
use serde::{Deserialize, Serialize};

use super::wire::Place;

/// A call of libcomm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Collective {
    /// Everyone gets the reduction of all.
    AllReduce,
    /// The root gets the reduction of all.
    Reduce,
    /// Everyone gets the root's data.
    Broadcast,
    /// Everyone gets everyone's data.
    AllGather,
    /// Everyone gets their share of the reduction.
    ReduceScatter,
    /// The root gets everyone's data.
    Gather,
    /// Everyone gets their part of the root's data.
    Scatter,
    /// Everyone gets their part of everyone's data.
    AllToAll,
    /// Each rank gets the reduction up to itself.
    Scan,
    /// Each rank sends to the next and receives from the one before.
    SendRecv,
    /// Everyone waits for everyone.
    Barrier,
}

use Collective::*;

impl Collective {
    /// All of them.
    pub const ALL: [Collective; 11] =
        [AllReduce, Reduce, Broadcast, AllGather, ReduceScatter, Gather, Scatter, AllToAll, Scan, SendRecv, Barrier];

    /// As it is written on the command line.
    pub fn name(self) -> &'static str {
        match self {
            AllReduce => "allreduce",
            Reduce => "reduce",
            Broadcast => "broadcast",
            AllGather => "allgather",
            ReduceScatter => "reduce_scatter",
            Gather => "gather",
            Scatter => "scatter",
            AllToAll => "alltoall",
            Scan => "scan",
            SendRecv => "sendrecv",
            Barrier => "barrier",
        }
    }

    /// Whether elements are combined.
    pub fn reduces(self) -> bool {
        matches!(self, AllReduce | Reduce | ReduceScatter | Scan)
    }

    /// Whether one rank is the root.
    pub fn has_root(self) -> bool {
        matches!(self, Reduce | Broadcast | Gather | Scatter)
    }

    /// Where its result can go.
    pub fn places(self) -> &'static [Place] {
        match self {
            Broadcast => &[Place::In],
            AllToAll | SendRecv | Barrier => &[Place::Out],
            _ => &[Place::Out, Place::In],
        }
    }

    /// Parts of `count` elements that a rank sends, of `ranks`.
    pub fn send_parts(self, ranks: usize) -> usize {
        if matches!(self, ReduceScatter | Scatter | AllToAll) { ranks } else { 1 }
    }

    /// Parts that a rank receives.
    pub fn recv_parts(self, ranks: usize) -> usize {
        if matches!(self, AllGather | Gather | AllToAll) { ranks } else { 1 }
    }

    /// Elements, as the call counts them, of a message of `bytes` bytes in all, and the bytes that this is. `bytes` is the
    /// larger of what a rank sends and receives, as in nccl-tests; what does not divide is left out.
    pub fn count(self, bytes: u64, element: usize, ranks: usize) -> (u64, u64) {
        let parts = self.send_parts(ranks).max(self.recv_parts(ranks)) as u64;
        let count = if self == Barrier { 0 } else { bytes / element as u64 / parts };
        (count, count * element as u64 * parts)
    }

    /// What algbw is multiplied by to compare with the rate of a link: which part of the message each link carries at least.
    pub fn bus_factor(self, ranks: usize) -> f64 {
        let others = (ranks as f64 - 1.0) / ranks as f64;
        match self {
            AllReduce => 2.0 * others,
            AllGather | ReduceScatter | Gather | Scatter | AllToAll => others,
            Reduce | Broadcast | Scan | SendRecv => 1.0,
            Barrier => 0.0,
        }
    }
}

/// A call with everything but its buffers.
#[derive(Debug, Clone, Copy)]
pub struct Call {
    /// Which.
    pub collective: Collective,
    /// Of which elements.
    pub data_type: DataType,
    /// How they are combined.
    pub op: Op,
    /// The root, where there is one.
    pub root: u32,
    /// Elements.
    pub count: usize,
}

impl Call {
    /// Makes it.
    ///
    /// # Safety
    /// `send` and `recv` are valid for the parts that this call has, apart or in place, and nobody else uses them.
    pub unsafe fn make(&self, comm: &Comm, send: *const c_void, recv: *mut c_void) -> Result<(), CommError> {
        let Call { collective, data_type, op, root, count } = *self;
        // SAFETY: the caller's.
        unsafe {
            match collective {
                AllReduce => comm.all_reduce_raw(send, recv, count, data_type, op),
                Reduce => comm.reduce_raw(send, recv, count, data_type, op, root),
                Broadcast => comm.broadcast_raw(recv, count, data_type, root),
                AllGather => comm.all_gather_raw(send, recv, count, data_type),
                ReduceScatter => comm.reduce_scatter_raw(send, recv, count, data_type, op),
                Gather => comm.gather_raw(send, recv, count, data_type, root),
                Scatter => comm.scatter_raw(send, recv, count, data_type, root),
                AllToAll => comm.all_to_all_raw(send, recv, count, data_type),
                Scan => comm.scan_raw(send, recv, count, data_type, op),
                SendRecv => {
                    let (ranks, rank) = (comm.size(), comm.rank());
                    let (to, from) = ((rank + 1) % ranks, (rank + ranks - 1) % ranks);
                    comm.send_recv_raw(send, count, to, recv, count, from, data_type, 0)
                }
                Barrier => comm.barrier(),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_those_of_the_larger_buffer() {
        assert_eq!(AllReduce.count(1 << 20, 4, 4), (1 << 18, 1 << 20));
        assert_eq!(AllReduce.count(7, 4, 4), (1, 4));
        assert_eq!(AllGather.count(1 << 20, 4, 4), (1 << 16, 1 << 20));
        assert_eq!(ReduceScatter.count(100, 4, 3), (8, 96));
        assert_eq!(AllToAll.count(8, 4, 3), (0, 0));
        assert_eq!(Barrier.count(8, 4, 3), (0, 0));
    }

    #[test]
    fn bus_factors_are_those_of_nccl_tests() {
        assert_eq!(AllReduce.bus_factor(2), 1.0);
        assert_eq!(AllReduce.bus_factor(4), 1.5);
        assert_eq!(AllGather.bus_factor(4), 0.75);
        assert_eq!(Broadcast.bus_factor(4), 1.0);
    }

    #[test]
    fn names_are_distinct() {
        let mut names: Vec<_> = Collective::ALL.iter().map(|one| one.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Collective::ALL.len());
    }
}
