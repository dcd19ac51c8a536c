//! Reads the text of `lspci -vvv`: devices, their links, and which bridge is above which.

use std::collections::BTreeMap;

use super::{AMD, Device, DeviceKind, Gpu, Machine, NVIDIA, Nic, PciAddress, PciLink, Speed, pci};

/// The devices of a text, by address. What is not understood is passed over.
pub fn read(text: &str) -> Vec<Device> {
    let mut found: Vec<Reading> = Vec::new();
    for line in text.lines() {
        if let Some(device) = first_line(line) {
            found.push(device);
        } else if let Some(device) = found.last_mut() {
            device.take(line.trim());
        }
    }
    // A bridge's secondary bus is the bus of what hangs below it.
    let bridges: BTreeMap<(u32, u8), PciAddress> = found
        .iter()
        .filter_map(|reading| Some(((reading.device.address.domain, reading.secondary?), reading.device.address)))
        .collect();
    let mut devices: Vec<Device> = found.into_iter().map(Reading::finished).collect();
    for device in &mut devices {
        let mut address = device.address;
        while let Some(&bridge) = bridges.get(&(address.domain, address.bus)) {
            if device.above.contains(&bridge) || bridge == device.address {
                break;
            }
            device.above.insert(0, bridge);
            address = bridge;
        }
        device.root = Some(format!("pci{:04x}:{:02x}", address.domain, address.bus));
    }
    devices.sort_by_key(|device| device.address);
    devices.dedup_by_key(|device| device.address);
    devices
}

/// A machine of these devices; nothing else is known about it.
pub fn machine(text: &str) -> Machine {
    let devices = read(text);
    let mut machine = Machine { origin: "the text of lspci".into(), ..Machine::default() };
    for device in devices.iter().filter(|device| device.kind != DeviceKind::VirtualFunction) {
        let known = matches!(device.vendor, NVIDIA | AMD);
        if device.is_gpu() && known {
            machine.gpus.push(Gpu {
                index: machine.gpus.len(),
                address: Some(device.address),
                name: device.name.clone(),
                vendor: Some(device.vendor),
                numa: device.numa.into_iter().collect(),
                ..Gpu::default()
            });
        } else if device.class >> 16 == 2 {
            let name = device.name.clone().unwrap_or_default();
            machine.nics.push(Nic { name, address: Some(device.address), numa: device.numa });
        }
    }
    machine.devices = devices;
    machine.derive_links();
    machine
}

struct Reading {
    device: Device,
    secondary: Option<u8>,
    /// The port can tell whether something is below it.
    reports_active: bool,
    active: Option<bool>,
    present: Option<bool>,
}

/// `0000:41:00.0 3D controller: NVIDIA Corporation Device (rev a1)`.
fn first_line(line: &str) -> Option<Reading> {
    let (address, rest) = line.split_once(' ')?;
    let address: PciAddress = address.parse().ok()?;
    let (class, name) = rest.split_once(": ").unwrap_or((rest, ""));
    let class = class.split(" [").next().unwrap_or(class);
    let codes = [
        ("3D controller", 0x030200),
        ("VGA compatible controller", 0x030000),
        ("Display controller", 0x038000),
        ("Processing accelerators", 0x120000),
        ("Ethernet controller", 0x020000),
        ("Infiniband controller", 0x020700),
        ("Network controller", 0x028000),
        ("PCI bridge", 0x060400),
        ("Host bridge", 0x060000),
        ("Non-Volatile memory controller", 0x010802),
    ];
    let code = codes.iter().find(|(text, _)| *text == class).map_or(0, |(_, code)| *code);
    let vendor = if name.contains("NVIDIA") {
        NVIDIA
    } else if name.contains("Advanced Micro Devices") {
        AMD
    } else {
        0
    };
    let kind = if name.contains("Virtual Function") {
        DeviceKind::VirtualFunction
    } else if code >> 8 == 0x0604 {
        DeviceKind::Port
    } else {
        DeviceKind::Endpoint
    };
    let name = name.split(" (rev ").next().unwrap_or(name).split(" (prog-if").next().unwrap_or(name).to_owned();
    let device = Device { kind, class: code, vendor, name: (!name.is_empty()).then_some(name), ..Device::at(address) };
    Some(Reading { device, secondary: None, reports_active: false, active: None, present: None })
}

