//! What `prun bench` is asked for, as clap reads it.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::ValueHint;
use comm::{DataType, Op};
use programs::bench::collective::Collective;

use super::sizes::Bytes;
use super::{mpi, words};
use crate::job::value::RankCount;

/// `prun bench COLLECTIVE`
#[derive(Debug, Clone, PartialEq, clap::Parser)]
#[command(
    name = "prun bench",
    about = "Measure libcomm's collectives, every element checked, in the words and columns of nccl-tests",
    override_usage = "prun bench COLLECTIVE [-n RANKS] [-b BYTES] [-e BYTES] [-f FACTOR] [OPTIONS]",
    after_help = "Exit codes: 0 all is right, 1 elements were wrong.",
    max_term_width = 100
)]
pub struct BenchArgs {
    /// allreduce, reduce, broadcast, allgather, reduce_scatter, gather, scatter, alltoall, scan, sendrecv or barrier
    #[arg(value_name = "COLLECTIVE", value_parser = words::collective)]
    pub collective: Collective,

    /// How many ranks
    #[arg(short = 'n', long = "np", value_name = "N", default_value = "2")]
    pub np: RankCount,

    /// Smallest message: the larger of what a rank sends and receives; K, M and G are powers of 1024
    #[arg(short = 'b', long, value_name = "BYTES", default_value = "4", help_heading = "Messages")]
    pub begin: Bytes,

    /// Largest message
    #[arg(short = 'e', long, value_name = "BYTES", default_value = "64M", help_heading = "Messages")]
    pub end: Bytes,

    /// What each size is times the one before
    #[arg(short = 'f', long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u64).range(2..), help_heading = "Messages")]
    pub factor: u64,

    /// Only these sizes, instead of -b, -e and -f
    #[arg(long, value_name = "BYTES,...", value_delimiter = ',', help_heading = "Messages")]
    pub sizes: Vec<Bytes>,

    /// Type of the elements, as libcomm (f32) or nccl-tests (float) calls it
    #[arg(short = 'd', long = "type", value_name = "TYPE", default_value = "float", value_parser = words::data_type, help_heading = "Messages")]
    pub data_type: DataType,

    /// How elements are combined: sum, prod, min, max, avg, and for integers band, bor, bxor, land, lor
    #[arg(short = 'o', long = "op", value_name = "OP", default_value = "sum", value_parser = words::op, help_heading = "Messages")]
    pub op: Op,

    /// The root, where there is one
    #[arg(short = 'r', long, value_name = "RANK", default_value_t = 0, help_heading = "Messages")]
    pub root: u32,

    /// Where buffers come from: malloc, comm (comm_alloc) or both, one after the other
    #[arg(long, value_name = "FROM", value_enum, default_value = "malloc", help_heading = "Messages")]
    pub alloc: Alloc,

    /// Calls in a batch [default: as many as take --batch-ms]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), help_heading = "Measuring")]
    pub iters: Option<u32>,

    /// Calls before the first batch
    #[arg(long, value_name = "N", default_value_t = 5, help_heading = "Measuring")]
    pub warmup: u32,

    /// Batches, of which the median counts
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..), help_heading = "Measuring")]
    pub batches: u32,

    /// Milliseconds that a batch should take
    #[arg(long, value_name = "MS", default_value_t = 20.0, help_heading = "Measuring")]
    pub batch_ms: f64,

    /// Whether every element is compared with the right one
    #[arg(long, value_name = "yes|no", default_value = "yes", value_parser = yes_no, action = clap::ArgAction::Set, help_heading = "Measuring")]
    pub check: bool,

    /// Empty the caches before each call
    #[arg(long, help_heading = "Measuring")]
    pub cold: bool,

    /// Time calls one by one, too: p50, p99 and standard deviation
    #[arg(long, help_heading = "Measuring")]
    pub percentiles: bool,

    /// Force libcomm's algorithm (PRUN_ALGO)
    #[arg(long, value_name = "NAME", help_heading = "libcomm")]
    pub algo: Option<String>,

    /// Force how data travels (PRUN_PROTO)
    #[arg(long, value_name = "NAME", help_heading = "libcomm")]
    pub proto: Option<String>,

    /// Verify every transfer (PRUN_VERIFY)
    #[arg(long, value_name = "HOW", num_args = 0..=1, require_equals = true, default_missing_value = "every", help_heading = "libcomm")]
    pub verify: Option<String>,

    /// CPUs of each rank, as in prun --bind
    #[arg(long, value_name = "HOW", help_heading = "libcomm")]
    pub bind: Option<String>,

    /// Between GPUs: a rank on each, buffers in its memory
    #[arg(long, help_heading = "GPUs")]
    pub device: bool,

    /// With --device: calls captured in a graph and replayed, so that launches by the host do not count
    #[arg(long, requires = "device", conflicts_with = "cold", help_heading = "GPUs")]
    pub graph: bool,

    /// With --device: let several ranks have the same GPU
    #[arg(long, requires = "device", help_heading = "GPUs")]
    pub share_gpus: bool,

    /// Rivals, taking turns size by size in the same run: mpi; with --device nccl, nccl-p2p-off, torch
    #[arg(long, value_name = "RIVAL,...", value_delimiter = ',', value_enum, help_heading = "Rivals")]
    pub against: Vec<Rival>,

    /// Turns of each
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..), help_heading = "Rivals")]
    pub rounds: u32,

    /// NCCL once more with each of these protocols forced: LL, LL128, Simple
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', requires = "device", help_heading = "Rivals")]
    pub rival_proto: Vec<String>,

    /// The compiler of the MPI to measure, instead of mpicc.openmpi and mpicc.mpich, or mpicc if there are neither
    #[arg(long, value_name = "PROGRAM", env = "MPICC", hide_env_values = true, help_heading = "Rivals")]
    pub mpicc: Option<OsString>,

    /// Its launcher, instead of mpirun.openmpi and mpiexec.hydra, or mpirun
    #[arg(long, value_name = "PROGRAM", env = "MPIRUN", hide_env_values = true, help_heading = "Rivals")]
    pub mpirun: Option<OsString>,

    /// Seconds after which an MPI that has not measured a size is given up
    #[arg(long, value_name = "SECONDS", default_value_t = mpi::LIMIT_S, value_parser = clap::value_parser!(u32).range(1..), hide = true)]
    pub rival_limit: u32,

    /// The Python that has PyTorch
    #[arg(long, value_name = "PROGRAM", default_value = "python3", help_heading = "Rivals")]
    pub python: String,

    /// Write each result as a line of JSON to a file, or with - to standard output in place of the table
    #[arg(long, value_name = "FILE|-", value_hint = ValueHint::FilePath)]
    pub json: Option<PathBuf>,
}

/// Where buffers come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Alloc {
    /// As any program gets them.
    Malloc,
    /// From `comm_alloc`.
    Comm,
    /// One after the other.
    Both,
}

/// Whom to measure beside libcomm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Rival {
    /// Each MPI that is installed.
    Mpi,
    /// NCCL as it is, and with registered windows.
    Nccl,
    /// NCCL through the host.
    NcclP2pOff,
    /// PyTorch's symmetric memory.
    Torch,
}

fn yes_no(text: &str) -> Result<bool, String> {
    match text {
        "yes" | "1" => Ok(true),
        "no" | "0" => Ok(false),
        _ => Err(format!("`{text}` is neither yes nor no")),
    }
}
