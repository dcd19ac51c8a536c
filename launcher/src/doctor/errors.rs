//! Error counters, as rates: what a device reported while it was looked at.

use super::{Examination, Finding, Level};
use crate::topology::aer::{self, Counts, Severity};
use crate::topology::{Device, Gpu, Machine, gpu_name};

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

/// How many correctable errors a second, and whether any was worse.
pub fn rates(examined: &Examination, gpu: &Gpu) -> Option<(f64, u64)> {
    let after = examined.machine.device_of(gpu)?;
    let before = examined.earlier.as_ref()?.device(after.address)?;
    if after.aer.is_unknown() || examined.seconds <= 0.0 {
        return None;
    }
    let grown = grown(before, after);
    let sum = |wanted: fn(Severity) -> bool| {
        grown.iter().filter(|(severity, _, _)| wanted(*severity)).map(|(_, _, count)| count).sum::<u64>()
    };
    let correctable = sum(|severity| severity == Severity::Correctable) as f64 / examined.seconds;
    Some((correctable, sum(|severity| severity != Severity::Correctable)))
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
        assert_eq!(rates(&lost, &lost.machine.gpus[0]), Some((0.0, 1)));
        assert_eq!(rates(&lost, &lost.machine.gpus[1]), None);
    }
}
