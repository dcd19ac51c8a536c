//! Reads a machine from `/proc` and `/sys` below a root.
//!
//! [`Detail::Launch`] reads only what a job's placement looks at: the GPUs that the NVIDIA driver lists, their NUMA
//! nodes and the CPUs. [`Detail::Full`] walks the PCI bus as well.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use super::{
    AMD, Aer, Device, DeviceKind, Gpu, Machine, MemoryNode, NVIDIA, Nic, PciAddress, PciLink, Speed, aer, pci,
};
use crate::placement::cpuset::CpuSet;
use crate::placement::node;

/// How much is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Detail {
    /// What placing ranks needs.
    Launch,
    /// GPUs, network cards and the bridges above them.
    Tree,
    /// Every PCI device with its link and its errors.
    Full,
}

/// Where the NVIDIA driver lists its GPUs.
const DRIVER_GPUS: &str = "proc/driver/nvidia/gpus";

/// Whether the NVIDIA driver has a GPU here; one look, so that a machine without is not read any further.
pub fn has_nvidia_driver(root: &Path) -> bool {
    root.join(DRIVER_GPUS).exists()
}

/// Whether a GPU is cut into MIG slices; their names are known to NVML alone.
pub fn has_slices(root: &Path, machine: &Machine) -> bool {
    let sliced = |minor: u32| {
        let directory = root.join(format!("proc/driver/nvidia/capabilities/gpu{minor}/mig"));
        entries(&directory).any(|name| name.starts_with("gi"))
    };
    machine.gpus.iter().filter_map(|gpu| gpu.minor).any(sliced)
}

/// The machine below `root`.
pub fn machine(root: &Path, detail: Detail) -> Machine {
    let mut machine = Machine {
        name: read(root, "proc/sys/kernel/hostname").map(|name| name.trim().to_owned()).unwrap_or_default(),
        origin: "sysfs".into(),
        kernel: read(root, "proc/sys/kernel/osrelease").map(|release| release.trim().to_owned()),
        driver: read(root, "proc/driver/nvidia/version").and_then(|text| driver_version(&text)),
        cpus: node::read_cpus(root),
        memory: memory(root),
        ..Machine::default()
    };
    if let Some(cpus) = &machine.cpus {
        machine.notes.extend(cpus.notes.iter().cloned());
    }
    machine.gpus = driver_gpus(root);
    if detail != Detail::Launch {
        machine.memory_limit_mib = node::memory_limit(root).map(|bytes| bytes >> 20);
    }
    if detail == Detail::Launch {
        for gpu in &machine.gpus {
            machine.devices.extend(gpu.address.and_then(|address| device(root, address, false)));
        }
    } else {
        tree(root, &mut machine, detail);
    }
    for gpu in &mut machine.gpus {
        let Some(device) = machine.devices.iter().find(|device| Some(device.address) == gpu.address) else { continue };
        gpu.vendor = gpu.vendor.or(Some(device.vendor).filter(|vendor| *vendor != 0));
        gpu.local_cpus = gpu.local_cpus.take().or_else(|| device.local_cpus.clone());
        gpu.numa = device.numa.into_iter().collect();
    }
    locate(&mut machine);
    machine.derive_links();
    machine
}

/// A GPU whose NUMA node the firmware does not tell is near to the node that has all of its local CPUs, if that is
/// one of several.
fn locate(machine: &mut Machine) {
    let Machine { gpus, memory, .. } = machine;
    let with_cpus: Vec<&MemoryNode> = memory.iter().filter(|node| !node.cpus.is_empty()).collect();
    for gpu in gpus.iter_mut().filter(|gpu| gpu.numa.is_empty()) {
        let Some(local) = gpu.local_cpus.as_ref().filter(|local| !local.is_empty()) else { continue };
        let mut around = with_cpus.iter().filter(|node| local.and(&node.cpus).len() == local.len());
        if let (Some(only), None, true) = (around.next(), around.next(), with_cpus.len() > 1) {
            gpu.numa = vec![only.node];
        }
    }
}

