//! `prun plan`: which rank gets what, as a table and as JSON.

use std::fmt::Write;

use serde_json::{Value, json};

use super::cpuset::CpuSet;
use super::{Node, Plan, near};
use crate::job::MapBy;
use crate::topology::{Gpu, Machine, gpu_name};
use crate::view::text::{columns, cores, plural};

/// The plan for people: a line for each rank, the ring, and the reasons.
pub fn text(plan: &Plan, node: &Node, name: &str) -> String {
    let ranks = plan.node.ranks.len();
    let mut text = format!("{ranks} {} on {name}", plural(ranks, "rank"));
    if let Some(cpus) = &node.cpus {
        let numa = cpus.numa.len();
        let _ = write!(text, ": CPUs {} ({}, {numa} {})", cpus.usable, cores(cpus), plural(numa, "NUMA node"));
    }
    text.push_str("; nothing is started\n\n");
    text.push_str(&columns(&rows(plan, node)));
    let reasons = reasons(plan, node);
    if !reasons.is_empty() {
        text.push('\n');
    }
    for reason in reasons {
        let _ = writeln!(text, "{reason}");
    }
    for note in &plan.notes {
        let _ = writeln!(text, "note: {note}");
    }
    text
}

fn rows(plan: &Plan, node: &Node) -> Vec<Vec<String>> {
    let with_gpus = !plan.gpus.of_rank.is_empty();
    let head: &[&str] = match with_gpus {
        true => &["rank", "GPU", "bus id", "NUMA", "CPUs", "cores", "memory", "next in ring"],
        false => &["rank", "CPUs", "cores", "memory"],
    };
    let mut rows = vec![head.iter().map(|&cell| cell.to_owned()).collect::<Vec<String>>()];
    for (local_rank, rank) in plan.node.ranks.iter().enumerate() {
        let mut row = vec![rank.rank.to_string()];
        if with_gpus {
            let unit = plan.gpus.unit(local_rank);
            let gpu = unit.and_then(|unit| gpu_of(node, unit.gpu));
            row.push(unit.map_or("-".into(), |unit| match unit.is_slice {
                true => format!("{} {}", unit.gpu, unit.name.chars().take(12).collect::<String>()),
                false => unit.gpu.to_string(),
            }));
            row.push(unit.and_then(|unit| unit.address).map_or("?".into(), |address| address.to_string()));
            row.push(gpu.map_or("?".into(), numa_shown));
        }
        let set = rank.cpus.as_ref().map(|cpus| cpus.iter().copied().collect::<CpuSet>());
        row.push(set.as_ref().map_or("any".into(), CpuSet::to_string));
        row.push(set.as_ref().and_then(|set| node.cores_in(set)).map_or("-".into(), |cores| cores.to_string()));
        row.push(rank.memory_node.map_or("any".into(), |node| format!("node {node}")));
        if with_gpus {
            row.push(next(plan, node, local_rank));
        }
        rows.push(row);
    }
    rows
}

fn numa_shown(gpu: &Gpu) -> String {
    match gpu.numa.as_slice() {
        [] => "?".into(),
        nodes => nodes.iter().map(usize::to_string).collect::<Vec<_>>().join(","),
    }
}

/// `1: NV18, 390 GB/s`.
fn next(plan: &Plan, node: &Node, local_rank: usize) -> String {
    let Some((after, gb_s, measured, kind)) = ring_link(plan, node, local_rank) else { return "-".into() };
    let about = if measured { "" } else { "~" };
    format!("{after}: {kind}, {about}{gb_s:.0} GB/s")
}

/// The next rank of the ring, the link to it, and whether it was measured.
fn ring_link(plan: &Plan, node: &Node, local_rank: usize) -> Option<(usize, f64, bool, String)> {
    let ring = &plan.gpus.ring;
    let place = ring.iter().position(|rank| *rank == local_rank)?;
    let after = ring[(place + 1) % ring.len()];
    let (own, its) = (plan.gpus.unit(local_rank)?.gpu, plan.gpus.unit(after)?.gpu);
    if own == its {
        return None;
    }
    let machine = node.machine.as_ref()?;
    let link = machine.gpu_link(own, its);
    let kind = link.map_or("?".to_owned(), |link| link.kind.to_string());
    Some((after, machine.gpu_gb_s(own, its), link.is_some_and(|link| link.gb_s.is_some()), kind))
}

fn gpu_of(node: &Node, index: usize) -> Option<&Gpu> {
    node.machine.as_ref()?.gpus.iter().find(|gpu| gpu.index == index)
}

