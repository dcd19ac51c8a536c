//! Which GPU each rank gets, and what the ranks are told about it.
//!
//! All ranks see the same GPUs in the same order, the one of local rank 0 first: the number of a rank's GPU is its
//! local rank. Names are UUIDs, so that no other numbering of the machine can come in between.

use super::held::Held;
use super::{PlanError, StartContext};
use crate::doctor::health;
use crate::job::{GpuChoice, Job, MapBy, RankBy};
use crate::topology::{Gpu, Machine, PciAddress, gpu_name, ring};

/// More GPUs than this are taken in their order; of fewer, the best connected are looked for.
const MOST_SEARCHED: usize = 10;

/// What a rank can get: a GPU, or a slice of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unit {
    /// The GPU's number on the machine.
    pub gpu: usize,
    /// Where it sits.
    pub address: Option<PciAddress>,
    /// How `CUDA_VISIBLE_DEVICES` names it.
    pub name: String,
    /// Whether it is a MIG slice.
    pub is_slice: bool,
    /// The number N of its `/dev/nvidiaN`, where it is known.
    pub minor: Option<u32>,
    /// Whether another job of prun has it as well.
    pub is_held: bool,
}

/// The GPUs of a job.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct GpuPlan {
    /// Those that the ranks see, in their order.
    pub seen: Vec<Unit>,
    /// For each local rank the position of its GPU in `seen`; empty if ranks get no GPU.
    pub of_rank: Vec<usize>,
    /// Local ranks in the order in which data should go round.
    pub ring: Vec<usize>,
    /// GB/s of the ring's slowest link, and whether all its links were measured.
    pub bottleneck: Option<(f64, bool)>,
    /// The lowest health of the ring's links, where it is known.
    pub health: Option<u32>,
    /// Pairs of GPUs between which data was written and did not arrive.
    pub broken: Vec<(usize, usize)>,
    /// Each rank sees its own only.
    pub masked: bool,
    /// What the user should know.
    pub notes: Vec<String>,
}

impl GpuPlan {
    /// The GPU of a local rank.
    pub fn unit(&self, local_rank: usize) -> Option<&Unit> {
        self.seen.get(*self.of_rank.get(local_rank)?)
    }

    /// The text of `CUDA_VISIBLE_DEVICES` for a local rank.
    pub fn visible(&self, local_rank: usize) -> String {
        match (self.masked, self.unit(local_rank)) {
            (true, Some(unit)) => unit.name.clone(),
            _ => self.seen.iter().map(|unit| unit.name.as_str()).collect::<Vec<_>>().join(","),
        }
    }

    /// Device files that a local rank must be able to open.
    pub fn devices_of(&self, local_rank: usize) -> Vec<Vec<u8>> {
        let file = |unit: &Unit| unit.minor.map(|minor| format!("/dev/nvidia{minor}").into_bytes());
        match (self.masked, self.unit(local_rank)) {
            (true, unit) => unit.and_then(file).into_iter().collect(),
            (false, _) => self.seen.iter().filter_map(file).collect(),
        }
    }

    /// The most ranks that have the same GPU.
    pub fn most_per_gpu(&self) -> usize {
        (0..self.seen.len()).map(|at| self.of_rank.iter().filter(|its| **its == at).count()).max().unwrap_or(0)
    }
}

/// What the ranks are mapped to: what was asked for, or a GPU each where there are any.
pub fn mapping(job: &Job, machine: Option<&Machine>, context: &StartContext) -> MapBy {
    job.placement.map_by.unwrap_or_else(|| {
        let any = match job.placement.gpus {
            GpuChoice::None => false,
            GpuChoice::All => machine.is_some_and(|machine| !visible(machine, context).0.is_empty()),
            // Who names GPUs wants them: a job that runs without is not the one that was asked for.
            GpuChoice::List(_) => true,
        };
        if any { MapBy::Gpu } else { MapBy::None }
    })
}

