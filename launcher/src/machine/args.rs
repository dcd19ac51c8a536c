//! What `prun plan`, `prun topo` and `prun doctor` are asked for, as clap reads it.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::ValueHint;

use crate::cli::PlacementOptions;
use crate::job::Bind;
use crate::job::value::RankCount;

/// Which machine is looked at.
#[derive(Debug, Clone, PartialEq, Default, clap::Args)]
pub struct Source {
    /// A machine saved by prun topo --save, or the text of nvidia-smi topo -m, instead of this one
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with = "root")]
    pub node: Option<PathBuf>,

    /// A copy of another machine's /proc and /sys instead of this one's
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub root: Option<PathBuf>,
}

/// `prun plan [-n N] [PLACEMENT] [--node FILE]`
#[derive(Debug, Clone, PartialEq, clap::Parser)]
#[command(
    name = "prun plan",
    about = "Show which GPU, CPUs and memory each rank would get; starts nothing",
    override_usage = "prun plan [-n N] [PLACEMENT OPTIONS] [--node FILE]",
    max_term_width = 100
)]
pub struct PlanArgs {
    /// How many ranks; without it one for each GPU, or for each core where there are none
    #[arg(short = 'n', long = "np", value_name = "N", allow_negative_numbers = true)]
    pub np: Option<RankCount>,

    /// Which machine.
    #[command(flatten)]
    pub source: Source,

    /// As JSON
    #[arg(long)]
    pub json: bool,

    /// CPUs of each rank, as in prun --bind
    #[arg(long, value_name = "HOW", help_heading = "Placement")]
    pub bind: Option<Bind>,

    /// As of a job.
    #[command(flatten)]
    pub placement: PlacementOptions,

    /// A program, which is not looked at: prun plan can so stand in for prun
    #[arg(value_name = "PROGRAM", trailing_var_arg = true, hide = true)]
    pub program: Vec<OsString>,
}

/// `prun topo`
#[derive(Debug, Clone, PartialEq, clap::Parser)]
#[command(
    name = "prun topo",
    about = "Show the machine: GPUs, network cards, NUMA nodes, and the links between them",
    override_usage = "prun topo [--svg FILE | --html FILE | --save FILE | --json] [--node FILE]",
    max_term_width = 100
)]
pub struct TopoArgs {
    /// Which machine.
    #[command(flatten)]
    pub source: Source,

    /// Draw it into an SVG file
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub svg: Option<PathBuf>,

    /// Draw it into one self-contained interactive page
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub html: Option<PathBuf>,

    /// Save it, to plan for it elsewhere
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub save: Option<PathBuf>,

    /// As JSON
    #[arg(long)]
    pub json: bool,

    /// Measure the links between GPUs, and each NUMA node's memory from the CPUs of each other
    ///
    /// Every pair of GPUs is measured by stores of a kernel, by the copy engine and through the host, in each direction
    /// and in both at once; what arrives is compared. The figures are kept until the machine is started again: the ring,
    /// prun plan and the pictures use them.
    #[arg(long, conflicts_with_all = ["node", "root"])]
    pub measure: bool,

    /// Draw NCCL's rings too: the file of NCCL_GRAPH_DUMP_FILE, or a log with NCCL_DEBUG=INFO
    #[arg(long, alias = "nccl-graph", value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub nccl: Option<PathBuf>,
}

/// `prun doctor`
#[derive(Debug, Clone, PartialEq, clap::Parser)]
#[command(
    name = "prun doctor",
    about = "Look for what makes this machine slow or unreliable, and say what to try",
    override_usage = "prun doctor [--json] [--from DIR | --collect DIR | --lspci FILE]",
    after_help = "Exit codes: 0 nothing found, 1 warnings, 2 faults.",
    max_term_width = 100
)]
pub struct DoctorArgs {
    /// Which machine.
    #[command(flatten)]
    pub source: Source,

    /// As JSON
    #[arg(long)]
    pub json: bool,

    /// Judge a collection that prun doctor --collect made
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath, conflicts_with_all = ["collect", "lspci", "node", "root"])]
    pub from: Option<PathBuf>,

    /// Write what is known about this machine into a directory, for somebody else to judge
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath, conflicts_with = "lspci")]
    pub collect: Option<PathBuf>,

    /// With --collect: leave out the names and numbers that identify this machine
    #[arg(long, requires = "collect")]
    pub anonymous: bool,

    /// Judge the text of lspci -vvv
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with_all = ["node", "root"])]
    pub lspci: Option<PathBuf>,

    /// With --lspci, --root, --node or --from: the GPUs worked while it was written, so slow links are faults
    #[arg(long, conflicts_with = "collect")]
    pub busy: bool,

    /// Judge the links as they are, and do not make idle GPUs work meanwhile
    #[arg(long, conflicts_with_all = ["from", "lspci", "node", "root"])]
    pub no_load: bool,

    /// Count errors for so long before judging [default: 2s]
    #[arg(long, value_name = "TIME", conflicts_with_all = ["from", "lspci", "node", "root"])]
    pub during: Option<crate::job::value::Span>,

    /// Also judge whether so many ranks fit
    #[arg(short = 'n', long = "np", value_name = "N", conflicts_with = "collect")]
    pub np: Option<RankCount>,
}
