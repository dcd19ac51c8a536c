//! Under which circumstances a trial ran: what stays the same for a sweep ([`Setting`]), and what may change from one
//! moment to the next ([`Moment`]). What cannot be read is left out, never guessed.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::topology::{GpuState, nvml};

/// Variables with these beginnings change how programs of this kind run.
const BEGINNINGS: [&str; 24] = [
    "PRUN_",
    "OMP_",
    "GOMP_",
    "KMP_",
    "MKL_",
    "OPENBLAS_",
    "NCCL_",
    "CUDA_",
    "NVIDIA_",
    "UCX_",
    "FI_",
    "OMPI_MCA_",
    "MPICH_",
    "I_MPI_",
    "TORCH_",
    "PYTORCH_",
    "XLA_",
    "LD_",
    "MALLOC_",
    "GLIBC_",
    "SLURM_JOB_",
    "SLURM_CPU",
    "PBS_JOBID",
    "LSB_JOBID",
];

/// Never written down, whatever the beginning.
const SECRET: [&str; 5] = ["TOKEN", "SECRET", "PASSWORD", "CREDENTIAL", "_KEY"];

/// What stays as it is while a sweep runs.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Setting {
    /// prun's version.
    pub prun: String,
    /// Name of the machine.
    pub host: String,
    /// Release of the kernel.
    pub kernel: String,
    /// Model of the first CPU.
    pub cpu: Option<String>,
    /// CPUs that prun may use, as the kernel lists them.
    pub cpus_allowed: Option<String>,
    /// Memory of the machine.
    pub memory_kib: Option<u64>,
    /// Models of the GPUs.
    pub gpus: Vec<String>,
    /// Version of their driver.
    pub gpu_driver: Option<String>,
    /// The directory in which the sweep was started.
    pub directory: PathBuf,
    /// What that directory's repository is at.
    pub git: Option<Git>,
    /// Variables that change how programs run.
    pub environment: BTreeMap<String, String>,
}

/// A working directory under git.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Git {
    /// The commit.
    pub commit: String,
    /// Its branch.
    pub branch: Option<String>,
    /// Files that differ from it.
    pub changed_files: usize,
}

/// What may change from one moment to the next.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Moment {
    /// The mean number of processes that wanted to run in the last minute.
    pub load: Option<f64>,
    /// CPU seconds that the whole machine has used since it started.
    pub busy_s: Option<f64>,
    /// Clock of the first CPU.
    pub mhz: Option<f64>,
    /// Who sets that clock.
    pub governor: Option<String>,
    /// How often CPUs were slowed down because of heat.
    pub throttled: Option<u64>,
    /// Links of GPUs and network cards.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub links: Vec<Link>,
    /// Clocks, temperatures and the like of NVIDIA GPUs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<GpuNow>,
}

/// A GPU at one moment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GpuNow {
    /// Its address.
    pub device: String,
    /// What it is doing.
    pub state: GpuState,
}

/// A PCIe link.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Link {
    /// The device's address.
    pub device: String,
    /// As the kernel words it, such as `16.0 GT/s PCIe`.
    pub speed: Option<String>,
    /// Lanes in use.
    pub width: Option<u32>,
    /// Errors that were corrected, since the machine started.
    pub aer_correctable: Option<u64>,
    /// Errors that were not.
    pub aer_uncorrectable: Option<u64>,
}

/// The file of a trial's program, so that a new build in the middle of a sweep is seen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProgramFile {
    /// Where it is.
    pub path: PathBuf,
    /// Its size.
    pub bytes: u64,
    /// When it was last changed, seconds since 1970.
    pub modified: i64,
}

