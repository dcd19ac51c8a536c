//! The kernel's log: what it says of GPUs and PCIe errors since the machine was started, by device and kind.
//!
//! An old line is history. What a program did wrong last week makes no machine ill today; what the hardware did is
//! worth a warning, and what comes while somebody looks is worth one more.

use std::fs;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;

use super::{Finding, Level};
use crate::topology::PciAddress;

/// Lines that are kept of those that tell of broken hardware, and of the others.
const MOST_LINES: usize = 100;

/// What a line reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// An error of the NVIDIA driver, by NVIDIA's number.
    Xid(u32),
    /// A PCIe error that the hardware repaired.
    Corrected,
    /// One that it did not.
    Uncorrected,
}

/// How much a kind matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Weight {
    /// The program's own fault, or something that repairs itself.
    Harmless,
    /// The hardware.
    Severe,
    /// The GPU was gone.
    Lost,
}

impl Kind {
    fn weight(self) -> Weight {
        match self {
            Kind::Xid(79) => Weight::Lost,
            Kind::Xid(48 | 61..=64 | 74 | 92 | 94 | 95 | 119 | 120) | Kind::Uncorrected => Weight::Severe,
            Kind::Xid(_) | Kind::Corrected => Weight::Harmless,
        }
    }

    fn name(self) -> String {
        match self {
            Kind::Xid(79) => "a GPU fell off the bus (Xid 79)".into(),
            Kind::Xid(number) => format!("the NVIDIA driver reported Xid {number}"),
            Kind::Corrected => "the kernel reported PCIe errors that were repaired".into(),
            Kind::Uncorrected => "the kernel reported PCIe errors that were not repaired".into(),
        }
    }

    /// What NVIDIA's numbers are about, and what to do.
    fn cure(self) -> &'static str {
        match self {
            Kind::Xid(13 | 31 | 43 | 45 | 68) => "usually a fault of the program: compute-sanitizer finds where",
            Kind::Xid(48 | 63 | 64 | 92 | 94 | 95) => {
                "memory errors: `nvidia-smi -q -d ECC,ROW_REMAPPER`; exchange the card if they come again"
            }
            Kind::Xid(74) => "NVLink errors: `nvidia-smi nvlink -e`; reseat bridges",
            Kind::Xid(79) => "the GPU fell off the bus: power, temperature, seating",
            Kind::Xid(61 | 62 | 119 | 120) => "the GPU's own processor hung: driver update, cold start",
            Kind::Xid(_) => "NVIDIA's list of Xid numbers; `dmesg` around that line",
            Kind::Corrected => "signal quality of this slot, if they go on: `prun doctor` counts them while it looks",
            Kind::Uncorrected => "`dmesg` around that line; reseat the card, update firmware",
        }
    }
}

/// Lines of `/dev/kmsg` that are about GPUs or PCIe errors; `None` if it may not be read.
pub fn read() -> Option<Vec<String>> {
    let flags = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).unwrap_or(0);
    let mut file = fs::OpenOptions::new().read(true).custom_flags(flags).open("/dev/kmsg").ok()?;
    let (mut lines, mut buffer) = (Vec::new(), [0u8; 8192]);
    // Each read gives one record; the end is "would block", and a record that was overwritten meanwhile is passed over.
    for _ in 0..200_000 {
        match file.read(&mut buffer) {
            Ok(count) => lines.extend(interesting(&String::from_utf8_lossy(&buffer[..count]))),
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => {}
            Err(_) => break,
        }
    }
    Some(kept(lines))
}

/// The last lines, and those of broken hardware, which a flood of others must not push out.
fn kept(lines: Vec<String>) -> Vec<String> {
    let is_harmless = |line: &String| kind(line).is_none_or(|kind| kind.weight() == Weight::Harmless);
    let count = |harmless: bool| lines.iter().filter(|line| is_harmless(line) == harmless).count();
    let mut over = [count(false).saturating_sub(MOST_LINES), count(true).saturating_sub(MOST_LINES)];
    let mut kept = lines.clone();
    kept.retain(|line| {
        let over = &mut over[usize::from(is_harmless(line))];
        let stays = *over == 0;
        *over = over.saturating_sub(1);
        stays
    });
    kept
}

