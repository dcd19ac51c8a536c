//! A job from its validation to prun's exit code: plan, attempt, and attempt again where that was asked for.

use std::ffi::OsString;
use std::fs;
use std::io::Read;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::{Resource, getrlimit};

use crate::batch::fit;
use crate::doctor::watch::{self, Change};
use crate::job::Job;
use crate::machine::proof;
use crate::placement::cpuset::CpuSet;
use crate::placement::held::Hold;
use crate::placement::{self, Node, StartContext, explain};
use crate::refused::Refused;
use crate::report::jsonl::Jsonl;
use crate::supervise::signals::{Signals, signal_name};
use crate::supervise::text::seconds;
use crate::supervise::{self, Outcome, Setting};
use crate::topology::{PciAddress, known};

/// The wait before the first restart; each further one is twice as long, up to [`LONGEST_BACK_OFF`].
const FIRST_BACK_OFF: Duration = Duration::from_secs(1);
/// No wait before a restart is longer.
const LONGEST_BACK_OFF: Duration = Duration::from_secs(30);

/// What has come of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Done {
    /// It ran; prun ends with this code.
    Code(u8),
    /// It was only planned; this is to be printed.
    Text(String),
}

/// Runs the job (or, with `--dry-run`, shows its plan) and gives prun's exit code.
///
/// # Errors
/// [`Refused`] if it cannot be started on this machine.
pub fn run(job: &Job, inherited: Vec<(OsString, OsString)>) -> Result<Done, Refused> {
    let (job, shortened) = fit::fitted(job, &inherited);
    let job = &job;
    if let Some(note) = shortened.filter(|_| job.verbosity >= 0) {
        eprintln!("prun: {note}");
    }
    let mut context = start_context(inherited)?;
    let root = root(&context.inherited);
    let node = Node::read_for(job, &root, &context.inherited, &context.hostname);
    if job.dry_run {
        let plan = placement::plan(job, &node, &context)?;
        return Ok(Done::Text(explain::explain(&plan, &node, &context)));
    }
    start_log(job.verbosity);
    let signals = Signals::block().map_err(|cause| Refused::new("cannot watch for signals").because(cause))?;
    let json = job.json.as_ref().map(Jsonl::open).transpose()?;
    let code = attempts(job, node, &mut context, &signals, json.as_ref());
    if let Some(json) = json {
        json.close();
    }
    code.map(|code| Done::Code(exit_byte(code)))
}

fn attempts(
    job: &Job,
    mut node: Node,
    context: &mut StartContext,
    signals: &Signals,
    json: Option<&Jsonl>,
) -> Result<i32, Refused> {
    let root = root(&context.inherited);
    let is_real = root == Path::new("/");
    loop {
        let restart = context.restart_count;
        context.job_id = new_job_id()?;
        context.master_port = free_loopback_port()?;
        let mut plan = placement::plan(job, &node, context)?;
        if let Some(note) = is_real.then(|| proof::before_start(&mut node, &plan, context)).flatten() {
            if job.verbosity >= 0 {
                eprintln!("prun: {note}");
            }
            plan = placement::plan(job, &node, context)?;
        }
        if restart == 0 && job.verbosity >= 0 {
            plan.notes.iter().for_each(|note| eprintln!("prun: {note}"));
        }
        log::debug!("variables of another world that the ranks do not get: {:?}", plan.removed);
        let _hold = hold(&plan, &node);
        if !is_real {
            // The device files of a made-up machine are not those of this one.
            plan.node.ranks.iter_mut().for_each(|rank| rank.devices.clear());
        }
        let setting =
            Setting { signals, host: &context.hostname, restart, json, root: &root, watched: watched(job, &plan) };
        let Outcome { code, rank_failed, faults, error_rates } = supervise::attempt(job, plan.node, &setting)
            .map_err(|error| Refused::new(without_prefix(&error.to_string())))?;
        if let (Some(machine), false) = (&mut node.machine, error_rates.is_empty()) {
            let place = known::place(&context.inherited, &root, machine);
            known::note_errors(machine, place.as_deref(), &error_rates);
        }
        if !(rank_failed || faults.is_some()) || restart >= job.ending.max_restarts {
            return Ok(code);
        }
        if let Some(faults) = faults {
            node = after_faults(job, &node, &faults, context);
        }
        context.restart_count += 1;
        let wait = back_off(restart);
        eprintln!(
            "prun: starting again in {} (restart {} of {})",
            seconds(wait),
            context.restart_count,
            job.ending.max_restarts
        );
        if let Some(signal) = supervise::pause(signals, wait) {
            eprintln!("prun: not started again: stopped by {}", signal_name(signal));
            return Ok(128 + signal);
        }
    }
}

