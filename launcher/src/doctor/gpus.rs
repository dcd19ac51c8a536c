//! The GPUs themselves: lost ones, memory, clocks, settings.

use super::{Finding, Level};
use crate::topology::{Gpu, Machine, NVIDIA, gpu_name};

/// All findings about GPUs.
pub fn findings(machine: &Machine) -> Vec<Finding> {
    let mut findings = lost(machine);
    for gpu in machine.nvidia_gpus() {
        findings.extend(one(gpu));
    }
    findings
}

/// On the bus, and not in the driver; or in the driver, and not answering.
fn lost(machine: &Machine) -> Vec<Finding> {
    // A copy of a machine's files may say nothing about drivers at all.
    let drivers_told = machine.driver.is_some() || machine.devices.iter().any(|device| device.driver.is_some());
    let on_bus = machine.devices.iter().filter(|device| {
        let known = machine.gpus.iter().any(|gpu| gpu.address == Some(device.address));
        drivers_told && device.vendor == NVIDIA && device.is_gpu() && !known
    });
    let unused = on_bus.map(|device| {
        let driver = device.driver.as_deref().unwrap_or("none");
        let (level, cure) = match driver {
            // Given away on purpose.
            "vfio-pci" => (Level::Advice, "nothing, if a virtual machine shall have it"),
            _ => (Level::Fault, "`dmesg | grep -i nvrm`; power cables of the card; reload the driver"),
        };
        Finding::new(
            level,
            "gpu-lost",
            device.address.to_string(),
            "a GPU is on the bus, and the NVIDIA driver does not have it",
        )
        .seen(format!("kernel driver: {driver}"))
        .try_this(cure)
        .costs(1.0)
    });
    let silent = machine.notes.iter().filter(|note| note.contains("cannot reach")).map(|note| {
        Finding::new(Level::Fault, "gpu-lost", "NVIDIA driver", "a GPU does not answer any more")
            .seen(note.clone())
            .try_this("`nvidia-smi --gpu-reset`, or a cold start of the machine")
            .costs(1.0)
    });
    unused.chain(silent).collect()
}

fn one(gpu: &Gpu) -> Vec<Finding> {
    let place = gpu_name(gpu.index);
    let mut findings = Vec::new();
    let Some(state) = &gpu.state else { return findings };
    if state.remap_pending == Some(true) {
        findings.push(
            Finding::new(Level::Fault, "memory-remap", &place, "bad memory is replaced at the next reset only")
                .seen("pages or rows wait for it")
                .try_this("stop its jobs and `nvidia-smi --gpu-reset`")
                .costs(0.8),
        );
    }
    if let Some(errors) = state.uncorrected.filter(|errors| *errors > 0) {
        findings.push(
            Finding::new(Level::Fault, "ecc", &place, "its memory had errors that could not be repaired")
                .seen(format!("{errors} since the driver was loaded"))
                .try_this("`nvidia-smi -q -d ECC,ROW_REMAPPER`; reset it; exchange it if they come again")
                .costs(0.8),
        );
    }
    if !state.throttled.is_empty() {
        let hot = state.throttled.iter().any(|reason| reason != "power limit");
        let clock = state.sm_mhz.map_or(String::new(), |mhz| format!(", {mhz} MHz"));
        let celsius = state.celsius.map_or(String::new(), |celsius| format!(", {celsius} °C"));
        findings.push(
            Finding::new(
                if hot { Level::Warning } else { Level::Advice },
                "throttled",
                &place,
                format!("runs slower than it could: {}", state.throttled.join(", ")),
            )
            .seen(format!("reported by the driver{clock}{celsius}"))
            .try_this("cooling and power of the machine; `nvidia-smi -q -d PERFORMANCE`")
            .costs(0.3),
        );
    }
    if state.persistence == Some(false) {
        findings.push(
            Finding::new(
                Level::Advice,
                "persistence",
                &place,
                "the driver forgets it when nobody uses it, and every first start then takes a second or more",
            )
            .seen("persistence mode is off")
            .try_this("`nvidia-smi -pm 1`, or the service nvidia-persistenced"),
        );
    }
    if let (Some(bar1), Some(memory)) = (gpu.bar1_mib, gpu.memory_mib)
        && bar1 < memory
    {
        findings.push(
            Finding::new(
                Level::Advice,
                "bar1",
                &place,
                "the bus sees a part of its memory only, so large direct transfers are cut into windows",
            )
            .seen(format!("BAR1 {bar1} MiB, memory {memory} MiB"))
            .try_this("\"Above 4G decoding\" and \"Resizable BAR\" in the firmware"),
        );
    }
    if let Some(down) = state.nvlinks_down.filter(|down| *down > 0 && state.nvlinks_up.unwrap_or(0) > 0) {
        findings.push(
            Finding::new(Level::Warning, "nvlink-down", &place, format!("{down} of its NVLinks are down"))
                .seen(format!("{} are up", state.nvlinks_up.unwrap_or(0)))
                .try_this("`nvidia-smi nvlink -s`; bridges between cards; the fabric manager on machines with NVSwitch")
                .costs(f64::from(down) / 18.0),
        );
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::GpuState;
    use crate::topology::tests_support::two_sockets;

    #[test]
    fn a_gpu_that_the_driver_does_not_have_is_a_fault() {
        let mut machine = two_sockets();
        machine.gpus.pop();
        machine.notes.push("the driver cannot reach its GPU 3: it is lost".into());
        let found = findings(&machine);
        assert_eq!(found.iter().map(|finding| finding.level).collect::<Vec<_>>(), [Level::Fault, Level::Fault]);
        machine.devices.last_mut().unwrap().driver = Some("vfio-pci".into());
        assert_eq!(findings(&machine)[0].level, Level::Advice);
    }

    #[test]
    fn what_the_driver_says_is_judged() {
        let mut machine = two_sockets();
        machine.gpus[0].bar1_mib = Some(256);
        machine.gpus[0].state = Some(GpuState {
            persistence: Some(false),
            remap_pending: Some(true),
            uncorrected: Some(2),
            throttled: vec!["temperature".into()],
            nvlinks_up: Some(16),
            nvlinks_down: Some(2),
            ..GpuState::default()
        });
        let checks: Vec<&str> = findings(&machine).iter().map(|finding| finding.check).collect();
        assert_eq!(checks, ["memory-remap", "ecc", "throttled", "persistence", "bar1", "nvlink-down"]);
    }
}
