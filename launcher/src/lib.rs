//! The launcher half of prun: from arguments to exit code.
//!
//! Data flows one way: `cli` (arguments) → [`job`] (`Job`) → [`placement`] (`NodePlan`) → `supervise`
//! (`Outcome`) → `report`.

#![forbid(unsafe_code)]

pub mod job;
pub(crate) mod input;
pub mod output;
