//! What a machine is made of: [`Machine`], whatever it was read from.
//!
//! [`read`] looks at `/proc` and `/sys` below a root that can be moved, [`nvml`] asks the NVIDIA driver,
//! [`smi_topo`] and [`lspci`] read saved text, [`snapshot`] saves and loads. What none of them knows stays
//! unknown. [`ring`] finds the best cycle over GPUs.

pub mod aer;
#[cfg(test)]
mod cases;
pub mod known;
pub mod link;
pub mod lspci;
pub mod measured;
pub mod nvml;
pub mod pci;
pub mod read;
pub mod ring;
pub mod smi_topo;
pub mod snapshot;
#[cfg(test)]
pub(crate) mod tree;

use serde::{Deserialize, Serialize};

use crate::placement::cpuset::CpuSet;
use crate::placement::node::Cpus;
pub use aer::Aer;
pub use link::LinkKind;
pub use measured::{Moved, Way};
pub use pci::{PciAddress, PciLink, Speed};

/// NVIDIA's number among makers of PCI devices.
pub const NVIDIA: u16 = 0x10de;
/// AMD's.
pub const AMD: u16 = 0x1002;
/// A GPU this busy should have its link at full speed.
pub const BUSY_PERCENT: u32 = 50;

/// A machine, as far as it could be read.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct Machine {
    /// Its name.
    pub name: String,
    /// Where this comes from, for people: `sysfs and NVML`, `synthetic: …`.
    pub origin: String,
    /// Kernel release.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel: Option<String>,
    /// NVIDIA driver.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub driver: Option<String>,
    /// The newest CUDA that the driver serves.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cuda: Option<String>,
    /// How the IOMMU treats the GPUs: `off`, `identity`, `DMA` and so on, as the kernel calls it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub iommu: Option<String>,
    /// Whether NVIDIA's MPS lets processes work on a GPU at the same time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mps: Option<bool>,
    /// The memory that the cgroup allows, where it limits it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_limit_mib: Option<u64>,
    /// What was odd while reading, one sentence each.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// The CPUs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpus: Option<Cpus>,
    /// NUMA nodes with their memory, those without CPUs too.
    #[serde(rename = "memory", skip_serializing_if = "Vec::is_empty")]
    pub memory: Vec<MemoryNode>,
    /// GPUs in PCI order.
    #[serde(rename = "gpu", skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<Gpu>,
    /// Network cards.
    #[serde(rename = "nic", skip_serializing_if = "Vec::is_empty")]
    pub nics: Vec<Nic>,
    /// PCI devices: GPUs, network cards, and the bridges above them; with `prun doctor` all that have a link.
    #[serde(rename = "device", skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<Device>,
    /// Ways between GPUs, and from GPUs to network cards.
    #[serde(rename = "link", skip_serializing_if = "Vec::is_empty")]
    pub links: Vec<Link>,
}

/// Memory of a NUMA node.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct MemoryNode {
    /// Its number; numbers may be sparse.
    pub node: usize,
    /// CPUs that belong to it, usable or not; none for a GPU's memory.
    pub cpus: CpuSet,
    /// How much memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_mib: Option<u64>,
    /// The firmware's distance to each node, in the order of the nodes; 10 is local.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub distance: Vec<u32>,
}

/// A GPU.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct Gpu {
    /// Its number on the machine, in PCI order.
    pub index: usize,
    /// Where it sits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<PciAddress>,
    /// The driver's name for it, the same after every start.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
    /// Its product name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Its maker's PCI number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vendor: Option<u16>,
    /// The number N of its `/dev/nvidiaN`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub minor: Option<u32>,
    /// NUMA nodes that it is near to: none if unknown, several if the machine cannot tell them apart.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub numa: Vec<usize>,
    /// CPUs that it is near to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub local_cpus: Option<CpuSet>,
    /// The NUMA node that its own memory is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_numa: Option<usize>,
    /// Its memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_mib: Option<u64>,
    /// How much of it the PCI bus can see.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bar1_mib: Option<u64>,
    /// Errors that it reported while it was last looked at.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub errors: Option<ErrorRates>,
    /// The speed of its PCIe link when it was last seen at work, since the machine was started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loaded_speed: Option<Speed>,
    /// UUIDs of its MIG slices; it can only be used by them if there are any.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub mig: Vec<String>,
    /// What it is doing; not of a machine that was read without its driver.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<GpuState>,
}

