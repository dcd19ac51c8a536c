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
    pub notes: Vec<Option<String>>,
}

/// A GPU's share depends on the machine alone and not on the job, so that two jobs on different GPUs never meet.
pub fn near(machine: &Machine, cpus: &Cpus) -> Near {
    let mut near = Near::default();
    for gpu in &machine.gpus {
        let (around, note) = around(gpu, cpus);
        near.around.push(around);
        near.notes.push(note);
    }
    for (at, around) in near.around.iter().enumerate() {
        let alike: Vec<usize> = (0..near.around.len()).filter(|other| near.around[*other] == *around).collect();
        let place = alike.iter().position(|other| *other == at).unwrap_or(0);
        near.share.push(slice(around, &cpus.cores, place, alike.len()));
    }
    near
}

/// The CPUs of its NUMA nodes, or those that the kernel calls local, or all.
fn around(gpu: &Gpu, cpus: &Cpus) -> (CpuSet, Option<String>) {
    let name = gpu_name(gpu.index);
    let mut of_nodes = CpuSet::default();
    for node in cpus.numa.iter().filter(|node| gpu.numa.contains(&node.id)) {
        of_nodes.extend(&node.cpus);
    }
    let local = gpu.local_cpus.as_ref().map(|local| local.and(&cpus.usable)).unwrap_or_default();
    if !of_nodes.is_empty() {
        return (of_nodes, None);
    }
    let nodes = gpu.numa.iter().map(usize::to_string).collect::<Vec<_>>().join(" and ");
    let elsewhere = (!gpu.numa.is_empty())
        .then(|| format!("{name} is near NUMA node {nodes}, none of whose CPUs may be used here"));
    if !local.is_empty() {
        let several = cpus.numa.len() > 1 && local == cpus.usable;
        let note = several.then(|| {
            format!("the machine does not tell which NUMA node {name} is near to: its ranks may use all CPUs")
        });
        return (local, elsewhere.or(note));
    }
    let unknown = (cpus.numa.len() > 1)
        .then(|| format!("the machine does not tell which NUMA node {name} is near to: its ranks may use all CPUs"));
    (cpus.usable.clone(), elsewhere.or(unknown))
}

/// The cores of part `place` of `parts`; everything where there are fewer cores than parts.
fn slice(set: &CpuSet, cores: &[CpuSet], place: usize, parts: usize) -> CpuSet {
    let cores: Vec<CpuSet> = cores.iter().map(|core| core.and(set)).filter(|core| !core.is_empty()).collect();
    if cores.len() < parts {
        return set.clone();
    }
    let mut share = CpuSet::default();
    cores[place * cores.len() / parts..(place + 1) * cores.len() / parts].iter().for_each(|core| share.extend(core));
    share
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
        assert!(near.notes.iter().all(Option::is_none));
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
        assert!(near.notes[0].is_none() && near.notes[1].as_ref().unwrap().contains("GPU1"));
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
        assert!(near.notes[2].as_ref().unwrap().contains("NUMA node 1"), "{near:?}");
    }
}
