//! The CPUs near to each GPU, shared fairly among the GPUs that are near to the same ones.

use super::cpuset::CpuSet;
use super::node::Cpus;
use crate::topology::{Gpu, Machine, gpu_name};

/// The CPUs of every GPU of a machine, and what could not be told.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Near {
    /// By the GPU's number: all CPUs that are near to it.
    pub around: Vec<CpuSet>,
    /// By the GPU's number: its share of them, whole cores as far as they go.
    pub share: Vec<CpuSet>,
    /// By the GPU's number: what is not as it should be.
    pub lacks: Vec<Option<Lack>>,
}

/// Why a GPU has not simply the CPUs of its NUMA node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Lack {
    /// Nobody tells which node that is.
    Unknown,
    /// None of the CPUs of these nodes may be used.
    Closed(Vec<usize>),
}

/// One sentence for each thing that is lacking, with all GPUs that it is lacking for.
pub fn told(lacking: &[(usize, Lack)]) -> Vec<String> {
    let mut kinds: Vec<&Lack> = Vec::new();
    lacking.iter().map(|(_, lack)| lack).for_each(|lack| {
        if !kinds.contains(&lack) {
            kinds.push(lack);
        }
    });
    let sentence = |kind: &Lack| {
        let names: Vec<String> =
            lacking.iter().filter(|(_, lack)| lack == kind).map(|(gpu, _)| gpu_name(*gpu)).collect();
        let several = names.len() > 1;
        let who = listed(&names);
        match kind {
            Lack::Unknown => format!(
                "the machine does not tell which NUMA node {who} {} near to: {} ranks may use all CPUs",
                if several { "are" } else { "is" },
                if several { "their" } else { "its" }
            ),
            Lack::Closed(nodes) => format!(
                "{who} {} near NUMA node {}, none of whose CPUs may be used here",
                if several { "are" } else { "is" },
                listed(&nodes.iter().map(usize::to_string).collect::<Vec<_>>())
            ),
        }
    };
    kinds.into_iter().map(sentence).collect()
}

/// `a, b and c`.
fn listed(words: &[String]) -> String {
    match words {
        [all @ .., last] if !all.is_empty() => format!("{} and {last}", all.join(", ")),
        _ => words.concat(),
    }
}

/// A GPU's share depends on the machine alone and not on the job, so that two jobs on different GPUs never meet.
pub fn near(machine: &Machine, cpus: &Cpus) -> Near {
    let mut near = Near::default();
    for gpu in &machine.gpus {
        let (around, lack) = around(gpu, cpus);
        near.around.push(around);
        near.lacks.push(lack);
    }
    for (at, around) in near.around.iter().enumerate() {
        let alike: Vec<usize> = (0..near.around.len()).filter(|other| near.around[*other] == *around).collect();
        let place = alike.iter().position(|other| *other == at).unwrap_or(0);
        near.share.push(slice(around, &cpus.cores, place, alike.len()));
    }
    near
}

/// The CPUs of its NUMA nodes, or those that the kernel calls local, or all. Of a GPU that may be near to several nodes,
/// the CPUs of some of which are not known, the local ones: a part of its nodes would be a guess.
fn around(gpu: &Gpu, cpus: &Cpus) -> (CpuSet, Option<Lack>) {
    let mut of_nodes = CpuSet::default();
    for node in cpus.numa.iter().filter(|node| gpu.numa.contains(&node.id)) {
        of_nodes.extend(&node.cpus);
    }
    let local = gpu.local_cpus.as_ref().map(|local| local.and(&cpus.usable)).unwrap_or_default();
    let all_known = gpu.numa.iter().all(|id| cpus.numa.iter().any(|node| node.id == *id));
    if !of_nodes.is_empty() {
        return (if all_known || local.is_empty() { of_nodes } else { local }, None);
    }
    let elsewhere = (!gpu.numa.is_empty()).then(|| Lack::Closed(gpu.numa.clone()));
    let unknown = (cpus.numa.len() > 1).then_some(Lack::Unknown);
    if !local.is_empty() {
        let says_nothing = local == cpus.usable;
        return (local, elsewhere.or(unknown.filter(|_| says_nothing)));
    }
    (cpus.usable.clone(), elsewhere.or(unknown))
}

/// Whether anything tells which CPUs are near to a GPU.
pub fn is_known(gpu: &Gpu, cpus: &Cpus) -> bool {
    let local = gpu.local_cpus.as_ref().map(|local| local.and(&cpus.usable)).unwrap_or_default();
    !gpu.numa.is_empty() || (!local.is_empty() && local != cpus.usable)
}

