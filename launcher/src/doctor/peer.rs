//! Ways between GPUs: what the driver reports, what was proven, and what stands in the way.

use super::{Finding, Level, health};
use crate::topology::{LinkKind, Machine, PciAddress, gpu_name};

/// Measured bandwidth below this part of what the kind of link should give is a finding.
const EXPECTED_PART: f64 = 0.5;

/// All findings about ways between GPUs.
pub fn findings(machine: &Machine) -> Vec<Finding> {
    let mut findings = Vec::new();
    for link in machine.links.iter().filter(|link| link.b.starts_with("GPU")) {
        let place = format!("{} and {}", link.a, link.b);
        match (link.peer_proven, link.peer_reported) {
            (Some(false), _) => findings.push(
                Finding::new(Level::Fault, "peer-access", &place, "data that one wrote did not arrive at the other")
                    .seen(link.trouble.clone().unwrap_or_else(|| "a pattern was written by the one and read by the other".into()))
                    .try_this("IOMMU off or in passthrough (iommu=pt), ACS off in the firmware; until then NCCL_P2P_DISABLE=1 for NCCL; libcomm goes through the host by itself")
                    .costs(0.9),
            ),
            (None, Some(false)) => findings.push(
                Finding::new(Level::Warning, "peer-access", &place, "the driver allows no direct transfers; data goes through the host")
                    .seen(format!("link {}", link.kind))
                    .try_this("nvidia-smi topo -p2p w tells why; consumer cards and some virtual machines do not allow it")
                    .costs(0.6),
            ),
            _ => {}
        }
        if let Some((part, gb_s, kind)) = health::bandwidth(machine, link).filter(|_| link.peer_proven != Some(false))
            && part < EXPECTED_PART
        {
            // What PCIe should give is known less well than what NVLink should.
            let (level, cure) = match kind {
                LinkKind::Nvlink(_) => {
                    (Level::Fault, "nvidia-smi nvlink -s and -e: links that are down or count errors")
                }
                _ => (
                    Level::Warning,
                    "lanes and speed of both cards' links; ACS and IOMMU; `prun topo --measure` shows each way",
                ),
            };
            findings.push(
                Finding::new(level, "peer-bandwidth", &place, "the link is much slower than its kind allows")
                    .seen(format!("measured {gb_s:.0} GB/s, {kind} should give about {:.0}", gb_s / part))
                    .try_this(cure)
                    .costs(1.0 - part),
            );
        }
    }
    findings.extend(redirection(machine));
    findings.extend(unproven(machine));
    if machine.gpus.len() > 1
        && let Some(iommu) = machine.iommu.as_deref().filter(|iommu| iommu.starts_with("DMA"))
    {
        findings.push(
            Finding::new(Level::Warning, "iommu", "IOMMU", "the IOMMU translates every transfer of the GPUs")
                .seen(format!("mode {iommu}"))
                .try_this("iommu=pt on the kernel's command line")
                .costs(0.2),
        );
    }
    let lost: Vec<String> = machine
        .gpus
        .iter()
        .filter(|gpu| gpu.numa.is_empty() && machine.memory.iter().filter(|node| !node.cpus.is_empty()).count() > 1)
        .map(|gpu| gpu_name(gpu.index))
        .collect();
    if !lost.is_empty() {
        findings.push(
            Finding::new(
                Level::Warning,
                "gpu-numa",
                lost.join(", "),
                "the machine does not tell which NUMA node is near",
            )
            .seen("numa_node is -1 or missing")
            .try_this(
                "the firmware's NUMA settings, or the virtual machine's definition; `prun --bind LIST` pins by hand",
            )
            .costs(0.2),
        );
    }
    findings
}