/// How many ranks can have a GPU of their own.
pub fn count(job: &Job, machine: &Machine, context: &StartContext) -> usize {
    let units = visible(machine, context).0;
    match &job.placement.gpus {
        GpuChoice::None => 0,
        GpuChoice::All => units.len(),
        GpuChoice::List(list) => listed(list, &units, machine).map_or(0, |units| units.len()),
    }
}

/// Gives each rank its GPU.
pub fn choose(job: &Job, machine: &Machine, held: &Held, context: &StartContext) -> Result<GpuPlan, PlanError> {
    let ranks = job.world_size() as usize;
    let (mut units, mut notes) = visible(machine, context);
    let asked = if job.placement.map_by.is_some() { "--map-by gpu" } else { "--gpus" };
    if units.is_empty() {
        return Err(PlanError::NoGpu { asked, because: why_none(machine, context) });
    }
    if let GpuChoice::List(list) = &job.placement.gpus {
        units = listed(list, &units, machine)?;
    }
    if ranks > units.len() && !job.placement.share_gpus {
        return Err(PlanError::TooFewGpus { ranks, gpus: units.len() });
    }
    let explicit = matches!(job.placement.gpus, GpuChoice::List(_));
    let wanted = ranks.min(units.len());
    let taken = |unit: &Unit| unit.address.and_then(|address| held.gpu(address));
    let free: Vec<Unit> = units.iter().filter(|unit| taken(unit).is_none()).cloned().collect();
    let mut seen = if explicit {
        units[..wanted].to_vec()
    } else if free.len() >= wanted {
        best_connected(&free, wanted, machine)
    } else {
        let busy = units.iter().filter(|unit| taken(unit).is_some()).cloned();
        free.iter().cloned().chain(busy).take(wanted).collect()
    };
    for unit in &mut seen {
        let Some(job) = taken(unit) else { continue };
        unit.is_held = true;
        notes.push(format!("{} is also used by job {job} of prun", gpu_name(unit.gpu)));
    }
    let gb_s = |a: usize, b: usize| machine.gpu_gb_s(seen[a].gpu, seen[b].gpu);
    let weight = |a: usize, b: usize| health::ring_gb_s(machine, seen[a].gpu, seen[b].gpu);
    let cycle = ring::best(&(0..seen.len()).collect::<Vec<_>>(), &weight);
    let bottleneck = ring::bottleneck(&cycle, &gb_s).map(|slowest| {
        let measured = ring::links(&cycle)
            .all(|(a, b)| machine.gpu_link(seen[a].gpu, seen[b].gpu).is_some_and(|link| link.gb_s.is_some()));
        (slowest, measured)
    });
    let health = ring::links(&cycle)
        .filter(|(a, b)| seen[*a].gpu != seen[*b].gpu)
        .filter_map(|(a, b)| health::score_of(machine, seen[a].gpu, seen[b].gpu))
        .min();
    let broken = broken_pairs(&seen, machine);
    notes.extend(told_health(&cycle, &seen, machine));
    let mut ring_of_units = cycle;
    if job.placement.rank_by == RankBy::Ring {
        seen = ring_of_units.iter().map(|&at| seen[at].clone()).collect();
        ring_of_units = (0..seen.len()).collect();
    }
    let of_rank: Vec<usize> = (0..ranks)
        .map(|rank| match job.placement.rank_by {
            RankBy::Fill => rank * seen.len() / ranks,
            RankBy::Turn | RankBy::Ring => rank % seen.len(),
        })
        .collect();
    let ring = ring_of_units.iter().flat_map(|at| (0..ranks).filter(|rank| of_rank[*rank] == *at)).collect();
    let sliced = seen.iter().any(|unit| unit.is_slice);
    if sliced && !job.placement.gpu_mask {
        notes.push(
            "the GPUs are cut into MIG slices, and CUDA shows a process one slice only: each rank sees its own".into(),
        );
    }
    let masked = job.placement.gpu_mask || sliced;
    let plan = GpuPlan { seen, of_rank, ring, bottleneck, health, broken, masked, notes };
    Ok(with_sharing_told(plan, machine.mps))
}

