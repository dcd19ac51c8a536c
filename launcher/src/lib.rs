//! The launcher half of prun: from arguments to exit code.
//!
//! Data flows one way: `cli` (arguments) → [`job`] (`Job`) → [`placement`] (`NodePlan`) → `supervise`
//! (`Outcome`) → `report`.

#![forbid(unsafe_code)]

pub mod batch;
pub mod bench;
pub mod cli;
pub mod command;
pub mod doctor;
pub mod exit;
pub mod experiment;
pub(crate) mod input;
pub mod job;
pub mod machine;
pub mod output;
pub(crate) mod own_job;
pub mod placement;
pub(crate) mod plain;
pub(crate) mod real;
pub mod refused;
pub mod report;
pub mod run;
pub mod selftest;
pub mod status;
pub mod supervise;
pub mod surface;
pub mod topology;
pub mod view;
