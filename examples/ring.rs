//! A token goes round the ring of ranks, three times. Whoever holds it signs it, so that in the end it tells
//! whether each rank had it, once a round and in order.
//!
//! `prun -n 4 ring`

use anyhow::{Context, Result, ensure};
use comm::Comm;

const ROUNDS: u64 = 3;

/// The token after `rank` signed it: another order of signatures gives another token.
fn signed(token: u64, rank: u32) -> u64 {
    token.wrapping_mul(1_000_003).wrapping_add(u64::from(rank) + 1)
}

fn main() -> Result<()> {
    let comm = Comm::init().context("cannot join the job")?;
    let (rank, size) = (comm.rank(), comm.size());
    let mut token = [0];
    for round in 0..ROUNDS {
        for holder in 0..size {
            if rank == holder {
                token[0] = signed(token[0], rank);
            }
            comm.broadcast(&mut token, holder)
                .with_context(|| format!("rank {rank} lost the token: round {round}, held by rank {holder}"))?;
        }
    }
    let expected = (0..ROUNDS).flat_map(|_| 0..size).fold(0, signed);
    ensure!(token[0] == expected, "rank {rank} got token {:016x}, expected {expected:016x}", token[0]);
    if rank == 0 {
        println!("the token went round {size} ranks {ROUNDS} times and came back as {expected:016x}");
    }
    comm.finalize()?;
    Ok(())
}
