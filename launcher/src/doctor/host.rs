//! Limits and operating system: what stops or slows jobs without any hardware being at fault.

use std::fs;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::process::{Resource, getrlimit};
use serde::{Deserialize, Serialize};

use super::{Finding, Level};
use crate::topology::Machine;

/// Lines of the kernel log that are kept.
const MOST_LINES: usize = 20;
/// CUDA pins memory for copies; less than this and large copies fail or are slow.
const ENOUGH_MEMLOCK_MIB: u64 = 64;

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
    /// The version of the CUDA library that programs of this machine load, which must be the driver's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cuda_library: Option<String>,
    /// The CUDA toolkit that is installed, as `13.0`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cuda_toolkit: Option<String>,
    /// Lines about GPUs and PCIe errors in the kernel log; absent: it may not be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel_log: Option<Vec<String>>,
}

/// Looks at this machine.
pub fn read() -> Host {
    let mib = |resource| getrlimit(resource).current.map(|bytes| bytes >> 20);
    let shm = rustix::fs::statvfs("/dev/shm").ok();
    let root = Path::new("/");
    let text = |path: &str| fs::read_to_string(root.join(path)).ok();
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
        nccl: installed("libnccl.so."),
        // The name without a version is a link to it.
        cuda_library: installed("libcuda.so.").filter(|version| version.contains('.')),
        cuda_toolkit: text("usr/local/cuda/version.json").and_then(|text| toolkit(&text)),
        kernel_log: kernel_log(),
    }
}

/// Makes a cgroup as a job would, and removes it.
fn has_cgroup() -> bool {
    let made = rankd::cgroup::JobCgroup::create(&format!("doctor{:010}", std::process::id()));
    made.is_some_and(|cgroup| cgroup.remove())
}

/// The longest version in the name of an installed library: `libnccl.so.2` is a link to `libnccl.so.2.28.9`.
fn installed(library: &str) -> Option<String> {
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
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter_map(|name| name.strip_prefix(library).map(str::to_owned))
        .max_by_key(String::len)
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

/// Records of `/dev/kmsg` that are about GPUs or PCIe errors; `None` if it may not be read.
fn kernel_log() -> Option<Vec<String>> {
    let flags = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).unwrap_or(0);
    let mut file = fs::OpenOptions::new().read(true).custom_flags(flags).open("/dev/kmsg").ok()?;
    let (mut lines, mut buffer) = (Vec::new(), [0u8; 8192]);
    // Each read gives one record; the end is "would block", and a record that was overwritten meanwhile is passed over.
    for _ in 0..200_000 {
        match file.read(&mut buffer) {
            Ok(count) => lines.extend(interesting(&String::from_utf8_lossy(&buffer[..count]))),
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => {}
            Err(_) => break,
        }
    }
    let skip = lines.len().saturating_sub(MOST_LINES);
    Some(lines.split_off(skip))
}

/// `6,1234,5678,-;NVRM: Xid …` without its prefix, if it is about GPUs or PCIe errors.
fn interesting(record: &str) -> Option<String> {
    let line = record.lines().next()?.split_once(';').map_or(record, |(_, line)| line).trim();
    let wanted = line.contains("NVRM: Xid")
        || line.contains("AER: ")
        || line.contains("PCIe Bus Error")
        || line.contains("fallen off the bus");
    wanted.then(|| line.chars().take(200).collect())
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
    if let (Some(cpus), Some(ranks)) = (&machine.cpus, ranks) {
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
    if let Some(cpus) = machine.cpus.as_ref().filter(|cpus| cpus.usable.len() < gpus) {
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
    for line in host.kernel_log.iter().flatten() {
        let fallen = line.contains("fallen off the bus");
        let xid = line.contains("Xid");
        let (level, what) = match (fallen, xid) {
            (true, _) => (Level::Fault, "a GPU fell off the bus since the machine was started"),
            (false, true) => (Level::Warning, "the NVIDIA driver reported an error since the machine was started"),
            (false, false) => (Level::Warning, "the kernel reported a PCIe error since the machine was started"),
        };
        add(Finding::new(level, "kernel-log", "kernel log", what)
            .seen(line.clone())
            .try_this(xid_cure(line))
            .costs(if fallen { 1.0 } else { 0.1 }));
    }
    findings
}

/// What NVIDIA's numbers for errors are about.
fn xid_cure(line: &str) -> &'static str {
    let number =
        line.split("Xid").nth(1).and_then(|rest| rest.rsplit_once("): ").or(Some(("", rest)))).and_then(|(_, rest)| {
            rest.trim_start_matches([':', ' ']).split([',', ' ', ':']).next()?.parse::<u32>().ok()
        });
    match number {
        Some(13 | 31 | 43 | 45 | 68) => "usually a fault of the program: compute-sanitizer finds where",
        Some(48 | 63 | 64 | 92 | 94 | 95) => {
            "memory errors: `nvidia-smi -q -d ECC,ROW_REMAPPER`; exchange the card if they come again"
        }
        Some(74) => "NVLink errors: `nvidia-smi nvlink -e`; reseat bridges",
        Some(79) => "the GPU fell off the bus: power, temperature, seating",
        Some(119 | 120) => "the GPU's own processor hung: driver update, cold start",
        _ => "`dmesg` around that line",
    }
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
        let tight = Host {
            memlock_mib: Some(8),
            open_files: Some(1024),
            shm_mib: Some(64),
            numa_balancing: Some(true),
            kernel_log: Some(vec!["NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus.".into()]),
            ..Host::default()
        };
        let found = findings(&tight, &two_sockets(), Some(17));
        let checks: Vec<&str> = found.iter().map(|finding| finding.check).collect();
        assert_eq!(checks, ["memlock", "open-files", "shm", "sysfs", "cgroup", "cpus", "numa-balancing", "kernel-log"]);
        assert_eq!(found.last().unwrap().level, Level::Fault);
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

    #[test]
    fn records_of_the_kernel_log_are_picked_out() {
        assert_eq!(
            interesting("6,1,2,-;NVRM: Xid (PCI:0000:1b:00): 31, pid=1\n SUB=x").unwrap(),
            "NVRM: Xid (PCI:0000:1b:00): 31, pid=1"
        );
        assert_eq!(interesting("6,1,2,-;usb 1-1: new device"), None);
        assert!(xid_cure("NVRM: Xid (PCI:0000:1b:00): 31, pid=1").contains("program"));
        assert!(xid_cure("NVRM: Xid 48").contains("memory"));
        assert!(xid_cure("AER: x").contains("dmesg"));
        let _ = read();
    }
}
