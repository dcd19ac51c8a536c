//! What this machine lets prun use: CPUs, cores, NUMA nodes, and how many ranks it can carry.
//!
//! Everything is read from `/proc` and `/sys` under a root that tests can move. What cannot be read stays
//! unknown; nothing is guessed from it.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use rustix::process::{Resource, getrlimit};
use serde::{Deserialize, Serialize};

use super::cpuset::CpuSet;
use super::held::Held;
use crate::batch::{self, Grant};
use crate::job::{Bind, GpuChoice, Job, MapBy};
use crate::topology::read::{Detail, has_nvidia_driver, has_slices, machine as read_machine};
use crate::topology::{Machine, PciAddress, known, nvml};

/// Jobs up to this size are started without a look at the machine's limits.
const SURELY_FITS: u32 = 64;
/// Descriptors that prun and rankd each need for a rank, at most: two pipes, a pidfd, one while it starts.
const FILES_PER_RANK: u64 = 4;
/// What the kernel needs for even the smallest process: its stack, page tables and first pages.
const MEMORY_PER_RANK_KIB: u64 = 256;

/// A machine, as far as a job looks at it.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Node {
    /// The CPUs; `None` where nobody asked or nothing could be found out.
    pub cpus: Option<Cpus>,
    /// How many ranks fit; `None` where nobody asked.
    pub capacity: Option<Capacity>,
    /// GPUs and what is near to them; `None` where nobody asked or there are none.
    pub machine: Option<Machine>,
    /// What other jobs of prun have.
    pub held: Held,
    /// What a batch system granted.
    pub grant: Option<Grant>,
    /// CPUs for ranks that are not bound, where prun's own mask is narrower than what the job was granted.
    pub widened: Option<CpuSet>,
    /// What the user should know.
    pub notes: Vec<String>,
}

/// The CPUs that prun may use, and how they lie.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct Cpus {
    /// In the affinity mask, in the cgroup's set, and online.
    pub usable: CpuSet,
    /// prun's own mask.
    pub affinity: CpuSet,
    /// What the cgroup allows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<CpuSet>,
    /// What is switched on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub online: Option<CpuSet>,
    /// CPU time in CPUs, where the cgroup limits it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quota: Option<f64>,
    /// CPUs of slower cores, on a machine with two kinds of cores.
    #[serde(skip_serializing_if = "CpuSet::is_empty")]
    pub slower: CpuSet,
    /// NUMA nodes whose memory the cgroup allows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_nodes: Option<CpuSet>,
    /// Usable CPUs by physical core; never an empty one, slower cores last.
    pub cores: Vec<CpuSet>,
    /// Usable CPUs by socket; never an empty one.
    pub sockets: Vec<CpuSet>,
    /// What was odd while reading.
    #[serde(skip)]
    pub notes: Vec<String>,
    /// Usable CPUs by NUMA node; never an empty one, and numbers may be sparse.
    pub numa: Vec<NumaNode>,
}

impl Cpus {
    /// The same machine with more CPUs to use: cores and nodes that were not looked at are taken as they come.
    fn widened(&self, allowed: &CpuSet) -> Cpus {
        let wider = read_cpus_of(Path::new("/"), allowed);
        Cpus { usable: allowed.clone(), cores: wider.0, sockets: wider.1, numa: wider.2, ..self.clone() }
    }

    /// Why `cpu` may not be used; `None` if it may.
    pub fn why_not(&self, cpu: usize) -> Option<String> {
        if self.usable.contains(cpu) {
            return None;
        }
        let outside = |set: &Option<CpuSet>| set.as_ref().is_some_and(|set| !set.contains(cpu));
        Some(if outside(&self.online) {
            format!("there is no CPU {cpu}, or it is offline")
        } else if outside(&self.cgroup) {
            format!("the cgroup allows CPUs {}", self.cgroup.as_ref().map(CpuSet::to_string).unwrap_or_default())
        } else {
            format!("prun's own affinity mask (taskset, a batch system) is CPUs {}", self.affinity)
        })
    }
}

