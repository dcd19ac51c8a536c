//! [`Home`]: a cgroup that a test makes for one job, so that whatever comes of the job can be counted.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crate::kill_now;

/// One cgroup directory; removed with the last copy.
#[derive(Debug, Clone)]
pub(crate) struct Home(Arc<Directory>);

#[derive(Debug)]
struct Directory(PathBuf);

impl Home {
    /// A new one below the caller's own cgroup; `None` where none may be made, and then prun cannot either.
    pub fn new(mark: &str) -> Option<Home> {
        let path = own_directory()?.join(format!("test-{mark}"));
        fs::create_dir(&path).ok()?;
        let home = Home(Arc::new(Directory(path)));
        // The directory may exist and yet take nobody.
        fs::OpenOptions::new().write(true).open(home.path().join("cgroup.procs")).ok()?;
        Some(home)
    }

    fn path(&self) -> &Path {
        &self.0.0
    }

    /// The beginning of a command that joins it and then becomes the rest of the command.
    pub fn joining(&self) -> Vec<OsString> {
        let procs = self.path().join("cgroup.procs").into_os_string();
        vec!["sh".into(), "-c".into(), "echo $$ > \"$0\"; exec \"$@\"".into(), procs]
    }

    /// Living processes in it and below.
    pub fn members(&self) -> Vec<i32> {
        let mut found = Vec::new();
        for directory in [self.path().to_owned()].into_iter().chain(self.children()) {
            let text = fs::read_to_string(directory.join("cgroup.procs")).unwrap_or_default();
            found.extend(
                text.lines().filter_map(|line| line.parse::<i32>().ok()).filter(|&pid| pid > 0 && crate::lives(pid)),
            );
        }
        found
    }

    /// The cgroups below it: those of prun's jobs.
    pub fn children(&self) -> Vec<PathBuf> {
        below(self.path())
    }

    /// Removes it, once it is empty.
    pub fn remove(&self) {
        let _ = fs::remove_dir(self.path());
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let give_up = Instant::now() + Duration::from_secs(5);
        while self.0.exists() && Instant::now() < give_up {
            for directory in below(&self.0).into_iter().chain([self.0.clone()]) {
                let text = fs::read_to_string(directory.join("cgroup.procs")).unwrap_or_default();
                text.lines().filter_map(|line| line.parse().ok()).filter(|&pid| pid > 0).for_each(kill_now);
                let _ = fs::remove_dir(&directory);
            }
            thread::sleep(Duration::from_millis(2));
        }
    }
}

/// All directories below this one, the innermost first.
fn below(path: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(path) else { return Vec::new() };
    let directories = entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    directories.flat_map(|entry| below(&entry.path()).into_iter().chain([entry.path()])).collect()
}

/// Where this process is in the v2 tree.
fn own_directory() -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let membership = fs::read_to_string("/proc/self/cgroup").ok()?;
    let own = membership.lines().find_map(|line| line.strip_prefix("0::"))?.to_owned();
    mounts.lines().find_map(|line| {
        let (fields, kind) = line.split_once(" - ")?;
        let mut fields = fields.split(' ').skip(3);
        let (root, point) = (fields.next()?, fields.next()?);
        let inside = if root == "/" { own.as_str() } else { own.strip_prefix(root)? };
        kind.starts_with("cgroup2 ").then(|| Path::new(point).join(inside.trim_start_matches('/')))
    })
}