/// GPUs that the driver lists, in PCI order, as far as this process has a device file for them.
fn driver_gpus(root: &Path) -> Vec<Gpu> {
    let mut gpus: Vec<Gpu> = entries(&root.join(DRIVER_GPUS))
        .filter_map(|name| {
            let address: PciAddress = name.parse().ok()?;
            let directory = format!("{DRIVER_GPUS}/{name}");
            let mut gpu = Gpu { address: Some(address), vendor: Some(NVIDIA), ..Gpu::default() };
            for line in read(root, &format!("{directory}/information")).unwrap_or_default().lines() {
                let Some((key, value)) = line.split_once(':') else { continue };
                let value = value.trim();
                match key.trim() {
                    "Model" => gpu.name = Some(value.to_owned()),
                    // A driver that has not started the GPU yet writes question marks.
                    "GPU UUID" if !value.contains('?') => gpu.uuid = Some(value.to_owned()),
                    "Device Minor" => gpu.minor = value.parse().ok(),
                    _ => {}
                }
            }
            gpu.memory_numa = read(root, &format!("{directory}/numa_status")).and_then(|text| numa_status(&text));
            Some(gpu)
        })
        .collect();
    // A container lists all GPUs of the host and has device files for its own only.
    let has_file = |gpu: &Gpu| gpu.minor.is_none_or(|minor| root.join(format!("dev/nvidia{minor}")).exists());
    if gpus.iter().any(has_file) {
        gpus.retain(has_file);
    }
    gpus.sort_by_key(|gpu| gpu.address);
    for (index, gpu) in gpus.iter_mut().enumerate() {
        gpu.index = index;
    }
    gpus
}

/// `Node: 255` where the GPU's memory is a NUMA node that is online.
fn numa_status(text: &str) -> Option<usize> {
    let value = |name: &str| {
        text.lines()
            .find_map(|line| line.split_once(':').filter(|(key, _)| key.trim() == name))
            .map(|(_, value)| value.trim())
    };
    value("Node")?.parse().ok().filter(|_| value("Status").is_none_or(|status| status == "online"))
}