/// A NUMA node that has usable CPUs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NumaNode {
    /// Its number.
    pub id: usize,
    /// Its usable CPUs.
    pub cpus: CpuSet,
}

/// How many ranks fit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capacity {
    /// So many.
    pub ranks: u64,
    /// The limit that says so.
    pub because: String,
}

impl Node {
    /// Reads what planning `job` looks at, and no more: on a machine without GPUs a job of a few unbound ranks needs
    /// one look for the NVIDIA driver.
    pub fn read_for(job: &Job, root: &Path, inherited: &[(OsString, OsString)], hostname: &str) -> Node {
        let mut node = Node::default();
        match batch::read_here(inherited, hostname) {
            Ok(grant) => node.grant = grant,
            Err(error) => node.notes.push(format!("{error}: prun goes on as if there were no batch system")),
        }
        let placement = &job.placement;
        let wants_gpus = placement.map_by.is_none_or(|map| map == MapBy::Gpu) && placement.gpus != GpuChoice::None;
        if (wants_gpus || job.dry_run) && has_nvidia_driver(root) {
            let mut machine = launch_machine(root, node.grant.is_some());
            machine.mps = Some(has_mps(root, inherited));
            // Two or three GPUs that are all used make one ring only, whatever lies between them.
            let (ranks, gpus) = (job.world_size() as usize, machine.gpus.len());
            if ranks > 1 && gpus > 1 || job.dry_run {
                let place = known::place(inherited, root, &machine);
                match job.dry_run || ranks < gpus || gpus > 3 {
                    true => known::complete(&mut machine, place.as_deref()),
                    false => _ = known::recall(&mut machine, place.as_deref()),
                }
            }
            node.machine = Some(machine);
        }
        let maps = placement.map_by.is_some_and(|map| map != MapBy::None) || placement.cpus_per_rank.is_some();
        let binds = !matches!(job.bind, Bind::None | Bind::Unsaid) || maps;
        node.cpus = match &node.machine {
            Some(machine) => machine.cpus.clone(),
            None => (binds || job.dry_run || node.grant.is_some()).then(|| read_cpus(root)).flatten(),
        };
        if node.machine.is_some() || binds {
            node.held = Held::read(root);
        }
        if job.world_size() > SURELY_FITS {
            node.capacity = read_capacity(root);
        }
        node.respect_grant();
        node
    }

    /// Forgets these GPUs; the others keep their numbers.
    pub fn leave_out(&mut self, lost: &[PciAddress]) {
        if let Some(machine) = &mut self.machine {
            machine.gpus.retain(|gpu| gpu.address.is_none_or(|address| !lost.contains(&address)));
        }
    }

    /// A machine that was read from somewhere; nothing of it is held.
    pub fn of(machine: Machine) -> Node {
        Node { cpus: machine.cpus.clone(), notes: machine.notes.clone(), machine: Some(machine), ..Node::default() }
    }

    /// A batch system may have bound prun itself to fewer CPUs than it gave to the job. Where the cgroup shows exactly
    /// those of the job, the ranks get them; otherwise it is said.
    fn respect_grant(&mut self) {
        let (Some(grant), Some(cpus)) = (&self.grant, &mut self.cpus) else { return };
        self.notes.extend(grant.notes.iter().cloned());
        let Some(granted) = grant.cpus_here.map(|granted| granted as usize) else { return };
        let own = cpus.usable.len();
        if own >= granted {
            return;
        }
        let allowed = match (&cpus.cgroup, &cpus.online) {
            (Some(cgroup), Some(online)) => cgroup.and(online),
            (Some(cgroup), None) => cgroup.clone(),
            (None, Some(online)) => online.clone(),
            (None, None) => cpus.usable.clone(),
        };
        let scheduler = grant.scheduler;
        if allowed.len() == granted {
            self.notes.push(format!(
                "{scheduler} bound prun itself to CPUs {} of the {granted} that the job has; its ranks may use all: {allowed}",
                cpus.usable
            ));
            *cpus = cpus.widened(&allowed);
            self.widened = Some(allowed);
        } else {
            let how = match scheduler {
                batch::Scheduler::Slurm => "; start prun with `srun --cpu-bind=none`",
                _ => "",
            };
            self.notes.push(format!(
                "{scheduler} gave this job {granted} CPUs, and prun itself may use {own} of them ({}){how}",
                cpus.usable
            ));
        }
    }

