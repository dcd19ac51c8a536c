//! Limits and operating system: what stops or slows jobs without any hardware being at fault.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use rustix::process::{Resource, getrlimit};
use serde::{Deserialize, Serialize};

use super::{Finding, Level, log};
use crate::topology::Machine;

/// CUDA pins memory for copies; less than this and large copies fail or are slow.
const ENOUGH_MEMLOCK_MIB: u64 = 64;
/// A rank with less than this has hardly room for its libraries; CUDA alone takes about as much of the host's memory.
const LEAST_RANK_MIB: u64 = 512;
/// A library file is searched this far for what it was built for.
const MOST_SEARCHED: usize = 1 << 30;

/// Limits and operating system, as they were found.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct Host {
    /// Memory that may be locked, MiB; absent: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memlock_mib: Option<u64>,
    /// Open files of a process: the hard limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub open_files: Option<u64>,
    /// Processes of this user.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub processes: Option<u64>,
    /// Size of `/dev/shm`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shm_mib: Option<u64>,
    /// What is free there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shm_free_mib: Option<u64>,
    /// Memory that the cgroup allows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_limit_mib: Option<u64>,
    /// Whether PCI devices can be seen.
    pub has_sys: bool,
    /// Whether this is a container.
    pub container: bool,
    /// Whether prun can make a cgroup for its jobs.
    pub has_cgroup: bool,
    /// The kernel moves pages between NUMA nodes on its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub numa_balancing: Option<bool>,
    /// The NCCL library that is installed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nccl: Option<String>,
    /// The CUDA that this NCCL was built for, as `13.0`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nccl_cuda: Option<String>,
    /// The version of the CUDA library that programs of this machine load, which must be the driver's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cuda_library: Option<String>,
    /// The CUDA toolkit that is installed, as `13.0`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cuda_toolkit: Option<String>,
    /// Lines about GPUs and PCIe errors in the kernel log; absent: it may not be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel_log: Option<Vec<String>>,
    /// How many of these lines came while somebody looked; they are the last ones.
    pub kernel_log_new: usize,
    /// How long the machine has run, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uptime_s: Option<f64>,
}

/// Looks at this machine. `log_before` is the kernel log as it was when the look began.
pub fn read(log_before: Option<&[String]>) -> Host {
    let mib = |resource| getrlimit(resource).current.map(|bytes| bytes >> 20);
    let shm = rustix::fs::statvfs("/dev/shm").ok();
    let root = Path::new("/");
    let text = |path: &str| fs::read_to_string(root.join(path)).ok();
    let nccl = installed("libnccl.so.");
    let kernel_log = log::read();
    let kernel_log_new = match (&kernel_log, log_before) {
        (Some(now), Some(before)) => now.iter().filter(|line| !before.contains(line)).count(),
        _ => 0,
    };
    Host {
        memlock_mib: mib(Resource::Memlock),
        open_files: getrlimit(Resource::Nofile).maximum,
        processes: getrlimit(Resource::Nproc).current.filter(|_| !rustix::process::geteuid().is_root()),
        shm_mib: shm.as_ref().map(|shm| (shm.f_blocks * shm.f_frsize) >> 20),
        shm_free_mib: shm.as_ref().map(|shm| (shm.f_bavail * shm.f_frsize) >> 20),
        memory_limit_mib: crate::placement::node::memory_limit(root).map(|bytes| bytes >> 20),
        has_sys: root.join("sys/bus/pci/devices").is_dir(),
        container: root.join(".dockerenv").exists()
            || root.join("run/.containerenv").exists()
            || text("proc/1/environ").is_some_and(|environ| environ.contains("container=")),
        has_cgroup: has_cgroup(),
        numa_balancing: text("proc/sys/kernel/numa_balancing").map(|text| text.trim() != "0"),
        nccl_cuda: nccl.as_ref().and_then(|(path, _)| built_for(path)),
        nccl: nccl.map(|(_, version)| version),
        // The name without a version is a link to it.
        cuda_library: installed("libcuda.so.").map(|(_, version)| version).filter(|version| version.contains('.')),
        cuda_toolkit: text("usr/local/cuda/version.json").and_then(|text| toolkit(&text)),
        kernel_log,
        kernel_log_new,
        uptime_s: text("proc/uptime").and_then(|text| text.split(' ').next()?.parse().ok()),
    }
}

/// Makes a cgroup as a job would, and removes it.
fn has_cgroup() -> bool {
    let made = rankd::cgroup::JobCgroup::create(&format!("doctor{:010}", std::process::id()));
    made.is_some_and(|cgroup| cgroup.remove())
}

