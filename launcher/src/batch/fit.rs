//! How a job fits into what a batch system granted: as many ranks as tasks, and a grace period that ends before the
//! system kills everything.

use std::ffi::OsString;
use std::time::Duration;

use super::{Scheduler, read_here};
use crate::job::{Ending, Job};
use crate::refused::Refused;

/// From the system's "please end" to its SIGKILL, unless the site has changed it; and what is left for the last steps.
const SLURM_KILL_WAIT: Duration = Duration::from_secs(30);
const PBS_KILL_DELAY: Duration = Duration::from_secs(10);
const LSF_TERMINATE_INTERVAL: Duration = Duration::from_secs(10);
const SGE_NOTIFY: Duration = Duration::from_secs(60);
const RESERVE: Duration = Duration::from_secs(2);

fn variable<'v>(inherited: &'v [(OsString, OsString)], name: &str) -> Option<&'v str> {
    inherited
        .iter()
        .find(|(known, _)| known == name)
        .and_then(|(_, value)| value.to_str())
        .filter(|value| !value.is_empty())
}

fn hostname() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

fn is_sge(inherited: &[(OsString, OsString)]) -> bool {
    variable(inherited, "SGE_ROOT").is_some() && variable(inherited, "JOB_ID").is_some()
}

/// How many ranks a job gets that does not say: the tasks (slots) granted on this machine. One where the system
/// granted a single task with several CPUs is one.
///
/// # Errors
/// [`Refused`] if the system's variables make no sense: a guess would start the wrong number.
pub fn ranks(inherited: &[(OsString, OsString)]) -> Result<Option<u32>, Refused> {
    if is_sge(inherited) {
        return Ok(variable(inherited, "NSLOTS").and_then(|slots| slots.parse().ok()));
    }
    let Some(grant) = read_here(inherited, &hostname())? else { return Ok(None) };
    let alone = grant.nodes.len() <= 1;
    Ok(grant.tasks_here().or(grant.tasks.filter(|_| alone)).filter(|&ranks| ranks > 0))
}

/// The longest grace period that fits, and who sets it.
pub fn longest_grace(inherited: &[(OsString, OsString)]) -> Option<(Duration, String)> {
    if is_sge(inherited) {
        return Some((SGE_NOTIFY - RESERVE, "SGE".into()));
    }
    let grant = read_here(inherited, &hostname()).ok()??;
    let kill_after = match grant.scheduler {
        Scheduler::Slurm => SLURM_KILL_WAIT,
        Scheduler::Pbs => PBS_KILL_DELAY,
        Scheduler::Lsf => LSF_TERMINATE_INTERVAL,
    };
    Some((kill_after - RESERVE, grant.scheduler.to_string()))
}

/// The job with a grace period that fits, and a note if the user had asked for a longer one.
pub fn fitted(job: &Job, inherited: &[(OsString, OsString)]) -> (Job, Option<String>) {
    let mut job = job.clone();
    let Some((longest, system)) = longest_grace(inherited).filter(|(longest, _)| job.ending.grace > *longest) else {
        return (job, None);
    };
    let asked = std::mem::replace(&mut job.ending.grace, longest);
    let seconds = |time: Duration| humantime::format_duration(time).to_string();
    let note = format!("--grace {} is shortened to {}: {system} kills soon after", seconds(asked), seconds(longest));
    (job, (asked != Ending::default().grace).then_some(note))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inherited(lines: &str) -> Vec<(OsString, OsString)> {
        lines
            .split_whitespace()
            .filter_map(|line| line.split_once('='))
            .map(|(name, value)| (name.into(), value.into()))
            .collect()
    }

    #[test]
    fn a_job_that_does_not_say_gets_the_tasks_granted_here() {
        let host = hostname();
        let table = [
            (format!("SLURM_JOB_ID=1 SLURM_JOB_NODELIST={host} SLURM_TASKS_PER_NODE=3 SLURM_NTASKS=3"), Some(3)),
            ("SGE_ROOT=/sge JOB_ID=4 NSLOTS=5".into(), Some(5)),
            ("HOME=/".into(), None),
        ];
        for (lines, ranks_wanted) in table {
            assert_eq!(ranks(&inherited(&lines)), Ok(ranks_wanted), "{lines}");
        }
        let odd = ranks(&inherited(&format!("LSB_JOBID=1 LSB_MCPU_HOSTS={host}"))).unwrap_err().to_string();
        assert!(odd.contains("LSB_MCPU_HOSTS"), "{odd}");
    }

    #[test]
    fn grace_ends_before_the_system_kills() {
        let job = crate::placement::tests::job("ranks = 1\nprogram = ['a']");
        let mut long = job.clone();
        long.ending.grace = Duration::from_secs(60);
        let slurm = inherited("SLURM_JOB_ID=1");
        let pbs = inherited("PBS_JOBID=1.server");
        assert_eq!(fitted(&job, &inherited("HOME=/")), (job.clone(), None));
        assert_eq!(fitted(&job, &slurm).0.ending.grace, Duration::from_secs(10));
        assert_eq!((fitted(&job, &pbs).0.ending.grace, fitted(&job, &pbs).1), (Duration::from_secs(8), None));
        let (fitted, note) = fitted(&long, &slurm);
        assert_eq!(fitted.ending.grace, Duration::from_secs(28));
        assert_eq!(note.as_deref(), Some("--grace 1m is shortened to 28s: Slurm kills soon after"));
    }
}
