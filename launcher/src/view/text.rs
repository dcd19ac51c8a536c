//! The machine for a terminal, and the columns that every table of prun is set in.

use std::fmt::Write;

use crate::doctor::health;
use crate::placement::cpuset::CpuSet;
use crate::placement::node::Cpus;
use crate::topology::{Gpu, Machine, gpu_name, ring};

/// `rank` or `ranks`.
pub fn plural(count: usize, word: &str) -> String {
    if count == 1 { word.to_owned() } else { format!("{word}s") }
}

/// `32 cores`, where it is known which CPUs share one.
pub fn cores(cpus: &Cpus) -> String {
    match cpus.cores.len() {
        0 => "cores unknown".into(),
        count => format!("{count} {}", plural(count, "core")),
    }
}

/// Columns as wide as their widest cell, two spaces apart.
pub fn columns(rows: &[Vec<String>]) -> String {
    let count = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..count).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let cells: Vec<String> = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        let _ = writeln!(text, "{}", cells.join("  ").trim_end());
    }
    text
}

/// `prun topo`: what there is, what lies between, and the ring.
pub fn machine(machine: &Machine) -> String {
    let mut text = headline(machine);
    text.push_str(&numa(machine));
    text.push_str(&gpus(machine));
    text.push_str(&nics(machine));
    text.push_str(&matrix(machine));
    if let Some(line) = ring_line(machine) {
        let _ = writeln!(text, "\n{line}");
    }
    for note in &machine.notes {
        let _ = writeln!(text, "note: {note}");
    }
    text
}

/// Name, versions, and where this comes from.
pub fn headline(machine: &Machine) -> String {
    let mut parts = Vec::new();
    if let Some(kernel) = &machine.kernel {
        parts.push(format!("Linux {kernel}"));
    }
    if let Some(driver) = &machine.driver {
        parts.push(format!("NVIDIA driver {driver}"));
    }
    if let Some(cuda) = &machine.cuda {
        parts.push(format!("CUDA {cuda}"));
    }
    if let Some(iommu) = &machine.iommu {
        parts.push(format!("IOMMU {iommu}"));
    }
    let name = if machine.name.is_empty() { "a machine" } else { &machine.name };
    let parts = if parts.is_empty() { String::new() } else { format!(": {}", parts.join(", ")) };
    format!("{name}{parts} (from {})\n", machine.origin)
}

fn numa(machine: &Machine) -> String {
    let Some(cpus) = &machine.cpus else { return String::new() };
    let sockets = match cpus.sockets.len() {
        0 => "sockets unknown".into(),
        count => format!("{count} {}", plural(count, "socket")),
    };
    let mut text = format!("CPUs {} usable: {}, {sockets}\n", cpus.usable, cores(cpus));
    if let Some(quota) = cpus.quota {
        let _ = writeln!(text, "the cgroup allows the time of {quota:.1} CPUs");
    }
    if let Some(nodes) =
        cpus.memory_nodes.as_ref().filter(|nodes| machine.memory.iter().any(|its| !nodes.contains(its.node)))
    {
        let _ = writeln!(text, "the cgroup allows memory of the NUMA nodes {nodes} only");
    }
    if let Some(mib) = machine.memory_limit_mib {
        let _ = writeln!(text, "the cgroup allows {} of memory", size(mib));
    }
    let mut rows = vec![["NUMA node", "CPUs", "memory", "GPUs", "distances"].map(str::to_owned).to_vec()];
    for node in &machine.memory {
        let usable = cpus.numa.iter().find(|its| its.id == node.node).map(|its| &its.cpus);
        let shown = match (usable, node.cpus.is_empty()) {
            (_, true) => "none".into(),
            (Some(usable), _) if *usable == node.cpus => node.cpus.to_string(),
            (Some(usable), _) => format!("{usable} of {}", node.cpus),
            (None, _) => format!("none of {}", node.cpus),
        };
        let near: Vec<String> =
            machine.gpus.iter().filter(|gpu| gpu.numa.contains(&node.node)).map(|gpu| gpu.index.to_string()).collect();
        let of_gpu = machine.gpus.iter().find(|gpu| gpu.memory_numa == Some(node.node));
        let gpus = match of_gpu {
            Some(gpu) => format!("is the memory of {}", gpu_name(gpu.index)),
            None => near.join(","),
        };
        rows.push(vec![
            node.node.to_string(),
            shown,
            node.memory_mib.map_or("?".into(), size),
            gpus,
            node.distance.iter().map(u32::to_string).collect::<Vec<_>>().join(" "),
        ]);
    }
    if rows.len() > 1 {
        text.push('\n');
        text.push_str(&columns(&rows));
    }
    text
}

/// Memory in the unit that people use for it.
pub fn size(mib: u64) -> String {
    if mib >= 1024 { format!("{:.0} GiB", mib as f64 / 1024.0) } else { format!("{mib} MiB") }
}

/// The CPUs or NUMA nodes that a GPU is near to.
fn nearness(gpu: &Gpu) -> String {
    match gpu.numa.as_slice() {
        [] => "?".into(),
        nodes => nodes.iter().copied().collect::<CpuSet>().to_string(),
    }
}