impl Gpu {
    /// Whether it works hard enough for its link to be at full speed; `None` if nobody knows.
    pub fn is_busy(&self) -> Option<bool> {
        Some(self.state.as_ref()?.busy_percent? >= BUSY_PERCENT)
    }
}

/// Errors of a GPU's PCIe link while somebody looked.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct ErrorRates {
    /// Correctable ones a second.
    pub correctable_per_s: f64,
    /// How many were worse; `None` where only the driver's count of repeated packets is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worse: Option<u64>,
}

/// What a GPU was doing when it was read.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct GpuState {
    /// Share of the last moment in which a kernel ran.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub busy_percent: Option<u32>,
    /// What it sent over PCIe in the last moment, MB/s. Only looks at a running job ask for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pcie_sent_mb_s: Option<u32>,
    /// What it received over PCIe in the last moment, MB/s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pcie_received_mb_s: Option<u32>,
    /// Performance state: 0 is the fastest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pstate: Option<u32>,
    /// Clock of the processors.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sm_mhz: Option<u32>,
    /// Clock of the memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_mhz: Option<u32>,
    /// Temperature.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub celsius: Option<u32>,
    /// Power.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub watts: Option<u32>,
    /// Why it runs slower than it could.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub throttled: Vec<String>,
    /// PCIe packets sent again since the driver was loaded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replays: Option<u64>,
    /// Whether the driver keeps it awake.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub persistence: Option<bool>,
    /// Whether its memory is checked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ecc: Option<bool>,
    /// Memory errors that could not be repaired, since the driver was loaded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uncorrected: Option<u64>,
    /// Pages or rows that are replaced at the next reset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remap_pending: Option<bool>,
    /// Processes that compute on it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub processes: Option<u32>,
    /// NVLinks that are up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nvlinks_up: Option<u32>,
    /// NVLinks that are there and down.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nvlinks_down: Option<u32>,
}

/// A network card's port, as the kernel names it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct Nic {
    /// `mlx5_0`, `eth0`.
    pub name: String,
    /// Where it sits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<PciAddress>,
    /// NUMA node that it is near to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub numa: Option<usize>,
}

/// What a PCI device is for the tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DeviceKind {
    /// Something at the end of the tree.
    #[default]
    Endpoint,
    /// A root port or a port of a switch.
    Port,
    /// A part of another device that pretends to be one; its link registers mean nothing.
    VirtualFunction,
}

/// A PCI device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Device {
    /// Where it sits.
    pub address: PciAddress,
    /// What it is for the tree.
    #[serde(default)]
    pub kind: DeviceKind,
    /// Class code, such as 0x030200.
    #[serde(default)]
    pub class: u32,
    /// Its maker's PCI number.
    #[serde(default)]
    pub vendor: u16,
    /// What it is, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The kernel driver that has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub driver: Option<String>,
    /// The NUMA node that the firmware gives it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub numa: Option<usize>,
    /// CPUs that it is near to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local_cpus: Option<CpuSet>,
    /// The host bridge, such as `pci0000:00`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root: Option<String>,
    /// The bridges above it, from the host bridge down.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub above: Vec<PciAddress>,
    /// Its end of the link to the bridge above.
    #[serde(default, skip_serializing_if = "PciLink::is_unknown")]
    pub link: PciLink,
    /// Whether the port has nothing below it; `None` if unknown or no port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub is_empty: Option<bool>,
    /// Whether it sends transfers between devices below it up to the host bridge (ACS); `None` if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acs_redirect: Option<bool>,
    /// Errors that it reported.
    #[serde(default, skip_serializing_if = "Aer::is_unknown")]
    pub aer: Aer,
}

