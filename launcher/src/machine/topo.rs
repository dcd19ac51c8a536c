//! `prun topo`.

use std::fs;
use std::path::Path;
use std::time::Instant;

use super::args::TopoArgs;
use super::{Done, load};
use crate::exit;
use crate::placement::cpuset::CpuSet;
use crate::refused::Refused;
use crate::topology::read::Detail;
use crate::topology::{Machine, snapshot};
use crate::view::{html, layout, svg, text};

/// Bytes that each measurement goes through: more than any cache.
const MEASURED_BYTES: usize = 256 << 20;

/// Shows, draws, saves or measures the machine.
///
/// # Errors
/// [`Refused`] if a file cannot be read or written.
pub fn run(args: &TopoArgs) -> Result<Done, Refused> {
    let machine = load(&args.source, Detail::Tree)?;
    let rings = match &args.nccl_graph {
        Some(path) => layout::nccl_rings(&read(path)?),
        None => Vec::new(),
    };
    let mut said = String::new();
    let mut write = |path: &Path, content: &str| -> Result<(), Refused> {
        fs::write(path, content)
            .map_err(|error| Refused::new(format!("cannot write {}", path.display())).because(error))?;
        said.push_str(&format!("wrote {}\n", path.display()));
        Ok(())
    };
    if let Some(path) = &args.save {
        write(path, &snapshot::save(&machine))?;
    }
    if args.svg.is_some() || args.html.is_some() {
        let drawing = layout::layout(&machine, rings.clone());
        if let Some(path) = &args.svg {
            write(path, &svg::svg(&drawing))?;
        }
        if let Some(path) = &args.html {
            write(path, &html::html(&drawing))?;
        }
    }
    if args.json {
        let value = serde_json::to_value(&machine)
            .map_err(|error| Refused::new("cannot show the machine as JSON").because(error))?;
        return Ok(Done { text: format!("{value}\n"), code: exit::SUCCESS });
    }
    if said.is_empty() {
        said = text::machine(&machine);
        for (at, ring) in rings.iter().enumerate() {
            let order = ring.iter().map(usize::to_string).collect::<Vec<_>>().join(" → ");
            said.push_str(&format!("NCCL's ring {at}: {order}\n"));
        }
    }
    if args.measure {
        said.push_str(&measured(&machine)?);
    }
    Ok(Done { text: said, code: exit::SUCCESS })
}

fn read(path: &Path) -> Result<String, Refused> {
    fs::read_to_string(path).map_err(|error| Refused::new(format!("cannot read {}", path.display())).because(error))
}

/// The memory of each NUMA node, read and written from the CPUs of each.
fn measured(machine: &Machine) -> Result<String, Refused> {
    let Some(cpus) = machine.cpus.as_ref().filter(|cpus| !cpus.numa.is_empty()) else {
        return Err(Refused::new("cannot tell which CPUs may be used, so nothing is measured"));
    };
    let mut rows = vec![
        std::iter::once("copy, GB/s".to_owned())
            .chain(cpus.numa.iter().map(|node| format!("memory {}", node.id)))
            .collect::<Vec<_>>(),
    ];
    for from in &cpus.numa {
        let mut row = vec![format!("CPUs of {}", from.id)];
        for memory in &cpus.numa {
            row.push(match copy_gb_s(&from.cpus, &memory.cpus) {
                Some(gb_s) => format!("{gb_s:.1}"),
                None => "?".into(),
            });
        }
        rows.push(row);
    }
    Ok(format!(
        "\nmemory bandwidth of one CPU (the median of 5 copies of {} MiB; each result was compared)\n{}",
        MEASURED_BYTES >> 21,
        text::columns(&rows)
    ))
}

/// One CPU of `from` copies half of a buffer that a CPU of `memory` touched first into its other half.
fn copy_gb_s(from: &CpuSet, memory: &CpuSet) -> Option<f64> {
    let (reader, owner) = (from.first()?, memory.first()?);
    let worker = std::thread::spawn(move || {
        pin(owner)?;
        let mut buffer = vec![0u8; MEASURED_BYTES];
        for (at, byte) in buffer.iter_mut().enumerate() {
            *byte = (at % 251) as u8;
        }
        pin(reader)?;
        let (source, target) = buffer.split_at_mut(MEASURED_BYTES / 2);
        let mut times: Vec<f64> = (0..5)
            .map(|_| {
                let start = Instant::now();
                target.copy_from_slice(source);
                start.elapsed().as_secs_f64()
            })
            .collect();
        times.sort_by(f64::total_cmp);
        (source == target).then(|| MEASURED_BYTES as f64 / 2.0 / times[2] / 1e9)
    });
    worker.join().ok().flatten()
}

/// Moves this thread onto one CPU.
fn pin(cpu: usize) -> Option<()> {
    let mut set = rustix::thread::CpuSet::new();
    if cpu >= rustix::thread::CpuSet::MAX_CPU {
        return None;
    }
    set.set(cpu);
    rustix::thread::sched_setaffinity(None, &set).ok()
}