/// Pairs whose peer access was tried and does not work.
fn broken_pairs(seen: &[Unit], machine: &Machine) -> Vec<(usize, usize)> {
    let pairs = (0..seen.len()).flat_map(|a| (a + 1..seen.len()).map(move |b| (seen[a].gpu, seen[b].gpu)));
    let is_broken =
        |(a, b): &(usize, usize)| machine.gpu_link(*a, *b).is_some_and(|link| link.peer_proven == Some(false));
    pairs.filter(is_broken).collect()
}

/// Links of the ring that are under the threshold, since there was no way round them.
fn told_health(cycle: &[usize], seen: &[Unit], machine: &Machine) -> Vec<String> {
    let mut told: Vec<String> = ring::links(cycle)
        .map(|(a, b)| (seen[a].gpu.min(seen[b].gpu), seen[a].gpu.max(seen[b].gpu)))
        .filter(|(a, b)| a != b && health::is_avoided(machine, *a, *b))
        .filter_map(|(a, b)| Some((a, b, health::score_of(machine, a, b)?)))
        .map(|(a, b, score)| {
            format!("the link between {} and {} has a health of {score} of 100, and there is no way round it (`prun doctor`)", gpu_name(a), gpu_name(b))
        })
        .collect();
    told.dedup();
    told
}

fn with_sharing_told(mut plan: GpuPlan, mps: Option<bool>) -> GpuPlan {
    let most = plan.most_per_gpu();
    if most > 1 {
        let how = match mps {
            Some(true) => "NVIDIA's MPS runs and lets them work at the same time",
            Some(false) => {
                "NVIDIA's MPS does not run, so they take turns on it (`nvidia-cuda-mps-control -d` starts it)"
            }
            None => "they take turns on it unless NVIDIA's MPS runs",
        };
        let (ranks, gpus) = (plan.of_rank.len(), plan.seen.len());
        let s = if gpus == 1 { "" } else { "s" };
        plan.notes.push(format!("{ranks} ranks share {gpus} GPU{s}, up to {most} on one: {how}"));
    }
    plan
}

/// The GPUs that this process may use, as `CUDA_VISIBLE_DEVICES` limits them.
fn visible(machine: &Machine, context: &StartContext) -> (Vec<Unit>, Vec<String>) {
    let all: Vec<Unit> = machine.nvidia_gpus().flat_map(units_of).collect();
    let mut notes = Vec::new();
    let variable = |name: &str| {
        context.inherited.iter().find(|(known, _)| known == name).map(|(_, value)| value.to_string_lossy().into_owned())
    };
    let fastest_first = variable("CUDA_DEVICE_ORDER").is_some_and(|order| order == "FASTEST_FIRST");
    let kinds: std::collections::BTreeSet<&Option<String>> = machine.nvidia_gpus().map(|gpu| &gpu.name).collect();
    if fastest_first && !all.is_empty() {
        notes.push(
            "CUDA_DEVICE_ORDER=FASTEST_FIRST is left as it is; the ranks get their GPUs by UUID, so the numbers of prun topo (PCI order) hold".into(),
        );
    }
    let Some(list) = variable("CUDA_VISIBLE_DEVICES") else { return (all, notes) };
    let mut units: Vec<Unit> = Vec::new();
    for item in list.split(',').map(str::trim) {
        let by_number = item.parse::<usize>().ok();
        if by_number.is_some() && kinds.len() > 1 && fastest_first {
            notes.push(format!(
                "CUDA_VISIBLE_DEVICES={list} counts the fastest GPU first and this machine has several kinds: prun takes the numbers in PCI order; give UUIDs to be sure"
            ));
        }
        let unit = match by_number {
            Some(number) => all.iter().filter(|unit| unit.gpu == number).collect::<Vec<_>>(),
            None => all.iter().filter(|unit| !item.is_empty() && unit.name.starts_with(item)).collect(),
        };
        // CUDA stops at the first that it does not know, and does not show one twice.
        if unit.is_empty() {
            if !item.is_empty() && item != "-1" && item != "NoDevFiles" {
                notes.push(format!("CUDA_VISIBLE_DEVICES names `{item}`, which this machine does not have; CUDA ignores it and all behind it"));
            }
            break;
        }
        units.extend(unit.into_iter().cloned());
    }
    notes.dedup();
    let mut once: Vec<Unit> = Vec::new();
    units.retain(|unit| {
        let new = !once.contains(unit);
        once.push(unit.clone());
        new
    });
    (units, notes)
}

