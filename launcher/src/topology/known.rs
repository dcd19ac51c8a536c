//! What was found out about the links between GPUs since the machine was started, kept for later launches.
//!
//! NVLinks are known to NVML alone, which a launch does not wait for more than once: the first that needs them asks
//! and writes them down, for this boot and driver. What was measured or proven of a pair, how many errors a GPU
//! reported when it was last looked at, and how fast its link was under load, is kept in the same place.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{ErrorRates, Link, Machine, PciAddress, Speed, gpu_name, nvml};

/// The file's content.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
struct Known {
    /// The GPUs in the order of their numbers.
    gpus: Vec<PciAddress>,
    /// How they lie to each other.
    #[serde(rename = "link", default)]
    links: Vec<Link>,
    /// Errors of those that were looked at.
    #[serde(default)]
    errors: Vec<Errors>,
    /// Speeds of links under load.
    #[serde(default)]
    loaded: Vec<Loaded>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Loaded {
    gpu: PciAddress,
    speed: Speed,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Errors {
    gpu: PciAddress,
    rates: ErrorRates,
}

/// Where it is kept for this boot and driver; `None` where there is no place.
pub fn place(inherited: &[(OsString, OsString)], root: &Path, machine: &Machine) -> Option<PathBuf> {
    let variable = |name: &str| {
        inherited
            .iter()
            .find(|(known, _)| known == name)
            .map(|(_, value)| PathBuf::from(value))
            .filter(|path| path.is_absolute())
    };
    let cache = variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")))?;
    let boot = fs::read_to_string(root.join("proc/sys/kernel/random/boot_id")).ok()?;
    let driver = machine.driver.as_deref().unwrap_or("unknown");
    Some(cache.join("prun").join(format!("links-{}-{driver}.toml", boot.trim().get(..8)?)))
}

/// Adds what is known to `machine`, pair by pair; whether that is all pairs.
pub fn recall(machine: &mut Machine, place: Option<&Path>) -> bool {
    let text = place.and_then(|path| fs::read_to_string(path).ok());
    let Some(known) = text.and_then(|text| toml::from_str::<Known>(&text).ok()) else { return false };
    for errors in &known.errors {
        if let Some(gpu) = machine.gpus.iter_mut().find(|gpu| gpu.address == Some(errors.gpu)) {
            gpu.errors = Some(errors.rates);
        }
    }
    for loaded in &known.loaded {
        if let Some(gpu) = machine.gpus.iter_mut().find(|gpu| gpu.address == Some(loaded.gpu)) {
            gpu.loaded_speed = Some(loaded.speed);
        }
    }
    let mut all = true;
    let gpus: Vec<(usize, Option<PciAddress>)> = machine.gpus.iter().map(|gpu| (gpu.index, gpu.address)).collect();
    let number = |address: Option<PciAddress>| known.gpus.iter().position(|its| Some(*its) == address);
    for (at, (a, address)) in gpus.iter().enumerate() {
        for (b, other) in &gpus[at + 1..] {
            let names = number(*address).zip(number(*other)).map(|(one, its)| (gpu_name(one), gpu_name(its)));
            let found = names.and_then(|(one, its)| {
                let joins = |link: &&Link| (link.a == one && link.b == its) || (link.a == its && link.b == one);
                Some((known.links.iter().find(joins)?, one))
            });
            let Some((link, one)) = found else {
                all = false;
                continue;
            };
            let ends = if link.a == one { (*a, *b) } else { (*b, *a) };
            let told = Link { a: gpu_name(ends.0), b: gpu_name(ends.1), ..link.clone() };
            let mut merged = Link::new(gpu_name(*a), gpu_name(*b), told.kind);
            merged.take_measured(&told);
            machine.links.retain(|its| !(its.a == merged.a && its.b == merged.b));
            machine.links.push(merged);
        }
    }
    all
}

/// Adds what was measured and counted to a machine whose links were asked for just now.
pub fn recall_measured(machine: &mut Machine, place: Option<&Path>) {
    let fresh = machine.links.clone();
    recall(machine, place);
    for link in &fresh {
        match machine.links.iter_mut().find(|its| its.a == link.a && its.b == link.b) {
            Some(known) => known.kind = link.kind,
            None => machine.links.push(link.clone()),
        }
    }
    machine.links.sort_by(|one, other| (&one.a, &one.b).cmp(&(&other.a, &other.b)));
}

/// Adds the links to `machine`: from the file, or from NVML, which is then written to the file.
pub fn complete(machine: &mut Machine, place: Option<&Path>) {
    let gpus = machine.gpus.iter().filter(|gpu| gpu.address.is_some()).count();
    if recall(machine, place) || gpus < 2 {
        return;
    }
    if let Ok(answer) = nvml::ask() {
        nvml::enrich(machine, answer);
        save(machine, place);
    }
}

/// Writes down what is known about the links between GPUs. A place that cannot be written to costs time later, and
/// nothing else.
pub fn save(machine: &Machine, place: Option<&Path>) {
    let Some(place) = place else { return };
    let known = Known {
        gpus: machine.gpus.iter().filter_map(|gpu| gpu.address).collect(),
        links: machine.links.iter().filter(|link| link.b.starts_with("GPU")).cloned().collect(),
        errors: machine.gpus.iter().filter_map(|gpu| Some(Errors { gpu: gpu.address?, rates: gpu.errors? })).collect(),
        loaded: machine
            .gpus
            .iter()
            .filter_map(|gpu| Some(Loaded { gpu: gpu.address?, speed: gpu.loaded_speed? }))
            .collect(),
    };
    let write = || -> Option<()> {
        let directory = place.parent()?;
        fs::create_dir_all(directory).ok()?;
        // A reader sees the old file or the new one.
        let unfinished = directory.join(format!(".links-{}", std::process::id()));
        fs::write(&unfinished, toml::to_string(&known).ok()?).ok()?;
        fs::rename(&unfinished, place).ok()
    };
    let _ = write();
}

/// Notes how many errors GPUs reported while a job ran, for the next job's ring and chunks. A file is written only if
/// it then says something else.
pub fn note_errors(machine: &mut Machine, place: Option<&Path>, rates: &[(PciAddress, ErrorRates)]) {
    let noted = |machine: &Machine| machine.gpus.iter().map(|gpu| gpu.errors).collect::<Vec<_>>();
    // A launch that has not asked NVML does not know enough to begin a file.
    if !place.is_some_and(Path::exists) {
        return;
    }
    recall(machine, place);
    let before = noted(machine);
    for (address, rates) in rates {
        if let Some(gpu) = machine.gpus.iter_mut().find(|gpu| gpu.address == Some(*address)) {
            let quiet = rates.correctable_per_s == 0.0 && rates.worse.is_none_or(|worse| worse == 0);
            gpu.errors = (!quiet || gpu.errors.is_some()).then_some(*rates);
        }
    }
    if noted(machine) != before {
        save(machine, place);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::LinkKind;
    use crate::topology::tests_support::two_sockets;

    #[test]
    fn what_is_known_of_a_pair_is_found_again_whichever_gpus_are_there() {
        let directory = std::env::temp_dir().join(format!("prun-known-{}", std::process::id()));
        let place = directory.join("prun/links.toml");
        let mut measured = two_sockets();
        measured.gpus[1].errors = Some(ErrorRates { correctable_per_s: 3.5, worse: Some(1) });
        measured.links[0].peer_proven = Some(true);
        measured.gpus[2].loaded_speed = Speed::of_generation(2);
        save(&measured, Some(&place));
        let mut fresh = two_sockets();
        fresh.links.clear();
        assert!(recall(&mut fresh, Some(&place)));
        let link = fresh.gpu_link(0, 1).unwrap();
        assert_eq!((link.kind, link.gb_s, link.peer_proven), (LinkKind::Nvlink(8), Some(180.0), Some(true)));
        assert_eq!(fresh.gpus[1].errors, measured.gpus[1].errors);
        assert_eq!((fresh.gpus[2].loaded_speed, fresh.gpus[0].loaded_speed), (Speed::of_generation(2), None));
        // A job that sees two of the four knows their link by other numbers.
        let mut fewer = two_sockets();
        fewer.links.clear();
        fewer.gpus.drain(..2);
        fewer.gpus.iter_mut().enumerate().for_each(|(index, gpu)| gpu.index = index);
        assert!(recall(&mut fewer, Some(&place)));
        assert_eq!(fewer.gpu_link(0, 1).unwrap().kind, LinkKind::Nvlink(8));
        let rates = ErrorRates { correctable_per_s: 0.0, worse: Some(0) };
        let quiet: Vec<_> = fresh.gpus.iter().map(|gpu| (gpu.address.unwrap(), rates)).collect();
        note_errors(&mut fresh, Some(&place), &quiet);
        let mut again = two_sockets();
        recall(&mut again, Some(&place));
        assert_eq!((again.gpus[0].errors, again.gpus[1].errors), (None, Some(rates)));
        let mut other = two_sockets();
        other.links.clear();
        other.gpus[0].address = "0000:ff:00.0".parse().ok();
        assert!(!recall(&mut other, Some(&place)));
        assert_eq!(other.links.len(), 3);
        let _ = fs::remove_dir_all(directory);
    }
}
