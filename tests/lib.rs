//! Starts prun the way a user does and looks at the whole machine afterwards.
//!
//! Every job gets a mark in its environment and, where the machine allows it, a cgroup of the test's own to live
//! in. Whatever process carries the mark or sits below that cgroup belongs to the job, wherever it has hidden, so
//! "nothing is left" is looked up and not believed.

mod home;
mod terminal;

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use home::Home;
pub use terminal::{Screen, Terminal};

/// No wait in any test is longer; a job that takes this long hangs.
pub const HANG: Duration = Duration::from_secs(60);

/// How long a job's last process may take to go once prun is gone: far more than the second it takes.
pub const LEFT_LIMIT: Duration = Duration::from_secs(30);

/// The variable that carries a job's mark.
const MARK: &str = "PRUN_TEST_MARK";

/// A program built by this workspace, beside the running test.
pub fn built(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("the running test has a path");
    let directory = test.parent().and_then(Path::parent).expect("target/<profile>/deps/<test>");
    let path = directory.join(name);
    assert!(path.exists(), "{} is not built: run `cargo build --workspace` first (make test does)", path.display());
    path
}

/// A directory of one test, removed at its end.
#[derive(Debug)]
pub struct Scratch(PathBuf);

impl Scratch {
    /// A new, empty directory.
    pub fn new() -> Scratch {
        let path = std::env::temp_dir().join(format!("prun-test-{}", new_mark()));
        fs::create_dir(&path).expect("a writable temp directory");
        Scratch(path)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Writes a file with this mode and gives its path.
    ///
    /// Another process writes it: a descriptor of ours might be inherited for a moment by what another test starts
    /// just then, and a file that somebody has open for writing cannot be executed.
    pub fn file(&self, name: &str, content: &[u8], mode: u32) -> PathBuf {
        let path = self.0.join(name);
        let mut writer =
            Command::new("sh").args(["-c", "cat > \"$0\""]).arg(&path).stdin(Stdio::piped()).spawn().expect("sh");
        writer.stdin.take().expect("piped").write_all(content).expect("sh reads");
        assert!(writer.wait().expect("our child").success(), "a writable scratch directory");
        fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(mode)).expect("our own file");
        path
    }

    /// A path in it.
    pub fn join(&self, name: impl AsRef<Path>) -> PathBuf {
        self.0.join(name)
    }