fn units_of(gpu: &Gpu) -> Vec<Unit> {
    let unit = |name: String, is_slice| Unit {
        gpu: gpu.index,
        address: gpu.address,
        name,
        is_slice,
        minor: gpu.minor,
        is_held: false,
    };
    match gpu.mig.as_slice() {
        [] => vec![unit(gpu.uuid.clone().unwrap_or_else(|| gpu.index.to_string()), false)],
        slices => slices.iter().map(|slice| unit(slice.clone(), true)).collect(),
    }
}

/// The units that a list names, in its order.
fn listed(list: &[String], units: &[Unit], machine: &Machine) -> Result<Vec<Unit>, PlanError> {
    let mut chosen: Vec<Unit> = Vec::new();
    for item in list {
        let number = item.parse::<usize>().ok();
        let address = item.parse::<PciAddress>().ok();
        let matches = |unit: &&Unit| match (number, address) {
            (Some(number), _) => unit.gpu == number,
            (None, Some(address)) => unit.address == Some(address),
            (None, None) => unit.name.starts_with(item.as_str()),
        };
        let found: Vec<&Unit> = units.iter().filter(matches).collect();
        if found.is_empty() {
            let known = units.iter().map(|unit| unit.gpu.to_string()).collect::<Vec<_>>().join(", ");
            let hidden = number.is_some_and(|number| machine.gpus.iter().any(|gpu| gpu.index == number));
            return Err(PlanError::UnknownGpu { item: item.clone(), known, hidden });
        }
        for unit in found {
            if chosen.contains(unit) {
                return Err(PlanError::GpuTwice { item: item.clone() });
            }
            chosen.push(unit.clone());
        }
    }
    Ok(chosen)
}

/// The `count` units whose ring has the fastest slowest link; among equal ones the lowest numbers.
fn best_connected(units: &[Unit], count: usize, machine: &Machine) -> Vec<Unit> {
    let plain = || units[..count].to_vec();
    if count >= units.len() || count < 2 || units.len() > MOST_SEARCHED {
        return plain();
    }
    let gb_s = |a: usize, b: usize| health::ring_gb_s(machine, units[a].gpu, units[b].gpu);
    let table: Vec<Vec<f64>> =
        (0..units.len()).map(|a| (0..units.len()).map(|b| if a == b { 0.0 } else { gb_s(a, b) }).collect()).collect();
    let mut best: Option<(f64, Vec<usize>)> = None;
    for set in 0u32..1 << units.len() {
        if set.count_ones() as usize != count {
            continue;
        }
        let members: Vec<usize> = (0..units.len()).filter(|at| set >> at & 1 == 1).collect();
        let weight = |a: usize, b: usize| table[a][b];
        let Some(value) = ring::bottleneck(&ring::best(&members, &weight), &weight) else { continue };
        let better =
            best.as_ref().is_none_or(|(known, its)| value > known + 1e-9 || (value > known - 1e-9 && members < *its));
        if better {
            best = Some((value, members));
        }
    }
    best.map_or_else(plain, |(_, members)| members.into_iter().map(|at| units[at].clone()).collect())
}

