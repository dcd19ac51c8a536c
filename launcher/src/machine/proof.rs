//! Peer access between a job's GPUs is proven before its ranks start: once for each boot, driver and pair.
//!
//! What a driver reports is not enough: behind an IOMMU data is lost, or a copy hangs for ever. The result is kept
//! beside what else is known of the links; a launch that finds it there pays for reading a small file. Where nothing
//! can be kept, nothing is proven here: libcomm proves by itself when its ranks meet.

use std::fs;
use std::path::Path;
use std::time::Instant;

use super::measure;
use crate::placement::{GpuPlan, Node, Plan, StartContext};
use crate::topology::{Link, Machine, known, nvml};

/// Proves what is not known yet of the GPUs of `plan`, and says what came of it; `None` if there was nothing to do.
/// `node` knows the result, so a plan made anew does, too.
pub fn before_start(node: &mut Node, plan: &Plan, context: &StartContext) -> Option<String> {
    let machine = node.machine.as_mut()?;
    if !is_wanted(plan, machine) {
        return None;
    }
    let place = known::place(&context.inherited, Path::new("/"), machine)?;
    fs::create_dir_all(place.parent()?).ok()?;
    let start = Instant::now();
    if let Ok(answer) = nvml::ask() {
        nvml::enrich(machine, answer);
    }
    let visible = plan.gpus.seen.iter().map(|unit| unit.name.as_str()).collect::<Vec<_>>().join(",");
    let opened = measure::prove(machine, &visible);
    if let Err(why) = &opened {
        // Not tried again at every launch; `prun topo --measure` does when somebody asks.
        let pairs = pairs(&plan.gpus);
        for link in machine.links.iter_mut().filter(|link| pairs.iter().any(|pair| joins(link, pair))) {
            link.trouble.get_or_insert_with(|| why.clone());
        }
    }
    known::save(machine, Some(&place));
    let links: Vec<&Link> = pairs(&plan.gpus).iter().filter_map(|(a, b)| machine.gpu_link(*a, *b)).collect();
    Some(match opened {
        Ok(()) => measure::proof_sentence(&links, start.elapsed()),
        Err(why) => format!("could not prove the ways between the GPUs ({why}); libcomm does it by itself"),
    })
}

/// Whether the job has a pair of GPUs of which nobody knows whether data arrives, and may find out.
fn is_wanted(plan: &Plan, machine: &Machine) -> bool {
    let gpus = &plan.gpus;
    let off = format!("{}=off", comm::env::P2P);
    let through_host = plan.node.base_env.iter().any(|line| line == off.as_bytes());
    let unknown = |(a, b): &(usize, usize)| {
        machine.gpu_link(*a, *b).is_none_or(|link| {
            link.peer_proven.is_none() && link.peer_reported != Some(false) && link.trouble.is_none()
        })
    };
    // Slices reach no other; a GPU that another job has would give that job's speed, and take some of it.
    let alone = gpus.seen.iter().all(|unit| !unit.is_slice && !unit.is_held);
    !through_host && alone && pairs(gpus).iter().any(unknown)
}

fn pairs(gpus: &GpuPlan) -> Vec<(usize, usize)> {
    let seen: Vec<usize> = gpus.seen.iter().map(|unit| unit.gpu).collect();
    (0..seen.len()).flat_map(|a| (a + 1..seen.len()).map(move |b| (a, b))).map(|(a, b)| (seen[a], seen[b])).collect()
}

fn joins(link: &Link, (a, b): &(usize, usize)) -> bool {
    use crate::topology::gpu_name;
    let (one, other) = (gpu_name(*a), gpu_name(*b));
    (link.a == one && link.b == other) || (link.a == other && link.b == one)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::placement::tests::{context, job};
    use crate::placement::{held::Held, plan};
    use crate::topology::tests_support::two_sockets;

    #[test]
    fn only_pairs_that_nobody_knows_are_proven_and_only_where_it_matters() {
        let wanted = |machine: &Machine, text: &str, held: Held| {
            let node = Node { held, ..Node::of(machine.clone()) };
            is_wanted(&plan(&job(text), &node, &context(&[])).unwrap(), machine)
        };
        let two = "ranks = 2\nprogram = ['a']\n";
        let mut machine = two_sockets();
        assert!(wanted(&machine, two, Held::default()));
        assert!(!wanted(&machine, "ranks = 1\nprogram = ['a']", Held::default()));
        assert!(!wanted(&machine, &format!("{two}[placement]\ngpus = 'none'"), Held::default()));
        assert!(!wanted(&machine, &format!("{two}[env]\nPRUN_P2P = 'off'"), Held::default()));
        let other = Held {
            gpus: machine.gpus.iter().map(|gpu| (gpu.address.unwrap(), "another".into())).collect(),
            ..Held::default()
        };
        assert!(!wanted(&machine, two, other));
        machine.links[0].peer_proven = Some(true);
        assert!(!wanted(&machine, two, Held::default()));
        machine.links[0].peer_proven = None;
        machine.links[0].peer_reported = Some(false);
        assert!(!wanted(&machine, two, Held::default()));
    }
}
