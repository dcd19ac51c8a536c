//! Measures what a machine's links carry, and proves that data arrives.
//!
//! GPUs are touched by a process of its own alone ([`helper`]), since a pair whose peer access does not work may hang
//! it for ever; [`watch`] reads its lines and ends it. [`numa`] is the half that needs no GPU.

pub mod helper;
pub mod line;
pub mod numa;
pub mod watch;

use std::process::Command;
use std::time::Duration;

use crate::supervise::text::seconds;
use crate::topology::{Link, Machine, PciAddress};
use crate::view::text::columns;
use line::Line;
use watch::{Limits, Process};

/// The word that makes prun the process that measures. No user types it.
pub const WORD: &str = "measure-gpus";
/// What it is asked for: see [`helper::run`].
pub(crate) const PROOF: &str = "proof";
/// As [`PROOF`], with figures.
pub(crate) const FIGURES: &str = "figures";
/// Keeps links busy.
pub(crate) const LOAD: &str = "load";

/// How long the process may be silent when it proves pairs before a job.
const PROOF_LIMITS: Limits = Limits { open: Duration::from_secs(30), pair: Duration::from_secs(5) };
/// How long when people wait for figures.
const FIGURES_LIMITS: Limits = Limits { open: Duration::from_secs(60), pair: Duration::from_secs(20) };

fn process(what: &str, list: &str) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.args([WORD, what, list]).env("CUDA_DEVICE_ORDER", "PCI_BUS_ID");
    command
}

fn listed(pairs: &[(usize, usize)]) -> String {
    pairs.iter().map(|(a, b)| format!("{a}-{b}")).collect::<Vec<_>>().join(",")
}

/// Measures all pairs of GPUs that this process may use and writes the figures into `machine`.
///
/// # Errors
/// Why the GPUs cannot be opened.
pub fn figures(machine: &mut Machine) -> Result<(), String> {
    watch::pairs(&|left_out| process(FIGURES, &listed(left_out)), FIGURES_LIMITS)
        .map(|found| watch::apply(machine, found))
}

/// Proves the pairs of these GPUs, named as `CUDA_VISIBLE_DEVICES` has it, and writes the result into `machine`.
///
/// # Errors
/// Why the GPUs cannot be opened.
pub fn prove(machine: &mut Machine, visible: &str) -> Result<(), String> {
    let make = |left_out: &[(usize, usize)]| {
        let mut command = process(PROOF, &listed(left_out));
        command.env("CUDA_VISIBLE_DEVICES", visible);
        command
    };
    watch::pairs(&make, PROOF_LIMITS).map(|found| watch::apply(machine, found))
}

/// Keeps the links of GPUs busy as long as it lives.
pub struct Load {
    _process: Process,
    /// The GPUs whose links are busy.
    pub gpus: Vec<PciAddress>,
}

impl Load {
    /// Begins, with GPUs named as `CUDA_VISIBLE_DEVICES` has it; returns once the links have had some work.
    ///
    /// # Errors
    /// Why there is no load.
    pub fn start(gpus: &[String]) -> Result<Load, String> {
        let list = (0..gpus.len()).map(|gpu| gpu.to_string()).collect::<Vec<_>>().join(",");
        let mut command = process(LOAD, &list);
        command.env("CUDA_VISIBLE_DEVICES", gpus.join(","));
        let mut process = Process::start(command)?;
        let mut open = Vec::new();
        loop {
            match process.next(FIGURES_LIMITS.open)? {
                Line::Gpus { addresses } => open = addresses,
                Line::Loaded => return Ok(Load { _process: process, gpus: open }),
                Line::Failed { why } => return Err(why),
                _ => {}
            }
        }
    }
}

/// The figures of all pairs as a table; nothing where none was measured.
pub fn table(machine: &Machine) -> String {
    let head = ["pair", "link", "moved by", "→ GB/s", "← GB/s", "both at once", "µs", "data"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for link in machine.links.iter().filter(|link| link.b.starts_with("GPU")) {
        let pair = format!("{}-{}", link.a, link.b);
        if let Some(why) = &link.trouble {
            rows.push(vec![pair, link.kind.to_string(), format!("failed: {why}")]);
            continue;
        }
        rows.extend(link.ways.iter().enumerate().map(|(at, way)| {
            let [first, second] = if at == 0 { [pair.clone(), link.kind.to_string()] } else { Default::default() };
            let gb_s = |gb_s: f64| format!("{gb_s:.1}");
            vec![
                first,
                second,
                way.by.name().to_owned(),
                gb_s(way.gb_s),
                gb_s(way.back_gb_s),
                gb_s(way.both_gb_s),
                way.us.map_or("never".into(), |us| format!("{us:.1}")),
                if way.wrong == 0 { "verified".into() } else { format!("{} words WRONG", way.wrong) },
            ]
        }));
    }
    if rows.len() == 1 { String::new() } else { columns(&rows) }
}

/// How long a proof took and what came of it, for people.
pub fn proof_sentence(links: &[&Link], took: Duration) -> String {
    let broken: Vec<String> = links
        .iter()
        .filter(|link| link.peer_proven == Some(false))
        .map(|link| format!("{} and {}", link.a, link.b))
        .collect();
    let closed = links.iter().all(|link| link.peer_reported == Some(false));
    match broken.as_slice() {
        [] if closed => "the driver allows no direct transfers between the GPUs; data goes through the host".into(),
        [] => format!("proved the ways between the GPUs in {}, once until the machine is started again", seconds(took)),
        pairs => format!(
            "what one GPU writes does not arrive at the other: {}; data goes through the host instead (`prun doctor`)",
            pairs.join("; ")
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::tests_support::two_sockets;
    use crate::topology::{Moved, Way};

    #[test]
    fn each_way_has_its_line_and_what_is_wrong_is_loud() {
        let mut machine = two_sockets();
        assert_eq!(table(&machine), "");
        let way = |by, wrong| Way { by, gb_s: 394.0, back_gb_s: 393.0, both_gb_s: 390.0, us: Some(7.0), wrong };
        machine.links[0].measured(true, vec![way(Moved::Stores, 0), way(Moved::Copy, 3)]);
        machine.links[1].failed("no answer within 20 s".into());
        let text = table(&machine);
        let expected = "\
pair       link  moved by                       → GB/s  ← GB/s  both at once  µs   data
GPU0-GPU1  NV8   kernel stores                  394.0   393.0   390.0         7.0  verified
                 copy engine                    394.0   393.0   390.0         7.0  3 words WRONG
GPU2-GPU3  NV8   failed: no answer within 20 s
";
        assert_eq!(text, expected);
        let links: Vec<&Link> = machine.links[..2].iter().collect();
        assert!(proof_sentence(&links, Duration::ZERO).contains("GPU0 and GPU1; GPU2 and GPU3"));
    }
}
