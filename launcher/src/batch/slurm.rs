//! What Slurm granted, from `SLURM_*`.

use super::{BatchError, Environment, Grant, GrantedNode, Scheduler, hosts};
use crate::placement::cpuset::CpuSet;

/// Counts for each node may be several, the narrower one first.
const TASKS: [&str; 3] = ["SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE", "SLURM_NTASKS_PER_NODE"];

/// The grant, `None` outside of a Slurm job.
///
/// # Errors
/// [`BatchError`] if a variable makes no sense or contradicts another.
pub fn read(environment: Environment<'_>) -> Result<Option<Grant>, BatchError> {
    let Some(job_id) = environment.text("SLURM_JOB_ID").or_else(|| environment.text("SLURM_JOBID")) else {
        return Ok(None);
    };
    let mut grant = Grant::new(Scheduler::Slurm, job_id.to_owned());
    let names = match environment.first(&["SLURM_JOB_NODELIST", "SLURM_NODELIST"]) {
        Some((name, list)) => hosts::expand(list)
            .ok_or_else(|| BatchError::malformed(name, list, "a list of nodes, such as n[01-04],m1"))?,
        None => Vec::new(),
    };
    let count = match environment.number("SLURM_JOB_NUM_NODES")? {
        Some(count) => count as usize,
        None => names.len(),
    };
    let tasks = counts(environment, &TASKS, count)?;
    let cpus = counts(environment, &["SLURM_JOB_CPUS_PER_NODE"], count)?;
    grant.nodes = names
        .iter()
        .enumerate()
        .map(|(at, name)| GrantedNode {
            name: name.clone(),
            tasks: tasks.get(at).copied(),
            cpus: cpus.get(at).copied(),
        })
        .collect();
    // A node's number counts along the list; a batch script without one runs on the first.
    let by_number = environment.number("SLURM_NODEID")?.map(|number| number as usize);
    let by_name = || environment.place(names.iter().map(String::as_str));
    grant.here =
        by_number.or_else(by_name).or((names.len() == 1).then_some(0)).filter(|here| *here < grant.nodes.len());
    let here = grant.node_here().and_then(|node| node.cpus);
    grant.cpus_here = environment.number("SLURM_CPUS_ON_NODE")?.or(here);
    grant.cpus_per_task = environment.number("SLURM_CPUS_PER_TASK")?;
    grant.tasks = environment.number("SLURM_NTASKS")?;
    if let Some(text) = environment.text("SLURM_CPU_BIND") {
        grant.pinned = pinned(text)
            .ok_or_else(|| BatchError::malformed("SLURM_CPU_BIND", text, "a binding, such as quiet,mask_cpu:0x3"))?;
    }
    Ok(Some(grant))
}

/// The counts of the first of `names` that is set; one for each of `nodes` nodes.
fn counts(environment: Environment<'_>, names: &[&'static str], nodes: usize) -> Result<Vec<u32>, BatchError> {
    let Some((name, list)) = environment.first(names) else { return Ok(Vec::new()) };
    let counts = hosts::counts(list)
        .ok_or_else(|| BatchError::malformed(name, list, "a count for each node, such as 2(x3),1"))?;
    if nodes > 0 && name == "SLURM_NTASKS_PER_NODE" && counts.len() == 1 {
        return Ok(vec![counts[0]; nodes]);
    }
    // A step may have fewer nodes than its job; it then says nothing about which ones.
    if nodes > 0 && counts.len() != nodes {
        return match name {
            "SLURM_STEP_TASKS_PER_NODE" => Ok(Vec::new()),
            _ => Err(BatchError::WrongLength { name, entries: counts.len(), nodes }),
        };
    }
    Ok(counts)
}

/// The masks of `quiet,mask_cpu:0x3,0xc` or the CPUs of `map_cpu:0,2`; nothing for other kinds of binding.
fn pinned(text: &str) -> Option<Vec<CpuSet>> {
    let Some((kind, list)) = text.split_once(':') else { return Some(Vec::new()) };
    let masks = kind.ends_with("mask_cpu");
    if list.is_empty() || !(masks || kind.ends_with("map_cpu")) {
        return Some(Vec::new());
    }
    list.split(',').map(|item| if masks { mask(item) } else { item.parse().ok() }).collect()
}

/// `0x…` of any length, the lowest CPU last.
fn mask(text: &str) -> Option<CpuSet> {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    if digits.is_empty() || digits.len() > 4096 {
        return None;
    }
    let digits: Vec<usize> =
        digits.chars().rev().map(|digit| digit.to_digit(16).map(|value| value as usize)).collect::<Option<_>>()?;
    let bits = |(at, digit): (usize, &usize)| {
        let digit = *digit;
        (0..4).filter(move |bit| digit >> bit & 1 == 1).map(move |bit| at * 4 + bit)
    };
    Some(digits.iter().enumerate().flat_map(bits).collect())
}

