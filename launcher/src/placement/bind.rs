//! Gives out CPUs.
//!
//! First the part of the machine that a rank belongs to: the share of its GPU, a NUMA node, a socket, or all. Then
//! what it gets of it: everything, or so many cores. [`compact`], [`spread`] and [`explicit`] are the policies.

use super::cpuset::CpuSet;
use super::held::Held;
use super::node::Cpus;
use super::{PlanError, compact, explicit, spread};
use crate::job::{Bind, MapBy, RankBy};

/// What is asked for.
#[derive(Debug, Clone)]
pub struct Wish<'a> {
    /// `--bind`.
    pub bind: &'a Bind,
    /// What ranks are mapped to.
    pub map: MapBy,
    /// `--rank-by`.
    pub rank_by: RankBy,
    /// `--cpus-per-rank`.
    pub cpus_per_rank: Option<u32>,
    /// How many ranks there are here.
    pub ranks: usize,
}

/// What is near to a rank's GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NearRank {
    /// All CPUs.
    pub around: CpuSet,
    /// Its GPU's share of them.
    pub share: CpuSet,
}

/// The CPUs of each rank.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Binding {
    /// By rank; empty if no rank is bound.
    pub cpus: Vec<CpuSet>,
    /// What the user should know.
    pub notes: Vec<String>,
}

impl Wish<'_> {
    /// Whether ranks get CPUs of their own at all.
    pub fn binds(&self) -> bool {
        match self.bind {
            Bind::None => false,
            Bind::Unsaid => self.map != MapBy::None || self.cpus_per_rank.is_some(),
            _ => true,
        }
    }

    /// How many cores each rank gets; `None`: all of its part.
    fn cores_each(&self) -> Option<usize> {
        let by_core = *self.bind == Bind::Core || (*self.bind == Bind::Unsaid && self.map == MapBy::Core);
        self.cpus_per_rank.map(|cores| cores as usize).or(by_core.then_some(1))
    }
}

/// The CPUs of every rank. `near` holds for each rank what is near to its GPU, where ranks are mapped to GPUs.
pub fn bind(wish: &Wish<'_>, near: &[NearRank], cpus: Option<&Cpus>, held: &Held) -> Result<Binding, PlanError> {
    if !wish.binds() {
        return Ok(Binding::default());
    }
    let Some(cpus) = cpus.filter(|cpus| !cpus.usable.is_empty()) else {
        // A GPU can be had without its CPUs; what was asked for by name cannot.
        return match (wish.bind, wish.cpus_per_rank) {
            (Bind::Unsaid, None) if wish.map == MapBy::Gpu => Ok(Binding {
                cpus: Vec::new(),
                notes: vec!["cannot tell which CPUs may be used, so no rank is bound".into()],
            }),
            _ => Err(PlanError::UnknownCpus),
        };
    };
    if let Some((what, asked)) = lacks_layout(wish, cpus) {
        return Err(PlanError::UnknownLayout { what, asked });
    }
    let mut notes = Vec::new();
    let sets = match (wish.bind, wish.cores_each()) {
        (Bind::List(sets), _) => explicit::listed(sets, wish.ranks, cpus)?,
        (_, None) => whole(&parts(wish, near, cpus), wish, cpus),
        (_, Some(each)) => {
            let parts = parts(wish, near, cpus);
            if wish.cpus_per_rank.is_some() {
                notes.extend(enough_cores(&parts, each, cpus)?);
            }
            by_core(&parts, each, cpus, held)
        }
    };
    let mut all = CpuSet::default();
    sets.iter().for_each(|set| all.extend(set));
    if wish.ranks > all.len() {
        let s = if all.len() == 1 { "" } else { "s" };
        notes.push(format!("oversubscribed: {} ranks on {} CPU{s}", wish.ranks, all.len()));
    } else if let Some(quota) = cpus.quota.filter(|quota| *quota < wish.ranks as f64) {
        notes.push(format!("the cgroup allows the time of {quota:.1} CPUs, and there are {} ranks", wish.ranks));
    }
    let exclusive = matches!(wish.bind, Bind::List(_)) || wish.cores_each().is_some();
    let others = held.jobs_on(&all);
    if exclusive && !others.is_empty() {
        notes.push(format!("CPUs out of {all} are also used by job {} of prun", others.join(", ")));
    }
    Ok(Binding { cpus: sets, notes })
}

/// What is not known of the CPUs and yet asked for.
fn lacks_layout(wish: &Wish<'_>, cpus: &Cpus) -> Option<(&'static str, &'static str)> {
    if matches!(wish.bind, Bind::List(_)) {
        return None;
    }
    let by_core = if wish.cpus_per_rank.is_some() { "--cpus-per-rank" } else { "binding to cores" };
    let by_socket = wish.map == MapBy::Socket || *wish.bind == Bind::Socket;
    match (wish.cores_each(), by_socket) {
        (Some(_), _) if cpus.cores.is_empty() => Some(("share a core", by_core)),
        (_, true) if cpus.sockets.is_empty() => Some(("are on one socket", "binding to sockets")),
        _ => None,
    }
}

