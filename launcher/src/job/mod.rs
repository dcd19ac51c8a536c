//! What the user asked for, validated: the [`Job`].
//!
//! Made once, from flags and an optional file; everything later trusts it. Nothing here looks at the
//! machine: that is the [`placement`](crate::placement).
//!
//! [`mod@file`] reads a job file, [`merge`] lays flags over it, [`check`] makes the `Job` of both.

pub mod check;
pub mod duration;
pub mod env_file;
pub mod file;
pub mod label;
pub mod merge;
pub mod template;
pub mod value;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use nix::sys::signal::Signal;

use template::Template;
use value::Assignment;

/// One job: programs to start together, and how to treat them.
#[derive(Debug, Clone, PartialEq)]
pub struct Job {
    /// The programs in rank order; more than one for `a : b` command lines. Never empty.
    pub programs: Vec<Program>,
    /// What the ranks' environment starts from.
    pub environment: BaseEnvironment,
    /// Where output goes and how it looks.
    pub output: Output,
    /// Who reads prun's standard input.
    pub stdin: StdinTo,
    /// When and how the job ends.
    pub ending: Ending,
    /// Which CPUs each rank may use.
    pub bind: Bind,
    /// Which GPU each rank gets, and how ranks are laid over the machine.
    pub placement: Placement,
    /// What libcomm checks (`PRUN_VERIFY`); `None` leaves the environment as it is.
    pub verify: Option<Verify>,
    /// Where events and the result go as JSON lines.
    pub json: Option<JsonTarget>,
    /// Print the plan instead of starting it.
    pub dry_run: bool,
    /// -1 quiet (only errors), 0 normal, 1 and more: what prun does and why.
    pub verbosity: i8,
}

impl Job {
    /// The number of ranks of all programs together.
    pub fn world_size(&self) -> u32 {
        self.programs.iter().map(|program| program.ranks).sum()
    }
}

/// One program of the job and the ranks that run it.
#[derive(Debug, Clone, PartialEq)]
pub struct Program {
    /// How many ranks run it; at least 1.
    pub ranks: u32,
    /// The program and its arguments, bytes kept as they are. Never empty.
    pub argv: Vec<OsString>,
    /// Working directory; `None` is prun's own.
    pub working_dir: Option<Template>,
    /// `-x NAME=VALUE`, each name once, already read from prun's environment where no value was given.
    pub env: Vec<(OsString, Template)>,
}

/// A program as it was asked for: what is missing here may still be said elsewhere.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Part {
    /// `-n`.
    pub ranks: Option<value::RankCount>,
    /// The program and its arguments.
    pub argv: Vec<OsString>,
    /// `-x`, in order.
    pub env: Vec<Assignment>,
    /// `--wdir`.
    pub wdir: Option<Template>,
}

/// What the ranks' environment starts from, before `PRUN_*` and `-x` are added.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct BaseEnvironment {
    /// `--env-clear`: start from nothing but PATH, HOME, USER, LANG, TERM, TMPDIR instead of prun's own environment.
    pub clear: bool,
    /// Variables of `--env-file`, in order; a later one wins, and `-x` wins over all.
    pub from_files: Vec<(OsString, OsString)>,
}

/// Where output goes and how it looks.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Output {
    /// Text put before each line; `None` passes lines on bare.
    pub label: Option<LabelTemplate>,
    /// Per-rank files.
    pub files: Option<OutputFiles>,
    /// Ranks whose output reaches the terminal; `None` is all (files get everything).
    pub ranks: Option<Vec<u32>>,
    /// Send the ranks' stderr where their stdout goes.
    pub merge_stderr: bool,
    /// Ranks whose stdio is a pseudo-terminal.
    pub pty: PtyRanks,
}

/// `-o DIR` or a pattern with `{rank}` and `{stream}`.
#[derive(Debug, Clone, PartialEq)]
pub struct OutputFiles {
    /// Path pattern, may hold `{rank}`, `{host}`, `{stream}`, `{job}`. A pattern without `{stream}` merges both streams into one file.
    pub pattern: String,
    /// `--tee`: to the terminal as well.
    pub tee: bool,
}

/// A parsed `-l` template, e.g. `[{rank}] `.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LabelTemplate(pub Vec<LabelPart>);