    /// How many cores have a CPU in `set`.
    pub fn cores_in(&self, set: &CpuSet) -> Option<usize> {
        let cores = &self.cpus.as_ref()?.cores;
        Some(cores.iter().filter(|core| !core.and(set).is_empty()).count()).filter(|count| *count > 0)
    }

    /// The NUMA node whose memory is near to all of `set`; `None` on a machine with one, or where the cgroup forbids
    /// that memory.
    pub fn memory_of(&self, set: &CpuSet) -> Option<usize> {
        let cpus = self.cpus.as_ref()?;
        let node = cpus.numa.iter().find(|node| node.cpus.and(set).len() == set.len())?;
        let allowed = cpus.memory_nodes.as_ref().is_none_or(|nodes| nodes.contains(node.id));
        (cpus.numa.len() > 1 && allowed && !set.is_empty()).then_some(node.id)
    }
}

/// What a launch reads of a machine with GPUs: not NVML, unless GPUs are cut into slices, whose names only it knows.
fn launch_machine(root: &Path, in_batch_job: bool) -> Machine {
    let mut machine = read_machine(root, Detail::Launch);
    if in_batch_job {
        // A device file may be there and yet be closed to this job's cgroup.
        machine.gpus.retain(|gpu| gpu.minor.is_none_or(|minor| may_open(&root.join(format!("dev/nvidia{minor}")))));
        for (index, gpu) in machine.gpus.iter_mut().enumerate() {
            gpu.index = index;
        }
    }
    if has_slices(root, &machine)
        && let Ok(answer) = nvml::ask()
    {
        nvml::enrich(&mut machine, answer);
    }
    machine
}

/// Whether the control daemon of NVIDIA's MPS has its pipe where programs of this environment look for it.
fn has_mps(root: &Path, inherited: &[(OsString, OsString)]) -> bool {
    let told = inherited.iter().find(|(name, _)| name == "CUDA_MPS_PIPE_DIRECTORY").map(|(_, place)| Path::new(place));
    let place = told.unwrap_or(Path::new("/tmp/nvidia-mps"));
    let place = root.join(place.strip_prefix("/").unwrap_or(place));
    // The pipe of a daemon that was killed stays.
    let lives = match fs::read_to_string(place.join("nvidia-cuda-mps-control.pid")) {
        Ok(pid) => root.join("proc").join(pid.trim()).exists(),
        Err(_) => true,
    };
    lives && place.join("control").exists()
}

fn may_open(path: &Path) -> bool {
    !matches!(fs::OpenOptions::new().read(true).write(true).open(path), Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied)
}

