//! What a batch system granted this job: [`read`] looks at the environment, and nothing is asked of the
//! system itself.
//!
//! One file for each system. What they say in different words becomes one [`Grant`]: the nodes in order, tasks and
//! CPUs on each, and which of them is this one.

pub mod fit;
pub mod hosts;
pub mod lsf;
pub mod pbs;
pub mod quote;
pub mod script;
pub mod slurm;

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::path::Path;

use crate::placement::cpuset::CpuSet;
use crate::refused::Refused;

/// A batch system that prun can read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scheduler {
    /// Slurm.
    Slurm,
    /// PBS Pro, OpenPBS or Torque.
    Pbs,
    /// IBM Spectrum LSF.
    Lsf,
}

impl fmt::Display for Scheduler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Scheduler::Slurm => "Slurm",
            Scheduler::Pbs => "PBS",
            Scheduler::Lsf => "LSF",
        })
    }
}

/// What was granted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// By which system.
    pub scheduler: Scheduler,
    /// Its number for the job.
    pub job_id: String,
    /// The nodes in the system's order; empty where it does not say.
    pub nodes: Vec<GrantedNode>,
    /// Which of `nodes` this machine is, where that can be told.
    pub here: Option<usize>,
    /// CPUs of the job on this node.
    pub cpus_here: Option<u32>,
    /// CPUs that each task was promised.
    pub cpus_per_task: Option<u32>,
    /// Tasks of the whole job.
    pub tasks: Option<u32>,
    /// The CPUs that the system pinned this process, or each of several tasks, to.
    pub pinned: Vec<CpuSet>,
    /// What is odd about it, one sentence each.
    pub notes: Vec<String>,
}

/// A node of a [`Grant`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GrantedNode {
    /// Its name, as the system writes it.
    pub name: String,
    /// Tasks (slots) on it.
    pub tasks: Option<u32>,
    /// CPUs on it.
    pub cpus: Option<u32>,
}

impl Grant {
    fn new(scheduler: Scheduler, job_id: String) -> Grant {
        Grant {
            scheduler,
            job_id,
            nodes: Vec::new(),
            here: None,
            cpus_here: None,
            cpus_per_task: None,
            tasks: None,
            pinned: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// This machine's entry.
    pub fn node_here(&self) -> Option<&GrantedNode> {
        self.nodes.get(self.here?)
    }

    /// Tasks on this machine.
    pub fn tasks_here(&self) -> Option<u32> {
        self.node_here()?.tasks
    }
}

/// A variable of a batch system that cannot be understood.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BatchError {
    /// Not in the system's own notation.
    #[error("{name} is `{value}`, which is not {wanted}")]
    Malformed {
        /// The variable.
        name: &'static str,
        /// Its text, shortened.
        value: String,
        /// What it should be, with an example.
        wanted: &'static str,
    },
    /// Two variables that contradict each other.
    #[error("{name} has {entries} entries for {nodes} nodes")]
    WrongLength {
        /// The variable.
        name: &'static str,
        /// So many counts.
        entries: usize,
        /// So many nodes.
        nodes: usize,
    },
    /// The file that lists the nodes.
    #[error("cannot read {path}, which {name} names: {why}")]
    NodeFile {
        /// The variable.
        name: &'static str,
        /// The file.
        path: String,
        /// The kernel's reason.
        why: String,
    },
}

impl BatchError {
    fn malformed(name: &'static str, value: &str, wanted: &'static str) -> BatchError {
        let mut value: String = value.chars().take(60).collect();
        if value.len() == 60 {
            value.push('…');
        }
        BatchError::Malformed { name, value, wanted }
    }
}

impl From<BatchError> for Refused {
    fn from(error: BatchError) -> Refused {
        Refused::new("cannot tell what the batch system granted")
            .because(error)
            .try_instead("outside of a batch job, unset SLURM_JOB_ID, PBS_JOBID and LSB_JOBID")
    }
}

/// The environment that a reader looks into.
#[derive(Clone, Copy)]
pub struct Environment<'a> {
    variables: &'a [(OsString, OsString)],
    /// Reads a file that a variable names.
    read_file: &'a dyn Fn(&Path) -> io::Result<String>,
    /// This machine's name.
    hostname: &'a str,
}