impl Device {
    /// A device of which only the address is known.
    pub fn at(address: PciAddress) -> Device {
        Device {
            address,
            kind: DeviceKind::Endpoint,
            class: 0,
            vendor: 0,
            name: None,
            driver: None,
            numa: None,
            local_cpus: None,
            root: None,
            above: Vec::new(),
            link: PciLink::default(),
            is_empty: None,
            acs_redirect: None,
            aer: Aer::default(),
        }
    }

    /// Whether it is a GPU or another accelerator.
    pub fn is_gpu(&self) -> bool {
        matches!(self.class >> 8, 0x0300 | 0x0302 | 0x0380 | 0x1200)
    }
}

/// The way between two devices: `GPU0`, `NIC1`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Link {
    /// One end.
    pub a: String,
    /// The other.
    pub b: String,
    /// What lies between.
    pub kind: LinkKind,
    /// Measured GB/s from `a` to `b`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gb_s: Option<f64>,
    /// Measured GB/s from `b` to `a`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub back_gb_s: Option<f64>,
    /// Measured GB/s each way with both at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub both_gb_s: Option<f64>,
    /// Measured µs from `a` to `b`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub us: Option<f64>,
    /// Whether the driver says that one may write to the other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer_reported: Option<bool>,
    /// Whether data that was written arrived.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer_proven: Option<bool>,
    /// Why it could not be proven.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
    /// Each way of moving data that was measured.
    #[serde(default, rename = "way", skip_serializing_if = "Vec::is_empty")]
    pub ways: Vec<Way>,
}

impl Link {
    /// A link of which only the kind is known.
    pub fn new(a: impl Into<String>, b: impl Into<String>, kind: LinkKind) -> Link {
        Link {
            a: a.into(),
            b: b.into(),
            kind,
            gb_s: None,
            back_gb_s: None,
            both_gb_s: None,
            us: None,
            peer_reported: None,
            peer_proven: None,
            trouble: None,
            ways: Vec::new(),
        }
    }
}

impl Machine {
    /// Whether nothing at all was found: no CPU, no memory, no device.
    pub fn is_nothing(&self) -> bool {
        self.cpus.is_none() && self.memory.is_empty() && self.gpus.is_empty() && self.devices.is_empty()
    }

    /// The PCI device at `address`.
    pub fn device(&self, address: PciAddress) -> Option<&Device> {
        self.devices.iter().find(|device| device.address == address)
    }

    /// A GPU's PCI device.
    pub fn device_of(&self, gpu: &Gpu) -> Option<&Device> {
        self.device(gpu.address?)
    }

    /// The way between two devices by name, whichever end was written first.
    pub fn link(&self, a: &str, b: &str) -> Option<&Link> {
        self.links.iter().find(|link| (link.a == a && link.b == b) || (link.a == b && link.b == a))
    }

    /// The way between two GPUs.
    pub fn gpu_link(&self, a: usize, b: usize) -> Option<&Link> {
        self.link(&gpu_name(a), &gpu_name(b))
    }

