//! Gives out CPUs.
//!
//! `core`: a physical core each, with all of it that prun may use; when there are more ranks than cores,
//! a hardware thread each, first one of every core; when those run out, from the start again.
//! `numa`: a node each, in turn. A list: its sets, in turn.

use super::PlanError;
use super::cpuset::CpuSet;
use super::node::Cpus;
use crate::job::Bind;

/// The CPUs of each rank.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Binding {
    /// By rank; empty if no rank is bound.
    pub cpus: Vec<Vec<usize>>,
    /// What the user should know.
    pub notes: Vec<String>,
}

/// The CPUs of `ranks` ranks.
pub fn bind(how: &Bind, ranks: u32, cpus: Option<&Cpus>) -> Result<Binding, PlanError> {
    if *how == Bind::None {
        return Ok(Binding::default());
    }
    let cpus = cpus.filter(|cpus| !cpus.usable.is_empty()).ok_or(PlanError::UnknownCpus)?;
    let sets: Vec<CpuSet> = match how {
        Bind::None => Vec::new(),
        Bind::Core => by_core(ranks, &cpus.cores),
        Bind::Numa => cpus.numa.iter().map(|node| node.cpus.clone()).collect(),
        Bind::List(sets) => sets.iter().map(|set| set.iter().copied().collect()).collect(),
    };
    for cpu in sets.iter().flat_map(CpuSet::iter) {
        if let Some(because) = cpus.why_not(cpu) {
            return Err(PlanError::CpuNotUsable { cpu, because, usable: cpus.usable.to_string() });
        }
    }
    let given: Vec<Vec<usize>> = sets.iter().cycle().take(ranks as usize).map(|set| set.clone().into_vec()).collect();
    let different = given.iter().flatten().collect::<std::collections::BTreeSet<_>>().len();
    let mut notes = Vec::new();
    if ranks as usize > different {
        let s = if different == 1 { "" } else { "s" };
        notes.push(format!("oversubscribed: {ranks} ranks on {different} CPU{s}"));
    } else if let Some(quota) = cpus.quota.filter(|quota| *quota < f64::from(ranks)) {
        notes.push(format!("the cgroup allows the time of {quota:.1} CPUs, and there are {ranks} ranks"));
    }
    Ok(Binding { cpus: given, notes })
}

fn by_core(ranks: u32, cores: &[CpuSet]) -> Vec<CpuSet> {
    if ranks as usize <= cores.len() {
        return cores.to_vec();
    }
    let most_threads = cores.iter().map(CpuSet::len).max().unwrap_or(0);
    let thread =
        |nth: usize| cores.iter().filter_map(move |core| core.iter().nth(nth)).map(|cpu| CpuSet::from_iter([cpu]));
    (0..most_threads).flat_map(thread).collect()
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

    fn bound(how: &str, ranks: u32, usable: &str) -> (Vec<String>, Vec<String>) {
        let binding = bind(&how.parse().unwrap(), ranks, Some(&machine(usable))).unwrap();
        (binding.cpus.into_iter().map(|cpus| CpuSet::from_iter(cpus).to_string()).collect(), binding.notes)
    }

    #[test]
    fn cores_come_first_then_threads_then_all_again() {
        let table: &[(u32, &str, &[&str])] = &[
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
    fn a_list_is_used_in_turn_and_must_be_usable() {
        assert_eq!(bound("1,2", 3, "0-3").0, ["1", "2", "1"]);
        assert_eq!(bound("0-1;2-3", 2, "0-3").0, ["0-1", "2-3"]);
        let error = bind(&"0,1".parse().unwrap(), 2, Some(&machine("1-2"))).unwrap_err();
        let PlanError::CpuNotUsable { cpu, because, usable } = error else { panic!("{error}") };
        assert_eq!((cpu, &*usable), (0, "1-2"));
        assert!(because.contains("affinity"), "{because}");
        let error = bind(&"9".parse().unwrap(), 1, Some(&machine("0-7"))).unwrap_err();
        assert!(matches!(error, PlanError::CpuNotUsable { cpu: 9, .. }));
    }

    #[test]
    fn without_binding_nothing_need_be_known() {
        assert_eq!(bind(&Bind::None, 4, None), Ok(Binding::default()));
        assert_eq!(bind(&Bind::Core, 4, None), Err(PlanError::UnknownCpus));
    }

    #[test]
    fn a_quota_below_the_ranks_is_told() {
        let cpus = Cpus { quota: Some(1.5), ..machine("0-7") };
        assert_eq!(bind(&Bind::Core, 2, Some(&cpus)).unwrap().notes.len(), 1);
        assert_eq!(bind(&Bind::Core, 1, Some(&cpus)).unwrap().notes.len(), 0);
    }
}
