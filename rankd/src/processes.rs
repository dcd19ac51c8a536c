//! Which processes are ours, and signals that cannot hit a stranger.
//!
//! A number is not an identity: between reading a list and sending a signal a process may end and its number
//! be given away. So a process is first pinned by a pidfd, then checked again, then signalled through the pidfd.

use std::collections::HashMap;
use std::fs;
use std::os::fd::OwnedFd;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::cgroup::JobCgroup;
use crate::fork::{NextEnded, next_ended};
use crate::proto::Leftover;

/// What `/proc/<pid>/stat` says of one process, as far as it is needed.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Stat {
    name: String,
    state: char,
    parent: i32,
    /// Clock ticks after boot: with the number, an identity.
    start: u64,
}

/// All living descendants of the calling process, except itself; zombies left out.
///
/// Complete only for a child subreaper: there every orphan's chain of parents still leads to the caller.
/// With a cgroup its list is used, which is one file instead of one for each process of the machine.
pub fn descendants(cgroup: Option<&JobCgroup>) -> Vec<i32> {
    let own = own_pid();
    if let Some(members) = cgroup.and_then(|cgroup| cgroup.members().ok()) {
        return members.into_iter().filter(|&pid| pid != own && is_alive(pid)).collect();
    }
    let stats = all_stats();
    stats.iter().filter(|(pid, stat)| stat.state != 'Z' && leads_to(&stats, **pid, own)).map(|(&pid, _)| pid).collect()
}

/// Sends `signal` to each of `pids` that is still a descendant (or member of `cgroup`).
pub fn signal_descendants(pids: &[i32], signal: Signal, cgroup: Option<&JobCgroup>) {
    if pids.is_empty() {
        return;
    }
    // A pidfd holds whoever has the number when it is opened: who is ours after that, is ours through it.
    let pinned: Vec<(i32, OwnedFd)> = pids.iter().filter_map(|&pid| Some((pid, pin(pid)?))).collect();
    let own = own_pid();
    let stats = if cgroup.is_none() { all_stats() } else { HashMap::new() };
    for (pid, process) in &pinned {
        let ours = cgroup.map_or_else(|| leads_to(&stats, *pid, own), |cgroup| cgroup.holds(*pid));
        if ours {
            let _ = pidfd_send_signal(process, signal);
        }
    }
}

/// The name of `pid`, as `ps` shows it.
pub fn name(pid: i32) -> Option<String> {
    Some(read_stat(pid)?.name)
}

/// Names and ranks of `pids`, for a message.
pub fn describe(pids: &[i32]) -> Vec<Leftover> {
    let describe_one = |&pid: &i32| {
        let name = read_stat(pid)?.name;
        let rank = variable(pid, comm::env::RANK).and_then(|text| text.parse().ok());
        Some(Leftover { pid, name, rank })
    };
    pids.iter().filter_map(describe_one).collect()
}

/// Children that the calling process had before it started a job: a shell may have had some before it became prun.
#[derive(Debug, Default)]
pub struct Bystanders(Vec<(i32, u64)>);

impl Bystanders {
    /// Those there are now. Almost always none, which costs one system call.
    pub fn now() -> Bystanders {
        match next_ended() {
            NextEnded::NoChildren => Bystanders::default(),
            _ => Bystanders(children().into_iter().map(|(pid, stat)| (pid, stat.start)).collect()),
        }
    }

    /// SIGKILL for every other child; false once there is none. What such a child leaves comes to the caller, a
    /// subreaper, and is killed in the next round.
    pub fn kill_others(&self) -> bool {
        let others: Vec<(i32, Stat)> =
            children().into_iter().filter(|(pid, stat)| !self.0.contains(&(*pid, stat.start))).collect();
        for (pid, before) in others.iter().filter(|(_, stat)| stat.state != 'Z') {
            let Some(pinned) = pin(*pid) else { continue };
            if read_stat(*pid).is_some_and(|now| now.start == before.start) {
                let _ = pidfd_send_signal(&pinned, Signal::KILL);
            }
        }
        !others.is_empty()
    }
}

fn children() -> Vec<(i32, Stat)> {
    let own = own_pid();
    all_stats().into_iter().filter(|(_, stat)| stat.parent == own).collect()
}

fn own_pid() -> i32 {
    rustix::process::getpid().as_raw_nonzero().get()
}

fn pin(pid: i32) -> Option<OwnedFd> {
    pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()
}

fn is_alive(pid: i32) -> bool {
    read_stat(pid).is_some_and(|stat| stat.state != 'Z')
}

/// Whether the chain of parents of `pid` comes to `ancestor`.
fn leads_to(stats: &HashMap<i32, Stat>, pid: i32, ancestor: i32) -> bool {
    let mut current = pid;
    // The table is not one moment's picture, so a chain could in theory close on itself.
    for _ in 0..stats.len() {
        match stats.get(&current) {
            Some(stat) if stat.parent == ancestor => return true,
            Some(stat) if stat.parent > 1 => current = stat.parent,
            _ => return false,
        }
    }
    false
}

fn all_stats() -> HashMap<i32, Stat> {
    let Ok(entries) = fs::read_dir("/proc") else { return HashMap::new() };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter_map(|pid| Some((pid, read_stat(pid)?)))
        .collect()
}

fn read_stat(pid: i32) -> Option<Stat> {
    parse_stat(&String::from_utf8_lossy(&fs::read(format!("/proc/{pid}/stat")).ok()?))
}

/// The name may hold blanks and brackets, so it ends at the *last* bracket.
fn parse_stat(text: &str) -> Option<Stat> {
    let (_, rest) = text.split_once('(')?;
    let (name, rest) = rest.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    Some(Stat {
        name: name.to_owned(),
        state: fields.first()?.chars().next()?,
        parent: fields.get(1)?.parse().ok()?,
        start: fields.get(19)?.parse().ok()?,
    })
}

/// A variable from the environment that `pid` was started with.
fn variable(pid: i32, name: &str) -> Option<String> {
    let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
    environment.split(|&byte| byte == 0).find_map(|entry| {
        let value = entry.strip_prefix(name.as_bytes())?.strip_prefix(b"=")?;
        Some(String::from_utf8_lossy(value).into_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stat(parent: i32) -> Stat {
        Stat { name: "x".into(), state: 'S', parent, start: 1 }
    }

    #[test]
    fn a_name_with_brackets_and_blanks_does_not_shift_the_fields() {
        let text = "77 (a) b (c)) S 12 77 77 0 -1 4194304 100 0 0 0 0 0 0 0 20 0 1 0 4242 1000 1";
        assert_eq!(parse_stat(text), Some(Stat { name: "a) b (c)".into(), state: 'S', parent: 12, start: 4242 }));
        assert_eq!(parse_stat("77 (x"), None);
        assert_eq!(parse_stat(""), None);
    }

    #[test]
    fn a_chain_of_parents_is_followed_and_a_circle_ends() {
        let stats = HashMap::from([(10, stat(1)), (11, stat(10)), (12, stat(11)), (20, stat(21)), (21, stat(20))]);
        assert!(leads_to(&stats, 12, 10));
        assert!(!leads_to(&stats, 10, 10));
        assert!(!leads_to(&stats, 20, 10));
    }

    #[test]
    fn the_calling_process_has_a_name_and_a_start() {
        assert!(read_stat(own_pid()).is_some_and(|stat| stat.start > 0));
    }
}