fn gpus(machine: &Machine) -> String {
    if machine.gpus.is_empty() {
        return "\nno GPU\n".into();
    }
    let mut rows = vec![
        ["GPU", "bus id", "name", "memory", "NUMA", "PCIe now", "at best", "doing", "UUID"].map(str::to_owned).to_vec(),
    ];
    for gpu in &machine.gpus {
        let link = machine.device_of(gpu).map(|device| device.link).unwrap_or_default();
        let state = gpu.state.clone().unwrap_or_default();
        let doing = [
            state.busy_percent.map(|percent| format!("{percent} %")),
            state.sm_mhz.map(|mhz| format!("{mhz} MHz")),
            state.celsius.map(|celsius| format!("{celsius} °C")),
            state.watts.map(|watts| format!("{watts} W")),
        ];
        rows.push(vec![
            gpu.index.to_string(),
            gpu.address.map_or("?".into(), |address| address.to_string()),
            gpu.name.clone().unwrap_or_else(|| "?".into()),
            gpu.memory_mib.map_or("?".into(), size),
            nearness(gpu),
            link.shown(),
            link.max_shown(),
            Some(doing.into_iter().flatten().collect::<Vec<_>>().join(", "))
                .filter(|text| !text.is_empty())
                .unwrap_or_else(|| "?".into()),
            gpu.uuid.clone().unwrap_or_else(|| "?".into()),
        ]);
    }
    let mut text = format!("\n{}", columns(&rows));
    for gpu in machine.gpus.iter().filter(|gpu| !gpu.mig.is_empty()) {
        let _ =
            writeln!(text, "{} is cut into {} MIG slices: {}", gpu_name(gpu.index), gpu.mig.len(), gpu.mig.join(", "));
    }
    text
}

fn nics(machine: &Machine) -> String {
    if machine.nics.is_empty() {
        return String::new();
    }
    let mut rows = vec![["NIC", "name", "bus id", "NUMA"].map(str::to_owned).to_vec()];
    for (at, nic) in machine.nics.iter().enumerate() {
        rows.push(vec![
            at.to_string(),
            nic.name.clone(),
            nic.address.map_or("?".into(), |address| address.to_string()),
            nic.numa.map_or("?".into(), |numa| numa.to_string()),
        ]);
    }
    format!("\n{}", columns(&rows))
}

/// The table of links, with measured bandwidth where there is any.
fn matrix(machine: &Machine) -> String {
    if machine.gpus.is_empty() || machine.links.is_empty() {
        return String::new();
    }
    let ends: Vec<String> = machine
        .gpus
        .iter()
        .map(|gpu| gpu_name(gpu.index))
        .chain((0..machine.nics.len()).map(|at| format!("NIC{at}")))
        .collect();
    let mut rows = vec![std::iter::once(String::new()).chain(ends.iter().cloned()).collect::<Vec<_>>()];
    for a in ends.iter().take(machine.gpus.len()) {
        let mut row = vec![a.clone()];
        for b in &ends {
            row.push(match machine.link(a, b) {
                _ if a == b => "-".into(),
                None => "?".into(),
                Some(link) => {
                    let gb_s = if link.a == *a { link.gb_s } else { link.back_gb_s };
                    gb_s.map_or(link.kind.to_string(), |gb_s| format!("{} {gb_s:.0}", link.kind))
                }
            });
        }
        rows.push(row);
    }
    let measured = machine.links.iter().any(|link| link.gb_s.is_some());
    let unit = if measured { " (numbers: measured GB/s from the row to the column)" } else { "" };
    format!("\nlinks{unit}\n{}", columns(&rows))
}

/// The ring over all GPUs, as libcomm would use it.
pub fn ring_line(machine: &Machine) -> Option<String> {
    let (cycle, slowest) = machine_ring(machine)?;
    let order = cycle.iter().map(usize::to_string).collect::<Vec<_>>().join(" → ");
    let measured = ring::links(&cycle).all(|(a, b)| machine.gpu_link(a, b).is_some_and(|link| link.gb_s.is_some()));
    let how = if measured { "measured" } else { "estimated from the kinds of links" };
    Some(format!("ring over the GPUs: {order} → {}; its slowest link carries {slowest:.0} GB/s ({how})", cycle[0]))
}

/// The best ring over all NVIDIA GPUs and its slowest link.
pub fn machine_ring(machine: &Machine) -> Option<(Vec<usize>, f64)> {
    let members: Vec<usize> = machine.nvidia_gpus().map(|gpu| gpu.index).collect();
    let gb_s = |a: usize, b: usize| machine.gpu_gb_s(a, b);
    let weight = |a: usize, b: usize| health::ring_gb_s(machine, a, b);
    let cycle = ring::best(&members, &weight);
    ring::bottleneck(&cycle, &gb_s).map(|slowest| (cycle, slowest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::tests_support::two_sockets;

    #[test]
    fn everything_that_is_known_is_shown_and_the_rest_is_a_question_mark() {
        let text = machine(&two_sockets());
        for part in [
            "two: NVIDIA driver 580.1 (from a test)",
            "CPUs 0-15 usable: 8 cores, 2 sockets",
            "0          0-3,8-11",
            "Gen5 x16",
            "NV8 180",
            "NV8 181",
            "ring over the GPUs: 0 → 1 → 2 → 3 → 0",
        ] {
            assert!(text.contains(part), "{part}\n{text}");
        }
        let mut limited = two_sockets();
        limited.memory_limit_mib = Some(4096);
        limited.cpus.as_mut().unwrap().memory_nodes = Some("1".parse().unwrap());
        let text = machine(&limited);
        assert!(text.contains("NUMA nodes 1 only") && text.contains("the cgroup allows 4 GiB of memory"), "{text}");
        let empty = machine(&Machine { origin: "nothing".into(), ..Machine::default() });
        assert!(empty.contains("no GPU"), "{empty}");
    }
}