    /// The text of a file in it.
    pub fn read(&self, name: impl AsRef<Path>) -> String {
        let path = self.0.join(name);
        let bytes = fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Writes an executable shell script and gives its path.
    pub fn script(&self, name: &str, body: &str) -> PathBuf {
        self.file(name, format!("#!/bin/sh\n{body}\n").as_bytes(), 0o755)
    }
}

impl Default for Scratch {
    fn default() -> Scratch {
        Scratch::new()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A prun command line in the making.
#[derive(Debug)]
pub struct Prun {
    options: Vec<OsString>,
    program: Vec<OsString>,
    env: Vec<(OsString, Option<OsString>)>,
    stdin: Input,
    dir: Option<PathBuf>,
    wrapper: Vec<OsString>,
    own_cgroup: bool,
}

#[derive(Debug)]
enum Input {
    Null,
    Bytes(Vec<u8>),
    Given(Stdio),
}

impl Default for Prun {
    fn default() -> Prun {
        Prun::new()
    }
}

impl Prun {
    /// `prun`, with nothing on standard input.
    pub fn new() -> Prun {
        Prun {
            options: Vec::new(),
            program: Vec::new(),
            env: Vec::new(),
            stdin: Input::Null,
            dir: None,
            wrapper: Vec::new(),
            own_cgroup: true,
        }
    }

    /// `-n`.
    pub fn ranks(self, ranks: u32) -> Prun {
        self.option("-n").option(ranks.to_string())
    }

    /// One argument before the program.
    pub fn option(mut self, option: impl Into<OsString>) -> Prun {
        self.options.push(option.into());
        self
    }

    /// Several arguments before the program.
    pub fn options<T: Into<OsString>>(mut self, options: impl IntoIterator<Item = T>) -> Prun {
        self.options.extend(options.into_iter().map(Into::into));
        self
    }

    /// The program and its arguments.
    pub fn program<T: Into<OsString>>(mut self, program: impl IntoIterator<Item = T>) -> Prun {
        self.program = program.into_iter().map(Into::into).collect();
        self
    }

    /// `sh -c SCRIPT` as the program.
    pub fn sh(self, script: impl Into<OsString>) -> Prun {
        self.program([OsString::from("sh"), OsString::from("-c"), script.into()])
    }

    /// A variable in prun's environment.
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Prun {
        self.env.push((name.into(), Some(value.into())));
        self
    }

    /// A variable that prun's environment lacks.
    pub fn without_env(mut self, name: impl Into<OsString>) -> Prun {
        self.env.push((name.into(), None));
        self
    }

    /// Bytes on standard input, through a pipe.
    pub fn stdin_bytes(mut self, bytes: impl Into<Vec<u8>>) -> Prun {
        self.stdin = Input::Bytes(bytes.into());
        self
    }

    /// An open file (or anything) as standard input.
    pub fn stdin(mut self, stdin: impl Into<Stdio>) -> Prun {
        self.stdin = Input::Given(stdin.into());
        self
    }

    /// prun's working directory.
    pub fn dir(mut self, dir: impl Into<PathBuf>) -> Prun {
        self.dir = Some(dir.into());
        self
    }

    /// A command to put before `prun`, such as `nohup` or `taskset -c 0`.
    pub fn under<T: Into<OsString>>(mut self, wrapper: impl IntoIterator<Item = T>) -> Prun {
        self.wrapper = wrapper.into_iter().map(Into::into).collect();
        self
    }

    /// prun runs where it cannot make a cgroup for its job, as on many machines: only process groups, subreapers and
    /// death signals are left to find what hides. Needs root to be any different.
    pub fn without_cgroup(self) -> Prun {
        if !may_mount() {
            return self;
        }
        let mut wrapper = self.wrapper.clone();
        wrapper.extend(
            ["unshare", "-m", "sh", "-c", "mount -t tmpfs none /sys/fs/cgroup && exec \"$@\"", "sh"]
                .map(OsString::from),
        );
        Prun { wrapper, ..self }
    }

    /// The test puts prun into no cgroup, so that the very first process is prun.
    pub fn bare(self) -> Prun {
        Prun { own_cgroup: false, ..self }
    }

    /// The command, for a test that starts it in a way of its own; and its mark.
    pub fn command(&self) -> (Command, String) {
        let mark = new_mark();
        (self.command_in(&mark, None, &[]), mark)
    }

    /// With `home`, the command joins that cgroup first.
    fn command_in(&self, mark: &str, home: Option<&Home>, starter: &[OsString]) -> Command {
        let home = home.map_or_else(Vec::new, Home::joining);
        let mut words = home
            .into_iter()
            .chain(starter.iter().cloned())
            .chain(self.wrapper.iter().cloned())
            .chain([built("prun").into_os_string()]);
        let mut command = Command::new(words.next().expect("at least prun"));
        command.args(words).args(&self.options).args(&self.program).env(MARK, mark);
        for name in ["PRUN_RANK", "PRUN_JOB_ID", "RUST_LOG"] {
            command.env_remove(name);
        }
        for (name, value) in &self.env {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        if let Some(dir) = &self.dir {
            command.current_dir(dir);
        }
        command
    }

    /// Starts it on a terminal of its own, as a shell with job control does.
    pub fn start_on_terminal(self) -> (Running, Terminal) {
        let mark = new_mark();
        let home = self.own_cgroup.then(|| Home::new(&mark)).flatten();
        let mut command = self.command_in(&mark, home.as_ref(), &["setsid".into(), "--ctty".into()]);
        let before = Before::now();
        command.env("TMPDIR", before.temporary.path());
        let (terminal, slave) = Terminal::open();
        let copy = || slave.try_clone().expect("a descriptor");
        command.stdin(copy()).stdout(copy()).stderr(slave);
        let started = Instant::now();
        let child = command.spawn().expect("prun starts");
        let seen = Collected::from(terminal.reader());
        (Running { child, stdout: seen.clone(), stderr: seen, mark, started, before, home }, terminal)
    }

    /// Starts it.
    pub fn start(self) -> Running {
        let mark = new_mark();
        let home = self.own_cgroup.then(|| Home::new(&mark)).flatten();
        let mut command = self.command_in(&mark, home.as_ref(), &[]);
        let before = Before::now();
        command.env("TMPDIR", before.temporary.path());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let bytes = match self.stdin {
            Input::Null => {
                command.stdin(Stdio::null());
                None
            }
            Input::Given(stdin) => {
                command.stdin(stdin);
                None
            }
            Input::Bytes(bytes) => {
                command.stdin(Stdio::piped());
                Some(bytes)
            }
        };
        let started = Instant::now();
        let mut child = command.spawn().expect("prun starts");
        if let (Some(mut stdin), Some(bytes)) = (child.stdin.take(), bytes) {
            // The rank may stop reading early: then the rest is not wanted.
            thread::spawn(move || stdin.write_all(&bytes));
        }
        let stdout = Collected::from(child.stdout.take().expect("piped"));
        let stderr = Collected::from(child.stderr.take().expect("piped"));
        Running { child, stdout, stderr, mark, started, before, home }
    }

    /// Starts it, waits for its end and looks for leftovers.
    pub fn run(self) -> Ended {
        self.start().wait()
    }
}

/// What a reader thread has collected so far.
#[derive(Debug, Clone)]
struct Collected(Arc<(Mutex<Stream>, Condvar)>);

/// The bytes, and whether the stream has ended.
type Stream = (Vec<u8>, bool);

impl Collected {
    fn from(mut source: impl Read + Send + 'static) -> Collected {
        let collected = Collected(Arc::new((Mutex::new((Vec::new(), false)), Condvar::new())));
        let writer = collected.clone();
        thread::spawn(move || {
            let mut buffer = vec![0; 64 << 10];
            loop {
                let count = source.read(&mut buffer).unwrap_or(0);
                let (lock, changed) = &*writer.0;
                let mut state = lock.lock().expect("no reader panics");
                state.0.extend_from_slice(&buffer[..count]);
                state.1 = count == 0;
                changed.notify_all();
                if count == 0 {
                    return;
                }
            }
        });
        collected
    }

    /// Waits until `enough` says so, or the end of the stream; panics after [`HANG`].
    fn wait_until(&self, what: &str, enough: impl Fn(&[u8]) -> bool) -> Vec<u8> {
        let (lock, changed) = &*self.0;
        let deadline = Instant::now() + HANG;
        let mut state = lock.lock().expect("no reader panics");
        while !enough(&state.0) {
            assert!(!state.1, "the stream ended before {what}; it held:\n{}", String::from_utf8_lossy(&state.0));
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(
                !left.is_zero(),
                "no {what} within {HANG:?}; the stream held:\n{}",
                String::from_utf8_lossy(&state.0)
            );
            state = changed.wait_timeout(state, left).expect("no reader panics").0;
        }
        state.0.clone()
    }

    fn so_far(&self) -> Vec<u8> {
        self.0.0.lock().expect("no reader panics").0.clone()
    }

    fn whole(&self) -> Vec<u8> {
        let (lock, changed) = &*self.0;
        let deadline = Instant::now() + HANG;
        let mut state = lock.lock().expect("no reader panics");
        while !state.1 {
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "somebody still holds prun's output open after {HANG:?}");
            state = changed.wait_timeout(state, left).expect("no reader panics").0;
        }
        state.0.clone()
    }
}

/// A prun that runs.
#[derive(Debug)]
pub struct Running {
    child: Child,
    stdout: Collected,
    stderr: Collected,
    mark: String,
    started: Instant,
    before: Before,
    home: Option<Home>,
}

/// The places where jobs of other launchers leave things: shared memory, and the temp directory, which is the job's
/// own here.
#[derive(Debug, Clone)]
struct Before {
    shared_memory: BTreeSet<OsString>,
    temporary: Arc<Scratch>,
}

impl Before {
    fn now() -> Before {
        Before { shared_memory: shared_memory(), temporary: Arc::new(Scratch::new()) }
    }

    #[track_caller]
    fn assert_nothing_new(&self) {
        let ours = |name: &&OsString| {
            let text = name.to_string_lossy().to_lowercase();
            ["prun", "rankd", "libcomm"].iter().any(|part| text.contains(part))
        };
        let now = shared_memory();
        let left: Vec<_> = now.difference(&self.shared_memory).filter(ours).collect();
        assert!(left.is_empty(), "left in /dev/shm: {left:?}");
        let left = names_in(self.temporary.path());
        assert!(left.is_empty(), "left in the temp directory: {left:?}");
    }
}

impl Running {
    /// prun's process id.
    pub fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).expect("a pid")
    }

