//! A cgroup of the job's own, where the kernel and the administrator allow one.
//!
//! It finds what hides from process groups, parents and sessions, and kills it in one write. Only cgroup v2
//! is used; it may be mounted anywhere (beside v1 hierarchies, often at `/sys/fs/cgroup/unified`), so the
//! mount table is asked. rankd is *born* in it (`CLONE_INTO_CGROUP`): moving a running process costs up to
//! 11 ms, being born there 0.1 ms.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::processes::name;

/// What the names of our cgroups begin with.
const PREFIX: &str = "prun-";
/// A job's cgroup without a rankd in it that is older than this has nobody who looks after it.
const ABANDONED_AGE: Duration = Duration::from_secs(10);

/// What `statfs` calls a cgroup v2 tree.
const CGROUP2_MAGIC: rustix::fs::FsWord = 0x6367_7270;

/// One directory of the cgroup tree, made by us and removed by whoever is left last.
#[derive(Debug)]
pub struct JobCgroup {
    path: PathBuf,
    directory: File,
}

impl JobCgroup {
    /// Makes `prun-<job id>` below the caller's own cgroup; `None` where that is not allowed.
    pub fn create(job_id: &str) -> Option<JobCgroup> {
        let path = path_of(job_id)?;
        fs::create_dir(&path).ok()?;
        match File::open(&path) {
            Ok(directory) => Some(JobCgroup { path, directory }),
            Err(_) => {
                let _ = fs::remove_dir(&path);
                None
            }
        }
    }

    /// The one that another process of the same cgroup made; `None` if there is none.
    pub fn find(job_id: &str) -> Option<JobCgroup> {
        let path = path_of(job_id)?;
        Some(JobCgroup { directory: File::open(&path).ok()?, path })
    }

    /// The descriptor that `clone3` wants.
    pub fn raw_fd(&self) -> i32 {
        self.directory.as_raw_fd()
    }

    /// Process ids of all members.
    pub fn members(&self) -> io::Result<Vec<i32>> {
        let text = fs::read_to_string(self.path.join("cgroup.procs"))?;
        // A member of another pid namespace reads as 0: it has no number here.
        Ok(text.lines().filter_map(|line| line.trim().parse().ok()).filter(|&pid| pid > 0).collect())
    }

    /// Whether `pid` is a member right now.
    pub fn holds(&self, pid: i32) -> bool {
        let Some(name) = self.path.file_name().and_then(|name| name.to_str()) else { return false };
        fs::read_to_string(format!("/proc/{pid}/cgroup")).is_ok_and(|text| {
            text.lines()
                .filter_map(|line| line.strip_prefix("0::"))
                .any(|path| path.split('/').any(|part| part == name))
        })
    }

    /// Whether the calling process is a member.
    pub fn holds_caller(&self) -> bool {
        self.holds(rustix::process::getpid().as_raw_nonzero().get())
    }

    /// SIGKILL for every member at once, also for what forks faster than a list can be walked (Linux 5.14).
    pub fn kill_all(&self) {
        let _ = fs::write(self.path.join("cgroup.kill"), "1");
    }

    /// Moves the caller to the parent cgroup, so that this one can be removed.
    pub fn leave(&self) {
        if let Some(parent) = self.path.parent() {
            let _ = fs::write(parent.join("cgroup.procs"), "0");
        }
    }

    /// Removes the directory; false while something is still in it.
    ///
    /// A dead member counts until the kernel has taken it off its list, which is a moment after its death
    /// can be seen, so the caller tries again.
    pub fn remove(&self) -> bool {
        remove_tree(&self.path)
    }
}

fn path_of(job_id: &str) -> Option<PathBuf> {
    let membership = fs::read_to_string("/proc/self/cgroup").ok()?;
    let own = own_directory_where_usual(&membership).or_else(|| {
        let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
        own_directory(&mounts, &membership)
    })?;
    Some(own.join(format!("{PREFIX}{job_id}")))
}

/// The same as [`own_directory`] finds, without the mount table, which the kernel writes out slowly (0.1 ms): looks for a
/// cgroup v2 tree where it almost always is.
fn own_directory_where_usual(membership: &str) -> Option<PathBuf> {
    let own = membership.lines().find_map(|line| line.strip_prefix("0::"))?.trim_start_matches('/');
    ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"].into_iter().find_map(|point| {
        let is_v2 = rustix::fs::statfs(point).is_ok_and(|tree| tree.f_type == CGROUP2_MAGIC);
        // Where the mount shows a part of the tree only, our path from its root is not there.
        Some(Path::new(point).join(own)).filter(|path| is_v2 && path.is_dir())
    })
}

