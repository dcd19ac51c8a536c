//! Who runs where and with what: [`plan`] makes a [`Plan`] of a [`Job`] and a [`Node`], and looks at
//! nothing else.
//!
//! [`node`] reads the machine, [`gpu`] gives out GPUs, [`bind`] CPUs ([`near`] those GPUs where there are any),
//! [`held`] knows what other jobs have, [`environment`] makes the ranks' variables, [`explain`] and [`table`] show a
//! plan without starting it.

pub mod bind;
pub mod compact;
pub mod cpuset;
pub mod environment;
pub mod explain;
pub mod explicit;
pub mod gpu;
pub mod held;
pub mod near;
pub mod node;
pub mod spread;
pub mod table;

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use rankd::proto::{NodePlan, ProgramPlan, RankPlan};

use crate::job::template::Numbers;
use crate::job::{Job, MapBy, PtyRanks};
use crate::refused::Refused;
use crate::topology::Machine;
use bind::{NearRank, Wish};
pub use gpu::GpuPlan;
pub use node::Node;

/// What differs from one start of a job to the next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StartContext {
    /// prun's own environment.
    pub inherited: Vec<(OsString, OsString)>,
    /// Sixteen lower-case hex digits, new for each start.
    pub job_id: String,
    /// A free loopback port; 0 where none was taken, since nothing will be started.
    pub master_port: u16,
    /// This machine's name.
    pub hostname: String,
    /// How often the job was started again.
    pub restart_count: u32,
    /// prun's working directory; a relative `--wdir` counts from here.
    pub cwd: PathBuf,
    /// Soft and hard limit on open files that prun was started with, before it raised its own.
    pub open_files: (u64, u64),
}

/// What is to be started on this node, and what is worth saying about it.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// For rankd.
    pub node: NodePlan,
    /// Notes for the user, one sentence each, such as an oversubscribed machine.
    pub notes: Vec<String>,
    /// Inherited variables that the ranks do not get, since they name another world.
    pub removed: Vec<OsString>,
    /// What ranks are mapped to.
    pub map: MapBy,
    /// The ranks' GPUs; none where ranks are not mapped to GPUs.
    pub gpus: GpuPlan,
}

/// Why a job cannot run on this machine.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// Some limit of the machine is too low.
    #[error("{ranks} ranks are more than this machine allows; {most} is the most")]
    TooManyRanks {
        /// Asked for.
        ranks: u32,
        /// Possible.
        most: u64,
        /// Which limit.
        because: String,
    },
    /// `--bind` names a CPU that prun may not use.
    #[error("--bind names CPU {cpu}, which prun may not use")]
    CpuNotUsable {
        /// Which.
        cpu: usize,
        /// Offline, or outside of a mask.
        because: String,
        /// Those that may be used.
        usable: String,
    },
    /// The CPUs could not be found out.
    #[error("cannot tell which CPUs may be used, which --bind needs")]
    UnknownCpus,
    /// A saved machine may not tell how its CPUs lie.
    #[error("cannot tell which CPUs {what}, which {asked} needs")]
    UnknownLayout {
        /// `share a core`, `are on one socket`.
        what: &'static str,
        /// The option.
        asked: &'static str,
    },
    /// `--cpus-per-rank` asks for more than there is.
    #[error("--cpus-per-rank {each}, and CPUs {part} have {cores} {}", if *cores == 1 { "core" } else { "cores" })]
    TooFewCores {
        /// Cores for each rank.
        each: usize,
        /// Cores of the part of the machine that the rank belongs to.
        cores: usize,
        /// Its CPUs.
        part: String,
    },
    /// One GPU each was asked for, or is the rule.
    #[error("{ranks} ranks, {gpus} {}", if *gpus == 1 { "GPU" } else { "GPUs" })]
    TooFewGpus {
        /// So many ranks.
        ranks: usize,
        /// So many GPUs that they may use.
        gpus: usize,
    },
    /// There is no GPU to give out.
    #[error("{asked} asks for GPUs, and there is no NVIDIA GPU that the ranks could use")]
    NoGpu {
        /// The option.
        asked: &'static str,
        /// Hidden, or not there.
        because: String,
    },
    /// `--gpus` names one that is not there.
    #[error("--gpus names {item}, which is not among the GPUs that prun may use")]
    UnknownGpu {
        /// As it was written.
        item: String,
        /// Those that may be used.
        known: String,
        /// It is there, and `CUDA_VISIBLE_DEVICES` hides it.
        hidden: bool,
    },
    /// `--gpus` names one twice.
    #[error("--gpus names {item} twice")]
    GpuTwice {
        /// As it was written.
        item: String,
    },
}

