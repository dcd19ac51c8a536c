//! How many CPUs the ranks have together: the affinity masks of all, and the quota of the control group.
//!
//! Only if that is at least one a rank may a waiting rank spin; otherwise it would keep the rank it waits for
//! from running.

use std::path::{Path, PathBuf};

use crate::shm::View;
use crate::shm::atomic::Relaxed;
use crate::shm::layout::CPU_WORDS;

/// Publishes which CPUs this process may use, and how many of them at most.
pub(crate) fn publish(view: View<'_>, me: u32, told: Option<usize>) {
    let limit = told.or_else(|| quota(Path::new("/"))).unwrap_or(0);
    view.ranks[me as usize].status.cpu_limit.store(u32::try_from(limit).unwrap_or(0), Relaxed);
    let Ok(set) = rustix::thread::sched_getaffinity(None) else { return };
    for (word, base) in view.ranks[me as usize].cpus.0.iter().zip((0..).step_by(64)) {
        let bits = (0..64).filter(|bit| set.is_set(base + bit)).fold(0u64, |bits, bit| bits | 1 << bit);
        word.store(bits, Relaxed);
    }
}

/// How many CPUs all ranks may use together, once all have published theirs.
pub(crate) fn together(view: View<'_>) -> usize {
    let in_masks = in_masks(view);
    quota(Path::new("/")).map_or(in_masks, |quota| in_masks.min(quota))
}

fn in_masks(view: View<'_>) -> usize {
    let union = |word: usize| view.ranks.iter().fold(0, |bits, block| bits | block.cpus.0[word].load(Relaxed));
    let in_masks: u32 = (0..CPU_WORDS).map(|word| union(word).count_ones()).sum();
    in_masks.max(1) as usize
}

/// With up to so many CPUs, ranks that take turns go by a chain: more of them would have to wait for each other's chunks.
/// It was measured with two.
const FEW: usize = 4;

/// Whether the ranks have to take turns on few CPUs, once all have published: the same on all, since it depends on nothing but
/// what was published.
pub(crate) fn are_few(view: View<'_>) -> bool {
    let limits =
        view.ranks.iter().map(|block| block.status.cpu_limit.load(Relaxed) as usize).filter(|limit| *limit != 0);
    let cpus = limits.min().map_or(in_masks(view), |limit| limit.min(in_masks(view)));
    cpus <= FEW && cpus < view.ranks.len()
}

/// Whole CPUs that the tightest quota above this process allows; `None` without one.
fn quota(root: &Path) -> Option<usize> {
    let groups = std::fs::read_to_string(root.join("proc/self/cgroup")).ok()?;
    let mut tightest: Option<f64> = None;
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':');
        let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        let (base, read): (PathBuf, fn(&Path) -> Option<f64>) = match controllers {
            "" => (root.join("sys/fs/cgroup"), quota_v2),
            c if c.split(',').any(|c| c == "cpu") => (root.join("sys/fs/cgroup/cpu"), quota_v1),
            _ => continue,
        };
        let group = base.join(path.trim_start_matches('/'));
        let levels = group.ancestors().take_while(|level| level.starts_with(&base));
        for cpus in levels.filter_map(read) {
            tightest = Some(tightest.map_or(cpus, |t| t.min(cpus)));
        }
    }
    tightest.map(|cpus| (cpus.floor() as usize).max(1))
}

fn quota_v2(group: &Path) -> Option<f64> {
    let text = std::fs::read_to_string(group.join("cpu.max")).ok()?;
    let (quota, period) = text.trim().split_once(' ')?;
    Some(quota.parse::<f64>().ok()? / period.parse::<f64>().ok()?) // "max" is no number: no quota
}

fn quota_v1(group: &Path) -> Option<f64> {
    let read = |file| std::fs::read_to_string(group.join(file)).ok()?.trim().parse::<f64>().ok();
    let (quota, period) = (read("cpu.cfs_quota_us")?, read("cpu.cfs_period_us")?);
    (quota > 0.0).then_some(quota / period)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(files: &[(&str, &str)]) -> PathBuf {
        use std::sync::atomic::{AtomicU32, Ordering};
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let root = std::env::temp_dir().join(format!("libcomm-quota-{}-{number}", std::process::id()));
        for (path, text) in files {
            let path = root.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        root
    }

    #[test]
    fn the_tightest_quota_of_all_levels_counts() {
        let root = machine(&[
            ("proc/self/cgroup", "0::/job/step\n"),
            ("sys/fs/cgroup/job/cpu.max", "250000 100000\n"),
            ("sys/fs/cgroup/job/step/cpu.max", "max 100000\n"),
        ]);
        assert_eq!(quota(&root), Some(2));
        std::fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn a_quota_of_version_one_counts_and_none_is_none() {
        let root = machine(&[
            ("proc/self/cgroup", "4:cpu,cpuacct:/a\n1:name=systemd:/\n"),
            ("sys/fs/cgroup/cpu/a/cpu.cfs_quota_us", "50000\n"),
            ("sys/fs/cgroup/cpu/a/cpu.cfs_period_us", "100000\n"),
            ("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n"),
            ("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n"),
        ]);
        assert_eq!(quota(&root), Some(1));
        std::fs::remove_dir_all(&root).unwrap();
        assert_eq!(quota(&root), None);
    }
}