    /// GB/s between two GPUs: measured (the worse direction) where it was, otherwise estimated from what is known.
    pub fn gpu_gb_s(&self, a: usize, b: usize) -> f64 {
        let link = self.gpu_link(a, b);
        let measured = link.and_then(|link| match (link.both_gb_s, link.gb_s, link.back_gb_s) {
            (Some(both), _, _) => Some(both),
            (None, Some(there), Some(back)) => Some(there.min(back)),
            (None, one, other) => one.or(other),
        });
        let pci = |gpu: usize| {
            let gpu = self.gpus.iter().find(|its| its.index == gpu)?;
            let link = self.device_of(gpu)?.link;
            // A link that rests comes back to its best speed; one that is slow under load does not.
            let under_load = match gpu.is_busy() {
                Some(true) => link.speed,
                _ => gpu.loaded_speed,
            };
            PciLink { speed: under_load, ..link }.gb_s().or(link.usable_gb_s())
        };
        let slower = match (pci(a), pci(b)) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        };
        measured.unwrap_or_else(|| link.map_or(LinkKind::Unknown, |link| link.kind).estimated_gb_s(slower))
    }

    /// GPUs that NVIDIA's driver has.
    pub fn nvidia_gpus(&self) -> impl Iterator<Item = &Gpu> {
        self.gpus.iter().filter(|gpu| gpu.vendor.is_none_or(|vendor| vendor == NVIDIA))
    }

    /// Fills in what lies between devices from their places in the PCI tree, where nothing is known yet.
    pub fn derive_links(&mut self) {
        let ends: Vec<(String, Option<PciAddress>)> = self
            .gpus
            .iter()
            .map(|gpu| (gpu_name(gpu.index), gpu.address))
            .chain(self.nics.iter().enumerate().map(|(at, nic)| (format!("NIC{at}"), nic.address)))
            .collect();
        let one_numa = self.cpus.as_ref().is_some_and(|cpus| cpus.numa.len() == 1);
        for (at, (a, from)) in ends.iter().enumerate().take(self.gpus.len()) {
            for (b, to) in &ends[at + 1..] {
                let (Some(from), Some(to)) = (from, to) else { continue };
                if self.link(a, b).is_some() {
                    continue;
                }
                let kind = match (self.device(*from), self.device(*to)) {
                    (Some(from), Some(to)) => between(from, to, one_numa),
                    _ => LinkKind::Unknown,
                };
                self.links.push(Link::new(a, b, kind));
            }
        }
    }
}

/// `GPU3`.
pub fn gpu_name(index: usize) -> String {
    format!("GPU{index}")
}