/// An installed library and the longest version in its names: `libnccl.so.2` is a link to `libnccl.so.2.28.9`.
fn installed(library: &str) -> Option<(PathBuf, String)> {
    let places = [
        "/usr/lib/x86_64-linux-gnu",
        "/usr/lib/aarch64-linux-gnu",
        "/usr/lib64",
        "/usr/local/lib",
        "/usr/local/cuda/lib64",
    ];
    places
        .iter()
        .flat_map(|place| fs::read_dir(place).into_iter().flatten().flatten())
        .filter_map(|entry| Some((entry.path(), entry.file_name().to_str()?.strip_prefix(library)?.to_owned())))
        .max_by_key(|(_, version)| version.len())
}

/// The CUDA that a library of NCCL was built for: it holds the text `NCCL version 2.28.9+cuda13.0`.
fn built_for(library: &Path) -> Option<String> {
    const MARK: &[u8] = b"+cuda";
    let mut file = fs::File::open(library).ok()?;
    let (mut buffer, mut kept, mut searched) = (vec![0u8; 1 << 20], 0, 0);
    while searched < MOST_SEARCHED {
        let count = file.read(&mut buffer[kept..]).ok().filter(|count| *count > 0)?;
        let filled = &buffer[..kept + count];
        let mut from = 0;
        while let Some(at) = filled[from..].iter().position(|&byte| byte == MARK[0]).map(|at| from + at) {
            let rest = &filled[at..];
            let version: String = rest
                .strip_prefix(MARK)
                .unwrap_or_default()
                .iter()
                .map(|&byte| char::from(byte))
                .take_while(|letter| letter.is_ascii_digit() || *letter == '.')
                .take(8)
                .collect();
            if self::version(&version).is_some() {
                return Some(version);
            }
            from = at + 1;
        }
        // A mark that lies across two pieces is found in the next one.
        let end = filled.len();
        let tail = end.min(32);
        buffer.copy_within(end - tail..end, 0);
        (kept, searched) = (tail, searched + count);
    }
    None
}

/// `"cuda" : { "name" : "CUDA SDK", "version" : "13.0.48" }` of the toolkit's own file.
fn toolkit(text: &str) -> Option<String> {
    let value: serde_json::Value = serde_json::from_str(text).ok()?;
    let version = value["cuda"]["version"].as_str()?;
    Some(version.split('.').take(2).collect::<Vec<_>>().join("."))
}

/// The two numbers of `13.0`.
fn version(text: &str) -> Option<(u32, u32)> {
    let (major, minor) = text.split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// Whether the machine has room for so many ranks.
pub fn room(machine: &Machine, ranks: Option<u32>) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut add = |finding| findings.push(finding);
    let gpus = machine.nvidia_gpus().count();
    if let Some(ranks) = ranks.filter(|ranks| gpus > 0 && *ranks as usize > gpus) {
        let s = if gpus == 1 { "" } else { "s" };
        add(Finding::new(Level::Warning, "gpus", "GPUs", format!("{ranks} ranks, {gpus} GPU{s}"))
            .seen("each rank gets a GPU of its own")
            .try_this("`--share-gpus`, if ranks may share; or `--map-by none`, if the program uses no GPU")
            .costs(0.5));
    }
    let Some(cpus) = &machine.cpus else { return findings };
    if let Some(ranks) = ranks {
        let usable = cpus.usable.len();
        let time = cpus.quota.unwrap_or(usable as f64);
        if (ranks as usize) > usable || f64::from(ranks) > time {
            add(Finding::new(
                Level::Warning,
                "cpus",
                "CPUs",
                format!("{ranks} ranks have {:.1} CPUs", time.min(usable as f64)),
            )
            .seen(format!("usable: {}", cpus.usable))
            .try_this("fewer ranks, or more CPUs from the batch system or container")
            .costs(0.5));
        }
    }
    if cpus.usable.len() < gpus {
        add(Finding::new(
            Level::Warning,
            "cpus",
            "CPUs",
            format!("{gpus} GPUs, and {} CPUs to feed them", cpus.usable.len()),
        )
        .seen(format!("usable: {}", cpus.usable))
        .try_this("more CPUs from the batch system or container")
        .costs(0.4));
    }
    findings
}

/// A cgroup that allows less memory than the ranks need to begin at all.
fn memory(host: &Host, gpus: usize, ranks: Option<u32>) -> Option<Finding> {
    let limit = host.memory_limit_mib?;
    let ranks = ranks.map_or(gpus.max(1) as u64, u64::from);
    (limit < ranks * LEAST_RANK_MIB).then(|| {
        let s = if ranks == 1 { "" } else { "s" };
        Finding::new(
            Level::Warning,
            "memory-limit",
            "cgroup",
            format!("it allows {limit} MiB of memory for {ranks} rank{s}: the kernel kills what needs more"),
        )
        .seen(format!("memory limit of the cgroup; {LEAST_RANK_MIB} MiB a rank are little already"))
        .try_this("a larger limit from the batch system or container (`docker run --memory`, `#SBATCH --mem`)")
        .costs(0.5)
    })
}