/// Bridges that send what one GPU writes to another up to the host bridge: those above GPUs, if there are two GPUs below
/// them. What a port above a drive does costs no GPU anything.
fn redirection(machine: &Machine) -> Option<Finding> {
    let redirects = |address: &PciAddress| machine.device(*address).is_some_and(|its| its.acs_redirect == Some(true));
    let mut bridges: Vec<PciAddress> = Vec::new();
    let mut gpus: Vec<String> = Vec::new();
    for gpu in &machine.gpus {
        let Some(device) = machine.device_of(gpu) else { continue };
        let above: Vec<PciAddress> = device.above.iter().copied().filter(redirects).collect();
        if !above.is_empty() {
            gpus.push(gpu_name(gpu.index));
        }
        bridges.extend(above);
    }
    bridges.sort_unstable();
    bridges.dedup();
    (gpus.len() > 1).then(|| {
        let shown: Vec<String> = bridges.iter().map(ToString::to_string).collect();
        Finding::new(
            Level::Warning,
            "acs-redirect",
            shown.join(", "),
            "ACS sends transfers between GPUs up to the host bridge and back",
        )
        .seen(format!("P2P Request Redirect is set on bridges above {}", gpus.join(", ")))
        .try_this("ACS off in the firmware, or `setpci` on these bridges, unless devices are given to virtual machines")
        .costs(0.4)
    })
}

/// Pairs of which the driver says that they reach each other, and nobody has tried.
fn unproven(machine: &Machine) -> Option<Finding> {
    let pairs: Vec<String> = machine
        .links
        .iter()
        .filter(|link| link.peer_reported == Some(true) && link.peer_proven.is_none() && link.b.starts_with("GPU"))
        .map(|link| format!("{}-{}", link.a, link.b))
        .collect();
    (!pairs.is_empty()).then(|| {
        Finding::new(
            Level::Advice,
            "peer-unproven",
            pairs.join(", "),
            "the driver reports direct transfers, and nobody has tried whether the data arrives",
        )
        .try_this(
            "`prun topo --measure` writes through every pair and compares; the first job on two GPUs proves its own",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::tests_support::two_sockets;

    #[test]
    fn acs_matters_only_between_gpus() {
        let mut machine = two_sockets();
        let port = |address: &str| crate::topology::Device {
            class: 0x060400,
            acs_redirect: Some(true),
            ..crate::topology::Device::at(address.parse().unwrap())
        };
        // Above a drive, and above one GPU alone.
        machine.devices.push(port("0000:c0:01.0"));
        machine.devices[0].acs_redirect = Some(true);
        assert_eq!(findings(&machine), []);
        machine.devices[4].acs_redirect = Some(true);
        let found = findings(&machine);
        assert_eq!((found.len(), found[0].check), (1, "acs-redirect"));
        assert_eq!(found[0].place, "0000:1a:00.0, 0000:9a:00.0");
        assert!(found[0].evidence.ends_with("above GPU0, GPU2"), "{}", found[0].evidence);
    }

    #[test]
    fn what_nobody_has_tried_is_advised_to_be_tried() {
        let mut machine = two_sockets();
        machine.links[0].peer_reported = Some(true);
        let found = findings(&machine);
        assert_eq!(
            (found[0].check, found[0].level, found[0].place.as_str()),
            ("peer-unproven", Level::Advice, "GPU0-GPU1")
        );
        machine.links[0].peer_proven = Some(true);
        assert_eq!(findings(&machine), []);
    }

    #[test]
    fn what_was_reported_is_less_than_what_was_proven() {
        let mut machine = two_sockets();
        let checks = |machine: &Machine| {
            findings(machine).iter().map(|finding| (finding.check, finding.level)).collect::<Vec<_>>()
        };
        assert_eq!(checks(&machine), []);
        machine.links[0].peer_reported = Some(true);
        machine.links[0].peer_proven = Some(false);
        assert_eq!(checks(&machine), [("peer-access", Level::Fault)]);
        machine.links[0].peer_proven = Some(true);
        machine.links[0].gb_s = Some(20.0);
        assert_eq!(checks(&machine), [("peer-bandwidth", Level::Fault)]);
        machine.links[0].gb_s = None;
        machine.links[1].peer_reported = Some(false);
        machine.iommu = Some("DMA-FQ".into());
        machine.devices[0].acs_redirect = Some(true);
        machine.devices[2].acs_redirect = Some(true);
        machine.gpus[0].numa.clear();
        assert_eq!(
            checks(&machine),
            [
                ("peer-access", Level::Warning),
                ("acs-redirect", Level::Warning),
                ("iommu", Level::Warning),
                ("gpu-numa", Level::Warning),
            ]
        );
    }
}
