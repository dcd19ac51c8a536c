//! What prun prints about itself, and the compiler it stands in for: everything that is not a job.

pub mod compiler;
pub mod completions;
pub mod help;
pub mod man;
pub mod signals;
