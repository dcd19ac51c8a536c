//! The command line as clap reads it. Nothing is computed here.
//!
//! [`Options`] is also what a job file holds: one structure, so that a flag and a key of the file cannot
//! drift apart. What both say together becomes a [`Job`](crate::job::Job) in [`job`](crate::job).

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use clap::ValueHint;
use clap::builder::{OsStringValueParser, TypedValueParser};
use serde::Deserialize;

use crate::job::file;
use crate::job::label::OutputPattern;
use crate::job::template::Template;
use crate::job::value::{Assignment, BadValue, CoreCount, Limit, RankCount, RankList, SignalAt, Span, Times, YesNo};
use crate::job::{Bind, GpuChoice, JsonTarget, LabelTemplate, MapBy, OnFault, PtyRanks, RankBy, StdinTo, Verify};
use crate::machine::args::{DoctorArgs, PlanArgs, TopoArgs};

/// `prun [OPTIONS] [--] PROGRAM [ARGS]... [: [-n N] [-x ..] [--wdir ..] PROGRAM [ARGS]...]...`
#[derive(Debug, clap::Parser)]
#[command(
    name = "prun",
    version,
    long_version = concat!(env!("CARGO_PKG_VERSION"), " (with libcomm; Open MPI's packages have another program of this name)"),
    about = "Start a program several times, as the ranks of one job, and look after them",
    long_about = "Starts a program several times, as the ranks of one job: wires them together, passes their output \
                  on, ends all when one fails, and leaves nothing behind, whoever is killed.",
    override_usage = "prun [OPTIONS] [--] PROGRAM [ARGS]... [: -n N [OPTIONS] PROGRAM [ARGS]...]...\n       \
                      prun run [OPTIONS] JOB.toml",
    max_term_width = 100,
    disable_help_subcommand = true,
    args_override_self = false
)]
pub struct Args {
    /// What the flags say.
    #[command(flatten)]
    pub options: Options,

    /// The program and its arguments, passed on byte for byte
    ///
    /// The first argument that is not an option is the program; everything behind it belongs to the program, up to an
    /// argument that is `:` alone. There another program of the same job begins, with -n, -x and --wdir of its own; -x
    /// and --wdir before the first program hold for all of them.
    #[arg(value_name = "PROGRAM", trailing_var_arg = true, value_hint = ValueHint::CommandWithArguments, help_heading = "What to start")]
    pub program: Vec<OsString>,
}

/// `prun run JOB.toml`: the same options, with a file below them.
#[derive(Debug, clap::Parser)]
#[command(name = "prun run", override_usage = "prun run [OPTIONS] JOB.toml", max_term_width = 100)]
pub struct FileArgs {
    /// The job file; keys are listed in `prun man`
    #[arg(value_name = "JOB.toml", value_hint = ValueHint::FilePath)]
    pub file: PathBuf,

    /// What the flags say; it wins over the file.
    #[command(flatten)]
    pub options: Options,
}

/// What may stand before the second and each further program.
#[derive(Debug, clap::Parser)]
#[command(name = "prun", no_binary_name = true, disable_help_flag = true)]
pub struct PartArgs {
    /// How many ranks run it.
    #[arg(short = 'n', long = "np", value_name = "N", allow_negative_numbers = true)]
    pub np: Option<RankCount>,
    /// Its variables.
    #[arg(short = 'x', long = "env", value_name = "NAME[=VALUE]", value_parser = assignment())]
    pub env: Vec<Assignment>,
    /// Its working directory.
    #[arg(long, value_name = "DIR", value_parser = OsStringValueParser::new().map(Template::from))]
    pub wdir: Option<Template>,
    /// The program and its arguments.
    #[arg(value_name = "PROGRAM", trailing_var_arg = true)]
    pub program: Vec<OsString>,
}

/// Everything that can be asked for besides the programs, by flags or by the keys of a job file.
///
/// A switch is an `Option` too: `--tee=no` can so undo what the file says.
#[derive(Debug, Clone, PartialEq, Default, clap::Args, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
#[command(next_help_heading = "What to start")]
pub struct Options {
    /// How many ranks run the program
    #[arg(short = 'n', long = "np", value_name = "N", allow_negative_numbers = true)]
    #[serde(rename = "ranks", deserialize_with = "file::scalar")]
    pub np: Option<RankCount>,

