//! PCIe links that are narrower or slower than both of their ends allow.
//!
//! Only the device's end is judged: a port that has less below it than it could serve is as it should be. Lanes count
//! always; speed of a GPU only while it works, since idle GPUs slow their link down to save power.

use serde_json::{Value, json};

use super::{Finding, Level};
use crate::topology::{AMD, Device, DeviceKind, Gpu, Machine, NVIDIA, PciAddress, PciLink, gpu_name};

/// What can be said of a link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// As fast as both ends allow.
    Fine,
    /// A port; what is below it is judged instead.
    Port,
    /// A port with nothing below it.
    Empty,
    /// A virtual function, whose registers mean nothing.
    VirtualFunction,
    /// Speed or width, or what is possible, is not known.
    Unknown,
    /// Slower than possible, and idle: that may be right.
    Idle,
    /// Slower than possible, and nobody knows whether the GPU works.
    SlowAtUnknownLoad,
    /// Lanes are missing.
    Narrow {
        /// Lanes in use.
        now: u8,
        /// Lanes that both ends have.
        best: u8,
    },
    /// Slower than possible while it works, or of a device that never slows down by itself.
    Slow {
        /// For people.
        now: String,
        /// For people.
        best: String,
    },
}

/// Judges a device's link. `above` is the port at the other end; `busy` whether a GPU works, `None` for a device that
/// is no GPU.
pub fn judge(device: &Device, above: Option<&Device>, gpu: Option<Busy>) -> Vec<Verdict> {
    match device.kind {
        DeviceKind::Port if device.is_empty == Some(true) => return vec![Verdict::Empty],
        DeviceKind::Port => return vec![Verdict::Port],
        DeviceKind::VirtualFunction => return vec![Verdict::VirtualFunction],
        DeviceKind::Endpoint => {}
    }
    let best = best(device, above);
    let mut verdicts = Vec::new();
    match (device.link.width, best.max_width) {
        (Some(now), Some(best)) if now < best => verdicts.push(Verdict::Narrow { now, best }),
        (Some(_), Some(_)) => {}
        _ => verdicts.push(Verdict::Unknown),
    }
    match (device.link.speed, best.max_speed) {
        (Some(now), Some(best)) if now < best => verdicts.push(match gpu {
            Some(Busy::No) => Verdict::Idle,
            Some(Busy::Unknown) => Verdict::SlowAtUnknownLoad,
            Some(Busy::Yes) | None => Verdict::Slow { now: now.to_string(), best: best.to_string() },
        }),
        (Some(_), Some(_)) => {}
        _ => verdicts.push(Verdict::Unknown),
    }
    verdicts.dedup();
    if verdicts.is_empty() { vec![Verdict::Fine] } else { verdicts }
}

/// Whether a GPU works.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Busy {
    /// A kernel runs, or copies do.
    Yes,
    /// It rests.
    No,
    /// Nobody knows.
    Unknown,
}

/// Whether a GPU works, by its driver.
pub fn busy(gpu: &Gpu) -> Busy {
    match gpu.is_busy() {
        Some(true) => Busy::Yes,
        Some(false) => Busy::No,
        None => Busy::Unknown,
    }
}

/// What both ends of a link can do; what one end does not tell, the other decides.
pub fn best(device: &Device, above: Option<&Device>) -> PciLink {
    let port = above.map(|above| above.link).unwrap_or_default();
    let least = |own: Option<u8>, its: Option<u8>| match (own, its) {
        (Some(own), Some(its)) => Some(own.min(its)),
        (own, _) => own,
    };
    PciLink {
        max_width: least(device.link.max_width, port.max_width),
        max_speed: match (device.link.max_speed, port.max_speed) {
            (Some(own), Some(its)) => Some(own.min(its)),
            (own, _) => own,
        },
        ..PciLink::default()
    }
}

