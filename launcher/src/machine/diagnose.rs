//! `prun doctor`.

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use super::args::{DoctorArgs, Source};
use super::measure::Load;
use super::{Done, load};
use crate::doctor::{self, Examination, errors, host, log};
use crate::job::value::{RankCount, Span};
use crate::placement::held::Held;
use crate::refused::Refused;
use crate::topology::read::{self, Detail};
use crate::topology::{ErrorRates, Gpu, Machine, known, lspci, snapshot};

/// Counters are compared over this time unless another is asked for.
const USUAL: Duration = Duration::from_secs(2);
/// Between two looks at the links meanwhile.
const LOOK: Duration = Duration::from_millis(100);

/// Examines this machine, a collection, or the text of lspci; or makes a collection.
///
/// # Errors
/// [`Refused`] if a file cannot be read or written.
pub fn run(args: &DoctorArgs, inherited: &[(OsString, OsString)]) -> Result<Done, Refused> {
    let during = args.during.map_or(USUAL, |Span(time)| time);
    let mut examined = match (&args.from, &args.lspci) {
        (Some(directory), _) => collected(directory)?,
        (None, Some(path)) => {
            let text = fs::read_to_string(path).map_err(|error| cannot("read", path, &error))?;
            let machine = lspci::machine(&text);
            if machine.devices.is_empty() {
                return Err(Refused::new(format!("{} holds no text of lspci", path.display()))
                    .because("no line of it begins with a PCI address, such as 41:00.0")
                    .try_instead("`lspci -vvv > FILE` as root"));
            }
            Examination { machine, ..Examination::default() }
        }
        (None, None) if args.source != Source::default() => {
            Examination { machine: load(&args.source, Detail::Full, inherited)?, ..Examination::default() }
        }
        (None, None) if args.busy => {
            return Err(Refused::new("--busy says that GPUs worked while a text was written, and there is no text")
                .try_instead("leave it out: this machine's GPUs are asked, and given work while it is looked at"));
        }
        (None, None) => here(during, !args.no_load, inherited)?,
    };
    if args.busy {
        for gpu in &mut examined.machine.gpus {
            gpu.state.get_or_insert_default().busy_percent = Some(100);
        }
    }
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

/// This machine, looked at twice; links of GPUs that nobody uses have work meanwhile, since a link that rests is slow
/// and shows no errors.
fn here(during: Duration, with_load: bool, inherited: &[(OsString, OsString)]) -> Result<Examination, Refused> {
    let source = Source::default();
    let log = log::read();
    let earlier = load(&source, Detail::Full, inherited)?;
    let idle = if with_load { idle_gpus(&earlier, &Held::read(Path::new("/"))) } else { Vec::new() };
    let work = (!idle.is_empty()).then(|| Load::start(&idle));
    let start = Instant::now();
    let link_changes = watch_links(&earlier, during);
    let mut machine = load(&source, Detail::Full, inherited)?;
    let seconds = start.elapsed().as_secs_f64();
    match work {
        Some(Ok(work)) => {
            for gpu in machine.gpus.iter_mut().filter(|gpu| gpu.address.is_some_and(|its| work.gpus.contains(&its))) {
                gpu.state.get_or_insert_default().busy_percent = Some(100);
            }
        }
        Some(Err(why)) => machine.notes.push(format!("the links had no work while they were looked at: {why}")),
        None => {}
    }
    let mut examined = Examination {
        machine,
        earlier: Some(earlier),
        seconds,
        link_changes,
        host: Some(host::read(log.as_deref())),
        ranks: None,
    };
    let rates: Vec<Option<ErrorRates>> =
        examined.machine.gpus.iter().map(|gpu| errors::rates(&examined, gpu)).collect();
    for (gpu, rates) in examined.machine.gpus.iter_mut().zip(rates) {
        gpu.errors = rates.or(gpu.errors);
    }
    note_speeds(&mut examined.machine);
    if examined.machine.nvidia_gpus().next().is_some() {
        // The next job's ring and chunks follow what was found.
        let place = known::place(inherited, Path::new("/"), &examined.machine);
        known::save(&examined.machine, place.as_deref());
    }
    Ok(examined)
}

/// Notes how fast the links of those GPUs are that work, for a look at them when they rest: a link that is stuck looks like
/// one that saves power then.
fn note_speeds(machine: &mut Machine) {
    let Machine { gpus, devices, .. } = machine;
    for gpu in gpus.iter_mut().filter(|gpu| gpu.is_busy() == Some(true)) {
        let device = devices.iter().find(|device| Some(device.address) == gpu.address);
        gpu.loaded_speed = device.and_then(|device| device.link.speed).or(gpu.loaded_speed);
    }
}

/// GPUs that nobody computes on, as CUDA names them.
fn idle_gpus(machine: &Machine, held: &Held) -> Vec<String> {
    let idle = |gpu: &&Gpu| {
        let unused = gpu.state.as_ref().is_some_and(|state| state.processes == Some(0));
        unused && gpu.mig.is_empty() && gpu.address.is_none_or(|address| held.gpu(address).is_none())
    };
    machine.nvidia_gpus().filter(idle).filter_map(|gpu| gpu.uuid.clone()).collect()
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
    let path = directory.join(FILES[0]);
    if !path.exists() {
        return Err(Refused::new(format!("{} holds no collection", directory.display()))
            .because(format!("there is no {}", path.display()))
            .try_instead("`prun doctor --collect DIR` makes one"));
    }
    let machine = snapshot::load(&path)?;
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
        for note in &mut machine.notes {
            *note = without_uuids(note);
        }
        for (at, nic) in machine.nics.iter_mut().enumerate() {
            nic.name = format!("nic{at}");
        }
    };
    hide(&mut examined.machine);
    examined.earlier.as_mut().map(hide);
    for line in examined.host.iter_mut().flat_map(|host| host.kernel_log.iter_mut().flatten()) {
        *line = without_processes(line);
    }
}