    /// Show what each rank would get, and start nothing
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "yes", value_name = "yes|no", hide_possible_values = true)]
    #[serde(deserialize_with = "file::scalar")]
    pub dry_run: Option<YesNo>,

    /// Say more about what prun does and why; -vv says all
    #[arg(short = 'v', long, action = clap::ArgAction::Count, conflicts_with = "quiet")]
    pub verbose: u8,

    /// Say nothing but errors
    #[arg(short = 'q', long)]
    pub quiet: bool,

    /// Set a variable in the ranks' environment; NAME alone takes prun's own value
    ///
    /// Ranks inherit prun's environment anyway. {rank}, {local_rank} and {size} in VALUE are filled in for each rank.
    /// Wins over --env-file and over the RANK, WORLD_SIZE, MASTER_ADDR and so on that prun sets.
    #[arg(short = 'x', long = "env", value_name = "NAME[=VALUE]", value_parser = assignment(), help_heading = "Environment")]
    #[serde(deserialize_with = "file::variables")]
    pub env: Vec<Assignment>,

    /// `pass-env` of a job file: names whose values come from prun's own environment.
    #[arg(skip)]
    pub pass_env: Vec<String>,

    /// Read variables from a file of NAME=VALUE lines
    ///
    /// A line that starts with `#` is a comment; `export` before a name and quotes around a whole value are dropped.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, help_heading = "Environment")]
    #[serde(deserialize_with = "file::one_or_many")]
    pub env_file: Vec<PathBuf>,

    /// Start from an almost empty environment instead of prun's own
    ///
    /// Only PATH, HOME, USER, LANG, TERM and TMPDIR are kept.
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "yes", value_name = "yes|no", help_heading = "Environment")]
    #[serde(deserialize_with = "file::scalar")]
    pub env_clear: Option<YesNo>,

    /// Working directory of the ranks; {rank} is filled in
    #[arg(long, value_name = "DIR", value_parser = OsStringValueParser::new().map(Template::from), help_heading = "Environment")]
    #[serde(deserialize_with = "file::scalar")]
    pub wdir: Option<Template>,

    /// Where output goes and how it looks.
    #[command(flatten)]
    pub output: OutputOptions,

    /// Who reads prun's standard input: rank0, all, none or a rank's number [default: rank0]
    ///
    /// The others read end of file.
    #[arg(long, value_name = "WHO", help_heading = "Input")]
    #[serde(deserialize_with = "file::scalar")]
    pub stdin: Option<StdinTo>,

    /// When and how the job ends.
    #[command(flatten)]
    pub ending: EndingOptions,

    /// CPUs of each rank: none, core, numa, socket or a list [default: what --map-by suggests]
    ///
    /// core: one physical core each; numa, socket: one NUMA node or socket each, that of the rank's GPU or in turn. A
    /// list gives each rank in turn its CPUs: `0,1` or `0-3,4-7`, or with `;` between sets that are lists themselves:
    /// `0-3,8-11;4-7`. Only CPUs that prun itself may use (affinity mask, cgroup) are ever used. Without --bind a rank
    /// with a GPU gets its share of the CPUs near to that GPU, and a rank without one may use what prun may use.
    #[arg(long, value_name = "HOW", help_heading = "Placement")]
    #[serde(deserialize_with = "file::scalar")]
    pub bind: Option<Bind>,

    /// Which GPU and which part of the machine each rank gets.
    #[command(flatten)]
    pub placement: PlacementOptions,

    /// Check every transfer and result of libcomm: off, every, or full (results are recomputed)
    ///
    /// Sets PRUN_VERIFY for the ranks.
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "every", value_name = "off|every|full", help_heading = "Checking")]
    #[serde(deserialize_with = "file::scalar")]
    pub verify: Option<Verify>,

    /// Write events and the result as JSON lines to a file or an open descriptor
    #[arg(long, value_name = "FILE|FD", value_parser = OsStringValueParser::new().map(JsonTarget::from), help_heading = "Scripts")]
    #[serde(deserialize_with = "file::scalar")]
    pub json: Option<JsonTarget>,
}

/// Which GPU and which part of the machine each rank gets; the table `[placement]` of a job file.
#[derive(Debug, Clone, PartialEq, Default, clap::Args, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
#[command(next_help_heading = "Placement")]
pub struct PlacementOptions {
    /// What each rank gets one of: gpu, numa, socket, core, list or none [default: gpu where there are NVIDIA GPUs]
    ///
    /// gpu: a GPU each, and the CPUs and memory near to it; more ranks than GPUs are refused without --share-gpus.
    /// list: rank by rank the CPUs or sets that --bind LIST names.
    /// A program that uses no GPU is started on a machine with GPUs by any of the others.
    #[arg(long, value_name = "WHAT")]
    #[serde(deserialize_with = "file::scalar")]
    pub map_by: Option<MapBy>,

