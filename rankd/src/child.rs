//! Starts one rank: everything between "not yet a process" and its own `main`.
//!
//! The child is made with `CLONE_VM | CLONE_VFORK | CLONE_FILES | CLONE_PIDFD`: it borrows rankd's memory and its table of
//! descriptors until it execs, so nothing is copied, a failure comes back through plain memory, and the pidfd names
//! exactly this process. rankd stands still meanwhile. In return the code that runs in the child (`become_rank`) may only
//! make system calls and write to the `Setup` it was given: no allocation, no lock, no panic. It leaves the shared table
//! by `close_range(…, CLOSE_RANGE_UNSHARE)`, which copies just the few descriptors that the rank keeps; what it did to
//! 0, 1 and 2 before that, `Spawner::spawn` undoes.
//!
//! What was tried (256 × `/bin/true`, 2 cores, median of 7, rankd's spawn loop alone): fork + exec 161 ms,
//! `posix_spawn` without death signal or affinity 110 ms, this 112 ms.

use std::ffi::{CStr, CString, c_int, c_void};
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;

use crate::fork::is_ignored;

/// What one rank needs, in the form that system calls take.
pub struct Request<'a> {
    /// Absolute path, or one relative to `working_dir`.
    pub path: &'a CStr,
    /// Program name and arguments.
    pub argv: &'a [CString],
    /// `NAME=VALUE` each, in two lists that are passed as one.
    pub env: [&'a [CString]; 2],
    /// Where to `chdir` first.
    pub working_dir: Option<&'a CStr>,
    /// The only CPUs it may use.
    pub cpus: Option<&'a CpuMask>,
    /// The NUMA node whose memory it gets first.
    pub memory_node: Option<usize>,
    /// Device files that it must be able to open.
    pub devices: &'a [CString],
    /// Its standard input, output and error; all above 2.
    pub stdio: [BorrowedFd<'a>; 3],
    /// Take standard input as the controlling terminal.
    pub controlling_terminal: bool,
    /// The one other descriptor it inherits: the job's segment.
    pub inherited: Option<BorrowedFd<'a>>,
    /// The limit on open files that prun itself was started with.
    pub open_files: libc::rlimit,
}

/// A CPU set of any size, as `sched_setaffinity` takes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CpuMask(Vec<u64>);

impl CpuMask {
    /// The set of these CPUs.
    pub fn new(cpus: &[usize]) -> CpuMask {
        let words = cpus.iter().max().map_or(1, |&last| last / 64 + 1);
        let mut mask = vec![0u64; words];
        for cpu in cpus {
            mask[cpu / 64] |= 1 << (cpu % 64);
        }
        CpuMask(mask)
    }
}

/// A rank's process, just started.
#[derive(Debug)]
pub struct Child {
    /// Its process id, also its process group.
    pub pid: i32,
    /// Names this process even after its number was given away.
    pub pidfd: OwnedFd,
}

/// Which step failed, and the kernel's reason.
#[derive(Debug)]
pub struct SpawnError {
    /// The step.
    pub step: Step,
    /// `errno` of it.
    pub cause: io::Error,
}

/// The steps of a start, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub enum Step {
    /// A new process.
    Clone = 1,
    /// A process group or session of its own.
    Group,
    /// Dying with rankd.
    DeathSignal,
    /// Standard input, output, error, and no other descriptor.
    Descriptors,
    /// The working directory.
    WorkingDirectory,
    /// The CPU set.
    Affinity,
    /// The CPU set was taken, and a different one is in force.
    AffinityDiffers,
    /// The memory policy.
    Memory,
    /// A GPU's device file.
    Device,
    /// `execve`.
    Exec,
}

/// Lives as long as the spawning process: what all children share.
pub struct Spawner {
    stack: Box<[MaybeUninit<u8>]>,
    ignored: Vec<c_int>,
    own_pid: i32,
    /// What rankd's own 0, 1 and 2 are; without it the table is not shared.
    null: Option<File>,
}

