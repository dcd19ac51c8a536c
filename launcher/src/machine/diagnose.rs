//! `prun doctor`.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use super::args::{DoctorArgs, Source};
use super::{Done, load};
use crate::doctor::{self, Examination, host};
use crate::job::value::{RankCount, Span};
use crate::refused::Refused;
use crate::topology::read::{self, Detail};
use crate::topology::{GpuState, Machine, lspci, snapshot};

/// Counters are compared over this time unless another is asked for.
const USUAL: Duration = Duration::from_secs(2);
/// Between two looks at the links meanwhile.
const LOOK: Duration = Duration::from_millis(100);

/// Examines this machine, a collection, or the text of lspci; or makes a collection.
///
/// # Errors
/// [`Refused`] if a file cannot be read or written.
pub fn run(args: &DoctorArgs) -> Result<Done, Refused> {
    let during = args.during.map_or(USUAL, |Span(time)| time);
    let mut examined = match (&args.from, &args.lspci) {
        (Some(directory), _) => collected(directory)?,
        (None, Some(path)) => {
            let text = fs::read_to_string(path).map_err(|error| cannot("read", path, &error))?;
            let mut machine = lspci::machine(&text);
            if args.busy {
                let working = GpuState { busy_percent: Some(100), ..GpuState::default() };
                machine.gpus.iter_mut().for_each(|gpu| gpu.state = Some(working.clone()));
            }
            Examination { machine, ..Examination::default() }
        }
        (None, None) if args.source != Source::default() => {
            Examination { machine: load(&args.source, Detail::Full)?, ..Examination::default() }
        }
        (None, None) => here(during)?,
    };
    examined.ranks = args.np.map(|RankCount(ranks)| ranks);
    if let Some(directory) = &args.collect {
        if args.anonymous {
            anonymize(&mut examined);
        }
        collect(&examined, directory)?;
        return Ok(Done {
            text: format!("wrote {0}: look through it, then `prun doctor --from {0}`\n", directory.display()),
            code: 0,
        });
    }
    let findings = doctor::judge(&examined);
    let text = match args.json {
        true => format!("{}\n", doctor::json(&examined, &findings)),
        false => doctor::text(&examined, &findings),
    };
    Ok(Done { text, code: doctor::exit_code(&findings) })
}

fn here(during: Duration) -> Result<Examination, Refused> {
    let source = Source::default();
    let earlier = load(&source, Detail::Full)?;
    let start = Instant::now();
    let link_changes = watch_links(&earlier, during);
    let machine = load(&source, Detail::Full)?;
    Ok(Examination {
        machine,
        earlier: Some(earlier),
        seconds: start.elapsed().as_secs_f64(),
        link_changes,
        host: Some(host::read()),
        ranks: None,
    })
}

/// How often each GPU's link is seen to change within this time.
fn watch_links(machine: &Machine, during: Duration) -> Vec<u32> {
    let look = |gpu: &crate::topology::Gpu| {
        gpu.address.and_then(|address| read::device(Path::new("/"), address, false)).map(|device| device.link)
    };
    let mut last: Vec<_> = machine.gpus.iter().map(look).collect();
    let mut changes = vec![0; last.len()];
    let end = Instant::now() + during;
    while Instant::now() < end {
        std::thread::sleep(LOOK.min(end.saturating_duration_since(Instant::now())));
        for (at, gpu) in machine.gpus.iter().enumerate() {
            let now = look(gpu);
            changes[at] += u32::from(now != last[at]);
            last[at] = now;
        }
    }
    changes
}

const FILES: [&str; 3] = ["machine.toml", "earlier.toml", "host.toml"];

fn collect(examined: &Examination, directory: &Path) -> Result<(), Refused> {
    fs::create_dir_all(directory).map_err(|error| cannot("make", directory, &error))?;
    let earlier = examined.earlier.clone().unwrap_or_default();
    let mut host = toml::to_string(&examined.host.clone().unwrap_or_default()).unwrap_or_default();
    host.insert_str(0, &format!("seconds = {:.3}\nlink-changes = {:?}\n", examined.seconds, examined.link_changes));
    for (name, content) in FILES.iter().zip([snapshot::save(&examined.machine), snapshot::save(&earlier), host]) {
        let path = directory.join(name);
        fs::write(&path, content).map_err(|error| cannot("write", &path, &error))?;
    }
    Ok(())
}

/// What `host.toml` holds beside the host.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(rename_all = "kebab-case", default)]
struct Extra {
    seconds: f64,
    link_changes: Vec<u32>,
}

fn collected(directory: &Path) -> Result<Examination, Refused> {
    let machine = snapshot::load(&directory.join(FILES[0]))?;
    let earlier = snapshot::load(&directory.join(FILES[1])).ok().filter(|machine| *machine != Machine::default());
    let path = directory.join(FILES[2]);
    let text = fs::read_to_string(&path).map_err(|error| cannot("read", &path, &error))?;
    let damaged = |error: toml::de::Error| {
        Refused::new(format!("{} is damaged", path.display())).because(error.to_string().trim())
    };
    let extra: Extra = toml::from_str(&text).map_err(damaged)?;
    let host = toml::from_str(&text).map_err(damaged)?;
    Ok(Examination {
        machine,
        earlier,
        seconds: extra.seconds,
        link_changes: extra.link_changes,
        host: Some(host),
        ranks: None,
    })
}

/// Leaves out what identifies a machine: its name, the GPUs' UUIDs, and the network's names.
fn anonymize(examined: &mut Examination) {
    let hide = |machine: &mut Machine| {
        machine.name = "a machine".into();
        for gpu in &mut machine.gpus {
            gpu.uuid = gpu.uuid.as_ref().map(|_| format!("GPU-{:08}-0000-0000-0000-000000000000", gpu.index));
            for (at, slice) in gpu.mig.iter_mut().enumerate() {
                *slice = format!("MIG-{:08}-0000-0000-0000-{at:012}", gpu.index);
            }
        }
        for (at, nic) in machine.nics.iter_mut().enumerate() {
            nic.name = format!("nic{at}");
        }
    };
    hide(&mut examined.machine);
    examined.earlier.as_mut().map(hide);
}

fn cannot(what: &str, path: &Path, error: &std::io::Error) -> Refused {
    Refused::new(format!("cannot {what} {}", path.display())).because(error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::tests_support::two_sockets;

    #[test]
    fn a_collection_is_judged_as_the_machine_was() {
        let directory = std::env::temp_dir().join(format!("prun-collection-{}", std::process::id()));
        let mut machine = two_sockets();
        machine.devices[1].link.width = Some(4);
        let mut examined = Examination {
            earlier: Some(machine.clone()),
            machine,
            seconds: 2.5,
            link_changes: vec![0, 7, 0, 0],
            host: Some(host::Host { has_sys: true, ..Default::default() }),
            ranks: None,
        };
        collect(&examined, &directory).unwrap();
        let back = collected(&directory).unwrap();
        assert_eq!(back, examined);
        anonymize(&mut examined);
        collect(&examined, &directory).unwrap();
        let text = FILES.map(|name| fs::read_to_string(directory.join(name)).unwrap()).concat();
        assert!(!text.contains("\"two\""), "{text}");
        assert_eq!(doctor::judge(&collected(&directory).unwrap())[0].check, "link-width");
        let _ = fs::remove_dir_all(directory);
    }
}