    /// In which order: turn (one to each), fill (one after the other), ring (GPUs along the best ring) [default: turn]
    #[arg(long, value_name = "ORDER")]
    #[serde(deserialize_with = "file::scalar")]
    pub rank_by: Option<RankBy>,

    /// GPUs that the job may use, in the order of the ranks: numbers as in prun topo (0,2 or 0-3), PCI addresses or UUIDs; or none
    ///
    /// All ranks see the same list in CUDA_VISIBLE_DEVICES, so that the number of a rank's GPU is its local rank.
    #[arg(long, value_name = "LIST")]
    #[serde(deserialize_with = "file::scalar")]
    pub gpus: Option<GpuChoice>,

    /// Let each rank see its own GPU only
    ///
    /// For programs that always take the first GPU. Transfers between GPUs and cuda:LOCAL_RANK need the whole list.
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "yes", value_name = "yes|no")]
    #[serde(deserialize_with = "file::scalar")]
    pub gpu_mask: Option<YesNo>,

    /// Let several ranks have the same GPU
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "yes", value_name = "yes|no")]
    #[serde(deserialize_with = "file::scalar")]
    pub share_gpus: Option<YesNo>,

    /// Physical cores of each rank
    #[arg(long, value_name = "N")]
    #[serde(deserialize_with = "file::scalar")]
    pub cpus_per_rank: Option<CoreCount>,

    /// Look at links, errors and clocks of the GPUs while the job runs [default: yes where there are GPUs]
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "yes", value_name = "yes|no")]
    #[serde(deserialize_with = "file::scalar")]
    pub watch: Option<YesNo>,

    /// What to do when a GPU or its link fails while the job runs: warn, abort or restart [default: warn]
    ///
    /// abort ends the job with exit code 125. restart ends it and starts it again without the GPU that failed, at most
    /// --max-restarts times (once, unless that is given).
    #[arg(long, value_name = "WHAT")]
    #[serde(deserialize_with = "file::scalar")]
    pub on_fault: Option<OnFault>,
}

/// Where output goes and how it looks; the table `[output]` of a job file.
#[derive(Debug, Clone, PartialEq, Default, clap::Args, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
#[command(next_help_heading = "Output")]
pub struct OutputOptions {
    /// Put the rank, or a template, before each line [template: "[{rank}] "]
    ///
    /// The template may hold {rank}, {host}, {stream}, {time} (of day) and {elapsed} (seconds since the start). It is
    /// given with an equals sign: -l='{time} {rank}: '.
    #[arg(short = 'l', long, num_args = 0..=1, require_equals = true, default_missing_value = crate::job::label::DEFAULT, value_name = "TEMPLATE", hide_default_value = true)]
    #[serde(deserialize_with = "file::scalar")]
    pub label: Option<LabelTemplate>,

    /// Write each rank's output to files instead
    ///
    /// A directory gets rank-0.out, rank-0.err and so on. A pattern may hold {rank}, {stream}, {host} and {job};
    /// one without {stream} takes both streams.
    #[arg(short = 'o', long = "output-dir", value_name = "DIR|PATTERN", value_hint = ValueHint::DirPath)]
    #[serde(rename = "dir", deserialize_with = "file::scalar")]
    pub dir: Option<OutputPattern>,

    /// With -o: to the terminal as well
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "yes", value_name = "yes|no")]
    #[serde(deserialize_with = "file::scalar")]
    pub tee: Option<YesNo>,

    /// Send the ranks' stderr where their stdout goes
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "yes", value_name = "yes|no")]
    #[serde(deserialize_with = "file::scalar")]
    pub merge_stderr: Option<YesNo>,

    /// Show only these ranks, such as 0,2-3; files get all
    #[arg(long, value_name = "LIST")]
    #[serde(deserialize_with = "file::ranks")]
    pub ranks: Option<RankList>,

    /// Give every rank, or one, a terminal of its own
    ///
    /// Programs then write at once and in colour, as if started by hand.
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "all", value_name = "RANK")]
    #[serde(deserialize_with = "file::scalar")]
    pub pty: Option<PtyRanks>,
}

