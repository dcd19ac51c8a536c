//! `prun topo`.

use std::ffi::OsString;
use std::fs;
use std::path::Path;

use super::args::TopoArgs;
use super::measure::{self, numa};
use super::{Done, load};
use crate::exit;
use crate::refused::Refused;
use crate::topology::read::Detail;
use crate::topology::{known, snapshot};
use crate::view::{html, layout, nccl, svg, text};

/// Shows, draws, saves or measures the machine.
///
/// # Errors
/// [`Refused`] if a file cannot be read or written.
pub fn run(args: &TopoArgs, inherited: &[(OsString, OsString)]) -> Result<Done, Refused> {
    // Who saves a machine, or reads it by a program, gets all of it; a person would not see the forest.
    let detail = if args.json || args.save.is_some() { Detail::Full } else { Detail::Tree };
    let mut machine = load(&args.source, detail, inherited)?;
    let channels = match &args.nccl {
        Some(path) => nccl::channels(&read(path)?),
        None => Vec::new(),
    };
    let mut said = String::new();
    let mut measured = None;
    if args.measure {
        if machine.nvidia_gpus().count() > 1 {
            measure::figures(&mut machine)
                .map_err(|why| Refused::new("cannot measure the links between the GPUs").because(why))?;
            let place = known::place(inherited, Path::new("/"), &machine);
            known::save(&machine, place.as_deref());
        }
        let matrix = numa::matrix(&machine)?;
        said.push_str(&numa::text(&matrix));
        measured = Some(numa::json(&matrix));
    }
    let mut wrote = String::new();
    let mut write = |path: &Path, content: &str| -> Result<(), Refused> {
        fs::write(path, content)
            .map_err(|error| Refused::new(format!("cannot write {}", path.display())).because(error))?;
        wrote.push_str(&format!("wrote {}\n", path.display()));
        Ok(())
    };
    if let Some(path) = &args.save {
        write(path, &snapshot::save(&machine))?;
    }
    if args.svg.is_some() || args.html.is_some() {
        let drawing = layout::layout(&machine, &channels);
        if let Some(path) = &args.svg {
            write(path, &svg::svg(&drawing))?;
        }
        if let Some(path) = &args.html {
            write(path, &html::html(&drawing))?;
        }
    }
    if args.json {
        let mut value = serde_json::to_value(&machine)
            .map_err(|error| Refused::new("cannot show the machine as JSON").because(error))?;
        if let (Some(value), Some(measured)) = (value.as_object_mut(), measured) {
            value.insert("memory-gb-s".into(), measured);
        }
        return Ok(Done { text: format!("{value}\n"), code: exit::SUCCESS });
    }
    if wrote.is_empty() {
        let mut shown = text::machine(&machine);
        let table = measure::table(&machine);
        if !table.is_empty() {
            shown.push_str(&format!("\n{table}"));
        }
        for line in nccl::lines(&channels) {
            shown.push_str(&format!("{line}\n"));
        }
        said.insert_str(0, &shown);
    }
    Ok(Done { text: wrote + &said, code: exit::SUCCESS })
}

fn read(path: &Path) -> Result<String, Refused> {
    fs::read_to_string(path).map_err(|error| Refused::new(format!("cannot read {}", path.display())).because(error))
}