/// All findings about links. `changes` counts for each GPU how often its link changed while it was looked at.
pub fn findings(machine: &Machine, changes: &[u32]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for device in &machine.devices {
        let gpu = machine.gpus.iter().find(|gpu| gpu.address == Some(device.address));
        let above = device.above.last().and_then(|address| machine.device(*address));
        let place = match gpu {
            Some(gpu) => format!("{} ({})", gpu_name(gpu.index), device.address),
            None => format!("{} ({})", device.name.as_deref().unwrap_or(kind_name(device)), device.address),
        };
        // A display chip of a server is no GPU that anybody computes on.
        let computes = gpu.is_some() || (device.is_gpu() && matches!(device.vendor, NVIDIA | AMD));
        for verdict in judge(device, above, gpu.map(busy).or(computes.then_some(Busy::Unknown))) {
            findings.extend(finding(&verdict, device, above, computes, &place));
        }
        findings.extend(wiring(device, above, &place));
        if let Some(&changed) = gpu.and_then(|gpu| changes.get(gpu.index)).filter(|changed| **changed > 2) {
            findings.push(
                Finding::new(
                    Level::Warning,
                    "link-changes",
                    &place,
                    "the link changes its speed or width again and again",
                )
                .seen(format!("{changed} changes while it was looked at"))
                .try_this("power management of the link (pcie_aspm=off), then riser or cable")
                .costs(0.3),
            );
        }
    }
    findings
}

fn kind_name(device: &Device) -> &'static str {
    match device.class >> 16 {
        1 => "storage",
        2 => "network card",
        3 | 0x12 => "accelerator",
        _ => "device",
    }
}

fn finding(verdict: &Verdict, device: &Device, above: Option<&Device>, is_gpu: bool, place: &str) -> Option<Finding> {
    let end =
        above.map_or(String::new(), |above| format!(", port {} at best {}", above.address, above.link.max_shown()));
    let evidence = format!("now {}, device at best {}{end}", device.link.shown(), device.link.max_shown());
    Some(match verdict {
        Verdict::Narrow { now, best } => Finding::new(
            if is_gpu { Level::Fault } else { Level::Warning },
            "link-width",
            place,
            format!("{now} of {best} lanes are in use"),
        )
        .seen(evidence)
        .try_this("reseat the card and its riser or cable; check that the firmware does not split the slot")
        .costs(1.0 - f64::from(*now) / f64::from(*best)),
        Verdict::Slow { now, best } => Finding::new(
            if is_gpu { Level::Fault } else { Level::Warning },
            "link-speed",
            place,
            format!("the link runs at {now} of {best}{}", if is_gpu { " while the GPU works" } else { "" }),
        )
        .seen(evidence)
        .try_this("the slot's speed in the firmware settings; then riser, cable or retimer; an older generation is what a bad signal falls back to")
        .costs(0.6),
        Verdict::Idle => Finding::new(Level::Advice, "link-idle", place, "the link is slow and the GPU idle: not judged")
            .seen(evidence)
            .try_this("prun doctor while a job runs"),
        Verdict::SlowAtUnknownLoad => Finding::new(
            Level::Advice,
            "link-idle",
            place,
            "the link is slow, and whether the GPU works is not known: not judged",
        )
        .seen(evidence)
        .try_this("--busy, if the GPUs worked while this was read"),
        Verdict::Unknown if is_gpu => {
            Finding::new(Level::Advice, "link-unknown", place, "the link cannot be judged: the machine does not tell its speed or width")
                .seen(evidence)
                .try_this("lspci -vvv as root on the host, then prun doctor --lspci FILE")
        }
        Verdict::Fine | Verdict::Port | Verdict::Empty | Verdict::VirtualFunction | Verdict::Unknown => return None,
    })
}

/// What was judged of one link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Judged {
    /// The device at its lower end.
    pub address: PciAddress,
    /// The worst that can be said of it.
    pub verdict: Verdict,
    /// As it runs.
    pub now: PciLink,
    /// What both ends can do.
    pub best: PciLink,
}

impl Verdict {
    /// In a few words, for counts; of one link or of several.
    pub fn words(&self, several: bool) -> &'static str {
        match (self, several) {
            (Verdict::Fine, _) => "fine",
            (Verdict::Narrow { .. }, _) => "with lanes lost",
            (Verdict::Slow { .. }, _) => "too slow",
            (Verdict::Idle, _) => "idle",
            (Verdict::SlowAtUnknownLoad, _) => "slow at unknown load",
            (Verdict::Unknown, _) => "not known",
            (Verdict::VirtualFunction, false) => "virtual function",
            (Verdict::VirtualFunction, true) => "virtual functions",
            (Verdict::Empty, false) => "empty slot",
            (Verdict::Empty, true) => "empty slots",
            (Verdict::Port, false) => "port not judged",
            (Verdict::Port, true) => "ports not judged",
        }
    }
}

