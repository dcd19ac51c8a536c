//! What `prun selftest` is asked for, as clap reads it.

use std::path::PathBuf;

use clap::ValueHint;

/// `prun selftest`
#[derive(Debug, Clone, PartialEq, Default, clap::Parser)]
#[command(
    name = "prun selftest",
    about = "Try on this machine what libcomm promises: collectives between its CPUs, and between its GPUs",
    override_usage = "prun selftest [--only CASE,...] [--log FILE]",
    after_help = "Exit codes: 0 all that ran passed, 1 a case failed.",
    max_term_width = 100
)]
pub struct SelftestArgs {
    /// Only these cases
    #[arg(long, value_name = "CASE,...", value_delimiter = ',')]
    pub only: Vec<String>,

    /// Say which cases there are
    #[arg(long)]
    pub list: bool,

    /// With fewer GPUs than that, what is skipped counts as failed
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    pub require_gpus: usize,

    /// Write all that the ranks say into a file
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub log: Option<PathBuf>,
}
