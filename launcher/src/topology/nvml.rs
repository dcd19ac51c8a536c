//! What the NVIDIA driver tells through NVML, loaded at run time.
//!
//! NVML may hang with a broken GPU, so everything is asked on a thread of its own and waited for with a limit.

use std::sync::mpsc;
use std::time::Duration;

use nvml_wrapper::bitmasks::device::ThrottleReasons;
use nvml_wrapper::enum_wrappers::device::{
    Clock, EccCounter, MemoryError, P2pCapabilitiesIndex, P2pStatus, PcieUtilCounter, TemperatureSensor, TopologyLevel,
};
use nvml_wrapper::structs::device::FieldId;
use nvml_wrapper::{Device as NvmlDevice, Nvml};

use super::{Gpu, GpuState, Link, LinkKind, Machine, NVIDIA, PciAddress, PciLink, Speed, gpu_name, pci};

/// As long as NVML may take: a driver that starts eight GPUs first needs some seconds.
const LIMIT: Duration = Duration::from_secs(30);
/// No GPU has more NVLinks.
const MOST_NVLINKS: u32 = 18;
/// NVML's number for "rows of memory are remapped at the next reset".
const REMAPPED_PENDING: u32 = 144;

/// What NVML says of one GPU.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Found {
    /// Address, UUID, name, memory, state.
    pub gpu: Gpu,
    /// Its PCIe link.
    pub link: PciLink,
}

/// Everything that NVML says.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Answer {
    /// The driver's version.
    pub driver: Option<String>,
    /// CUDA, as `13.0`.
    pub cuda: Option<String>,
    /// GPUs that this process may use.
    pub gpus: Vec<Found>,
    /// Ways between them, by position in `gpus`.
    pub links: Vec<(usize, usize, LinkKind, Option<bool>)>,
    /// What it could not tell, one sentence each.
    pub notes: Vec<String>,
}

/// Asks NVML; `Err` with the reason where there is none.
///
/// # Errors
/// The library cannot be loaded, the driver is not there, or it did not answer in time.
pub fn ask() -> Result<Answer, String> {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let _ = sender.send(Nvml::init().map(|nvml| answer(&nvml)).map_err(|error| error.to_string()));
    });
    receiver
        .recv_timeout(LIMIT)
        .unwrap_or_else(|_| Err(format!("the NVIDIA driver did not answer within {} s", LIMIT.as_secs())))
}

/// Only what changes while a job runs; PCIe traffic as long as `with_traffic` says so, since the driver counts it for 20 ms
/// in each direction before it answers.
pub fn states(nvml: &Nvml, with_traffic: &dyn Fn() -> bool) -> Vec<Found> {
    let mb_s = |device: &NvmlDevice<'_>, counter| device.pcie_throughput(counter).ok().map(|kb_s| kb_s / 1000);
    let look = |(_, device): &(u32, NvmlDevice<'_>)| {
        let mut found = changing(device);
        if with_traffic() {
            let state = found.gpu.state.get_or_insert_default();
            state.pcie_sent_mb_s = mb_s(device, PcieUtilCounter::Send);
            state.pcie_received_mb_s = mb_s(device, PcieUtilCounter::Receive);
        }
        found
    };
    devices(nvml).iter().map(look).collect()
}

fn devices(nvml: &Nvml) -> Vec<(u32, NvmlDevice<'_>)> {
    let count = nvml.device_count().unwrap_or(0);
    (0..count).filter_map(|index| Some((index, nvml.device_by_index(index).ok()?))).collect()
}

