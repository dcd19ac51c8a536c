//! What `prun bench` and its rank program say to each other: one line of JSON each.
//!
//! The job is the rank program's argument. Rank 0 says [`Hello`], then answers each [`Ask`] on standard input with an
//! [`Answer`]; the end of its input ends the job. Runners in other languages speak the same.

use comm::{DataType, Op};
use serde::{Deserialize, Serialize};

use super::collective::Collective;

/// What is measured, the same for all sizes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Job {
    /// Which call.
    pub collective: Collective,
    /// Of which elements.
    pub data_type: DataType,
    /// How they are combined.
    pub op: Op,
    /// The root, where there is one.
    pub root: u32,
    /// Which buffers, one after the other.
    pub buffers: Vec<Buffers>,
    /// Out of place, in place, or both.
    pub places: Vec<Place>,
    /// Calls in a batch; without it as many as take `batch_ms`.
    pub iterations: Option<u32>,
    /// Calls before the first batch.
    pub warmup: u32,
    /// Batches, of which the median counts.
    pub batches: u32,
    /// Milliseconds that a batch should take.
    pub batch_ms: f64,
    /// Whether every element is compared.
    pub check: bool,
    /// Whether caches are emptied before each call.
    pub cold: bool,
    /// Whether calls are also timed one by one.
    pub percentiles: bool,
    /// The largest message of all.
    pub most_bytes: u64,
    /// Between GPUs, and how.
    pub device: Option<DeviceJob>,
}

/// What is measured on GPUs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceJob {
    /// Whether calls are captured in a graph and replayed.
    pub graph: bool,
    /// Whether libcomm is measured.
    pub own: bool,
    /// NCCL with buffers as they are, and what it is called then.
    pub nccl: Option<String>,
    /// NCCL with registered windows, likewise.
    pub nccl_registered: Option<String>,
}

/// Where buffers come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Buffers {
    /// As any program gets them.
    Malloc,
    /// From `comm_alloc`.
    Comm,
}

/// Whether the result goes where the data was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// Into another buffer.
    Out,
    /// Into the same.
    In,
}

/// What rank 0 says first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Hello {
    /// What was set up, with its milliseconds.
    pub set_up: Vec<SetUp>,
    /// What is worth knowing about the ranks.
    pub notes: Vec<String>,
}

/// How long something took to be ready.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SetUp {
    /// What.
    pub what: String,
    /// Milliseconds of the slowest rank.
    pub ms: f64,
}

/// One size is to be measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ask {
    /// Elements, as the call counts them.
    pub count: u64,
}

/// What came of it: an entry for each variant and place.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    /// As asked.
    pub count: u64,
    /// In the order of the job.
    pub entries: Vec<Entry>,
}

/// One variant in one place.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// Which: the name of a library, or of buffers.
    pub variant: String,
    /// Where the result went.
    pub place: Place,
    /// Microseconds a call in each batch, of the slowest rank.
    pub batches: Vec<f64>,
    /// Microseconds of single calls, of the slowest rank, if asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calls: Option<Calls>,
    /// Wrong elements on all ranks; `None` if they were not compared.
    pub wrong: Option<u64>,
}

/// Single calls in a few figures.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Calls {
    /// How many.
    pub count: u64,
    /// The median, in microseconds.
    pub p50: f64,
    /// What one in a hundred takes longer than.
    pub p99: f64,
    /// The standard deviation.
    pub stddev: f64,
}

impl Calls {
    /// `None` if there are none.
    pub fn of(times: &[f64]) -> Option<Calls> {
        let mut sorted = times.to_vec();
        sorted.sort_by(f64::total_cmp);
        let count = sorted.len();
        let at = |share: f64| sorted.get(((count as f64 * share).ceil() as usize).clamp(1, count.max(1)) - 1).copied();
        let mean = times.iter().sum::<f64>() / count as f64;
        let variance = times.iter().map(|time| (time - mean).powi(2)).sum::<f64>() / count as f64;
        Some(Calls { count: count as u64, p50: at(0.5)?, p99: at(0.99)?, stddev: variance.sqrt() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_were_measured() {
        assert_eq!(Calls::of(&[]), None);
        let hundred: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        let calls = Calls::of(&hundred).unwrap();
        assert_eq!((calls.count, calls.p50, calls.p99), (100, 50.0, 99.0));
        assert!((calls.stddev - 28.866).abs() < 0.001);
        let one = Calls::of(&[3.0]).unwrap();
        assert_eq!((one.p50, one.p99, one.stddev), (3.0, 3.0, 0.0));
    }
}
