//! The cases that need no GPU: every collective, type and operation against the oracle, and what a rank is told when
//! another goes wrong.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use comm::{Comm, CommError, DataType, Op};

use super::part;
use crate::bench::collective::{Call, Collective};
use crate::bench::data::Expected;
use crate::bench::memory::Ready;
use crate::bench::wire::Buffers;

/// Elements of each call: few, many, and over the edge of a chunk.
const COUNTS: [usize; 4] = [1, 7, 4097, 70_001];

/// Every collective with all types and operations, in place and not, aligned and not.
pub(super) fn differential(comm: &Comm) -> bool {
    let mut ok = true;
    for collective in Collective::ALL {
        for buffers in [Buffers::Malloc, Buffers::Comm] {
            let title = format!("{} ranks, {}, {buffers:?} buffers", comm.size(), collective.name());
            ok &= part(comm, &title.to_lowercase(), || all_of(comm, collective, buffers));
        }
    }
    ok
}

fn all_of(comm: &Comm, collective: Collective, buffers: Buffers) -> anyhow::Result<()> {
    for data_type in DataType::ALL {
        for op in Op::ALL.into_iter().filter(|op| op.applies_to(data_type)) {
            if !collective.reduces() && op != Op::Sum {
                continue;
            }
            let call = Call { collective, data_type, op, root: 0, count: 0 };
            let expected = Expected::of(&call, comm.rank() as usize, comm.size() as usize);
            for (turn, count) in COUNTS.into_iter().enumerate() {
                let call = Call { root: turn as u32 % comm.size(), count, ..call };
                for &place in collective.places() {
                    let offset = turn % 3 * data_type.bytes();
                    let wrong = Ready::new(comm, call, &expected, buffers, place, offset)?.check()?;
                    ensure!(wrong == 0, "{op} of {count} {data_type}, {place:?} of place: {wrong} wrong elements");
                }
            }
        }
    }
    Ok(())
}

/// The ranks call different things; each is told both.
pub(super) fn mismatch(comm: &Comm) -> bool {
    part(comm, "mismatched calls name both", || {
        let mut values = [1f32; 100];
        comm.all_reduce_in_place(&mut values, Op::Sum)?;
        let op = if comm.rank() == 0 { Op::Sum } else { Op::Max };
        let error = comm.all_reduce_in_place(&mut values, op).err().context("no error")?;
        ensure!(matches!(error, CommError::Mismatch { .. } | CommError::PeerFailed { .. }), "{error}");
        ensure!(comm.barrier().is_err(), "a later call went through");
        Ok(())
    })
}

/// The last rank is gone in the middle of calls; the others are told who.
pub(super) fn killed(comm: &Comm) -> bool {
    part(comm, "a killed rank is named", || {
        super::outlive();
        let last = comm.size() - 1;
        let mut values = vec![1f32; 10_000];
        for round in 0..1000 {
            if comm.rank() == last && round == 500 {
                super::die();
            }
            let began = Instant::now();
            if let Err(error) = comm.all_reduce_in_place(&mut values, Op::Max) {
                ensure!(began.elapsed() < Duration::from_secs(5), "took {:?}", began.elapsed());
                ensure!(error.to_string().contains(&format!("rank {last}")), "{error}");
                return Ok(());
            }
        }
        anyhow::bail!("no error in 1000 rounds")
    })
}