fn answer(nvml: &Nvml) -> Answer {
    let mut answer = Answer {
        driver: nvml.sys_driver_version().ok(),
        cuda: nvml
            .sys_cuda_driver_version()
            .ok()
            .filter(|version| *version > 0)
            .map(|version| format!("{}.{}", version / 1000, version % 1000 / 10)),
        ..Answer::default()
    };
    let count = nvml.device_count().unwrap_or(0);
    for index in 0..count {
        if let Err(error) = nvml.device_by_index(index) {
            answer.notes.push(format!("the driver cannot reach its GPU {index}: {error}"));
        }
    }
    let devices = devices(nvml);
    answer.gpus = devices.iter().map(|(_, device)| found(device)).collect();
    let addresses: Vec<Option<PciAddress>> = answer.gpus.iter().map(|found| found.gpu.address).collect();
    let direct: Vec<Vec<Option<PciAddress>>> = devices.iter().map(|(_, device)| nvlinks(device)).collect();
    for a in 0..devices.len() {
        for b in a + 1..devices.len() {
            let between = direct[a].iter().filter(|to| to.is_some() && **to == addresses[b]).count();
            let status = |index| devices[a].1.p2p_status(&devices[b].1, index).ok();
            let through_switch = status(P2pCapabilitiesIndex::NvLink) == Some(P2pStatus::Ok);
            let kind = if between > 0 {
                LinkKind::Nvlink(between as u32)
            } else if through_switch && !direct[a].is_empty() && !direct[b].is_empty() {
                LinkKind::Nvlink(direct[a].len().min(direct[b].len()) as u32)
            } else {
                let other = nvml.device_by_index(devices[b].0);
                ancestor(other.and_then(|other| devices[a].1.topology_common_ancestor(other)).ok())
            };
            let peer = status(P2pCapabilitiesIndex::Write).map(|status| status == P2pStatus::Ok);
            answer.links.push((a, b, kind, peer));
        }
    }
    answer
}

fn ancestor(level: Option<TopologyLevel>) -> LinkKind {
    match level {
        Some(TopologyLevel::Internal | TopologyLevel::Single) => LinkKind::Pix,
        Some(TopologyLevel::Multiple) => LinkKind::Pxb,
        Some(TopologyLevel::HostBridge) => LinkKind::Phb,
        Some(TopologyLevel::Node) => LinkKind::Node,
        Some(TopologyLevel::System) => LinkKind::Sys,
        None => LinkKind::Unknown,
    }
}

/// The far end of each NVLink that is up; `None` where that is a switch or unknown.
fn nvlinks(device: &NvmlDevice<'_>) -> Vec<Option<PciAddress>> {
    (0..MOST_NVLINKS)
        .map(|link| device.link_wrapper_for(link))
        .filter(|link| matches!(link.is_active(), Ok(true)))
        .map(|link| link.remote_pci_info().ok().and_then(|info| info.bus_id.parse().ok()))
        .collect()
}

fn found(device: &NvmlDevice<'_>) -> Found {
    let Found { mut gpu, link } = changing(device);
    gpu.vendor = Some(NVIDIA);
    gpu.uuid = device.uuid().ok();
    gpu.name = device.name().ok();
    gpu.minor = device.minor_number().ok();
    gpu.memory_mib = device.memory_info().ok().map(|memory| memory.total >> 20);
    gpu.bar1_mib = device.bar1_memory_info().ok().map(|bar1| bar1.total >> 20);
    gpu.memory_numa =
        device.numa_node_id().ok().and_then(|node| usize::try_from(node).ok()).filter(|node| *node < 65_536);
    let has_slices = device.mig_mode().is_ok_and(|mode| mode.current == 1);
    if has_slices {
        gpu.mig = (0..device.mig_device_count().unwrap_or(0))
            .filter_map(|slice| device.mig_device_by_index(slice).ok()?.uuid().ok())
            .collect();
    }
    let state = gpu.state.get_or_insert_default();
    state.persistence = device.is_in_persistent_mode().ok();
    state.ecc = device.is_ecc_enabled().ok().map(|ecc| ecc.currently_enabled);
    state.uncorrected = device.total_ecc_errors(MemoryError::Uncorrected, EccCounter::Volatile).ok();
    state.remap_pending = remap_pending(device);
    state.processes = device.running_compute_processes_count().ok();
    let (mut up, mut down) = (0, 0);
    for link in (0..MOST_NVLINKS).map(|link| device.link_wrapper_for(link)) {
        match link.is_active() {
            Ok(true) => up += 1,
            Ok(false) => down += 1,
            Err(_) => {}
        }
    }
    if up + down > 0 {
        (state.nvlinks_up, state.nvlinks_down) = (Some(up), Some(down));
    }
    Found { gpu, link }
}

