//! Sums that overflow, wrap or round: one rule, the same bits on every rank each time.
#![expect(unsafe_code, reason = "buffers of the device")]

use anyhow::ensure;
use comm::{Element, Op};
use half::{bf16, f16};

use super::rank::Rank;

/// With two ranks: what each type does beyond its range.
pub(super) fn overflow(rank: &Rank<'_>) -> anyhow::Result<()> {
    for _ in 0..50 {
        sums(rank, [f16::from_f32(40_000.0), f16::from_f32(40_000.0)], f16::INFINITY)?;
        sums(rank, [bf16::from_f32(70_000.0), bf16::from_f32(1.0)], bf16::from_f32(70_144.0))?;
        sums(rank, [120i8, 100], -36)?;
        sums(rank, [200u8, 100], 44)?;
        sums(rank, [i32::MAX, 1], i32::MIN)?;
    }
    Ok(())
}

/// With four ranks, in every order: added up in f32 and rounded once.
pub(super) fn rounding(rank: &Rank<'_>) -> anyhow::Result<()> {
    for big in 0..4 {
        let send = std::array::from_fn::<_, 4, _>(|rank| bf16::from_f32(if rank == big { 256.0 } else { 1.0 }));
        // 259 lies between 258 and 260, and the even one is taken.
        sums(rank, send, bf16::from_f32(260.0))?;
    }
    Ok(())
}

fn sums<T: Element + PartialEq + std::fmt::Debug, const N: usize>(
    rank: &Rank<'_>,
    send: [T; N],
    right: T,
) -> anyhow::Result<()> {
    let (comm, stream, base) = (rank.comm, rank.stream.get(), rank.buffer.address());
    ensure!(comm.size() as usize == N, "{N} ranks are needed");
    rank.buffer.write(0, &[send[comm.rank() as usize]; 9])?;
    // SAFETY: inside the buffer, waited for.
    unsafe { comm.all_reduce_stream_raw(base as *const _, base as *mut _, 9, T::TYPE, Op::Sum, stream.raw())? };
    stream.synchronize(rank.context.driver())?;
    comm.async_error()?;
    let mut result = [right; 9];
    rank.buffer.read(0, &mut result)?;
    ensure!(result == [right; 9], "{send:?} gives {result:?} instead of {right:?}");
    Ok(())
}