/// Why it is as it is.
fn reasons(plan: &Plan, node: &Node) -> Vec<String> {
    let mut reasons = Vec::new();
    let seen = &plan.gpus.seen;
    if !seen.is_empty() {
        let all = node.machine.as_ref().map_or(0, |machine| machine.nvidia_gpus().count());
        let mut names: Vec<(usize, usize)> = Vec::new();
        for unit in seen {
            match names.iter_mut().find(|(gpu, _)| *gpu == unit.gpu) {
                Some((_, count)) => *count += 1,
                None => names.push((unit.gpu, 1)),
            }
        }
        let sliced = seen.iter().any(|unit| unit.is_slice);
        let shown = |(gpu, count): &(usize, usize)| match sliced {
            true => format!("{count} {} of {}", plural(*count, "slice"), gpu_name(*gpu)),
            false => gpu_name(*gpu),
        };
        let names = names.iter().map(shown).collect::<Vec<_>>().join(", ");
        let what = match (plan.gpus.masked, seen.len() < all) {
            (true, _) => format!("GPUs: each rank sees its own only, out of {names}"),
            (false, false) => format!("GPUs: all ranks see {names}; a rank's GPU is the one of its local rank"),
            (false, true) => format!(
                "GPUs: all ranks see {names}, {} of the machine's {all}; a rank's GPU is the one of its local rank",
                seen.len()
            ),
        };
        reasons.push(what);
        if let (Some((slowest, measured)), true) = (plan.gpus.bottleneck, seen.len() > 1) {
            let order = plan.gpus.ring.iter().map(usize::to_string).collect::<Vec<_>>().join(" → ");
            let how = if measured { "measured" } else { "estimated from the kinds of links" };
            reasons.push(format!("ring: {order}, and back; its slowest link carries {slowest:.0} GB/s ({how})"));
        }
    }
    let bound = plan.node.ranks.iter().any(|rank| rank.cpus.is_some());
    let located = seen
        .iter()
        .filter_map(|unit| gpu_of(node, unit.gpu))
        .any(|gpu| node.cpus.as_ref().is_some_and(|cpus| near::is_known(gpu, cpus)));
    let why = match (plan.map, bound) {
        (_, false) => "CPUs: ranks may use whatever prun may use; --bind or --map-by pins them",
        (MapBy::Gpu, true) if !located => {
            "CPUs: nothing tells which are near to which GPU, so all of them are shared evenly among the GPUs"
        }
        (MapBy::Gpu, true) => {
            "CPUs: near to the rank's GPU, shared evenly among the GPUs that are near to the same ones"
        }
        (MapBy::Numa, true) => "CPUs: of one NUMA node",
        (MapBy::Socket, true) => "CPUs: of one socket",
        (MapBy::List, true) => "CPUs: the first rank has the first of --bind's list, the second the second",
        (MapBy::Core | MapBy::None, true) => "CPUs: as --bind says",
    };
    reasons.push(why.into());
    reasons
}

/// The plan for programs.
pub fn json(plan: &Plan, node: &Node, name: &str) -> Value {
    let ranks: Vec<Value> = plan
        .node
        .ranks
        .iter()
        .enumerate()
        .map(|(local_rank, rank)| {
            let unit = plan.gpus.unit(local_rank);
            let gpu = unit.and_then(|unit| gpu_of(node, unit.gpu));
            let next = ring_link(plan, node, local_rank).map(|(after, gb_s, measured, kind)| {
                json!({"rank": after, "link": kind, "gb_s": (gb_s * 10.0).round() / 10.0, "measured": measured})
            });
            json!({
                "rank": rank.rank,
                "gpu": unit.map(|unit| json!({
                    "index": unit.gpu,
                    "name": unit.name,
                    "bus_id": unit.address.map(|address| address.to_string()),
                    "numa": gpu.map(|gpu| gpu.numa.clone()),
                })),
                "cpus": rank.cpus.as_ref().map(|cpus| cpus.iter().copied().collect::<CpuSet>().to_string()),
                "memory_node": rank.memory_node,
                "next": next,
            })
        })
        .collect();
    json!({
        "machine": name,
        "map_by": format!("{:?}", plan.map).to_lowercase(),
        "ranks": ranks,
        "ring": plan.gpus.ring,
        "visible": plan.gpus.seen.iter().map(|unit| &unit.name).collect::<Vec<_>>(),
        "notes": plan.notes,
    })
}

/// What a machine is called in a plan: this one by its host name, another by its own, if it has one.
pub fn name_of(other: Option<&Machine>, hostname: &str) -> String {
    match other.map(|machine| machine.name.as_str()) {
        None => hostname.to_owned(),
        Some("") => "a machine".to_owned(),
        Some(name) => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan;
    use super::super::tests::{context, job};
    use super::*;
    use crate::topology::tests_support::two_sockets;

    fn planned(text: &str) -> (String, Value) {
        let node = Node::of(two_sockets());
        let plan = plan(&job(text), &node, &context(&[])).unwrap();
        (super::text(&plan, &node, "two"), json(&plan, &node, "two"))
    }

    #[test]
    fn every_rank_has_its_line_and_the_ring_its_reason() {
        let (text, json) = planned("ranks = 4\nprogram = ['a']");
        let expected = "\
4 ranks on two: CPUs 0-15 (8 cores, 2 NUMA nodes); nothing is started

rank  GPU  bus id        NUMA  CPUs       cores  memory  next in ring
0     0    0000:1b:00.0  0     0-1,8-9    2      node 0  1: NV8, 180 GB/s
1     1    0000:3b:00.0  0     2-3,10-11  2      node 0  2: SYS, ~28 GB/s
2     2    0000:9b:00.0  1     4-5,12-13  2      node 1  3: NV8, ~168 GB/s
3     3    0000:bb:00.0  1     6-7,14-15  2      node 1  0: SYS, ~28 GB/s

GPUs: all ranks see GPU0, GPU1, GPU2, GPU3; a rank's GPU is the one of its local rank
ring: 0 → 1 → 2 → 3, and back; its slowest link carries 28 GB/s (estimated from the kinds of links)
CPUs: near to the rank's GPU, shared evenly among the GPUs that are near to the same ones
";
        assert_eq!(text, expected);
        assert_eq!(json["ranks"][2]["gpu"]["bus_id"], "0000:9b:00.0");
        assert_eq!(json["ranks"][1]["next"]["link"], "SYS");
    }

    #[test]
    fn without_gpus_the_table_is_short() {
        let (text, json) = planned("ranks = 2\nprogram = ['a']\n[placement]\nmap-by = 'none'");
        assert!(text.contains("rank  CPUs  cores  memory\n0     any   -      any\n"), "{text}");
        assert!(json["ranks"][0]["gpu"].is_null());
    }
}
