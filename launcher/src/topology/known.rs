//! What was found out about the links between GPUs since the machine was started, kept for later launches.
//!
//! NVLinks are known to NVML alone, which a launch does not wait for more than once: the first that needs them asks
//! and writes them down, for this boot and driver.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{Link, Machine, PciAddress, nvml};

/// The file's content.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
struct Known {
    /// The GPUs in the order of their numbers.
    gpus: Vec<PciAddress>,
    #[serde(rename = "link", default)]
    links: Vec<Link>,
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

/// Adds the links to `machine`: from the file, or from NVML, which is then written to the file.
pub fn complete(machine: &mut Machine, place: Option<&Path>) {
    let gpus: Vec<PciAddress> = machine.gpus.iter().filter_map(|gpu| gpu.address).collect();
    if gpus.len() < 2 {
        return;
    }
    let known =
        place.and_then(|path| fs::read_to_string(path).ok()).and_then(|text| toml::from_str::<Known>(&text).ok());
    match known.filter(|known| known.gpus == gpus) {
        Some(known) => take(machine, known.links),
        None => {
            if let Ok(answer) = nvml::ask() {
                nvml::enrich(machine, answer);
                save(machine, place);
            }
        }
    }
}

/// Writes down what is known about the links between GPUs. A place that cannot be written to costs time later, and
/// nothing else.
pub fn save(machine: &Machine, place: Option<&Path>) {
    let Some(place) = place else { return };
    let known = Known {
        gpus: machine.gpus.iter().filter_map(|gpu| gpu.address).collect(),
        links: machine.links.iter().filter(|link| link.b.starts_with("GPU")).cloned().collect(),
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

fn take(machine: &mut Machine, links: Vec<Link>) {
    for link in links {
        machine.links.retain(|known| !(known.a == link.a && known.b == link.b));
        machine.links.push(link);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::LinkKind;
    use crate::topology::tests_support::two_sockets;

    #[test]
    fn links_are_kept_for_the_same_gpus_only() {
        let directory = std::env::temp_dir().join(format!("prun-known-{}", std::process::id()));
        let place = directory.join("prun/links.toml");
        save(&two_sockets(), Some(&place));
        let mut fresh = two_sockets();
        fresh.links.clear();
        complete(&mut fresh, Some(&place));
        assert_eq!(fresh.gpu_link(0, 1).unwrap().kind, LinkKind::Nvlink(8));
        let mut other = two_sockets();
        other.links.clear();
        other.gpus.swap_remove(0);
        complete(&mut other, Some(&place));
        assert!(other.links.is_empty());
        let _ = fs::remove_dir_all(directory);
    }
}
