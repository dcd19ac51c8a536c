//! What an experiment is, validated: the [`Experiment`].

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::figures::Figure;
use super::matrix::Variant;

/// An experiment: variants, how often each is tried, and what is measured.
#[derive(Debug, Clone)]
pub struct Experiment {
    /// What results and plots call it.
    pub name: String,
    /// The program and its arguments; `{name}` stands for a parameter.
    pub program: Vec<OsString>,
    /// Flags of each trial's job, in which `{name}` stands for a parameter too.
    pub job_flags: Vec<OsString>,
    /// The combinations to try, in the order of the matrix.
    pub variants: Vec<Variant>,
    /// How often, and in which order.
    pub trials: Trials,
    /// What trials report besides their time.
    pub figures: Vec<Figure>,
    /// What is compared, and how it is shown.
    pub report: Report,
    /// Where results are kept.
    pub out: PathBuf,
}

/// How often each variant is tried, and in which order.
#[derive(Debug, Clone, PartialEq)]
pub struct Trials {
    /// Trials of each variant that count; with `precision`, the fewest.
    pub repeat: u32,
    /// Trials of each variant before those.
    pub warmup: u32,
    /// Go on until half the interval's width is this part of the median.
    pub precision: Option<f64>,
    /// With `precision`, the most trials of a variant.
    pub max_repeat: u32,
    /// Start no trial after so long.
    pub budget: Option<Duration>,
    /// Which trial follows which.
    pub order: Order,
    /// What [`Order::Random`] shuffles by.
    pub seed: u64,
    /// End a trial after so long.
    pub timeout: Option<Duration>,
    /// How often a trial is started again after a failure that is not its program's.
    pub retries: u32,
    /// Trials at once.
    pub jobs: u32,
}

impl Default for Trials {
    fn default() -> Trials {
        Trials {
            repeat: 10,
            warmup: 1,
            precision: None,
            max_repeat: 250,
            budget: None,
            order: Order::Interleaved,
            seed: 1,
            timeout: None,
            retries: 2,
            jobs: 1,
        }
    }
}

impl Trials {
    /// The most trials that one variant can come to, warm-ups not counted.
    pub fn most(&self) -> u32 {
        if self.precision.is_some() { self.max_repeat.max(self.repeat) } else { self.repeat }
    }
}

/// Which trial follows which.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Order {
    /// One trial of each variant, then the next of each: what changes with time changes for all alike.
    #[default]
    Interleaved,
    /// The same, each round in an order of its own: no variant always follows the same other.
    Random,
    /// All trials of a variant, then those of the next.
    Grouped,
}

/// What is compared, and how it is shown.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Report {
    /// The figure that tables and plots are about; `None` is the first, or wall time.
    pub metric: Option<String>,
    /// The parameter whose values are compared with its first one; `None` leaves the choice to the summary.
    pub compare: Option<String>,
}