impl<'a> Environment<'a> {
    /// `variables` as a process has them; `read_file` stands for the file system.
    pub fn new(
        variables: &'a [(OsString, OsString)],
        read_file: &'a dyn Fn(&Path) -> io::Result<String>,
        hostname: &'a str,
    ) -> Environment<'a> {
        Environment { variables, read_file, hostname }
    }

    fn text(&self, name: &str) -> Option<&'a str> {
        let (_, value) = self.variables.iter().find(|(known, _)| known == name)?;
        value.to_str().map(str::trim).filter(|text| !text.is_empty())
    }

    /// The first of `names` that is set, with its name.
    fn first(&self, names: &[&'static str]) -> Option<(&'static str, &'a str)> {
        names.iter().find_map(|name| Some((*name, self.text(name)?)))
    }

    fn number(&self, name: &'static str) -> Result<Option<u32>, BatchError> {
        let wanted = "a whole number, such as 4";
        self.text(name).map(|text| text.parse().map_err(|_| BatchError::malformed(name, text, wanted))).transpose()
    }

    /// The place of this machine among `names`: the same name, or the same up to the first dot.
    fn place<'n>(&self, mut names: impl Iterator<Item = &'n str>) -> Option<usize> {
        let short = |name: &str| name.split('.').next().unwrap_or(name).to_ascii_lowercase();
        let own = short(self.hostname);
        names.position(|name| short(name) == own)
    }
}

/// What the batch system around this process granted; `None` where there is none.
///
/// # Errors
/// [`BatchError`] if a variable is there and makes no sense.
pub fn read(environment: Environment<'_>) -> Result<Option<Grant>, BatchError> {
    for reader in [slurm::read, pbs::read, lsf::read] {
        if let Some(grant) = reader(environment)? {
            return Ok(Some(grant));
        }
    }
    Ok(None)
}

/// As [`read`], from prun's own environment and files.
///
/// # Errors
/// As [`read`].
pub fn read_here(variables: &[(OsString, OsString)], hostname: &str) -> Result<Option<Grant>, BatchError> {
    read(Environment::new(variables, &|path| std::fs::read_to_string(path), hostname))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// What `read` makes of `NAME=VALUE` lines, on a machine called `hostname`; every file is `file`.
    pub(crate) fn granted(lines: &str, hostname: &str, file: &str) -> Result<Option<Grant>, BatchError> {
        let variables: Vec<(OsString, OsString)> = lines
            .lines()
            .filter_map(|line| line.trim().split_once('='))
            .map(|(name, value)| (name.into(), value.into()))
            .collect();
        read(Environment::new(&variables, &|_| Ok(file.to_owned()), hostname))
    }

    #[test]
    fn without_a_batch_system_nothing_is_granted() {
        assert_eq!(granted("HOME=/root\nSLURM_CONF=/etc/slurm.conf\nPBS_CONF_FILE=/etc/pbs.conf", "h", ""), Ok(None));
    }

    #[test]
    fn what_makes_no_sense_is_an_error_with_the_variable_s_name() {
        let error = granted("SLURM_JOB_ID=1\nSLURM_CPUS_ON_NODE=many", "h", "").unwrap_err();
        let refused = Refused::from(error).to_string();
        assert!(refused.contains("SLURM_CPUS_ON_NODE is `many`"), "{refused}");
    }

    mod any_text {
        use proptest::prelude::*;

        proptest! {
            #[test]
            fn is_a_grant_or_an_error(
                nodes in "[a-c0-2\\[\\],-]{0,24}",
                counts in "[0-9(x),]{0,16}",
                bind in "[a-z_:0-9xF,]{0,20}",
                file in "[ab \n]{0,20}",
            ) {
                let slurm = format!("SLURM_JOB_ID=1\nSLURM_JOB_NODELIST={nodes}\nSLURM_TASKS_PER_NODE={counts}\nSLURM_CPU_BIND={bind}");
                let _ = super::granted(&slurm, "a0", "");
                let _ = super::granted("PBS_JOBID=1\nPBS_NODEFILE=/f", "a", &file);
                let _ = super::granted(&format!("LSB_JOBID=1\nLSB_MCPU_HOSTS={nodes} {counts}"), "a", "");
            }
        }
    }
}