/// The CPUs; `None` if not even the affinity mask can be read.
pub fn read_cpus(root: &Path) -> Option<Cpus> {
    let online = read(root, "sys/devices/system/cpu/online").and_then(|list| CpuSet::from_kernel(&list));
    let status = read(root, "proc/self/status");
    let mask = status.as_deref().and_then(|text| text.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")));
    // Only a copy of another machine's files lacks the mask.
    let affinity = mask.and_then(CpuSet::from_kernel).or_else(|| online.clone())?;
    let cgroups = Cgroups::read(root);
    let cgroup = cgroups.cpus();
    let mut usable = affinity.clone();
    for other in [&online, &cgroup].into_iter().flatten() {
        usable = usable.and(other);
    }
    let slower = read(root, "sys/devices/cpu_atom/cpus").and_then(|list| CpuSet::from_kernel(&list));
    let slower = slower.unwrap_or_default().and(&usable);
    let mut cores = read_cores(root, &usable);
    cores.sort_by_key(|core| core.first().is_some_and(|cpu| slower.contains(cpu)));
    let mut notes = Vec::new();
    let numa = read_numa(root, &usable, &mut notes);
    Some(Cpus {
        sockets: read_sockets(root, &cores),
        cores,
        numa,
        quota: cgroups.quota(),
        memory_nodes: cgroups.memory_nodes(),
        slower,
        usable,
        affinity,
        cgroup,
        online,
        notes,
    })
}

/// Cores, sockets and NUMA nodes of these CPUs.
fn read_cpus_of(root: &Path, usable: &CpuSet) -> (Vec<CpuSet>, Vec<CpuSet>, Vec<NumaNode>) {
    let cores = read_cores(root, usable);
    (cores.clone(), read_sockets(root, &cores), read_numa(root, usable, &mut Vec::new()))
}

/// Usable CPUs by the number of their package; all in one where the kernel does not tell.
fn read_sockets(root: &Path, cores: &[CpuSet]) -> Vec<CpuSet> {
    let mut sockets: std::collections::BTreeMap<i64, CpuSet> = std::collections::BTreeMap::new();
    for core in cores {
        let Some(first) = core.first() else { continue };
        let package = read(root, &format!("sys/devices/system/cpu/cpu{first}/topology/physical_package_id"));
        let package = package.and_then(|text| text.trim().parse().ok()).unwrap_or(-1);
        sockets.entry(package).or_default().extend(core);
    }
    sockets.into_values().collect()
}

fn read_cores(root: &Path, usable: &CpuSet) -> Vec<CpuSet> {
    let mut cores: Vec<CpuSet> = Vec::new();
    let mut seen = std::collections::BTreeSet::new();
    for cpu in usable.iter() {
        if seen.contains(&cpu) {
            continue;
        }
        let topology = format!("sys/devices/system/cpu/cpu{cpu}/topology");
        // The first name is the kernel's newer one for the second.
        let siblings = ["core_cpus_list", "thread_siblings_list"]
            .iter()
            .find_map(|name| read(root, &format!("{topology}/{name}")))
            .and_then(|list| CpuSet::from_kernel(&list))
            .filter(|siblings| siblings.contains(cpu))
            .unwrap_or_else(|| CpuSet::from_iter([cpu]))
            .and(usable);
        seen.extend(siblings.iter());
        cores.push(siblings);
    }
    cores
}

/// The NUMA nodes. Where the kernel shows none, everything is one node; where several claim a CPU, the first has it.
fn read_numa(root: &Path, usable: &CpuSet, notes: &mut Vec<String>) -> Vec<NumaNode> {
    let entries = fs::read_dir(root.join("sys/devices/system/node")).into_iter().flatten().flatten();
    let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.strip_prefix("node")?.parse::<usize>().ok());
    let mut nodes: Vec<NumaNode> = numbers
        .filter_map(|id| {
            let list = read(root, &format!("sys/devices/system/node/node{id}/cpulist"))?;
            Some(NumaNode { id, cpus: CpuSet::from_kernel(&list)?.and(usable) })
        })
        .collect();
    nodes.sort_unstable_by_key(|node| node.id);
    let (mut claimed, mut twice) = (CpuSet::default(), false);
    for node in &mut nodes {
        twice |= !node.cpus.and(&claimed).is_empty();
        node.cpus = node.cpus.without(&claimed);
        claimed.extend(&node.cpus);
    }
    if twice {
        notes.push(
            "several NUMA nodes claim the same CPUs: the firmware's tables are wrong, and the first node is believed"
                .into(),
        );
    }
    nodes.retain(|node| !node.cpus.is_empty());
    if nodes.is_empty() && !usable.is_empty() {
        nodes.push(NumaNode { id: 0, cpus: usable.clone() });
    }
    nodes
}