/// `6,1234,5678901,-;NVRM: Xid …` as `[5.678901] NVRM: Xid …`, if it is about GPUs or PCIe errors.
fn interesting(record: &str) -> Option<String> {
    let record = record.lines().next()?;
    let (head, line) = record.split_once(';').unwrap_or(("", record));
    let micros = head.split(',').nth(2).and_then(|micros| micros.parse::<u64>().ok());
    let time = micros.map_or(String::new(), |micros| format!("[{}.{:06}] ", micros / 1_000_000, micros % 1_000_000));
    let line: String = line.trim().chars().take(200).collect();
    kind(&line).map(|_| format!("{time}{line}"))
}

/// What a line is about; `None` for one that reports no error.
fn kind(line: &str) -> Option<Kind> {
    if let Some((_, rest)) = line.split_once("NVRM: Xid") {
        let rest = rest.rsplit_once("): ").map_or(rest, |(_, rest)| rest);
        let number = rest.trim_start_matches([':', ' ']).split([',', ' ', ':']).next()?;
        return Some(Kind::Xid(number.parse().unwrap_or(0)));
    }
    if line.contains("fallen off the bus") {
        return Some(Kind::Xid(79));
    }
    let small = line.to_ascii_lowercase();
    let is_report = small.contains("error") || small.contains("recover");
    if !is_report || !(small.contains("aer: ") || small.contains("pcie bus error")) {
        return None;
    }
    let repaired = small.contains("corrected") && !small.contains("uncorrected");
    Some(if repaired { Kind::Corrected } else { Kind::Uncorrected })
}

/// The device that a line is about: the last address in it, without its function, which a Xid does not have.
fn device(line: &str) -> Option<String> {
    if let Some((_, rest)) = line.split_once("(PCI:") {
        return rest.split_once(')').map(|(address, _)| address.to_owned());
    }
    let mut addresses = line
        .split([' ', ',', '(', ')', '='])
        .filter_map(|word| word.trim_end_matches([':', '.']).parse::<PciAddress>().ok());
    addresses.next_back().map(|address| format!("{:04x}:{:02x}:{:02x}", address.domain, address.bus, address.device))
}

/// The seconds since the start at which a line was written.
fn time(line: &str) -> Option<f64> {
    line.strip_prefix('[')?.split_once(']')?.0.trim().parse().ok()
}

/// One finding for each device and kind. The last `new` lines came while somebody looked; `uptime_s` is how long the machine
/// has run.
pub fn findings(lines: &[String], new: usize, uptime_s: Option<f64>) -> Vec<Finding> {
    let mut groups: Vec<(Kind, Option<String>, Vec<usize>)> = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let Some(kind) = kind(line) else { continue };
        let device = device(line);
        match groups.iter_mut().find(|(its, place, _)| *its == kind && *place == device) {
            Some((_, _, members)) => members.push(at),
            None => groups.push((kind, device, vec![at])),
        }
    }
    let finding = |(kind, device, members): (Kind, Option<String>, Vec<usize>)| {
        let last = members.last().copied().unwrap_or(0);
        let is_new = last + new >= lines.len();
        let level = match (kind.weight(), is_new) {
            (Weight::Lost, _) | (Weight::Severe, true) => Level::Fault,
            (Weight::Severe, false) | (Weight::Harmless, true) => Level::Warning,
            (Weight::Harmless, false) => Level::Advice,
        };
        let when = if is_new { "while it was looked at" } else { "since the machine was started" };
        let ago = match (time(&lines[last]), uptime_s) {
            (Some(at), Some(now)) if now >= at => format!(", the last one {} before this look", ago(now - at)),
            _ => String::new(),
        };
        let count = members.len();
        let times = if count == 1 { "one line".to_owned() } else { format!("{count} lines") };
        let place = device.map_or("kernel log".to_owned(), |device| format!("kernel log, {device}"));
        Finding::new(level, "kernel-log", place, format!("{} {when}", kind.name()))
            .seen(format!("{times}{ago}: {}", lines[last]))
            .try_this(kind.cure())
            .costs(match kind.weight() {
                Weight::Lost => 1.0,
                Weight::Severe => 0.5,
                Weight::Harmless => 0.1,
            })
    };
    groups.into_iter().map(finding).collect()
}