impl Reading {
    fn take(&mut self, line: &str) {
        let link = &mut self.device.link;
        if let Some(rest) = line.strip_prefix("LnkCap:") {
            (link.max_speed, link.max_width) = speed_and_width(rest);
        } else if let Some(rest) = line.strip_prefix("LnkSta:") {
            (link.speed, link.width) = speed_and_width(rest);
        } else if let Some(rest) = line.strip_prefix("Bus: ") {
            let secondary = rest.split(", ").find_map(|part| part.strip_prefix("secondary="));
            self.secondary = secondary.and_then(|bus| u8::from_str_radix(bus, 16).ok());
        } else if let Some(rest) = line.strip_prefix("Kernel driver in use: ") {
            self.device.driver = Some(rest.trim().to_owned());
        } else if let Some(rest) = line.strip_prefix("NUMA node: ") {
            self.device.numa = rest.trim().parse().ok();
        } else if let Some(rest) = line.strip_prefix("ACSCtl:") {
            self.device.acs_redirect = Some(rest.contains("ReqRedir+"));
        } else if line.contains("] Express") {
            let port = ["Root Port", "Upstream Port", "Downstream Port", "to PCI-Express Bridge"];
            if port.iter().any(|kind| line.contains(kind)) && self.device.kind == DeviceKind::Endpoint {
                self.device.kind = DeviceKind::Port;
            }
        }
        // These stand on the lines that follow LnkCap, LnkSta and SltSta.
        self.reports_active |= line.contains("LLActRep+");
        if line.contains("DLActive") {
            self.active = Some(line.contains("DLActive+"));
        }
        if line.starts_with("SltSta:") {
            self.present = Some(line.contains("PresDet+"));
        }
    }

    fn finished(self) -> Device {
        let mut device = self.device;
        if device.kind == DeviceKind::Port {
            let nothing = self.active.filter(|_| self.reports_active).map(|active| !active);
            device.is_empty = nothing.or(self.present.map(|present| !present));
        }
        if device.kind == DeviceKind::VirtualFunction {
            device.link = PciLink::default();
        }
        device
    }
}