fn why_none(machine: &Machine, context: &StartContext) -> String {
    let hidden = context.inherited.iter().any(|(name, _)| name == "CUDA_VISIBLE_DEVICES");
    match (machine.nvidia_gpus().next(), machine.gpus.first()) {
        (Some(_), _) if hidden => "CUDA_VISIBLE_DEVICES hides them all".into(),
        (None, Some(_)) => "its GPUs are not of NVIDIA".into(),
        _ => "the NVIDIA driver lists none".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{context, job};
    use super::*;
    use crate::topology::tests_support::two_sockets;
    use crate::topology::{Link, LinkKind};

    fn chosen(options: &str, ranks: u32, inherited: &[(&str, &str)]) -> Result<GpuPlan, PlanError> {
        let text = format!("ranks = {ranks}\nprogram = ['a']\n[placement]\n{options}");
        choose(&job(&text), &two_sockets(), &Held::default(), &context(inherited))
    }

    fn gpus(plan: &GpuPlan) -> Vec<usize> {
        (0..plan.of_rank.len()).map(|rank| plan.unit(rank).unwrap().gpu).collect()
    }

    #[test]
    fn the_number_of_a_rank_s_gpu_is_its_local_rank() {
        let plan = chosen("", 4, &[]).unwrap();
        assert_eq!(plan.of_rank, [0, 1, 2, 3]);
        assert_eq!(plan.visible(0), plan.visible(3));
        assert_eq!(plan.visible(0).split(',').count(), 4);
        assert!(plan.visible(0).starts_with("GPU-00000000-"));
        let masked = chosen("gpu-mask = true", 2, &[]).unwrap();
        assert_eq!(masked.visible(1), "GPU-00000001-0000-0000-0000-000000000000");
    }

    #[test]
    fn more_ranks_than_gpus_are_refused_unless_asked_for() {
        assert_eq!(chosen("", 16, &[]), Err(PlanError::TooFewGpus { ranks: 16, gpus: 4 }));
        let two = [("CUDA_VISIBLE_DEVICES", "3,1")];
        assert_eq!(chosen("", 4, &two), Err(PlanError::TooFewGpus { ranks: 4, gpus: 2 }));
        let shared = chosen("share-gpus = true", 4, &two).unwrap();
        assert_eq!(gpus(&shared), [3, 1, 3, 1]);
        assert!(shared.notes[0].contains("share 2 GPUs"), "{:?}", shared.notes);
        let filled = chosen("share-gpus = true\nrank-by = 'fill'", 4, &two).unwrap();
        assert_eq!((gpus(&filled), filled.most_per_gpu()), (vec![3, 3, 1, 1], 2));
    }

    #[test]
    fn fewer_ranks_get_the_best_connected_gpus() {
        // The pair 0, 1 was measured at 180 GB/s, the pair 2, 3 is only estimated.
        assert_eq!(gpus(&chosen("", 2, &[]).unwrap()), [0, 1]);
        let visible = [("CUDA_VISIBLE_DEVICES", "1,2,3")];
        assert_eq!(gpus(&chosen("", 2, &visible).unwrap()), [2, 3]);
        assert_eq!(gpus(&chosen("", 1, &visible).unwrap()), [1]);
    }

    #[test]
    fn what_another_job_holds_is_left_to_it_as_long_as_possible() {
        let machine = two_sockets();
        let held = Held { gpus: vec![(machine.gpus[0].address.unwrap(), "abcd".into())], ..Held::default() };
        let plan = |ranks: u32| {
            choose(&job(&format!("ranks = {ranks}\nprogram = ['a']")), &machine, &held, &context(&[])).unwrap()
        };
        assert_eq!((gpus(&plan(2)), plan(2).notes.len()), (vec![2, 3], 0));
        let all = plan(4);
        assert_eq!(gpus(&all), [1, 2, 3, 0]);
        assert_eq!(all.notes, ["GPU0 is also used by job abcd of prun"]);
    }

    #[test]
    fn the_visible_list_means_what_it_means_to_cuda() {
        let seen = |list: &str| gpus(&chosen("share-gpus = true", 1, &[("CUDA_VISIBLE_DEVICES", list)]).unwrap());
        assert_eq!((seen("2"), seen("GPU-00000003"), seen(" 1 , 0 ")), (vec![2], vec![3], vec![1]));
        for none in ["", "-1", "9,0", "GPU-ffff", "NoDevFiles"] {
            let error = chosen("", 1, &[("CUDA_VISIBLE_DEVICES", none)]).unwrap_err();
            assert!(matches!(&error, PlanError::NoGpu { because, .. } if because.contains("hides")), "{none}: {error}");
        }
        let job = job("ranks = 1\nprogram = ['a']");
        let map = |list: &str| mapping(&job, Some(&two_sockets()), &context(&[("CUDA_VISIBLE_DEVICES", list)]));
        assert_eq!((map("0"), map("")), (MapBy::Gpu, MapBy::None));
        assert_eq!(mapping(&job, Some(&Machine::default()), &context(&[])), MapBy::None);
    }

    #[test]
    fn gpus_that_are_named_and_not_there_are_refused() {
        let job = job("ranks = 1\nprogram = ['a']\n[placement]\ngpus = '0'");
        assert_eq!(mapping(&job, None, &context(&[])), MapBy::Gpu);
        let error = choose(&job, &Machine::default(), &Held::default(), &context(&[])).unwrap_err();
        assert_eq!(error.to_string(), "--gpus asks for GPUs, and there is no NVIDIA GPU that the ranks could use");
    }

    #[test]
    fn a_list_of_gpus_is_taken_as_it_stands() {
        assert_eq!(gpus(&chosen("gpus = '1-3'", 3, &[]).unwrap()), [1, 2, 3]);
        assert_eq!(gpus(&chosen("gpus = '3,0000:1b:00.0'", 2, &[]).unwrap()), [3, 0]);
        let error = chosen("gpus = '7'", 1, &[]).unwrap_err();
        assert!(matches!(error, PlanError::UnknownGpu { hidden: false, .. }), "{error}");
        assert!(matches!(chosen("gpus = '0,0'", 1, &[]), Err(PlanError::GpuTwice { .. })));
        let error = chosen("gpus = '2'", 1, &[("CUDA_VISIBLE_DEVICES", "0")]).unwrap_err();
        assert!(matches!(error, PlanError::UnknownGpu { hidden: true, .. }), "{error}");
    }

    #[test]
    fn ranks_may_follow_the_ring() {
        let mut machine = two_sockets();
        // 0-2 and 1-3 are the fast way between the sockets.
        machine.links.retain(|link| link.kind != LinkKind::Sys);
        for (a, b, gb_s) in [(0, 2, 50.0), (1, 3, 50.0), (0, 3, 5.0), (1, 2, 5.0)] {
            machine.links.push(Link { gb_s: Some(gb_s), ..Link::new(gpu_name(a), gpu_name(b), LinkKind::Sys) });
        }
        let plan = |options: &str| {
            let job = job(&format!("ranks = 4\nprogram = ['a']\n[placement]\n{options}"));
            choose(&job, &machine, &Held::default(), &context(&[])).unwrap()
        };
        assert_eq!((gpus(&plan("")), plan("").ring), (vec![0, 1, 2, 3], vec![0, 1, 3, 2]));
        assert_eq!(plan("").bottleneck.unwrap().0, 50.0);
        let along = plan("rank-by = 'ring'");
        assert_eq!((gpus(&along), along.ring), (vec![0, 1, 3, 2], vec![0, 1, 2, 3]));
    }

    #[test]
    fn the_ring_goes_round_a_link_that_is_ill_and_says_so_where_it_cannot() {
        let mut machine = two_sockets();
        let plan = |machine: &Machine, ranks: u32| {
            choose(&job(&format!("ranks = {ranks}\nprogram = ['a']")), machine, &Held::default(), &context(&[]))
                .unwrap()
        };
        assert_eq!((plan(&machine, 4).ring, plan(&machine, 4).health), (vec![0, 1, 2, 3], Some(100)));
        // The fastest of all, and what goes over it does not arrive.
        machine.links[0].failed("no answer within 5 s".into());
        let round = plan(&machine, 4);
        assert_eq!((round.ring, round.health, round.notes.len()), (vec![0, 2, 1, 3], Some(100), 0));
        assert_eq!((round.broken.as_slice(), round.bottleneck.unwrap().0.round()), (&[(0, 1)][..], 28.0));
        machine.gpus.truncate(2);
        let none = plan(&machine, 2);
        assert_eq!(none.health, Some(0));
        assert!(none.notes[0].contains("GPU0 and GPU1 has a health of 0"), "{:?}", none.notes);
    }

    #[test]
    fn a_gpu_that_is_stuck_or_reports_fatal_errors_is_left_out_where_there_are_others() {
        let plan = |machine: &Machine, ranks: u32| {
            choose(&job(&format!("ranks = {ranks}\nprogram = ['a']")), machine, &Held::default(), &context(&[]))
                .unwrap()
        };
        assert_eq!(gpus(&plan(&two_sockets(), 3)), [0, 1, 2]);
        // F07: 5 of 32 GT/s while it works.
        let mut stuck = two_sockets();
        stuck.devices[3].link.speed = crate::topology::Speed::of_generation(2);
        assert_eq!(gpus(&plan(&stuck, 3)), [0, 1, 2], "at rest a link may be slow");
        stuck.gpus[1].state = Some(crate::topology::GpuState { busy_percent: Some(100), ..Default::default() });
        assert_eq!((gpus(&plan(&stuck, 3)), plan(&stuck, 3).health), (vec![0, 2, 3], Some(100)));
        // And what is estimated of its links is what they carry, not what they could.
        assert!(stuck.gpu_gb_s(1, 2) < 4.0 && stuck.gpu_gb_s(0, 2) > 25.0, "{}", stuck.gpu_gb_s(1, 2));
        let mut fatal = two_sockets();
        fatal.gpus[1].errors = Some(crate::topology::ErrorRates { correctable_per_s: 0.0, worse: Some(1) });
        assert_eq!(gpus(&plan(&fatal, 3)), [0, 2, 3]);
        let all = plan(&fatal, 4);
        assert_eq!(all.health, Some(50));
        assert!(all.notes[0].contains("has a health of 50 of 100"), "{:?}", all.notes);
    }

    #[test]
    fn ranks_open_the_devices_that_they_shall_see() {
        let plan = chosen("", 2, &[]).unwrap();
        assert_eq!(plan.devices_of(1), [b"/dev/nvidia0".to_vec(), b"/dev/nvidia1".to_vec()]);
        let masked = chosen("gpu-mask = true", 2, &[]).unwrap();
        assert_eq!(masked.devices_of(1), [b"/dev/nvidia1".to_vec()]);
    }

    #[test]
    fn sharing_says_whether_mps_runs() {
        let said = |mps| {
            let machine = Machine { mps, ..two_sockets() };
            let job = job("ranks = 8\nprogram = ['a']\n[placement]\nshare-gpus = true");
            choose(&job, &machine, &Held::default(), &context(&[])).unwrap().notes.remove(0)
        };
        assert!(said(Some(true)).contains("MPS runs") && said(Some(false)).contains("take turns"));
        assert!(said(None).contains("unless NVIDIA's MPS runs"));
    }

    #[test]
    fn slices_are_given_out_one_to_a_rank() {
        let mut machine = two_sockets();
        machine.gpus.truncate(1);
        machine.gpus[0].mig = vec!["MIG-a".into(), "MIG-b".into()];
        let plan = choose(&job("ranks = 2\nprogram = ['a']"), &machine, &Held::default(), &context(&[])).unwrap();
        assert_eq!((plan.visible(0), plan.visible(1)), ("MIG-a".into(), "MIG-b".into()));
        assert!(plan.masked && plan.notes[0].contains("MIG"));
    }

    #[test]
    fn the_user_s_own_order_is_kept_with_a_word() {
        let plan = chosen("", 1, &[("CUDA_DEVICE_ORDER", "FASTEST_FIRST")]).unwrap();
        assert!(plan.notes[0].contains("FASTEST_FIRST"), "{:?}", plan.notes);
        let mut machine = two_sockets();
        machine.gpus[0].name = Some("NVIDIA Slow".into());
        let order = [("CUDA_DEVICE_ORDER", "FASTEST_FIRST"), ("CUDA_VISIBLE_DEVICES", "0")];
        let plan = choose(&job("ranks = 1\nprogram = ['a']"), &machine, &Held::default(), &context(&order)).unwrap();
        assert!(plan.notes.iter().any(|note| note.contains("several kinds")), "{:?}", plan.notes);
    }
}