/// When and how the job ends; the table `[ending]` of a job file.
#[derive(Debug, Clone, PartialEq, Default, clap::Args, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
#[command(next_help_heading = "Ending")]
pub struct EndingOptions {
    /// End the job after this long, with exit code 124
    ///
    /// Times are written as 90 (seconds), 1.5h, 500ms or 2m 30s.
    #[arg(long, value_name = "TIME")]
    #[serde(deserialize_with = "file::scalar")]
    pub timeout: Option<Limit>,

    /// How long ranks have between SIGTERM and SIGKILL [default: 10s]
    #[arg(long, value_name = "TIME")]
    #[serde(deserialize_with = "file::scalar")]
    pub grace: Option<Span>,

    /// Whether a failed rank ends the job [default: yes]
    #[arg(long, value_name = "yes|no", conflicts_with = "keep_going")]
    #[serde(deserialize_with = "file::scalar")]
    pub kill_on_fail: Option<YesNo>,

    /// Let the other ranks finish when one fails: the same as --kill-on-fail no
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "yes", value_name = "yes|no")]
    #[serde(deserialize_with = "file::scalar")]
    pub keep_going: Option<YesNo>,

    /// Send a signal so long before --timeout ends the job: USR1@60
    #[arg(long, value_name = "SIGNAL@TIME")]
    #[serde(deserialize_with = "file::scalar")]
    pub signal: Option<SignalAt>,

    /// Start the whole job again when a rank fails, at most N times [default: 0]
    ///
    /// prun waits a little longer before each new start. PRUN_RESTART_COUNT tells the ranks which start it is.
    #[arg(long, value_name = "N")]
    #[serde(deserialize_with = "file::scalar")]
    pub max_restarts: Option<Times>,

    /// Say who waits for whom when no libcomm call moved for so long [default: 60s]
    ///
    /// The job goes on; `none` switches it off.
    #[arg(long, value_name = "TIME")]
    #[serde(deserialize_with = "file::scalar")]
    pub stall_timeout: Option<Limit>,
}

/// What `prun WORD` can be besides a job. Only the very first argument is such a word: `prun -- run`,
/// `prun ./run` and `prun -n 2 run` start programs of that name.
#[derive(Debug, clap::Subcommand)]
pub enum Word {
    /// Start the job that a file describes; flags win over the file
    #[command(override_usage = "prun run [OPTIONS] JOB.toml")]
    Run(Box<FileArgs>),
    /// Show which GPU, CPUs and memory each rank would get
    Plan(Box<PlanArgs>),
    /// Show, draw or save the machine and the links between its GPUs
    Topo(Box<TopoArgs>),
    /// Look for what makes this machine slow or unreliable
    Doctor(Box<DoctorArgs>),
    /// Try a program with many parameters, several times each, and tell what differs
    Sweep(Box<crate::experiment::args::SweepArgs>),
    /// Measure libcomm's collectives, beside MPI, NCCL and PyTorch if asked for
    Bench(Box<crate::bench::args::BenchArgs>),
    /// Try on this machine what libcomm promises, on its CPUs and its GPUs
    Selftest(Box<crate::selftest::args::SelftestArgs>),
    /// Show the running jobs, or what each rank of one has called last and for whom it waits
    Status(Box<crate::status::args::StatusArgs>),
    /// Write a batch script for a job: Slurm, PBS, Torque or LSF
    Script(Box<crate::batch::script::ScriptArgs>),
    /// Compile a C program with libcomm's flags
    Cc(CompilerArgs),
    /// Compile a C++ program with libcomm's flags
    #[command(name = "c++")]
    Cxx(CompilerArgs),
    /// Tell which signals are passed on and which end the job
    Signals,
    /// Print a completion script: prun completions bash > FILE
    Completions {
        /// Which shell
        shell: Shell,
    },
    /// Print the manual page: prun man | man -l -
    Man,
    /// Print this help
    Help,
}

/// `prun cc [--show] ARGS...`
#[derive(Debug, clap::Args)]
pub struct CompilerArgs {
    /// Print the command instead of running it; only as the first argument
    #[arg(long)]
    pub show: bool,
    /// Arguments for the compiler ($CC or cc, $CXX or c++)
    #[arg(value_name = "ARGS", trailing_var_arg = true)]
    pub args: Vec<OsString>,
}

/// A shell that completion scripts exist for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Shell {
    /// GNU bash
    Bash,
    /// zsh
    Zsh,
    /// fish
    Fish,
}

fn assignment() -> impl TypedValueParser<Value = Assignment> {
    OsStringValueParser::new()
        .try_map(|text: OsString| -> Result<Assignment, BadValue> { Assignment::parse(OsStr::new(&text)) })
}
