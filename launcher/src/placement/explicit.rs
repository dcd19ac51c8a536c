//! Lists of CPUs that the user wrote.

use super::PlanError;
use super::cpuset::CpuSet;
use super::node::Cpus;

/// The sets in turn, each of which must be usable.
pub fn listed(sets: &[Vec<usize>], ranks: usize, cpus: &Cpus) -> Result<Vec<CpuSet>, PlanError> {
    let sets: Vec<CpuSet> = sets.iter().map(|set| set.iter().copied().collect()).collect();
    for cpu in sets.iter().flat_map(CpuSet::iter) {
        if let Some(because) = cpus.why_not(cpu) {
            return Err(PlanError::CpuNotUsable { cpu, because, usable: cpus.usable.to_string() });
        }
    }
    Ok(sets.iter().cycle().take(ranks).cloned().collect())
}