/// The memory in bytes that the cgroup allows, where it limits it.
pub fn memory_limit(root: &Path) -> Option<u64> {
    let (v2, directories) = Cgroups::read(root).directories("memory")?;
    let name = if v2 { "memory.max" } else { "memory.limit_in_bytes" };
    let limits =
        directories.iter().filter_map(|directory| fs::read_to_string(directory.join(name)).ok()?.trim().parse().ok());
    // The first version writes "no limit" as a number that no machine has.
    limits.min().filter(|limit| *limit < 1 << 60)
}

/// How many ranks the limits of this process and of the machine allow.
fn read_capacity(root: &Path) -> Option<Capacity> {
    let number = |path: &str| read(root, path)?.trim().parse::<u64>().ok();
    let mut limits: Vec<(u64, String)> = Vec::new();
    if let Some(files) = getrlimit(Resource::Nofile).maximum {
        limits.push((files.saturating_sub(64) / FILES_PER_RANK, format!("at most {files} descriptors may be open (hard limit RLIMIT_NOFILE, `ulimit -Hn`), and each rank needs {FILES_PER_RANK}")));
    }
    // The limit on processes does not bind root.
    if let Some(processes) = getrlimit(Resource::Nproc).current.filter(|_| !rustix::process::geteuid().is_root()) {
        limits.push((processes, format!("this user may have {processes} processes (RLIMIT_NPROC, `ulimit -u`)")));
    }
    if let Some(most) = number("proc/sys/kernel/pid_max") {
        limits.push((most, format!("process ids end at {most} (kernel.pid_max)")));
    }
    if let Some(most) = number("proc/sys/kernel/threads-max") {
        limits.push((most, format!("the machine runs at most {most} processes (kernel.threads-max)")));
    }
    if let Some((left, most)) = Cgroups::read(root).processes_left() {
        limits.push((left, format!("the cgroup allows {most} processes (pids.max), and {left} of them are left")));
    }
    let memory = read(root, "proc/meminfo").and_then(|text| {
        text.lines()
            .find_map(|line| line.strip_prefix("MemAvailable:"))?
            .trim()
            .strip_suffix(" kB")?
            .trim()
            .parse::<u64>()
            .ok()
    });
    if let Some(kib) = memory {
        limits.push((
            kib / MEMORY_PER_RANK_KIB,
            format!(
                "{} MiB of memory are free, and even the smallest process needs {MEMORY_PER_RANK_KIB} KiB",
                kib / 1024
            ),
        ));
    }
    let (ranks, because) = limits.into_iter().min_by_key(|(ranks, _)| *ranks)?;
    Some(Capacity { ranks, because })
}

fn read(root: &Path, path: &str) -> Option<String> {
    fs::read_to_string(root.join(path)).ok()
}

/// Where this process's cgroups are mounted: for each controller its own hierarchy (v1), or the one for
/// all (v2). Both may exist side by side.
#[derive(Debug, Default)]
struct Cgroups {
    root: PathBuf,
    mounts: Vec<Mount>,
    /// Lines of `/proc/self/cgroup`: the controllers (none for v2) and the path.
    memberships: Vec<(String, String)>,
}

#[derive(Debug)]
struct Mount {
    v2: bool,
    /// The part of the hierarchy that is mounted.
    top: String,
    /// Where.
    place: String,
    /// A v1 hierarchy's controllers, among other mount options.
    options: String,
}