impl From<PlanError> for Refused {
    fn from(error: PlanError) -> Refused {
        let refused = Refused::new(error.to_string());
        match error {
            PlanError::TooManyRanks { because, most, .. } => {
                refused.because(because).try_instead(format!("`-n {most}` or less, or raise the limit"))
            }
            PlanError::CpuNotUsable { because, usable, .. } => {
                refused.because(because).try_instead(format!("CPUs out of {usable}"))
            }
            PlanError::UnknownCpus => refused.try_instead("`--bind none`"),
            PlanError::UnknownLayout { .. } => refused
                .because("the machine was read from a text that does not say it")
                .try_instead("a machine that `prun topo --save FILE` saved; or `--bind LIST`"),
            PlanError::TooFewGpus { gpus, .. } => {
                refused.because("each rank gets a GPU of its own").try_instead(format!(
                    "`-n {gpus}`; or `--share-gpus`, if ranks may share; or `--map-by none`, if the program uses no GPU"
                ))
            }
            PlanError::NoGpu { asked, because } => refused.because(because).try_instead(match asked {
                "--gpus" => "leave --gpus out, or `prun doctor`",
                _ => "`--map-by none`, or `prun doctor`",
            }),
            PlanError::TooFewCores { cores, .. } => refused
                .because("a rank's cores lie in one part of the machine")
                .try_instead(format!("`--cpus-per-rank {cores}` or less; or a larger part, as with `--map-by none`")),
            PlanError::UnknownGpu { known, hidden, .. } => {
                let refused = if hidden { refused.because("CUDA_VISIBLE_DEVICES hides it") } else { refused };
                refused.try_instead(format!("GPUs out of {known}; `prun topo` shows them"))
            }
            PlanError::GpuTwice { .. } => refused.try_instead("`--share-gpus`, if ranks may share a GPU"),
        }
    }
}

/// Decides for each rank: its program, its CPUs, its working directory and its environment.
pub fn plan(job: &Job, node: &Node, context: &StartContext) -> Result<Plan, PlanError> {
    let size = job.world_size();
    if let Some(capacity) = &node.capacity
        && u64::from(size) > capacity.ranks
    {
        return Err(PlanError::TooManyRanks { ranks: size, most: capacity.ranks, because: capacity.because.clone() });
    }
    let map = gpu::mapping(job, node.machine.as_ref(), context);
    let mut notes = node.notes.clone();
    let nothing = Machine::default();
    let machine = node.machine.as_ref().unwrap_or(&nothing);
    let gpus = match map {
        MapBy::Gpu => gpu::choose(job, machine, &node.held, context)?,
        _ => GpuPlan::default(),
    };
    notes.extend(gpus.notes.iter().cloned());
    let near = near_ranks(&gpus, machine, node, &mut notes);
    let wish = Wish {
        bind: &job.bind,
        map,
        rank_by: job.placement.rank_by,
        cpus_per_rank: job.placement.cpus_per_rank,
        ranks: size as usize,
    };
    let mut binding = bind::bind(&wish, &near, node.cpus.as_ref(), &node.held)?;
    notes.append(&mut binding.notes);
    if binding.cpus.is_empty()
        && let Some(wider) = &node.widened
    {
        binding.cpus = vec![wider.clone(); size as usize];
    }
    let cpus = binding.cpus;
    let shared = environment::shared(job, context, &gpus);

    let mut ranks = Vec::with_capacity(size as usize);
    let programs = job
        .programs
        .iter()
        .enumerate()
        .flat_map(|(index, program)| std::iter::repeat_n((index, program), program.ranks as usize));
    for (rank, (index, program)) in (0..size).zip(programs) {
        // There is one node, so a rank's number on it is its number in the job.
        let numbers = Numbers { rank, local_rank: rank, size };
        let own = cpus.get(rank as usize);
        let place = environment::Place {
            gpu: (!gpus.of_rank.is_empty()).then_some(&gpus),
            // How many cores, not threads: a thread for each is what OpenMP programs want.
            cores: own.filter(|_| wish.binds()).and_then(|set| node.cores_in(set)),
        };
        let working_dir = program.working_dir.as_ref().map(|dir| context.cwd.join(dir.fill(numbers)).into_os_string());
        ranks.push(RankPlan {
            rank,
            program: index,
            env: environment::of_rank(program, &shared, numbers, working_dir.as_deref(), &place),
            working_dir: working_dir.map(OsString::into_vec),
            cpus: own.map(|set| set.clone().into_vec()),
            devices: gpus.devices_of(rank as usize),
            memory_node: own.filter(|_| wish.binds()).and_then(|set| node.memory_of(set)),
            controlling_terminal: match job.output.pty {
                PtyRanks::None => false,
                PtyRanks::All => true,
                PtyRanks::One(one) => one == rank,
            },
        });
    }
    let argv =
        |program: &crate::job::Program| program.argv.iter().map(|argument| argument.as_bytes().to_vec()).collect();
    Ok(Plan {
        node: NodePlan {
            job_id: context.job_id.clone(),
            world_size: size,
            base_env: shared.lines(),
            programs: job.programs.iter().map(|program| ProgramPlan { argv: argv(program) }).collect(),
            ranks,
            grace_ms: millis(job.ending.grace),
            stall_ms: job.ending.stall_timeout.map(millis),
            use_cgroup: true,
            open_files: context.open_files,
        },
        notes,
        removed: shared.removed,
        map,
        gpus,
    })
}

