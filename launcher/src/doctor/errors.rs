//! Error counters, as rates: what a device reported while it was looked at.

use super::{Examination, Finding, Level};
use crate::topology::aer::{self, Counts, Severity};
use crate::topology::{Device, ErrorRates, Gpu, Machine, gpu_name};

/// Errors per second above which a link is in trouble and not just unlucky.
const MANY_PER_SECOND: f64 = 10.0;

/// What grew for one device: severity, kind, how much.
pub fn grown(before: &Device, after: &Device) -> Vec<(Severity, String, u64)> {
    let pairs = before.aer.by_severity().into_iter().zip(after.aer.by_severity());
    pairs
        .filter_map(|((severity, was), (_, is))| Some((severity, aer::growth(was.as_ref()?, is.as_ref()?))))
        .flat_map(|(severity, grown): (Severity, Counts)| {
            grown.into_iter().map(move |(kind, count)| (severity, kind, count))
        })
        .collect()
}

/// How many correctable errors a second, and how many were worse.
pub fn rates(examined: &Examination, gpu: &Gpu) -> Option<ErrorRates> {
    let earlier = examined.earlier.as_ref()?;
    let before = earlier.gpus.iter().find(|its| its.address == gpu.address && gpu.address.is_some());
    let replays = |gpu: &Gpu| gpu.state.as_ref().and_then(|state| state.replays);
    let devices = examined.machine.device_of(gpu).zip(gpu.address.and_then(|address| earlier.device(address)));
    between(devices, (before.and_then(replays), replays(gpu)), examined.seconds)
}

/// What was counted in so many seconds between an earlier state and a later one (`devices` has the later one first): by the kernel, or else the packets that the driver saw sent again.
pub fn between(
    devices: Option<(&Device, &Device)>,
    replays: (Option<u64>, Option<u64>),
    seconds: f64,
) -> Option<ErrorRates> {
    if seconds <= 0.0 {
        return None;
    }
    if let Some((after, before)) = devices.filter(|(after, _)| !after.aer.is_unknown()) {
        let grown = grown(before, after);
        let sum = |wanted: fn(Severity) -> bool| {
            grown
                .iter()
                .filter(|(severity, _, _)| wanted(*severity))
                .fold(0u64, |sum, (_, _, count)| sum.saturating_add(*count))
        };
        return Some(ErrorRates {
            correctable_per_s: sum(|severity| severity == Severity::Correctable) as f64 / seconds,
            worse: Some(sum(|severity| severity != Severity::Correctable)),
        });
    }
    let (Some(before), Some(after)) = replays else { return None };
    // A driver that was loaded anew counts from the start.
    let grown = if after >= before { after - before } else { after };
    Some(ErrorRates { correctable_per_s: grown as f64 / seconds, worse: None })
}

/// All findings about errors.
pub fn findings(examined: &Examination) -> Vec<Finding> {
    let mut findings = Vec::new();
    let Some(earlier) = &examined.earlier else { return findings };
    let seconds = examined.seconds.max(0.001);
    for after in &examined.machine.devices {
        let Some(before) = earlier.device(after.address) else { continue };
        let place = place(&examined.machine, after);
        for (severity, kind, count) in grown(before, after) {
            let (meaning, cure) = aer::meaning(&kind);
            let per_second = count as f64 / seconds;
            let level = match severity {
                Severity::Correctable if per_second < MANY_PER_SECOND => Level::Warning,
                _ => Level::Fault,
            };
            let recoverable = match severity {
                Severity::Correctable => "repaired by the hardware",
                Severity::NonFatal => "a transaction was lost, the link lives",
                Severity::Fatal => "the link is not reliable until the device is reset",
            };
            findings.push(
                Finding::new(level, "aer", &place, format!("{} error {kind}: {meaning}", severity.name()))
                    .seen(format!("{count} in {seconds:.1} s ({per_second:.1} a second); {recoverable}"))
                    .try_this(cure)
                    .costs((per_second / 1000.0).clamp(0.05, 0.5)),
            );
        }
    }
    findings.extend(replays(examined, earlier, seconds));
    findings
}

