//! A cgroup of the job's own, where the kernel and the administrator allow one.
//!
//! It finds what hides from process groups, parents and sessions, and kills it in one write. Only cgroup v2
//! is used; it may be mounted anywhere (beside v1 hierarchies, often at `/sys/fs/cgroup/unified`), so the
//! mount table is asked. rankd is *born* in it (`CLONE_INTO_CGROUP`): moving a running process costs up to
//! 11 ms, being born there 0.1 ms.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

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
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let membership = fs::read_to_string("/proc/self/cgroup").ok()?;
    Some(own_directory(&mounts, &membership)?.join(format!("prun-{job_id}")))
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
