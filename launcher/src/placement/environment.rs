//! The ranks' variables.
//!
//! In order, a later one winning: prun's own environment (or the few of `--env-clear`) without what names
//! another world; `MASTER_ADDR`, `WORLD_SIZE` and so on, which unmodified programs look for; `--env-file`;
//! `-x`; and `PRUN_*`, which nobody else may set. What all ranks share is made once, so that 256 ranks
//! stay cheap.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use super::{GpuPlan, StartContext};
use crate::job::template::Numbers;
use crate::job::{GpuChoice, Job, Program, Verify};

/// What `--env-clear` keeps.
const KEPT_WHEN_CLEARED: [&str; 6] = ["PATH", "HOME", "USER", "LANG", "TERM", "TMPDIR"];

/// Variables that tell one rank of another world who it is. What describes an allocation
/// (`SLURM_JOB_ID`, `SLURM_CPUS_ON_NODE`) or tunes a library (`OMPI_MCA_btl`, `PMIX_MCA_gds`) stays.
const STALE: [&str; 34] = [
    // torchrun, and what copies its names
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "ROLE_RANK",
    "ROLE_NAME",
    "ROLE_WORLD_SIZE",
    // Open MPI
    "OMPI_UNIVERSE_SIZE",
    "OMPI_WORLD_SIZE",
    "OMPI_WORLD_LOCAL_SIZE",
    "OMPI_APP_CTX_NUM_PROCS",
    "OMPI_FIRST_RANKS",
    "OMPI_NUM_APP_CTX",
    "OMPI_FILE_LOCATION",
    "PRTE_LAUNCHED",
    // Slurm: a task's own numbers, and how many tasks its step has
    "SLURM_PROCID",
    "SLURM_LOCALID",
    "SLURM_NODEID",
    "SLURM_NTASKS",
    "SLURM_NPROCS",
    "SLURM_GTIDS",
    "SLURM_TASK_PID",
    "SLURM_STEPID",
    "SLURM_LAUNCH_NODE_IPADDR",
    // Horovod
    "HOROVOD_RANK",
    "HOROVOD_SIZE",
    "HOROVOD_LOCAL_RANK",
    "HOROVOD_LOCAL_SIZE",
    "HOROVOD_CROSS_RANK",
    "HOROVOD_CROSS_SIZE",
    // Cray
    "ALPS_APP_PE",
    "FLUX_JOB_SIZE",
];

/// Beginnings of names that are stale in the same way.
const STALE_BEGINNINGS: [&str; 15] = [
    "PMI_",
    "PMIX_",
    "MPI_LOCAL",
    "HYDI_",
    "OMPI_COMM_WORLD_",
    "OMPI_MCA_orte_",
    "OMPI_MCA_ess",
    "PRTE_MCA_ess",
    "MV2_COMM_WORLD_",
    "SLURM_STEP_",
    "SLURM_SRUN_COMM_",
    "TORCHELASTIC_",
    "FLUX_TASK_",
    "PALS_",
    "JSM_NAMESPACE_",
];

/// Beginnings that look stale and are settings of a library.
const KEPT_BEGINNINGS: [&str; 1] = ["PMIX_MCA_"];

/// Whether `name` tells a rank of another world who it is.
pub fn is_stale(name: &OsStr) -> bool {
    let bytes = name.as_bytes();
    let begins = |beginnings: &[&str]| beginnings.iter().any(|beginning| bytes.starts_with(beginning.as_bytes()));
    // Those of an outer prun, too.
    STALE.iter().chain(&comm::env::OF_LAUNCHER).any(|stale| name == *stale)
        || (begins(&STALE_BEGINNINGS) && !begins(&KEPT_BEGINNINGS))
}

/// What all ranks of a job share.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Shared {
    variables: Vec<(OsString, OsString)>,
    /// Names that the user gave by `--env-file`: prun's own defaults give way to them.
    from_files: Vec<OsString>,
    /// `-x` variables that are the same for all, and so need not be repeated for each rank.
    from_flags: Vec<OsString>,
    /// Inherited variables that were dropped as stale.
    pub removed: Vec<OsString>,
}

impl Shared {
    /// `NAME=VALUE` each.
    pub fn lines(&self) -> Vec<Vec<u8>> {
        self.variables.iter().map(|(name, value)| line(name, value)).collect()
    }

    fn set(&mut self, name: impl AsRef<OsStr>, value: impl Into<OsString>) {
        let name = name.as_ref();
        match self.variables.iter_mut().find(|(known, _)| known == name) {
            Some(variable) => variable.1 = value.into(),
            None => self.variables.push((name.to_owned(), value.into())),
        }
    }