/// PCIe packets that the GPU had to send again, where the driver counts them.
fn replays(examined: &Examination, earlier: &Machine, seconds: f64) -> Vec<Finding> {
    let replays = |gpu: &Gpu| gpu.state.as_ref().and_then(|state| state.replays);
    examined
        .machine
        .gpus
        .iter()
        .filter_map(|gpu| {
            let before = earlier.gpus.iter().find(|its| its.address == gpu.address && gpu.address.is_some())?;
            let grown = replays(gpu)?.checked_sub(replays(before)?).filter(|grown| *grown > 0)?;
            let per_second = grown as f64 / seconds;
            let level = if per_second < MANY_PER_SECOND { Level::Warning } else { Level::Fault };
            Some(
                Finding::new(level, "replays", gpu_name(gpu.index), "packets on the PCIe link are sent again")
                    .seen(format!("{grown} replays in {seconds:.1} s ({per_second:.1} a second)"))
                    .try_this("reseat the card; exchange riser or cable; try one generation slower in the firmware")
                    .costs(0.1),
            )
        })
        .collect()
}

fn place(machine: &Machine, device: &Device) -> String {
    match machine.gpus.iter().find(|gpu| gpu.address == Some(device.address)) {
        Some(gpu) => format!("{} ({})", gpu_name(gpu.index), device.address),
        None => device.address.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::Aer;
    use crate::topology::tests_support::two_sockets;

    fn with(text: &str, replays: u64) -> Machine {
        let mut machine = two_sockets();
        machine.devices[1].aer =
            Aer { correctable: Some(aer::read(text)), nonfatal: Some(aer::read("CmpltTO 0")), fatal: None };
        machine.gpus[0].state = Some(crate::topology::GpuState { replays: Some(replays), ..Default::default() });
        machine
    }

    #[test]
    fn where_the_kernel_counts_nothing_the_driver_s_replays_do() {
        let with = |replays: u64| {
            let mut machine = two_sockets();
            machine.gpus[0].state = Some(crate::topology::GpuState { replays: Some(replays), ..Default::default() });
            machine
        };
        let examined =
            Examination { earlier: Some(with(5)), machine: with(45), seconds: 2.0, ..Examination::default() };
        let rates = rates(&examined, &examined.machine.gpus[0]);
        assert_eq!(rates, Some(ErrorRates { correctable_per_s: 20.0, worse: None }));
        let scores = super::super::health::all(&examined);
        let gpu = scores.iter().find(|health| health.place == "GPU0").unwrap();
        assert_eq!(gpu.score(), super::super::health::AT_MOST, "{}", gpu.text());
        assert!(
            gpu.text().contains("20.0 replays a second") && gpu.text().contains("not known: worse errors"),
            "{}",
            gpu.text()
        );
    }

    #[test]
    fn only_what_grows_is_a_finding() {
        let examined = |before: Machine, after: Machine| Examination {
            earlier: Some(before),
            machine: after,
            seconds: 2.0,
            ..Examination::default()
        };
        // However large: a machine may have run for years.
        assert!(findings(&examined(with("BadTLP 5000000000", 9), with("BadTLP 5000000000", 9))).is_empty());
        let found = findings(&examined(with("BadTLP 17", 0), with("BadTLP 19", 3)));
        assert_eq!(
            found.iter().map(|finding| (finding.check, finding.level)).collect::<Vec<_>>(),
            [("aer", Level::Warning), ("replays", Level::Warning)]
        );
        assert!(found[0].evidence.contains("2 in 2.0 s (1.0 a second)"), "{}", found[0].evidence);
        let found = findings(&examined(with("BadTLP 17", 0), with("BadTLP 1017", 0)));
        assert_eq!(found[0].level, Level::Fault);
        // A counter that was reset.
        assert!(findings(&examined(with("BadTLP 17", 5), with("BadTLP 0", 0))).is_empty());
        assert!(findings(&Examination { machine: with("BadTLP 17", 0), ..Examination::default() }).is_empty());
        let lost = examined(with("", 0), {
            let mut after = with("", 0);
            after.devices[1].aer.nonfatal = Some(aer::read("CmpltTO 1"));
            after
        });
        assert_eq!(findings(&lost)[0].level, Level::Fault);
        assert_eq!(rates(&lost, &lost.machine.gpus[0]), Some(ErrorRates { correctable_per_s: 0.0, worse: Some(1) }));
        assert_eq!(rates(&lost, &lost.machine.gpus[1]), None);
    }
}
