//! Arenas in the host's memory, where GPUs cannot map each other's or must not: one a rank, in its window of the
//! segment, registered by every rank so that its GPU reads and writes it. The kernels are the same as between GPUs.
//!
//! What was tried, 2 x H200 (PCIe Gen5 x16), driver 580.159.04, 2026-11-30, `PRUN_P2P=off gpu_perf tune ring`, f32 sum in
//! a graph, us for 256 K / 1 M / 4 M / 16 M / 64 M: 16 blocks of 256 threads 24.8 / 52.0 / 164 / 666 / 2695; 32 of 512
//! 25.0 / 54.1 / 178 / 702 / 2640; 64 of 512 24.8 / - / 178 / 695 / 2482. 64 K by the ring in one block 19.6, by lines
//! 8.1. NCCL's own way there (`NCCL_P2P_DISABLE=1`): 34.9 / 62.2 / 170 / 633 / 2530, and 15.0 at 64 K.

use super::setup::{Around, Exchange, Offer};
use crate::cuda::{Address, Context, Registered};
use crate::error::CommError;
use crate::shm::mailbox::Exchanged;

/// What a rank tells the others about its arena in the host's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    /// 0: there is none.
    usable: u64,
    /// In the rank's window.
    offset: u64,
}

/// Makes an arena of `bytes` bytes and maps everyone's, in the order of the ranks. Why not, if any rank cannot.
/// `watches`: whether this rank's kernels see the segment, without which they cannot end when a peer dies.
pub(super) fn make(
    around: &Around<'_>,
    context: Context,
    offer: &Offer,
    bytes: usize,
    watches: bool,
    exchange: &mut Exchange<'_, Registered>,
) -> Result<Result<Vec<Registered>, String>, CommError> {
    let own = match watches {
        true => own_arena(around, context, bytes),
        false => Err("its GPU does not see the job's segment".into()),
    };
    let place = match &own {
        Ok((offset, _)) => Place { usable: 1, offset: *offset as u64 },
        Err(_) => Place { usable: 0, offset: 0 },
    };
    let mut blob = [0; 16 + Offer::BYTES];
    blob[..8].copy_from_slice(&place.usable.to_ne_bytes());
    blob[8..16].copy_from_slice(&place.offset.to_ne_bytes());
    blob[16..].copy_from_slice(&offer.to_bytes());
    let mut open = |rank: u32, bytes_of_peer: &[u8]| {
        let word = |at: usize| u64::from_ne_bytes(std::array::from_fn(|k| bytes_of_peer[at + k]));
        let (place, theirs) = (Place { usable: word(0), offset: word(8) }, Offer::from_bytes(&bytes_of_peer[16..]));
        if offer.takes_turns_with(&theirs) {
            return Err("both are on the same GPU, where kernels that wait for each other never meet".into());
        }
        if place.usable == 0 {
            return Err("it has no host memory for its GPU".into());
        }
        own.as_ref().map_err(|why| format!("this rank has no host memory for its GPU: {why}"))?;
        let heap = (around.heap)().map_err(|error| error.to_string())?;
        if !heap.holds(place.offset as usize, bytes) {
            return Err("its arena lies outside its window".into());
        }
        // SAFETY: whole pages of a mapping that lives as long as the communicator, which drops this before it.
        unsafe { Registered::new(context, heap.address(rank, place.offset as usize).cast(), bytes) }
            .map_err(|error| error.to_string())
    };
    match exchange(&blob, &mut open)? {
        Exchanged::Fallback(refusal) => {
            Ok(Err(format!("rank {} cannot reach rank {}'s memory: {}", refusal.rank, refusal.peer, refusal.why)))
        }
        Exchanged::All(peers) => {
            let mut own = own.ok().map(|(_, registered)| registered);
            let all = peers.into_iter().map(|peer| peer.or_else(|| own.take())).collect::<Option<Vec<_>>>();
            all.map(Ok).ok_or_else(|| CommError::Internal("an arena is missing".into()))
        }
    }
}

/// Where each arena is as this rank's GPU sees it.
pub(super) fn addresses(arenas: &[Registered]) -> impl Iterator<Item = Address> {
    arenas.iter().map(Registered::device)
}

fn own_arena(around: &Around<'_>, context: Context, bytes: usize) -> Result<(usize, Registered), String> {
    if around.size > kernels::args::MAX_RANKS as u32 {
        return Err(format!("kernels serve {} ranks at most", kernels::args::MAX_RANKS));
    }
    let heap = (around.heap)().map_err(|error| error.to_string())?;
    let address = heap.allocate(bytes).ok_or("its window is full")?;
    let offset = heap.offset_of(address, bytes).ok_or("its window is too short")?;
    // SAFETY: whole pages of a mapping that lives as long as the communicator, which drops this before it; they stay
    // allocated, since peers may write to them until they have left.
    let registered = unsafe { Registered::new(context, address.cast(), bytes) }.map_err(|error| error.to_string())?;
    Ok((offset, registered))
}
