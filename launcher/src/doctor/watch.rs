//! What changes on the machine while a job runs: links that fall back, errors, throttling, a GPU that vanishes.
//!
//! [`helper`] is a process of its own that looks every few seconds and writes each [`Look`] as a line: the driver may
//! hang with a broken GPU, and supervision must not. [`Watcher`] is prun's side of it, [`compare`] finds what changed.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use nvml_wrapper::Nvml;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::{Deserialize, Serialize};

use super::errors;
use crate::topology::aer::{self, Severity};
use crate::topology::{BUSY_PERCENT, Device, ErrorRates, GpuState, PciAddress, PciLink, gpu_name, nvml, read};

/// The word that makes prun a helper. No user types it.
pub const WORD: &str = "watch-machine";
/// Where prun's own tests have made up a machine whose links fall while a job runs. No user sets it.
pub const TEST_ROOT: &str = "PRUN_TEST_ROOT";
/// Jobs that are shorter are not looked at: the driver is not even loaded for them.
const FIRST_LOOK: Duration = Duration::from_millis(500);
/// Between two looks.
const INTERVAL: Duration = Duration::from_secs(5);
/// The same of a made-up machine: no driver is bothered, and the test is waiting.
const TEST_INTERVAL: Duration = Duration::from_millis(200);
/// How long prun waits at the end of a job for the last look.
const LAST_LOOK: Duration = Duration::from_millis(300);

/// The GPUs at one moment.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Look {
    /// Time of day.
    pub time: String,
    /// Seconds since the helper was started.
    #[serde(default)]
    pub after_s: f64,
    /// GPUs by address; one that cannot be reached is missing.
    pub gpus: Vec<Seen>,
}

/// One GPU at one moment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Seen {
    /// Its number on the machine.
    pub index: usize,
    /// Its device, with its link and errors.
    pub device: Device,
    /// What it does.
    pub state: GpuState,
}

impl Look {
    /// For `--json`: each GPU's link and what it does, with the ranks that have it.
    pub fn fields(&self, ranks: &[(usize, Vec<u32>)]) -> Vec<serde_json::Value> {
        let fields = |seen: &Seen| {
            let mut fields = serde_json::json!({
                "gpu": seen.index,
                "ranks": ranks.iter().find(|(gpu, _)| *gpu == seen.index).map_or(&[][..], |(_, ranks)| ranks),
                "link": seen.device.link.shown(),
            });
            if let (Some(fields), Ok(serde_json::Value::Object(state))) =
                (fields.as_object_mut(), serde_json::to_value(&seen.state))
            {
                // Names as in prun's other events.
                fields.extend(state.into_iter().map(|(name, value)| (name.replace('-', "_"), value)));
            }
            fields
        };
        self.gpus.iter().map(fields).collect()
    }
}

/// Something that changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// Which GPU.
    pub gpu: usize,
    /// Which kind, so that it is told once: `link`, `lost`, `throttle`.
    pub kind: String,
    /// One sentence, with the time of day.
    pub what: String,
    /// Whether it is a fault and not just worth knowing.
    pub is_fault: bool,
}

impl Change {
    /// Whether the GPU is gone.
    pub fn is_lost(&self) -> bool {
        self.kind == LOST
    }
}

/// [`Change::kind`] of a GPU that vanished.
const LOST: &str = "lost";

/// What is different between two looks.
pub fn compare(before: &Look, now: &Look) -> Vec<Change> {
    let mut changes = Vec::new();
    for was in &before.gpus {
        let name = gpu_name(was.index);
        let at = &now.time;
        let mut add = |kind: &str, is_fault, what: String| {
            changes.push(Change { gpu: was.index, kind: kind.to_owned(), what, is_fault });
        };
        let Some(is) = now.gpus.iter().find(|gpu| gpu.device.address == was.device.address) else {
            add(
                LOST,
                true,
                format!("{name} ({}) fell off the bus or does not answer any more, seen at {at}", was.device.address),
            );
            continue;
        };
        if fell(&was.device.link, &is.device.link, works(&was.state) && works(&is.state)) {
            add(
                "link",
                true,
                format!("{name}'s link fell from {} to {} at {at}", was.device.link.shown(), is.device.link.shown()),
            );
        }
        for (severity, kind, count) in errors::grown(&was.device, &is.device) {
            let (meaning, _) = aer::meaning(&kind);
            let what = format!("{name} reported {count} {} errors {kind} ({meaning}) before {at}", severity.name());
            add(&format!("aer {kind}"), severity != Severity::Correctable, what);
        }
        if let (Some(before), Some(after)) = (was.state.replays, is.state.replays)
            && after > before
        {
            add("replays", false, format!("{name} had to send {} PCIe packets again before {at}", after - before));
        }
        for reason in is.state.throttled.iter().filter(|reason| !was.state.throttled.contains(reason)) {
            let clock = is.state.sm_mhz.map_or(String::new(), |mhz| format!(", at {mhz} MHz"));
            add(&format!("throttle {reason}"), false, format!("{name} slowed down: {reason}{clock}, at {at}"));
        }
    }
    changes
}