/// `NVRM: Xid (PCI:0000:1b:00): 31, pid=1234, name=train, Ch 00000008` without whose process it was.
fn without_processes(line: &str) -> String {
    let parts = line
        .split(", ")
        .filter(|part| !part.trim_start().starts_with("pid=") && !part.trim_start().starts_with("name="));
    without_uuids(&parts.collect::<Vec<_>>().join(", "))
}

/// A text with each `GPU-…` and `MIG-…` name taken out.
fn without_uuids(text: &str) -> String {
    let words = text.split(' ').map(|word| match word.find("GPU-").or_else(|| word.find("MIG-")) {
        Some(at) if word.len() > at + 12 => format!("{}GPU-…", &word[..at]),
        _ => word.to_owned(),
    });
    words.collect::<Vec<_>>().join(" ")
}

fn cannot(what: &str, path: &Path, error: &std::io::Error) -> Refused {
    Refused::new(format!("cannot {what} {}", path.display())).because(error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::tests_support::two_sockets;

    #[test]
    fn a_link_that_was_stuck_under_load_is_known_when_it_rests() {
        use crate::doctor::health;
        use crate::topology::{GpuState, Speed};
        let mut machine = two_sockets();
        machine.devices[3].link.speed = Speed::of_generation(2);
        machine.gpus[1].state = Some(GpuState { busy_percent: Some(100), ..GpuState::default() });
        note_speeds(&mut machine);
        // The next launch sees it at rest, and does not ask the driver at all.
        machine.gpus[1].state = None;
        machine.devices[3].link.speed = Speed::of_generation(1);
        let health = health::of_gpu(&machine, &machine.gpus[1]).unwrap();
        assert_eq!(health.score(), health::AT_MOST);
        assert!(
            health.text().contains("speed 12 % of 20 (under load, when it was last looked at)"),
            "{}",
            health.text()
        );
        assert!(health::is_avoided(&machine, 1, 2) && machine.gpu_gb_s(1, 2) < 4.0);
        // Repaired, and seen at work again.
        machine.devices[3].link.speed = Speed::of_generation(5);
        machine.gpus[1].state = Some(GpuState { busy_percent: Some(100), ..GpuState::default() });
        note_speeds(&mut machine);
        assert_eq!(health::of_gpu(&machine, &machine.gpus[1]).unwrap().score(), 100);
    }

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
            host: Some(host::Host {
                has_sys: true,
                kernel_log: Some(vec!["NVRM: Xid (PCI:0000:1b:00): 31, pid=4711, name=secret, Ch 8".into()]),
                ..Default::default()
            }),
            ranks: None,
        };
        examined.machine.notes.push("GPU-00000001-aaaa-bbbb-cccc-dddddddddddd is odd".into());
        collect(&examined, &directory).unwrap();
        let back = collected(&directory).unwrap();
        assert_eq!(back, examined);
        anonymize(&mut examined);
        collect(&examined, &directory).unwrap();
        let text = FILES.map(|name| fs::read_to_string(directory.join(name)).unwrap()).concat();
        for private in ["\"two\"", "4711", "secret", "aaaa-bbbb"] {
            assert!(!text.contains(private), "{private} in {text}");
        }
        assert!(text.contains("Xid (PCI:0000:1b:00): 31, Ch 8") && text.contains("GPU-… is odd"), "{text}");
        assert_eq!(doctor::judge(&collected(&directory).unwrap())[0].check, "link-width");
        let _ = fs::remove_dir_all(directory);
    }
}