/// The cores of part `place` of `parts`; everything where there are fewer cores than parts.
fn slice(set: &CpuSet, cores: &[CpuSet], place: usize, parts: usize) -> CpuSet {
    if cores.is_empty() {
        return slice_of_ranges(set, place, parts);
    }
    let cores: Vec<CpuSet> = cores.iter().map(|core| core.and(set)).filter(|core| !core.is_empty()).collect();
    if cores.len() < parts {
        return set.clone();
    }
    let mut share = CpuSet::default();
    cores[place * cores.len() / parts..(place + 1) * cores.len() / parts].iter().for_each(|core| share.extend(core));
    share
}

/// The same where nobody tells which CPUs share a core: as much of every range of numbers. Machines number the threads of
/// a core side by side, or all first ones before all second ones; either way those of a core mostly stay together.
fn slice_of_ranges(set: &CpuSet, place: usize, parts: usize) -> CpuSet {
    let mut ranges: Vec<Vec<usize>> = Vec::new();
    for cpu in set.iter() {
        match ranges.last_mut().filter(|range| range.last() == Some(&cpu.wrapping_sub(1))) {
            Some(range) => range.push(cpu),
            None => ranges.push(vec![cpu]),
        }
    }
    if ranges.iter().any(|range| range.len() < parts) {
        ranges = vec![set.iter().collect()];
    }
    if ranges.iter().any(|range| range.len() < parts) {
        return set.clone();
    }
    ranges
        .iter()
        .flat_map(|range| &range[place * range.len() / parts..(place + 1) * range.len() / parts])
        .copied()
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::tests_support::two_sockets;

    fn shown(sets: &[CpuSet]) -> Vec<String> {
        sets.iter().map(CpuSet::to_string).collect()
    }

    #[test]
    fn gpus_of_a_node_share_its_cores() {
        let machine = two_sockets();
        let near = near(&machine, machine.cpus.as_ref().unwrap());
        assert_eq!(shown(&near.around), ["0-3,8-11", "0-3,8-11", "4-7,12-15", "4-7,12-15"]);
        assert_eq!(shown(&near.share), ["0-1,8-9", "2-3,10-11", "4-5,12-13", "6-7,14-15"]);
        assert!(near.lacks.iter().all(Option::is_none));
    }

    #[test]
    fn an_unknown_node_falls_back_to_local_cpus_and_then_to_all() {
        let mut machine = two_sockets();
        let cpus = machine.cpus.clone().unwrap();
        machine.gpus.iter_mut().for_each(|gpu| gpu.numa.clear());
        machine.gpus[0].local_cpus = Some("0-3".parse().unwrap());
        let near = near(&machine, &cpus);
        assert_eq!(near.around[0].to_string(), "0-3");
        assert_eq!(near.around[1], cpus.usable);
        assert_eq!(near.lacks[..2], [None, Some(Lack::Unknown)]);
        assert_eq!(
            told(&[(1, Lack::Unknown), (2, Lack::Unknown), (3, Lack::Unknown)]),
            ["the machine does not tell which NUMA node GPU1, GPU2 and GPU3 are near to: their ranks may use all CPUs"]
        );
        assert!(is_known(&machine.gpus[0], &cpus) && !is_known(&machine.gpus[1], &cpus));
        assert_eq!(shown(&near.share[1..]), ["0-1,8-9", "2-4,10-12", "5-7,13-15"]);
    }

    #[test]
    fn a_node_that_is_closed_to_us_is_told() {
        let mut machine = two_sockets();
        let cpus = machine.cpus.as_mut().unwrap();
        cpus.usable = "0-1".parse().unwrap();
        cpus.numa.truncate(1);
        cpus.numa[0].cpus = cpus.usable.clone();
        cpus.cores = vec!["0".parse().unwrap(), "1".parse().unwrap()];
        let near = near(&machine, &machine.cpus.clone().unwrap());
        assert_eq!(near.around[2].to_string(), "0-1");
        assert_eq!(near.lacks[2], Some(Lack::Closed(vec![1])));
        assert_eq!(
            told(&[(2, Lack::Closed(vec![1]))]),
            ["GPU2 is near NUMA node 1, none of whose CPUs may be used here"]
        );
    }

    #[test]
    fn without_cores_every_range_is_cut_in_the_same_places() {
        let cut = |set: &str, parts: usize| {
            let set: CpuSet = set.parse().unwrap();
            (0..parts).map(|place| slice(&set, &[], place, parts).to_string()).collect::<Vec<_>>()
        };
        assert_eq!(cut("0-31,64-95", 2), ["0-15,64-79", "16-31,80-95"]);
        assert_eq!(cut("0-13", 4), ["0-2", "3-6", "7-9", "10-13"]);
        assert_eq!(cut("0,8,16,24", 2), ["0,8", "16,24"]);
        assert_eq!(cut("0-1", 4), ["0-1", "0-1", "0-1", "0-1"]);
    }
}