fn works(state: &GpuState) -> bool {
    state.busy_percent.is_some_and(|percent| percent >= BUSY_PERCENT)
}

/// Lanes that were lost count always; speed only between two moments of work.
fn fell(was: &PciLink, is: &PciLink, works: bool) -> bool {
    let less = was.width.zip(is.width).is_some_and(|(was, is)| is < was);
    less || (works && was.speed.zip(is.speed).is_some_and(|(was, is)| is < was))
}

/// Looks at the GPUs below `root`; NVML only speaks of this machine.
fn look(
    root: &Path,
    gpus: &[PciAddress],
    nvml: Option<&Nvml>,
    after: Duration,
    with_traffic: &dyn Fn() -> bool,
) -> Look {
    let told = nvml.map(|nvml| nvml::states(nvml, with_traffic)).unwrap_or_default();
    let seen = gpus.iter().enumerate().filter_map(|(index, address)| {
        let mut device = read::device(root, *address, true);
        let found = told.iter().find(|found| found.gpu.address == Some(*address));
        // With a driver to ask, a GPU that it cannot reach is lost, whatever the kernel still lists.
        if nvml.is_some() && found.is_none() {
            return None;
        }
        if let (Some(device), Some(found)) = (&mut device, found) {
            device.link.speed = found.link.speed.or(device.link.speed);
            device.link.width = found.link.width.or(device.link.width);
        }
        Some(Seen {
            index,
            device: device?,
            state: found.and_then(|found| found.gpu.state.clone()).unwrap_or_default(),
        })
    });
    Look {
        time: jiff::ZonedDateTime::now().strftime("%H:%M:%S").to_string(),
        after_s: after.as_secs_f64(),
        gpus: seen.collect(),
    }
}

/// The helper process: writes looks to standard output until standard input ends, then a last one.
pub fn helper(root: &Path) -> u8 {
    let started = Instant::now();
    let mut out = std::io::stdout();
    let mut ended = ended_within(FIRST_LOOK);
    if ended {
        return 0;
    }
    let nvml = (root == Path::new("/")).then(|| Nvml::init().ok()).flatten();
    let interval = if std::env::var_os(TEST_ROOT).is_some() { TEST_INTERVAL } else { INTERVAL };
    let gpus: Vec<PciAddress> =
        read::machine(root, read::Detail::Launch).gpus.iter().filter_map(|gpu| gpu.address).collect();
    for number in 0u64.. {
        // Every other time, since it takes as much of a CPU as all the rest; and prun waits for the last look, but not long.
        let with_traffic = || number.is_multiple_of(2) && !ended && !ended_within(Duration::ZERO);
        let look = look(root, &gpus, nvml.as_ref(), started.elapsed(), &with_traffic);
        let line = serde_json::to_string(&look).unwrap_or_default();
        let written = writeln!(out, "{line}").and_then(|()| out.flush());
        if ended || written.is_err() {
            return 0;
        }
        ended = ended_within(interval);
    }
    0
}

/// Whether standard input ends within this time; nothing is ever written to it.
fn ended_within(time: Duration) -> bool {
    let stdin = std::io::stdin();
    let mut fds = [PollFd::new(&stdin, PollFlags::IN)];
    let timeout = Timespec { tv_sec: time.as_secs() as i64, tv_nsec: i64::from(time.subsec_nanos()) };
    poll(&mut fds, Some(&timeout)).is_ok_and(|ready| ready > 0)
}

/// prun's side of the helper.
#[derive(Debug)]
pub struct Watcher {
    child: Child,
    out: ChildStdout,
    open: bool,
    pending: Vec<u8>,
    first: Option<Look>,
    last: Option<Look>,
    /// What nobody has taken yet.
    looks: Vec<Look>,
    /// What was told already, by GPU and kind.
    told: BTreeSet<(usize, String)>,
    /// Everything that was told.
    pub changes: Vec<Change>,
}

