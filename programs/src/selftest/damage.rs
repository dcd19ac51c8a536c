//! Data of one call between two GPUs is damaged on purpose (`PRUN_FAULT`): what each rank must say of it.
//!
//! Both push their data to the other, so that what is damaged on the way to one rank is wrong there alone. Behind the call
//! each block tells the peer the sums of its chunks, before it compares (`compare_sums` in `kernels/device`): whoever is
//! second has what it needs for its own finding. Only a rank that is still waiting for something else when the peer has
//! failed, or whose peer has rounded the change away, hears of it from there.

use anyhow::{Context as _, ensure};
use comm::fault::{Fault, Kind, Stage};
use comm::{CommError, Op};

use super::rank::Rank;

/// Elements of f32 in each call.
const COUNT: usize = 100_000;
/// So much of such a message is checked at a time: it is cut into 64 chunks at most, of a power of two bytes each.
const CHECKED_BYTES: u64 = 8192;
/// As faults of GPUs count.
const FAULT_CHUNK_BYTES: u64 = 4096;

/// Right results up to the damaged call, there the right error, and a context that is still usable.
pub(super) fn damaged(rank: &Rank<'_>) -> anyhow::Result<()> {
    super::outlive();
    let (comm, me) = (rank.comm, rank.comm.rank());
    let fault = Fault::parse(&std::env::var(comm::env::FAULT).context("PRUN_FAULT says what is damaged")?)?;
    for number in 1..=fault.call {
        let Err(error) = rank.call::<f32>(COUNT, Op::Sum, None, false, 0) else { continue };
        println!("rank {me}, call {number}: {error:#}");
        super::goes_as_it_should(comm)?;
        ensure!(number == fault.call, "call {number} failed, and call {} is damaged: {error:#}", fault.call);
        let error = error.downcast::<CommError>()?;
        ensure!(tells(&fault, me, &error), "that is not what is wrong: {error}");
        return rank.is_usable();
    }
    anyhow::bail!("no error in call {}", fault.call)
}

/// Whether `error` is what rank `me` of two says of that fault.
fn tells(fault: &Fault, me: u32, error: &CommError) -> bool {
    let peer = 1 - me;
    let place = (FAULT_CHUNK_BYTES * fault.chunk + fault.bit / 64 * 8) / CHECKED_BYTES;
    let heard = |is_it: &dyn Fn(&str) -> bool| matches!(error, CommError::PeerFailed { rank, why, .. } if *rank == peer && is_it(why));
    let differs = matches!(error, CommError::ResultsDiffer { chunk, .. } if *chunk == place);
    match (fault.kind, fault.stage) {
        // Of what arrives at the fault's rank.
        (Kind::Flip, Stage::Chunk) if fault.rank == me => {
            matches!(error, CommError::ChunkCorrupt { from, to, chunk, .. } if (*from, *to, *chunk) == (peer, me, place))
        }
        (Kind::Flip, Stage::Chunk) => {
            differs || heard(&|why| why.contains(&format!("chunk {place} changed between rank {me} and rank {peer} ")))
        }
        (Kind::Flip, Stage::Result) => differs || heard(&|why| why.ends_with(&format!("first in chunk {place}"))),
        // Of what the fault's rank sends: the other one waits, and this one for the sums of that, twice as long.
        (Kind::Drop, _) if fault.rank == me => {
            heard(&|_| true) || matches!(error, CommError::DeviceTimeout { rank, .. } if *rank == peer)
        }
        (Kind::Drop, _) => matches!(error, CommError::DeviceTimeout { rank, .. } if *rank == peer),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use comm::{DataType, Operation, Signature};

    use super::*;

    fn call() -> Signature {
        let (data_type, op) = (Some(DataType::F32), Some(Op::Sum));
        let (operation, count) = (Operation::AllReduce, COUNT as u64);
        Signature { number: 4, operation, data_type, op, root: None, count, communicator: 0, tag: None }
    }

    fn corrupt(from: u32, to: u32, chunk: u64) -> CommError {
        CommError::ChunkCorrupt { call: call(), from, to, chunk, sent: 1, arrived: 2 }
    }

    fn differ(rank_a: u32, chunk: u64) -> CommError {
        CommError::ResultsDiffer { call: call(), rank_a, sum_a: 1, rank_b: 1 - rank_a, sum_b: 2, chunk }
    }

    fn late(rank: u32) -> CommError {
        CommError::DeviceTimeout { rank, epoch: 4, block: 17, chunk: 136, call: Some(call()) }
    }

    /// As the other rank hears of it.
    fn from_peer(rank: u32, error: &CommError) -> CommError {
        CommError::PeerFailed { rank, why: error.to_string(), call: Some(call()) }
    }

    fn told(fault: &str, me: u32, errors: &[CommError]) -> Vec<bool> {
        let fault = Fault::parse(fault).expect("a fault");
        errors.iter().map(|error| tells(&fault, me, error)).collect()
    }

    #[test]
    fn a_message_is_checked_in_no_more_chunks_than_there_is_room_for() {
        let bytes = 4 * COUNT as u64;
        assert!(bytes.div_ceil(CHECKED_BYTES) <= 64 && bytes.div_ceil(CHECKED_BYTES / 2) > 64);
    }

    #[test]
    fn a_flipped_bit_is_named_with_its_chunk_where_it_arrives() {
        let fault = "flip:rank=1,call=3,chunk=17,bit=8000";
        let there = [corrupt(0, 1, 8), corrupt(0, 1, 17), corrupt(1, 0, 8), differ(1, 8), from_peer(0, &differ(0, 8))];
        assert_eq!(told(fault, 1, &there), [true, false, false, false, false]);
        let (heard, other) = (from_peer(1, &corrupt(0, 1, 8)), from_peer(1, &corrupt(0, 1, 7)));
        let here = [differ(0, 8), heard, differ(0, 7), other, from_peer(1, &late(0)), corrupt(1, 0, 8), late(1)];
        assert_eq!(told(fault, 0, &here), [true, true, false, false, false, false, false]);
    }

    #[test]
    fn lost_data_is_awaited_by_whom_it_should_reach() {
        let fault = "drop:rank=0,call=3,chunk=17";
        assert_eq!(
            told(fault, 1, &[late(0), late(1), from_peer(0, &late(1)), corrupt(0, 1, 8)]),
            [true, false, false, false]
        );
        assert_eq!(
            told(fault, 0, &[from_peer(1, &late(0)), late(1), late(0), differ(0, 8)]),
            [true, true, false, false]
        );
    }

    #[test]
    fn a_changed_result_differs_in_its_chunk_on_both_ranks() {
        let fault = "flip:rank=0,call=3,chunk=2,bit=5,stage=result";
        for me in [0, 1] {
            let errors = [differ(me, 1), from_peer(1 - me, &differ(1 - me, 1)), differ(me, 2), corrupt(1 - me, me, 1)];
            assert_eq!(told(fault, me, &errors), [true, true, false, false]);
            assert_eq!(told(fault, me, &[from_peer(1 - me, &differ(1 - me, 11))]), [false], "chunk 11 is not chunk 1");
        }
    }
}