/// One piece of a label.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LabelPart {
    /// Plain text.
    Text(String),
    /// The rank, right-aligned to the widest rank of the job.
    Rank,
    /// This machine's host name.
    Host,
    /// `stdout` or `stderr`.
    Stream,
    /// Local time of the line, `HH:MM:SS.mmm`.
    Time,
    /// Seconds since the job started, `12.345`.
    Elapsed,
}

/// Which ranks get a pseudo-terminal.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum PtyRanks {
    /// Nobody: pipes.
    #[default]
    None,
    /// Every rank.
    All,
    /// One rank.
    One(u32),
}

/// Who reads prun's standard input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StdinTo {
    /// One rank (0 unless chosen); the others read end of file.
    Rank(u32),
    /// A copy for every rank.
    All,
    /// Nobody.
    None,
}

/// When and how the job ends.
#[derive(Debug, Clone, PartialEq)]
pub struct Ending {
    /// End the job after this long; `None`: never.
    pub timeout: Option<Duration>,
    /// From the first "please end" to SIGKILL.
    pub grace: Duration,
    /// Whether a failed rank ends the job.
    pub kill_on_fail: bool,
    /// `--signal SIG@TIME`: send this to the ranks so long before `timeout`.
    pub warning: Option<(Signal, Duration)>,
    /// Start the whole job again after a failed rank, at most so often.
    pub max_restarts: u32,
    /// Print what each rank waits for when no libcomm call moved for this long; `None`: never.
    pub stall_timeout: Option<Duration>,
}

impl Default for Ending {
    fn default() -> Ending {
        Ending {
            timeout: None,
            grace: Duration::from_secs(10),
            kill_on_fail: true,
            warning: None,
            max_restarts: 0,
            stall_timeout: Some(Duration::from_secs(60)),
        }
    }
}

/// How ranks are laid over the machine.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Placement {
    /// What each rank gets one of; `None`: a GPU where there are any, otherwise nothing.
    pub map_by: Option<MapBy>,
    /// In which order.
    pub rank_by: RankBy,
    /// Which GPUs may be used.
    pub gpus: GpuChoice,
    /// Each rank sees its own GPU only.
    pub gpu_mask: bool,
    /// Several ranks may have the same GPU.
    pub share_gpus: bool,
    /// Physical cores of each rank.
    pub cpus_per_rank: Option<u32>,
    /// Look at GPUs and links while the job runs; `None`: where there is a driver to ask.
    pub watch: Option<bool>,
    /// What happens when a GPU or a link fails meanwhile.
    pub on_fault: OnFault,
}

/// What each rank gets one of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MapBy {
    /// A GPU, and the CPUs near to it.
    Gpu,
    /// A NUMA node, in turn.
    Numa,
    /// A socket, in turn.
    Socket,
    /// A physical core.
    Core,
    /// What `--bind` lists: the first rank the first CPU or set, the second the second.
    List,
    /// Nothing: all ranks see the whole machine.
    None,
}

/// In which order ranks are dealt out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RankBy {
    /// One to each in turn.
    #[default]
    Turn,
    /// One after the other is filled.
    Fill,
    /// Along the ring of GPUs.
    Ring,
}

/// Which GPUs a job may use.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum GpuChoice {
    /// All that are visible to prun.
    #[default]
    All,
    /// None: the programs use no GPU.
    None,
    /// These, in this order: numbers, PCI addresses or UUIDs.
    List(Vec<String>),
}

/// What happens when a GPU or a link fails while the job runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnFault {
    /// It is said.
    #[default]
    Warn,
    /// The job ends.
    Abort,
    /// The job ends and is started again, on what is left of the machine.
    Restart,
}

/// Which CPUs each rank may use.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Bind {
    /// As the mapping suggests: near its GPU, its NUMA node, its socket or its core; not at all without a mapping.
    #[default]
    Unsaid,
    /// Whatever prun may use.
    None,
    /// One physical core each, as far as they last.
    Core,
    /// One NUMA node each: the GPU's, or in turn.
    Numa,
    /// One socket each: the GPU's, or in turn.
    Socket,
    /// Explicit sets, one per rank in turn: `0-3;4-7` or `0,1,2`.
    List(Vec<Vec<usize>>),
}

/// What libcomm checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verify {
    /// Nothing.
    Off,
    /// Every transferred chunk and every result.
    Every,
    /// The same, and results are recomputed.
    Full,
}

/// Where JSON lines go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JsonTarget {
    /// An open descriptor.
    Fd(i32),
    /// A file, created or truncated.
    File(PathBuf),
}