impl Watcher {
    /// Starts the helper for the machine below `root`; `None` if that is not possible, which no job is refused for.
    pub fn start(root: &Path) -> Option<Watcher> {
        let mut child = Command::new("/proc/self/exe")
            .arg(WORD)
            .arg(root)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            // A Ctrl-C is the job's; the helper ends with its standard input.
            .process_group(0)
            .spawn()
            .ok()?;
        let out = child.stdout.take()?;
        rustix::io::ioctl_fionbio(&out, true).ok()?;
        Some(Watcher {
            child,
            out,
            open: true,
            pending: Vec::new(),
            first: None,
            last: None,
            looks: Vec::new(),
            told: BTreeSet::new(),
            changes: Vec::new(),
        })
    }

    /// Readable when there is something to [`read`](Watcher::read); `None` once the helper has ended.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.open.then(|| self.out.as_fd())
    }

    /// Reads what has come and gives what is new.
    pub fn read(&mut self) -> Vec<Change> {
        let mut buffer = [0u8; 16 << 10];
        loop {
            match self.out.read(&mut buffer) {
                Ok(0) => {
                    self.open = false;
                    break;
                }
                Ok(count) => self.pending.extend_from_slice(&buffer[..count]),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => {
                    self.open = error.kind() == std::io::ErrorKind::WouldBlock;
                    break;
                }
            }
        }
        let mut new = Vec::new();
        while let Some(end) = self.pending.iter().position(|&byte| byte == b'\n') {
            let line: Vec<u8> = self.pending.drain(..=end).collect();
            let Ok(look) = serde_json::from_slice::<Look>(&line) else { continue };
            if let Some(last) = &self.last {
                new.extend(
                    compare(last, &look)
                        .into_iter()
                        .filter(|change| self.told.insert((change.gpu, change.kind.clone()))),
                );
            }
            if self.first.is_none() {
                self.first = Some(look.clone());
            }
            self.looks.push(look.clone());
            self.last = Some(look);
        }
        self.changes.extend(new.iter().cloned());
        new
    }

    /// The looks that have come since this was asked last.
    pub fn take_looks(&mut self) -> Vec<Look> {
        std::mem::take(&mut self.looks)
    }

    /// Asks for the last look, waits a moment for it, and leaves the helper behind: it ends by itself, or hangs in the
    /// driver, which nobody can change.
    pub fn finish(mut self) -> Finished {
        drop(self.child.stdin.take());
        let deadline = Instant::now() + if self.last.is_some() { LAST_LOOK } else { Duration::ZERO };
        let mut new = Vec::new();
        while self.open && Instant::now() < deadline {
            let left = deadline.saturating_duration_since(Instant::now());
            let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(left.subsec_nanos()) };
            let _ = poll(&mut [PollFd::from_borrowed_fd(self.out.as_fd(), PollFlags::IN)], Some(&timeout));
            new.extend(self.read());
        }
        let _ = self.child.kill();
        let _ = self.child.try_wait();
        let rates = match (&self.first, &self.last) {
            (Some(first), Some(last)) => error_rates(first, last),
            _ => Vec::new(),
        };
        Finished { new, looks: self.looks, all: self.changes, rates }
    }
}

/// What the watch leaves behind.
#[derive(Debug, Default)]
pub struct Finished {
    /// Changes that the last look showed.
    pub new: Vec<Change>,
    /// The looks that nobody has taken.
    pub looks: Vec<Look>,
    /// All changes.
    pub all: Vec<Change>,
    /// Errors of each GPU while it was watched, where they are counted.
    pub rates: Vec<(PciAddress, ErrorRates)>,
}

/// How many errors each GPU reported between two looks. Moments that are too close tell nothing.
fn error_rates(first: &Look, last: &Look) -> Vec<(PciAddress, ErrorRates)> {
    let seconds = last.after_s - first.after_s;
    let of = |was: &Seen| {
        let is = last.gpus.iter().find(|is| is.device.address == was.device.address)?;
        let replays = (was.state.replays, is.state.replays);
        Some((was.device.address, errors::between(Some((&is.device, &was.device)), replays, seconds)?))
    };
    if seconds < 1.0 { Vec::new() } else { first.gpus.iter().filter_map(of).collect() }
}