/// Where the machine's files are: `/`, unless a test of prun has made up a machine.
fn root(inherited: &[(OsString, OsString)]) -> PathBuf {
    let told = inherited.iter().find(|(name, _)| name == watch::TEST_ROOT);
    told.map_or_else(|| "/".into(), |(_, root)| root.into())
}

/// The machine as it is now, without the GPUs that are lost.
fn after_faults(job: &Job, before: &Node, faults: &[Change], context: &StartContext) -> Node {
    let lost: Vec<PciAddress> = faults
        .iter()
        .filter(|fault| fault.is_lost())
        .filter_map(|fault| before.machine.as_ref()?.gpus.iter().find(|gpu| gpu.index == fault.gpu)?.address)
        .collect();
    let mut node = Node::read_for(job, &root(&context.inherited), &context.inherited, &context.hostname);
    node.leave_out(&lost);
    node
}

/// The GPUs of the job with their ranks, if they are to be looked at while it runs.
fn watched(job: &Job, plan: &placement::Plan) -> Vec<(usize, Vec<u32>)> {
    if job.placement.watch == Some(false) {
        return Vec::new();
    }
    let ranks = |at: usize| (0u32..).zip(&plan.gpus.of_rank).filter(move |(_, its)| **its == at).map(|(rank, _)| rank);
    plan.gpus.seen.iter().enumerate().map(|(at, unit)| (unit.gpu, ranks(at).collect())).collect()
}

/// Tells other jobs which GPUs and which cores this one has. Ranks that may use all CPUs hold none.
fn hold(plan: &placement::Plan, node: &Node) -> Hold {
    let gpus: Vec<PciAddress> = plan.gpus.seen.iter().filter_map(|unit| unit.address).collect();
    let mut cpus = CpuSet::default();
    for set in plan.node.ranks.iter().filter_map(|rank| rank.cpus.as_ref()) {
        cpus.extend(&set.iter().copied().collect());
    }
    let everything = node.cpus.as_ref().is_some_and(|all| cpus == all.usable) && plan.gpus.seen.is_empty();
    let cpus = if everything && plan.node.ranks.len() < cpus.len() { CpuSet::default() } else { cpus };
    if gpus.is_empty() && cpus.is_empty() { Hold::default() } else { Hold::take(&plan.node.job_id, &gpus, &cpus) }
}

fn back_off(restarts_so_far: u32) -> Duration {
    FIRST_BACK_OFF.saturating_mul(1 << restarts_so_far.min(5)).min(LONGEST_BACK_OFF)
}

/// prun's exit code is one byte, as every process's is.
fn exit_byte(code: i32) -> u8 {
    u8::try_from(code).unwrap_or(crate::exit::REFUSED)
}

fn without_prefix(message: &str) -> String {
    message.strip_prefix("error: ").unwrap_or(message).to_owned()
}

fn start_context(inherited: Vec<(OsString, OsString)>) -> Result<StartContext, Refused> {
    let limit = getrlimit(Resource::Nofile);
    let cwd = std::env::current_dir().map_err(|cause| {
        Refused::new("the working directory is gone").because(cause).try_instead("cd to a directory that exists")
    })?;
    Ok(StartContext {
        inherited,
        job_id: String::new(),
        master_port: 0,
        hostname: rustix::system::uname().nodename().to_string_lossy().into_owned(),
        restart_count: 0,
        cwd,
        open_files: (limit.current.unwrap_or(u64::MAX), limit.maximum.unwrap_or(u64::MAX)),
    })
}

/// Sixteen hex digits that no other job has.
fn new_job_id() -> Result<String, Refused> {
    let mut bytes = [0u8; 8];
    fs::File::open("/dev/urandom")
        .and_then(|mut source| source.read_exact(&mut bytes))
        .map_err(|cause| Refused::new("cannot make a job id").because(format!("/dev/urandom: {cause}")))?;
    Ok(format!("{:016x}", u64::from_ne_bytes(bytes)))
}

/// A port for the program's own rendezvous (`MASTER_PORT`). It is free now; the kernel gives such ports out in
/// turn, so the next to ask for any port gets another.
fn free_loopback_port() -> Result<u16, Refused> {
    TcpListener::bind(("127.0.0.1", 0))
        .and_then(|listener| listener.local_addr())
        .map(|address| address.port())
        .map_err(|cause| {
            Refused::new("cannot find a free port for MASTER_PORT").because(cause).try_instead("`ip link set lo up`")
        })
}

/// `-v` shows what prun does, `-vv` all of it; `PRUN_LOG` sets it by module.
fn start_log(verbosity: i8) {
    let asked = std::env::var_os("PRUN_LOG").is_some();
    if verbosity <= 0 && !asked {
        return;
    }
    let level = if verbosity > 1 { "debug" } else { "info" };
    let _ = env_logger::Builder::from_env(env_logger::Env::new().filter_or("PRUN_LOG", level))
        .format_timestamp_millis()
        .try_init();
}