#[cfg(test)]
mod tests {
    use super::super::tests::granted;
    use super::*;

    fn slurm(lines: &str) -> Grant {
        granted(lines, "somewhere", "").unwrap().unwrap()
    }

    // C09
    #[test]
    fn this_node_is_found_by_its_number_and_not_taken_for_the_first() {
        let grant = slurm(
            "SLURM_JOB_ID=12\nSLURM_JOB_NUM_NODES=4\nSLURM_JOB_NODELIST=n[07-09,12]\nSLURM_NTASKS=7\n\
             SLURM_TASKS_PER_NODE=2(x3),1\nSLURM_JOB_CPUS_PER_NODE=16(x3),8\nSLURM_NODEID=3",
        );
        assert_eq!(grant.nodes.iter().map(|node| node.tasks.unwrap()).collect::<Vec<_>>(), [2, 2, 2, 1]);
        let here = grant.node_here().unwrap();
        assert_eq!((&*here.name, here.tasks, grant.cpus_here), ("n12", Some(1), Some(8)));
        assert_eq!((grant.tasks, &*grant.job_id), (Some(7), "12"));
    }

    // C09: 12 nodes with 112 tasks, the first node 16
    #[test]
    fn nodes_may_be_unequal() {
        let grant = slurm(
            "SLURM_JOB_ID=3\nSLURM_JOB_NODELIST=big01,small01\nSLURM_JOB_CPUS_PER_NODE=40,8\n\
             SLURM_TASKS_PER_NODE=40,8\nSLURM_NODEID=1",
        );
        assert_eq!((grant.tasks_here(), grant.cpus_here), (Some(8), Some(8)));
        let grant = slurm(
            "SLURM_JOB_ID=4\nSLURM_JOB_NODELIST=a[1-2],b[01-10]\nSLURM_TASKS_PER_NODE=16(x2),8(x10)\nSLURM_NODEID=0",
        );
        assert_eq!((grant.nodes.len(), grant.tasks_here()), (12, Some(16)));
        let grant = slurm("SLURM_JOB_ID=1\nSLURM_JOB_NODELIST=n[01-02]\nSLURM_TASKS_PER_NODE=1(x2)\nSLURM_NODEID=1");
        assert_eq!(grant.nodes.iter().map(|node| node.tasks).collect::<Vec<_>>(), [Some(1), Some(1)]);
    }

    #[test]
    fn counts_that_do_not_fit_the_nodes_are_refused() {
        let lines = "SLURM_JOB_ID=5\nSLURM_JOB_NUM_NODES=3\nSLURM_JOB_NODELIST=n[1-3]\nSLURM_TASKS_PER_NODE=4(x2)";
        let error = granted(lines, "n1", "").unwrap_err();
        assert_eq!(error, BatchError::WrongLength { name: "SLURM_TASKS_PER_NODE", entries: 2, nodes: 3 });
        // A step on one node of three.
        let lines = "SLURM_JOB_ID=5\nSLURM_JOB_NUM_NODES=3\nSLURM_JOB_NODELIST=n[1-3]\nSLURM_STEP_TASKS_PER_NODE=4";
        assert_eq!(granted(lines, "n2.cluster", "").unwrap().unwrap().here, Some(1));
    }

    // C11
    #[test]
    fn masks_of_any_length_are_read() {
        let grant = slurm(&format!(
            "SLURM_JOB_ID=1\nSLURM_CPUS_ON_NODE=128\nSLURM_CPUS_PER_TASK=128\nSLURM_CPU_BIND=quiet,mask_cpu:0x{}",
            "F".repeat(32)
        ));
        assert_eq!(grant.pinned.iter().map(CpuSet::to_string).collect::<Vec<_>>(), ["0-127"]);
        let grant = slurm("SLURM_JOB_ID=1\nSLURM_CPUS_ON_NODE=32\nSLURM_CPU_BIND=quiet,mask_cpu:0x00000001");
        assert_eq!((grant.pinned[0].len(), grant.cpus_here), (1, Some(32)));
        let sets = |text| pinned(text).map(|sets| sets.iter().map(CpuSet::to_string).collect::<Vec<_>>());
        assert_eq!(sets("mask_cpu:0x5,0xa").unwrap(), ["0,2", "1,3"]);
        assert_eq!(sets("verbose,map_cpu:0,2").unwrap(), ["0", "2"]);
        assert_eq!(sets("none").unwrap().len() + sets("quiet,cores:").unwrap().len(), 0);
        assert_eq!(sets("mask_cpu:0xg"), None);
    }
}