impl Setting {
    /// Reads it, with `root` in front of `/proc` and `/sys`.
    pub fn read(root: &Path, inherited: &[(OsString, OsString)]) -> Setting {
        let uname = rustix::system::uname();
        let directory = std::env::current_dir().unwrap_or_default();
        Setting {
            prun: env!("CARGO_PKG_VERSION").into(),
            host: uname.nodename().to_string_lossy().into_owned(),
            kernel: uname.release().to_string_lossy().into_owned(),
            cpu: field(&root.join("proc/cpuinfo"), "model name"),
            cpus_allowed: field(&root.join("proc/self/status"), "Cpus_allowed_list"),
            memory_kib: field(&root.join("proc/meminfo"), "MemTotal")
                .and_then(|text| text.split(' ').next()?.parse().ok()),
            gpus: gpus(root),
            gpu_driver: line(&root.join("proc/driver/nvidia/version")),
            git: git(&directory),
            directory,
            environment: environment(inherited),
        }
    }
}

/// Reads [`Moment`]s. Which devices there are is looked up once.
#[derive(Debug)]
pub struct Watch {
    root: PathBuf,
    devices: Vec<PathBuf>,
    throttles: Vec<PathBuf>,
    driver: Option<Driver>,
}

/// The NVIDIA driver, asked on a thread of its own: with a broken GPU it may never answer.
#[derive(Debug)]
struct Driver {
    ask: Sender<()>,
    answers: Receiver<Vec<GpuNow>>,
    gave_up: Cell<bool>,
}

/// The first answer may take as long as the driver needs to wake GPUs.
const DRIVER_LIMIT: Duration = Duration::from_secs(10);

impl Driver {
    /// `None` where there is no driver.
    fn load(root: &Path) -> Option<Driver> {
        if !root.join("dev/nvidiactl").exists() {
            return None;
        }
        let (ask, asked) = channel();
        let (answer, answers) = channel();
        std::thread::Builder::new()
            .name("nvml".into())
            .spawn(move || {
                let nvml = nvml_wrapper::Nvml::init().ok();
                for () in asked {
                    let found = nvml.as_ref().map(|nvml| nvml::states(nvml, &|| false)).unwrap_or_default();
                    let now = found.into_iter().filter_map(|found| {
                        Some(GpuNow { device: found.gpu.address?.to_string(), state: found.gpu.state? })
                    });
                    if answer.send(now.collect()).is_err() {
                        break;
                    }
                }
            })
            .ok()?;
        Some(Driver { ask, answers, gave_up: Cell::new(false) })
    }

    fn now(&self) -> Vec<GpuNow> {
        if self.gave_up.get() || self.ask.send(()).is_err() {
            return Vec::new();
        }
        self.answers.recv_timeout(DRIVER_LIMIT).unwrap_or_else(|_| {
            self.gave_up.set(true);
            Vec::new()
        })
    }
}

impl Watch {
    /// With `root` in front of `/proc` and `/sys`.
    pub fn new(root: &Path) -> Watch {
        let watched = |device: &PathBuf| {
            let class = line(&device.join("class")).unwrap_or_default();
            // Display and compute (03, 12), Ethernet and InfiniBand (02).
            ["0x03", "0x12", "0x02"].iter().any(|beginning| class.starts_with(beginning))
                && device.join("current_link_speed").exists()
        };
        let throttles = entries(&root.join("sys/devices/system/cpu"))
            .into_iter()
            .map(|cpu| cpu.join("thermal_throttle/core_throttle_count"))
            .filter(|path| path.exists())
            .collect();
        Watch {
            root: root.into(),
            devices: entries(&root.join("sys/bus/pci/devices")).into_iter().filter(watched).collect(),
            throttles,
            driver: Driver::load(root),
        }
    }