impl Cgroups {
    fn read(root: &Path) -> Cgroups {
        // A copy of a machine's files may have the older and shorter lists only.
        let mounts = match read(root, "proc/self/mountinfo") {
            Some(text) => text.lines().filter_map(mount).collect(),
            None => read(root, "proc/mounts").unwrap_or_default().lines().filter_map(plain_mount).collect(),
        };
        let memberships = read(root, "proc/self/cgroup").unwrap_or_else(|| {
            let path = read(root, "proc/self/cpuset").unwrap_or_default();
            format!("0:cpuset:{0}\n0::{0}\n", path.trim())
        });
        let memberships = memberships.lines().filter_map(|line| {
            let mut parts = line.splitn(3, ':').skip(1);
            Some((parts.next()?.to_owned(), parts.next()?.to_owned()))
        });
        Cgroups { root: root.to_owned(), mounts, memberships: memberships.collect() }
    }

    /// The directories of this process's cgroup for `controller`, from its own up to the mount; and whether
    /// they are of v2.
    fn directories(&self, controller: &str) -> Option<(bool, Vec<PathBuf>)> {
        let named = |list: &str| list.split(',').any(|name| name == controller);
        let v1 = self.mounts.iter().find(|mount| !mount.v2 && named(&mount.options));
        let mount = v1.or_else(|| self.mounts.iter().find(|mount| mount.v2))?;
        let member =
            |(controllers, _): &&(String, String)| if mount.v2 { controllers.is_empty() } else { named(controllers) };
        let path = self.memberships.iter().find(member).map_or("/", |(_, path)| path.as_str());
        // In a container the mount may show a part of the hierarchy only, and the path may lie outside of it.
        let below = match mount.top.as_str() {
            "/" => path,
            top => path.strip_prefix(top).unwrap_or(""),
        };
        let top = self.root.join(mount.place.trim_start_matches('/'));
        let below = Path::new(below.trim_start_matches('/'));
        if below.components().any(|part| part == std::path::Component::ParentDir) {
            return Some((mount.v2, vec![top]));
        }
        Some((mount.v2, below.ancestors().map(|part| top.join(part)).collect()))
    }

    /// The CPUs that the cgroup allows; of the nearest directory that says so.
    fn cpus(&self) -> Option<CpuSet> {
        let (v2, directories) = self.directories("cpuset")?;
        let names: &[&str] =
            if v2 { &["cpuset.cpus.effective"] } else { &["cpuset.effective_cpus", "cpuset.cpus", "cpus"] };
        directories.iter().find_map(|directory| {
            let list = names.iter().find_map(|name| fs::read_to_string(directory.join(name)).ok())?;
            CpuSet::from_kernel(&list).filter(|set| !set.is_empty())
        })
    }

    /// The NUMA nodes whose memory the cgroup allows.
    fn memory_nodes(&self) -> Option<CpuSet> {
        let (v2, directories) = self.directories("cpuset")?;
        let names: &[&str] =
            if v2 { &["cpuset.mems.effective"] } else { &["cpuset.effective_mems", "cpuset.mems", "mems"] };
        directories.iter().find_map(|directory| {
            let list = names.iter().find_map(|name| fs::read_to_string(directory.join(name)).ok())?;
            CpuSet::from_kernel(&list).filter(|set| !set.is_empty())
        })
    }

    /// The least quota on the way up, in CPUs.
    fn quota(&self) -> Option<f64> {
        let (v2, directories) = self.directories("cpu")?;
        let number = |text: &str| text.trim().parse::<f64>().ok().filter(|number| *number > 0.0);
        let quotas = directories.iter().filter_map(|directory| {
            let read = |name: &str| fs::read_to_string(directory.join(name)).ok();
            if v2 {
                let text = read("cpu.max")?;
                let (quota, period) = text.trim().split_once(' ')?;
                Some(number(quota)? / number(period)?)
            } else {
                Some(number(&read("cpu.cfs_quota_us")?)? / number(&read("cpu.cfs_period_us")?)?)
            }
        });
        quotas.min_by(f64::total_cmp)
    }