    fn has(&self, name: &str) -> bool {
        self.variables.iter().any(|(known, _)| known == name)
    }
}

/// Where a rank runs, as far as its variables tell.
#[derive(Debug, Clone, Copy, Default)]
pub struct Place<'a> {
    /// The GPUs of the job, if ranks have any.
    pub gpu: Option<&'a GpuPlan>,
    /// Cores that it is bound to.
    pub cores: Option<usize>,
}

/// The part of the environment that all ranks share.
pub fn shared(job: &Job, context: &StartContext, gpus: &GpuPlan) -> Shared {
    let mut shared = Shared::default();
    for (name, value) in &context.inherited {
        if job.environment.clear && !KEPT_WHEN_CLEARED.iter().any(|kept| name == *kept) {
            continue;
        }
        if is_stale(name) {
            shared.removed.push(name.clone());
        } else {
            shared.variables.push((name.clone(), value.clone()));
        }
    }
    // An address and a port that somebody set on purpose are kept; those of an outer world are not.
    let chosen = shared.has("MASTER_ADDR") && shared.has("MASTER_PORT") && shared.removed.is_empty();
    if !chosen {
        shared.set("MASTER_ADDR", "127.0.0.1");
        shared.set("MASTER_PORT", context.master_port.to_string());
    }
    let size = job.world_size().to_string();
    shared.set("WORLD_SIZE", &size);
    shared.set("LOCAL_WORLD_SIZE", &size);
    if !gpus.of_rank.is_empty() {
        if !gpus.masked {
            shared.set("CUDA_VISIBLE_DEVICES", gpus.visible(0));
        }
        // The user's own order is kept: names are UUIDs, which it does not touch.
        if !shared.has("CUDA_DEVICE_ORDER") {
            shared.set("CUDA_DEVICE_ORDER", "PCI_BUS_ID");
        }
    } else if job.placement.gpus == GpuChoice::None {
        shared.set("CUDA_VISIBLE_DEVICES", "");
    }
    if let Some(verify) = job.verify {
        let text = match verify {
            Verify::Off => "off",
            Verify::Every => "every",
            Verify::Full => "full",
        };
        shared.set(comm::env::VERIFY, text);
    }
    for (name, value) in &job.environment.from_files {
        shared.set(name, value);
        shared.from_files.push(name.clone());
    }
    let anyone = Numbers { rank: 0, local_rank: 0, size: job.world_size() };
    if let [first, others @ ..] = job.programs.as_slice() {
        for (name, value) in &first.env {
            let same = |program: &Program| program.env.iter().any(|(its, text)| its == name && text == value);
            if value.same_for_all() && others.iter().all(same) {
                shared.set(name, value.fill(anyone));
                shared.from_flags.push(name.clone());
            }
        }
    }
    shared.set(comm::env::SIZE, &size);
    shared.set(comm::env::LOCAL_SIZE, &size);
    if !gpus.of_rank.is_empty() {
        let ring: Vec<String> = gpus.ring.iter().map(usize::to_string).collect();
        shared.set(comm::env::RING, ring.join(","));
        if let Some(health) = gpus.health {
            shared.set(comm::env::LINK_HEALTH, health.to_string());
        }
        // Somebody who knows better may still say so.
        if !gpus.broken.is_empty() && !shared.has(comm::env::P2P) {
            shared.set(comm::env::P2P, "off");
        }
        let most = gpus.most_per_gpu();
        if most > 1 {
            shared.set(comm::env::RANKS_PER_GPU, most.to_string());
        }
    }
    shared.set(comm::env::NODE, "0");
    shared.set(comm::env::JOB_ID, &context.job_id);
    shared.set(comm::env::RESTART_COUNT, context.restart_count.to_string());
    shared
}

/// What one rank has beyond [`shared`], `NAME=VALUE` each.
pub fn of_rank(
    program: &Program,
    shared: &Shared,
    numbers: Numbers,
    working_dir: Option<&OsStr>,
    place: &Place<'_>,
) -> Vec<Vec<u8>> {
    let users =
        |name: &str| program.env.iter().any(|(its, _)| its == name) || shared.from_files.iter().any(|its| its == name);
    let rank = numbers.rank.to_string();
    let local_rank = numbers.local_rank.to_string();
    let mut lines = vec![line(comm::env::RANK, &rank), line(comm::env::LOCAL_RANK, &local_rank)];
    for (name, value) in [("RANK", &rank), ("LOCAL_RANK", &local_rank)] {
        if !users(name) {
            lines.push(line(name, value));
        }
    }
    if let Some(gpus) = place.gpu {
        let local_rank = numbers.local_rank as usize;
        let position = if gpus.masked { Some(0) } else { gpus.of_rank.get(local_rank).copied() };
        lines.extend(position.map(|position| line(comm::env::GPU, position.to_string())));
        if gpus.masked && !users("CUDA_VISIBLE_DEVICES") {
            lines.push(line("CUDA_VISIBLE_DEVICES", gpus.visible(local_rank)));
        }
    }
    if let Some(cores) = place.cores.filter(|_| !users("OMP_NUM_THREADS") && !shared.has("OMP_NUM_THREADS")) {
        lines.push(line("OMP_NUM_THREADS", cores.to_string()));
    }
    if let Some(dir) = working_dir.filter(|_| !users("PWD")) {
        lines.push(line("PWD", dir));
    }
    for (name, value) in program.env.iter().filter(|(name, _)| !shared.from_flags.contains(name)) {
        lines.push(line(name, value.fill(numbers)));
    }
    lines
}