/// What is near to the GPU of each rank; GPUs whose place is unknown are told in one sentence.
fn near_ranks(gpus: &GpuPlan, machine: &Machine, node: &Node, notes: &mut Vec<String>) -> Vec<NearRank> {
    let Some(cpus) = node.cpus.as_ref().filter(|_| !gpus.of_rank.is_empty()) else { return Vec::new() };
    let near = near::near(machine, cpus);
    let of = |at: &usize| machine.gpus.iter().position(|gpu| gpu.index == gpus.seen[*at].gpu).unwrap_or(0);
    let lacking: Vec<(usize, near::Lack)> =
        (0..gpus.seen.len()).filter_map(|at| Some((gpus.seen[at].gpu, near.lacks.get(of(&at))?.clone()?))).collect();
    notes.extend(near::told(&lacking));
    let everything = || cpus.usable.clone();
    gpus.of_rank
        .iter()
        .map(|at| NearRank {
            around: near.around.get(of(at)).cloned().unwrap_or_else(everything),
            share: near.share.get(of(at)).cloned().unwrap_or_else(everything),
        })
        .collect()
}

fn millis(time: std::time::Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::job::{check, file};

    /// The job that a file would describe.
    pub(crate) fn job(text: &str) -> Job {
        check::job(file::parse(text).unwrap(), &[]).unwrap()
    }

    /// A start in `/work` with this environment.
    pub(crate) fn context(inherited: &[(&str, &str)]) -> StartContext {
        StartContext {
            inherited: inherited.iter().map(|(name, value)| (name.into(), value.into())).collect(),
            job_id: "0123456789abcdef".into(),
            master_port: 4000,
            hostname: "here".into(),
            restart_count: 0,
            cwd: "/work".into(),
            open_files: (1024, 4096),
        }
    }

    #[test]
    fn ranks_count_through_the_programs() {
        let job = job(
            "wdir = 'out/{rank}'\n[[program]]\nargv=['a']\nranks=1\n[[program]]\nargv=['b', '']\nranks=2\nwdir='/b'\n[output]\npty=1",
        );
        let plan = plan(&job, &Node::default(), &context(&[])).unwrap();
        let ranks = &plan.node.ranks;
        assert_eq!(ranks.iter().map(|rank| (rank.rank, rank.program)).collect::<Vec<_>>(), [(0, 0), (1, 1), (2, 1)]);
        assert_eq!(plan.node.programs[1].argv, [b"b".to_vec(), b"".to_vec()]);
        let dirs: Vec<_> =
            ranks.iter().map(|rank| String::from_utf8(rank.working_dir.clone().unwrap()).unwrap()).collect();
        assert_eq!(dirs, ["/work/out/0", "/b", "/b"]);
        assert_eq!(ranks.iter().map(|rank| rank.controlling_terminal).collect::<Vec<_>>(), [false, true, false]);
        assert!(ranks.iter().all(|rank| rank.cpus.is_none()));
        assert_eq!((plan.node.grace_ms, plan.node.stall_ms), (10_000, Some(60_000)));
    }

    #[test]
    fn more_ranks_than_a_limit_allows_are_refused_by_its_name() {
        let node = Node {
            capacity: Some(node::Capacity { ranks: 100, because: "RLIMIT_NPROC is 100".into() }),
            ..Node::default()
        };
        let error = plan(&job("ranks = 101\nprogram = ['a']"), &node, &context(&[])).unwrap_err();
        let refused = Refused::from(error).to_string();
        assert!(
            refused.contains("101 ranks") && refused.contains("RLIMIT_NPROC") && refused.contains("`-n 100`"),
            "{refused}"
        );
        assert!(plan(&job("ranks = 100\nprogram = ['a']"), &node, &context(&[])).is_ok());
    }
}
