//! Peer access is the program's own, too: it may enable it before libcomm does anything, join twice, and take it away later.

use anyhow::ensure;
use comm::cuda::{Context, Driver};
use comm::{Comm, CommError, Op};

use super::rank::Rank;
use super::{memory, part};

/// Two communicators, one after the other, in a program that has enabled peer access first; then without.
pub(super) fn run() -> anyhow::Result<bool> {
    let mut ok = true;
    for life in ["first", "second"] {
        let comm = Comm::init()?;
        let rank = Rank::new(&comm, own_device(&comm)?)?;
        rank.context.enable_peer(&peer(&rank)?)?;
        ok &= part(&comm, &format!("the {life} communicator, peer access enabled before"), || calls(&rank));
        ok &= part(&comm, &format!("the {life} communicator, the runtime's last error"), || memory::runtime(&rank));
        if life == "second" {
            // What became of the context is the program's: this rank ends here.
            return Ok(ok & part(&comm, "peer access taken away", || taken_away(&rank)));
        }
        drop(rank);
        comm.finalize()?;
    }
    Ok(ok)
}

fn own_device(comm: &Comm) -> anyhow::Result<u32> {
    Ok(comm.local_rank() % Context::devices(Driver::get()?)?)
}

/// Calls by each way of moving data.
fn calls(rank: &Rank<'_>) -> anyhow::Result<()> {
    for count in [1000, 300_000, 9_000_000] {
        rank.call::<f32>(count, Op::Sum, None, false, 0)?;
    }
    Ok(())
}

/// Once the program has disabled it, results are right or the next call says what is wrong: the peer's memory may be mapped by
/// other means.
fn taken_away(rank: &Rank<'_>) -> anyhow::Result<()> {
    rank.context.disable_peer(&peer(rank)?)?;
    rank.comm.barrier()?;
    let Err(error) = rank.call::<f32>(1000, Op::Sum, None, false, 0) else {
        println!("rank {}: peer access was taken away, and calls go on", rank.comm.rank());
        return calls(rank);
    };
    println!("rank {}: peer access was taken away: {error:#}", rank.comm.rank());
    let later = rank.comm.barrier().and_then(|()| rank.comm.async_error());
    let error = error.downcast::<CommError>().or_else(|error| later.err().ok_or(error))?;
    let is_clear = matches!(error, CommError::Cuda(_) | CommError::PeerFailed { .. } | CommError::RankExited { .. });
    ensure!(is_clear, "{error}");
    Ok(())
}

/// The other GPU.
fn peer(rank: &Rank<'_>) -> anyhow::Result<Context> {
    Ok(Context::primary(Driver::get()?, 1 - rank.context.device())?)
}
