//! The rank programs that prun carries: what `prun bench` and `prun selftest` run in each rank.
//!
//! The launcher owns their options, starts prun itself as the ranks of a job, and makes tables of what rank 0 prints.
//! Here is what a rank does. It is a crate of its own since it calls the GPU and other libraries, and the launcher has no
//! unsafe code.

pub mod bench;
pub mod selftest;
