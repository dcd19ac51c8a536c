//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser};
use serde::{Deserialize, Serialize};

const EPOCHS: u32 = 40;
const EXPECTED_PERCENT: f64 = 96.0;

/// Learns to read handwritten digits, with the gradients of all ranks summed by AllReduce.
///
/// Each batch is divided among the ranks, so that any number of ranks learns the same: `prun -n 4 train` and
/// `train` alone end with the same network but for rounding. At the end the ranks prove that their weights
/// are the same, bit for bit.
///
/// Ctrl-C or SIGTERM saves a checkpoint that --resume continues from, to the same bits as if it had never
/// been interrupted, if the number of ranks is the same.
///
/// Exit code: 0 done; 1 a rank failed, or the held-out accuracy is below what was required; 2 wrong options;
/// 130 interrupted and saved, whichever signal it was, so that `train && next` stops there.
#[derive(Parser)]
#[command(version, allow_negative_numbers = true)]
pub struct Options {
    /// What decides the result.
    #[command(flatten)]
    pub settings: Settings,

    /// Times to go through the training images
    #[arg(long, value_name = "N", default_value_t = EPOCHS)]
    pub epochs: u32,

    /// Where to save on Ctrl-C or SIGTERM, and what --resume reads (by rank 0 only)
    #[arg(long, value_name = "FILE", default_value = "train.checkpoint")]
    pub checkpoint: PathBuf,

    /// Continue from the checkpoint; the other options must be those that it was made with, except --epochs
    #[arg(long)]
    pub resume: bool,

    /// Save after every N epochs too [default: only when interrupted]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub save_every: Option<u32>,

    /// Fail if fewer held-out images are recognised [default: 96, or 0 if --epochs or an option that decides
    /// the result has another value than its default]
    #[arg(long, value_name = "PERCENT")]
    pub require: Option<f64>,
}

/// What decides the result; saved in checkpoints, since a run can only be continued with the same.
#[derive(Args, Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// Images per step, over all ranks together
    #[arg(long, value_name = "N", default_value_t = Self::default().batch, value_parser = at_least_one)]
    pub batch: usize,

    /// Hidden units
    #[arg(long, value_name = "N", default_value_t = Self::default().hidden, value_parser = at_least_one)]
    pub hidden: usize,

    /// Learning rate
    #[arg(long, value_name = "RATE", default_value_t = Self::default().lr, value_parser = positive)]
    pub lr: f32,

    /// Part of the last step that the next one keeps, from 0 to below 1
    #[arg(long, value_name = "PART", default_value_t = Self::default().momentum, value_parser = below_one)]
    pub momentum: f32,

    /// Seed of the split, of the shuffles and of the first weights
    #[arg(long, value_name = "N", default_value_t = Self::default().seed)]
    pub seed: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self { batch: 32, hidden: 128, lr: 0.05, momentum: 0.9, seed: 1 }
    }
}

impl Options {
    /// The held-out accuracy below which the run has failed, in percent.
    pub fn required_percent(&self) -> f64 {
        let is_usual = self.epochs == EPOCHS && self.settings == Settings::default();
        self.require.unwrap_or(if is_usual { EXPECTED_PERCENT } else { 0.0 })
    }
}

impl std::fmt::Display for Settings {
    /// As they would be given on the command line.
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { batch, hidden, lr, momentum, seed } = self;
        write!(out, "--batch {batch} --hidden {hidden} --lr {lr} --momentum {momentum} --seed {seed}")
    }
}

fn at_least_one(text: &str) -> Result<usize, String> {
    parse(text, |&count: &usize| (1..=1 << 20).contains(&count), "a whole number from 1 to 1048576")
}

fn positive(text: &str) -> Result<f32, String> {
    parse(text, |&rate: &f32| rate > 0.0 && rate.is_finite(), "a number above 0")
}

fn below_one(text: &str) -> Result<f32, String> {
    parse(text, |part: &f32| (0.0..1.0).contains(part), "a number from 0 to below 1")
}

fn parse<T: std::str::FromStr>(text: &str, good: impl Fn(&T) -> bool, wanted: &str) -> Result<T, String> {
    text.parse().ok().filter(good).ok_or_else(|| format!("not {wanted}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(line: &str) -> Options {
        Options::try_parse_from(line.split(' ')).expect(line)
    }

    #[test]
    fn the_command_line_is_consistent_and_its_defaults_are_the_usual_settings() {
        use clap::CommandFactory;
        Options::command().debug_assert();
        assert_eq!(options("train").settings, Settings::default());
    }

    #[test]
    fn the_usual_accuracy_is_required_of_the_usual_run_only() {
        assert_eq!(options("train --save-every 3").required_percent(), EXPECTED_PERCENT);
        assert_eq!(options("train --epochs 2").required_percent(), 0.0);
        assert_eq!(options("train --hidden 8").required_percent(), 0.0);
        assert_eq!(options("train --hidden 8 --require 90").required_percent(), 90.0);
    }

    #[test]
    fn nonsense_is_refused() {
        for line in ["train --batch 0", "train --lr nan", "train --lr -1", "train --momentum 1", "train --save-every 0"]
        {
            assert!(Options::try_parse_from(line.split(' ')).is_err(), "{line}");
        }
    }
}