/// All findings about limits and operating system.
pub fn findings(host: &Host, machine: &Machine, ranks: Option<u32>) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut add = |finding| findings.push(finding);
    let gpus = machine.nvidia_gpus().count();
    if let Some(mib) = host.memlock_mib.filter(|mib| *mib < ENOUGH_MEMLOCK_MIB && gpus > 0) {
        add(Finding::new(
            Level::Warning,
            "memlock",
            "limits",
            "little memory may be locked, which RDMA and pinned buffers need",
        )
        .seen(format!("RLIMIT_MEMLOCK is {mib} MiB"))
        .try_this("`ulimit -l unlimited`, or LimitMEMLOCK=infinity in the service or container"));
    }
    if let Some(files) = host.open_files.filter(|files| *files < 4096) {
        add(Finding::new(Level::Warning, "open-files", "limits", "few files may be open")
            .seen(format!("the hard limit is {files}"))
            .try_this("`ulimit -Hn 65536`, or nofile in limits.conf"));
    }
    if let Some(mib) = host.shm_mib.filter(|mib| *mib < 1024) {
        let free = host.shm_free_mib.unwrap_or(0);
        add(Finding::new(
            Level::Advice,
            "shm",
            "/dev/shm",
            "it is small; libcomm does not use it, and NCCL, MPI and data loaders do",
        )
        .seen(format!("{mib} MiB, {free} MiB free"))
        .try_this("`docker run --shm-size=8g` or --ipc=host"));
    }
    if !host.has_sys {
        add(Finding::new(
            Level::Warning,
            "sysfs",
            "/sys",
            "PCI devices cannot be seen, so ranks cannot be pinned near to their GPUs",
        )
        .seen("/sys/bus/pci/devices is not there")
        .try_this("mount /sys into the container")
        .costs(0.2));
    }
    if !host.has_cgroup {
        add(Finding::new(Level::Advice, "cgroup", "cgroup", "prun may make no cgroup here: a process that leaves its session and its parents could outlive its job if prun, rankd and keeper are all killed at once")
            .try_this("a delegated cgroup: `systemd-run --user --scope -p Delegate=yes`, or root"));
    }
    if host.numa_balancing == Some(true) && machine.memory.iter().filter(|node| !node.cpus.is_empty()).count() > 1 {
        add(Finding::new(
            Level::Advice,
            "numa-balancing",
            "kernel",
            "the kernel moves pages between NUMA nodes while jobs run, which shows up as jitter",
        )
        .seen("kernel.numa_balancing is on")
        .try_this("`sysctl kernel.numa_balancing=0` for pinned jobs"));
    }
    findings.extend(memory(host, gpus, ranks));
    let mut add = |finding| findings.push(finding);
    if let (Some(built), Some(served)) = (&host.nccl_cuda, &machine.cuda)
        && let (Some(built_for), Some(most)) = (version(built), version(served))
        && built_for.0 > most.0
    {
        add(Finding::new(
            Level::Warning,
            "nccl-cuda",
            "NCCL",
            "it was built for a generation of CUDA that the driver does not serve: it does not start",
        )
        .seen(format!(
            "NCCL {} for CUDA {built}, the driver serves up to {served}",
            host.nccl.as_deref().unwrap_or("?")
        ))
        .try_this("NCCL for an older CUDA, or a newer driver")
        .costs(0.8));
    }
    for note in machine.notes.iter().filter(|note| note.contains("NVML did not answer")) {
        add(Finding::new(Level::Fault, "driver", "NVIDIA driver", "its library does not work with it")
            .seen(note.clone())
            .try_this("library and kernel module of the same version: reload the module or start the machine again after an update")
            .costs(0.9));
    }
    if let (Some(library), Some(driver)) = (&host.cuda_library, &machine.driver)
        && library != driver
    {
        add(Finding::new(
            Level::Fault,
            "driver-mismatch",
            "NVIDIA driver",
            "library and kernel module are of different versions",
        )
        .seen(format!("libcuda {library}, kernel module {driver}"))
        .try_this("reload the module or start the machine again after an update; in a container, the host's libraries")
        .costs(0.9));
    }
    if let (Some(toolkit), Some(served)) = (&host.cuda_toolkit, &machine.cuda)
        && let (Some(built), Some(most)) = (version(toolkit), version(served))
        && built > most
    {
        let (level, what) = match built.0 > most.0 {
            true => (
                Level::Warning,
                "the CUDA toolkit is a generation newer than the driver: what it builds does not start",
            ),
            false => (
                Level::Advice,
                "the CUDA toolkit is newer than the driver: what it builds may need functions that are missing",
            ),
        };
        add(Finding::new(level, "cuda-version", "CUDA", what)
            .seen(format!("toolkit {toolkit}, the driver serves up to {served}"))
            .try_this("a newer driver, an older toolkit, or the package cuda-compat"));
    }
    let lines = host.kernel_log.as_deref().unwrap_or_default();
    findings.extend(log::findings(lines, host.kernel_log_new, host.uptime_s));
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::tests_support::two_sockets;

    #[test]
    fn limits_are_judged_and_a_generous_machine_is_not() {
        let fine = Host {
            open_files: Some(1 << 20),
            shm_mib: Some(32_000),
            has_sys: true,
            has_cgroup: true,
            ..Host::default()
        };
        assert_eq!(findings(&fine, &two_sockets(), Some(16)), []);
        assert_eq!(findings(&Host { memory_limit_mib: Some(8192), ..fine.clone() }, &two_sockets(), Some(16)), []);
        let tight = Host {
            memlock_mib: Some(8),
            open_files: Some(1024),
            shm_mib: Some(64),
            numa_balancing: Some(true),
            memory_limit_mib: Some(4096),
            kernel_log: Some(vec!["NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus.".into()]),
            ..Host::default()
        };
        let found = findings(&tight, &two_sockets(), Some(17));
        let checks: Vec<&str> = found.iter().map(|finding| finding.check).collect();
        let expected =
            ["memlock", "open-files", "shm", "sysfs", "cgroup", "numa-balancing", "memory-limit", "kernel-log"];
        assert_eq!(checks, expected);
        assert_eq!(found.last().unwrap().level, Level::Fault);
    }

    #[test]
    fn whether_ranks_fit_is_asked_of_any_machine() {
        let said = |machine: &Machine, ranks: u32| {
            room(machine, Some(ranks)).into_iter().map(|finding| finding.what).collect::<Vec<_>>()
        };
        let mut machine = two_sockets();
        assert_eq!(said(&machine, 4), [""; 0]);
        assert_eq!(said(&machine, 17), ["17 ranks, 4 GPUs", "17 ranks have 16.0 CPUs"]);
        machine.gpus.truncate(2);
        assert_eq!(said(&machine, 9), ["9 ranks, 2 GPUs"]);
        machine.cpus.as_mut().unwrap().quota = Some(1.5);
        assert_eq!(said(&machine, 2), ["2 ranks have 1.5 CPUs"]);
        machine.cpus = None;
        machine.gpus.clear();
        assert_eq!(said(&machine, 9), [""; 0]);
    }

    #[test]
    fn what_nccl_was_built_for_is_found_in_it() {
        let path = std::env::temp_dir().join(format!("prun-nccl-{}", std::process::id()));
        // The mark lies across the first two pieces that are read.
        let mut content = vec![b'+'; (1 << 20) - 8];
        content.extend(b"\0NCCL version 2.28.9+cuda13.0\0rest");
        fs::write(&path, &content).unwrap();
        assert_eq!(built_for(&path).as_deref(), Some("13.0"));
        fs::write(&path, b"+cuda+cudart +cuda1 ").unwrap();
        assert_eq!(built_for(&path), None);
        let _ = fs::remove_file(&path);
        let host = Host { has_sys: true, has_cgroup: true, nccl_cuda: Some("13.0".into()), ..Host::default() };
        let checks = |cuda: &str| {
            let machine = Machine { cuda: Some(cuda.into()), ..two_sockets() };
            findings(&host, &machine, None).iter().map(|finding| (finding.check, finding.level)).collect::<Vec<_>>()
        };
        assert_eq!((checks("12.9"), checks("13.0")), (vec![("nccl-cuda", Level::Warning)], vec![]));
        let _ = read(None);
    }

    #[test]
    fn versions_that_do_not_fit_together_are_told() {
        let mut machine = two_sockets();
        (machine.driver, machine.cuda) = (Some("580.159.04".into()), Some("13.0".into()));
        let checks = |library: &str, toolkit: &str| {
            let host = Host {
                has_sys: true,
                has_cgroup: true,
                cuda_library: Some(library.into()),
                cuda_toolkit: toolkit_of(toolkit),
                ..Host::default()
            };
            findings(&host, &machine, None).iter().map(|finding| (finding.check, finding.level)).collect::<Vec<_>>()
        };
        fn toolkit_of(version: &str) -> Option<String> {
            toolkit(&format!(r#"{{"cuda": {{"name": "CUDA SDK", "version": "{version}"}}}}"#))
        }
        assert_eq!(checks("580.159.04", "13.0.48"), []);
        assert_eq!(checks("580.159.04", "12.9.1"), []);
        assert_eq!(checks("570.86.15", "13.1.0"), [("driver-mismatch", Level::Fault), ("cuda-version", Level::Advice)]);
        assert_eq!(checks("580.159.04", "14.0.0"), [("cuda-version", Level::Warning)]);
        assert_eq!(toolkit("nonsense"), None);
    }
}
