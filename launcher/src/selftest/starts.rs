//! After a rank was killed while its peer had its memory mapped: whether the GPUs' memory comes back, and whether later jobs
//! start as fast as the first of them, and whether prun itself has as few descriptors open as before.

use std::ffi::OsString;
use std::path::Path;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;

use super::cases::Case;
use super::{Verdict, job, judge};
use crate::refused::Refused;

/// How long memory may take to come back.
const BACK_WITHIN: Duration = Duration::from_secs(5);
/// What other programs may take meanwhile.
const SLACK_BYTES: u64 = 64 << 20;
/// By how much the last starts may be slower than the first ones, beside noise.
const SLOWER: f64 = 1.1;
const NOISE: Duration = Duration::from_millis(50);

/// What is in use, before and after.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct InUse {
    /// Of each GPU, in bytes; or why nobody can tell.
    gpu_bytes: Result<Vec<u64>, String>,
    /// Entries of `/dev/shm`.
    shm_entries: usize,
    /// Descriptors that this process has open.
    descriptors: usize,
}

impl InUse {
    pub(super) fn now() -> InUse {
        let gpu_bytes = gpu_bytes().map_err(|error| error.to_string());
        let shm_entries = std::fs::read_dir("/dev/shm").map_or(0, Iterator::count);
        InUse { gpu_bytes, shm_entries, descriptors: descriptors() }
    }

    /// What is more than it was.
    fn more_than(&self, before: &InUse) -> Option<String> {
        match (&self.gpu_bytes, &before.gpu_bytes) {
            (Ok(now), Ok(then)) => {
                let grown = now.iter().zip(then).position(|(now, then)| *now > then + SLACK_BYTES);
                if let Some(gpu) = grown {
                    let (now, then) = (now[gpu] >> 20, then[gpu] >> 20);
                    return Some(format!("GPU {gpu} has {now} MiB in use, {then} MiB before"));
                }
            }
            (Err(why), Ok(_)) => return Some(format!("nobody can tell what the GPUs have in use: {why}")),
            (_, Err(_)) => {}
        }
        let (now, then) = (self.shm_entries, before.shm_entries);
        if now > then {
            return Some(format!("/dev/shm has {now} entries, {then} before"));
        }
        let (now, then) = (self.descriptors, before.descriptors);
        (now > then).then(|| format!("prun has {now} descriptors open, {then} before"))
    }

    /// Waits until no more is in use than before; how long that took, or what is left.
    fn come_back(before: &InUse) -> Result<Duration, String> {
        let began = Instant::now();
        loop {
            match InUse::now().more_than(before) {
                None => return Ok(began.elapsed()),
                Some(more) if began.elapsed() >= BACK_WITHIN => return Err(format!("after {BACK_WITHIN:?} {more}")),
                Some(_) => std::thread::sleep(Duration::from_millis(20)),
            }
        }
    }
}

fn gpu_bytes() -> Result<Vec<u64>, NvmlError> {
    /// Once: each start of it takes a descriptor more, which it never gives back (driver 580.159.04).
    static NVML: OnceLock<Nvml> = OnceLock::new();
    let nvml = match NVML.get() {
        Some(nvml) => nvml,
        None => {
            let nvml = Nvml::init()?;
            NVML.get_or_init(|| nvml)
        }
    };
    (0..nvml.device_count()?).map(|index| Ok(nvml.device_by_index(index)?.memory_info()?.used)).collect()
}

/// Those of NVML do not count: what it keeps is its own business.
fn descriptors() -> usize {
    let is_nvml = |path: &Path| path.as_os_str().as_encoded_bytes().starts_with(b"/dev/nvidia");
    let open = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    open.filter(|entry| !std::fs::read_link(entry.path()).is_ok_and(|path| is_nvml(&path))).count()
}