fn ago(seconds: f64) -> String {
    match seconds as u64 {
        under @ 0..120 => format!("{under} s"),
        under @ 120..7200 => format!("{} min", under / 60),
        under @ 7200..172_800 => format!("{} h", under / 3600),
        more => format!("{} days", more / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|&text| text.to_owned()).collect()
    }

    fn levels(lines: &[String], new: usize) -> Vec<Level> {
        findings(lines, new, Some(1000.0)).iter().map(|finding| finding.level).collect()
    }

    #[test]
    fn records_are_picked_out_with_their_time() {
        assert_eq!(
            interesting("6,1,2000003,-;NVRM: Xid (PCI:0000:1b:00): 31, pid=1\n SUB=x").unwrap(),
            "[2.000003] NVRM: Xid (PCI:0000:1b:00): 31, pid=1"
        );
        for other in ["6,1,2,-;usb 1-1: new device", "6,1,2,-;pcieport 0000:00:1c.0: AER: enabled with IRQ 122", ""] {
            assert_eq!(interesting(other), None, "{other}");
        }
        let kinds = [
            ("NVRM: Xid 48", Kind::Xid(48)),
            ("NVRM: Xid (PCI:0000:1b:00): 119, pid='<unknown>', name=<unknown>, Timeout", Kind::Xid(119)),
            ("NVRM: GPU 0000:1b:00.0: GPU has fallen off the bus.", Kind::Xid(79)),
            ("pcieport 0000:00:01.0: AER: Corrected error received: 0000:01:00.0", Kind::Corrected),
            ("nvidia 0000:01:00.0: PCIe Bus Error: severity=Uncorrected (Non-Fatal), type=x", Kind::Uncorrected),
        ];
        for (line, expected) in kinds {
            assert_eq!(kind(line), Some(expected), "{line}");
        }
        assert_eq!(device(kinds[3].0).as_deref(), Some("0000:01:00"));
    }

    #[test]
    fn a_program_s_old_faults_are_one_advice_however_many() {
        let many: Vec<String> =
            (0..90).map(|at| format!("[{at}.5] NVRM: Xid (PCI:0000:1b:00): 31, pid=1, name=train")).collect();
        let found = findings(&many, 0, Some(1000.0));
        assert_eq!((found.len(), found[0].level), (1, Level::Advice));
        assert!(found[0].evidence.starts_with("90 lines, the last one 15 min before this look: [89.5]"), "{found:?}");
        assert!(found[0].try_.contains("program") && found[0].place.ends_with("0000:1b:00"));
        // One of another GPU is another finding.
        let two = lines(&["NVRM: Xid (PCI:0000:1b:00): 31", "NVRM: Xid (PCI:0000:3b:00): 31"]);
        assert_eq!(levels(&two, 0), [Level::Advice, Level::Advice]);
    }

    #[test]
    fn what_the_hardware_did_is_a_warning_and_what_comes_now_is_more() {
        let each = |text: &str, new| levels(&lines(&[text]), new)[0];
        let table = [
            ("NVRM: Xid (PCI:0000:1b:00): 48, DBE", Level::Warning, Level::Fault),
            ("NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus.", Level::Fault, Level::Fault),
            ("NVRM: Xid (PCI:0000:1b:00): 13, Graphics Exception", Level::Advice, Level::Warning),
            ("pcieport 0000:00:01.0: AER: Corrected error received: 0000:01:00.0", Level::Advice, Level::Warning),
            ("0000:01:00.0: PCIe Bus Error: severity=Uncorrected (Fatal)", Level::Warning, Level::Fault),
        ];
        for (line, old, new) in table {
            assert_eq!((each(line, 0), each(line, 1)), (old, new), "{line}");
        }
        // Both ways to say it are one finding.
        let lost = lines(&[table[1].0, "NVRM: GPU 0000:1b:00.0: GPU has fallen off the bus."]);
        assert_eq!(levels(&lost, 0), [Level::Fault]);
    }

    #[test]
    fn a_flood_does_not_push_out_what_matters() {
        let mut many = lines(&["NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus."]);
        many.extend((0..500).map(|at| format!("NVRM: Xid (PCI:0000:1b:00): 31, pid={at}")));
        let kept = kept(many);
        assert_eq!((kept.len(), kept[0].contains("79"), kept[1].ends_with("pid=400")), (101, true, true));
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_a_line_or_none(text in "(NVRM: Xid|\\(PCI:|\\)|: |[0-9]{1,12}|AER: |error|;|,|\\[|\\]|0000:01:00\\.0| ){0,20}") {
            let _ = interesting(&text);
            let _ = findings(&[text], 1, Some(1.0));
        }
    }
}
