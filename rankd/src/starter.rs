//! Prepares each rank's start: finds its program, puts its environment together, and tries `/bin/sh` for a
//! script that has no `#!` line.

use std::borrow::Cow;
use std::ffi::{CString, NulError, OsStr};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use comm::node::{JobSegment, JoinServer};

use crate::child::{Child, CpuMask, Request, SpawnError, Spawner, Step};
use crate::environment::RankEnvironment;
use crate::program::{Refusal, explain, find, is_shell_text, os_text};
use crate::proto::{NodePlan, RankPlan};
use crate::start::RankStdio;

/// What stays the same from rank to rank, in the form that `execve` takes.
pub(crate) struct Starter {
    environment: RankEnvironment,
    argv: Vec<Vec<CString>>,
    found: Vec<Option<Found>>,
    open_files: libc::rlimit,
}

/// A program once it was looked for. Ranks of one program in one directory share it.
#[derive(Clone)]
struct Found {
    working_dir: Option<PathBuf>,
    path: PathBuf,
    through_shell: bool,
}

impl Starter {
    pub(crate) fn new(
        plan: &NodePlan,
        segment: Option<&JobSegment>,
        join: Option<&JoinServer>,
    ) -> Result<Starter, Refusal> {
        let argv = plan
            .programs
            .iter()
            .map(|program| program.argv.iter().map(|argument| c_string(argument)).collect())
            .collect::<Result<Vec<Vec<_>>, _>>()?;
        let segment_fd = segment.map(|segment| segment.as_fd().as_raw_fd());
        let environment =
            RankEnvironment::new(&plan.base_env, segment_fd, join.map(JoinServer::name)).map_err(nul_in_text)?;
        let found = vec![None; plan.programs.len()];
        Ok(Starter { environment, argv, found, open_files: to_rlimit(plan.open_files) })
    }

    pub(crate) fn start(
        &mut self,
        spawner: &mut Spawner,
        plan: &NodePlan,
        index: usize,
        stdio: &RankStdio,
        segment: Option<&JobSegment>,
    ) -> Result<Child, Refusal> {
        let rank = &plan.ranks[index];
        let own_env = rank.env.iter().map(|entry| c_string(entry)).collect::<Result<Vec<_>, _>>()?;
        let working_dir = rank.working_dir.as_deref().map(|directory| Path::new(OsStr::from_bytes(directory)));
        let found = self.find(plan, rank, working_dir)?;
        let cpus = rank.cpus.as_deref().map(CpuMask::new);
        let devices = rank.devices.iter().map(|device| c_string(device)).collect::<Result<Vec<_>, _>>()?;
        let directory = working_dir.map(|directory| c_string(directory.as_os_str().as_bytes())).transpose()?;
        let mut attempt = |found: &Found, argv: &[CString]| {
            let path = c_string(if found.through_shell { b"/bin/sh" } else { found.path.as_os_str().as_bytes() })?;
            let request = Request {
                path: &path,
                argv,
                env: [self.environment.shared_beside(&own_env), &own_env],
                working_dir: directory.as_deref(),
                cpus: cpus.as_ref(),
                memory_node: rank.memory_node,
                devices: &devices,
                stdio: [stdio.stdin.as_fd(), stdio.stdout.as_fd(), stdio.stderr.as_fd()],
                controlling_terminal: rank.controlling_terminal,
                inherited: segment.map(JobSegment::as_fd),
                open_files: self.open_files,
            };
            Ok::<_, Refusal>(spawner.spawn(&request))
        };
        let argv = shell_argv(&found, &self.argv[rank.program])?;
        let error = match attempt(&found, &argv)? {
            Ok(child) => return Ok(child),
            Err(error) => error,
        };
        if error.step == Step::Device {
            return Err(closed_device(rank, &error));
        }
        let seen = working_dir.map_or_else(|| found.path.clone(), |base| base.join(&found.path));
        let is_text_without_interpreter =
            error.cause.raw_os_error() == Some(libc::ENOEXEC) && !found.through_shell && is_shell_text(&seen);
        if !is_text_without_interpreter {
            return Err(explain(&found.path, working_dir, &error));
        }
        // As execvp does, and every shell: a text without a '#!' line is a shell script.
        let found = Found { through_shell: true, ..found };
        let argv = shell_argv(&found, &self.argv[rank.program])?;
        let child = attempt(&found, &argv)?.map_err(|error| explain(Path::new("/bin/sh"), working_dir, &error))?;
        self.found[rank.program] = Some(found);
        Ok(child)
    }

    fn find(&mut self, plan: &NodePlan, rank: &RankPlan, working_dir: Option<&Path>) -> Result<Found, Refusal> {
        if let Some(found) =
            self.found[rank.program].as_ref().filter(|found| found.working_dir.as_deref() == working_dir)
        {
            return Ok(found.clone());
        }
        let name = OsStr::from_bytes(&plan.programs[rank.program].argv[0]);
        let path_variable =
            rank.env.iter().chain(&plan.base_env).find_map(|entry| entry.strip_prefix(b"PATH=")).map(OsStr::from_bytes);
        let found = Found {
            working_dir: working_dir.map(Path::to_owned),
            path: find(name, path_variable, working_dir)?,
            through_shell: false,
        };
        self.found[rank.program] = Some(found.clone());
        Ok(found)
    }
}

/// A GPU of the plan that the rank's own process cannot open.
fn closed_device(rank: &RankPlan, error: &SpawnError) -> Refusal {
    use rustix::fs::{Access, access};
    let closed = |device: &&Vec<u8>| access(OsStr::from_bytes(device), Access::READ_OK | Access::WRITE_OK).is_err();
    let device = rank.devices.iter().find(closed).map_or("a device file".into(), |path| String::from_utf8_lossy(path));
    Refusal {
        reason: format!(
            "rank {} cannot use a GPU that it was given\n  cause: {device}: {}\n  try: `prun doctor`; GPUs that this job may use with --gpus; permissions of the device file or of the batch system's cgroup",
            rank.rank,
            os_text(&error.cause)
        ),
        code: 125,
    }
}

/// `sh FILE ARGS…` for a script without a `#!` line, else the arguments as they are.
fn shell_argv<'a>(found: &Found, argv: &'a [CString]) -> Result<Cow<'a, [CString]>, Refusal> {
    if !found.through_shell {
        return Ok(argv.into());
    }
    let script = c_string(found.path.as_os_str().as_bytes())?;
    Ok([c"/bin/sh".to_owned(), script].into_iter().chain(argv[1..].iter().cloned()).collect::<Vec<_>>().into())
}

fn c_string(bytes: &[u8]) -> Result<CString, Refusal> {
    CString::new(bytes).map_err(nul_in_text)
}

fn nul_in_text(_: NulError) -> Refusal {
    Refusal { reason: "an argument, variable or directory holds a NUL byte\n  cause: Linux ends such texts at the first NUL\n  try: pass it in a file".into(), code: 125 }
}

fn to_rlimit((soft, hard): (u64, u64)) -> libc::rlimit {
    libc::rlimit { rlim_cur: soft, rlim_max: hard }
}
