//! `prun status`: what running jobs are at, by the flight recorders in their shared memory.
//!
//! Nothing of the job takes part: its daemon hands out the memory, which is mapped for reading only, so that a job
//! whose ranks hang can be looked at, and one that computes is not held up.

pub mod args;
mod table;

use std::fs;

use comm::node::{JobLook, JobSocket, RankReport};
use serde_json::json;

use crate::exit;
use crate::machine::Done;
use crate::refused::Refused;
use args::StatusArgs;

/// What is known of one running job.
#[derive(Debug)]
struct Seen {
    job_id: String,
    uid: u32,
    aborted: Option<String>,
    ranks: Vec<RankReport>,
}

/// All running jobs, or the ranks of one.
///
/// # Errors
/// [`Refused`] if no running job is meant, several are, or it cannot be looked at.
pub fn run(args: &StatusArgs) -> Result<Done, Refused> {
    let text = fs::read_to_string("/proc/net/unix")
        .map_err(|cause| Refused::new("cannot list the running jobs").because(format!("/proc/net/unix: {cause}")))?;
    let mut sockets = JobSocket::listed(&text);
    let me = rustix::process::getuid().as_raw();
    sockets.retain(|socket| socket.uid == me || me == 0);
    sockets.sort_by(|one, other| one.job_id.cmp(&other.job_id));
    let text = match &args.job {
        Some(job) => {
            let seen = look(one(&sockets, job)?)?;
            if args.json { json_of(&seen, args.calls).to_string() + "\n" } else { table::ranks(&seen, args.calls) }
        }
        // A job may end between the list and the look.
        None => {
            let jobs: Vec<Seen> = sockets.iter().filter_map(|socket| look(socket).ok()).collect();
            match args.json {
                true => jobs.iter().map(|job| json_of(job, args.calls).to_string() + "\n").collect(),
                false => table::jobs(&jobs),
            }
        }
    };
    Ok(Done { text, code: exit::SUCCESS })
}

/// The job whose id begins like this.
fn one<'a>(sockets: &'a [JobSocket], job: &str) -> Result<&'a JobSocket, Refused> {
    let mut found = sockets.iter().filter(|socket| socket.job_id.starts_with(job));
    match (found.next(), found.next()) {
        (Some(socket), None) => Ok(socket),
        (Some(socket), Some(_)) if socket.job_id == job => Ok(socket),
        (Some(first), Some(second)) => {
            Err(Refused::new(format!("several running jobs begin with '{job}': {}, {} …", first.job_id, second.job_id))
                .try_instead("more of the id"))
        }
        (None, _) => Err(Refused::new(format!("no running job has the id '{job}'"))
            .because("it has ended, is another user's, or runs in another network namespace")
            .try_instead("`prun status` lists the running ones")),
    }
}

fn look(socket: &JobSocket) -> Result<Seen, Refused> {
    let JobSocket { name, uid, job_id } = socket;
    let look = JobLook::open(name, job_id)
        .map_err(|cause| Refused::new(format!("cannot look at job {job_id}")).because(cause))?;
    Ok(Seen {
        job_id: job_id.clone(),
        uid: *uid,
        aborted: look.aborted().map(|reason| reason.to_string()),
        ranks: (0..look.local_size()).map(|rank| look.rank_report(rank)).collect(),
    })
}

fn json_of(seen: &Seen, calls: usize) -> serde_json::Value {
    let ranks: Vec<RankReport> =
        seen.ranks.iter().map(|rank| RankReport { calls: latest(rank, calls).to_vec(), ..rank.clone() }).collect();
    json!({ "job": seen.job_id, "uid": seen.uid, "aborted": seen.aborted, "ranks": ranks })
}

/// The last calls of a rank, oldest first.
fn latest(rank: &RankReport, calls: usize) -> &[comm::node::CallReport] {
    &rank.calls[rank.calls.len().saturating_sub(calls)..]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_named_by_the_beginning_of_its_id() {
        let socket = |job_id: &str| JobSocket { name: String::new(), uid: 0, job_id: job_id.into() };
        let sockets = [socket("ab12"), socket("ab34"), socket("ab345")];
        assert_eq!(one(&sockets, "ab1").unwrap().job_id, "ab12");
        assert_eq!(one(&sockets, "ab34").unwrap().job_id, "ab34");
        assert!(one(&sockets, "ab").unwrap_err().to_string().contains("ab12, ab34"));
        assert!(one(&sockets, "x").unwrap_err().to_string().contains("no running job"));
    }
}