fn line(name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Vec<u8> {
    [name.as_ref().as_bytes(), b"=", value.as_ref().as_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::tests::{context, job};
    use super::super::{Node, plan};

    /// The whole environment of one rank.
    fn environment(text: &str, inherited: &[(&str, &str)], rank: usize) -> BTreeMap<String, String> {
        let plan = plan(&job(text), &Node::default(), &context(inherited)).unwrap();
        let lines = plan.node.base_env.iter().chain(&plan.node.ranks[rank].env);
        lines
            .map(|line| String::from_utf8(line.clone()).unwrap())
            .map(|line| {
                let (name, value) = line.split_once('=').unwrap();
                (name.to_owned(), value.to_owned())
            })
            .collect()
    }

    const TWO: &str = "ranks = 2\nprogram = ['a']\n";

    #[test]
    fn ranks_know_who_they_are_in_both_ways_of_naming_it() {
        let found = environment(TWO, &[("HOME", "/root")], 1);
        let expected = [
            ("HOME", "/root"),
            ("LOCAL_RANK", "1"),
            ("LOCAL_WORLD_SIZE", "2"),
            ("MASTER_ADDR", "127.0.0.1"),
            ("MASTER_PORT", "4000"),
            ("PRUN_JOB_ID", "0123456789abcdef"),
            ("PRUN_LOCAL_RANK", "1"),
            ("PRUN_LOCAL_SIZE", "2"),
            ("PRUN_NODE", "0"),
            ("PRUN_RANK", "1"),
            ("PRUN_RESTART_COUNT", "0"),
            ("PRUN_SIZE", "2"),
            ("RANK", "1"),
            ("WORLD_SIZE", "2"),
        ];
        assert_eq!(found, expected.map(|(name, value)| (name.to_owned(), value.to_owned())).into());
    }

    #[test]
    fn an_outer_world_is_forgotten_and_its_allocation_is_not() {
        let outer = [
            ("PMI_RANK", "3"),
            ("PMI_FD", "7"),
            ("PMIX_NAMESPACE", "x"),
            ("PMIX_MCA_gds", "hash"),
            ("OMPI_COMM_WORLD_RANK", "3"),
            ("OMPI_MCA_orte_hnp_uri", "x"),
            ("OMPI_MCA_btl", "self"),
            ("SLURM_PROCID", "3"),
            ("SLURM_STEP_NODELIST", "n1"),
            ("SLURM_JOB_ID", "77"),
            ("SLURM_CPUS_ON_NODE", "8"),
            ("TORCHELASTIC_RUN_ID", "x"),
            ("RANK", "9"),
            ("MASTER_ADDR", "far"),
            ("MASTER_PORT", "1"),
            ("PRUN_RANK", "9"),
            ("PRUN_SEGMENT_FD", "9"),
            ("PRUN_ALGO", "ring"),
        ];
        let found = environment(TWO, &outer, 0);
        let kept = ["PMIX_MCA_gds", "OMPI_MCA_btl", "SLURM_JOB_ID", "SLURM_CPUS_ON_NODE", "PRUN_ALGO"];
        for (name, value) in outer {
            match name {
                "RANK" | "PRUN_RANK" => assert_eq!(found[name], "0"),
                "MASTER_ADDR" => assert_eq!(found[name], "127.0.0.1"),
                "MASTER_PORT" => assert_eq!(found[name], "4000"),
                _ => assert_eq!(found.get(name).map(String::as_str), kept.contains(&name).then_some(value), "{name}"),
            }
        }
    }

    #[test]
    fn a_master_that_the_user_chose_is_kept() {
        let both = [("MASTER_ADDR", "10.0.0.1"), ("MASTER_PORT", "29500")];
        let found = environment(TWO, &both, 0);
        assert_eq!((&*found["MASTER_ADDR"], &*found["MASTER_PORT"]), ("10.0.0.1", "29500"));
        let found = environment(TWO, &both[..1], 0);
        assert_eq!((&*found["MASTER_ADDR"], &*found["MASTER_PORT"]), ("127.0.0.1", "4000"));
        let found = environment(&format!("{TWO}[env]\nMASTER_PORT = 5"), &[("RANK", "1")], 0);
        assert_eq!((&*found["MASTER_ADDR"], &*found["MASTER_PORT"]), ("127.0.0.1", "5"));
    }

    #[test]
    fn what_the_user_sets_wins_over_prun_and_is_filled_in() {
        let found = environment(
            &format!("{TWO}[env]\nRANK = 'r{{rank}}'\nWORLD_SIZE = '{{size}}0'\nX = '{{{{rank}}}}'"),
            &[],
            1,
        );
        assert_eq!(
            (&*found["RANK"], &*found["WORLD_SIZE"], &*found["X"], &*found["PRUN_RANK"]),
            ("r1", "20", "{rank}", "1")
        );
    }

    #[test]
    fn programs_have_variables_of_their_own() {
        let text = "[env]\nS = 'all'\n[[program]]\nargv=['a']\nranks=1\nenv={A='1'}\n[[program]]\nargv=['b']\nranks=1\nenv={S='mine'}";
        let first = environment(text, &[], 0);
        let second = environment(text, &[], 1);
        assert_eq!((first.get("A").map(String::as_str), &*first["S"]), (Some("1"), "all"));
        assert_eq!((second.get("A"), &*second["S"]), (None, "mine"));
    }

    #[test]
    fn clearing_keeps_what_programs_need_to_start() {
        let inherited = [("PATH", "/bin"), ("SECRET", "x"), ("LANG", "C"), ("MASTER_ADDR", "a"), ("MASTER_PORT", "1")];
        let found = environment(&format!("env-clear = true\n{TWO}"), &inherited, 0);
        assert_eq!(
            (found.contains_key("PATH"), found.get("SECRET"), &*found["MASTER_ADDR"]),
            (true, None, "127.0.0.1")
        );
    }

    #[test]
    fn ranks_with_gpus_know_them_and_the_ring() {
        let machine = crate::topology::tests_support::two_sockets();
        let node = Node::of(machine);
        let found = |text: &str, inherited: &[(&str, &str)], rank: usize| -> BTreeMap<String, String> {
            let plan = plan(&job(text), &node, &context(inherited)).unwrap();
            let lines = plan.node.base_env.iter().chain(&plan.node.ranks[rank].env);
            lines
                .map(|line| String::from_utf8(line.clone()).unwrap())
                .map(|line| line.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned())).unwrap())
                .collect()
        };
        let env = found(TWO, &[], 1);
        assert_eq!(env["CUDA_VISIBLE_DEVICES"].split(',').count(), 2);
        assert_eq!((&*env["PRUN_GPU"], &*env["PRUN_RING"], &*env["CUDA_DEVICE_ORDER"]), ("1", "0,1", "PCI_BUS_ID"));
        assert_eq!((&*env["OMP_NUM_THREADS"], env.get("PRUN_RANKS_PER_GPU")), ("2", None));
        assert_eq!((&*env["PRUN_LINK_HEALTH"], env.get("PRUN_P2P")), ("100", None));
        let own = found(&format!("{TWO}[env]\nCUDA_VISIBLE_DEVICES = '3'"), &[("OMP_NUM_THREADS", "7")], 1);
        assert_eq!((&*own["CUDA_VISIBLE_DEVICES"], &*own["OMP_NUM_THREADS"]), ("3", "7"));
        let masked = found(&format!("{TWO}[placement]\ngpu-mask = true"), &[], 1);
        assert_eq!((&*masked["PRUN_GPU"], masked["CUDA_VISIBLE_DEVICES"].split(',').count()), ("0", 1));
        let none = found(&format!("{TWO}[placement]\ngpus = 'none'"), &[], 1);
        assert_eq!((&*none["CUDA_VISIBLE_DEVICES"], none.get("PRUN_GPU")), ("", None));
        let shared = found("ranks = 8\nprogram = ['a']\n[placement]\nshare-gpus = true", &[], 5);
        assert_eq!((&*shared["PRUN_GPU"], &*shared["PRUN_RANKS_PER_GPU"]), ("1", "2"));
    }

    #[test]
    fn a_variable_that_is_the_same_for_all_is_not_repeated() {
        let plan = plan(&job(&format!("{TWO}[env]\nBIG = 'x'")), &Node::default(), &context(&[])).unwrap();
        assert_eq!(plan.node.ranks[0].env.len(), 4);
        assert!(plan.node.base_env.contains(&b"BIG=x".to_vec()));
    }
}