/// What lies between two devices of a PCI tree.
fn between(a: &Device, b: &Device, one_numa: bool) -> LinkKind {
    let common = a.above.iter().zip(&b.above).take_while(|(one, other)| one == other).count();
    if common > 0 {
        let below = |device: &Device| device.above.len() - common;
        return if below(a).max(below(b)) <= 1 { LinkKind::Pix } else { LinkKind::Pxb };
    }
    if a.root.is_some() && a.root == b.root {
        return LinkKind::Phb;
    }
    match (a.numa, b.numa) {
        (Some(one), Some(other)) if one == other => LinkKind::Node,
        (Some(_), Some(_)) => LinkKind::Sys,
        _ if one_numa => LinkKind::Node,
        _ => LinkKind::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(address: &str, root: &str, above: &[&str], numa: Option<usize>) -> Device {
        let parse = |text: &str| text.parse::<PciAddress>().unwrap();
        Device {
            numa,
            root: Some(root.into()),
            above: above.iter().map(|text| parse(text)).collect(),
            ..Device::at(parse(address))
        }
    }

    #[test]
    fn the_tree_tells_what_lies_between() {
        let switch = ["0000:00:01.0", "0000:01:00.0"];
        let a = device("0000:04:00.0", "pci0000:00", &[switch[0], switch[1], "0000:02:00.0"], Some(0));
        let b = device("0000:05:00.0", "pci0000:00", &[switch[0], switch[1], "0000:02:01.0"], Some(0));
        let deeper = device(
            "0000:09:00.0",
            "pci0000:00",
            &[switch[0], switch[1], "0000:02:02.0", "0000:06:00.0", "0000:07:00.0"],
            Some(0),
        );
        let other_port = device("0000:20:00.0", "pci0000:00", &["0000:00:02.0"], Some(0));
        let other_bridge = device("0000:41:00.0", "pci0000:40", &["0000:40:01.0"], Some(0));
        let other_socket = device("0000:81:00.0", "pci0000:80", &["0000:80:01.0"], Some(1));
        let nowhere = device("0000:c1:00.0", "pci0000:c0", &["0000:c0:01.0"], None);
        let table = [
            (&b, LinkKind::Pix),
            (&deeper, LinkKind::Pxb),
            (&other_port, LinkKind::Phb),
            (&other_bridge, LinkKind::Node),
            (&other_socket, LinkKind::Sys),
            (&nowhere, LinkKind::Unknown),
        ];
        for (to, kind) in table {
            assert_eq!(between(&a, to, false), kind, "{}", to.address);
        }
        assert_eq!(between(&a, &nowhere, true), LinkKind::Node);
    }
}

#[cfg(test)]
pub(crate) mod tests_support {
    use super::*;

    /// Two sockets of four cores with two threads each, and two GPUs on each, one pair with NVLink.
    pub(crate) fn two_sockets() -> Machine {
        let set = |text: &str| text.parse::<CpuSet>().unwrap();
        let mut machine =
            Machine { name: "two".into(), origin: "a test".into(), driver: Some("580.1".into()), ..Machine::default() };
        let numa = [(0, "0-3,8-11"), (1, "4-7,12-15")];
        machine.cpus = Some(Cpus {
            usable: set("0-15"),
            affinity: set("0-15"),
            online: Some(set("0-15")),
            cores: (0..8).map(|core| CpuSet::from_iter([core, core + 8])).collect(),
            sockets: numa.iter().map(|(_, cpus)| set(cpus)).collect(),
            numa: numa.iter().map(|(id, cpus)| crate::placement::node::NumaNode { id: *id, cpus: set(cpus) }).collect(),
            ..Cpus::default()
        });
        for (at, (id, cpus)) in numa.iter().enumerate() {
            let distance = if at == 0 { vec![10, 21] } else { vec![21, 10] };
            machine.memory.push(MemoryNode { node: *id, cpus: set(cpus), memory_mib: Some(65_536), distance });
        }
        let places = [
            ("0000:1b:00.0", 0, "0000:1a:00.0"),
            ("0000:3b:00.0", 0, "0000:3a:00.0"),
            ("0000:9b:00.0", 1, "0000:9a:00.0"),
            ("0000:bb:00.0", 1, "0000:ba:00.0"),
        ];
        for (index, (address, numa, port)) in places.into_iter().enumerate() {
            let (address, port) = (address.parse::<PciAddress>().unwrap(), port.parse::<PciAddress>().unwrap());
            let link = PciLink {
                speed: Speed::of_generation(5),
                width: Some(16),
                max_speed: Speed::of_generation(5),
                max_width: Some(16),
            };
            let root = Some(format!("pci0000:{:02x}", port.bus));
            machine.gpus.push(Gpu {
                index,
                address: Some(address),
                uuid: Some(format!("GPU-{index:08}-0000-0000-0000-000000000000")),
                name: Some("NVIDIA Test 80GB".into()),
                vendor: Some(NVIDIA),
                minor: Some(index as u32),
                numa: vec![numa],
                memory_mib: Some(81_920),
                bar1_mib: Some(131_072),
                ..Gpu::default()
            });
            machine.devices.push(Device {
                class: 0x060400,
                kind: DeviceKind::Port,
                link,
                root: root.clone(),
                is_empty: Some(false),
                ..Device::at(port)
            });
            machine.devices.push(Device {
                class: 0x030200,
                vendor: NVIDIA,
                driver: Some("nvidia".into()),
                numa: Some(numa),
                root,
                above: vec![port],
                link,
                ..Device::at(address)
            });
        }
        machine.links.push(Link {
            gb_s: Some(180.0),
            back_gb_s: Some(181.0),
            us: Some(1.9),
            ..Link::new("GPU0", "GPU1", LinkKind::Nvlink(8))
        });
        machine.links.push(Link::new("GPU2", "GPU3", LinkKind::Nvlink(8)));
        machine.derive_links();
        machine
    }
}