/// Every link of which anything could be known: those of devices that have one, and of all GPUs.
pub fn judged(machine: &Machine) -> Vec<Judged> {
    let one = |device: &Device| {
        let gpu = machine.gpus.iter().find(|gpu| gpu.address == Some(device.address));
        let above = device.above.last().and_then(|address| machine.device(*address));
        let is_gpu = gpu.is_some() || (device.is_gpu() && matches!(device.vendor, NVIDIA | AMD));
        // A device inside the chipset has no link at all.
        let has_link = !device.link.is_unknown() || is_gpu || device.kind == DeviceKind::VirtualFunction;
        let verdicts = has_link.then(|| judge(device, above, gpu.map(busy).or(is_gpu.then_some(Busy::Unknown))))?;
        // Lanes come first, and losing them is worse than a speed that rests or is unknown.
        let verdict = verdicts.into_iter().max_by_key(|verdict| match verdict {
            Verdict::Slow { .. } => 3,
            Verdict::Narrow { .. } => 2,
            Verdict::Idle | Verdict::SlowAtUnknownLoad | Verdict::Unknown => 1,
            _ => 0,
        })?;
        Some(Judged { address: device.address, verdict, now: device.link, best: best(device, above) })
    };
    machine.devices.iter().filter_map(one).collect()
}

/// `links: 3 fine, 1 virtual function, 4 ports not judged`; nothing for a machine without any.
pub fn summary(judged: &[Judged]) -> Option<String> {
    let order = |verdict: &Verdict| match verdict {
        Verdict::Slow { .. } => 0,
        Verdict::Narrow { .. } => 1,
        Verdict::Fine => 2,
        Verdict::Idle => 3,
        Verdict::SlowAtUnknownLoad => 4,
        Verdict::Unknown => 5,
        Verdict::VirtualFunction => 6,
        Verdict::Empty => 7,
        Verdict::Port => 8,
    };
    let counts: Vec<String> = (0..=8)
        .filter_map(|kind| {
            let alike: Vec<&Judged> = judged.iter().filter(|its| order(&its.verdict) == kind).collect();
            Some(format!("{} {}", alike.len(), alike.first()?.verdict.words(alike.len() > 1)))
        })
        .collect();
    (!counts.is_empty()).then(|| format!("links: {}", counts.join(", ")))
}

/// For programs.
pub fn json(judged: &[Judged]) -> Vec<Value> {
    judged
        .iter()
        .map(|its| {
            json!({
                "address": its.address.to_string(),
                "verdict": its.verdict.words(false),
                "now": its.now.shown(),
                "best": its.best.max_shown(),
            })
        })
        .collect()
}