    /// How it is now.
    pub fn now(&self) -> Moment {
        let frequency = self.root.join("sys/devices/system/cpu/cpu0/cpufreq");
        let throttles = self.throttles.iter().map(|path| line(path)?.parse::<u64>().ok());
        Moment {
            load: line(&self.root.join("proc/loadavg")).and_then(|text| text.split(' ').next()?.parse().ok()),
            busy_s: line(&self.root.join("proc/stat")).and_then(|text| busy_seconds(&text)),
            mhz: line(&frequency.join("scaling_cur_freq"))
                .and_then(|khz| khz.parse::<f64>().ok())
                .map(|khz| khz / 1000.0),
            governor: line(&frequency.join("scaling_governor")),
            throttled: if self.throttles.is_empty() { None } else { throttles.sum() },
            links: self.devices.iter().map(|device| link(device)).collect(),
            gpus: self.driver.as_ref().map(Driver::now).unwrap_or_default(),
        }
    }
}

/// `cpu  user nice system idle iowait irq softirq steal …`, in hundredths of a second.
fn busy_seconds(text: &str) -> Option<f64> {
    let fields: Vec<u64> =
        text.strip_prefix("cpu ")?.split_whitespace().map_while(|field| field.parse().ok()).collect();
    let busy = [0, 1, 2, 5, 6].iter().map(|&at| fields.get(at)).sum::<Option<u64>>()?;
    Some(busy as f64 / 100.0)
}

fn link(device: &Path) -> Link {
    let total = |name: &str, row: &str| {
        let text = fs::read_to_string(device.join(name)).ok()?;
        text.lines().find_map(|line| line.strip_prefix(row)?.trim().parse::<u64>().ok())
    };
    let fatal = total("aer_dev_fatal", "TOTAL_ERR_FATAL");
    let nonfatal = total("aer_dev_nonfatal", "TOTAL_ERR_NONFATAL");
    Link {
        device: device.file_name().unwrap_or_default().to_string_lossy().into_owned(),
        speed: line(&device.join("current_link_speed")).filter(|speed| !speed.starts_with("Unknown")),
        width: line(&device.join("current_link_width"))
            .and_then(|width| width.parse().ok())
            .filter(|&width| width > 0 && width < 64),
        aer_correctable: total("aer_dev_correctable", "TOTAL_ERR_COR"),
        aer_uncorrectable: fatal.zip(nonfatal).map(|(fatal, nonfatal)| fatal + nonfatal),
    }
}

impl ProgramFile {
    /// Looks the program up as a shell would.
    pub fn find(name: &Path) -> Option<ProgramFile> {
        let path = if name.as_os_str().as_encoded_bytes().contains(&b'/') {
            name.to_owned()
        } else {
            let paths = std::env::var_os("PATH")?;
            std::env::split_paths(&paths).map(|directory| directory.join(name)).find(|path| path.is_file())?
        };
        let about = fs::metadata(&path).ok()?;
        Some(ProgramFile { path, bytes: about.len(), modified: about.mtime() })
    }
}

fn gpus(root: &Path) -> Vec<String> {
    let mut gpus = entries(&root.join("proc/driver/nvidia/gpus"));
    gpus.sort();
    gpus.iter().filter_map(|gpu| field(&gpu.join("information"), "Model")).collect()
}

fn git(directory: &Path) -> Option<Git> {
    let ask = |words: &[&str]| {
        let answer = Command::new("git")
            .arg("-C")
            .arg(directory)
            .args(words)
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .output()
            .ok()?;
        answer.status.success().then(|| String::from_utf8_lossy(&answer.stdout).trim().to_owned())
    };
    let commit = ask(&["rev-parse", "HEAD"])?;
    let changed = ask(&["--no-optional-locks", "status", "--porcelain", "--untracked-files=no"]).unwrap_or_default();
    Some(Git {
        commit,
        branch: ask(&["symbolic-ref", "--short", "-q", "HEAD"]),
        changed_files: changed.lines().count(),
    })
}

fn environment(inherited: &[(OsString, OsString)]) -> BTreeMap<String, String> {
    let matters = |name: &str| {
        BEGINNINGS.iter().any(|beginning| name.starts_with(beginning))
            && !SECRET.iter().any(|secret| name.to_uppercase().contains(secret))
    };
    let texts =
        inherited.iter().filter_map(|(name, value)| Some((name.to_str()?, value.to_string_lossy().into_owned())));
    texts.filter(|(name, _)| matters(name)).map(|(name, value)| (name.to_owned(), value)).collect()
}