/// What the child reads, and the two words it writes when it fails. Lives on rankd's stack while rankd waits.
struct Setup {
    path: *const libc::c_char,
    argv: *const *const libc::c_char,
    envp: *const *const libc::c_char,
    working_dir: *const libc::c_char,
    cpus: *const u64,
    cpu_bytes: usize,
    memory_nodes: [u64; NODE_WORDS],
    devices: *const *const libc::c_char,
    stdio: [RawFd; 3],
    controlling_terminal: bool,
    inherited: RawFd,
    open_files: libc::rlimit,
    ignored: *const c_int,
    ignored_count: usize,
    parent: i32,
    failed_step: c_int,
    failed_errno: c_int,
}

/// `become_rank` needs less than 4 KiB; memory that is not touched costs nothing.
const STACK_BYTES: usize = 32 << 10;
/// Linux can be built for 1024 NUMA nodes.
const NODE_WORDS: usize = 1024 / 64;
/// As many CPUs as are compared after they were set; a machine with more is believed.
const COMPARED_WORDS: usize = 8192 / 64;
/// `MPOL_PREFERRED`: this node first, others when it is full.
const PREFERRED: c_int = 1;

impl Spawner {
    /// Remembers which signals are ignored now: `execve` would hand that on, and only an ignored SIGHUP
    /// (`nohup`) is meant to be.
    pub fn new() -> Spawner {
        let ignored = (1..libc::SIGRTMAX()).filter(|&signal| signal != libc::SIGHUP && is_ignored(signal)).collect();
        Spawner {
            stack: Box::new_uninit_slice(STACK_BYTES),
            ignored,
            own_pid: rustix::process::getpid().as_raw_nonzero().get(),
            null: File::options().read(true).write(true).open("/dev/null").ok(),
        }
    }

    /// Starts `request`; returns once the new program runs, or with the step that failed.
    pub fn spawn(&mut self, request: &Request<'_>) -> Result<Child, SpawnError> {
        let argv = pointers(&[request.argv]);
        let envp = pointers(&request.env);
        let devices = pointers(&[request.devices]);
        let mut setup = Setup {
            path: request.path.as_ptr(),
            argv: argv.as_ptr(),
            envp: envp.as_ptr(),
            working_dir: request.working_dir.map_or(ptr::null(), CStr::as_ptr),
            cpus: request.cpus.map_or(ptr::null(), |mask| mask.0.as_ptr()),
            cpu_bytes: request.cpus.map_or(0, |mask| mask.0.len() * 8),
            memory_nodes: nodes(request.memory_node),
            devices: devices.as_ptr(),
            stdio: request.stdio.map(|fd| fd.as_raw_fd()),
            controlling_terminal: request.controlling_terminal,
            inherited: request.inherited.map_or(-1, |fd| fd.as_raw_fd()),
            open_files: request.open_files,
            ignored: self.ignored.as_ptr(),
            ignored_count: self.ignored.len(),
            parent: self.own_pid,
            failed_step: 0,
            failed_errno: 0,
        };
        let mut pidfd: RawFd = -1;
        let shared = if self.null.is_some() { libc::CLONE_FILES } else { 0 };
        let flags = libc::CLONE_VM | libc::CLONE_VFORK | shared | libc::CLONE_PIDFD | libc::SIGCHLD;
        // SAFETY: the stack is ours, large enough for `become_rank` and unused until the child has gone from it
        // (CLONE_VFORK: this call returns only after exec or exit). `setup` and all it points to outlive the call.
        // All signals are blocked in rankd, so no handler runs on the borrowed memory.
        let pid = unsafe {
            let top = self.stack.as_mut_ptr().cast::<u8>().add(STACK_BYTES);
            let top = top.sub(top as usize % 16).cast::<c_void>();
            libc::clone(become_rank, top, flags, ptr::from_mut(&mut setup).cast(), &mut pidfd)
        };
        self.take_back_stdio();
        if pid < 0 {
            return Err(SpawnError { step: Step::Clone, cause: io::Error::last_os_error() });
        }
        // SAFETY: the kernel stored a new descriptor there, which nobody else knows.
        let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
        // SAFETY: a plain word of our own; volatile since the child wrote it behind the compiler's back.
        let (step, errno) =
            unsafe { (ptr::read_volatile(&setup.failed_step), ptr::read_volatile(&setup.failed_errno)) };
        if step != 0 {
            let _ =
                rustix::process::waitpid(rustix::process::Pid::from_raw(pid), rustix::process::WaitOptions::empty());
            return Err(SpawnError { step: Step::from_number(step), cause: io::Error::from_raw_os_error(errno) });
        }
        Ok(Child { pid, pidfd })
    }

