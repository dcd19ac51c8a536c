//! Every rank says who and where it is, and checks that the others are who they should be.
//!
//! `prun -n 4 hello`

use std::process;

use anyhow::{Context, Result, ensure};
use comm::Comm;

fn main() -> Result<()> {
    let comm = Comm::init().context("cannot join the job")?;
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").context("cannot learn this host's name")?;
    println!("hello from rank {} of {}, pid {}, on {}", comm.rank(), comm.size(), process::id(), host.trim());

    let mut ranks = vec![u32::MAX; comm.size() as usize];
    comm.all_gather(&[comm.rank()], &mut ranks)?;
    ensure!(ranks.iter().copied().eq(0..comm.size()), "rank {} sees these ranks: {ranks:?}", comm.rank());
    comm.finalize()?;
    Ok(())
}