fn entries(directory: &Path) -> Vec<PathBuf> {
    let mut entries: Vec<PathBuf> =
        fs::read_dir(directory).map(|all| all.flatten().map(|entry| entry.path()).collect()).unwrap_or_default();
    entries.sort();
    entries
}

/// The first line of a file, without blanks around it.
fn line(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    text.lines().next().map(|line| line.trim().to_owned()).filter(|line| !line.is_empty())
}

/// What stands behind `name:`.
fn field(path: &Path, name: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.trim_start().strip_prefix(':'))?;
    Some(value.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_with_its_errors_is_read_and_the_unknown_stays_unknown() {
        let root = std::env::temp_dir().join(format!("prun-test-links-{}", std::process::id()));
        let device = |name: &str, files: &[(&str, &str)]| {
            let path = root.join("sys/bus/pci/devices").join(name);
            fs::create_dir_all(&path).unwrap();
            files.iter().for_each(|(file, text)| fs::write(path.join(file), text).unwrap());
        };
        device(
            "0000:01:00.0",
            &[
                ("class", "0x030200\n"),
                ("current_link_speed", "16.0 GT/s PCIe\n"),
                ("current_link_width", "8\n"),
                ("aer_dev_correctable", "RxErr 3\nBadTLP 1\nTOTAL_ERR_COR 4\n"),
                ("aer_dev_fatal", "TOTAL_ERR_FATAL 0\n"),
                ("aer_dev_nonfatal", "TOTAL_ERR_NONFATAL 2\n"),
            ],
        );
        device(
            "0000:02:00.0",
            &[("class", "0x020000\n"), ("current_link_speed", "Unknown speed\n"), ("current_link_width", "255\n")],
        );
        device("0000:03:00.0", &[("class", "0x060400\n"), ("current_link_speed", "8.0 GT/s PCIe\n")]);
        let links = Watch::new(&root).now().links;
        fs::remove_dir_all(&root).unwrap();
        assert_eq!(links.len(), 2);
        let good = Link {
            device: "0000:01:00.0".into(),
            speed: Some("16.0 GT/s PCIe".into()),
            width: Some(8),
            aer_correctable: Some(4),
            aer_uncorrectable: Some(2),
        };
        assert_eq!(links[0], good);
        let unknown = Link {
            device: "0000:02:00.0".into(),
            speed: None,
            width: None,
            aer_correctable: None,
            aer_uncorrectable: None,
        };
        assert_eq!(links[1], unknown);
    }

    #[test]
    fn this_machine_can_be_read() {
        let root = Path::new("/");
        let now = Watch::new(root).now();
        assert!(now.load.is_some() && now.busy_s.is_some_and(|busy| busy > 0.0));
        let names = [("NCCL_ALGO", "ring"), ("HF_TOKEN", "x"), ("NCCL_SECRET", "x"), ("HOME", "/")];
        let inherited: Vec<_> =
            names.iter().map(|(name, value)| (OsString::from(name), OsString::from(value))).collect();
        let setting = Setting::read(root, &inherited);
        assert_eq!(setting.environment.keys().collect::<Vec<_>>(), ["NCCL_ALGO"]);
        assert!(setting.cpus_allowed.is_some() && !setting.kernel.is_empty());
        assert!(ProgramFile::find(Path::new("sh")).is_some() && ProgramFile::find(Path::new("/not/there")).is_none());
    }

    #[test]
    fn busy_time_is_without_idle_and_waiting() {
        assert_eq!(busy_seconds("cpu  100 20 30 9999 888 5 5 7 0 0"), Some(1.6));
        assert_eq!(busy_seconds("intr 5"), None);
    }
}