    /// The child put its own ends of pipes over 0, 1 and 2 in the table that it shared with us; as long as we held one,
    /// nobody would see the end of that rank's output.
    fn take_back_stdio(&self) {
        let Some(null) = &self.null else { return };
        for target in 0..3 {
            // SAFETY: both are open; 0, 1 and 2 are owned by nobody in rankd.
            unsafe { libc::dup2(null.as_raw_fd(), target) };
        }
    }
}

impl Default for Spawner {
    fn default() -> Spawner {
        Spawner::new()
    }
}

impl Step {
    fn from_number(number: c_int) -> Step {
        [
            Step::Group,
            Step::DeathSignal,
            Step::Descriptors,
            Step::WorkingDirectory,
            Step::Affinity,
            Step::AffinityDiffers,
            Step::Memory,
            Step::Device,
        ]
        .into_iter()
        .find(|&step| step as c_int == number)
        .unwrap_or(Step::Exec)
    }
}

/// A node as the kernel's mask; empty for none.
fn nodes(node: Option<usize>) -> [u64; NODE_WORDS] {
    let mut mask = [0; NODE_WORDS];
    if let Some(word) = node.and_then(|node| mask.get_mut(node / 64)) {
        *word = 1 << (node.unwrap_or(0) % 64);
    }
    mask
}

/// The strings of all lists, and the null pointer that ends them.
fn pointers(lists: &[&[CString]]) -> Vec<*const libc::c_char> {
    lists.iter().flat_map(|list| list.iter()).map(|text| text.as_ptr()).chain([ptr::null()]).collect()
}

/// Runs in the child, on borrowed memory: system calls only.
extern "C" fn become_rank(argument: *mut c_void) -> c_int {
    // SAFETY: `spawn` passes its own Setup and waits until we are gone; every pointer in it is valid until then,
    // every list ends with null, and nobody else touches it.
    unsafe {
        let setup = &mut *argument.cast::<Setup>();
        let step = prepare(setup);
        setup.failed_errno = *libc::__errno_location();
        setup.failed_step = step as c_int;
        libc::_exit(127)
    }
}

