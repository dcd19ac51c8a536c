//! The options of `prun sweep`, as clap reads them.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::ValueHint;

use super::spec::Order;
use crate::job::value::{Span, Times};

/// `prun sweep [OPTIONS] EXPERIMENT.toml` or `prun sweep [OPTIONS] -- PROGRAM [ARGS]...`
#[derive(Debug, Clone, PartialEq, Default, clap::Parser)]
#[command(
    name = "prun sweep",
    about = "Try a program with many parameters, several times each, and tell what differs",
    override_usage = "prun sweep [OPTIONS] EXPERIMENT.toml\n       \
                      prun sweep [OPTIONS] -n 2,4 --param NAME=VALUE,VALUE -- PROGRAM [ARGS, with {NAME}]...\n       \
                      prun sweep --report DIR [--against DIR] [--html FILE]",
    max_term_width = 100,
    disable_version_flag = true
)]
pub struct SweepArgs {
    /// The experiment file
    #[arg(value_name = "EXPERIMENT.toml", value_hint = ValueHint::FilePath)]
    pub file: Option<PathBuf>,

    /// The program and its arguments, in which {NAME} stands for a parameter
    #[arg(value_name = "PROGRAM", last = true, value_hint = ValueHint::CommandWithArguments)]
    pub program: Vec<OsString>,

    /// Numbers of ranks to try, such as 1,2,4 or 1..8*2; this parameter is called n
    #[arg(short = 'n', long = "np", value_name = "LIST", help_heading = "What to try")]
    pub np: Option<String>,

    /// A parameter and its values: chunk=4,8,16 or size=1K..1G*4
    #[arg(short = 'p', long = "param", value_name = "NAME=VALUES", help_heading = "What to try")]
    pub param: Vec<String>,

    /// Let these parameters move together instead of trying all combinations: --zip size,count
    #[arg(long, value_name = "NAME,NAME", help_heading = "What to try")]
    pub zip: Vec<String>,

    /// Leave out combinations: --exclude n=4,chunk=32
    #[arg(long, value_name = "NAME=VALUE,...", help_heading = "What to try")]
    pub exclude: Vec<String>,

    /// Set a variable in the ranks' environment; {NAME} is filled in
    #[arg(short = 'x', long = "env", value_name = "NAME=VALUE", help_heading = "What to try")]
    pub env: Vec<String>,

    /// CPUs of each rank, as for a job
    #[arg(long, value_name = "HOW", help_heading = "What to try")]
    pub bind: Option<String>,

    /// Trials of each combination [default: 10]
    #[arg(short = 'r', long, value_name = "N", help_heading = "How often")]
    pub repeat: Option<Times>,

    /// Trials of each combination before those that count [default: 1]
    #[arg(short = 'w', long, value_name = "N", help_heading = "How often")]
    pub warmup: Option<Times>,

    /// Go on past --repeat until the median is known so precisely, such as 2%
    #[arg(long, value_name = "PERCENT", help_heading = "How often")]
    pub precision: Option<String>,

    /// With --precision: never more trials than this [default: 250]
    #[arg(long, value_name = "N", help_heading = "How often")]
    pub max_repeat: Option<Times>,

    /// Start no trial after this long
    #[arg(long, value_name = "TIME", help_heading = "How often")]
    pub budget: Option<Span>,

    /// interleaved (A B A B), random (each round shuffled) or grouped (A A B B) [default: interleaved]
    #[arg(long, value_name = "ORDER", help_heading = "How often", value_parser = clap::value_parser!(Order), hide_possible_values = true)]
    pub order: Option<Order>,

    /// What --order random shuffles by [default: 1]
    #[arg(long, value_name = "N", help_heading = "How often")]
    pub seed: Option<u64>,

    /// End a trial after this long; it then counts as failed
    #[arg(long, value_name = "TIME", help_heading = "Trials")]
    pub timeout: Option<Span>,

    /// Start a trial again when prun or the machine failed, never for a rank's own exit [default: 2]
    #[arg(long, value_name = "N", help_heading = "Trials")]
    pub retries: Option<Times>,

    /// Trials at once; figures of time are then less sure [default: 1]
    #[arg(short = 'j', long, value_name = "N", help_heading = "Trials")]
    pub jobs: Option<Times>,

    /// A figure that the program prints: NAME=REGEX, whose group is the number
    #[arg(long, value_name = "NAME=REGEX", help_heading = "Figures")]
    pub figure: Vec<String>,

    /// The figure that is compared [default: the first, or wall time]
    #[arg(long, value_name = "NAME", help_heading = "Figures")]
    pub metric: Option<String>,

    /// Compare the values of this parameter with its first
    #[arg(long, value_name = "NAME", help_heading = "Figures")]
    pub compare: Option<String>,

    /// Where trials and their outputs are kept [default: NAME.sweep]
    #[arg(short = 'o', long = "out", value_name = "DIR", value_hint = ValueHint::DirPath, help_heading = "Results")]
    pub out: Option<PathBuf>,

    /// Go on with an interrupted sweep; finished trials are kept
    #[arg(long, help_heading = "Results")]
    pub resume: bool,

    /// Run nothing; tell about the results in DIR
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath, help_heading = "Results", conflicts_with_all = ["file", "program", "resume"])]
    pub report: Option<PathBuf>,

    /// Compare with earlier results, combination by combination
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath, help_heading = "Results")]
    pub against: Option<PathBuf>,

    /// Leave out trials whose circumstances changed (link, clocks, other load)
    #[arg(long, help_heading = "Results")]
    pub leave_out_marked: bool,

    /// Every trial as comma-separated values; - is standard output
    #[arg(long, value_name = "FILE", help_heading = "Results")]
    pub csv: Option<PathBuf>,

    /// The summary as JSON; - is standard output
    #[arg(long, value_name = "FILE", help_heading = "Results")]
    pub json: Option<PathBuf>,

    /// A plot
    #[arg(long, value_name = "FILE", help_heading = "Results")]
    pub svg: Option<PathBuf>,

    /// A report in one file
    #[arg(long, value_name = "FILE", help_heading = "Results")]
    pub html: Option<PathBuf>,

    /// Show what would be tried, and start nothing
    #[arg(long)]
    pub dry_run: bool,

    /// Say nothing but errors and the table
    #[arg(short = 'q', long)]
    pub quiet: bool,
}
