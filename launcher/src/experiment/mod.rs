//! `prun sweep`: a matrix of parameters, each combination tried several times, and what came of it.
//!
//! One direction again: [`args`] and [`mod@file`] → [`spec`] (`Experiment`) → [`matrix`] (`Variant`s) → [`schedule`]
//! (which trial next) → [`trial`] (one start of a job) → [`journal`] (one line each) → [`summary`] → [`show`].
//!
//! A trial is a prun of its own: nothing that one trial does to its prun reaches the next, several can run at once,
//! and prun's promise that nothing is left behind holds for each. It learns of the sweep's death from the kernel
//! (see [`child`]), so a killed sweep leaves nothing running either.

pub mod args;
pub mod child;
pub mod circumstances;
pub mod enter;
pub mod figures;
pub mod file;
pub mod flags;
pub mod journal;
pub mod marks;
pub mod matrix;
pub mod number;
pub mod progress;
pub mod schedule;
pub mod show;
pub mod spec;
pub mod stats;
pub mod summary;
pub mod sweep;
pub mod trial;
