//! What prun and a node's rankd tell each other.
//!
//! Down, once, at the start: the [`NodePlan`]. Then [`ToNode`] down and [`FromNode`] up over one byte
//! stream, each message a frame (see [`crate::frame`]). Output of the ranks does not travel here: on prun's
//! own node the ranks write into pipes whose other ends prun holds, so that an exit or an error never
//! queues behind output and every byte is copied once.

use comm::node::RankReport;
use serde::{Deserialize, Serialize};

/// Everything one node must know to start its ranks.
///
/// Strings that reach `execve` are bytes, since Linux allows any there.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NodePlan {
    /// Sixteen lower-case hex digits, new for each start.
    pub job_id: String,
    /// Ranks of the whole job.
    pub world_size: u32,
    /// The environment that all ranks share, `NAME=VALUE` each.
    pub base_env: Vec<Vec<u8>>,
    /// This node's programs; [`RankPlan::program`] points here.
    pub programs: Vec<ProgramPlan>,
    /// This node's ranks, by local rank.
    pub ranks: Vec<RankPlan>,
    /// From "please end" to SIGKILL when prun is gone, in milliseconds.
    pub grace_ms: u64,
    /// Report a stall when no libcomm call moved for so long, in milliseconds.
    pub stall_ms: Option<u64>,
    /// Put the ranks into a cgroup of their own where that is allowed.
    pub use_cgroup: bool,
    /// Soft and hard limit on open files that prun was started with; the ranks get it back.
    pub open_files: (u64, u64),
}

/// A program, as `execve` wants it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProgramPlan {
    /// Program and arguments, without the closing NUL. Never empty.
    pub argv: Vec<Vec<u8>>,
}

/// One rank of this node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RankPlan {
    /// Rank in the job.
    pub rank: u32,
    /// Index into [`NodePlan::programs`].
    pub program: usize,
    /// Variables of this rank alone, `NAME=VALUE`; they win over [`NodePlan::base_env`].
    pub env: Vec<Vec<u8>>,
    /// Working directory; `None` keeps rankd's.
    pub working_dir: Option<Vec<u8>>,
    /// The only CPUs this rank may use; `None` leaves the mask alone.
    pub cpus: Option<Vec<usize>>,
    /// The NUMA node whose memory it gets first; `None` leaves that to the kernel.
    pub memory_node: Option<usize>,
    /// Device files of the GPUs that it shall see, which it must be able to open.
    pub devices: Vec<Vec<u8>>,
    /// Make its standard input its controlling terminal (a pty).
    pub controlling_terminal: bool,
}

/// prun to rankd.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToNode {
    /// Pass this signal on to every rank's process group; a rank that is stopped is continued when the
    /// signal asks it to end, since it could not see it otherwise.
    Signal(i32),
    /// Stop every rank (SIGTSTP, then SIGSTOP where that did not stop it) and answer [`FromNode::Stopped`].
    Stop,
    /// Let stopped ranks go on.
    Continue,
    /// SIGKILL every process of the job on this node, wherever it has hidden.
    Kill,
    /// Answer with [`FromNode::Report`].
    AskReport,
}

/// rankd to prun.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum FromNode {
    /// rankd runs; its ranks follow.
    Ready {
        /// rankd's process id.
        pid: i32,
        /// Whether the ranks have a cgroup of their own.
        cgroup: bool,
    },
    /// A rank's program runs.
    Started {
        /// Which rank.
        rank: u32,
        /// Its process id.
        pid: i32,
    },
    /// A rank's program could not be started. Sent once: no further rank is started after it.
    StartFailed {
        /// The first rank that failed.
        rank: u32,
        /// Why, in one or two sentences.
        reason: String,
        /// 126 or 127, as shells do; 125 where the fault is prun's or the machine's.
        code: i32,
    },
    /// A rank's process ended. The order of these messages is the kernel's order of the deaths.
    Exited {
        /// Which rank.
        rank: u32,
        /// How it ended.
        status: ExitStatus,
        /// What it used.
        usage: Usage,
    },
    /// All ranks are stopped.
    Stopped,
    /// What each rank that joined libcomm did last.
    Report {
        /// Why this comes.
        why: ReportReason,
        /// One entry a rank, by local rank.
        ranks: Vec<RankReport>,
    },
    /// Processes that outlived their ranks, now being ended.
    Leftovers(Vec<Leftover>),
    /// Somebody sent rankd itself a signal that asks it to end; the ranks are being ended.
    Asked(i32),
    /// The keeper is gone, so nobody would clean up after rankd; the ranks are being ended.
    KeeperGone,
    /// Nothing of the job is left on this node. The last message.
    Empty,
}

/// Why a [`FromNode::Report`] comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReportReason {
    /// prun asked.
    Asked,
    /// A rank failed.
    Failure,
    /// No libcomm call moved for so many milliseconds while one was running.
    Stalled {
        /// How long.
        ms: u64,
    },
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ExitStatus {
    /// It exited with this code.
    Code(i32),
    /// This signal ended it.
    Signal {
        /// The signal's number.
        signal: i32,
        /// Whether it left a core dump.
        core: bool,
    },
}

impl ExitStatus {
    /// The code a shell would give: its own, or 128 + signal.
    pub fn shell_code(self) -> i32 {
        match self {
            ExitStatus::Code(code) => code,
            ExitStatus::Signal { signal, .. } => 128 + signal,
        }
    }

    /// Exit code 0.
    pub fn is_success(self) -> bool {
        self == ExitStatus::Code(0)
    }
}

/// What a rank used, as the kernel counted it; its reaped children included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Usage {
    /// Largest resident set, KiB.
    pub max_rss_kib: u64,
    /// CPU time in user mode, microseconds.
    pub user_us: u64,
    /// CPU time in the kernel, microseconds.
    pub system_us: u64,
}

/// A process that outlived its rank.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leftover {
    /// Its process id.
    pub pid: i32,
    /// Its name, as `ps` shows it.
    pub name: String,
    /// The rank it came from, where its environment tells.
    pub rank: Option<u32>,
}
