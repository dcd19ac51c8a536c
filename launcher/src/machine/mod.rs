//! The commands that look at a machine and start no job: `prun plan`, `prun topo`, `prun doctor`.
//!
//! [`args`] is what they are asked for; [`plan`], [`topo`] and [`diagnose`] carry them out. [`measure`] touches GPUs, and
//! [`proof`] has it done before the first job after a start of the machine.

pub mod args;
pub mod diagnose;
pub mod measure;
pub mod plan;
pub mod proof;
pub mod topo;

use std::ffi::OsString;
use std::path::Path;

use crate::refused::Refused;
use crate::topology::read::{self, Detail};
use crate::topology::{Machine, known, nvml, snapshot};
use args::Source;

/// What a command leaves behind: text for standard output and prun's exit code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Done {
    /// To be printed.
    pub text: String,
    /// prun's exit code.
    pub code: u8,
}

/// The machine that `source` names: a saved one, the files below a directory, or this one with all that was found out
/// about it since it was started.
///
/// # Errors
/// [`Refused`] if a saved machine cannot be read, or there is none.
pub fn load(source: &Source, detail: Detail, inherited: &[(OsString, OsString)]) -> Result<Machine, Refused> {
    if let Some(path) = &source.node {
        return snapshot::load(path);
    }
    if let Some(root) = &source.root {
        let machine = read::machine(root, detail);
        if machine.is_nothing() {
            return Err(Refused::new(format!("there is no machine below {}", root.display()))
                .because("it has neither the sys nor the proc of one")
                .try_instead("a directory with copies of /sys/devices, /sys/bus/pci and /proc"));
        }
        return Ok(machine);
    }
    let root = Path::new("/");
    let mut machine = read::machine(root, detail);
    match nvml::ask() {
        Ok(answer) => nvml::enrich(&mut machine, answer),
        Err(why) if read::has_nvidia_driver(root) => {
            machine.notes.push(format!("NVML did not answer, so GPUs are known from the kernel only: {why}"));
        }
        Err(_) => {}
    }
    let place = known::place(inherited, root, &machine);
    known::recall_measured(&mut machine, place.as_deref());
    Ok(machine)
}