/// `NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.159.04  …`: the first word with two dots or one.
fn driver_version(text: &str) -> Option<String> {
    let line = text.lines().find(|line| line.contains("NVRM version"))?;
    line.split_whitespace()
        .find(|word| word.contains('.') && word.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.'))
        .map(str::to_owned)
}

/// GPUs of other makers, network cards, bridges; with [`Detail::Full`] everything.
fn tree(root: &Path, machine: &mut Machine, detail: Detail) {
    let mut addresses: Vec<PciAddress> =
        entries(&root.join("sys/bus/pci/devices")).filter_map(|name| name.parse().ok()).collect();
    addresses.sort_unstable();
    let class = |address: &PciAddress| {
        read(root, &format!("sys/bus/pci/devices/{address}/class")).and_then(|text| hex(&text)).unwrap_or(0)
    };
    let classes: Vec<(PciAddress, u32)> = addresses.iter().map(|address| (*address, class(address))).collect();
    let wanted = |class: u32| class >> 16 == 2 || matches!(class >> 8, 0x0300 | 0x0302 | 0x0380 | 0x1200);
    let driver: BTreeSet<PciAddress> = machine.gpus.iter().filter_map(|gpu| gpu.address).collect();
    let mut bridges = BTreeSet::new();
    for (address, class) in &classes {
        let looked_at = detail == Detail::Full || wanted(*class) || driver.contains(address);
        if let Some(device) = looked_at.then(|| device(root, *address, true)).flatten() {
            bridges.extend(device.above.iter().copied());
            machine.devices.push(device);
        }
    }
    for bridge in bridges {
        if machine.device(bridge).is_none() {
            machine.devices.extend(device(root, bridge, true));
        }
    }
    for address in driver {
        if machine.device(address).is_none() {
            machine.devices.extend(device(root, address, true));
        }
    }
    machine.devices.sort_by_key(|device| device.address);
    // A GPU that the driver does not list, or of another maker.
    let known: BTreeSet<Option<PciAddress>> = machine.gpus.iter().map(|gpu| gpu.address).collect();
    // A copy of a machine's bus may say nothing of drivers at all: then what looks like a GPU is one.
    let drivers_told = machine.driver.is_some() || machine.devices.iter().any(|device| device.driver.is_some());
    for device in &machine.devices {
        let compute = device.kind != DeviceKind::VirtualFunction && device.is_gpu();
        let wanted = device.vendor == AMD || (device.vendor == NVIDIA && !drivers_told);
        if compute && wanted && !known.contains(&Some(device.address)) {
            machine.gpus.push(Gpu {
                index: machine.gpus.len(),
                address: Some(device.address),
                vendor: Some(device.vendor),
                name: device.name.clone(),
                ..Gpu::default()
            });
        }
        if device.class >> 16 == 2 && device.kind != DeviceKind::VirtualFunction {
            machine.nics.push(Nic {
                name: nic_name(root, device.address),
                address: Some(device.address),
                numa: device.numa,
            });
        }
    }
    machine.iommu = iommu(root, machine);
}

/// How the kernel translates the first GPU's transfers; `off` where it has no IOMMU at all.
fn iommu(root: &Path, machine: &Machine) -> Option<String> {
    let address = machine.gpus.iter().find_map(|gpu| gpu.address)?;
    let of_gpu = read(root, &format!("sys/bus/pci/devices/{address}/iommu_group/type"));
    match of_gpu {
        Some(kind) => Some(kind.trim().to_owned()),
        None if root.join("sys/class/iommu").exists() => {
            entries(&root.join("sys/class/iommu")).next().is_none().then(|| "off".to_owned())
        }
        None => None,
    }
}

fn nic_name(root: &Path, address: PciAddress) -> String {
    let base = root.join(format!("sys/bus/pci/devices/{address}"));
    let first = |directory: &str| entries(&base.join(directory)).min();
    // A virtual card has its interface one device further down.
    let of_virtio = || {
        let device = entries(&base).filter(|name| name.starts_with("virtio")).min()?;
        first(&format!("{device}/net"))
    };
    first("infiniband").or_else(|| first("net")).or_else(of_virtio).unwrap_or_else(|| address.to_string())
}

/// One PCI device; `None` if the kernel has none there.
pub fn device(root: &Path, address: PciAddress, with_errors: bool) -> Option<Device> {
    let place = format!("sys/bus/pci/devices/{address}");
    let base = root.join(&place);
    let target = fs::read_link(&base).ok();
    if target.is_none() && !base.is_dir() {
        return None;
    }
    let text = |name: &str| fs::read_to_string(base.join(name)).ok();
    let number = |name: &str| text(name).and_then(|text| text.trim().parse::<u32>().ok());
    let class = text("class").and_then(|text| hex(&text)).unwrap_or(0);
    let kind = if class >> 8 == 0x0604 {
        DeviceKind::Port
    } else if fs::symlink_metadata(base.join("physfn")).is_ok() {
        DeviceKind::VirtualFunction
    } else {
        DeviceKind::Endpoint
    };
    let (host_bridge, above) = target.map(|target| place_in_tree(&target)).unwrap_or_default();
    let speed = |name: &str| text(name).and_then(|text| Speed::read(&text));
    let link = match kind {
        DeviceKind::VirtualFunction => PciLink::default(),
        _ => PciLink {
            speed: speed("current_link_speed"),
            width: number("current_link_width").and_then(pci::lanes),
            max_speed: speed("max_link_speed"),
            max_width: number("max_link_width").and_then(pci::lanes),
        },
    };
    let counts = |name: &str| with_errors.then(|| text(name)).flatten().map(|text| aer::read(&text));
    let is_empty = (kind == DeviceKind::Port && with_errors)
        .then(|| !entries(&base).any(|name| name.parse::<PciAddress>().is_ok()));
    Some(Device {
        kind,
        class,
        vendor: text("vendor").and_then(|text| hex(&text)).and_then(|vendor| u16::try_from(vendor).ok()).unwrap_or(0),
        driver: fs::read_link(base.join("driver"))
            .ok()
            .and_then(|target| Some(target.file_name()?.to_str()?.to_owned())),
        // -1 says that the firmware does not tell.
        numa: text("numa_node").and_then(|text| text.trim().parse().ok()),
        local_cpus: text("local_cpulist")
            .and_then(|text| CpuSet::from_kernel(&text))
            .or_else(|| text("local_cpus").and_then(|text| CpuSet::from_mask(&text)))
            .filter(|set| !set.is_empty()),
        root: host_bridge,
        above,
        link,
        is_empty,
        acs_redirect: (kind == DeviceKind::Port && with_errors).then(|| acs_redirect(&base)).flatten(),
        aer: Aer {
            correctable: counts("aer_dev_correctable"),
            nonfatal: counts("aer_dev_nonfatal"),
            fatal: counts("aer_dev_fatal"),
        },
        ..Device::at(address)
    })
}

/// Whether the bridge redirects requests between devices: bit 2 of the ACS control register. Only root sees that far
/// into the configuration space.
fn acs_redirect(base: &Path) -> Option<bool> {
    const EXTENDED: usize = 0x100;
    const ACS: u16 = 0x000d;
    let config = fs::read(base.join("config")).ok().filter(|config| config.len() > EXTENDED)?;
    let word = |at: usize| Some(u16::from_le_bytes([*config.get(at)?, *config.get(at + 1)?]));
    let mut at = EXTENDED;
    // Each capability names the next; a damaged list may lead in a circle.
    for _ in 0..64 {
        let (id, next) = (word(at)?, usize::from(word(at + 2)? >> 4));
        if id == ACS {
            return Some(word(at + 6)? & 0x04 != 0);
        }
        if next < EXTENDED {
            return None;
        }
        at = next;
    }
    None
}

/// Host bridge and bridges of `../../../devices/pci0000:00/0000:00:01.0/0000:01:00.0`. A controller that opens a
/// domain of its own (`…/pci10000:00/…`) is a host bridge for what is below it.
fn place_in_tree(target: &Path) -> (Option<String>, Vec<PciAddress>) {
    let (mut root, mut above) = (None, Vec::new());
    for part in target.iter().filter_map(|part| part.to_str()) {
        if let Some(bus) = part.strip_prefix("pci").filter(|bus| bus.contains(':')) {
            root = Some(format!("pci{bus}"));
            above.clear();
        } else if let Ok(address) = part.parse() {
            above.push(address);
        }
    }
    above.pop();
    (root, above)
}

/// NUMA nodes with their memory.
fn memory(root: &Path) -> Vec<MemoryNode> {
    let directory = root.join("sys/devices/system/node");
    let mut nodes: Vec<MemoryNode> = entries(&directory)
        .filter_map(|name| {
            let node = name.strip_prefix("node")?.parse().ok()?;
            let text = |file: &str| fs::read_to_string(directory.join(&name).join(file)).ok();
            let total = text("meminfo").and_then(|text| {
                let line = text.lines().find(|line| line.contains("MemTotal:"))?;
                line.split_whitespace().rev().nth(1)?.parse::<u64>().ok()
            });
            Some(MemoryNode {
                node,
                cpus: text("cpulist").and_then(|text| CpuSet::from_kernel(&text)).unwrap_or_default(),
                memory_mib: total.map(|kib| kib / 1024),
                distance: text("distance")
                    .map(|text| text.split_whitespace().filter_map(|number| number.parse().ok()).collect())
                    .unwrap_or_default(),
            })
        })
        .collect();
    nodes.sort_by_key(|node| node.node);
    if let Some(present) = read(root, "sys/devices/system/cpu/present").and_then(|text| CpuSet::from_kernel(&text)) {
        for node in &mut nodes {
            node.cpus = node.cpus.and(&present);
        }
    }
    nodes
}

/// Names in a directory; none if there is no such directory.
fn entries(directory: &Path) -> impl Iterator<Item = String> + use<> {
    fs::read_dir(directory).into_iter().flatten().flatten().filter_map(|entry| entry.file_name().into_string().ok())
}

fn hex(text: &str) -> Option<u32> {
    u32::from_str_radix(text.trim().trim_start_matches("0x"), 16).ok()
}

fn read(root: &Path, path: &str) -> Option<String> {
    fs::read_to_string(root.join(path)).ok()
}

#[cfg(test)]
mod tests {
    use super::super::LinkKind;
    use super::super::tree::Tree;
    use super::*;

    #[test]
    fn gpus_are_those_of_the_driver_that_have_a_device_file() {
        let tree = Tree::new("gpus").cpus(8, 2).gpu("0000:41:00.0", 1, Some(1)).gpu("0000:3b:00.0", 0, Some(0)).gpu(
            "0000:81:00.0",
            2,
            None,
        );
        std::fs::remove_file(tree.root().join("dev/nvidia2")).unwrap();
        let machine = machine(tree.root(), Detail::Launch);
        let shown: Vec<_> =
            machine.gpus.iter().map(|gpu| (gpu.index, gpu.address.unwrap().to_string(), gpu.numa.clone())).collect();
        assert_eq!(shown, [(0, "0000:3b:00.0".into(), vec![0]), (1, "0000:41:00.0".into(), vec![1])]);
        assert!(machine.gpus[0].uuid.as_ref().unwrap().starts_with("GPU-"));
        assert_eq!(machine.driver.as_deref(), Some("580.159.04"));
    }

    #[test]
    fn a_numa_node_of_minus_one_is_found_by_its_cpus_or_stays_unknown() {
        let tree = Tree::new("minus").cpus(8, 2).gpu("0000:3b:00.0", 0, None).gpu("0000:41:00.0", 1, None);
        tree.file("sys/bus/pci/devices/0000:3b:00.0/local_cpulist", "4-7\n");
        tree.file("sys/bus/pci/devices/0000:41:00.0/local_cpulist", "0-7\n");
        let machine = machine(tree.root(), Detail::Launch);
        assert_eq!(machine.gpus[0].numa, [1]);
        assert_eq!(machine.gpus[1].numa, Vec::<usize>::new());
        assert_eq!(machine.device_of(&machine.gpus[1]).unwrap().numa, None);
        assert_eq!(machine.gpu_link(0, 1).unwrap().kind, LinkKind::Unknown);
    }

    #[test]
    fn a_mask_of_local_cpus_does_where_there_is_no_list() {
        let tree = Tree::new("mask").cpus(8, 2).gpu("0000:3b:00.0", 0, None);
        tree.file("sys/bus/pci/devices/0000:3b:00.0/local_cpus", "00000000,000000f0\n");
        let machine = machine(tree.root(), Detail::Launch);
        assert_eq!(machine.gpus[0].local_cpus.as_ref().unwrap().to_string(), "4-7");
        assert_eq!(machine.gpus[0].numa, [1]);
    }

    #[test]
    fn memory_that_is_a_gpu_s_is_no_place_for_ranks() {
        let tree = Tree::new("power").cpus(32, 0).gpu("0004:05:00.0", 0, None).gpu("0035:05:00.0", 1, None);
        tree.file("sys/devices/system/cpu/present", "0-15,88-103\n");
        tree.file("sys/devices/system/cpu/online", "0-15,88-103\n");
        tree.file("proc/self/status", "Cpus_allowed_list:\t0-175\n");
        for (node, cpus) in [("0", "0-87\n"), ("8", "88-175\n"), ("255", "\n"), ("250", "\n")] {
            tree.file(&format!("sys/devices/system/node/node{node}/cpulist"), cpus);
        }
        tree.file("sys/bus/pci/devices/0004:05:00.0/local_cpulist", "0-15\n");
        tree.file("sys/bus/pci/devices/0035:05:00.0/local_cpulist", "88-103\n");
        tree.file("proc/driver/nvidia/gpus/0004:05:00.0/numa_status", "Node:      255\nStatus:    online\n");
        tree.file("proc/driver/nvidia/gpus/0035:05:00.0/numa_status", "Node:      250\nStatus:    offline\n");
        let machine = machine(tree.root(), Detail::Launch);
        assert_eq!(machine.gpus.iter().map(|gpu| gpu.numa.clone()).collect::<Vec<_>>(), [[0], [8]]);
        assert_eq!(machine.gpus.iter().map(|gpu| gpu.memory_numa).collect::<Vec<_>>(), [Some(255), None]);
        let nodes: Vec<_> = machine.memory.iter().map(|node| (node.node, node.cpus.to_string())).collect();
        assert_eq!(nodes, [(0, "0-15".into()), (8, "88-103".into()), (250, "".into()), (255, "".into())]);
        let numa: Vec<usize> = machine.cpus.unwrap().numa.iter().map(|node| node.id).collect();
        assert_eq!(numa, [0, 8]);
    }

    #[test]
    fn the_tree_has_ports_links_errors_and_wide_domains() {
        let tree = Tree::new("tree").cpus(8, 1);
        tree.device(
            "0000:00:03.0",
            &[],
            &[
                ("class", "0x060400"),
                ("current_link_speed", "8.0 GT/s PCIe"),
                ("current_link_width", "8"),
                ("max_link_speed", "8.0 GT/s PCIe"),
                ("max_link_width", "16"),
                ("numa_node", "-1"),
            ],
        );
        tree.device(
            "0000:03:00.0",
            &["0000:00:03.0"],
            &[
                ("class", "0x020000"),
                ("current_link_speed", "8.0 GT/s PCIe"),
                ("current_link_width", "8"),
                ("max_link_speed", "8.0 GT/s PCIe"),
                ("max_link_width", "8"),
                ("numa_node", "-1"),
                ("local_cpulist", "0-7"),
                ("aer_dev_correctable", "RxErr 3\nBadTLP 17\nTimeout 2\nTOTAL_ERR_COR 22\n"),
                ("net/eth0/mtu", "1500"),
            ],
        );
        tree.device(
            "10000:00:04.0",
            &[],
            &[
                ("class", "0x020700"),
                ("current_link_speed", "Unknown"),
                ("current_link_width", "63"),
                ("max_link_speed", "Unknown speed"),
                ("max_link_width", "255"),
            ],
        );
        let machine = machine(tree.root(), Detail::Full);
        let shown: Vec<String> = machine.devices.iter().map(|device| device.address.to_string()).collect();
        assert_eq!(shown, ["0000:00:03.0", "0000:03:00.0", "10000:00:04.0"]);
        let card = &machine.devices[1];
        assert_eq!((card.above.len(), card.numa, card.link.shown()), (1, None, "Gen3 x8".into()));
        assert_eq!(Aer::total(&card.aer.correctable), Some(22));
        assert_eq!(card.aer.fatal, None);
        assert!(machine.devices[2].link.is_unknown());
        tree.device("0000:00:06.0", &[], &[("class", "0x020000"), ("virtio3/net/ens6/mtu", "1500")]);
        assert_eq!(nic_name(tree.root(), "0000:00:06.0".parse().unwrap()), "ens6");
        assert_eq!(machine.nics.iter().map(|nic| nic.name.as_str()).collect::<Vec<_>>(), ["eth0", "10000:00:04.0"]);
        assert_eq!(machine.devices[0].is_empty, Some(false));
    }

    #[test]
    fn redirection_is_read_out_of_the_configuration_space() {
        let tree = Tree::new("acs");
        let mut config = vec![0u8; 0x200];
        config[0x100..0x104].copy_from_slice(&[0x01, 0x00, 0x01, 0x14]);
        config[0x140..0x148].copy_from_slice(&[0x0d, 0x00, 0x01, 0x00, 0, 0, 0x1d, 0]);
        tree.device("0000:00:01.0", &[], &[("class", "0x060400")]);
        let base = tree.root().join("sys/bus/pci/devices/0000:00:01.0");
        for (length, control, expected) in [(0x200, 0x1d, Some(true)), (0x200, 0x01, Some(false)), (0x40, 0, None)] {
            config[0x146] = control;
            std::fs::write(base.join("config"), &config[..length]).unwrap();
            assert_eq!(acs_redirect(&base), expected);
        }
        config[0x102..0x104].copy_from_slice(&[0x01, 0x10]);
        std::fs::write(base.join("config"), &config).unwrap();
        assert_eq!(acs_redirect(&base), None);
    }

    #[test]
    fn an_empty_root_is_no_machine_and_no_panic() {
        let machine = machine(Path::new("/nonexistent"), Detail::Full);
        assert!(machine.gpus.is_empty() && machine.cpus.is_none() && machine.memory.is_empty());
    }
}
