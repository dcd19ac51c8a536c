//! What `prun status` is asked for, as clap reads it.

/// `prun status [JOB]`
#[derive(Debug, Clone, PartialEq, clap::Parser)]
#[command(
    name = "prun status",
    about = "Show the running jobs, or what each rank of one has called last and for whom it waits",
    override_usage = "prun status [JOB] [--calls N] [--json]",
    max_term_width = 100
)]
pub struct StatusArgs {
    /// The job's id (PRUN_JOB_ID), or how it begins; without it all running jobs of yours
    #[arg(value_name = "JOB")]
    pub job: Option<String>,

    /// The last N libcomm calls of each rank, at most the 64 that are kept
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub calls: usize,

    /// As JSON, a line for each job
    #[arg(long)]
    pub json: bool,
}
