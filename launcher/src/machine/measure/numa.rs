//! How fast each NUMA node's memory is for the CPUs of each other.

use std::time::Instant;

use serde_json::{Value, json};

use crate::placement::cpuset::CpuSet;
use crate::refused::Refused;
use crate::topology::Machine;
use crate::view::text::columns;

/// Bytes that each measurement goes through: more than any cache.
const MEASURED_BYTES: usize = 256 << 20;

/// One way between CPUs and memory: the NUMA node of the CPU, that of the memory, and GB/s where it could be measured.
pub type Copied = (usize, usize, Option<f64>);

/// The memory of each NUMA node, read and written from the CPUs of each.
///
/// # Errors
/// [`Refused`] where the CPUs are not known.
pub fn matrix(machine: &Machine) -> Result<Vec<Copied>, Refused> {
    let Some(cpus) = machine.cpus.as_ref().filter(|cpus| !cpus.numa.is_empty()) else {
        return Err(Refused::new("cannot tell which CPUs may be used, so nothing is measured"));
    };
    let ways = cpus.numa.iter().flat_map(|from| cpus.numa.iter().map(move |memory| (from, memory)));
    Ok(ways.map(|(from, memory)| (from.id, memory.id, copy_gb_s(&from.cpus, &memory.cpus))).collect())
}

/// A table of it: a row for each node's CPUs, a column for each node's memory.
pub fn text(matrix: &[Copied]) -> String {
    let first = matrix.first().map(|(from, _, _)| *from);
    let memory =
        matrix.iter().filter(|(from, _, _)| Some(*from) == first).map(|(_, memory, _)| format!("memory {memory}"));
    let mut rows = vec![std::iter::once("copy, GB/s".to_owned()).chain(memory).collect::<Vec<_>>()];
    for row in matrix.chunk_by(|(one, _, _), (other, _, _)| one == other) {
        let cells = row.iter().map(|(_, _, gb_s)| gb_s.map_or("?".into(), |gb_s| format!("{gb_s:.1}")));
        rows.push(std::iter::once(format!("CPUs of {}", row[0].0)).chain(cells).collect());
    }
    format!(
        "\nmemory bandwidth of one CPU (the median of 5 copies of {} MiB; each result was compared)\n{}",
        MEASURED_BYTES >> 21,
        columns(&rows)
    )
}

/// The same for programs.
pub fn json(matrix: &[Copied]) -> Value {
    matrix.iter().map(|(cpus, memory, gb_s)| json!({"cpus-of": cpus, "memory-of": memory, "gb-s": gb_s})).collect()
}

/// One CPU of `from` copies half of a buffer that a CPU of `memory` touched first into its other half.
fn copy_gb_s(from: &CpuSet, memory: &CpuSet) -> Option<f64> {
    let (reader, owner) = (from.first()?, memory.first()?);
    let worker = std::thread::spawn(move || {
        pin(owner)?;
        let mut buffer = vec![0u8; MEASURED_BYTES];
        for (at, byte) in buffer.iter_mut().enumerate() {
            *byte = (at % 251) as u8;
        }
        pin(reader)?;
        let (source, target) = buffer.split_at_mut(MEASURED_BYTES / 2);
        let mut times: Vec<f64> = (0..5)
            .map(|_| {
                let start = Instant::now();
                target.copy_from_slice(source);
                start.elapsed().as_secs_f64()
            })
            .collect();
        times.sort_by(f64::total_cmp);
        (source == target).then(|| MEASURED_BYTES as f64 / 2.0 / times[2] / 1e9)
    });
    worker.join().ok().flatten()
}

/// Moves this thread onto one CPU.
fn pin(cpu: usize) -> Option<()> {
    let mut set = rustix::thread::CpuSet::new();
    if cpu >= rustix::thread::CpuSet::MAX_CPU {
        return None;
    }
    set.set(cpu);
    rustix::thread::sched_setaffinity(None, &set).ok()
}
