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
    /// Make its standard input its controlling terminal (a pty).
    pub controlling_terminal: bool,
}