/// Looks at the memory, then starts `case.starts` jobs.
///
/// # Errors
/// [`Refused`] if a job cannot be started at all.
pub(super) fn follow(case: &Case, before: &InUse, inherited: &[(OsString, OsString)]) -> Result<Verdict, Refused> {
    let back = match InUse::come_back(before) {
        Ok(back) => back,
        Err(left) => return Ok(Verdict::Failed(left)),
    };
    let start = Case { word: "start", ends_well: true, ..*case };
    let mut times = Vec::new();
    for number in 1..=case.starts {
        let began = Instant::now();
        let output = job(&start, inherited).output().map_err(super::cannot_start)?;
        times.push(began.elapsed());
        if let Verdict::Failed(why) = judge(&start, &output) {
            return Ok(Verdict::Failed(format!("start {number}: {why}")));
        }
    }
    if let Err(left) = InUse::come_back(before) {
        return Ok(Verdict::Failed(format!("after {} starts: {left}", case.starts)));
    }
    Ok(match slower(&times) {
        Some(why) => Verdict::Failed(why),
        None => Verdict::Measured(format!(
            "{}; start 2 took {} ms, start {} {} ms",
            memory(before, back),
            times.get(1).map_or(0, Duration::as_millis),
            case.starts,
            times.last().map_or(0, Duration::as_millis)
        )),
    })
}

/// What became of the memory; of the GPUs' nothing is known where nobody could look.
fn memory(before: &InUse, back: Duration) -> String {
    match &before.gpu_bytes {
        Ok(_) => format!("memory back after {} ms", back.as_millis()),
        Err(why) => format!("GPU memory not looked at ({why})"),
    }
}

/// Whether the last three starts took longer than the second to the fourth, by their medians.
fn slower(times: &[Duration]) -> Option<String> {
    let median = |times: &[Duration]| {
        let mut sorted = times.to_vec();
        sorted.sort_unstable();
        sorted.get(sorted.len() / 2).copied().unwrap_or_default()
    };
    let early = median(times.get(1..4)?);
    let late = median(&times[times.len() - 3..]);
    (late > early.mul_f64(SLOWER) + NOISE)
        .then(|| format!("the first starts took {early:.0?}, the last ones {late:.0?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_use(gpu_bytes: &[u64], shm_entries: usize) -> InUse {
        InUse { gpu_bytes: Ok(gpu_bytes.to_vec()), shm_entries, descriptors: 9 }
    }

    #[test]
    fn what_has_grown_is_named() {
        let before = in_use(&[1 << 20, 600 << 20], 2);
        assert_eq!(in_use(&[30 << 20, 600 << 20], 1).more_than(&before), None);
        let more = in_use(&[0, 700 << 20], 2).more_than(&before);
        assert_eq!(more.as_deref(), Some("GPU 1 has 700 MiB in use, 600 MiB before"));
        let more = in_use(&[0, 0], 3).more_than(&before);
        assert_eq!(more.as_deref(), Some("/dev/shm has 3 entries, 2 before"));
        let more = InUse { descriptors: 10, ..before.clone() }.more_than(&before);
        assert_eq!(more.as_deref(), Some("prun has 10 descriptors open, 9 before"));
    }

    #[test]
    fn where_nobody_can_look_at_a_gpu_its_memory_is_not_said_to_be_back() {
        let unknown = InUse { gpu_bytes: Err("no NVML".into()), ..in_use(&[], 2) };
        assert_eq!(unknown.more_than(&unknown), None);
        assert!(unknown.more_than(&in_use(&[1], 2)).is_some_and(|more| more.ends_with(": no NVML")));
        let back = Duration::from_millis(30);
        assert_eq!(memory(&unknown, back), "GPU memory not looked at (no NVML)");
        assert_eq!(memory(&in_use(&[1], 2), back), "memory back after 30 ms");
    }

    #[test]
    fn descriptors_of_this_process_are_counted() {
        let (here, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        let more = descriptors();
        assert!(more >= 5 && here.peer_addr().is_ok(), "{more}");
    }

    #[test]
    fn starts_that_become_slower_are_found_and_one_slow_one_is_none() {
        let ms = |times: &[u64]| times.iter().map(|ms| Duration::from_millis(*ms)).collect::<Vec<_>>();
        assert_eq!(slower(&ms(&[9000, 700, 710, 690, 700, 705, 2000, 700])), None);
        assert!(slower(&ms(&[700, 700, 710, 690, 800, 900, 1000, 1100])).is_some());
        assert_eq!(slower(&ms(&[700])), None);
    }
}
