//! rankd, the daemon that looks after the ranks of one node, and its keeper.
//!
//! `prun ── keeper ── rankd ── rank 0 … rank n-1`. prun calls [`start::start`]; the rest runs in processes of
//! its own. [`proto`] is what prun and rankd tell each other, [`frame`] how.

pub mod cgroup;
#[expect(unsafe_code, reason = "clone, and system calls between clone and exec")]
pub mod child;
mod control;
mod environment;
#[expect(unsafe_code, reason = "fork, wait4, waitid, close_range")]
pub mod fork;
pub mod frame;
pub mod keeper;
pub mod processes;
pub mod program;
pub mod proto;
pub mod run;
mod stall;
pub mod start;
mod starter;

pub use start::{Node, RankStdio, start};
