//! Learns to read handwritten digits, on one rank or many: data-parallel training as it is done on GPUs, small
//! enough for any machine. Each step every rank takes its share of the batch, one AllReduce sums the gradients,
//! and every rank makes the same step. Where prun gave the ranks GPUs, the gradients are summed in their memory.
//!
//! Ctrl-C and SIGTERM do not end a rank at once: it only notes them, the next AllReduce tells the others, and
//! all stop at the same step, where rank 0 saves a checkpoint.

mod checkpoint;
mod data;
mod gradients;
mod hash;
mod net;
mod options;
mod rng;
mod run;
mod share;
mod state;

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use clap::Parser;
use comm::Comm;

use options::Options;
use run::{Ending, RankZeroFailed, run};

/// What a shell reports for a program that Ctrl-C ended. `ctrlc` does not say which signal it was.
const INTERRUPTED: u8 = 130;

fn main() -> ExitCode {
    let options = Options::parse();
    let comm = match Comm::init() {
        Ok(comm) => comm,
        Err(error) => return failure("cannot join the job", &error.into()),
    };
    let rank = format!("rank {}", comm.rank());
    match train(&comm, &options) {
        Ok(ending) => match comm.finalize() {
            Ok(()) if ending == Ending::Interrupted => ExitCode::from(INTERRUPTED),
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => failure(&rank, &anyhow::Error::from(error).context("cannot leave the job")),
        },
        Err(error) if error.is::<RankZeroFailed>() => {
            // Waits until rank 0, which has the reason, has ended with it; that it ended is no news.
            let _ = comm.finalize();
            ExitCode::FAILURE
        }
        Err(error) => {
            let code = failure(&rank, &error);
            // Ends with the job not left, so that the others learn of it by this rank's death, and the rank
            // with the reason is the first that failed.
            std::mem::forget(comm);
            code
        }
    }
}

fn train(comm: &Comm, options: &Options) -> Result<Ending> {
    let stop = Arc::new(AtomicBool::new(false));
    let asked = Arc::clone(&stop);
    ctrlc::set_handler(move || asked.store(true, Ordering::Relaxed)).context("cannot watch for Ctrl-C")?;
    run(comm, options, &stop)
}

/// Reports an error and its causes, one a line.
fn failure(who: &str, error: &anyhow::Error) -> ExitCode {
    eprintln!("error: {who}: {error}");
    for cause in error.chain().skip(1) {
        eprintln!("  cause: {cause}");
    }
    ExitCode::FAILURE
}