/// The part of the machine that each rank belongs to.
fn parts(wish: &Wish<'_>, near: &[NearRank], cpus: &Cpus) -> Vec<CpuSet> {
    let nodes: Vec<CpuSet> = cpus.numa.iter().map(|node| node.cpus.clone()).collect();
    let deal = |parts: &[CpuSet]| spread::deal(parts, wish.ranks, wish.rank_by);
    match (wish.map, wish.bind) {
        (MapBy::Gpu, Bind::Numa) => near.iter().map(|near| near.around.clone()).collect(),
        (MapBy::Gpu, Bind::Socket) => near.iter().map(|near| socket_around(&near.around, cpus)).collect(),
        (MapBy::Gpu, _) => near.iter().map(|near| near.share.clone()).collect(),
        (MapBy::Numa, _) | (MapBy::None | MapBy::Core, Bind::Numa) => deal(&nodes),
        (MapBy::Socket, _) | (MapBy::None | MapBy::Core, Bind::Socket) => deal(&cpus.sockets),
        (MapBy::None | MapBy::Core | MapBy::List, _) => vec![cpus.usable.clone(); wish.ranks],
    }
}

fn socket_around(around: &CpuSet, cpus: &Cpus) -> CpuSet {
    let mut whole = CpuSet::default();
    cpus.sockets.iter().filter(|socket| !socket.and(around).is_empty()).for_each(|socket| whole.extend(socket));
    whole
}

/// Everything of a part; ranks that share a GPU divide its share where there is a core for each.
fn whole(parts: &[CpuSet], wish: &Wish<'_>, cpus: &Cpus) -> Vec<CpuSet> {
    if wish.map != MapBy::Gpu || *wish.bind != Bind::Unsaid {
        return parts.to_vec();
    }
    let divided = |rank: usize, part: &CpuSet| {
        let alike: Vec<usize> = (0..parts.len()).filter(|other| parts[*other] == *part).collect();
        let cores = cores_of(part, cpus);
        let each = cores.len() / alike.len();
        let place = alike.iter().position(|other| *other == rank)?;
        (each > 0 && alike.len() > 1).then(|| compact::take(&cores, alike.len(), each)[place].clone())
    };
    parts.iter().enumerate().map(|(rank, part)| divided(rank, part).unwrap_or_else(|| part.clone())).collect()
}

/// Refuses more cores for a rank than its part has; says where the cores do not suffice for all ranks of a part.
fn enough_cores(parts: &[CpuSet], each: usize, cpus: &Cpus) -> Result<Vec<String>, PlanError> {
    let mut notes: Vec<String> = Vec::new();
    for part in parts {
        let (cores, ranks) = (cores_of(part, cpus).len(), parts.iter().filter(|other| *other == part).count());
        if each > cores {
            return Err(PlanError::TooFewCores { each, cores, part: part.to_string() });
        }
        if ranks * each > cores {
            let note = format!(
                "{ranks} ranks with {each} cores each want {} cores, and CPUs {part} are {cores}: they get hardware threads and share cores",
                ranks * each
            );
            if !notes.contains(&note) {
                notes.push(note);
            }
        }
    }
    Ok(notes)
}

/// So many cores of its part for each rank, those that no other job holds first.
fn by_core(parts: &[CpuSet], each: usize, cpus: &Cpus, held: &Held) -> Vec<CpuSet> {
    let taken = held.all_cpus();
    let mut given = vec![CpuSet::default(); parts.len()];
    for rank in 0..parts.len() {
        if !given[rank].is_empty() {
            continue;
        }
        let alike: Vec<usize> = (0..parts.len()).filter(|other| parts[*other] == parts[rank]).collect();
        let cores = cores_of(&parts[rank], cpus);
        let free: Vec<CpuSet> = cores.iter().filter(|core| core.and(&taken).is_empty()).cloned().collect();
        let enough = free.len() >= alike.len().saturating_mul(each);
        let sets = compact::take(if enough { &free } else { &cores }, alike.len(), each);
        for (other, set) in alike.into_iter().zip(sets) {
            given[other] = set;
        }
    }
    given
}