    /// How many processes may still be added, and out of how many.
    fn processes_left(&self) -> Option<(u64, u64)> {
        let (_, directories) = self.directories("pids")?;
        let number = |path: PathBuf| fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
        let left = directories.iter().filter_map(|directory| {
            let most = number(directory.join("pids.max"))?;
            Some((most.saturating_sub(number(directory.join("pids.current"))?), most))
        });
        left.min()
    }
}

/// One line of `/proc/self/mountinfo`, if it is a cgroup's.
fn mount(line: &str) -> Option<Mount> {
    let (mounted, kind) = line.split_once(" - ")?;
    let mut kind = kind.split(' ');
    let v2 = match kind.next()? {
        // `cpuset` is what cgroups grew out of: one controller under its own name.
        "cgroup" | "cpuset" => false,
        "cgroup2" => true,
        _ => return None,
    };
    let options = if line.contains(" - cpuset ") { "cpuset" } else { kind.nth(1).unwrap_or_default() }.to_owned();
    let mut mounted = mounted.split(' ').skip(3);
    let (top, place) = (unescaped(mounted.next()?), unescaped(mounted.next()?));
    Some(Mount { v2, top, place, options })
}

/// One line of `/proc/mounts`, if it is a cgroup's.
fn plain_mount(line: &str) -> Option<Mount> {
    let mut parts = line.split(' ').skip(1);
    let (place, kind, options) = (parts.next()?, parts.next()?, parts.next()?);
    mount(&format!("0 0 0:0 / {place} rw - {kind} {kind} {options}"))
}