fn remap_pending(device: &NvmlDevice<'_>) -> Option<bool> {
    use nvml_wrapper::enums::device::SampleValue;
    let pages = device.are_pages_pending_retired().ok();
    let rows = device.field_values_for(&[FieldId(REMAPPED_PENDING)]).ok().and_then(|mut values| {
        match values.pop()?.ok()?.value.ok()? {
            SampleValue::U32(count) => Some(count > 0),
            SampleValue::U64(count) => Some(count > 0),
            _ => None,
        }
    });
    match (pages, rows) {
        (Some(pages), Some(rows)) => Some(pages || rows),
        (pages, rows) => pages.or(rows),
    }
}

fn changing(device: &NvmlDevice<'_>) -> Found {
    let speed = |generation: Option<u32>| generation.and_then(Speed::of_generation);
    let link = PciLink {
        speed: speed(device.current_pcie_link_gen().ok()),
        width: device.current_pcie_link_width().ok().and_then(pci::lanes),
        max_speed: speed(device.max_pcie_link_gen().ok()),
        max_width: device.max_pcie_link_width().ok().and_then(pci::lanes),
    };
    let address = device.pci_info().ok().and_then(|info| info.bus_id.parse().ok());
    let state = GpuState {
        busy_percent: device.utilization_rates().ok().map(|rates| rates.gpu),
        pstate: device.performance_state().ok().map(|state| state.as_c()).filter(|state| *state < 16),
        sm_mhz: device.clock_info(Clock::SM).ok(),
        memory_mhz: device.clock_info(Clock::Memory).ok(),
        celsius: device.temperature(TemperatureSensor::Gpu).ok(),
        watts: device.power_usage().ok().map(|milliwatts| milliwatts / 1000),
        throttled: device.current_throttle_reasons().map(throttled).unwrap_or_default(),
        replays: device.pcie_replay_counter().ok().map(u64::from),
        ..GpuState::default()
    };
    Found { gpu: Gpu { address, state: Some(state), ..Gpu::default() }, link }
}

/// Reasons that cost time; idling and settings that somebody chose are none.
fn throttled(reasons: ThrottleReasons) -> Vec<String> {
    [
        (ThrottleReasons::SW_POWER_CAP, "power limit"),
        (ThrottleReasons::HW_SLOWDOWN, "hardware slowdown"),
        (ThrottleReasons::SW_THERMAL_SLOWDOWN, "temperature"),
        (ThrottleReasons::HW_THERMAL_SLOWDOWN, "temperature (hardware)"),
        (ThrottleReasons::HW_POWER_BRAKE_SLOWDOWN, "power brake of the machine"),
    ]
    .into_iter()
    .filter(|(reason, _)| reasons.contains(*reason))
    .map(|(_, text)| text.to_owned())
    .collect()
}