fn cores_of(part: &CpuSet, cpus: &Cpus) -> Vec<CpuSet> {
    cpus.cores.iter().map(|core| core.and(part)).filter(|core| !core.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::super::node::NumaNode;
    use super::*;

    fn set(text: &str) -> CpuSet {
        text.parse().unwrap()
    }

    /// Two nodes of two cores; each core's threads are i and i + 4.
    fn machine(usable: &str) -> Cpus {
        let usable = set(usable);
        let cut = |sets: &[&str]| {
            sets.iter().map(|text| set(text).and(&usable)).filter(|set| !set.is_empty()).collect::<Vec<_>>()
        };
        let numa = [(0, "0-1,4-5"), (8, "2-3,6-7")];
        Cpus {
            cores: cut(&["0,4", "1,5", "2,6", "3,7"]),
            numa: numa
                .iter()
                .map(|(id, cpus)| NumaNode { id: *id, cpus: set(cpus).and(&usable) })
                .filter(|node| !node.cpus.is_empty())
                .collect(),
            affinity: usable.clone(),
            online: Some(set("0-7")),
            usable,
            ..Cpus::default()
        }
    }

    fn wish(bind: &Bind, ranks: usize) -> Wish<'_> {
        Wish { bind, map: MapBy::None, rank_by: RankBy::Turn, cpus_per_rank: None, ranks }
    }

    fn shown(binding: Binding) -> (Vec<String>, Vec<String>) {
        (binding.cpus.iter().map(CpuSet::to_string).collect(), binding.notes)
    }

    fn bound(how: &str, ranks: usize, usable: &str) -> (Vec<String>, Vec<String>) {
        shown(bind(&wish(&how.parse().unwrap(), ranks), &[], Some(&machine(usable)), &Held::default()).unwrap())
    }

    // C01
    #[test]
    fn cores_come_first_then_threads_then_all_again() {
        let table: &[(usize, &str, &[&str])] = &[
            (2, "0-7", &["0,4", "1,5"]),
            (4, "0-7", &["0,4", "1,5", "2,6", "3,7"]),
            (6, "0-7", &["0", "1", "2", "3", "4", "5"]),
            // Only the first threads may be used: each is a core of its own.
            (4, "0-3", &["0", "1", "2", "3"]),
            (3, "0,4", &["0", "4", "0"]),
        ];
        for (ranks, usable, expected) in table {
            assert_eq!(bound("core", *ranks, usable).0, *expected, "{ranks} on {usable}");
        }
        assert_eq!(bound("core", 8, "1-2").1, ["oversubscribed: 8 ranks on 2 CPUs"]);
        assert_eq!(bound("core", 8, "0-7").1, Vec::<String>::new());
    }

    #[test]
    fn nodes_take_turns_and_those_without_cpus_are_left_out() {
        assert_eq!(bound("numa", 3, "0-7").0, ["0-1,4-5", "2-3,6-7", "0-1,4-5"]);
        assert_eq!(bound("numa", 2, "2-3").0, ["2-3", "2-3"]);
    }

    #[test]
    fn mapped_by_a_list_the_first_rank_has_its_first_part() {
        let list = "3;0-1,4".parse().unwrap();
        let wish = Wish { map: MapBy::List, ..wish(&list, 2) };
        assert_eq!(shown(bind(&wish, &[], Some(&machine("0-7")), &Held::default()).unwrap()).0, ["3", "0-1,4"]);
    }

    #[test]
    fn a_list_is_used_in_turn_and_must_be_usable() {
        assert_eq!(bound("1,2", 3, "0-3").0, ["1", "2", "1"]);
        assert_eq!(bound("0-1;2-3", 2, "0-3").0, ["0-1", "2-3"]);
        let error = bind(&wish(&"0,1".parse().unwrap(), 2), &[], Some(&machine("1-2")), &Held::default()).unwrap_err();
        let PlanError::CpuNotUsable { cpu, because, usable } = error else { panic!("{error}") };
        assert_eq!((cpu, &*usable), (0, "1-2"));
        assert!(because.contains("affinity"), "{because}");
        let error = bind(&wish(&"9".parse().unwrap(), 1), &[], Some(&machine("0-7")), &Held::default()).unwrap_err();
        assert!(matches!(error, PlanError::CpuNotUsable { cpu: 9, .. }));
    }

    #[test]
    fn without_binding_nothing_need_be_known() {
        let none = Held::default();
        assert_eq!(bind(&wish(&Bind::None, 4), &[], None, &none), Ok(Binding::default()));
        assert_eq!(bind(&wish(&Bind::Unsaid, 4), &[], None, &none), Ok(Binding::default()));
        assert_eq!(bind(&wish(&Bind::Core, 4), &[], None, &none), Err(PlanError::UnknownCpus));
        let gpu = Wish { map: MapBy::Gpu, ..wish(&Bind::Unsaid, 1) };
        assert_eq!(bind(&gpu, &[], None, &none).unwrap().notes.len(), 1);
    }

    #[test]
    fn a_quota_below_the_ranks_is_told() {
        let cpus = Cpus { quota: Some(1.5), ..machine("0-7") };
        let notes = |ranks| bind(&wish(&Bind::Core, ranks), &[], Some(&cpus), &Held::default()).unwrap().notes.len();
        assert_eq!((notes(2), notes(1)), (1, 0));
    }

    #[test]
    fn cores_are_taken_out_of_the_part_that_a_rank_is_mapped_to() {
        type Row = (MapBy, &'static str, Option<u32>, RankBy, &'static [&'static str]);
        let table: &[Row] = &[
            (MapBy::Numa, "core", None, RankBy::Turn, &["0,4", "2,6", "1,5", "3,7"]),
            (MapBy::Numa, "core", None, RankBy::Fill, &["0,4", "1,5", "2,6", "3,7"]),
            (MapBy::Numa, "none", Some(2), RankBy::Turn, &[]),
            (MapBy::Core, "", None, RankBy::Turn, &["0,4", "1,5", "2,6", "3,7"]),
            (MapBy::None, "", Some(2), RankBy::Turn, &["0-1", "2-3", "4-5", "6-7"]),
            (MapBy::Numa, "", None, RankBy::Fill, &["0-1,4-5", "0-1,4-5", "2-3,6-7", "2-3,6-7"]),
        ];
        for (map, how, cpus_per_rank, rank_by, expected) in table {
            let how = if how.is_empty() { Bind::Unsaid } else { how.parse().unwrap() };
            let wish = Wish { bind: &how, map: *map, rank_by: *rank_by, cpus_per_rank: *cpus_per_rank, ranks: 4 };
            let binding = bind(&wish, &[], Some(&machine("0-7")), &Held::default()).unwrap();
            assert_eq!(shown(binding).0, *expected, "{map:?} {how:?} {cpus_per_rank:?}");
        }
    }

    #[test]
    fn more_cores_than_there_are_is_refused_and_cores_that_are_shared_are_told() {
        let given = |map: MapBy, ranks: usize, each: u32| {
            let wish = Wish { map, cpus_per_rank: Some(each), ..wish(&Bind::Unsaid, ranks) };
            bind(&wish, &[], Some(&machine("0-7")), &Held::default())
        };
        let error = given(MapBy::Numa, 2, 3).unwrap_err();
        assert_eq!(error, PlanError::TooFewCores { each: 3, cores: 2, part: "0-1,4-5".into() });
        assert_eq!(given(MapBy::None, 1, 5).unwrap_err().to_string(), "--cpus-per-rank 5, and CPUs 0-7 have 4 cores");
        // Two ranks to a node of two cores.
        let (cpus, notes) = shown(given(MapBy::Numa, 4, 2).unwrap());
        assert_eq!(cpus, ["0-1", "2-3", "4-5", "6-7"]);
        assert_eq!(notes.len(), 2, "{notes:?}");
        assert!(notes[0].starts_with("2 ranks with 2 cores each want 4 cores, and CPUs 0-1,4-5 are 2:"), "{notes:?}");
        assert_eq!(shown(given(MapBy::Numa, 2, 2).unwrap()).1, [""; 0]);
    }

    #[test]
    fn ranks_of_one_gpu_divide_its_share() {
        let near = |around: &str, share: &str| NearRank { around: set(around), share: set(share) };
        let ranks =
            [near("0-1,4-5", "0-1,4-5"), near("2-3,6-7", "2,6"), near("0-1,4-5", "0-1,4-5"), near("2-3,6-7", "2,6")];
        let given = |how: &Bind| {
            let wish = Wish { map: MapBy::Gpu, ..wish(how, 4) };
            shown(bind(&wish, &ranks, Some(&machine("0-7")), &Held::default()).unwrap()).0
        };
        assert_eq!(given(&Bind::Unsaid), ["0,4", "2,6", "1,5", "2,6"]);
        assert_eq!(given(&Bind::Numa), ["0-1,4-5", "2-3,6-7", "0-1,4-5", "2-3,6-7"]);
        assert_eq!(given(&Bind::Core), ["0,4", "2", "1,5", "6"]);
    }

    #[test]
    fn cores_of_another_job_are_left_to_it_as_long_as_possible() {
        let held = Held { cpus: vec![(set("0-1"), "abcd".into())], ..Held::default() };
        let given = |ranks| shown(bind(&wish(&Bind::Core, ranks), &[], Some(&machine("0-7")), &held).unwrap());
        assert_eq!(given(2), (vec!["2,6".into(), "3,7".into()], vec![]));
        let (cpus, notes) = given(3);
        assert_eq!(cpus[0], "0,4");
        assert!(notes[0].contains("job abcd"), "{notes:?}");
    }
}
