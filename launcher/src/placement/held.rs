//! What other jobs of prun hold on this machine, so that two of them are not pinned onto the same GPU or core.
//!
//! A hold is an abstract socket whose name says what is held. It needs no file, everybody on the machine (in the same
//! network namespace) can see it, and the kernel removes it with the last process that has it: nothing is left behind,
//! whoever is killed.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, socket_with};

use super::cpuset::CpuSet;
use crate::topology::PciAddress;

/// A socket's name holds 107 bytes; a long list of CPUs goes into several.
const LIST_BYTES: usize = 60;

/// What other jobs hold.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Held {
    /// GPUs, each with the job that has it.
    pub gpus: Vec<(PciAddress, String)>,
    /// CPUs, each set with the job that has it.
    pub cpus: Vec<(CpuSet, String)>,
}

impl Held {
    /// Looks at the machine's sockets.
    pub fn read(root: &Path) -> Held {
        fs::read_to_string(root.join("proc/net/unix")).map(|text| Held::parse(&text)).unwrap_or_default()
    }

    fn parse(text: &str) -> Held {
        let mut held = Held::default();
        for name in text.lines().filter_map(|line| line.split_once(" @prun-")).map(|(_, name)| name) {
            let mut parts = name.trim_end_matches(['@', '\0']).split('/');
            let (Some(kind), Some(what), Some(job)) = (parts.next(), parts.next(), parts.next()) else { continue };
            match kind {
                "gpu" => held.gpus.extend(what.parse().ok().map(|address| (address, job.to_owned()))),
                "cpus" => held.cpus.extend(what.parse().ok().map(|cpus| (cpus, job.to_owned()))),
                _ => {}
            }
        }
        held
    }

    /// The job that has this GPU.
    pub fn gpu(&self, address: PciAddress) -> Option<&str> {
        self.gpus.iter().find(|(held, _)| *held == address).map(|(_, job)| job.as_str())
    }

    /// All CPUs that are held.
    pub fn all_cpus(&self) -> CpuSet {
        let mut all = CpuSet::default();
        self.cpus.iter().for_each(|(cpus, _)| all.extend(cpus));
        all
    }

    /// The jobs that have one of these CPUs.
    pub fn jobs_on(&self, cpus: &CpuSet) -> Vec<&str> {
        let mut jobs: Vec<&str> =
            self.cpus.iter().filter(|(held, _)| !held.and(cpus).is_empty()).map(|(_, job)| job.as_str()).collect();
        jobs.sort_unstable();
        jobs.dedup();
        jobs
    }
}

/// Tells other jobs what this one has, as long as it lives.
#[derive(Debug, Default)]
pub struct Hold(#[expect(dead_code, reason = "held open")] Vec<OwnedFd>);

impl Hold {
    /// Holds these GPUs and CPUs for `job`. Where the machine gives no socket, nothing is held: others then cannot see
    /// this job, and nothing else goes wrong.
    pub fn take(job: &str, gpus: &[PciAddress], cpus: &CpuSet) -> Hold {
        let mut names: Vec<String> = gpus.iter().map(|gpu| format!("prun-gpu/{gpu}/{job}")).collect();
        for list in pieces(cpus) {
            names.push(format!("prun-cpus/{list}/{job}"));
        }
        Hold(names.iter().filter_map(|name| named(name.as_bytes())).collect())
    }
}

fn named(name: &[u8]) -> Option<OwnedFd> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None).ok()?;
    bind(&socket, &SocketAddrUnix::new_abstract_name(name).ok()?).ok()?;
    Some(socket)
}

/// The set's list in pieces that fit into a name.
fn pieces(cpus: &CpuSet) -> Vec<String> {
    let mut pieces: Vec<String> = Vec::new();
    for range in cpus.to_string().split(',').filter(|range| !range.is_empty()) {
        match pieces.last_mut().filter(|piece| piece.len() + range.len() < LIST_BYTES) {
            Some(piece) => {
                piece.push(',');
                piece.push_str(range);
            }
            None => pieces.push(range.to_owned()),
        }
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holds_are_seen_while_they_last_and_gone_after() {
        let gpu: PciAddress = "fedc:01:00.0".parse().unwrap();
        let cpus: CpuSet = (0..200).map(|cpu| 60_000 + cpu * 2).collect();
        let job = format!("test{:08x}", std::process::id());
        let hold = Hold::take(&job, &[gpu], &cpus);
        let held = Held::read(Path::new("/"));
        let ours: CpuSet = held.cpus.iter().filter(|(_, by)| *by == job).flat_map(|(set, _)| set.iter()).collect();
        assert_eq!((held.gpu(gpu), ours), (Some(job.as_str()), cpus.clone()));
        assert_eq!(held.jobs_on(&cpus), [job.as_str()]);
        drop(hold);
        assert_eq!(Held::read(Path::new("/")).gpu(gpu), None);
    }

    #[test]
    fn other_sockets_are_passed_over() {
        let text = "Num RefCount\n0: 2 0 0 1 1 23 @prun-gpu/x/y\n0: 2 0 0 1 1 24 @prun-cpus/0-3/ab@@\n0: 1 @prun-0123\n0: /run/x\n";
        let held = Held::parse(text);
        assert_eq!((held.gpus.len(), held.cpus), (0, vec![("0-3".parse().unwrap(), "ab".to_owned())]));
    }

    proptest::proptest! {
        #[test]
        fn any_text_of_other_sockets_is_passed_over(text in "( @prun-|gpu|cpus|/|0-3|0000:01:00.0|@|\n|[a-z0-9 ]){0,30}") {
            let _ = Held::parse(&text);
        }
    }
}