/// Returns only on failure, with the step that failed; `errno` tells why.
///
/// SAFETY: see `become_rank`.
unsafe fn prepare(setup: &Setup) -> Step {
    // SAFETY: system calls on descriptors and pointers that `spawn` vouches for.
    unsafe {
        let grouped = if setup.controlling_terminal { libc::setsid() } else { libc::setpgid(0, 0) };
        if grouped < 0 {
            return Step::Group;
        }
        // The death signal belongs to the thread that cloned us: rankd has one. If rankd died before the
        // signal was armed, we have another parent already, and nobody would ever end us.
        if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) < 0 || libc::getppid() != setup.parent {
            return Step::DeathSignal;
        }
        for index in 0..setup.ignored_count {
            libc::signal(*setup.ignored.add(index), libc::SIG_DFL);
        }
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &none, ptr::null_mut());
        for (target, &fd) in setup.stdio.iter().enumerate() {
            if libc::dup2(fd, target as c_int) < 0 {
                return Step::Descriptors;
            }
        }
        keep_descriptors(setup.inherited);
        if setup.inherited >= 0 && libc::fcntl(setup.inherited, libc::F_SETFD, 0) < 0 {
            return Step::Descriptors;
        }
        if setup.controlling_terminal && libc::ioctl(0, libc::TIOCSCTTY, 0) < 0 {
            return Step::Descriptors;
        }
        if !setup.working_dir.is_null() && libc::chdir(setup.working_dir) < 0 {
            return Step::WorkingDirectory;
        }
        if !setup.cpus.is_null() {
            if libc::sched_setaffinity(0, setup.cpu_bytes, setup.cpus.cast()) < 0 {
                return Step::Affinity;
            }
            if !has_affinity(setup) {
                return Step::AffinityDiffers;
            }
        }
        if !has_memory_policy(setup) {
            return Step::Memory;
        }
        // Not opened: that would wake a GPU that rests. `access` asks the device cgroup, too.
        let mut device = setup.devices;
        while !(*device).is_null() {
            if libc::access(*device, libc::R_OK | libc::W_OK) < 0 {
                return Step::Device;
            }
            device = device.add(1);
        }
        libc::setrlimit(libc::RLIMIT_NOFILE, &setup.open_files);
        libc::execve(setup.path, setup.argv, setup.envp);
        Step::Exec
    }
}

/// A table of descriptors of one's own with 0, 1, 2 and `inherited`: the kernel copies those up to the first that is to
/// be closed, and rankd makes the segment before anything else, so that its number is the lowest.
///
/// Where the call is not allowed, `execve` closes the others: rankd has none that is not close-on-exec.
///
/// SAFETY: see `become_rank`.
unsafe fn keep_descriptors(inherited: RawFd) {
    let first = inherited.max(2) as u32 + 1;
    // SAFETY: closes descriptors of this process only, which has left rankd's table by then.
    unsafe {
        if libc::syscall(libc::SYS_close_range, first, u32::MAX, libc::CLOSE_RANGE_UNSHARE) == 0 && first > 4 {
            libc::syscall(libc::SYS_close_range, 3u32, first - 2, 0);
        }
    }
}

/// Whether the CPUs in force are those that were set: a cgroup narrows a set without a word.
///
/// SAFETY: see `become_rank`.
unsafe fn has_affinity(setup: &Setup) -> bool {
    let mut found = [0u64; COMPARED_WORDS];
    let words = setup.cpu_bytes / 8;
    // SAFETY: the kernel writes at most as many bytes as it is given; `cpus` holds `cpu_bytes` bytes.
    unsafe {
        let bytes = libc::syscall(libc::SYS_sched_getaffinity, 0, size_of_val(&found), found.as_mut_ptr());
        bytes < 0
            || words > found.len()
            || (0..found.len()).all(|at| found[at] == if at < words { *setup.cpus.add(at) } else { 0 })
    }
}

/// Sets the memory policy and looks whether it is in force. Where system calls of this kind are forbidden (many
/// containers), ranks go without: memory is near to the CPUs that first touch it anyway.
///
/// SAFETY: see `become_rank`.
unsafe fn has_memory_policy(setup: &Setup) -> bool {
    if setup.memory_nodes.iter().all(|word| *word == 0) {
        return true;
    }
    let bits = NODE_WORDS * 64;
    let (mut mode, mut found) = (0 as c_int, [0u64; NODE_WORDS]);
    // SAFETY: both masks have `bits` bits.
    unsafe {
        if libc::syscall(libc::SYS_set_mempolicy, PREFERRED, setup.memory_nodes.as_ptr(), bits + 1) < 0 {
            return matches!(*libc::__errno_location(), libc::EPERM | libc::ENOSYS);
        }
        let got = libc::syscall(libc::SYS_get_mempolicy, &raw mut mode, found.as_mut_ptr(), bits, 0usize, 0usize);
        got < 0 || (mode == PREFERRED && found == setup.memory_nodes)
    }
}
