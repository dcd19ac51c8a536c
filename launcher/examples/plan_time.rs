//! How long `prun plan` takes on a large machine: 256 CPUs, 8 GPUs, 1 000 PCI devices, as files below a directory.
//!
//! `cargo run --release -p launcher --example plan_time -- target/release/prun`

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use launcher::topology::read::{self, Detail};

const RUNS: usize = 41;

struct Tree(PathBuf);

impl Tree {
    fn file(&self, path: &str, text: &str) {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().unwrap_or(Path::new("/"))).expect("a writable temp directory");
        fs::write(path, text).expect("a writable temp directory");
    }

    fn device(&self, address: &str, above: &str, class: &str, numa: usize) {
        let bus = above.rsplit_once(':').map_or("0000:00", |(bus, _)| bus);
        let place = format!("pci{bus}/{above}/{address}");
        let base = format!("sys/devices/{place}");
        for (name, text) in [
            ("class", class),
            ("vendor", "0x10de"),
            ("numa_node", &numa.to_string()),
            ("local_cpulist", "0-255"),
            ("current_link_speed", "16.0 GT/s PCIe"),
            ("current_link_width", "16"),
            ("max_link_speed", "16.0 GT/s PCIe"),
            ("max_link_width", "16"),
        ] {
            self.file(&format!("{base}/{name}"), &format!("{text}\n"));
        }
        fs::create_dir_all(self.0.join("sys/bus/pci/devices")).expect("a writable temp directory");
        symlink(format!("../../../devices/{place}"), self.0.join("sys/bus/pci/devices").join(address)).expect("a link");
    }

    fn large() -> Tree {
        let tree = Tree(std::env::temp_dir().join(format!("prun-plan-time-{}", std::process::id())));
        tree.file("proc/self/status", "Cpus_allowed_list:\t0-255\n");
        tree.file("sys/devices/system/cpu/online", "0-255\n");
        tree.file("sys/devices/system/cpu/present", "0-255\n");
        for cpu in 0..256 {
            let topology = format!("sys/devices/system/cpu/cpu{cpu}/topology");
            tree.file(&format!("{topology}/core_cpus_list"), &format!("{},{}\n", cpu % 128, cpu % 128 + 128));
            tree.file(&format!("{topology}/physical_package_id"), &format!("{}\n", cpu % 128 / 64));
        }
        for node in 0..8 {
            let list = format!("{}-{},{}-{}\n", node * 16, node * 16 + 15, 128 + node * 16, 128 + node * 16 + 15);
            tree.file(&format!("sys/devices/system/node/node{node}/cpulist"), &list);
            tree.file(
                &format!("sys/devices/system/node/node{node}/meminfo"),
                &format!("Node {node} MemTotal: 131072000 kB\n"),
            );
        }
        for device in 0..992 {
            let address = format!("0000:{:02x}:{:02x}.{}", 1 + device / 100, device % 100 / 4, device % 4);
            tree.device(&address, "0000:00:01.0", if device % 3 == 0 { "0x020000" } else { "0x088000" }, 0);
        }
        for gpu in 0..8 {
            let address = format!("0000:{:02x}:00.0", 0x80 + gpu * 8);
            tree.device(&address, &format!("0000:{:02x}:01.0", 0x7f + gpu * 8), "0x030200", gpu);
            tree.file(
                &format!("proc/driver/nvidia/gpus/{address}/information"),
                &format!("Model: NVIDIA Test\nGPU UUID: GPU-{gpu:08}\nDevice Minor: {gpu}\n"),
            );
            tree.file(&format!("dev/nvidia{gpu}"), "");
        }
        tree
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn median(what: &str, mut run: impl FnMut()) {
    let mut times: Vec<Duration> = (0..RUNS)
        .map(|_| {
            let start = Instant::now();
            run();
            start.elapsed()
        })
        .collect();
    times.sort();
    println!(
        "{what:<48} {:7.2} ms (median of {RUNS}; {:.2} to {:.2})",
        ms(times[RUNS / 2]),
        ms(times[0]),
        ms(times[RUNS - 1])
    );
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn main() {
    let prun = std::env::args_os().nth(1).unwrap_or_else(|| "target/release/prun".into());
    let tree = Tree::large();
    median("read what a launch needs", || drop(read::machine(&tree.0, Detail::Launch)));
    median("read all 1 000 devices", || drop(read::machine(&tree.0, Detail::Full)));
    median("prun plan -n 8, the whole command", || {
        let status =
            Command::new(&prun).args(["plan", "-n", "8", "--root"]).arg(&tree.0).stdout(Stdio::null()).status();
        assert!(status.is_ok_and(|status| status.success()), "prun plan works on this tree");
    });
    median("prun topo, the whole command", || {
        let status = Command::new(&prun).args(["topo", "--root"]).arg(&tree.0).stdout(Stdio::null()).status();
        assert!(status.is_ok_and(|status| status.success()), "prun topo works on this tree");
    });
}