/// mountinfo writes a space in a path as `\040`.
fn unescaped(path: &str) -> String {
    path.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A root with these files, removed when dropped.
    struct Root(PathBuf);

    impl Root {
        fn new(name: &str, files: &[(&str, &str)]) -> Root {
            let root = std::env::temp_dir().join(format!("prun-node-{name}-{}", std::process::id()));
            for (path, text) in files {
                let path = root.join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            }
            Root(root)
        }

        fn cpus(&self) -> Cpus {
            read_cpus(&self.0).unwrap()
        }
    }

    impl Drop for Root {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn shown(sets: &[CpuSet]) -> Vec<String> {
        sets.iter().map(CpuSet::to_string).collect()
    }

    const STATUS: (&str, &str) = ("proc/self/status", "Name:\tprun\nCpus_allowed:\tffff\nCpus_allowed_list:\t0-15\n");

    #[test]
    fn usable_is_in_the_mask_in_the_cgroup_and_online() {
        // A v1 cpuset that still lists CPU 4, which was switched off.
        let root = Root::new(
            "v1",
            &[
                STATUS,
                ("sys/devices/system/cpu/online", "0-3,5-15\n"),
                (
                    "proc/self/mountinfo",
                    "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n34 31 0:31 / /sys/fs/cgroup/cpuset rw,relatime - cgroup cgroup rw,cpuset\n41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
                ),
                ("proc/self/cgroup", "3:cpuset:/job/step\n1:cpu:/\n0::/\n"),
                ("sys/fs/cgroup/cpuset/job/step/cpuset.cpus", "0-6,12-15\n"),
            ],
        );
        let cpus = root.cpus();
        assert_eq!(cpus.usable.to_string(), "0-3,5-6,12-15");
        assert!(cpus.why_not(4).unwrap().contains("offline"));
        assert!(cpus.why_not(7).unwrap().contains("cgroup"));
        assert!(cpus.why_not(16).unwrap().contains("no CPU 16"));
        assert_eq!(cpus.why_not(5), None);
        assert_eq!(cpus.cores.len(), 10);
        assert_eq!(cpus.numa, [NumaNode { id: 0, cpus: cpus.usable.clone() }]);
    }

    #[test]
    fn a_v2_cgroup_is_asked_from_the_inside_out() {
        let root = Root::new(
            "v2",
            &[
                STATUS,
                (
                    "proc/self/mountinfo",
                    "24 1 0:22 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n",
                ),
                ("proc/self/cgroup", "0::/user.slice/a b\n"),
                ("sys/fs/cgroup/user.slice/cpuset.cpus.effective", "0-5\n"),
                ("sys/fs/cgroup/user.slice/cpu.max", "150000 100000\n"),
                ("sys/fs/cgroup/user.slice/a b/cpu.max", "max 100000\n"),
                ("sys/fs/cgroup/user.slice/a b/pids.max", "100\n"),
                ("sys/fs/cgroup/user.slice/a b/pids.current", "40\n"),
            ],
        );
        assert_eq!(root.cpus().usable.to_string(), "0-5");
        assert_eq!(root.cpus().quota, Some(1.5));
        assert_eq!(Cgroups::read(&root.0).processes_left(), Some((60, 100)));
        let capacity = read_capacity(&root.0).unwrap();
        assert!(capacity.ranks <= 60, "{capacity:?}");
    }

    #[test]
    fn a_container_sees_its_part_of_the_hierarchy() {
        let root = Root::new(
            "container",
            &[
                STATUS,
                (
                    "proc/self/mountinfo",
                    "34 31 0:31 /docker/abc /sys/fs/cgroup/cpuset ro - cgroup cgroup rw,cpuset\n35 31 0:32 /docker/abc /sys/fs/cgroup/cpu,cpuacct ro - cgroup cgroup rw,cpu,cpuacct\n",
                ),
                ("proc/self/cgroup", "4:cpu,cpuacct:/docker/abc\n3:cpuset:/docker/abc\n"),
                ("sys/fs/cgroup/cpuset/cpuset.cpus", "1-2\n"),
                ("sys/fs/cgroup/cpuset/cpuset.effective_cpus", "1\n"),
                ("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n"),
                ("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n"),
            ],
        );
        assert_eq!(root.cpus().usable.to_string(), "1");
        assert_eq!(root.cpus().quota, None);
    }

    #[test]
    fn the_old_cpuset_file_system_is_understood() {
        let root = Root::new(
            "cpuset",
            &[
                STATUS,
                ("proc/self/mountinfo", "31 23 0:28 / /dev/cpuset rw - cpuset none rw\n"),
                ("proc/self/cgroup", "1:cpuset:/half\n"),
                ("dev/cpuset/half/cpus", "0-7\n"),
            ],
        );
        assert_eq!(root.cpus().usable.to_string(), "0-7");
    }

    #[test]
    fn cores_and_nodes_have_usable_cpus_only_and_sparse_numbers() {
        let root = Root::new(
            "sparse",
            &[
                ("proc/self/status", "Cpus_allowed_list:\t0-1,72-73\n"),
                ("sys/devices/system/cpu/cpu0/topology/thread_siblings_list", "0,72\n"),
                ("sys/devices/system/cpu/cpu1/topology/core_cpus_list", "1,73-74\n"),
                ("sys/devices/system/node/node0/cpulist", "0-1\n"),
                ("sys/devices/system/node/node73/cpulist", "72-80\n"),
                ("sys/devices/system/node/node250/cpulist", "\n"),
                ("sys/devices/system/node/online", "0,73,250\n"),
            ],
        );
        let cpus = root.cpus();
        assert_eq!(shown(&cpus.cores), ["0,72", "1,73"]);
        assert_eq!(
            cpus.numa.iter().map(|node| (node.id, node.cpus.to_string())).collect::<Vec<_>>(),
            [(0, "0-1".into()), (73, "72-73".into())]
        );
    }

    #[test]
    fn an_empty_root_is_unknown_and_this_machine_is_not() {
        assert_eq!(read_cpus(Path::new("/nonexistent")), None);
        let here = read_cpus(Path::new("/")).expect("Linux tells its affinity");
        assert!(!here.usable.is_empty() && !here.cores.is_empty() && !here.numa.is_empty());
        assert!(read_capacity(Path::new("/")).is_some());
    }
}