/// Ends what is left of jobs whose prun, keeper and rankd were all killed at once: the next job in the same cgroup
/// finds theirs beside its own. Returns how many it removed.
///
/// A job that lives has its rankd in its cgroup, but for a moment at its start and its end.
pub fn remove_abandoned() -> usize {
    let Some(own) = path_of("") else { return 0 };
    let Some(entries) = own.parent().and_then(|parent| fs::read_dir(parent).ok()) else { return 0 };
    let is_old = |path: &Path| {
        let age = fs::metadata(path).and_then(|status| status.created().or_else(|_| status.modified())).ok();
        age.and_then(|made| made.elapsed().ok()).is_some_and(|age| age > ABANDONED_AGE)
    };
    let jobs = entries.flatten().filter(|entry| entry.file_name().as_bytes().starts_with(PREFIX.as_bytes()));
    jobs.filter_map(|entry| {
        let path = entry.path();
        let directory = File::open(&path).ok().filter(|_| is_old(&path))?;
        let job = JobCgroup { path, directory };
        let members = fs::read_to_string(job.path.join("cgroup.procs")).ok()?;
        // 0 is a member of another pid namespace, whose name cannot be told.
        let is_watched =
            |line: &str| line == "0" || line.parse().ok().and_then(name).is_none_or(|name| name == "rankd");
        if members.lines().any(is_watched) {
            return None;
        }
        job.kill_all();
        job.remove().then_some(())
    })
    .count()
}

/// Removes a cgroup directory and what a rank made below it.
fn remove_tree(path: &Path) -> bool {
    if fs::remove_dir(path).is_ok() {
        return true;
    }
    let Ok(entries) = fs::read_dir(path) else { return !path.exists() };
    for entry in entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
        remove_tree(&entry.path());
    }
    fs::remove_dir(path).is_ok()
}

/// The directory of the caller's own v2 cgroup, from the texts of `/proc/self/mountinfo` and `/proc/self/cgroup`.
fn own_directory(mounts: &str, membership: &str) -> Option<PathBuf> {
    let own = membership.lines().find_map(|line| line.strip_prefix("0::"))?;
    mounts.lines().find_map(|line| {
        let (fields, kind) = line.split_once(" - ")?;
        if kind.split(' ').next()? != "cgroup2" {
            return None;
        }
        let mut fields = fields.split(' ').skip(3);
        let (root, point) = (fields.next()?, fields.next()?);
        // In a container the mount may show only a part of the tree: `root` is where that part begins.
        let inside = if root == "/" { own } else { own.strip_prefix(root)? };
        Some(Path::new(&unescape(point)).join(inside.trim_start_matches('/')))
    })
}

/// Mount points come with blanks as `\040`.
fn unescape(text: &str) -> String {
    text.replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usual_place_is_the_one_in_the_mount_table() {
        let (Ok(membership), Ok(mounts)) =
            (fs::read_to_string("/proc/self/cgroup"), fs::read_to_string("/proc/self/mountinfo"))
        else {
            return;
        };
        let sameness = |path: PathBuf| fs::canonicalize(path).ok();
        if let Some(usual) = own_directory_where_usual(&membership) {
            assert_eq!(sameness(usual), own_directory(&mounts, &membership).and_then(sameness));
        }
    }

    #[test]
    fn the_v2_tree_is_found_wherever_it_is_mounted() {
        let mixed = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n";
        assert_eq!(own_directory(mixed, "4:memory:/x\n0::/\n"), Some(PathBuf::from("/sys/fs/cgroup/unified/")));
        let pure = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n";
        assert_eq!(own_directory(pure, "0::/user.slice/a b\n"), Some(PathBuf::from("/sys/fs/cgroup/user.slice/a b")));
        let part = "30 23 0:26 /docker/abc /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
        assert_eq!(own_directory(part, "0::/docker/abc/job\n"), Some(PathBuf::from("/sys/fs/cgroup/job")));
        assert_eq!(own_directory(part, "0::/elsewhere\n"), None);
    }

    #[test]
    fn without_a_v2_tree_there_is_no_cgroup() {
        assert_eq!(own_directory("32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n", "1:cpu:/\n"), None);
        assert_eq!(own_directory("", "0::/\n"), None);
    }
}