/// A slot that has fewer lanes than its card is a purchase, not a fault.
fn wiring(device: &Device, above: Option<&Device>, place: &str) -> Option<Finding> {
    let (card, slot) = (device.link.max_width?, above?.link.max_width?);
    (device.kind == DeviceKind::Endpoint && device.is_gpu() && slot < card).then(|| {
        Finding::new(Level::Advice, "slot-lanes", place, format!("the slot has {slot} lanes and the card {card}"))
            .try_this("another slot, if the machine has a wider one")
            .costs(1.0 - f64::from(slot) / f64::from(card))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::{Speed, lspci};

    fn device(now: (u32, u8), best: (u32, u8)) -> Device {
        let link = PciLink {
            speed: Speed::of_generation(now.0),
            width: Some(now.1),
            max_speed: Speed::of_generation(best.0),
            max_width: Some(best.1),
        };
        Device { link, ..Device::at("0000:41:00.0".parse().unwrap()) }
    }

    // F07
    #[test]
    fn speed_counts_under_load_and_lanes_always() {
        let slow = |now: &str, best: &str| Verdict::Slow { now: now.into(), best: best.into() };
        let table = [
            (device((1, 16), (4, 16)), Some(Busy::No), vec![Verdict::Idle]),
            (device((1, 16), (4, 16)), Some(Busy::Unknown), vec![Verdict::SlowAtUnknownLoad]),
            (device((4, 16), (4, 16)), Some(Busy::Yes), vec![Verdict::Fine]),
            (device((2, 16), (5, 16)), Some(Busy::Yes), vec![slow("5 GT/s", "32 GT/s")]),
            (device((1, 8), (4, 16)), Some(Busy::No), vec![Verdict::Narrow { now: 8, best: 16 }, Verdict::Idle]),
            (device((4, 2), (5, 2)), None, vec![slow("16 GT/s", "32 GT/s")]),
        ];
        for (device, busy, expected) in table {
            assert_eq!(judge(&device, None, busy), expected, "{:?} {busy:?}", device.link);
        }
    }

    // F08
    #[test]
    fn only_the_device_s_end_is_judged_by_what_both_can_do() {
        let port = |generation, width| Device { kind: DeviceKind::Port, ..device((3, 8), (generation, width)) };
        assert_eq!(judge(&port(3, 16), None, None), [Verdict::Port]);
        let empty = Device { is_empty: Some(true), ..port(2, 1) };
        assert_eq!(judge(&empty, None, None), [Verdict::Empty]);
        assert_eq!(judge(&device((3, 8), (3, 8)), Some(&port(3, 16)), None), [Verdict::Fine]);
        assert_eq!(judge(&device((3, 8), (5, 16)), Some(&port(3, 8)), Some(Busy::Yes)), [Verdict::Fine]);
        let narrow_slot = Device { class: 0x030200, ..device((3, 8), (5, 16)) };
        assert_eq!(wiring(&narrow_slot, Some(&port(3, 8)), "GPU0").unwrap().level, Level::Advice);
    }

    #[test]
    fn every_link_s_verdict_can_be_seen() {
        let mut machine = crate::topology::tests_support::two_sockets();
        machine.devices[1].link.width = Some(8);
        machine.devices[3].link.speed = Speed::of_generation(1);
        machine.devices[5].link = PciLink::default();
        machine
            .devices
            .push(Device { kind: DeviceKind::VirtualFunction, ..Device::at("d6f5:00:02.0".parse().unwrap()) });
        // The machine's clock: no link, and nothing to say of it.
        machine.devices.push(Device::at("0000:00:1f.0".parse().unwrap()));
        let all = judged(&machine);
        assert_eq!(
            summary(&all).unwrap(),
            "links: 1 with lanes lost, 1 fine, 1 slow at unknown load, 1 not known, 1 virtual function, 4 ports not judged"
        );
        let json = json(&all);
        assert_eq!(json.len(), 9);
        assert_eq!(
            json[1],
            json!({"address": "0000:1b:00.0", "verdict": "with lanes lost", "now": "Gen5 x8", "best": "Gen5 x16"})
        );
        assert_eq!(summary(&[]), None);
    }

    // F09, F10
    #[test]
    fn what_is_unknown_is_no_fault() {
        let function = Device { kind: DeviceKind::VirtualFunction, ..device((1, 1), (5, 16)) };
        assert_eq!(judge(&function, None, None), [Verdict::VirtualFunction]);
        let mut half = device((4, 16), (4, 16));
        half.link.max_speed = None;
        assert_eq!(judge(&half, None, None), [Verdict::Unknown]);
        assert_eq!(judge(&Device::at(half.address), None, Some(Busy::Yes)), [Verdict::Unknown]);
        let machine = Machine { devices: vec![function, half], ..Machine::default() };
        assert!(findings(&machine, &[]).iter().all(|finding| finding.level == Level::Advice));
    }

    // F08
    #[test]
    fn a_drive_that_lost_a_generation_is_found_in_lspci_s_text() {
        let machine = lspci::machine(
            "2e:00.0 Non-Volatile memory controller: Maker Drive\n\t\tLnkCap:\tPort #0, Speed 32GT/s, Width x2, ASPM not supported\n\t\tLnkSta:\tSpeed 16GT/s (downgraded), Width x2\n00:1c.0 PCI bridge: Maker Port\n\tCapabilities: [40] Express (v2) Root Port (Slot+), MSI 00\n\t\tLnkCap:\tPort #1, Speed 8GT/s, Width x1\n\t\tLnkSta:\tSpeed 5GT/s, Width x1\n",
        );
        let found = findings(&machine, &[]);
        assert_eq!(
            found.iter().map(|finding| (finding.check, finding.level)).collect::<Vec<_>>(),
            [("link-speed", Level::Warning)]
        );
    }

    // F07
    #[test]
    fn a_link_that_changes_all_the_time_is_told() {
        let mut machine = crate::topology::tests_support::two_sockets();
        machine.devices.truncate(2);
        let found = findings(&machine, &[1415, 0, 0, 0]);
        assert_eq!(found.iter().map(|finding| finding.check).collect::<Vec<_>>(), ["link-changes"]);
    }
}