/// The sentence of a change, with the ranks that it concerns.
pub fn sentence(change: &Change, ranks: &[(usize, Vec<u32>)]) -> String {
    let concerned: Vec<String> = ranks
        .iter()
        .filter(|(gpu, _)| *gpu == change.gpu)
        .flat_map(|(_, ranks)| ranks.iter().map(u32::to_string))
        .collect();
    let word = if change.is_fault { "fault" } else { "warning" };
    let whose = match concerned.len() {
        0 => String::new(),
        1 => format!(" (rank {})", concerned[0]),
        _ => format!(" (ranks {})", concerned.join(", ")),
    };
    format!("prun: {word}: {}{whose}", change.what)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::{Aer, Speed};

    fn seen(generation: u32, width: u8, busy: u32) -> Seen {
        let link = PciLink { speed: Speed::of_generation(generation), width: Some(width), ..PciLink::default() };
        let device = Device { link, ..Device::at("0000:41:00.0".parse().unwrap()) };
        Seen { index: 1, device, state: GpuState { busy_percent: Some(busy), ..GpuState::default() } }
    }

    fn look(gpus: Vec<Seen>) -> Look {
        Look { time: "12:03:07".into(), after_s: 0.0, gpus }
    }

    fn changes(was: Seen, is: Seen) -> Vec<String> {
        compare(&look(vec![was]), &look(vec![is])).into_iter().map(|change| change.what).collect()
    }

    #[test]
    fn a_link_that_falls_is_told_and_one_that_rests_is_not() {
        assert_eq!(changes(seen(5, 16, 90), seen(4, 8, 90)), ["GPU1's link fell from Gen5 x16 to Gen4 x8 at 12:03:07"]);
        assert_eq!(changes(seen(5, 16, 90), seen(1, 16, 0)), [""; 0]);
        assert_eq!(changes(seen(1, 16, 0), seen(5, 16, 99)), [""; 0]);
        assert_eq!(changes(seen(5, 16, 90), seen(4, 16, 90)).len(), 1);
        assert_eq!(changes(seen(5, 16, 0), seen(5, 8, 0)).len(), 1);
    }

    #[test]
    fn a_gpu_that_vanishes_takes_its_ranks_along() {
        let change = compare(&look(vec![seen(5, 16, 90)]), &look(Vec::new())).remove(0);
        assert!(change.is_fault);
        let said = sentence(&change, &[(0, vec![0]), (1, vec![1, 3])]);
        assert!(
            said.starts_with("prun: fault: GPU1 (0000:41:00.0) fell off the bus") && said.ends_with("(ranks 1, 3)"),
            "{said}"
        );
    }

    #[test]
    fn errors_and_throttling_are_told_as_they_come() {
        let (mut was, mut is) = (seen(5, 16, 90), seen(5, 16, 90));
        was.device.aer = Aer { correctable: Some(aer::read("BadTLP 3")), ..Aer::default() };
        is.device.aer = Aer { correctable: Some(aer::read("BadTLP 5")), ..Aer::default() };
        is.state.throttled = vec!["temperature".into()];
        (was.state.replays, is.state.replays) = (Some(1), Some(4));
        let found = changes(was, is);
        assert_eq!(found.len(), 3, "{found:?}");
        assert!(found[0].contains("2 correctable errors BadTLP") && found[1].contains("3 PCIe packets"), "{found:?}");
    }

    #[test]
    fn a_look_for_scripts_names_ranks_link_and_traffic() {
        let mut look = look(vec![seen(5, 16, 90)]);
        look.gpus[0].state.pcie_sent_mb_s = Some(24_000);
        let fields = look.fields(&[(0, vec![0]), (1, vec![1, 3])]);
        assert_eq!(fields.len(), 1);
        assert_eq!(fields[0]["ranks"], serde_json::json!([1, 3]));
        assert_eq!((&fields[0]["link"], &fields[0]["pcie_sent_mb_s"]), (&"Gen5 x16".into(), &24_000.into()));
        assert_eq!((&fields[0]["busy_percent"], fields[0].get("watts")), (&90.into(), None));
    }

    #[test]
    fn errors_become_rates_of_the_whole_time() {
        let mut first = look(vec![seen(5, 16, 90)]);
        first.gpus[0].device.aer = Aer { correctable: Some(aer::read("BadTLP 3")), ..Aer::default() };
        let mut last = first.clone();
        last.gpus[0].device.aer = Aer { correctable: Some(aer::read("BadTLP 23")), ..Aer::default() };
        assert_eq!(error_rates(&first, &last), []);
        last.after_s = 10.0;
        assert_eq!(error_rates(&first, &last)[0].1, ErrorRates { correctable_per_s: 2.0, worse: Some(0) });
        last.gpus.clear();
        assert_eq!(error_rates(&first, &last), []);
    }

    #[test]
    fn a_look_goes_through_a_pipe_as_it_is() {
        let look = look(vec![seen(5, 16, 3)]);
        assert_eq!(serde_json::from_str::<Look>(&serde_json::to_string(&look).unwrap()).unwrap(), look);
    }
}