    /// The job's mark.
    pub fn mark(&self) -> &str {
        &self.mark
    }

    /// Sends prun a signal.
    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.pid()), signal).expect("prun is ours");
    }

    /// Sends prun a signal by its number, real-time ones too.
    pub fn signal_number(&self, number: i32) {
        let sent = Command::new("sh").args(["-c", &format!("kill -{number} {}", self.pid())]).status().expect("sh");
        assert!(sent.success());
    }

    /// Waits until prun's stdout holds `text` `count` times.
    pub fn expect_output(&self, text: &str, count: usize) {
        self.stdout.wait_until(&format!("{count} × {text:?}"), |bytes| occurrences(bytes, text.as_bytes()) >= count);
    }

    /// Waits until prun's stderr holds `text`.
    pub fn expect_message(&self, text: &str) {
        self.stderr.wait_until(&format!("{text:?}"), |bytes| occurrences(bytes, text.as_bytes()) > 0);
    }

    /// What came on stderr so far.
    pub fn messages_so_far(&self) -> String {
        String::from_utf8_lossy(&self.stderr.so_far()).into_owned()
    }

    /// What came on stdout so far.
    pub fn output_so_far(&self) -> String {
        String::from_utf8_lossy(&self.stdout.so_far()).into_owned()
    }

    /// Processes of the job (prun, its helpers and the ranks with all that they started) with this name.
    pub fn processes(&self, name: &str) -> Vec<i32> {
        self.all().into_iter().filter(|&pid| name_of(pid).as_deref() == Some(name)).collect()
    }

    /// Every living process of the job.
    pub fn all(&self) -> Vec<i32> {
        everything(&self.mark, self.home.as_ref())
    }

    /// The process of prun's own between it and rankd.
    pub fn keeper(&self) -> i32 {
        self.process("prun-keeper")
    }

    /// The daemon that starts the ranks.
    pub fn rankd(&self) -> i32 {
        self.process("rankd")
    }

    /// The one process with this name; waits for it.
    pub fn process(&self, name: &str) -> i32 {
        eventually(&format!("a process {name}"), || self.processes(name).first().copied())
    }

    /// The process of a rank: the one that rankd started with this `PRUN_RANK`.
    pub fn rank(&self, rank: u32) -> i32 {
        let rankd = self.process("rankd");
        let wanted = format!("PRUN_RANK={rank}");
        eventually(&format!("rank {rank}"), || {
            self.all().into_iter().find(|&pid| {
                parent_of(pid) == Some(rankd) && environment(pid).iter().any(|entry| entry == wanted.as_bytes())
            })
        })
    }

    /// Whether prun has ended.
    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("prun is ours").is_some()
    }

    /// Waits for prun's end, checks that nothing is left, and gives what it said. Panics after [`HANG`].
    pub fn wait(self) -> Ended {
        let mark = self.mark.clone();
        let before = self.before.clone();
        let home = self.home.clone();
        let ended = self.wait_unchecked();
        assert_left_nothing(&mark, home.as_ref(), &ended.err());
        before.assert_nothing_new();
        ended
    }

    /// Waits for prun's end only.
    ///
    /// Where prun was killed its helpers may still be at work; [`wait`](Running::wait) looks for their end too.
    pub fn wait_unchecked(mut self) -> Ended {
        let status = self.wait_for_exit();
        let took = self.started.elapsed();
        let (stdout, stderr) = (self.stdout.whole(), self.stderr.whole());
        Ended { status, stdout, stderr, took, mark: self.mark.clone() }
    }

    fn wait_for_exit(&mut self) -> ExitStatus {
        let deadline = Instant::now() + HANG;
        loop {
            if let Some(status) = self.child.try_wait().expect("prun is ours") {
                return status;
            }
            if Instant::now() >= deadline {
                let processes: Vec<_> = self.all().into_iter().map(|pid| (pid, name_of(pid), state_of(pid))).collect();
                let said = String::from_utf8_lossy(&self.stderr.so_far()).into_owned();
                panic!("prun hangs; its processes: {processes:?}; it said: {said}");
            }
            thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Running {
    /// A test that failed in the middle leaves no job running either.
    fn drop(&mut self) {
        if thread::panicking() {
            self.all().into_iter().for_each(kill_now);
        }
    }
}

/// A prun that has ended.
#[derive(Debug)]
pub struct Ended {
    status: ExitStatus,
    /// All of prun's stdout.
    pub stdout: Vec<u8>,
    /// All of prun's stderr.
    pub stderr: Vec<u8>,
    /// From its start to its end.
    pub took: Duration,
    /// The job's mark.
    pub mark: String,
}

impl Ended {
    /// The exit code; a signal that killed prun itself counts as 1000 + its number, so that it equals nothing.
    pub fn code(&self) -> i32 {
        self.status.code().unwrap_or_else(|| 1000 + self.status.signal().unwrap_or(0))
    }

    /// stdout as text.
    pub fn out(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// stderr as text.
    pub fn err(&self) -> String {
        String::from_utf8_lossy(&self.stderr).into_owned()
    }

    /// stdout's lines, sorted, since ranks write in any order.
    pub fn sorted_lines(&self) -> Vec<String> {
        let mut lines: Vec<String> = self.out().lines().map(str::to_owned).collect();
        lines.sort();
        lines
    }

    /// Panics with everything that was said unless the exit code is `code`.
    #[track_caller]
    pub fn expect_code(&self, code: i32) -> &Ended {
        assert_eq!(self.code(), code, "stdout:\n{}\nstderr:\n{}", self.out(), self.err());
        self
    }

    /// Panics with everything that was said unless stderr holds `text`.
    #[track_caller]
    pub fn expect_message(&self, text: &str) -> &Ended {
        assert!(self.err().contains(text), "stderr does not say {text:?}:\n{}", self.err());
        self
    }
}

/// SIGKILL; no complaint if it is gone.
pub fn kill_now(pid: i32) {
    let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
}

/// Whether a process with this number lives (a zombie does not).
pub fn lives(pid: i32) -> bool {
    state_of(pid).is_some_and(|state| state != 'Z' && state != 'X')
}

/// Whether mount namespaces can be made here.
pub fn may_mount() -> bool {
    static ANSWER: OnceLock<bool> = OnceLock::new();
    *ANSWER.get_or_init(|| succeeds(&["unshare", "-m", "mount", "-t", "tmpfs", "none", "/mnt"]))
}

/// Whether cgroups can be made here.
pub fn may_make_cgroups() -> bool {
    Home::new(&new_mark()).is_some()
}

/// Whether pid namespaces can be made here.
pub fn may_make_pid_namespaces() -> bool {
    static ANSWER: OnceLock<bool> = OnceLock::new();
    *ANSWER.get_or_init(|| succeeds(&["unshare", "-Upf", "--mount-proc", "true"]))
}

/// Whether a command ends with 0.
pub fn succeeds(words: &[&str]) -> bool {
    let status = Command::new(words[0])
        .args(&words[1..])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    status.is_ok_and(|status| status.success())
}

/// A mark that no other job has.
pub fn new_mark() -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    format!("{}-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed), Instant::now().elapsed().as_nanos())
}

/// Living processes (no zombies) whose environment carries `mark`.
pub fn marked(mark: &str) -> Vec<i32> {
    let wanted = format!("{MARK}={mark}");
    let pids = fs::read_dir("/proc")
        .expect("/proc")
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|&pid| {
        pid != std::process::id() as i32 && environment(pid).iter().any(|entry| entry == wanted.as_bytes())
    })
    .collect()
}

/// Processes that carry the mark or live in the job's cgroup.
fn everything(mark: &str, home: Option<&Home>) -> Vec<i32> {
    let mut pids = marked(mark);
    pids.extend(home.map_or_else(Vec::new, Home::members));
    pids.sort_unstable();
    pids.dedup();
    pids
}

/// Waits until no process carries `mark`; panics with their names after [`LEFT_LIMIT`].
#[track_caller]
pub fn assert_nothing_left(mark: &str) {
    assert_left_nothing(mark, None, "");
}

/// Waits until the job has neither a process nor a cgroup of its own; panics with what is left after [`LEFT_LIMIT`].
#[track_caller]
fn assert_left_nothing(mark: &str, home: Option<&Home>, said: &str) {
    let deadline = Instant::now() + LEFT_LIMIT;
    loop {
        let left = everything(mark, home);
        let cgroups = home.map_or_else(Vec::new, Home::children);
        if left.is_empty() && cgroups.is_empty() {
            if let Some(home) = home {
                home.remove();
            }
            return;
        }
        if Instant::now() >= deadline {
            let shown: Vec<_> = left.iter().map(|&pid| (pid, name_of(pid), state_of(pid), parent_of(pid))).collect();
            left.into_iter().for_each(kill_now);
            panic!("left behind (pid, name, state, parent): {shown:?}; cgroups: {cgroups:?}; prun said:\n{said}");
        }
        thread::sleep(Duration::from_millis(5));
    }
}

/// Tries until `attempt` gives something; panics after [`HANG`].
#[track_caller]
pub fn eventually<T>(what: &str, mut attempt: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + HANG;
    loop {
        if let Some(found) = attempt() {
            return found;
        }
        assert!(Instant::now() < deadline, "no {what} within {HANG:?}");
        thread::sleep(Duration::from_millis(2));
    }
}

/// The name that `ps` shows.
pub fn name_of(pid: i32) -> Option<String> {
    Some(fs::read_to_string(format!("/proc/{pid}/comm")).ok()?.trim_end().to_owned())
}

/// One field of `/proc/<pid>/status`.
pub fn status_field(pid: i32, field: &str) -> Option<String> {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    text.lines().find_map(|line| Some(line.strip_prefix(field)?.strip_prefix(':')?.trim().to_owned()))
}

/// The parent's process id.
pub fn parent_of(pid: i32) -> Option<i32> {
    status_field(pid, "PPid")?.parse().ok()
}

/// The first letter of the state: R, S, T, Z, …
pub fn state_of(pid: i32) -> Option<char> {
    status_field(pid, "State")?.chars().next()
}

/// The environment that a process was started with.
pub fn environment(pid: i32) -> Vec<Vec<u8>> {
    let bytes = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    bytes.split(|&byte| byte == 0).map(<[u8]>::to_vec).collect()
}

/// Names in /dev/shm.
pub fn shared_memory() -> BTreeSet<OsString> {
    names_in(Path::new("/dev/shm"))
}

/// Names in a directory.
pub fn names_in(directory: &Path) -> BTreeSet<OsString> {
    fs::read_dir(directory)
        .map(|entries| entries.flatten().map(|entry| entry.file_name()).collect())
        .unwrap_or_default()
}

/// The cgroup directories of prun jobs on this machine.
pub fn job_cgroups() -> Vec<PathBuf> {
    fn walk(directory: &Path, depth: usize, found: &mut Vec<PathBuf>) {
        let Ok(entries) = fs::read_dir(directory) else { return };
        for entry in entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
            if entry.file_name().as_bytes().starts_with(b"prun-") {
                found.push(entry.path());
            }
            if depth > 0 {
                walk(&entry.path(), depth - 1, found);
            }
        }
    }
    let mut found = Vec::new();
    walk(Path::new("/sys/fs/cgroup"), 4, &mut found);
    found
}

pub(crate) fn occurrences(bytes: &[u8], text: &[u8]) -> usize {
    bytes.windows(text.len()).filter(|window| window == &text).count()
}

/// A path as text for a shell script, quoted.
pub fn quoted(path: impl AsRef<OsStr>) -> String {
    format!("'{}'", path.as_ref().to_string_lossy().replace('\'', "'\\''"))
}
