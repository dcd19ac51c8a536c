//! `-h`, `--help` and `prun help`, from the parser itself.

use std::fmt::Write;

use clap::{CommandFactory, Subcommand};

use crate::cli::{Args, Word};
use crate::exit;

const EXAMPLES: &str = "  prun -n 4 ./train --lr 0.1         four ranks, with RANK, WORLD_SIZE and so on
  prun -n 4 -l ./train               the rank before each line
  prun -n 4 -o logs --tee ./train    a file for each rank, and the terminal too
  prun -n 2 --timeout 10m ./test     exit code 124 if it is not done by then
  prun -n 4 --bind core ./solve      one physical core for each rank
  prun -n 1 ./server : -n 3 ./work   two programs, one job
  prun -n 4 --dry-run ./train        what each rank would get; starts nothing
  prun plan -n 4                     which GPU, CPUs and memory each rank would get, and why
  prun topo                          the machine: GPUs, links, NUMA nodes
  prun doctor                        what makes this machine slow or unreliable
  prun bench allreduce -n 4          how long collectives take; --against mpi, or nccl on GPUs
  prun selftest                      what libcomm promises, tried on this machine
  prun status                        running jobs; with an id, what each rank waits for
  prun run job.toml -n 2             a job from a file; flags win over the file
  prun sweep -n 2,4 -- ./bench       each number of ranks several times, compared
  prun script --slurm job.toml       a batch script around a job";

/// The help that clap would have printed, with the words and examples that its parser does not know about.
pub(crate) fn asked(printed: &str) -> String {
    if printed == Args::command().render_help().to_string() {
        whole().render_help().to_string()
    } else if printed == Args::command().render_long_help().to_string() {
        long()
    } else {
        printed.to_owned()
    }
}

/// Everything.
pub fn long() -> String {
    whole().render_long_help().to_string()
}

/// The command with its words, for help, man page and completions. [`command::read`](crate::command::read) parses
/// without the words, since only the very first argument can be one.
pub(crate) fn whole() -> clap::Command {
    let args = Args::command();
    let (about, long_about) = (args.get_about().cloned(), args.get_long_about().cloned());
    Word::augment_subcommands(args).about(about.unwrap_or_default()).long_about(long_about.unwrap_or_default()).help_template(format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\nExamples:\n{EXAMPLES}\n\n{{all-args}}\n\nExit codes:\n{}\n",
        exit::TEXT
    ))
}

/// Examples as the man page shows them.
pub(crate) fn examples() -> impl Iterator<Item = (&'static str, &'static str)> {
    EXAMPLES
        .lines()
        .filter_map(|line| line.trim().split_once("   "))
        .map(|(command, meaning)| (command, meaning.trim()))
}

/// The table of keys of a job file, one line each.
pub(crate) fn keys() -> String {
    let mut text = String::new();
    for (flag, key) in crate::job::file::KEYS {
        let _ = writeln!(text, "{key:<24} --{flag}");
    }
    text
}
