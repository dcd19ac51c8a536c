//! What the process that measures GPUs says, a line each.

use serde::{Deserialize, Serialize};

use crate::topology::{Moved, PciAddress, Way};

/// A line of JSON.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum Line {
    /// All GPUs are open; pairs are told by the positions of these.
    Gpus {
        /// Where they sit.
        addresses: Vec<PciAddress>,
    },
    /// A pair is about to be looked at.
    Begin {
        /// One.
        a: usize,
        /// The other.
        b: usize,
    },
    /// What was found out about it.
    Pair {
        /// One.
        a: usize,
        /// The other.
        b: usize,
        /// Whether the driver allows them to write to each other.
        reported: bool,
        /// Each way that was measured.
        ways: Vec<Way>,
    },
    /// The driver gave an error at it; this process is of no more use.
    Failed {
        /// The error.
        why: String,
    },
    /// The GPUs' links are busy.
    Loaded,
    /// That was all.
    End,
}

impl From<comm::probe::Figures> for Way {
    fn from(figures: comm::probe::Figures) -> Way {
        let rounded = |gb_s: f64| (gb_s * 100.0).round() / 100.0;
        Way {
            by: match figures.by {
                comm::probe::By::Stores => Moved::Stores,
                comm::probe::By::Copy => Moved::Copy,
                comm::probe::By::Host => Moved::Host,
            },
            gb_s: rounded(figures.there_gb_s),
            back_gb_s: rounded(figures.back_gb_s),
            both_gb_s: rounded(figures.both_gb_s),
            us: figures.us.is_finite().then(|| rounded(figures.us)),
            wrong: figures.wrong,
        }
    }
}
