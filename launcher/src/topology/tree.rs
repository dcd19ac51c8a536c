//! A made-up `/proc` and `/sys` for tests.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// A root with files, removed when dropped.
pub(crate) struct Tree(PathBuf);

impl Tree {
    /// An empty root.
    pub(crate) fn new(name: &str) -> Tree {
        let root = std::env::temp_dir().join(format!("prun-tree-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        fs::create_dir_all(&root).unwrap();
        Tree(root)
    }

    pub(crate) fn root(&self) -> &Path {
        &self.0
    }

    /// Writes a file and the directories above it.
    pub(crate) fn file(&self, path: &str, text: &str) {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// `count` CPUs with a thread each, split evenly over `numa` nodes (0: no node directory).
    pub(crate) fn cpus(self, count: usize, numa: usize) -> Tree {
        self.file("proc/self/status", &format!("Cpus_allowed_list:\t0-{}\n", count - 1));
        self.file("sys/devices/system/cpu/online", &format!("0-{}\n", count - 1));
        self.file("sys/devices/system/cpu/present", &format!("0-{}\n", count - 1));
        for node in 0..numa {
            let (first, last) = (node * count / numa, (node + 1) * count / numa - 1);
            self.file(&format!("sys/devices/system/node/node{node}/cpulist"), &format!("{first}-{last}\n"));
            self.file(
                &format!("sys/devices/system/node/node{node}/meminfo"),
                &format!("Node {node} MemTotal:       1048576 kB\n"),
            );
        }
        self
    }

    /// A GPU as the driver lists it, on a host bridge of its own.
    pub(crate) fn gpu(self, address: &str, minor: u32, numa: Option<usize>) -> Tree {
        self.file(
            "proc/driver/nvidia/version",
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build\n",
        );
        self.file(
            &format!("proc/driver/nvidia/gpus/{address}/information"),
            &format!("Model: \t\t NVIDIA Test\nGPU UUID: \t GPU-00000000-0000-0000-0000-00000000000{minor}\nBus Location: \t {address}\nDevice Minor: \t {minor}\n"),
        );
        self.file(&format!("dev/nvidia{minor}"), "");
        let numa = numa.map_or("-1".to_owned(), |numa| numa.to_string());
        self.device(address, &[], &[("class", "0x030200\n"), ("vendor", "0x10de\n"), ("numa_node", &numa)]);
        self
    }

    /// A PCI device below `above`, with these files.
    pub(crate) fn device(&self, address: &str, above: &[&str], files: &[(&str, &str)]) {
        let (bus, _) = above.first().unwrap_or(&address).rsplit_once(':').unwrap();
        let place = [&[format!("pci{bus}").as_str()], above, &[address]].concat().join("/");
        for (name, text) in files {
            self.file(&format!("sys/devices/{place}/{name}"), text);
        }
        fs::create_dir_all(self.0.join("sys/devices").join(&place)).unwrap();
        fs::create_dir_all(self.0.join("sys/bus/pci/devices")).unwrap();
        symlink(format!("../../../devices/{place}"), self.0.join("sys/bus/pci/devices").join(address)).unwrap();
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
