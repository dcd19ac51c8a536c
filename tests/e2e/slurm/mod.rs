//! A real Slurm for one test: munged, slurmctld and slurmd in a scratch directory, on ports of their own, ended with it.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tests::Scratch;

/// How long Slurm may take for anything it does; it looks at time limits every 30 s.
const SLOW: Duration = Duration::from_secs(55);

/// A controller and one node of 8 CPUs, whatever the machine has.
pub struct Slurm {
    directory: Scratch,
    daemons: Vec<Child>,
}

impl Slurm {
    /// Starts it and waits until it takes jobs. Panics with the daemons' own words if it does not.
    pub fn start() -> Slurm {
        let directory = Scratch::new();
        let path = directory.path().to_owned();
        for part in ["state", "spool"] {
            fs::create_dir(path.join(part)).expect("a writable scratch directory");
        }
        let key: Vec<u8> = (0..1024).map(|at: u32| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        directory.file("munge.key", &key, 0o400);
        directory.file("slurm.conf", configuration(&path).as_bytes(), 0o600);
        let mut slurm = Slurm { directory, daemons: Vec::new() };
        let at = |name: &str| path.join(name).display().to_string();
        let option = |name: &str, file: &str| format!("--{name}={}", at(file));
        slurm.daemon(&[
            "munged",
            "--force",
            "--foreground",
            &option("socket", "munge.sock"),
            &option("key-file", "munge.key"),
            &option("log-file", "munged.log"),
            &option("pid-file", "munged.pid"),
            &option("seed-file", "munge.seed"),
        ]);
        slurm.until("munged listens", |slurm| slurm.directory.join("munge.sock").exists().then_some(()));
        slurm.daemon(&["slurmctld", "-D", "-f", &at("slurm.conf")]);
        slurm.daemon(&["slurmd", "-D", "-N", "n0", "-f", &at("slurm.conf")]);
        slurm.until("the node is idle", |slurm| {
            slurm.says(&["sinfo", "-h", "-o", "%T"]).trim().eq("idle").then_some(())
        });
        slurm
    }

    /// It dies with the test, even of SIGKILL.
    fn daemon(&mut self, words: &[&str]) {
        let output = fs::File::create(self.directory.join(format!("{}.out", words[0]))).expect("a file");
        let errors = output.try_clone().expect("a descriptor");
        let mut command = Command::new("setpriv");
        command
            .args(["--pdeathsig", "KILL"])
            .args(words)
            .env("SLURM_CONF", self.directory.join("slurm.conf"))
            .env("PATH", path());
        let started = command.stdin(Stdio::null()).stdout(output).stderr(errors).spawn();
        self.daemons.push(started.unwrap_or_else(|error| {
            panic!(
                "cannot start {}: {error}; tests/packages.sh installs slurmctld, slurmd, slurm-client and munge",
                words[0]
            )
        }));
    }

    /// A directory for jobs' files.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// A command of Slurm's, or any that finds it, in the scratch directory.
    pub fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(words[0]);
        command
            .args(&words[1..])
            .env("SLURM_CONF", self.directory.join("slurm.conf"))
            .env("PRUN", tests::built("prun"))
            .current_dir(self.path());
        for (name, _) in
            std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("SLURM_") && name != "SLURM_CONF")
        {
            command.env_remove(name);
        }
        command.stdin(Stdio::null());
        command
    }

    /// What a command prints on stdout.
    pub fn says(&self, words: &[&str]) -> String {
        let output = self
            .command(words)
            .output()
            .unwrap_or_else(|error| panic!("{words:?}: {error}; tests/packages.sh installs it"));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Submits and gives the job's number.
    pub fn submit(&self, words: &[&str]) -> String {
        let output = self.command(&[&["sbatch", "--parsable"], words].concat()).output().expect("sbatch");
        let id = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        assert!(
            output.status.success() && !id.is_empty(),
            "sbatch {words:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        id
    }

    /// A field of `scontrol show job`.
    pub fn field(&self, job: &str, name: &str) -> String {
        let text = self.says(&["scontrol", "show", "job", job]);
        let wanted = format!("{name}=");
        text.split_whitespace().find_map(|pair| pair.strip_prefix(&wanted)).unwrap_or_default().to_owned()
    }

    /// Waits for the end of a job: its state and its exit code as Slurm writes it (code:signal).
    pub fn ended(&self, job: &str) -> (String, String) {
        let over = |state: &str| !["PENDING", "RUNNING", "COMPLETING", "CONFIGURING", ""].contains(&state);
        self.until(&format!("job {job} is over"), |slurm| {
            Some(slurm.field(job, "JobState")).filter(|state| over(state))
        });
        (self.field(job, "JobState"), self.field(job, "ExitCode"))
    }

    /// The text of a job's file, once it holds `text`.
    pub fn file_with(&self, name: &str, text: &str) -> String {
        self.until(&format!("{name} holds {text:?}"), |slurm| {
            let found = fs::read_to_string(slurm.directory.join(name)).unwrap_or_default();
            found.contains(text).then_some(found)
        })
    }

    /// Panics with the logs if it takes too long.
    pub fn until<T>(&self, what: &str, attempt: impl FnMut(&Slurm) -> Option<T>) -> T {
        self.until_after(SLOW, what, attempt)
    }

    /// The same with another patience.
    pub fn until_after<T>(&self, patience: Duration, what: &str, mut attempt: impl FnMut(&Slurm) -> Option<T>) -> T {
        let deadline = Instant::now() + patience;
        loop {
            if let Some(found) = attempt(self) {
                return found;
            }
            if Instant::now() > deadline {
                panic!("waited in vain until {what}\n{}\n{}", self.says(&["squeue", "-a"]), self.logs());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn logs(&self) -> String {
        let mut text = String::new();
        for name in ["munged.out", "slurmctld.out", "slurmd.out"] {
            let log = fs::read_to_string(self.directory.join(name)).unwrap_or_default();
            let lines: Vec<&str> = log.lines().collect();
            text.push_str(&format!("--- {name}\n{}\n", lines[lines.len().saturating_sub(15)..].join("\n")));
        }
        text
    }
}

impl Drop for Slurm {
    fn drop(&mut self) {
        for words in [&["scancel", "--me"][..], &["scancel", "--signal=KILL", "--full", "--me"]] {
            let _ = self.command(words).stderr(Stdio::null()).status();
        }
        let patience = Instant::now() + Duration::from_secs(3);
        while Instant::now() < patience && !self.says(&["squeue", "-h"]).trim().is_empty() {
            std::thread::sleep(Duration::from_millis(50));
        }
        for daemon in self.daemons.iter_mut().rev() {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
        // Whatever of Slurm or of a job is left has its configuration in its environment.
        let wanted = format!("SLURM_CONF={}", self.directory.join("slurm.conf").display());
        let processes = fs::read_dir("/proc")
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        let ours = |pid: &i32| tests::environment(*pid).iter().any(|entry| entry == wanted.as_bytes());
        processes.filter(ours).for_each(tests::kill_now);
    }
}

/// Daemons lie where a user's PATH may not reach.
fn path() -> String {
    format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default())
}

fn configuration(directory: &Path) -> String {
    let directory = directory.display();
    let host = fs::read_to_string("/proc/sys/kernel/hostname").expect("a host has a name");
    let host = host.trim().split('.').next().unwrap_or_default().to_owned();
    let user = String::from_utf8(Command::new("id").arg("-un").output().expect("id").stdout).expect("a name");
    let user = user.trim();
    let [controller, node] = free_ports();
    format!(
        "ClusterName=test\nSlurmctldHost={host}(127.0.0.1)\nSlurmctldPort={controller}\nSlurmdPort={node}\n\
         AuthType=auth/munge\nAuthInfo=socket={directory}/munge.sock\nSlurmUser={user}\nSlurmdUser={user}\n\
         StateSaveLocation={directory}/state\nSlurmdSpoolDir={directory}/spool\n\
         SlurmctldPidFile={directory}/slurmctld.pid\nSlurmdPidFile={directory}/slurmd.pid\n\
         ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\nSwitchType=switch/none\nMpiDefault=none\n\
         SelectType=select/cons_tres\nSelectTypeParameters=CR_CPU\nSlurmdParameters=config_overrides\n\
         SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,sched_interval=1\nReturnToService=2\n\
         KillWait=5\nMailProg=/bin/true\n\
         NodeName=n0 NodeHostname={host} NodeAddr=127.0.0.1 CPUs=8 State=UNKNOWN\n\
         PartitionName=test Nodes=n0 Default=YES MaxTime=INFINITE State=UP\n"
    )
}

/// Both are open at once, so that they differ.
fn free_ports() -> [u16; 2] {
    let listeners = [0, 1].map(|_| TcpListener::bind(("127.0.0.1", 0)).expect("a free port"));
    listeners.each_ref().map(|listener| listener.local_addr().expect("bound").port())
}

/// A script of `examples/batch`.
pub fn example(name: &str) -> String {
    let path: PathBuf = [env!("CARGO_MANIFEST_DIR"), "..", "examples", "batch", name].iter().collect();
    path.display().to_string()
}