/// Adds to `machine` what NVML says. GPUs that only one of the two knows are kept, and told.
pub fn enrich(machine: &mut Machine, answer: Answer) {
    machine.origin = format!("{} and NVML", machine.origin);
    machine.driver = machine.driver.take().or(answer.driver);
    machine.cuda = answer.cuda;
    machine.notes.extend(answer.notes);
    let mut indices = Vec::new();
    for Found { gpu: told, link } in answer.gpus {
        let position = machine.gpus.iter().position(|gpu| gpu.address == told.address && told.address.is_some());
        let position = position.unwrap_or_else(|| {
            machine.gpus.push(Gpu { address: told.address, vendor: Some(NVIDIA), ..Gpu::default() });
            machine.gpus.len() - 1
        });
        let gpu = &mut machine.gpus[position];
        gpu.uuid = told.uuid.or(gpu.uuid.take());
        gpu.name = told.name.or(gpu.name.take());
        gpu.minor = told.minor.or(gpu.minor);
        gpu.memory_mib = told.memory_mib;
        gpu.bar1_mib = told.bar1_mib;
        gpu.memory_numa = gpu.memory_numa.or(told.memory_numa);
        gpu.mig = told.mig;
        gpu.state = told.state;
        indices.push(gpu.address);
        let device = machine.devices.iter_mut().find(|device| Some(device.address) == told.address);
        if let Some(device) = device {
            // NVML asks the GPU itself; the kernel may not see the link of a virtual machine's device.
            let kernel = device.link;
            device.link = PciLink {
                speed: link.speed.or(kernel.speed),
                width: link.width.or(kernel.width),
                max_speed: kernel.max_speed.max(link.max_speed),
                max_width: kernel.max_width.max(link.max_width),
            };
        }
    }
    // PCI order is the order of our numbers.
    machine.gpus.sort_by_key(|gpu| gpu.address);
    for (index, gpu) in machine.gpus.iter_mut().enumerate() {
        gpu.index = index;
    }
    let number = |at: usize| {
        let address = indices.get(at).copied().flatten()?;
        machine.gpus.iter().find(|gpu| gpu.address == Some(address)).map(|gpu| gpu.index)
    };
    let told: Vec<Link> = answer
        .links
        .iter()
        .filter_map(|(a, b, kind, peer)| {
            let (a, b) = (number(*a)?, number(*b)?);
            Some(Link { peer_reported: *peer, ..Link::new(gpu_name(a.min(b)), gpu_name(a.max(b)), *kind) })
        })
        .collect();
    for link in told {
        match machine.links.iter_mut().find(|known| known.a == link.a && known.b == link.b) {
            Some(known) => {
                if link.kind < known.kind {
                    known.kind = link.kind;
                }
                known.peer_reported = link.peer_reported;
            }
            None => machine.links.push(link),
        }
    }
    machine.links.sort_by(|one, other| (&one.a, &one.b).cmp(&(&other.a, &other.b)));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(address: &str, uuid: &str) -> Found {
        let link = PciLink { speed: Speed::of_generation(5), width: Some(16), ..PciLink::default() };
        Found { gpu: Gpu { address: address.parse().ok(), uuid: Some(uuid.into()), ..Gpu::default() }, link }
    }

    #[test]
    fn what_nvml_knows_is_added_to_what_the_kernel_knows() {
        let mut machine = Machine { origin: "sysfs".into(), ..Machine::default() };
        machine.gpus.push(Gpu { address: "0000:41:00.0".parse().ok(), numa: vec![1], ..Gpu::default() });
        machine.devices.push(crate::topology::Device::at("0000:41:00.0".parse().unwrap()));
        let answer = Answer {
            gpus: vec![found("00000000:41:00.0", "GPU-b"), found("00000000:3b:00.0", "GPU-a")],
            links: vec![(0, 1, LinkKind::Nvlink(18), Some(true))],
            ..Answer::default()
        };
        enrich(&mut machine, answer);
        let shown: Vec<_> = machine.gpus.iter().map(|gpu| (gpu.index, gpu.uuid.as_deref(), gpu.numa.len())).collect();
        assert_eq!(shown, [(0, Some("GPU-a"), 0), (1, Some("GPU-b"), 1)]);
        assert_eq!(machine.devices[0].link.shown(), "Gen5 x16");
        let link = machine.gpu_link(1, 0).unwrap();
        assert_eq!((link.kind, link.peer_reported), (LinkKind::Nvlink(18), Some(true)));
        assert_eq!(machine.origin, "sysfs and NVML");
    }

    #[test]
    fn without_a_driver_there_is_a_reason_and_no_panic() {
        if !std::path::Path::new("/proc/driver/nvidia").exists() {
            assert!(!ask().unwrap_err().is_empty());
        }
    }
}