/// `Port #0, Speed 16GT/s (downgraded), Width x16, …`.
fn speed_and_width(text: &str) -> (Option<Speed>, Option<u8>) {
    let part = |name: &str| text.split(',').find_map(|part| part.trim().strip_prefix(name));
    let word = |text: &str| text.split_whitespace().next().unwrap_or_default().to_owned();
    let speed = part("Speed ").and_then(|text| Speed::read(&word(text)));
    let width = part("Width x").and_then(|text| word(text).parse().ok()).and_then(pci::lanes);
    (speed, width)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TREE: &str = "\
00:01.0 PCI bridge: Maker Root Port (rev 02) (prog-if 00 [Normal decode])
\tBus: primary=00, secondary=02, subordinate=02, sec-latency=0
\tCapabilities: [40] Express (v2) Root Port (Slot+), MSI 00
\t\tLnkCap:\tPort #1, Speed 8GT/s, Width x16, ASPM L1, Exit Latency L1 <16us
\t\t\tClockPM- Surprise- LLActRep+ BwNot+ ASPMOptComp+
\t\tLnkSta:\tSpeed 5GT/s, Width x8
\t\t\tTrErr- Train- SlotClk+ DLActive+ BWMgmt+ ABWMgmt-
00:02.0 PCI bridge: Maker Root Port (prog-if 00 [Normal decode])
\tBus: primary=00, secondary=03, subordinate=03, sec-latency=0
\tCapabilities: [40] Express (v2) Root Port (Slot+), MSI 00
\t\tLnkCap:\tPort #3, Speed 5GT/s, Width x1, ASPM L0s L1
\t\t\tClockPM- Surprise- LLActRep+ BwNot+ ASPMOptComp+
\t\tLnkSta:\tSpeed 2.5GT/s (downgraded), Width x1 (ok)
\t\t\tTrErr- Train- SlotClk+ DLActive- BWMgmt- ABWMgmt-
02:00.0 3D controller: NVIDIA Corporation Device (rev a1)
\tNUMA node: 1
\tCapabilities: [78] Express (v2) Endpoint, MSI 00
\t\tLnkCap:\tPort #0, Speed 32GT/s, Width x16, ASPM L1
\t\tLnkSta:\tSpeed 2.5GT/s (downgraded), Width x8, TrErr- Train- SlotClk+ DLActive- BWMgmt-
\tKernel driver in use: nvidia
d6f5:00:02.0 Ethernet controller: Maker Card [Virtual Function] (rev 80)
\t\tLnkCap:\tPort #0, Speed 8GT/s, Width x16, ASPM not supported
\t\tLnkSta:\tSpeed unknown (downgraded), Width x0 (downgraded)
18:00.0 Infiniband controller: Maker Family
\t\tLnkCap:\tPort #0, Speed unknown, Width x16, ASPM not supported
\t\tLnkSta:\tSpeed 16GT/s, Width x16, TrErr- Train-
";

    #[test]
    fn links_drivers_and_the_tree_are_read() {
        let machine = machine(TREE);
        let device = |address: &str| machine.device(address.parse().unwrap()).unwrap();
        let gpu = device("02:00.0");
        assert_eq!((gpu.link.shown(), gpu.link.max_shown()), ("Gen1 x8".into(), "Gen5 x16".into()));
        assert_eq!((gpu.driver.as_deref(), gpu.numa, gpu.vendor), (Some("nvidia"), Some(1), NVIDIA));
        assert_eq!(gpu.above.iter().map(ToString::to_string).collect::<Vec<_>>(), ["0000:00:01.0"]);
        assert_eq!(device("00:01.0").name.as_deref(), Some("Maker Root Port"));
        assert_eq!((device("00:01.0").kind, device("00:01.0").is_empty), (DeviceKind::Port, Some(false)));
        assert_eq!(
            (device("00:02.0").is_empty, device("00:02.0").name.as_deref()),
            (Some(true), Some("Maker Root Port"))
        );
        assert_eq!((machine.gpus.len(), machine.nics.len()), (1, 1));
    }

    // F09, F10
    #[test]
    fn what_lspci_does_not_know_stays_unknown() {
        let devices = read(TREE);
        let function = devices.iter().find(|device| device.address.domain == 0xd6f5).unwrap();
        assert_eq!((function.kind, function.link), (DeviceKind::VirtualFunction, PciLink::default()));
        let card = devices.iter().find(|device| device.address.bus == 0x18).unwrap();
        assert_eq!((card.link.max_speed, card.link.max_width), (None, Some(16)));
        assert_eq!(card.link.shown(), "Gen4 x16");
    }

    // F12
    #[test]
    fn domains_keep_devices_apart_and_in_order() {
        let devices = read(
            "0001:00:02.0 PCI bridge: B\n0000:00:02.0 PCI bridge: A\n10000:00:00.0 PCI bridge: C\n0000:00:02.0 PCI bridge: A\n",
        );
        let shown: Vec<String> = devices.iter().map(|device| device.address.to_string()).collect();
        assert_eq!(shown, ["0000:00:02.0", "0001:00:02.0", "10000:00:00.0"]);
    }

    proptest! {
        #[test]
        fn any_text_gives_devices(text in "(0[01]:00.[01]|\t|LnkCap:|LnkSta:|Speed 8GT/s|Width x8|Bus: |secondary=0[01]|, |: | |\n|PCI bridge){0,40}") {
            let _ = machine(&text);
        }
    }
}
